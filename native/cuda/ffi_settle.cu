// jax.ffi shims of the settling of a step (CUDA).
#include "ffi_common.cuh"
#include "settle.cuh"

namespace poise::cuda {
namespace {

using U32 = ffi::Buffer<ffi::U32>;
using Any = ffi::AnyBuffer;
using S32 = ffi::Buffer<ffi::S32>;
using OutU32 = ffi::ResultBuffer<ffi::U32>;

ffi::Error Settle(cudaStream_t stream, S32 stay, Any old, U32 old_parity, U32 old_marks, U32 old_guard, Any words,
                  U32 parity, U32 marks, U32 guard, double limit, bool newly, ffi::Result<Any> words_out, OutU32 parity_out,
                  OutU32 marks_out, OutU32 guard_out, ffi::ResultBuffer<ffi::S32> mended, ffi::ResultBuffer<ffi::S32> found) {
  const void* in[4] = {words.untyped_data(), parity.typed_data(), marks.typed_data(), guard.typed_data()};
  void* out[4] = {words_out->untyped_data(), parity_out->typed_data(), marks_out->typed_data(), guard_out->typed_data()};
  const size_t bytes[4] = {words.size_bytes(), parity.size_bytes(), marks.size_bytes(), guard.size_bytes()};
  for (int i = 0; i < 4; ++i) {
    const cudaError_t e = in_place(stream, in[i], out[i], bytes[i]);
    if (e != cudaSuccess) return outcome(e);
  }
  const SettleArgs a{stay.typed_data(),
                     old.untyped_data(),
                     old_parity.typed_data(),
                     old_marks.typed_data(),
                     old_guard.typed_data(),
                     words_out->untyped_data(),
                     parity_out->typed_data(),
                     marks_out->typed_data(),
                     guard_out->typed_data(),
                     static_cast<int64_t>(words.size_bytes() / 4),
                     found->typed_data()};
  int32_t* m = mended->typed_data();
  if (words.element_type() == ffi::F32) return outcome(launch_settle<float, Scalar::kFloat32>(stream, a, limit, newly, m));
  if (words.element_type() == ffi::F64) return outcome(launch_settle<double, Scalar::kFloat64>(stream, a, limit, newly, m));
  return outcome(launch_settle<uint32_t, Scalar::kNone>(stream, a, 0, newly, m));
}

ffi::Error CountNewly(cudaStream_t stream, S32 bad, Any now, Any before, double limit, ffi::ResultBuffer<ffi::S32> count) {
  const bool wide = now.element_type() == ffi::F64;
  if (!wide && now.element_type() != ffi::F32) return ffi::Error::InvalidArgument("poise_newly takes float32 or float64");
  const auto launch = wide ? launch_newly<double> : launch_newly<float>;
  return outcome(launch(stream, bad.typed_data(), now.untyped_data(), before.untyped_data(),
                        static_cast<int64_t>(now.element_count()), limit, count->typed_data()));
}

}  // namespace

POISE_CUDA_HANDLER(poise_newly, CountNewly,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<S32>().Arg<Any>().Arg<Any>().Attr<double>("limit").Ret<S32>());
POISE_CUDA_HANDLER(poise_settle, Settle,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<S32>().Arg<Any>().Arg<U32>().Arg<U32>().Arg<U32>().Arg<Any>().Arg<U32>()
                       .Arg<U32>().Arg<U32>().Attr<double>("limit").Attr<bool>("newly").Ret<Any>().Ret<U32>().Ret<U32>()
                       .Ret<U32>().Ret<S32>().Ret<S32>());

}  // namespace poise::cuda
