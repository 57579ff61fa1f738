//! Context from the rest of a log: where it ran, its GPU, an override, a version.

use super::catalogue::{Fact as Known, Step};
use super::clues::{Clues, kernel_of, package_of_frame, word_after};
use super::pairing::Pairing;
use super::shared_library;
use super::{Catalogue, Confidence, Match};
use crate::tables::{DISTRIBUTIONS, Distribution, UBUNTU};
use crate::{names, powershell, signs, wheels};
use aho_corasick::AhoCorasick;
use platform::Gfx;
use platform::gfx::FormFactor;
use platform::machine::{Machine, System};
use std::sync::LazyLock;

/// Facts about the program and its machine that a log mentions.
#[derive(Default)]
pub(super) struct Context {
    clues: Clues,
    /// Architectures, each with the line that names it first.
    gpus: Vec<Fact<Gfx>>,
    /// Those of them that a line names as a device in use.
    devices: Vec<Fact<Gfx>>,
    /// The architecture that the name of a product means.
    products: Vec<Fact<Gfx>>,
    override_value: Option<Fact<String>>,
    /// The release of a kernel: `6.14.0-24-generic`.
    kernel: Option<Fact<String>>,
    /// The ROCm of the wheel: `6.1` of `+rocm6.1`.
    rocm: Option<Fact<String>>,
    /// The package in which the last traceback of Python ends.
    package: Option<String>,
    /// `/dev/kfd` is open to everybody.
    kfd_is_public: bool,
    /// `/dev/kfd` is open to root alone.
    kfd_is_of_root: bool,
    /// A card of NVIDIA, or a torch for one.
    names_nvidia: bool,
    /// A container, or a command that starts one.
    names_container: bool,
    distribution: Option<&'static Distribution>,
    pairing: Pairing,
}

struct Fact<T> {
    value: T,
    line: usize,
}

impl Context {
    /// More architectures than this in one line are a list of what something supports.
    const GPUS_IN_A_LINE: usize = 2;
    const GPUS: usize = 16;
    const NVIDIA: [&str; 5] = [
        "GeForce",
        "NVIDIA RTX",
        "NVIDIA A100",
        "NVIDIA H100",
        "+cu1",
    ];
    const CONTAINERS: [&str; 4] = [
        "docker run",
        "podman run",
        "distrobox ",
        "root is not member of",
    ];

    /// Whether the text is about a card with memory of its own, and no APU.
    pub(super) fn is_card(&self) -> bool {
        let known = || self.gpus.iter().chain(&self.products);
        let sold_as = |gpu: &Fact<Gfx>, form| {
            gpu.value
                .architecture()
                .is_some_and(|known| known.sold_as == form)
        };
        let names_card = known().any(|gpu| sold_as(gpu, FormFactor::Discrete));
        let names_apu = known().any(|gpu| !sold_as(gpu, FormFactor::Discrete));
        self.names_nvidia || names_card && !names_apu
    }

    /// Takes what one more line says.
    pub(super) fn read(&mut self, line: &str, number: usize) {
        if !INTERESTING.as_ref().is_some_and(|any| any.is_match(line)) {
            return;
        }
        self.clues.read(line);
        if line.contains("Traceback (most recent") {
            self.package = None;
        } else if let Some(package) = package_of_frame(line) {
            self.package = Some(package.to_owned());
        }
        if self.override_value.is_none() {
            let after = |marker: &str| word_after(line, marker);
            self.override_value = after("HSA_OVERRIDE_GFX_VERSION=")
                .or_else(|| {
                    // `HSA_OVERRIDE_GFX_VERSION may be needed` names no value.
                    after("HSA_OVERRIDE_GFX_VERSION ")
                        .filter(|value| value.starts_with(|c: char| c.is_ascii_digit()))
                })
                .map(|value| Fact {
                    value,
                    line: number,
                });
        }
        if self.rocm.is_none() {
            self.rocm = word_after(line, "+rocm")
                .filter(|version| version.starts_with(|c: char| c.is_ascii_digit()))
                .map(|value| Fact {
                    value,
                    line: number,
                });
        }
        if self.kernel.is_none() {
            self.kernel = kernel_of(line).map(|value| Fact {
                value,
                line: number,
            });
        }
        self.names_nvidia =
            self.names_nvidia || Self::NVIDIA.iter().any(|sign| line.contains(sign));
        self.names_container =
            self.names_container || Self::CONTAINERS.iter().any(|sign| line.contains(sign));
        self.distribution = self.distribution.or_else(|| {
            let shows = |one: &&Distribution| one.signs.iter().any(|sign| line.contains(sign));
            DISTRIBUTIONS.iter().find(shows)
        });
        self.kfd_is_of_root =
            self.kfd_is_of_root || line.contains("crw-------") && line.trim_end().ends_with("kfd");
        self.kfd_is_public =
            self.kfd_is_public || line.contains("/dev/kfd") && line.contains("rw-rw-rw-");
        if line.contains("gfx") {
            let named = gpus_of(line);
            if named.len() <= Self::GPUS_IN_A_LINE {
                if let ([gfx], true) = (&named[..], names_a_device(line)) {
                    note(&mut self.devices, *gfx, number);
                }
                for gfx in named {
                    note(&mut self.gpus, gfx, number);
                }
            }
        }
        if let Some(gfx) = product_of(line) {
            note(&mut self.products, gfx, number);
        }
        self.pairing.read(line, number);
    }

    /// The package in which the last traceback ends.
    pub(super) fn package(&self) -> Option<&str> {
        self.package.as_deref()
    }

    /// Where the log comes from, if it shows.
    pub(super) fn system(&self) -> Option<System> {
        self.clues.system()
    }

    /// Whether the log is from Windows.
    pub(super) fn is_windows(&self) -> bool {
        self.system() == Some(System::Windows)
    }

    /// What is known of the text.
    fn facts(&self) -> Vec<Known> {
        let system = match self.system() {
            Some(System::Linux) => Some(Known::Linux),
            Some(System::Wsl) => Some(Known::Wsl),
            Some(System::Windows) => Some(Known::Windows),
            _ => None,
        };
        let others = [
            (self.names_container, Known::Container),
            (self.kfd_is_public, Known::KfdOpenToAll),
            (
                self.kfd_is_of_root && !self.kfd_is_public,
                Known::KfdRootOnly,
            ),
            (self.override_value.is_some(), Known::Override),
            (self.gpus.len() > 1, Known::SeveralArchitectures),
        ];
        let others = others.into_iter().filter(|(holds, _)| *holds);
        let distribution = self.distribution.map(|one| one.fact);
        let facts = system.into_iter().chain(distribution);
        facts.chain(others.map(|(_, fact)| fact)).collect()
    }

    /// A step with the commands of the distribution, or `None` if it is for other facts.
    fn chosen(&self, step: &Step, facts: &[Known]) -> Option<String> {
        let holds = |fact: &Known| facts.contains(fact);
        if step.unless.iter().any(holds) {
            return None;
        }
        let mut name = None;
        for of_kind in [Known::is_system, Known::is_distribution] {
            let mut wanted = step.when.iter().filter(|fact| of_kind(**fact)).peekable();
            let first = wanted.peek().copied().copied();
            if first.is_none() || wanted.any(holds) {
                continue;
            }
            // What is not shown may be the wanted one; WSL is shown by nearly every text from there.
            if facts.iter().any(|fact| of_kind(*fact)) || first == Some(Known::Wsl) {
                return None;
            }
            name = first;
        }
        let is_other = |fact: &&Known| !fact.is_system() && !fact.is_distribution();
        if !step.when.iter().filter(is_other).all(holds) {
            return None;
        }
        let (apt, initramfs) = self
            .distribution
            .map_or(UBUNTU, |one| (one.apt, one.initramfs));
        let text = step
            .text
            .replace("{apt}", apt)
            .replace("{initramfs}", initramfs);
        Some(match name {
            Some(Known::Linux) => format!("Linux: {text}"),
            Some(Known::Windows) => format!("Windows: {text}"),
            Some(fact) => {
                let named = DISTRIBUTIONS.iter().find(|one| one.fact == fact);
                format!("{}: {text}", named.map_or("", |one| one.name))
            }
            None => text,
        })
    }

    /// Says what the entries say under the facts of this text.
    pub(super) fn sharpen(
        &self,
        matches: &mut Vec<Match>,
        catalogue: &Catalogue,
        machine: Option<&Machine>,
    ) {
        matches.extend(self.pairing.contradiction.clone());
        let facts = self.facts();
        for found in matches {
            if let Some((_, entry)) = catalogue.entry(&found.id) {
                let chosen = |steps: &[Step]| -> Vec<String> {
                    let chosen = steps.iter().filter_map(|step| self.chosen(step, &facts));
                    chosen.collect()
                };
                let cause = chosen(entry.causes).into_iter().next();
                found.cause = cause.unwrap_or_else(|| entry.cause.to_owned());
                found.fix = chosen(entry.fix);
                found.ask = chosen(entry.ask);
                // What would settle it is worth asking for only where it is not settled.
                if !found.ask.is_empty() && found.confidence == Confidence::High {
                    found.confidence = Confidence::Medium;
                }
            }
            match found.id.as_str() {
                "invalid-device-function" | "no-kernel-image" => self.name_the_override(found),
                "missing-library" => name_the_library(found),
                "segmentation-fault" if self.gpus.len() > 1 => self.name_the_architectures(found),
                "segmentation-fault" | "memory-access-fault" | "gfxhub-page-fault" | "mes-hang" => {
                    if let Some(Fact { value, line }) = &self.override_value {
                        found
                            .facts
                            .push(format!("HSA_OVERRIDE_GFX_VERSION={value} (line {line})"));
                    }
                }
                "torch-cpu-only" => self.name_the_wheel(found),
                _ => {}
            }
            self.name_the_gpu(found, machine);
            if let Some(machine) = machine {
                leave_out_what_was_tried(found, machine);
            }
            if self.is_windows() {
                for step in &mut found.fix {
                    if let Some(translated) = powershell::translated(step) {
                        *step = translated;
                    }
                }
            }
        }
    }

    /// A torch that is a ROCm build, and sees no GPU for another reason.
    fn name_the_wheel(&self, found: &mut Match) {
        let Some(rocm) = &self.rocm else { return };
        if found.line.contains("not compiled") || found.line.contains("+cpu") || self.names_nvidia {
            return;
        }
        found
            .facts
            .push(format!("rocm{} (line {})", rocm.value, rocm.line));
        let why = match self.system() {
            Some(System::Wsl) => {
                "under WSL ROCm reaches the GPU through /dev/dxg and the driver of Windows, and this ROCm is not one for WSL, or the driver or the card does not fit it"
            }
            Some(System::Windows) => {
                "the Adrenalin driver is too old for it, a variable hides the GPU, or this build does not support it"
            }
            _ => {
                "its user may not open the device (group render), a container has none, a variable hides it, or this ROCm does not support the GPU"
            }
        };
        found.cause = format!(
            "The text names a ROCm build of torch (rocm{}), and HIP finds no GPU in that process: {why}. Or the program runs another torch than that one.",
            rocm.value
        );
    }

    /// Several architectures in one process are a possible cause of their own.
    fn name_the_architectures(&self, found: &mut Match) {
        let named = self.gpus.iter().map(|gpu| gpu.value.to_string());
        let named = named.collect::<Vec<_>>().join(", ");
        let facts = self
            .gpus
            .iter()
            .map(|gpu| format!("{} (line {})", gpu.value, gpu.line));
        found.facts.extend(facts);
        found.cause = format!(
            "The process crashed outside Python, and the text names GPUs of several architectures ({named}): a runtime or wheel that does not expect them together crashes (ROCm 6.0 did with three), or one of them has no code in it."
        );
    }

    fn name_the_override(&self, found: &mut Match) {
        let Some(Fact { value, line }) = &self.override_value else {
            return;
        };
        found
            .facts
            .push(format!("HSA_OVERRIDE_GFX_VERSION={value} (line {line})"));
        let Some(target) = Gfx::from_override(value) else {
            found.cause = format!(
                "HSA_OVERRIDE_GFX_VERSION={value} is not valid (`major.minor.stepping`, decimal)."
            );
            return;
        };
        let wheel = self.rocm.as_ref().and_then(|rocm| {
            let list = wheels::upstream_architectures(&rocm.value)?;
            Some((rocm, list))
        });
        found.cause = match wheel {
            Some((rocm, list)) if !list.contains(&target) => {
                found
                    .facts
                    .push(format!("ROCm {} (line {})", rocm.value, rocm.line));
                format!(
                    "HSA_OVERRIDE_GFX_VERSION={value} makes the GPU pass for {target}, and the rocm{} wheel has no code for {target}.",
                    rocm.value
                )
            }
            _ => format!(
                "HSA_OVERRIDE_GFX_VERSION={value} makes the GPU pass for {target}; the library that failed has no code for {target}."
            ),
        };
    }

    /// Fills the GPU's placeholders in an explanation.
    ///
    /// `{package}` is the package in which a traceback ends, `{gpu}` the GPU's architecture, `<gfx>` the same within a command, `{install}` the
    /// commands that install a torch with code for it, and `{override}` the value under which
    /// the code of a similar architecture runs on it (a step with `{override}` is removed if none is safe).
    fn name_the_gpu(&self, found: &mut Match, machine: Option<&Machine>) {
        let asks = |text: &String| {
            ["{gpu}", "<gfx>", "{install}", "{override}"]
                .iter()
                .any(|place| text.contains(place))
        };
        let gpu = self.gpu_of(found).or_else(|| only_gpu(machine?));
        if let (Some(Fact { value, line }), true) =
            (&gpu, asks(&found.cause) || found.fix.iter().any(asks))
        {
            found.facts.push(match line {
                0 => value.to_string(),
                line => format!("{value} (line {line})"),
            });
        }
        if found.cause.contains("{kernel}") {
            let shown = self.kernel.as_ref().map(|kernel| {
                found
                    .facts
                    .push(format!("kernel {} (line {})", kernel.value, kernel.line));
                format!(" ({})", kernel.value)
            });
            found.cause = found.cause.replace("{kernel}", &shown.unwrap_or_default());
        }
        if found.cause.contains("{package}") {
            let within = self
                .package
                .as_ref()
                .map(|package| format!(", in the package {package}"));
            found.cause = found
                .cause
                .replace("{package}", &within.unwrap_or_default());
        }
        let gfx = gpu.map(|fact| fact.value);
        let name = gfx.map_or_else(|| "the GPU".to_owned(), |gfx| gfx.to_string());
        found.cause = found.cause.replace("{gpu}", &name);
        let mut steps = Vec::with_capacity(found.fix.len());
        for step in std::mem::take(&mut found.fix) {
            if step == "{install}" {
                let is_possible =
                    |command: &String| !self.is_windows() || wheels::is_for_windows(command);
                steps.extend(install(gfx).into_iter().filter(is_possible));
            } else if step.contains("{override}") {
                let value = gfx
                    .and_then(wheels::override_for)
                    .filter(|_| !self.is_windows());
                steps.extend(
                    value.map(|value| step.replace("{override}", value).replace("{gpu}", &name)),
                );
            } else {
                let step = step.replace("{gpu}", &name);
                steps.push(gfx.map_or(step.clone(), |gfx| step.replace("<gfx>", &gfx.to_string())));
            }
        }
        found.fix = steps;
    }

    /// The GPU that a message is about: the one that its line names, or else the only one of the text.
    fn gpu_of(&self, found: &Match) -> Option<Fact<Gfx>> {
        if let [gfx] = gpus_of(&found.line)[..] {
            return Some(Fact {
                value: gfx,
                line: found.line_number,
            });
        }
        let only = |facts: &[Fact<Gfx>]| match facts {
            [one] => Some(Fact {
                value: one.value,
                line: one.line,
            }),
            _ => None,
        };
        only(&self.devices).or_else(|| match &self.gpus[..] {
            [] => only(&self.products),
            gpus => only(gpus),
        })
    }
}

/// The architecture of all GPUs of a machine, if they are of one.
fn only_gpu(machine: &Machine) -> Option<Fact<Gfx>> {
    let mut known = machine.gpus.iter().filter_map(|gpu| gpu.gfx);
    let value = known.next()?;
    known
        .all(|other| other == value)
        .then_some(Fact { value, line: 0 })
}

/// A step that only sets variables which the text shows with these values is no help.
fn leave_out_what_was_tried(found: &mut Match, machine: &Machine) {
    let facts = &mut found.facts;
    found.fix.retain(|step| {
        let command = step
            .split_once(": ")
            .map_or(&**step, |(_, command)| command);
        let words =
            [&**step, command].map(|text| text.trim_start_matches("export ").split(' ').next());
        let tried = words.into_iter().flatten().find(|word| {
            let assignment = word.trim_end_matches([':', ',', ';']).split_once('=');
            assignment.is_some_and(|(name, value)| machine.variable(name) == Some(value))
        });
        if let Some(tried) = tried {
            facts.push(format!("{tried} is set already"));
        }
        tried.is_none()
    });
}

/// What a line must contain to be examined further: one search instead of fifty.
static INTERESTING: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    let words = [
        "HSA_OVERRIDE_GFX_VERSION",
        "+rocm",
        "gfx",
        "Radeon",
        "Instinct",
        "kernel",
        "Name:",
        "-packages",
        "Traceback (most recent",
        ":\\",
        "crw-",
    ];
    let distributions = DISTRIBUTIONS.iter().flat_map(|one| one.signs);
    let words = [
        &words[..],
        signs::WSL,
        signs::WINDOWS,
        signs::PROBABLY_WINDOWS,
        signs::LINUX,
        &Context::NVIDIA,
        &Context::CONTAINERS,
    ];
    let words = words.into_iter().flatten().chain(distributions);
    // Constant words: without them nothing here works, and each test fails.
    AhoCorasick::new(words).ok()
});

fn note(facts: &mut Vec<Fact<Gfx>>, value: Gfx, line: usize) {
    if facts.len() < Context::GPUS && facts.iter().all(|fact| fact.value != value) {
        facts.push(Fact { value, line });
    }
}

/// Whether a line names an architecture as that of a device in use: other lines name those of packages and files.
fn names_a_device(line: &str) -> bool {
    ["AMD arch: gfx", "compute=gfx"]
        .iter()
        .any(|mark| line.contains(mark))
        || line.contains("Device ") && line.contains(", gfx")
}

/// The architectures that a line names as those of GPUs, not as supported ones.
fn gpus_of(line: &str) -> Vec<Gfx> {
    // `gfx1031 is not supported` is about the GPU, `supported_types=[gfx1103]` is not.
    let lists = [
        "supported_types",
        "supported types",
        "supported arch",
        "supported gfx",
        "supported: ",
    ];
    let end = lists
        .iter()
        .filter_map(|list| line.find(list))
        .min()
        .unwrap_or(line.len());
    // ollama names the GPU behind its list.
    let named = match line.split_once("gpu_type=") {
        Some((_, gpu)) => Gfx::find_all(super::clip(gpu, 24)),
        None => Gfx::find_all(&line[..end]),
    };
    named
        .into_iter()
        .filter(|gfx| gfx.architecture().is_some())
        .collect()
}

/// The architecture of the product that a line names as a device.
pub(super) fn product_of(line: &str) -> Option<Gfx> {
    let start = ["Radeon", "Instinct"]
        .iter()
        .filter_map(|name| line.find(name))
        .min()?;
    // A processor may be sold under the name of its GPU; that GPU need not be the one in use.
    if line[..start].contains("Ryzen") || line[..start].contains("w/ ") {
        return None;
    }
    names::architecture_of(super::clip(&line[start..], 60))
}

fn install(gfx: Option<Gfx>) -> Vec<String> {
    let commands = gfx.map(wheels::install).unwrap_or_default();
    match gfx {
        _ if !commands.is_empty() => commands,
        Some(gfx) => vec![format!(
            "there is no published wheel with code for {gfx}: an older release that had it, or a build of your own"
        )],
        None => vec![
            "install a wheel with native code: `surefoot doctor` prints the command for this GPU"
                .to_owned(),
        ],
    }
}

/// A missing library is named, with what has it.
fn name_the_library(found: &mut Match) {
    if let Some(name) = shared_library::named_in(&found.line) {
        found.cause = format!("{name} is not installed, or not where the loader looks.");
        if let Some(step) = shared_library::installation_of(name) {
            found.fix.insert(0, step);
        }
    }
}
