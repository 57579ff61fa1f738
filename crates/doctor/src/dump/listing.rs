//! Lines in which programs say which GPUs they found when they started: llama.cpp and what
//! is built on it, ollama, ComfyUI, Forge, SD.Next, torch itself.

use super::gpu_mention::{GpuMention, is_amd_graphics, is_other_vendor};
use super::{code_lists, kubernetes};
use crate::pattern::{self, Pattern, Patterns, patterns};
use crate::tables::MENTIONS;
use crate::{failure, names};
use platform::gfx::FormFactor;
use platform::machine::{Class, Machine};
use platform::pci::PciAddress;
use platform::{Bytes, Gfx};
use regex::Regex;
use std::sync::LazyLock;

/// Constant patterns: a test compiles every one of them.
static COMPILED: LazyLock<Patterns<Regex>> = LazyLock::new(|| {
    Patterns::new(
        MENTIONS.iter().map(|(_, pattern)| *pattern),
        pattern::compile,
    )
});

/// The GPUs named by lines of a text; other facts in them are added to the machine.
pub(super) fn mentions(text: &str, machine: &mut Machine) -> Vec<GpuMention> {
    let mut seen = Vec::new();
    // `rocm_agent_enumerator` prints only names, one per line.
    let mut enumerated = 0;
    let mut before = "";
    for line in text.lines() {
        let line = crate::explain::clip(line, 4096);
        for (at, pattern) in COMPILED.matches(line) {
            let (tool, _) = MENTIONS[at];
            // The properties of torch's form name it once.
            if tool == "props" && line.contains("_CudaDeviceProperties(")
                || tool == "arch" && is_build_target(line)
            {
                continue;
            }
            for found in pattern.captures_iter(line).take(64) {
                let group = |name: &str| found.name(name).map(|found| found.as_str());
                let count = group("k").and_then(|count| count.parse::<u32>().ok());
                let one = mention(tool, group, machine);
                if let (Some(one), Some(count @ 2..=16)) = (&one, count) {
                    seen.extend((0..count).map(|index| GpuMention {
                        index: Some(index),
                        ..one.clone()
                    }));
                } else {
                    seen.extend(one);
                }
            }
        }
        if line.contains("level=") || line.contains("msg=") {
            seen.extend(from_ollama(line, machine));
        }
        seen.extend(code_lists::mentions(line));
        seen.extend(kubernetes::mentions(line));
        let word = line.trim();
        if word == "gfx000" || word.ends_with("rocm_agent_enumerator") {
            enumerated = 0;
        }
        if word.starts_with("gfx") && word.len() < 8 {
            // `gfx000` is the CPU, and cannot be read.
            if let Ok(gfx) = word.parse() {
                seen.push(GpuMention::new("enumerator", Some(enumerated)).reporting(Some(gfx)));
                enumerated += 1;
            }
        }
        // `cat /sys/class/drm/card1/device/{vendor,device}`.
        if before == "0x1002" {
            let named = GpuMention::new("sysfs-ids", None).named(word);
            seen.extend(named.gpu.device_id.is_some().then_some(named));
        }
        before = word;
        if let Some(ram) = total_ram(line) {
            machine.memory.total = machine.memory.total.or(Some(ram));
        }
    }
    seen.retain(GpuMention::says_something);
    if seen.is_empty() {
        seen = nameless(text);
    }
    comfy_memory(text, &mut seen);
    seen
}

/// `found 8 ROCm devices:` over `Device 0: , compute capability 9.0`: that many GPUs, of which nothing is known.
fn nameless(text: &str) -> Vec<GpuMention> {
    let count = text.lines().find_map(|line| {
        let (_, rest) = line.split_once("found ")?;
        let (count, _) = rest.split_once(" ROCm devices")?;
        count.parse::<u32>().ok()
    });
    let is_listed = text.contains("Device 0: , compute capability");
    (0..count.filter(|_| is_listed).unwrap_or(0).min(16))
        .map(|index| {
            let mut one = GpuMention::new("ggml", Some(index));
            one.gpu.product = Some("ROCm device".to_owned());
            one
        })
        .collect()
}

patterns! {
    /// What cards are sold as, with their family, from Vega on.
    PRODUCT = r"(?i)(w/ |with )?\b((?:AMD |ATI )?Radeon(?:\(TM\)|™)? ?(?:RX |PRO |AI PRO )?[A-Z]{0,2}\d{3,4}[A-Z]{0,2}(?: (?:XTX|XT|GRE))?|RX[ -]?[5-9]\d00[MS]?(?: ?(?:XTX|XT|GRE))?|(?:AMD )?Radeon VII|Instinct MI\d{2,3}[AX]?)\b";
    /// The graphics of processors, where they are a GPU to compute on.
    GRAPHICS = r"(?i)(w/ |with )?\b(?:Radeon )?((?:6[68]|7[468]|8[2468]|89)0M|80[456]0S|Strix (?:Halo|Point)|(?:Ryzen )?AI MAX\+? ?(?:PRO )?3\d\d|Steam ?Deck|Framework Desktop)\b";
    /// Cards that are too old for ROCm.
    OLD = r"(?i)(\x00)?\b(RX[ -]?(?:4[678]0|5[456789]0)|R9 (?:Fury|Nano|290|390)X?)\b";
    WITH_ARCHITECTURE = r"(?i)\b((?:AMD |ATI )?(?:Radeon |RX ?|Instinct )?(?:PRO |AI PRO )?[A-Z]{0,2}\d{3,4}[A-Z]{0,2}(?: (?:XTX|XT|GRE))?(?: i?GPU)?) ?\((gfx[0-9a-f]{3,5})\)";
    SEVERAL = r"(?i)\b(?:I have|with|using|has|my) (?:2|two|3|three|both|dual|multiple|several) (?:AMD )?(?:GPUs|cards|graphics cards)\b";
    /// A card of NVIDIA.
    GEFORCE = r"(?i)\b(?:NVIDIA |GeForce )*(?:GTX ?\d{3,4}|RTX ?(?:A?\d{4}|PRO \d{4}))(?: ?Ti\b| SUPER\b)?";
    /// An architecture as that of a device, and not of a file or of a package.
    OF_DEVICE = r"(?i)\b(?:on|GPU|APU|HIP|AMD|Ryzen|Radeon|Instinct|Strix \w+|card|hardware)\b[^\n/=]{0,40}\bgfx[0-9a-f]{3,5}\b";
    /// The short names, which are looked for where no card is named in full.
    SHORT_PRODUCT = r"(?i)(w/ |with )?\b(RX[ -]?[5-9]\d[0-9]0[MS]?(?: ?(?:XTX|XT|GRE))?|RX[ -]\d{4}-(?:XTX|XT|GRE)|[679]\d[057]0 ?(?:XTX|XT|GRE)|(?:AI PRO )?R9[67]00|AI PRO 9[67]00|(?:RX )?Vega[ -]?(?:56|64)|W[67]\d00|MI\d{2,3}[AX]?(?: GPUs?| nodes?| cards?| servers?| system))\b";
}

/// Names that stand before their own architecture: `780M iGPU (gfx1103)`. Of more than two, the text lists what something
/// supports.
fn with_architecture(text: &str) -> Vec<GpuMention> {
    const MOST: usize = 2;
    let mut found: Vec<GpuMention> = Vec::new();
    for captures in WITH_ARCHITECTURE.captures_iter(text).take(64) {
        let gfx: Option<Gfx> = captures[2].parse().ok();
        let Some(gfx) = gfx.filter(|gfx| gfx.architecture().is_some()) else {
            continue;
        };
        if found.iter().all(|one| one.reported != Some(gfx)) {
            let index = u32::try_from(found.len()).ok();
            let one = GpuMention::new("named", index).named(captures[1].trim());
            found.push(one.reporting(Some(gfx)));
        }
    }
    if found.len() > MOST {
        found.clear();
    }
    found
}

/// The cards of NVIDIA that a text names beside one of AMD.
pub(super) fn note_geforce(text: &str, machine: &mut Machine) {
    for found in GEFORCE.captures_iter(text).take(4) {
        let name = found[0].to_ascii_uppercase();
        let name = name
            .trim_start_matches("NVIDIA ")
            .trim_start_matches("GEFORCE ");
        other(&format!("NVIDIA {name}"), machine);
    }
}

/// The only architecture that a text names, if a sentence has it as that of a device.
pub(super) fn only_architecture(text: &str) -> Option<GpuMention> {
    let is_of_device = |line: &&str| OF_DEVICE.is_match(line) && !is_build_target(line);
    let lines: Vec<&str> = text.lines().filter(is_of_device).collect();
    let mut named = text.lines().flat_map(Gfx::find_all);
    let first = named.next().filter(|gfx| gfx.architecture().is_some())?;
    let is_only = named.all(|other| other == first);
    (is_only && !lines.is_empty())
        .then(|| GpuMention::new("architecture", None).reporting(Some(first)))
}

/// The product that a text mentions, if it mentions only one, or says that the machine has several: in running text, or in the
/// output of an unknown tool. Processor graphics do not count, nor do GPUs that are too old, since
/// lists of supported cards name them.
pub(super) fn only_products(text: &str) -> Vec<GpuMention> {
    let paired = with_architecture(text);
    let is_apu = |gfx: Gfx| {
        let known = gfx.architecture();
        known.is_some_and(|known| known.sold_as == FormFactor::Apu)
    };
    let apus = paired
        .iter()
        .filter_map(|one| one.reported)
        .filter(|&gfx| is_apu(gfx));
    // The graphics of a processor and a card are in one machine more often than not.
    if paired.len() == 2 && (apus.count() == 1 || SEVERAL.is_match(text)) {
        return paired;
    }
    let names_in = |text| {
        let mut names = [&PRODUCT, &SHORT_PRODUCT]
            .into_iter()
            .map(|pattern| products_by(text, pattern))
            .map(|names| Vec::from_iter(names.into_iter().filter(|(gfx, _)| !gfx.is_too_old())));
        names.find(|names| !names.is_empty()).unwrap_or_default()
    };
    let mut names = names_in(text);
    // Nobody names the graphics of a processor for their own sake, unless there is nothing else.
    if names.is_empty() && !GEFORCE.is_match(text) && failure::is_post(text) {
        names = products_by(text, &OLD);
        if names.is_empty() {
            names = products_by(text, &GRAPHICS);
        } else if failure::complaint(text).is_none()
            && !(failure::is_printed(text)
                && text.lines().next().is_some_and(|title| OLD.is_match(title)))
        {
            names.clear();
        }
    }
    let mut known = Vec::new();
    names.retain(|(gfx, _)| {
        !known.contains(gfx) && {
            known.push(*gfx);
            true
        }
    });
    let is_pair = names.len() == 2 && names.iter().filter(|(gfx, _)| is_apu(*gfx)).count() == 1;
    if names.len() > 1 && !is_pair && !SEVERAL.is_match(text) {
        // Of several, the title has the one that it is about.
        names = names_in(text.lines().next().unwrap_or_default());
        names.dedup_by_key(|(gfx, _)| *gfx);
        if names.len() > 1 {
            return Vec::new();
        }
    }
    let mention = |(at, (_, name)): (u32, &(Gfx, &str))| {
        let index = (names.len() > 1).then_some(at);
        GpuMention::new("named", index).named(name)
    };
    (0..).zip(&names).map(mention).collect()
}

fn products_by<'a>(text: &'a str, pattern: &Pattern) -> Vec<(Gfx, &'a str)> {
    let product = |found: regex::Captures<'a>| {
        let name = found.get(2)?.as_str();
        let spaced = name.replace('-', " ");
        let gfx = names::architecture_of(&spaced)?;
        // `Ryzen 7 7840HS with Radeon 780M`: no processor has a card in it.
        let ends = |mark: &str| name.to_ascii_uppercase().ends_with(mark);
        let is_card = found.get(1).is_none()
            || name.contains("RX")
            || ["XT", "XTX", "GRE"].into_iter().any(ends);
        is_card.then_some((gfx, name))
    };
    pattern
        .captures_iter(text)
        .take(64)
        .filter_map(product)
        .collect()
}

fn mention<'a>(
    tool: &'static str,
    group: impl Fn(&str) -> Option<&'a str>,
    machine: &mut Machine,
) -> Option<GpuMention> {
    let number = |name: &str| group(name).and_then(|digits| digits.parse().ok());
    let mut one = GpuMention::new(tool, number("i"));
    if let Some(name) = group("n") {
        if tool == "alone" && name.contains(" (gfx") && name.contains(" + ") {
            // Two cards in a line.
            return None;
        }
        if is_other_vendor(name) {
            // The adapter of a server board or of a processor says nothing about other cards.
            if tool != "lspci" || names::is_virtual_adapter(name) {
                other(name, machine);
            }
            return None;
        }
        let spaced = name.replace('_', " ");
        let name = if name.contains(' ') { name } else { &spaced };
        let named = one.clone().named(name);
        if let Some(gfx) = names::graphics_of_processor(name).filter(|_| tool == "devices")
            && !is_amd_graphics(name)
        {
            one.gpu.gfx = Some(gfx);
            one.gpu.class = Some(Class::Apu);
            one.gpu.class_from = "named as the processor";
            one.about = group("f").and_then(size);
            return Some(one);
        }
        let is_known = named.gpu.device_id.is_some() || named.reported.is_some();
        if !is_amd_graphics(name) && group("g").is_none() && !is_known {
            return None;
        }
        one = named;
    }
    // The files of the firmware have the version of the graphics core in their names.
    let version = group("v").and_then(of_graphics_core);
    one = one.reporting(
        group("g")
            .or_else(|| group("h"))
            .and_then(|name| name.parse::<Gfx>().ok())
            .or(version)
            .or_else(|| Gfx::from_override(&group("m")?.replace('/', "."))),
    );
    one.gpu.device_id = one.gpu.device_id.or_else(|| {
        let digits = group("d")?.trim_start_matches("0x");
        platform::pci::DeviceId::from_hex(digits)
    });
    if tool == "numbered" && one.gpu.device_id.is_none_or(|id| id.gfx().is_none()) {
        // Every vendor has such numbers.
        return None;
    }
    one.gpu.pci = group("p").and_then(PciAddress::parse).or(one.gpu.pci);
    one.gpu.usable_bytes = group("t").and_then(Bytes::parse_tool_output);
    one.about = group("f").and_then(size);
    if let Some(word) = group("u").filter(|&word| word != "0") {
        one.gpu.class = Some(Class::Apu);
        one.gpu.class_from = if word == "1" {
            "ggml_vulkan: uma"
        } else {
            "ollama: integrated"
        };
    }
    Some(one)
}

/// Whether a line names architectures that something is compiled for: no GPU need be there.
fn is_build_target(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let is_refused = [
        "unsupported cuda gpu",
        "unsupported hip gpu",
        "offload-arch",
    ]
    .iter()
    .any(|words| lower.contains(words));
    let is_of_cmake = lower.trim_start().starts_with("-- ") && lower.contains("target");
    if code_lists::is_code_list(line) && !lower.contains("unsupported gpu") {
        return true;
    }
    is_refused || is_of_cmake || Gfx::find_all(&lower).len() > 1 && lower.contains(";gfx")
}

/// The architecture of a graphics core; up to RDNA 3 the numbers are in another order.
fn of_graphics_core(version: &str) -> Option<Gfx> {
    let gfx = match version {
        "9_4_3" | "9_4_4" => Gfx::new(9, 4, 2),
        "11_0_1" | "11_0_4" => Gfx::new(11, 0, 3),
        "11_0_3" => Gfx::new(11, 0, 1),
        "9_5_0" | "10_3_6" | "11_0_0" | "11_0_2" | "11_5_0" | "11_5_1" | "11_5_2" | "11_5_3"
        | "12_0_0" | "12_0_1" => Gfx::from_override(&version.replace('_', "."))?,
        _ => return None,
    };
    Some(gfx)
}

/// A size with a unit; a bare number below a million is in MiB, as programs print it.
fn size(text: &str) -> Option<Bytes> {
    match text.trim().parse::<u64>() {
        Ok(number) if number < 1_000_000 => Some(Bytes::mib(number)),
        _ => Bytes::parse_tool_output(text),
    }
}

pub(super) fn other(name: &str, machine: &mut Machine) {
    // A program's next sentence is not part of the name.
    let name = name.split(". ").next().unwrap_or(name);
    let name = name.trim().trim_matches(['"', '\'', ',']).to_owned();
    if !machine.posted.other_gpus.contains(&name) && machine.posted.other_gpus.len() < 8 {
        machine.posted.other_gpus.push(name);
    }
}

/// ollama's `key=value` lines.
fn from_ollama(line: &str, machine: &mut Machine) -> Option<GpuMention> {
    let field = |key: &str| field(line, key).filter(|value| !value.is_empty());
    if line.contains("amdgpu is not supported") {
        let (kind, supported) = (field("gpu_type")?, line.split_once("supported")?.1);
        let kinds = Gfx::find_all(kind);
        let supported = supported
            .split_once("types")
            .map_or(Vec::new(), |(_, list)| {
                Gfx::find_all(list.split(']').next().unwrap_or_default())
            });
        let known = machine.posted.without_code.get_or_insert_default();
        known.0.extend(
            kinds
                .iter()
                .filter(|gfx| !known.0.contains(gfx))
                .copied()
                .collect::<Vec<_>>(),
        );
        known.1 = supported;
    }
    if let Some(kind) = field("gpu_type") {
        let number = field("gpu").and_then(|number| number.parse().ok());
        return Some(GpuMention::new("ollama-types", number).reporting(kind.parse().ok()));
    }
    let is_dropped = line.contains("dropping integrated GPU");
    if !line.contains("inference compute") && !line.contains("amdgpu memory") && !is_dropped {
        return None;
    }
    let library = field("library").unwrap_or_default().to_ascii_lowercase();
    if library == "cpu" {
        machine.posted.cpu_only = Some("ollama".to_owned());
        return None;
    }
    let name = field("description")
        .or_else(|| field("name"))
        .unwrap_or_default();
    if is_other_vendor(name) || library == "cuda" {
        other(name, machine);
        return None;
    }
    let identity = field("pci_id")
        .or_else(|| field("id"))
        .or_else(|| field("gpu"));
    let number = identity.and_then(|number| number.parse().ok());
    let mut one = GpuMention::new("ollama", number)
        .named(name)
        .reporting(field("compute").and_then(|gfx| gfx.parse().ok()));
    one.gpu.pci = identity.and_then(PciAddress::parse);
    one.about = field("total").and_then(Bytes::parse_tool_output);
    if is_dropped || matches!(field("type"), Some("iGPU" | "integrated")) {
        one.gpu.class = Some(Class::Apu);
        one.gpu.class_from = "ollama: type";
    }
    Some(one)
}

/// The value of ` key=value` or ` key="a value"`.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let at = line.match_indices(key).find_map(|(at, _)| {
        let starts = at == 0 || line[..at].ends_with(|c: char| c.is_whitespace() || c == '*');
        let rest = line[at + key.len()..].strip_prefix('=')?;
        starts.then_some(rest)
    })?;
    match at.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next(),
        None => at.split(|c: char| c.is_whitespace() || c == '*').next(),
    }
}

fn total_ram(line: &str) -> Option<Bytes> {
    let (_, rest) = line.split_once("otal RAM ")?;
    let (number, unit) = rest.split_once(' ')?;
    let is_mib = unit.starts_with("MB");
    is_mib.then(|| number.parse().ok().map(Bytes::mib))?
}

/// `Total VRAM 24560 MB, total RAM …`: of the first device, which is often the only one.
fn comfy_memory(text: &str, seen: &mut [GpuMention]) {
    let total = text.lines().find_map(|line| {
        let (_, rest) = line.split_once("Total VRAM ")?;
        let (number, rest) = rest.split_once(' ')?;
        rest.starts_with("MB")
            .then(|| number.parse().ok().map(Bytes::mib))?
    });
    if let Some(total) = total
        && let Some(one) = seen
            .iter_mut()
            .find(|one| matches!(one.tool, "comfy" | "arch"))
    {
        one.gpu.usable_bytes = one.gpu.usable_bytes.or(Some(total));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        COMPILED.check();
    }

    #[test]
    fn a_product_in_passing_counts_where_it_is_the_only_one() {
        let gfx = |text: &str| match &only_products(text)[..] {
            [one] => one.gpu.gfx,
            _ => None,
        };
        assert_eq!(
            gfx("my Radeon RX 6700 XT hangs, and the RX 6700 XT of a friend too"),
            Some(Gfx::new(10, 3, 1))
        );
        assert_eq!(
            gfx("ryzen 5 7600x\nRX 9060XT 16gb"),
            Some(Gfx::new(12, 0, 0))
        );
        assert_eq!(gfx("a 9070 XT, a month old"), Some(Gfx::new(12, 0, 1)));
        assert_eq!(gfx("# W7900 (gfx1100, RDNA3)"), Some(Gfx::new(11, 0, 0)));
        for both in [
            "Ryzen 7 7840HS (Radeon 780M) and an RX 7700S",
            "- 780M iGPU (gfx1103) with 12 CU's\n- 7700S GPU (gfx1102) with 32 CU's",
        ] {
            assert_eq!(only_products(both).len(), 2, "{both}");
        }
        for text in [
            "Ryzen 5 5600XT",
            "RX 6700 XT and RX 7900 XTX",
            "AMD Ryzen 7 7840HS w/ Radeon 780M Graphics",
            "RX 580",
            "no GPU at all",
        ] {
            assert_eq!(gfx(text), None, "{text}");
        }
    }

    #[test]
    fn a_graphics_core_is_not_always_the_architecture_of_its_number() {
        assert_eq!(of_graphics_core("11_0_3"), Some(Gfx::new(11, 0, 1)));
        assert_eq!(of_graphics_core("11_5_1"), Some(Gfx::new(11, 5, 1)));
        assert_eq!(of_graphics_core("10_1_10"), None);
    }

    #[test]
    fn fields_of_a_log_line_are_read_whole() {
        let line = r#"time=x msg="inference compute" id=0 library=rocm name="AMD Radeon RX 9070 XT" total="15.9 GiB""#;
        assert_eq!(field(line, "name"), Some("AMD Radeon RX 9070 XT"));
        assert_eq!(field(line, "id"), Some("0"));
        assert_eq!(field(line, "ame"), None);
    }
}
