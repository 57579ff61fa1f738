//! PCI addresses, and the product names for device ids.
//!
//! Drivers name half of the consumer cards "AMD Radeon Graphics". The device id, together with the number of
//! compute units, identifies the product; and on kernels whose KFD has no `gfx_target_version` it identifies
//! the architecture.

use crate::gfx::Gfx;
use serde::{Serialize, Serializer};
use std::fmt;

/// The PCI vendor id of AMD.
pub const AMD: u16 = 0x1002;

/// A PCI address, such as `0000:c5:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// PCI domain number.
    pub domain: u32,
    /// PCI bus number.
    pub bus: u8,
    /// Device, up to 31.
    pub device: u8,
    /// Function, up to 7; in partition modes KFD puts the partition number here.
    pub function: u8,
}

impl PciAddress {
    /// From `location_id` of KFD or `BDFID` of rocminfo: `bus << 8 | device << 3 | function`.
    #[must_use]
    pub fn from_location_id(domain: u32, location: u64) -> Self {
        let [.., bus, rest] = location.to_be_bytes();
        Self {
            domain,
            bus,
            device: rest >> 3,
            function: rest & 7,
        }
    }

    /// Parses `0000:C3:00.0`, and `c3:00.0` without a domain.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let hex = |digits: &str| u32::from_str_radix(digits, 16).ok();
        let (head, function) = text.rsplit_once('.')?;
        let mut parts = head.rsplit(':');
        let device = u8::try_from(hex(parts.next()?)?)
            .ok()
            .filter(|&device| device < 32)?;
        let bus = u8::try_from(hex(parts.next()?)?).ok()?;
        let domain = parts.next().map_or(Some(0), hex)?;
        let function = u8::try_from(hex(function)?)
            .ok()
            .filter(|&function| function < 8)?;
        parts.next().is_none().then_some(Self {
            domain,
            bus,
            device,
            function,
        })
    }

    /// The address of the whole card in sysfs.
    #[must_use]
    pub fn whole_card(self) -> Self {
        Self {
            function: 0,
            ..self
        }
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, self.device, self.function
        )
    }
}

impl Serialize for PciAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An AMD PCI device id, such as `0x1586`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

impl DeviceId {
    /// Reads `0x1586`, or the same in decimal as KFD writes it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => u16::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
        .filter(|&id| id != 0)
        .map(Self)
    }

    /// Reads hexadecimal digits without a prefix, as `lspci -nn` prints them.
    #[must_use]
    pub fn from_hex(digits: &str) -> Option<Self> {
        u16::from_str_radix(digits, 16).ok().map(Self)
    }

    /// The architecture of the chip.
    #[must_use]
    pub fn gfx(self) -> Option<Gfx> {
        let (major, minor, stepping) = match self.row() {
            Some(row) => row.1,
            None => self.family()?.2,
        };
        Some(Gfx::new(major, minor, stepping))
    }

    /// The product name; the number of compute units distinguishes siblings.
    #[must_use]
    pub fn product(self, compute_units: Option<u32>) -> Option<&'static str> {
        let sibling = compute_units.and_then(|units| {
            SIBLINGS
                .iter()
                .find(|(id, cus, _)| *id == self.0 && *cus == units)
                .map(|(.., name)| *name)
        });
        sibling
            .or_else(|| self.row().map(|row| row.2))
            .or_else(|| self.family().map(|family| family.3))
    }

    /// Whether it is the APU version of a chip that is sold as both.
    #[must_use]
    pub fn is_mi300a(self) -> bool {
        self.0 == 0x74a0
    }

    fn row(self) -> Option<&'static (u16, (u8, u8, u8), &'static str)> {
        DEVICES.iter().find(|(id, ..)| *id == self.0)
    }

    fn family(self) -> Option<&'static Family> {
        FAMILIES
            .iter()
            .find(|(first, last, ..)| (*first..=*last).contains(&self.0))
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Device id, architecture, product. Sources: the public PCI id database and the
/// device tables of the amdgpu driver.
const DEVICES: &[(u16, (u8, u8, u8), &str)] = &[
    (0x1435, (10, 3, 3), "Steam Deck OLED (Van Gogh)"),
    (0x163f, (10, 3, 3), "Steam Deck (Van Gogh)"),
    (0x1636, (9, 0, 12), "Ryzen 4000 APU (Renoir)"),
    (0x1638, (9, 0, 12), "Ryzen 5000 APU (Cezanne)"),
    (0x164c, (9, 0, 12), "Ryzen 5000 APU (Lucienne)"),
    (0x15e7, (9, 0, 12), "Ryzen 5000 APU (Barcelo)"),
    (0x15dd, (9, 0, 2), "Ryzen 2000 APU (Raven Ridge)"),
    (0x15d8, (9, 0, 2), "Ryzen 3000 APU (Picasso)"),
    (0x1681, (10, 3, 5), "Radeon 660M/680M (Rembrandt)"),
    (0x164e, (10, 3, 6), "Ryzen 7000 desktop graphics (Raphael)"),
    (
        0x13c0,
        (10, 3, 6),
        "Ryzen 9000 desktop graphics (Granite Ridge)",
    ),
    (0x15bf, (11, 0, 3), "Radeon 760M/780M (Phoenix)"),
    (0x15c8, (11, 0, 3), "Radeon 740M (Phoenix)"),
    (0x1900, (11, 0, 3), "Radeon 760M/780M (Hawk Point)"),
    (0x1901, (11, 0, 3), "Radeon 740M (Hawk Point)"),
    (0x150e, (11, 5, 0), "Radeon 880M/890M (Strix Point)"),
    (0x1586, (11, 5, 1), "Radeon 8040S/8050S/8060S (Strix Halo)"),
    (0x1114, (11, 5, 2), "Radeon 840M/860M (Krackan)"),
    (0x687f, (9, 0, 0), "Radeon RX Vega 56/64"),
    (0x6860, (9, 0, 0), "Instinct MI25 (Vega 10)"),
    (0x6861, (9, 0, 0), "Radeon Pro WX 9100"),
    (0x6862, (9, 0, 0), "Radeon Pro SSG"),
    (0x6863, (9, 0, 0), "Radeon Vega Frontier Edition"),
    (0x6864, (9, 0, 0), "Radeon Pro V340"),
    (0x6868, (9, 0, 0), "Radeon Pro WX 8200"),
    (0x66a0, (9, 0, 6), "Instinct MI50/MI60"),
    (0x66a1, (9, 0, 6), "Instinct MI50/MI60"),
    (0x66af, (9, 0, 6), "Radeon VII"),
    (0x738c, (9, 0, 8), "Instinct MI100"),
    (0x738e, (9, 0, 8), "Instinct MI100"),
    (0x7408, (9, 0, 10), "Instinct MI250X"),
    (0x740c, (9, 0, 10), "Instinct MI250/MI250X"),
    (0x740f, (9, 0, 10), "Instinct MI210"),
    (0x74a0, (9, 4, 2), "Instinct MI300A"),
    (0x74a1, (9, 4, 2), "Instinct MI300X"),
    (0x74a2, (9, 4, 2), "Instinct MI308X"),
    (0x74a5, (9, 4, 2), "Instinct MI325X"),
    (0x74a9, (9, 4, 2), "Instinct MI300X HF"),
    (0x75a0, (9, 5, 0), "Instinct MI350X"),
    (0x75a3, (9, 5, 0), "Instinct MI355X"),
    (0x731f, (10, 1, 0), "Radeon RX 5600/5700"),
    (0x7360, (10, 1, 1), "Radeon Pro 5600M"),
    (0x7340, (10, 1, 2), "Radeon RX 5500"),
    (0x73a2, (10, 3, 0), "Radeon Pro W6900X"),
    (0x73a3, (10, 3, 0), "Radeon Pro W6800"),
    (0x73a5, (10, 3, 0), "Radeon RX 6950 XT"),
    (0x73af, (10, 3, 0), "Radeon RX 6900 XT"),
    (0x73bf, (10, 3, 0), "Radeon RX 6800/6800 XT/6900 XT"),
    (
        0x73df,
        (10, 3, 1),
        "Radeon RX 6700 XT/6750 XT/6750 GRE 12GB",
    ),
    (0x73e3, (10, 3, 2), "Radeon Pro W6600"),
    (0x73ef, (10, 3, 2), "Radeon RX 6650 XT"),
    (0x73ff, (10, 3, 2), "Radeon RX 6600/6600 XT"),
    (0x7422, (10, 3, 4), "Radeon Pro W6400"),
    (0x743f, (10, 3, 4), "Radeon RX 6400/6500 XT"),
    (0x7448, (11, 0, 0), "Radeon Pro W7900"),
    (0x744a, (11, 0, 0), "Radeon Pro W7900 Dual Slot"),
    (0x744c, (11, 0, 0), "Radeon RX 7900 XT/XTX/GRE"),
    (0x745e, (11, 0, 0), "Radeon Pro W7800"),
    (0x7470, (11, 0, 1), "Radeon Pro W7700"),
    (0x747e, (11, 0, 1), "Radeon RX 7700 XT/7800 XT"),
    (0x7480, (11, 0, 2), "Radeon RX 7600/7600 XT"),
    (0x7483, (11, 0, 2), "Radeon RX 7600M"),
    (0x7590, (12, 0, 0), "Radeon RX 9060 XT"),
    (0x7550, (12, 0, 1), "Radeon RX 9070/9070 XT"),
    (0x7551, (12, 0, 1), "Radeon AI PRO R9700"),
];

/// First and last device id of a chip, architecture, name.
type Family = (u16, u16, (u8, u8, u8), &'static str);

/// Ranges for ids that are not listed individually, from the driver's tables.
const FAMILIES: &[Family] = &[
    (0x1304, 0x131d, (7, 0, 0), "A-series APU (Kaveri)"),
    (0x9830, 0x985f, (7, 0, 3), "A-series APU (Kabini, Mullins)"),
    (0x9870, 0x9877, (8, 0, 1), "A-series APU (Carrizo)"),
    (0x98e4, 0x98e4, (8, 1, 0), "A-series APU (Stoney)"),
    (
        0x6600,
        0x6631,
        (6, 0, 2),
        "Radeon HD 8500/8600/R7 240/250 (Oland)",
    ),
    (0x6640, 0x665f, (7, 0, 4), "Radeon R7 260/360 (Bonaire)"),
    (0x6660, 0x667f, (6, 0, 2), "Radeon HD 8500M/R5 M (Hainan)"),
    (
        0x66a0,
        0x66af,
        (9, 0, 6),
        "Instinct MI50/MI60, Radeon Pro VII (Vega 20)",
    ),
    (0x6780, 0x679f, (6, 0, 0), "Radeon HD 7900/R9 280 (Tahiti)"),
    (0x67a0, 0x67be, (7, 0, 1), "Radeon R9 290/390 (Hawaii)"),
    (
        0x67c0,
        0x67df,
        (8, 0, 3),
        "Radeon RX 470/480/570/580 (Polaris 10)",
    ),
    (
        0x67e0,
        0x67ff,
        (8, 0, 3),
        "Radeon RX 460/550/560 (Polaris 11)",
    ),
    (
        0x6800,
        0x681f,
        (6, 0, 1),
        "Radeon HD 7800/R9 270 (Pitcairn)",
    ),
    (
        0x6820,
        0x683f,
        (6, 0, 1),
        "Radeon HD 7700/R7 250X (Cape Verde)",
    ),
    (
        0x6860,
        0x687f,
        (9, 0, 0),
        "Radeon RX Vega, Instinct MI25 (Vega 10)",
    ),
    (0x6900, 0x6907, (8, 0, 2), "Radeon R7 M (Iceland)"),
    (0x6920, 0x693f, (8, 0, 2), "Radeon R9 285/380 (Tonga)"),
    (0x694c, 0x694f, (8, 0, 3), "Radeon RX Vega M (Polaris 22)"),
    (
        0x6980,
        0x699f,
        (8, 0, 3),
        "Radeon RX 540/550, WX 2100/3100 (Polaris 12)",
    ),
    (0x69a0, 0x69af, (9, 0, 4), "Radeon Pro Vega 16/20 (Vega 12)"),
    (
        0x6fdf,
        0x6fdf,
        (8, 0, 3),
        "Radeon RX 580 2048SP (Polaris 20)",
    ),
    (0x7300, 0x730f, (8, 0, 3), "Radeon R9 Fury/Nano (Fiji)"),
    (0x7310, 0x731f, (10, 1, 0), "Radeon RX 5600/5700 (Navi 10)"),
    (0x7340, 0x734f, (10, 1, 2), "Radeon RX 5300/5500 (Navi 14)"),
    (0x7360, 0x7362, (10, 1, 1), "Radeon Pro 5600M (Navi 12)"),
    (0x7388, 0x7390, (9, 0, 8), "Instinct MI100"),
    (0x73a0, 0x73bf, (10, 3, 0), "Radeon RX 6800/6900 (Navi 21)"),
    (0x73c0, 0x73df, (10, 3, 1), "Radeon RX 6700 (Navi 22)"),
    (0x73e0, 0x73ff, (10, 3, 2), "Radeon RX 6600 (Navi 23)"),
    (0x7408, 0x7410, (9, 0, 10), "Instinct MI200"),
    (0x7420, 0x743f, (10, 3, 4), "Radeon RX 6400/6500 (Navi 24)"),
    (0x7440, 0x745f, (11, 0, 0), "Radeon RX 7900 (Navi 31)"),
    (0x7460, 0x747f, (11, 0, 1), "Radeon RX 7700/7800 (Navi 32)"),
    (0x7480, 0x749f, (11, 0, 2), "Radeon RX 7600/7700S (Navi 33)"),
    (0x74a1, 0x74bd, (9, 4, 2), "Instinct MI300"),
    (0x7550, 0x755f, (12, 0, 1), "Radeon RX 9070 (Navi 48)"),
    (0x7590, 0x759f, (12, 0, 0), "Radeon RX 9060 (Navi 44)"),
    (0x75a0, 0x75b3, (9, 5, 0), "Instinct MI350"),
    (0x13fe, 0x13fe, (10, 1, 3), "AMD BC-250"),
    (0x164d, 0x164d, (10, 3, 5), "Radeon 660M/680M (Rembrandt)"),
    (0x1506, 0x1506, (10, 3, 6), "Radeon 610M (Mendocino)"),
];

/// Device id and number of compute units that identify a single product.
const SIBLINGS: &[(u16, u32, &str)] = &[
    (0x1586, 40, "Radeon 8060S (Strix Halo)"),
    (0x1586, 32, "Radeon 8050S (Strix Halo)"),
    (0x1586, 16, "Radeon 8040S (Strix Halo)"),
    (0x15bf, 12, "Radeon 780M (Phoenix)"),
    (0x15bf, 8, "Radeon 760M (Phoenix)"),
    (0x1900, 12, "Radeon 780M (Hawk Point)"),
    (0x1900, 8, "Radeon 760M (Hawk Point)"),
    (0x150e, 16, "Radeon 890M (Strix Point)"),
    (0x150e, 12, "Radeon 880M (Strix Point)"),
    (0x1681, 12, "Radeon 680M (Rembrandt)"),
    (0x1681, 6, "Radeon 660M (Rembrandt)"),
    (0x687f, 64, "Radeon RX Vega 64"),
    (0x687f, 56, "Radeon RX Vega 56"),
    (0x73bf, 80, "Radeon RX 6900 XT"),
    (0x73bf, 72, "Radeon RX 6800 XT"),
    (0x73bf, 60, "Radeon RX 6800"),
    (0x744c, 96, "Radeon RX 7900 XTX"),
    (0x744c, 84, "Radeon RX 7900 XT"),
    (0x744c, 80, "Radeon RX 7900 GRE"),
    (0x747e, 60, "Radeon RX 7800 XT"),
    (0x747e, 54, "Radeon RX 7700 XT"),
    (0x7550, 64, "Radeon RX 9070 XT"),
    (0x7550, 56, "Radeon RX 9070"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gfx;
    use proptest::prelude::*;

    #[test]
    fn location_ids_become_addresses() {
        assert_eq!(
            PciAddress::from_location_id(0, 50432).to_string(),
            "0000:c5:00.0"
        );
        assert_eq!(
            PciAddress::from_location_id(1, 2819).to_string(),
            "0001:0b:00.3"
        );
    }

    #[test]
    fn reads_addresses_in_any_case() {
        let address = PciAddress::parse("0000:C3:00.0").expect("an address");
        assert_eq!(address.to_string(), "0000:c3:00.0");
        assert_eq!(PciAddress::parse("c3:00.0"), Some(address));
        for wrong in [
            "",
            "c3",
            "0000:c3:00",
            "1:2:3:4.5",
            "0000:c3:20.0",
            "0000:c3:00.8",
        ] {
            assert_eq!(PciAddress::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn compute_units_tell_siblings_apart() {
        assert_eq!(
            DeviceId(0x744c).product(Some(84)),
            Some("Radeon RX 7900 XT")
        );
        assert_eq!(
            DeviceId(0x744c).product(None),
            Some("Radeon RX 7900 XT/XTX/GRE")
        );
    }

    #[test]
    fn an_id_that_is_not_listed_has_the_architecture_of_its_chip() {
        let gfx = |id| DeviceId(id).gfx().map(|gfx| gfx.to_string());
        assert_eq!(gfx(0x67ef).as_deref(), Some("gfx803"));
        assert_eq!(gfx(0x73e1).as_deref(), Some("gfx1032"));
        assert_eq!(gfx(0x1234), None);
    }

    #[test]
    fn every_device_has_an_architecture_we_know() {
        for (id, (major, minor, stepping), _) in DEVICES {
            let gfx = Gfx::new(*major, *minor, *stepping);
            assert!(
                gfx::known().iter().any(|known| known.gfx == gfx),
                "{id:#x} {gfx}"
            );
        }
        for (first, last, (major, minor, stepping), _) in FAMILIES {
            let gfx = Gfx::new(*major, *minor, *stepping);
            assert!(
                gfx.architecture().is_some() && first <= last,
                "{first:#x} {gfx}"
            );
        }
        for (id, ..) in SIBLINGS {
            assert!(DeviceId(*id).gfx().is_some(), "{id:#x}");
        }
    }

    proptest! {
        #[test]
        fn addresses_round_trip(domain in 0..0x1_0000u32, location: u16) {
            let address = PciAddress::from_location_id(domain, location.into());
            prop_assert_eq!(PciAddress::parse(&address.to_string()), Some(address));
        }

        #[test]
        fn parsing_never_panics(text in "[0-9a-f:.\\PC]{0,16}") {
            let _ = PciAddress::parse(&text);
            let _ = DeviceId::parse(&text);
        }
    }
}
