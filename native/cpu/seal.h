// Marks, parity and guard of a range of groups in one read of the words, and their check. Compiled once per instruction
// set (POISE_ISA); the loops are written so that the compiler vectorises them, with B known where it is 256.
#pragma once
#include <cstring>

#include "poise/layout.h"

namespace poise::POISE_ISA {

// Banks read side by side, and groups done together before the next four banks: parity then stays in L2, and the four
// streams keep more misses of the page tables in flight than one (one core, 4 KiB pages: 5 GB/s with one, 20 with four;
// prefetching by hand costs 8 of them).
constexpr int kSide = 4;
constexpr int kRun = 128;

template <bool XOR>
inline __attribute__((always_inline)) Sums sums_of(const uint32_t* __restrict w, int64_t width, uint32_t p0,
                                                       uint32_t* __restrict parity) {
  uint32_t s1 = 0, s2 = 0, salted = salt(p0);  // made by adding: from j it would be a shuffle and a multiplication a vector
  for (int64_t j = 0; j < width; ++j, salted += 2u * kC1) {
    const uint32_t x = w[j];
    s1 += x;
    s2 += mix(x + salted);
    if (XOR) parity[j] ^= x;
  }
  return {s1, s2};
}

template <bool XOR>
inline Sums block_sums(const uint32_t* w, int64_t B, uint32_t p0, uint32_t* parity = nullptr) {
  return B == kBlock ? sums_of<XOR>(w, kBlock, p0, parity) : sums_of<XOR>(w, B, p0, parity);
}

// The words of a block: in place, or copied with zeros behind them where the shard ends inside it.
inline const uint32_t* block_at(const uint32_t* words, const Layout& lay, int64_t first, uint32_t* spare) {
  if (first + lay.B <= lay.n) return words + first;
  const int64_t have = first < lay.n ? lay.n - first : 0;
  std::memset(spare, 0, sizeof(uint32_t) * lay.B);
  if (have > 0) std::memcpy(spare, words + first, sizeof(uint32_t) * have);
  return spare;
}

// Block g of the banks r .. r + 3: their sums, their XOR into `parity`, and the number of loud words among them.
struct Four {
  Sums sums[kSide];
  uint32_t loud;
};

template <bool XOR, bool COUNT>
inline __attribute__((always_inline)) Four four_sums(const uint32_t* const w[kSide], const uint32_t first[kSide], int64_t width,
                                                      uint32_t limit2, uint32_t* __restrict parity) {
  const uint32_t *__restrict a = w[0], *__restrict b = w[1], *__restrict c = w[2], *__restrict d = w[3];
  const uint32_t sa = salt(first[0]), sb = salt(first[1]), sc = salt(first[2]), sd = salt(first[3]);
  uint32_t a1 = 0, b1 = 0, c1 = 0, d1 = 0, a2 = 0, b2 = 0, c2 = 0, d2 = 0, loud = 0, step = 0;
  for (int64_t j = 0; j < width; ++j, step += 2u * kC1) {
    const uint32_t x = a[j], y = b[j], z = c[j], u = d[j];
    a1 += x, b1 += y, c1 += z, d1 += u;
    a2 += mix(x + sa + step), b2 += mix(y + sb + step);
    c2 += mix(z + sc + step), d2 += mix(u + sd + step);
    if (XOR) parity[j] ^= x ^ y ^ z ^ u;
    if (COUNT) {
      loud += (x << 1) >= limit2, loud += (y << 1) >= limit2;
      loud += (z << 1) >= limit2, loud += (u << 1) >= limit2;
    }
  }
  return {{{a1, a2}, {b1, b2}, {c1, c2}, {d1, d2}}, loud};
}

template <bool XOR, bool COUNT = false>
inline Four four_blocks(const uint32_t* words, const Layout& lay, int r, int64_t g, uint32_t* parity, uint32_t limit2 = 0) {
  alignas(64) uint32_t spare[kSide][kBlock];
  const uint32_t* w[kSide];
  uint32_t first[kSide];
  for (int i = 0; i < kSide; ++i) {
    const int64_t at = lay.first(r + i, g);
    w[i] = block_at(words, lay, at, spare[i]);
    first[i] = static_cast<uint32_t>(at);
  }
  return lay.B == kBlock ? four_sums<XOR, COUNT>(w, first, kBlock, limit2, parity)
                         : four_sums<XOR, COUNT>(w, first, lay.B, limit2, parity);
}

inline uint32_t* mark_at(uint32_t* marks, const Layout& lay, int64_t r, int64_t g) { return marks + 2 * (r * lay.G + g); }

inline Sums guard_of(const uint32_t* marks, const Layout& lay, int64_t g) {
  uint32_t m[kMarkWords];
  for (int r = 0; r < kRows; ++r) std::memcpy(m + 2 * r, marks + 2 * (r * lay.G + g), 2 * sizeof(uint32_t));
  return sums_of<false>(m, kMarkWords, static_cast<uint32_t>(kMarkWords * g), nullptr);
}

// Parity's own marks and the guard, for a group whose data marks and parity are already written.
inline void finish_group(const Layout& lay, int64_t g, const uint32_t* parity, uint32_t* marks, uint32_t* guard) {
  const Sums s = block_sums<false>(parity, lay.B, static_cast<uint32_t>(lay.first(kBanks, g)));
  uint32_t* m = mark_at(marks, lay, kBanks, g);
  m[0] = s.s1, m[1] = s.s2;
  const Sums u = guard_of(marks, lay, g);
  guard[2 * g] = u.s1, guard[2 * g + 1] = u.s2;
}

// Returns how many words have a magnitude of at least limit2 >> 1 (0 unless COUNT).
template <bool COUNT>
int64_t seal_groups(const uint32_t* words, const Layout& lay, int64_t g0, int64_t g1, uint32_t limit2, uint32_t* parity,
                    uint32_t* marks, uint32_t* guard) {
  int64_t loud = 0;
  for (int64_t g = g0; g < g1; g += kRun) {
    const int64_t end = g1 - g < kRun ? g1 : g + kRun;
    std::memset(parity + g * lay.B, 0, sizeof(uint32_t) * lay.B * (end - g));
    for (int r = 0; r < kBanks; r += kSide) {
      for (int64_t k = g; k < end; ++k) {
        const Four four = four_blocks<true, COUNT>(words, lay, r, k, parity + k * lay.B, limit2);
        for (int i = 0; i < kSide; ++i) {
          uint32_t* m = mark_at(marks, lay, r + i, k);
          m[0] = four.sums[i].s1, m[1] = four.sums[i].s2;
        }
        loud += four.loud;
      }
    }
    for (int64_t k = g; k < end; ++k) finish_group(lay, k, parity + k * lay.B, marks, guard);
  }
  return loud;
}

inline bool matches(const Sums& s, const uint32_t* marks, const Layout& lay, int64_t r, int64_t g) {
  const uint32_t* m = marks + 2 * (r * lay.G + g);
  return s.s1 == m[0] && s.s2 == m[1];
}

struct Off {
  int64_t data, parity, guard;
};

// The part of a check that looks at what is kept beside the words of a group.
inline Off check_spare(const Layout& lay, int64_t g, const uint32_t* parity, const uint32_t* marks, const uint32_t* guard) {
  const Sums s = block_sums<false>(parity + g * lay.B, lay.B, static_cast<uint32_t>(lay.first(kBanks, g)));
  return {0, !matches(s, marks, lay, kBanks, g), guard_of(marks, lay, g) != Sums{guard[2 * g], guard[2 * g + 1]}};
}

inline Off check_groups(const uint32_t* words, const Layout& lay, int64_t g0, int64_t g1, const uint32_t* parity,
                        const uint32_t* marks, const uint32_t* guard) {
  Off off{0, 0, 0};
  for (int r = 0; r < kBanks; r += kSide)
    for (int64_t k = g0; k < g1; ++k) {
      const Four four = four_blocks<false>(words, lay, r, k, nullptr);
      for (int i = 0; i < kSide; ++i) off.data += !matches(four.sums[i], marks, lay, r + i, k);
    }
  for (int64_t k = g0; k < g1; ++k) {
    const Off o = check_spare(lay, k, parity, marks, guard);
    off.parity += o.parity, off.guard += o.guard;
  }
  return off;
}

}  // namespace poise::POISE_ISA
