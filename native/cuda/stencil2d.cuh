// T gated steps of a linear star stencil (radius 1 or 2) in one pass: a warp holds 128 columns x ROWS rows in registers, four
// side by side per lane; west and east neighbours come by shuffle, the neighbouring warps' rows through two alternating
// buffers in shared memory. Tiles overlap by the halo that T steps use up. Blocks stay on their multiprocessor and go from
// tile to tile; the next tile is already on its way into shared memory (cp.async) while this one is computed.
//
// The gate: the tile's inputs are tested once. If none is louder than `quiet_bound`, nothing can be bad at any step and the
// steps run without it; else the same steps run with every value of every step gated and counted.
#pragma once
#include <cstdint>

#include "poise/gate.h"
#include "warp.cuh"

namespace poise::cuda {

constexpr int kVec = 4;
constexpr int kWide = 32 * kVec;

// Four values in 16-byte accesses.
template <class T>
struct alignas(16) Chunk {
  T v[16 / sizeof(T)];
};

template <class T>
__device__ __forceinline__ void get(const T* from, T (&to)[kVec]) {
  constexpr int n = 16 / sizeof(T);
#pragma unroll
  for (int c = 0; c < kVec / n; ++c) {
    const Chunk<T> chunk = *reinterpret_cast<const Chunk<T>*>(from + c * n);
#pragma unroll
    for (int i = 0; i < n; ++i) to[c * n + i] = chunk.v[i];
  }
}

template <class T>
__device__ __forceinline__ void put(T* to, const T (&from)[kVec]) {
  constexpr int n = 16 / sizeof(T);
#pragma unroll
  for (int c = 0; c < kVec / n; ++c) {
    Chunk<T> chunk;
#pragma unroll
    for (int i = 0; i < n; ++i) chunk.v[i] = from[c * n + i];
    *reinterpret_cast<Chunk<T>*>(to + c * n) = chunk;
  }
}

template <class T>
struct Plan2 {
  const T* in;
  T* out;
  int32_t* found;         // [kFoundRows][4]
  const T* coefficients;  // [2][2 R + 1], y first
  int H, W, in_W;
  int steps, edge_y, edge_x, in_margin;
  T edge;
  Gate<T> gate;
};

template <class T, int R>
struct Star {
  T y[2 * R + 1], x[2 * R + 1], center;
};

// What was found: a row per block, (trips, unused, the first as 64 bits: step << 40 | cell), for the caller to sum up. The blocks
// start the rows themselves where there are few enough: a memset before every launch would cost a small field a tenth of its time.
constexpr int kFoundRows = 1024;

__device__ __forceinline__ void start_rows(int32_t* found) {
  for (int row = blockIdx.x + gridDim.x * threadIdx.x; row < kFoundRows; row += gridDim.x * blockDim.x)
    reinterpret_cast<int4*>(found)[row] = make_int4(0, 0, -1, -1);
}

// A thread's trips, added to its block's row when it is done; a barrier must lie between that and `start_rows`.
struct Tally {
  int count = 0;
  unsigned long long first = ~0ull;

  __device__ __forceinline__ void add(int step, int64_t cell) {
    const unsigned long long key = static_cast<unsigned long long>(step) << 40 | static_cast<unsigned long long>(cell);
    ++count;
    first = key < first ? key : first;
  }
  __device__ __forceinline__ void store(int32_t* found) const {
    if (!count) return;
    int32_t* row = found + 4 * (blockIdx.x % kFoundRows);
    atomicAdd(row, count);
    atomicMin(reinterpret_cast<unsigned long long*>(row + 2), first);
  }
};

template <class T, int ROWS, int WARPS, int R>
struct Tile2 {
  T u[ROWS + R][kVec];   // the rows lie at u[R] .. between steps, at u[0] .. between a step down and the step up after it
  int x, y;              // of this lane's first cell, may lie outside the field
  int x0, x1, y0, y1;    // cells that are this tile's own

  __device__ __forceinline__ bool own(int r, int i) const {
    return y + r >= y0 && y + r < y1 && x + i >= x0 && x + i < x1;
  }

  // Where cell `at` of an axis lies in the input. Beyond a bounded field the index is pulled inside: those cells feed nothing
  // that is kept. NEAR: a periodic field is at least as long as what a tile reaches beyond it.
  template <bool NEAR>
  static __device__ __forceinline__ int source(int at, int n, int edge, int margin) {
    if (edge == kPeriodic) {
      if (NEAR) return at < 0 ? at + n : at >= n ? at - n : at;
      at %= n;
      return at < 0 ? at + n : at;
    }
    const int beyond = edge == kHalo ? margin : 0;
    return min(max(at, -beyond), n + beyond - 1) + beyond;
  }

  // This lane's cells of row r on their way into `to`, in 16-byte pieces. Rows start at multiples of four cells, and tiles
  // and edges too, so a piece lies wholly inside the field or wholly outside (then any piece will do).
  __device__ __forceinline__ void fetch(const Plan2<T>& p, T (*to)[kWide]) const {
    const int beyond = p.edge_x == kHalo ? p.in_margin : 0;
    const int at = p.edge_x == kPeriodic ? source<true>(x, p.W, kPeriodic, 0) : min(max(x + beyond, 0), p.in_W - kVec);
    const int lane = lane_id();
#pragma unroll 4
    for (int r = 0; r < ROWS; ++r) {
      const T* row = p.in + static_cast<int64_t>(source<true>(y + r, p.H, p.edge_y, p.in_margin)) * p.in_W + at;
#pragma unroll
      for (int c = 0; c < kVec * static_cast<int>(sizeof(T)) / 16; ++c) {
        constexpr int n = 16 / sizeof(T);
        const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(&to[r][lane * kVec + c * n]));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(row + c * n) : "memory");
      }
    }
  }

  __device__ __forceinline__ void take(const T (*from)[kWide]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) get(&from[r][lane_id() * kVec], u[R + r]);
  }

  __device__ __forceinline__ bool louder(T bound) const {
    typename Bits<T>::type most = 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int i = 0; i < kVec; ++i) most = max(most, magnitude2(u[R + r][i]));
    return most >= magnitude2(bound);
  }

  // Row r, which lies at u[at].
  __device__ __forceinline__ void gate_row(const Plan2<T>& p, Tally& tally, int step, int r, int at) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const bool b = p.gate.bad(u[at][i]);
      if (b && own(r, i)) tally.add(step, static_cast<int64_t>(y + r) * p.W + x + i);
      u[at][i] = b ? p.gate.fill : u[at][i];
    }
  }

  // One step, a sweep down or up over the rows. Down, the old row r lies at u[r + R] and the new one goes to u[r], where the
  // last of the rows that it needs and no later one does has just been read; up, the other way round. So nothing has to be
  // moved aside. EDGE: the tile touches a bounded edge, where neighbours beyond it follow the edge's rule.
  template <bool DOWN, bool GATED, bool EDGE>
  __device__ __forceinline__ void step(const Plan2<T>& p, const Star<T, R>& k, T (*rows)[2 * R][kWide], int warp, int number,
                                       Tally& tally) {
    constexpr int from = DOWN ? R : 0, to = R - from;
    const int lane = lane_id();
#pragma unroll
    for (int d = 0; d < R; ++d) {
      put(&rows[warp][d][lane * kVec], u[from + d]);
      put(&rows[warp][R + d][lane * kVec], u[from + ROWS - R + d]);
    }
    __syncthreads();
    T above[R][kVec], below[R][kVec];  // rows -R .. -1 and ROWS .. ROWS + R - 1
    const int up = warp > 0 ? warp - 1 : 0, down = warp < WARPS - 1 ? warp + 1 : warp;
#pragma unroll
    for (int d = 0; d < R; ++d) {
      get(&rows[up][R + d][lane * kVec], above[d]);
      get(&rows[down][d][lane * kVec], below[d]);
    }
#pragma unroll
    for (int n = 0; n < ROWS; ++n) {
      const int r = DOWN ? n : ROWS - 1 - n;
      auto old = [&](int row, int i) {
        return row < 0 ? above[row < 0 ? R + row : 0][i] : row >= ROWS ? below[row >= ROWS ? row - ROWS : 0][i] : u[from + row][i];
      };
      T w[R], e[R], fresh[kVec];  // west neighbours of the first cell (nearest first), east of the last
#pragma unroll
      for (int d = 0; d < R; ++d) {
        w[d] = __shfl_up_sync(kAll, u[from + r][kVec - 1 - d], 1);
        e[d] = __shfl_down_sync(kAll, u[from + r][d], 1);
      }
      auto along = [&](int i) { return i < 0 ? w[i < 0 ? -1 - i : 0] : i >= kVec ? e[i >= kVec ? i - kVec : 0] : u[from + r][i >= 0 && i < kVec ? i : 0]; };
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        T a = k.center * u[from + r][i];
#pragma unroll
        for (int d = 1; d <= R; ++d) {
          T west = along(i - d), east = along(i + d), north = old(r - d, i), south = old(r + d, i);
          if (EDGE) {
            // The mirror image of cell -1 - m is m: for x - d < 0 that is cell d - 1 - x.
            auto mirrored = [&](int by, auto value) {
              T out = value(0);
#pragma unroll
              for (int m = -R; m <= R; ++m) out = by == m ? value(m) : out;
              return out;
            };
            if (p.edge_x == kDirichlet || p.edge_x == kNeumann) {
              const bool flat = p.edge_x == kDirichlet;
              const int at = x + i;
              auto value = [&](int m) { return along(i + m); };
              if (at >= 0 && at - d < 0) west = flat ? p.edge : mirrored(d - 1 - 2 * at, value);
              if (at < p.W && at + d >= p.W) east = flat ? p.edge : mirrored(2 * (p.W - 1 - at) + 1 - d, value);
            }
            if (p.edge_y == kDirichlet || p.edge_y == kNeumann) {
              const bool flat = p.edge_y == kDirichlet;
              const int at = y + r;
              auto value = [&](int m) { return old(r + m, i); };
              if (at >= 0 && at - d < 0) north = flat ? p.edge : mirrored(d - 1 - 2 * at, value);
              if (at < p.H && at + d >= p.H) south = flat ? p.edge : mirrored(2 * (p.H - 1 - at) + 1 - d, value);
            }
          }
          a += k.x[R - d] * west;
          a += k.x[R + d] * east;
          a += k.y[R - d] * north;
          a += k.y[R + d] * south;
        }
        fresh[i] = a;
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) u[to + r][i] = fresh[i];
      if (GATED) gate_row(p, tally, number, r, to + r);
    }
  }

  // After a step down without one up: the rows back to u[R].
  __device__ __forceinline__ void settle() {
#pragma unroll
    for (int r = ROWS - 1; r >= 0; --r)
#pragma unroll
      for (int i = 0; i < kVec; ++i) u[R + r][i] = u[r][i];
  }

  __device__ __forceinline__ void store(const Plan2<T>& p) const {
    if (x < x0 || x >= x1) return;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      if (y + r >= y0 && y + r < y1) put(p.out + static_cast<int64_t>(y + r) * p.W + x, u[R + r]);
  }
};

// Fields with rows that are no multiple of four cells, or smaller than a tile: cell by cell, through shared memory.
template <class T, int ROWS, int WARPS, int R>
__device__ __noinline__ void fetch_ragged(const Plan2<T>& p, T (*to)[kWide], int x, int y) {
  using Tile = Tile2<T, ROWS, WARPS, R>;
  for (int r = 0; r < ROWS; ++r) {
    const T* row = p.in + static_cast<int64_t>(Tile::template source<false>(y + r, p.H, p.edge_y, p.in_margin)) * p.in_W;
    for (int i = 0; i < kVec; ++i)
      to[r][lane_id() * kVec + i] = row[Tile::template source<false>(x + i, p.W, p.edge_x, p.in_margin)];
  }
}

template <class T, int ROWS>
__device__ __noinline__ void store_ragged(const Plan2<T>& p, const T (*from)[kWide], int x, int y, int x0, int x1, int y0, int y1) {
  for (int r = 0; r < ROWS; ++r)
    for (int i = 0; i < kVec; ++i)
      if (y + r >= y0 && y + r < y1 && x + i >= x0 && x + i < x1)
        p.out[static_cast<int64_t>(y + r) * p.W + x + i] = from[r][lane_id() * kVec + i];
}

// Steps in pairs, so that every row is where it was; the rare kinds, whose speed matters less than their size, one by one.
template <class T, int ROWS, int WARPS, int R, bool GATED, bool EDGE>
__device__ __forceinline__ void steps2(Tile2<T, ROWS, WARPS, R>& tile, const Plan2<T>& p, const Star<T, R>& k,
                                       T (*rows)[WARPS][2 * R][kWide], int warp, Tally& tally) {
  constexpr bool kPairs = !GATED && !EDGE;
  int t = 1;
#pragma unroll 1
  for (; kPairs && t < p.steps; t += 2) {
    tile.template step<true, false, false>(p, k, rows[0], warp, t, tally);
    tile.template step<false, false, false>(p, k, rows[1], warp, t + 1, tally);
  }
#pragma unroll 1
  for (; t <= p.steps; ++t) {
    tile.template step<true, GATED, EDGE>(p, k, rows[kPairs ? 0 : t & 1], warp, t, tally);
    tile.settle();
  }
}

// The rare kinds of tile, as a function of their own: it takes the tile through memory, so that the registers of the common
// kind stay where they are.
template <class T, int ROWS, int WARPS, int R, bool GATED>
__device__ __noinline__ void rare_steps2(Tile2<T, ROWS, WARPS, R>& there, const Plan2<T>& p, const Star<T, R>& k,
                                         T (*rows)[WARPS][2 * R][kWide], int warp) {
  Tile2<T, ROWS, WARPS, R> tile = there;
  Tally tally;
  if (GATED) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) tile.gate_row(p, tally, 0, r, R + r);
  }
  steps2<T, ROWS, WARPS, R, GATED, true>(tile, p, k, rows, warp, tally);
  if (GATED) tally.store(p.found);
  there = tile;
}

template <class T, int ROWS, int WARPS, int R>
struct Shared2 {
  T rows[2][WARPS][2 * R][kWide];
  T next[WARPS][ROWS][kWide];
};

template <class T, int ROWS, int WARPS, int R>
__device__ __forceinline__ void place(Tile2<T, ROWS, WARPS, R>& tile, const Plan2<T>& p, int number, int across, int wide, int tall,
                                      int halo_x, int halo, int warp) {
  tile.x0 = number % across * wide, tile.y0 = number / across * tall;
  tile.x1 = min(tile.x0 + wide, p.W), tile.y1 = min(tile.y0 + tall, p.H);
  tile.x = tile.x0 - halo_x + lane_id() * kVec, tile.y = tile.y0 - halo + warp * ROWS;
}

template <class T, int ROWS, int WARPS, int R, int BLOCKS>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS) stencil2d_kernel(const __grid_constant__ Plan2<T> p) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& sh = *reinterpret_cast<Shared2<T, ROWS, WARPS, R>*>(raw);
  const int warp = threadIdx.x / 32;
  start_rows(p.found);
  const int halo = p.steps * R, halo_x = (halo + kVec - 1) / kVec * kVec;  // whole vectors, so that accesses stay aligned
  const int wide = kWide - 2 * halo_x, tall = ROWS * WARPS - 2 * halo;
  const int across = (p.W + wide - 1) / wide, tiles = across * ((p.H + tall - 1) / tall);

  Star<T, R> k;
#pragma unroll
  for (int i = 0; i < 2 * R + 1; ++i) k.y[i] = p.coefficients[i], k.x[i] = p.coefficients[2 * R + 1 + i];
  k.center = k.y[R] + k.x[R];
  T growth = fabs(k.center);
#pragma unroll
  for (int i = 0; i < 2 * R + 1; ++i)
    if (i != R) growth += fabs(k.y[i]) + fabs(k.x[i]);
  const bool walls = p.edge_y == kDirichlet || p.edge_x == kDirichlet;
  const T bound = quiet_bound(p.gate, growth, walls ? p.edge : T(0), p.steps);
  const bool bounded_x = p.edge_x == kDirichlet || p.edge_x == kNeumann, bounded_y = p.edge_y == kDirichlet || p.edge_y == kNeumann;
  const bool aligned = p.in_W % kVec == 0 && p.W % kVec == 0 && (p.edge_x != kHalo || p.in_margin % kVec == 0) &&
                       p.W >= 2 * kWide && p.H >= 2 * ROWS * WARPS;

  Tile2<T, ROWS, WARPS, R> tile;
  if (aligned && static_cast<int>(blockIdx.x) < tiles) {
    place(tile, p, blockIdx.x, across, wide, tall, halo_x, halo, warp);
    tile.fetch(p, sh.next[warp]);
  }
#pragma unroll 1
  for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
    place(tile, p, number, across, wide, tall, halo_x, halo, warp);
    if (aligned) {
      asm volatile("cp.async.wait_all;" ::: "memory");
      tile.take(sh.next[warp]);  // every lane takes what it fetched itself: no barrier
      if (number + static_cast<int>(gridDim.x) < tiles) {
        Tile2<T, ROWS, WARPS, R> next;
        place(next, p, number + gridDim.x, across, wide, tall, halo_x, halo, warp);
        next.fetch(p, sh.next[warp]);
      }
    } else {
      fetch_ragged<T, ROWS, WARPS, R>(p, sh.next[warp], tile.x, tile.y);
      tile.take(sh.next[warp]);
    }
    const int left = tile.x0 - halo_x, top = tile.y0 - halo;
    const bool edge = (bounded_x && (left < 0 || left + kWide > p.W)) ||
                      (bounded_y && (top < 0 || top + ROWS * WARPS > p.H));
    const bool gated = __syncthreads_or(tile.louder(bound));
    if (!gated && !edge) {
      Tally none;
      steps2<T, ROWS, WARPS, R, false, false>(tile, p, k, sh.rows, warp, none);
    } else {
      Tile2<T, ROWS, WARPS, R> copy = tile;
      const Star<T, R> kk = k;
      if (gated) rare_steps2<T, ROWS, WARPS, R, true>(copy, p, kk, sh.rows, warp);
      else rare_steps2<T, ROWS, WARPS, R, false>(copy, p, kk, sh.rows, warp);
      tile = copy;
    }
    if (aligned) {
      tile.store(p);
    } else {
#pragma unroll
      for (int r = 0; r < ROWS; ++r) put(&sh.next[warp][r][lane_id() * kVec], tile.u[R + r]);
      store_ragged<T, ROWS>(p, sh.next[warp], tile.x, tile.y, tile.x0, tile.x1, tile.y0, tile.y1);
    }
  }
}

inline cudaError_t processors_of_this_device(int& count) {
  int device = 0;
  const cudaError_t e = cudaGetDevice(&device);
  return e == cudaSuccess ? cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) : e;
}

template <class T, int ROWS, int WARPS, int R, int BLOCKS>
cudaError_t launch2(cudaStream_t stream, const Plan2<T>& p, int processors) {
  const int halo = p.steps * R, halo_x = (halo + kVec - 1) / kVec * kVec;
  const int wide = kWide - 2 * halo_x, tall = ROWS * WARPS - 2 * halo;
  const int64_t tiles = static_cast<int64_t>((p.W + wide - 1) / wide) * ((p.H + tall - 1) / tall);
  auto kernel = stencil2d_kernel<T, ROWS, WARPS, R, BLOCKS>;
  constexpr int bytes = sizeof(Shared2<T, ROWS, WARPS, R>);
  const cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (e != cudaSuccess) return e;
  const int64_t most = int64_t{BLOCKS} * processors, slots = most < kFoundRows ? most : kFoundRows;
  kernel<<<static_cast<unsigned>(tiles < slots ? tiles : slots), 32 * WARPS, bytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace poise::cuda
