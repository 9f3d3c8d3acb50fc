// The CUDA kernels of records and of the Burgers stages, run on the CPU (emulated/cuda_runtime.h) against the CPU's own kernels, on
// random inputs at ragged sizes; built with the sanitizers by the tests. Prints one line; exit status 1 if anything differs.
#define POISE_ISA check
#include <cstdio>
#include <cstdlib>
#include <random>

#include "../cpu/burgers_sealed.h"
#include "../cpu/record.h"
#include "../cuda/burgers.cuh"
#include "../cuda/burgers_sealed.cuh"
#include "../cuda/record.cuh"

using namespace poise;
namespace host = poise::POISE_ISA;
namespace dev = poise::cuda;
using Words = std::vector<uint32_t>;

static std::mt19937 rng(std::random_device{}());
static std::normal_distribution<float> normal;

static unsigned blocks(int64_t n, int64_t per) { return static_cast<unsigned>((n + per - 1) / per); }

static float spoiled(int64_t n) {  // now and then a bad number
  static const float bad[] = {NAN, INFINITY, -2e6f, -99.0f, -999.0f};
  return rng() % static_cast<uint64_t>(n + 1) < 3 ? bad[rng() % 5] : normal(rng);
}

static int packs(int64_t n) {
  Words channels(8 * n), rows(8 * n, 1), back(8 * n, 1), want(8 * n);
  for (auto& w : channels) w = rng();
  launch({blocks(n, dev::kPackRows)}, dev::kPackRows, [&] { dev::pack_kernel<true>(channels.data(), rows.data(), n); });
  launch({blocks(n, dev::kPackRows)}, dev::kPackRows, [&] { dev::pack_kernel<false>(rows.data(), back.data(), n); });
  host::repack<true>(channels.data(), want.data(), n, 0, n);
  return (rows != want) + (back != channels);
}

template <int CELL>
static int updates(int64_t n, const Gate<float>& gate) {
  std::vector<Record> rows(n), want;
  std::vector<float> g(n);
  for (auto& r : rows) {
    for (auto& w : r.word) w = as_word(spoiled(8 * n));
    r.word[2] = as_word(std::fabs(as_float(r.word[2])));
    r.word[CELL == kPim ? 5 : 4] = rng() % 8 == 0;
  }
  for (auto& x : g) x = spoiled(n);
  want = rows;
  const RecordHyper h{{1e-2f, .9f, .1f, .999f, .001f, 1e-8f, .01f, 2.f, 3.f, .7f}};
  int64_t found[2];
  host::update_records<CELL>(want.data(), g.data(), h, gate, 0, n, found);
  int32_t mine[2] = {-1, -1};
  launch({blocks(n, 256)}, 256,
         [&] { dev::record_kernel<CELL>(gate, &rows[0].word[0], g.data(), h.a, n, mine); });
  return (std::memcmp(rows.data(), want.data(), 32 * n) != 0) + (mine[0] + 1 != found[0]) + (mine[1] != found[1]);
}

static int gradients(int64_t columns, int64_t lines, bool given, bool halo, const Gate<float>& gate) {
  const int64_t n = columns * lines;
  Words rows(8 * n), want;
  std::vector<float> flux(n), west(lines), east(lines);
  for (auto& w : rows) w = as_word(spoiled(8 * n));
  for (auto& x : flux) x = spoiled(n);
  for (auto& x : west) x = normal(rng);
  for (auto& x : east) x = normal(rng);
  want = rows;
  GradientArgs a{want.data(), given ? flux.data() : nullptr, halo ? west.data() : nullptr, halo ? east.data() : nullptr, n, columns, 3.7f};
  int64_t found[2];
  host::record_gradient(a, gate, 0, n, found);
  a.rows = rows.data();
  int32_t mine[2] = {-1, -1};
  launch({blocks(n, 256)}, 256, [&] { dev::gradient_kernel(a, gate, mine); });
  return (rows != want) + (mine[0] + 1 != found[0]) + (mine[1] != found[1]);
}

template <class T>
struct StageCase {
  int64_t nx, ny;
  std::vector<T> q, base, west, east, south, north, forcing, mine, want;
  StageCase(int64_t x, int64_t y)
      : nx(x), ny(y), q(some(2 * x * y)), base(some(2 * x * y)), west(some(2 * y)), east(some(2 * y)), south(some(2 * x)),
        north(some(2 * x)), forcing(some(2)), mine(q.size()), want(q.size()) {}
  static std::vector<T> some(int64_t n) {
    std::vector<T> x(n);
    for (auto& v : x) v = normal(rng);
    return x;
  }
  Burgers<T> into(std::vector<T>& out) const {
    return {q.data(), base.data(), west.data(), east.data(), south.data(), north.data(), forcing.data(), out.data(),
            nx, ny, T(0.5), T(0.25), T(0.5), T(0.25), T(0.125)};
  }
  int wrong() const {
    int n = 0;
    for (size_t i = 0; i < want.size(); ++i) n += !(std::fabs(mine[i] - want[i]) <= T(1e-5) * (1 + std::fabs(want[i])));
    return n;
  }
};

template <class T>
static int stages(int64_t nx, int64_t ny) {
  StageCase<T> c(nx, ny);
  host::burgers_rows(c.into(c.want), 0, nx);
  const Burgers<T> b = c.into(c.mine);
  launch({blocks(ny, dev::kBurgersColumns), blocks(nx, dev::kBurgersRows)}, dev::kBurgersColumns, [&] { dev::burgers_kernel(b); });
  return c.wrong();
}

struct Spare {
  Words parity, marks, guard;
  explicit Spare(const Layout& lay) : parity(lay.L()), marks(kMarkWords * lay.G), guard(2 * lay.G) {}
  bool operator!=(const Spare& o) const { return parity != o.parity || marks != o.marks || guard != o.guard; }
};

// The sealed stage, two warps a block: its seal is that of what it wrote, and it finds what a check finds in a damaged base.
static int sealed(int64_t nx, int64_t ny) {
  StageCase<float> c(nx, ny);
  const Layout lay(2 * nx * ny);
  Spare old(lay), made(lay), want(lay);
  uint32_t* words = reinterpret_cast<uint32_t*>(c.base.data());
  host::seal_groups<false>(words, lay, 0, lay.G, 0, old.parity.data(), old.marks.data(), old.guard.data());
  words[rng() % lay.n] ^= 1u << rng() % 32;
  words[rng() % lay.n] ^= 1u << rng() % 23;
  old.parity[rng() % lay.L()] ^= 4u;
  old.marks[rng() % old.marks.size()] ^= 1u;
  const float limit = 1.5f;
  int32_t found[4] = {};
  dev::SealedStage a{c.into(c.mine), old.parity.data(), old.marks.data(), old.guard.data(), made.parity.data(),
                     made.marks.data(), made.guard.data(), found, magnitude2(limit), lay.n, 1 + static_cast<int64_t>(rng() % 3)};
  launch({static_cast<unsigned>((lay.G + 2 * a.stride - 1) / (2 * a.stride) * a.stride)}, 64,
         [&] { dev::burgers_sealed_kernel<2>(a); });
  host::burgers_rows(c.into(c.want), 0, nx);
  const int64_t loud = host::seal_groups<true>(reinterpret_cast<uint32_t*>(c.mine.data()), lay, 0, lay.G, magnitude2(limit),
                                               want.parity.data(), want.marks.data(), want.guard.data());
  const host::Off off =
      host::check_groups(words, lay, 0, lay.G, old.parity.data(), old.marks.data(), old.guard.data());
  return c.wrong() + (made != want) + (found[0] != loud || loud == 0) + (found[1] != off.data || off.data == 0) +
         (found[2] != off.parity) + (found[3] != off.guard || off.guard == 0);
}

int main() {
  Gate<float> gate{};
  gate.limit = 1e6f, gate.markers = 2, gate.marker[0] = -99.0f, gate.marker[1] = -999.0f, gate.width[0] = gate.width[1] = 1e-3f;
  int wrong = 0;
  for (int64_t n : {1, 15, 16, 17, 31, 33, 255, 256, 261, 516})
    wrong += packs(n) + updates<kPim>(n, gate) + updates<kPinn>(n, gate) + gradients(n, 1, n % 2, n % 3, gate);
  wrong += gradients(7, 75, true, true, gate) + gradients(1, 300, false, true, gate) + gradients(2, 150, true, false, gate);
  for (int64_t nx : {1, 16, 35})
    for (int64_t ny : {1, 127, 130}) wrong += stages<float>(nx, ny) + stages<double>(nx, ny);
  for (auto [nx, ny] : {std::pair<int64_t, int64_t>{37, 35}, {2, 1300}, {1300, 2}, {61, 128}, {20, 260}, {90, 100}, {11, 1024}})
    wrong += sealed(nx, ny);
  std::printf("cuda_on_cpu: %d wrong\n", wrong);
  return wrong != 0;
}
