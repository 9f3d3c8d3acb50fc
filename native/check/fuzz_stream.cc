// libFuzzer: whatever bytes a stream's file begins with, its header is accepted or refused with a sentence, and nothing
// outside the bytes is read.
//
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I src/poise/include native/check/fuzz_stream.cc -o fuzz
//   ./fuzz -max_len=8200 -max_total_time=60
#include <cstdlib>
#include <vector>

#include "poise/stream.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The first 8 bytes say how long the file claims to be, so that large files need no large inputs.
  if (size < 8) return 0;
  std::uint64_t claimed;
  std::memcpy(&claimed, data, 8);
  const std::size_t rest = size - 8;
  const std::uint64_t bytes = rest < poise::kHeaderBytes ? rest : claimed;
  std::vector<std::uint8_t> exact(data + 8, data + size);  // a byte beyond it is the sanitizer's
  const char* fault = poise::header_fault(exact.data(), bytes);
  if (fault != nullptr) {
    if (*fault == '\0') std::abort();
    return 0;
  }
  poise::Header h;
  std::memcpy(&h, exact.data(), sizeof h);
  const std::uint64_t frame = h.rows * h.columns * h.record_bytes;
  for (std::uint64_t k = 0; k < h.slots; ++k) {  // every slot of an accepted file lies within it
    const std::uint64_t at = poise::kHeaderBytes + k * h.slot_bytes;
    if (at + frame > bytes || at % 64 != 0) std::abort();
  }
  return 0;
}
