//! Reading a machine from a text that somebody posted.
//!
//! The kind of text is recognised from its content: a dump of `surefoot doctor`, a
//! flattened KFD tree, the output of `rocminfo`, `hipInfo`, `rocm-smi` or `amd-smi`,
//! a report about memory, a log. A post often holds more than one of them; the best
//! source of devices gives the GPUs, and whatever else is in the text completes them.

mod amd_smi;
mod csv;
mod hipinfo;
mod kernel_log;
mod lspci;
mod memory_report;
mod python_report;
mod rocm_smi;
mod rocminfo;
mod sysfs;

use crate::machine::{Gpu, Machine, ReadFrom, System};
use crate::plain::plain;
use crate::snapshot::{DUMP_HEADER, Snapshot};
use crate::{describe, detect, explain, source};

/// The text is none of the kinds that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not recognised; it can be a dump of `surefoot doctor --dump`, a KFD topology with its paths, \
     the output of `rocminfo`, `hipInfo`, `rocm-smi -a`, `amd-smi static`, `amd-smi metric`, \
     `python -m torch.utils.collect_env`, `accelerate env`, `lspci -nnk` or `dmesg`, \
     a report about memory, or a log with an error message"
)]
pub struct NotRecognised;

/// The text of a file, however it was written: PowerShell writes UTF-16, and a
/// broken byte in a log must not hide the rest of it.
#[must_use]
pub fn decode(bytes: &[u8]) -> String {
    let utf16 = |pairs: &[u8], read: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = pairs
            .chunks_exact(2)
            .map(|pair| read([pair[0], pair[1]]))
            .collect();
        String::from_utf16_lossy(&units)
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest).into_owned(),
        bytes => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// Reads a machine from a text of any kind.
///
/// # Errors
/// [`NotRecognised`] when nothing in the text describes a GPU, its memory or an error.
pub fn read(text: &str) -> Result<Machine, NotRecognised> {
    let text = &*plain(text.trim_start_matches('\u{feff}'));
    let snapshot = Snapshot::parse(text);
    if text.starts_with(DUMP_HEADER) || snapshot.paths_under("kfd/nodes/").next().is_some() {
        return Ok(detect::machine(&snapshot));
    }
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
        // The files among the text (`/proc/cmdline: …`) count in every kind.
        let mut machine = Machine {
            read_from,
            variables: variables(text),
            ..detect::machine(&snapshot)
        };
        machine.gpus = gpus(text, &mut machine);
        if read_from == ReadFrom::Memory {
            // Whole files are better than sizes in running text.
            let files = sysfs::gpus(&snapshot);
            if !files.is_empty() {
                machine.gpus = files;
            }
        }
        let recognised_without_a_gpu = match read_from {
            ReadFrom::Rocminfo => rocminfo::is_rocminfo(text),
            ReadFrom::PythonReport => python_report::is_python_report(text),
            ReadFrom::KernelLog | ReadFrom::Lspci => !machine.unseen.is_empty(),
            ReadFrom::Memory => memory_report::is_meminfo(text),
            _ => false,
        };
        if machine.gpus.is_empty() && !recognised_without_a_gpu {
            continue;
        }
        if text.contains("WSL environment detected") {
            machine.system = System::Wsl;
        }
        for (index, gpu) in machine.gpus.iter_mut().enumerate() {
            gpu.index = index;
        }
        memory_report::complete(text, &mut machine);
        describe::complete(&mut machine);
        return Ok(machine);
    }
    if explain::explain(text).matches.is_empty() {
        return Err(NotRecognised);
    }
    Ok(Machine {
        read_from: ReadFrom::Log,
        variables: variables(text),
        ..Machine::default()
    })
}

/// Assignments of variables that matter, on lines of their own, in any shell.
fn variables(text: &str) -> std::collections::BTreeMap<String, String> {
    let assignment = |line: &str| {
        let line = line.trim();
        let line = ["export ", "set ", "$env:", "Environment=", "-e ", "ENV "]
            .iter()
            .find_map(|p| line.strip_prefix(p))
            .unwrap_or(line);
        let (name, value) = line.split_once('=')?;
        let name = name.trim();
        let is_name = !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        let value = value.trim().trim_matches(['"', '\'']);
        (is_name && source::is_relevant_variable(name)).then(|| (name.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(assignment).collect()
}

/// The JSON documents in a text, among whatever warnings surround them: from the first
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

/// The value behind the first colon of a line whose key is exactly `key`.
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
    fn prose_is_not_recognised() {
        assert_eq!(
            read("Dear all,\nmy computer is slow.\n").err(),
            Some(NotRecognised)
        );
        assert_eq!(read("").err(), Some(NotRecognised));
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = read(&decode(&bytes));
        }
    }
}
