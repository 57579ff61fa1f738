//! What Windows says of its GPUs: its display adapters, and HIP as far as it is there.

use crate::Bytes;
use crate::pci::{self, DeviceId};
use serde::Serialize;

/// What Windows says of its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Windows {
    /// Its display adapters, those of other vendors and of remote desktops too.
    pub adapters: Vec<Adapter>,
    /// Whether HIP's own list could be had.
    pub hipinfo: HipInfo,
    /// The files `amdhip64*.dll`, in the order in which a program that names no folder finds them.
    pub runtimes: Vec<String>,
}

/// A display adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Adapter {
    /// The name that its driver gives it.
    pub name: String,
    /// The vendor of the driver.
    pub provider: Option<String>,
    /// Version of the driver, as in `32.0.12033.1030`.
    pub driver: Option<String>,
    /// Version of the driver's package (Adrenalin), as in `24.12.1`.
    pub release: Option<String>,
    /// PCI vendor id.
    #[serde(skip)]
    pub vendor: Option<DeviceId>,
    /// PCI device id.
    pub device_id: Option<DeviceId>,
    /// Its own memory.
    pub memory: Option<Bytes>,
}

/// Whether `hipInfo` could be run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HipInfo {
    /// It was not found in the usual places.
    #[default]
    Missing,
    /// It ended without a list.
    Failed {
        /// Which file.
        program: String,
        /// Its output, or how it ended.
        reason: String,
    },
    /// It listed the GPUs.
    Listed,
}

impl Adapter {
    /// Whether it is a GPU of AMD.
    #[must_use]
    pub fn is_amd(&self) -> bool {
        match self.vendor {
            Some(vendor) => vendor == DeviceId(pci::AMD),
            None => self.has_driver_of_amd(),
        }
    }

    /// Whether AMD's driver runs it, rather than the generic display driver of Windows.
    #[must_use]
    pub fn has_driver_of_amd(&self) -> bool {
        let provider = self.provider.as_deref().unwrap_or_default();
        provider.contains("Advanced Micro Devices") || provider.starts_with("AMD")
    }
}
