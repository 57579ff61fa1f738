//! Operations of all active lanes.

use super::listing::{EXEC, Operand, Operation, Place, VCC};
use super::wave::{LANES, Lanes, Wave};

/// Something to be written: a vector register with a mask of its bits, or a scalar one.
pub(super) enum Write {
    Vector(usize, u32, Lanes),
    Scalar(usize, u32),
}

/// Writes what operations gave.
pub(super) fn write(wave: &mut Wave<'_>, writes: Vec<Write>) -> Result<(), String> {
    for write in writes {
        match write {
            Write::Vector(index, mask, values) => wave.set_vector(index, mask, &values)?,
            Write::Scalar(index, value) => wave.set_scalar(index, value)?,
        }
    }
    Ok(())
}

/// What an operation gives.
pub(super) fn results(wave: &Wave<'_>, operation: &Operation) -> Result<Vec<Write>, String> {
    let name = operation.name.as_str();
    if let Some(comparison) = name.strip_prefix("v_cmp_") {
        return compared(wave, operation, comparison, VCC);
    }
    if let Some(comparison) = name.strip_prefix("v_cmpx_") {
        return compared(wave, operation, comparison, EXEC);
    }
    if name.ends_with("_b64") {
        return shifted(wave, operation);
    }
    let input = |index| lanes(wave, operation, index);
    let into = |mask, values| {
        Ok(vec![match operation.operand(0)?.place {
            Place::Vector(index) => Write::Vector(index, mask, values),
            _ => return Err(format!("`{}` writes to no vector register", operation.text)),
        }])
    };
    let one = |compute: fn(u32) -> u32| into(u32::MAX, input(1)?.map(compute));
    let two = |compute: fn(u32, u32) -> u32| {
        let (a, b) = (input(1)?, input(2)?);
        into(
            u32::MAX,
            std::array::from_fn(|lane| compute(a[lane], b[lane])),
        )
    };
    let three = |compute: fn(u32, u32, u32) -> u32| {
        let (a, b, c) = (input(1)?, input(2)?, input(3)?);
        into(
            u32::MAX,
            std::array::from_fn(|lane| compute(a[lane], b[lane], c[lane])),
        )
    };
    // Modifiers of single operands are those of `lanes`.
    operation.only(match name {
        "v_or_b32" | "v_cndmask_b32" => &["dst_sel", "dst_unused", "src0_sel", "src1_sel"],
        "v_fma_mix_f32" => &["op_sel_hi"],
        _ => &[],
    })?;
    for (key, only) in [("dst_sel", "DWORD"), ("dst_unused", "UNUSED_PAD")] {
        if operation.modifier(key).is_some_and(|value| value != only) {
            return Err(format!(
                "`{name}` with another `{key}` than {only} is not known here"
            ));
        }
    }
    match name {
        "v_mov_b32" => one(|a| a),
        "v_rsq_f32" => one(|a| ((1.0 / f64::from(f32::from_bits(a)).sqrt()) as f32).to_bits()),
        "v_cvt_f32_f16" => one(|a| half::f16::from_bits(a as u16).to_f32().to_bits()),
        // The upper half stays.
        "v_cvt_f16_f32" => into(0xffff, input(1)?.map(|a| to_fp16(f32::from_bits(a)))),
        "v_readfirstlane_b32" => {
            let first = wave.active().trailing_zeros() as usize % LANES;
            match operation.operand(0)?.place {
                Place::Scalar(index) => Ok(vec![Write::Scalar(index, input(1)?[first])]),
                _ => Err(format!("`{}` writes to no scalar register", operation.text)),
            }
        }
        "v_and_b32" => two(|a, b| a & b),
        "v_or_b32" => two(|a, b| a | b),
        "v_xor_b32" => two(|a, b| a ^ b),
        "v_add_nc_u32" => two(u32::wrapping_add),
        "v_mul_lo_u32" => two(u32::wrapping_mul),
        "v_lshlrev_b32" => two(|by, a| a << (by & 31)),
        "v_lshrrev_b32" => two(|by, a| a >> (by & 31)),
        "v_mul_f32" => two(|a, b| (f32::from_bits(a) * f32::from_bits(b)).to_bits()),
        "v_add_f32" => two(|a, b| (f32::from_bits(a) + f32::from_bits(b)).to_bits()),
        "v_sub_f32" => two(|a, b| (f32::from_bits(a) - f32::from_bits(b)).to_bits()),
        "v_subrev_f32" => two(|a, b| (f32::from_bits(b) - f32::from_bits(a)).to_bits()),
        "v_fma_f32" => three(fused),
        "v_fmac_f32" => {
            let (a, b, c) = (input(1)?, input(2)?, input(0)?);
            into(
                u32::MAX,
                std::array::from_fn(|lane| fused(a[lane], b[lane], c[lane])),
            )
        }
        // Of each operand the modifier says whether it is a lower half in fp16.
        "v_fma_mix_f32" => {
            let are_halves = operation.modifier("op_sel_hi").unwrap_or("[0,0,0]");
            let number = |index: usize| {
                let operand = operation.operand(index)?;
                match (are_halves.as_bytes().get(2 * index - 1), operand.place) {
                    (Some(b'0'), _) => input(index),
                    (Some(b'1'), Place::Vector(register)) => {
                        Ok(wave.vector(register)?.map(|bits| {
                            let number = half::f16::from_bits(bits as u16).to_f32();
                            signed(operand, number.to_bits())
                        }))
                    }
                    _ => Err(format!("`{}` is not known here", operation.text)),
                }
            };
            let (a, b, c) = (number(1)?, number(2)?, number(3)?);
            into(
                u32::MAX,
                std::array::from_fn(|lane| fused(a[lane], b[lane], c[lane])),
            )
        }
        "v_mad_u64_u32" => {
            let (a, b, c) = (input(2)?, input(3)?, pairs(wave, operation.operand(4)?)?);
            match (operation.operand(0)?.place, operation.operand(1)?.place) {
                (Place::Vector(index), Place::Null) => {
                    let sums: [u64; LANES] = std::array::from_fn(|lane| {
                        (u64::from(a[lane]) * u64::from(b[lane])).wrapping_add(c[lane])
                    });
                    Ok(wide(index, sums))
                }
                _ => Err(format!("`{}` is not known here", operation.text)),
            }
        }
        "v_bfe_u32" => three(|a, from, bits| (a >> (from & 31)) & ((1 << (bits & 31)) - 1)),
        "v_add3_u32" => three(|a, b, c| a.wrapping_add(b).wrapping_add(c)),
        // A fused product and sum of fp32 numbers, which is rounded to fp16 then.
        "v_fma_mixlo_f16" => {
            let (a, b, c) = (input(1)?, input(2)?, input(3)?);
            let rounded = |lane| to_fp16(f32::from_bits(fused(a[lane], b[lane], c[lane])));
            into(0xffff, std::array::from_fn(rounded))
        }
        "v_cndmask_b32" => {
            let chosen = match operation.operands.get(3) {
                Some(mask) => wave.word(mask)?,
                None => wave.scalar(VCC)?,
            };
            let (a, b) = (input(1)?, input(2)?);
            into(
                u32::MAX,
                std::array::from_fn(|lane| {
                    if chosen >> lane & 1 == 1 {
                        b[lane]
                    } else {
                        a[lane]
                    }
                }),
            )
        }
        "v_add_co_u32" | "v_add_co_ci_u32" => {
            let (a, b) = (input(2)?, input(3)?);
            let carried = match name.contains("_ci_") {
                true => wave.word(operation.operand(4)?)?,
                false => 0,
            };
            let sums: [u64; LANES] = std::array::from_fn(|lane| {
                u64::from(a[lane]) + u64::from(b[lane]) + u64::from(carried >> lane & 1)
            });
            let mut writes = into(u32::MAX, sums.map(|sum| sum as u32))?;
            match operation.operand(1)?.place {
                Place::Scalar(index) => {
                    let carries = mask_of(wave, |lane| sums[lane] >> 32 != 0);
                    writes.push(Write::Scalar(index, carries));
                }
                Place::Null => {}
                _ => return Err(format!("`{}` is not known here", operation.text)),
            }
            Ok(writes)
        }
        _ => Err(format!("`{name}` is not known here")),
    }
}

/// An operand of 32 bits, for all lanes.
fn lanes(wave: &Wave<'_>, operation: &Operation, index: usize) -> Result<Lanes, String> {
    let operand = operation.operand(index)?;
    let values = match operand.place {
        Place::Vector(index) => *wave.vector(index)?,
        _ => [wave.word(operand)?; LANES],
    };
    let selected = match operation.modifier(&format!("src{}_sel", index.saturating_sub(1))) {
        None | Some("DWORD") => values,
        Some("WORD_0") => values.map(|value| value & 0xffff),
        Some("WORD_1") => values.map(|value| value >> 16),
        Some(other) => return Err(format!("`{other}` of an operand is not known here")),
    };
    Ok(selected.map(|value| signed(operand, value)))
}

/// The operand's sign and magnitude, as those of an fp32 number.
fn signed(operand: &Operand, value: u32) -> u32 {
    let value = if operand.absolute {
        value & !(1 << 31)
    } else {
        value
    };
    if operand.negative {
        value ^ 1 << 31
    } else {
        value
    }
}

/// An operand of 64 bits, for all lanes.
fn pairs(wave: &Wave<'_>, operand: &Operand) -> Result<[u64; LANES], String> {
    match operand.place {
        Place::Vector(index) => {
            let (low, high) = (wave.vector(index)?, wave.vector(index + 1)?);
            Ok(std::array::from_fn(|lane| {
                u64::from(high[lane]) << 32 | u64::from(low[lane])
            }))
        }
        _ => Ok([wave.pair(operand)?; LANES]),
    }
}

/// One bit for each active lane.
fn mask_of(wave: &Wave<'_>, holds: impl Fn(usize) -> bool) -> u32 {
    (0..LANES)
        .filter(|lane| wave.is_active(*lane) && holds(*lane))
        .fold(0, |mask, lane| mask | 1 << lane)
}

/// A comparison, such as `gt_u32`, whose bits go to `place` or to the operand before the two.
fn compared(
    wave: &Wave<'_>,
    operation: &Operation,
    comparison: &str,
    place: usize,
) -> Result<Vec<Write>, String> {
    operation.only(&[])?;
    let unknown = || format!("`{}` is not known here", operation.name);
    let (how, kind) = comparison.split_once('_').ok_or_else(unknown)?;
    let first = operation.operands.len() - 2;
    let place = match operation.operands[..first] {
        [] => place,
        [
            Operand {
                place: Place::Scalar(index),
                ..
            },
        ] => index,
        _ => return Err(unknown()),
    };
    let mask = match kind {
        "u32" | "u64" => {
            let wide = |index| match kind {
                "u32" => Ok(lanes(wave, operation, index)?.map(u64::from)),
                _ => pairs(wave, operation.operand(index)?),
            };
            let (a, b) = (wide(first)?, wide(first + 1)?);
            let holds: fn(u64, u64) -> bool = match how {
                "gt" => |a, b| a > b,
                "le" => |a, b| a <= b,
                "eq" => |a, b| a == b,
                "ne" => |a, b| a != b,
                _ => return Err(unknown()),
            };
            mask_of(wave, |lane| holds(a[lane], b[lane]))
        }
        "f32" => {
            let (a, b) = (
                lanes(wave, operation, first)?,
                lanes(wave, operation, first + 1)?,
            );
            let holds: fn(f32, f32) -> bool = match how {
                "o" => |a, b| !a.is_nan() && !b.is_nan(),
                "neq" => |a, b| a != b,
                _ => return Err(unknown()),
            };
            mask_of(wave, |lane| {
                holds(f32::from_bits(a[lane]), f32::from_bits(b[lane]))
            })
        }
        _ => return Err(unknown()),
    };
    Ok(vec![Write::Scalar(place, mask)])
}

/// Shifts of 64 bits.
fn shifted(wave: &Wave<'_>, operation: &Operation) -> Result<Vec<Write>, String> {
    operation.only(&[])?;
    let by = lanes(wave, operation, 1)?;
    let values = pairs(wave, operation.operand(2)?)?;
    let shift: fn(u64, u32) -> u64 = match operation.name.as_str() {
        "v_lshlrev_b64" => |value, by| value << (by & 63),
        "v_lshrrev_b64" => |value, by| value >> (by & 63),
        name => return Err(format!("`{name}` is not known here")),
    };
    let Place::Vector(index) = operation.operand(0)?.place else {
        return Err(format!(
            "`{}` writes to no vector registers",
            operation.text
        ));
    };
    let shifted: [u64; LANES] = std::array::from_fn(|lane| shift(values[lane], by[lane]));
    Ok(wide(index, shifted))
}

/// Numbers of 64 bits into two registers.
fn wide(index: usize, values: [u64; LANES]) -> Vec<Write> {
    let half = |shift: u32| values.map(|value| (value >> shift) as u32);
    vec![
        Write::Vector(index, u32::MAX, half(0)),
        Write::Vector(index + 1, u32::MAX, half(32)),
    ]
}

/// A product and sum that are rounded once.
fn fused(a: u32, b: u32, c: u32) -> u32 {
    let [a, b, c] = [a, b, c].map(f32::from_bits);
    a.mul_add(b, c).to_bits()
}

/// To nearest, ties to even.
fn to_fp16(number: f32) -> u32 {
    u32::from(half::f16::from_f32(number).to_bits())
}
