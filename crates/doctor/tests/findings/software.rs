//! Python and the environment.

use super::machines::*;

pub(crate) fn of_python() -> Vec<Case> {
    let with = |machine: String, lines: &str| machine + &packages(lines);
    let accelerate = |machine: String, lines: &str| {
        machine
            + &packages("torch 2.11.0+rocm7.2\naccelerate 1.10.0")
            + "== python/accelerate\n"
            + lines
            + "\n"
    };
    let library_path = |path: &str| {
        with(card(110_000), "torch 2.11.0+rocm7.2")
            + &environment(&format!("LD_LIBRARY_PATH={path}"))
    };
    let bitsandbytes = |library: &str| {
        with(card(110_000), "torch 2.11.0+rocm7.2\nbitsandbytes 0.49.0")
            + "== python/bitsandbytes\n"
            + library
            + "\n"
    };
    vec![
        (
            "architecture-needs-device-wheel",
            card(110_003),
            card(110_000),
        ),
        (
            "architecture-of-other-framework",
            "GPU: AMD Radeon RX 6700 XT\nimport tensorflow as tf\n".to_owned(),
            "GPU: AMD Radeon RX 6800 XT\nimport tensorflow as tf\n".to_owned(),
        ),
        ("architecture-needs-old-wheel", card(90_006), card(90_010)),
        ("architecture-needs-old-wheel", card(90_000), card(90_010)),
        (
            "torch-missing",
            with(card(110_000), "numpy 2.0"),
            with(card(110_000), "torch 2.11.0+rocm7.2"),
        ),
        (
            "torch-cpu-only",
            with(card(110_000), "torch 2.11.0+cpu"),
            with(card(110_000), "torch 2.11.0+rocm7.2"),
        ),
        (
            "torch-for-cuda",
            with(card(110_000), "torch 2.11.0+cu128"),
            with(card(110_000), "torch 2.11.0+rocm7.2"),
        ),
        (
            "override-missing",
            with(card(100_301), "torch 2.11.0+rocm7.2"),
            with(card(100_301), "torch 2.11.0+rocm7.2")
                + &environment("HSA_OVERRIDE_GFX_VERSION=10.3.0"),
        ),
        (
            "architecture-not-in-wheel",
            with(card(110_003), "torch 2.11.0+rocm7.2"),
            with(
                card(110_003),
                "torch 2.11.0+rocm7.13.0\namd-torch-device-gfx1103 2.11.0",
            ),
        ),
        (
            "rocm-7.0-memset",
            with(card(110_000), "torch 2.10.0+rocm7.0"),
            with(card(110_000), "torch 2.10.0+rocm7.1"),
        ),
        (
            "miopen-3.6.0-gfx1151",
            with(
                halo(),
                "torch 2.13.0+rocm10.0.0\namd-torch-device-gfx1151 2.13.0",
            ),
            with(
                card(110_000),
                "torch 2.13.0+rocm10.0.0\namd-torch-device-gfx1100 2.13.0",
            ),
        ),
        (
            "rocm-old-for-gfx115x",
            with(halo(), "torch 2.9.1+rocm6.4"),
            with(halo(), "torch 2.11.0+rocm7.2"),
        ),
        (
            "rocblas-without-gfx906",
            with(card(90_006), "torch 2.9.1+rocm6.4"),
            with(card(90_006), "torch 2.7.0+rocm6.3"),
        ),
        // AMD's own wheels bring a rocBLAS for each of their architectures.
        (
            "rocblas-without-gfx906",
            with(card(90_000), "torch 2.11.0+rocm7.2"),
            with(
                card(90_006),
                "torch 2.12.0+rocm7.14.0\namd-torch-device-gfx906 2.12.0",
            ),
        ),
        (
            "torchvision-mismatch",
            with(
                card(110_000),
                "torch 2.11.0+rocm7.2\ntorchvision 0.25.0+rocm7.2",
            ),
            with(
                card(110_000),
                "torch 2.11.0+rocm7.2\ntorchvision 0.26.0+rocm7.2",
            ),
        ),
        (
            "bitsandbytes-without-rocm",
            bitsandbytes("libbitsandbytes_cuda126.so"),
            bitsandbytes("libbitsandbytes_rocm72.so"),
        ),
        (
            "two-tritons",
            with(
                card(110_000),
                "torch 2.11.0+rocm7.2\ntriton 3.5.0\ntriton-rocm 3.5.0",
            ),
            with(card(110_000), "torch 2.11.0+rocm7.2\ntriton-rocm 3.5.0"),
        ),
        (
            "library-path-over-wheel",
            library_path("/opt/rocm/lib"),
            library_path("/opt/other/lib"),
        ),
        (
            "accelerate-too-old",
            with(
                card(110_000),
                "torch 2.11.0+rocm7.2\naccelerate 0.21.0\ntransformers 4.57.0",
            ),
            with(card(110_000), "torch 2.11.0+rocm7.2\naccelerate 0.21.0"),
        ),
        (
            "accelerate-on-cpu",
            accelerate(card(110_000), "use_cpu: true"),
            accelerate(card(110_000), "use_cpu: false"),
        ),
        (
            "accelerate-bf16",
            accelerate(card(100_300), "mixed_precision: bf16"),
            accelerate(card(110_000), "mixed_precision: bf16"),
        ),
        (
            "accelerate-fp8",
            accelerate(card(110_000), "mixed_precision: 'fp8'"),
            accelerate(card(90_402), "mixed_precision: 'fp8'"),
        ),
        (
            "accelerate-processes",
            accelerate(mixed(1), "num_processes: 2"),
            accelerate(mixed(1), "num_processes: 1"),
        ),
        // The environment outranks the file.
        (
            "accelerate-on-cpu",
            accelerate(card(110_000), "use_cpu: false") + &environment("ACCELERATE_USE_CPU=true"),
            accelerate(card(110_000), "use_cpu: true") + &environment("ACCELERATE_USE_CPU=false"),
        ),
    ]
}

pub(crate) fn of_variables() -> Vec<Case> {
    let set = |lines: &str| card(110_000) + &environment(lines);
    let rx_9070 =
        |lines: &str| card(120_001) + &environment(lines) + &packages("torch 2.13.0+rocm7.2");
    let probed = |verdict: &str| {
        set("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1")
            + &packages("torch 2.11.0+rocm7.2")
            + "== surefoot/probed\nattention-aotriton "
            + verdict
            + "\n"
    };
    let windows = |line: &str| HIPINFO.to_owned() + line + "\n";
    let navi22 = |lines: &str| {
        card(100_301) + &environment("HSA_OVERRIDE_GFX_VERSION=10.3.0") + &packages(lines)
    };
    vec![
        (
            "override-on-windows",
            windows("HSA_OVERRIDE_GFX_VERSION=11.0.0"),
            windows("HIP_VISIBLE_DEVICES=0"),
        ),
        (
            "override-invalid",
            set("HSA_OVERRIDE_GFX_VERSION=gfx1100"),
            set("HSA_OVERRIDE_GFX_VERSION=11.0.0"),
        ),
        (
            "override-for-no-gpu",
            set("HSA_OVERRIDE_GFX_VERSION_7=10.3.0"),
            set("HSA_OVERRIDE_GFX_VERSION_1=10.3.0"),
        ),
        (
            "override-relabels-all",
            mixed(1) + &environment("HSA_OVERRIDE_GFX_VERSION=10.3.0"),
            mixed(1) + &environment("HSA_OVERRIDE_GFX_VERSION_1=10.3.0"),
        ),
        (
            "override-needless",
            set("HSA_OVERRIDE_GFX_VERSION=11.0.0"),
            set("HSA_OVERRIDE_GFX_VERSION=10.3.0"),
        ),
        (
            "override-harmful",
            set("HSA_OVERRIDE_GFX_VERSION=10.3.0"),
            navi22("torch 2.11.0+rocm7.2"),
        ),
        (
            "override-target-not-in-wheel",
            navi22("torch 2.11.0+rocm7.13.0\namd-torch-device-gfx1100 2.11.0"),
            navi22("torch 2.11.0+rocm7.2"),
        ),
        (
            "variable-does-not-exist",
            set("PYTORCH_MAX_SPLIT_SIZE_MB=512"),
            set("PYTORCH_ALLOC_CONF=max_split_size_mb:512"),
        ),
        ("variable-compile-time", set("TORCH_USE_HIP_DSA=1"), set("")),
        (
            "debug-variable-left-on",
            set("AMD_SERIALIZE_KERNEL=3"),
            set("AMD_SERIALIZE_KERNEL=0"),
        ),
        ("variable-without-effect", set("HSA_XNACK=1"), set("")),
        (
            "slow-first-run",
            set("PYTORCH_TUNABLEOP_ENABLED=1"),
            set("PYTORCH_TUNABLEOP_ENABLED=0"),
        ),
        (
            "work-around-left-on",
            set("HSA_ENABLE_SDMA=0"),
            set("HSA_ENABLE_SDMA=1"),
        ),
        (
            "leave-to-the-library",
            set("ROCBLAS_USE_HIPBLASLT=1"),
            set(""),
        ),
        (
            "aotriton-unverified",
            set("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1"),
            probed("ok"),
        ),
        ("aotriton-fails", probed("wrong"), probed("ok")),
        (
            "expandable-segments",
            set("PYTORCH_HIP_ALLOC_CONF=expandable_segments:True"),
            set("PYTORCH_HIP_ALLOC_CONF=expandable_segments:False"),
        ),
        (
            "lora-may-fault",
            rx_9070("HIP_ALLOC=0"),
            rx_9070("HIP_ALLOC=1"),
        ),
        (
            "allocator-settings-differ",
            set(
                "PYTORCH_ALLOC_CONF=max_split_size_mb:512\nPYTORCH_HIP_ALLOC_CONF=max_split_size_mb:256",
            ),
            set(
                "PYTORCH_ALLOC_CONF=max_split_size_mb:512\nPYTORCH_HIP_ALLOC_CONF=max_split_size_mb:512",
            ),
        ),
        (
            "variable-misspelled",
            set("HSA_OVERRIDE_GFX_VERISON=11.0.0"),
            set("HSA_ENABLE_DXG_DETECTION=1"),
        ),
        (
            "rocr-mask-on-windows",
            windows("ROCR_VISIBLE_DEVICES=0"),
            windows("HIP_VISIBLE_DEVICES=0"),
        ),
        (
            "visibility-leaves-nothing",
            set("ROCR_VISIBLE_DEVICES=7"),
            set("ROCR_VISIBLE_DEVICES=0"),
        ),
        (
            "visibility-contradicts",
            set("ROCR_VISIBLE_DEVICES=0\nHIP_VISIBLE_DEVICES=0,1"),
            set("ROCR_VISIBLE_DEVICES=0\nHIP_VISIBLE_DEVICES=0"),
        ),
        (
            "visibility-twice",
            set("ROCR_VISIBLE_DEVICES=0\nHIP_VISIBLE_DEVICES=0"),
            set("ROCR_VISIBLE_DEVICES=0"),
        ),
        (
            "cuda-mask-ignored",
            set("HIP_VISIBLE_DEVICES=0\nCUDA_VISIBLE_DEVICES=1"),
            set("HIP_VISIBLE_DEVICES=0\nCUDA_VISIBLE_DEVICES=0"),
        ),
        (
            "gpu-device-ordinal",
            set("GPU_DEVICE_ORDINAL=0"),
            set("HIP_VISIBLE_DEVICES=0"),
        ),
        (
            "visibility-selects-igpu",
            mixed(1) + &environment("ROCR_VISIBLE_DEVICES=0"),
            mixed(1) + &environment("ROCR_VISIBLE_DEVICES=1"),
        ),
    ]
}
