// One cell of a Runge-Kutta stage of two-dimensional viscous Burgers; shared by the CPU and the CUDA kernels.
//     out = c_base base + c_in q + c_rate rate(q)
//     rate(q) = nu (q_xx + q_yy) - q_0 q_x - q_1 q_y + f     (central differences, both components)
// Fields are [2][nx][ny]; the neighbours' or boundary's values come as west, east [2][ny] and south, north [2][nx].
#pragma once
#include "layout.h"

namespace poise {

template <class T>
struct Burgers {
  const T *q, *base, *west, *east, *south, *north, *forcing;
  T* out;
  int64_t nx, ny;
  T half_over_h, nu_over_h2, c_base, c_in, c_rate;
};

// Said outright on the GPU, so that every kernel rounds alike; a CPU without the instruction would call a library for it.
template <class T>
POISE_HD T fused(T a, T b, T c) {
#ifdef __CUDA_ARCH__
  return fma(a, b, c);
#else
  return a * b + c;
#endif
}

template <class T>
POISE_HD T burgers_value(const Burgers<T>& b, T u, T v, T c, T w, T e, T s, T n, T f, T base) {
  const T advection = fused(u, (e - w) * b.half_over_h, v * ((n - s) * b.half_over_h));
  const T rate = fused(fused(T(-4), c, w + e + s + n), b.nu_over_h2, -advection) + f;
  return fused(b.c_base, base, fused(b.c_in, c, b.c_rate * rate));
}

}  // namespace poise
