// What is said of a next state that is not taken: which values of it are bad, and whether they are bad only now.
#pragma once
#include <cfloat>

#include "gate.h"

namespace poise {

enum class Scalar : int { kNone, kFloat32, kFloat64 };  // what the words are, for the count; nothing is counted for kNone

template <class T>
struct Newly {
  T limit;
  bool only;  // count a value only if it was good before

  // 0 not a number, 1 infinite, 2 beyond the limit; -1: nothing to report.
  POISE_HD int cause(T now, T before) const {
    if (only && magnitude2(before) > magnitude2(limit)) return -1;
    if (now != now) return 0;
    if (magnitude2(now) == magnitude2(static_cast<T>(INFINITY))) return 1;
    return magnitude2(now) > magnitude2(limit) ? 2 : -1;
  }
};

// `limit` as far as T reaches.
template <class T>
POISE_HD Newly<T> newly_of(double limit, bool only) {
  constexpr double most = sizeof(T) == sizeof(float) ? FLT_MAX : DBL_MAX;
  return {static_cast<T>(limit < most ? limit : most), only};
}

}  // namespace poise
