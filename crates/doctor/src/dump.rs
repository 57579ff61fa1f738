//! Reads a machine from a posted text.
//!
//! The kind of text is recognised from its content: a dump of `surefoot doctor`, a
//! flattened KFD tree, the output of `rocminfo`, `hipInfo`, `rocm-smi` or `amd-smi`,
//! a report about memory, a log. A post often holds more than one of them; the best
//! source of devices gives the GPUs, and whatever else is in the text completes them.

mod amd_smi;
mod bounded;
mod code_lists;
mod csv;
mod fragments;
mod gpu_mention;
mod hipinfo;
mod kernel_log;
mod kubernetes;
mod layout;
mod listing;
mod lspci;
mod memory_report;
mod operating_system;
mod pairs;
mod python_report;
mod remarks;
mod rocm_smi;
mod rocminfo;
mod several;
mod startup;
mod sysfs;

pub(crate) use bounded::Kept;
pub use bounded::read_text;

use self::gpu_mention::GpuMention;
use crate::ansi::strip_escapes;
use crate::signs::ENGINE;
use crate::{explain, names};
use platform::machine::{Gpu, Machine, Posted, ReadFrom, System};
use platform::pci::DeviceId;
use platform::snapshot::{DUMP_HEADER, Snapshot};
use platform::{describe, detect, source};
use std::collections::HashSet;

/// The error for a text of no known kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not recognised; it can be a dump of `surefoot doctor --dump`, a KFD topology with its paths, \
     the output of `rocminfo`, `hipInfo`, `rocm-smi -a`, `amd-smi static`, `amd-smi metric`, \
     `python -m torch.utils.collect_env`, `accelerate env`, `lspci -nnk` or `dmesg`, \
     a report about memory, or a log with an error message"
)]
pub struct UnknownFormat;

pub use crate::encoding::{decode, is_binary};

/// Reads a machine from a text of any kind.
///
/// # Errors
/// [`UnknownFormat`] when nothing in the text describes a GPU, its memory or an error.
pub fn read(text: &str) -> Result<Machine, UnknownFormat> {
    let (machine, says_something) = facts(text).ok_or(UnknownFormat)?;
    if says_something || is_told(text, &explain::explain(text).matches) {
        return Ok(machine);
    }
    Err(UnknownFormat)
}

/// Whether a text tells of something that is known here: a single sentence says that a computer is slow, and nothing of a GPU.
pub(crate) fn is_told(text: &str, matches: &[explain::Match]) -> bool {
    let is_post = text.trim().lines().nth(1).is_some();
    let catalogue = explain::Catalogue::built_in();
    matches
        .iter()
        .any(|found| is_post || !catalogue.is_complaint(&found.id))
}

/// What a text tells of a machine, and whether that says something; nothing of a file that is no text.
pub(crate) fn facts(text: &str) -> Option<(Machine, bool)> {
    if is_binary(text.as_bytes()) {
        return None;
    }
    let text = &*strip_escapes(text.trim_start_matches('\u{feff}'));
    if text.starts_with(DUMP_HEADER) {
        return Some((detect::machine(&Snapshot::parse(text)), true));
    }
    let text = &layout::unwrapped(text);
    let snapshot = Snapshot::parse(text);
    // `cat …/nodes/*/properties` prints the nodes without their numbers.
    let nodes = snapshot.children("kfd/nodes/");
    if nodes.iter().any(|node| node.parse::<u32>().is_ok()) {
        return Some((detect::machine(&snapshot), true));
    }
    if let Some(nodes) = nodes_without_paths(text) {
        return Some((detect::machine(&nodes), true));
    }
    // The files among the text (`/proc/cmdline: …`) count in every kind.
    let base = Machine {
        read_from: ReadFrom::Log,
        variables: variables(text),
        ..detect::machine(&snapshot)
    };
    let read = by_tool(text, &snapshot, &base).or_else(|| listed(text, &base));
    if let Some(mut machine) = read {
        finish(text, &mut machine);
        return Some((machine, true));
    }
    // No GPU, and yet something that is worth saying about the machine.
    let (mut machine, mut noted) = (base.clone(), base);
    let seen = listing::mentions(text, &mut noted);
    let paired = pairs::mentions(text, &mut noted);
    noted.gpus = gpu_mention::merged(seen.into_iter().chain(paired).collect(), &mut noted);
    finish(text, &mut noted);
    let remarks = Posted {
        has_failed: false,
        wants_rocm: false,
        processor: None,
        is_nameless: false,
        torch_sees_none: false,
        sees_gpu: false,
        // The name of a program tells nothing of the machine.
        framework: noted.posted.framework.filter(|name| *name != ENGINE),
        ..noted.posted.clone()
    };
    let says_something = remarks != Posted::default()
        || noted.kernel.is_some() && fragments::tool_of(text).is_some()
        || !noted.variables.is_empty()
        || noted.python.is_some()
        || noted.system == System::Macos
        || !noted.kernel_parameters.is_empty()
        || noted.ttm_pages_limit.is_some();
    if says_something {
        machine = noted;
    } else {
        machine.system = noted.system;
        machine.posted.has_failed = noted.posted.has_failed;
        machine.posted.framework = noted.posted.framework;
    }
    Some((machine, says_something))
}

/// Properties of KFD's nodes that were pasted without their paths.
fn nodes_without_paths(text: &str) -> Option<Snapshot> {
    if !text.contains("gfx_target_version") || !text.contains("simd_count") {
        return None;
    }
    let mut snapshot = Snapshot::default();
    let is_property = |line: &&str| {
        let mut words = line.split_whitespace();
        words.next().is_some()
            && words.next().is_some_and(|word| word.parse::<u64>().is_ok())
            && words.next().is_none()
    };
    // Where the line breaks were lost, keys and values alternate.
    let mut paired: Vec<String> = Vec::new();
    if !text.lines().any(|line| is_property(&line.trim())) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let pairs = words.windows(2);
        let pairs = pairs.filter(|pair| pair[0].contains('_') && pair[1].parse::<u64>().is_ok());
        paired.extend(pairs.map(|pair| pair.join(" ")));
    }
    let lines = text.lines().chain(paired.iter().map(String::as_str));
    let mut nodes: Vec<String> = Vec::new();
    for line in lines.map(str::trim).filter(is_property) {
        if nodes.is_empty() || line.starts_with("cpu_cores_count ") {
            nodes.push(String::new());
        }
        if let Some(node) = nodes.last_mut() {
            node.push_str(line);
            node.push('\n');
        }
    }
    let is_gpu = |node: &String| {
        node.lines()
            .any(|line| line.starts_with("gfx_target_version ") && !line.ends_with(" 0"))
    };
    if !nodes.iter().any(is_gpu) {
        return None;
    }
    // The same GPU again has its place on the bus, too.
    let mut known = HashSet::new();
    nodes.retain(|node| known.insert(node.clone()) || !node.contains("location_id "));
    for (number, node) in nodes.into_iter().enumerate() {
        snapshot.insert_text(&format!("kfd/nodes/{number}/gpu_id"), "1\n");
        snapshot.insert_text(&format!("kfd/nodes/{number}/properties"), node);
    }
    Some(snapshot)
}

/// The machine according to the first tool whose output is in the text.
fn by_tool(text: &str, snapshot: &Snapshot, base: &Machine) -> Option<Machine> {
    type Reader = fn(&str, &mut Machine) -> Vec<Gpu>;
    let readers: [(ReadFrom, Reader); 8] = [
        (ReadFrom::Rocminfo, rocminfo::gpus),
        (ReadFrom::Hipinfo, hipinfo::gpus),
        (ReadFrom::AmdSmi, amd_smi::gpus),
        (ReadFrom::RocmSmi, rocm_smi::gpus),
        (ReadFrom::PythonReport, python_report::gpus),
        (ReadFrom::KernelLog, kernel_log::gpus),
        (ReadFrom::Lspci, lspci::gpus),
        (ReadFrom::Memory, memory_report::gpus),
    ];
    for (read_from, gpus) in readers {
        let mut machine = Machine {
            read_from,
            ..base.clone()
        };
        machine.gpus = gpus(text, &mut machine);
        if read_from == ReadFrom::Memory {
            // Whole files are better than sizes in running text.
            let files = sysfs::gpus(snapshot);
            if !files.is_empty() {
                machine.gpus = files;
            }
        }
        let recognised_without_a_gpu = match read_from {
            ReadFrom::Rocminfo => rocminfo::is_rocminfo(text) && !rocminfo::names_gpu(text),
            ReadFrom::PythonReport => python_report::is_python_report(text),
            ReadFrom::KernelLog | ReadFrom::Lspci => !machine.unseen.is_empty(),
            ReadFrom::Memory => memory_report::is_meminfo(text),
            _ => false,
        };
        let is_empty = machine.gpus.is_empty();
        if is_empty && !recognised_without_a_gpu {
            continue;
        }
        let mut seen = listing::mentions(text, &mut machine);
        seen.extend(pairs::mentions(text, &mut machine));
        // The lists of these tools are whole; elsewhere another line may know more GPUs.
        let is_whole = matches!(
            read_from,
            ReadFrom::Rocminfo
                | ReadFrom::Hipinfo
                | ReadFrom::AmdSmi
                | ReadFrom::RocmSmi
                | ReadFrom::Lspci
                | ReadFrom::KernelLog
        );
        let mut known = std::mem::take(&mut machine.gpus);
        if read_from == ReadFrom::Memory && !machine.posted.other_gpus.is_empty() && seen.is_empty()
        {
            // These are the sizes of another vendor's card.
            known.clear();
            if !memory_report::is_meminfo(text) {
                continue;
            }
        }
        machine.gpus = if is_whole && !is_empty {
            gpu_mention::completed(known, seen, &mut machine)
        } else {
            let known = known.into_iter().enumerate();
            let known = known.map(|(index, gpu)| gpu_mention::GpuMention::of(index, gpu));
            gpu_mention::merged(known.chain(seen).collect(), &mut machine)
        };
        if is_empty {
            if read_from == ReadFrom::Rocminfo {
                machine.posted.rocminfo_lists_none = text.contains("*** Done ***");
                // The kernel log beside it says which cards KFD refused.
                kernel_log::gpus(text, &mut machine);
            }
            drop_unseen(&mut machine);
        }
        let is_seen = read_from == ReadFrom::PythonReport && python_report::sees_gpu(text);
        if is_empty && (is_seen || !machine.gpus.is_empty()) {
            machine.read_from = ReadFrom::Listing;
        }
        return Some(machine);
    }
    None
}

/// A line that only names a GPU does not make one usable that a driver's listing shows to be out of reach.
fn drop_unseen(machine: &mut Machine) {
    let unseen = &machine.unseen;
    let is_same = |gpu: &Gpu, other: &platform::machine::UnusableGpu| {
        let gfx = gpu.gfx.or_else(|| gpu.device_id?.gfx());
        match (gpu.pci, other.pci) {
            (Some(a), Some(b)) => a == b,
            _ => {
                let known = names::architecture_by(other.device_id, other.product.as_deref());
                gfx.is_some() && gfx == known
            }
        }
    };
    machine
        .gpus
        .retain(|gpu| !unseen.iter().any(|other| is_same(gpu, other)));
}

/// The machine according to GPUs that programs mention.
fn listed(text: &str, base: &Machine) -> Option<Machine> {
    let mut machine = Machine {
        read_from: ReadFrom::Listing,
        ..base.clone()
    };
    let mut seen = listing::mentions(text, &mut machine);
    seen.extend(pairs::mentions(text, &mut machine));
    // A form offers cards alone: who has none takes any of them, and names the graphics in the title.
    let titled = text.lines().next().map(listing::only_products);
    let inside = remarks::processor(text).and_then(|name| names::graphics_of_processor(&name));
    if let Some([one]) = titled.as_deref()
        && inside.is_some()
        && one.gpu.gfx == inside
    {
        seen = vec![one.clone()];
    }
    if !seen.iter().any(GpuMention::says_something) {
        let mut named = listing::only_products(text);
        machine.posted.is_unordered = named.len() > 1;
        if !named.is_empty() {
            listing::note_geforce(text, &mut machine);
        }
        if named.is_empty() {
            named.extend(listing::only_architecture(text));
        }
        seen.extend(named);
    }
    machine.gpus = gpu_mention::merged(seen, &mut machine);
    (!machine.gpus.is_empty()).then_some(machine)
}

/// Adds facts from the whole text, and their consequences.
fn finish(text: &str, machine: &mut Machine) {
    if let Some(system) = operating_system::of(text)
        && machine.system == System::Linux
    {
        machine.system = system;
    }
    let is_inside = |gpu: &Gpu| gpu.gfx == Some(names::DISPLAY_ONLY);
    if !machine.gpus.is_empty() && machine.gpus.iter().all(is_inside) {
        // A program has taken the graphics of a desktop processor; the card is what somebody writes of.
        for named in listing::only_products(text) {
            let gpu = named.settled(machine);
            machine.gpus.extend((!is_inside(&gpu)).then_some(gpu));
        }
        machine.posted.is_unordered = machine.gpus.len() > 1;
    }
    for (index, gpu) in machine.gpus.iter_mut().enumerate() {
        gpu.index = index;
        // No GPU has so little: the number was truncated.
        gpu.compute_units = gpu.compute_units.filter(|&units| units > 1);
        if gpu.gfx.is_none() && gpu.device_id.and_then(DeviceId::gfx).is_none() {
            gpu.gfx = gpu.product.as_deref().and_then(names::architecture_of);
        }
    }
    memory_report::complete(text, machine);
    remarks::read(text, machine);
    describe::complete(machine);
    remarks::reject_impossible(machine);
}

/// Assignments of relevant variables on lines of their own, in the syntax of any shell.
fn variables(text: &str) -> std::collections::BTreeMap<String, String> {
    let prefixes = ["export ", "set ", "$env:", "Environment=", "-e ", "ENV "];
    let assignment = |text: &str| {
        let (name, value) = text.split_once('=')?;
        let name = name.trim();
        let is_name = !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        let value = value.trim().trim_matches(['"', '\'']);
        (is_name && source::is_relevant_variable(name)).then(|| (name.to_owned(), value.to_owned()))
    };
    let assignments = |line: &str| {
        let line = line.trim();
        let prefix = prefixes.iter().find_map(|p| line.strip_prefix(p));
        // `HIP_VISIBLE_DEVICES=0 HSA_OVERRIDE_GFX_VERSION=10.3.0 python main.py`: a command, and its variables before it.
        let is_word = |word: &&str| {
            word.split_once('=').is_some_and(|(_, value)| {
                let is_quoted = value.starts_with(['"', '\'']);
                !value.is_empty() && !is_quoted || matches!(value, "\"\"" | "''")
            })
        };
        let words: Vec<&str> = line.split_whitespace().take_while(is_word).collect();
        let has_command = words.len() < line.split_whitespace().count();
        if prefix.is_none() && !words.is_empty() && (has_command || words.len() > 1) {
            return words.into_iter().filter_map(assignment).collect();
        }
        let whole = assignment(prefix.unwrap_or(line));
        whole.into_iter().collect::<Vec<_>>()
    };
    let mut found: std::collections::BTreeMap<_, _> = text.lines().flat_map(assignments).collect();
    for (name, value) in echoed(text) {
        found.entry(name).or_insert(value);
    }
    found
}

/// What `echo $HSA_OVERRIDE_GFX_VERSION` answered on the next line.
fn echoed(text: &str) -> Vec<(String, String)> {
    let answer = |(asked, value): (&str, &str)| {
        let (_, name) = asked.split_once("echo ")?;
        let name = name.trim().trim_matches(['"', '$', '{', '}', '%']);
        let value = value.trim();
        let is_value = value.starts_with(|c: char| c.is_ascii_digit() || c == '-')
            && !value.contains([' ', '$', '#', '>']);
        (is_value && source::is_relevant_variable(name))
            .then(|| (name.to_owned(), value.to_owned()))
    };
    text.lines()
        .zip(text.lines().skip(1))
        .filter_map(answer)
        .collect()
}

/// The JSON documents in a text, among any warnings: from the first
/// bracket of a line that begins one, to its end.
fn json_documents(text: &str) -> Vec<serde_json::Value> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let line_end = text[at..]
            .find('\n')
            .map_or(text.len(), |length| at + length + 1);
        let line = text[at..line_end].trim_start();
        let start = line_end - text[at..line_end].trim_start().len();
        if line.starts_with(['{', '[']) {
            let mut documents =
                serde_json::Deserializer::from_str(&text[start..]).into_iter::<serde_json::Value>();
            if let Some(Ok(document)) = documents.next() {
                at = start + documents.byte_offset();
                found.push(document);
                continue;
            }
        }
        at = line_end;
    }
    found
}

/// The value after the first colon of a line whose key is exactly `key`.
fn value_of<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (found, value) = line.split_once(':')?;
    (found.trim() == key).then(|| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn powershell_writes_utf16() {
        let text = "gcnArchName: gfx1151";
        let mut bytes = vec![0xff, 0xfe];
        bytes.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
        assert_eq!(decode(&bytes), text);
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let junk: Vec<u8> = (0..100_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        assert_eq!(read(&decode(&junk)).err(), Some(UnknownFormat));
    }

    #[test]
    fn assignments_of_any_shell_are_read() {
        let text = "export HSA_OVERRIDE_GFX_VERSION=11.0.0\n$env:HIP_VISIBLE_DEVICES=\"0\"\nPATH=/bin\nx HSA_XNACK=1\n";
        let variables = variables(text);
        assert_eq!(
            variables
                .get("HSA_OVERRIDE_GFX_VERSION")
                .map(String::as_str),
            Some("11.0.0")
        );
        assert_eq!(
            variables.get("HIP_VISIBLE_DEVICES").map(String::as_str),
            Some("0")
        );
        assert_eq!(variables.len(), 2);
    }

    #[test]
    fn graphics_without_a_name_of_their_own_are_those_of_the_processor() {
        let text = "Name: AMD Ryzen 5 9600X 6-Core Processor\nAMD Radeon(TM) Graphics\nAMD Radeon RX 7900 XTX\n";
        let machine = read(text).expect("a machine");
        let mut found: Vec<String> = machine
            .gpus
            .iter()
            .filter_map(|gpu| Some(gpu.gfx?.to_string()))
            .collect();
        found.sort();
        assert_eq!(found, ["gfx1036", "gfx1100"]);
    }

    #[test]
    fn prose_is_not_recognised() {
        assert_eq!(
            read("Dear all,\nmy computer is slow.\n").err(),
            Some(UnknownFormat)
        );
        assert_eq!(read("").err(), Some(UnknownFormat));
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = read(&decode(&bytes));
        }
    }
}
