// What the CPU shims share: chunking over the pool, and the reading of a gate from attributes.
#pragma once
#include <mutex>

#include "pool.h"
#include "table.h"
#include "xla/ffi/api/ffi.h"

namespace poise {

namespace ffi = xla::ffi;

// Chunk length that gives each thread about four chunks, but none shorter than `least` (below it a thread costs more).
inline int64_t grain_of(int64_t n, int64_t least) {
  const int64_t even = n / (4 * int64_t{Pool::get().width()}) + 1;
  return even < least ? least : even;
}

constexpr int64_t kLeastGroups = 32;  // groups of a seal in a chunk: 640 KiB, tens of microseconds

// `rule` is (limit, fill, then marker and width for each marker), as kernels/_gate.py writes it.
template <class T>
Gate<T> gate_of(ffi::Span<const double> rule) {
  Gate<T> gate{};
  gate.limit = static_cast<T>(rule[0]), gate.fill = static_cast<T>(rule[1]);
  for (size_t i = 2; i + 1 < rule.size() && gate.markers < kMarkers; i += 2) {
    gate.marker[gate.markers] = static_cast<T>(rule[i]);
    gate.width[gate.markers++] = static_cast<T>(rule[i + 1]);
  }
  return gate;
}

// A total that chunks add to.
template <int N>
class Total {
 public:
  void add(const int64_t part[N]) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < N; ++i) sum_[i] += part[i];
  }
  void store(int32_t* out) const {
    for (int i = 0; i < N; ++i) out[i] = static_cast<int32_t>(sum_[i] < INT32_MAX ? sum_[i] : INT32_MAX);
  }

 private:
  std::mutex mutex_;
  int64_t sum_[N] = {};
};

}  // namespace poise
