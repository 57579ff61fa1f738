//! Compiles the shim in `cpp/` against the headers of the libtorch that tch
//! found, unless that is without C++, and tells dependants where that libtorch is, so that their binaries
//! carry a run path and start without `LD_LIBRARY_PATH`.

use std::path::{Path, PathBuf};

/// The release whose operators `torch-abi` calls.
const SCHEMAS: &str = "2.13.0";

const SOURCES: [&str; 2] = ["cpp/all.cpp", "cpp/distributed.cpp"];

fn main() {
    println!("cargo::rerun-if-changed=cpp");
    println!("cargo::rerun-if-env-changed=LIBTORCH_INCLUDE");
    println!("cargo::rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    println!("cargo::rustc-check-cfg=cfg(bridge)");
    if cfg!(feature = "doc-only") {
        return;
    }
    // `torch-abi` in torch-sys's place says nothing, since it needs no libtorch to be built.
    let Some(lib) = std::env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from) else {
        println!("cargo::rustc-cfg=bridge");
        println!("cargo::metadata=libtorch_release={SCHEMAS}");
        return;
    };
    // A CPU libtorch, a CUDA or ROCm wheel and a `LIBTORCH_USE_PYTORCH` one all
    // keep `include` beside `lib`; `LIBTORCH_INCLUDE` is torch-sys's own override.
    let include = std::env::var_os("LIBTORCH_INCLUDE")
        .map(PathBuf::from)
        .unwrap_or_else(|| lib.join(".."))
        .join("include");
    let abi = std::env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".to_owned());

    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .pic(true)
        // Twice the time to compile, for lines in a debugger.
        .debug(false)
        .warnings(true)
        .extra_warnings(true)
        .flag_if_supported("-Wno-unused-parameter")
        // What the headers of c10d name of Gloo; a libtorch has the code and not the headers.
        .include("cpp/gloo")
        // System headers: libtorch's own warnings are not ours to fix.
        .flag("-isystem")
        .flag(include.display().to_string())
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include").display().to_string())
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        .files(SOURCES)
        .compile("surefoot_torch_ext");

    println!("cargo::rustc-link-search=native={}", lib.display());
    println!("cargo::rustc-link-lib=dylib=torch_cpu");
    println!("cargo::rustc-link-lib=dylib=c10");
    println!("cargo::rustc-link-arg=-Wl,-rpath={}", lib.display());
    println!("cargo::metadata=libtorch_lib={}", lib.display());
    match release(&include) {
        Some(release) => println!("cargo::metadata=libtorch_release={release}"),
        None => println!(
            "cargo::error=`{}` does not say which libtorch it is",
            include.display()
        ),
    }
}

/// `2.13.0`, as the headers say.
fn release(include: &Path) -> Option<String> {
    // Newer releases keep the numbers in the first, older ones in the second.
    let headers = [
        "torch/headeronly/version.h",
        "torch/csrc/api/include/torch/version.h",
    ];
    let texts = headers
        .iter()
        .filter_map(|header| std::fs::read_to_string(include.join(header)).ok());
    let numbers = |text: String| {
        let number = |part: &str| {
            let definition = format!("#define TORCH_VERSION_{part} ");
            let mut lines = text.lines();
            let number = lines.find_map(|line| line.strip_prefix(&definition))?;
            number.trim().parse::<u32>().ok()
        };
        Some([number("MAJOR")?, number("MINOR")?, number("PATCH")?])
    };
    let [major, minor, patch] = texts.filter_map(numbers).next()?;
    Some(format!("{major}.{minor}.{patch}"))
}
