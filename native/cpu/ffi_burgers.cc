// jax.ffi shims of the fused Burgers stage (CPU), float32 and float64 behind one name, and of the sealed one in float32.
#include "ffi_common.h"

namespace poise {
namespace {

using Any = ffi::AnyBuffer;

using U32 = ffi::Buffer<ffi::U32>;
using F32 = ffi::Buffer<ffi::F32>;

template <class T>
BurgersArgs<T> args_of(const Any& q, const Any& base, const Any& west, const Any& east, const Any& south, const Any& north,
                       const Any& forcing, ffi::Span<const double> numbers, T* out) {
  const auto dims = q.dimensions();
  return {q.reinterpret_data<T>(),     base.reinterpret_data<T>(),  west.reinterpret_data<T>(),
          east.reinterpret_data<T>(),  south.reinterpret_data<T>(), north.reinterpret_data<T>(),
          forcing.reinterpret_data<T>(), out, dims[1], dims[2],
          {static_cast<T>(numbers[0]), static_cast<T>(numbers[1]), static_cast<T>(numbers[2]), static_cast<T>(numbers[3]),
           static_cast<T>(numbers[4])}};
}

template <class T>
void run(const Any& q, const Any& base, const Any& west, const Any& east, const Any& south, const Any& north, const Any& forcing,
         ffi::Span<const double> numbers, ffi::Result<Any>& out, void (*kernel)(const BurgersArgs<T>&, int64_t, int64_t)) {
  const BurgersArgs<T> a = args_of<T>(q, base, west, east, south, north, forcing, numbers, out->reinterpret_data<T>());
  const int64_t least = (1 << 15) / (a.ny ? a.ny : 1) + 1;  // rows that are worth a thread
  Pool::get().run(a.nx, grain_of(a.nx, least), [&](int64_t i0, int64_t i1) { kernel(a, i0, i1); });
}

// numbers = (1 / (2 h), nu / h^2, c_base, c_in, c_rate).
ffi::Error Stage(Any q, Any base, Any west, Any east, Any south, Any north, Any forcing, ffi::Span<const double> numbers,
                 ffi::Result<Any> out) {
  if (q.element_type() == ffi::F32)
    run<float>(q, base, west, east, south, north, forcing, numbers, out, table().burgers32);
  else if (q.element_type() == ffi::F64)
    run<double>(q, base, west, east, south, north, forcing, numbers, out, table().burgers64);
  else
    return ffi::Error::InvalidArgument("the Burgers stage takes float32 or float64");
  return ffi::Error::Success();
}

// The same in float32, with the seal of `base` given: writes the seal of `out`, and in `found` how many of its words have
// magnitude bits of at least `limit_bits` and how many blocks of base's data, parity and guard do not match.
ffi::Error StageSealed(Any q, Any base, Any west, Any east, Any south, Any north, Any forcing, U32 parity, U32 marks, U32 guard,
                       ffi::Span<const double> numbers, uint32_t limit_bits, ffi::Result<F32> out, ffi::Result<U32> new_parity,
                       ffi::Result<U32> new_marks, ffi::Result<U32> new_guard, ffi::Result<ffi::Buffer<ffi::S32>> found) {
  if (q.element_type() != ffi::F32) return ffi::Error::InvalidArgument("the sealed Burgers stage takes float32");
  const Layout lay(static_cast<int64_t>(q.element_count()));
  if (lay.B != kBlock) return ffi::Error::InvalidArgument("the sealed Burgers stage takes more than 2560 words");
  const BurgersArgs<float> a = args_of(q, base, west, east, south, north, forcing, numbers, out->typed_data());
  const SealArgs old{static_cast<const uint32_t*>(base.untyped_data()), lay.n, parity.typed_data(), marks.typed_data(),
                     guard.typed_data()};
  const SealArgs made{static_cast<const uint32_t*>(out->untyped_data()), lay.n, new_parity->typed_data(), new_marks->typed_data(),
                      new_guard->typed_data()};
  Total<4> total;
  // Shorter chunks would read too many rows twice: a chunk is a run of every bank (burgers_sealed.h).
  Pool::get().run(lay.G, grain_of(lay.G, kLeastGroups), [&](int64_t g0, int64_t g1) {
    int64_t part[4];
    table().burgers_sealed(a, old, made, limit_bits << 1, g0, g1, part);
    total.add(part);
  });
  total.store(found->typed_data());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_burgers_stage, Stage,
                              ffi::Ffi::Bind().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>()
                                  .Attr<ffi::Span<const double>>("numbers").Ret<Any>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_burgers_stage_sealed, StageSealed,
                              ffi::Ffi::Bind().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>()
                                  .Arg<U32>().Arg<U32>().Arg<U32>().Attr<ffi::Span<const double>>("numbers")
                                  .Attr<uint32_t>("limit_bits").Ret<F32>().Ret<U32>().Ret<U32>().Ret<U32>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

}  // namespace poise
