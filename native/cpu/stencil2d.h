// T gated steps of a linear star stencil of radius R <= 2 in one pass over a 2-D array. A strip of columns is streamed from
// top to bottom in blocks of four rows with all T time levels in flight: level t takes the block of level t - 1 that was
// just made, R rows further up, together with the 2 R rows above it, which level t - 1 left behind. So between blocks a
// level keeps 2 R rows, and all that a block touches lies in L1. Strips overlap by T R columns and row ranges by T R rows.
//
// The gate: while every input of the strip stays under `quiet_bound`, nothing can be bad at any level and the loops are free
// of it; the first input above the bound ends the attempt, and the strip is redone with every value of every step gated.
#pragma once
#include <cstring>
#include <utility>

#include "poise/gate.h"
#include "scratch.h"
#include "stream.h"

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

template <class T, int R, bool SYM>
struct Strip2 {
  static constexpr int64_t kLine = 64 / sizeof(T);
  static constexpr int K = 4, kLeft = 2 * R;  // rows of a block, and rows that a level leaves to the next block

  const Plan2<T>& p;
  int64_t y0, y1, x0, x1, margin, width;  // outputs of this task; columns of a row in the ring, x0 at `margin`
  T* ring;                                // two blocks of rows, and kLeft rows per level
  T** left;                               // [steps][kLeft]: the rows that a level left behind
  Trips trips;

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

  void side_ghosts(int level, T* r) const {
    if (!bounded_x()) return;
    const int64_t a = lo(x0, level, true), b = hi(x1, level, true, p.W);
    for (int k = 0; k < R && a == 0; ++k)
      r[col(-1 - k)] = p.edge_x == kDirichlet ? p.edge : r[col(k < p.W ? k : p.W - 1)];
    for (int k = 0; k < R && b == p.W; ++k)
      r[col(p.W + k)] = p.edge_x == kDirichlet ? p.edge : r[col(p.W - 1 - k > 0 ? p.W - 1 - k : 0)];
  }

  // Gate of the columns [a, b) of row y at a level; only this task's own cells are counted.
  void gate_row(T* r, int level, int64_t y, int64_t a, int64_t b) {
    const int64_t shift = col(0);
    bool any = false;
    for (int64_t x = a; x < b; ++x) any = any | p.gate.bad(r[x + shift]);
    if (!any) return;
    for (int64_t x = a; x < b; ++x) {
      if (!p.gate.bad(r[x + shift])) continue;
      r[x + shift] = p.gate.fill;
      if (y >= y0 && y < y1 && x >= x0 && x < x1) trips.add(level, static_cast<uint64_t>(y * p.W + x));
    }
  }

  // Row y of the input, from its column 0.
  const T* input_row(int64_t y) const {
    int64_t iy = y;
    if (p.edge_y == kHalo) iy = y + int64_t{p.steps} * R;
    if (p.edge_y == kPeriodic) iy = (y % p.H + p.H) % p.H;
    return p.in + iy * p.in_stride() + (p.edge_x == kHalo ? int64_t{p.steps} * R : 0);
  }

  // Row y of the input into a row of the ring. Returns its largest magnitude, as `magnitude2`.
  typename Bits<T>::type load(T* r, int64_t y) const {
    const int64_t a = lo(x0, 0, bounded_x()), b = hi(x1, 0, bounded_x(), p.W), len = b - a;
    const T* src = input_row(y);
    T* dst = r + col(a);
    typename Bits<T>::type loudest = 0;
    for (int64_t at = 0, run; at < len; at += run) {  // one run, or as many as the period has ends in [a, b)
      const int64_t x = p.edge_x == kPeriodic ? ((a + at) % p.W + p.W) % p.W : a + at;
      run = p.edge_x == kPeriodic && p.W - x < len - at ? p.W - x : len - at;
#pragma GCC ivdep
      for (int64_t j = 0; j < run; ++j) {
        const T v = src[x + j];
        const auto m = magnitude2(v);
        loudest = m > loudest ? m : loudest;
        dst[at + j] = v;
      }
    }
    return loudest;
  }

  // The rows of one block at a level out of those of the level below: in[i] is kLeft - R rows above out[i].
  void compute(int level, T* const* in, T* const* out) const {
    // Whole cache lines are computed; what lies beyond [a, b) is a fringe that nobody reads or a ghost column that is
    // filled afterwards.
    const int64_t j0 = col(lo(x0, level, bounded_x())) / kLine * kLine;
    const int64_t n = (col(hi(x1, level, bounded_x(), p.W)) + kLine - 1) / kLine * kLine - j0;
    const T *a = in[0] + j0, *b = in[1] + j0, *c = in[2] + j0, *d = in[3] + j0, *e = in[4] + j0, *f = in[5] + j0;
    const T *g = R == 2 ? in[6 % (K + kLeft)] + j0 : a, *h = R == 2 ? in[7 % (K + kLeft)] + j0 : a;
    T *w0 = out[0] + j0, *w1 = out[1] + j0, *w2 = out[2] + j0, *w3 = out[3] + j0;
    const Star<T> k = p.star;  // a local copy: stores through w0 could alias the plan
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      const T x0 = R == 1 ? star<T, R, SYM>(k, a, a, b, c, c, j) : star<T, R, SYM>(k, a, b, c, d, e, j);
      const T x1 = R == 1 ? star<T, R, SYM>(k, b, b, c, d, d, j) : star<T, R, SYM>(k, b, c, d, e, f, j);
      const T x2 = R == 1 ? star<T, R, SYM>(k, c, c, d, e, e, j) : star<T, R, SYM>(k, c, d, e, f, g, j);
      const T x3 = R == 1 ? star<T, R, SYM>(k, d, d, e, f, f, j) : star<T, R, SYM>(k, d, e, f, g, h, j);
      w0[j] = x0, w1[j] = x1, w2[j] = x2, w3[j] = x3;
    }
  }

  // Rows beyond a bounded edge, for a block whose first row is y: constant, or the mirror image of rows that are there
  // already, in the block or among the kLeft rows before it.
  void mirror(int64_t y, T* const* all) const {
    for (int i = 0; i < K; ++i) {
      const int64_t at = y + i;
      T* const* row = all + kLeft + i;
      if (p.edge_y == kDirichlet) {
        if (at < 0 || at >= p.H)
          for (int64_t j = 0; j < width; ++j) row[0][j] = p.edge;
      } else {
        if (at >= 0 && at < R) std::memcpy(row[-1 - 2 * at], row[0], sizeof(T) * width);
        const int64_t k = at - p.H;
        if (k >= 0 && k < R) std::memcpy(row[0], row[-1 - 2 * k], sizeof(T) * width);
      }
    }
  }

  void store(const T* r, int64_t y) const {
    T* to = p.out + y * p.W + x0;
    const size_t bytes = sizeof(T) * (x1 - x0);
    if (int64_t{sizeof(T)} * p.H * p.W >= kStreamed) stream_copy(to, r + margin, bytes);
    else std::memcpy(to, r + margin, bytes);
  }

  // False: an input is above the quiet bound (only asked when not GATED).
  template <bool GATED>
  bool run() {
    trips = Trips{};
    const auto quiet = magnitude2(p.quiet);
    T *now[kLeft + K], *made[K];  // rows of the level below, those left behind first; rows that are free
    for (int i = 0; i < K; ++i) now[kLeft + i] = ring + i * width, made[i] = ring + (K + i) * width;
    for (int i = 0; i < p.steps * kLeft; ++i) left[i] = ring + (2 * K + i) * width;
    for (int64_t top = y0 - int64_t{p.steps} * R; top - int64_t{p.steps} * R < y1; top += K) {
      for (int level = 0; level <= p.steps; ++level) {
        const int64_t y = top - int64_t{level} * R;  // first row of the block
        const int64_t a = lo(y0, level, bounded_y()), b = hi(y1, level, bounded_y(), p.H);
        T** const block = now + kLeft;
        if (level > 0) {
          if (y < b && y + K > a) compute(level, now, made);
          // The last rows of the level below stay for its next block; the others, still in L1, are free for the next level.
          for (int i = 0; i < kLeft; ++i) left[(level - 1) * kLeft + i] = now[K + i];
          for (int i = 0; i < K; ++i) std::swap(now[i], made[i]);
          for (int i = K - 1; i >= 0; --i) block[i] = now[i];
        }
        for (int i = 0; i < K; ++i) {
          if (y + i < a || y + i >= b) continue;
          if (level == 0 && !(load(block[i], y + i) < quiet) && !GATED) return false;
          if (GATED) gate_row(block[i], level, y + i, lo(x0, level, bounded_x()), hi(x1, level, bounded_x(), p.W));
          if (level == p.steps) store(block[i], y + i);
          else side_ghosts(level, block[i]);
        }
        if (level == p.steps) continue;
        for (int i = 0; i < kLeft; ++i) now[i] = left[level * kLeft + i];
        if (bounded_y()) mirror(y, now);
      }
    }
    stream_fence();
    return true;
  }
};

template <class T, int R, bool SYM>
Trips stencil2d_strip(const Plan2<T>& p, int64_t y0, int64_t y1, int64_t x0, int64_t x1) {
  using Strip = Strip2<T, R, SYM>;
  constexpr int64_t line = Strip::kLine;
  const int64_t margin = (int64_t{p.steps} * R + R + line - 1) / line * line + line;
  const int64_t width = (x1 - x0 + line - 1) / line * line + 2 * margin;
  const int64_t kept = int64_t{p.steps} * Strip::kLeft, cells = (2 * Strip::K + kept) * width;
  static thread_local Scratch scratch;
  T* ring = static_cast<T*>(scratch.take(sizeof(T) * cells + sizeof(T*) * kept));
  std::memset(ring, 0, sizeof(T) * cells);  // fringes are computed on before they were written
  T** left = reinterpret_cast<T**>(ring + cells);
  Strip strip{p, y0, y1, x0, x1, margin, width, ring, left, {}};
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
