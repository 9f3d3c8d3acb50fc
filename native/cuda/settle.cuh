// Next states are handed on, or the old ones are put in their place and mended. The kernels read on the device which of the two it
// is and return at once in the first case: no conditional of the program, for which the host would wait in every step.
#pragma once
#include "poise/settle.h"
#include "seal.cuh"

namespace poise::cuda {

constexpr int kSettleThreads = 256, kSettleBlocks = 132;  // blocks of an array, at most: most launches return at once

inline unsigned settle_blocks(int64_t n) {
  const int64_t most = (n + kSettleThreads - 1) / kSettleThreads;
  return static_cast<unsigned>(most < kSettleBlocks ? most : kSettleBlocks);
}

struct SettleArgs {
  const void* old;
  const uint32_t *old_parity, *old_marks, *old_guard;
  void* words;
  uint32_t *parity, *marks, *guard;
  int64_t n;  // words
  Scalar kind;
};

struct SettleMany {
  SettleArgs array[kMany];
  unsigned first[kMany + 1];  // the first block of each
  const int32_t* stay;        // 0: the next states are taken
  int32_t* found;             // of each: nan, inf, overflow (less 1), first
  double limit;
  bool only;  // count what was good before
};

__device__ __forceinline__ void copy_words(const uint32_t* from, uint32_t* to, int64_t n, int64_t start, int64_t step) {
  for (int64_t i = start; i < n; i += step) to[i] = from[i];
}

template <class T>
__device__ void put_back(const SettleArgs& a, const Newly<T>& newly, int32_t* found, int64_t start, int64_t step) {
  const T* old = static_cast<const T*>(a.old);
  T* words = static_cast<T*>(a.words);
  for (int64_t i = start; i < a.n / static_cast<int64_t>(sizeof(T) / 4); i += step) {
    const T before = old[i];
    const int cause = newly.cause(words[i], before);
    if (cause >= 0) {
      atomicAdd(found + cause, 1);
      atomicMin(reinterpret_cast<uint32_t*>(found + 3), static_cast<uint32_t>(i));
    }
    words[i] = before;
  }
}

__global__ void __launch_bounds__(kSettleThreads) settle_kernel(const __grid_constant__ SettleMany many) {
  if (*many.stay == 0) return;
  int k = 0;
  while (blockIdx.x >= many.first[k + 1]) ++k;
  const SettleArgs& a = many.array[k];
  const Layout lay(a.n);
  const int64_t start = static_cast<int64_t>(blockIdx.x - many.first[k]) * kSettleThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(many.first[k + 1] - many.first[k]) * kSettleThreads;
  copy_words(a.old_parity, a.parity, lay.L(), start, step);
  copy_words(a.old_marks, a.marks, 2 * int64_t{kRows} * lay.G, start, step);
  copy_words(a.old_guard, a.guard, 2 * lay.G, start, step);
  int32_t* found = many.found + 4 * k;
  if (a.kind == Scalar::kFloat32) put_back(a, newly_of<float>(many.limit, many.only), found, start, step);
  else if (a.kind == Scalar::kFloat64) put_back(a, newly_of<double>(many.limit, many.only), found, start, step);
  else copy_words(static_cast<const uint32_t*>(a.old), static_cast<uint32_t*>(a.words), a.n, start, step);
}

// `found` has four, `mended` five numbers for each array.
inline cudaError_t launch_settle(cudaStream_t stream, const int32_t* stay, const SettleArgs* arrays, int count, double limit,
                                 bool only, int32_t* mended, int32_t* found) {
  cudaError_t e = cudaMemsetAsync(found, 0xFF, sizeof(int32_t) * 4 * count, stream);
  if (e == cudaSuccess) e = cudaMemsetAsync(mended, 0, sizeof(int32_t) * 5 * count, stream);
  if (e != cudaSuccess) return e;
  for (int done = 0; done < count;) {
    SettleMany many{};
    SealArgs kept[kMany];
    many.stay = stay, many.found = found + 4 * done, many.limit = limit, many.only = only;
    unsigned blocks = 0;
    int k = 0;
    for (; k < kMany && done < count; ++k, ++done) {
      const SettleArgs& a = many.array[k] = arrays[done];
      many.first[k] = blocks;
      blocks += settle_blocks(a.n);
      kept[k] = {static_cast<uint32_t*>(a.words), a.n, a.parity, a.marks, a.guard, mended + 5 * done, 0, stay};
    }
    for (int i = k; i <= kMany; ++i) many.first[i] = blocks;
    if (blocks) settle_kernel<<<blocks, kSettleThreads, 0, stream>>>(many);
    if ((e = cudaGetLastError()) != cudaSuccess) return e;
    if ((e = launch_seals<Kind::kRepair>(stream, kept, k)) != cudaSuccess) return e;
  }
  return cudaSuccess;
}

struct NewlyArgs {
  const void *now, *before;
  int64_t n;  // values
  bool wide;  // float64
};

struct NewlyMany {
  NewlyArgs array[kMany];
  unsigned first[kMany + 1];
  const int32_t* bad;  // of each, how many are bad at all: nothing is read where none is
  int32_t* count;
  double limit;
};

template <class T>
__device__ void count_newly(const NewlyArgs& a, double limit, int32_t* count, int64_t start, int64_t step) {
  const Newly<T> newly = newly_of<T>(limit, true);
  const T *now = static_cast<const T*>(a.now), *before = static_cast<const T*>(a.before);
  for (int64_t i = start; i < a.n; i += step)
    if (newly.cause(now[i], before[i]) >= 0) atomicAdd(count, 1);
}

__global__ void __launch_bounds__(kSettleThreads) newly_kernel(const __grid_constant__ NewlyMany many) {
  int k = 0;
  while (blockIdx.x >= many.first[k + 1]) ++k;
  if (many.bad[k] == 0) return;
  const int64_t start = static_cast<int64_t>(blockIdx.x - many.first[k]) * kSettleThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(many.first[k + 1] - many.first[k]) * kSettleThreads;
  if (many.array[k].wide) count_newly<double>(many.array[k], many.limit, many.count + k, start, step);
  else count_newly<float>(many.array[k], many.limit, many.count + k, start, step);
}

inline cudaError_t launch_newly(cudaStream_t stream, const int32_t* bad, const NewlyArgs* arrays, int count, double limit,
                                int32_t* found) {
  cudaError_t e = cudaMemsetAsync(found, 0, sizeof(int32_t) * count, stream);
  for (int done = 0; e == cudaSuccess && done < count;) {
    NewlyMany many{};
    many.bad = bad + done, many.count = found + done, many.limit = limit;
    unsigned blocks = 0;
    int k = 0;
    for (; k < kMany && done < count; ++k, ++done) {
      many.array[k] = arrays[done];
      many.first[k] = blocks;
      blocks += settle_blocks(arrays[done].n);
    }
    for (; k <= kMany; ++k) many.first[k] = blocks;
    if (blocks) newly_kernel<<<blocks, kSettleThreads, 0, stream>>>(many);
    e = cudaGetLastError();
  }
  return e;
}

}  // namespace poise::cuda
