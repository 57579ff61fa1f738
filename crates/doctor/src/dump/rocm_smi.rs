//! The output of `rocm-smi`: long (`-a`), short (the table), `--json` or `--csv`.

use super::csv;
use crate::names;
use platform::Bytes;
use platform::machine::{Gpu, Kernel, Machine};
use platform::pci::{DeviceId, PciAddress};
use std::collections::{BTreeMap, BTreeSet};

/// The GPUs, in the order of their KFD nodes: rocm-smi has its own order,
/// which HIP does not use (pytorch #131901).
pub(super) fn gpus(text: &str, machine: &mut Machine) -> Vec<Gpu> {
    let mut gpus: BTreeMap<u32, Gpu> = BTreeMap::new();
    let mut nameless = BTreeSet::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some((number, key, value)) = long_line(line) {
            fact(gpus.entry(number).or_default(), key, value);
        } else if let Some((number, gpu)) = hardware_line(line) {
            gpus.entry(number).or_insert(gpu);
        } else if let Some((number, gpu)) = table_line(line) {
            gpus.entry(number).or_insert(gpu);
        } else if let Some(number) = model_line(line) {
            let gpu = gpus.entry(number).or_default();
            let name = lines.find(|line| !line.trim().is_empty());
            fact(gpu, "Card Series", name.unwrap_or_default().trim());
        } else if let Some(number) = old_table_line(line) {
            nameless.insert(number);
        } else if let Some(release) = line.strip_prefix("Driver version:") {
            // The kernel's own driver has the version of the kernel, with a suffix; AMD's
            // (dkms) has its own version numbers, which look like an old kernel.
            let release = release.trim();
            if release.contains('-') {
                machine.kernel = machine.kernel.take().or(Kernel::parse(release));
            } else if !release.is_empty() {
                machine.amdgpu_dkms = Some(release.to_owned());
            }
        }
    }
    for json in super::json_documents(text) {
        from_json(&json, &mut gpus);
    }
    for row in csv::rows(text, "device") {
        let number = row
            .first()
            .and_then(|(_, card)| card.strip_prefix("card")?.parse().ok());
        for (key, value) in row {
            if let Some(number) = number {
                fact(gpus.entry(number).or_default(), key, value);
            }
        }
    }
    let is_smi = text.contains("System Management Interface");
    if is_smi && gpus.is_empty() {
        gpus.extend(nameless.into_iter().map(|number| (number, Gpu::default())));
    }
    let mut gpus: Vec<Gpu> = gpus
        .into_values()
        .filter(|gpu| is_smi || *gpu != Gpu::default())
        .collect();
    gpus.sort_by_key(|gpu| gpu.kfd_node.unwrap_or(u32::MAX));
    gpus
}

/// `GPU[0]\t\t: Device ID: \t\t0x15bf`.
fn long_line(line: &str) -> Option<(u32, &str, &str)> {
    let (number, rest) = line.trim().strip_prefix("GPU[")?.split_once(']')?;
    let (key, value) = rest.trim_start().strip_prefix(':')?.split_once(':')?;
    Some((number.parse().ok()?, key.trim(), value.trim()))
}

/// `0       1     0x744c,   12345  45.0°C …`, below the heading `Device  Node  IDs`.
fn table_line(line: &str) -> Option<(u32, Gpu)> {
    let mut words = line.split_whitespace();
    let (number, node, id) = (
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
        words.next()?,
    );
    let device_id = DeviceId::parse(id.strip_suffix(',')?)?;
    Some((
        number,
        Gpu {
            kfd_node: Some(node),
            device_id: Some(device_id),
            ..Gpu::default()
        },
    ))
}

/// `1    744c  N/A  N/A  N/A  115-D702BS0-101  0000:03:00.0`, the table of `--showhw`.
fn hardware_line(line: &str) -> Option<(u32, Gpu)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (number, id) = (words.first()?, words.get(1)?);
    let mut addresses = words.iter().skip(3).filter(|word| word.contains(':'));
    let pci = addresses.find_map(|word| PciAddress::parse(word))?;
    // Newer versions write a node before the id.
    let id = [*id, words.get(2)?]
        .into_iter()
        .filter(|id| id.trim_start_matches("0x").len() == 4)
        .find_map(|id| DeviceId::from_hex(id.trim_start_matches("0x")))
        .filter(|id| id.gfx().is_some())?;
    let gpu = Gpu {
        device_id: Some(id),
        pci: Some(pci),
        ..Gpu::default()
    };
    Some((number.parse().ok()?, gpu))
}

/// `0       [0x0e3b : 0xc8]       41.0°C …`, the table of 6.0; the beginning of the name is on the next line.
fn model_line(line: &str) -> Option<u32> {
    let (number, rest) = line.trim().split_once(char::is_whitespace)?;
    let (model, _) = rest.trim_start().strip_prefix("[0x")?.split_once(']')?;
    model.contains(" : ").then_some(number.parse().ok()?)
}

/// `0    42.0c           16.0W   500Mhz  96Mhz    0%   auto  203.0W    1%   0%`, the
/// table before 6.0: that there is a GPU, and nothing about which.
fn old_table_line(line: &str) -> Option<u32> {
    let mut words = line.split_whitespace();
    let (number, temperature) = (words.next()?.parse().ok()?, words.next()?);
    let is_temperature = temperature
        .strip_suffix('c')
        .is_some_and(|degrees| degrees.parse::<f32>().is_ok());
    (is_temperature || temperature == "N/A" && line.trim_end().ends_with('%')).then_some(number)
}

fn from_json(json: &serde_json::Value, gpus: &mut BTreeMap<u32, Gpu>) {
    for (card, facts) in json.as_object().into_iter().flatten() {
        let Some(number) = card
            .strip_prefix("card")
            .and_then(|number| number.parse().ok())
        else {
            continue;
        };
        for (key, value) in facts.as_object().into_iter().flatten() {
            if let Some(value) = value.as_str() {
                fact(gpus.entry(number).or_default(), key, value);
            }
        }
    }
}

/// Card names are those of the PCI id database and wrong as often as right
/// ("Radeon HD 6470M" for a 780M): the device id decides where there is one.
fn fact(gpu: &mut Gpu, key: &str, value: &str) {
    match key {
        // The same under its name before 6.0.
        "Device ID" | "GPU ID" => gpu.device_id = DeviceId::parse(value).or(gpu.device_id),
        // Versions before 6.0 print the subsystem's id here.
        "Card Model" | "Card model" => {
            let known = DeviceId::parse(value).filter(|id| id.gfx().is_some());
            gpu.device_id = gpu.device_id.or(known);
        }
        "VBIOS version" => {
            gpu.gfx = gpu.gfx.or_else(|| names::architecture_of(value));
        }
        "Card Series" | "Card series" | "Device Name" => {
            let id =
                DeviceId::parse(value).filter(|id| value.starts_with("0x") && id.gfx().is_some());
            gpu.device_id = gpu.device_id.or(id);
            let is_name = names::architecture_of(value).is_some() || names::is_before_rocm(value);
            gpu.product = gpu.product.take().or(is_name.then(|| value.to_owned()));
        }
        "PCI Bus" => gpu.pci = PciAddress::parse(value),
        // 6.1 prints `gfx11003` for gfx1103; reading it repairs it.
        "GFX Version" => gpu.gfx = value.parse().ok(),
        "Node ID" => gpu.kfd_node = value.parse().ok(),
        "Unique ID" if value.starts_with("0x") => {
            gpu.uuid = u64::from_str_radix(&value[2..], 16)
                .ok()
                .filter(|&id| id != 0)
                .map(|id| format!("GPU-{id:016x}"));
        }
        "VRAM Total Memory (B)" => gpu.vram_bytes = Bytes::parse_tool_output(value),
        "GTT Total Memory (B)" => gpu.gtt_bytes = Bytes::parse_tool_output(value),
        _ => {}
    }
}
