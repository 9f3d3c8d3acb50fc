// jax.ffi shims of the record kernels (CUDA).
#include "ffi_common.cuh"
#include "record.cuh"

namespace poise::cuda {
namespace {

using U32 = ffi::Buffer<ffi::U32>;
using F32 = ffi::Buffer<ffi::F32>;
using OutU32 = ffi::ResultBuffer<ffi::U32>;

template <bool TO_ROWS>
ffi::Error Repack(cudaStream_t stream, U32 in, OutU32 out) {
  const int64_t n = static_cast<int64_t>(in.element_count()) / 8;
  pack_kernel<TO_ROWS><<<static_cast<unsigned>((n + kPackRows - 1) / kPackRows), kPackRows, 0, stream>>>(in.typed_data(),
                                                                                                        out->typed_data(), n);
  return outcome(cudaGetLastError());
}

// found = (bad rows - 1, first bad row), started by one memset.
ffi::Error Update(cudaStream_t stream, U32 rows, F32 g, F32 hyper, int32_t cell, ffi::Span<const double> rule, OutU32 out,
                  ffi::ResultBuffer<ffi::S32> found) {
  const int64_t n = static_cast<int64_t>(g.element_count());
  cudaError_t e = in_place(stream, rows.typed_data(), out->typed_data(), rows.size_bytes());
  if (e == cudaSuccess) e = cudaMemsetAsync(found->typed_data(), 0xFF, 2 * sizeof(int32_t), stream);
  if (e != cudaSuccess) return outcome(e);
  auto kernel = cell == kPim ? record_kernel<kPim> : record_kernel<kPinn>;
  kernel<<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream>>>(gate_of<float>(rule), out->typed_data(), g.typed_data(),
                                                                     hyper.typed_data(), n, found->typed_data());
  return outcome(cudaGetLastError());
}

// Arguments as in cpu/ffi_record.cc.
ffi::Error Gradient(cudaStream_t stream, ffi::RemainingArgs args, int64_t columns, float factor, bool given, bool halo,
                    ffi::Span<const double> rule, OutU32 out, ffi::ResultBuffer<ffi::S32> found) {
  if (args.size() != 1 + size_t{given} + 2 * size_t{halo})
    return ffi::Error::InvalidArgument("poise_record_gradient: wrong number of arguments");
  const auto rows = args.get<U32>(0);
  if (!rows) return rows.error();
  cudaError_t e = in_place(stream, rows->typed_data(), out->typed_data(), rows->size_bytes());
  if (e == cudaSuccess) e = cudaMemsetAsync(found->typed_data(), 0xFF, 2 * sizeof(int32_t), stream);
  if (e != cudaSuccess) return outcome(e);
  GradientArgs a{out->typed_data(), nullptr, nullptr, nullptr, static_cast<int64_t>(rows->element_count()) / 8, columns, factor};
  if (given) a.flux = args.get<F32>(1)->typed_data();
  if (halo) a.west = args.get<F32>(1 + given)->typed_data(), a.east = args.get<F32>(2 + given)->typed_data();
  gradient_kernel<<<static_cast<unsigned>((a.n + 255) / 256), 256, 0, stream>>>(a, gate_of<float>(rule), found->typed_data());
  return outcome(cudaGetLastError());
}

constexpr auto Pack = Repack<true>;
constexpr auto Unpack = Repack<false>;

}  // namespace

POISE_CUDA_HANDLER(poise_pack, Pack, ffi::Ffi::Bind().Ctx<Stream>().Arg<U32>().Ret<U32>());
POISE_CUDA_HANDLER(poise_unpack, Unpack, ffi::Ffi::Bind().Ctx<Stream>().Arg<U32>().Ret<U32>());
POISE_CUDA_HANDLER(poise_record_update, Update,
                   ffi::Ffi::Bind().Ctx<Stream>().Arg<U32>().Arg<F32>().Arg<F32>().Attr<int32_t>("cell")
                       .Attr<ffi::Span<const double>>("rule").Ret<U32>().Ret<ffi::Buffer<ffi::S32>>());
POISE_CUDA_HANDLER(poise_record_gradient, Gradient,
                   ffi::Ffi::Bind().Ctx<Stream>().RemainingArgs().Attr<int64_t>("columns").Attr<float>("factor")
                       .Attr<bool>("given").Attr<bool>("halo").Attr<ffi::Span<const double>>("rule").Ret<U32>()
                       .Ret<ffi::Buffer<ffi::S32>>());

}  // namespace poise::cuda
