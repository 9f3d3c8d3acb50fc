// A Burgers stage that makes its result's seal and checks the old state's in the same pass: block by block, a block's cells
// are computed and then summed while they and the old state's lie in L1.
#pragma once
#include "burgers.h"
#include "seal.h"

namespace poise::POISE_ISA {

// The sums of a new block and of the old one at the same place; the new one's XOR into `parity`, and the largest of its words'
// magnitudes, doubled.
struct Pair {
  Sums made, old;
  uint32_t loudest;
};

inline Pair pair_sums(const uint32_t* __restrict x, const uint32_t* __restrict y, uint32_t p0, uint32_t* __restrict parity) {
  uint32_t a1 = 0, a2 = 0, b1 = 0, b2 = 0, loudest = 0, salted = salt(p0);
  for (int64_t j = 0; j < kBlock; ++j, salted += 2u * kC1) {
    const uint32_t a = x[j], b = y[j];
    a1 += a, b1 += b;
    a2 += mix(a + salted), b2 += mix(b + salted);
    parity[j] ^= a;
    loudest = a + a > loudest ? a + a : loudest;
  }
  return {{a1, a2}, {b1, b2}, loudest};
}

struct SealView {
  uint32_t *parity, *marks, *guard;
};

struct Stepped {
  int64_t loud = 0;
  Off off{0, 0, 0};
};

// Blocks g0 .. g1 - 1 of every bank; blocks have their full size. `old` is the seal of b.base and is only read.
inline Stepped burgers_groups(const Burgers<float>& b, const Layout& lay, const SealView& old, const SealView& made,
                              uint32_t limit2, int64_t g0, int64_t g1) {
  constexpr int64_t kTogether = 4;  // blocks computed before they are summed: 32 KiB of L1 hold them and what they read
  alignas(64) uint32_t spare[2][kBlock];
  const uint32_t* const in = reinterpret_cast<const uint32_t*>(b.base);
  uint32_t* const out = reinterpret_cast<uint32_t*>(b.out);
  // Rows at both ends of a run are read twice, so a run is several rows long; parity should stay in L2.
  const int64_t rows = 16 * b.ny / kBlock, run = rows < kRun ? kRun : rows;
  Stepped found;
  for (int64_t g = g0; g < g1; g += run) {
    const int64_t end = g1 - g < run ? g1 : g + run;
    std::memset(made.parity + g * kBlock, 0, sizeof(uint32_t) * kBlock * (end - g));
    for (int r = 0; r < kBanks; ++r)
      for (int64_t k0 = g; k0 < end; k0 += kTogether) {
        const int64_t k1 = end - k0 < kTogether ? end : k0 + kTogether, z = lay.first(r, k1);
        burgers_range(b, lay.first(r, k0), z < lay.n ? z : lay.n);
        for (int64_t k = k0; k < k1; ++k) {
          const int64_t at = lay.first(r, k);
          const uint32_t *x = block_at(out, lay, at, spare[0]), *y = block_at(in, lay, at, spare[1]);
          const Pair p = pair_sums(x, y, static_cast<uint32_t>(at), made.parity + k * kBlock);
          uint32_t* m = mark_at(made.marks, lay, r, k);
          m[0] = p.made.s1, m[1] = p.made.s2;
          found.off.data += !matches(p.old, old.marks, lay, r, k);
          if (p.loudest >= limit2)
            for (int64_t j = 0; j < kBlock; ++j) found.loud += (x[j] << 1) >= limit2;
        }
      }
    for (int64_t k = g; k < end; ++k) {
      finish_group(lay, k, made.parity + k * kBlock, made.marks, made.guard);
      const Off o = check_spare(lay, k, old.parity, old.marks, old.guard);
      found.off.parity += o.parity, found.off.guard += o.guard;
    }
  }
  return found;
}

}  // namespace poise::POISE_ISA
