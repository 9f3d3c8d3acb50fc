// jax.ffi shims of the gate scan and the gated stencils (CUDA), float32 and float64 behind one name.
#include "ffi_common.cuh"
#include "scan.cuh"
#include "stencil2d.cuh"
#include "stencil3d.cuh"

namespace poise::cuda {
namespace {

using Any = ffi::AnyBuffer;
using OutAny = ffi::Result<ffi::AnyBuffer>;
using OutS32 = ffi::ResultBuffer<ffi::S32>;
using Doubles = ffi::Span<const double>;

ffi::Error GateScan(cudaStream_t stream, Any x, Doubles rule, OutAny clean, OutS32 found) {
  const int64_t n = static_cast<int64_t>(x.element_count());
  if (x.element_type() == ffi::F32)
    return outcome(launch_scan<float>(stream, gate_of<float>(rule), x.reinterpret_data<float>(),
                                      clean->reinterpret_data<float>(), n, found->typed_data()));
  if (x.element_type() == ffi::F64)
    return outcome(launch_scan<double>(stream, gate_of<double>(rule), x.reinterpret_data<double>(),
                                       clean->reinterpret_data<double>(), n, found->typed_data()));
  return ffi::Error::InvalidArgument("the gate scan takes float32 or float64");
}

// found = (trips - 1, unused, first as 64 bits), so that one memset starts it: a launch costs as much as a small field.
cudaError_t clear(cudaStream_t stream, int32_t* found) { return cudaMemsetAsync(found, 0xFF, 4 * sizeof(int32_t), stream); }

// Rows of registers that a processor works through, one round of tiles after the other, at radius 1.
template <class T, int ROWS, int WARPS, int BLOCKS>
int64_t rounds2(const Plan2<T>& p, int processors) {
  const int wide = kWide - 2 * ((p.steps + kVec - 1) / kVec * kVec), tall = ROWS * WARPS - 2 * p.steps;
  if (tall <= 0) return INT64_MAX;
  const int64_t tiles = static_cast<int64_t>((p.W + wide - 1) / wide) * ((p.H + tall - 1) / tall);
  const int64_t slots = int64_t{BLOCKS} * processors;
  return (tiles + slots - 1) / slots * (ROWS * WARPS * BLOCKS);
}

template <class T>
cudaError_t stencil2(cudaStream_t stream, const Any& u, const Any& k, int steps, int radius, int edge_y, int edge_x, double edge,
                     Doubles rule, int tall, OutAny& out, int32_t* found) {
  const auto dims = out->dimensions();
  Plan2<T> p{u.reinterpret_data<T>(), out->reinterpret_data<T>(), found, k.reinterpret_data<T>(), static_cast<int>(dims[0]),
             static_cast<int>(dims[1]), static_cast<int>(u.dimensions()[1]), steps, edge_y, edge_x, steps * radius,
             static_cast<T>(edge), gate_of<T>(rule)};
  const cudaError_t e = clear(stream, found);
  if (e != cudaSuccess) return e;
  int processors = 1;
  const cudaError_t f = processors_of_this_device(processors);
  if (f != cudaSuccess) return f;
  constexpr int rows = sizeof(T) == 4 ? 16 : 8;
  if (radius == 2) return launch2<T, rows, 4, 2, sizeof(T) == 4 ? 4 : 3>(stream, p, processors);
  // In float32 tiles of eight warps waste less on their halo (8192^2, T = 8: 4.3 of a copy against 4.0 with four), but may leave
  // more of the last round of a small field empty. `tall` asks for one of them.
  constexpr int few = sizeof(T) == 4 ? 4 : 3;
  const bool fits = 2 * steps <= 2 * rows;
  const bool fewer = sizeof(T) == 4 && rounds2<T, rows, 8, 2>(p, processors) <= rounds2<T, rows, 4, few>(p, processors);
  if (!fits || (tall > 0 ? tall >= 8 * rows : fewer)) return launch2<T, rows, 8, 1, 2>(stream, p, processors);
  return launch2<T, rows, 4, 1, few>(stream, p, processors);
}

ffi::Error Stencil2(cudaStream_t stream, Any u, Any k, int32_t steps, int32_t radius, int32_t edge_y, int32_t edge_x, double edge,
                    Doubles rule, int32_t tall, int32_t, OutAny out, OutS32 found) {
  const bool single = u.element_type() == ffi::F32;
  if (!single && u.element_type() != ffi::F64) return ffi::Error::InvalidArgument("the stencil takes float32 or float64");
  if (steps > (radius == 1 ? 20 : 6)) return ffi::Error::InvalidArgument("too many steps for one pass on CUDA");
  return outcome(single ? stencil2<float>(stream, u, k, steps, radius, edge_y, edge_x, edge, rule, tall, out, found->typed_data())
                        : stencil2<double>(stream, u, k, steps, radius, edge_y, edge_x, edge, rule, tall, out, found->typed_data()));
}

template <class T>
cudaError_t stencil3(cudaStream_t stream, const Any& u, const Any& k, int steps, int edge_z, int edge_y, int edge_x, double edge,
                     Doubles rule, OutAny& out, int32_t* found) {
  const auto dims = out->dimensions();
  Plan3<T> p{u.reinterpret_data<T>(), out->reinterpret_data<T>(), found, k.reinterpret_data<T>(), static_cast<int>(dims[0]),
             static_cast<int>(dims[1]), static_cast<int>(dims[2]), static_cast<int>(u.dimensions()[1]),
             static_cast<int>(u.dimensions()[2]), edge_z, edge_y, edge_x, steps, 0, static_cast<T>(edge), gate_of<T>(rule)};
  const cudaError_t e = clear(stream, found);
  if (e != cudaSuccess) return e;
  switch (steps) {
    case 1: return launch3<T, 1, 2, 16>(stream, p);
    case 2: return launch3<T, 2, 2, 16>(stream, p);
    case 3: return launch3<T, 3, 2, 16>(stream, p);
    default: return launch3<T, 4, 2, 16>(stream, p);
  }
}

ffi::Error Stencil3(cudaStream_t stream, Any u, Any k, int32_t steps, int32_t edge_z, int32_t edge_y, int32_t edge_x, double edge,
                    Doubles rule, OutAny out, OutS32 found) {
  const bool single = u.element_type() == ffi::F32;
  if (!single && u.element_type() != ffi::F64) return ffi::Error::InvalidArgument("the stencil takes float32 or float64");
  if (steps > 4) return ffi::Error::InvalidArgument("a 3-D pass takes at most 4 steps");
  return outcome(single ? stencil3<float>(stream, u, k, steps, edge_z, edge_y, edge_x, edge, rule, out, found->typed_data())
                        : stencil3<double>(stream, u, k, steps, edge_z, edge_y, edge_x, edge, rule, out, found->typed_data()));
}

}  // namespace

POISE_CUDA_HANDLER(poise_gate_scan, GateScan,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<Any>().Attr<Doubles>("rule").Ret<Any>().Ret<ffi::Buffer<ffi::S32>>());
POISE_CUDA_HANDLER(poise_stencil2d, Stencil2,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<Any>().Arg<Any>().Attr<int32_t>("steps").Attr<int32_t>("radius")
                       .Attr<int32_t>("edge_y").Attr<int32_t>("edge_x").Attr<double>("edge").Attr<Doubles>("rule")
                       .Attr<int32_t>("tall").Attr<int32_t>("wide").Ret<Any>().Ret<ffi::Buffer<ffi::S32>>());
POISE_CUDA_HANDLER(poise_stencil3d, Stencil3,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<Any>().Arg<Any>().Attr<int32_t>("steps").Attr<int32_t>("edge_z")
                       .Attr<int32_t>("edge_y").Attr<int32_t>("edge_x").Attr<double>("edge").Attr<Doubles>("rule").Ret<Any>()
                       .Ret<ffi::Buffer<ffi::S32>>());

}  // namespace poise::cuda
