// Records of 32 bytes: rows <-> channels through shared memory, and the gated update, which reads and writes a row once. Rows
// and channels pass through once, so their lines are marked for early eviction: 1.0 of a copy where plain accesses got 0.75.
#pragma once
#include "poise/record.h"
#include "warp.cuh"

namespace poise::cuda {

constexpr int kPackRows = 256;              // rows per block, one thread each
constexpr int kPackPitch = kPackRows + 4;   // four channels are 16 banks apart: the halves of a row never meet in one bank

// TO_ROWS: channels [8][n] into rows [n][8]; else the other way.
template <bool TO_ROWS>
__global__ void __launch_bounds__(kPackRows) pack_kernel(const uint32_t* __restrict in, uint32_t* __restrict out, int64_t n) {
  __shared__ __align__(16) uint32_t tile[8][kPackPitch];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kPackRows;
  const int t = threadIdx.x, c = t / 32, lane = t % 32;
  const bool aligned = n % 4 == 0;  // then each channel starts on 16 bytes
  auto channels = [&](auto each) {
    for (int i = 0; i < 2; ++i) each(i * 128 + 4 * lane);
  };
  auto halves = [&](auto each) {
    for (int i = 0; i < 2; ++i) each((i * kPackRows + t) / 2, t % 2 * 4);
  };
  if (TO_ROWS) {
    channels([&](int r) {
      const int64_t at = c * n + base + r;
      if (aligned && base + r + 4 <= n) *reinterpret_cast<uint4*>(&tile[c][r]) = __ldcs(reinterpret_cast<const uint4*>(in + at));
      else
        for (int k = 0; k < 4; ++k) tile[c][r + k] = base + r + k < n ? in[at + k] : 0u;
    });
    __syncthreads();
    halves([&](int r, int f) {
      if (base + r < n)
        __stcs(reinterpret_cast<uint4*>(out + 8 * (base + r) + f),
               make_uint4(tile[f][r], tile[f + 1][r], tile[f + 2][r], tile[f + 3][r]));
    });
  } else {
    halves([&](int r, int f) {
      if (base + r >= n) return;
      const uint4 x = __ldcs(reinterpret_cast<const uint4*>(in + 8 * (base + r) + f));
      tile[f][r] = x.x, tile[f + 1][r] = x.y, tile[f + 2][r] = x.z, tile[f + 3][r] = x.w;
    });
    __syncthreads();
    channels([&](int r) {
      const int64_t at = c * n + base + r;
      if (aligned && base + r + 4 <= n) __stcs(reinterpret_cast<uint4*>(out + at), *reinterpret_cast<const uint4*>(&tile[c][r]));
      else
        for (int k = 0; k < 4; ++k)
          if (base + r + k < n) out[at + k] = tile[c][r + k];
    });
  }
}

// The halves of two rows that lie 16 rows apart, exchanged between the two lanes of a pair: before, each lane has its half of
// both rows (so that a warp's access is one contiguous run); after, the even lane has the first row and the odd the second.
// Its own inverse.
__device__ __forceinline__ void swap_halves(uint4& a, uint4& b) {
  const bool odd = lane_id() & 1;
  auto word = [&](uint32_t& x, uint32_t& y) {
    const uint32_t got = __shfl_xor_sync(kAll, odd ? x : y, 1);
    (odd ? x : y) = got;
  };
  word(a.x, b.x), word(a.y, b.y), word(a.z, b.z), word(a.w, b.w);
}

template <int CELL>
__global__ void __launch_bounds__(256) record_kernel(const __grid_constant__ Gate<float> gate, uint32_t* rows, const float* g,
                                                     const float* hyper, int64_t n, int32_t* found) {
  const int lane = lane_id();
  const int64_t base = static_cast<int64_t>(blockIdx.x) * 256 + (threadIdx.x & ~31);  // of the warp's 32 rows
  const int64_t i = base + lane / 2 + 16 * (lane & 1);
  uint4* at = reinterpret_cast<uint4*>(rows + 8 * base) + lane;
  const bool first = base + lane / 2 < n, second = base + 16 + lane / 2 < n;
  uint4 a = make_uint4(0, 0, 0, 0), b = a;
  if (first) a = at[0];
  if (second) b = at[32];
  const float grad = i < n ? g[i] : 0.0f;
  RecordHyper h;
#pragma unroll
  for (int k = 0; k < 10; ++k) h.a[k] = hyper[k];
  swap_halves(a, b);
  Record row{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
  if (update_record<CELL>(row, grad, h, gate) && i < n) {
    atomicAdd(found, 1);
    atomicMin(reinterpret_cast<uint32_t*>(found + 1), static_cast<uint32_t>(i));
  }
  a = make_uint4(row.word[0], row.word[1], row.word[2], row.word[3]);
  b = make_uint4(row.word[4], row.word[5], row.word[6], row.word[7]);
  swap_halves(a, b);
  if (first) at[0] = a;
  if (second) at[32] = b;
}

// One thread a cell. Only the first half of a row is read and written (memory moves whole rows of 32 bytes either way); its
// status only where something is broken. Neighbours come from L1.
__global__ void __launch_bounds__(256) gradient_kernel(const __grid_constant__ GradientArgs a,
                                                       const __grid_constant__ Gate<float> gate, int32_t* found) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= a.n) return;
  uint4* row = reinterpret_cast<uint4*>(a.rows + 8 * i);
  uint4 x = *row;
  const uint32_t columns = static_cast<uint32_t>(a.columns), line = static_cast<uint32_t>(i) / columns;
  const uint32_t c = static_cast<uint32_t>(i) - line * columns;
  auto at = [&](int64_t j) { return a.flux ? a.flux[j] : as_float(a.rows[8 * j]); };
  const float own = a.flux ? a.flux[i] : as_float(x.x);
  const float west = c > 0 ? at(i - 1) : a.west ? a.west[line] : own;
  const float east = c + 1 < columns ? at(i + 1) : a.east ? a.east[line] : own;
  const bool broken = gate.bad(own) | gate.bad(west) | gate.bad(east);
  x.y = as_word(broken ? kBrokenU : (east - west) * a.factor);
  *row = x;
  if (broken) {
    a.rows[8 * i + 4] = kBrokenStatus;
    atomicAdd(found, 1);
    atomicMin(reinterpret_cast<uint32_t*>(found + 1), static_cast<uint32_t>(i));
  }
}

}  // namespace poise::cuda
