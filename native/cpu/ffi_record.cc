// jax.ffi shims of the record kernels (CPU).
#include <cstring>

#include "ffi_common.h"

namespace poise {
namespace {

using U32 = ffi::Buffer<ffi::U32>;
using F32 = ffi::Buffer<ffi::F32>;
using OutU32 = ffi::ResultBuffer<ffi::U32>;

ffi::Error Repack(bool to_rows, const U32& in, OutU32& out) {
  const int64_t n = static_cast<int64_t>(in.element_count()) / 8;
  Pool::get().run(n, grain_of(n, 1 << 13), [&](int64_t a, int64_t b) {
    (to_rows ? table().pack : table().unpack)(in.typed_data(), out->typed_data(), n, a, b);
  });
  return ffi::Error::Success();
}

ffi::Error Pack(U32 in, OutU32 out) { return Repack(true, in, out); }
ffi::Error Unpack(U32 in, OutU32 out) { return Repack(false, in, out); }

ffi::Error Update(U32 rows, F32 g, F32 hyper, int32_t cell, ffi::Span<const double> rule, OutU32 out,
                  ffi::ResultBuffer<ffi::S32> found) {
  const int64_t n = static_cast<int64_t>(g.element_count());
  if (rows.typed_data() != out->typed_data()) std::memcpy(out->typed_data(), rows.typed_data(), rows.size_bytes());
  const Gate<float> gate = gate_of<float>(rule);
  std::mutex mutex;
  int64_t sum[2] = {0, -1};
  Pool::get().run(n, grain_of(n, 1 << 13), [&](int64_t a, int64_t b) {
    int64_t part[2];
    (cell == 0 ? table().update_pim : table().update_pinn)(out->typed_data(), g.typed_data(), hyper.typed_data(), gate, a, b, part);
    std::lock_guard<std::mutex> lock(mutex);
    sum[0] += part[0];
    if (part[1] >= 0 && (sum[1] < 0 || part[1] < sum[1])) sum[1] = part[1];
  });
  found->typed_data()[0] = static_cast<int32_t>(sum[0] - 1);  // as on CUDA
  found->typed_data()[1] = static_cast<int32_t>(sum[1]);
  return ffi::Error::Success();
}

// Arguments: rows; with `given` the flux; with `halo` the values beyond each line's ends.
ffi::Error Gradient(ffi::RemainingArgs args, int64_t columns, float factor, bool given, bool halo, ffi::Span<const double> rule,
                    OutU32 out, ffi::ResultBuffer<ffi::S32> found) {
  if (args.size() != 1 + size_t{given} + 2 * size_t{halo})
    return ffi::Error::InvalidArgument("poise_record_gradient: wrong number of arguments");
  const auto rows = args.get<U32>(0);
  if (!rows) return rows.error();
  if (rows->typed_data() != out->typed_data()) std::memcpy(out->typed_data(), rows->typed_data(), rows->size_bytes());
  GradientArgs a{out->typed_data(), nullptr, nullptr, nullptr, static_cast<int64_t>(rows->element_count()) / 8, columns, factor};
  if (given) a.flux = args.get<F32>(1)->typed_data();
  if (halo) a.west = args.get<F32>(1 + given)->typed_data(), a.east = args.get<F32>(2 + given)->typed_data();
  const Gate<float> gate = gate_of<float>(rule);
  std::mutex mutex;
  int64_t sum[2] = {0, -1};
  Pool::get().run(a.n, grain_of(a.n, 1 << 13), [&](int64_t i0, int64_t i1) {
    int64_t part[2];
    table().gradient(a, gate, i0, i1, part);
    std::lock_guard<std::mutex> lock(mutex);
    sum[0] += part[0];
    if (part[1] >= 0 && (sum[1] < 0 || part[1] < sum[1])) sum[1] = part[1];
  });
  found->typed_data()[0] = static_cast<int32_t>(sum[0] - 1);  // as on CUDA
  found->typed_data()[1] = static_cast<int32_t>(sum[1]);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_pack, Pack, ffi::Ffi::Bind().Arg<U32>().Ret<U32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_unpack, Unpack, ffi::Ffi::Bind().Arg<U32>().Ret<U32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_record_update, Update,
                              ffi::Ffi::Bind().Arg<U32>().Arg<F32>().Arg<F32>().Attr<int32_t>("cell")
                                  .Attr<ffi::Span<const double>>("rule").Ret<U32>().Ret<ffi::Buffer<ffi::S32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_record_gradient, Gradient,
                              ffi::Ffi::Bind().RemainingArgs().Attr<int64_t>("columns").Attr<float>("factor")
                                  .Attr<bool>("given").Attr<bool>("halo").Attr<ffi::Span<const double>>("rule").Ret<U32>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

}  // namespace poise
