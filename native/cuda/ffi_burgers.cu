// jax.ffi shim of the fused Burgers stage (CUDA), float32 and float64 behind one name.
#include "burgers.cuh"
#include "ffi_common.cuh"

namespace poise::cuda {
namespace {

using Any = ffi::AnyBuffer;

template <class T>
cudaError_t run(cudaStream_t stream, const Any& q, const Any& base, const Any& west, const Any& east, const Any& south,
                const Any& north, const Any& forcing, ffi::Span<const double> numbers, ffi::Result<Any>& out) {
  const auto dims = q.dimensions();
  const auto at = [&](int i) { return static_cast<T>(numbers[i]); };
  const Burgers<T> b{q.reinterpret_data<T>(),     base.reinterpret_data<T>(),  west.reinterpret_data<T>(),
                     east.reinterpret_data<T>(),  south.reinterpret_data<T>(), north.reinterpret_data<T>(),
                     forcing.reinterpret_data<T>(), out->reinterpret_data<T>(), dims[1], dims[2],
                     at(0), at(1), at(2), at(3), at(4)};
  const dim3 grid(static_cast<unsigned>((b.ny + kBurgersColumns - 1) / kBurgersColumns),
                  static_cast<unsigned>((b.nx + kBurgersRows - 1) / kBurgersRows));
  if (grid.y > 65535) return cudaErrorInvalidConfiguration;
  burgers_kernel<T><<<grid, kBurgersColumns, 0, stream>>>(b);
  return cudaGetLastError();
}

// numbers = (1 / (2 h), nu / h^2, c_base, c_in, c_rate).
ffi::Error Stage(cudaStream_t stream, Any q, Any base, Any west, Any east, Any south, Any north, Any forcing,
                 ffi::Span<const double> numbers, ffi::Result<Any> out) {
  if (q.element_type() == ffi::F32)
    return outcome(run<float>(stream, q, base, west, east, south, north, forcing, numbers, out));
  if (q.element_type() == ffi::F64)
    return outcome(run<double>(stream, q, base, west, east, south, north, forcing, numbers, out));
  return ffi::Error::InvalidArgument("the Burgers stage takes float32 or float64");
}

}  // namespace

POISE_CUDA_HANDLER(poise_burgers_stage, Stage,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>()
                       .Attr<ffi::Span<const double>>("numbers").Ret<Any>());

}  // namespace poise::cuda
