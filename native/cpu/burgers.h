// One Runge-Kutta stage of two-dimensional viscous Burgers on a shard, in one pass (poise/burgers.h says what it computes).
#pragma once
#include "poise/burgers.h"

namespace poise::POISE_ISA {

// Cells j0 .. j1 - 1 of row i of component k.
template <class T>
inline void burgers_piece(const Burgers<T>& plan, int k, int64_t i, int64_t j0, int64_t j1) {
  const Burgers<T> b = plan;  // a local copy: stores could alias the plan
  const int64_t plane = b.nx * b.ny, ny = b.ny, l = ny - 1;
  const T *u = b.q + i * ny, *v = b.q + plane + i * ny, *c = k ? v : u;
  const T* w = i ? c - ny : b.west + k * ny;
  const T* e = i + 1 < b.nx ? c + ny : b.east + k * ny;
  const T* base = b.base + k * plane + i * ny;
  T* out = b.out + k * plane + i * ny;
  const T f = b.forcing[k];
  // Whole vectors from the piece's beginning, so that their stores are aligned (starting at j = 1 costs a factor of 2): a
  // row's first and last cell then meet a neighbour of another row, and are put right below. Only the array's own first and
  // last cell have nothing beside them.
  const int64_t first = k || i || j0 ? j0 : 1, last = k && i + 1 == b.nx && j1 == ny ? l : j1;
#pragma GCC ivdep
  for (int64_t j = first; j < last; ++j) out[j] = burgers_value(b, u[j], v[j], c[j], w[j], e[j], c[j - 1], c[j + 1], f, base[j]);
  const T s0 = b.south[k * b.nx + i], n1 = b.north[k * b.nx + i];
  if (j0 == 0) out[0] = burgers_value(b, u[0], v[0], c[0], w[0], e[0], s0, l ? c[1] : n1, f, base[0]);
  if (j1 == ny && l) out[l] = burgers_value(b, u[l], v[l], c[l], w[l], e[l], c[l - 1], n1, f, base[l]);
}

template <class T>
void burgers_rows(const Burgers<T>& b, int64_t i0, int64_t i1) {
  for (int64_t i = i0; i < i1; ++i)
    for (int k = 0; k < 2; ++k) burgers_piece(b, k, i, 0, b.ny);
}

// Cells a .. z - 1 of the whole field in C order.
template <class T>
inline void burgers_range(const Burgers<T>& b, int64_t a, int64_t z) {
  while (a < z) {
    const int64_t row = a / b.ny, j = a - row * b.ny, end = b.ny - j < z - a ? b.ny : j + z - a;
    const int k = row >= b.nx;
    burgers_piece(b, k, row - k * b.nx, j, end);
    a += end - j;
  }
}

}  // namespace poise::POISE_ISA
