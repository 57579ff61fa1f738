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
    const ALL: [Self; 4] = [Self::Fedora, Self::Arch, Self::Suse, Self::Nixos];

    /// What shows them in a log.
    pub(super) const SIGNS: [(&str, Self); 14] = [
        (".fc3", Self::Fedora),
        (".fc4", Self::Fedora),
        (".fc5", Self::Fedora),
        ("Fedora", Self::Fedora),
        ("dnf ", Self::Fedora),
        ("-arch1", Self::Arch),
        ("Arch Linux", Self::Arch),
        ("archlinux", Self::Arch),
        ("CachyOS", Self::Arch),
        ("pacman -", Self::Arch),
        ("openSUSE", Self::Suse),
        ("zypper ", Self::Suse),
        ("NixOS", Self::Nixos),
        ("/nix/store/", Self::Nixos),
    ];

    /// The one that a line shows.
    pub(super) fn of(line: &str) -> Option<Self> {
        let shown = Self::SIGNS.iter().find(|(sign, _)| line.contains(sign));
        shown.map(|(_, distribution)| *distribution)
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
        let has_own = steps.iter().any(|step| step.starts_with(mark));
        steps.retain(|step| {
            let is_for_another = Self::ALL
                .iter()
                .any(|other| *other != self && step.starts_with(other.names().0));
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
