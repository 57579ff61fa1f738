//! Which chip a name refers to: codenames of the kernel and of the PCI id database, and
//! product names.
//!
//! This is the last resort, after the architecture itself and the device id: `amd-smi`'s
//! table and old versions of `rocm-smi` print nothing else.

use crate::pattern::{self, Patterns, patterns};
use crate::signs;
use crate::tables::{CHIPS, PROCESSORS};
use platform::Gfx;
use platform::pci::DeviceId;
use regex::Regex;
use std::sync::LazyLock;

patterns! {
    /// TeraScale, before 2012, which ROCm never knew and which has no name of an architecture; and names of
    /// whole families from before Vega.
    BEFORE_ROCM = r"(?i)TeraScale|\b(?:Cedar|Redwood|Juniper|Cypress|Hemlock|Caicos|Turks|Barts|Cayman|Antilles|Palm|(?:Super)?Sumo|Wrestler|Trinity|Richland|Devastator|Scrapper|Loveland|Thames|Whistler|Seymour|Blackcomb|Lombok|Robson|Granville|Pinewood|Capilano|RV\d{3}|RS\d{3})\b|\b(?:Park|Madison|Broadway|Onega) (?:XT|PRO|LP|\[)|\bHD ?[2-6]\d{3}[GMD]?\b|\bHD ?7[3-6]\d{2}[GMDA]?\b|\bHD ?[78]\d{3}|\bR[2-9] (?:M?[234]\d\d|Graphics|Series)|Radeon(?: ?\(TM\)|™)? (?:RX )?(?:5[1-5][05]X?|6[0-4][05])\b|\bFirePro\b";
}

/// The graphics of desktop processors, which are usually accompanied by a card.
pub(crate) const DISPLAY_ONLY: Gfx = Gfx::new(10, 3, 6);

/// Whether a name is that of a GPU from before Vega, whose architecture it does not tell.
pub(crate) fn is_before_rocm(name: &str) -> bool {
    BEFORE_ROCM.is_match(name) && architecture_of(name).is_none()
}

static COMPILED: LazyLock<Patterns<Regex>> =
    LazyLock::new(|| Patterns::new(CHIPS.iter().map(|(pattern, _)| *pattern), in_any_case));

/// Constant patterns: a test compiles every one of them.
fn in_any_case(pattern: &str) -> Option<Regex> {
    Regex::new(&format!("(?i){pattern}")).ok()
}

/// The architecture of the chip that a name, or a text with one, means.
pub(crate) fn architecture_of(name: &str) -> Option<Gfx> {
    let (_, (major, minor, stepping)) = CHIPS[COMPILED.first_match(name)?];
    Some(Gfx::new(major, minor, stepping))
}

/// The architecture of a GPU by its device id, or else by its name.
pub(crate) fn architecture_by(device_id: Option<DeviceId>, name: Option<&str>) -> Option<Gfx> {
    let named = || name.and_then(architecture_of);
    device_id.and_then(DeviceId::gfx).or_else(named)
}

static MODELS: LazyLock<Patterns<Regex>> = LazyLock::new(|| {
    let whole =
        |(pattern, _): &(&str, _)| format!(r"(?i)\bRyzen (?:AI )?[3579] (?:PRO )?(?:{pattern})");
    Patterns::new(PROCESSORS.iter().map(whole), pattern::compile)
});

/// The architecture of a processor's integrated graphics, if its name or model determines it.
pub(crate) fn graphics_of_processor(name: &str) -> Option<Gfx> {
    let is_apu = |gfx: &Gfx| {
        gfx.architecture()
            .is_some_and(|known| known.sold_as == platform::gfx::FormFactor::Apu)
    };
    let of_model = || {
        let model = MODELS.first_match(name)?;
        let (_, (major, minor, stepping)) = PROCESSORS[model];
        Some(Gfx::new(major, minor, stepping))
    };
    architecture_of(name).filter(is_apu).or_else(of_model)
}

/// Whether a display adapter is the virtual one of a virtual machine's host.
pub(crate) fn is_virtual_adapter(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    signs::VIRTUAL_ADAPTERS
        .iter()
        .any(|sign| name.contains(sign))
}

/// The names that the Windows driver and the PCI id database give to the graphics of many processors, but to no card.
pub(crate) fn is_graphics_of_some_processor(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    matches!(
        name.as_str(),
        "amd radeon(tm) graphics" | "amd radeon (tm) graphics" | "amd radeon™ graphics"
    ) || name.contains("radeon vega series / radeon vega mobile series")
        || name.contains("radeon vega series / radeon mobile series")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_family_are_known() {
        COMPILED.check();
        MODELS.check();
        let cases = [
            ("AMD Radeon RX 6700 XT", "gfx1031"),
            ("Navi 22 [Radeon RX 6700/6700 XT / 6800M]", "gfx1031"),
            ("Navi 21 [Radeon RX 6800/6800 XT / 6900 XT]", "gfx1030"),
            ("AMD Radeon RX 6800M", "gfx1031"),
            ("AMD Radeon RX 6800S", "gfx1032"),
            ("AMD Radeon RX 6650 XT", "gfx1032"),
            ("AMD Radeon RX 6500 XT", "gfx1034"),
            (
                "Navi 31 [Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M]",
                "gfx1100",
            ),
            ("AMD Radeon RX 7900XTX", "gfx1100"),
            ("AMD Radeon RX 7800 XT", "gfx1101"),
            ("AMD Radeon RX 7700 XT", "gfx1101"),
            ("AMD Radeon RX 7600M XT", "gfx1102"),
            ("AMD Radeon RX 9060 XT", "gfx1200"),
            ("AMD Radeon RX 9070 XT", "gfx1201"),
            ("AMD Radeon AI PRO R9700", "gfx1201"),
            ("AMD Radeon(TM) 780M", "gfx1103"),
            ("Phoenix1", "gfx1103"),
            ("AMD Radeon 8065S Graphics", "gfx1151"),
            ("AMD Radeon 890M", "gfx1150"),
            ("AMD Radeon 860M", "gfx1152"),
            ("AMD Custom GPU 0405", "gfx1033"),
            ("VANGOGH", "gfx1033"),
            ("AMD Instinct MI300X", "gfx942"),
            ("AMD Instinct MI350X", "gfx950"),
            ("AMD Instinct MI210", "gfx90a"),
            ("AMD Radeon VII", "gfx906"),
        ];
        for (name, gfx) in cases {
            assert_eq!(architecture_of(name), gfx.parse().ok(), "{name}");
        }
        for (name, gfx) in [
            ("Opal XT [Radeon R7 M265/M365X/M465]", "gfx602"),
            ("Sun XT [Radeon HD 8670A/8670M/8690M]", "gfx602"),
            ("Venus XT [Radeon HD 8870M / R9 M270X]", "gfx601"),
            ("Meso XT [Radeon R5 M315]", "gfx802"),
        ] {
            assert_eq!(architecture_of(name), gfx.parse().ok(), "{name}");
        }
        for name in [
            "Thames [Radeon HD 7550M/7570M/7650M]",
            "Whistler [Radeon HD 6630M/6650M/6750M]",
            "Park [Mobility Radeon HD 5430]",
            "AMD Radeon HD 7660D",
            "AMD Radeon HD 7900 Series",
            "AMD Radeon (TM) R9 200 Series",
            "AMD Radeon R4 Graphics",
            "AMD Radeon(TM) 530",
            "Radeon RX 640",
            "AMD FirePro W5000",
        ] {
            assert!(is_before_rocm(name), "{name}");
        }
        for name in [
            "AMD Radeon HD 7770",
            "Central Park",
            "AMD Radeon 610M",
            "AMD Radeon 680M",
            "AMD Radeon RX 6400",
            "AMD Radeon RX 5500 XT",
        ] {
            assert!(!is_before_rocm(name), "{name}");
        }
        // Sizes, and names of people.
        for (name, gfx) in [
            ("780M of GTT memory ready", None),
            ("NVIDIA GTX 680M", None),
            ("AMD 780M", Some("gfx1103")),
            ("Radeon Graphics 760M/780M", Some("gfx1103")),
            ("Strix [Radeon 880M / 890M]", Some("gfx1150")),
            ("AMD Radeon Pro Vega 20", Some("gfx904")),
            // Only GPUs are called so, with their letters; `5600 XT` may be a Ryzen.
            ("7900 XTX", Some("gfx1100")),
            ("Sapphire 6700XT", Some("gfx1031")),
            ("Radeon 5700XT", Some("gfx1010")),
            ("5700 XT", Some("gfx1010")),
            ("Ryzen 7 5700X", None),
            ("Ryzen 9 7900X", None),
            ("Ryzen 5 5600XT", None),
        ] {
            let gfx = gfx.and_then(|gfx| gfx.parse().ok());
            assert_eq!(architecture_of(name), gfx, "{name}");
        }
        for (name, gfx) in [
            (
                "AMD Ryzen 7 7840HS w/ Radeon 780M Graphics",
                Some("gfx1103"),
            ),
            ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", Some("gfx1151")),
            ("AMD Ryzen 9 5950X 16-Core Processor", None),
            ("AMD Ryzen 5 5600G with Radeon Graphics", Some("gfx90c")),
            ("AMD Ryzen 5 5600X 6-Core Processor", None),
            ("AMD Ryzen 7 5700U with Radeon Graphics", Some("gfx90c")),
            (
                "AMD Ryzen 5 3400G with Radeon Vega Graphics",
                Some("gfx902"),
            ),
            ("AMD Ryzen 7 6800H with Radeon Graphics", Some("gfx1035")),
            ("AMD Ryzen 5 9600X 6-Core Processor", Some("gfx1036")),
            ("AMD Ryzen 7 7800X3D 8-Core Processor", Some("gfx1036")),
            ("AMD Ryzen 5 7500F 6-Core Processor", None),
            ("AMD Ryzen 7 8745HS", Some("gfx1103")),
            ("AMD Ryzen 7 260 w/ Radeon 780M Graphics", Some("gfx1103")),
            ("AMD Ryzen AI 9 HX 370", Some("gfx1150")),
            ("AMD Ryzen AI 7 350", Some("gfx1152")),
            ("AMD Ryzen 9 3950X", None),
            ("AMD Ryzen 7 1700", None),
        ] {
            let gfx = gfx.and_then(|gfx| gfx.parse().ok());
            assert_eq!(graphics_of_processor(name), gfx, "{name}");
        }
        for other in [
            "AMD Radeon Graphics",
            "AMD Ryzen 5 7600 6-Core Processor",
            "",
            "N/A",
        ] {
            assert_eq!(architecture_of(other), None, "{other}");
        }
    }
}
