//! The facts for each check, in one line.

use super::{Entry, Report};
use crate::findings::Check;
use crate::plan::{AOTRITON_CHECK, attention_is_untried};
use platform::machine;
use platform::machine::{Machine, ReadFrom, System};
use platform::memory::MemoryRule;

impl Report {
    /// Whether a check without findings is nevertheless not passed: without a GPU
    /// its devices are not missed.
    pub(super) fn is_missing(&self, check: Check) -> bool {
        check == Check::Access
            && self.machine.system != System::Wsl
            && self
                .machine
                .devices
                .iter()
                .any(|device| device.access != "ok")
    }

    /// The facts for a check; `None` if nothing is known about it.
    pub(super) fn summary(&self, check: Check) -> Option<String> {
        let machine = &self.machine;
        match check {
            Check::Gpu if self.gpus.is_empty() => {
                let is_about_gpus = machine.read_from != ReadFrom::Log;
                if machine.posted.is_cut {
                    Some("none in this part of the text".to_owned())
                } else {
                    is_about_gpus.then(|| "none that HIP can use".to_owned())
                }
            }
            Check::Gpu => Some(
                self.gpus
                    .iter()
                    .map(|entry| self.describe(entry))
                    .collect::<Vec<_>>()
                    .join("\n                   "),
            ),
            Check::Access => {
                let devices: Vec<String> = machine
                    .devices
                    .iter()
                    // WSL has none, and needs none.
                    .filter(|device| machine.system != System::Wsl || device.path != "/dev/kfd")
                    .map(|device| format!("{} {}", device.path, device.access))
                    .collect();
                (!devices.is_empty()).then(|| devices.join(", "))
            }
            Check::Kernel => {
                let mut words = Vec::new();
                words.extend(machine.kernel.as_ref().map(|kernel| kernel.release.clone()));
                words.extend(machine.distribution.clone());
                words.extend(machine.firmware.clone());
                words.extend(
                    machine
                        .container
                        .as_ref()
                        .map(|container| format!("in {container}")),
                );
                words.extend(
                    machine
                        .posted
                        .rocm
                        .as_ref()
                        .map(|version| format!("ROCm {version}")),
                );
                words.extend(match machine.system {
                    System::Wsl => Some("WSL".to_owned()),
                    System::Windows if machine.windows.is_some() => driver(machine),
                    System::Windows => Some("Windows".to_owned()),
                    System::Macos => Some("macOS".to_owned()),
                    System::Linux => None,
                });
                words.extend(machine.posted.processor.clone());
                (!words.is_empty()).then(|| words.join(", "))
            }
            Check::Memory => {
                let mut words = Vec::new();
                words.extend(machine.memory.total.map(|total| format!("{total} RAM")));
                words.extend(
                    machine
                        .memory
                        .available
                        .map(|available| format!("{available} available")),
                );
                let swap_name = match machine.system {
                    System::Windows => "page file",
                    _ => "swap",
                };
                let swap = machine.memory.swap_total;
                words.extend(swap.map(|swap| format!("{swap} {swap_name}")));
                words.extend(
                    machine
                        .cgroup
                        .limit
                        .map(|limit| format!("{limit} for this process")),
                );
                words.extend(
                    machine
                        .ttm_pages_limit
                        .map(|pages| format!("{} for GPUs (TTM)", platform::Bytes::pages(pages))),
                );
                (!words.is_empty()).then(|| words.join(", "))
            }
            Check::Python => {
                let python = machine.python.as_ref()?;
                let torch = python
                    .torch
                    .as_ref()
                    .map_or("no torch".to_owned(), |torch| {
                        format!("torch {}", torch.version)
                    });
                let attention = match machine.probed.get(AOTRITON_CHECK) {
                    Some(true) => ", attention that keeps no scores (AOTriton, tried)",
                    Some(false) => ", attention that may keep scores (AOTriton fails here)",
                    None if machine.is_complete && attention_is_untried(machine) => {
                        ", fast attention not tried yet (`surefoot probe`)"
                    }
                    None => "",
                };
                Some(format!("{torch} in {}{attention}", python.prefix))
            }
            Check::Override | Check::Visibility | Check::Variables | Check::Limits => {
                self.summary_of_settings(check)
            }
        }
    }

    fn summary_of_settings(&self, check: Check) -> Option<String> {
        let machine = &self.machine;
        let set = |is: fn(&str) -> bool| -> Option<String> {
            let set: Vec<String> = machine
                .variables
                .iter()
                .filter(|(name, _)| is(name))
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            match (set.is_empty(), machine.is_complete) {
                (false, _) => Some(set.join(" ")),
                (true, true) => Some("none set".to_owned()),
                (true, false) => None,
            }
        };
        match check {
            Check::Override => set(|name| name.starts_with("HSA_OVERRIDE_GFX_VERSION")),
            Check::Visibility => {
                let hidden = self
                    .hide
                    .iter()
                    .map(usize::to_string)
                    .collect::<Vec<_>>()
                    .join(", ");
                let set = set(|name| crate::plan::VISIBILITY.contains(&name));
                if self.hide.is_empty() {
                    set
                } else {
                    Some(format!(
                        "train on GPU {}, hide {hidden}",
                        self.pick.unwrap_or(0)
                    ))
                }
            }
            Check::Variables => {
                let count = machine
                    .variables
                    .keys()
                    .filter(|name| !is_shown_elsewhere(name))
                    .count();
                (machine.is_complete || count > 0).then(|| format!("{count} that concern the GPU"))
            }
            _ => machine.open_files.map(|limit| match limit {
                u64::MAX => "open files unlimited".to_owned(),
                limit => format!("{limit} open files"),
            }),
        }
    }

    fn describe(&self, entry: &Entry) -> String {
        let gpu = &entry.gpu;
        let mut words = vec![gpu.name()];
        words.extend(gpu.class.map(|class| match class {
            machine::Class::Apu => "APU".to_owned(),
            machine::Class::Dgpu => "card".to_owned(),
        }));
        words.extend(gpu.compute_units.map(|units| format!("{units} CUs")));
        words.extend(
            gpu.usable_bytes
                .map(|bytes| format!("{bytes} usable ({})", rule_name(gpu.memory_rule))),
        );
        if gpu.usable_bytes.is_none() {
            words.extend(gpu.vram_bytes.map(|bytes| format!("{bytes} VRAM")));
            // Of an APU, a program may count the carve-out and the RAM together.
            let said = self.machine.reported.tool_total;
            let is_only = self.gpus.len() == 1 && gpu.vram_bytes.is_none();
            words.extend(
                said.filter(|_| is_only)
                    .map(|bytes| format!("{bytes} as the program counts")),
            );
        }
        // What the host and its limits leave of the pool; on a card only the driver knows.
        let is_known = gpu.is_apu() && self.machine.memory.available.is_some();
        let shared = entry.capacity.filter(|_| is_known);
        let now = shared.filter(|capacity| Some(capacity.free) < gpu.usable_bytes);
        words.extend(now.map(|capacity| format!("{} for a process now", capacity.free)));
        words.extend(gpu.pci.map(|pci| pci.to_string()));
        let mark = if Some(gpu.index) == self.pick {
            "▸"
        } else {
            " "
        };
        format!("{mark} {}: {}", gpu.index, words.join(", "))
    }
}

/// The driver of the first GPU of AMD on Windows: `driver 32.0.12033.1030, Adrenalin 24.12.1`.
fn driver(machine: &Machine) -> Option<String> {
    let mut adapters = machine.windows.iter().flat_map(|known| &known.adapters);
    let adapter = adapters.find(|adapter| adapter.is_amd() && adapter.has_driver_of_amd())?;
    let driver = adapter.driver.as_ref().map(|of| format!("driver {of}"));
    let release = adapter.release.as_ref().map(|of| format!("Adrenalin {of}"));
    let words: Vec<String> = driver.into_iter().chain(release).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn is_shown_elsewhere(name: &str) -> bool {
    name.starts_with("HSA_OVERRIDE_GFX_VERSION")
        || crate::plan::VISIBILITY.contains(&name)
        || matches!(
            name,
            "VIRTUAL_ENV" | "CONDA_PREFIX" | "PYTHONPATH" | "PYTHONHOME"
        )
}

fn rule_name(rule: Option<MemoryRule>) -> &'static str {
    match rule {
        Some(MemoryRule::Gtt) => "RAM, up to the TTM limit",
        Some(MemoryRule::Carveout) => "BIOS carve-out",
        Some(MemoryRule::Discrete) => "its own",
        Some(MemoryRule::Unknown) | None => "rule not known",
    }
}
