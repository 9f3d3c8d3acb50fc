// Gate scan: a clean copy, counts by cause and the first bad index in one pass. The test of a quad is integer compares and a
// select; only a warp that met something bad counts, with atomics.
#pragma once
#include "poise/gate.h"
#include "warp.cuh"

namespace poise::cuda {

template <class T>
struct alignas(16) Quad {  // one 16-byte access
  static constexpr int N = 16 / sizeof(T);
  T v[N];
};

template <class T>
__device__ __noinline__ void tally(const Gate<T>& gate, T x, int64_t at, int32_t* found) {
  const int cause = isnan(x) ? 0 : isinf(x) ? 1 : magnitude2(x) > magnitude2(gate.limit) ? 2 : 3;
  atomicAdd(found + cause, 1);
  atomicMin(reinterpret_cast<uint32_t*>(found + 4), static_cast<uint32_t>(at));
}

template <class T, bool MARKERS>
__device__ __forceinline__ bool is_bad(const Gate<T>& gate, T x) {
  return MARKERS ? gate.bad(x) : magnitude2(x) > magnitude2(gate.limit);
}

constexpr int kScanQuads = 2;  // 16-byte loads in flight per thread (1 and 8 are slower)
constexpr int kScanThreads = 256;

template <class T, bool MARKERS>
__global__ void __launch_bounds__(kScanThreads) scan_kernel(const __grid_constant__ Gate<T> gate, const T* __restrict__ in,
                                                            T* __restrict__ out, int64_t n, int32_t* found) {
  constexpr int N = Quad<T>::N;
  const int64_t quads = n / N;
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kScanThreads * kScanQuads + threadIdx.x;
  Quad<T> q[kScanQuads];
#pragma unroll
  for (int k = 0; k < kScanQuads; ++k)
    if (base + k * kScanThreads < quads) q[k] = reinterpret_cast<const Quad<T>*>(in)[base + k * kScanThreads];
#pragma unroll
  for (int k = 0; k < kScanQuads; ++k) {
    const int64_t i = base + k * kScanThreads;
    if (i >= quads) continue;
    bool any = false;
    Quad<T> c;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const bool b = is_bad<T, MARKERS>(gate, q[k].v[j]);
      any = any || b;
      c.v[j] = b ? gate.fill : q[k].v[j];
    }
    reinterpret_cast<Quad<T>*>(out)[i] = c;
    if (any)
      for (int j = 0; j < N; ++j)
        if (is_bad<T, MARKERS>(gate, in[i * N + j])) tally(gate, in[i * N + j], i * N + j, found);
  }
  const int64_t rest = quads * N + base;  // fewer than N entries are left over
  if (rest < n) {
    const T x = in[rest];
    const bool b = is_bad<T, MARKERS>(gate, x);
    out[rest] = b ? gate.fill : x;
    if (b) tally(gate, x, rest, found);
  }
}

template <class T>
cudaError_t launch_scan(cudaStream_t stream, const Gate<T>& gate, const T* in, T* out, int64_t n, int32_t* found) {
  // found = (counts - 1, first), so that one memset starts it.
  const cudaError_t e = cudaMemsetAsync(found, 0xFF, 5 * sizeof(int32_t), stream);
  if (e != cudaSuccess) return e;
  const int64_t per = int64_t{kScanThreads} * kScanQuads * Quad<T>::N;
  const unsigned blocks = static_cast<unsigned>((n + per - 1) / per);
  if (gate.markers) scan_kernel<T, true><<<blocks, kScanThreads, 0, stream>>>(gate, in, out, n, found);
  else scan_kernel<T, false><<<blocks, kScanThreads, 0, stream>>>(gate, in, out, n, found);
  return cudaGetLastError();
}

}  // namespace poise::cuda
