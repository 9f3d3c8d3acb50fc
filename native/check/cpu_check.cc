// The CPU kernels under the address and undefined-behaviour sanitizers, and the repair promise on random damage. Built and
// run by tests/test_kernels_sanitizers.py. Usage: cpu_check [patterns]; exit status 1 if anything is wrong.
#define POISE_ISA check
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "../cpu/adamw.h"
#include "../cpu/burgers_sealed.h"
#include "../cpu/record.h"
#include "../cpu/scan.h"
#include "../cpu/stencil3d.h"

using namespace poise;
using namespace poise::check;
using Words = std::vector<uint32_t>;

static std::mt19937 rng(std::random_device{}());
static int64_t upto(int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); }

struct Kept4 {
  Words words, parity, marks, guard;
  bool operator==(const Kept4& o) const { return words == o.words && parity == o.parity && marks == o.marks && guard == o.guard; }
};

static void reseal(Kept4& s) {
  const Layout lay(static_cast<int64_t>(s.words.size()));
  s.parity.assign(lay.L(), 0), s.marks.assign(kMarkWords * lay.G, 0), s.guard.assign(2 * lay.G, 0);
  seal_groups<false>(s.words.data(), lay, 0, lay.G, 0, s.parity.data(), s.marks.data(), s.guard.data());
}

// What one fault does: a bit or two anywhere, a run of up to a bank less a block, equal flips in two banks, mark and guard.
static void damage(Kept4& s, const Layout& lay) {
  Words* v[4] = {&s.words, &s.parity, &s.marks, &s.guard};
  switch (upto(4)) {
    case 0:
      for (int64_t k = 1 + upto(2); k > 0; --k) {
        Words& a = *v[upto(4)];
        a[upto(static_cast<int64_t>(a.size()))] ^= 1u << upto(32);
      }
      break;
    case 1: {
      const uint32_t x = rng() | 1u;
      const int64_t at = upto(lay.n), len = lay.G > 1 ? 1 + upto(lay.L() - lay.B) : 1;
      for (int64_t i = at; i < at + len && i < lay.n; ++i) s.words[i] ^= x;
      break;
    }
    case 2: {
      const int64_t j = upto(lay.L());
      for (int64_t r : {upto(10), 10 + upto(10)})
        if (r * lay.L() + j < lay.n) s.words[r * lay.L() + j] ^= 1u << 31;
      break;
    }
    default:
      const int64_t g = upto(lay.G);
      s.marks[2 * (upto(kRows) * lay.G + g)] ^= 5u;
      s.guard[2 * g] ^= 9u;
  }
}

static int repairs(int patterns, int& exact, int& reported) {
  int wrong = 0;
  for (int64_t n : {1, 21, 300, 2561, 5121, 5120 * 3 + 7, 5120 * 9}) {
    const Layout lay(n);
    Kept4 clean{Words(n), {}, {}, {}};
    for (auto& w : clean.words) w = rng();
    reseal(clean);
    for (int k = 0; k < patterns / 7 + 1; ++k) {
      Kept4 s = clean;
      damage(s, lay);
      const Off before = check_groups(s.words.data(), lay, 0, lay.G, s.parity.data(), s.marks.data(), s.guard.data());
      const bool noticed = before.data || before.parity || before.guard;
      const Mended m = repair_groups(s.words.data(), lay, 0, lay.G, s.parity.data(), s.marks.data(), s.guard.data());
      if (s == clean) ++exact;
      else if (m.unrepairable > 0) ++reported;
      else ++wrong;
      wrong += !noticed && !(s == clean);
    }
  }
  return wrong;
}

static int steps_of_adamw() {
  int wrong = 0;
  for (int64_t n : {7, 300, 5121, 5120 * 5 + 77}) {
    const Layout lay(n);
    std::vector<float> g(n);
    std::normal_distribution<float> normal;
    for (auto& x : g) x = normal(rng);
    Kept4 a[3], b[3];
    for (int s = 0; s < 3; ++s) {
      a[s].words.resize(n);
      for (auto& w : a[s].words) w = bits_of(std::fabs(normal(rng)));
      reseal(a[s]);
      b[s] = a[s];
    }
    std::vector<uint16_t> low(n);
    for (int step = 0; step < 12; ++step) {
      Kept4& hurt = b[upto(3)];
      hurt.words[upto(n)] ^= 1u << upto(32);
      for (Kept4* set : {a, b}) {
        AdamW args{};
        for (int s = 0; s < 3; ++s)
          args.state[s] = Kept{set[s].words.data(), set[s].parity.data(), set[s].marks.data(), set[s].guard.data()};
        args.g = g.data(), args.low = low.data(), args.ok = step % 4 != 3;
        args.h = Hyper{1e-2f, .9f, .1f, .999f, .001f, 1e-8f, .01f, 2.f, 3.f, 1.f};
        Mended m[3] = {};
        adamw_groups(args, lay, 0, lay.G, m);
        const int64_t repaired = m[0].repaired + m[1].repaired + m[2].repaired;
        wrong += repaired != (set == b) || m[0].unrepairable + m[1].unrepairable + m[2].unrepairable != 0;
      }
      for (int s = 0; s < 3; ++s) wrong += !(a[s] == b[s]);
    }
  }
  return wrong;
}

// One pass of T steps against T passes of one, at random shapes and edges, with values that go bad on the way.
template <class T>
static int passes() {
  int wrong = 0;
  for (int trial = 0; trial < 60; ++trial) {
    Plan2<T> p{};
    p.H = 1 + upto(70), p.W = 1 + upto(90), p.steps = static_cast<int>(1 + upto(6)), p.radius = static_cast<int>(1 + upto(2));
    if (p.H < 2 || p.W < 2) p.radius = 1;
    p.edge_y = static_cast<int>(upto(3)), p.edge_x = static_cast<int>(upto(3)), p.edge = T(0.25);
    for (int i = 2 - p.radius; i <= 2 + p.radius; ++i) p.star.cy[i] = p.star.cx[i] = T(0.3) / (1 + (i - 2) * (i - 2));
    p.star.center = p.star.cy[2] + p.star.cx[2];
    p.gate.limit = T(3), p.gate.fill = T(0.5);
    std::vector<T> u(p.H * p.W), once(u.size()), v(u.size()), next(u.size());
    std::normal_distribution<T> normal;
    for (auto& x : u) x = normal(rng);
    u[upto(static_cast<int64_t>(u.size()))] = std::numeric_limits<T>::quiet_NaN();
    p.quiet = trial % 2 ? quiet_bound(p.gate, p.star.growth(), p.edge, p.steps) : T(0);
    p.in = u.data(), p.out = once.data();
    const int64_t ty = 1 + upto(p.H), tx = 1 + upto(p.W);
    Trips all;
    for (int64_t y = 0; y < p.H; y += ty)
      for (int64_t x = 0; x < p.W; x += tx)
        all += stencil2d(p, y, y + ty < p.H ? y + ty : p.H, x, x + tx < p.W ? x + tx : p.W);
    Plan2<T> single = p;
    single.steps = 1, single.quiet = T(0);
    int64_t count = 0;
    v = u;
    for (int t = 0; t < p.steps; ++t) {
      single.in = v.data(), single.out = next.data();
      count += stencil2d(single, 0, p.H, 0, p.W).count;
      v = next;
    }
    wrong += v != once || count != all.count;
  }
  return wrong;
}

// The same in 3-D, in boxes of random sizes.
template <class T>
static int passes_3d() {
  int wrong = 0;
  for (int trial = 0; trial < 40; ++trial) {
    Plan3<T> p{};
    p.D = 1 + upto(20), p.H = 1 + upto(30), p.W = 1 + upto(50), p.steps = static_cast<int>(1 + upto(4));
    p.edge_z = static_cast<int>(upto(3)), p.edge_y = static_cast<int>(upto(3)), p.edge_x = static_cast<int>(upto(3));
    p.edge = T(0.25), p.center = T(0.45), p.gate.limit = T(3), p.gate.fill = T(0.5);
    for (auto& axis : p.k) axis[0] = axis[2] = T(0.1), axis[1] = T(0.15);
    std::vector<T> u(p.D * p.H * p.W), once(u.size()), v(u.size()), next(u.size());
    std::normal_distribution<T> normal;
    for (auto& x : u) x = normal(rng);
    u[upto(static_cast<int64_t>(u.size()))] = std::numeric_limits<T>::quiet_NaN();
    p.quiet = trial % 2 ? quiet_bound(p.gate, T(1.05), p.edge, p.steps) : T(0);
    p.in = u.data(), p.out = once.data();
    const int64_t tz = 1 + upto(p.D), ty = 1 + upto(p.H), tx = 1 + upto(p.W);
    auto to = [](int64_t b, int64_t n) { return b < n ? b : n; };
    Trips all;
    for (int64_t z = 0; z < p.D; z += tz)
      for (int64_t y = 0; y < p.H; y += ty)
        for (int64_t x = 0; x < p.W; x += tx)
          all += stencil3d(p, {z, to(z + tz, p.D)}, {y, to(y + ty, p.H)}, {x, to(x + tx, p.W)});
    Plan3<T> single = p;
    single.steps = 1, single.quiet = T(0);
    int64_t count = 0;
    v = u;
    for (int t = 0; t < p.steps; ++t) {
      single.in = v.data(), single.out = next.data();
      count += stencil3d(single, {0, p.D}, {0, p.H}, {0, p.W}).count;
      v = next;
    }
    wrong += v != once || count != all.count;
  }
  return wrong;
}

static int streams() {
  int wrong = 0;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<uint8_t> from(1 + upto(400)), to(from.size() + 64, 7), want = to;
    for (auto& b : from) b = static_cast<uint8_t>(rng());
    const int64_t at = upto(64);
    stream_copy(to.data() + at, from.data(), from.size());
    stream_fence();
    std::copy(from.begin(), from.end(), want.begin() + at);
    wrong += to != want;
  }
  return wrong;
}

static int scans_and_records() {
  int wrong = 0;
  for (int64_t n : {1, 63, 64, 65, 2049, 5000}) {
    Gate<float> gate{};
    gate.limit = 1e6f;
    std::vector<float> x(n), y(n);
    for (auto& v : x) v = static_cast<float>(upto(1000));
    x[n / 2] = INFINITY;
    const Scan s = gate_scan(gate, x.data(), y.data(), 0, n);
    wrong += s.inf != 1 || s.first != n / 2 || y[n / 2] != 0.0f;
    Words rows(8 * n), channels(8 * n), back(8 * n);
    for (auto& w : rows) w = rng();
    repack<false>(rows.data(), channels.data(), n, 0, n);
    repack<true>(channels.data(), back.data(), n, 0, n);
    wrong += back != rows;
    std::vector<Record> records(n);
    std::memcpy(records.data(), rows.data(), 32 * n);
    int64_t found[2];
    update_records<kPim>(records.data(), x.data(), RecordHyper{}, gate, 0, n, found);
    update_records<kPinn>(records.data(), x.data(), RecordHyper{}, gate, 0, n, found);
  }
  return wrong;
}

// A sealed stage in random ranges of groups against a stage, a seal and a check, its base damaged.
static int sealed_stages() {
  int wrong = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const int64_t nx = 1 + upto(200), ny = 2600 / nx + 1 + upto(300), n = 2 * nx * ny;
    const Layout lay(n);
    std::normal_distribution<float> normal;
    auto some = [&](int64_t count) {
      std::vector<float> x(count);
      for (auto& v : x) v = normal(rng);
      return x;
    };
    const auto q = some(n), west = some(2 * ny), east = some(2 * ny), south = some(2 * nx), north = some(2 * nx), forcing = some(2);
    Kept4 old{Words(n), {}, {}, {}};
    for (auto& w : old.words) w = bits_of(normal(rng));
    reseal(old);
    if (trial % 4) damage(old, lay);
    const auto* base = reinterpret_cast<const float*>(old.words.data());
    std::vector<float> out(n), want(n);
    Burgers<float> b{q.data(), base, west.data(), east.data(), south.data(), north.data(), forcing.data(), want.data(), nx, ny,
                     0.5f, 0.25f, 0.5f, 0.25f, 0.125f};
    burgers_rows(b, 0, nx);
    b.out = out.data();
    Kept4 made{Words(n), Words(lay.L()), Words(kMarkWords * lay.G), Words(2 * lay.G)}, right = made;
    const uint32_t limit2 = magnitude2(1.0f);
    Stepped all;
    for (int64_t g = 0; g < lay.G;) {
      const int64_t end = g + 1 + upto(lay.G - g);
      const Stepped s = burgers_groups(b, lay, {old.parity.data(), old.marks.data(), old.guard.data()},
                                       {made.parity.data(), made.marks.data(), made.guard.data()}, limit2, g, end);
      all.loud += s.loud, all.off.data += s.off.data, all.off.parity += s.off.parity, all.off.guard += s.off.guard;
      g = end;
    }
    std::memcpy(made.words.data(), out.data(), 4 * n), std::memcpy(right.words.data(), want.data(), 4 * n);
    const int64_t loud = seal_groups<true>(right.words.data(), lay, 0, lay.G, limit2, right.parity.data(), right.marks.data(),
                                           right.guard.data());
    const Off off = check_groups(old.words.data(), lay, 0, lay.G, old.parity.data(), old.marks.data(), old.guard.data());
    wrong += !(made == right) || all.loud != loud || loud == 0;
    wrong += all.off.data != off.data || all.off.parity != off.parity || all.off.guard != off.guard;
    wrong += (off.data + off.parity + off.guard > 0) != (trial % 4 != 0);
  }
  return wrong;
}

int main(int argc, char** argv) {
  int exact = 0, reported = 0;
  int wrong = repairs(argc > 1 ? std::atoi(argv[1]) : 10000, exact, reported);
  wrong += sealed_stages() + steps_of_adamw() + passes<float>() + passes<double>() + passes_3d<float>() + passes_3d<double>() + streams() +
           scans_and_records();
  std::printf("cpu_check: %d patterns bit exact, %d reported beyond repair, %d wrong\n", exact, reported, wrong);
  return wrong != 0;
}
