// Kernels for RDNA, in wave32. clang's builtins alone: no header of ROCm, and nothing of its device library is linked.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __attribute__((global, amdgpu_flat_work_group_size(256, 256)))
#define DEVICE static __attribute__((device, always_inline))
#define SHARED static __attribute__((shared))

constexpr u32 THREADS = 256;

DEVICE u32 thread() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 group() { return __builtin_amdgcn_workgroup_id_x(); }

// Fences of "local" alone: what the groups share by LDS is all that they share.
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

DEVICE float as_float(u32 bits) { return __builtin_bit_cast(float, bits); }
DEVICE u32 as_bits(float number) { return __builtin_bit_cast(u32, number); }

// To nearest, ties to even, as PyTorch does.
DEVICE u32 to_bf16(float number) {
  const u32 bits = as_bits(number);
  if (number != number) return 0x7fc0;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

DEVICE u32 to_fp16(float number) { return __builtin_bit_cast(u16, static_cast<_Float16>(number)); }

struct alignas(16) Eight { u32 pairs[4]; };
struct Levels { float of[16]; };

// What the scale of a block is: an fp32 number, or the exponent of a power of two plus 127 (OCP's E8M0).
DEVICE float scale_of(const float *scales, u64 block) { return scales[block]; }
DEVICE float scale_of(const u8 *scales, u64 block) {
  const u32 exponent = scales[block];
  return as_float(exponent ? exponent << 23 : 1 << 22);
}

// Eight nibbles a thread. A word of `packed` is four bytes, the earlier ones lower; `high_first` says which nibble of a
// byte is the earlier number. A block is 1 << `shift` words.
template <typename Scale, bool HIGH_FIRST, u32 (*ROUND)(float)>
DEVICE void dequantize(const u32 *packed, const Scale *scales, u16 *out, u64 words, u32 shift, const Levels &levels) {
  SHARED float table[16];
  if (thread() < 16) table[thread()] = levels.of[thread()];
  barrier();
  const u64 at = u64(group()) * THREADS + thread();
  if (at >= words) return;
  const u32 word = packed[at];
  const float scale = scale_of(scales, at >> shift);
  Eight eight;
  for (int pair = 0; pair < 4; pair++) {
    const u32 low = word >> pair * 8 & 15, high = word >> (pair * 8 + 4) & 15;
    const u32 first = ROUND(table[HIGH_FIRST ? high : low] * scale);
    const u32 second = ROUND(table[HIGH_FIRST ? low : high] * scale);
    eight.pairs[pair] = first | second << 16;
  }
  reinterpret_cast<Eight *>(out)[at] = eight;
}

#define DEQUANTIZE(name, Scale, high_first, round)                                                               \
  KERNEL void name(const u32 *packed, const Scale *scales, u16 *out, u64 words, u32 shift, Levels levels) {      \
    dequantize<Scale, high_first, round>(packed, scales, out, words, shift, levels);                             \
  }

DEQUANTIZE(nf4_to_bf16, float, true, to_bf16)
DEQUANTIZE(nf4_to_fp16, float, true, to_fp16)
DEQUANTIZE(mxfp4_to_bf16, u8, false, to_bf16)
DEQUANTIZE(mxfp4_to_fp16, u8, false, to_fp16)
