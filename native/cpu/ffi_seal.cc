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

ffi::Error Seal(Any words, OutU32 parity, OutU32 marks, OutU32 guard) {
  const Layout lay(count(words));
  const SealArgs a{words_of(words), lay.n, parity->typed_data(), marks->typed_data(), guard->typed_data()};
  Pool::get().run(lay.G, grain(lay), [&](int64_t g0, int64_t g1) { table().seal(a, g0, g1); });
  return ffi::Error::Success();
}

ffi::Error SealCounting(Any words, uint32_t limit_bits, OutU32 parity, OutU32 marks, OutU32 guard, OutS32 bad) {
  const Layout lay(count(words));
  const SealArgs a{words_of(words), lay.n, parity->typed_data(), marks->typed_data(), guard->typed_data()};
  Total<1> total;
  Pool::get().run(lay.G, grain(lay), [&](int64_t g0, int64_t g1) {
    const int64_t part[1] = {table().seal_counting(a, g0, g1, limit_bits << 1)};
    total.add(part);
  });
  total.store(bad->typed_data());
  return ffi::Error::Success();
}

ffi::Error Check(Any words, U32 parity, U32 marks, U32 guard, OutS32 off) {
  const Layout lay(count(words));
  const SealArgs a{words_of(words), lay.n, parity.typed_data(), marks.typed_data(), guard.typed_data()};
  Total<3> total;
  Pool::get().run(lay.G, grain(lay), [&](int64_t g0, int64_t g1) {
    int64_t part[3];
    table().check(a, g0, g1, part);
    total.add(part);
  });
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_seal, Seal, ffi::Ffi::Bind().Arg<Any>().Ret<U32>().Ret<U32>().Ret<U32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_seal_counting, SealCounting,
                              ffi::Ffi::Bind().Arg<Any>().Attr<uint32_t>("limit_bits").Ret<U32>().Ret<U32>().Ret<U32>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_check, Check,
                              ffi::Ffi::Bind().Arg<Any>().Arg<U32>().Arg<U32>().Arg<U32>().Ret<ffi::Buffer<ffi::S32>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_repair, Repair,
                              ffi::Ffi::Bind().Arg<U32>().Arg<U32>().Arg<U32>().Arg<U32>().Ret<U32>().Ret<U32>().Ret<U32>()
                                  .Ret<U32>().Ret<ffi::Buffer<ffi::S32>>());

}  // namespace poise
