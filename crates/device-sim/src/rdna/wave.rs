//! A wave: its registers, what is under way to them, and its instructions one after the other.

use super::code_object::{CodeObject, Kernel};
use super::listing::{EXEC, Operand, Operation, Place, VCC};
use super::memory::{self, Lds};
use super::{scalar, vector};

/// Lanes of a wave.
pub(super) const LANES: usize = 32;
/// A register of all lanes.
pub(super) type Lanes = [u32; LANES];

/// Where the arguments lie, as the kernel sees it: no address of the machine.
pub(super) const ARGUMENTS: u64 = 0x7fff_0000_0000_0000;
/// What registers contain before anything is written to them.
const UNSET: u32 = 0xdead_beef;
/// Instructions without an effect on what is computed.
const NOTHING: [&str; 8] = [
    "s_nop",
    "s_inst_prefetch",
    "s_set_inst_prefetch_distance",
    "s_clause",
    "s_code_end",
    "s_delay_alu",
    "s_wait_alu",
    "s_waitcnt_depctr",
];

/// Why a wave stopped.
pub(super) enum Pause {
    /// It waits for the other waves of its workgroup.
    Barrier,
    End,
}

/// What a wait waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Counter {
    /// Loads by lanes. Nothing waits for their stores: the next kernel does.
    Loads,
    /// LDS, and before RDNA 4 scalar loads.
    Lds,
    Scalars,
}

/// A register as what is loaded counts it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Register {
    Scalar(usize),
    /// The lower or upper half of a vector register.
    Half(usize, bool),
}

impl Register {
    /// Those of a whole vector register.
    pub(super) fn halves(index: usize) -> [Self; 2] {
        [false, true].map(|upper| Self::Half(index, upper))
    }
}

struct UnderWay {
    counter: Counter,
    /// Whether it may be overtaken by what began after it.
    is_scalar: bool,
    registers: Vec<Register>,
}

/// A wave of a workgroup.
pub(super) struct Wave<'a> {
    object: &'a CodeObject,
    arguments: &'a [u8],
    at: u64,
    scalars: [u32; 128],
    vectors: Vec<Lanes>,
    pub(super) scc: bool,
    workgroup: u32,
    /// Which wave of its workgroup it is.
    pub(super) index: u32,
    under_way: Vec<UnderWay>,
}

impl<'a> Wave<'a> {
    /// The wave `index` of a workgroup of `block` lanes, before its first instruction.
    pub(super) fn new(
        object: &'a CodeObject,
        kernel: &Kernel,
        arguments: &'a [u8],
        workgroup: u32,
        index: u32,
        block: u32,
    ) -> Self {
        let mut scalars = [UNSET; 128];
        scalars[kernel.arguments_at] = ARGUMENTS as u32;
        scalars[kernel.arguments_at + 1] = (ARGUMENTS >> 32) as u32;
        if let Some(register) = kernel.workgroup_at.filter(|_| !object.is_gfx12) {
            scalars[register] = workgroup;
        }
        let first = index * LANES as u32;
        let lanes = (block - first).min(LANES as u32);
        scalars[EXEC] = u32::MAX >> (LANES as u32 - lanes);
        let mut vectors = vec![[UNSET; LANES]; 256];
        vectors[0] = std::array::from_fn(|lane| first + lane as u32);
        Self {
            object,
            arguments,
            at: kernel.entry,
            scalars,
            vectors,
            scc: false,
            workgroup,
            index,
            under_way: Vec::new(),
        }
    }

    /// Where the last instruction is.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Runs to the next barrier or the end.
    pub(super) fn run(
        &mut self,
        lds: &mut Lds,
        is_live: &dyn Fn(u64, u64) -> bool,
    ) -> Result<Pause, String> {
        loop {
            let object = self.object;
            let line = object.listing.at(self.at)?;
            let [operation] = &line.operations[..] else {
                // Both read before either writes.
                let mut writes = Vec::new();
                for operation in &line.operations {
                    writes.extend(vector::results(self, operation)?);
                }
                vector::write(self, writes)?;
                self.at = line.next;
                continue;
            };
            let name = operation.name.as_str();
            let mut next = line.next;
            if name == "s_endpgm" {
                return Ok(Pause::End);
            } else if name == "s_barrier_signal" {
                self.has_stored()?;
            } else if matches!(name, "s_barrier" | "s_barrier_wait") {
                self.has_stored()?;
                self.at = next;
                return Ok(Pause::Barrier);
            } else if NOTHING.contains(&name) {
            } else if name.starts_with("s_wait") {
                self.wait_for(operation)?;
            } else if name.starts_with("s_cbranch") || name == "s_branch" {
                if self.branches(name)? {
                    next = target(next, operation)?;
                }
            } else if name.starts_with("s_load_") {
                memory::load_scalars(self, operation, is_live)?;
            } else if name.starts_with("global_") {
                memory::global(self, operation, is_live)?;
            } else if name.starts_with("ds_") {
                memory::lds(self, operation, lds)?;
            } else if name.starts_with("s_") {
                scalar::execute(self, operation)?;
            } else {
                let writes = vector::results(self, operation)?;
                vector::write(self, writes)?;
            }
            self.at = next;
        }
    }

    /// Whether this branch is taken.
    fn branches(&self, name: &str) -> Result<bool, String> {
        Ok(match name {
            "s_branch" => true,
            "s_cbranch_execz" => self.active() == 0,
            "s_cbranch_execnz" => self.active() != 0,
            "s_cbranch_vccz" => self.scalar(VCC)? == 0,
            "s_cbranch_vccnz" => self.scalar(VCC)? != 0,
            "s_cbranch_scc0" => !self.scc,
            "s_cbranch_scc1" => self.scc,
            _ => return Err(format!("`{name}` is not known here")),
        })
    }

    /// What other waves read after a barrier has to be in LDS before it.
    fn has_stored(&self) -> Result<(), String> {
        let is_store = |it: &UnderWay| it.counter == Counter::Lds && it.registers.is_empty();
        match self.under_way.iter().any(is_store) {
            true => Err("a barrier is reached before its wait for stores to LDS".to_owned()),
            false => Ok(()),
        }
    }

    /// The lanes that are active, one bit each.
    pub(super) fn active(&self) -> u32 {
        self.scalars[EXEC]
    }

    /// Whether this lane is active.
    pub(super) fn is_active(&self, lane: usize) -> bool {
        self.active() >> lane & 1 == 1
    }

    /// The counter of LDS and that of scalar loads.
    pub(super) fn counters(&self) -> (Counter, Counter) {
        match self.object.is_gfx12 {
            true => (Counter::Lds, Counter::Scalars),
            false => (Counter::Lds, Counter::Lds),
        }
    }

    /// Bytes of the arguments, if these are some of them.
    pub(super) fn argument_bytes(&self, address: u64, count: usize) -> Option<&'a [u8]> {
        let start = usize::try_from(address.checked_sub(ARGUMENTS)?).ok()?;
        self.arguments.get(start..start.checked_add(count)?)
    }

    // --- registers ----------------------------------------------------------------

    fn ready(&self, register: Register) -> Result<(), String> {
        let mut all = self.under_way.iter().flat_map(|loads| &loads.registers);
        match all.any(|loaded| *loaded == register) {
            false => Ok(()),
            true => Err(match register {
                Register::Scalar(index) => format!("s{index} is used before its wait"),
                Register::Half(index, _) => format!("v{index} is used before its wait"),
            }),
        }
    }

    pub(super) fn scalar(&self, index: usize) -> Result<u32, String> {
        self.ready(Register::Scalar(index))?;
        Ok(self.scalars[index])
    }

    pub(super) fn set_scalar(&mut self, index: usize, value: u32) -> Result<(), String> {
        self.ready(Register::Scalar(index))?;
        self.scalars[index] = value;
        Ok(())
    }

    pub(super) fn vector(&self, index: usize) -> Result<&Lanes, String> {
        let mut halves = Register::halves(index).into_iter();
        halves.try_for_each(|half| self.ready(half))?;
        Ok(&self.vectors[index])
    }

    /// Writes the bits of `mask` of the active lanes.
    pub(super) fn set_vector(
        &mut self,
        index: usize,
        mask: u32,
        values: &Lanes,
    ) -> Result<(), String> {
        for (upper, half) in [(false, 0xffff), (true, 0xffff_0000)] {
            if mask & half != 0 {
                self.ready(Register::Half(index, upper))?;
            }
        }
        let active = self.active();
        for (lane, (old, new)) in self.vectors[index].iter_mut().zip(values).enumerate() {
            if active >> lane & 1 == 1 {
                *old = *old & !mask | new & mask;
            }
        }
        Ok(())
    }

    /// A scalar operand of 32 bits.
    pub(super) fn word(&self, operand: &Operand) -> Result<u32, String> {
        match operand.place {
            Place::Scalar(index) => self.scalar(index),
            Place::Workgroup => Ok(self.workgroup),
            Place::Scc => Ok(u32::from(self.scc)),
            Place::Null => Ok(0),
            Place::Constant(bits) => Ok(bits as u32),
            Place::Vector(_) | Place::Word => Err(format!("{operand:?} is no scalar operand")),
        }
    }

    /// A scalar operand of 64 bits.
    pub(super) fn pair(&self, operand: &Operand) -> Result<u64, String> {
        match operand.place {
            Place::Scalar(index) => {
                let [low, high] = [self.scalar(index)?, self.scalar(index + 1)?];
                Ok(u64::from(high) << 32 | u64::from(low))
            }
            Place::Constant(bits) => Ok(bits),
            _ => self.word(operand).map(u64::from),
        }
    }

    // --- waits --------------------------------------------------------------------

    /// Something was begun whose result is there after a wait.
    pub(super) fn begin(&mut self, counter: Counter, is_scalar: bool, registers: Vec<Register>) {
        self.under_way.push(UnderWay {
            counter,
            is_scalar,
            registers,
        });
    }

    /// Waits until no more than `left` of these are under way.
    fn wait(&mut self, counter: Counter, left: usize) {
        let mut these = self.under_way.iter().filter(|it| it.counter == counter);
        // Scalar loads overtake each other, so that only a wait for all of them says something.
        if left > 0 && these.any(|it| it.is_scalar) {
            return;
        }
        let count = self
            .under_way
            .iter()
            .filter(|it| it.counter == counter)
            .count();
        let mut done = count.saturating_sub(left);
        self.under_way.retain(|it| {
            let goes = done > 0 && it.counter == counter;
            done -= usize::from(goes);
            !goes
        });
    }

    fn wait_for(&mut self, operation: &Operation) -> Result<(), String> {
        use Counter::{Lds, Loads, Scalars};
        let unknown = || format!("`{} {}` is not known here", operation.name, operation.text);
        let number = |text: &str| {
            let text = text.trim();
            match text.strip_prefix("0x") {
                Some(digits) => usize::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            }
            .ok_or_else(unknown)
        };
        let text = operation.text.as_str();
        match operation.name.as_str() {
            "s_waitcnt" => {
                for part in text.split_whitespace().filter(|part| *part != "&") {
                    let (name, count) = part.split_once('(').ok_or_else(unknown)?;
                    let count = number(count.trim_end_matches(')'))?;
                    match name {
                        "vmcnt" => self.wait(Loads, count),
                        "lgkmcnt" => self.wait(Lds, count),
                        _ => return Err(unknown()),
                    }
                }
            }
            "s_wait_loadcnt" => self.wait(Loads, number(text)?),
            "s_wait_dscnt" => self.wait(Lds, number(text)?),
            "s_wait_kmcnt" => self.wait(Scalars, number(text)?),
            "s_wait_loadcnt_dscnt" => {
                let both = number(text)?;
                self.wait(Loads, both >> 8);
                self.wait(Lds, both & 0xff);
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

/// Where a branch goes: so many words from the next instruction.
fn target(next: u64, operation: &Operation) -> Result<u64, String> {
    match operation.operand(0)?.place {
        Place::Constant(words) => Ok(next.wrapping_add_signed(i64::from(words as i16) * 4)),
        _ => Err(format!("`{}` is no target of a branch", operation.text)),
    }
}
