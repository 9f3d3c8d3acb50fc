// T <= 4 gated steps of a 7-point stencil in one pass over a 3-D array without walls, periodic along x with rows that are whole
// pieces of 16 bytes; the others have stencil3d_walls.cuh. A block streams along z with all T time levels in flight: of each level
// it keeps, in registers, the plane that came last and the sum for the next one that lacks only the plane below. So the levels of
// one iteration are a chain of multiply-adds, and one barrier serves them all for the exchange of rows between warps. x neighbours
// come by shuffle; the planes come two ahead (cp.async). Rows between warps are the dearest part: few warps, many rows each.
//
// The gate: inputs are tested as they stream in. If one was louder than `quiet_bound`, the block does its part again with
// every value of every level gated and counted; what it wrote before is overwritten.
#pragma once
#include "stencil2d.cuh"

namespace poise::cuda {

template <class T>
struct Plan3 {
  const T* in;
  T* out;
  int32_t* found;
  const T* coefficients;  // [3][3], z first
  int D, H, W, in_H, in_W;
  int edge_z, edge_y, edge_x, in_margin, chunk;  // chunk: planes of the result that a block streams through at a time
  T edge;
  Gate<T> gate;
};

POISE_HD bool bounded(int edge) { return edge == kDirichlet || edge == kNeumann; }

__device__ __forceinline__ int inside(int at, int n, int edge, int margin) {
  if (edge == kPeriodic) {
    at %= n;
    return at < 0 ? at + n : at;
  }
  const int beyond = edge == kHalo ? margin : 0;
  return min(max(at, -beyond), n + beyond - 1) + beyond;
}

// The largest magnitude that came in; a NaN stays. One instruction a value in float32.
template <class T>
struct Loudest {
  typename Bits<T>::type most = 0;
  __device__ __forceinline__ void add(T x) { most = max(most, magnitude2(x)); }
  __device__ __forceinline__ bool reaches(T bound) const { return most >= magnitude2(bound); }
};

template <>
struct Loudest<float> {
  float most = 0;
  __device__ __forceinline__ void add(float x) { asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(most), "f"(fabsf(x))); }
  __device__ __forceinline__ bool reaches(float bound) const { return !(most < bound); }
};

template <class T>
struct Wide3 {  // values per lane and row: one or two 16-byte accesses would be 4; doubles take 2 to save registers
  static constexpr int V = sizeof(T) == 4 ? 4 : 2;
};

template <class T, int STEPS, int ROWS, int WARPS>
struct Column3 {
  static constexpr int V = Wide3<T>::V;
  static constexpr int kTall = ROWS * WARPS, kAcross = 32 * V;
  using Plane = T[ROWS][V];
  struct Shared {
    T rows[2][STEPS][WARPS][2][kAcross];  // first and last row of every warp and level, of two iterations in turn
    T next[2][kTall][kAcross];            // planes on their way (cp.async); a lane takes what it fetched itself
  };

  const Plan3<T>& p;
  Shared& sh;
  int x, y, x0, x1, y0, y1, z0, z1;

  __device__ __forceinline__ bool own(int r, int i) const {
    return y + r >= y0 && y + r < y1 && x + i >= x0 && x + i < x1;
  }

  // Where this lane's rows lie in a plane of the input: found once, the planes only add to it.
  struct Place {
    int row[ROWS];
  };

  __device__ __forceinline__ Place places() const {
    Place at;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
      at.row[r] = inside(y + r, p.H, p.edge_y, p.in_margin) * p.in_W + inside(x, p.W, kPeriodic, 0);
    return at;
  }

  // This lane's cells of plane z of the input on their way into shared memory.
  __device__ __forceinline__ void fetch(const Place& at, int z, int slot, int warp) const {
    const T* plane = p.in + static_cast<int64_t>(z) * (static_cast<int64_t>(p.in_H) * p.in_W);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&sh.next[slot][warp * ROWS + r][lane_id() * V]));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(plane + at.row[r]) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  __device__ __forceinline__ void take(Plane& u, Loudest<T>& loudest, int slot, int warp) const {
    asm volatile("cp.async.wait_group 1;" ::: "memory");  // the plane after it may be on its way still
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const Chunk<T> c = *reinterpret_cast<const Chunk<T>*>(&sh.next[slot][warp * ROWS + r][lane_id() * V]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        u[r][i] = c.v[i];
        loudest.add(c.v[i]);
      }
    }
  }

  __device__ __forceinline__ void store(const Plane& u, T* plane) const {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (y + r < y0 || y + r >= y1 || x < x0 || x >= x1) continue;
      Chunk<T> c;
#pragma unroll
      for (int i = 0; i < V; ++i) c.v[i] = u[r][i];
      *reinterpret_cast<Chunk<T>*>(plane + r * p.W) = c;
    }
  }

  __device__ __forceinline__ void gate(Plane& u, Tally& tally, int z, int step) const {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const bool b = p.gate.bad(u[r][i]);
        if (b && own(r, i) && z >= z0 && z < z1) tally.add(step, (static_cast<int64_t>(z) * p.H + y + r) * p.W + x + i);
        u[r][i] = b ? p.gate.fill : u[r][i];
      }
  }

  // The sum for plane z of the next level, but for the plane below: centre, x and y neighbours, the plane above.
  __device__ __forceinline__ void gather(Plane& sum, const Plane& u, const Plane& above, const T (&k)[3][3], T center,
                                         const T (*rows)[2][kAcross], int warp) const {
    const int lane = lane_id();
    const int up = warp > 0 ? warp - 1 : 0, down = warp < WARPS - 1 ? warp + 1 : warp;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      const T w = __shfl_up_sync(kAll, u[r][V - 1], 1), e = __shfl_down_sync(kAll, u[r][0], 1);
      Chunk<T> north{}, south{};
      if (r == 0) north = *reinterpret_cast<const Chunk<T>*>(&rows[up][1][lane * V]);
      if (r == ROWS - 1) south = *reinterpret_cast<const Chunk<T>*>(&rows[down][0][lane * V]);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const T west = i ? u[r][i ? i - 1 : 0] : w, east = i < V - 1 ? u[r][i < V - 1 ? i + 1 : 0] : e;
        const T n = r ? u[r ? r - 1 : 0][i] : north.v[i], s = r < ROWS - 1 ? u[r < ROWS - 1 ? r + 1 : 0][i] : south.v[i];
        T a = center * u[r][i];
        a += k[2][0] * west;
        a += k[2][2] * east;
        a += k[1][0] * n;
        a += k[1][2] * s;
        a += k[0][0] * above[r][i];
        sum[r][i] = a;
      }
    }
  }

  // False: something louder than `quiet` came in (never when GATED).
  template <bool GATED>
  __device__ __forceinline__ bool run(const T (&k)[3][3], T quiet, int warp) const {
    T center = k[0][1] + k[1][1] + k[2][1];
    Plane last[STEPS], sum[STEPS];
#pragma unroll
    for (int l = 0; l < STEPS; ++l)
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int i = 0; i < V; ++i) last[l][r][i] = sum[l][r][i] = T(0);
    Loudest<T> loudest;
    Tally tally;
    const int from = z0 - STEPS, to = z1 + STEPS;  // one past the last plane of level 0 that is needed
    const int64_t out_stride = static_cast<int64_t>(p.H) * p.W;
    T* to_plane = p.out + z0 * out_stride + static_cast<int64_t>(y) * p.W + x;
    const Place at = places();
    int source = inside(from, p.D, p.edge_z, p.in_margin);
    const int planes = p.edge_z == kHalo ? p.D + 2 * p.in_margin : p.D;
    // Planes past the end feed nothing that is kept.
    auto after = [&](int plane) { return plane + 1 < planes ? plane + 1 : p.edge_z == kPeriodic ? 0 : plane; };
    fetch(at, source, from & 1, warp);
    source = after(source);
    fetch(at, source, (from + 1) & 1, warp);
    constexpr int kTurns = GATED ? 1 : 2;  // planes change their roles from turn to turn: unrolled, fewer have to be moved
#pragma unroll kTurns
    for (int z = from; z < to; ++z) {
      Plane u[STEPS + 1];
      take(u[0], loudest, z & 1, warp);
      source = after(source);
      fetch(at, source, z & 1, warp);
      if (GATED) gate(u[0], tally, z, 0);
      // Down the levels: level l's plane z - l gets the part of the plane below it, plane z - l + 1 of level l - 1.
#pragma unroll
      for (int l = 1; l <= STEPS; ++l) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
          for (int i = 0; i < V; ++i) u[l][r][i] = sum[l - 1][r][i] + k[0][2] * u[l - 1][r][i];
        if (GATED) gate(u[l], tally, z - l, l);
      }
      if (z - STEPS >= z0 && z - STEPS < z1) {
        store(u[STEPS], to_plane);
        to_plane += out_stride;
      }
      auto& ex = sh.rows[z & 1];
#pragma unroll
      for (int l = 0; l < STEPS; ++l) {
        Chunk<T> top, bottom;
#pragma unroll
        for (int i = 0; i < V; ++i) top.v[i] = u[l][0][i], bottom.v[i] = u[l][ROWS - 1][i];
        *reinterpret_cast<Chunk<T>*>(&ex[l][warp][0][lane_id() * V]) = top;
        *reinterpret_cast<Chunk<T>*>(&ex[l][warp][1][lane_id() * V]) = bottom;
      }
      __syncthreads();
#pragma unroll
      for (int l = 0; l < STEPS; ++l) {
        gather(sum[l], u[l], last[l], k, center, ex[l], warp);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
          for (int i = 0; i < V; ++i) last[l][r][i] = u[l][r][i];
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (GATED) tally.store(p.found);
    return !__syncthreads_or(!GATED && loudest.reaches(quiet));
  }
};

// A function of its own, so that the registers of the common kind stay where they are.
template <class T, int STEPS, int ROWS, int WARPS>
__device__ __noinline__ void gated_run3(const Column3<T, STEPS, ROWS, WARPS>& there, const T (&k)[3][3], T quiet, int warp) {
  const Column3<T, STEPS, ROWS, WARPS> c = there;
  const T kk[3][3] = {{k[0][0], k[0][1], k[0][2]}, {k[1][0], k[1][1], k[1][2]}, {k[2][0], k[2][1], k[2][2]}};
  c.template run<true>(kk, quiet, warp);
}

template <class T, int STEPS, int ROWS, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, 1) stencil3d_kernel(const __grid_constant__ Plan3<T> p) {
  using Column = Column3<T, STEPS, ROWS, WARPS>;
  extern __shared__ __align__(16) unsigned char raw[];
  auto& sh = *reinterpret_cast<typename Column::Shared*>(raw);
  start_rows(p.found);
  const int warp = threadIdx.x / 32;
  constexpr int V = Column::V, halo_x = (STEPS + 3) / 4 * 4;
  constexpr int wide = Column::kAcross - 2 * halo_x, tall = Column::kTall - 2 * STEPS;

  T k[3][3], growth = 0;
#pragma unroll
  for (int a = 0; a < 3; ++a)
#pragma unroll
    for (int i = 0; i < 3; ++i) k[a][i] = p.coefficients[3 * a + i];
  growth = fabs(k[0][1] + k[1][1] + k[2][1]);
#pragma unroll
  for (int a = 0; a < 3; ++a) growth += fabs(k[a][0]) + fabs(k[a][2]);
  const T quiet = quiet_bound(p.gate, growth, T(0), STEPS);
  const int across = (p.W + wide - 1) / wide, down = (p.H + tall - 1) / tall;
  const int pieces = across * down * ((p.D + p.chunk - 1) / p.chunk);
  // Neighbours in x and y are streamed at the same time, so that L2 has their common cells.
#pragma unroll 1
  for (int piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    Column c{p, sh, 0, 0, piece % across * wide, 0, piece / across % down * tall, 0, piece / (across * down) * p.chunk, 0};
    c.x1 = min(c.x0 + wide, p.W), c.y1 = min(c.y0 + tall, p.H), c.z1 = min(c.z0 + p.chunk, p.D);
    const int left = c.x0 - halo_x, top = c.y0 - STEPS;
    c.x = left + lane_id() * V, c.y = top + warp * ROWS;
    if (quiet > T(0) && c.template run<false>(k, quiet, warp)) continue;
    const Column again = c;  // copies: the fast path's values never have an address
    const T kk[3][3] = {{k[0][0], k[0][1], k[0][2]}, {k[1][0], k[1][1], k[1][2]}, {k[2][0], k[2][1], k[2][2]}};
    gated_run3<T, STEPS, ROWS, WARPS>(again, kk, quiet, warp);
  }
}

template <class T, int STEPS, int ROWS, int WARPS>
cudaError_t launch3(cudaStream_t stream, Plan3<T> p) {
  using Column = Column3<T, STEPS, ROWS, WARPS>;
  constexpr int halo_x = (STEPS + 3) / 4 * 4, wide = Column::kAcross - 2 * halo_x, tall = Column::kTall - 2 * STEPS;
  int processors = 1;
  cudaError_t e = processors_of_this_device(processors);
  constexpr int bytes = sizeof(typename Column::Shared);
  auto kernel = stencil3d_kernel<T, STEPS, ROWS, WARPS>;
  if (e == cudaSuccess) e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (e != cudaSuccess) return e;
  // Cut z so that the last round of columns is nearly full; a cut costs 2 STEPS planes of overlap.
  const int64_t columns = static_cast<int64_t>((p.W + wide - 1) / wide) * ((p.H + tall - 1) / tall);
  int64_t best = INT64_MAX, pieces = columns;
  for (int cuts = 1; cuts <= 16 && cuts <= p.D; ++cuts) {
    const int chunk = (p.D + cuts - 1) / cuts, made = (p.D + chunk - 1) / chunk;
    const int64_t cost = (columns * made + processors - 1) / processors * (chunk + 2 * STEPS);
    if (cost < best) best = cost, p.chunk = chunk, pieces = columns * made;
  }
  const int64_t slots = processors < kFoundRows ? processors : kFoundRows;
  kernel<<<static_cast<unsigned>(pieces < slots ? pieces : slots), 32 * WARPS, bytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace poise::cuda
