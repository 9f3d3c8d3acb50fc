// Sealed AdamW. Two persistent blocks of ten warps per multiprocessor, each with one group in shared memory: while one
// computes, the other's next group is on its way (cp.async). All 20 blocks of w, m and v are checked before any of the group is
// written: a damaged block is rebuilt inside shared memory, and a group beyond repair is left untouched. Each of a group's
// blocks is fetched anew as soon as its warp has read it for the update. The new parity is gathered with XORs in registers,
// then in shared memory; marks and guard are written by three warps. Everything about ragged ends is kept out of the common
// path.
//
// Blocks draw the next group when they are ready for it. So the groups that are on their way at one time are neighbours, and
// each of the 80 streams (20 banks of four arrays) is read and written in order; with a fixed share per block they drift apart,
// and memory serves 1 KiB here, 1 KiB there: a tenth slower.
#pragma once
#include <cuda_bf16.h>

#include "seal.cuh"

namespace poise::cuda {

struct Hyper {
  float lr, b1, one_b1, b2, one_b2, eps, wd, inv1, inv2, clip;
};

struct AdamWArgs {
  uint32_t *words[3], *parity[3], *marks[3], *guard[3];
  const float *g, *lr_mask, *wd_mask, *hyper;
  const int32_t* ok;
  __nv_bfloat16* low;
  int32_t* mended;  // [3][5], then the number of groups drawn
  int64_t n;
  int G;  // groups
};

// First word of block r of group g, for full-size blocks.
__device__ __forceinline__ int64_t first_word(int r, int G, int g) { return (static_cast<int64_t>(r) * G + g) * kBlock; }

constexpr int kAdamWWarps = kBanks / 2;  // each has two blocks of words
constexpr int kAdamWThreads = 32 * kAdamWWarps;

// One group in shared memory.
struct Stage {
  uint32_t words[3][kBanks][kBlock];
  float g[kBanks][kBlock];
  uint2 marks[3][kBanks];
};

// What the update needs of the hyperparameters, folded: m1 = b1 m + gm g, v1 = b2 v + gv g^2,
// w -= lr (m1 / (sqrt(v1) root + eps) + wd w).
struct Folded {
  float lr, b1, gm, b2, gv, root, eps, wd;

  Folded() = default;
  __device__ explicit Folded(const float* hyper) {
    Hyper h;
    memcpy(&h, hyper, sizeof h);
    lr = h.lr, b1 = h.b1, gm = h.one_b1 * h.clip, b2 = h.b2, gv = h.one_b2 * (h.clip * h.clip);
    root = sqrtf(h.inv2) / h.inv1, eps = h.eps / h.inv1, wd = h.wd;
  }
};

struct AdamWShared {
  Stage stage;
  uint32_t parity[2][3][kBlock];
  uint2 marks[2][3][kBanks];
  Folded hyper;  // here rather than in registers, which the loop needs
  int lost, drawn;
};

template <int SIZE>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if (SIZE == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(at), "l"(from) : "memory");
}

// Where a block is cut short by the end of the shard: words behind it become zero.
__device__ __noinline__ void fetch_ragged(const AdamWArgs& a, Stage& st, int64_t first, int r) {
  for (int j = lane_id(); j < kBlock; j += 32) {
    const bool in = first + j < a.n;
    for (int s = 0; s < 3; ++s) st.words[s][r][j] = in ? a.words[s][first + j] : 0u;
    st.g[r][j] = in ? a.g[first + j] : 0.0f;
  }
  __syncwarp();
}

// Block r of group g on its way into shared memory.
__device__ __forceinline__ void fetch(const AdamWArgs& a, Stage& st, int g, int r) {
  if (g >= a.G) return;
  const int lane = lane_id();
  const int64_t first = first_word(r, a.G, g);
  if (first + kBlock <= a.n) {
    const int64_t at = first + 4 * lane;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int s = 0; s < 3; ++s) copy_async<16>(&st.words[s][r][4 * lane + 128 * k], a.words[s] + at + 128 * k);
      copy_async<16>(&st.g[r][4 * lane + 128 * k], a.g + at + 128 * k);
    }
  } else {
    fetch_ragged(a, st, first, r);
  }
  if (lane < 3) {
    const uint32_t* m = lane == 0 ? a.marks[0] : lane == 1 ? a.marks[1] : a.marks[2];
    copy_async<8>(&st.marks[lane][r], m + 2 * (static_cast<int64_t>(r) * a.G + g));
  }
}

// The blocks of one array in a stage; what is mended goes to the shard as well.
struct InStage {
  uint32_t* block;  // [kBanks][kBlock]
  InShard shard;
  __device__ uint32_t get(int r, int j) const { return block[r * kBlock + j]; }
  __device__ void put(int r, int j, uint32_t x) const {
    block[r * kBlock + j] = x;
    shard.put(r, j, x);
  }
};

// All warps of the block come here together; the first three mend one array each. Returns whether the group may be written.
__device__ __noinline__ bool mend_stage(const AdamWArgs& a, AdamWShared& sh, Stage& st, int g, int warp) {
  if (threadIdx.x == 0) sh.lost = 0;
  __syncthreads();
  if (warp < 3) {
    const InStage words{&st.words[warp][0][0], InShard{a.words[warp], a.n, kBlock, a.G, g}};
    const Mended m = mend_group(words, a.n, g, a.parity[warp], a.marks[warp], a.guard[warp]);
    report(a.mended + 5 * warp, m);
    if (m.unrepairable && lane_id() == 0) sh.lost = 1;
  }
  __syncthreads();
  return sh.lost == 0;
}

// Equal to the CPU kernel and the twin within a few units in the last place; what the approximations flush to zero is far
// below eps.
__device__ __forceinline__ void adamw_update(const Folded& h, float& w, float& m, float& v, float g, float lr, float wd) {
  m = h.b1 * m + h.gm * g;
  v = h.b2 * v + h.gv * (g * g);
  float root, step;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(v));
  asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(step) : "f"(m), "f"(root * h.root + h.eps));
  w -= lr * (step + wd * w);
}

__device__ __forceinline__ void store_low(__nv_bfloat16* low, int64_t at, const uint4& x) {
  __nv_bfloat162 half[2] = {__floats2bfloat162_rn(__uint_as_float(x.x), __uint_as_float(x.y)),
                            __floats2bfloat162_rn(__uint_as_float(x.z), __uint_as_float(x.w))};
  *reinterpret_cast<uint2*>(low + at) = *reinterpret_cast<const uint2*>(half);
}

template <bool MASKS>
__device__ __forceinline__ void update_quad(const AdamWArgs& a, const Folded& h, int64_t at, uint4& w, uint4& m, uint4& v,
                                            const float4& g) {
  float4 lr = make_float4(h.lr, h.lr, h.lr, h.lr), wd = make_float4(h.wd, h.wd, h.wd, h.wd);
  if (MASKS) {
    const uint4 l = *reinterpret_cast<const uint4*>(a.lr_mask + at), d = *reinterpret_cast<const uint4*>(a.wd_mask + at);
    lr.x *= __uint_as_float(l.x), lr.y *= __uint_as_float(l.y), lr.z *= __uint_as_float(l.z), lr.w *= __uint_as_float(l.w);
    wd.x *= __uint_as_float(d.x), wd.y *= __uint_as_float(d.y), wd.z *= __uint_as_float(d.z), wd.w *= __uint_as_float(d.w);
  }
  auto one = [&](uint32_t& wi, uint32_t& mi, uint32_t& vi, float gi, float l, float d) {
    float wf = __uint_as_float(wi), mf = __uint_as_float(mi), vf = __uint_as_float(vi);
    adamw_update(h, wf, mf, vf, gi, l, d);
    wi = __float_as_uint(wf), mi = __float_as_uint(mf), vi = __float_as_uint(vf);
  };
  one(w.x, m.x, v.x, g.x, lr.x, wd.x);
  one(w.y, m.y, v.y, g.y, lr.y, wd.y);
  one(w.z, m.z, v.z, g.z, lr.z, wd.z);
  one(w.w, m.w, v.w, g.w, lr.w, wd.w);
}

__device__ __forceinline__ uint4 quad_at(const uint32_t* words, int k) {
  return *reinterpret_cast<const uint4*>(words + 4 * lane_id() + 128 * k);
}

// Whether block r of the three arrays matches its marks.
__device__ __forceinline__ bool matches(const Stage& st, int r, uint32_t position) {
  bool good = true;
#pragma unroll
  for (int s = 0; s < 3; ++s) {
    uint32_t s1 = 0, s2 = 0;
    add_quad(quad_at(st.words[s][r], 0), position, s1, s2);
    add_quad(quad_at(st.words[s][r], 1), position + 128, s1, s2);
    const Sums now = whole(s1, s2);
    const uint2 then = st.marks[s][r];
    good = good && now.s1 == then.x && now.s2 == then.y;
  }
  return good;
}

// A block cut short by the end of the shard, word by word; the padding behind it stays zero.
__device__ __noinline__ void ragged_block(const AdamWArgs& a, AdamWShared& sh, int64_t first, int r, int b, bool write) {
  uint32_t s1[3] = {}, s2[3] = {};
  for (int i = 0; i < kEach; ++i) {
    const int j = lane_id() + 32 * i;
    const bool in = first + j < a.n;
    uint32_t x[3];
    for (int s = 0; s < 3; ++s) x[s] = sh.stage.words[s][r][j];
    if (write && in) {
      float w = __uint_as_float(x[0]), m = __uint_as_float(x[1]), v = __uint_as_float(x[2]);
      const float lr = a.lr_mask ? a.lr_mask[first + j] : 1.0f, wd = a.wd_mask ? a.wd_mask[first + j] : 1.0f;
      adamw_update(sh.hyper, w, m, v, sh.stage.g[r][j], sh.hyper.lr * lr, sh.hyper.wd * wd);
      x[0] = __float_as_uint(w), x[1] = __float_as_uint(m), x[2] = __float_as_uint(v);
      for (int s = 0; s < 3; ++s) a.words[s][first + j] = x[s];
    }
    if (a.low && in) a.low[first + j] = __float2bfloat16_rn(__uint_as_float(x[0]));
    for (int s = 0; s < 3 && write; ++s) {
      add_word(x[s], salt(static_cast<uint32_t>(first) + j), s1[s], s2[s]);
      atomicXor(&sh.parity[b][s][(j & 128) + (j & 3) * 32 + ((j & 127) >> 2)], x[s]);
    }
  }
  for (int s = 0; s < 3; ++s) {
    const Sums now = whole(s1[s], s2[s]);
    if (write && lane_id() == 0) sh.marks[b][s][r] = make_uint2(now.s1, now.s2);
  }
}

template <bool MASKS>
__global__ void __launch_bounds__(kAdamWThreads, 2) adamw_kernel(const __grid_constant__ AdamWArgs a) {
  extern __shared__ __align__(16) unsigned char raw[];
  AdamWShared& sh = *reinterpret_cast<AdamWShared*>(raw);
  Stage& st = sh.stage;
  const int warp = threadIdx.x / 32, lane = lane_id();
  const bool ok = *a.ok != 0;
  if (threadIdx.x == 0) sh.hyper = Folded(a.hyper);
  for (int i = threadIdx.x; i < 2 * 3 * kBlock; i += kAdamWThreads) (&sh.parity[0][0][0])[i] = 0;
  fetch(a, st, blockIdx.x, warp);
  fetch(a, st, blockIdx.x, warp + kAdamWWarps);
  __syncthreads();

  int b = 0, next;
#pragma unroll 1
  for (int g = blockIdx.x; g < a.G; g = next, b ^= 1) {
    int drawn = 0;  // asked for before it is needed: the answer takes as long as a check
    if (threadIdx.x == 0) drawn = atomicAdd(a.mended + 15, 1) + static_cast<int>(gridDim.x);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    bool good = true;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp + half * kAdamWWarps;
      good = matches(st, r, static_cast<uint32_t>(first_word(r, a.G, g)) + 4 * lane) && good;
    }
    if (threadIdx.x == 0) sh.drawn = drawn;
    bool write = ok;
    if (__syncthreads_or(!good || !ok)) write = mend_stage(a, sh, st, g, warp) && ok;
    next = sh.drawn;

    uint4 parity[3][2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp + half * kAdamWWarps;
      const int64_t first = first_word(r, a.G, g), at = first + 4 * lane;
      if (first + kBlock > a.n) {
        ragged_block(a, sh, first, r, b, write);
        __syncwarp();
        fetch(a, st, next, r);
        continue;
      }
      uint4 x[3][2];
      float4 grad[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int s = 0; s < 3; ++s) x[s][k] = quad_at(st.words[s][r], k);
        grad[k] = *reinterpret_cast<const float4*>(&st.g[r][4 * lane + 128 * k]);
      }
      __syncwarp();  // all lanes have read the block: it can be filled again
      fetch(a, st, next, r);
      if (write) {
#pragma unroll
        for (int k = 0; k < 2; ++k) update_quad<MASKS>(a, sh.hyper, at + 128 * k, x[0][k], x[1][k], x[2][k], grad[k]);
#pragma unroll
        for (int s = 0; s < 3; ++s) {
          uint32_t s1 = 0, s2 = 0;
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            *reinterpret_cast<uint4*>(a.words[s] + at + 128 * k) = x[s][k];
            add_quad(x[s][k], static_cast<uint32_t>(at) + 128 * k, s1, s2);
            xor_into(parity[s][k], x[s][k]);
          }
          const Sums now = whole(s1, s2);
          if (lane == 0) sh.marks[b][s][r] = make_uint2(now.s1, now.s2);
        }
      }
      if (a.low)
#pragma unroll
        for (int k = 0; k < 2; ++k) store_low(a.low, at + 128 * k, x[0][k]);
    }
    if (write) {
#pragma unroll
      for (int s = 0; s < 3; ++s)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          uint32_t* to = &sh.parity[b][s][128 * k + lane];  // word i of a lane's quad at 32 i + lane: no bank conflicts
          atomicXor(to, parity[s][k].x), atomicXor(to + 32, parity[s][k].y);
          atomicXor(to + 64, parity[s][k].z), atomicXor(to + 96, parity[s][k].w);
        }
    }
    __syncthreads();
    if (warp < 3 && write) {  // the others go on to the next group; they come back to this buffer two barriers later
      Sums mine{0, 0};
      uint32_t s1 = 0, s2 = 0;
      const uint32_t pp = static_cast<uint32_t>(first_word(kBanks, a.G, g)) + 4 * lane;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        uint32_t* at = &sh.parity[b][warp][128 * k + lane];
        const uint4 y = make_uint4(at[0], at[32], at[64], at[96]);
        at[0] = at[32] = at[64] = at[96] = 0;
        add_quad(y, pp + 128 * k, s1, s2);
        *reinterpret_cast<uint4*>(a.parity[warp] + static_cast<int64_t>(g) * kBlock + 4 * lane + 128 * k) = y;
      }
      const Sums sums = whole(s1, s2);
      if (lane < kBanks) mine = {sh.marks[b][warp][lane].x, sh.marks[b][warp][lane].y};
      if (lane == kBanks) mine = sums;
      if (lane < kRows)
        *reinterpret_cast<uint2*>(a.marks[warp] + 2 * (static_cast<int64_t>(lane) * a.G + g)) = make_uint2(mine.s1, mine.s2);
      const Sums u = guard_of_lanes(mine, g);
      if (lane == 0) *reinterpret_cast<uint2*>(a.guard[warp] + 2 * g) = make_uint2(u.s1, u.s2);
    }
  }
}

// Small arrays (one group of short blocks): one warp does it all.
__global__ void adamw_small_kernel(const __grid_constant__ AdamWArgs a) {
  const Layout lay(a.n);
  const int lane = lane_id(), B = static_cast<int>(lay.B);
  const Folded h(a.hyper);
  bool write = *a.ok != 0;
  const bool look = !write;
  for (int s = 0; s < 3; ++s) {
    const InShard words{a.words[s], a.n, lay.B, lay.G, 0};
    bool bad = look;
    for (int r = 0; r < kBanks; ++r) {
      const Sums now = sums_over(B, static_cast<uint32_t>(lay.first(r, 0)), [&](int j) { return words.get(r, j); });
      bad = bad || now != mark_of(a.marks[s], lay, r, 0);
    }
    if (!bad) continue;
    const Mended m = mend_group(words, a.n, 0, a.parity[s], a.marks[s], a.guard[s]);
    report(a.mended + 5 * s, m);
    write = write && m.unrepairable == 0;
  }
  __syncwarp();
  for (int64_t i = lane; i < a.n; i += 32) {
    float w = __uint_as_float(a.words[0][i]), m = __uint_as_float(a.words[1][i]), v = __uint_as_float(a.words[2][i]);
    if (write) {
      adamw_update(h, w, m, v, a.g[i], a.lr_mask ? h.lr * a.lr_mask[i] : h.lr, a.wd_mask ? h.wd * a.wd_mask[i] : h.wd);
      a.words[0][i] = __float_as_uint(w), a.words[1][i] = __float_as_uint(m), a.words[2][i] = __float_as_uint(v);
    }
    if (a.low) a.low[i] = __float2bfloat16_rn(w);
  }
  __syncwarp();
  for (int s = 0; s < 3 && write; ++s)
    seal_small<Kind::kSeal>(SealArgs{a.words[s], a.n, a.parity[s], a.marks[s], a.guard[s], nullptr, 0}, lay);
}

inline cudaError_t launch_adamw(cudaStream_t stream, const AdamWArgs& a) {
  cudaError_t e = cudaMemsetAsync(a.mended, 0, sizeof(int32_t) * 16, stream);
  if (e != cudaSuccess) return e;
  const Layout lay(a.n);
  if (lay.B < kBlock) {
    adamw_small_kernel<<<1, 32, 0, stream>>>(a);
    return cudaGetLastError();
  }
  int device = 0, processors = 0, room = 0;
  if ((e = cudaGetDevice(&device)) != cudaSuccess) return e;
  if ((e = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) != cudaSuccess) return e;
  if ((e = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device)) != cudaSuccess) return e;
  auto kernel = a.lr_mask ? adamw_kernel<true> : adamw_kernel<false>;
  const int bytes = static_cast<int>(sizeof(AdamWShared));
  if ((e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) != cudaSuccess) return e;
  const int64_t slots = static_cast<int64_t>(processors) * (room >= 2 * (bytes + 1024) ? 2 : 1);
  const unsigned grid = static_cast<unsigned>(lay.G < slots ? lay.G : slots);
  AdamWArgs with_groups = a;
  with_groups.G = static_cast<int>(lay.G);
  kernel<<<grid, kAdamWThreads, bytes, stream>>>(with_groups);
  return cudaGetLastError();
}

}  // namespace poise::cuda
