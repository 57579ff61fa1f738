//! Memory of APUs: little-known limits, and misleading numbers.

use super::said::{self, Said};
use super::{Found, Severity};
use crate::steps::initramfs_of;
use platform::Bytes;
use platform::machine::{Class, Gpu, Machine, ReadFrom, System};
use platform::memory::{MemoryRule, apu};

pub(super) fn find(machine: &Machine, found: &mut Found) {
    kernel_parameters(machine, found);
    reported_numbers(machine, found);
    paging(machine, found);
    let is_card = |gpu: &Gpu| gpu.class == Some(Class::Dgpu);
    let has_card_alone = machine.gpus.len() == 1 && machine.gpus.iter().any(is_card);
    if machine.system != System::Linux || has_card_alone {
        return;
    }
    ttm_limit(machine, found);
    let others = machine.gpus.iter().filter(|gpu| !is_card(gpu));
    for gpu in others.filter(|gpu| !gpu.is_server_apu()) {
        gtt(machine, gpu, found);
        if gpu.is_apu() {
            headroom(machine, gpu, found);
            carve_out(machine, gpu, found);
            pool_below_carve_out(machine, gpu, found);
            let is_smi = matches!(machine.read_from, ReadFrom::AmdSmi | ReadFrom::RocmSmi);
            if let Some(vram) = gpu.vram_bytes.filter(|_| is_smi) {
                found.add(&said::SMI_SHOWS_CARVEOUT, &[("vram", &vram)]);
            }
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

/// The commands that raise the limit of TTM, one a line; before amdgpu starts, so with an initramfs.
fn raise_ttm(machine: &Machine, limit: Bytes) -> String {
    let pages = limit.0 / Bytes::PAGE.0;
    let initramfs = machine
        .distribution
        .as_deref()
        .and_then(initramfs_of)
        .unwrap_or("# rebuild the initramfs: update-initramfs -u, dracut --force or mkinitcpio -P");
    format!(
        "echo 'options ttm pages_limit={pages} page_pool_size={pages}' | sudo tee /etc/modprobe.d/ttm.conf  # {limit}\n\
         {initramfs}\nsudo reboot"
    )
}

/// The same with the limit that is suggested for the RAM.
fn raise_as_suggested(machine: &Machine) -> String {
    match machine.memory.total {
        Some(ram) => raise_ttm(machine, suggested_limit(ram)),
        None => "# set ttm.pages_limit: GiB × 262144, at least 8 GiB below the RAM".to_owned(),
    }
}

fn ttm_limit(machine: &Machine, found: &mut Found) {
    let Some(ram) = machine.memory.total else {
        return;
    };
    let gpus = || machine.gpus.iter();
    let gtt_pool = gpus()
        .find(|gpu| gpu.memory_rule == Some(MemoryRule::Gtt) && !gpu.is_server_apu())
        .and_then(|gpu| gpu.usable_bytes);
    let rule_is_open = gpus().any(|gpu| gpu.memory_rule == Some(MemoryRule::Unknown));
    let pages = machine.ttm_pages_limit.map(Bytes::pages);
    // Without a parameter, the GTT that the driver reports is this limit.
    let is_default = machine.parameter("amdgpu.gttsize").is_none();
    let from_gtt = gpus()
        .find(|gpu| gpu.is_apu() && !gpu.is_server_apu() && gpu.vram_bytes < gpu.gtt_bytes)
        .and_then(|gpu| gpu.gtt_bytes)
        .filter(|_| is_default);
    let Some(limit) = gtt_pool.or(pages.filter(|_| rule_is_open)).or(from_gtt) else {
        return;
    };
    // An integrated GPU that is hidden anyway is not worth a kernel parameter.
    let beside_a_card = gpus().any(|gpu| gpu.class == Some(Class::Dgpu));
    if !apu::is_half(limit, ram) || beside_a_card {
        return;
    }
    let carve_out = match gtt_pool {
        Some(_) => "",
        None => {
            " If the BIOS carves out more than this limit, HIP uses the carve-out instead, and programs that read TTM show too little."
        }
    };
    found.add(
        &said::TTM_LIMIT_DEFAULT,
        &[
            ("limit", &limit),
            ("ram", &ram),
            ("rest", &ram.saturating_sub(limit)),
            ("carve-out", &carve_out),
            ("raise", &raise_as_suggested(machine)),
        ],
    );
}

fn kernel_parameters(machine: &Machine, found: &mut Found) {
    let raise = raise_as_suggested(machine);
    if let Some(parameter) = machine.parameter("amdgpu.gtt_size") {
        found.add(
            &said::GTT_SIZE_TYPO,
            &[("place", &parameter.place), ("raise", &raise)],
        );
    }
    let gttsize = machine.parameter("amdgpu.gttsize");
    if let Some(parameter) = gttsize.filter(|parameter| parameter.value != "-1") {
        let has_limit = ["ttm.pages_limit", "amdttm.pages_limit"]
            .iter()
            .any(|name| machine.parameter(name).is_some());
        let said = match has_limit {
            true => &said::GTTSIZE_DEPRECATED,
            false => &said::GTTSIZE_WITHOUT_PAGES_LIMIT,
        };
        found.add(
            said,
            &[
                ("value", &parameter.value),
                ("place", &parameter.place),
                ("raise", &raise),
            ],
        );
    }
}

fn gtt(machine: &Machine, gpu: &Gpu, found: &mut Found) {
    let is_gtt = gpu.memory_rule == Some(MemoryRule::Gtt);
    // Where only HIP's total is known, it is a bound of the GTT.
    let Some(gtt) = gpu.gtt_bytes.or(gpu.usable_bytes.filter(|_| is_gtt)) else {
        return;
    };
    let raise = raise_as_suggested(machine);
    if let Some(ram) = machine.memory.total.filter(|&ram| gtt > ram) {
        found.add(
            &said::GTT_ABOVE_RAM,
            &[("gtt", &gtt), ("ram", &ram), ("raise", &raise)],
        );
    }
    if !is_gtt {
        return;
    }
    let limit = machine.ttm_pages_limit.map(Bytes::pages);
    let bound = gpu.usable_bytes.or(limit);
    if let Some(bound) = bound.filter(|&bound| gtt.share_of(bound) > 1.02) {
        found.add(
            &said::GTT_ABOVE_TTM,
            &[("gtt", &gtt), ("bound", &bound), ("raise", &raise)],
        );
    }
    match (gpu.usable_bytes, limit) {
        (Some(pool), Some(limit)) if limit.share_of(pool) > 1.02 => {
            let raise = raise_ttm(machine, limit);
            found.add(
                &said::PAGES_LIMIT_NOT_IN_EFFECT,
                &[("limit", &limit), ("pool", &pool), ("raise", &raise)],
            );
        }
        (None, None) => {
            found.add(&said::TTM_LIMIT_UNKNOWN, &[("gtt", &gtt)]);
        }
        _ => {}
    }
}

fn headroom(machine: &Machine, gpu: &Gpu, found: &mut Found) {
    let (Some(pool), Some(ram), Some(MemoryRule::Gtt)) =
        (gpu.usable_bytes, machine.memory.total, gpu.memory_rule)
    else {
        return;
    };
    let share = pool.share_of(ram);
    // Beyond all of it is said elsewhere.
    if share > 0.85 && share <= 1.0 {
        let share = format!("{:.0}", share * 100.0);
        found.add(
            &said::LITTLE_HEADROOM,
            &[("share", &share), ("pool", &pool), ("ram", &ram)],
        );
    }
    if let Some(limit) = machine.cgroup.limit.filter(|&limit| limit < pool) {
        found.add(&said::CGROUP_LIMIT, &[("limit", &limit), ("pool", &pool)]);
    }
}

/// Room beyond the RAM, for the peaks of loading: swap, or Windows' page file.
fn paging(machine: &Machine, found: &mut Found) {
    let memory = &machine.memory;
    let (Some(ram), Some(swap)) = (memory.total, memory.swap_total) else {
        return;
    };
    if machine.gpus.iter().all(Gpu::is_server_apu) {
        return;
    }
    let cards = || machine.gpus.iter().filter(|gpu| !gpu.is_apu());
    let has_card = cards().any(|gpu| gpu.class == Some(Class::Dgpu));
    let card = cards().filter_map(|gpu| gpu.usable_bytes).max();
    let of_size = |shared: &'static Said, small: &'static Said, ample: &'static Said| match card {
        None if has_card => small,
        None => shared,
        Some(card) if ram < card.saturating_add(card) => small,
        Some(_) => ample,
    };
    if machine.system == System::Windows && swap < Bytes(ram.0 / 8) {
        let said = of_size(
            &said::NO_PAGE_FILE,
            &said::NO_PAGE_FILE_SMALL_RAM,
            &said::NO_PAGE_FILE_AMPLE_RAM,
        );
        found.add(said, &[("swap", &swap), ("ram", &ram)]);
    } else if swap == Bytes::ZERO {
        let said = of_size(
            &said::NO_SWAP,
            &said::NO_SWAP_SMALL_RAM,
            &said::NO_SWAP_AMPLE_RAM,
        );
        found.add(said, &[("ram", &ram)]);
    } else if let Some(free) = memory.swap_free.filter(|free| free.share_of(swap) < 0.05) {
        found.add(&said::SWAP_FULL, &[("free", &free), ("swap", &swap)]);
    }
}

fn carve_out(machine: &Machine, gpu: &Gpu, found: &mut Found) {
    let pool = gpu.usable_bytes.or(gpu.vram_bytes);
    let pool = pool.filter(|_| gpu.memory_rule == Some(MemoryRule::Carveout));
    let is_told = gpu.memory_rule.is_none();
    let large = gpu
        .vram_bytes
        .filter(|&vram| is_told && vram >= Bytes::gib(32));
    let starved = pool
        .or(large)
        .zip(machine.memory.total)
        .filter(|(pool, ram)| pool >= ram);
    if let Some(pool) = pool.filter(|&pool| pool <= Bytes::gib(4)) {
        match &machine.kernel {
            None => {
                found.add(&said::CARVEOUT_ONLY, &[("pool", &pool)]);
            }
            Some(kernel) if machine.kernel_before((6, 10, 0)) => {
                found.add(
                    &said::KERNEL_USES_CARVEOUT_ONLY,
                    &[("pool", &pool), ("kernel", &kernel.release)],
                );
            }
            Some(_) => {}
        }
    }
    if let Some((pool, ram)) = starved {
        found.add(
            &said::CARVEOUT_STARVES_HOST,
            &[("pool", &pool), ("ram", &ram)],
        );
    } else if let Some(vram) = gpu.vram_bytes.filter(|&vram| vram >= Bytes::gib(64))
        && machine.memory.total.is_none()
    {
        // However much RAM the machine has, that leaves little.
        let rest = Bytes::gib(128).saturating_sub(vram);
        let finding = found.add(
            &said::CARVEOUT_STARVES_HOST_LARGE,
            &[("vram", &vram), ("rest", &rest)],
        );
        // The largest machines then have as much for the host.
        if rest >= vram {
            finding.severity = Severity::Info;
        }
    }
}

/// Before 6.16.9, the kernel gave ROCm only what TTM hands out, however much is carved out.
fn pool_below_carve_out(machine: &Machine, gpu: &Gpu, found: &mut Found) {
    let reported = machine.reported.hip_total.or(machine.reported.tool_total);
    let (Some(vram), Some(pool)) = (gpu.vram_bytes, reported) else {
        return;
    };
    if vram < Bytes::gib(8) || pool.share_of(vram) > 0.75 {
        return;
    }
    let kernel = machine.kernel.as_ref();
    let is_new = kernel.is_some_and(|kernel| kernel.version >= (6, 16, 9));
    let said = match is_new {
        true => &said::POOL_BELOW_CARVEOUT_NEW_KERNEL,
        false => &said::POOL_BELOW_CARVEOUT,
    };
    let kernel = kernel.map_or(String::new(), |kernel| {
        format!(", kernel {}", kernel.release)
    });
    found.add(
        said,
        &[("pool", &pool), ("vram", &vram), ("kernel", &kernel)],
    );
}

fn reported_numbers(machine: &Machine, found: &mut Found) {
    let (reported, first) = (machine.reported, machine.gpus.first());
    let total = reported.hip_total.or_else(|| first?.usable_bytes);
    if let (Some(free), Some(total)) = (reported.hip_free, total)
        && free > total
    {
        found.add(
            &said::FREE_ABOVE_TOTAL,
            &[("free", &free), ("total", &total)],
        );
    }
    if let Some(gpu) = first
        && let (Some(shown), Some(vram), Some(gtt)) =
            (reported.tool_total, gpu.vram_bytes, gpu.gtt_bytes)
    {
        let sum = vram.saturating_add(gtt);
        // Tools print one decimal.
        if (0.998..=1.002).contains(&shown.share_of(sum)) {
            found.add(
                &said::VRAM_PLUS_GTT,
                &[("shown", &shown), ("vram", &vram), ("gtt", &gtt)],
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
        let commands = raise_ttm(&machine("Fedora Linux 43"), Bytes::gib(110));
        assert!(commands.contains("\nsudo dracut -f\n"));
        let commands = raise_ttm(&machine("Ubuntu 24.04.3 LTS"), Bytes::gib(110));
        assert!(commands.contains("\nsudo update-initramfs -u\n"));
        assert!(commands.contains("pages_limit=28835840"));
    }
}
