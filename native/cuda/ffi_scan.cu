// jax.ffi shim of the gate scan (CUDA), float32 and float64 behind one name.
#include "ffi_common.cuh"
#include "scan.cuh"

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

}  // namespace

POISE_CUDA_HANDLER(poise_gate_scan, GateScan,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<Any>().Attr<Doubles>("rule").Ret<Any>().Ret<ffi::Buffer<ffi::S32>>());

}  // namespace poise::cuda
