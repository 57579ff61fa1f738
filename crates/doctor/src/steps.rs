//! Steps and sentences of the catalogue: which of them hold where some facts are known, and what stands in their places.

use crate::schema::{Fact, Scope};
use crate::tables::{DISTRIBUTIONS, Distribution, UBUNTU, UBUNTU_SIGNS};
use platform::Gfx;
use platform::machine::{Machine, System};
use std::borrow::Cow;

/// A step, or a sentence, that depends on facts.
///
/// Of `when`, one of the systems, one of the distributions and all other facts must hold. Where the system or the
/// distribution is not known, the step names it instead; steps of WSL alone are then left out. So with the architecture.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// What must hold.
    pub when: &'static [Fact],
    /// What must not hold.
    pub unless: &'static [Fact],
    /// The architectures that it is for; all of them if empty.
    pub gpus: &'static [&'static str],
    /// Words of which the text must have one, in small letters.
    pub named: &'static [&'static str],
    /// Words of which it must have none.
    pub unnamed: &'static [&'static str],
    /// What to do.
    pub text: &'static str,
}

impl Fact {
    /// Whether it is one of systems, of which a text is from one.
    fn is_system(self) -> bool {
        matches!(self, Self::Linux | Self::Wsl | Self::Windows)
    }

    /// Whether it is one of distributions, of which a text is from one.
    fn is_distribution(self) -> bool {
        matches!(self, Self::Fedora | Self::Arch | Self::Suse | Self::Nixos)
    }

    /// The system as a fact.
    pub(crate) fn of(system: System) -> Option<Self> {
        match system {
            System::Linux => Some(Self::Linux),
            System::Wsl => Some(Self::Wsl),
            System::Windows => Some(Self::Windows),
            System::Macos => None,
        }
    }
}

impl Scope {
    /// Whether something applies where this is the system.
    #[must_use]
    pub fn holds_on(self, system: Option<System>) -> bool {
        match self {
            Self::Anywhere => true,
            Self::BareMetal => matches!(system, None | Some(System::Linux)),
            Self::NotWindows => system != Some(System::Windows),
            Self::Wsl => system == Some(System::Wsl),
            Self::Windows => system == Some(System::Windows),
        }
    }
}

/// What steps can depend on, as far as it is known.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) facts: Vec<Fact>,
    pub(crate) distribution: Option<&'static Distribution>,
    pub(crate) gpus: Vec<Gfx>,
    /// The text in small letters; empty where nothing is told of what it says.
    pub(crate) text: String,
}

impl Known {
    pub(crate) fn of(machine: &Machine) -> Self {
        let distribution = machine.distribution.as_deref().and_then(distribution_of);
        let container = machine.container.as_ref().map(|_| Fact::Container);
        let facts = Fact::of(machine.system).into_iter().chain(container);
        Self {
            facts: facts.chain(distribution.map(|one| one.fact)).collect(),
            distribution,
            gpus: machine.gpus.iter().filter_map(|gpu| gpu.gfx).collect(),
            text: String::new(),
        }
    }

    /// Whether the text has the words that a step wants, and none that it does not want.
    fn says(&self, step: &Step) -> bool {
        let has = |word: &&str| self.text.contains(*word);
        (step.named.is_empty() || step.named.iter().any(has)) && !step.unnamed.iter().any(has)
    }

    /// Whether something that is for these architectures may concern a GPU of the text.
    fn concerns(&self, gpus: &[&str]) -> bool {
        let is_one = |gfx: &Gfx| gpus.contains(&gfx.to_string().as_str());
        gpus.is_empty() || self.gpus.is_empty() || self.gpus.iter().any(is_one)
    }

    /// The steps that hold, with the commands of the distribution.
    pub(crate) fn chosen(&self, steps: &[Step]) -> Vec<String> {
        steps.iter().filter_map(|step| self.step(step)).collect()
    }

    /// The first sentence whose facts are all known.
    pub(crate) fn sentence(&self, sentences: &[Step]) -> Option<&'static str> {
        let holds = |fact: &Fact| self.facts.contains(fact);
        let mut chosen = sentences
            .iter()
            .filter(|one| one.when.iter().all(holds) && !one.unless.iter().any(holds))
            .filter(|one| self.says(one))
            .filter(|one| one.gpus.is_empty() || !self.gpus.is_empty() && self.concerns(one.gpus));
        Some(chosen.next()?.text)
    }

    fn step(&self, step: &Step) -> Option<String> {
        let holds = |fact: &Fact| self.facts.contains(fact);
        if step.unless.iter().any(holds) || !self.concerns(step.gpus) || !self.says(step) {
            return None;
        }
        let mut name = None;
        for of_kind in [Fact::is_system, Fact::is_distribution] {
            let mut wanted = step.when.iter().filter(|fact| of_kind(**fact)).peekable();
            let first = wanted.peek().copied().copied();
            if first.is_none() || wanted.any(holds) {
                continue;
            }
            // What is not shown may be the wanted one; WSL is shown by nearly every text from there.
            if self.facts.iter().any(|fact| of_kind(*fact)) || first == Some(Fact::Wsl) {
                return None;
            }
            name = first;
        }
        let is_other = |fact: &&Fact| !fact.is_system() && !fact.is_distribution();
        if !step.when.iter().filter(is_other).all(holds) {
            return None;
        }
        let (apt, initramfs) = self
            .distribution
            .map_or(UBUNTU, |one| (one.apt, one.initramfs));
        let text = match self.gpus.is_empty() && !step.gpus.is_empty() {
            true => Cow::Owned(format!("{}: {}", step.gpus.join(", "), step.text)),
            false => Cow::Borrowed(step.text),
        };
        let text = filled(&text, |place| match place {
            "apt" => Some(apt.to_owned()),
            "initramfs" => Some(initramfs.to_owned()),
            _ => None,
        });
        Some(match name {
            Some(Fact::Linux) => format!("Linux: {text}"),
            Some(Fact::Windows) => format!("Windows: {text}"),
            Some(fact) => {
                let named = DISTRIBUTIONS.iter().find(|one| one.fact == fact);
                format!("{}: {text}", named.map_or("", |one| one.name))
            }
            None => text,
        })
    }
}

/// The family of distributions that a line shows, of those that do not install with apt.
pub(crate) fn distribution_of(line: &str) -> Option<&'static Distribution> {
    let shows = |one: &&Distribution| one.signs.iter().any(|sign| line.contains(sign));
    DISTRIBUTIONS.iter().find(shows)
}

/// The command that builds the initramfs anew in a distribution, if it is one that is known.
pub(crate) fn initramfs_of(distribution: &str) -> Option<&'static str> {
    let is_ubuntu = || UBUNTU_SIGNS.iter().any(|sign| distribution.contains(sign));
    match distribution_of(distribution) {
        Some(known) => Some(known.initramfs),
        None => is_ubuntu().then_some(UBUNTU.1),
    }
}

/// A text with what stands in its `{places}`; those without a value stay.
pub(crate) fn filled(text: &str, mut value: impl FnMut(&str) -> Option<String>) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled += before;
        let place = after.split_once('}');
        match place.and_then(|(place, after)| Some((value(place)?, after))) {
            Some((value, after)) => {
                filled += &value;
                rest = after;
            }
            None => {
                filled.push('{');
                rest = after;
            }
        }
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_once() {
        let value = |place: &str| (place == "a").then(|| "{b}".to_owned());
        assert_eq!(filled("x {a}, {b}, {a", value), "x {b}, {b}, {a");
    }

    #[test]
    fn a_step_for_other_gpus_is_left_out() {
        let step = Step {
            when: &[],
            unless: &[],
            gpus: &["gfx1200", "gfx1201"],
            named: &[],
            unnamed: &[],
            text: "x",
        };
        let chosen = |gpus: &[&str]| {
            let known = Known {
                gpus: gpus.iter().filter_map(|name| name.parse().ok()).collect(),
                ..Known::default()
            };
            known.chosen(std::slice::from_ref(&step))
        };
        assert_eq!(chosen(&["gfx1201"]), ["x"]);
        assert_eq!(chosen(&["gfx1100"]), [""; 0]);
        assert_eq!(chosen(&[]), ["gfx1200, gfx1201: x"]);
    }

    #[test]
    fn a_step_can_depend_on_words_of_the_text() {
        let step = |named: &'static [&'static str], unnamed: &'static [&'static str]| Step {
            when: &[],
            unless: &[],
            gpus: &[],
            named,
            unnamed,
            text: "x",
        };
        let known = Known {
            text: "expandable_segments:true".to_owned(),
            ..Known::default()
        };
        let is_chosen = |step: Step| !known.chosen(std::slice::from_ref(&step)).is_empty();
        assert!(is_chosen(step(&["miopen", "expandable_segments"], &[])));
        assert!(!is_chosen(step(&["miopen"], &[])));
        assert!(!is_chosen(step(&[], &["expandable_segments"])));
        assert!(is_chosen(step(&[], &["miopen"])));
    }

    #[test]
    fn a_distribution_has_its_commands() {
        for (name, initramfs) in [
            (
                "Fedora Linux 43 (Workstation Edition)",
                Some("sudo dracut -f"),
            ),
            ("Ubuntu 24.04.3 LTS", Some("sudo update-initramfs -u")),
            ("Arch Linux", Some("sudo mkinitcpio -P")),
            ("Gentoo Linux", None),
        ] {
            assert_eq!(initramfs_of(name), initramfs, "{name}");
        }
    }
}
