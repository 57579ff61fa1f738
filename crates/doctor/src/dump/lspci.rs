//! The output of `lspci`: which GPUs the bus has, and which driver runs each.
//!
//! ```text
//! 03:00.0 VGA compatible controller [0300]: Advanced Micro Devices, Inc. [AMD/ATI] Navi 31 [Radeon RX 7900 XT/7900 XTX] [1002:744c] (rev c8)
//!         Kernel driver in use: amdgpu
//! ```

use crate::names;
use platform::machine::{Gpu, Machine, PciBus, UnusableGpu, UnusableReason};
use platform::pci::{DeviceId, PciAddress};

/// AMD's GPUs in the order of the bus; one that another driver runs becomes an unseen one.
/// Without `-k` nothing is known of drivers, and all of them count.
pub(super) fn gpus(text: &str, machine: &mut Machine) -> Vec<Gpu> {
    let mut found: Vec<(Gpu, Option<String>, bool)> = Vec::new();
    let mut open = None;
    for line in text.lines() {
        if let Some(gpu) = gpu(line) {
            // The bus is often listed twice, in short and with details.
            open = found.iter().position(|(known, ..)| known.pci == gpu.pci);
            if open.is_none() {
                open = Some(found.len());
                found.push((gpu, None, false));
            }
        } else if line.trim().starts_with("Kernel modules:") {
            // The last line of a device: a driver in use would have been named above it.
            if let Some((.., is_whole)) = open.and_then(|at| found.get_mut(at)) {
                *is_whole = true;
            }
        } else if let Some(driver) = line.trim().strip_prefix("Kernel driver in use:") {
            if let Some((_, known, _)) = open.and_then(|at| found.get_mut(at)) {
                *known = Some(driver.trim().to_owned());
            }
        } else if line
            .trim_start()
            .split_once(' ')
            .is_some_and(|(address, _)| PciAddress::parse(address).is_some())
        {
            // The next device of the bus.
            open = None;
        }
    }
    if found.is_empty() {
        return Vec::new();
    }
    let is_of_nvidia = |line: &str| {
        line.contains("NVIDIA Corporation")
            && ["VGA compatible controller", "3D controller"]
                .iter()
                .any(|class| line.contains(class))
    };
    let others = match text.lines().any(is_of_nvidia) {
        true => vec!["NVIDIA".to_owned()],
        false => Vec::new(),
    };
    machine.pci_bus = Some(PciBus {
        amd: found.len(),
        others,
    });
    let mut usable = Vec::new();
    for (gpu, driver, is_whole) in found {
        let reason = match driver.as_deref() {
            Some("amdgpu") => None,
            Some(other) => Some(UnusableReason::OtherDriver(other.to_owned())),
            None => is_whole.then(|| UnusableReason::NoDriver(kept_away(text, gpu.device_id))),
        };
        match reason {
            None => usable.push(gpu),
            Some(reason) => machine.unseen.push(UnusableGpu {
                pci: gpu.pci,
                device_id: gpu.device_id,
                product: gpu.product,
                reason,
            }),
        }
    }
    usable
}

/// What else in the text keeps `amdgpu` from a card: a rule that reserves it for virtual machines, or a
/// blacklist.
fn kept_away(text: &str, id: Option<DeviceId>) -> Option<String> {
    let reserves = id.map(|DeviceId(id)| format!("1002:{id:04x}"));
    let is_reserved = |line: &&str| {
        let has_id = reserves.as_ref().is_some_and(|id| line.contains(id));
        has_id && (line.contains("vfio-pci.ids=") || line.contains("options vfio-pci"))
    };
    let is_blacklisted = |line: &&str| {
        line.trim_start().starts_with("blacklist amdgpu")
            || line.contains("modprobe.blacklist=amdgpu")
            || line.contains("module_blacklist=amdgpu")
    };
    let turns_modes_off = |line: &str| {
        let is_command_line = line.contains("BOOT_IMAGE=") || line.contains("GRUB_CMDLINE");
        is_command_line && line.split([' ', '"', '\'']).any(|word| word == "nomodeset")
    };
    if text.lines().any(turns_modes_off) {
        return Some("`nomodeset` on the kernel command line".to_owned());
    }
    let line = text
        .lines()
        .find(|line| is_reserved(line) || is_blacklisted(line))?;
    let rule = line
        .split_whitespace()
        .find(|word| word.contains("vfio-pci.ids=") || word.contains("blacklist="))
        .unwrap_or(line.trim());
    Some(rule.to_owned())
}

fn gpu(line: &str) -> Option<Gpu> {
    let (address, rest) = line.trim_start().split_once(' ')?;
    let pci = PciAddress::parse(address)?;
    // `lspci -n`: the number of the class, and the ids.
    let numbers = rest
        .split_once(": 1002:")
        .filter(|(class, _)| matches!(*class, "0300" | "0302" | "0380" | "1200"));
    if let Some((_, id)) = numbers {
        let device_id = DeviceId::from_hex(id.get(..4)?)?;
        return Some(Gpu {
            pci: Some(pci),
            device_id: Some(device_id),
            product: device_id.product(None).map(str::to_owned),
            ..Gpu::default()
        });
    }
    let is_display = [
        "VGA compatible",
        "Display controller",
        "3D controller",
        "Processing accelerators",
    ]
    .iter()
    .any(|class| rest.starts_with(class));
    if !is_display || !(rest.contains("Advanced Micro Devices") || rest.contains("[1002:")) {
        return None;
    }
    let device_id = rest
        .split_once("[1002:")
        .and_then(|(_, id)| DeviceId::from_hex(id.get(..4)?))
        .or_else(|| unnamed(rest));
    let product = rest
        .split_once("[AMD/ATI] ")
        .map(|(_, name)| name.split(" [1002:").next().unwrap_or(name))
        .map(|name| name.split(" (rev").next().unwrap_or(name).trim())
        .filter(|name| names::architecture_of(name).is_some());
    Some(Gpu {
        pci: Some(pci),
        device_id,
        product: device_id
            .and_then(|id| id.product(None))
            .or(product)
            .map(str::to_owned),
        ..Gpu::default()
    })
}

/// `[AMD/ATI] Device 67df (rev e7)`: the list of names is older than the card.
fn unnamed(rest: &str) -> Option<DeviceId> {
    let (_, digits) = rest.split_once("] Device ")?;
    let id = DeviceId::from_hex(digits.get(..4)?)?;
    id.gfx().map(|_| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_that_is_listed_twice_has_each_gpu_once() {
        let line = "28:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Device 687f (rev c1)\n";
        let mut machine = Machine::default();
        let text =
            format!("{line}\n{line}\tKernel driver in use: vfio-pci\n\tKernel modules: amdgpu\n");
        assert!(gpus(&text, &mut machine).is_empty());
        assert_eq!(machine.unseen.len(), 1);
        assert_eq!(
            gpus(&format!("{line}{line}"), &mut Machine::default()).len(),
            1
        );
    }

    #[test]
    fn what_is_left_out_of_a_listing_does_not_end_a_device() {
        let text = "44:00.0 Display controller [0380]: Advanced Micro Devices, Inc. [AMD/ATI] Vega 20 [Radeon Instinct MI50] [1002:66a1] (rev 02)\n..\n\n        Kernel driver in use: vfio-pci\n";
        let mut machine = Machine::default();
        assert!(gpus(text, &mut machine).is_empty());
        assert_eq!(
            machine.unseen[0].reason,
            UnusableReason::OtherDriver("vfio-pci".to_owned())
        );
    }

    #[test]
    fn a_rule_that_reserves_a_card_is_the_reason_why_it_has_no_driver() {
        let text = "quiet amd_iommu=on vfio-pci.ids=1002:699f,1002:aae0\n01:00.0 VGA compatible controller [0300]: Advanced Micro Devices, Inc. [AMD/ATI] Lexa PRO [Radeon RX 550] [1002:699f] (rev c7)\n\tKernel modules: amdgpu\n";
        let mut machine = Machine::default();
        assert!(gpus(text, &mut machine).is_empty());
        assert_eq!(
            machine.unseen[0].reason,
            UnusableReason::NoDriver(Some("vfio-pci.ids=1002:699f,1002:aae0".to_owned()))
        );
    }
}
