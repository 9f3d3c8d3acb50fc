// Stores past the caches, for results that are larger than they: a line that is written whole need not be fetched first,
// which is a third of what a copy moves.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace poise::POISE_ISA {

constexpr int64_t kStreamed = int64_t{4} << 20;  // bytes of a result from which on it pays: more than a core's L2

// Whole cache lines of `to` are streamed, its ragged ends, which another thread's row may share, are stored.
inline void stream_copy(void* to, const void* from, size_t bytes) {
#if defined(__SSE2__)
  auto* out = static_cast<char*>(to);
  auto* in = static_cast<const char*>(from);
  size_t head = (64 - reinterpret_cast<uintptr_t>(out) % 64) % 64;
  if (head > bytes) head = bytes;
  std::memcpy(out, in, head);
  size_t i = head;
  for (; i + 64 <= bytes; i += 64)
    for (size_t k = i; k < i + 64; k += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + k), _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + k)));
  std::memcpy(out + i, in + i, bytes - i);
#else
  std::memcpy(to, from, bytes);
#endif
}

// Streamed stores are not ordered with others: before somebody is told that a result is there.
inline void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace poise::POISE_ISA
