//! The Python side: which torch is installed, and for which GPUs it was built.
//!
//! Importing torch takes seconds and may crash on the machines this is for, so
//! nothing is imported: the names of the installed distributions tell the version
//! and (with AMD's multi-architecture wheels) the architectures; otherwise the
//! names of the code objects inside `libtorch_hip.so` do.

use crate::snapshot::Snapshot;
use crate::{Gfx, wheels};
use serde::Serialize;
use std::collections::BTreeMap;

/// A Python environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Python {
    /// Where it is installed.
    pub prefix: String,
    /// Installed distributions that matter to training, by normalized name.
    pub packages: BTreeMap<String, String>,
    /// The PyTorch that is installed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub torch: Option<Torch>,
    /// What `accelerate config` wrote, for all programs that start through it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub accelerate: BTreeMap<String, String>,
    /// The libraries that bitsandbytes brings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bitsandbytes: Vec<String>,
}

/// An installed torch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Torch {
    /// Its version, with the local part: `2.11.0+rocm7.2`.
    pub version: String,
    /// The device type that it computes on.
    pub build: Build,
    /// The ROCm it was built with, major and minor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rocm: Option<(u32, u32)>,
    /// The architectures it was built for; `None` when that could not be found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architectures: Option<Vec<Gfx>>,
    /// How the architectures were found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architectures_from: Option<String>,
}

/// The device type that a torch computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Build {
    /// Built for ROCm.
    Rocm,
    /// Built for CUDA.
    Cuda,
    /// Built for the CPU only.
    Cpu,
    /// The version does not show what it was built for.
    Unknown,
}

impl Torch {
    /// Whether it has native code for this architecture; `None` when not known.
    #[must_use]
    pub fn supports(&self, gfx: Gfx) -> Option<bool> {
        Some(self.architectures.as_ref()?.contains(&gfx))
    }

    /// Whether PyTorch itself published it: `+rocm7.2`, where AMD writes `+rocm7.13.0`.
    #[must_use]
    pub fn is_upstream(&self) -> bool {
        let local = self.version.split_once("+rocm").map(|(_, local)| local);
        local.is_some_and(|local| wheels::upstream_architectures(local).is_some())
    }
}

impl Python {
    /// Whether a distribution is installed, by normalized name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.packages.contains_key(name)
    }
}

/// Distributions worth knowing, by normalized name or prefix of one.
const PACKAGES: [&str; 24] = [
    "accelerate",
    "amd-torch-device-",
    "amd-torchvision-device-",
    "bitsandbytes",
    "deepspeed",
    "diffusers",
    "flash-attn",
    "peft",
    "pytorch-triton-rocm",
    "rocm",
    "rocm-sdk-",
    "torch",
    "torch-directml",
    "torchaudio",
    "torchvision",
    "transformers",
    "triton",
    "triton-rocm",
    "triton-windows",
    "trl",
    "unsloth",
    "xformers",
    "torchao",
    "pytorch-triton",
];

/// Whether a distribution is worth putting into a snapshot.
#[must_use]
pub fn is_relevant_package(normalized: &str) -> bool {
    PACKAGES
        .iter()
        .any(|known| normalized == *known || known.ends_with('-') && normalized.starts_with(known))
}

/// Name (normalized as PEP 503 says) and version from `torch-2.9.0+rocm7.2.dist-info`.
#[must_use]
pub fn distribution(folder: &str) -> Option<(String, &str)> {
    let (name, version) = folder.strip_suffix(".dist-info")?.split_once('-')?;
    let mut normalized = name.to_ascii_lowercase().replace(['_', '.'], "-");
    while normalized.contains("--") {
        normalized = normalized.replace("--", "-");
    }
    Some((normalized, version))
}

/// The Python part of a snapshot, as [`crate::python_source`] collects it.
#[must_use]
pub fn from_snapshot(snapshot: &Snapshot) -> Option<Python> {
    let prefix = snapshot.value("python/prefix")?.to_owned();
    let lines = |path: &str| snapshot.text(path).unwrap_or_default().lines();
    let packages: BTreeMap<String, String> = lines("python/packages")
        .filter_map(|line| line.split_once(' '))
        .map(|(name, version)| (name.to_owned(), version.trim().to_owned()))
        .collect();
    let version_file = snapshot.text("python/torch/version.py").unwrap_or_default();
    let device_packages: Vec<Gfx> = packages
        .keys()
        .filter_map(|name| name.strip_prefix("amd-torch-device-")?.parse().ok())
        .collect();
    let code_objects = Gfx::find_all(
        snapshot
            .text("python/torch/code_objects")
            .unwrap_or_default(),
    );
    let asked = Gfx::find_all(snapshot.text("python/torch/arch_list").unwrap_or_default());
    let torch = packages.get("torch").map(|installed| {
        let mut torch = torch(installed, version_file);
        let found = [
            (device_packages, "the installed amd-torch-device packages"),
            (
                code_objects,
                "the code objects in PyTorch's library for HIP",
            ),
            (asked, "torch.cuda.get_arch_list()"),
            (
                torch
                    .version
                    .split_once("+rocm")
                    .and_then(|(_, local)| wheels::upstream_architectures(local))
                    .unwrap_or_default(),
                "the list of what this wheel was published for",
            ),
        ];
        if let Some((architectures, from)) = found.into_iter().find(|(list, _)| !list.is_empty()) {
            torch.architectures = Some(architectures);
            torch.architectures_from = Some(from.to_owned());
        }
        torch
    });
    let accelerate = lines("python/accelerate")
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| {
            let value = value.trim().trim_matches(['\'', '"', ',']);
            (key.trim().trim_matches('"').to_owned(), value.to_owned())
        })
        .collect();
    let bitsandbytes = lines("python/bitsandbytes").map(str::to_owned).collect();
    Some(Python {
        prefix,
        packages,
        torch,
        accelerate,
        bitsandbytes,
    })
}

/// Reads the version of the distribution and `torch/version.py`, which knows more:
/// a wheel from PyPI has no local part and may be for CUDA or for no GPU.
fn torch(installed: &str, version_file: &str) -> Torch {
    let assigned = |name: &str| {
        version_file.lines().find_map(|line| {
            let (left, value) = line.split_once('=')?;
            let left = left.split(':').next()?.trim();
            (left == name).then(|| value.trim().trim_matches(['\'', '"']).to_owned())
        })
    };
    let known = |name: &str| assigned(name).filter(|value| value != "None");
    let version = known("__version__").unwrap_or_else(|| installed.to_owned());
    let local = version
        .split_once('+')
        .map(|(_, local)| local)
        .unwrap_or_default();
    let rocm = known("rocm")
        .or_else(|| known("hip"))
        .or_else(|| local.strip_prefix("rocm").map(str::to_owned));
    let build = if rocm.is_some() {
        Build::Rocm
    } else if known("cuda").is_some() || local.starts_with("cu") {
        Build::Cuda
    } else if local == "cpu" || assigned("cuda").is_some() {
        Build::Cpu
    } else {
        Build::Unknown
    };
    // The local part is the version of ROCm; `hip` counts its patches differently.
    let rocm = local
        .strip_prefix("rocm")
        .or(rocm.as_deref())
        .and_then(wheels::major_minor);
    Torch {
        version,
        build,
        rocm,
        architectures: None,
        architectures_from: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn environment(packages: &str, more: &str) -> Torch {
        let text = format!("== python/prefix\n/venv\n== python/packages\n{packages}\n{more}");
        from_snapshot(&Snapshot::parse(&text))
            .and_then(|python| python.torch)
            .expect("a torch")
    }

    #[test]
    fn names_of_folders_become_distributions() {
        assert_eq!(
            distribution("torch-2.9.0+rocm7.2.dist-info"),
            Some(("torch".into(), "2.9.0+rocm7.2"))
        );
        assert_eq!(
            distribution("amd_torch_device_gfx1151-1.0.dist-info"),
            Some(("amd-torch-device-gfx1151".into(), "1.0"))
        );
        assert_eq!(distribution("torch"), None);
    }

    #[test]
    fn device_packages_are_the_best_source() {
        let torch = environment(
            "torch 2.13.0+rocm7.14.0\namd-torch-device-gfx1151 1\namd-torch-device-gfx1031 1",
            "== python/torch/code_objects\ngfx942\n",
        );
        assert_eq!(torch.supports(Gfx::new(11, 5, 1)), Some(true));
        assert_eq!(torch.supports(Gfx::new(9, 4, 2)), Some(false));
        assert!(!torch.is_upstream());
        assert_eq!(torch.rocm, Some((7, 14)));
    }

    #[test]
    fn an_upstream_wheel_is_known_by_its_version() {
        let torch = environment("torch 2.11.0+rocm7.2", "");
        assert!(torch.is_upstream());
        assert_eq!(torch.supports(Gfx::new(11, 5, 1)), Some(true));
        assert_eq!(torch.supports(Gfx::new(10, 3, 1)), Some(false));
    }

    #[test]
    fn a_wheel_without_local_part_is_told_by_its_version_file() {
        let file = |cuda: &str, hip: &str| {
            format!(
                "== python/torch/version.py\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"
            )
        };
        assert_eq!(
            environment("torch 2.13.0", &file("'13.0'", "None")).build,
            Build::Cuda
        );
        assert_eq!(
            environment("torch 2.13.0", &file("None", "None")).build,
            Build::Cpu
        );
        assert_eq!(
            environment("torch 2.13.0", &file("None", "'7.2.26015'")).build,
            Build::Rocm
        );
        assert_eq!(environment("torch 2.13.0", "").build, Build::Unknown);
    }

    proptest! {
        #[test]
        fn never_panics(a in "\\PC*", b in "(\\PC|\n)*") {
            let _ = distribution(&a);
            let _ = torch(&a, &b);
        }
    }
}
