//! Scalar operations.

use super::listing::{Operation, Place};
use super::wave::Wave;

/// Executes one.
pub(super) fn execute(wave: &mut Wave<'_>, operation: &Operation) -> Result<(), String> {
    operation.only(&[])?;
    let word = |index| wave.word(operation.operand(index)?);
    let is_not_zero = |value: u64| (value, Some(value != 0));
    let name = operation.name.as_str();
    let (value, scc) = match name {
        "s_mov_b32" => (u64::from(word(1)?), None),
        "s_or_b32" => is_not_zero(u64::from(word(1)? | word(2)?)),
        "s_lshl_b64" => is_not_zero(wave.pair(operation.operand(1)?)? << (word(2)? & 63)),
        _ => return Err(format!("`{name}` is not known here")),
    };
    let registers = if name.ends_with("b64") { 2 } else { 1 };
    let Place::Scalar(first) = operation.operand(0)?.place else {
        return Err(format!("`{}` is no scalar register", operation.text));
    };
    for index in 0..registers {
        wave.set_scalar(first + index, (value >> (32 * index)) as u32)?;
    }
    wave.scc = scc.unwrap_or(wave.scc);
    Ok(())
}
