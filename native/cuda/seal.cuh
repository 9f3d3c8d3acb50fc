// Seal, check and repair: one warp walks over the 20 blocks of its group, two 16-byte loads per lane and block, several
// blocks in flight; parity stays in eight registers. Nothing but the words is read twice, and only when damaged.
#pragma once
#include "mend.cuh"

namespace poise::cuda {

constexpr int kSealWarps = 8;
constexpr int kAhead = 5;  // blocks whose loads are in flight together

struct SealArgs {
  uint32_t* words;  // written by repair only
  int64_t n;
  uint32_t *parity, *marks, *guard;
  int32_t* count;  // by kind: loud words; blocks off; mended
  uint32_t limit2;
  const int32_t* when = nullptr;  // repair only: nothing is done where this is 0
};

enum class Kind { kSeal, kCount, kCheck, kRepair };

__device__ __forceinline__ int loud(const uint4& x, uint32_t limit2) {
  return ((x.x << 1) >= limit2) + ((x.y << 1) >= limit2) + ((x.z << 1) >= limit2) + ((x.w << 1) >= limit2);
}

// One group of full-size blocks (B = 256).
template <Kind K>
__device__ __forceinline__ void seal_group(const SealArgs& a, const Layout& lay, int64_t g) {
  constexpr bool kReads = K == Kind::kCheck || K == Kind::kRepair;
  const int lane = lane_id();
  uint4 x0 = make_uint4(0, 0, 0, 0), x1 = x0;  // parity
  Sums mine{0, 0};
  int count = 0;
#pragma unroll
  for (int r0 = 0; r0 < kBanks; r0 += kAhead) {
    uint4 w[kAhead][2];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t at = lay.first(r0 + i, g) + 4 * lane;
      w[i][0] = read_quad(a.words, at, a.n);
      w[i][1] = read_quad(a.words, at + 128, a.n);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t p = static_cast<uint32_t>(lay.first(r0 + i, g)) + 4 * lane;
      uint32_t s1 = 0, s2 = 0;
      add_quad(w[i][0], p, s1, s2);
      add_quad(w[i][1], p + 128, s1, s2);
      const Sums s = whole(s1, s2);
      if (lane == r0 + i) mine = s;
      xor_into(x0, w[i][0]);
      xor_into(x1, w[i][1]);
      if (K == Kind::kCount) count += loud(w[i][0], a.limit2) + loud(w[i][1], a.limit2);
    }
  }
  uint4* par = reinterpret_cast<uint4*>(a.parity + g * kBlock);
  bool wrong = false;
  if (kReads) {
    const uint4 p0 = par[lane], p1 = par[lane + 32];
    if (K == Kind::kRepair) {
      const uint32_t y = (x0.x ^ p0.x) | (x0.y ^ p0.y) | (x0.z ^ p0.z) | (x0.w ^ p0.w) | (x1.x ^ p1.x) | (x1.y ^ p1.y) |
                         (x1.z ^ p1.z) | (x1.w ^ p1.w);
      wrong = y != 0;
    }
    x0 = p0, x1 = p1;
  } else {
    par[lane] = x0;
    par[lane + 32] = x1;
  }
  const uint32_t p = static_cast<uint32_t>(lay.first(kBanks, g)) + 4 * lane;
  uint32_t s1 = 0, s2 = 0;
  add_quad(x0, p, s1, s2);
  add_quad(x1, p + 128, s1, s2);
  const Sums s = whole(s1, s2);
  if (lane == kBanks) mine = s;

  if (!kReads) {
    if (lane < kRows) put_mark(a.marks, lay, lane, g, mine);
    const Sums u = guard_of_lanes(mine, g);
    if (lane == 0) *reinterpret_cast<uint2*>(a.guard + 2 * g) = make_uint2(u.s1, u.s2);
    if (K == Kind::kCount) {
      count = __reduce_add_sync(kAll, count);
      if (lane == 0 && count) atomicAdd(a.count, count);
    }
    return;
  }
  Sums stored{0, 0};
  if (lane < kRows) stored = mark_of(a.marks, lay, lane, g);
  const Sums u = guard_of_lanes(stored, g);
  const bool guard_off = u != Sums{a.guard[2 * g], a.guard[2 * g + 1]};
  const uint32_t off = __ballot_sync(kAll, lane < kRows && mine != stored);
  if (K == Kind::kCheck) {
    if (lane == 0 && (off || guard_off)) {
      const uint32_t data = off & ((1u << kBanks) - 1);
      if (data) atomicAdd(a.count, __popc(data));
      if (off >> kBanks) atomicAdd(a.count + 1, 1);
      if (guard_off) atomicAdd(a.count + 2, 1);
    }
  } else if (off || guard_off || __any_sync(kAll, wrong)) {
    report(a.count, mend_group(InShard{a.words, a.n, lay.B, lay.G, g}, a.n, g, a.parity, a.marks, a.guard));
  }
}

// The only group of a small array (B < 256), word by word.
template <Kind K>
__device__ __noinline__ void seal_small(const SealArgs& a, const Layout& lay) {
  const int lane = lane_id(), B = static_cast<int>(lay.B);
  const InShard words{a.words, a.n, lay.B, lay.G, 0};
  if (K == Kind::kRepair) {
    report(a.count, mend_group(words, a.n, 0, a.parity, a.marks, a.guard));
    return;
  }
  Sums mine{0, 0};
  int count = 0;
  for (int r = 0; r < kBanks; ++r) {
    const Sums s = sums_over(B, static_cast<uint32_t>(lay.first(r, 0)), [&](int j) { return words.get(r, j); });
    if (lane == r) mine = s;
  }
  for (int j = lane; j < B && K != Kind::kCheck; j += 32) {
    uint32_t x = 0;
    for (int r = 0; r < kBanks; ++r) {
      x ^= words.get(r, j);
      count += (words.get(r, j) << 1) >= a.limit2;
    }
    a.parity[j] = x;
  }
  __syncwarp();
  const Sums s = sums_over(B, static_cast<uint32_t>(lay.first(kBanks, 0)), [&](int j) { return a.parity[j]; });
  if (lane == kBanks) mine = s;
  if (K == Kind::kCheck) {
    Sums stored{0, 0};
    if (lane < kRows) stored = mark_of(a.marks, lay, lane, 0);
    const Sums u = guard_of_lanes(stored, 0);
    const uint32_t off = __ballot_sync(kAll, lane < kRows && mine != stored);
    if (lane == 0) {  // other arrays may count into the same place
      atomicAdd(a.count, __popc(off & ((1u << kBanks) - 1)));
      atomicAdd(a.count + 1, static_cast<int>(off >> kBanks & 1));
      atomicAdd(a.count + 2, static_cast<int>(u != Sums{a.guard[0], a.guard[1]}));
    }
    return;
  }
  if (lane < kRows) put_mark(a.marks, lay, lane, 0, mine);
  const Sums u = guard_of_lanes(mine, 0);
  if (lane == 0) a.guard[0] = u.s1, a.guard[1] = u.s2;
  count = __reduce_add_sync(kAll, count);
  if (K == Kind::kCount && lane == 0) a.count[0] = count;
}

constexpr int kMany = 40;  // arrays that one launch takes: their arguments fill most of the 4 KiB that a kernel may be given

struct SealMany {
  SealArgs array[kMany];
  unsigned first[kMany + 1];  // the first block of each
};

template <Kind K>
__global__ void __launch_bounds__(32 * kSealWarps) seal_kernel(const __grid_constant__ SealMany many) {
  int k = 0;
  while (blockIdx.x >= many.first[k + 1]) ++k;
  const SealArgs& a = many.array[k];
  if (K == Kind::kRepair && a.when && *a.when == 0) return;
  const Layout lay(a.n);
  const int64_t g = static_cast<int64_t>(blockIdx.x - many.first[k]) * kSealWarps + threadIdx.x / 32;
  if (g >= lay.G) return;
  if (lay.B == kBlock) seal_group<K>(a, lay, g);
  else seal_small<K>(a, lay);
}

// Several arrays, in as few launches as they fit into; what they count is set to zero by the caller.
template <Kind K>
cudaError_t launch_seals(cudaStream_t stream, const SealArgs* arrays, int count) {
  for (int done = 0; done < count;) {
    SealMany many{};
    unsigned blocks = 0;
    int k = 0;
    for (; k < kMany && done < count; ++k, ++done) {
      many.array[k] = arrays[done];
      many.first[k] = blocks;
      blocks += static_cast<unsigned>((Layout(arrays[done].n).G + kSealWarps - 1) / kSealWarps);
    }
    for (; k <= kMany; ++k) many.first[k] = blocks;
    if (blocks) seal_kernel<K><<<blocks, 32 * kSealWarps, 0, stream>>>(many);
    const cudaError_t e = cudaGetLastError();
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

template <Kind K>
cudaError_t launch_seal(cudaStream_t stream, const SealArgs& a, int counts) {
  if (counts) {
    const cudaError_t e = cudaMemsetAsync(a.count, 0, sizeof(int32_t) * counts, stream);
    if (e != cudaSuccess) return e;
  }
  return launch_seals<K>(stream, &a, 1);
}

}  // namespace poise::cuda
