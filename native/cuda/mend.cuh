// Repair of one group by one warp, by the rules of `ref.repair`. Rare, so it works word by word through memory and the fast
// paths never hand out their registers. `Words` says where the group's blocks are: get(r, j), put(r, j, x).
#pragma once
#include "warp.cuh"

namespace poise::cuda {

constexpr int kEach = kBlock / 32;  // words of a block per lane

struct Mended {
  int data, marks, parity, repaired, unrepairable;
};

// The blocks of group g where they lie in the shard.
struct InShard {
  uint32_t* words;
  int64_t n, B, G, g;
  __device__ uint32_t get(int r, int j) const {
    const int64_t at = (r * G + g) * B + j;
    return at < n ? words[at] : 0u;
  }
  __device__ void put(int r, int j, uint32_t x) const {
    const int64_t at = (r * G + g) * B + j;
    if (at < n) words[at] = x;
  }
};

template <class F>
__device__ __forceinline__ Sums sums_over(int B, uint32_t p0, F word) {
  uint32_t s1 = 0, s2 = 0;
  for (int j = lane_id(); j < B; j += 32) add_word(word(j), salt(p0 + j), s1, s2);
  return whole(s1, s2);
}

// `words` and the seal of the group are mended in place; every lane gets the report.
template <class Words>
__device__ __noinline__ Mended mend_group(Words words, int64_t n, int64_t g, uint32_t* parity, uint32_t* marks, uint32_t* guard) {
  const Layout lay(n);
  const int B = static_cast<int>(lay.B), lane = lane_id();
  uint32_t* par = parity + g * lay.B;
  uint32_t y[kEach], fresh[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) y[i] = lane + 32 * i < B ? par[lane + 32 * i] : 0u;

  Sums mine{0, 0};  // stored mark of row `lane`
  if (lane < kRows) mine = mark_of(marks, lay, lane, g);
  const Sums old_guard{guard[2 * g], guard[2 * g + 1]};
  const bool guard_off = guard_of_lanes(mine, g) != old_guard;
  const Sums stored_parity = mark_of(marks, lay, kBanks, g);
  const bool parity_off =
      sums_over(B, static_cast<uint32_t>(lay.first(kBanks, g)), [&](int j) { return par[j]; }) != stored_parity;

  uint32_t off = 0;  // bit r: block r does not match its mark
  for (int r = 0; r < kBanks; ++r) {
    const Sums s = sums_over(B, static_cast<uint32_t>(lay.first(r, g)), [&](int j) { return words.get(r, j); });
    off |= static_cast<uint32_t>(s != mark_of(marks, lay, r, g)) << r;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane + 32 * i < B) y[i] ^= words.get(r, lane + 32 * i);
  }
  uint32_t any = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) any |= y[i];
  const bool zero = !__any_sync(kAll, any != 0);

  int fits = 0, fit = -1;
  for (int r = 0; r < kBanks; ++r) {
    if (!(off >> r & 1)) continue;
    uint32_t s1 = 0, s2 = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int j = lane + 32 * i;
      if (j < B) add_word(words.get(r, j) ^ y[i], salt(static_cast<uint32_t>(lay.first(r, g)) + j), s1, s2);
    }
    if (!(whole(s1, s2) != mark_of(marks, lay, r, g))) ++fits, fit = r;
  }
  const int n_off = __popc(off);
  const bool right = n_off == 0, marks_only = !right && zero && guard_off;
  const bool one = !right && !zero && fits == 1 && (n_off == 1 || guard_off);
  if (!(right || marks_only || one)) return {n_off, 0, parity_off, 0, n_off + parity_off};

  Mended out{one, 0, 0, 0, 0};
  if (one) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane + 32 * i < B) words.put(fit, lane + 32 * i, words.get(fit, lane + 32 * i) ^ y[i]);
    __syncwarp();
  }
  // The data are right now: make the seal anew and count what of it was damaged.
  Sums now{0, 0};
#pragma unroll
  for (int i = 0; i < kEach; ++i) fresh[i] = 0;
  for (int r = 0; r < kBanks; ++r) {
    const Sums s = sums_over(B, static_cast<uint32_t>(lay.first(r, g)), [&](int j) { return words.get(r, j); });
    if (lane == r) now = s;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane + 32 * i < B) fresh[i] ^= words.get(r, lane + 32 * i);
  }
  bool differs = false;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int j = lane + 32 * i;
    if (j >= B) continue;
    differs = differs || par[j] != fresh[i];
    par[j] = fresh[i];
  }
  out.parity = __any_sync(kAll, differs);
  __syncwarp();
  const Sums s = sums_over(B, static_cast<uint32_t>(lay.first(kBanks, g)), [&](int j) { return par[j]; });
  if (lane == kBanks) now = s;
  out.marks = __popc(__ballot_sync(kAll, lane < kRows && now != mine));
  if (lane < kRows) put_mark(marks, lay, lane, g, now);
  const Sums u = guard_of_lanes(now, g);
  if (out.marks == 0) out.marks = u != old_guard;
  if (lane == 0) guard[2 * g] = u.s1, guard[2 * g + 1] = u.s2;
  out.repaired = out.data + out.marks + out.parity;
  __syncwarp();
  return out;
}

__device__ __forceinline__ void report(int32_t* total, const Mended& m) {
  if (lane_id() != 0) return;
  const int v[5] = {m.data, m.marks, m.parity, m.repaired, m.unrepairable};
  for (int i = 0; i < 5; ++i)
    if (v[i]) atomicAdd(total + i, v[i]);
}

}  // namespace poise::cuda
