//! Loads and stores: scalar ones, those of lanes, and LDS.

use std::collections::HashMap;

use super::listing::{Operation, Place};
use super::wave::{Counter, LANES, Register, Wave};

/// The memory that the waves of a workgroup share.
pub(super) struct Lds {
    bytes: Vec<u8>,
    /// Since the last barrier, by words: the wave that wrote it, and those that read it.
    written: HashMap<usize, u32>,
    read: HashMap<usize, Vec<u32>>,
}

impl Lds {
    pub(super) fn new(size: usize) -> Self {
        Self {
            bytes: vec![0; size],
            written: HashMap::new(),
            read: HashMap::new(),
        }
    }

    /// All waves have come to a barrier.
    pub(super) fn synchronise(&mut self) {
        self.written.clear();
        self.read.clear();
    }

    /// The word at this address, for the wave `index` to read or to write.
    fn word(&mut self, address: u32, index: u32, writes: bool) -> Result<&mut [u8; 4], String> {
        let at = address as usize;
        if let Some(other) = self.written.get(&at).filter(|other| **other != index) {
            return Err(format!("waves {other} and {index} race for LDS at {at}"));
        }
        match writes {
            true => {
                let mut readers = self.read.get(&at).into_iter().flatten();
                if let Some(other) = readers.find(|other| **other != index) {
                    return Err(format!(
                        "wave {index} overwrites what wave {other} reads from LDS at {at}"
                    ));
                }
                self.written.insert(at, index);
            }
            false => self.read.entry(at).or_default().push(index),
        }
        let outside = || format!("LDS at {at}, which is outside of it");
        let bytes = self
            .bytes
            .get_mut(at..)
            .and_then(|rest| rest.first_chunk_mut());
        bytes.filter(|_| at.is_multiple_of(4)).ok_or_else(outside)
    }
}

/// `s_load_*`: registers from memory or from the arguments.
pub(super) fn load_scalars(
    wave: &mut Wave<'_>,
    operation: &Operation,
    is_live: &dyn Fn(u64, u64) -> bool,
) -> Result<(), String> {
    operation.only(&["offset"])?;
    let count = match operation.name.as_str() {
        "s_load_b32" => 1,
        "s_load_b64" => 2,
        "s_load_b96" => 3,
        "s_load_b128" => 4,
        "s_load_b256" => 8,
        "s_load_b512" => 16,
        _ => return Err(format!("`{}` is not known here", operation.name)),
    };
    let base = wave.pair(operation.operand(1)?)?;
    let index = wave.word(operation.operand(2)?)?;
    let address = base + u64::from(index) + offset(operation)? as u64;
    let mut registers = Vec::new();
    let Place::Scalar(first) = operation.operand(0)?.place else {
        return Err(format!("`{}` loads no scalar registers", operation.text));
    };
    for word in 0..count {
        let bytes = read(wave, address + 4 * word as u64, 4, is_live)?;
        wave.set_scalar(first + word, bytes as u32)?;
        registers.push(Register::Scalar(first + word));
    }
    let (_, counter) = wave.counters();
    wave.begin(counter, true, registers);
    Ok(())
}

/// `global_*`: each active lane loads or stores at an address of its own.
pub(super) fn global(
    wave: &mut Wave<'_>,
    operation: &Operation,
    is_live: &dyn Fn(u64, u64) -> bool,
) -> Result<(), String> {
    operation.only(&["offset"])?;
    let unknown = || format!("`{} {}` is not known here", operation.name, operation.text);
    let name = operation.name.as_str();
    let (kind, size) = name["global_".len()..]
        .split_once('_')
        .ok_or_else(unknown)?;
    let loads = kind == "load";
    let bytes: usize = match size {
        "u8" => 1,
        "u16" | "b16" => 2,
        "b32" => 4,
        "b64" => 8,
        "b128" => 16,
        _ => return Err(unknown()),
    };
    if !loads && kind != "store" {
        return Err(unknown());
    }
    let [data, lanes] = if loads { [0, 1] } else { [1, 0] }.map(|index| operation.operand(index));
    let (Place::Vector(data), Place::Vector(lanes)) = (data?.place, lanes?.place) else {
        return Err(unknown());
    };
    let base = operation.operand(2)?;
    let low = *wave.vector(lanes)?;
    let (base, high) = match base.place {
        Place::Word => (0, *wave.vector(lanes + 1)?),
        _ => (wave.pair(base)?, [0; LANES]),
    };
    let registers = bytes.div_ceil(4);
    let addresses: [u64; LANES] = std::array::from_fn(|lane| {
        let own = u64::from(high[lane]) << 32 | u64::from(low[lane]);
        base.wrapping_add(own)
    });
    let offset = offset(operation)?;
    for register in 0..registers {
        let part = (bytes - 4 * register).min(4);
        let address =
            |lane: usize| addresses[lane].wrapping_add_signed(offset + 4 * register as i64);
        let mut values = *wave.vector(data + register)?;
        for lane in (0..LANES).filter(|lane| wave.is_active(*lane)) {
            match loads {
                true => values[lane] = read(wave, address(lane), part, is_live)? as u32,
                false => write(address(lane), values[lane], part, is_live)?,
            }
        }
        if loads {
            wave.set_vector(data + register, u32::MAX, &values)?;
        }
    }
    if loads {
        let halves = (data..data + registers).flat_map(Register::halves);
        wave.begin(Counter::Loads, false, halves.collect());
    }
    Ok(())
}

/// `ds_*`: LDS, and what goes from lane to lane by its way.
pub(super) fn lds(wave: &mut Wave<'_>, operation: &Operation, lds: &mut Lds) -> Result<(), String> {
    operation.only(&["offset"])?;
    if operation.name == "ds_bpermute_b32" {
        return permute(wave, operation);
    }
    let (first, second) = (operation.operand(0)?, operation.operand(1)?);
    let (Place::Vector(first), Place::Vector(second)) = (first.place, second.place) else {
        return Err(format!("`{}` is not known here", operation.text));
    };
    let offset = offset(operation)? as u32;
    let active = (0..LANES).filter(|lane| wave.is_active(*lane));
    let (counter, _) = wave.counters();
    match operation.name.as_str() {
        "ds_load_b32" => {
            let addresses = *wave.vector(second)?;
            let mut values = *wave.vector(first)?;
            for lane in active {
                let word = lds.word(addresses[lane].wrapping_add(offset), wave.index, false)?;
                values[lane] = u32::from_le_bytes(*word);
            }
            wave.set_vector(first, u32::MAX, &values)?;
            wave.begin(counter, false, Register::halves(first).to_vec());
        }
        "ds_store_b32" => {
            let (addresses, values) = (*wave.vector(first)?, *wave.vector(second)?);
            for lane in active {
                let word = lds.word(addresses[lane].wrapping_add(offset), wave.index, true)?;
                *word = values[lane].to_le_bytes();
            }
            wave.begin(counter, false, Vec::new());
        }
        name => return Err(format!("`{name}` is not known here")),
    }
    Ok(())
}

/// Each lane gets the number of another one, by four times its index.
fn permute(wave: &mut Wave<'_>, operation: &Operation) -> Result<(), String> {
    operation.only(&[])?;
    let places = [0, 1, 2].map(|index| Ok(operation.operand(index)?.place));
    let [
        Ok(Place::Vector(result)),
        Ok(Place::Vector(lanes)),
        Ok(Place::Vector(values)),
    ]: [Result<Place, String>; 3] = places
    else {
        return Err(format!("`{}` is not known here", operation.text));
    };
    let (lanes, values) = (*wave.vector(lanes)?, *wave.vector(values)?);
    let from = lanes.map(|address| address as usize / 4 % LANES);
    let mut active = (0..LANES).filter(|lane| wave.is_active(*lane));
    if let Some(lane) = active.find(|lane| !wave.is_active(from[*lane])) {
        return Err(format!(
            "lane {lane} takes the number of lane {}, which is not active",
            from[lane]
        ));
    }
    wave.set_vector(result, u32::MAX, &from.map(|lane| values[lane]))?;
    let (counter, _) = wave.counters();
    wave.begin(counter, false, Register::halves(result).to_vec());
    Ok(())
}

/// The constant part of an address.
fn offset(operation: &Operation) -> Result<i64, String> {
    let text = operation.modifier("offset").unwrap_or("0");
    let wrong = |_| format!("`{text}` is no offset");
    match text.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16).map_err(wrong),
        None => text.parse().map_err(wrong),
    }
}

/// The `count` bytes at this address, at most 8.
fn read(
    wave: &Wave<'_>,
    address: u64,
    count: usize,
    is_live: &dyn Fn(u64, u64) -> bool,
) -> Result<u64, String> {
    let mut bytes = [0; 8];
    if let Some(argument) = wave.argument_bytes(address, count) {
        bytes[..count].copy_from_slice(argument);
    } else {
        check(address, count, "read", is_live)?;
        // SAFETY: the bytes belong to live memory of the simulated device, which is mapped; the engine's lock keeps
        // it from being freed.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), count) };
    }
    Ok(u64::from_le_bytes(bytes))
}

fn write(
    address: u64,
    value: u32,
    count: usize,
    is_live: &dyn Fn(u64, u64) -> bool,
) -> Result<(), String> {
    check(address, count, "written", is_live)?;
    let bytes = value.to_le_bytes();
    // SAFETY: as in `read`; that no other code of the process uses these bytes at this time is for the program to
    // ensure, as it is with a real device.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, count) };
    Ok(())
}

fn check(
    address: u64,
    count: usize,
    what: &str,
    is_live: &dyn Fn(u64, u64) -> bool,
) -> Result<(), String> {
    match is_live(address, count as u64) {
        true => Ok(()),
        false => Err(format!(
            "{count} bytes at {address:#x} are {what}, which are outside of all live memory"
        )),
    }
}
