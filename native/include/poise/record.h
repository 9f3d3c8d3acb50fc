// One 32-byte record: what an update does to it. Plain arithmetic, shared by the CPU and the CUDA kernels.
#pragma once
#include "gate.h"

namespace poise {

struct alignas(16) Record {
  uint32_t word[8];
};

// Fields by word. PIM: w, m, v, lr_mask, wd_mask, status, id, free. PINN: w, u, v, gain, status, id, free, free.
enum Cell : int { kPim = 0, kPinn = 1 };

POISE_HD float as_float(uint32_t w) {
  float x;
  memcpy(&x, &w, sizeof x);
  return x;
}
POISE_HD uint32_t as_word(float x) { return bits_of(x); }

// Relaxation: w <- gamma w + alpha gain g. AdamW: as cpu/adamw.h, the masks from the row.
struct RecordHyper {
  float a[10];  // PIM: the ten of AdamW; PINN: gamma, alpha
};

// Returns whether the row is bad: it stays as it is, with status 1. Rows whose status is not 0 are left alone, uncounted.
template <int CELL>
POISE_HD bool update_record(Record& row, float g, const RecordHyper& h, const Gate<float>& gate) {
  constexpr int status = CELL == kPim ? 5 : 4;
  const bool asleep = row.word[status] != 0;
  bool bad = gate.bad(g) || gate.bad(as_float(row.word[0]));
  if (CELL == kPim) bad = bad || gate.bad(as_float(row.word[1])) || gate.bad(as_float(row.word[2]));
  float w = as_float(row.word[0]), m = as_float(row.word[1]), v = as_float(row.word[2]);
  if (CELL == kPim) {
    const float lr = h.a[0] * as_float(row.word[3]), wd = h.a[6] * as_float(row.word[4]);
    g *= h.a[9];
    m = h.a[1] * m + h.a[2] * g;
    v = h.a[3] * v + h.a[4] * (g * g);
    w -= lr * ((m * h.a[7]) / (sqrtf(v * h.a[8]) + h.a[5]) + wd * w);
  } else {
    w = h.a[0] * w + h.a[1] * (as_float(row.word[3]) * g);
  }
  bad = !asleep && (bad || gate.bad(w));
  const bool keep = asleep || bad;
  row.word[0] = keep ? row.word[0] : as_word(w);
  if (CELL == kPim) {
    row.word[1] = keep ? row.word[1] : as_word(m);
    row.word[2] = keep ? row.word[2] : as_word(v);
  }
  row.word[status] = bad ? 1u : row.word[status];
  return bad;
}

// The gradient over a raw flux: u = (east - west) * factor along lines of `columns` cells. A cell whose own value or one of
// whose neighbours is bad gets kBrokenU and status kBrokenStatus. Beyond a line's ends lie `west` and `east` (one value a
// line) or, where they are null, the end's own value.
constexpr float kBrokenU = -99.0f;
constexpr uint32_t kBrokenStatus = 2;

struct GradientArgs {
  uint32_t* rows;      // PINN cells, changed in place
  const float* flux;   // null: the rows' own w
  const float *west, *east;
  int64_t n, columns;
  float factor;
};

}  // namespace poise
