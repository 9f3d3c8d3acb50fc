// What the CUDA shims share. Handlers only enqueue on the stream they are given: no allocation, no synchronisation, so they
// can be captured into command buffers.
#pragma once
#include <cuda_runtime.h>

#include "poise/gate.h"
#include "xla/ffi/api/ffi.h"

namespace poise::cuda {

namespace ffi = xla::ffi;

using Stream = ffi::PlatformStream<cudaStream_t>;

inline ffi::Error outcome(cudaError_t e) {
  if (e == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("poise CUDA kernel: ") + cudaGetErrorString(e));
}

template <class T>
Gate<T> gate_of(ffi::Span<const double> rule) {
  Gate<T> gate{};
  gate.limit = static_cast<T>(rule[0]), gate.fill = static_cast<T>(rule[1]);
  for (size_t i = 2; i + 1 < rule.size() && gate.markers < kMarkers; i += 2) {
    gate.marker[gate.markers] = static_cast<T>(rule[i]);
    gate.width[gate.markers++] = static_cast<T>(rule[i + 1]);
  }
  return gate;
}

// In place by contract (the caller aliases); copies if XLA gave two buffers all the same.
inline cudaError_t in_place(cudaStream_t stream, const void* in, void* out, size_t bytes) {
  return in == out ? cudaSuccess : cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, stream);
}

#define POISE_CUDA_HANDLER(name, impl, binding) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, impl, binding, {xla::ffi::Traits::kCmdBufferCompatible})

}  // namespace poise::cuda
