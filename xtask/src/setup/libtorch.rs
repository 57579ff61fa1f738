//! Which libtorch the workspace builds against.
//!
//! In this order: the folder that `LIBTORCH` is set to; the torch package of the active
//! Python environment, which is how a ROCm or a CUDA build is used; a slim CPU libtorch
//! in the cache, extracted from PyPI's wheels.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::cache::Cache;
use super::cargo_config;
use super::pins::{self, LibtorchWheels, RELEASES, Release, versions};
use super::{archive, fetch, python};

/// In this order: newer releases define the version numbers in the first, older ones in the second.
const VERSION_HEADERS: [&str; 2] = [
    "include/torch/headeronly/version.h",
    "include/torch/csrc/api/include/torch/version.h",
];

/// A libtorch of the right version, with headers.
#[derive(Debug)]
pub(crate) struct Libtorch {
    /// The folder that contains `include` and `lib`.
    pub(crate) root: PathBuf,
    pub(crate) source: Source,
    pub(crate) release: &'static Release,
    accelerator: Accelerator,
}

/// How the libtorch was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Source {
    /// The environment variable `LIBTORCH`, now or when an earlier setup ran.
    Variable,
    /// This Python interpreter.
    Python(PathBuf),
    /// The cache folder.
    Cache,
}

/// The accelerator that a build of libtorch supports.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Accelerator {
    Hip,
    Cuda,
    None,
}

/// Finds the libtorch to use; creates the cached one if there is no other.
pub(crate) fn ensure(cache: &Cache) -> Result<Libtorch> {
    if let Some(root) = cargo_config::libtorch_of_user() {
        return inspect(&root, Source::Variable)
            .with_context(|| format!("LIBTORCH is set to `{}`", root.display()));
    }
    if let Some((python, root)) = python::active_torch() {
        match inspect(&root, Source::Python(python.clone())) {
            Ok(libtorch) => return Ok(libtorch),
            Err(error) => eprintln!("the torch of `{}` is not used: {error:#}", python.display()),
        }
    }
    inspect(&cached(cache, &RELEASES[0])?, Source::Cache)
}

/// The CPU libtorch of one release, in the cache.
pub(crate) fn of_release(cache: &Cache, release: &'static Release) -> Result<Libtorch> {
    inspect(&cached(cache, release)?, Source::Cache)
}

/// Treated as if the user had selected it, so that it remains the choice.
pub(crate) fn chosen(cache: &Cache, version: &str) -> Result<Libtorch> {
    let release = pins::release_of(version).with_context(|| {
        format!(
            "this workspace is built against PyTorch {}, not {version}",
            versions()
        )
    })?;
    inspect(&cached(cache, release)?, Source::Variable)
}

/// Checks that `root` is a libtorch that this workspace can be built against.
fn inspect(root: &Path, source: Source) -> Result<Libtorch> {
    if !root.is_dir() {
        bail!("the folder `{}` does not exist", root.display());
    }
    for file in ["lib/libtorch_cpu.so", "lib/libtorch.so", "lib/libc10.so"] {
        if !root.join(file).exists() {
            bail!("`{}` has no `{file}`", root.display());
        }
    }
    let version = version_in_headers(root).with_context(|| {
        format!(
            "`{}` has no C++ headers (`{}`)",
            root.display(),
            VERSION_HEADERS[0]
        )
    })?;
    let Some(release) = pins::release_of(&version) else {
        bail!(
            "it is PyTorch {version}, and this workspace is built against {}",
            versions()
        );
    };
    // They are passed to the compiler in a variable that is split at spaces.
    let flags = release.cxx_flags();
    if let Some(flag) = flags.iter().find(|flag| flag.contains(char::is_whitespace)) {
        bail!(
            "it needs the compiler flag `{flag}`, but CXXFLAGS cannot contain a path with a space"
        );
    }
    let accelerator = if root.join("lib/libtorch_hip.so").exists() {
        Accelerator::Hip
    } else if root.join("lib/libtorch_cuda.so").exists() {
        Accelerator::Cuda
    } else {
        Accelerator::None
    };
    Ok(Libtorch {
        root: root.to_owned(),
        source,
        release,
        accelerator,
    })
}

/// The version in the headers of `root`.
fn version_in_headers(root: &Path) -> Option<String> {
    let header = VERSION_HEADERS
        .iter()
        .filter_map(|header| fs::read_to_string(root.join(header)).ok())
        .find(|text| text.contains("TORCH_VERSION_MAJOR"))?;
    let number = |name: &str| {
        let definition = format!("#define TORCH_VERSION_{name} ");
        let line = header
            .lines()
            .find_map(|line| line.strip_prefix(&definition))?;
        line.trim().parse::<u32>().ok()
    };
    let [major, minor, patch] = ["MAJOR", "MINOR", "PATCH"].map(number);
    Some(format!("{}.{}.{}", major?, minor?, patch?))
}

/// The slim CPU libtorch in the cache, created if it is missing or damaged.
fn cached(cache: &Cache, release: &Release) -> Result<PathBuf> {
    let version = release.version;
    let name = format!("libtorch-{version}-cpu");
    let LibtorchWheels {
        torch,
        cudart,
        cupti,
    } = pins::libtorch_wheels(release)?;
    let sources = pins::sources([torch, cudart, cupti]);
    if let Some(root) = cache.whole(&name, &sources) {
        return Ok(root);
    }
    let lock = cache.lock()?;
    // Another setup may have created it while this one waited for the lock.
    if let Some(root) = cache.whole(&name, &sources) {
        return Ok(root);
    }
    eprintln!("extracting a CPU libtorch {version} into the cache, once");
    let [torch_wheel, cudart_wheel, cupti_wheel] = [
        fetch::fetch(cache, &lock, torch)?,
        fetch::fetch(cache, &lock, cudart)?,
        fetch::fetch(cache, &lock, cupti)?,
    ];
    // The extracted files are about as large as the wheel.
    fetch::require_space(&cache.path("."), torch.bytes)?;
    let root = cache.make(&lock, &name, sources, |folder| {
        archive::unzip(&torch_wheel, folder, place_of_torch_file)?;
        for (wheel, library) in [
            (&cudart_wheel, "libcudart.so.13"),
            (&cupti_wheel, "libcupti.so.13"),
        ] {
            archive::unzip(wheel, folder, |name| {
                name.ends_with(&format!("/{library}"))
                    .then(|| Path::new("lib").join(library))
            })?;
        }
        // The wheel's own libtorch.so needs libtorch_cuda.so. torch-sys always links `-ltorch`,
        // so the linker gets this script instead.
        let script = "INPUT(AS_NEEDED(libtorch_cpu.so))\n";
        fs::write(folder.join("lib/libtorch.so"), script)?;
        fs::write(folder.join("build-version"), version)?;
        Ok(())
    })?;
    fetch::clean(cache, &lock, &[torch, cudart, cupti]);
    Ok(root)
}

/// The path of a member of the torch wheel in the slim libtorch; `None` if it is left out.
fn place_of_torch_file(name: &str) -> Option<PathBuf> {
    /// Libraries of CUDA and Python, and those that only they use.
    const LEFT_OUT: [&str; 7] = [
        "libtorch.so",
        "libtorch_cuda",
        "libtorch_python",
        "libtorch_nvshmem",
        "libc10_cuda",
        "libcaffe2_nvrtc",
        "libshm",
    ];
    let name = name.strip_prefix("torch/")?;
    if name.starts_with("include/") {
        return Some(name.into());
    }
    let library = name.strip_prefix("lib/")?;
    let wanted = !library.contains('/') && library.contains(".so");
    let left_out = LEFT_OUT.iter().any(|prefix| library.starts_with(prefix));
    (wanted && !left_out).then(|| name.into())
}

impl fmt::Display for Libtorch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accelerator = match self.accelerator {
            Accelerator::Hip => "with HIP",
            Accelerator::Cuda => "with CUDA",
            Accelerator::None => "CPU only",
        };
        write!(formatter, "{}, {accelerator}, ", self.release.version)?;
        match &self.source {
            Source::Variable => write!(formatter, "from LIBTORCH: ")?,
            Source::Python(python) => write!(formatter, "from `{}`: ", python.display())?,
            Source::Cache => write!(formatter, "in the cache: ")?,
        }
        write!(formatter, "{}", self.root.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_libtorch(root: &Path, minor: u32) {
        fs::create_dir_all(root.join("lib")).unwrap();
        for library in ["libtorch_cpu.so", "libtorch.so", "libc10.so"] {
            fs::write(root.join("lib").join(library), "").unwrap();
        }
        let header = root.join(VERSION_HEADERS[0]);
        fs::create_dir_all(header.parent().unwrap()).unwrap();
        let text = format!(
            "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR {minor}\n\
             #define TORCH_VERSION_PATCH 0\n#define TORCH_VERSION \\\n  \"2.{minor}.0\"\n"
        );
        fs::write(header, text).unwrap();
    }

    #[test]
    fn a_libtorch_of_the_right_version_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        write_libtorch(folder.path(), 13);
        let libtorch = inspect(folder.path(), Source::Variable).unwrap();
        assert_eq!(libtorch.accelerator, Accelerator::None);
        assert!(libtorch.release.cxx_flags().is_empty());
    }

    #[test]
    fn so_is_one_of_the_newer_release_which_is_another_c_plus_plus() {
        let folder = tempfile::tempdir().unwrap();
        write_libtorch(folder.path(), 15);
        let libtorch = inspect(folder.path(), Source::Cache).unwrap();
        let flags = libtorch.release.cxx_flags();
        let header = flags[1].strip_prefix("-include").unwrap();
        assert!(flags[0] == "-std=c++20" && Path::new(header).is_file());
        assert!(libtorch.to_string().starts_with("2.15.0, CPU only"));
    }

    #[test]
    fn a_build_with_hip_is_told_from_one_with_cuda() {
        let folder = tempfile::tempdir().unwrap();
        write_libtorch(folder.path(), 13);
        fs::write(folder.path().join("lib/libtorch_hip.so"), "").unwrap();
        let libtorch = inspect(folder.path(), Source::Cache).unwrap();
        assert!(libtorch.to_string().contains("with HIP"), "{libtorch}");
    }

    #[test]
    fn another_version_is_refused_with_all_versions_named() {
        let folder = tempfile::tempdir().unwrap();
        write_libtorch(folder.path(), 9);
        let error = inspect(folder.path(), Source::Variable).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("2.9.0") && message.contains("2.13.0 or 2.15.0"),
            "{message}"
        );
    }

    #[test]
    fn a_runtime_without_headers_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        write_libtorch(folder.path(), 13);
        fs::remove_dir_all(folder.path().join("include")).unwrap();
        let error = inspect(folder.path(), Source::Variable).unwrap_err();
        assert!(error.to_string().contains("headers"), "{error}");
    }

    #[test]
    fn the_slim_libtorch_keeps_what_the_cpu_needs() {
        for name in [
            "torch/lib/libtorch_cpu.so",
            "torch/lib/libgomp.so.1",
            "torch/lib/libarm_compute.so",
            "torch/include/c10/core/Device.h",
        ] {
            assert!(place_of_torch_file(name).is_some(), "{name}");
        }
    }

    #[test]
    fn the_slim_libtorch_leaves_cuda_and_python_out() {
        for name in [
            "torch/lib/libtorch.so",
            "torch/lib/libtorch_cuda_linalg.so",
            "torch/lib/libtorch_python.so",
            "torch/lib/libshm/libshm.h",
            "torch/__init__.py",
            "functorch/__init__.py",
        ] {
            assert_eq!(place_of_torch_file(name), None, "{name}");
        }
    }
}
