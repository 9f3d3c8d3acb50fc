// jax.ffi shims of seal, check, repair and the sealed AdamW (CUDA).
#include <vector>

#include "adamw.cuh"
#include "ffi_common.cuh"
#include "seal.cuh"

namespace poise::cuda {
namespace {

using U32 = ffi::Buffer<ffi::U32>;
using OutU32 = ffi::ResultBuffer<ffi::U32>;
using OutS32 = ffi::ResultBuffer<ffi::S32>;

// The words of a buffer of any type of 4 or 8 bytes: XLA would copy it to bitcast it.
int64_t words_in(const ffi::AnyBuffer& x) { return static_cast<int64_t>(x.size_bytes() / 4); }
uint32_t* words_of(const ffi::AnyBuffer& x) { return static_cast<uint32_t*>(x.untyped_data()); }

// Several arrays at once: parity, marks and guard of each, then, when counting, how many words of each are loud.
template <Kind K>
ffi::Error seal_all(cudaStream_t stream, ffi::RemainingArgs& args, ffi::RemainingRets& rets, ffi::Span<const int64_t> limits) {
  const size_t count = args.size();
  constexpr bool kCounts = K == Kind::kCount;
  if (rets.size() != 3 * count + kCounts || (kCounts && limits.size() != count))
    return ffi::Error::InvalidArgument("poise_seal: wrong number of arguments");
  auto result = [&](size_t i) { return words_of(**rets.get<ffi::AnyBuffer>(i)); };
  auto* bad = kCounts ? reinterpret_cast<int32_t*>(result(3 * count)) : nullptr;
  std::vector<SealArgs> arrays(count);
  for (size_t k = 0; k < count; ++k) {
    const auto x = args.get<ffi::AnyBuffer>(k);
    arrays[k] = {words_of(*x), words_in(*x), result(3 * k), result(3 * k + 1), result(3 * k + 2), kCounts ? bad + k : nullptr,
                 kCounts ? static_cast<uint32_t>(limits[k] << 1) : 0};
  }
  if (kCounts) {
    const cudaError_t e = cudaMemsetAsync(bad, 0, sizeof(int32_t) * count, stream);
    if (e != cudaSuccess) return outcome(e);
  }
  return outcome(launch_seals<K>(stream, arrays.data(), static_cast<int>(count)));
}

ffi::Error Seal(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return seal_all<Kind::kSeal>(stream, args, rets, {});
}

ffi::Error SealCounting(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Span<const int64_t> limits) {
  return seal_all<Kind::kCount>(stream, args, rets, limits);
}

// Of each array itself, parity, marks, guard; one total for all.
ffi::Error Check(cudaStream_t stream, ffi::RemainingArgs args, OutS32 off) {
  std::vector<SealArgs> arrays(args.size() / 4);
  for (size_t k = 0; k < arrays.size(); ++k) {
    auto at = [&](size_t i) { return words_of(*args.get<ffi::AnyBuffer>(4 * k + i)); };
    arrays[k] = {at(0), words_in(*args.get<ffi::AnyBuffer>(4 * k)), at(1), at(2), at(3), off->typed_data(), 0};
  }
  const cudaError_t e = cudaMemsetAsync(off->typed_data(), 0, sizeof(int32_t) * 3, stream);
  if (e != cudaSuccess) return outcome(e);
  return outcome(launch_seals<Kind::kCheck>(stream, arrays.data(), static_cast<int>(arrays.size())));
}

ffi::Error Repair(cudaStream_t stream, U32 words, U32 parity, U32 marks, U32 guard, OutU32 words_out, OutU32 parity_out,
                  OutU32 marks_out, OutU32 guard_out, OutS32 mended) {
  const U32* in[4] = {&words, &parity, &marks, &guard};
  OutU32* out[4] = {&words_out, &parity_out, &marks_out, &guard_out};
  for (int i = 0; i < 4; ++i) {
    const cudaError_t e = in_place(stream, in[i]->typed_data(), (*out[i])->typed_data(), in[i]->size_bytes());
    if (e != cudaSuccess) return outcome(e);
  }
  const SealArgs a{words_out->typed_data(), static_cast<int64_t>(words.element_count()), parity_out->typed_data(),
                   marks_out->typed_data(), guard_out->typed_data(), mended->typed_data(), 0};
  return outcome(launch_seal<Kind::kRepair>(stream, a, 5));
}

// Arguments and results as in cpu/ffi_adamw.cc.
ffi::Error AdamW(cudaStream_t stream, ffi::RemainingArgs args, ffi::RemainingRets rets, bool masks, bool low) {
  if (args.size() != 15 + 2 * size_t{masks} || rets.size() != 13 + size_t{low})
    return ffi::Error::InvalidArgument("poise_adamw: wrong number of arguments");
  AdamWArgs a{};
  for (int s = 0; s < 3; ++s) {
    uint32_t** const field[4] = {&a.words[s], &a.parity[s], &a.marks[s], &a.guard[s]};
    for (int k = 0; k < 4; ++k) {
      auto in = args.get<ffi::AnyBuffer>(4 * s + k);
      auto out = rets.get<ffi::AnyBuffer>(4 * s + k);
      const cudaError_t e = in_place(stream, in->untyped_data(), (*out)->untyped_data(), in->size_bytes());
      if (e != cudaSuccess) return outcome(e);
      *field[k] = static_cast<uint32_t*>((*out)->untyped_data());
    }
  }
  auto floats = [&](size_t i) { return static_cast<const float*>(args.get<ffi::AnyBuffer>(i)->untyped_data()); };
  a.g = floats(12), a.hyper = floats(13);
  a.ok = static_cast<const int32_t*>(args.get<ffi::AnyBuffer>(14)->untyped_data());
  if (masks) a.lr_mask = floats(15), a.wd_mask = floats(16);
  a.n = static_cast<int64_t>(args.get<ffi::AnyBuffer>(12)->element_count());
  a.mended = static_cast<int32_t*>((*rets.get<ffi::AnyBuffer>(12))->untyped_data());
  if (low) a.low = static_cast<__nv_bfloat16*>((*rets.get<ffi::AnyBuffer>(13))->untyped_data());
  return outcome(launch_adamw(stream, a));
}

}  // namespace

POISE_CUDA_HANDLER(poise_seal, Seal, ffi::Ffi::Bind().Ctx<Stream>().RemainingArgs().RemainingRets());
POISE_CUDA_HANDLER(poise_seal_counting, SealCounting,
                   ffi::Ffi::Bind().Ctx<Stream>().RemainingArgs().RemainingRets().Attr<ffi::Span<const int64_t>>("limits"));
POISE_CUDA_HANDLER(poise_check, Check, ffi::Ffi::Bind().Ctx<Stream>().RemainingArgs().Ret<ffi::Buffer<ffi::S32>>());
POISE_CUDA_HANDLER(poise_repair, Repair,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<U32>().Arg<U32>().Arg<U32>().Arg<U32>().Ret<U32>().Ret<U32>().Ret<U32>()
                       .Ret<U32>().Ret<ffi::Buffer<ffi::S32>>());
POISE_CUDA_HANDLER(poise_adamw, AdamW,
                   ffi::Ffi::Bind().Ctx<Stream>().RemainingArgs().RemainingRets().Attr<bool>("masks").Attr<bool>("low"));

}  // namespace poise::cuda
