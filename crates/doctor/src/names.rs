//! Which chip a name refers to: codenames of the kernel and of the PCI id database, and
//! product names.
//!
//! This is the last resort, after the architecture itself and the device id: `amd-smi`'s
//! table and old versions of `rocm-smi` print nothing else.

use crate::pattern::{self, Patterns, patterns};
use platform::Gfx;
use platform::pci::DeviceId;
use regex::Regex;
use std::sync::LazyLock;

/// Pattern and architecture; if two match, the earlier one is more specific.
/// Sources: the device tables of the amdgpu driver, the PCI id database, LLVM's AMDGPU
/// usage page. Card numbers need their `RX`: a `7600` alone is as often a processor.
const NAMES: &[(&str, (u8, u8, u8))] = &[
    (r"\bMI35[05]", (9, 5, 0)),
    (r"\bMI300|\bMI308|\bMI325|Aqua ?Vanjaram", (9, 4, 2)),
    (r"\bMI2[15]0|\bMI200|Aldebaran", (9, 0, 10)),
    (r"\bMI100|Arcturus", (9, 0, 8)),
    (r"Vega ?12\b|Pro Vega (?:16|20)\b", (9, 0, 4)),
    (
        r"Radeon (?:Pro )?VII\b|\bMI[56]0\b|Vega ?20\b|Pro Vega II\b",
        (9, 0, 6),
    ),
    (
        r"Vega ?(?:10|56|64)\b|RX Vega\b(?: 56| 64|$)|Vega Frontier|\bMI25\b|WX ?8200|WX ?9100|\bV340",
        (9, 0, 0),
    ),
    (r"Renoir|Cezanne|Lucienne|Barcelo", (9, 0, 12)),
    (
        r"Raven|Picasso|Vega ?(?:3|6|8|9|10|11) (?:Mobile|Graphics)",
        (9, 0, 2),
    ),
    (
        r"(?:RX|Radeon) ?5[67]00|\b5700 ?XT\b|W5700|Navi ?10\b",
        (10, 1, 0),
    ),
    (r"Navi ?12\b|Pro 5600M|Pro V520\b", (10, 1, 1)),
    (r"RX ?5[35]00|W5500|Pro 5[35]00|Navi ?14\b", (10, 1, 2)),
    (r"BC-?250|Cyan ?Skillfish", (10, 1, 3)),
    // The mobile cards of this generation are a size smaller than their numbers.
    (r"RX ?6[78]50M|RX ?6[78]00M", (10, 3, 1)),
    (r"RX ?6[67]50S|RX ?6[678]00S|RX ?66[05]0M", (10, 3, 2)),
    (
        r"RX ?6[89]00|RX ?6950|\b(?:6[89]00|6950) ?XT\b|\bW6[89]00|Pro V620\b|Navi ?21\b|Sienna[ _]Cichlid",
        (10, 3, 0),
    ),
    (
        r"RX ?67[05]0|\b67[05]0 ?XT\b|Navi ?22\b|Navy[ _]Flounder",
        (10, 3, 1),
    ),
    (
        r"RX ?66[05]0|\b66[05]0 ?XT\b|W6600|Navi ?23\b|Dimgrey[ _]Cavefish",
        (10, 3, 2),
    ),
    (
        r"RX ?6[345][05]0|W6[345]00|Navi ?24\b|Beige[ _]Goby",
        (10, 3, 4),
    ),
    (
        r"Steam ?Deck|Van ?Gogh|Custom GPU 0(?:405|932)|Custom APU 0(?:405|932)",
        (10, 3, 3),
    ),
    (
        r"Radeon[^,;:]{0,24}\b6[68]0M\b|^(?:AMD )?6[68]0M(?:$| ?\(| aka\b)|\b6[68]0M Graphics|Rembrandt|Yellow[ _]Carp",
        (10, 3, 5),
    ),
    (
        r"Radeon[^,;:]{0,24}\b610M\b|^(?:AMD )?610M(?:$| ?\(| aka\b)|Raphael|Granite ?Ridge|Mendocino",
        (10, 3, 6),
    ),
    (
        r"RX ?7900|\b7900 ?(?:XTX|XT|GRE)\b|W7[89]00|Navi ?31\b",
        (11, 0, 0),
    ),
    (
        r"RX ?7800|RX ?7700(?: ?XT)?\b|\b7[78]00 ?XT\b|\bW7700|Pro V710\b|Navi ?32\b",
        (11, 0, 1),
    ),
    (
        r"RX ?7[67][05]0|RX ?7400\b|\b7600 ?XT\b|\bW7[456]00|Navi ?33\b",
        (11, 0, 2),
    ),
    (
        r"Radeon[^,;:]{0,24}\b7[468]0M\b|^(?:AMD )?7[468]0M(?:$| ?\(| aka\b)|\b7[468]0M (?:Graphics|APU|iGPU)|Phoenix|PHXGENERIC|Hawk ?Point|Ryzen Z1",
        (11, 0, 3),
    ),
    (
        r"\b80[456][05]S\b|AI MAX|Strix[ _]?Halo|STRXLGEN|Framework Desktop",
        (11, 5, 1),
    ),
    (
        r"Radeon[^,;:]{0,24}\b8[89]0M\b|^(?:AMD )?8[89]0M(?:$| ?\(| aka\b)|\b8[89]0M (?:Graphics|APU|iGPU)|Strix ?Point|^Strix$",
        (11, 5, 0),
    ),
    (
        r"Radeon[^,;:]{0,24}\b8[46]0M\b|^(?:AMD )?8[46]0M(?:$| ?\(| aka\b)|Krackan",
        (11, 5, 2),
    ),
    (
        r"Radeon[^,;:]{0,24}\b820M\b|^(?:AMD )?820M(?:$| ?\(| aka\b)",
        (11, 5, 3),
    ),
    (r"RX ?9060|\b9060 ?XT\b|Navi ?44\b", (12, 0, 0)),
    (
        r"RX ?9070|\b9070 ?(?:XT|GRE)\b|Radeon AI PRO\b|AI PRO R9[67]00|\bR9[67]00\b|Navi ?48\b",
        (12, 0, 1),
    ),
    // Before Vega. Numbers were used again and again: the family must be named with them.
    (
        r"Polaris|Ellesmere|Baffin|Lexa\b|RX ?(?:4[678]0|5[456789]0)\b|RX ?5[456789]0X|RX ?Vega M|Vega M G|WX ?(?:2100|3[12]00|4100|5100|7100)|Pro 4[56]0|Pro 5[567]0\b|\bFiji\b|R9 ?(?:Fury|Nano)|\bFury X\b|Pro Duo",
        (8, 0, 3),
    ),
    (
        r"Tonga|Amethyst|Antigua|R9 ?(?:285|380|M39[05])|Iceland|Topaz|\b(?:Meso|Weston) (?:XT|PRO|LE|\[)|WX? ?7100 M",
        (8, 0, 2),
    ),
    (r"Carrizo|Bristol ?Ridge", (8, 0, 1)),
    (r"Stoney", (8, 1, 0)),
    (r"Hawaii|Grenada|R9 ?(?:290|390|295)|W[89]100", (7, 0, 1)),
    (
        r"Bonaire|Tobago|\bSaturn (?:XT|PRO|\[)|R7 ?(?:260|360)|HD ?7790",
        (7, 0, 4),
    ),
    (
        r"Kaveri|Spectre|Godavari|A\d+-[78]\d{3}B?\b|R7 Graphics|R5 Graphics",
        (7, 0, 0),
    ),
    (r"Kabini|Mullins|Temash", (7, 0, 3)),
    (r"Tahiti|R9 ?280|HD ?79[579]0|HD ?8990", (6, 0, 0)),
    (
        r"Pitcairn|Cape ?Verde|Curacao|Wimbledon|Heathrow|\b(?:Chelsea|Neptune|Venus|Trinidad|Tropo|Strato) (?:XT|PRO|LE|\[)|R9 ?270|R7 ?(?:250X|265)|HD ?7[78][0-9]0|HD ?88[0-9]0",
        (6, 0, 1),
    ),
    (
        r"Oland|Hainan|\b(?:Mars|Opal|Litho|Sun|Jet|Exo|Banks) (?:XT|PRO|LE|LP|\[)|R[57] ?2[345]0\b|HD ?8[56][0-9]0|R5 ?M\d30|HD 8800",
        (6, 0, 2),
    ),
];

patterns! {
    /// TeraScale, before 2012, which ROCm never knew and which has no name of an architecture; and names of
    /// whole families from before Vega.
    BEFORE_ROCM = r"(?i)TeraScale|\b(?:Cedar|Redwood|Juniper|Cypress|Hemlock|Caicos|Turks|Barts|Cayman|Antilles|Palm|(?:Super)?Sumo|Wrestler|Trinity|Richland|Devastator|Scrapper|Loveland|Thames|Whistler|Seymour|Blackcomb|Lombok|Robson|Granville|Pinewood|Capilano|RV\d{3}|RS\d{3})\b|\b(?:Park|Madison|Broadway|Onega) (?:XT|PRO|LP|\[)|\bHD ?[2-6]\d{3}[GMD]?\b|\bHD ?7[3-6]\d{2}[GMDA]?\b|\bHD ?[78]\d{3}|\bR[2-9] (?:M?[234]\d\d|Graphics|Series)|Radeon(?: ?\(TM\)|™)? (?:RX )?(?:5[1-5][05]X?|6[0-4][05])\b|\bFirePro\b";
}

/// Whether a name is that of a GPU from before Vega, whose architecture it does not tell.
pub(crate) fn is_before_rocm(name: &str) -> bool {
    BEFORE_ROCM.is_match(name) && architecture_of(name).is_none()
}

static COMPILED: LazyLock<Patterns<Regex>> =
    LazyLock::new(|| Patterns::new(NAMES.iter().map(|(pattern, _)| *pattern), in_any_case));

/// Constant patterns: a test compiles every one of them.
fn in_any_case(pattern: &str) -> Option<Regex> {
    Regex::new(&format!("(?i){pattern}")).ok()
}

/// The architecture of the chip that a name, or a text with one, means.
pub(crate) fn architecture_of(name: &str) -> Option<Gfx> {
    let (_, (major, minor, stepping)) = NAMES[COMPILED.first_match(name)?];
    Some(Gfx::new(major, minor, stepping))
}

/// The architecture of a GPU by its device id, or else by its name.
pub(crate) fn architecture_by(device_id: Option<DeviceId>, name: Option<&str>) -> Option<Gfx> {
    let named = || name.and_then(architecture_of);
    device_id.and_then(DeviceId::gfx).or_else(named)
}

/// Models of processors and the graphics in them; those of desktop processors only drive displays.
/// Source: AMD's product pages. A model with an F at its end has none.
const PROCESSORS: &[(&str, (u8, u8, u8))] = &[
    (r"[23]\d{3}(?:GE?|U|H|C)\b", (9, 0, 2)),
    (
        r"(?:4[3-9]|5[1-9])\d\d(?:GE?|U|HS?|HX|C)\b|7[3-7]30U\b",
        (9, 0, 12),
    ),
    (r"(?:6[6-9]\d\d|7[57]35)(?:U|HS?|HX)\b", (10, 3, 5)),
    (
        r"7[1-5]20[UC]\b|7[6-9]\d0(?:X(?:3D)?)?(?: |$)|7[679]45HX|9[6-9][05]0(?:X(?:3D)?)?(?: |$)|9[89]5[05]HX",
        (10, 3, 6),
    ),
    (
        r"7[4-9]40(?:U|HS?|HX)\b|8[4-9]4[05](?:U|HS?)\b|8[3-7]00GE?\b|2[0-7]0(?: |$)",
        (11, 0, 3),
    ),
    (r"(?:HX )?3(?:65|70|75)\b", (11, 5, 0)),
    (r"3[45]0\b", (11, 5, 2)),
];

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
    [
        "vmware",
        "svga ii",
        "virtio",
        "qxl",
        "1234:1111",
        "bochs",
        "cirrus",
        "hyper-v",
    ]
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
