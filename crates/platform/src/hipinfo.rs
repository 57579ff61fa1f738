//! The output of `hipInfo`, the only tool that the wheels for Windows bring.

use crate::Bytes;
use crate::machine::{Class, Gpu};
use crate::pci::PciAddress;

/// What `hipInfo` listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// The GPUs in HIP's order: one for each block that begins with `device#`.
    pub gpus: Vec<Gpu>,
    /// Free memory of the first GPU.
    pub free: Option<Bytes>,
}

/// Parses the output within any other text; `None` if it contains none.
#[must_use]
pub fn parse(text: &str) -> Option<Listing> {
    let is_hipinfo = text.contains("gcnArch") && text.lines().any(is_device_line);
    if !is_hipinfo {
        return None;
    }
    let mut listing = Listing::default();
    let gpus = &mut listing.gpus;
    // Bus, device and domain of the block that is open.
    let mut address = [None::<u32>; 3];
    for line in text.lines() {
        if is_device_line(line) {
            gpus.push(Gpu::default());
            address = [None; 3];
            continue;
        }
        let is_first = gpus.len() == 1;
        let Some(gpu) = gpus.last_mut() else { continue };
        let Some((key, value)) = line
            .split_once(':')
            .map(|(key, value)| (key.trim(), value.trim()))
        else {
            continue;
        };
        match key {
            "Name" => gpu.product = Some(value.to_owned()),
            "gcnArchName" => gpu.gfx = value.parse().ok(),
            // Before ROCm 3.
            "gcnArch" => gpu.gfx = gpu.gfx.or_else(|| format!("gfx{value}").parse().ok()),
            "totalGlobalMem" => gpu.usable_bytes = Bytes::parse_tool_output(value),
            "multiProcessorCount" => gpu.compute_units = value.parse().ok(),
            "warpSize" => gpu.wave_size = value.parse().ok(),
            "pciBusID" => address[0] = value.parse().ok(),
            "pciDeviceID" => address[1] = value.parse().ok(),
            "pciDomainID" => address[2] = value.parse().ok(),
            "isIntegrated" | "integrated" => {
                gpu.class = Some(if value.split(' ').next() == Some("0") {
                    Class::Dgpu
                } else {
                    Class::Apu
                });
                gpu.class_from = "hipInfo: isIntegrated";
            }
            "memInfo.free" => {
                let size = value.split('(').next().unwrap_or_default();
                if is_first {
                    listing.free = Bytes::parse_tool_output(size);
                }
            }
            _ => {}
        }
        gpu.pci = match address {
            [Some(bus), device, domain] => u8::try_from(bus).ok().map(|bus| PciAddress {
                domain: domain.unwrap_or(0),
                bus,
                device: device
                    .and_then(|device| u8::try_from(device).ok())
                    .unwrap_or(0),
                function: 0,
            }),
            _ => None,
        };
    }
    for gpu in gpus {
        // On RDNA HIP counts work group processors, which are pairs of compute units.
        if gpu.gfx.is_some_and(|gfx| gfx.major >= 10) {
            gpu.compute_units = gpu.compute_units.map(|pairs| pairs.saturating_mul(2));
        }
    }
    Some(listing)
}

/// `device#                           0`; `peers: device#0` has the name elsewhere.
fn is_device_line(line: &str) -> bool {
    line.trim()
        .strip_prefix("device#")
        .is_some_and(|number| number.trim().parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_that_of_the_first_gpu_and_of_no_other() {
        let text = |first: &str, second: &str| {
            format!(
                "device# 0\ngcnArchName: gfx1036\n{first}device# 1\ngcnArchName: gfx1100\n{second}"
            )
        };
        let free = "memInfo.free: 23.84 GB (99%)\n";
        let of = |text: String| parse(&text).map(|listing| listing.free);
        assert_eq!(of(text("", free)), Some(None));
        let known = Bytes::parse_tool_output("23.84 GB");
        assert_eq!(of(text(free, "")), Some(known));
        assert_eq!(parse("gcnArch and nothing else"), None);
    }
}
