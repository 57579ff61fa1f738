//! The listing of a code object, as llvm-objdump prints it.

use std::collections::HashMap;

/// Instructions by their addresses.
#[derive(Debug)]
pub(crate) struct Listing(HashMap<u64, Line>);

/// The operations of an instruction: one, or the two of a dual one.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) operations: Vec<Operation>,
    /// Where the next instruction is.
    pub(super) next: u64,
}

/// One operation.
#[derive(Debug)]
pub(super) struct Operation {
    /// Without the suffix of its encoding, and by its newest name.
    pub(super) name: String,
    pub(super) operands: Vec<Operand>,
    /// What follows the operands, such as `("offset", "36")`; of a word alone the second is empty.
    pub(super) modifiers: Vec<(String, String)>,
    /// All that follows the name.
    pub(super) text: String,
}

/// An operand, with what is done to it before it is used.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operand {
    pub(super) place: Place,
    pub(super) negative: bool,
    pub(super) absolute: bool,
}

/// Where an operand is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    /// The first of scalar registers.
    Scalar(usize),
    /// The first of vector registers.
    Vector(usize),
    /// The number of the workgroup in RDNA 4.
    Workgroup,
    Scc,
    /// Writes go nowhere, reads are zero.
    Null,
    /// A constant: the bits of a number.
    Constant(u64),
    /// A word that is no operand of the data path, such as `off`.
    Word,
}

/// Scalar registers with names.
pub(super) const VCC: usize = 106;
pub(super) const M0: usize = 125;
pub(super) const EXEC: usize = 126;

/// Names of RDNA 2 and of RDNA 4 for what RDNA 3 calls otherwise.
const OTHER_NAMES: [(&str, &str); 18] = [
    ("global_load_dword", "global_load_b32"),
    ("global_load_ubyte", "global_load_u8"),
    ("global_load_ushort", "global_load_u16"),
    ("global_store_short", "global_store_b16"),
    ("global_store_dword", "global_store_b32"),
    ("global_store_dwordx2", "global_store_b64"),
    ("global_store_dwordx4", "global_store_b128"),
    ("ds_read_b32", "ds_load_b32"),
    ("ds_write_b32", "ds_store_b32"),
    ("s_load_dword", "s_load_b32"),
    ("s_load_dwordx2", "s_load_b64"),
    ("s_load_dwordx4", "s_load_b128"),
    ("s_load_dwordx8", "s_load_b256"),
    ("s_load_dwordx16", "s_load_b512"),
    ("s_andn2_b32", "s_and_not1_b32"),
    ("s_add_co_i32", "s_add_i32"),
    ("s_sub_co_i32", "s_sub_i32"),
    ("v_mad_co_u64_u32", "v_mad_u64_u32"),
];

impl Listing {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut lines: HashMap<u64, Line> = HashMap::new();
        let mut last = None;
        for line in text.lines() {
            let Some((instruction, place)) = line.split_once("//") else {
                continue;
            };
            let at = place.split(':').next().unwrap_or_default().trim();
            let (Ok(at), true) = (u64::from_str_radix(at, 16), instruction.starts_with('\t'))
            else {
                continue;
            };
            let operations: Result<_, _> = instruction
                .split("::")
                .map(|part| Operation::parse(part.trim()))
                .collect();
            if let Some(before) = last.and_then(|last| lines.get_mut(&last)) {
                before.next = at;
            }
            let operations = operations?;
            lines.insert(
                at,
                Line {
                    operations,
                    next: at,
                },
            );
            last = Some(at);
        }
        match lines.is_empty() {
            true => Err("the disassembler printed no instruction".to_owned()),
            false => Ok(Self(lines)),
        }
    }

    pub(super) fn at(&self, address: u64) -> Result<&Line, String> {
        let outside = || "there is no instruction here".to_owned();
        self.0.get(&address).ok_or_else(outside)
    }
}

impl Operation {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        let encodings = ["_e32", "_e64", "_sdwa", "_dpp"];
        let name = encodings
            .iter()
            .find_map(|encoding| name.strip_suffix(encoding))
            .unwrap_or(name)
            .replace("v_dual_", "v_");
        let other = OTHER_NAMES.iter().find(|(other, _)| *other == name);
        let mut operation = Self {
            name: other.map_or(name, |(_, name)| (*name).to_owned()),
            operands: Vec::new(),
            modifiers: Vec::new(),
            text: rest.trim().to_owned(),
        };
        // Their operands are expressions of their own.
        if operation.name.starts_with("s_wait") || operation.name == "s_delay_alu" {
            return Ok(operation);
        }
        // Commas in brackets are those of a modifier such as `op_sel_hi:[1,1,0]`.
        let mut is_inside = false;
        let is_between = |letter: char| {
            is_inside = letter == '[' || is_inside && letter != ']';
            letter == ',' && !is_inside
        };
        for part in rest
            .split(is_between)
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let mut words = part.split_whitespace();
            if let Some(operand) = words.next() {
                operation.operands.push(Operand::parse(operand)?);
            }
            for word in words {
                let (key, value) = word.split_once(':').unwrap_or((word, ""));
                operation.modifiers.push((key.to_owned(), value.to_owned()));
            }
        }
        Ok(operation)
    }

    /// The value of a modifier.
    pub(super) fn modifier(&self, name: &str) -> Option<&str> {
        let found = self.modifiers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Refuses modifiers other than these.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), String> {
        let other = self
            .modifiers
            .iter()
            .find(|(key, _)| !known.contains(&key.as_str()));
        match other {
            Some((key, value)) => Err(format!(
                "`{}` with `{key}:{value}` is not known here",
                self.name
            )),
            None => Ok(()),
        }
    }

    pub(super) fn operand(&self, index: usize) -> Result<&Operand, String> {
        let missing = || format!("`{} {}` has too few operands", self.name, self.text);
        self.operands.get(index).ok_or_else(missing)
    }
}

impl Operand {
    fn parse(text: &str) -> Result<Self, String> {
        let is_number = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) if !is_number(rest) => (true, rest),
            _ => (false, text),
        };
        let inner = rest
            .strip_prefix('|')
            .and_then(|rest| rest.strip_suffix('|'));
        Ok(Self {
            place: Place::parse(inner.unwrap_or(rest))?,
            negative,
            absolute: inner.is_some(),
        })
    }
}

impl Place {
    fn parse(text: &str) -> Result<Self, String> {
        let register = |text: &str| {
            let first = text.trim_matches(['[', ']']).split(':').next()?;
            first.parse::<usize>().ok()
        };
        let place = match text {
            "vcc_lo" | "vcc" => Self::Scalar(VCC),
            "exec_lo" | "exec" => Self::Scalar(EXEC),
            "m0" => Self::Scalar(M0),
            "ttmp9" => Self::Workgroup,
            "scc" => Self::Scc,
            "null" => Self::Null,
            "off" => Self::Word,
            _ => if let Some(rest) = text.strip_prefix('v') {
                register(rest).map(Self::Vector)
            } else if let Some(rest) = text.strip_prefix('s') {
                register(rest).map(Self::Scalar)
            } else {
                constant(text).map(Self::Constant)
            }
            .ok_or_else(|| format!("`{text}` is no operand that is known here"))?,
        };
        Ok(place)
    }
}

/// The bits of a constant: those of an fp32 number if it has a point.
fn constant(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok();
    }
    match text.contains('.') {
        true => text
            .parse()
            .ok()
            .map(|number: f32| u64::from(number.to_bits())),
        false => text.parse().ok().map(|number: i64| number as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(text: &str) -> Operation {
        Operation::parse(text).unwrap()
    }

    #[test]
    fn operands_and_modifiers_are_read() {
        let load = operation("global_load_dword v2, v1, s[4:5] offset:36");
        assert_eq!(load.name, "global_load_b32");
        let places: Vec<Place> = load.operands.iter().map(|operand| operand.place).collect();
        assert_eq!(
            places,
            [Place::Vector(2), Place::Vector(1), Place::Scalar(4)]
        );
        assert_eq!(load.modifier("offset"), Some("36"));
        assert!(load.only(&["offset"]).is_ok() && load.only(&[]).is_err());

        let product = operation("v_mul_f32_e64 v3, -|v2|, -1.5");
        assert_eq!(product.name, "v_mul_f32");
        let first = &product.operands[1];
        assert!(first.negative && first.absolute && first.place == Place::Vector(2));
        let constant = Place::Constant(u64::from((-1.5_f32).to_bits()));
        assert_eq!(product.operands[2].place, constant);
        let mixed = operation("v_fma_mix_f32 v6, v23, v26, -v6 op_sel_hi:[0,1,0]");
        assert_eq!(mixed.operands.len(), 4);
        assert_eq!(mixed.modifier("op_sel_hi"), Some("[0,1,0]"));
        assert!(Operation::parse("v_mov_b32 v1, attr0.x").is_err());
    }

    #[test]
    fn lines_know_the_next_one() {
        let text = "\nkernel:\n\ts_nop 0    // 000000001000: BF800000\n\tv_mov_b32_e32 v1, 1 :: v_mov_b32_e32 v2, 2 \
                    // 000000001004: 00\n\ts_endpgm // 00000000100C: BFB00000\n";
        let listing = Listing::parse(text).unwrap();
        assert_eq!(listing.at(0x1000).unwrap().next, 0x1004);
        assert_eq!(listing.at(0x1004).unwrap().operations.len(), 2);
        assert!(listing.at(0x1008).is_err());
        assert!(Listing::parse("file format elf64-amdgpu").is_err());
    }
}
