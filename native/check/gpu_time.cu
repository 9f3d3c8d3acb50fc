// The kernels alone, timed by events on random numbers, next to a copy kernel in the same run; checks nothing (gpu_check and
// benchmarks/gpu_kernels.py do).
//     nvcc -std=c++17 -O3 -arch=sm_90 --extended-lambda -Inative/include native/check/gpu_time.cu -o gpu_time && ./gpu_time
#include <cstdio>
#include <cstdlib>

#include "../cuda/adamw.cuh"
#include "../cuda/record.cuh"
#include "../cuda/scan.cuh"
#include "../cuda/stencil2d.cuh"

using namespace poise;
using namespace poise::cuda;

#define MUST(call)                                                \
  if (const cudaError_t e = (call); e != cudaSuccess) {           \
    std::printf("%s: %s\n", #call, cudaGetErrorString(e));        \
    std::exit(1);                                                 \
  }

__global__ void fill(float* x, int64_t n, uint32_t seed, bool positive) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < n; i += gridDim.x * int64_t{256}) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ seed;
    h = (h ^ h >> 15) * 2246822519u;
    const float v = (static_cast<int>((h ^ h >> 13) >> 8) - (1 << 23)) * 1.2e-7f;
    x[i] = positive ? fabsf(v) : v;
  }
}

__global__ void __launch_bounds__(256) copy_kernel(const uint4* __restrict__ in, uint4* __restrict__ out) {
  const int64_t i = blockIdx.x * int64_t{512} + threadIdx.x;
  const uint4 a = in[i], b = in[i + 256];
  out[i] = a, out[i + 256] = b;
}

// Mean seconds of a launch.
template <class F>
static double seconds(F launch) {
  cudaEvent_t a, b;
  MUST(cudaEventCreate(&a));
  MUST(cudaEventCreate(&b));
  for (int i = 0; i < 2; ++i) launch();
  MUST(cudaEventRecord(a));
  for (int i = 0; i < 50; ++i) launch();
  MUST(cudaEventRecord(b));
  MUST(cudaEventSynchronize(b));
  float ms = 0;
  MUST(cudaEventElapsedTime(&ms, a, b));
  return ms * 1e-3 / 50;
}

static float* numbers(int64_t n, uint32_t seed, bool positive = false) {
  float* x;
  MUST(cudaMalloc(&x, n * 4 + 64));
  fill<<<4096, 256>>>(x, n, seed, positive);
  return x;
}

static void records(uint32_t* a, uint32_t* b, float* g, const float* hyper, int32_t* found, int64_t n, double copy) {
  auto say = [&](const char* what, double s) { std::printf("%-24s %.4f ms, %.3f of a copy's time\n", what, s * 1e3, s / copy); };
  Gate<float> gate{};
  gate.limit = 1e30f;
  const unsigned grid = static_cast<unsigned>(n / 256);
  say("pack", seconds([&] { pack_kernel<true><<<grid, kPackRows>>>(a, b, n); }));
  say("unpack", seconds([&] { pack_kernel<false><<<grid, kPackRows>>>(a, b, n); }));
  say("record update (PIM)", seconds([&] { record_kernel<kPim><<<grid, 256>>>(gate, b, g, hyper, n, found); }));
  say("record update (PINN)", seconds([&] { record_kernel<kPinn><<<grid, 256>>>(gate, b, g, hyper, n, found); }));
  say("record gradient", seconds([&] { gradient_kernel<<<grid, 256>>>({b, g, nullptr, nullptr, n, n, 0.5f}, gate, found); }));
  say("gate scan", seconds([&] {
        MUST(launch_scan<float>(nullptr, gate, reinterpret_cast<float*>(a), reinterpret_cast<float*>(b), 8 * n, found));
      }));
}

static void adamw(float* g, const float* hyper, int32_t* found, int64_t n, double bandwidth) {
  const Layout lay(n);
  AdamWArgs a{};
  for (int s = 0; s < 3; ++s) {
    a.words[s] = reinterpret_cast<uint32_t*>(numbers(n, 5u + s, s == 2));
    MUST(cudaMalloc(&a.parity[s], lay.L() * 4));
    MUST(cudaMalloc(&a.marks[s], kMarkWords * lay.G * 4));
    MUST(cudaMalloc(&a.guard[s], 2 * lay.G * 4));
    MUST(launch_seal<Kind::kSeal>(nullptr, SealArgs{a.words[s], n, a.parity[s], a.marks[s], a.guard[s], found, 0}, 0));
  }
  int32_t one = 1, *ok;
  MUST(cudaMalloc(&ok, 4));
  MUST(cudaMemcpy(ok, &one, 4, cudaMemcpyHostToDevice));
  a.g = g, a.hyper = hyper, a.ok = ok, a.mended = found, a.n = n;
  const double s = seconds([&] { MUST(launch_adamw(nullptr, a)); });
  std::printf("%-24s %.4f ms, %.3f of 28 B a parameter at a copy's speed\n", "sealed AdamW, 2^28", s * 1e3, s * bandwidth / (28.0 * n));
}

static void stencils(float* u, float* v, int32_t* found, double bandwidth) {
  const float host[6] = {.05f, .4f, .05f, .05f, .4f, .05f};
  float* k;
  MUST(cudaMalloc(&k, sizeof host));
  MUST(cudaMemcpy(k, host, sizeof host, cudaMemcpyHostToDevice));
  for (int n : {8192, 2048})
    for (int steps : {6, 7, 8, 10, 12}) {
      Plan2<float> p{};
      p.in = u, p.out = v, p.found = found, p.coefficients = k, p.H = p.W = p.in_W = n, p.steps = steps, p.gate.limit = 1e6f;
      auto ratio = [&](auto launch) {
        const double s = seconds([&] {
          MUST(launch(p));
          const float* t = p.in;
          p.in = p.out, p.out = const_cast<float*>(t);
        });
        return 8.0 * n * n * steps / s / bandwidth;
      };
      std::printf("stencil %d^2, T = %-2d       %.3f of a copy with four warps a tile, %.3f with eight\n", n, steps,
                  ratio([](const auto& q) { return launch2<float, 16, 4, 1, 4>(nullptr, q, 132); }),
                  ratio([](const auto& q) { return launch2<float, 16, 8, 1, 2>(nullptr, q, 132); }));
    }
}

int main() {
  const int64_t n = int64_t{1} << 29;
  float *a = numbers(n, 1u), *b = numbers(n, 2u, true), *g = numbers(n / 2, 3u), *hyper;
  const float h[10] = {1e-3f, .9f, .1f, .999f, .001f, 1e-8f, .01f, 2.f, 3.f, 1.f};
  int32_t* found;
  MUST(cudaMalloc(&hyper, sizeof h));
  MUST(cudaMemcpy(hyper, h, sizeof h, cudaMemcpyHostToDevice));
  MUST(cudaMalloc(&found, 256));
  MUST(cudaMemset(found, 0, 256));
  const double copy = seconds([&] {
    copy_kernel<<<static_cast<unsigned>(n / 4 / 512), 256>>>(reinterpret_cast<uint4*>(a), reinterpret_cast<uint4*>(b));
  });
  const double bandwidth = 8.0 * n / copy;
  std::printf("copy of 2 GiB            %.4f ms, %.3f TB/s\n", copy * 1e3, bandwidth / 1e12);
  stencils(a, b, found, bandwidth);
  records(reinterpret_cast<uint32_t*>(a), reinterpret_cast<uint32_t*>(b), g, hyper, found, n / 8, copy);
  adamw(g, hyper, found, n / 2, bandwidth);
  return cudaDeviceSynchronize() != cudaSuccess;
}
