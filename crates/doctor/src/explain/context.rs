//! Context from the rest of a log: where it ran, its GPU, an override, a version.

use super::clues::{Clues, kernel_of, package_of_frame, package_of_sources, word_after};
use super::difference::NEEDS_OVERRIDE;
use super::marks::{Marks, Sign};
use super::pairing::Pairing;
use super::shared_library;
use super::{Catalogue, Confidence, Match, from_entry};
use crate::measured;
use crate::schema;
use crate::signs::ENGINE;
use crate::steps::{Known, filled};
use crate::tables::Distribution;
use crate::{names, powershell, wheels};
use platform::Gfx;
use platform::gfx::FormFactor;
use platform::machine::{Class, Gpu, Machine, System};
use std::collections::BTreeMap;
use std::fmt::Display;

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
    /// The package that pip took last as sources.
    built: Option<String>,
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

    /// Whether the text is about a card with memory of its own, and no APU.
    pub(super) fn is_card(&self) -> bool {
        let (cards, apus) = self.cards_and_apus();
        self.names_nvidia || cards && !apus
    }

    /// Whether the text is about an APU, and no card.
    pub(super) fn is_apu(&self) -> bool {
        let (cards, apus) = self.cards_and_apus();
        apus && !cards && !self.names_nvidia
    }

    /// Whether the text names cards, and whether it names other GPUs.
    fn cards_and_apus(&self) -> (bool, bool) {
        let is_discrete = |gpu: &Fact<Gfx>| {
            gpu.value
                .architecture()
                .is_some_and(|known| known.sold_as == FormFactor::Discrete)
        };
        let known = || self.gpus.iter().chain(&self.products);
        (
            known().any(is_discrete),
            known().any(|gpu| !is_discrete(gpu)),
        )
    }

    /// Takes what one more line says.
    pub(super) fn read(&mut self, line: &str, number: usize) {
        let Some(marks) = Marks::of(line) else {
            return;
        };
        self.clues.read(line, &marks);
        if marks.has(Sign::Traceback) {
            if line.contains("Traceback (most recent") {
                self.package = None;
            } else if let Some(package) = package_of_frame(line) {
                self.package = Some(package.to_owned());
            }
        }
        if marks.has(Sign::Archive)
            && let Some(package) = package_of_sources(line)
        {
            self.built = Some(package.to_owned());
        }
        if marks.has(Sign::Override) && self.override_value.is_none() {
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
        if marks.has(Sign::Rocm) && self.rocm.is_none() {
            self.rocm = word_after(line, "+rocm")
                .filter(|version| version.starts_with(|c: char| c.is_ascii_digit()))
                .map(|value| Fact {
                    value,
                    line: number,
                });
        }
        if marks.has(Sign::Kernel) && self.kernel.is_none() {
            self.kernel = kernel_of(line).map(|value| Fact {
                value,
                line: number,
            });
        }
        self.names_nvidia |= marks.has(Sign::Nvidia);
        self.names_container |= marks.has(Sign::Container);
        self.distribution = self.distribution.or(marks.distribution);
        if marks.has(Sign::Mode) {
            let is_kfd = line.trim_end().ends_with("kfd");
            self.kfd_is_of_root |= is_kfd && line.contains("crw-------");
            self.kfd_is_public |= line.contains("/dev/kfd") && line.contains("rw-rw-rw-");
        }
        if marks.has(Sign::Architecture) {
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
        if marks.has(Sign::Product)
            && let Some(gfx) = product_of(line)
        {
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
    fn known(&self, machine: Option<&Machine>, text: &str) -> Known {
        let target = self.target();
        let torch = machine.and_then(|machine| machine.python.as_ref()?.torch.as_ref());
        let has_code =
            |fact: &Fact<Gfx>| torch.is_some_and(|torch| torch.supports(fact.value) == Some(true));
        let gpu = only(&self.devices).or_else(|| match &self.gpus[..] {
            [] => only(&self.products).or_else(|| only_gpu(machine?)),
            gpus => only(gpus),
        });
        let of_wheel = self.rocm.as_ref();
        let of_wheel = of_wheel.and_then(|rocm| wheels::upstream_architectures(&rocm.value));
        let lacks = |target: &Gfx| of_wheel.is_some_and(|list| !list.contains(target));
        let is_set = self.override_value.is_some();
        let facts = [
            (self.names_container, schema::Fact::Container),
            (self.kfd_is_public, schema::Fact::KfdOpenToAll),
            (
                self.kfd_is_of_root && !self.kfd_is_public,
                schema::Fact::KfdRootOnly,
            ),
            (is_set, schema::Fact::Override),
            (
                machine.and_then(only_gpu).is_some_and(|gpu| {
                    let own = wheels::override_for(gpu.value);
                    own.is_some()
                        && own == machine.and_then(|one| one.variable("HSA_OVERRIDE_GFX_VERSION"))
                }),
                schema::Fact::OverrideFits,
            ),
            (is_set && target.is_none(), schema::Fact::OverrideInvalid),
            (
                target.as_ref().is_some_and(lacks),
                schema::Fact::OverrideNotInWheel,
            ),
            (
                self.rocm.is_some() && !self.names_nvidia,
                schema::Fact::RocmWheel,
            ),
            (
                gpu.as_ref().is_some_and(has_code),
                schema::Fact::WheelHasGpu,
            ),
            (
                machine.is_some_and(|machine| machine.posted.framework.is_some()),
                schema::Fact::OtherFramework,
            ),
            (
                machine.is_some_and(|machine| machine.posted.framework == Some(ENGINE)),
                schema::Fact::Engine,
            ),
            (
                machine.is_some_and(|machine| {
                    machine.gpus.iter().any(Gpu::is_apu) && only_card(machine).is_some()
                }),
                schema::Fact::IntegratedBeside,
            ),
            (self.gpus.len() > 1, schema::Fact::SeveralArchitectures),
        ];
        let facts = facts.into_iter().filter(|(holds, _)| *holds);
        let system = self.system().and_then(schema::Fact::of);
        let distribution = self.distribution.map(|one| one.fact);
        Known {
            facts: (facts.map(|(_, fact)| fact))
                .chain(system)
                .chain(distribution)
                .collect(),
            distribution: self.distribution,
            gpus: match self.gpus.is_empty() && self.products.is_empty() {
                true => machine.map_or_else(Vec::new, |machine| {
                    machine.gpus.iter().filter_map(|gpu| gpu.gfx).collect()
                }),
                false => (self.gpus.iter().chain(&self.products))
                    .map(|gpu| gpu.value)
                    .collect(),
            },
            text: text.to_ascii_lowercase(),
        }
    }

    /// The architecture that the override stands for.
    fn target(&self) -> Option<Gfx> {
        Gfx::from_override(&self.override_value.as_ref()?.value)
    }

    /// Says what the entries say under the facts of this text.
    pub(super) fn sharpen(
        &self,
        matches: &mut Vec<Match>,
        catalogue: &Catalogue,
        machine: Option<&Machine>,
        text: &str,
    ) {
        if let Some(found) = &self.pairing.contradiction
            && let Some((_, entry)) = catalogue.entry("override-renames-gpu")
        {
            matches.push(Match {
                values: found.values.clone(),
                ..from_entry(entry, &found.line, found.line_number)
            });
        }
        let mut known = self.known(machine, text);
        if matches.iter().any(|found| found.id == NEEDS_OVERRIDE) {
            known.facts.push(schema::Fact::OverrideFits);
        }
        let of_text = known.facts.len();
        let nothing = BTreeMap::new();
        let probed = machine.map_or(&nothing, |machine| &machine.probed);
        for found in matches {
            let Some((_, entry)) = catalogue.entry(&found.id) else {
                continue;
            };
            known.facts.truncate(of_text);
            known.facts.extend(measured::facts(entry.probe, probed));
            let cause = known.sentence(entry.causes).unwrap_or(entry.cause);
            let fix = known.chosen(entry.fix);
            found.ask = known.chosen(entry.ask);
            // What would settle it is worth asking for only where it is not settled.
            if !found.ask.is_empty() && found.confidence == Confidence::High {
                found.confidence = Confidence::Medium;
            }
            found.probe = entry.probe.to_vec();
            let gpu = self.gpu_of(found).or_else(|| only_gpu(machine?));
            // What is to be done is to be done for the card beside the graphics of a desktop processor.
            let is_inside = |gpu: &Fact<Gfx>| gpu.value == names::DISPLAY_ONLY;
            let is_about_it = gpus_of(&found.line).contains(&names::DISPLAY_ONLY);
            let gpu = match !is_about_it && gpu.as_ref().is_some_and(is_inside) {
                true => machine.and_then(only_card).or(gpu),
                false => gpu,
            };
            let texts = || fix.iter().map(String::as_str).chain([cause]);
            let uses =
                |places: &[&str]| texts().any(|text| places.iter().any(|it| text.contains(it)));
            let depends_on_override = entry
                .fix
                .iter()
                .any(|step| step.when.contains(&schema::Fact::Override));
            found.facts = [
                gpu.as_ref()
                    .filter(|_| uses(&["{gpu}", "<gfx>", "{install}", "{override}"]))
                    .map(|gpu| noted(&gpu.value, gpu.line)),
                self.override_value
                    .as_ref()
                    .filter(|_| depends_on_override || uses(&["{set}"]))
                    .map(|set| noted(&format!("HSA_OVERRIDE_GFX_VERSION={}", set.value), set.line)),
                self.kernel
                    .as_ref()
                    .filter(|_| uses(&["{kernel}"]))
                    .map(|kernel| noted(&format!("kernel {}", kernel.value), kernel.line)),
                self.rocm
                    .as_ref()
                    .filter(|_| uses(&["{rocm}"]))
                    .map(|rocm| noted(&format!("ROCm {}", rocm.value), rocm.line)),
            ]
            .into_iter()
            .flatten()
            .collect();
            if uses(&["{architectures}"]) {
                let all = self.gpus.iter();
                found
                    .facts
                    .extend(all.map(|gpu| noted(&gpu.value, gpu.line)));
            }
            let gfx = gpu.map(|gpu| gpu.value);
            let needs_no_torch = [schema::Fact::WheelHasGpu, schema::Fact::OtherFramework]
                .iter()
                .any(|fact| known.facts.contains(fact));
            let value = |place: &str| {
                if place == "install" && needs_no_torch {
                    return Some(String::new());
                }
                let own = found.values.iter().find(|(name, _)| *name == place);
                own.map(|(_, value)| value.clone())
                    .or_else(|| self.value(place, &found.line, gfx))
            };
            found.cause = filled(cause, &value);
            found.fix = fix
                .iter()
                .filter_map(|step| step_filled(step, value))
                .flatten()
                .collect();
            if let Some(gfx) = gfx {
                for step in &mut found.fix {
                    *step = step.replace("<gfx>", &gfx.to_string());
                }
            }
            if let Some(machine) = machine {
                leave_out_what_was_tried(found, machine);
            }
            weigh_measurements(found, probed);
            if self.is_windows() {
                for step in &mut found.fix {
                    if let Some(translated) = powershell::translated(step) {
                        *step = translated;
                    }
                }
            }
        }
    }

    /// What stands in a place of a text of the catalogue, about a message and its GPU: `{gpu}` is its architecture, `{install}` the
    /// commands that install a torch with code for it, `{override}` the value under which the code of a similar one runs on it, `{set}`
    /// the value that is set, `{target}` what that stands for, `{rocm}` the ROCm of the wheel, `{kernel}` the kernel in brackets,
    /// `{package}` where the traceback ends, `{built}` what pip builds, `{module}` what Python does not find, `{architectures}` all that the text names, `{library}` and `{library-package}` what a
    /// loader missed. It is empty if it is not known; other places are left as they are.
    fn value(&self, place: &str, line: &str, gfx: Option<Gfx>) -> Option<String> {
        let library = shared_library::named_in(line);
        let of = |fact: &Option<Fact<String>>| fact.as_ref().map(|fact| fact.value.clone());
        let value = match place {
            "gpu" => Some(gfx.map_or("the GPU".to_owned(), |gfx| gfx.to_string())),
            "install" => Some(self.install(gfx).join("\n")),
            "override" => gfx
                .and_then(wheels::override_for)
                .filter(|_| !self.is_windows())
                .map(str::to_owned),
            "set" => of(&self.override_value),
            "target" => self.target().map(|target| target.to_string()),
            "rocm" => of(&self.rocm),
            "kernel" => of(&self.kernel).map(|kernel| format!(" ({kernel})")),
            "package" => self
                .package
                .as_ref()
                .map(|package| format!(", in the package {package}")),
            "module" => {
                let name = line
                    .split_once("No module named ")
                    .map(|(_, name)| name.trim());
                let name = name.and_then(|name| {
                    name.trim_matches(['\'', '"'])
                        .split(['.', '\'', '"', ' '])
                        .next()
                });
                Some(name.unwrap_or("the line names it").to_owned())
            }
            "built" => Some(
                self.built
                    .clone()
                    .unwrap_or_else(|| "the package".to_owned()),
            ),
            "architectures" => {
                let all: Vec<String> = self.gpus.iter().map(|gpu| gpu.value.to_string()).collect();
                Some(all.join(", "))
            }
            "library" => Some(
                library
                    .unwrap_or("A library (the line names it)")
                    .to_owned(),
            ),
            "library-package" => library.and_then(shared_library::installation_of),
            _ => return None,
        };
        Some(value.unwrap_or_default())
    }

    /// The steps that install a torch for a GPU.
    fn install(&self, gfx: Option<Gfx>) -> Vec<String> {
        let system = self.system().unwrap_or_default();
        let commands = gfx.map(|gfx| wheels::install_on(system, gfx));
        match (commands.unwrap_or_default(), gfx) {
            (commands, _) if !commands.is_empty() => commands,
            (_, Some(gfx)) if wheels::install(gfx).is_empty() => vec![format!(
                "there is no published wheel with code for {gfx}: an older release that had it, or a build of your own"
            )],
            (_, Some(_)) => Vec::new(),
            (_, None) => vec![
                "install a wheel with native code: `surefoot doctor` prints the command for this GPU"
                    .to_owned(),
            ],
        }
    }

    /// The GPU that a message is about: the one that its line names, or else the only one of the text.
    fn gpu_of(&self, found: &Match) -> Option<Fact<Gfx>> {
        if let [gfx] = gpus_of(&found.line)[..] {
            return Some(Fact {
                value: gfx,
                line: found.line_number,
            });
        }
        only(&self.devices).or_else(|| match &self.gpus[..] {
            [] => only(&self.products),
            gpus => only(gpus),
        })
    }
}

/// The only one of several facts.
fn only(facts: &[Fact<Gfx>]) -> Option<Fact<Gfx>> {
    match facts {
        [one] => Some(Fact {
            value: one.value,
            line: one.line,
        }),
        _ => None,
    }
}

/// A fact, with the line that tells it.
fn noted(fact: &dyn Display, line: usize) -> String {
    match line {
        0 => fact.to_string(),
        line => format!("{fact} (line {line})"),
    }
}

/// A step with its places filled, of which each line is one; `None` if a place has no value.
fn step_filled(step: &str, value: impl Fn(&str) -> Option<String>) -> Option<Vec<String>> {
    let mut lacks_one = false;
    let filled = filled(step, |place| {
        let value = value(place)?;
        lacks_one |= value.is_empty();
        Some(value)
    });
    let lines = || filled.lines().map(str::to_owned).collect();
    (!lacks_one).then(lines)
}

/// The architecture of all GPUs of a machine, if they are of one.
fn only_gpu(machine: &Machine) -> Option<Fact<Gfx>> {
    let mut known = machine.gpus.iter().filter_map(|gpu| gpu.gfx);
    let value = known.next()?;
    known
        .all(|other| other == value)
        .then_some(Fact { value, line: 0 })
}

/// The architecture of the only card of a machine.
fn only_card(machine: &Machine) -> Option<Fact<Gfx>> {
    let cards = machine
        .gpus
        .iter()
        .filter(|gpu| gpu.class == Some(Class::Dgpu));
    let known: Vec<Gfx> = cards.filter_map(|gpu| gpu.gfx).collect();
    match known[..] {
        [value] => Some(Fact { value, line: 0 }),
        _ => None,
    }
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

/// What was measured on the machine makes a cause certain, or less likely.
fn weigh_measurements(found: &mut Match, probed: &BTreeMap<String, bool>) {
    match measured::by(&found.probe, probed) {
        Some((fails, word)) => {
            found.confidence = match fails {
                true => Confidence::High,
                false => Confidence::Low,
            };
            found.cause = format!("{} {word}.", found.cause);
            found.probe.clear();
        }
        None => measured::keep_open(&mut found.probe, probed),
    }
}

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
