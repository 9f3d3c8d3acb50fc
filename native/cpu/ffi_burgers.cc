// jax.ffi shim of the fused Burgers stage (CPU), float32 and float64 behind one name.
#include "ffi_common.h"

namespace poise {
namespace {

using Any = ffi::AnyBuffer;

template <class T>
void run(const Any& q, const Any& base, const Any& west, const Any& east, const Any& south, const Any& north, const Any& forcing,
         ffi::Span<const double> numbers, ffi::Result<Any>& out, void (*kernel)(const BurgersArgs<T>&, int64_t, int64_t)) {
  const auto dims = q.dimensions();
  const BurgersArgs<T> a{q.reinterpret_data<T>(),     base.reinterpret_data<T>(),  west.reinterpret_data<T>(),
                         east.reinterpret_data<T>(),  south.reinterpret_data<T>(), north.reinterpret_data<T>(),
                         forcing.reinterpret_data<T>(), out->reinterpret_data<T>(), dims[1], dims[2],
                         {static_cast<T>(numbers[0]), static_cast<T>(numbers[1]), static_cast<T>(numbers[2]),
                          static_cast<T>(numbers[3]), static_cast<T>(numbers[4])}};
  const int64_t least = (1 << 15) / (dims[2] ? dims[2] : 1) + 1;  // rows that are worth a thread
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

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_burgers_stage, Stage,
                              ffi::Ffi::Bind().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>().Arg<Any>()
                                  .Attr<ffi::Span<const double>>("numbers").Ret<Any>());

}  // namespace poise
