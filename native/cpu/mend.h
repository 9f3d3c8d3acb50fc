// Repair of a range of groups: one read of words, parity and marks when nothing is wrong; the rare damaged group is mended
// by the rules of `ref.repair`, in place. A group beyond repair is left exactly as it is.
#pragma once
#include "seal.h"

namespace poise::POISE_ISA {

struct Mended {
  int64_t data, marks, parity, repaired, unrepairable;
  void operator+=(const Mended& o) {
    data += o.data, marks += o.marks, parity += o.parity, repaired += o.repaired, unrepairable += o.unrepairable;
  }
};

// One group that is not as its seal says. `words` and the seal are mended in place.
inline Mended mend_group(uint32_t* words, const Layout& lay, int64_t g, uint32_t* parity, uint32_t* marks, uint32_t* guard) {
  alignas(64) uint32_t spare[kBlock], y[kBlock], fresh[kBlock];
  const int64_t B = lay.B;
  uint32_t* par = parity + g * B;
  Sums sums[kBanks];
  bool off[kBanks];
  int n_off = 0, n_fits = 0, fit = -1;
  std::memcpy(y, par, sizeof(uint32_t) * B);
  for (int r = 0; r < kBanks; ++r) {
    const int64_t first = lay.first(r, g);
    sums[r] = block_sums<true>(block_at(words, lay, first, spare), B, static_cast<uint32_t>(first), y);
    const uint32_t* m = mark_at(marks, lay, r, g);
    off[r] = sums[r] != Sums{m[0], m[1]};
    n_off += off[r];
  }
  // What a block would be if it alone were damaged is believed only if its stored mark agrees.
  for (int r = 0; r < kBanks; ++r) {
    if (!off[r]) continue;
    const int64_t first = lay.first(r, g);
    const uint32_t* w = block_at(words, lay, first, spare);
    for (int64_t j = 0; j < B; ++j) fresh[j] = w[j] ^ y[j];
    const uint32_t* m = mark_at(marks, lay, r, g);
    const Sums s = block_sums<false>(fresh, B, static_cast<uint32_t>(first));
    if (!(s != Sums{m[0], m[1]})) {
      ++n_fits;
      fit = r;
    }
  }
  bool zero = true;
  for (int64_t j = 0; j < B; ++j) zero = zero && y[j] == 0;
  const bool guard_off = guard_of(marks, lay, g) != Sums{guard[2 * g], guard[2 * g + 1]};
  const uint32_t* pm = mark_at(marks, lay, kBanks, g);
  const bool parity_off =
      block_sums<false>(par, B, static_cast<uint32_t>(lay.first(kBanks, g))) != Sums{pm[0], pm[1]};

  const bool right = n_off == 0;
  const bool marks_only = !right && zero && guard_off;
  const bool one = !right && !zero && n_fits == 1 && (n_off == 1 || guard_off);
  Mended out{0, 0, 0, 0, 0};
  if (!(right || marks_only || one)) {
    out.data = n_off, out.parity = parity_off, out.unrepairable = n_off + parity_off;
    return out;
  }
  if (one) {
    const int64_t first = lay.first(fit, g);
    const int64_t have = first + B <= lay.n ? B : (first < lay.n ? lay.n - first : 0);
    for (int64_t j = 0; j < have; ++j) words[first + j] ^= y[j];
    out.data = 1;
  }
  // The data are right now: make the seal anew and count what of it was damaged.
  uint32_t old[kMarkWords], now[kMarkWords];
  std::memset(fresh, 0, sizeof fresh);
  for (int r = 0; r < kRows; ++r) std::memcpy(old + 2 * r, mark_at(marks, lay, r, g), 2 * sizeof(uint32_t));
  const uint32_t old_guard[2] = {guard[2 * g], guard[2 * g + 1]};
  for (int r = 0; r < kBanks; ++r) {
    const int64_t first = lay.first(r, g);
    const Sums s = block_sums<true>(block_at(words, lay, first, spare), B, static_cast<uint32_t>(first), fresh);
    uint32_t* m = mark_at(marks, lay, r, g);
    m[0] = s.s1, m[1] = s.s2;
  }
  out.parity = std::memcmp(par, fresh, sizeof(uint32_t) * B) != 0;
  std::memcpy(par, fresh, sizeof(uint32_t) * B);
  finish_group(lay, g, par, marks, guard);
  for (int r = 0; r < kRows; ++r) {
    std::memcpy(now + 2 * r, mark_at(marks, lay, r, g), 2 * sizeof(uint32_t));
    out.marks += now[2 * r] != old[2 * r] || now[2 * r + 1] != old[2 * r + 1];
  }
  if (out.marks == 0) out.marks = guard[2 * g] != old_guard[0] || guard[2 * g + 1] != old_guard[1];
  out.repaired = out.data + out.marks + out.parity;
  return out;
}

inline Mended repair_groups(uint32_t* words, const Layout& lay, int64_t g0, int64_t g1, uint32_t* parity, uint32_t* marks,
                            uint32_t* guard) {
  alignas(64) uint32_t y[kRun * kBlock];
  Mended total{0, 0, 0, 0, 0};
  for (int64_t g = g0; g < g1; g += kRun) {
    const int64_t run = g1 - g < kRun ? g1 - g : kRun;
    bool wrong[kRun] = {};
    for (int64_t k = 0; k < run; ++k) std::memcpy(y + k * kBlock, parity + (g + k) * lay.B, sizeof(uint32_t) * lay.B);
    for (int r = 0; r < kBanks; r += kSide)
      for (int64_t k = 0; k < run; ++k) {
        const Four four = four_blocks<true>(words, lay, r, g + k, y + k * kBlock);
        for (int i = 0; i < kSide; ++i) wrong[k] = wrong[k] || !matches(four.sums[i], marks, lay, r + i, g + k);
      }
    for (int64_t k = 0; k < run; ++k) {
      uint32_t any = 0;
      for (int64_t j = 0; j < lay.B; ++j) any |= y[k * kBlock + j];
      const uint32_t p0 = static_cast<uint32_t>(lay.first(kBanks, g + k));
      if (wrong[k] || any || !matches(block_sums<false>(parity + (g + k) * lay.B, lay.B, p0), marks, lay, kBanks, g + k) ||
          guard_of(marks, lay, g + k) != Sums{guard[2 * (g + k)], guard[2 * (g + k) + 1]})
        total += mend_group(words, lay, g + k, parity, marks, guard);
    }
  }
  return total;
}

}  // namespace poise::POISE_ISA
