// One Runge-Kutta stage of two-dimensional viscous Burgers. A thread walks along x with the last, this and the next row's cell
// of its column in registers; y neighbours come from L1, so that memory sees each field once.
#pragma once
#include <cuda_runtime.h>

#include "poise/burgers.h"

namespace poise::cuda {

constexpr int kBurgersColumns = 128, kBurgersRows = 16;

template <class T>
__global__ void __launch_bounds__(kBurgersColumns) burgers_kernel(const __grid_constant__ Burgers<T> b) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kBurgersColumns + threadIdx.x;
  const int64_t i0 = static_cast<int64_t>(blockIdx.y) * kBurgersRows;
  if (j >= b.ny) return;
  const int64_t plane = b.nx * b.ny, i1 = i0 + kBurgersRows < b.nx ? i0 + kBurgersRows : b.nx;
  const T f[2] = {b.forcing[0], b.forcing[1]};
  T w[2], c[2], e[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const T* q = b.q + k * plane + j;
    w[k] = i0 ? q[(i0 - 1) * b.ny] : b.west[k * b.ny + j];
    c[k] = q[i0 * b.ny];
  }
#pragma unroll 4
  for (int64_t i = i0; i < i1; ++i) {
    T s[2], n[2], base[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const T* q = b.q + k * plane + i * b.ny + j;
      e[k] = i + 1 < b.nx ? q[b.ny] : b.east[k * b.ny + j];
      s[k] = j ? q[-1] : b.south[k * b.nx + i];
      n[k] = j + 1 < b.ny ? q[1] : b.north[k * b.nx + i];
      base[k] = b.base[k * plane + i * b.ny + j];
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      b.out[k * plane + i * b.ny + j] = burgers_value(b, c[0], c[1], c[k], w[k], e[k], s[k], n[k], f[k], base[k]);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) w[k] = c[k], c[k] = e[k];
  }
}

}  // namespace poise::cuda
