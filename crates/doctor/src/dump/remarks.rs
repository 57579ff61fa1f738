//! Facts about a posted text and its program: that it is truncated, that ZLUDA or
//! DirectML replaces ROCm, which packages and which ROCm are installed.

use super::{code_lists, fragments, startup};
use crate::pattern::patterns;
use crate::{failure, names, signs};
use platform::Bytes;
use platform::machine::{Class, Gpu, InsteadOfRocm, Kernel, Machine, System};
use platform::python::{self, is_relevant_package};
use platform::snapshot::Snapshot;

patterns! {
    /// `rocm-core 7.0.0.70000`, `ROCm version: 7.1`, `ROCm: 7.2.1`, `/opt/rocm-6.4.1`.
    ROCM = r"(?i)(?:\brocm-core(?:@|\s+|-)|/opt/rocm-|\brocm(?:[ _]version)?\s*[:=]\s*v?|(?:^|[^\w-])ROCm ?v?)(\d+\.\d+(?:\.\d+)?)\b";
    OF_TORCH = r"(?i)torch(?:[ -]rocm| \(rocm\))? ?v?$";
    /// The kernel that somebody names.
    KERNEL = r"(?i)\bkernel(?: version)?:? (?:is )?v?(\d{1,2}\.\d{1,2}(?:\.\d{1,3})?)\b";
    /// What is installed, or the branch of a package.
    INSTALLED = r"/opt/rocm-([0-9]+\.[0-9]+\.[0-9]+)\b|\brocm-core(?:[0-9][^ ]*)?[ @-]+([0-9]+\.[0-9]+\.[0-9]+)\b|^rocm-([0-9]+\.[0-9]+\.[0-9]+)$|\brocm +rocm-([0-9]+\.[0-9]+\.[0-9]+)\b";
    TORCH = r#"(?i)(?:\bpytorch version\s*[:=]|"torch(?:_version)?"\s*:|torch\.__version__\W+|\bTorch(?: version)?[:=]?) ?(?:torch==)?"?'?(\d+\.\d+\.\d+[\w.+-]*)"#;
    /// What `print(torch.__version__, torch.cuda.is_available())` prints.
    ANSWER = r"^\W*(\d+\.\d+\.\d+\S*\+(?:cpu|cu\d|rocm)\S*) (?:True|False)\s*$";
    PACKAGE = r"^(?:\[pip3?\] |- )?([A-Za-z][0-9A-Za-z_.-]{2,50})(?:==|[ \t]{2,}| @ )([0-9][0-9A-Za-z_.+]*)";
    WHEEL = r"\b(?:Downloading|Collecting|Installing|Using cached|Successfully installed)\b.*\b(torch)[-=]=?(\d[\w.+]*?)-cp\d+-\S*?(manylinux|win)";
    NO_GPU = r"(?i)\bno (?:(?:compatible|supported|usable|suitable|AMD|discrete|integrated) )+(?:GPUs?|graphics)\b.{0,8}(?:found|detected|discovered|available)";
    /// The answer is on the line of the question, or on one of the next two.
    AVAILABLE = r"(?im)(?:is_available\(\)[^\n]{0,40}?|\b(?:cuda|rocm|hip|gpu)[ _.]?(?:is[ _])?available)[\s:=>?)'\x22-]{1,12}(?:is |returns |(?:print|>>>|#)[^\n]{0,80}\n\W*|\d\S{0,40} )?\b(true|false)\b|^\W*\d+\.\d+\.\d+\S*\+rocm\S* (true|false)\s*$";
    PROCESSOR = r"(?i)\bAMD (?:Ryzen|Eng Sample|Custom APU)\b[^\n|,;:\x22]{0,70}|\bRyzen AI MAX\+? [^\n|,;:\x22]{0,40}|\b(?:Ryzen [3579] )?[579][5-9]\d{2}X(?:3D)?\b";
    WORKS_THERE = r"(?i)\bdirectml\b.{0,60}\b(?:fine|works|worked|runs|ran)\b|\b(?:works?|worked|runs|ran|fine) (?:well |fine )?(?:with|on|in|under|using) directml\b";
    OVERRIDE = r"\b(HSA_OVERRIDE_GFX_VERSION(?:_\d+)?|(?:HIP|ROCR|CUDA)_VISIBLE_DEVICES)[=:]\s?[\x22']?([\w.,-]+)";
}

fn names_directml(lower: &str) -> bool {
    lower.contains("directml") || lower.contains("privateuseone")
}

/// Whether a line names DirectML, and not as the other program with which it works.
fn runs_on_directml(line: &str) -> bool {
    names_directml(&line.to_ascii_lowercase())
        && !(failure::is_prose(line) && WORKS_THERE.is_match(line))
}

/// Fills in facts from the whole text, once the GPUs have been read.
pub(super) fn read(text: &str, machine: &mut Machine) {
    let lower = text.to_ascii_lowercase();
    let posted = &mut machine.posted;
    let is_elsewhere = machine.system == System::Wsl;
    if lower.contains("zluda") && !is_elsewhere && startup::runs_on_zluda(text) {
        posted.instead_of_rocm = Some(InsteadOfRocm::Zluda);
    } else if names_directml(&lower) && text.lines().any(runs_on_directml) {
        posted.instead_of_rocm = Some(InsteadOfRocm::DirectMl);
        // It reports the same number to programs for every card.
        for gpu in &mut machine.gpus {
            (gpu.usable_bytes, gpu.vram_bytes) = (None, None);
        }
    }
    posted.has_npu = text.lines().any(|line| {
        let line = line.trim();
        line.starts_with("Name:") && (line.ends_with("aie2") || line.ends_with("aie2p"))
            || line.starts_with("Uuid:") && line.contains("AIE-")
    }) || signs::NPU.iter().any(|sign| text.contains(sign));
    posted.on_cpu = startup::on_cpu(text);
    posted.framework = startup::framework(&lower);
    posted.code_list = code_lists::compiled(text);
    if posted.cpu_only.is_none() && NO_GPU.is_match(text) {
        posted.cpu_only = Some("The program".to_owned());
    }
    posted.wants_rocm = [
        "pytorch.org/whl/rocm",
        "pytorch.org/whl/nightly/rocm",
        "repo.amd.com/rocm",
        "rocm.nightlies.amd.com",
    ]
    .iter()
    .any(|index| lower.contains(index));
    posted.has_failed = failure::is_printed(text);
    // LM Studio numbers its ROCm runtimes itself: 1.104, 2.13.
    let has_runtimes = lower.contains("lm studio") || lower.contains("lmstudio");
    posted.rocm = text
        .lines()
        .filter_map(|line| {
            let version = ROCM.captures(line)?.get(1)?;
            // `PyTorch ROCm 2.9.1+rocm7.2` is a version of torch, and so is `PyTorch ROCm 2.9.1`; `PyTorch ROCm 6.4` is none.
            let is_torch = line[version.end()..].starts_with('+')
                || version.as_str() < "3" && OF_TORCH.is_match(&line[..version.start()]);
            let is_runtime = has_runtimes
                && ["1.", "2."]
                    .iter()
                    .any(|major| version.as_str().starts_with(major));
            (!is_torch && !is_runtime).then(|| version.as_str().to_owned())
        })
        .next();
    posted.rocm_versions = installed_versions(text);
    if machine.kernel.is_none() {
        let named = KERNEL.captures(text);
        machine.kernel = named.and_then(|named| Kernel::parse(&named[1]));
    }
    let has_no_gpu = machine.gpus.is_empty() && machine.unseen.is_empty();
    posted.is_cut =
        has_no_gpu && (!posted.has_failed && is_cut(text) || fragments::ends_within_an_agent(text));
    let mut answers = AVAILABLE
        .captures_iter(text)
        .filter_map(|found| found.get(1).or(found.get(2)))
        .map(|answer| answer.as_str().eq_ignore_ascii_case("true"))
        .peekable();
    let is_answered = answers.peek().is_some();
    let sees_one = answers.any(|sees| sees);
    posted.sees_gpu = sees_one || text.contains("RocmDevice(id=");
    posted.torch_sees_none = !sees_one && (is_answered || startup::torch_sees_none(text));
    posted.lacks_group = lacking_group(text);
    posted.processor = processor(text);
    posted.is_nameless = !machine.gpus.is_empty()
        && machine.gpus.iter().all(|gpu| {
            let name = gpu.product.as_deref().unwrap_or_default();
            names::architecture_of(name).is_none()
        });
    name_graphics_of_processor(text, machine);
    variables(text, machine);
    packages(text, machine);
    if text.contains("Linux-") && lower.contains("-microsoft-") {
        machine.system = System::Wsl;
    }
}

/// The versions of ROCm that folders and packages are of; of those of one release, the first.
fn installed_versions(text: &str) -> Vec<String> {
    let release = |version: &str| {
        let end = version.rfind('.').unwrap_or(version.len());
        version[..end].to_owned()
    };
    let mut versions: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| line.contains("rocm")) {
        for found in INSTALLED.captures_iter(line).take(8) {
            let version = found.iter().skip(1).flatten().next();
            let Some(version) = version.map(|version| version.as_str()) else {
                continue;
            };
            let is_new = !versions
                .iter()
                .any(|known| release(known) == release(version));
            if is_new && versions.len() < 4 {
                versions.push(version.to_owned());
            }
        }
    }
    versions
}

/// The output of a tool without its GPU and its end.
fn is_cut(text: &str) -> bool {
    let is_report = text.contains("Collecting environment information")
        || text.contains("ROCM used to build PyTorch");
    let is_whole_report = ["GPU models and configuration", "Is CUDA available: False"]
        .iter()
        .any(|line| text.contains(line));
    if text.contains("*** Done ***") || is_whole_report {
        return false;
    }
    is_report
        || fragments::tool_of(text).is_some()
        || has_bridges_only(text)
        || text.lines().any(|line| {
            let rest = line.trim_start().strip_prefix("GPU[");
            rest.and_then(|rest| rest.split_once(']'))
                .is_some_and(|(_, rest)| rest.trim_start().starts_with(':'))
        })
}

/// The name of the processor, if it has integrated graphics.
pub(super) fn processor(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| PROCESSOR.find(line))
        .map(|found| {
            let name = found.as_str().trim();
            // `7800X3D` alone.
            let is_model = name.starts_with(|c: char| c.is_ascii_digit());
            if is_model {
                format!("Ryzen 7 {name}")
            } else {
                name.to_owned()
            }
        })
        .find(|name| names::graphics_of_processor(name).is_some())
}

/// The group of `/dev/kfd` in an `ls -l`, if an `id` or `groups` in the same text does not have it.
fn lacking_group(text: &str) -> Option<String> {
    let owner = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let mode = words.find(|word| word.starts_with("crw"))?;
        let is_kfd = line.trim_end().ends_with("/dev/kfd") || line.trim_end().ends_with(" kfd");
        let group = words.nth(2)?;
        // Everybody has access, or the group is unknown.
        let is_limited = is_kfd && mode.get(7..9) == Some("--") && mode.get(4..6) == Some("rw");
        is_limited.then_some(group)
    })?;
    let mut lines = text.lines().peekable();
    let mut own: Option<Vec<&str>> = None;
    while let Some(line) = lines.next() {
        let line = line.trim();
        if line.starts_with("uid=0(") {
            return None;
        }
        let list = if line.starts_with("uid=") {
            line.split_once("groups=").map(|(_, list)| list)
        } else if line.ends_with("$ groups") {
            lines.peek().map(|next| next.trim())
        } else {
            None
        };
        if let Some(list) = list {
            own = Some(list.split([' ', ',', '(', ')']).collect());
        }
    }
    let is_member = own?.contains(&owner);
    (!is_member && owner != "root").then(|| owner.to_owned())
}

/// Graphics that the driver calls as those of many processors are those of this one.
fn name_graphics_of_processor(text: &str, machine: &mut Machine) {
    let is_beside_another = machine.gpus.iter().any(|gpu| gpu.gfx.is_some());
    let processor = machine.posted.processor.as_deref();
    let gfx = processor.and_then(names::graphics_of_processor);
    let is_nameless = |gpu: &&Gpu| {
        let name = gpu.product.as_deref().map(str::trim);
        gpu.gfx.is_none()
            && name.is_some_and(|name| {
                let rest = name.strip_prefix("AMD Radeon Graphics");
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(", compute capability"))
            })
    };
    // A card may be called so too, if the driver does not know it; the graphics of a desktop processor are
    // seldom listed.
    let is_only_nameless = is_beside_another
        && machine.gpus.iter().filter(is_nameless).count() == 1
        && gfx.is_some_and(|gfx| gfx != names::DISPLAY_ONLY || text.contains("capability 10.3"));
    for gpu in &mut machine.gpus {
        let name = gpu.product.as_deref().unwrap_or_default();
        if gpu.gfx.is_some() {
            continue;
        }
        if names::is_graphics_of_some_processor(name) {
            gpu.gfx = gfx;
            if is_beside_another && gpu.class.is_none() {
                gpu.class = Some(Class::Apu);
                gpu.class_from = "named as graphics of a processor";
            }
        } else if is_only_nameless && is_nameless(&&*gpu) {
            gpu.gfx = gfx;
            // What a program calls its memory need not be the carve-out.
            if gpu.gtt_bytes.is_none() {
                gpu.vram_bytes = None;
            }
        }
    }
    // One tool gives its name alone, and another its architecture.
    let is_of_processor = |gpu: &Gpu| gfx.is_some() && gpu.gfx == gfx;
    let is_bare =
        |gpu: &Gpu| is_of_processor(gpu) && gpu.product.is_none() && gpu.device_id.is_none();
    let is_named = |gpu: &Gpu| is_of_processor(gpu) && gpu.product.is_some() && gpu.pci.is_none();
    if machine.gpus.iter().any(is_named) {
        machine.gpus.retain(|gpu| !is_bare(gpu));
        for (index, gpu) in machine.gpus.iter_mut().enumerate() {
            gpu.index = index;
        }
    }
}

/// The bus without its display controllers: the beginning of an `lspci`.
fn has_bridges_only(text: &str) -> bool {
    let classes = ["Host bridge", "PCI bridge", "IOMMU"];
    // The second form is that of FreeBSD's `pciconf`.
    let is_bridge = |line: &str| {
        line.contains("Advanced Micro Devices") && classes.iter().any(|class| line.contains(class))
            || line.trim() == "class      = bridge"
    };
    let is_display = |line: &str| {
        line.trim() == "class      = display"
            || line.contains("VGA compatible")
            || line.contains("Display controller")
            || line.contains("3D controller")
    };
    text.lines().filter(|line| is_bridge(line)).count() > 1 && !text.lines().any(is_display)
}

/// Assignments within commands and logs. A comment sets nothing.
fn variables(text: &str, machine: &mut Machine) {
    for line in text.lines() {
        let start = line.trim_start().to_ascii_lowercase();
        if ["#", "rem ", "::", "//", "unset "]
            .iter()
            .any(|mark| start.starts_with(mark))
        {
            continue;
        }
        for found in OVERRIDE.captures_iter(line).take(8) {
            // The names of a list without values follow each other: `A: B:`.
            let value = found[2].trim_end_matches(['.', ',']);
            let is_value = value.starts_with(|c: char| c.is_ascii_digit() || c == '-')
                || value.starts_with("GPU-");
            if is_value {
                machine
                    .variables
                    .entry(found[1].to_owned())
                    .or_insert_with(|| value.to_owned());
            }
        }
    }
}

/// The torch of a log and the packages of a list, where no report has told them.
fn packages(text: &str, machine: &mut Machine) {
    if machine.python.is_some() {
        return;
    }
    let mut packages: Vec<(String, String)> = Vec::new();
    let mut is_cuda = false;
    for line in text.lines() {
        let line = line.trim_start();
        let quoted = line.trim().trim_matches(['\'', '"']);
        if quoted.len() + 2 == line.trim().len()
            && ["+rocm", "+cu", "+cpu"]
                .iter()
                .any(|build| quoted.contains(build))
            && quoted.starts_with(|c: char| c.is_ascii_digit())
        {
            packages.push(("torch".to_owned(), quoted.to_owned()));
        } else if let Some(found) = TORCH.captures(line).or_else(|| ANSWER.captures(line)) {
            packages.push((
                "torch".to_owned(),
                found[1].trim_end_matches('.').to_owned(),
            ));
        } else if let Some(found) = WHEEL.captures(line) {
            packages.push(("torch".to_owned(), found[2].to_owned()));
            // PyPI's wheels have no local part; those for Linux are built for CUDA.
            is_cuda |= !found[2].contains('+') && &found[3] == "manylinux";
        } else if let Some(found) = PACKAGE.captures(line) {
            let name = found[1].to_ascii_lowercase().replace(['_', '.'], "-");
            is_cuda |= name.starts_with("nvidia-cuda-") || name.starts_with("nvidia-cudnn-");
            if is_relevant_package(&name) {
                packages.push((name, found[2].to_owned()));
            }
        }
        is_cuda |= line.contains("nvidia-cuda-runtime-cu1") || line.contains("nvidia-cublas-cu1");
    }
    if packages.is_empty() && !is_cuda {
        return;
    }
    let mut snapshot = Snapshot::default();
    // The first of a name counts.
    packages.reverse();
    let list: String = packages
        .iter()
        .map(|(name, version)| format!("{name} {version}\n"))
        .collect();
    if is_cuda && !list.contains("+rocm") {
        snapshot.insert_text("python/torch/version.py", "cuda = 'some'\nhip = None\n");
    }
    snapshot.insert_text("python/prefix", "the Python of this text\n");
    let has_torch = packages.iter().any(|(name, _)| name == "torch");
    let list = if has_torch {
        list
    } else {
        format!("{list}torch built for CUDA\n")
    };
    snapshot.insert_text("python/packages", list);
    if has_torch || is_cuda {
        machine.python = python::from_snapshot(&snapshot);
    }
}

/// Sizes that cannot be: of a card, less than 2 GiB or more than 512; of an APU less than 256 MiB.
pub(super) fn reject_impossible(machine: &mut Machine) {
    for gpu in &mut machine.gpus {
        let Some(usable) = gpu.usable_bytes else {
            continue;
        };
        let is_current = gpu.gfx.is_some_and(|gfx| !gfx.is_too_old());
        let least = match gpu.class {
            Some(platform::machine::Class::Dgpu) if is_current => Bytes::gib(2),
            Some(platform::machine::Class::Apu) if is_current => Bytes::mib(256),
            _ => continue,
        };
        if usable < least || usable > Bytes::gib(1024) {
            machine.posted.impossible_memory = Some(usable);
            (gpu.usable_bytes, gpu.vram_bytes) = (None, None);
        }
    }
}
