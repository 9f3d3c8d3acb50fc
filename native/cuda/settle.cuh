// A next state is handed on, or the old one is put in its place and mended. The kernels read on the device which of the two it is
// and return at once in the first case: no conditional of the program, for which the host would wait in every step.
#pragma once
#include "poise/settle.h"
#include "seal.cuh"

namespace poise::cuda {

constexpr int kSettleThreads = 256, kSettleBlocks = 1024;

inline unsigned settle_blocks(int64_t n) {
  const int64_t most = (n + kSettleThreads - 1) / kSettleThreads;
  return static_cast<unsigned>(most < kSettleBlocks ? most : kSettleBlocks);
}

struct SettleArgs {
  const int32_t* stay;  // 0: the next state is taken
  const void* old;
  const uint32_t *old_parity, *old_marks, *old_guard;
  void* words;
  uint32_t *parity, *marks, *guard;
  int64_t n;       // words
  int32_t* found;  // nan, inf, overflow (less 1), first
};

__device__ __forceinline__ void copy_words(const uint32_t* from, uint32_t* to, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kSettleThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kSettleThreads + threadIdx.x; i < n; i += step) to[i] = from[i];
}

template <class T, Scalar S>
__global__ void __launch_bounds__(kSettleThreads) settle_kernel(const __grid_constant__ SettleArgs a,
                                                                const __grid_constant__ Newly<T> newly) {
  if (*a.stay == 0) return;
  const Layout lay(a.n);
  copy_words(a.old_parity, a.parity, lay.L());
  copy_words(a.old_marks, a.marks, 2 * int64_t{kRows} * lay.G);
  copy_words(a.old_guard, a.guard, 2 * lay.G);
  const T* old = static_cast<const T*>(a.old);
  T* words = static_cast<T*>(a.words);
  const int64_t items = a.n / (sizeof(T) / 4), step = static_cast<int64_t>(gridDim.x) * kSettleThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kSettleThreads + threadIdx.x; i < items; i += step) {
    const T before = old[i];
    if constexpr (S != Scalar::kNone) {
      const int cause = newly.cause(words[i], before);
      if (cause >= 0) {
        atomicAdd(a.found + cause, 1);
        atomicMin(reinterpret_cast<uint32_t*>(a.found + 3), static_cast<uint32_t>(i));
      }
    }
    words[i] = before;
  }
}

template <class T, Scalar S>
cudaError_t launch_settle(cudaStream_t stream, const SettleArgs& a, double limit, bool only, int32_t* mended) {
  cudaError_t e = cudaMemsetAsync(a.found, 0xFF, 4 * sizeof(int32_t), stream);
  if (e != cudaSuccess) return e;
  settle_kernel<T, S><<<settle_blocks(a.n), kSettleThreads, 0, stream>>>(a, Newly<T>{static_cast<T>(limit), only});
  if ((e = cudaGetLastError()) != cudaSuccess) return e;
  const SealArgs kept{static_cast<uint32_t*>(a.words), a.n, a.parity, a.marks, a.guard, mended, 0, a.stay};
  return launch_seal<Kind::kRepair>(stream, kept, 5);
}

// How many values are bad now and were good before; nothing is read where nothing is bad at all.
template <class T>
__global__ void __launch_bounds__(kSettleThreads) newly_kernel(const int32_t* bad, const T* now, const T* before, int64_t n, T limit,
                                                               int32_t* count) {
  if (*bad == 0) return;
  const Newly<T> newly{limit, true};
  const int64_t step = static_cast<int64_t>(gridDim.x) * kSettleThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kSettleThreads + threadIdx.x; i < n; i += step)
    if (newly.cause(now[i], before[i]) >= 0) atomicAdd(count, 1);
}

template <class T>
cudaError_t launch_newly(cudaStream_t stream, const int32_t* bad, const void* now, const void* before, int64_t n, double limit,
                         int32_t* count) {
  const cudaError_t e = cudaMemsetAsync(count, 0, sizeof(int32_t), stream);
  if (e != cudaSuccess) return e;
  newly_kernel<T><<<settle_blocks(n), kSettleThreads, 0, stream>>>(bad, static_cast<const T*>(now), static_cast<const T*>(before), n,
                                                                   static_cast<T>(limit), count);
  return cudaGetLastError();
}

}  // namespace poise::cuda
