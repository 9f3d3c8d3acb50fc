// The kernels of one instruction set as a table of range functions, and the choice among tables at run time. Everything
// here is the same type for every instruction set; threads and buffers are the callers' business.
#pragma once
#include <cstdint>

#include "poise/record.h"

namespace poise {

struct Count5 {  // Mended or Scan, by field order
  int64_t v[5];
};

struct SealArgs {
  const uint32_t* words;
  int64_t n;
  uint32_t *parity, *marks, *guard;
};

struct AdamWArgs {
  uint32_t* words[3];
  uint32_t* parity[3];
  uint32_t* marks[3];
  uint32_t* guard[3];
  const float *g, *lr_mask, *wd_mask, *hyper;
  uint16_t* low;
  int64_t n;
  bool ok;
};

template <class T>
struct Stencil2Args {
  const T* in;
  T* out;
  int64_t H, W;
  int steps, radius, edge_y, edge_x;
  T edge;
  const T* coefficients;  // [2][2 radius + 1]
  Gate<T> gate;
};

template <class T>
struct Stencil3Args {
  const T* in;
  T* out;
  int64_t D, H, W;
  int steps, edge_z, edge_y, edge_x;
  T edge;
  const T* coefficients;  // [3][3], z first
  Gate<T> gate;
};

struct Box3 {  // outputs of one task
  int64_t z0, z1, y0, y1, x0, x1;
};

template <class T>
struct BurgersArgs {
  const T *q, *base, *west, *east, *south, *north, *forcing;
  T* out;
  int64_t nx, ny;
  T number[5];  // 1 / (2 h), nu / h^2, c_base, c_in, c_rate
};

struct Table {
  const char* name;
  int64_t (*seal)(const SealArgs&, int64_t g0, int64_t g1);
  int64_t (*seal_counting)(const SealArgs&, int64_t g0, int64_t g1, uint32_t limit2);
  void (*check)(const SealArgs&, int64_t g0, int64_t g1, int64_t off[3]);
  void (*repair)(uint32_t* words, const SealArgs&, int64_t g0, int64_t g1, int64_t mended[5]);
  void (*adamw)(const AdamWArgs&, int64_t g0, int64_t g1, int64_t mended[3][5]);
  void (*scan32)(const Gate<float>&, const float*, float*, int64_t, int64_t, int64_t scan[5]);
  void (*scan64)(const Gate<double>&, const double*, double*, int64_t, int64_t, int64_t scan[5]);
  Trips (*stencil2_32)(const Stencil2Args<float>&, int64_t y0, int64_t y1, int64_t x0, int64_t x1);
  Trips (*stencil2_64)(const Stencil2Args<double>&, int64_t y0, int64_t y1, int64_t x0, int64_t x1);
  Trips (*stencil3_32)(const Stencil3Args<float>&, const Box3&);
  Trips (*stencil3_64)(const Stencil3Args<double>&, const Box3&);
  void (*burgers32)(const BurgersArgs<float>&, int64_t i0, int64_t i1);
  void (*burgers64)(const BurgersArgs<double>&, int64_t i0, int64_t i1);
  // found = words of the new state with magnitude bits of at least limit2 >> 1; the old state's blocks off: data, parity, guard
  void (*burgers_sealed)(const BurgersArgs<float>&, const SealArgs& old, const SealArgs& made, uint32_t limit2, int64_t g0,
                         int64_t g1, int64_t found[4]);
  void (*pack)(const uint32_t* in, uint32_t* out, int64_t n, int64_t a, int64_t b);
  void (*unpack)(const uint32_t* in, uint32_t* out, int64_t n, int64_t a, int64_t b);
  void (*update_pim)(uint32_t* rows, const float* g, const float* hyper, const Gate<float>&, int64_t a, int64_t b, int64_t found[2]);
  void (*update_pinn)(uint32_t* rows, const float* g, const float* hyper, const Gate<float>&, int64_t a, int64_t b, int64_t found[2]);
  void (*gradient)(const GradientArgs&, const Gate<float>&, int64_t a, int64_t b, int64_t found[2]);
};

const Table& table_base();
const Table& table_avx2();
const Table& table_avx512();

// The best table this processor can run, or the one named by POISE_ISA (base, avx2, avx512) if it can.
const Table& table();

}  // namespace poise
