//! Sizes with names, in running text: what people post about the memory of an APU.
//!
//! Lines of sysfs, of the kernel log, of `amd-ttm`, of PyTorch, of inference
//! servers and of tables written by hand, in any mixture. A table of patterns finds
//! the numbers; [`platform::describe`] then judges them as it judges any others.

use crate::names;
use crate::pattern::{self, Patterns, patterns};
use platform::machine::{Gpu, Kernel, Machine, System};
use platform::memory::HostMemory;
use platform::{Bytes, Gfx, detect};
use regex::Regex;
use std::sync::LazyLock;

/// What a number in a report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Vram,
    Gtt,
    /// What KFD or HIP give as the total: the pool.
    Pool,
    HipFree,
    Ram,
    RamAvailable,
    /// A size that TTM was given.
    Ttm,
    /// The same as a number of pages.
    TtmPages,
    /// What a tool displays as total.
    ToolTotal,
    /// The setting of the BIOS, in the words of a person.
    CarveOut,
    /// RAM and page file together, on Windows.
    Commit,
}

/// The first pattern that matches a line names its number.
static PATTERNS: LazyLock<(Vec<Quantity>, Patterns<Regex>)> = LazyLock::new(|| {
    use Quantity::{
        CarveOut, Commit, Gtt, HipFree, Pool, Ram, RamAvailable, ToolTotal, Ttm, TtmPages, Vram,
    };
    const SIZE: &str = r"(\d[\d,]*(?:\.\d+)?\s*(?:[KMGT]i?B?\b|bytes\b|B\b)?)";
    // Between a name and its number: punctuation of tables, JSON and units in brackets.
    const GAP: &str = r#"(?:\s*\((?:B|bytes)\))?["'`:=|*\s]+"#;
    let table = [
        (TtmPages, r"ttm\.pages_limit=(\d+)".to_owned()),
        (TtmPages, r"(?i)pages[ _]limit\W{1,4}(\d+)".to_owned()),
        (Ttm, format!(r"(?i)TTM size has been set as {SIZE}")),
        (Gtt, format!(r"(?i)GTT size has been set as {SIZE}")),
        (Vram, format!(r"(?i){SIZE} of VRAM memory ready")),
        (Gtt, format!(r"(?i){SIZE} of GTT memory ready")),
        (Vram, format!(r"(?i)mem_info_vram_total{GAP}{SIZE}")),
        (Gtt, format!(r"(?i)mem_info_gtt_total{GAP}{SIZE}")),
        (Vram, format!(r"(?i)\(VRAM\){GAP}{SIZE}")),
        (Gtt, format!(r"(?i)\(GTT\){GAP}{SIZE}")),
        (
            HipFree,
            format!(r"(?i)(?:mem_?get_?info|hipMemGetInfo|memInfo\.?)\W*free{GAP}{SIZE}"),
        ),
        (
            Pool,
            format!(r"(?i)(?:mem_?get_?info|hipMemGetInfo|memInfo\.?)\W*total{GAP}{SIZE}"),
        ),
        (
            Pool,
            format!(r"(?i)(?:total_memory|totalGlobalMem|size_in_bytes)\W*?{GAP}{SIZE}"),
        ),
        (Pool, format!(r"(?i)HIP\b.*Total VRAM{GAP}{SIZE}")),
        // Windows' own words.
        (
            Vram,
            format!(r"(?i)^\W*Dedicated (?:Video )?Memory{GAP}{SIZE}"),
        ),
        (Vram, format!(r"(?i)VRAM\s+Total(?:\s+Memory)?{GAP}{SIZE}")),
        (Gtt, format!(r"(?i)GTT\s+Total(?:\s+Memory)?{GAP}{SIZE}")),
        // amdgpu_top: `VRAM : usage 28108 MiB, total 98304 MiB (usable 98148 MiB)`.
        (
            Vram,
            format!(r"(?i)^\W*VRAM\s*: usage\b.*?\btotal {SIZE}"),
        ),
        (
            Gtt,
            format!(r"(?i)^\W*GTT\s*: usage\b.*?\btotal {SIZE}"),
        ),
        (
            ToolTotal,
            format!(r"(?i)inference compute.*\btotal{GAP}{SIZE}"),
        ),
        // `96 GB carve-out`, `BIOS VRAM carve-out 8 GiB`, `UMA Frame Buffer Size: 64G`.
        (
            CarveOut,
            r"(?i)(\d+(?:\.\d+)?\s*[GM]i?B?)\s+(?:of\s+)?(?:BIOS\s+)?(?:VRAM\s+|UMA\s+)?carve[- ]?out"
                .to_owned(),
        ),
        (
            CarveOut,
            r"(?i)(?:carve[- ]?out|UMA frame ?buffer(?: size)?|BIOS UMA|dedicated (?:graphics|GPU) memory)(?:\s+(?:of|is|set to))?[:=\s]+(\d+(?:\.\d+)?\s*[GM]i?B?)\b"
                .to_owned(),
        ),
        (
            Commit,
            format!(r"(?i)Virtual Memory:\s*Max Size{GAP}{SIZE}"),
        ),
        (RamAvailable, format!(r"(?i)MemAvailable{GAP}{SIZE}")),
        // `RAM: 31.2 GB`, `Memory: 4.87 GiB / 30.50 GiB (16%)`.
        (
            Ram,
            r"(?i)^[\s*-]*(?:System )?RAM(?: total| size)?[\s*]*[:=][\s*]*(\d+(?:\.\d+)?\s*[GT]i?B)\b"
                .to_owned(),
        ),
        (
            Ram,
            r"(?i)\b(?:Memory|RAM): +\d+(?:\.\d+)? ?[GM]i?B / (\d+(?:\.\d+)? ?[GT]i?B)\b"
                .to_owned(),
        ),
        (
            Ram,
            format!(
                r"(?i)(?:host RAM|MemTotal|total system memory|system memory total|physical memory){GAP}{SIZE}"
            ),
        ),
    ];
    let (quantities, patterns): (Vec<_>, Vec<_>) = table.into_iter().unzip();
    // Constant patterns: a test compiles every one of them.
    (quantities, Patterns::new(patterns, pattern::compile))
});

patterns! {
    PARAMETERS = r"\b((?:amdgpu\.(?:gttsize|gtt_size|vramlimit)|(?:amd)?ttm\.(?:pages_limit|page_pool_size)|amd_iommu|iommu)=\S+)";
    KERNEL = r"(?i)(?:\bLinux(?: version)?|^Linux [0-9A-Z_.-]{1,64}|\bkernel:?|\bPython platform *:|\bPlatform *:)\s+(?:Linux-)?v?([0-9]+\.[0-9]+(?:\.[0-9]+)?[0-9A-Z_.-]*)";
}

/// One GPU, when the text has numbers about one.
pub(super) fn gpus(text: &str, _machine: &mut Machine) -> Vec<Gpu> {
    // A size or a limit alone is a report; the total of a tool alone is not.
    let is_report = text.lines().flat_map(quantities).any(|(quantity, _)| {
        matches!(
            quantity,
            Quantity::Vram | Quantity::Gtt | Quantity::Pool | Quantity::Ttm | Quantity::TtmPages
        )
    });
    if is_report {
        vec![Gpu::default()]
    } else {
        Vec::new()
    }
}

/// Whether the text has `/proc/meminfo` in it.
pub(super) fn is_meminfo(text: &str) -> bool {
    text.lines()
        .any(|line| line.starts_with("MemTotal:") && line.trim_end().ends_with("kB"))
}

/// Fills in what the text says and the machine does not know yet.
pub(super) fn complete(text: &str, machine: &mut Machine) {
    if is_meminfo(text) {
        let read = HostMemory::parse(text);
        let known = &mut machine.memory;
        known.total = known.total.or(read.total);
        known.available = known.available.or(read.available);
        known.swap_total = known.swap_total.or(read.swap_total);
        known.swap_free = known.swap_free.or(read.swap_free);
    }
    // `Display Memory` is the word of DirectX's own report.
    let signs = ["Microsoft Windows", "dxdiag", "Display Memory:"];
    if signs.iter().any(|sign| text.contains(sign)) {
        machine.system = System::Windows;
    }
    // `amdgpu_firmware_info` of debugfs.
    let mes = text
        .lines()
        .find_map(|line| {
            line.strip_prefix("MES feature version:")?
                .split_once("firmware version: 0x")
        })
        .and_then(|(_, version)| u32::from_str_radix(version.trim(), 16).ok());
    if let [gpu] = machine.gpus.as_mut_slice() {
        gpu.mes_firmware = gpu.mes_firmware.or(mes);
    }
    let mut asked = None;
    let mut unit: fn(u64) -> Bytes = Bytes::kib;
    for line in text.lines() {
        if let Some((quantity, number)) = answer(line, asked) {
            take(quantity, number, machine);
        }
        asked = question(line).or(asked.filter(|_| line.trim().is_empty()));
        from_free(line, &mut unit, &mut machine.memory);
        for parameter in PARAMETERS
            .captures_iter(line)
            .filter_map(|found| found.get(1))
        {
            detect::command_line_parameters(parameter.as_str(), &mut machine.kernel_parameters);
        }
        if line.contains("unknown parameter 'gtt_size' ignored") {
            detect::command_line_parameters("amdgpu.gtt_size=", &mut machine.kernel_parameters);
        }
        if machine.kernel.is_none() {
            let version = KERNEL.captures(line).and_then(|found| found.get(1));
            machine.kernel = version.and_then(|version| Kernel::parse(version.as_str()));
        }
        for (quantity, number) in quantities(line) {
            take(quantity, number, machine);
        }
    }
    // The words of a person come after the numbers of a driver.
    let reported = machine.reported;
    if let ([gpu], Some(carve_out)) = (machine.gpus.as_mut_slice(), reported.carve_out) {
        gpu.vram_bytes = gpu.vram_bytes.or(Some(carve_out));
    }
    if let (Some(commit), Some(ram)) = (reported.commit_limit, machine.memory.total) {
        let page_file = commit.saturating_sub(ram);
        machine.memory.swap_total = machine.memory.swap_total.or(Some(page_file));
    }
    if let [gpu] = machine.gpus.as_mut_slice() {
        gpu.gfx = gpu
            .gfx
            .or_else(|| named_gfx(text))
            .or_else(|| gpu.device_id.and_then(|id| id.gfx()));
    }
}

/// A command whose output is one number, on the next line: `cat …/mem_info_vram_total`, or
/// `rocminfo | grep -A3 Pool | grep Size`.
fn question(line: &str) -> Option<Quantity> {
    let line = line.trim_end();
    if line.ends_with("mem_info_vram_total") {
        Some(Quantity::Vram)
    } else if line.ends_with("mem_info_gtt_total") {
        Some(Quantity::Gtt)
    } else if line.contains("rocminfo") && line.contains("Pool") && line.contains("Size") {
        Some(Quantity::Pool)
    } else {
        None
    }
}

/// The number that answers it; a remark may follow.
fn answer(line: &str, asked: Option<Quantity>) -> Option<(Quantity, Bytes)> {
    let quantity = asked?;
    let line = line.trim();
    let (number, unit) = match quantity {
        Quantity::Pool => (line.strip_prefix("Size:")?.trim(), "KiB"),
        _ => (line, "B"),
    };
    let end = number.find(|c: char| !c.is_ascii_digit());
    let digits = &number[..end.unwrap_or(number.len())];
    let is_whole = number[digits.len()..].starts_with(['(', ' ', '#']) || end.is_none();
    let size = Bytes::parse_tool_output(&format!("{digits} {unit}"));
    size.filter(|_| is_whole && !digits.is_empty())
        .map(|size| (quantity, size))
}

/// A line of `free`: `Mem:            30Gi       5.1Gi …      25Gi`, or `Swap:  0B  0B  0B`.
/// Its numbers have units with `-h`; else they are KiB, MiB or GiB, whichever makes an amount of RAM that machines have.
fn from_free(line: &str, unit: &mut fn(u64) -> Bytes, memory: &mut HostMemory) {
    let mut words = line.split_whitespace();
    let name = words.next();
    if !matches!(name, Some("Mem:" | "Swap:")) {
        return;
    }
    if name == Some("Mem:") {
        let total = words
            .clone()
            .next()
            .and_then(|word| word.parse::<u64>().ok());
        *unit = match total {
            Some(..2_048) => Bytes::gib,
            Some(..2_000_000) => Bytes::mib,
            _ => Bytes::kib,
        };
    }
    let sizes: Vec<Bytes> = words
        .map_while(|word| match word.parse::<u64>() {
            Ok(number) => Some(unit(number)),
            Err(_) => Bytes::parse_tool_output(word),
        })
        .collect();
    match (name, sizes.as_slice()) {
        // People cut off its last columns.
        (Some("Mem:"), [total, _, _, rest @ ..]) => {
            memory.total = memory.total.or(Some(*total));
            memory.available = memory.available.or(rest.get(2).copied());
        }
        (Some("Swap:"), [total, _, free]) => {
            memory.swap_total = memory.swap_total.or(Some(*total));
            memory.swap_free = memory.swap_free.or(Some(*free));
        }
        _ => {}
    }
}

fn take(quantity: Quantity, number: Bytes, machine: &mut Machine) {
    match quantity {
        Quantity::TtmPages => machine.ttm_pages_limit = machine.ttm_pages_limit.or(Some(number.0)),
        Quantity::Ttm => {
            machine.ttm_pages_limit = machine.ttm_pages_limit.or(Some(number.0 / Bytes::PAGE.0))
        }
        Quantity::Ram => machine.memory.total = machine.memory.total.or(Some(number)),
        Quantity::RamAvailable => {
            machine.memory.available = machine.memory.available.or(Some(number))
        }
        Quantity::HipFree => machine.reported.hip_free = machine.reported.hip_free.or(Some(number)),
        Quantity::CarveOut => {
            machine.reported.carve_out = machine.reported.carve_out.or(Some(number));
        }
        Quantity::Commit => {
            machine.reported.commit_limit = machine.reported.commit_limit.or(Some(number));
        }
        Quantity::ToolTotal => {
            machine.reported.tool_total = machine.reported.tool_total.or(Some(number))
        }
        Quantity::Vram | Quantity::Gtt | Quantity::Pool => {
            // Which of several GPUs a line speaks of cannot be told.
            if let [gpu] = machine.gpus.as_mut_slice() {
                let field = match quantity {
                    Quantity::Vram => &mut gpu.vram_bytes,
                    Quantity::Gtt => &mut gpu.gtt_bytes,
                    _ => &mut gpu.usable_bytes,
                };
                *field = field.or(Some(number));
            }
        }
    }
    if quantity == Quantity::Pool {
        machine.reported.hip_total = machine.reported.hip_total.or(Some(number));
    }
}

/// The numbers of a line; the first pattern of each quantity counts.
fn quantities(line: &str) -> Vec<(Quantity, Bytes)> {
    let mut found: Vec<(Quantity, Bytes)> = Vec::new();
    if !line.bytes().any(|byte| byte.is_ascii_digit()) {
        return found;
    }
    let (kinds, patterns) = &*PATTERNS;
    for (at, pattern) in patterns.matches(line) {
        let quantity = &kinds[at];
        if found.iter().any(|(known, _)| known == quantity) {
            continue;
        }
        let size = pattern
            .captures(line)
            .and_then(|captures| Bytes::parse_tool_output(captures.get(1)?.as_str()));
        found.extend(size.map(|size| (*quantity, size)));
    }
    found
}

/// The architecture that a text names, itself or by a product.
fn named_gfx(text: &str) -> Option<Gfx> {
    Gfx::find_all(text).first().copied().or_else(|| {
        let names_hardware = |line: &&str| {
            let line = line.to_ascii_lowercase();
            [
                "amd",
                "radeon",
                "ryzen",
                "gpu",
                "vga",
                "instinct",
                "strix",
                "framework",
            ]
            .iter()
            .any(|word| line.contains(word))
        };
        text.lines()
            .filter(names_hardware)
            .find_map(names::architecture_of)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        PATTERNS.1.check();
    }

    #[test]
    fn a_number_below_the_command_that_prints_it_is_read() {
        for (asked, line, bytes) in [
            (
                "$ cat /sys/class/drm/card*/device/mem_info_vram_total",
                "103079215104  # 96GB in bytes",
                103_079_215_104,
            ),
            (
                "$ rocminfo | grep -A3 \"Pool\" | grep Size",
                "Size:    16651264(0x3e2000) KB",
                16_651_264 << 10,
            ),
        ] {
            let found = answer(line, question(asked));
            assert_eq!(
                found.map(|(_, number)| number),
                Some(Bytes(bytes)),
                "{line}"
            );
        }
        assert!(answer("103 GB", question("free -h")).is_none());
    }

    #[test]
    fn names_numbers_in_the_forms_people_post() {
        use Quantity::{CarveOut, Commit, Gtt, HipFree, Pool, Ram, ToolTotal, Ttm, TtmPages, Vram};
        let cases = [
            ("mem_info_vram_total=536870912", Vram, 536_870_912),
            (
                "/sys/class/drm/card1/device/mem_info_gtt_total: 103079215104",
                Gtt,
                103_079_215_104,
            ),
            (
                "GPU[0] VRAM Total Memory (B): 8,589,934,592    (~8 GiB)",
                Vram,
                8_589_934_592,
            ),
            (
                "| KFD `mem_banks/0` `size_in_bytes` | 118,111,600,640 (110.00 GiB) |",
                Pool,
                118_111_600_640,
            ),
            (
                "| HIP (`hipDeviceProp_t::totalGlobalMem`) | 118,111,600,640 |",
                Pool,
                118_111_600_640,
            ),
            ("props.total_memory:      62.47 GiB", Pool, 67_076_651_745),
            ("hip mem_get_info free:  120.00 GiB", HipFree, 120 << 30),
            ("host RAM:              124.92 GiB", Ram, 134_131_828_654),
            (
                "Current TTM pages limit: 4058844 pages (15.48 GB)",
                TtmPages,
                4_058_844,
            ),
            (
                "... ttm.pages_limit=25165824 ttm.page_pool_size=25165824",
                TtmPages,
                25_165_824,
            ),
            (
                "GTT size has been set as 128849018880 but TTM",
                Gtt,
                128_849_018_880,
            ),
            (
                "TTM size has been set as 66818834432, this is unusual",
                Ttm,
                66_818_834_432,
            ),
            (
                "kernel: [drm] amdgpu: 98304M of VRAM memory ready",
                Vram,
                98304 << 20,
            ),
            (
                "VRAM              : usage 28108 MiB, total 98304 MiB (usable 98148 MiB)",
                Vram,
                98304 << 20,
            ),
            (
                "GTT               : usage    36 MiB, total 15864 MiB (usable 15850 MiB)",
                Gtt,
                15864 << 20,
            ),
            (
                "# (Corsair, 128 GB, 96 GB carve-out, Fedora 43)",
                CarveOut,
                96 << 30,
            ),
            ("UMA Frame Buffer Size: 64G", CarveOut, 64 << 30),
            ("BIOS VRAM carve-out 8 GiB, kernel 6.17", CarveOut, 8 << 30),
            ("Virtual Memory: Max Size:  37,682 MB", Commit, 37_682 << 20),
            (
                "inference compute: total=\"132.0 GiB\" available=\"131.8 GiB\"",
                ToolTotal,
                132 << 30,
            ),
        ];
        for (line, expected, bytes) in cases {
            assert!(
                quantities(line).contains(&(expected, Bytes(bytes))),
                "{line}: {:?}",
                quantities(line)
            );
        }
    }
}
