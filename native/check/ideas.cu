// The blueprint's kernel ideas, each timed against what is done here, on 2^29 random float32 (design/kernels-words.md).
//     nvcc -std=c++17 -O3 -arch=sm_90 --extended-lambda native/check/ideas.cu -o ideas && ./ideas
// With -DPOISE_BRIDGE -shared it is a library whose one function a host calls outside the graph (benchmarks/gpu_kernels.py).
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

constexpr int kThreads = 256;

__device__ __forceinline__ int64_t mine() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }
__device__ __forceinline__ float4 times(float4 x, float f) { return make_float4(x.x * f, x.y * f, x.z * f, x.w * f); }

// What we do: pointers that are known not to alias, and a predicate for the lanes behind the end.
__global__ void __launch_bounds__(kThreads) plain(const float4* __restrict__ in, float4* __restrict__ out, int64_t n, float f) {
  const int64_t i = mine();
  if (i < n) out[i] = times(in[i], f);
}

#ifdef POISE_BRIDGE
extern "C" int poise_bridge_scale(const float* in, float* out, int64_t n) {
  plain<<<static_cast<unsigned>((n / 4 + kThreads - 1) / kThreads), kThreads>>>(reinterpret_cast<const float4*>(in),
                                                                              reinterpret_cast<float4*>(out), n / 4, 1.5f);
  return cudaStreamSynchronize(nullptr);
}
#else

__global__ void __launch_bounds__(kThreads) read_only_load(const float4* in, float4* out, int64_t n, float f) {
  const int64_t i = mine();
  if (i < n) out[i] = times(__ldg(in + i), f);
}

// Lanes behind the end read cell 0 and write to a slot behind the array.
__global__ void __launch_bounds__(kThreads) garbage_slot(const float4* in, float4* out, int64_t n, float f) {
  const int64_t i = mine();
  out[i < n ? i : n] = times(in[i < n ? i : 0], f);
}

// One decision for the warp, lanes apart only where it fails.
__global__ void __launch_bounds__(kThreads) warp_bounds(const float4* __restrict__ in, float4* __restrict__ out, int64_t n, float f) {
  const int64_t i = mine();
  if (__all_sync(~0u, i < n)) out[i] = times(in[i], f);
  else if (i < n) out[i] = times(in[i], f);
}

__constant__ float reciprocals[256];
enum How { kOnce, kTable, kTableByValue, kDivide };

template <How HOW>
__global__ void __launch_bounds__(kThreads) divided(const float4* __restrict__ in, float4* __restrict__ out, int64_t n, float d, float r,
                                                  int entry) {
  const int64_t i = mine();
  if (i >= n) return;
  float4 x = in[i];
  auto by = [&](float v) { return HOW == kTableByValue ? v * reciprocals[__float_as_uint(v) >> 24] : v / d; };
  out[i] = HOW == kOnce ? times(x, r) : HOW == kTable ? times(x, reciprocals[entry]) : make_float4(by(x.x), by(x.y), by(x.z), by(x.w));
}

enum Gate { kBoundedBefore, kSelect, kBranch };

template <Gate GATE>
__global__ void __launch_bounds__(kThreads) steps(const float4* __restrict__ in, float4* __restrict__ out, int64_t n, float limit, int count,
                                                int* found) {
  const int64_t i = mine();
  if (i >= n) return;
  const float4 x = in[i];
  float v[4] = {x.x, x.y, x.z, x.w};
  for (int t = 0; t < count; ++t)
#pragma unroll
    for (float& y : v) {
      y = y * 0.999f + 1e-3f;
      if (GATE == kSelect) y = fabsf(y) <= limit ? y : 0.0f;
      if (GATE == kBranch && !(fabsf(y) <= limit)) atomicAdd(found, 1), y = 0.0f;
    }
  out[i] = make_float4(v[0], v[1], v[2], v[3]);
}

__global__ void fill(float* x, int64_t n, uint32_t seed) {
  for (int64_t i = mine(); i < n; i += static_cast<int64_t>(gridDim.x) * kThreads) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ seed;
    h = (h ^ h >> 15) * 2246822519u;
    x[i] = (static_cast<int>((h ^ h >> 13) >> 8) - (1 << 23)) * 1.2e-7f;
  }
}

template <class F>
static void timed(const char* name, F f) {
  cudaEvent_t a, b;
  cudaEventCreate(&a), cudaEventCreate(&b);
  float sum = 0, t = 0;
  for (int i = -2; i < 10; ++i) {
    cudaEventRecord(a);
    f();
    cudaEventRecord(b);
    cudaEventSynchronize(b);
    cudaEventElapsedTime(&t, a, b);
    if (i >= 0) sum += t;
  }
  std::printf("ideas  %-34s %.4f ms  %s\n", name, sum / 10, cudaGetErrorString(cudaGetLastError()));
}

int main() {
  const int64_t size = int64_t{1} << 29, n = size / 4 - 3;  // ragged: the last warp is cut
  const unsigned grid = static_cast<unsigned>(size / 4 / kThreads);
  float *x, *y, table[256];
  int* found;
  if (cudaMalloc(&x, size * 4) || cudaMalloc(&y, size * 4) || cudaMalloc(&found, 4)) return 1;
  for (int i = 0; i < 256; ++i) table[i] = 1.0f / (i + 1);
  cudaMemcpyToSymbol(reciprocals, table, sizeof table);
  cudaMemset(found, 0, 4);
  fill<<<4096, kThreads>>>(x, size, 2463534242u);
  auto* in = reinterpret_cast<const float4*>(x);
  auto* out = reinterpret_cast<float4*>(y);
  timed("plain, predicated", [&] { plain<<<grid, kThreads>>>(in, out, n, 1.5f); });
  timed("garbage-slot store", [&] { garbage_slot<<<grid, kThreads>>>(in, out, n, 1.5f); });
  timed("warp-level bounds", [&] { warp_bounds<<<grid, kThreads>>>(in, out, n, 1.5f); });
  timed("__ldg", [&] { read_only_load<<<grid, kThreads>>>(in, out, n, 1.5f); });
  timed("reciprocal, computed once", [&] { divided<kOnce><<<grid, kThreads>>>(in, out, n, 3.f, 1 / 3.f, 2); });
  timed("reciprocal, constant table", [&] { divided<kTable><<<grid, kThreads>>>(in, out, n, 3.f, 1 / 3.f, 2); });
  timed("constant table, index by value", [&] { divided<kTableByValue><<<grid, kThreads>>>(in, out, n, 3.f, 1 / 3.f, 2); });
  timed("division", [&] { divided<kDivide><<<grid, kThreads>>>(in, out, n, 3.f, 1 / 3.f, 2); });
  for (int count : {8, 64}) {
    std::printf("%d multiply-adds a value:\n", count);
    timed("no gate (bounded before)", [&] { steps<kBoundedBefore><<<grid, kThreads>>>(in, out, n, 1e6f, count, found); });
    timed("gate as a select", [&] { steps<kSelect><<<grid, kThreads>>>(in, out, n, 1e6f, count, found); });
    timed("gate as a branch that counts", [&] { steps<kBranch><<<grid, kThreads>>>(in, out, n, 1e6f, count, found); });
  }
  return cudaDeviceSynchronize() != cudaSuccess;
}
#endif
