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
  return (number != number ? 0x7fc00000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

DEVICE u32 to_fp16(float number) { return __builtin_bit_cast(u16, static_cast<_Float16>(number)); }

DEVICE float from_bf16(u16 bits) { return as_float(u32(bits) << 16); }
DEVICE float from_fp16(u16 bits) { return static_cast<float>(__builtin_bit_cast(_Float16, bits)); }

// A type of 16 bits.
struct Bf16 {
  static constexpr auto to = to_bf16;
  static constexpr auto from = from_bf16;
};
struct Fp16 {
  static constexpr auto to = to_fp16;
  static constexpr auto from = from_fp16;
};

// Number `index` of a tensor, which is in fp32 or in 16 bits.
template <typename Half>
DEVICE float load(const void *tensor, bool is_full, u64 index) {
  if (is_full) return static_cast<const float *>(tensor)[index];
  return Half::from(static_cast<const u16 *>(tensor)[index]);
}
// Returns the number as it is stored.
template <typename Half>
DEVICE float store(void *tensor, bool is_full, u64 index, float number) {
  if (is_full) return static_cast<float *>(tensor)[index] = number;
  return Half::from(static_cast<u16 *>(tensor)[index] = Half::to(number));
}

constexpr u32 WAVE = 32, WAVES = THREADS / WAVE;

// The sum over so many neighbouring lanes, all of which are active, in each of them.
template <u32 LANES>
DEVICE float sum_of_lanes(float number) {
  for (u32 step = LANES / 2; step; step /= 2) {
    number += as_float(__builtin_amdgcn_ds_bpermute((thread() ^ step) * 4, as_bits(number)));
  }
  return number;
}

// The sum over a workgroup in each of its lanes; `parts` are for this sum alone.
DEVICE float sum_of_group(float number, float *parts) {
  number = sum_of_lanes<WAVE>(number);
  if (thread() % WAVE == 0) parts[thread() / WAVE] = number;
  barrier();
  return sum_of_lanes<WAVES>(parts[thread() % WAVES]);
}

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

// A norm of rows: what `input` and `change` add up to, normalised, times `weight` and the sample's `factor`, plus its `shift`
// and `residual`. Whatever is null is left out.
struct Norm {
  const void *input;
  const u16 *change;
  const float *weight, *factor, *shift;
  const void *residual;
  void *sum, *output;
  float *statistics;  // of each row: mean, and one over the root of the variance
  u32 width, rows;    // the rows of a sample
  u32 stride;         // from a sample's factor or shift to the next one's
  u32 is_full, gives_full;  // whether input and sum, residual and output are in fp32
  u32 is_centred;
  float inverse, epsilon;   // of the width; and what is added to the variance
};

// The sample of this group's row. There are few.
DEVICE u32 sample_of(u32 rows) {
  u32 sample = 0;
  for (u32 row = group(); row >= rows; row -= rows) sample++;
  return sample;
}

template <typename Half>
DEVICE void norm(const Norm &args) {
  SHARED float parts[2][WAVES];
  const u64 first = u64(group()) * args.width, vectors = u64(sample_of(args.rows)) * args.stride;
  float total = 0;
  if (args.change || args.is_centred) {
    for (u32 at = thread(); at < args.width; at += THREADS) {
      float number = load<Half>(args.input, args.is_full, first + at);
      if (args.change) {
        number = store<Half>(args.sum, args.is_full, first + at, number + Half::from(args.change[first + at]));
      }
      total += number;
    }
  }
  const void *input = args.change ? args.sum : args.input;
  const float mean = args.is_centred ? sum_of_group(total, parts[0]) * args.inverse : 0;
  float squares = 0;
  for (u32 at = thread(); at < args.width; at += THREADS) {
    const float number = load<Half>(input, args.is_full, first + at) - mean;
    squares += number * number;
  }
  const float scale = __builtin_amdgcn_rsqf(sum_of_group(squares, parts[1]) * args.inverse + args.epsilon);
  if (thread() == 0) {
    args.statistics[2 * group()] = mean;
    args.statistics[2 * group() + 1] = scale;
  }
  for (u32 at = thread(); at < args.width; at += THREADS) {
    float number = (load<Half>(input, args.is_full, first + at) - mean) * scale;
    if (args.weight) number *= args.weight[at];
    if (args.factor) number *= args.factor[vectors + at];
    if (args.shift) number += args.shift[vectors + at];
    if (args.residual) number += load<Half>(args.residual, args.gives_full, first + at);
    store<Half>(args.output, args.gives_full, first + at, number);
  }
}

// The gradients of the same: from those of its output and, if `change` was added, of the sum.
struct NormBackward {
  const void *gradient, *input;  // `input` is the sum
  const float *weight, *factor, *statistics;
  const void *of_sum;
  void *of_input;
  u16 *of_change;  // the same number as `of_input`
  u32 width, rows, stride, is_full, gives_full, is_centred;
  float inverse;
};

template <typename Half>
DEVICE void norm_backward(const NormBackward &args) {
  SHARED float parts[2][WAVES];
  const u64 first = u64(group()) * args.width, vectors = u64(sample_of(args.rows)) * args.stride;
  const float mean = args.statistics[2 * group()], scale = args.statistics[2 * group() + 1];
  // Of what the weight and the factor multiply.
  const auto gradient = [&](u32 at) {
    float number = load<Half>(args.gradient, args.gives_full, first + at);
    if (args.weight) number *= args.weight[at];
    if (args.factor) number *= args.factor[vectors + at];
    return number;
  };
  const auto normed = [&](u32 at) { return (load<Half>(args.input, args.is_full, first + at) - mean) * scale; };
  float total = 0, products = 0;
  for (u32 at = thread(); at < args.width; at += THREADS) {
    const float number = gradient(at);
    total += number;
    products += number * normed(at);
  }
  total = args.is_centred ? sum_of_group(total, parts[0]) * args.inverse : 0;
  products = sum_of_group(products, parts[1]) * args.inverse;
  for (u32 at = thread(); at < args.width; at += THREADS) {
    float number = (gradient(at) - total - normed(at) * products) * scale;
    if (args.of_sum) number += load<Half>(args.of_sum, args.is_full, first + at);
    store<Half>(args.of_input, args.is_full, first + at, number);
    if (args.of_change) args.of_change[first + at] = Half::to(number);
  }
}

// Heads of tokens, normalised if `inverse` is not zero, and their first `turned` numbers rotated in pairs. A workgroup has a
// token, a wave takes one head after the other.
struct Heads {
  const u16 *input;
  const float *weight;
  const void *cosines, *sines;
  u16 *output;
  const u16 *gradient;   // backward only: `output` is then the gradient of `input`
  u32 heads, width, turned, tokens;  // tokens of a sample
  u32 sample, token, pair;  // from one to the next in the tables; a table for all samples has zero
  u32 is_full;           // whether the tables are in fp32
  u32 next, partner;     // from a pair's first number to the next pair's, and to its second
  float inverse, epsilon;
};

template <typename Half, bool BACKWARD>
DEVICE void heads(const Heads &args) {
  const u32 lane = thread() % WAVE, sample = sample_of(args.tokens);
  const u64 angles = u64(sample) * args.sample + u64(group() - sample * args.tokens) * args.token;
  for (u32 head = __builtin_amdgcn_readfirstlane(thread() / WAVE); head < args.heads; head += WAVES) {
    const u64 first = (u64(group()) * args.heads + head) * args.width;
    const auto number = [&](u32 at) { return Half::from(args.input[first + at]); };
    const auto weight = [&](u32 at) { return args.weight ? args.weight[at] : 1; };
    const auto each_pair = [&](auto use) {
      for (u32 pair = lane; pair < args.turned / 2; pair += WAVE) {
        const u64 angle = angles + pair * args.pair;
        use(pair * args.next, pair * args.next + args.partner, load<Half>(args.cosines, args.is_full, angle),
            load<Half>(args.sines, args.is_full, angle));
      }
    };
    // The gradient before the rotation.
    const auto turned_back = [&](auto use) {
      each_pair([&](u32 one, u32 other, float cosine, float sine) {
        const float a = Half::from(args.gradient[first + one]), b = Half::from(args.gradient[first + other]);
        use(one, a * cosine + b * sine);
        use(other, b * cosine - a * sine);
      });
      for (u32 at = args.turned + lane; at < args.width; at += WAVE) use(at, Half::from(args.gradient[first + at]));
    };
    float scale = 1, products = 0;
    if (args.inverse != 0) {
      float squares = 0;
      for (u32 at = lane; at < args.width; at += WAVE) squares += number(at) * number(at);
      scale = __builtin_amdgcn_rsqf(sum_of_lanes<WAVE>(squares) * args.inverse + args.epsilon);
    }
    if constexpr (BACKWARD) {
      if (args.inverse != 0) {
        turned_back([&](u32 at, float gradient) { products += gradient * weight(at) * number(at); });
        products = sum_of_lanes<WAVE>(products) * args.inverse * scale * scale;
      }
      turned_back([&](u32 at, float gradient) {
        args.output[first + at] = Half::to((gradient * weight(at) - number(at) * products) * scale);
      });
    } else {
      each_pair([&](u32 one, u32 other, float cosine, float sine) {
        const float a = number(one) * scale * weight(one), b = number(other) * scale * weight(other);
        args.output[first + one] = Half::to(a * cosine - b * sine);
        args.output[first + other] = Half::to(b * cosine + a * sine);
      });
      for (u32 at = args.turned + lane; at < args.width; at += WAVE) {
        args.output[first + at] = Half::to(number(at) * scale * weight(at));
      }
    }
  }
}

#define OF_ROWS(Half, suffix)                                                                                    \
  KERNEL void norm_##suffix(Norm args) { norm<Half>(args); }                                                     \
  KERNEL void norm_backward_##suffix(NormBackward args) { norm_backward<Half>(args); }                           \
  KERNEL void heads_##suffix(Heads args) { heads<Half, false>(args); }                                           \
  KERNEL void heads_backward_##suffix(Heads args) { heads<Half, true>(args); }

OF_ROWS(Bf16, bf16)
OF_ROWS(Fp16, fp16)
