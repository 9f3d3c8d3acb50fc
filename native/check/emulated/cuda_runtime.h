// Enough of CUDA to run a kernel on the CPU, one block at a time with one thread per CUDA thread: for the sanitizers, and for
// machines without a GPU. No memory model: what a barrier or shuffle orders here is ordered more strictly than on a GPU.
#pragma once
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

inline thread_local dim3 threadIdx, blockIdx;
inline std::barrier<>* block_barrier;
inline uint32_t exchanged[1024];

inline void __syncthreads() { block_barrier->arrive_and_wait(); }
inline uint32_t __shfl_xor_sync(unsigned, uint32_t x, int mask) {
  exchanged[threadIdx.x] = x;
  __syncthreads();
  const uint32_t got = exchanged[threadIdx.x ^ static_cast<unsigned>(mask)];
  __syncthreads();
  return got;
}
inline uint32_t __reduce_add_sync(unsigned, uint32_t x) {
  uint32_t sum = x;
  for (int mask = 1; mask < 32; mask *= 2) sum += __shfl_xor_sync(~0u, sum, mask);
  return sum;
}

inline void __syncwarp() { __syncthreads(); }
inline uint32_t __ballot_sync(unsigned, bool p) { return __reduce_add_sync(~0u, p ? 1u << (threadIdx.x & 31u) : 0u); }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }

template <class T>
T __ldg(const T* p) { return *p; }
template <class T>
T __ldcs(const T* p) { return *p; }
template <class T>
void __stcs(T* p, T x) { *p = x; }
template <class T>
void atomicAdd(T* p, T x) { __atomic_fetch_add(p, x, __ATOMIC_RELAXED); }
template <class T>
void atomicMin(T* p, T x) {
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (x < old && !__atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// Every block of the grid in turn. A thread that returns early is not waited for afterwards; warps of one block must otherwise
// shuffle equally often.
template <class F>
void launch(dim3 grid, unsigned threads, F kernel) {
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
      std::barrier<> barrier(threads);
      block_barrier = &barrier;
      std::vector<std::thread> all;
      for (unsigned t = 0; t < threads; ++t)
        all.emplace_back([=, &barrier] {
          threadIdx = {t, 0, 0}, blockIdx = {x, y, 0};
          kernel();
          barrier.arrive_and_drop();
        });
      for (auto& t : all) t.join();
    }
}
