//! The storage formats of GGUF tensors, and how to dequantise each to fp32.
//!
//! A quantised tensor is a sequence of blocks. A block holds 32 or 256 elements as small integers with one or
//! two scales. The layouts are ggml's (`ggml-common.h`); tests compare every format with the `gguf` Python
//! package.

use half::{bf16, f16};

/// How the elements of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// 16-bit brain floats.
    BF16,
    /// 4 bits per element and a scale per 32 elements.
    Q4_0,
    /// 4 bits per element, a scale and a minimum per 32 elements.
    Q4_1,
    /// 5 bits per element and a scale per 32 elements.
    Q5_0,
    /// 5 bits per element, a scale and a minimum per 32 elements.
    Q5_1,
    /// 8 bits per element and a scale per 32 elements.
    Q8_0,
    /// 4 bits per element, with 6-bit scales and minima for 8 groups of 32 elements.
    Q4K,
    /// 5 bits per element, with 6-bit scales and minima for 8 groups of 32 elements.
    Q5K,
    /// 6 bits per element, with 8-bit scales for 16 groups of 16 elements.
    Q6K,
    /// Floats of 4 bits, and a power of two per 32 elements.
    Mxfp4,
}

impl Format {
    /// All supported formats.
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Mxfp4,
    ];

    /// The format with this code in the file (`enum ggml_type`).
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.code() == code)
    }

    /// Its code in the file.
    pub fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::BF16 => 30,
            Self::Mxfp4 => 39,
        }
    }

    /// Its name in GGUF tools.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Mxfp4 => "MXFP4",
        }
    }

    /// Elements per block.
    pub fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Mxfp4 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 2 + 2 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 2 + 2 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q4K => 2 + 2 + 12 + 128,
            Self::Q5K => 2 + 2 + 12 + 32 + 128,
            Self::Q6K => 128 + 64 + 16 + 2,
            Self::Mxfp4 => 1 + 16,
        }
    }

    /// Bytes that `numbers` elements take; `None` if they are not whole blocks or too many.
    pub fn bytes_of(self, numbers: u64) -> Option<u64> {
        let block = self.block_elements() as u64;
        if !numbers.is_multiple_of(block) {
            return None;
        }
        (numbers / block).checked_mul(self.block_bytes() as u64)
    }

    /// Dequantises `bytes` to `out.len()` elements.
    ///
    /// Both must be the same number of whole blocks, as [`Format::bytes_of`] computes; elements without bytes
    /// keep their value.
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
        let decode: fn(&[u8], &mut [f32]) = match self {
            Self::F32 => |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            Self::F16 => |b, y| y[0] = f16_at(b, 0),
            Self::BF16 => |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            Self::Q4_0 => q4_0,
            Self::Q4_1 => q4_1,
            Self::Q5_0 => q5_0,
            Self::Q5_1 => q5_1,
            Self::Q8_0 => q8_0,
            Self::Q4K => q4_k,
            Self::Q5K => q5_k,
            Self::Q6K => q6_k,
            Self::Mxfp4 => mxfp4,
        };
        let blocks = bytes.chunks_exact(self.block_bytes());
        for (block, numbers) in blocks.zip(out.chunks_exact_mut(self.block_elements())) {
            decode(block, numbers);
        }
    }
}

// Each function below decodes one block: `b` has `block_bytes` bytes and `y` has `block_elements` elements,
// which `dequantize` guarantees.

fn f16_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// The low nibbles are the first half of the block, the high nibbles the second half.
fn q4_0(b: &[u8], y: &mut [f32]) {
    let scale = f16_at(b, 0);
    for (i, byte) in b[2..].iter().enumerate() {
        y[i] = (f32::from(byte & 15) - 8.0) * scale;
        y[i + 16] = (f32::from(byte >> 4) - 8.0) * scale;
    }
}

fn q4_1(b: &[u8], y: &mut [f32]) {
    let (scale, minimum) = (f16_at(b, 0), f16_at(b, 2));
    for (i, byte) in b[4..].iter().enumerate() {
        y[i] = f32::from(byte & 15) * scale + minimum;
        y[i + 16] = f32::from(byte >> 4) * scale + minimum;
    }
}

/// The fifth bits of the 32 elements are one little-endian word.
fn fifth_bits(b: &[u8]) -> impl Fn(usize) -> u8 {
    let word = u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    move |i| (((word >> i) & 1) << 4) as u8
}

fn q5_0(b: &[u8], y: &mut [f32]) {
    let scale = f16_at(b, 0);
    let fifth = fifth_bits(&b[2..6]);
    for (i, byte) in b[6..].iter().enumerate() {
        y[i] = (f32::from(byte & 15 | fifth(i)) - 16.0) * scale;
        y[i + 16] = (f32::from(byte >> 4 | fifth(i + 16)) - 16.0) * scale;
    }
}

fn q5_1(b: &[u8], y: &mut [f32]) {
    let (scale, minimum) = (f16_at(b, 0), f16_at(b, 2));
    let fifth = fifth_bits(&b[4..8]);
    for (i, byte) in b[8..].iter().enumerate() {
        y[i] = f32::from(byte & 15 | fifth(i)) * scale + minimum;
        y[i + 16] = f32::from(byte >> 4 | fifth(i + 16)) * scale + minimum;
    }
}

fn q8_0(b: &[u8], y: &mut [f32]) {
    let scale = f16_at(b, 0);
    for (number, byte) in y.iter_mut().zip(&b[2..]) {
        *number = f32::from(*byte as i8) * scale;
    }
}

/// Scale and minimum of group `group` of 8, packed as 6-bit integers in 12 bytes.
fn scale_and_minimum(packed: &[u8], group: usize) -> (f32, f32) {
    let (scale, minimum) = if group < 4 {
        (packed[group] & 63, packed[group + 4] & 63)
    } else {
        (
            packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
            packed[group + 4] >> 4 | packed[group] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(minimum))
}

fn q4_k(b: &[u8], y: &mut [f32]) {
    let (scale, minimum) = (f16_at(b, 0), f16_at(b, 2));
    for (pair, (quants, y)) in b[16..].chunks(32).zip(y.chunks_mut(64)).enumerate() {
        let (s0, m0) = scale_and_minimum(&b[4..16], 2 * pair);
        let (s1, m1) = scale_and_minimum(&b[4..16], 2 * pair + 1);
        for (i, byte) in quants.iter().enumerate() {
            y[i] = scale * s0 * f32::from(byte & 15) - minimum * m0;
            y[i + 32] = scale * s1 * f32::from(byte >> 4) - minimum * m1;
        }
    }
}

fn q5_k(b: &[u8], y: &mut [f32]) {
    let (scale, minimum) = (f16_at(b, 0), f16_at(b, 2));
    let high = &b[16..48];
    for (pair, (quants, y)) in b[48..].chunks(32).zip(y.chunks_mut(64)).enumerate() {
        let (s0, m0) = scale_and_minimum(&b[4..16], 2 * pair);
        let (s1, m1) = scale_and_minimum(&b[4..16], 2 * pair + 1);
        for (i, byte) in quants.iter().enumerate() {
            let fifth = |group: usize| ((high[i] >> group) & 1) << 4;
            y[i] = scale * s0 * f32::from(byte & 15 | fifth(2 * pair)) - minimum * m0;
            y[i + 32] = scale * s1 * f32::from(byte >> 4 | fifth(2 * pair + 1)) - minimum * m1;
        }
    }
}

fn q6_k(b: &[u8], y: &mut [f32]) {
    let scale = f16_at(b, 208);
    for half in 0..2 {
        let low = &b[64 * half..][..64];
        let high = &b[128 + 32 * half..][..32];
        let scales = &b[192 + 8 * half..][..8];
        let y = &mut y[128 * half..][..128];
        for (i, high) in high.iter().enumerate() {
            for quarter in 0..4 {
                let byte = low[i + 32 * (quarter % 2)];
                let nibble = if quarter < 2 { byte & 15 } else { byte >> 4 };
                let quant = nibble | (high >> (2 * quarter) & 3) << 4;
                let group = f32::from(scales[i / 16 + 2 * quarter] as i8);
                y[i + 32 * quarter] = scale * group * (f32::from(quant) - 32.0);
            }
        }
    }
}

/// Twice what the nibbles of MXFP4 without their sign stand for.
const MXFP4: [f32; 8] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];

/// The low nibbles are the first half of the block, the high nibbles the second half.
fn mxfp4(b: &[u8], y: &mut [f32]) {
    // 2^(exponent − 128), of which the first two are subnormal.
    let half = f32::from_bits(match b[0] {
        small @ 0..2 => 0x0020_0000 << small,
        exponent => (u32::from(exponent) - 1) << 23,
    });
    let number = |nibble: u8| {
        let size = MXFP4[usize::from(nibble & 7)] * half;
        if nibble & 8 == 0 { size } else { -size }
    };
    for (i, byte) in b[1..].iter().enumerate() {
        y[i] = number(byte & 15);
        y[i + 16] = number(byte >> 4);
    }
}
