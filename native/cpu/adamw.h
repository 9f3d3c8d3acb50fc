// Sealed AdamW over a range of groups: the marks of w, m, v are checked and a damaged block is mended from parity before
// anything of its group is used; then update, new marks, new parity. The group is in L2 between the two halves, so memory
// sees one read and one write. A group that cannot be mended is left untouched and reported.
#pragma once
#include <cmath>

#include "mend.h"

namespace poise::POISE_ISA {

struct Hyper {
  float lr, b1, one_b1, b2, one_b2, eps, wd, inv1, inv2, clip;  // inv: 1 / (1 - b^t)
};

struct Kept {  // one sealed array, mended and rewritten in place
  uint32_t *words, *parity, *marks, *guard;
};

struct AdamW {
  Kept state[3];  // w, m, v
  const float *g, *lr_mask, *wd_mask;  // masks may be null: 1 everywhere
  uint16_t* low;                       // parameters rounded to bfloat16, or null
  Hyper h;
  bool ok;
};

inline uint16_t to_bfloat16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>(x != x ? (u >> 16) | 0x40u : rounded);
}

template <bool MASKS>
inline void adamw_update(float* __restrict w, float* __restrict m, float* __restrict v, const float* __restrict g,
                         const float* __restrict lr_mask, const float* __restrict wd_mask, int64_t n, const Hyper h) {
  for (int64_t j = 0; j < n; ++j) {
    const float gj = g[j] * h.clip;
    const float mj = h.b1 * m[j] + h.one_b1 * gj;
    const float vj = h.b2 * v[j] + h.one_b2 * (gj * gj);
    const float step = (mj * h.inv1) / (std::sqrt(vj * h.inv2) + h.eps) + (MASKS ? h.wd * wd_mask[j] : h.wd) * w[j];
    w[j] -= (MASKS ? h.lr * lr_mask[j] : h.lr) * step;
    m[j] = mj;
    v[j] = vj;
  }
}

// One block: `first` words into the shard, `have` of the B words are inside it.
inline void adamw_block(const AdamW& a, const Layout& lay, int r, int64_t g, uint32_t* const parity[3]) {
  const int64_t first = lay.first(r, g);
  const int64_t have = first + lay.B <= lay.n ? lay.B : (first < lay.n ? lay.n - first : 0);
  auto at = [&](int s) { return reinterpret_cast<float*>(a.state[s].words + first); };
  if (have > 0) {
    if (a.lr_mask)
      adamw_update<true>(at(0), at(1), at(2), a.g + first, a.lr_mask + first, a.wd_mask + first, have, a.h);
    else
      adamw_update<false>(at(0), at(1), at(2), a.g + first, nullptr, nullptr, have, a.h);
    if (a.low)
      for (int64_t j = 0; j < have; ++j) a.low[first + j] = to_bfloat16(at(0)[j]);
  }
  alignas(64) uint32_t spare[kBlock];
  for (int s = 0; s < 3; ++s) {
    const Kept& k = a.state[s];
    const Sums sums = block_sums<true>(block_at(k.words, lay, first, spare), lay.B, static_cast<uint32_t>(first), parity[s]);
    uint32_t* mark = mark_at(k.marks, lay, r, g);
    mark[0] = sums.s1, mark[1] = sums.s2;
  }
}

inline void copy_low(const AdamW& a, const Layout& lay, int64_t g) {
  for (int r = 0; r < kBanks; ++r) {
    const int64_t first = lay.first(r, g);
    for (int64_t j = first; j < first + lay.B && j < lay.n; ++j) {
      float x;
      std::memcpy(&x, a.state[0].words + j, sizeof x);
      a.low[j] = to_bfloat16(x);
    }
  }
}

inline void adamw_groups(const AdamW& a, const Layout& lay, int64_t g0, int64_t g1, Mended out[3]) {
  // Runs of 16 KiB of each bank: shorter ones wait for the page tables (2: 36 ms for 2^24, 8: 31, 16: 29, 32: 30).
  constexpr int64_t kTogether = 16;
  alignas(64) uint32_t par[3][kTogether][kBlock];
  for (int64_t g = g0; g < g1; g += kTogether) {
    const int64_t run = g1 - g < kTogether ? g1 - g : kTogether;
    bool bad[3][kTogether] = {};
    for (int s = 0; s < 3; ++s)
      for (int r = 0; r < kBanks; r += kSide)
        for (int64_t k = 0; k < run; ++k) {
          const Four four = four_blocks<false>(a.state[s].words, lay, r, g + k, nullptr);
          for (int i = 0; i < kSide; ++i)
            bad[s][k] = bad[s][k] || !matches(four.sums[i], a.state[s].marks, lay, r + i, g + k);
        }
    bool write[kTogether];
    for (int64_t k = 0; k < run; ++k) {
      write[k] = a.ok;
      for (int s = 0; s < 3; ++s) {
        const Kept& kept = a.state[s];
        Mended mended{0, 0, 0, 0, 0};
        if (bad[s][k])
          mended = mend_group(kept.words, lay, g + k, kept.parity, kept.marks, kept.guard);
        else if (!a.ok)  // nothing will be rewritten, so parity, its marks and the guard are looked at too
          mended = repair_groups(kept.words, lay, g + k, g + k + 1, kept.parity, kept.marks, kept.guard);
        out[s] += mended;
        write[k] = write[k] && mended.unrepairable == 0;
      }
      if (!write[k] && a.low) copy_low(a, lay, g + k);
    }
    std::memset(par, 0, sizeof par);
    for (int r = 0; r < kBanks; ++r)
      for (int64_t k = 0; k < run; ++k) {
        uint32_t* const parity[3] = {par[0][k], par[1][k], par[2][k]};
        if (write[k]) adamw_block(a, lay, r, g + k, parity);
      }
    for (int64_t k = 0; k < run; ++k)
      for (int s = 0; s < 3; ++s) {
        if (!write[k]) continue;
        std::memcpy(a.state[s].parity + (g + k) * lay.B, par[s][k], sizeof(uint32_t) * lay.B);
        finish_group(lay, g + k, par[s][k], a.state[s].marks, a.state[s].guard);
      }
  }
}

}  // namespace poise::POISE_ISA
