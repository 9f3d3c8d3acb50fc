// T gated steps of a 7-point stencil in one pass over a 3-D array. A column of tall x wide cells is streamed along z with all T
// time levels in flight: level t works on plane z as soon as level t - 1 has plane z + 1, out of a ring of three planes per
// level that stays in L2. Columns overlap by T cells on each side, ranges of planes by T planes. The gate: as in stencil2d.h.
#pragma once
#include "stencil2d.h"

namespace poise::POISE_ISA {

template <class T>
struct Plan3 {
  const T* in;
  T* out;
  int64_t D, H, W;  // output extent
  int steps, edge_z, edge_y, edge_x;
  T edge;           // value beyond a Dirichlet edge
  T k[3][3], center;  // coefficients by axis, z first; center is the sum of the middles
  Gate<T> gate;
  T quiet;

  int64_t beyond(int kind) const { return kind == kHalo ? steps : 0; }
  int64_t in_H() const { return H + 2 * beyond(edge_y); }
  int64_t in_W() const { return W + 2 * beyond(edge_x); }
};

inline bool walled(int edge) { return edge == kDirichlet || edge == kNeumann; }

// Where a cell of the output's numbering lies in the input along one axis; walls are never asked beyond.
inline int64_t source(int64_t at, int64_t n, int edge, int64_t beyond) {
  return edge == kPeriodic ? (at % n + n) % n : at + beyond;
}

struct Range {
  int64_t a, b;
  bool has(int64_t i) const { return i >= a && i < b; }
};

template <class T>
struct Column3 {
  static constexpr int64_t kLine = 64 / sizeof(T);

  const Plan3<T>& p;
  Range z, y, x;                  // outputs of this task
  int64_t margin, pitch, area;    // columns before x.a in a ring row; values of a row and of a plane
  T* ring;                        // [steps + 1][3][rows][pitch]
  Trips trips;

  // What a level computes along one axis: less than the input by one cell a step, cut off at walls.
  Range reach(const Range& own, int level, int edge, int64_t n) const {
    const int64_t more = p.steps - level;
    Range r{own.a - more, own.b + more};
    if (walled(edge)) r.a = r.a < 0 ? 0 : r.a, r.b = r.b > n ? n : r.b;
    return r;
  }
  T* plane(int level, int64_t at) const { return ring + (level * 3 + (at % 3 + 3) % 3) * area; }
  T* row(T* plane, int64_t at) const { return plane + (at - y.a + p.steps + 1) * pitch; }
  int64_t col(int64_t at) const { return at - x.a + margin; }

  void gate_row(T* values, int level, int64_t at_z, int64_t at_y, const Range& r) {
    bool any = false;
    for (int64_t i = 0; i < r.b - r.a; ++i) any = any | p.gate.bad(values[i]);
    if (!any) return;
    for (int64_t i = 0; i < r.b - r.a; ++i) {
      if (!p.gate.bad(values[i])) continue;
      values[i] = p.gate.fill;
      if (z.has(at_z) && y.has(at_y) && x.has(r.a + i))
        trips.add(level, static_cast<uint64_t>((at_z * p.H + at_y) * p.W + r.a + i));
    }
  }

  // Cells beyond the walls of a plane that is done.
  void ghosts(T* plane, const Range& ry, const Range& rx) const {
    if (walled(p.edge_x))
      for (int64_t j = ry.a; j < ry.b; ++j) {
        T* r = row(plane, j);
        if (rx.a == 0) r[col(-1)] = p.edge_x == kDirichlet ? p.edge : r[col(0)];
        if (rx.b == p.W) r[col(p.W)] = p.edge_x == kDirichlet ? p.edge : r[col(p.W - 1)];
      }
    if (walled(p.edge_y)) {
      if (ry.a == 0) wall_row(row(plane, -1), row(plane, 0));
      if (ry.b == p.H) wall_row(row(plane, p.H), row(plane, p.H - 1));
    }
  }
  void wall_row(T* to, const T* from) const {
    for (int64_t i = 0; i < pitch; ++i) to[i] = p.edge_y == kDirichlet ? p.edge : from[i];
  }
  void wall_plane(T* to, const T* from) const {
    for (int64_t i = 0; i < area; ++i) to[i] = p.edge_z == kDirichlet ? p.edge : from[i];
  }

  // A plane of the input into level 0. False: it holds something above the quiet bound (only asked when not GATED).
  template <bool GATED>
  bool load(int64_t at) {
    const Range ry = reach(y, 0, p.edge_y, p.H), rx = reach(x, 0, p.edge_x, p.W);
    T* to = plane(0, at);
    const T* from = p.in + source(at, p.D, p.edge_z, p.beyond(p.edge_z)) * p.in_H() * p.in_W();
    // Where x wraps, only the ends of a row come from elsewhere.
    const bool wraps = p.edge_x == kPeriodic;
    const int64_t a = wraps && rx.a < 0 ? 0 : rx.a, b = wraps && rx.b > p.W ? p.W : rx.b;
    typename Bits<T>::type loudest = 0;
    for (int64_t j = ry.a; j < ry.b; ++j) {
      const T* src = from + source(j, p.H, p.edge_y, p.beyond(p.edge_y)) * p.in_W();
      T* dst = row(to, j) + col(rx.a);
      auto put = [&](T* cell, T v) {
        const auto m = magnitude2(v);
        loudest = m > loudest ? m : loudest;
        *cell = v;
      };
      for (int64_t i = rx.a; i < a; ++i) put(dst + (i - rx.a), src[source(i, p.W, kPeriodic, 0)]);
      const T* middle = src + a + p.beyond(p.edge_x);
      T* to_middle = dst + (a - rx.a);
#pragma GCC ivdep
      for (int64_t i = 0; i < b - a; ++i) put(to_middle + i, middle[i]);
      for (int64_t i = b; i < rx.b; ++i) put(dst + (i - rx.a), src[source(i, p.W, kPeriodic, 0)]);
      if (GATED) gate_row(dst, 0, at, j, rx);
    }
    ghosts(to, ry, rx);
    return GATED || loudest < magnitude2(p.quiet);
  }

  template <bool GATED>
  void compute(int level, int64_t at) {
    const Range ry = reach(y, level, p.edge_y, p.H), rx = reach(x, level, p.edge_x, p.W);
    const bool last = level == p.steps;
    T *below = plane(level - 1, at - 1), *here = plane(level - 1, at), *above = plane(level - 1, at + 1);
    T* to = last ? nullptr : plane(level, at);
    // Inside the ring whole cache lines are computed (see stencil2d.h); the last level writes the result, exactly.
    const int64_t j0 = last ? col(rx.a) : col(rx.a) / kLine * kLine;
    const int64_t n = (last ? col(rx.b) : (col(rx.b) + kLine - 1) / kLine * kLine) - j0;
    T k[3][3];
    std::memcpy(k, p.k, sizeof k);  // local copies: stores could alias the plan
    const T center = p.center;
    for (int64_t j = ry.a; j < ry.b; ++j) {
      const T *c = row(here, j) + j0, *s = row(here, j - 1) + j0, *t = row(here, j + 1) + j0;
      const T *b = row(below, j) + j0, *u = row(above, j) + j0;
      T* w = last ? p.out + (at * p.H + j) * p.W + rx.a : row(to, j) + j0;
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) {
        T a = center * c[i] + k[2][0] * c[i - 1];
        a += k[2][2] * c[i + 1];
        a += k[1][0] * s[i];
        a += k[1][2] * t[i];
        a += k[0][0] * b[i];
        a += k[0][2] * u[i];
        w[i] = a;
      }
      if (GATED) gate_row(last ? w : row(to, j) + col(rx.a), level, at, j, rx);
    }
    if (!last) ghosts(to, ry, rx);
  }

  template <bool GATED>
  bool run() {
    trips = Trips{};
    const int64_t end = z.b + 2 * int64_t{p.steps};
    for (int64_t q = reach(z, 0, p.edge_z, p.D).a; q <= end; ++q) {
      for (int level = 0; level <= p.steps; ++level) {
        const int64_t at = q - level;
        const Range rz = reach(z, level, p.edge_z, p.D);
        if (rz.has(at)) {
          if (level > 0) compute<GATED>(level, at);
          else if (!load<GATED>(at)) return false;
        }
        if (!walled(p.edge_z) || level == p.steps) continue;
        if (at == 0 && rz.a == 0) wall_plane(plane(level, -1), plane(level, 0));
        if (at == p.D && rz.b == p.D) wall_plane(plane(level, p.D), plane(level, p.D - 1));
      }
    }
    return true;
  }
};

template <class T>
Trips stencil3d(const Plan3<T>& p, Range z, Range y, Range x) {
  constexpr int64_t line = Column3<T>::kLine;
  const int64_t margin = (int64_t{p.steps} + 1 + line - 1) / line * line + line;
  const int64_t pitch = (x.b - x.a + line - 1) / line * line + 2 * margin;
  const int64_t area = (y.b - y.a + 2 * (int64_t{p.steps} + 1)) * pitch;
  const size_t bytes = sizeof(T) * 3 * (p.steps + 1) * area;
  static thread_local Scratch scratch;
  T* ring = static_cast<T*>(scratch.take(bytes));
  std::memset(ring, 0, bytes);  // fringes are computed on before they were written
  Column3<T> column{p, z, y, x, margin, pitch, area, ring, {}};
  if (p.quiet == T(0) || !column.template run<false>()) column.template run<true>();
  return column.trips;
}

}  // namespace poise::POISE_ISA
