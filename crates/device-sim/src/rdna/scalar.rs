//! Scalar operations.

use super::listing::{EXEC, Operation, Place};
use super::wave::Wave;

/// Executes one.
pub(super) fn execute(wave: &mut Wave<'_>, operation: &Operation) -> Result<(), String> {
    operation.only(&[])?;
    let word = |index| wave.word(operation.operand(index)?);
    let pair = |index| wave.pair(operation.operand(index)?);
    let is_not_zero = |value: u64| (value, Some(value != 0));
    let name = operation.name.as_str();
    let (value, scc) = match name {
        "s_mov_b32" => (u64::from(word(1)?), None),
        "s_mov_b64" => (pair(1)?, None),
        "s_and_b32" => is_not_zero(u64::from(word(1)? & word(2)?)),
        "s_or_b32" => is_not_zero(u64::from(word(1)? | word(2)?)),
        "s_xor_b32" => is_not_zero(u64::from(word(1)? ^ word(2)?)),
        "s_and_not1_b32" => is_not_zero(u64::from(word(1)? & !word(2)?)),
        "s_lshl_b32" => is_not_zero(u64::from(word(1)? << (word(2)? & 31))),
        "s_lshr_b32" => is_not_zero(u64::from(word(1)? >> (word(2)? & 31))),
        "s_lshl_b64" => is_not_zero(pair(1)? << (word(2)? & 63)),
        "s_lshr_b64" => is_not_zero(pair(1)? >> (word(2)? & 63)),
        "s_add_u32" => {
            let (sum, carry) = word(1)?.overflowing_add(word(2)?);
            (u64::from(sum), Some(carry))
        }
        "s_and_saveexec_b32" => {
            let active = wave.active();
            let left = word(1)? & active;
            write(wave, operation, u64::from(active), 1)?;
            wave.scc = left != 0;
            return wave.set_scalar(EXEC, left);
        }
        _ => return Err(format!("`{name}` is not known here")),
    };
    let registers = if name.ends_with("b64") { 2 } else { 1 };
    write(wave, operation, value, registers)?;
    wave.scc = scc.unwrap_or(wave.scc);
    Ok(())
}

fn write(
    wave: &mut Wave<'_>,
    operation: &Operation,
    value: u64,
    registers: usize,
) -> Result<(), String> {
    match operation.operand(0)?.place {
        Place::Scalar(first) => (0..registers)
            .try_for_each(|index| wave.set_scalar(first + index, (value >> (32 * index)) as u32)),
        Place::Null => Ok(()),
        _ => Err(format!("`{}` is no scalar register", operation.text)),
    }
}
