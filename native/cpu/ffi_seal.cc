// jax.ffi shims of seal, check, repair (CPU). Words are uint32; shapes are checked by the Python callers.
#include <cstring>

#include "ffi_common.h"

namespace poise {
namespace {

using U32 = ffi::Buffer<ffi::U32>;
using Any = ffi::AnyBuffer;
using OutU32 = ffi::ResultBuffer<ffi::U32>;
using OutS32 = ffi::ResultBuffer<ffi::S32>;

// The words of a buffer of any type of 4 or 8 bytes: XLA would copy it to bitcast it.
int64_t count(const Any& x) { return static_cast<int64_t>(x.size_bytes() / 4); }
const uint32_t* words_of(const Any& x) { return static_cast<const uint32_t*>(x.untyped_data()); }

int64_t grain(const Layout& lay) { return grain_of(lay.G, lay.B == kBlock ? kLeastGroups : lay.G); }

uint32_t* result(ffi::RemainingRets& rets, size_t i) { return static_cast<uint32_t*>((*rets.get<Any>(i))->untyped_data()); }

SealArgs made(const Any& x, ffi::RemainingRets& rets, size_t k) {
  return {words_of(x), count(x), result(rets, 3 * k), result(rets, 3 * k + 1), result(rets, 3 * k + 2)};
}

// Several arrays at once: parity, marks and guard of each.
ffi::Error Seal(ffi::RemainingArgs args, ffi::RemainingRets rets) {
  if (rets.size() != 3 * args.size()) return ffi::Error::InvalidArgument("poise_seal: wrong number of arguments");
  for (size_t k = 0; k < args.size(); ++k) {
    const SealArgs a = made(*args.get<Any>(k), rets, k);
    const Layout lay(a.n);
    Pool::get().run(lay.G, grain(lay), [&](int64_t g0, int64_t g1) { table().seal(a, g0, g1); });
  }
  return ffi::Error::Success();
}

// And how many words of each are loud.
ffi::Error SealCounting(ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Span<const int64_t> limits) {
  if (rets.size() != 3 * args.size() + 1 || limits.size() != args.size())
    return ffi::Error::InvalidArgument("poise_seal_counting: wrong number of arguments");
  auto* bad = reinterpret_cast<int32_t*>(result(rets, 3 * args.size()));
  for (size_t k = 0; k < args.size(); ++k) {
    const SealArgs a = made(*args.get<Any>(k), rets, k);
    const Layout lay(a.n);
    const uint32_t limit2 = static_cast<uint32_t>(limits[k] << 1);
    Total<1> total;
    Pool::get().run(lay.G, grain(lay), [&](int64_t g0, int64_t g1) {
      const int64_t part[1] = {table().seal_counting(a, g0, g1, limit2)};
      total.add(part);
    });
    total.store(bad + k);
  }
  return ffi::Error::Success();
}

// Of each array itself, parity, marks, guard; one total for all.
ffi::Error Check(ffi::RemainingArgs args, OutS32 off) {
  Total<3> total;
  for (size_t k = 0; k < args.size() / 4; ++k) {
    auto at = [&](size_t i) { return static_cast<uint32_t*>(args.get<Any>(4 * k + i)->untyped_data()); };
    const SealArgs a{at(0), count(*args.get<Any>(4 * k)), at(1), at(2), at(3)};
    const Layout lay(a.n);
    Pool::get().run(lay.G, grain(lay), [&](int64_t g0, int64_t g1) {
      int64_t part[3];
      table().check(a, g0, g1, part);
      total.add(part);
    });
  }
  total.store(off->typed_data());
  return ffi::Error::Success();
}

uint32_t* in_place(const U32& in, OutU32& out) {
  if (in.typed_data() != out->typed_data()) std::memcpy(out->typed_data(), in.typed_data(), in.size_bytes());
  return out->typed_data();
}

ffi::Error Repair(U32 words, U32 parity, U32 marks, U32 guard, OutU32 words_out, OutU32 parity_out, OutU32 marks_out,
                  OutU32 guard_out, OutS32 mended) {
  const Layout lay(static_cast<int64_t>(words.element_count()));
  uint32_t* w = in_place(words, words_out);
  const SealArgs a{w, lay.n, in_place(parity, parity_out), in_place(marks, marks_out), in_place(guard, guard_out)};
  Total<5> total;
  Pool::get().run(lay.G, grain(lay), [&](int64_t g0, int64_t g1) {
    int64_t part[5];
    table().repair(w, a, g0, g1, part);
    total.add(part);
  });
  total.store(mended->typed_data());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_seal, Seal, ffi::Ffi::Bind().RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_seal_counting, SealCounting,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("limits"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_check, Check, ffi::Ffi::Bind().RemainingArgs().Ret<ffi::Buffer<ffi::S32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_repair, Repair,
                              ffi::Ffi::Bind().Arg<U32>().Arg<U32>().Arg<U32>().Arg<U32>().Ret<U32>().Ret<U32>().Ret<U32>()
                                  .Ret<U32>().Ret<ffi::Buffer<ffi::S32>>());

}  // namespace poise
