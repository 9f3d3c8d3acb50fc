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

}  // namespace poise::POISE_ISA
