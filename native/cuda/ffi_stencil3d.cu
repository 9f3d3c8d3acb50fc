// jax.ffi shim of the gated stencils in three dimensions (CUDA), float32 and float64 behind one name.
#include "ffi_common.cuh"
#include "stencil3d.cuh"
#include "stencil3d_walls.cuh"

namespace poise::cuda {
namespace {

using Any = ffi::AnyBuffer;
using OutAny = ffi::Result<ffi::AnyBuffer>;
using OutS32 = ffi::ResultBuffer<ffi::S32>;
using Doubles = ffi::Span<const double>;

template <class T>
cudaError_t stencil3(cudaStream_t stream, const Any& u, const Any& k, int steps, int edge_z, int edge_y, int edge_x, double edge,
                     Doubles rule, OutAny& out, int32_t* found) {
  const auto dims = out->dimensions();
  Plan3<T> p{u.reinterpret_data<T>(), out->reinterpret_data<T>(), found, k.reinterpret_data<T>(), static_cast<int>(dims[0]),
             static_cast<int>(dims[1]), static_cast<int>(dims[2]), static_cast<int>(u.dimensions()[1]),
             static_cast<int>(u.dimensions()[2]), edge_z, edge_y, edge_x, steps, 0, static_cast<T>(edge), gate_of<T>(rule)};
  // What was timed to be faster there has the kernel for open fields (design/kernels-stencil.md).
  if constexpr (sizeof(T) == 4)
    if (steps == 4 && edge_x == kPeriodic && p.W % Wide3<T>::V == 0 && !bounded(edge_y) && !bounded(edge_z))
      return launch3<T, 4, 4, 8>(stream, p);
  switch (steps) {
    case 1: return launch3_walls<T, 1, 2, 16>(stream, p);
    case 2: return launch3_walls<T, 2, 2, 16>(stream, p);
    case 3: return launch3_walls<T, 3, 2, 16>(stream, p);
    default: return launch3_walls<T, 4, 2, 16>(stream, p);
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

POISE_CUDA_HANDLER(poise_stencil3d, Stencil3,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<Any>().Arg<Any>().Attr<int32_t>("steps").Attr<int32_t>("edge_z")
                       .Attr<int32_t>("edge_y").Attr<int32_t>("edge_x").Attr<double>("edge").Attr<Doubles>("rule").Ret<Any>()
                       .Ret<ffi::Buffer<ffi::S32>>());

}  // namespace poise::cuda
