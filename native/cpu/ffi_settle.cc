// jax.ffi shims of the settling of a step (CPU): next states are handed on, or the old ones are put in their place and mended.
//
// poise_settle: stay, then of each array old, its parity, marks and guard, new, its parity, marks and guard; results of each array
// (in place of the new ones) array, parity, marks, guard; then mended [n][5] and found [n][4] = (nan, inf, overflow, each less 1;
// first). poise_newly: bad [n], then of each array new and old; the result is a count [n].
#include <cstring>

#include "ffi_common.h"
#include "poise/settle.h"

namespace poise {
namespace {

using Buffer = ffi::AnyBuffer;

// What is bad in the next state.
template <class T>
void look(const Buffer& old, const void* next, double limit, bool only, int32_t* found) {
  const Newly<T> rule = newly_of<T>(limit, only);
  const T *before = static_cast<const T*>(old.untyped_data()), *now = static_cast<const T*>(next);
  const int64_t n = static_cast<int64_t>(old.element_count());
  for (int64_t i = 0; i < n; ++i) {
    const int cause = rule.cause(now[i], before[i]);
    if (cause < 0) continue;
    ++found[cause];
    if (found[3] < 0) found[3] = static_cast<int32_t>(i & INT32_MAX);
  }
}

void look(const Buffer& old, const void* next, double limit, bool only, int32_t* found, ffi::DataType type) {
  if (type == ffi::F32) look<float>(old, next, limit, only, found);
  if (type == ffi::F64) look<double>(old, next, limit, only, found);
}

void mend(uint32_t* const made[4], int64_t n, int32_t* mended) {
  const Layout lay(n);
  const SealArgs a{made[0], lay.n, made[1], made[2], made[3]};
  Total<5> total;
  Pool::get().run(lay.G, grain_of(lay.G, lay.B == kBlock ? kLeastGroups : lay.G), [&](int64_t g0, int64_t g1) {
    int64_t part[5];
    table().repair(made[0], a, g0, g1, part);
    total.add(part);
  });
  total.store(mended);
}

ffi::Error Settle(ffi::RemainingArgs args, ffi::RemainingRets rets, double limit, bool newly) {
  const size_t count = (args.size() - 1) / 8;
  if (args.size() != 1 + 8 * count || rets.size() != 4 * count + 2)
    return ffi::Error::InvalidArgument("poise_settle: wrong number of arguments");
  const bool taken = *static_cast<const int32_t*>(args.get<Buffer>(0)->untyped_data()) == 0;
  auto result = [&](size_t i) { return static_cast<uint32_t*>((*rets.get<Buffer>(i))->untyped_data()); };
  auto* mended = reinterpret_cast<int32_t*>(result(4 * count));
  auto* found = reinterpret_cast<int32_t*>(result(4 * count + 1));
  std::memset(mended, 0, sizeof(int32_t) * 5 * count);
  std::memset(found, 0xFF, sizeof(int32_t) * 4 * count);
  for (size_t k = 0; k < count; ++k) {
    const auto old = args.get<Buffer>(1 + 8 * k), next = args.get<Buffer>(5 + 8 * k);
    if (!taken) look(*old, next->untyped_data(), limit, newly, found + 4 * k, next->element_type());
    uint32_t* made[4];
    for (size_t i = 0; i < 4; ++i) {
      const auto from = args.get<Buffer>((taken ? 5 : 1) + 8 * k + i);
      made[i] = result(4 * k + i);
      if (from->untyped_data() != made[i]) std::memcpy(made[i], from->untyped_data(), from->size_bytes());
    }
    if (!taken) mend(made, static_cast<int64_t>(old->size_bytes() / 4), mended + 5 * k);
  }
  return ffi::Error::Success();
}

ffi::Error CountNewly(ffi::RemainingArgs args, ffi::RemainingRets rets, double limit) {
  const size_t count = (args.size() - 1) / 2;
  if (args.size() != 1 + 2 * count || rets.size() != 1)
    return ffi::Error::InvalidArgument("poise_newly: wrong number of arguments");
  const auto* bad = static_cast<const int32_t*>(args.get<Buffer>(0)->untyped_data());
  auto* out = static_cast<int32_t*>((*rets.get<Buffer>(0))->untyped_data());
  for (size_t k = 0; k < count; ++k) {
    const auto now = args.get<Buffer>(1 + 2 * k), before = args.get<Buffer>(2 + 2 * k);
    const auto type = now->element_type();
    if (type != ffi::F32 && type != ffi::F64) return ffi::Error::InvalidArgument("poise_newly takes float32 or float64");
    int32_t found[4] = {-1, -1, -1, -1};
    if (bad[k] != 0) look(*before, now->untyped_data(), limit, true, found, type);
    out[k] = found[0] + found[1] + found[2] + 3;
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_settle, Settle,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<double>("limit").Attr<bool>("newly"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_newly, CountNewly, ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<double>("limit"));

}  // namespace poise
