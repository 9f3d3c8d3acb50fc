// jax.ffi shims of the settling of a step (CPU): the next state is handed on, or the old one is put in its place and mended.
#include <cstring>

#include "ffi_common.h"
#include "poise/settle.h"

namespace poise {
namespace {

using S32 = ffi::Buffer<ffi::S32>;
using U32 = ffi::Buffer<ffi::U32>;
using Any = ffi::AnyBuffer;
using OutS32 = ffi::ResultBuffer<ffi::S32>;
using OutU32 = ffi::ResultBuffer<ffi::U32>;

// What is bad in the next state; `found` = (nan, inf, overflow, each less 1; the first).
template <class T>
void look(const Any& old, const void* next, double limit, bool only, int32_t* found) {
  const Newly<T> rule{static_cast<T>(limit), only};
  const T *before = static_cast<const T*>(old.untyped_data()), *now = static_cast<const T*>(next);
  const int64_t n = static_cast<int64_t>(old.element_count());
  for (int64_t i = 0; i < n; ++i) {
    const int cause = rule.cause(now[i], before[i]);
    if (cause < 0) continue;
    ++found[cause];
    if (found[3] < 0) found[3] = static_cast<int32_t>(i & INT32_MAX);
  }
}

void in_place(const void* in, void* out, size_t bytes) {
  if (in != out) std::memcpy(out, in, bytes);
}

ffi::Error Settle(S32 stay, Any old, U32 old_parity, U32 old_marks, U32 old_guard, Any words, U32 parity, U32 marks, U32 guard,
                  double limit, bool newly, ffi::Result<Any> words_out, OutU32 parity_out, OutU32 marks_out, OutU32 guard_out,
                  OutS32 mended, OutS32 found) {
  std::memset(mended->typed_data(), 0, 5 * sizeof(int32_t));
  std::memset(found->typed_data(), 0xFF, 4 * sizeof(int32_t));
  const bool taken = stay.typed_data()[0] == 0;
  if (!taken && words.element_type() == ffi::F32) look<float>(old, words.untyped_data(), limit, newly, found->typed_data());
  if (!taken && words.element_type() == ffi::F64) look<double>(old, words.untyped_data(), limit, newly, found->typed_data());
  uint32_t* w = static_cast<uint32_t*>(words_out->untyped_data());
  in_place((taken ? words : old).untyped_data(), w, old.size_bytes());
  in_place((taken ? parity : old_parity).typed_data(), parity_out->typed_data(), parity.size_bytes());
  in_place((taken ? marks : old_marks).typed_data(), marks_out->typed_data(), marks.size_bytes());
  in_place((taken ? guard : old_guard).typed_data(), guard_out->typed_data(), guard.size_bytes());
  if (taken) return ffi::Error::Success();
  const Layout lay(static_cast<int64_t>(old.size_bytes() / 4));
  const SealArgs a{w, lay.n, parity_out->typed_data(), marks_out->typed_data(), guard_out->typed_data()};
  Total<5> total;
  Pool::get().run(lay.G, grain_of(lay.G, lay.B == kBlock ? kLeastGroups : lay.G), [&](int64_t g0, int64_t g1) {
    int64_t part[5];
    table().repair(w, a, g0, g1, part);
    total.add(part);
  });
  total.store(mended->typed_data());
  return ffi::Error::Success();
}

template <class T>
int32_t count_newly(const Any& now, const Any& before, double limit) {
  int32_t found[4] = {-1, -1, -1, -1};
  look<T>(before, now.untyped_data(), limit, true, found);
  return found[0] + found[1] + found[2] + 3;
}

ffi::Error CountNewly(S32 bad, Any now, Any before, double limit, OutS32 count) {
  const bool wide = now.element_type() == ffi::F64;
  if (!wide && now.element_type() != ffi::F32) return ffi::Error::InvalidArgument("poise_newly takes float32 or float64");
  const auto counted = wide ? count_newly<double> : count_newly<float>;
  count->typed_data()[0] = bad.typed_data()[0] == 0 ? 0 : counted(now, before, limit);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_newly, CountNewly,
                              ffi::Ffi::Bind().Arg<S32>().Arg<Any>().Arg<Any>().Attr<double>("limit").Ret<S32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_settle, Settle,
                              ffi::Ffi::Bind().Arg<S32>().Arg<Any>().Arg<U32>().Arg<U32>().Arg<U32>().Arg<Any>().Arg<U32>()
                                  .Arg<U32>().Arg<U32>().Attr<double>("limit").Attr<bool>("newly").Ret<Any>().Ret<U32>()
                                  .Ret<U32>().Ret<U32>().Ret<S32>().Ret<S32>());

}  // namespace poise
