//! Distributions that do not install with apt, and what steps are called there.

/// A family of distributions that does not install with apt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Distribution {
    Fedora,
    Arch,
    Suse,
    Nixos,
}

impl Distribution {
    /// What shows them in a log.
    pub(super) const SIGNS: [&str; 14] = [
        ".fc3",
        ".fc4",
        ".fc5",
        "Fedora",
        "dnf ",
        "-arch1",
        "Arch Linux",
        "archlinux",
        "CachyOS",
        "pacman -",
        "openSUSE",
        "zypper ",
        "NixOS",
        "/nix/store/",
    ];

    /// The one that a line shows.
    pub(super) fn of(line: &str) -> Option<Self> {
        let sign = Self::SIGNS.iter().position(|sign| line.contains(sign))?;
        Some(match sign {
            0..=4 => Self::Fedora,
            5..=9 => Self::Arch,
            10..=11 => Self::Suse,
            _ => Self::Nixos,
        })
    }

    /// Its mark at the beginning of a step, and what installs there.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Fedora => ("Fedora: ", "dnf"),
            Self::Arch => ("Arch: ", "pacman"),
            Self::Suse => ("openSUSE: ", "zypper"),
            Self::Nixos => ("NixOS: ", "the configuration of NixOS"),
        }
    }

    /// Leaves its own steps, and says of others' commands what they are.
    pub(super) fn fit(self, steps: &mut Vec<String>) {
        let (mark, tool) = self.names();
        let marks = ["Fedora: ", "Arch: ", "openSUSE: ", "NixOS: "];
        let has_own = steps.iter().any(|step| step.starts_with(mark));
        steps.retain(|step| {
            let is_for_another = marks
                .iter()
                .any(|other| *other != mark && step.starts_with(other));
            !(is_for_another || has_own && step.contains("sudo apt install"))
        });
        for step in steps.iter_mut() {
            *step = step
                .replace(
                    "sudo apt install ",
                    &format!("with {tool} (these are Ubuntu's names): "),
                )
                .replace(
                    "sudo update-initramfs -u",
                    match self {
                        Self::Fedora | Self::Suse => "sudo dracut -f",
                        Self::Arch => "sudo mkinitcpio -P",
                        Self::Nixos => "sudo nixos-rebuild boot",
                    },
                );
        }
    }
}
