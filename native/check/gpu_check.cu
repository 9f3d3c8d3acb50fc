// A small program for compute-sanitizer and for the repair promise on a GPU: seal, check, repair and the sealed AdamW against
// the CPU headers on random damage, the sealed Burgers stage against stage, seal and check. Usage: gpu_check [patterns]. Prints one line; exit status 1 if anything differs.
#define POISE_ISA check
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "../cpu/adamw.h"
#include "../cuda/adamw.cuh"
#include "../cuda/burgers.cuh"
#include "../cuda/burgers_sealed.cuh"
#include "../cuda/seal.cuh"
#include "../cuda/stencil3d.cuh"
#include "../cuda/stencil3d_walls.cuh"

using poise::Layout;
namespace host = poise::POISE_ISA;
namespace dev = poise::cuda;
using Words = std::vector<uint32_t>;

#define MUST(call)                                                              \
  if (const cudaError_t e = (call); e != cudaSuccess) {                         \
    std::printf("%s: %s\n", #call, cudaGetErrorString(e));                      \
    std::exit(1);                                                               \
  }

struct Sealed {
  Words words, parity, marks, guard;
};

struct OnDevice {
  uint32_t* p[4];
  explicit OnDevice(const Sealed& s) {
    const Words* v[4] = {&s.words, &s.parity, &s.marks, &s.guard};
    for (int i = 0; i < 4; ++i) MUST(cudaMalloc(&p[i], v[i]->size() * 4 + 16));
    put(s);
  }
  void put(const Sealed& s) {
    const Words* v[4] = {&s.words, &s.parity, &s.marks, &s.guard};
    for (int i = 0; i < 4; ++i) MUST(cudaMemcpy(p[i], v[i]->data(), v[i]->size() * 4, cudaMemcpyHostToDevice));
  }
  void get(Sealed& s) const {
    Words* v[4] = {&s.words, &s.parity, &s.marks, &s.guard};
    for (int i = 0; i < 4; ++i) MUST(cudaMemcpy(v[i]->data(), p[i], v[i]->size() * 4, cudaMemcpyDeviceToHost));
  }
};

static std::mt19937 rng(std::random_device{}());
static uint64_t upto(uint64_t n) { return rng() % n; }

static Sealed fresh(int64_t n) {
  const Layout lay(n);
  Sealed s{Words(n), Words(lay.L()), Words(42 * lay.G), Words(2 * lay.G)};
  for (auto& w : s.words) w = rng();
  host::seal_groups<false>(s.words.data(), lay, 0, lay.G, 0, s.parity.data(), s.marks.data(), s.guard.data());
  return s;
}

static void damage(Sealed& s, const Layout& lay) {
  Words* v[4] = {&s.words, &s.parity, &s.marks, &s.guard};
  switch (upto(5)) {
    case 0:  // a few bits anywhere
      for (int k = 1 + upto(2); k > 0; --k) {
        Words& a = *v[upto(4)];
        a[upto(a.size())] ^= 1u << upto(32);
      }
      break;
    case 1: {  // a run of up to a bank
      const uint32_t x = rng() | 1u;
      const int64_t at = upto(lay.n), len = 1 + upto(lay.L());
      for (int64_t i = at; i < at + len && i < lay.n; ++i) s.words[i] ^= x;
      break;
    }
    case 2: {  // equal flips in two banks of one group
      const int64_t j = upto(lay.L());
      for (int64_t r : {upto(10), 10 + upto(10)})
        if (static_cast<int64_t>(r) * lay.L() + j < lay.n) s.words[r * lay.L() + j] ^= 1u << 31;
      break;
    }
    case 3: {  // a mark and its guard
      const int64_t g = upto(lay.G);
      s.marks[2 * (upto(21) * lay.G + g)] ^= 5u;
      s.guard[2 * g] ^= 9u;
      break;
    }
    default:  // a block and a mark of the same group
      s.words[upto(lay.n)] ^= rng() | 1u;
      s.marks[upto(s.marks.size())] ^= 3u;
  }
}

// The sealed Burgers stage, bit for bit, against the three launches it takes the place of; the base is damaged in some trials.
static int sealed_stage(int64_t nx, int64_t ny, bool hurt) {
  const int64_t n = 2 * nx * ny;
  const Layout lay(n);
  auto values = [](int64_t count) {
    Words w(count);
    for (auto& x : w) {
      const float v = static_cast<float>(upto(2000001)) * 1e-6f - 1.0f;
      std::memcpy(&x, &v, 4);
    }
    return w;
  };
  auto on_device = [](const Words& w) {
    float* p;
    MUST(cudaMalloc(&p, w.size() * 4 + 16));
    MUST(cudaMemcpy(p, w.data(), w.size() * 4, cudaMemcpyHostToDevice));
    return p;
  };
  Sealed base{values(n), Words(lay.L()), Words(42 * lay.G), Words(2 * lay.G)};
  host::seal_groups<false>(base.words.data(), lay, 0, lay.G, 0, base.parity.data(), base.marks.data(), base.guard.data());
  if (hurt) damage(base, lay), base.parity[upto(lay.L())] ^= 1u;
  const OnDevice old(base), made(base), want(base);
  float *q = on_device(values(n)), *west = on_device(values(2 * ny)), *east = on_device(values(2 * ny)),
        *south = on_device(values(2 * nx)), *north = on_device(values(2 * nx)), *forcing = on_device(values(2));
  poise::Burgers<float> b{q, reinterpret_cast<float*>(old.p[0]), west, east, south, north, forcing,
                          reinterpret_cast<float*>(want.p[0]), nx, ny, 0.5f, 0.25f, 0.5f, 0.25f, 0.125f};
  int32_t *count, seen[4], found[4];
  MUST(cudaMalloc(&count, 64));
  const uint32_t limit2 = 0x3F000000u << 1;  // 0.5
  const dim3 grid(static_cast<unsigned>((ny + dev::kBurgersColumns - 1) / dev::kBurgersColumns),
                  static_cast<unsigned>((nx + dev::kBurgersRows - 1) / dev::kBurgersRows));
  dev::burgers_kernel<float><<<grid, dev::kBurgersColumns>>>(b);
  MUST(dev::launch_seal<dev::Kind::kCount>(nullptr, {want.p[0], n, want.p[1], want.p[2], want.p[3], count, limit2}, 1));
  MUST(dev::launch_seal<dev::Kind::kCheck>(nullptr, {old.p[0], n, old.p[1], old.p[2], old.p[3], count + 1, 0}, 3));
  MUST(cudaMemcpy(seen, count, sizeof seen, cudaMemcpyDeviceToHost));
  b.out = reinterpret_cast<float*>(made.p[0]);
  for (int i = 0; i < 4; ++i) MUST(cudaMemset(made.p[i], 0xAA, (i == 0 ? n : i == 1 ? lay.L() : i == 2 ? 42 * lay.G : 2 * lay.G) * 4));
  MUST(dev::launch_burgers_sealed(nullptr, {b, old.p[1], old.p[2], old.p[3], made.p[1], made.p[2], made.p[3], count, limit2, 0, 0}));
  MUST(cudaMemcpy(found, count, sizeof found, cudaMemcpyDeviceToHost));
  Sealed x = base, y = base;
  made.get(x), want.get(y);
  int wrong = x.words != y.words || x.parity != y.parity || x.marks != y.marks || x.guard != y.guard;
  for (int i = 0; i < 4; ++i) wrong += found[i] != seen[i];
  wrong += (seen[1] + seen[2] + seen[3] > 0) != hurt || seen[0] == 0;
  if (wrong) std::printf("sealed stage %ld x %ld: %d wrong (%d %d %d %d, not %d %d %d %d)\n", static_cast<long>(nx),
                         static_cast<long>(ny), wrong, found[0], found[1], found[2], found[3], seen[0], seen[1], seen[2], seen[3]);
  for (float* p : {q, west, east, south, north, forcing}) MUST(cudaFree(p));
  for (const OnDevice* d : {&old, &made, &want})
    for (uint32_t* p : d->p) MUST(cudaFree(p));
  MUST(cudaFree(count));
  return wrong;
}

// Stencils on equal cells: with coefficients whose sum is 1 they stay as they are (3.004, exactly), or all of them are bad.
static int stencils(int fill, int edge) {
  constexpr int n = 300, deep = 20;
  const float two[6] = {.125f, .25f, .125f, .125f, .25f, .125f};
  const float three[9] = {.125f, .125f, .125f, .125f, .0625f, .125f, .125f, .0625f, .125f};
  float *in, *out, *k;
  int32_t* found;
  MUST(cudaMalloc(&in, n * n * deep * 4));
  MUST(cudaMalloc(&out, n * n * deep * 4));
  MUST(cudaMalloc(&k, sizeof three));
  MUST(cudaMalloc(&found, dev::kFoundRows * 16));
  MUST(cudaMemset(in, fill, n * n * deep * 4));
  int wrong = 0;
  auto look = [&](int64_t cells) {
    std::vector<int32_t> rows(dev::kFoundRows * 4);
    Words made(cells);
    MUST(cudaMemcpy(rows.data(), found, rows.size() * 4, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(made.data(), out, cells * 4, cudaMemcpyDeviceToHost));
    int64_t trips = 0;
    uint64_t first = ~uint64_t{0}, key;
    for (int i = 0; i < dev::kFoundRows; ++i) {
      trips += rows[4 * i];
      std::memcpy(&key, &rows[4 * i + 2], 8);
      first = key < first ? key : first;
    }
    const bool bad = fill == 0xFF;
    wrong += trips != (bad ? cells : 0) || first != (bad ? 0 : ~uint64_t{0});
    for (uint32_t w : made) wrong += w != (bad ? 0u : 0x40404040u);
  };
  dev::Plan2<float> p{};
  p.in = in, p.out = out, p.found = found, p.coefficients = k, p.H = p.W = p.in_W = n, p.steps = 5, p.gate.limit = 1e6f;
  p.edge_y = p.edge_x = edge;
  MUST(cudaMemcpy(k, two, sizeof two, cudaMemcpyHostToDevice));
  MUST((dev::launch2<float, 16, 4, 1, 4>(nullptr, p, 132)));
  look(n * n);
  MUST((dev::launch2<float, 16, 8, 1, 2>(nullptr, p, 132)));
  look(n * n);
  dev::Plan3<float> q{};
  q.in = in, q.out = out, q.found = found, q.coefficients = k, q.D = deep, q.H = q.W = q.in_H = q.in_W = n, q.gate.limit = 1e6f;
  q.edge_z = q.edge_y = q.edge_x = edge;
  MUST(cudaMemcpy(k, three, sizeof three, cudaMemcpyHostToDevice));
  MUST((dev::launch3_walls<float, 4, 2, 16>(nullptr, q)));
  look(n * n * deep);
  if (edge == poise::kPeriodic) {
    MUST((dev::launch3<float, 4, 4, 8>(nullptr, q)));
    look(n * n * deep);
  }
  for (float* x : {in, out, k}) MUST(cudaFree(x));
  MUST(cudaFree(found));
  if (wrong) std::printf("stencils, fill %x, edge %d: %d wrong\n", fill, edge, wrong);
  return wrong;
}

int main(int argc, char** argv) {
  const int patterns = argc > 1 ? std::atoi(argv[1]) : 200;
  int wrong = 0, exact = 0, reported = 0;
  int32_t* count;
  MUST(cudaMalloc(&count, 64));
  for (int64_t n : {1, 300, 2561, 5121, 5120 * 3 + 7, 5120 * 40}) {
    const Layout lay(n);
    const Sealed clean = fresh(n);
    OnDevice d(clean);
    MUST(cudaMemset(d.p[1], 0xAA, lay.L() * 4));
    MUST(dev::launch_seal<dev::Kind::kSeal>(nullptr, dev::SealArgs{d.p[0], n, d.p[1], d.p[2], d.p[3], count, 0}, 0));
    Sealed got = clean;
    d.get(got);
    wrong += got.parity != clean.parity || got.marks != clean.marks || got.guard != clean.guard;
    for (int k = 0; k < patterns / 6; ++k) {
      Sealed hurt = clean;
      damage(hurt, lay);
      d.put(hurt);
      MUST(dev::launch_seal<dev::Kind::kRepair>(nullptr, dev::SealArgs{d.p[0], n, d.p[1], d.p[2], d.p[3], count, 0}, 5));
      d.get(got);
      int32_t c[5];
      MUST(cudaMemcpy(c, count, sizeof c, cudaMemcpyDeviceToHost));
      const host::Mended m =
          host::repair_groups(hurt.words.data(), lay, 0, lay.G, hurt.parity.data(), hurt.marks.data(), hurt.guard.data());
      wrong += got.words != hurt.words || got.parity != hurt.parity || got.marks != hurt.marks || got.guard != hurt.guard;
      wrong += c[0] != m.data || c[1] != m.marks || c[2] != m.parity || c[3] != m.repaired || c[4] != m.unrepairable;
      if (got.words == clean.words && got.parity == clean.parity && got.marks == clean.marks) ++exact;
      else if (c[4] > 0) ++reported;
      else ++wrong;
    }
  }
  // The sealed AdamW between launches with flips: equal to the clean run wherever nothing was beyond repair.
  for (int64_t n : {300, 5121, 5120 * 9 + 31, 5120 * 300 + 31}) {
    const Layout lay(n);
    Sealed s[3] = {fresh(n), fresh(n), fresh(n)};
    for (auto& x : s) {
      for (auto& w : x.words) w = (w & 0x007FFFFFu) | 0x3F000000u;
      host::seal_groups<false>(x.words.data(), lay, 0, lay.G, 0, x.parity.data(), x.marks.data(), x.guard.data());
    }
    OnDevice a[3] = {OnDevice(s[0]), OnDevice(s[1]), OnDevice(s[2])}, b[3] = {OnDevice(s[0]), OnDevice(s[1]), OnDevice(s[2])};
    float h[10] = {1e-2f, .9f, .1f, .999f, .001f, 1e-8f, .01f, 2.f, 3.f, 1.f}, *hd, *g;
    int32_t one = 1, *ok;
    MUST(cudaMalloc(&hd, sizeof h));
    MUST(cudaMalloc(&g, n * 4));
    MUST(cudaMalloc(&ok, 4));
    MUST(cudaMemcpy(hd, h, sizeof h, cudaMemcpyHostToDevice));
    MUST(cudaMemcpy(ok, &one, 4, cudaMemcpyHostToDevice));
    MUST(cudaMemset(g, 0x3C, n * 4));
    for (int step = 0; step < 6; ++step) {
      if (step) {  // a run of up to a bank in one array of b
        Sealed x = s[0];
        const int which = upto(3);
        b[which].get(x);
        // At most a bank less a block, so that no group is hit twice (design/seal-format.md).
        const int64_t at = upto(n), len = lay.G > 1 ? 1 + upto(lay.L() - lay.B) : 1;
        for (int64_t i = at; i < at + len && i < n; ++i) x.words[i] ^= 0x5A5A5A5Au;
        b[which].put(x);
      }
      for (auto* set : {a, b}) {
        dev::AdamWArgs args{};
        for (int i = 0; i < 3; ++i)
          args.words[i] = set[i].p[0], args.parity[i] = set[i].p[1], args.marks[i] = set[i].p[2], args.guard[i] = set[i].p[3];
        args.g = g, args.hyper = hd, args.ok = ok, args.mended = count, args.n = n;
        MUST(dev::launch_adamw(nullptr, args));
        int32_t c[15];
        MUST(cudaMemcpy(c, count, sizeof c, cudaMemcpyDeviceToHost));
        wrong += c[4] + c[9] + c[14];
        wrong += set == b && step > 0 && c[3] + c[8] + c[13] == 0;
      }
      for (int i = 0; i < 3; ++i) {
        Sealed x = s[0], y = s[0];
        a[i].get(x), b[i].get(y);
        wrong += x.words != y.words || x.parity != y.parity || x.marks != y.marks || x.guard != y.guard;
        const host::Off off = host::check_groups(x.words.data(), lay, 0, lay.G, x.parity.data(), x.marks.data(), x.guard.data());
        wrong += off.data + off.parity + off.guard != 0;
      }
    }
  }
  for (auto [nx, ny] : {std::pair<int64_t, int64_t>{37, 35}, {2, 1300}, {1300, 2}, {61, 128}, {20, 260}, {301, 130}, {64, 1024}})
    for (bool hurt : {false, true}) wrong += sealed_stage(nx, ny, hurt);
  for (int fill : {0x40, 0xFF})
    for (int edge : {poise::kPeriodic, poise::kNeumann}) wrong += stencils(fill, edge);
  MUST(cudaDeviceSynchronize());
  std::printf("gpu_check: %d patterns bit exact, %d reported beyond repair, %d wrong\n", exact, reported, wrong);
  return wrong != 0;
}
