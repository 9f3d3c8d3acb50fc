// jax.ffi shims of the fused Burgers stage (CUDA), float32 and float64 behind one name, and of the sealed one in float32.
#include "burgers.cuh"
#include "burgers_sealed.cuh"
#include "ffi_common.cuh"

namespace poise::cuda {
namespace {

using Any = ffi::AnyBuffer;
using U32 = ffi::Buffer<ffi::U32>;
using OutU32 = ffi::ResultBuffer<ffi::U32>;

template <class T>
Burgers<T> stage_of(const Any& q, const Any& base, const Any& west, const Any& east, const Any& south, const Any& north,
                    const Any& forcing, ffi::Span<const double> numbers, T* out) {
  const auto dims = q.dimensions();
  const auto at = [&](int i) { return static_cast<T>(numbers[i]); };
  return {q.reinterpret_data<T>(),     base.reinterpret_data<T>(),  west.reinterpret_data<T>(),
          east.reinterpret_data<T>(),  south.reinterpret_data<T>(), north.reinterpret_data<T>(),
          forcing.reinterpret_data<T>(), out, dims[1], dims[2], at(0), at(1), at(2), at(3), at(4)};
}

template <class T>
cudaError_t run(cudaStream_t stream, const Any& q, const Any& base, const Any& west, const Any& east, const Any& south,
                const Any& north, const Any& forcing, ffi::Span<const double> numbers, ffi::Result<Any>& out) {
  const Burgers<T> b = stage_of<T>(q, base, west, east, south, north, forcing, numbers, out->reinterpret_data<T>());
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

// Arguments and results as in cpu/ffi_burgers.cc.
ffi::Error StageSealed(cudaStream_t stream, Any q, Any base, Any west, Any east, Any south, Any north, Any forcing, U32 parity,
                       U32 marks, U32 guard, ffi::Span<const double> numbers, uint32_t limit_bits,
                       ffi::ResultBuffer<ffi::F32> out, OutU32 new_parity, OutU32 new_marks, OutU32 new_guard,
                       ffi::ResultBuffer<ffi::S32> found) {
  const int64_t n = static_cast<int64_t>(q.element_count());
  if (q.element_type() != ffi::F32 || Layout(n).B != kBlock || n / 2 > INT64_C(0xFFFFFFFF))
    return ffi::Error::InvalidArgument("the sealed Burgers stage takes float32, more than 2560 words and fewer than 2^33");
  SealedStage a{};
  a.b = stage_of(q, base, west, east, south, north, forcing, numbers, out->typed_data());
  a.parity = parity.typed_data(), a.marks = marks.typed_data(), a.guard = guard.typed_data();
  a.new_parity = new_parity->typed_data(), a.new_marks = new_marks->typed_data(), a.new_guard = new_guard->typed_data();
  a.found = found->typed_data(), a.limit2 = limit_bits << 1;
  return outcome(launch_burgers_sealed(stream, a));
}

}  // namespace

POISE_CUDA_HANDLER(poise_burgers_stage, Stage,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>()
                       .Attr<ffi::Span<const double>>("numbers").Ret<Any>());

POISE_CUDA_HANDLER(poise_burgers_stage_sealed, StageSealed,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>()
                       .Arg<U32>().Arg<U32>().Arg<U32>().Attr<ffi::Span<const double>>("numbers").Attr<uint32_t>("limit_bits")
                       .Ret<ffi::Buffer<ffi::F32>>().Ret<U32>().Ret<U32>().Ret<U32>().Ret<ffi::Buffer<ffi::S32>>());

}  // namespace poise::cuda
