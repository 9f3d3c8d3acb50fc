// Gate scan: a clean copy, how many entries were bad by cause, and the first of them, in one read and one write.
#pragma once
#include "poise/gate.h"

namespace poise::POISE_ISA {

// What a scan reports. `first` is the smallest flat index that was bad, or -1.
struct Scan {
  int64_t nan = 0, inf = 0, overflow = 0, marker = 0, first = -1;
  void operator+=(const Scan& o) {
    nan += o.nan, inf += o.inf, overflow += o.overflow, marker += o.marker;
    if (first < 0 || (o.first >= 0 && o.first < first)) first = o.first;
  }
};

template <class T>
void scan_bad(const Gate<T>& gate, const T* in, T* out, int64_t a, int64_t b, Scan& scan) {
  for (int64_t i = a; i < b; ++i) {
    const T x = in[i];
    if (!gate.bad(x)) continue;
    if (std::isnan(x)) ++scan.nan;
    else if (std::isinf(x)) ++scan.inf;
    else if (magnitude2(x) > magnitude2(gate.limit)) ++scan.overflow;
    else ++scan.marker;
    if (scan.first < 0) scan.first = i;
    out[i] = gate.fill;
  }
}

template <class T, bool MARKERS>
Scan scan_range(const Gate<T>& gate, const T* in, T* out, int64_t a, int64_t b) {
  constexpr int64_t kPiece = 2048;  // stays in L1: the rare bad piece is gone through again, entry by entry
  Scan scan;
  const auto limit = magnitude2(gate.limit);
  for (int64_t i = a; i < b; i += kPiece) {
    const int64_t end = i + kPiece < b ? i + kPiece : b;
    typename Bits<T>::type loud = 0;
    const Gate<T> g = gate;
    for (int64_t j = i; j < end; ++j) {
      const T x = in[j];
      loud |= magnitude2(x) > limit;
      if (MARKERS) loud |= g.bad(x);
      out[j] = x;
    }
    if (loud) scan_bad(gate, in, out, i, end, scan);
  }
  return scan;
}

template <class T>
Scan gate_scan(const Gate<T>& gate, const T* in, T* out, int64_t a, int64_t b) {
  return gate.markers ? scan_range<T, true>(gate, in, out, a, b) : scan_range<T, false>(gate, in, out, a, b);
}

}  // namespace poise::POISE_ISA
