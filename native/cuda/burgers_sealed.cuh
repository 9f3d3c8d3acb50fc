// A Burgers stage that makes its result's seal and checks the old state's in the same pass. A warp owns a group, as in seal.cuh:
// of each of its 20 blocks it computes the 256 values, four consecutive ones a lane and load, and sums them and the old ones
// while they are in registers. Memory sees each field once: neighbours in x come from L1 and L2, in y from L1.
#pragma once
#include "poise/burgers.h"
#include "warp.cuh"

namespace poise::cuda {

constexpr int kStageWarps = 8;

struct SealedStage {
  Burgers<float> b;
  const uint32_t *parity, *marks, *guard;  // of b.base
  uint32_t *new_parity, *new_marks, *new_guard;
  int32_t* found;  // loud words of b.out; blocks of b.base that are off: data, parity, guard
  uint32_t limit2;
  int64_t n, stride;  // words; blocks between a warp's group and the next warp's
};

struct alignas(16) Cells {  // one 16-byte access
  float v[4];
};

// Through the read-only path, so that a load need not wait for the stores before it.
__device__ __forceinline__ Cells cells_at(const float* p) {
  const uint4 x = __ldg(reinterpret_cast<const uint4*>(p));
  Cells c;
  memcpy(&c, &x, sizeof c);
  return c;
}

__device__ __forceinline__ uint4 words_of(const Cells& c) {
  uint4 x;
  memcpy(&x, &c, sizeof x);
  return x;
}

// Block at `first`, inside one component and away from its first and last row, with ny a multiple of 4: two lots of four cells
// a lane, which then lie in one row each. Few integer instructions: they, not memory, would be the limit.
__device__ __forceinline__ void stage_inside(const Burgers<float>& b, int64_t first, bool k, uint32_t p, uint4 made[2],
                                             uint4 old[2]) {
  const int64_t plane = b.nx * b.ny, at = first + 4 * lane_id();
  const uint32_t ny = static_cast<uint32_t>(b.ny);
  const float *q = b.q + at, *pu = k ? q - plane : q, *pv = pu + plane, *base = b.base + at;
  const float f = __ldg(b.forcing + k);
  uint32_t i = p / ny, j = p - i * ny + 4 * lane_id();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int x = 128 * h;
    const Cells u = cells_at(pu + x), v = cells_at(pv + x), w = cells_at(q - ny + x), e = cells_at(q + ny + x), o = cells_at(base + x);
    float s = __ldg(q + x - 1), n = __ldg(q + x + 4);
    for (; j >= ny; j -= ny) ++i;
    if (j == 0) s = __ldg(b.south + k * b.nx + i);
    if (j + 4 == ny) n = __ldg(b.north + k * b.nx + i);
    j += 128;
    Cells c, out;
#pragma unroll
    for (int m = 0; m < 4; ++m) c.v[m] = k ? v.v[m] : u.v[m];
#pragma unroll
    for (int m = 0; m < 4; ++m)
      out.v[m] = burgers_value(b, u.v[m], v.v[m], c.v[m], w.v[m], e.v[m], m ? c.v[m - 1] : s, m < 3 ? c.v[m + 1] : n, f, o.v[m]);
    made[h] = words_of(out);
    old[h] = words_of(o);
    *reinterpret_cast<uint4*>(b.out + at + x) = made[h];
  }
}

// A block anywhere, for any ny: cell by cell, and what was written is read back.
__device__ __forceinline__ void stage_cells(const Burgers<float>& b, int64_t first, int64_t n, uint4 made[2], uint4 old[2]) {
  const int64_t plane = b.nx * b.ny, end = first + kBlock < n ? first + kBlock : n;
  const uint32_t ny = static_cast<uint32_t>(b.ny);
#pragma unroll 1
  for (int64_t x = first + lane_id(); x < end; x += 32) {
    const bool k = x >= plane;
    const uint32_t p = static_cast<uint32_t>(k ? x - plane : x), i = p / ny, j = p - i * ny;
    const float *q = b.q + x, *pu = k ? q - plane : q;
    const float w = *(i ? q - ny : b.west + k * b.ny + j), e = *(i + 1 < b.nx ? q + ny : b.east + k * b.ny + j);
    const float s = *(j ? q - 1 : b.south + k * b.nx + i), north = *(j + 1 < ny ? q + 1 : b.north + k * b.nx + i);
    b.out[x] = burgers_value(b, *pu, pu[plane], *q, w, e, s, north, b.forcing[k], b.base[x]);
  }
  __syncwarp();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t at = first + 4 * lane_id() + 128 * h;
    made[h] = read_quad(reinterpret_cast<const uint32_t*>(b.out), at, n);
    old[h] = read_quad(reinterpret_cast<const uint32_t*>(b.base), at, n);
  }
}

__device__ __forceinline__ Sums sums_of_block(const uint4& x, const uint4& y, uint32_t position) {
  uint32_t s1 = 0, s2 = 0;
  add_quad(x, position, s1, s2);
  add_quad(y, position + 128, s1, s2);
  return whole(s1, s2);
}

// The largest magnitude, doubled, of four words and of one that is known.
__device__ __forceinline__ uint32_t loudest(const uint4& x, uint32_t known) {
  return max(max(max(x.x << 1, x.y << 1), max(x.z << 1, x.w << 1)), known);
}

__device__ __forceinline__ int loud_words(const uint4& x, uint32_t limit2) {
  return ((x.x << 1) >= limit2) + ((x.y << 1) >= limit2) + ((x.z << 1) >= limit2) + ((x.w << 1) >= limit2);
}

template <int WARPS>
__global__ void __launch_bounds__(32 * WARPS, 24 / WARPS) burgers_sealed_kernel(const __grid_constant__ SealedStage a) {
  const Layout lay(a.n);
  const int lane = lane_id();
  // The warps of a block lie a row of the field apart, so that each finds its neighbours' rows in L1.
  const int64_t tile = blockIdx.x / a.stride, g = (tile * WARPS + threadIdx.x / 32) * a.stride + (blockIdx.x - tile * a.stride);
  if (g >= lay.G) return;
  uint4 x0 = make_uint4(0, 0, 0, 0), x1 = x0;  // the new parity
  Sums made{0, 0}, old{0, 0};                  // marks of row `lane`
  int loud = 0;
#pragma unroll 1
  for (int t = 0; t < kBanks; ++t) {
    const int r = (t & 1) * (kBanks / 2) + (t >> 1);  // both components of nearly the same cells, one after the other
    const int64_t first = lay.first(r, g), plane = a.b.nx * a.b.ny, p = first - (first >= plane ? plane : 0);
    uint4 m[2], o[2];
    if (a.b.ny % 4 == 0 && p >= a.b.ny && p + kBlock <= plane - a.b.ny)
      stage_inside(a.b, first, first >= plane, static_cast<uint32_t>(p), m, o);
    else
      stage_cells(a.b, first, a.n, m, o);
    const uint32_t position = static_cast<uint32_t>(first) + 4 * lane;
    const Sums sm = sums_of_block(m[0], m[1], position), so = sums_of_block(o[0], o[1], position);
    if (lane == r) made = sm, old = so;
    xor_into(x0, m[0]);
    xor_into(x1, m[1]);
    if (loudest(m[0], loudest(m[1], 0)) >= a.limit2) loud += loud_words(m[0], a.limit2) + loud_words(m[1], a.limit2);
  }
  uint4* par = reinterpret_cast<uint4*>(a.new_parity + g * kBlock);
  par[lane] = x0;
  par[lane + 32] = x1;
  const uint4* was = reinterpret_cast<const uint4*>(a.parity + g * kBlock);
  const uint32_t p = static_cast<uint32_t>(lay.first(kBanks, g)) + 4 * lane;
  const Sums sm = sums_of_block(x0, x1, p), so = sums_of_block(was[lane], was[lane + 32], p);
  if (lane == kBanks) made = sm, old = so;

  if (lane < kRows) put_mark(a.new_marks, lay, lane, g, made);
  const Sums fresh = guard_of_lanes(made, g);
  Sums stored{0, 0};
  if (lane < kRows) stored = mark_of(a.marks, lay, lane, g);
  const Sums guard = guard_of_lanes(stored, g);
  const uint32_t off = __ballot_sync(kAll, lane < kRows && old != stored);
  loud = static_cast<int>(__reduce_add_sync(kAll, static_cast<uint32_t>(loud)));
  if (lane) return;
  *reinterpret_cast<uint2*>(a.new_guard + 2 * g) = make_uint2(fresh.s1, fresh.s2);
  const uint32_t data = off & ((1u << kBanks) - 1);
  if (loud) atomicAdd(a.found, loud);
  if (data) atomicAdd(a.found + 1, __popc(data));
  if (off >> kBanks) atomicAdd(a.found + 2, 1);
  if (guard != Sums{a.guard[2 * g], a.guard[2 * g + 1]}) atomicAdd(a.found + 3, 1);
}

#ifdef __CUDACC__
// Full-size blocks and fewer than 2^32 cells a component only.
inline cudaError_t launch_burgers_sealed(cudaStream_t stream, SealedStage a) {
  a.n = 2 * a.b.nx * a.b.ny;
  const Layout lay(a.n);
  const int64_t row = (a.b.ny + kBlock / 2) / kBlock, most = lay.G / kStageWarps;
  a.stride = row < most ? row : most;
  if (a.stride < 1) a.stride = 1;
  const cudaError_t e = cudaMemsetAsync(a.found, 0, 4 * sizeof(int32_t), stream);
  if (e != cudaSuccess) return e;
  const int64_t tiles = (lay.G + kStageWarps * a.stride - 1) / (kStageWarps * a.stride);
  const unsigned grid = static_cast<unsigned>(tiles * a.stride);
  burgers_sealed_kernel<kStageWarps><<<grid, 32 * kStageWarps, 0, stream>>>(a);
  return cudaGetLastError();
}
#endif

}  // namespace poise::cuda
