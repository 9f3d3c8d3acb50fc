// What every CUDA kernel here shares: sums of a block by one warp, padded reads, launch errors.
#pragma once
#include <cuda_runtime.h>

#include "poise/layout.h"

namespace poise::cuda {

constexpr unsigned kAll = 0xFFFFFFFFu;

__device__ __forceinline__ int lane_id() { return threadIdx.x & 31; }

// Adds a word's part of the two sums; the second one still lacks its multiplier.
__device__ __forceinline__ void add_word(uint32_t x, uint32_t salted, uint32_t& s1, uint32_t& s2) {
  s1 += x;
  s2 += mix(x + salted);
}

__device__ __forceinline__ void add_quad(const uint4& x, uint32_t position, uint32_t& s1, uint32_t& s2) {
  const uint32_t base = salt(position);
  add_word(x.x, base, s1, s2);
  add_word(x.y, base + 2u * kC1, s1, s2);
  add_word(x.z, base + 4u * kC1, s1, s2);
  add_word(x.w, base + 6u * kC1, s1, s2);
}

// Over the warp: every lane gets the block's two sums.
__device__ __forceinline__ Sums whole(uint32_t s1, uint32_t s2) {
  return {__reduce_add_sync(kAll, s1), __reduce_add_sync(kAll, s2)};
}

__device__ __forceinline__ void xor_into(uint4& a, const uint4& b) { a.x ^= b.x, a.y ^= b.y, a.z ^= b.z, a.w ^= b.w; }

// Four words from `at` on, zeros past n. `at` is a multiple of 4 and the array is 16-byte aligned.
__device__ __forceinline__ uint4 read_quad(const uint32_t* words, int64_t at, int64_t n) {
  if (at + 4 <= n) return *reinterpret_cast<const uint4*>(words + at);
  uint4 x = make_uint4(0, 0, 0, 0);
  if (at < n) x.x = words[at];
  if (at + 1 < n) x.y = words[at + 1];
  if (at + 2 < n) x.z = words[at + 2];
  return x;
}

// Guard of a group whose marks the lanes hold: lane r < 21 has those of row r.
__device__ __forceinline__ Sums guard_of_lanes(const Sums& mine, int64_t g) {
  const int r = lane_id();
  uint32_t s1 = 0, s2 = 0;
  if (r < kRows) {
    const uint32_t p = static_cast<uint32_t>(kMarkWords * g) + 2u * r;
    add_word(mine.s1, salt(p), s1, s2);
    add_word(mine.s2, salt(p + 1), s1, s2);
  }
  return whole(s1, s2);
}

__device__ __forceinline__ Sums mark_of(const uint32_t* marks, const Layout& lay, int64_t r, int64_t g) {
  const uint2 m = *reinterpret_cast<const uint2*>(marks + 2 * (r * lay.G + g));
  return {m.x, m.y};
}

__device__ __forceinline__ void put_mark(uint32_t* marks, const Layout& lay, int64_t r, int64_t g, const Sums& s) {
  *reinterpret_cast<uint2*>(marks + 2 * (r * lay.G + g)) = make_uint2(s.s1, s.s2);
}

}  // namespace poise::cuda
