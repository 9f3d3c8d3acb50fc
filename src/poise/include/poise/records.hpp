// The 32-byte records that poise reads where they lie. Valid C11 and C++20; nothing to link.
//
// A producer fills an array of cells, 64-byte aligned, and hands it over: in shared memory (poise/stream.hpp), as a raw
// pointer, through __cuda_array_interface__, DLPack or CUDA IPC. Every offset below is checked when this is compiled, and
// poise's numpy dtypes are tested against it.
#ifndef POISE_RECORDS_HPP
#define POISE_RECORDS_HPP

#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
#include <type_traits>
#else
#include <assert.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>
#endif

// A cell of a field with two sensors. `status` 0: good; anything else: poise leaves the record alone.
struct poise_pinn_cell {
  alignas(32) float w;  // the relaxed field; poise writes it only where the producer agreed
  float u;              // what the first sensor says
  float v;              // what the second sensor says
  float gain;           // of the relaxation or of the correction
  uint32_t status;
  uint32_t id;
  uint32_t pad[2];
};

// A parameter with the state of its optimizer.
struct poise_pim_cell {
  alignas(32) float w;  // the parameter
  float m;              // first moment
  float v;              // second moment
  float lr_mask;        // scales the learning rate
  float wd_mask;        // scales the weight decay
  uint32_t status;
  uint32_t id;
  uint32_t pad;
};

#define POISE_AT(cell, field, offset) \
  static_assert(offsetof(struct cell, field) == (offset), #cell "." #field " must lie at byte " #offset)
static_assert(sizeof(float) == 4, "a float must have 4 bytes");
static_assert(sizeof(struct poise_pinn_cell) == 32, "a PINN cell must have 32 bytes");
static_assert(alignof(struct poise_pinn_cell) == 32, "a PINN cell must be aligned to 32 bytes");
static_assert(sizeof(struct poise_pim_cell) == 32, "a PIM cell must have 32 bytes");
static_assert(alignof(struct poise_pim_cell) == 32, "a PIM cell must be aligned to 32 bytes");
POISE_AT(poise_pinn_cell, w, 0);
POISE_AT(poise_pinn_cell, u, 4);
POISE_AT(poise_pinn_cell, v, 8);
POISE_AT(poise_pinn_cell, gain, 12);
POISE_AT(poise_pinn_cell, status, 16);
POISE_AT(poise_pinn_cell, id, 20);
POISE_AT(poise_pinn_cell, pad, 24);
POISE_AT(poise_pim_cell, w, 0);
POISE_AT(poise_pim_cell, m, 4);
POISE_AT(poise_pim_cell, v, 8);
POISE_AT(poise_pim_cell, lr_mask, 12);
POISE_AT(poise_pim_cell, wd_mask, 16);
POISE_AT(poise_pim_cell, status, 20);
POISE_AT(poise_pim_cell, id, 24);
POISE_AT(poise_pim_cell, pad, 28);
#undef POISE_AT

#ifdef __cplusplus
namespace poise {
using PinnCell = ::poise_pinn_cell;
using PimCell = ::poise_pim_cell;
static_assert(std::is_trivially_copyable_v<PinnCell> && std::is_standard_layout_v<PinnCell>);
static_assert(std::is_trivially_copyable_v<PimCell> && std::is_standard_layout_v<PimCell>);
}  // namespace poise
#endif
#endif
