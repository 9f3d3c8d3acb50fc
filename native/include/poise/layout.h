// Seal format 1 (design/seal-format.md): how a shard's 32-bit words are cut, and the arithmetic of its sums.
// Plain numbers for host and device; src/poise/kernels/{layout,ref}.py is the definition, tested against this.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define POISE_HD __host__ __device__ __forceinline__
#else
// Always inlined: these are compiled under several instruction sets, and the linker must not choose one copy for all.
#define POISE_HD inline __attribute__((always_inline))
#endif

namespace poise {

constexpr int kBanks = 20;                  // data banks: one XOR bank protects twenty
constexpr int kRows = kBanks + 1;           // rows of the marks, parity last
constexpr int kBlock = 256;                 // words per block, at most
constexpr int kMarkWords = 2 * kRows;       // mark words of a group, what the guard covers
constexpr uint32_t kC1 = 0x9E3779B1u;       // position stride of the second sum
constexpr uint32_t kC2 = 0x85EBCA6Bu;       // multiplier of the mixing step

struct Layout {
  int64_t n, B, G;  // words, words per block, groups

  POISE_HD explicit Layout(int64_t words) : n(words), B(1), G(0) {
    const int64_t per_bank = (n + kBanks - 1) / kBanks;
    while (B < kBlock && B < per_bank) B *= 2;
    G = (n + kBanks * B - 1) / (kBanks * B);
  }
  POISE_HD int64_t L() const { return B * G; }
  // First word of block g of bank r; the same number is its position in the second sum (modulo 2^32).
  POISE_HD int64_t first(int64_t r, int64_t g) const { return (r * G + g) * B; }
};

struct Sums {
  uint32_t s1, s2;
  POISE_HD bool operator!=(const Sums& o) const { return s1 != o.s1 || s2 != o.s2; }
};

POISE_HD uint32_t salt(uint32_t position) { return (2u * position + 1u) * kC1; }

// The nonlinear step of the second sum. It ends in a square: a step that ends in a constant factor commutes with the sum,
// and then half of all pairs of sign flips cancel (design/seal-format.md).
POISE_HD uint32_t mix(uint32_t q) {
  uint32_t t = (q ^ (q >> 16)) * kC2;
  t ^= t >> 13;
  return t * t;
}

}  // namespace poise
