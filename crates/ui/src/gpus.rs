//! The current state of AMD GPUs from sysfs, and what each run uses of them from fdinfo and KFD.
//!
//! What the driver does not report is unset, never zero: on APUs some sensors and often the utilisation are
//! missing. A sleeping GPU is not read any further, since reading some files would wake it.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use crate::runs::RunName;

/// The most that is read of a file in sysfs or fdinfo, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 10;
/// The most open files of a process that are examined.
const MAX_OPEN_FILES: usize = 4096;

/// The current state of a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Gpu {
    /// The kernel's name for it, as `card0`.
    pub card: String,
    /// Its PCI address, as `0000:03:00.0`.
    pub slot: Option<String>,
    /// The product name; few boards report one.
    pub name: Option<String>,
    /// Whether it is suspended; all fields below are then unset.
    pub asleep: bool,
    /// Its own memory (VRAM); on an APU, the carve-out.
    pub vram: Memory,
    /// Host memory that it may use (GTT).
    pub gtt: Memory,
    /// Utilisation in percent.
    pub busy: Option<u64>,
    /// The shader clock, in hertz.
    pub clock: Option<u64>,
    /// Power draw in watts; on an APU, including the processor.
    pub watts: Option<f64>,
    /// Temperature at the edge of the chip, in degrees Celsius.
    pub temperature: Option<f64>,
    /// Temperature at the hottest point, in degrees Celsius.
    pub hottest: Option<f64>,
    /// The runs that use it.
    pub runs: Vec<Share>,
}

/// A kind of memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "GpuMemory")]
pub struct Memory {
    /// In use, by all processes.
    pub used: Option<u64>,
    /// Total.
    pub total: Option<u64>,
}

/// What the process of a run uses of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "GpuShare")]
pub struct Share {
    /// The run.
    pub run: RunName,
    /// Its process.
    pub pid: u32,
    /// VRAM in bytes.
    pub vram: Option<u64>,
    /// Host memory that the GPU uses (GTT), in bytes.
    pub gtt: Option<u64>,
}

/// AMD's GPUs below `root` (`/` outside tests), and what these runs use of them.
pub fn read(root: &Path, runs: &[(RunName, u32)]) -> Vec<Gpu> {
    let drm = root.join("sys/class/drm");
    let mut cards: Vec<(u32, String)> = names(&drm)
        .filter_map(|name| Some((name.strip_prefix("card")?.parse().ok()?, name)))
        .collect();
    cards.sort();
    let gpus = cards.into_iter().filter_map(|(_, card)| {
        let device = drm.join(&card).join("device");
        (text(&device.join("vendor"))? == "0x1002").then(|| gpu(root, card, &device, runs))
    });
    gpus.collect()
}

fn gpu(root: &Path, card: String, device: &Path, runs: &[(RunName, u32)]) -> Gpu {
    let slot = text(&device.join("uevent")).and_then(|text| {
        let mut lines = text.lines();
        lines.find_map(|line| Some(line.strip_prefix("PCI_SLOT_NAME=")?.to_lowercase()))
    });
    let asleep = text(&device.join("power/runtime_status")).as_deref() == Some("suspended");
    let awake = |file: &str| (!asleep).then(|| number(&device.join(file))).flatten();
    let memory = |kind: &str| Memory {
        used: awake(&format!("mem_info_{kind}_used")),
        total: awake(&format!("mem_info_{kind}_total")),
    };
    let sensors = Sensors::of(device, asleep);
    let share = |(run, pid): &(RunName, u32)| {
        let slot = slot.as_deref()?;
        let mut share = fdinfo(root, *pid, slot);
        if let Some(kfd) = kfd_vram(root, *pid, slot) {
            // Compute memory is allocated through KFD; newer kernels include it in fdinfo.
            let (vram, _) = share.get_or_insert_default();
            *vram = Some(vram.unwrap_or(0).max(kfd));
        }
        let (vram, gtt) = share?;
        let (run, pid) = (run.clone(), *pid);
        Some(Share {
            run,
            pid,
            vram,
            gtt,
        })
    };
    Gpu {
        name: text(&device.join("product_name")).filter(|name| !name.is_empty()),
        asleep,
        vram: memory("vram"),
        gtt: memory("gtt"),
        busy: awake("gpu_busy_percent").filter(|percent| *percent <= 100),
        clock: sensors.labelled("freq", "sclk"),
        watts: sensors
            .number("power1_average")
            .or_else(|| sensors.number("power1_input"))
            .map(|microwatts| microwatts as f64 / 1e6),
        temperature: sensors.labelled("temp", "edge").map(degrees),
        hottest: sensors.labelled("temp", "junction").map(degrees),
        runs: runs.iter().filter_map(share).collect(),
        card,
        slot,
    }
}

fn degrees(thousandths: u64) -> f64 {
    thousandths as f64 / 1000.0
}

/// The folder of the driver's sensors; `None` if there is none or the GPU is asleep.
struct Sensors(Option<std::path::PathBuf>);

impl Sensors {
    fn of(device: &Path, asleep: bool) -> Self {
        let all = device.join("hwmon");
        let first = names(&all).find(|name| name.starts_with("hwmon"));
        Self(first.filter(|_| !asleep).map(|name| all.join(name)))
    }

    fn number(&self, file: &str) -> Option<u64> {
        number(&self.0.as_ref()?.join(file))
    }

    /// The value of the sensor of this kind that has this label.
    fn labelled(&self, kind: &str, label: &str) -> Option<u64> {
        let folder = self.0.as_ref()?;
        let has_label = |index: &u32| {
            text(&folder.join(format!("{kind}{index}_label"))).as_deref() == Some(label)
        };
        let index = (1..=4).find(has_label)?;
        self.number(&format!("{kind}{index}_input"))
    }
}

/// VRAM and GTT that a process uses on a GPU, from the fdinfo of its open files (drm-usage-stats); `None` if it
/// has no file of the GPU open.
fn fdinfo(root: &Path, pid: u32, slot: &str) -> Option<(Option<u64>, Option<u64>)> {
    let folder = root.join(format!("proc/{pid}/fdinfo"));
    let mut clients = HashSet::new();
    let mut found: Option<(Option<u64>, Option<u64>)> = None;
    for name in names(&folder).take(MAX_OPEN_FILES) {
        let Some(text) = text(&folder.join(name)) else {
            continue;
        };
        let value = |key: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            value.map(str::trim)
        };
        let is_its = value("drm-driver") == Some("amdgpu")
            && value("drm-pdev").is_some_and(|its| its.eq_ignore_ascii_case(slot));
        // Duplicated file descriptors report the same memory again.
        if !is_its || !clients.insert(value("drm-client-id").map(str::to_owned)) {
            continue;
        }
        let memory = |kind: &str| {
            let resident = value(&format!("drm-resident-{kind}"));
            bytes(resident.or_else(|| value(&format!("drm-memory-{kind}")))?)
        };
        let (vram, gtt) = found.get_or_insert_default();
        for (sum, kind) in [(vram, "vram"), (gtt, "gtt")] {
            *sum = match (*sum, memory(kind)) {
                (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
                (sum, more) => sum.or(more),
            };
        }
    }
    found
}

/// VRAM that a process uses on a GPU, as counted by KFD.
fn kfd_vram(root: &Path, pid: u32, slot: &str) -> Option<u64> {
    let kfd = root.join("sys/class/kfd/kfd");
    let nodes = kfd.join("topology/nodes");
    let id = names(&nodes).find_map(|node| {
        let node = nodes.join(node);
        let properties = text(&node.join("properties"))?;
        let property = |key: &str| -> Option<u64> {
            let mut lines = properties.lines();
            lines.find_map(|line| {
                line.strip_prefix(key)?
                    .strip_prefix(' ')?
                    .trim()
                    .parse()
                    .ok()
            })
        };
        let at = property("location_id")?;
        let (bus, device, function) = (at >> 8 & 0xff, at >> 3 & 0x1f, at & 7);
        let domain = property("domain").unwrap_or(0);
        let its = format!("{domain:04x}:{bus:02x}:{device:02x}.{function}");
        (its == slot).then(|| text(&node.join("gpu_id")))?
    })?;
    number(&kfd.join(format!("proc/{pid}/vram_{id}")))
}

/// `12 KiB`, as in fdinfo; bytes if there is no unit.
fn bytes(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let unit = match words.next() {
        None => 1,
        Some("KiB") => 1 << 10,
        Some("MiB") => 1 << 20,
        Some("GiB") => 1 << 30,
        Some(_) => return None,
    };
    number.checked_mul(unit)
}

/// The names in a folder, sorted; empty if it cannot be read.
fn names(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names.into_iter()
}

fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A root folder with these files.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        root
    }

    const CARD: [(&str, &str); 17] = [
        ("sys/class/drm/card1/device/vendor", "0x1002"),
        (
            "sys/class/drm/card1/device/uevent",
            "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0",
        ),
        (
            "sys/class/drm/card1/device/mem_info_vram_used",
            "4294967296",
        ),
        (
            "sys/class/drm/card1/device/mem_info_vram_total",
            "17163091968",
        ),
        ("sys/class/drm/card1/device/mem_info_gtt_used", "0"),
        (
            "sys/class/drm/card1/device/mem_info_gtt_total",
            "33554432000",
        ),
        ("sys/class/drm/card1/device/gpu_busy_percent", "98"),
        (
            "sys/class/drm/card1/device/hwmon/hwmon4/freq1_label",
            "sclk",
        ),
        (
            "sys/class/drm/card1/device/hwmon/hwmon4/freq1_input",
            "2450000000",
        ),
        (
            "sys/class/drm/card1/device/hwmon/hwmon4/power1_average",
            "215000000",
        ),
        (
            "sys/class/drm/card1/device/hwmon/hwmon4/temp1_label",
            "edge",
        ),
        (
            "sys/class/drm/card1/device/hwmon/hwmon4/temp1_input",
            "61000",
        ),
        (
            "sys/class/drm/card1/device/hwmon/hwmon4/temp2_label",
            "junction",
        ),
        (
            "sys/class/drm/card1/device/hwmon/hwmon4/temp2_input",
            "83500",
        ),
        // A connector of the card and another vendor's card are ignored.
        ("sys/class/drm/card1-DP-1/status", "connected"),
        ("sys/class/drm/card0/device/vendor", "0x8086"),
        ("sys/class/drm/version", "drm 1.1.0"),
    ];

    #[test]
    fn all_values_of_a_card_are_read() {
        let gpus = read(tree(&CARD).path(), &[]);
        let wanted = Gpu {
            card: "card1".into(),
            slot: Some("0000:03:00.0".into()),
            name: None,
            asleep: false,
            vram: Memory {
                used: Some(4 << 30),
                total: Some(17_163_091_968),
            },
            gtt: Memory {
                used: Some(0),
                total: Some(33_554_432_000),
            },
            busy: Some(98),
            clock: Some(2_450_000_000),
            watts: Some(215.0),
            temperature: Some(61.0),
            hottest: Some(83.5),
            runs: Vec::new(),
        };
        assert_eq!(gpus, [wanted]);
    }

    #[test]
    fn what_is_not_reported_is_unset_and_not_zero() {
        let apu = tree(&[
            ("sys/class/drm/card0/device/vendor", "0x1002"),
            ("sys/class/drm/card0/device/mem_info_vram_used", "nonsense"),
            ("sys/class/drm/card0/device/mem_info_gtt_used", "1024"),
            ("sys/class/drm/card0/device/gpu_busy_percent", "65535"),
            (
                "sys/class/drm/card0/device/hwmon/hwmon0/power1_input",
                "23000000",
            ),
            (
                "sys/class/drm/card0/device/hwmon/hwmon0/temp1_input",
                "50000",
            ),
        ]);
        let gpu = read(apu.path(), &[]).remove(0);
        assert_eq!(
            (gpu.vram, gpu.busy, gpu.clock),
            (Memory::default(), None, None)
        );
        assert_eq!(
            gpu.gtt,
            Memory {
                used: Some(1024),
                total: None
            }
        );
        // A temperature without a label could be any sensor's.
        assert_eq!(
            (gpu.watts, gpu.temperature, gpu.hottest),
            (Some(23.0), None, None)
        );
        assert!(read(tree(&[]).path(), &[]).is_empty());
    }

    #[test]
    fn a_sleeping_gpu_is_not_read() {
        let mut files = CARD.to_vec();
        files.push((
            "sys/class/drm/card1/device/power/runtime_status",
            "suspended",
        ));
        let gpu = read(tree(&files).path(), &[]).remove(0);
        assert!(gpu.asleep);
        assert_eq!((gpu.vram, gpu.gtt), <_>::default());
        assert_eq!(
            (gpu.busy, gpu.clock, gpu.watts, gpu.temperature),
            (None, None, None, None)
        );
    }

    #[test]
    fn a_run_s_memory_comes_from_fdinfo_and_kfd() {
        let file = |client: u32, vram: &str| {
            format!(
                "pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t{client}\ndrm-pdev:\t0000:03:00.0\n\
                 drm-memory-vram:\t{vram}\ndrm-memory-gtt: \t2 MiB"
            )
        };
        let (one, two) = (file(7, "100 KiB"), file(8, "1 MiB"));
        let other = one.replace("03:00.0", "c4:00.0");
        let mut files = CARD.to_vec();
        files.extend([
            ("proc/40/fdinfo/3", one.as_str()),
            ("proc/40/fdinfo/4", one.as_str()),
            ("proc/40/fdinfo/5", two.as_str()),
            ("proc/40/fdinfo/6", other.as_str()),
            ("proc/40/fdinfo/7", "pos:\t0"),
            ("proc/41/fdinfo/3", "pos:\t0"),
            ("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "4711"),
            (
                "sys/class/kfd/kfd/topology/nodes/1/properties",
                "simd_count 64\nlocation_id 768\ndomain 0",
            ),
            ("sys/class/kfd/kfd/proc/42/vram_4711", "3221225472"),
        ]);
        let root = tree(&files);
        let runs: Vec<(RunName, u32)> = [("a", 40), ("b", 41), ("c", 42)]
            .map(|(name, pid)| (RunName::parse(name).unwrap(), pid))
            .to_vec();
        let shares: Vec<_> = read(root.path(), &runs).remove(0).runs;
        let shares: Vec<_> = shares
            .iter()
            .map(|share| (share.pid, share.vram, share.gtt))
            .collect();
        assert_eq!(
            shares,
            [
                (40, Some((100 << 10) + (1 << 20)), Some(4 << 20)),
                (42, Some(3 << 30), None)
            ]
        );
    }
}
