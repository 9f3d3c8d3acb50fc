// The kernels alone, timed by events on random numbers, next to a copy kernel in the same run; checks nothing (gpu_check and
// benchmarks/gpu_kernels.py do).
//     nvcc -std=c++17 -O3 -arch=sm_90 --extended-lambda -Inative/include native/check/gpu_time.cu -o gpu_time && ./gpu_time
#include <cstdio>
#include <cstdlib>

#include "../cuda/adamw.cuh"
#include "../cuda/burgers.cuh"
#include "../cuda/burgers_sealed.cuh"
#include "../cuda/record.cuh"
#include "../cuda/scan.cuh"
#include "../cuda/seal.cuh"
#include "../cuda/stencil3d.cuh"
#include "../cuda/stencil3d_walls.cuh"

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

static void stencil3d(float* u, float* v, const float* k, int32_t* found, double bandwidth) {
  for (int n : {512, 256}) {
    Plan3<float> p{};
    p.in = u, p.out = v, p.found = found, p.coefficients = k, p.D = p.H = p.W = p.in_H = p.in_W = n, p.gate.limit = 1e6f;
    auto ratio = [&](auto launch) {
      const double s = seconds([&] {
        MUST(launch(p));
        const float* t = p.in;
        p.in = p.out, p.out = const_cast<float*>(t);
      });
      return 8.0 * n * n * n * 4 / s / bandwidth;
    };
    std::printf("stencil %d^3, T = 4        %.3f of a copy, %.3f with the kernel for walls\n", n,
                ratio([](const auto& q) { return launch3<float, 4, 4, 8>(nullptr, q); }),
                ratio([](const auto& q) { return launch3_walls<float, 4, 2, 16>(nullptr, q); }));
  }
}

// The Burgers stage alone, with a seal and a check beside it, and with both in its pass; n^2 nodes.
static void burgers(int64_t side, int32_t* found, double bandwidth) {
  const int64_t n = 2 * side * side;
  const Layout lay(n);
  float *q = numbers(n, 7u), *base = numbers(n, 8u), *out = numbers(n, 9u), *edge = numbers(8 * side, 10u), *f = numbers(2, 11u);
  const Burgers<float> b{q, base, edge, edge + 2 * side, edge + 4 * side, edge + 6 * side, f, out,
                         side, side, 0.5f, 0.25f, 0.5f, 0.25f, 0.1f};
  uint32_t *spare[2][3], *words[2] = {reinterpret_cast<uint32_t*>(base), reinterpret_cast<uint32_t*>(out)};
  for (auto& s : spare) {
    MUST(cudaMalloc(&s[0], lay.L() * 4));
    MUST(cudaMalloc(&s[1], kMarkWords * lay.G * 4));
    MUST(cudaMalloc(&s[2], 2 * lay.G * 4));
  }
  const uint32_t limit2 = 0x49742400u << 1;
  auto args = [&](int i) { return SealArgs{words[i], n, spare[i][0], spare[i][1], spare[i][2], found, limit2}; };
  MUST(launch_seal<Kind::kSeal>(nullptr, args(0), 0));
  const dim3 grid(static_cast<unsigned>((side + kBurgersColumns - 1) / kBurgersColumns),
                  static_cast<unsigned>((side + kBurgersRows - 1) / kBurgersRows));
  auto stage = [&] { burgers_kernel<float><<<grid, kBurgersColumns>>>(b); };
  auto seal = [&] { MUST(launch_seal<Kind::kCount>(nullptr, args(1), 1)); };
  auto check = [&] { MUST(launch_seal<Kind::kCheck>(nullptr, args(0), 3)); };
  auto sealed = [&] {
    MUST(launch_burgers_sealed(nullptr, {b, spare[0][0], spare[0][1], spare[0][2], spare[1][0], spare[1][1], spare[1][2], found,
                                         limit2, 0, 0}));
  };
  const double alone = seconds(stage), sum = seconds([&] { stage(), seal(), check(); }), one = seconds(sealed);
  std::printf("Burgers stage %ld^2       %.4f ms alone (%.3f of 12 B a value at a copy's speed); with seal and check beside it %.3f "
              "of that, in one pass %.3f\n", static_cast<long>(side), alone * 1e3, alone * bandwidth / (12.0 * n), sum / alone,
              one / alone);
}

int main() {
  const int64_t n = int64_t{1} << 29;
  float *a = numbers(n, 1u), *b = numbers(n, 2u, true), *g = numbers(n / 2, 3u), *hyper;
  const float h[10] = {1e-3f, .9f, .1f, .999f, .001f, 1e-8f, .01f, 2.f, 3.f, 1.f};
  int32_t* found;
  MUST(cudaMalloc(&hyper, sizeof h));
  MUST(cudaMemcpy(hyper, h, sizeof h, cudaMemcpyHostToDevice));
  MUST(cudaMalloc(&found, kFoundRows * 16));
  MUST(cudaMemset(found, 0, kFoundRows * 16));
  const double copy = seconds([&] {
    copy_kernel<<<static_cast<unsigned>(n / 4 / 512), 256>>>(reinterpret_cast<uint4*>(a), reinterpret_cast<uint4*>(b));
  });
  const double bandwidth = 8.0 * n / copy;
  std::printf("copy of 2 GiB            %.4f ms, %.3f TB/s\n", copy * 1e3, bandwidth / 1e12);
  stencils(a, b, found, bandwidth);
  const float k3[9] = {.05f, .2f, .05f, .05f, .25f, .05f, .05f, .25f, .05f};
  float* k;
  MUST(cudaMalloc(&k, sizeof k3));
  MUST(cudaMemcpy(k, k3, sizeof k3, cudaMemcpyHostToDevice));
  stencil3d(a, b, k, found, bandwidth);
  records(reinterpret_cast<uint32_t*>(a), reinterpret_cast<uint32_t*>(b), g, hyper, found, n / 8, copy);
  adamw(g, hyper, found, n / 2, bandwidth);
  for (int64_t side : {8192, 2048, 1000}) burgers(side, found, bandwidth);
  return cudaDeviceSynchronize() != cudaSuccess;
}
