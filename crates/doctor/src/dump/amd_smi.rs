//! The output of `amd-smi`: its table, and `list`, `static` or `metric` as text, JSON or CSV.
//!
//! Its "VRAM" is memory of the GPU's own: on an APU that is the carve-out, never
//! what HIP can use. `N/A` for load, temperature and power is normal on APUs.

use super::csv;
use platform::Bytes;
use platform::machine::{Gpu, Machine};
use platform::pci::{DeviceId, PciAddress};
use serde_json::Value;
use std::collections::BTreeMap;

/// The GPUs in the order of the tool, which is not always HIP's.
pub(super) fn gpus(text: &str, _machine: &mut Machine) -> Vec<Gpu> {
    if let Some(gpus) = from_json(text).or_else(|| from_csv(text)) {
        return without_shared_memory(gpus);
    }
    let mut gpus = if text.contains("AMD-SMI") {
        table(text)
    } else {
        Vec::new()
    };
    if gpus.is_empty() {
        gpus = listing(text);
    }
    // What other programs say about the only GPU is often posted below.
    if let [only] = gpus.as_mut_slice() {
        only.gfx = only
            .gfx
            .or_else(|| platform::Gfx::find_all(text).first().copied());
    }
    gpus
}

/// Partitions of one card: the tool gives the memory of the whole card to the first.
fn without_shared_memory(mut gpus: Vec<Gpu>) -> Vec<Gpu> {
    let cards: Vec<_> = gpus
        .iter()
        .map(|gpu| gpu.pci.map(PciAddress::whole_card))
        .collect();
    for (gpu, card) in gpus.iter_mut().zip(&cards) {
        let sharing = cards
            .iter()
            .filter(|other| card.is_some() && *other == card);
        if sharing.count() > 1 {
            gpu.vram_bytes = None;
        }
    }
    gpus
}

/// `--csv`: a row a GPU, sizes in MB; several tables of one machine are about the same GPUs.
fn from_csv(text: &str) -> Option<Vec<Gpu>> {
    let mut gpus: BTreeMap<u32, Gpu> = BTreeMap::new();
    for row in csv::rows(text, "gpu") {
        let Some(number) = row.first().and_then(|(_, value)| value.parse().ok()) else {
            continue;
        };
        let gpu = gpus.entry(number).or_default();
        for (name, value) in row {
            let key = name.to_ascii_uppercase();
            match key.as_str() {
                "GPU_BDF" => fact(gpu, "BDF", value, false),
                "GPU_UUID" => fact(gpu, "UUID", value, false),
                "SIZE" | "TOTAL_VRAM" | "TOTAL_GTT" => {
                    fact(gpu, &key, &format!("{value} MB"), true);
                }
                key => fact(gpu, key, value, false),
            }
        }
    }
    gpus.retain(|_, gpu| *gpu != Gpu::default());
    (!gpus.is_empty()).then(|| gpus.into_values().collect())
}

/// Two rows a GPU: `| 0000:c5:00.0    AMD Radeon Graphics | …`, then `| 0 0 N/A … 161/98304 MB |`.
fn table(text: &str) -> Vec<Gpu> {
    let mut gpus: Vec<Gpu> = Vec::new();
    for line in text.lines() {
        let Some(row) = line.trim().strip_prefix('|') else {
            continue;
        };
        let row = row.trim_end_matches('|');
        let first = row.split('|').next().unwrap_or_default().trim();
        let (address, name) = first.split_once(char::is_whitespace).unwrap_or((first, ""));
        if let Some(pci) = PciAddress::parse(address) {
            // The same table again.
            if gpus.iter().any(|known| known.pci == Some(pci)) {
                continue;
            }
            let product = Some(name.trim().to_owned()).filter(|name| !name.is_empty());
            gpus.push(Gpu {
                pci: Some(pci),
                product,
                ..Gpu::default()
            });
        } else if let Some(gpu) = gpus.last_mut()
            && gpu.vram_bytes.is_none()
            && let Some((_, total)) = row.rsplit_once('/')
            && total.trim_end().ends_with('B')
        {
            gpu.vram_bytes = Bytes::parse_tool_output(total);
        }
    }
    gpus
}

/// `GPU: 0` and indented `KEY: value` lines below it.
fn listing(text: &str) -> Vec<Gpu> {
    let mut gpus: BTreeMap<u32, Gpu> = BTreeMap::new();
    let mut open = None;
    let mut in_vram = false;
    for line in text.lines() {
        let Some((key, value)) = line
            .split_once(':')
            .map(|(key, value)| (key.trim(), value.trim()))
        else {
            continue;
        };
        if key == "GPU"
            && let Ok(number) = value.parse::<u32>()
        {
            open = Some(number);
            continue;
        }
        if value.is_empty() {
            in_vram = key == "VRAM";
        }
        if let Some(number) = open {
            fact(gpus.entry(number).or_default(), key, value, in_vram);
        }
    }
    gpus.into_values()
        .filter(|gpu| *gpu != Gpu::default())
        .collect()
}

/// A list of objects, or `{"gpu_data": […]}`; their keys are those of the text in lower case.
fn from_json(text: &str) -> Option<Vec<Gpu>> {
    // `static` and `metric` of one machine, one after the other, are about the same GPUs.
    let mut gpus: BTreeMap<u64, Gpu> = BTreeMap::new();
    for document in super::json_documents(text) {
        let list = document
            .as_array()
            .or_else(|| document.get("gpu_data")?.as_array());
        for entry in list.into_iter().flatten() {
            if let Some(number) = entry.get("gpu").and_then(Value::as_u64) {
                walk(entry, false, gpus.entry(number).or_default());
            }
        }
    }
    (!gpus.is_empty()).then(|| gpus.into_values().collect())
}

fn walk(json: &Value, in_vram: bool, gpu: &mut Gpu) {
    for (key, value) in json.as_object().into_iter().flatten() {
        let key = key.to_ascii_uppercase();
        match value {
            Value::Object(object) => match (
                object.get("value"),
                object.get("unit").and_then(Value::as_str),
            ) {
                // Sizes are `{"value": 24560, "unit": "MB"}`.
                (Some(number), Some(unit)) => fact(gpu, &key, &format!("{number} {unit}"), in_vram),
                _ => walk(value, key == "VRAM", gpu),
            },
            Value::String(text) => fact(gpu, &key, text, in_vram),
            Value::Number(number) => fact(gpu, &key, &number.to_string(), in_vram),
            _ => {}
        }
    }
}

fn fact(gpu: &mut Gpu, key: &str, value: &str, in_vram: bool) {
    match key {
        "BDF" => gpu.pci = gpu.pci.or_else(|| PciAddress::parse(value)),
        "MARKET_NAME" if value != "N/A" => gpu.product = Some(value.to_owned()),
        "DEVICE_ID" => gpu.device_id = gpu.device_id.or_else(|| DeviceId::parse(value)),
        "TARGET_GRAPHICS_VERSION" => gpu.gfx = value.parse().ok(),
        "NUM_COMPUTE_UNITS" => gpu.compute_units = value.parse().ok(),
        "UUID" => gpu.device_id = gpu.device_id.or_else(|| device_of(value)),
        "NODE_ID" => gpu.kfd_node = value.parse().ok(),
        "SIZE" if in_vram => gpu.vram_bytes = Bytes::parse_tool_output(value),
        "TOTAL_VRAM" => gpu.vram_bytes = Bytes::parse_tool_output(value),
        "TOTAL_GTT" => gpu.gtt_bytes = Bytes::parse_tool_output(value),
        _ => {}
    }
}

/// The first group of an `amd-smi` UUID (`a0ff7550-0000-1000-…`) ends in the device id.
fn device_of(uuid: &str) -> Option<DeviceId> {
    let group = uuid.split('-').next().filter(|group| group.len() == 8)?;
    if group.get(2..4)? != "ff" {
        return None;
    }
    let id = DeviceId::from_hex(group.get(4..)?)?;
    id.gfx().map(|_| id)
}
