// jax.ffi shim of the gated stencils in two dimensions (CUDA), float32 and float64 behind one name.
#include "ffi_common.cuh"
#include "stencil2d.cuh"

namespace poise::cuda {
namespace {

using Any = ffi::AnyBuffer;
using OutAny = ffi::Result<ffi::AnyBuffer>;
using OutS32 = ffi::ResultBuffer<ffi::S32>;
using Doubles = ffi::Span<const double>;

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
  int processors = 1;
  const cudaError_t e = processors_of_this_device(processors);
  if (e != cudaSuccess) return e;
  constexpr int rows = sizeof(T) == 4 ? 16 : 8;
  if (radius == 2) return launch2<T, rows, 4, 2, sizeof(T) == 4 ? 4 : 3>(stream, p, processors);
  // In float32 tiles of eight warps waste less on their halo (8192^2, T = 8: 5.0 of a copy against 4.7 with four), but leave more
  // of the last round of a small field empty (2048^2: 2.9 against 3.1). `tall` asks for one of them.
  constexpr int few = sizeof(T) == 4 ? 4 : 3;
  const bool fits = 2 * steps <= 2 * rows;
  const bool fewer = sizeof(T) == 4 && rounds2<T, rows, 8, 2>(p, processors) < rounds2<T, rows, 4, few>(p, processors);
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

}  // namespace

POISE_CUDA_HANDLER(poise_stencil2d, Stencil2,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<Any>().Arg<Any>().Attr<int32_t>("steps").Attr<int32_t>("radius")
                       .Attr<int32_t>("edge_y").Attr<int32_t>("edge_x").Attr<double>("edge").Attr<Doubles>("rule")
                       .Attr<int32_t>("tall").Attr<int32_t>("wide").Ret<Any>().Ret<ffi::Buffer<ffi::S32>>());

}  // namespace poise::cuda
