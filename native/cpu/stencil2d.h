// T gated steps of a linear star stencil of radius R <= 2 in one pass over a 2-D array. A strip of columns is streamed from
// top to bottom with all T time levels in flight: level t works on row pair p as soon as level t-1 has pair p + 1, out of a
// ring of three pairs per level that stays in L1/L2. Strips overlap by T R columns and row ranges by T R rows.
//
// The gate: while every input of the strip stays under `quiet_bound`, nothing can be bad at any level and the loops are free
// of it; the first input above the bound ends the attempt, and the strip is redone with every value of every step gated.
#pragma once
#include <cstdlib>
#include <cstring>

#include "poise/gate.h"

namespace poise::POISE_ISA {

template <class T>
struct Star {  // coefficients by axis, [2] in the middle; center is the sum of the middles
  T cy[5], cx[5], center;
  T growth() const {
    T sum = std::fabs(center);
    for (int i = 0; i < 5; ++i) sum += i == 2 ? T(0) : std::fabs(cy[i]) + std::fabs(cx[i]);
    return sum;
  }
};

template <class T>
struct Plan2 {
  const T* in;
  T* out;
  int64_t H, W;            // output extent
  int steps, edge_y, edge_x;
  T edge;                  // value beyond a Dirichlet edge
  Star<T> star;
  Gate<T> gate;
  T quiet;
  int64_t in_stride() const { return edge_x == kHalo ? W + 2 * int64_t{steps} * radius : W; }
  int radius;
};

template <class T, int R, bool SYM>
inline __attribute__((always_inline)) T star(const Star<T>& p, const T* n2, const T* n1, const T* c, const T* s1, const T* s2,
                                              int64_t j) {
  if (SYM) {
    T a = p.center * c[j] + p.cx[1] * (c[j - 1] + c[j + 1]);
    a += p.cy[1] * (n1[j] + s1[j]);
    if (R == 2) a += p.cx[0] * (c[j - 2] + c[j + 2]);
    if (R == 2) a += p.cy[0] * (n2[j] + s2[j]);
    return a;
  }
  T a = p.center * c[j] + p.cx[1] * c[j - 1];
  a += p.cx[3] * c[j + 1];
  a += p.cy[1] * n1[j];
  a += p.cy[3] * s1[j];
  if (R == 2) {
    a += p.cx[0] * c[j - 2];
    a += p.cx[4] * c[j + 2];
    a += p.cy[0] * n2[j];
    a += p.cy[4] * s2[j];
  }
  return a;
}

// Memory of a thread that stays with it: a strip's ring is used thousands of times, and fresh pages cost more than the work.
class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  void* take(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = (bytes + 4095) / 4096 * 4096;
      data_ = std::aligned_alloc(64, size_);
    }
    return data_;
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

template <class T, int R, bool SYM>
struct Strip2 {
  static constexpr int64_t kLine = 64 / sizeof(T);

  const Plan2<T>& p;
  int64_t y0, y1, x0, x1, margin, width;  // outputs of this task; columns of a ring row, x0 at `margin`
  T* ring;                        // [steps + 1][6][width]
  Trips trips;

  T* row(int level, int64_t y) const { return ring + (level * 6 + (y + 6 * 1024) % 6) * width; }
  int64_t col(int64_t x) const { return x - x0 + margin; }
  bool bounded_y() const { return p.edge_y == kDirichlet || p.edge_y == kNeumann; }
  bool bounded_x() const { return p.edge_x == kDirichlet || p.edge_x == kNeumann; }
  int64_t lo(int64_t a, int level, bool bounded) const {
    const int64_t v = a - int64_t{p.steps - level} * R;
    return bounded && v < 0 ? 0 : v;
  }
  int64_t hi(int64_t b, int level, bool bounded, int64_t n) const {
    const int64_t v = b + int64_t{p.steps - level} * R;
    return bounded && v > n ? n : v;
  }

  void side_ghosts(int level, int64_t y) const {
    if (!bounded_x()) return;
    T* r = row(level, y);
    const int64_t a = lo(x0, level, true), b = hi(x1, level, true, p.W);
    for (int k = 0; k < R && a == 0; ++k)
      r[col(-1 - k)] = p.edge_x == kDirichlet ? p.edge : r[col(k < p.W ? k : p.W - 1)];
    for (int k = 0; k < R && b == p.W; ++k)
      r[col(p.W + k)] = p.edge_x == kDirichlet ? p.edge : r[col(p.W - 1 - k > 0 ? p.W - 1 - k : 0)];
  }

  // Gate of the columns [a, b) of row y at a level; only this task's own cells are counted.
  void gate_row(T* r, int64_t shift, int level, int64_t y, int64_t a, int64_t b) {
    bool any = false;
    for (int64_t x = a; x < b; ++x) any = any | p.gate.bad(r[x + shift]);
    if (!any) return;
    for (int64_t x = a; x < b; ++x) {
      if (!p.gate.bad(r[x + shift])) continue;
      r[x + shift] = p.gate.fill;
      if (y >= y0 && y < y1 && x >= x0 && x < x1) trips.add(level, static_cast<uint64_t>(y * p.W + x));
    }
  }

  // Row y of the input into level 0. False: it holds something above the quiet bound (only asked when not GATED).
  template <bool GATED>
  bool load(int64_t y) {
    const int64_t a = lo(x0, 0, bounded_x()), b = hi(x1, 0, bounded_x(), p.W);
    int64_t iy = y;
    if (p.edge_y == kHalo) iy = y + int64_t{p.steps} * R;
    if (p.edge_y == kPeriodic) iy = (y % p.H + p.H) % p.H;
    const T* src = p.in + iy * p.in_stride();
    T* dst = row(0, y) + col(a);
    const int64_t len = b - a;
    typename Bits<T>::type loudest = 0;
    if (p.edge_x == kPeriodic && (a < 0 || b > p.W)) {
      int64_t ix = (a % p.W + p.W) % p.W;
      for (int64_t j = 0; j < len; ++j) {
        dst[j] = src[ix];
        if (++ix == p.W) ix = 0;
        const auto m = magnitude2(dst[j]);
        loudest = m > loudest ? m : loudest;
      }
    } else {
      const T* from = src + a + (p.edge_x == kHalo ? int64_t{p.steps} * R : 0);
#pragma GCC ivdep
      for (int64_t j = 0; j < len; ++j) {
        const T x = from[j];
        const auto m = magnitude2(x);
        loudest = m > loudest ? m : loudest;
        dst[j] = x;
      }
    }
    const bool fine = GATED || loudest < magnitude2(p.quiet);
    if (GATED) gate_row(row(0, y), col(0), 0, y, a, b);
    side_ghosts(0, y);
    return fine;
  }

  template <bool GATED>
  void compute_pair(int level, int64_t y, bool first, bool second) {
    const int64_t a = lo(x0, level, bounded_x()), b = hi(x1, level, bounded_x(), p.W);
    const bool last = level == p.steps;
    const int64_t shift = last ? 0 : col(0);
    T* o0 = last ? p.out + y * p.W : row(level, y);
    T* o1 = last ? p.out + (y + 1) * p.W : row(level, y + 1);
    // Inside the ring whole cache lines are computed; what lies beyond [a, b) is a fringe that nobody reads or a ghost column
    // that is filled afterwards. Only the last level, which writes the result, is exact.
    const int64_t j0 = last ? col(a) : col(a) / kLine * kLine, j1 = last ? col(b) : (col(b) + kLine - 1) / kLine * kLine;
    const T *m2 = row(level - 1, y - 2) + j0, *m1 = row(level - 1, y - 1) + j0, *r0 = row(level - 1, y) + j0,
            *r1 = row(level - 1, y + 1) + j0, *r2 = row(level - 1, y + 2) + j0, *r3 = row(level - 1, y + 3) + j0;
    T *w0 = last ? o0 + a : o0 + j0, *w1 = last ? o1 + a : o1 + j0;
    const int64_t n = j1 - j0;
    const Star<T> k = p.star;  // a local copy: stores through w0 could alias the plan
    if (first && second) {
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) {
        const T u = star<T, R, SYM>(k, m2, m1, r0, r1, r2, j);
        const T v = star<T, R, SYM>(k, m1, r0, r1, r2, r3, j);
        w0[j] = u;
        w1[j] = v;
      }
    } else if (first) {
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) w0[j] = star<T, R, SYM>(k, m2, m1, r0, r1, r2, j);
    } else if (second) {
#pragma GCC ivdep
      for (int64_t j = 0; j < n; ++j) w1[j] = star<T, R, SYM>(k, m1, r0, r1, r2, r3, j);
    }
    if (GATED && first) gate_row(o0, shift, level, y, a, b);
    if (GATED && second) gate_row(o1, shift, level, y + 1, a, b);
    if (!last && first) side_ghosts(level, y);
    if (!last && second) side_ghosts(level, y + 1);
  }

  // Rows beyond a bounded edge at a level: constant, or the mirror image of rows that are in the ring already.
  void edge_row(int level, int64_t y, int64_t from) const {
    T* r = row(level, y);
    if (p.edge_y == kDirichlet) {
      for (int64_t j = 0; j < width; ++j) r[j] = p.edge;
    } else {
      std::memcpy(r, row(level, from), sizeof(T) * width);
    }
  }

  template <bool GATED>
  bool run() {
    trips = Trips{};
    const int64_t first_pair = (lo(y0, 0, false) - 2) / 2 - 2, last_pair = (y1 + int64_t{p.steps} * (R + 2)) / 2 + p.steps + 1;
    for (int64_t q = first_pair; q <= last_pair; ++q) {
      for (int level = 0; level <= p.steps; ++level) {
        const int64_t y = 2 * (q - level);
        const int64_t a = lo(y0, level, bounded_y()), b = hi(y1, level, bounded_y(), p.H);
        const bool one = y >= a && y < b, two = y + 1 >= a && y + 1 < b;
        if (level == 0) {
          if (one && !load<GATED>(y)) return false;
          if (two && !load<GATED>(y + 1)) return false;
        } else if (one || two) {
          compute_pair<GATED>(level, y, one, two);
        }
        if (!bounded_y() || level == p.steps) continue;
        if ((one && y < R) || (two && y + 1 < R))
          for (int k = 0; k < R; ++k)
            if (k == y || k == y + 1) edge_row(level, -1 - k, k);
        for (int i = 0; i < 2; ++i) {
          const int64_t k = y + i - p.H;
          if (k >= 0 && k < R && b == p.H) edge_row(level, y + i, p.H - 1 - k);
        }
      }
    }
    return true;
  }
};

template <class T, int R, bool SYM>
Trips stencil2d_strip(const Plan2<T>& p, int64_t y0, int64_t y1, int64_t x0, int64_t x1) {
  constexpr int64_t line = Strip2<T, R, SYM>::kLine;
  const int64_t margin = (int64_t{p.steps} * R + R + line - 1) / line * line + line;
  const int64_t width = (x1 - x0 + line - 1) / line * line + 2 * margin;
  const size_t bytes = sizeof(T) * 6 * (p.steps + 1) * width;
  static thread_local Scratch scratch;
  T* ring = static_cast<T*>(scratch.take(bytes));
  std::memset(ring, 0, bytes);  // fringes are computed on before they were written
  Strip2<T, R, SYM> strip{p, y0, y1, x0, x1, margin, width, ring, {}};
  if (p.quiet == T(0) || !strip.template run<false>()) strip.template run<true>();
  return strip.trips;
}

template <class T>
Trips stencil2d(const Plan2<T>& p, int64_t y0, int64_t y1, int64_t x0, int64_t x1) {
  const Star<T>& k = p.star;
  const bool sym = k.cx[0] == k.cx[4] && k.cx[1] == k.cx[3] && k.cy[0] == k.cy[4] && k.cy[1] == k.cy[3];
  if (p.radius == 1)
    return sym ? stencil2d_strip<T, 1, true>(p, y0, y1, x0, x1) : stencil2d_strip<T, 1, false>(p, y0, y1, x0, x1);
  return sym ? stencil2d_strip<T, 2, true>(p, y0, y1, x0, x1) : stencil2d_strip<T, 2, false>(p, y0, y1, x0, x1);
}

}  // namespace poise::POISE_ISA
