//! The kernel log: what amdgpu and KFD say about the GPUs that they bring up.
//!
//! ```text
//! amdgpu 0000:03:00.0: enabling device (0006 -> 0007)
//! [drm] initializing kernel modesetting (IP DISCOVERY 0x1002:0x73DF 0x1043:0x05BF 0xC5).
//! amdgpu 0000:03:00.0: amdgpu: VRAM: 12272M 0x0000008000000000 - …
//! [drm] amdgpu: 15946M of GTT memory ready.
//! kfd kfd: amdgpu: added device 1002:73df          (or: skipped device 1002:164e, …)
//! ```
//!
//! The lines of one GPU follow each other, because amdgpu initialises one after the
//! other. KFD adds its nodes in the same order, so HIP's order is that of the lines
//! that say `added device`.

use crate::pattern::{Pattern, patterns};
use platform::Bytes;
use platform::machine::{Gpu, Machine, UnusableGpu, UnusableReason};
use platform::pci::{DeviceId, PciAddress};

patterns! {
    BEGINS = r"(?i)initializing kernel modesetting \([^)]*?0x1002:0x([0-9a-f]{4})";
    ADDRESS = r"(?i)amdgpu ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]):";
    VRAM = r"\bVRAM: (\d+M) 0x|(\d+M) of VRAM memory ready";
    GTT = r"(\d+M) of GTT memory ready";
    UNITS = r"active_cu_number (\d+)";
    ADDED = r"(?i)kfd.*added device 1002:([0-9a-f]{4})";
    SKIPPED = r"(?i)kfd.*skipped device 1002:([0-9a-f]{4})";
    RAM = r"\bMemory: \d+K/(\d+K) available";
}

/// What became of a GPU that amdgpu initialised.
#[derive(PartialEq)]
enum State {
    Initialised,
    Added,
    Skipped,
}

/// The GPUs that the log names, those that KFD refused as unseen ones.
pub(super) fn gpus(text: &str, machine: &mut Machine) -> Vec<Gpu> {
    let mut found: Vec<(Gpu, State)> = Vec::new();
    // The line with the address comes before the line that begins a GPU.
    let mut address = None;
    for line in text.lines() {
        let first = |pattern: &Pattern| {
            let captures = pattern.captures(line)?;
            let group = captures.iter().skip(1).flatten().next()?;
            Some(group.as_str().to_owned())
        };
        let id = |pattern: &Pattern| {
            let digits = first(pattern)?;
            DeviceId::from_hex(&digits)
        };
        if let Some(found) = first(&ADDRESS).and_then(|text| PciAddress::parse(&text)) {
            address = Some(found);
        }
        if let Some(device_id) = id(&BEGINS) {
            let gpu = Gpu {
                device_id: Some(device_id),
                pci: address,
                ..Gpu::default()
            };
            // A suspended laptop initialises the same GPU again.
            if !found.iter().any(|(known, _)| {
                known.device_id == gpu.device_id && known.pci == gpu.pci && gpu.pci.is_some()
            }) {
                found.push((gpu, State::Initialised));
            }
        }
        for (pattern, state) in [(&ADDED, State::Added), (&SKIPPED, State::Skipped)] {
            let Some(device_id) = id(pattern) else {
                continue;
            };
            let mut same = found
                .iter_mut()
                .filter(|(gpu, _)| gpu.device_id == Some(device_id))
                .peekable();
            let is_known = same.peek().is_some();
            match same.find(|(_, state)| *state == State::Initialised) {
                Some((_, known)) => *known = state,
                None if is_known => {}
                // The log begins later than the driver.
                None => found.push((
                    Gpu {
                        device_id: Some(device_id),
                        ..Gpu::default()
                    },
                    state,
                )),
            }
        }
        if let Some(ram) = first(&RAM) {
            machine.memory.total = machine.memory.total.or(Bytes::parse_tool_output(&ram));
        }
        let Some((gpu, _)) = found.last_mut() else {
            continue;
        };
        let size = |pattern| first(pattern).and_then(|size| Bytes::parse_tool_output(&size));
        gpu.vram_bytes = gpu.vram_bytes.or(size(&VRAM));
        gpu.gtt_bytes = gpu.gtt_bytes.or(size(&GTT));
        gpu.compute_units = gpu
            .compute_units
            .or(first(&UNITS).and_then(|units| units.parse().ok()));
    }
    let was_listed = found.iter().any(|(_, state)| *state == State::Added);
    let (usable, refused): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|(_, state)| *state == State::Added || !was_listed && *state != State::Skipped);
    machine.unseen.extend(refused.into_iter().map(|(gpu, _)| {
        UnusableGpu {
            pci: gpu.pci,
            device_id: gpu.device_id,
            product: gpu
                .device_id
                .and_then(|id| id.product(gpu.compute_units))
                .map(str::to_owned),
            reason: UnusableReason::NotInKfd,
        }
    }));
    usable.into_iter().map(|(gpu, _)| gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_once_though_the_machine_slept() {
        let line = "amdgpu 0000:c6:00.0: enabling device\n[drm] initializing kernel modesetting (IP DISCOVERY 0x1002:0x1586 0xF111:0x000A 0xC1).\nkfd kfd: amdgpu: added device 1002:1586\n";
        let gpus = gpus(&line.repeat(2), &mut Machine::default());
        assert_eq!(gpus.len(), 1);
        assert_eq!(
            gpus[0].pci.map(|pci| pci.to_string()).as_deref(),
            Some("0000:c6:00.0")
        );
    }

    #[test]
    fn the_board_of_amd_itself_is_not_the_chip() {
        let log = "[    1.844769] amdgpu 0000:01:00.0: enabling device (0000 -> 0003)\n\
                   [    1.845613] [drm] initializing kernel modesetting (FIJI 0x1002:0x7300 0x1002:0x0B36 0xCA).\n\
                   [    2.184890] amdgpu 0000:01:00.0: VRAM: 4096M 0x000000F400000000 - 0x000000F4FFFFFFFF (4096M used)\n";
        let gpus = gpus(log, &mut Machine::default());
        assert_eq!(gpus[0].device_id, Some(DeviceId(0x7300)));
        assert_eq!(gpus[0].vram_bytes, Some(Bytes::gib(4)));
    }

    #[test]
    fn a_gpu_that_kfd_skips_is_unseen() {
        let log = "[drm] initializing kernel modesetting (IP DISCOVERY 0x1002:0x73DF 0x1043:0x05BF 0xC5).\n\
                   kfd kfd: amdgpu: added device 1002:73df\n\
                   [drm] initializing kernel modesetting (IP DISCOVERY 0x1002:0x164E 0x1043:0x8877 0xC7).\n\
                   kfd kfd: amdgpu: skipped device 1002:164e, PCI rejects atomics 730<0\n";
        let mut machine = Machine::default();
        let gpus = gpus(log, &mut machine);
        assert_eq!(gpus.len(), 1);
        assert_eq!(gpus[0].device_id, Some(DeviceId(0x73df)));
        assert_eq!(machine.unseen[0].device_id, Some(DeviceId(0x164e)));
        assert_eq!(machine.unseen[0].reason, UnusableReason::NotInKfd);
    }
}
