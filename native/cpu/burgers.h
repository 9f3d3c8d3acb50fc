// One Runge-Kutta stage of two-dimensional viscous Burgers on a shard, in one pass:
//     out = c_base base + c_in q + c_rate rate(q)
//     rate(q) = nu (q_xx + q_yy) - q_0 q_x - q_1 q_y + f     (central differences, both components)
// Fields are [2][nx][ny]; the neighbours' or boundary's values come as west, east [2][ny] and south, north [2][nx].
#pragma once
#include <cstdint>

namespace poise::POISE_ISA {

template <class T>
struct Burgers {
  const T *q, *base, *west, *east, *south, *north, *forcing;
  T* out;
  int64_t nx, ny;
  T half_over_h, nu_over_h2, c_base, c_in, c_rate;
};

template <class T>
inline __attribute__((always_inline)) T burgers_value(const Burgers<T>& b, T u, T v, T c, T w, T e, T s, T n, T f, T base) {
  const T advection = u * ((e - w) * b.half_over_h) + v * ((n - s) * b.half_over_h);
  const T rate = (w + e + s + n - T(4) * c) * b.nu_over_h2 - advection + f;
  return b.c_base * base + (b.c_in * c + b.c_rate * rate);
}

template <class T>
void burgers_rows(const Burgers<T>& plan, int64_t i0, int64_t i1) {
  const Burgers<T> b = plan;  // a local copy: stores could alias the plan
  const int64_t plane = b.nx * b.ny, ny = b.ny;
  for (int64_t i = i0; i < i1; ++i)
    for (int k = 0; k < 2; ++k) {
      const T *u = b.q + i * ny, *v = b.q + plane + i * ny, *c = k ? v : u;
      const T* w = i ? c - ny : b.west + k * ny;
      const T* e = i + 1 < b.nx ? c + ny : b.east + k * ny;
      const T* base = b.base + k * plane + i * ny;
      T* out = b.out + k * plane + i * ny;
      const T f = b.forcing[k], s0 = b.south[k * b.nx + i], n1 = b.north[k * b.nx + i];
#pragma GCC ivdep
      for (int64_t j = 1; j < ny - 1; ++j) out[j] = burgers_value(b, u[j], v[j], c[j], w[j], e[j], c[j - 1], c[j + 1], f, base[j]);
      const int64_t l = ny - 1;
      out[0] = burgers_value(b, u[0], v[0], c[0], w[0], e[0], s0, ny > 1 ? c[1] : n1, f, base[0]);
      if (l) out[l] = burgers_value(b, u[l], v[l], c[l], w[l], e[l], c[l - 1], n1, f, base[l]);
    }
}

}  // namespace poise::POISE_ISA
