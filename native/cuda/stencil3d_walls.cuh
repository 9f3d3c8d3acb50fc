// T <= 4 gated steps of a 7-point stencil in 3-D for fields with walls, or with rows that are not whole pieces of 16 bytes; the
// others have stencil3d.cuh. A block streams along z with all T time levels in flight: of each level it keeps, in registers, the
// plane that came last and the sum for the next one that lacks only the plane below. One barrier serves all levels of an
// iteration. Sixteen warps of two rows: the edges' code waits for memory often, and more warps hide that.
//
// The gate: as there.
#pragma once
#include "stencil3d.cuh"

namespace poise::cuda {

template <class T, int STEPS, int ROWS, int WARPS>
struct WalledColumn3 {
  static constexpr int V = Wide3<T>::V;
  static constexpr int kTall = ROWS * WARPS, kAcross = 32 * V;
  using Plane = T[ROWS][V];
  using Rows = T[STEPS][WARPS][2][kAcross];

  const Plan3<T>& p;
  int x, y, x0, x1, y0, y1, z0, z1;

  __device__ __forceinline__ bool own(int r, int i) const {
    return y + r >= y0 && y + r < y1 && x + i >= x0 && x + i < x1;
  }

  // Where this lane's cells lie in a plane of the input: found once, the planes only add to it.
  struct Place {
    int row[ROWS], col[V];
  };

  __device__ __forceinline__ Place places() const {
    Place at;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) at.row[r] = inside(y + r, p.H, p.edge_y, p.in_margin) * p.in_W;
#pragma unroll
    for (int i = 0; i < V; ++i) at.col[i] = inside(x + i, p.W, p.edge_x, p.in_margin);
    return at;
  }

  __device__ __forceinline__ void load(Plane& u, const Place& at, int z, bool whole) const {
    const T* plane = p.in + static_cast<int64_t>(z) * (static_cast<int64_t>(p.in_H) * p.in_W);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (whole) {
        const Chunk<T> c = *reinterpret_cast<const Chunk<T>*>(plane + at.row[r] + at.col[0]);
#pragma unroll
        for (int i = 0; i < V; ++i) u[r][i] = c.v[i];
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i) u[r][i] = plane[at.row[r] + at.col[i]];
      }
    }
  }

  __device__ __forceinline__ void store(const Plane& u, T* plane, bool whole) const {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (y + r < y0 || y + r >= y1) continue;
      T* row = plane + r * p.W;
      if (whole) {
        if (x < x0 || x >= x1) continue;
        Chunk<T> c;
#pragma unroll
        for (int i = 0; i < V; ++i) c.v[i] = u[r][i];
        *reinterpret_cast<Chunk<T>*>(row) = c;
      } else {
#pragma unroll
        for (int i = 0; i < V; ++i)
          if (x + i >= x0 && x + i < x1) row[i] = u[r][i];
      }
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
  template <bool EDGE>
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
        T west = i ? u[r][i ? i - 1 : 0] : w, east = i < V - 1 ? u[r][i < V - 1 ? i + 1 : 0] : e;
        T n = r ? u[r ? r - 1 : 0][i] : north.v[i], s = r < ROWS - 1 ? u[r < ROWS - 1 ? r + 1 : 0][i] : south.v[i];
        if (EDGE) {
          const T wall_x = p.edge_x == kDirichlet ? p.edge : u[r][i], wall_y = p.edge_y == kDirichlet ? p.edge : u[r][i];
          if (bounded(p.edge_x) && x + i == 0) west = wall_x;
          if (bounded(p.edge_x) && x + i == p.W - 1) east = wall_x;
          if (bounded(p.edge_y) && y + r == 0) n = wall_y;
          if (bounded(p.edge_y) && y + r == p.H - 1) s = wall_y;
        }
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

  __device__ __forceinline__ void ghost(Plane& u, const Plane& mirror) const {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int i = 0; i < V; ++i) u[r][i] = p.edge_z == kDirichlet ? p.edge : mirror[r][i];
  }

  // False: something louder than `quiet` came in (never when GATED).
  // PLAIN: inside the field and aligned, so every access is a whole quad and no edge's rule is needed.
  template <bool GATED, bool PLAIN>
  __device__ __forceinline__ bool run(const T (&k)[3][3], T quiet, Rows* rows, int warp, bool whole_in, bool whole_out) const {
    constexpr bool EDGE = !PLAIN;
    if (PLAIN) whole_in = whole_out = true;
    T center = k[0][1] + k[1][1] + k[2][1];
    Plane last[STEPS], sum[STEPS], next;
#pragma unroll
    for (int l = 0; l < STEPS; ++l)
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int i = 0; i < V; ++i) last[l][r][i] = sum[l][r][i] = T(0);
    typename Bits<T>::type most = 0;
    Tally tally;
    int from = z0 - STEPS;
    if (bounded(p.edge_z) && from < 0) from = 0;
    const int to = z1 + STEPS;  // one past the last plane of level 0 that is needed
    const int64_t out_stride = static_cast<int64_t>(p.H) * p.W;
    T* to_plane = p.out + z0 * out_stride + static_cast<int64_t>(y) * p.W + x;
    const Place at = places();
    int source = inside(from, p.D, p.edge_z, p.in_margin);
    const int planes = p.edge_z == kHalo ? p.D + 2 * p.in_margin : p.D;
    load(next, at, source, whole_in);
#pragma unroll 1
    for (int z = from; z < to; ++z) {
      Plane u[STEPS + 1];
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int i = 0; i < V; ++i) {
          u[0][r][i] = next[r][i];
          most = max(most, magnitude2(next[r][i]));
        }
      if (source + 1 < planes) ++source;  // planes past the end feed nothing that is kept
      else if (p.edge_z == kPeriodic) source = 0;
      load(next, at, source, whole_in);
      if (GATED) gate(u[0], tally, z, 0);
      // Down the levels: level l's plane z - l gets the part of the plane below it, plane z - l + 1 of level l - 1.
#pragma unroll
      for (int l = 1; l <= STEPS; ++l) {
        if (EDGE && bounded(p.edge_z) && z - l + 1 == p.D) ghost(u[l - 1], last[l - 1]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
          for (int i = 0; i < V; ++i) u[l][r][i] = sum[l - 1][r][i] + k[0][2] * u[l - 1][r][i];
        if (GATED) gate(u[l], tally, z - l, l);
      }
      if (z - STEPS >= z0 && z - STEPS < z1) {
        store(u[STEPS], to_plane, whole_out);
        to_plane += out_stride;
      }
      Rows& ex = rows[z & 1];
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
        if (EDGE && bounded(p.edge_z) && z - l == 0) ghost(last[l], u[l]);
        gather<EDGE>(sum[l], u[l], last[l], k, center, ex[l], warp);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
          for (int i = 0; i < V; ++i) last[l][r][i] = u[l][r][i];
      }
    }
    if (GATED) tally.store(p.found);
    return GATED || !__syncthreads_or(most >= magnitude2(quiet));
  }
};

template <class T, int STEPS, int ROWS, int WARPS, bool GATED>
__device__ __noinline__ bool rare_walled_run3(const WalledColumn3<T, STEPS, ROWS, WARPS>& c, const T (&k)[3][3], T quiet,
                                       typename WalledColumn3<T, STEPS, ROWS, WARPS>::Rows* rows, int warp, bool whole_in,
                                       bool whole_out) {
  return c.template run<GATED, false>(k, quiet, rows, warp, whole_in, whole_out);
}

template <class T, int STEPS, int ROWS, int WARPS>
__global__ void __launch_bounds__(32 * WARPS, 1) stencil3d_walls_kernel(const __grid_constant__ Plan3<T> p) {
  using Column = WalledColumn3<T, STEPS, ROWS, WARPS>;
  extern __shared__ __align__(16) unsigned char raw[];
  auto* rows = reinterpret_cast<typename Column::Rows*>(raw);
  const int warp = threadIdx.x / 32;
  constexpr int V = Column::V, halo_x = (STEPS + 3) / 4 * 4;
  constexpr int wide = Column::kAcross - 2 * halo_x, tall = Column::kTall - 2 * STEPS;
  Column c{p, 0, 0, static_cast<int>(blockIdx.x) * wide, 0, static_cast<int>(blockIdx.y) * tall, 0, static_cast<int>(blockIdx.z) * p.chunk, 0};
  c.x1 = min(c.x0 + wide, p.W), c.y1 = min(c.y0 + tall, p.H), c.z1 = min(c.z0 + p.chunk, p.D);
  const int left = c.x0 - halo_x, top = c.y0 - STEPS;
  c.x = left + lane_id() * V, c.y = top + warp * ROWS;

  T k[3][3], growth = 0;
#pragma unroll
  for (int a = 0; a < 3; ++a)
#pragma unroll
    for (int i = 0; i < 3; ++i) k[a][i] = p.coefficients[3 * a + i];
  growth = fabs(k[0][1] + k[1][1] + k[2][1]);
#pragma unroll
  for (int a = 0; a < 3; ++a) growth += fabs(k[a][0]) + fabs(k[a][2]);
  const bool walls = p.edge_z == kDirichlet || p.edge_y == kDirichlet || p.edge_x == kDirichlet;
  const T quiet = quiet_bound(p.gate, growth, walls ? p.edge : T(0), STEPS);

  const int margin = p.edge_x == kHalo ? p.in_margin : 0;
  const bool whole_in = (p.edge_x == kPeriodic && p.W % V == 0) ||
                        (left + margin >= 0 && left + Column::kAcross <= p.W + margin && p.in_W % V == 0 && margin % V == 0);
  const bool whole_out = p.W % V == 0;
  const bool edge = (bounded(p.edge_z) && (c.z0 < STEPS || c.z1 + STEPS > p.D)) || (bounded(p.edge_x) && (left < 0 || left + Column::kAcross > p.W)) ||
                    (bounded(p.edge_y) && (top < 0 || top + Column::kTall > p.H));
  bool fine = false;
  const bool plain = !edge && whole_in && whole_out;
  if (quiet > T(0) && plain) {
    fine = c.template run<false, true>(k, quiet, rows, warp, whole_in, whole_out);
    if (fine) return;
  }
  const Column again = c;  // copies: the fast path's values never have an address
  const T kk[3][3] = {{k[0][0], k[0][1], k[0][2]}, {k[1][0], k[1][1], k[1][2]}, {k[2][0], k[2][1], k[2][2]}};
  if (quiet > T(0) && !plain) fine = rare_walled_run3<T, STEPS, ROWS, WARPS, false>(again, kk, quiet, rows, warp, whole_in, whole_out);
  if (!fine) rare_walled_run3<T, STEPS, ROWS, WARPS, true>(again, kk, quiet, rows, warp, whole_in, whole_out);
}

// The rows of what is found, before any block adds to them: there are more blocks than rows here.
inline cudaError_t clear_rows(cudaStream_t stream, int32_t* found) {
  const cudaError_t e = cudaMemset2DAsync(found, 16, 0, 8, kFoundRows, stream);
  return e == cudaSuccess ? cudaMemset2DAsync(found + 2, 16, 0xFF, 8, kFoundRows, stream) : e;
}

template <class T, int STEPS, int ROWS, int WARPS>
cudaError_t launch3_walls(cudaStream_t stream, Plan3<T> p) {
  using Column = WalledColumn3<T, STEPS, ROWS, WARPS>;
  constexpr int halo_x = (STEPS + 3) / 4 * 4, wide = Column::kAcross - 2 * halo_x, tall = Column::kTall - 2 * STEPS;
  int processors = 1;
  cudaError_t e = clear_rows(stream, p.found);
  if (e == cudaSuccess) e = processors_of_this_device(processors);
  constexpr int bytes = 2 * sizeof(typename Column::Rows);
  auto kernel = stencil3d_walls_kernel<T, STEPS, ROWS, WARPS>;
  if (e == cudaSuccess) e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (e != cudaSuccess) return e;
  dim3 grid((p.W + wide - 1) / wide, (p.H + tall - 1) / tall, 1);
  // Cut z so that the last wave of blocks is nearly full; a cut costs 2 STEPS planes of overlap.
  const int columns = static_cast<int>(grid.x * grid.y);
  double best = 1e300;
  for (int cuts = 1; cuts <= 16 && cuts <= p.D; ++cuts) {
    const int chunk = (p.D + cuts - 1) / cuts;
    const int waves = (columns * cuts + processors - 1) / processors;
    const double cost = static_cast<double>(waves) * (chunk + 2 * STEPS);
    if (cost < best) best = cost, p.chunk = chunk, grid.z = (p.D + chunk - 1) / chunk;
  }
  kernel<<<grid, 32 * WARPS, bytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace poise::cuda
