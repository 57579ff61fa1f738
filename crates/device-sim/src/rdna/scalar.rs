//! Scalar operations.

use super::listing::{EXEC, Operation, Place};
use super::wave::Wave;

/// Executes one.
pub(super) fn execute(wave: &mut Wave<'_>, operation: &Operation) -> Result<(), String> {
    operation.only(&[])?;
    let name = operation.name.as_str();
    if let Some(comparison) = name.strip_prefix("s_cmp_") {
        wave.scc = compared(wave, operation, comparison)?;
        return Ok(());
    }
    let word = |index| wave.word(operation.operand(index)?);
    let pair = |index| wave.pair(operation.operand(index)?);
    let is_not_zero = |value: u64| (value, Some(value != 0));
    // A sum or difference of unsigned numbers, with its carry, and one of signed numbers, with its overflow.
    let carried = |value: u64| (value & u64::from(u32::MAX), Some(value >> 32 != 0));
    let signed = |(value, overflows): (i32, bool)| (u64::from(value as u32), Some(overflows));
    let (value, scc) = match name {
        "s_mov_b32" => (u64::from(word(1)?), None),
        "s_mov_b64" => (pair(1)?, None),
        "s_or_b32" => is_not_zero(u64::from(word(1)? | word(2)?)),
        "s_and_b32" => is_not_zero(u64::from(word(1)? & word(2)?)),
        "s_and_not1_b32" => is_not_zero(u64::from(word(1)? & !word(2)?)),
        "s_and_saveexec_b32" => {
            let (old, new) = (wave.active(), wave.active() & word(1)?);
            wave.set_scalar(EXEC, new)?;
            (u64::from(old), Some(new != 0))
        }
        "s_lshl_b32" => is_not_zero(u64::from(word(1)? << (word(2)? & 31))),
        "s_lshr_b32" => is_not_zero(u64::from(word(1)? >> (word(2)? & 31))),
        "s_lshl_b64" => is_not_zero(pair(1)? << (word(2)? & 63)),
        "s_cselect_b32" => (u64::from(word(if wave.scc { 1 } else { 2 })?), None),
        "s_add_u32" => carried(u64::from(word(1)?) + u64::from(word(2)?)),
        "s_addc_u32" => carried(u64::from(word(1)?) + u64::from(word(2)?) + u64::from(wave.scc)),
        "s_add_i32" => signed((word(1)? as i32).overflowing_add(word(2)? as i32)),
        "s_sub_i32" => signed((word(1)? as i32).overflowing_sub(word(2)? as i32)),
        "s_add_nc_u64" => (pair(1)?.wrapping_add(pair(2)?), None),
        "s_mul_i32" => (u64::from(word(1)?.wrapping_mul(word(2)?)), None),
        "s_mul_hi_u32" => ((u64::from(word(1)?) * u64::from(word(2)?)) >> 32, None),
        "s_mul_u64" => (pair(1)?.wrapping_mul(pair(2)?), None),
        _ => return Err(format!("`{name}` is not known here")),
    };
    let registers = if name.ends_with("64") { 2 } else { 1 };
    let Place::Scalar(first) = operation.operand(0)?.place else {
        return Err(format!("`{}` is no scalar register", operation.text));
    };
    for index in 0..registers {
        wave.set_scalar(first + index, (value >> (32 * index)) as u32)?;
    }
    wave.scc = scc.unwrap_or(wave.scc);
    Ok(())
}

/// A comparison, such as `lg_u32`.
fn compared(wave: &Wave<'_>, operation: &Operation, comparison: &str) -> Result<bool, String> {
    let (a, b) = (operation.operand(0)?, operation.operand(1)?);
    Ok(match comparison {
        "lg_u32" => wave.word(a)? != wave.word(b)?,
        "lg_u64" => wave.pair(a)? != wave.pair(b)?,
        "lt_u32" => wave.word(a)? < wave.word(b)?,
        "ge_u32" => wave.word(a)? >= wave.word(b)?,
        // "Not equal" holds for what is no number, too.
        "neq_f32" => f32::from_bits(wave.word(a)?) != f32::from_bits(wave.word(b)?),
        _ => return Err(format!("`s_cmp_{comparison}` is not known here")),
    })
}
