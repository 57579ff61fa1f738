//! The output of `rocminfo`: one block an agent.

use super::several::{is_processor, listed_once};
use super::value_of;
use crate::names;
use platform::machine::{Class, Gpu, Machine};
use platform::pci::{DeviceId, PciAddress};
use platform::{Bytes, Gfx};

/// Whether the text has the table of agents, even one without a GPU.
pub(super) fn is_rocminfo(text: &str) -> bool {
    text.contains("HSA Agents") && text.contains("Device Type:")
}

/// Whether an agent is a GPU, read or not.
pub(super) fn names_gpu(text: &str) -> bool {
    let is_gpu = |line: &str| {
        let kind = line.split_once("Device Type:");
        kind.is_some_and(|(_, kind)| kind.trim().starts_with("GPU"))
    };
    text.lines().any(is_gpu)
}

/// The GPU agents, in their order; the pool of the CPU agents becomes the RAM.
pub(super) fn gpus(text: &str, machine: &mut Machine) -> Vec<Gpu> {
    // One list a run of the program.
    let mut lists: Vec<Vec<Gpu>> = vec![Vec::new()];
    let mut host = Bytes::ZERO;
    for (is_first, block) in blocks(text) {
        if is_first {
            lists.push(Vec::new());
        }
        // A post that was cut may end before the line with the type; only a GPU is named so.
        let named_as_gpu = || {
            let is_gpu = field(&block, "Name").is_some_and(|name| name.parse::<Gfx>().is_ok());
            (is_gpu || is_rest_of_gpu(&block)).then_some("GPU")
        };
        match field(&block, "Device Type").or_else(named_as_gpu) {
            Some("GPU") => {
                let mut gpu = gpu(&block);
                under_override(&mut gpu, machine);
                if let Some(list) = lists.last_mut() {
                    list.push(gpu);
                }
            }
            Some("CPU") if lists.len() < 3 => {
                host = host.saturating_add(largest_pool(&block).unwrap_or_default());
            }
            // NPUs are agents too.
            _ => {}
        }
    }
    if host > Bytes::ZERO {
        machine.memory.total = machine.memory.total.or(Some(host));
    }
    listed_once(lists)
}

/// The lines of each agent, from `Agent 1` to the next one, and whether a list begins with it.
fn blocks(text: &str) -> Vec<(bool, Vec<&str>)> {
    // Lines above the first heading are the rest of an agent, if the beginning is missing.
    let head = text.lines().take_while(|line| agent(line).is_none());
    let mut blocks: Vec<(bool, Vec<&str>)> = vec![(false, head.collect())];
    let head = &blocks[0].1;
    let is_agent = is_rest_of_gpu(head);
    let has_headings = text.lines().any(|line| agent(line).is_some());
    if !is_agent || has_headings && field(head, "Device Type").is_none() {
        // Without a type it is a listing of names, which the agents below repeat.
        blocks.clear();
    } else if !has_headings {
        blocks = by_name(head);
    }
    let mut is_open = false;
    for line in text.lines() {
        if let Some(number) = agent(line) {
            blocks.push((number == 1, Vec::new()));
            is_open = true;
        } else if is_open && let Some((_, block)) = blocks.last_mut() {
            block.push(line);
        }
    }
    blocks
}

/// Agents without their headings, as `rocminfo | grep -E 'Name|Marketing'` prints them: each begins with its
/// name; an ISA has the name of its target.
fn by_name<'a>(lines: &[&'a str]) -> Vec<(bool, Vec<&'a str>)> {
    let mut blocks: Vec<(bool, Vec<&str>)> = vec![(false, Vec::new())];
    let (mut is_asked, mut was_gpu) = (false, false);
    for &line in lines {
        is_asked |= line.contains("rocminfo");
        if let Some(name) = value_of(line, "Name").filter(|name| !name.contains("--")) {
            // Processors come before GPUs.
            let is_gpu = name.parse::<Gfx>().is_ok();
            blocks.push((
                is_asked || was_gpu && !is_gpu && is_processor(name),
                Vec::new(),
            ));
            (is_asked, was_gpu) = (false, is_gpu);
        }
        if let Some((_, block)) = blocks.last_mut() {
            block.push(line);
        }
    }
    blocks
}

/// The number of `Agent 2`, alone on its line or between stars.
fn agent(line: &str) -> Option<u32> {
    let line = line.trim().trim_matches('*').trim();
    line.strip_prefix("Agent ")?.trim().parse().ok()
}

/// The lines of an agent whose name was cut off, and which says that it is a GPU.
fn is_rest_of_gpu(block: &[&str]) -> bool {
    let is_gpu = field(block, "Device Type") == Some("GPU");
    let has_isa = block.iter().any(|line| {
        value_of(line, "Name").is_some_and(|name| {
            let isa = name.rsplit_once("--").map(|(_, isa)| isa);
            isa.is_some_and(|isa| isa.parse::<Gfx>().is_ok())
        })
    });
    is_gpu && field(block, "Chip ID").is_some() || has_isa
}

/// The first value of a key: the fields of the agent come before those of its pools and ISAs.
fn field<'a>(block: &[&'a str], key: &str) -> Option<&'a str> {
    block.iter().find_map(|line| value_of(line, key))
}

fn gpu(block: &[&str]) -> Gpu {
    // `5510(0x1586)`: the number before the parenthesis.
    let number = |key: &str| {
        field(block, key).and_then(|value| value.split('(').next()?.trim().parse::<u64>().ok())
    };
    let domain = number("Domain")
        .and_then(|domain| u32::try_from(domain).ok())
        .unwrap_or(0);
    let gfx = field(block, "Name").and_then(|name| name.parse().ok());
    let isa = block
        .iter()
        .find_map(|line| value_of(line, "Name")?.rsplit_once("--")?.1.parse().ok());
    let mut gpu = Gpu {
        gfx: gfx.or(isa),
        product: field(block, "Marketing Name")
            .filter(|name| !name.is_empty())
            .map(str::to_owned),
        uuid: field(block, "Uuid")
            .filter(|uuid| is_real_uuid(uuid))
            .map(str::to_owned),
        kfd_node: number("Node").and_then(|node| u32::try_from(node).ok()),
        device_id: number("Chip ID")
            .and_then(|id| u16::try_from(id).ok())
            .filter(|&id| id != 0)
            .map(DeviceId),
        pci: number("BDFID")
            .filter(|&id| id != 0)
            .map(|id| PciAddress::from_location_id(domain, id)),
        compute_units: number("Compute Unit").and_then(|units| u32::try_from(units).ok()),
        wave_size: number("Wavefront Size").and_then(|lanes| u32::try_from(lanes).ok()),
        usable_bytes: largest_pool(block),
        ..Gpu::default()
    };
    // Old versions of rocminfo do not have this line at all, which says nothing.
    if let Some(properties) = field(block, "Memory Properties") {
        let is_apu = properties.split([',', ' ']).any(|word| word == "APU");
        gpu.class = Some(if is_apu { Class::Apu } else { Class::Dgpu });
        gpu.class_from = "rocminfo: Memory Properties";
    }
    gpu
}

/// rocminfo believes `HSA_OVERRIDE_GFX_VERSION`; the chip id does not. Where they differ
/// the variable was set, whether or not the text shows it. (Not for Vega: Raven Ridge
/// and its successors share ids.)
fn under_override(gpu: &mut Gpu, machine: &mut Machine) {
    let Some(reported) = gpu.gfx else { return };
    let by_id = gpu.device_id.and_then(|id| id.gfx());
    // A name may be that of several chips of a family, and no more is known from it.
    let named = gpu.product.as_deref().and_then(names::architecture_of);
    let form = |gfx: &Gfx| gfx.architecture().map(|known| known.sold_as);
    let by_name = named.filter(|chip| {
        (chip.major, chip.minor) != (reported.major, reported.minor)
            || form(chip) != form(&reported)
    });
    let Some(chip) = by_id.filter(|chip| chip.major >= 10).or(by_name) else {
        return;
    };
    if reported == chip {
        return;
    }
    gpu.gfx = Some(chip);
    machine
        .variables
        .entry("HSA_OVERRIDE_GFX_VERSION".to_owned())
        .or_insert_with(|| reported.as_override());
}

/// `GPU-XX` means a card without a serial number, and WSL prints all ones.
fn is_real_uuid(uuid: &str) -> bool {
    uuid.strip_prefix("GPU-").is_some_and(|hex| {
        hex.len() >= 8
            && hex.bytes().all(|b| b.is_ascii_hexdigit())
            && !hex.bytes().all(|b| b == b'f')
            && !hex.bytes().all(|b| b == b'0')
    })
}

/// The largest global pool; a card shows the same memory as several pools.
fn largest_pool(block: &[&str]) -> Option<Bytes> {
    let mut is_global = false;
    let mut largest = None;
    for line in block {
        if let Some(segment) = value_of(line, "Segment") {
            is_global = segment.starts_with("GLOBAL");
        } else if is_global && let Some(size) = value_of(line, "Size") {
            let kib = size
                .split('(')
                .next()
                .and_then(|number| number.trim().parse().ok())
                .map(Bytes::kib);
            largest = largest.max(kib);
        }
    }
    largest.filter(|&size| size > Bytes::ZERO)
}
