// jax.ffi shim of the sealed AdamW (CPU). w, m, v and their seals are updated in place (aliased by the caller).
#include <cstring>

#include "ffi_common.h"

namespace poise {
namespace {

// Arguments: for s in (w, m, v): words, parity, marks, guard; then g, hyper[10], ok[1], and with masks lr_mask, wd_mask.
// Results: the twelve in the same order, mended[3][5] and a number that only CUDA uses, and with `low` the parameters in bfloat16.
ffi::Error AdamW(ffi::RemainingArgs args, ffi::RemainingRets rets, bool masks, bool low) {
  if (args.size() != 15 + 2 * size_t{masks} || rets.size() != 13 + size_t{low})
    return ffi::Error::InvalidArgument("poise_adamw: wrong number of arguments");
  AdamWArgs a{};
  for (int s = 0; s < 3; ++s) {
    uint32_t** const field[4] = {&a.words[s], &a.parity[s], &a.marks[s], &a.guard[s]};
    for (int k = 0; k < 4; ++k) {
      auto in = args.get<ffi::AnyBuffer>(4 * s + k);
      auto out = rets.get<ffi::AnyBuffer>(4 * s + k);
      if (!in || !out) return ffi::Error::InvalidArgument("poise_adamw: bad buffer");
      if (in->untyped_data() != (*out)->untyped_data())
        std::memcpy((*out)->untyped_data(), in->untyped_data(), in->size_bytes());
      *field[k] = static_cast<uint32_t*>((*out)->untyped_data());
    }
  }
  auto floats = [&](size_t i) { return static_cast<const float*>(args.get<ffi::AnyBuffer>(i)->untyped_data()); };
  a.g = floats(12), a.hyper = floats(13);
  a.ok = *static_cast<const int32_t*>(args.get<ffi::AnyBuffer>(14)->untyped_data()) != 0;
  if (masks) a.lr_mask = floats(15), a.wd_mask = floats(16);
  a.n = static_cast<int64_t>(args.get<ffi::AnyBuffer>(12)->element_count());
  if (low) a.low = static_cast<uint16_t*>((*rets.get<ffi::AnyBuffer>(13))->untyped_data());

  const Layout lay(a.n);
  Total<15> total;
  Pool::get().run(lay.G, grain_of(lay.G, lay.B == kBlock ? 16 : lay.G), [&](int64_t g0, int64_t g1) {
    int64_t part[3][5];
    table().adamw(a, g0, g1, part);
    total.add(&part[0][0]);
  });
  int32_t* mended = static_cast<int32_t*>((*rets.get<ffi::AnyBuffer>(12))->untyped_data());
  total.store(mended);
  mended[15] = 0;
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(poise_adamw, AdamW,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<bool>("masks").Attr<bool>("low"));

}  // namespace poise
