// What counts as a bad number, for float32 and float64, and the bound under which none can be born in T linear steps.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "layout.h"

namespace poise {

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using type = uint32_t;
};
template <>
struct Bits<double> {
  using type = uint64_t;
};

template <class T>
POISE_HD typename Bits<T>::type bits_of(T x) {
  typename Bits<T>::type w;
  memcpy(&w, &x, sizeof x);
  return w;
}

// Twice the magnitude's bits: orders |x| as an integer, with Inf and NaN above everything finite.
template <class T>
POISE_HD typename Bits<T>::type magnitude2(T x) {
  return static_cast<typename Bits<T>::type>(bits_of(x) << 1);
}

constexpr int kMarkers = 4;

template <class T>
struct Gate {
  T limit, fill;                        // bad: |x| > limit (so NaN and Inf too), replaced by fill
  T marker[kMarkers], width[kMarkers];  // bad: |x - marker| <= width
  int markers;

  POISE_HD bool bad(T x) const {
    bool b = magnitude2(x) > magnitude2(limit);
    for (int i = 0; i < kMarkers; ++i) {
      const T d = x - marker[i];
      b = b || (i < markers && d <= width[i] && d >= -width[i]);
    }
    return b;
  }
};

// A bound on the inputs of `steps` linear steps below which neither the inputs nor anything computed from them can be bad:
// one step multiplies the largest magnitude by at most `growth` (the sum of the coefficients' magnitudes), rounding aside.
// 0 (nothing passes) if the coefficients are not finite.
template <class T>
POISE_HD T quiet_bound(const Gate<T>& gate, T growth, T edge, int steps) {
  T least = gate.limit;
  for (int i = 0; i < kMarkers; ++i) {
    const T m = fabs(gate.marker[i]) - gate.width[i];
    if (i < gate.markers && !(m >= least)) least = m;
  }
  const T each = (growth > T(1) ? growth : T(1)) * T(1.00001);
  T factor = each;
  for (int i = 0; i < steps; ++i) factor *= each;
  const T bound = least / factor;
  return growth >= T(0) && bound > T(0) && fabs(edge) < bound ? bound : T(0);
}

enum Edge : int { kPeriodic = 0, kDirichlet = 1, kNeumann = 2, kHalo = 3 };

// What a gated pass reports: how many (cell, step) were bad, and the first of them in order of (step, flat index).
struct Trips {
  int64_t count = 0;
  uint64_t first = ~uint64_t{0};  // step << 40 | index

  POISE_HD void add(int step, uint64_t index) {
    const uint64_t key = (static_cast<uint64_t>(step) << 40) | index;
    ++count;
    first = key < first ? key : first;
  }
  POISE_HD void operator+=(const Trips& o) {
    count += o.count;
    first = o.first < first ? o.first : first;
  }
};

}  // namespace poise
