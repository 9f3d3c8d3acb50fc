// One Runge-Kutta stage of two-dimensional viscous Burgers on a shard, in one pass (poise/burgers.h says what it computes).
#pragma once
#include "poise/burgers.h"

namespace poise::POISE_ISA {

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
