//! The output of `hipInfo`, the only tool that the Windows wheels bring.

use super::value_of;
use platform::Bytes;
use platform::machine::{Class, Gpu, Machine, System};
use platform::pci::PciAddress;

/// One GPU for each block that begins with `device#`.
pub(super) fn gpus(text: &str, machine: &mut Machine) -> Vec<Gpu> {
    let mut gpus: Vec<Gpu> = Vec::new();
    let is_hipinfo = text.contains("gcnArch") && text.lines().any(is_device_line);
    if !is_hipinfo {
        return gpus;
    }
    // There is a hipInfo for Linux too; it is the Windows one that has no rocminfo beside it.
    let is_linux = ["/opt/rocm", "/dev/kfd", "Linux", "$ "]
        .iter()
        .any(|sign| text.contains(sign));
    if !is_linux {
        machine.system = System::Windows;
    }
    // Bus, device and domain of the block that is open.
    let mut address = [None::<u32>; 3];
    for line in text.lines() {
        if is_device_line(line) {
            gpus.push(Gpu::default());
            address = [None; 3];
            continue;
        }
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
                gpu.class = Some(if value == "0" {
                    Class::Dgpu
                } else {
                    Class::Apu
                });
                gpu.class_from = "hipInfo: isIntegrated";
            }
            _ => {}
        }
        if value_of(line, "memInfo.free").is_some() {
            let size = value.split('(').next().unwrap_or_default();
            machine.reported.hip_free =
                machine.reported.hip_free.or(Bytes::parse_tool_output(size));
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
    for gpu in &mut gpus {
        // On RDNA HIP counts work group processors, which are pairs of compute units.
        if gpu.gfx.is_some_and(|gfx| gfx.major >= 10) {
            gpu.compute_units = gpu.compute_units.map(|pairs| pairs.saturating_mul(2));
        }
    }
    gpus
}

/// `device#                           0`; `peers: device#0` has the name elsewhere.
fn is_device_line(line: &str) -> bool {
    line.trim()
        .strip_prefix("device#")
        .is_some_and(|number| number.trim().parse::<u32>().is_ok())
}
