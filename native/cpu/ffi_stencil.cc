// jax.ffi shims of the gate scan and the gated stencils (CPU), float32 and float64 behind one name.
#include <cstring>

#include "ffi_common.h"

namespace poise {
namespace {

using Any = ffi::AnyBuffer;
using OutAny = ffi::Result<ffi::AnyBuffer>;
using OutS32 = ffi::ResultBuffer<ffi::S32>;
using Doubles = ffi::Span<const double>;

template <class T>
ffi::Error scan(const Any& x, OutAny& clean, OutS32& found, const Gate<T>& gate,
                void (*kernel)(const Gate<T>&, const T*, T*, int64_t, int64_t, int64_t[5])) {
  const int64_t n = static_cast<int64_t>(x.element_count());
  std::mutex mutex;
  int64_t sum[5] = {0, 0, 0, 0, -1};
  const T* in = x.reinterpret_data<T>();
  T* out = clean->reinterpret_data<T>();
  Pool::get().run(n, grain_of(n, 1 << 16), [&](int64_t a, int64_t b) {
    int64_t part[5];
    kernel(gate, in, out, a, b, part);
    std::lock_guard<std::mutex> lock(mutex);
    for (int i = 0; i < 4; ++i) sum[i] += part[i];
    if (part[4] >= 0 && (sum[4] < 0 || part[4] < sum[4])) sum[4] = part[4];
  });
  for (int i = 0; i < 5; ++i) found->typed_data()[i] = static_cast<int32_t>(i < 4 ? sum[i] - 1 : sum[i]);  // as on CUDA
  return ffi::Error::Success();
}

ffi::Error GateScan(Any x, Doubles rule, OutAny clean, OutS32 found) {
  if (x.element_type() == ffi::F32)
    return scan<float>(x, clean, found, gate_of<float>(rule), table().scan32);
  if (x.element_type() == ffi::F64)
    return scan<double>(x, clean, found, gate_of<double>(rule), table().scan64);
  return ffi::Error::InvalidArgument("the gate scan takes float32 or float64");
}

// Rows of (trips, unused, the first as 64 bits); on CUDA every block has one, here the first holds everything.
void store(const Trips& trips, OutS32& found) {
  int32_t* out = found->typed_data();
  for (size_t row = found->element_count() / 4; row-- > 0;) {
    const Trips t = row ? Trips{} : trips;
    out[4 * row] = static_cast<int32_t>(t.count < INT32_MAX ? t.count : INT32_MAX);
    out[4 * row + 1] = 0;
    std::memcpy(out + 4 * row + 2, &t.first, sizeof t.first);
  }
}

// `tall` x `wide` cells are one task; 0 chooses: strips of 1024 columns, cut into ranges of rows so that every thread has
// about four tasks, none so short that its overlap of `steps` rows weighs.
template <class T, class F>
void tiles(const Stencil2Args<T>& a, int64_t tall, int64_t wide, OutS32& found, F kernel) {
  if (wide <= 0) wide = 1024 * int64_t{sizeof(float)} / int64_t{sizeof(T)};
  if (tall <= 0) {
    const int64_t strips = (a.W + wide - 1) / wide, least = 8 * int64_t{a.steps} * a.radius;
    const int64_t ranges = (4 * int64_t{Pool::get().width()} + strips - 1) / strips;
    tall = (a.H + ranges - 1) / ranges;
    tall = tall < least ? least : tall;
  }
  const int64_t ny = (a.H + tall - 1) / tall, nx = (a.W + wide - 1) / wide;
  std::mutex mutex;
  Trips trips;
  Pool::get().run(ny * nx, 1, [&](int64_t t0, int64_t t1) {
    for (int64_t t = t0; t < t1; ++t) {
      const int64_t y0 = t / nx * tall, x0 = t % nx * wide;
      const Trips part = kernel(a, y0, y0 + tall < a.H ? y0 + tall : a.H, x0, x0 + wide < a.W ? x0 + wide : a.W);
      std::lock_guard<std::mutex> lock(mutex);
      trips += part;
    }
  });
  store(trips, found);
}

template <class T>
Stencil2Args<T> args2(const Any& u, const Any& coefficients, int32_t steps, int32_t radius, int32_t edge_y, int32_t edge_x,
                      double edge, const Gate<T>& gate, OutAny& out) {
  const auto dims = out->dimensions();
  return {u.reinterpret_data<T>(), out->reinterpret_data<T>(), dims[0], dims[1], steps, radius, edge_y, edge_x,
          static_cast<T>(edge),    coefficients.reinterpret_data<T>(), gate};
}

ffi::Error Stencil2(Any u, Any coefficients, int32_t steps, int32_t radius, int32_t edge_y, int32_t edge_x, double edge,
                    Doubles rule, int32_t tall, int32_t wide, OutAny out, OutS32 found) {
  if (u.element_type() == ffi::F32) {
    const auto a = args2<float>(u, coefficients, steps, radius, edge_y, edge_x, edge,
                                gate_of<float>(rule), out);
    tiles(a, tall, wide, found, table().stencil2_32);
  } else if (u.element_type() == ffi::F64) {
    const auto a = args2<double>(u, coefficients, steps, radius, edge_y, edge_x, edge,
                                 gate_of<double>(rule), out);
    tiles(a, tall, wide, found, table().stencil2_64);
  } else {
    return ffi::Error::InvalidArgument("the stencil takes float32 or float64");
  }
  return ffi::Error::Success();
}

// Columns of up to 256 float32 cells across, as tall as three planes of every level fit into 320 KiB of L2, cut along z so that
// every thread has about four tasks, none so short that its overlap of `steps` planes weighs.
template <class T, class F>
void columns(const Stencil3Args<T>& a, OutS32& found, F kernel) {
  constexpr int64_t kBytes = 320 << 10;
  const int64_t most = 1024 / int64_t{sizeof(T)}, wide = a.W < most ? a.W : most;
  const int64_t rows = kBytes / (3 * (a.steps + 1) * (wide + 64) * int64_t{sizeof(T)}) - 2 * (a.steps + 1);
  const int64_t tall = rows < 8 ? 8 : rows > a.H ? a.H : rows;
  const int64_t ny = (a.H + tall - 1) / tall, nx = (a.W + wide - 1) / wide;
  const int64_t ranges = (4 * int64_t{Pool::get().width()} + ny * nx - 1) / (ny * nx), least = 8 * int64_t{a.steps};
  int64_t deep = (a.D + ranges - 1) / ranges;
  deep = deep < least ? least : deep;
  const int64_t nz = (a.D + deep - 1) / deep;
  auto upto = [](int64_t b, int64_t n) { return b < n ? b : n; };
  std::mutex mutex;
  Trips trips;
  Pool::get().run(nz * ny * nx, 1, [&](int64_t t0, int64_t t1) {
    for (int64_t t = t0; t < t1; ++t) {
      const int64_t z = t / (ny * nx) * deep, y = t / nx % ny * tall, x = t % nx * wide;
      const Trips part = kernel(a, {z, upto(z + deep, a.D), y, upto(y + tall, a.H), x, upto(x + wide, a.W)});
      std::lock_guard<std::mutex> lock(mutex);
      trips += part;
    }
  });
  store(trips, found);
}

template <class T>
Stencil3Args<T> args3(const Any& u, const Any& coefficients, int32_t steps, int32_t edge_z, int32_t edge_y, int32_t edge_x,
                      double edge, Doubles rule, OutAny& out) {
  const auto dims = out->dimensions();
  return {u.reinterpret_data<T>(), out->reinterpret_data<T>(), dims[0], dims[1], dims[2], steps, edge_z, edge_y, edge_x,
          static_cast<T>(edge),    coefficients.reinterpret_data<T>(), gate_of<T>(rule)};
}

ffi::Error Stencil3(Any u, Any coefficients, int32_t steps, int32_t edge_z, int32_t edge_y, int32_t edge_x, double edge,
                    Doubles rule, OutAny out, OutS32 found) {
  if (u.element_type() == ffi::F32)
    columns(args3<float>(u, coefficients, steps, edge_z, edge_y, edge_x, edge, rule, out), found, table().stencil3_32);
  else if (u.element_type() == ffi::F64)
    columns(args3<double>(u, coefficients, steps, edge_z, edge_y, edge_x, edge, rule, out), found, table().stencil3_64);
  else
    return ffi::Error::InvalidArgument("the stencil takes float32 or float64");
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_gate_scan, GateScan,
                              ffi::Ffi::Bind().Arg<Any>().Attr<Doubles>("rule").Ret<Any>().Ret<ffi::Buffer<ffi::S32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_stencil2d, Stencil2,
                              ffi::Ffi::Bind().Arg<Any>().Arg<Any>().Attr<int32_t>("steps").Attr<int32_t>("radius")
                                  .Attr<int32_t>("edge_y").Attr<int32_t>("edge_x").Attr<double>("edge").Attr<Doubles>("rule")
                                  .Attr<int32_t>("tall").Attr<int32_t>("wide").Ret<Any>().Ret<ffi::Buffer<ffi::S32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_stencil3d, Stencil3,
                              ffi::Ffi::Bind().Arg<Any>().Arg<Any>().Attr<int32_t>("steps").Attr<int32_t>("edge_z")
                                  .Attr<int32_t>("edge_y").Attr<int32_t>("edge_x").Attr<double>("edge").Attr<Doubles>("rule")
                                  .Ret<Any>().Ret<ffi::Buffer<ffi::S32>>());

}  // namespace poise
