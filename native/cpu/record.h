// Records on the CPU: rows <-> channels in pieces that stay in L1, and the gated update in place.
#pragma once
#include "poise/record.h"

namespace poise::POISE_ISA {

template <bool TO_ROWS>
void repack(const uint32_t* in, uint32_t* out, int64_t n, int64_t a, int64_t b) {
  constexpr int64_t kPiece = 64;
  for (int64_t i = a; i < b; i += kPiece) {
    const int64_t end = i + kPiece < b ? i + kPiece : b;
    for (int64_t c = 0; c < 8; ++c)
      for (int64_t r = i; r < end; ++r) (TO_ROWS ? out[8 * r + c] : out[c * n + r]) = TO_ROWS ? in[c * n + r] : in[8 * r + c];
  }
}

template <int CELL>
void update_records(Record* rows, const float* g, const RecordHyper& hyper, const Gate<float>& rule, int64_t a, int64_t b,
                    int64_t found[2]) {
  const RecordHyper h = hyper;
  const Gate<float> gate = rule;
  found[0] = 0, found[1] = -1;
  for (int64_t i = a; i < b; ++i) {
    if (!update_record<CELL>(rows[i], g[i], h, gate)) continue;
    if (found[0]++ == 0) found[1] = i;
  }
}

// Cells [i0, i1) of the gradient; only u and status are written, so ranges may be done side by side.
inline void record_gradient(const GradientArgs& given, const Gate<float>& rule, int64_t i0, int64_t i1, int64_t found[2]) {
  constexpr int64_t kPiece = 256;
  const GradientArgs a = given;
  const Gate<float> gate = rule;
  float value[kPiece + 2], slope[kPiece];
  uint32_t off[kPiece + 2];
  auto at = [&](int64_t i) { return a.flux ? a.flux[i] : as_float(a.rows[8 * i]); };
  found[0] = 0, found[1] = -1;
  for (int64_t i = i0, end; i < i1; i = end) {
    const int64_t line = i / a.columns, first = line * a.columns, last = first + a.columns - 1;
    end = i + kPiece < i1 ? i + kPiece : i1;
    end = end <= last ? end : last + 1;
    const int64_t n = end - i;
    value[0] = i > first ? at(i - 1) : a.west ? a.west[line] : at(i);
    for (int64_t j = 0; j < n; ++j) value[j + 1] = at(i + j);
    value[n + 1] = end <= last ? at(end) : a.east ? a.east[line] : at(end - 1);
    for (int64_t j = 0; j < n + 2; ++j) off[j] = gate.bad(value[j]);
    for (int64_t j = 0; j < n; ++j) {
      const bool broken = off[j] | off[j + 1] | off[j + 2];
      slope[j] = broken ? kBrokenU : (value[j + 2] - value[j]) * a.factor;
      off[j] = broken;  // the cells to the east still need off[j + 1] and off[j + 2] only
    }
    for (int64_t j = 0; j < n; ++j) {
      uint32_t* row = a.rows + 8 * (i + j);
      row[1] = as_word(slope[j]);
      if (!off[j]) continue;
      row[4] = kBrokenStatus;
      if (found[0]++ == 0) found[1] = i + j;
    }
  }
}

}  // namespace poise::POISE_ISA
