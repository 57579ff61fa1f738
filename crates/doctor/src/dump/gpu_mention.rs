//! GPUs that programs mention in passing, and which mentions are the same GPU.
//!
//! A start-up log, a form and a listing of another tool each name the GPUs of one machine in
//! their own way: by product, chip, device id or architecture. The most informative list is
//! used, and completed from the others.

use crate::{names, signs, wheels};
use platform::machine::{Gpu, Machine};
use platform::pci::{DeviceId, PciAddress};
use platform::{Bytes, Gfx};

/// Whether a text names AMD graphics, rather than a processor or another vendor's card.
pub(super) fn is_amd_graphics(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if has(signs::NOT_AMD_GRAPHICS) {
        return false;
    }
    let is_processor = has(signs::PROCESSOR_NAMES);
    if is_processor && !has(&["radv", "graphics processor", "(radeonsi"]) {
        return false;
    }
    has(&["radeon", "instinct", "firepro"])
        || names::architecture_of(name).is_some()
        || names::is_before_rocm(name)
        || lower.trim() == "amd"
        || lower.starts_with("amd ") && has(&["graphics", "[integrated]", "[discrete]", "gpu"])
}

/// The graphics of another vendor, by their name.
pub(super) fn is_other_vendor(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    signs::OTHER_VENDORS
        .iter()
        .any(|vendor| lower.contains(vendor))
        || names::is_virtual_adapter(name)
}

/// A GPU named by one program.
#[derive(Clone, Debug, Default)]
pub(super) struct GpuMention {
    /// Which program, or which kind of line: GPUs of one kind form a list.
    pub(super) tool: &'static str,
    /// Its index in that list.
    pub(super) index: Option<u32>,
    /// The known facts.
    pub(super) gpu: Gpu,
    /// The architecture that a runtime reports, which is affected by an override.
    pub(super) reported: Option<Gfx>,
    /// Free memory, or what a program calls its memory: enough to estimate the size of a card.
    pub(super) about: Option<Bytes>,
}

impl GpuMention {
    pub(super) fn new(tool: &'static str, index: Option<u32>) -> Self {
        Self {
            tool,
            index,
            ..Self::default()
        }
    }

    /// A GPU that a tool described.
    pub(super) fn of(index: usize, gpu: Gpu) -> Self {
        Self {
            tool: "tool",
            index: u32::try_from(index).ok(),
            gpu,
            ..Self::default()
        }
    }

    /// Sets the name that a program gives it, without decorations.
    pub(super) fn named(mut self, name: &str) -> Self {
        let name = bare(name);
        // neofetch: `AMD ATI c5:00.0 Phoenix1`.
        let address = name.strip_prefix("AMD ATI ").and_then(|rest| {
            PciAddress::parse(rest.split(' ').next().filter(|word| word.contains(':'))?)
        });
        self.gpu.pci = self.gpu.pci.or(address);
        self.gpu.gfx = self.gpu.gfx.or_else(|| names::architecture_of(name));
        let gfx = || Gfx::find_all(&name.to_ascii_lowercase()).first().copied();
        self.reported = self.reported.or_else(gfx);
        if self.gpu.device_id.is_none() {
            self.gpu.device_id = id_in(name);
        }
        if is_amd_graphics(name) {
            let product = product(name);
            self.gpu.product = Some(product.to_owned()).filter(|product| !product.is_empty());
        }
        self
    }

    pub(super) fn reporting(mut self, gfx: Option<Gfx>) -> Self {
        self.reported = gfx.or(self.reported);
        self
    }

    /// Whether anything is known about it.
    pub(super) fn says_something(&self) -> bool {
        self.gpu != Gpu::default() || self.reported.is_some() || self.about.is_some()
    }

    /// The chip, from its device id, its name, and the architecture that the runtime reports. If the runtime reports
    /// another one that the chip can be overridden to, an override was set.
    fn settle(&mut self, machine: &mut Machine) {
        let chip = self.gpu.device_id.and_then(DeviceId::gfx).or(self.gpu.gfx);
        self.gpu.gfx = match (chip, self.reported) {
            (Some(chip), Some(reported)) if chip != reported => {
                let passes = wheels::override_for(chip) == Some(reported.as_override().as_str())
                    || is_passed_for(reported, chip);
                if passes {
                    machine
                        .variables
                        .entry("HSA_OVERRIDE_GFX_VERSION".to_owned())
                        .or_insert_with(|| reported.as_override());
                }
                Some(if passes { chip } else { reported })
            }
            (chip, reported) => chip.or(reported),
        };
    }

    /// The GPU, once its chip is determined.
    pub(super) fn settled(mut self, machine: &mut Machine) -> Gpu {
        self.settle(machine);
        self.gpu
    }

    fn tells(&self) -> bool {
        self.gpu.gfx.is_some() || self.gpu.device_id.is_some()
    }
}

/// Whether overrides to this architecture are common. Another architecture that differs from the name's comes from a
/// name that two chips share (`610M`, `Vega 8`).
fn is_passed_for(reported: Gfx, chip: Gfx) -> bool {
    const TARGETS: [(u8, u8, u8); 9] = [
        (9, 0, 0),
        (9, 0, 6),
        (10, 1, 0),
        (10, 3, 0),
        (11, 0, 0),
        (11, 0, 1),
        (11, 0, 2),
        (11, 5, 1),
        (12, 0, 1),
    ];
    let is_target = TARGETS
        .iter()
        .any(|&(major, minor, stepping)| reported == Gfx::new(major, minor, stepping));
    is_target && chip.major >= 9
}

/// `1002:744c`, or a device id in parentheses.
fn id_in(name: &str) -> Option<DeviceId> {
    let digits = name
        .split_once("1002:")
        .map(|(_, rest)| rest)
        .or_else(|| name.split_once("(0x").map(|(_, rest)| rest))
        .or_else(|| name.strip_prefix("Device "))
        .or_else(|| name.strip_prefix("0x"))?;
    let id = DeviceId::from_hex(digits.get(..4)?)?;
    id.gfx().map(|_| id)
}

/// A name without quotes, numbers of devices and what programs add to it.
fn bare(name: &str) -> &str {
    let name = name.trim().trim_matches(['"', '\'', '`', ',']).trim();
    let name = name.strip_prefix("device=").unwrap_or(name);
    let name = name.strip_prefix("cuda:").map_or(name, |rest| {
        rest.trim_start_matches(|c: char| c.is_ascii_digit())
            .trim_start()
    });
    name.split(" : ").next().unwrap_or(name).trim()
}

/// The product name within everything that a name contains.
fn product(name: &str) -> &str {
    let mut product = name;
    for end in signs::AFTER_PRODUCT {
        product = product.split(end).next().unwrap_or(product);
    }
    // `AMD ATI c5:00.0 Phoenix1`, `…, 24560 MiB`, and what RADV calls a chip.
    let product = product.rsplit_once(".0 ").map_or(product, |(_, name)| name);
    let product = match product.split_once(", ") {
        Some((name, rest)) if rest.starts_with(|c: char| c.is_ascii_digit()) => name,
        _ => product,
    };
    let product = product.trim().trim_end_matches([',', ')', '"']);
    // A remark of which only the beginning is left: `RX 7600M XT (eGPU via OCuLink`.
    let product = match product.rsplit_once(" (") {
        Some((name, remark)) if !remark.contains(')') => name.trim_end(),
        _ => product,
    };
    if product.starts_with("RADV ") || product.contains('=') || product.contains('"') {
        return "";
    }
    product
}

/// Merges the mentioned GPUs into one list: the most informative one, completed from the others.
pub(super) fn merged(mut seen: Vec<GpuMention>, machine: &mut Machine) -> Vec<Gpu> {
    join_architecture(&mut seen);
    drop_pretended(&mut seen, machine);
    for mention in &mut seen {
        mention.settle(machine);
    }
    let mut lists: Vec<(&'static str, Vec<GpuMention>)> = Vec::new();
    for mention in seen {
        match lists.iter_mut().find(|(tool, _)| *tool == mention.tool) {
            Some((_, list)) => join(list, mention),
            None => lists.push((mention.tool, vec![mention])),
        }
    }
    // The first of equally good ones; `max_by_key` would return the last.
    let best = (0..lists.len()).rev().max_by_key(|&at| {
        let list = &lists[at].1;
        (list.iter().filter(|one| one.tells()).count(), list.len())
    });
    let Some(best) = best else {
        return Vec::new();
    };
    let (_, mut gpus) = lists.remove(best);
    gpus.sort_by_key(|one| one.index.unwrap_or(u32::MAX));
    for (_, list) in lists {
        complete(&mut gpus, list, true);
    }
    gpus.into_iter().map(into_gpu).collect()
}

/// `AMD arch: gfx1030` above `Device: cuda:0 AMD Radeon RX 6700 XT` is the runtime's architecture of
/// that device, if a program names one of each.
fn join_architecture(seen: &mut Vec<GpuMention>) {
    let places = |tool: &str| {
        let of_tool = seen.iter().enumerate().filter(|(_, one)| one.tool == tool);
        of_tool.map(|(at, _)| at).collect::<Vec<_>>()
    };
    let ([arch], [device]) = (&places("arch")[..], &places("comfy")[..]) else {
        return;
    };
    let (arch, device) = (*arch, *device);
    if seen[device].reported.is_none() && seen[device].gpu.product.is_some() {
        let arch = seen[arch].clone();
        let one = &mut seen[device];
        one.reported = arch.reported;
        one.about = one.about.or(arch.about);
        one.gpu.usable_bytes = one.gpu.usable_bytes.or(arch.gpu.usable_bytes);
        seen.retain(|one| one.tool != "arch");
    }
}

/// A bare `gfx1030` next to an `RX 6600` is not a second GPU but the override of that card, if nothing reports
/// the card's own architecture.
fn drop_pretended(seen: &mut Vec<GpuMention>, machine: &mut Machine) {
    let is_bare = |one: &GpuMention| {
        let gpu = &one.gpu;
        let has_no_name = gpu.product.is_none() && gpu.device_id.is_none() && gpu.gfx.is_none();
        has_no_name && gpu.pci.is_none()
    };
    let reported: Vec<Gfx> = seen.iter().filter_map(|one| one.reported).collect();
    let named: Vec<Gfx> = seen
        .iter()
        .filter(|one| !is_bare(one))
        .filter_map(|one| one.gpu.device_id.and_then(DeviceId::gfx).or(one.gpu.gfx))
        .collect();
    let mut pretended = None;
    seen.retain(|one| {
        let Some(shown) = one.reported.filter(|_| is_bare(one)) else {
            return true;
        };
        let passes = |chip: &Gfx| {
            wheels::override_for(*chip) == Some(shown.as_override().as_str())
                && !reported.contains(chip)
        };
        let is_pretended = !named.contains(&shown) && named.iter().any(passes);
        if is_pretended {
            pretended = Some(shown);
        }
        !is_pretended
    });
    if let Some(shown) = pretended {
        machine
            .variables
            .entry("HSA_OVERRIDE_GFX_VERSION".to_owned())
            .or_insert_with(|| shown.as_override());
    }
}

/// Adds to GPUs that a tool listed what other lines of the text say about them.
pub(super) fn completed(
    known: Vec<Gpu>,
    mut seen: Vec<GpuMention>,
    machine: &mut Machine,
) -> Vec<Gpu> {
    for mention in &mut seen {
        mention.settle(machine);
    }
    let mut gpus: Vec<GpuMention> = known
        .into_iter()
        .map(|gpu| GpuMention {
            gpu,
            ..GpuMention::default()
        })
        .collect();
    complete(&mut gpus, seen, false);
    gpus.into_iter().map(into_gpu).collect()
}

fn into_gpu(one: GpuMention) -> Gpu {
    let mut gpu = one.gpu;
    let is_card = gpu
        .gfx
        .and_then(Gfx::architecture)
        .is_some_and(|known| known.sold_as != platform::gfx::FormFactor::Apu);
    // Of an APU it may be the carve-out, or all it can map.
    if gpu.vram_bytes.is_none() && gpu.usable_bytes.is_none() && (is_card || gpu.gfx.is_none()) {
        gpu.vram_bytes = one.about;
    }
    gpu
}

/// A line of a list is a new GPU, unless it has the number of one or says the same again.
fn join(list: &mut Vec<GpuMention>, one: GpuMention) {
    let known = list
        .iter_mut()
        .find(|other| match (other.index, one.index) {
            // Under different masks, different GPUs are the first.
            (Some(a), Some(b)) => {
                let is_other = other.tool == "devices" && other.gpu.gfx != one.gpu.gfx;
                a == b && !(is_other && other.gpu.gfx.is_some() && one.gpu.gfx.is_some())
            }
            (None, None) => {
                // A tool may give the name and the architecture in different places.
                let (a, b) = (&other.gpu.product, &one.gpu.product);
                let is_named_once = one.tool == "lines" && (a.is_none() || b.is_none());
                other.gpu.pci == one.gpu.pci
                    && other.gpu.gfx == one.gpu.gfx
                    && (a == b || is_named_once && one.gpu.gfx.is_some())
            }
            // Once with its number, once without.
            _ => other.gpu.gfx.is_some() && other.gpu.gfx == one.gpu.gfx,
        });
    match known {
        Some(known) => add(known, one),
        None => list.push(one),
    }
}

fn complete(gpus: &mut Vec<GpuMention>, others: Vec<GpuMention>, may_add: bool) {
    let (one_each, as_many) = (
        gpus.len() == 1 && others.len() == 1,
        gpus.len() == others.len(),
    );
    let mut taken = vec![false; gpus.len()];
    for (place, other) in others.into_iter().enumerate() {
        let same = |one: &GpuMention| match (one.gpu.pci, other.gpu.pci) {
            (Some(a), Some(b)) => a == b,
            _ => match (one.gpu.device_id, other.gpu.device_id) {
                (Some(a), Some(b)) => a == b,
                _ => match (one.gpu.gfx, other.gpu.gfx) {
                    (Some(a), Some(b)) => a == b,
                    _ => {
                        one_each
                            || as_many && !one.tells()
                            || one.gpu.product.is_some() && one.gpu.product == other.gpu.product
                    }
                },
            },
        };
        let found = (0..taken.len()).find(|&at| {
            !taken[at] && same(&gpus[at]) && (!as_many || gpus[at].tells() || at == place)
        });
        match found {
            Some(at) => {
                taken[at] = true;
                add(&mut gpus[at], other);
            }
            None if may_add && other.tells() && !gpus.iter().any(same) => {
                gpus.push(other);
                taken.push(true);
            }
            None => {}
        }
    }
}

fn add(one: &mut GpuMention, other: GpuMention) {
    let (gpu, more) = (&mut one.gpu, other.gpu);
    let is_generic = gpu
        .product
        .as_deref()
        .is_none_or(|name| names::architecture_of(name).is_none());
    if is_generic && more.product.is_some() {
        gpu.product = more.product;
    }
    gpu.gfx = gpu.gfx.or(more.gfx);
    gpu.device_id = gpu.device_id.or(more.device_id);
    gpu.pci = gpu.pci.or(more.pci);
    gpu.compute_units = gpu.compute_units.or(more.compute_units);
    gpu.usable_bytes = gpu.usable_bytes.or(more.usable_bytes);
    gpu.vram_bytes = gpu.vram_bytes.or(more.vram_bytes);
    gpu.gtt_bytes = gpu.gtt_bytes.or(more.gtt_bytes);
    if gpu.class.is_none() {
        (gpu.class, gpu.class_from) = (more.class, more.class_from);
    }
    one.about = one.about.or(other.about);
    one.reported = one.reported.or(other.reported);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare_and_named(shown: &[(u8, u8, u8)], names: &[&str]) -> (Vec<Gfx>, Option<String>) {
        let mut machine = Machine::default();
        let bare = shown.iter().map(|&(major, minor, stepping)| {
            GpuMention::new("shown", None).reporting(Some(Gfx::new(major, minor, stepping)))
        });
        let named = names
            .iter()
            .map(|name| GpuMention::new("named", None).named(name));
        let gpus = merged(bare.chain(named).collect(), &mut machine);
        let found = gpus.iter().filter_map(|gpu| gpu.gfx).collect();
        (
            found,
            machine
                .variable("HSA_OVERRIDE_GFX_VERSION")
                .map(str::to_owned),
        )
    }

    #[test]
    fn what_a_card_passes_for_is_no_second_gpu() {
        let (gpus, value) = bare_and_named(&[(10, 3, 0)], &["AMD Radeon RX 6600"]);
        assert_eq!(gpus, [Gfx::new(10, 3, 2)]);
        assert_eq!(value.as_deref(), Some("10.3.0"));
        // Both are there, or the card cannot pass for the other.
        let both = bare_and_named(&[(10, 3, 0), (10, 3, 2)], &["AMD Radeon RX 6600"]);
        assert_eq!(both.0.len(), 2);
        let other = bare_and_named(&[(11, 0, 0)], &["AMD Radeon RX 6600"]);
        assert_eq!(other.0.len(), 2);
    }
}
