// One instruction set's kernels: this file is compiled once for each (POISE_ISA and the compiler's flags say which).
#include "adamw.h"
#include "burgers_sealed.h"
#include "record.h"
#include "scan.h"
#include "stencil2d.h"
#include "stencil3d.h"
#include "table.h"

namespace poise {
namespace POISE_ISA {
namespace {

int64_t seal(const SealArgs& a, int64_t g0, int64_t g1) {
  return seal_groups<false>(a.words, Layout(a.n), g0, g1, 0, a.parity, a.marks, a.guard);
}

int64_t seal_counting(const SealArgs& a, int64_t g0, int64_t g1, uint32_t limit2) {
  return seal_groups<true>(a.words, Layout(a.n), g0, g1, limit2, a.parity, a.marks, a.guard);
}

void check(const SealArgs& a, int64_t g0, int64_t g1, int64_t off[3]) {
  const Off o = check_groups(a.words, Layout(a.n), g0, g1, a.parity, a.marks, a.guard);
  off[0] = o.data, off[1] = o.parity, off[2] = o.guard;
}

void put(const Mended& m, int64_t out[5]) {
  out[0] = m.data, out[1] = m.marks, out[2] = m.parity, out[3] = m.repaired, out[4] = m.unrepairable;
}

void repair(uint32_t* words, const SealArgs& a, int64_t g0, int64_t g1, int64_t mended[5]) {
  put(repair_groups(words, Layout(a.n), g0, g1, a.parity, a.marks, a.guard), mended);
}

void adamw(const AdamWArgs& in, int64_t g0, int64_t g1, int64_t mended[3][5]) {
  AdamW a;
  for (int s = 0; s < 3; ++s) a.state[s] = Kept{in.words[s], in.parity[s], in.marks[s], in.guard[s]};
  a.g = in.g, a.lr_mask = in.lr_mask, a.wd_mask = in.wd_mask, a.low = in.low, a.ok = in.ok;
  std::memcpy(&a.h, in.hyper, sizeof a.h);
  Mended out[3] = {};
  adamw_groups(a, Layout(in.n), g0, g1, out);
  for (int s = 0; s < 3; ++s) put(out[s], mended[s]);
}

template <class T>
void scan(const Gate<T>& gate, const T* in, T* out, int64_t a, int64_t b, int64_t found[5]) {
  const Scan s = gate_scan(gate, in, out, a, b);
  found[0] = s.nan, found[1] = s.inf, found[2] = s.overflow, found[3] = s.marker, found[4] = s.first;
}

template <int CELL>
void update(uint32_t* rows, const float* g, const float* hyper, const Gate<float>& gate, int64_t a, int64_t b, int64_t found[2]) {
  RecordHyper h;
  std::memcpy(h.a, hyper, sizeof h.a);
  update_records<CELL>(reinterpret_cast<Record*>(rows), g, h, gate, a, b, found);
}

template <class T>
Star<T> star_of(const T* coefficients, int radius) {
  Star<T> k{};
  const int width = 2 * radius + 1;
  for (int i = 0; i < width; ++i) {
    k.cy[2 - radius + i] = coefficients[i];
    k.cx[2 - radius + i] = coefficients[width + i];
  }
  k.center = k.cy[2] + k.cx[2];
  return k;
}

template <class T>
Trips stencil2(const Stencil2Args<T>& a, int64_t y0, int64_t y1, int64_t x0, int64_t x1) {
  Plan2<T> p{a.in, a.out, a.H, a.W, a.steps, a.edge_y, a.edge_x, a.edge, star_of(a.coefficients, a.radius), a.gate, T(0), a.radius};
  const bool walls = a.edge_y == kDirichlet || a.edge_x == kDirichlet;
  p.quiet = quiet_bound(a.gate, p.star.growth(), walls ? a.edge : T(0), a.steps);
  return stencil2d(p, y0, y1, x0, x1);
}

template <class T>
Trips stencil3(const Stencil3Args<T>& a, const Box3& box) {
  Plan3<T> p{a.in, a.out, a.D, a.H, a.W, a.steps, a.edge_z, a.edge_y, a.edge_x, a.edge, {}, T(0), a.gate, T(0)};
  T growth = T(0);
  for (int axis = 0; axis < 3; ++axis)
    for (int i = 0; i < 3; ++i) {
      p.k[axis][i] = a.coefficients[3 * axis + i];
      if (i == 1) p.center += p.k[axis][i];
      else growth += std::fabs(p.k[axis][i]);
    }
  const bool walls = a.edge_z == kDirichlet || a.edge_y == kDirichlet || a.edge_x == kDirichlet;
  p.quiet = quiet_bound(a.gate, growth + std::fabs(p.center), walls ? a.edge : T(0), a.steps);
  return stencil3d(p, {box.z0, box.z1}, {box.y0, box.y1}, {box.x0, box.x1});
}

template <class T>
Burgers<T> stage_of(const BurgersArgs<T>& a) {
  const T* k = a.number;
  return {a.q, a.base, a.west, a.east, a.south, a.north, a.forcing, a.out, a.nx, a.ny, k[0], k[1], k[2], k[3], k[4]};
}

template <class T>
void burgers(const BurgersArgs<T>& a, int64_t i0, int64_t i1) {
  burgers_rows(stage_of(a), i0, i1);
}

void burgers_sealed(const BurgersArgs<float>& a, const SealArgs& old, const SealArgs& made, uint32_t limit2, int64_t g0,
                    int64_t g1, int64_t found[4]) {
  const Stepped s = burgers_groups(stage_of(a), Layout(old.n), SealView{old.parity, old.marks, old.guard},
                                   SealView{made.parity, made.marks, made.guard}, limit2, g0, g1);
  found[0] = s.loud, found[1] = s.off.data, found[2] = s.off.parity, found[3] = s.off.guard;
}

}  // namespace
}  // namespace POISE_ISA

#define POISE_JOIN_(a, b) a##b
#define POISE_JOIN(a, b) POISE_JOIN_(a, b)
#define POISE_TEXT_(a) #a
#define POISE_TEXT(a) POISE_TEXT_(a)

const Table& POISE_JOIN(table_, POISE_ISA)() {
  using namespace POISE_ISA;
  static const Table table{POISE_TEXT(POISE_ISA), seal,         seal_counting, check,           repair,
                           adamw,                 scan<float>, scan<double>,  stencil2<float>, stencil2<double>,
                           stencil3<float>,       stencil3<double>,
                           burgers<float>,        burgers<double>, burgers_sealed,
                           repack<true>,          repack<false>, update<kPim>, update<kPinn>, record_gradient};
  return table;
}

}  // namespace poise
