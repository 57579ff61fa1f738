//! GPUs in tool output with keys and values: `clinfo`, `vulkaninfo`, `glxinfo`, `inxi`,
//! `fastfetch`, `dxdiag`, `lshw`, issue forms, and JSON of any of them, complete or truncated.
//!
//! Every tool has its own keys, and only few matter: name, device id, address and
//! size. Pairs are collected into a record until a key is repeated.

use super::gpu_mention::{GpuMention, is_amd_graphics, is_other_vendor};
use super::listing;
use super::several::{is_processor, is_unnamed_device, products};
use crate::pattern::patterns;
use crate::tables::{Field, KEYS};
use platform::machine::{Class, Machine};
use platform::pci::{DeviceId, PciAddress};
use platform::{Bytes, Gfx};

/// How many pairs after its first one a record is kept open.
const LONGEST_RECORD: usize = 120;

patterns! {
    JSON = r#""([^"\n]{1,60})"\s*:\s*(?:"([^"\n]{0,200})"|(-?[0-9][0-9.eE+]*)|(\{|\[|null|true|false))|(\})"#;
}

struct Record {
    mention: GpuMention,
    keys: Vec<(String, String)>,
    age: usize,
    /// A card of somebody else.
    is_foreign: bool,
}

/// The GPUs that keys and values of a text describe.
pub(super) fn mentions(text: &str, machine: &mut Machine) -> Vec<GpuMention> {
    let mut reader = Reader {
        machine,
        record: None,
        found: Vec::new(),
        tool: "lines",
        number: None,
        agents: 0,
    };
    for line in text.lines() {
        // Rows of JSON are read as such, below.
        if line.trim_start().starts_with(['"', '{', '[']) {
            continue;
        }
        if line.trim().is_empty() {
            reader.pause();
        }
        // `lshw` begins each device like this.
        if line.trim_start().starts_with("*-") {
            reader.close();
        }
        if line.contains("rocminfo") || line.trim_start().starts_with("Number of platforms") {
            reader.begin_agents();
        }
        let number = number_of(line);
        if number.is_some() {
            reader.close();
            reader.number = number;
        }
        for (place, name) in numbered(line).into_iter().enumerate() {
            reader.close();
            reader.number = u32::try_from(place).ok();
            reader.take("gpu", name);
        }
        for (key, value) in pairs(line) {
            if matches!(&*key, "name" | "marketing name") && is_processor(value) {
                reader.begin_agents();
            }
            let several = match field(&key) {
                Some(Field::Name) => products(value),
                _ => Vec::new(),
            };
            for (place, name) in several.iter().enumerate() {
                reader.close();
                reader.number = u32::try_from(place).ok();
                reader.take(&key, name);
            }
            if several.is_empty() {
                reader.take(&key, value);
            }
        }
    }
    reader.close();
    if text.contains('"') {
        reader.tool = "json";
        let mut objects: Vec<String> = Vec::new();
        for found in JSON.captures_iter(text) {
            if found.get(5).is_some() {
                objects.pop();
                continue;
            }
            let key = found.get(1).map_or("", |key| key.as_str());
            match found.get(4).map(|word| word.as_str()) {
                Some("{") => {
                    let is_card = key
                        .strip_prefix("card")
                        .is_some_and(|number| number.parse::<u32>().is_ok());
                    if is_card {
                        reader.close();
                    }
                    objects.push(key.to_ascii_lowercase());
                }
                Some(_) => {}
                None => {
                    let value = found
                        .get(2)
                        .or(found.get(3))
                        .map_or("", |value| value.as_str());
                    let key = key.to_lowercase();
                    let within = objects
                        .last()
                        .map_or(String::new(), |object| format!("{object}.{key}"));
                    let key = if field(&within).is_some() {
                        within
                    } else {
                        key
                    };
                    reader.take(&key, value);
                }
            }
        }
        reader.close();
    }
    reader.found
}

struct Reader<'a> {
    machine: &'a mut Machine,
    record: Option<Record>,
    found: Vec<GpuMention>,
    tool: &'static str,
    /// That of the heading above, for the next record.
    number: Option<u32>,
    /// GPUs so far in a list of agents as `rocminfo | grep Name` prints it: processors come first.
    agents: u32,
}

impl Reader<'_> {
    fn take(&mut self, key: &str, value: &str) {
        // Asked for the GPU, people name the processor that has it.
        let value = match value.split_once(" w/ ") {
            Some((_, graphics)) if key.starts_with("gpu") && is_amd_graphics(graphics) => graphics,
            _ => value,
        };
        let Some(field) = field(key) else {
            if let Some(record) = &mut self.record {
                record.age += 1;
            }
            return;
        };
        if key == "vendorid" && !value.contains("1002") {
            return;
        }
        let is_relevant = match field {
            Field::Name => {
                is_amd_graphics(value)
                    || is_other_vendor(value)
                    || is_unnamed_device(value)
                    || value.contains("(gfx")
                    || value.starts_with("gfx")
            }
            Field::DeviceId => device_id(key, value).is_some(),
            Field::Gfx => value.trim().parse::<Gfx>().is_ok(),
            Field::Pci => address(value).is_some(),
            _ => true,
        };
        if !is_relevant {
            return;
        }
        let ends = self.record.as_ref().is_some_and(|record| {
            record.age > LONGEST_RECORD
                || record.keys.iter().any(|(known, before)| {
                    known == key && (before != value || matches!(key, "name" | "marketing name"))
                })
                // What names a GPU ends one that was named and sized in the same form.
                || field == Field::Name && record.is_foreign
        });
        if ends {
            self.close();
        }
        // A size or an address alone begins nothing but a record of JSON, where it may come first.
        let number = self.number;
        if self.record.is_none() {
            self.number = None;
        }
        let record = self.record.get_or_insert_with(|| Record {
            mention: GpuMention::new("", number),
            keys: Vec::new(),
            age: 0,
            is_foreign: false,
        });
        record.keys.push((key.to_owned(), value.to_owned()));
        record.age += 1;
        let one = &mut record.mention;
        match field {
            Field::Name if is_other_vendor(value) => {
                record.is_foreign = true;
                listing::other(value, self.machine);
            }
            Field::Name => {
                let named = GpuMention::default().named(value);
                one.gpu.gfx = one.gpu.gfx.or(named.gpu.gfx);
                one.gpu.device_id = one.gpu.device_id.or(named.gpu.device_id);
                one.reported = one.reported.or(named.reported);
                let is_better = one
                    .gpu
                    .product
                    .as_deref()
                    .is_none_or(|name| crate::names::architecture_of(name).is_none());
                if is_better && named.gpu.product.is_some() {
                    one.gpu.product = named.gpu.product;
                }
                one.about = one.about.or(size_in(value));
            }
            Field::DeviceId => one.gpu.device_id = device_id(key, value).or(one.gpu.device_id),
            Field::Pci => one.gpu.pci = one.gpu.pci.or(address(value)),
            Field::Pool => one.gpu.usable_bytes = one.gpu.usable_bytes.or(memory(key, value)),
            Field::Memory => one.about = one.about.or(memory(key, value)),
            Field::Gfx => one.reported = value.trim().parse().ok().or(one.reported),
            Field::Units => {}
            Field::Asic => {
                one.reported = one
                    .reported
                    .or_else(|| value.split('/').next()?.to_ascii_lowercase().parse().ok());
                one.gpu.gfx = one.gpu.gfx.or_else(|| crate::names::architecture_of(value));
            }
            Field::Kind
                if value.contains("INTEGRATED") || matches!(value, "APU" | "Integrated") =>
            {
                one.gpu.class = Some(Class::Apu);
                one.gpu.class_from = "the tool says integrated";
            }
            Field::Kind => {}
        }
    }

    /// An empty line ends a record that has a name: what follows is of something else.
    fn pause(&mut self) {
        if self.record.as_ref().is_some_and(|record| {
            record.is_foreign
                || record.mention.gpu.product.is_some() && record.mention.gpu.device_id.is_some()
        }) {
            self.close();
        }
    }

    /// A list of agents begins, perhaps the same as before.
    fn begin_agents(&mut self) {
        self.close();
        self.agents = 0;
    }

    fn close(&mut self) {
        let Some(mut record) = self.record.take() else {
            return;
        };
        let one = &mut record.mention;
        let is_gpu = one.gpu.product.is_some()
            || one.gpu.device_id.is_some()
            || one.gpu.gfx.is_some()
            || one.reported.is_some();
        if record.is_foreign || !is_gpu {
            return;
        }
        one.tool = self.tool;
        let has = |key: &str| record.keys.iter().any(|(known, _)| known == key);
        let is_agent = one.reported.is_some() && has("name") || has("marketing name");
        if self.tool == "lines" && is_agent {
            one.tool = "agents";
            one.index = Some(self.agents);
            self.agents += 1;
        }
        if self.tool == "json" {
            // Objects of a list are different GPUs, however equal they are.
            one.index = u32::try_from(
                self.found
                    .iter()
                    .filter(|other| other.tool == "json")
                    .count(),
            )
            .ok();
        }
        self.found.push(record.mention);
    }
}

/// The meaning of a key in lower case.
fn field(key: &str) -> Option<Field> {
    let found = KEYS.iter().find(|(_, keys)| keys.contains(&key));
    found.map(|(field, _)| *field)
}

/// The number in `GPU0:`, `GPU 1: …`, `GPU: 1` or `Device-2: …`, with which a device begins.
fn number_of(line: &str) -> Option<u32> {
    let line = line.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '*' | '•'));
    let rest = line
        .strip_prefix("GPU")
        .or_else(|| line.strip_prefix("Device-"))?;
    let (number, rest) = rest.split_once(':')?;
    // `GPU: 1` of amd-smi is such a heading as well.
    let number = if number.is_empty() { rest } else { number };
    number.trim().trim_start_matches('#').parse().ok()
}

/// `GPU 0,1,2,3: AMD Instinct MI300X`, as SGLang lists equal cards.
fn numbered(line: &str) -> Vec<&str> {
    let numbers = line.trim_start().strip_prefix("GPU ");
    let Some((numbers, name)) = numbers.and_then(|rest| rest.split_once(": ")) else {
        return Vec::new();
    };
    let is_list = numbers.contains(',')
        && numbers
            .split(',')
            .all(|number| number.parse::<u8>().is_ok());
    let count = numbers.split(',').count().min(16);
    match is_list && is_amd_graphics(name) {
        true => vec![name; count],
        false => Vec::new(),
    }
}

/// The pairs of a line; `inxi` writes several into one.
fn pairs(line: &str) -> Vec<(String, &str)> {
    let line = line.trim_start_matches(|c: char| {
        c.is_whitespace() || matches!(c, '-' | '*' | '•' | '|' | '#')
    });
    let mut pairs = Vec::new();
    let Some((key, value)) = split(line) else {
        return pairs;
    };
    // `chip-ID: 1002:73df` and `bus-ID: 03:00.0` at the end of a name are separate pairs.
    for inner in ["chip-ID: ", "bus-ID: "] {
        if let Some((_, rest)) = value.split_once(inner) {
            let word = rest.split_whitespace().next().unwrap_or_default();
            pairs.push((inner.trim_end_matches(": ").to_lowercase(), word));
        }
    }
    pairs.insert(0, (key, value));
    pairs
}

/// Key and value of `key: value`, `key = value` or columns of spaces.
fn split(line: &str) -> Option<(String, &str)> {
    let colon = [": ", ":\t"]
        .iter()
        .filter_map(|mark| line.find(mark))
        .min()
        .map(|at| (at, 2));
    let ends = line.strip_suffix(':').map(|_| (line.len() - 1, 1));
    let equals = line
        .find(" = ")
        .or_else(|| line.find("\t= "))
        .map(|at| (at, 3));
    let columns = line
        .find("   ")
        .map(|at| (at, 3))
        .or_else(|| line.find('\t').map(|at| (at, 1)));
    // A row of a table: `| GPU | Radeon 780M |`.
    let row = line
        .ends_with('|')
        .then(|| line.find(" | ").map(|at| (at, 3)))
        .flatten();
    // Columns only if nothing else separates key and value: some keys have ASCII art to their left.
    let first = [colon, equals].into_iter().flatten().min();
    let (at, length) = row.or(first).or(columns).or(ends)?;
    let key = line[..at].trim().trim_end_matches(':');
    // `GPU 1`, `GPU0` and `Device-1` are keys of the same kind; GPUs are separated by the repeated key, not by these
    // numbers. fastfetch's keys may have ASCII art to their left.
    let key = key.rsplit("  ").next().unwrap_or(key).trim();
    // `CPU / GPU`, `TensorFlow version / GPU model and memory`: the last of several.
    let key = match key.rsplit_once("/ ") {
        Some((_, last)) if last.starts_with("GPU") => last,
        _ => key,
    };
    let key = key
        .trim_end_matches(|c: char| c.is_ascii_digit() || c == '#')
        .trim_end();
    // hashcat fills up with dots: `Name...........: gfx900`.
    let key = match key.trim_end_matches('.') {
        "Name" if key.ends_with("..") => "Device Name",
        key => key,
    };
    let key = key.trim_matches(['"', '`', '\'', '*']).to_lowercase();
    let value = line
        .get(at + length..)?
        .trim()
        .trim_start_matches([':', '='])
        .trim_end_matches('|')
        .trim();
    let value = value.strip_prefix("GPU: ").unwrap_or(value);
    (!key.is_empty() && key.len() <= 40).then_some((key, value))
}

/// A device id in any form: `0x73df`, `1002:73df`, `… (0x6939)`, or decimal, as by
/// `amdgpu_top`.
fn device_id(key: &str, value: &str) -> Option<DeviceId> {
    let hex = |digits: &str| DeviceId::from_hex(digits.get(..4)?);
    let value = value.trim().trim_matches(['"', '\'']);
    let id = if let Some((_, rest)) = value.split_once("0x") {
        hex(rest)
    } else if let Some((_, rest)) = value.split_once("1002:") {
        hex(rest)
    } else if key == "product.id" {
        hex(value)
    } else {
        value.parse().ok().map(DeviceId)
    };
    id.filter(|id| id.gfx().is_some())
}

fn address(value: &str) -> Option<PciAddress> {
    value
        .split([' ', '@', ','])
        .rev()
        .map(|word| word.trim_matches(['"', '\'']))
        .filter(|word| word.contains(':') && word.contains('.'))
        .find_map(PciAddress::parse)
}

/// `(15.92 GiB)` after a name.
fn size_in(value: &str) -> Option<Bytes> {
    value
        .split('(')
        .skip(1)
        .filter_map(|part| part.split(')').next())
        .filter(|part| part.ends_with("iB") || part.ends_with("GB") || part.ends_with("MB"))
        .find_map(Bytes::parse_tool_output)
}

fn memory(key: &str, value: &str) -> Option<Bytes> {
    if key == "vram_gb" {
        return Bytes::parse_tool_output(&format!("{value} GiB"));
    }
    let number = value.split(['(', ',']).next().unwrap_or(value).trim();
    Bytes::parse_tool_output(number).filter(|&bytes| bytes >= Bytes::mib(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<GpuMention> {
        mentions(text, &mut Machine::default())
    }

    #[test]
    fn keys_and_values_are_split_however_they_are_written() {
        for (line, key, value) in [
            ("GPU 1: AMD Radeon 780M", "gpu", "AMD Radeon 780M"),
            (
                "deviceName         = AMD Radeon RX 6600 XT",
                "devicename",
                "AMD Radeon RX 6600 XT",
            ),
            (
                "Device Name                gfx1032",
                "device name",
                "gfx1032",
            ),
            ("  Device-1: AMD Navi 22", "device-", "AMD Navi 22"),
            (
                "TensorFlow version / GPU model and memory: Radeon VII 16Gb",
                "gpu model and memory",
                "Radeon VII 16Gb",
            ),
        ] {
            assert_eq!(split(line.trim()), Some((key.to_owned(), value)), "{line}");
        }
    }

    #[test]
    fn a_key_that_comes_again_begins_the_next_gpu() {
        let text = "Card name: AMD Radeon RX 7600\nDedicated Memory: 8176 MB\nCard name: AMD Radeon 780M\n";
        assert_eq!(found(text).len(), 2);
    }

    #[test]
    fn json_is_read_where_it_is_cut() {
        let text = r#"e": "1", "dedicated": {"total": 8589934592}, "name": "Radeon RX 7600", "nam"#;
        let all = found(text);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].about, Some(Bytes::gib(8)));
    }

    #[test]
    fn equal_cards_with_numbers_are_two() {
        let text = "GPU0:\n  deviceName = AMD Radeon RX 7900 XTX\nGPU1:\n  deviceName = AMD Radeon RX 7900 XTX\n";
        let gpus = super::super::gpu_mention::merged(found(text), &mut Machine::default());
        assert_eq!(gpus.len(), 2);
    }

    #[test]
    fn equal_agents_are_as_many_gpus_and_a_list_that_comes_again_is_the_same() {
        let agent = "  Name: gfx906\n  Marketing Name: Device 66a1\n";
        let list =
            format!("  Name: AMD EPYC 7702\n  Marketing Name: AMD EPYC 7702\n{agent}{agent}");
        let count = |text: &str| {
            super::super::gpu_mention::merged(found(text), &mut Machine::default()).len()
        };
        assert_eq!(count(&list), 2);
        assert_eq!(count(&format!("{list}{list}")), 2);
    }

    #[test]
    fn a_processor_is_no_gpu() {
        assert!(found("name: AMD Ryzen 7 7840U w/ Radeon 780M Graphics").is_empty());
        assert!(found("Device: AMD Ryzen 9 5950X 16-Core Processor").is_empty());
    }
}
