//! Errors in the shapes that tools give to any error.

/// An entry of the catalogue, and what the log says.
pub(super) const MESSAGES: &[(&str, &str)] = &[
    (
        "zluda-files-missing",
        "Failed to install ZLUDA: name 'HIPSDK' is not defined",
    ),
    (
        "header-missing",
        "fatal error: 'omp.h' file not found\n#include <omp.h>",
    ),
    (
        "header-missing",
        "src/x.c:3:10: fatal error: numa.h: No such file or directory",
    ),
    (
        "header-missing",
        "x.cpp(3): fatal error C1083: Cannot open include file: 'omp.h': No such file or directory",
    ),
    (
        "compile-error-other",
        "rocdevice.cpp:1079:44: error: ‘HSA_AMD_AGENT_INFO_COOPERATIVE_COMPUTE_UNIT_COUNT’ was not declared in this scope",
    ),
    (
        "compile-error-other",
        "src/main.cu(12): error: expression must have pointer type",
    ),
    ("compile-error-other", "error: unknown type name '__half2'"),
    (
        "link-error-other",
        "/usr/bin/ld: x.o: undefined reference to `png_create'",
    ),
    (
        "link-error-other",
        "x.obj : error LNK2019: unresolved external symbol hipMalloc",
    ),
    (
        "feature-refused",
        "RuntimeError: this attention is only supported on CUDA devices",
    ),
    (
        "feature-for-nvidia",
        "ValueError: the fused kernel is currently not supported in ROCm.",
    ),
    (
        "feature-for-nvidia",
        "NotImplementedError: Operator x is not implemented for HIP",
    ),
    ("rocm-not-found", "Error: HIP/ROCm not found"),
    ("rocm-not-found", "no ROCm runtime is found, using the CPU"),
    ("package-unknown", "E: Unable to locate package libnuma1"),
    (
        "bus-error-pcie",
        "pcieport 0000:00:01.1: AER: device recovery failed",
    ),
    (
        "hub-file-missing",
        "huggingface_hub.errors.EntryNotFoundError: 404 Client Error. Entry Not Found for url: x",
    ),
    (
        "image-not-built",
        "ERROR: failed to solve: process \"/bin/sh -c pip install .\" did not complete successfully: exit code: 1",
    ),
    (
        "service-ended",
        "ollama.service: Main process exited, code=exited, status=1/FAILURE",
    ),
    (
        "native-check-failed",
        "python3: /src/x.cpp:123: void f(): Assertion `x > 0' failed.",
    ),
    (
        "native-check-failed",
        "Assertion failed: x > 0, file x.c, line 12",
    ),
    (
        "python-error-other",
        "Traceback (most recent call last):\n  File \"/home/user/venv/lib/python3.12/site-packages/diffusers/x.py\", line 1, in f\nKeyError: 'unet'",
    ),
    (
        "extensions-not-on-windows",
        "OSError: Building PyTorch extensions using ROCm and Windows is not supported.",
    ),
];
