//! Memory of APUs: little-known limits, and misleading numbers.

use super::{Check, Finding, Severity};
use platform::Bytes;
use platform::machine::{Class, Gpu, Machine, Parameter, ReadFrom, System};
use platform::memory::{MemoryRule, apu};

pub(super) fn find(machine: &Machine, found: &mut Vec<Finding>) {
    kernel_parameters(machine, found);
    reported_numbers(machine, found);
    paging(machine, found);
    if machine.system != System::Linux
        || machine
            .gpus
            .iter()
            .any(|gpu| gpu.class == Some(Class::Dgpu))
            && machine.gpus.len() == 1
    {
        return;
    }
    ttm_limit(machine, found);
    for gpu in machine
        .gpus
        .iter()
        .filter(|gpu| gpu.class != Some(Class::Dgpu) && !gpu.is_server_apu())
    {
        gtt(machine, gpu, found);
        if gpu.is_apu() {
            headroom(machine, gpu, found);
            carve_out(machine, gpu, found);
            pool_below_carve_out(machine, gpu, found);
            large_carve_out(machine, gpu, found);
            smi(machine, gpu, found);
        }
    }
}

/// The largest limit that leaves the host enough: an eighth of the RAM, 8 to 16 GiB.
fn suggested_limit(ram: Bytes) -> Bytes {
    let reserve = Bytes(ram.0 / 8).clamp(Bytes::gib(8), Bytes::gib(16));
    let limit = if ram < Bytes::gib(24) {
        Bytes(ram.0 / 4 * 3)
    } else {
        ram.saturating_sub(reserve)
    };
    Bytes(limit.0 >> 30 << 30)
}

/// The commands that raise the limit of TTM; before amdgpu starts, so with an initramfs.
fn raise_ttm(machine: &Machine, limit: Bytes) -> Vec<String> {
    let pages = limit.0 / Bytes::PAGE.0;
    let distribution = machine
        .distribution
        .as_deref()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let is = |names: &[&str]| names.iter().any(|name| distribution.contains(name));
    let initramfs = if is(&[
        "fedora", "red hat", "suse", "centos", "alma", "rocky", "bazzite",
    ]) {
        "sudo dracut --force"
    } else if is(&["arch", "manjaro", "cachyos", "endeavour", "steamos"]) {
        "sudo mkinitcpio -P"
    } else if is(&["ubuntu", "debian", "mint", "pop!"]) {
        "sudo update-initramfs -u"
    } else {
        "# rebuild the initramfs: update-initramfs -u, dracut --force or mkinitcpio -P"
    };
    vec![
        format!(
            "echo 'options ttm pages_limit={pages} page_pool_size={pages}' | sudo tee /etc/modprobe.d/ttm.conf  # {limit}"
        ),
        initramfs.to_owned(),
        "sudo reboot".to_owned(),
    ]
}

/// The same, after removing a harmful parameter.
fn instead_of(parameter: &Parameter, machine: &Machine) -> Vec<String> {
    let mut steps = vec![format!(
        "# remove {} from {}",
        parameter.name, parameter.place
    )];
    match machine.memory.total {
        Some(ram) => steps.extend(raise_ttm(machine, suggested_limit(ram))),
        None => steps
            .push("# set ttm.pages_limit: GiB × 262144, at least 8 GiB below the RAM".to_owned()),
    }
    steps
}

fn ttm_limit(machine: &Machine, found: &mut Vec<Finding>) {
    let Some(ram) = machine.memory.total else {
        return;
    };
    let gtt_pool = machine
        .gpus
        .iter()
        .find(|gpu| gpu.memory_rule == Some(MemoryRule::Gtt) && !gpu.is_server_apu())
        .and_then(|gpu| gpu.usable_bytes);
    let rule_is_open = machine
        .gpus
        .iter()
        .any(|gpu| gpu.memory_rule == Some(MemoryRule::Unknown));
    let from_pages = machine
        .ttm_pages_limit
        .map(Bytes::pages)
        .filter(|_| rule_is_open);
    // Without a parameter, the GTT that the driver reports is this limit.
    let is_default = machine.parameter("amdgpu.gttsize").is_none();
    let from_gtt = machine
        .gpus
        .iter()
        .find(|gpu| gpu.is_apu() && !gpu.is_server_apu() && gpu.vram_bytes < gpu.gtt_bytes)
        .and_then(|gpu| gpu.gtt_bytes)
        .filter(|_| is_default);
    let Some(limit) = gtt_pool.or(from_pages).or(from_gtt) else {
        return;
    };
    // An integrated GPU that is hidden anyway is not worth a kernel parameter.
    let beside_a_card = machine
        .gpus
        .iter()
        .any(|gpu| gpu.class == Some(Class::Dgpu));
    if !apu::is_half(limit, ram) || beside_a_card {
        return;
    }
    let mut why = format!(
        "TTM lets the GPU use half of the RAM unless it is told otherwise: {} of {ram} stay out of reach of the GPU.",
        ram.saturating_sub(limit)
    );
    if gtt_pool.is_none() {
        why += " If the BIOS carves out more than this limit, HIP uses the carve-out instead, and programs that read TTM show too little.";
    }
    found.push(
        Finding::new(
            Check::Memory,
            Severity::Warning,
            "ttm-limit-default",
            format!("Only half of the RAM is usable by the GPU: {limit}"),
        )
        .seen(format!("The limit is {limit}, the RAM {ram}."))
        .why(why)
        .fix(raise_ttm(machine, suggested_limit(ram)))
        .source("https://github.com/ROCm/ROCm/issues/5595"),
    );
}

fn kernel_parameters(machine: &Machine, found: &mut Vec<Finding>) {
    if let Some(parameter) = machine.parameter("amdgpu.gtt_size") {
        found.push(
            Finding::new(Check::Memory, Severity::Warning, "gtt-size-typo", "amdgpu has no parameter `gtt_size`")
                .seen(format!("amdgpu.gtt_size is set in {}.", parameter.place))
                .why("The kernel ignores it (\"unknown parameter 'gtt_size' ignored\"): the limit is unchanged.")
                .fix(instead_of(parameter, machine))
                .source("https://github.com/ROCm/ROCm/issues/5595"),
        );
    }
    let gttsize = machine
        .parameter("amdgpu.gttsize")
        .filter(|parameter| parameter.value != "-1");
    let has_limit = ["ttm.pages_limit", "amdttm.pages_limit"]
        .iter()
        .any(|name| machine.parameter(name).is_some());
    if let Some(parameter) = gttsize {
        if has_limit {
            found.push(
                Finding::new(
                    Check::Memory,
                    Severity::Info,
                    "gttsize-deprecated",
                    "amdgpu.gttsize is not needed beside ttm.pages_limit",
                )
                .seen(format!(
                    "Both are set; amdgpu.gttsize={} in {}.",
                    parameter.value, parameter.place
                ))
                .why("The kernel calls it deprecated, and ttm.pages_limit alone decides.")
                .fix(["# remove amdgpu.gttsize"])
                .source("https://github.com/noamsto/nix-amd-ai/issues/42"),
            );
        } else {
            found.push(
                Finding::new(Check::Memory, Severity::Warning, "gttsize-without-pages-limit", "amdgpu.gttsize alone does not raise the limit")
                    .seen(format!("amdgpu.gttsize={} in {}, and no ttm.pages_limit.", parameter.value, parameter.place))
                    .why("It makes sysfs and hipMemGetInfo report more, while TTM still stops at its own limit: programs plan with memory that they do not get.")
                    .fix(instead_of(parameter, machine))
                    .source("https://github.com/unslothai/unsloth/pull/7960"),
            );
        }
    }
}

fn gtt(machine: &Machine, gpu: &Gpu, found: &mut Vec<Finding>) {
    // Where only HIP's total is known, it is a bound of the GTT.
    let pool = gpu
        .usable_bytes
        .filter(|_| gpu.memory_rule == Some(MemoryRule::Gtt));
    let (Some(gtt), ram) = (gpu.gtt_bytes.or(pool), machine.memory.total) else {
        return;
    };
    if let Some(ram) = ram.filter(|&ram| gtt > ram) {
        found.push(
            Finding::new(Check::Memory, Severity::Warning, "gtt-above-ram", "The GTT is larger than the RAM")
                .seen(format!("GTT {gtt}, RAM {ram}."))
                .why("It promises memory that does not exist; the RAM runs out before the limit is reached, and the kernel kills something.")
                .fix(raise_ttm(machine, suggested_limit(ram)))
                .source("https://github.com/unslothai/unsloth/pull/7960"),
        );
    }
    if gpu.memory_rule != Some(MemoryRule::Gtt) {
        return;
    }
    let limit = machine.ttm_pages_limit.map(Bytes::pages);
    let bound = gpu.usable_bytes.or(limit);
    let said_already = machine.parameter("amdgpu.gttsize").is_some()
        && found
            .iter()
            .any(|finding| finding.id == "gttsize-without-pages-limit");
    if let Some(bound) = bound.filter(|&bound| gtt.share_of(bound) > 1.02 && !said_already) {
        let fix = machine
            .memory
            .total
            .map(|ram| raise_ttm(machine, suggested_limit(ram)));
        found.push(
            Finding::new(Check::Memory, Severity::Warning, "gtt-above-ttm", "The GTT is larger than what TTM hands out")
                .seen(format!("GTT {gtt}, usable {bound}."))
                .why("amdgpu.gttsize was raised and ttm.pages_limit was not (or only later): programs that plan with the GTT run out at the smaller number.")
                .fix(fix.unwrap_or_else(|| vec!["# remove amdgpu.gttsize and set ttm.pages_limit".to_owned()]))
                .source("https://github.com/ROCm/ROCm/issues/5595"),
        );
    }
    match (gpu.usable_bytes, limit) {
        (Some(pool), Some(limit)) if limit.share_of(pool) > 1.02 => found.push(
            Finding::new(Check::Memory, Severity::Warning, "pages-limit-not-in-effect", "The TTM limit was raised after amdgpu had started")
                .seen(format!("ttm.pages_limit stands for {limit}, HIP gets {pool}."))
                .why("amdgpu reads the limit once: it must be on the kernel command line, or in modprobe.d and the initramfs.")
                .fix(raise_ttm(machine, limit))
                .source("https://github.com/ROCm/ROCm/issues/5595"),
        ),
        (None, None) if found.iter().all(|finding| finding.id != "ttm-limit-default") => found.push(
            Finding::new(Check::Memory, Severity::Info, "ttm-limit-unknown", "What HIP may use is not in this dump")
                .seen(format!("The GTT is {gtt}, larger than the carve-out, so HIP allocates from RAM."))
                .why("The bound is the limit of TTM, which can be below the size of the GTT.")
                .fix(["cat /sys/module/ttm/parameters/pages_limit"])
                .source("https://github.com/ROCm/ROCm/issues/5595"),
        ),
        _ => {}
    }
}

fn headroom(machine: &Machine, gpu: &Gpu, found: &mut Vec<Finding>) {
    let (Some(pool), Some(ram), Some(MemoryRule::Gtt)) =
        (gpu.usable_bytes, machine.memory.total, gpu.memory_rule)
    else {
        return;
    };
    let share = pool.share_of(ram);
    // Beyond all of it is said elsewhere.
    if share > 0.85 && share <= 1.0 {
        found.push(
            Finding::new(Check::Memory, Severity::Info, "little-headroom", format!("The GPU may use {:.0} % of the RAM", share * 100.0))
                .seen(format!("Pool {pool}, RAM {ram}."))
                .why("What the GPU takes, the host lacks: loading checkpoints and data needs room too, or the kernel starts to kill.")
                .fix(["# keep at least 8 GiB free, or lower ttm.pages_limit", "surefoot run --alloc -- …  # refuses in time"])
                .source("https://github.com/ROCm/TheRock/blob/main/docs/faq.md"),
        );
    }
    if let Some(limit) = machine.cgroup.limit.filter(|&limit| limit < pool) {
        found.push(
            Finding::new(
                Check::Memory,
                Severity::Warning,
                "cgroup-limit",
                "The memory limit of this process is below the GPU's pool",
            )
            .seen(format!("The cgroup allows {limit}, the GPU {pool}."))
            .why("On an APU, GPU memory is RAM. The process is killed at the smaller limit.")
            .fix(["# raise the limit of the container or slice (docker --memory, MemoryMax=)"])
            .source("https://docs.kernel.org/admin-guide/cgroup-v2.html"),
        );
    }
}

/// Room beyond the RAM, for the peaks of loading: swap, or Windows' page file.
///
/// An APU shares the RAM with the host, so a peak of either kills. Beside a card it is
/// the host alone that needs room: a checkpoint, a staging copy, the state that is
/// offloaded; where the RAM is twice the memory of the card there is enough for those.
fn paging(machine: &Machine, found: &mut Vec<Finding>) {
    let memory = &machine.memory;
    let (Some(ram), Some(swap)) = (memory.total, memory.swap_total) else {
        return;
    };
    let picked = machine.gpus.iter().filter(|gpu| !gpu.is_apu());
    let card = picked.filter_map(|gpu| gpu.usable_bytes).max();
    if machine.gpus.iter().all(Gpu::is_server_apu) {
        return;
    }
    let (severity, why) = match card {
        None => (
            Severity::Warning,
            "Host and GPU share the RAM; without room to page the first peak beyond it kills a process.",
        ),
        Some(card) if ram < card.saturating_add(card) => (
            Severity::Warning,
            "The RAM is less than twice the memory of the card: loading a checkpoint, or offloading to the host, can go beyond it and kill the process.",
        ),
        Some(_) => (
            Severity::Info,
            "The RAM is ample beside this card; a peak beyond it would still kill a process.",
        ),
    };
    let on_windows = machine.system == System::Windows;
    if on_windows && swap < Bytes(ram.0 / 8) {
        found.push(
            Finding::new(Check::Memory, severity, "no-page-file", "There is little or no page file")
                .seen(format!("{swap} beyond {ram} of RAM."))
                .why(format!("{why} Windows also refuses allocations that the page file could not back, before the RAM is full."))
                .fix(["# System > Advanced > Performance > Virtual memory: a page file of 16 to 32 GB, or managed by the system"])
                .source("https://learn.microsoft.com/en-us/troubleshoot/windows-client/performance/introduction-to-the-page-file"),
        );
        return;
    }
    if swap == Bytes::ZERO {
        found.push(
            Finding::new(Check::Memory, severity, "no-swap", "There is no swap")
                .seen(format!("SwapTotal is 0; {ram} of RAM."))
                .why(why)
                .fix(if machine.container.is_some() {
                    vec!["# on the host: add swap, or zram; a container uses that of its host"]
                } else {
                    vec![
                        "sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && sudo swapon /swapfile",
                        "echo '/swapfile none swap defaults 0 0' | sudo tee -a /etc/fstab",
                    ]
                })
                .source("https://docs.kernel.org/admin-guide/mm/concepts.html"),
        );
    } else if memory
        .swap_free
        .is_some_and(|free| free.share_of(swap) < 0.05)
    {
        found.push(
            Finding::new(
                Check::Memory,
                Severity::Warning,
                "swap-full",
                "The swap is full",
            )
            .seen(format!(
                "{} of {swap} are free.",
                memory.swap_free.unwrap_or_default()
            ))
            .why(
                "What is paged out stays there until somebody needs it; the next peak has no room.",
            )
            .fix([
                "swapon --show",
                "# end what holds it, or add swap, before training",
            ])
            .source("https://docs.kernel.org/admin-guide/mm/concepts.html"),
        );
    }
}

fn carve_out(machine: &Machine, gpu: &Gpu, found: &mut Vec<Finding>) {
    let (Some(MemoryRule::Carveout), Some(pool)) =
        (gpu.memory_rule, gpu.usable_bytes.or(gpu.vram_bytes))
    else {
        return;
    };
    if pool <= Bytes::gib(4) && machine.kernel.is_none() {
        found.push(
            Finding::new(
                Check::Memory,
                Severity::Warning,
                "carveout-only",
                format!("The GPU has only its carve-out: {pool}"),
            )
            .seen("The pool is a BIOS setting, although the machine has more RAM.")
            .why("Kernels before 6.10 give the GPU of an APU nothing else; newer ones let it allocate from RAM.")
            .fix(["uname -r", "# below 6.10: install a newer kernel, or enlarge the UMA frame buffer in the BIOS"])
            .source("Linux, \"drm/amdkfd: Let VRAM allocations go to GTT domain on small APUs\""),
        );
    }
    if pool <= Bytes::gib(4) && machine.kernel_before((6, 10, 0)) {
        found.push(
            Finding::new(
                Check::Memory,
                Severity::Error,
                "kernel-uses-carveout-only",
                format!("This kernel gives the GPU only the carve-out: {pool}"),
            )
            .seen(format!(
                "Kernel {}.",
                machine.kernel.as_ref().map_or("", |kernel| &kernel.release)
            ))
            .why("Since 6.10 the GPU of an APU allocates from RAM when the carve-out is small.")
            .fix(["# install kernel 6.10 or newer, or enlarge the UMA frame buffer in the BIOS"])
            .source("Linux, \"drm/amdkfd: Let VRAM allocations go to GTT domain on small APUs\""),
        );
    }
    let Some(ram) = machine.memory.total.filter(|&ram| pool >= ram) else {
        return;
    };
    found.push(
        Finding::new(Check::Memory, Severity::Warning, "carveout-starves-host", format!("The carve-out leaves {ram} to the host"))
            .seen(format!("{pool} are carved out; HIP uses them, and nothing of the RAM. The sum of the two is not available to anybody."))
            .why("Checkpoints are read through RAM and pinned buffers live there; hipStreamCreate was seen to fail with out-of-memory in this state. Programs that read TTM see half of what is left, those that read VRAM the carve-out.")
            .fix(["# BIOS: UMA frame buffer to its minimum (512 MB or Auto)", "# then raise ttm.pages_limit: `surefoot doctor` prints the commands"])
            .source("https://github.com/ROCm/ROCm/issues/5902"),
    );
}

/// Before 6.16.9, the kernel gave ROCm only what TTM hands out, however much is carved out.
fn pool_below_carve_out(machine: &Machine, gpu: &Gpu, found: &mut Vec<Finding>) {
    let reported = machine.reported.hip_total.or(machine.reported.tool_total);
    let (Some(vram), Some(pool)) = (gpu.vram_bytes, reported) else {
        return;
    };
    if vram < Bytes::gib(8) || pool.share_of(vram) > 0.75 || gpu.is_server_apu() {
        return;
    }
    let kernel = machine.kernel.as_ref();
    let is_new = kernel.is_some_and(|kernel| kernel.version >= (6, 16, 9));
    let fix = if is_new {
        "# remove amdgpu-dkms, whose driver is the older one: sudo amdgpu-install --uninstall, then restart"
    } else {
        "# install kernel 6.16.9 or newer (gfx1151: 6.18.4), without amdgpu-dkms; or a small carve-out and a higher ttm.pages_limit"
    };
    found.push(
        Finding::new(Check::Memory, Severity::Warning, "pool-below-carveout", format!("ROCm gets {pool}, though {vram} are carved out"))
            .seen(match kernel {
                Some(kernel) => format!("Carve-out {vram}, pool {pool}, kernel {}.", kernel.release),
                None => format!("Carve-out {vram}, pool {pool}."),
            })
            .why("Kernels before 6.16.9, and the amdgpu-dkms of that time, give ROCm only what TTM hands out: half of the RAM that the carve-out has left. The carve-out itself is not used.")
            .fix(["uname -r", fix])
            .source("https://github.com/ROCm/ROCm/issues/5444"),
    );
}

/// A carve-out that leaves little, however much RAM the machine has: 128 GiB are the most that
/// any of these APUs is sold with.
fn large_carve_out(machine: &Machine, gpu: &Gpu, found: &mut Vec<Finding>) {
    const MOST: Bytes = Bytes::gib(128);
    let Some(vram) = gpu.vram_bytes.filter(|&vram| vram >= Bytes::gib(64)) else {
        return;
    };
    let is_told = found
        .iter()
        .any(|finding| finding.id == "carveout-starves-host");
    if machine.memory.total.is_some() || is_told || gpu.is_server_apu() {
        return;
    }
    found.push(
        Finding::new(Check::Memory, Severity::Warning, "carveout-starves-host", format!("The carve-out takes {vram} of the RAM"))
            .seen(format!("{vram} are the GPU's own (UMA frame buffer); of at most {MOST} that leaves the host {} or less.", MOST.saturating_sub(vram)))
            .why("Checkpoints are read through RAM and pinned buffers live there; hipStreamCreate and hipMalloc were seen to fail with out-of-memory in this state.")
            .fix(["free -h  # what the host has", "# BIOS: UMA frame buffer to its minimum (512 MB or Auto); the GPU then allocates from RAM, up to ttm.pages_limit"])
            .source("https://github.com/ROCm/ROCm/issues/5902"),
    );
}

/// The tools that call the carve-out "VRAM".
fn smi(machine: &Machine, gpu: &Gpu, found: &mut Vec<Finding>) {
    let Some(vram) = gpu.vram_bytes else { return };
    if matches!(machine.read_from, ReadFrom::AmdSmi | ReadFrom::RocmSmi) {
        found.push(
            Finding::new(Check::Memory, Severity::Info, "smi-shows-carveout", "The total of this tool is only the carve-out")
                .seen(format!("It reports {vram} of VRAM."))
                .why("What HIP can use on an APU is the memory bank of KFD. N/A for load, temperature and power is normal on APUs and no error.")
                .fix(["cat /sys/class/kfd/kfd/topology/nodes/*/mem_banks/0/properties"])
                .source("https://github.com/ROCm/rocm-systems/pull/8475"),
        );
    }
}

fn reported_numbers(machine: &Machine, found: &mut Vec<Finding>) {
    let reported = machine.reported;
    let total = reported
        .hip_total
        .or_else(|| machine.gpus.first().and_then(|gpu| gpu.usable_bytes));
    if let (Some(free), Some(total)) = (reported.hip_free, total)
        && free > total
    {
        found.push(
            Finding::new(Check::Memory, Severity::Warning, "free-above-total", "HIP reports more free memory than there is")
                .seen(format!("Free {free}, total {total}."))
                .why("Free is computed from the GTT and total from TTM. The smaller number is the bound; take free as at most the total.")
                .fix([match machine.system {
                    System::Windows => "# plan with the total",
                    _ => "# plan with the total; `surefoot run --alloc` reports the smaller number",
                }])
                .source("https://github.com/unslothai/unsloth/pull/7960"),
        );
    }
    let Some(gpu) = machine.gpus.first() else {
        return;
    };
    if let (Some(shown), Some(vram), Some(gtt)) =
        (reported.tool_total, gpu.vram_bytes, gpu.gtt_bytes)
    {
        let sum = vram.saturating_add(gtt);
        // Tools print one decimal.
        if (0.998..=1.002).contains(&shown.share_of(sum)) {
            found.push(
                Finding::new(Check::Memory, Severity::Warning, "vram-plus-gtt", "A tool adds carve-out and GTT, which cannot both be used")
                    .seen(format!("It shows {shown}: {vram} of VRAM plus {gtt} of GTT, more than the machine has for the GPU."))
                    .why("hipMalloc uses the larger of the two pools, never both.")
                    .fix(["# believe the memory bank of KFD: `surefoot doctor` prints it"])
                    .source("https://github.com/ROCm/ROCm/issues/6004"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_leave_the_host_enough() {
        assert_eq!(suggested_limit(Bytes::gib(125)), Bytes::gib(109));
        assert_eq!(suggested_limit(Bytes::gib(31)), Bytes::gib(23));
        assert_eq!(suggested_limit(Bytes::gib(15)), Bytes::gib(11));
    }

    #[test]
    fn the_commands_fit_the_distribution() {
        let machine = |name: &str| Machine {
            distribution: Some(name.to_owned()),
            ..Machine::default()
        };
        assert_eq!(
            raise_ttm(&machine("Fedora Linux 43"), Bytes::gib(110))[1],
            "sudo dracut --force"
        );
        let commands = raise_ttm(&machine("Ubuntu 24.04.3 LTS"), Bytes::gib(110));
        assert_eq!(commands[1], "sudo update-initramfs -u");
        assert!(commands[0].contains("pages_limit=28835840"));
    }
}
