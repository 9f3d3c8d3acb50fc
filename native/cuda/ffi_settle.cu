// jax.ffi shims of the settling of a step (CUDA). Arguments and results as in cpu/ffi_settle.cc.
#include <vector>

#include "ffi_common.cuh"
#include "settle.cuh"

namespace poise::cuda {
namespace {

ffi::Error Settle(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets, double limit, bool newly) {
  const size_t count = (args.size() - 1) / 8;
  if (args.size() != 1 + 8 * count || rets.size() != 4 * count + 2)
    return ffi::Error::InvalidArgument("poise_settle: wrong number of arguments");
  std::vector<SettleArgs> arrays(count);
  for (size_t k = 0; k < count; ++k) {
    void* out[4];
    for (size_t i = 0; i < 4; ++i) {
      const auto in = args.get<ffi::AnyBuffer>(5 + 8 * k + i);
      out[i] = (*rets.get<ffi::AnyBuffer>(4 * k + i))->untyped_data();
      const cudaError_t e = in_place(stream, in->untyped_data(), out[i], in->size_bytes());
      if (e != cudaSuccess) return outcome(e);
    }
    auto old = [&](size_t i) { return static_cast<uint32_t*>(args.get<ffi::AnyBuffer>(1 + 8 * k + i)->untyped_data()); };
    auto made = [&](size_t i) { return static_cast<uint32_t*>(out[i]); };
    const auto words = args.get<ffi::AnyBuffer>(5 + 8 * k);
    const auto type = words->element_type();
    arrays[k] = {old(0), old(1), old(2), old(3), out[0], made(1), made(2), made(3), static_cast<int64_t>(words->size_bytes() / 4),
                 type == ffi::F32 ? Scalar::kFloat32 : type == ffi::F64 ? Scalar::kFloat64 : Scalar::kNone};
  }
  auto numbers = [&](size_t i) { return static_cast<int32_t*>((*rets.get<ffi::AnyBuffer>(i))->untyped_data()); };
  const auto* stay = static_cast<const int32_t*>(args.get<ffi::AnyBuffer>(0)->untyped_data());
  return outcome(launch_settle(stream, stay, arrays.data(), static_cast<int>(count), limit, newly, numbers(4 * count),
                               numbers(4 * count + 1)));
}

ffi::Error CountNewly(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets, double limit) {
  const size_t count = (args.size() - 1) / 2;
  if (args.size() != 1 + 2 * count || rets.size() != 1)
    return ffi::Error::InvalidArgument("poise_newly: wrong number of arguments");
  std::vector<NewlyArgs> arrays(count);
  for (size_t k = 0; k < count; ++k) {
    const auto now = args.get<ffi::AnyBuffer>(1 + 2 * k), before = args.get<ffi::AnyBuffer>(2 + 2 * k);
    const bool wide = now->element_type() == ffi::F64;
    if (!wide && now->element_type() != ffi::F32) return ffi::Error::InvalidArgument("poise_newly takes float32 or float64");
    arrays[k] = {now->untyped_data(), before->untyped_data(), static_cast<int64_t>(now->element_count()), wide};
  }
  const auto* bad = static_cast<const int32_t*>(args.get<ffi::AnyBuffer>(0)->untyped_data());
  auto* found = static_cast<int32_t*>((*rets.get<ffi::AnyBuffer>(0))->untyped_data());
  return outcome(launch_newly(stream, bad, arrays.data(), static_cast<int>(count), limit, found));
}

}  // namespace

POISE_CUDA_HANDLER(poise_settle, Settle,
                   ffi::Ffi::Bind().Ctx<Stream>().RemainingArgs().RemainingRets().Attr<double>("limit").Attr<bool>("newly"));
POISE_CUDA_HANDLER(poise_newly, CountNewly, ffi::Ffi::Bind().Ctx<Stream>().RemainingArgs().RemainingRets().Attr<double>("limit"));

}  // namespace poise::cuda
