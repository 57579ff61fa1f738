//! Every finding: a machine where it is found, and one like it where it is not.
//!
//! Machines are dumps made of parts; a later part replaces the same file of an earlier one,
//! so that what differs between the two machines is all that a case shows.

use platform::findings::IDS;
use platform::report::{Report, diagnose_text};
use std::collections::BTreeSet;

/// Bytes of this many MiB.
fn mib(count: u64) -> u64 {
    count << 20
}

fn gib(count: u64) -> u64 {
    count << 30
}

/// A GPU of KFD: node, `gfx_target_version`, compute units, pool.
fn gpu(node: u32, version: u32, units: u32, pool: u64) -> String {
    let (simds, location, minor) = (units * 2, (node + 2) << 8, 127 + node);
    format!(
        "== kfd/nodes/{node}/gpu_id\n{node}4711\n\
         == kfd/nodes/{node}/properties\nsimd_count {simds}\nsimd_per_cu 2\nvendor_id 4098\n\
         gfx_target_version {version}\nlocation_id {location}\ndrm_render_minor {minor}\n\
         == kfd/nodes/{node}/mem_banks/0/properties\nheap_type 1\nsize_in_bytes {pool}\n"
    )
}

/// The DRM files of the GPU of this node; a card has a board.
fn drm(node: u32, vram: u64, gtt: u64, is_card: bool) -> String {
    let folder = format!("drm/renderD{}/device", 127 + node);
    let board = if is_card {
        format!("== {folder}/board_info\ntype : cem\n")
    } else {
        String::new()
    };
    format!(
        "== {folder}/mem_info_vram_total\n{vram}\n== {folder}/mem_info_gtt_total\n{gtt}\n{board}"
    )
}

/// RAM, swap, and how much of the swap is free.
fn memory(ram: u64, swap: u64, free: u64) -> String {
    format!(
        "== proc/meminfo\nMemTotal: {} kB\nMemAvailable: {} kB\nSwapTotal: {} kB\nSwapFree: {} kB\n",
        ram >> 10,
        ram >> 11,
        swap >> 10,
        free >> 10
    )
}

fn ttm(limit: u64) -> String {
    format!("== module/ttm/parameters/pages_limit\n{}\n", limit / 4096)
}

fn kernel(release: &str) -> String {
    format!("== proc/sys/kernel/osrelease\n{release}\n")
}

fn command_line(text: &str) -> String {
    format!("== proc/cmdline\nquiet {text}\n")
}

fn environment(lines: &str) -> String {
    format!("== environment\n{lines}\n")
}

fn packages(lines: &str) -> String {
    format!("== python/prefix\n/venv\n== python/packages\n{lines}\n")
}

/// What every machine of this file has: a kernel, limits, an environment, its devices.
fn host() -> String {
    kernel("6.19.2-200.fc43.x86_64")
        + &environment("")
        + "== dev/kfd\naccess=ok mode=0660 uid=0 gid=105\n\
           == proc/self/limits\nMax open files            65536                524288               files\n\
           == proc/self/status\nUid: 1000 1000 1000 1000\nGid: 1000 1000 1000 1000\nGroups: 105\n"
}

/// Strix Halo, 128 GiB, the limit of TTM raised to 100.
fn halo() -> String {
    host()
        + &memory(gib(125), gib(8), gib(8))
        + &ttm(gib(100))
        + &gpu(1, 110_501, 40, gib(100))
        + &drm(1, mib(512), gib(100), false)
}

/// A card of this version with 16 GiB, in a machine of 64.
fn card(version: u32) -> String {
    host()
        + &memory(gib(62), gib(8), gib(8))
        + &gpu(1, version, 60, gib(16))
        + &drm(1, gib(16), gib(31), true)
}

/// The integrated GPU of a Ryzen at this node, and an RX 9070 XT at the other.
fn mixed(integrated: u32) -> String {
    let other = 3 - integrated;
    host()
        + &memory(gib(62), gib(8), gib(8))
        + &gpu(integrated, 100_306, 2, gib(31))
        + &drm(integrated, mib(512), gib(31), false)
        + &gpu(other, 120_001, 64, gib(16))
        + &drm(other, gib(16), gib(31), true)
}

/// A machine without KFD, and one GPU on its bus with this driver.
fn on_the_bus(driver: &str) -> String {
    host()
        + &memory(gib(62), gib(8), gib(8))
        + "== pci-devices\n40\n== pci/0000:03:00.0/vendor\n0x1002\n== pci/0000:03:00.0/device\n0x744c\n"
        + &format!("== pci/0000:03:00.0/uevent\n{driver}\n")
}

const KFD_SHUT: &str = "== dev/kfd\naccess=";
const GPU_BY_SMI: &str = "GPU[0]\t\t: Device ID: \t\t0x744c\nGPU[1]\t\t: Device ID: \t\t0x744c\n";
const HIPINFO: &str =
    "device#    0\nName:   AMD Radeon RX 9070 XT\ngcnArchName: gfx1201\ntotalGlobalMem: 15.92 GB\n";
const WINDOWS: &str = "OS Name: Microsoft Windows 11 Pro\nTotal Physical Memory: 32,562 MB\n";

/// Id, the machine where it is found, the one where it is not.
type Case = (&'static str, String, String);

fn of_gpus() -> Vec<Case> {
    let no_gpu = || host() + &memory(gib(62), gib(8), gib(8)) + "== pci-devices\n40\n";
    let partition = |node, location: u32| {
        gpu(node, 90_402, 38, gib(24))
            + &format!(
                "== kfd/nodes/{node}/properties\nsimd_count 152\nsimd_per_cu 4\n\
                 gfx_target_version 90402\nlocation_id {location}\nunique_id 77\n"
            )
    };
    vec![
        ("no-gpu", no_gpu(), card(110_000)),
        (
            "gpu-without-driver",
            on_the_bus("PCI_ID=1002:744C"),
            on_the_bus("DRIVER=vfio-pci"),
        ),
        (
            "gpu-with-other-driver",
            on_the_bus("DRIVER=vfio-pci"),
            on_the_bus("DRIVER=amdgpu"),
        ),
        (
            "gpu-not-in-kfd",
            on_the_bus("DRIVER=amdgpu"),
            on_the_bus("DRIVER=vfio-pci"),
        ),
        (
            "gpu-hidden-by-cgroup",
            card(110_000) + "== kfd/nodes/2/properties !EPERM\n",
            card(110_000) + &gpu(2, 110_000, 60, gib(16)),
        ),
        (
            "kernel-without-gfx-version",
            card(0)
                + "== kfd/nodes/1/properties\nsimd_count 256\nsimd_per_cu 4\ndevice_id 26751\ndrm_render_minor 128\n",
            card(90_000),
        ),
        ("architecture-unknown", card(130_002), card(120_001)),
        ("gfx1033-wrong-gradients", card(100_303), card(100_302)),
        ("rdna2-prefers-fp16", card(100_300), card(110_000)),
        (
            "partitioned",
            host() + &partition(1, 0x500) + &partition(2, 0x501),
            host() + &partition(1, 0x500) + &partition(2, 0x600),
        ),
        (
            "several-usable-gpus",
            card(110_000) + &gpu(2, 120_001, 64, gib(16)) + &drm(2, gib(16), gib(31), true),
            card(110_000) + &gpu(2, 110_000, 60, gib(16)) + &drm(2, gib(16), gib(31), true),
        ),
        (
            "smi-order",
            GPU_BY_SMI.to_owned(),
            GPU_BY_SMI.to_owned() + "GPU[0]\t\t: Node ID: \t\t2\nGPU[1]\t\t: Node ID: \t\t1\n",
        ),
        ("igpu-in-front", mixed(1), mixed(2)),
        (
            "igpu-visible",
            mixed(2),
            mixed(2) + &environment("ROCR_VISIBLE_DEVICES=0"),
        ),
        (
            "igpu-pool-larger",
            mixed(1),
            mixed(1) + &gpu(1, 100_306, 2, gib(8)),
        ),
    ]
}

fn of_the_system() -> Vec<Case> {
    let shut = |answer: &str| card(110_000) + KFD_SHUT + answer + " mode=0660 uid=0 gid=992\n";
    let wsl = || {
        host()
            + &memory(gib(31), gib(8), gib(8))
            + &kernel("6.6.87.2-microsoft-standard-WSL2")
            + "== dev/kfd\naccess=ENOENT\n"
    };
    let dxg = "== dev/dxg\naccess=ok mode=0666 uid=0 gid=0\n";
    let files = |limit: u32| {
        card(110_000)
            + &format!(
                "== proc/self/limits\nMax open files            {limit}                 524288               files\n"
            )
    };
    let shm = |size: &str| {
        card(110_000)
            + "== .dockerenv\n\n== proc/mounts\nshm /dev/shm tmpfs rw,nosuid,size="
            + size
            + " 0 0\n"
    };
    vec![
        ("kfd-missing", shut("ENOENT"), card(110_000)),
        ("kfd-refuses", shut("EINVAL"), shut("ENOMEM")),
        ("kfd-no-memory", shut("ENOMEM"), shut("EINVAL")),
        ("kfd-unusable", shut("EIO"), shut("EACCES")),
        ("device-permission", shut("EACCES"), shut("ENOENT")),
        ("wsl", wsl() + dxg, wsl()),
        ("wsl-without-gpu", wsl(), wsl() + dxg),
        ("open-files", files(1024), files(65_536)),
        ("small-shm", shm("65536k"), shm("16777216k")),
        (
            "kernel-gfx1030-nan-copies",
            card(100_300) + &kernel("5.15.0-91-generic") + &packages("torch 2.9.1+rocm6.4"),
            card(100_300) + &kernel("6.8.0-91-generic") + &packages("torch 2.9.1+rocm6.4"),
        ),
        (
            "kernel-slow-mmap",
            card(110_000) + &kernel("7.0.0-28-generic"),
            card(110_000) + &kernel("7.0.3-28-generic"),
        ),
        (
            "kernel-gfx1151",
            halo() + &kernel("6.18.3-200.fc43.x86_64"),
            halo() + &kernel("6.18.4-200.fc43.x86_64"),
        ),
        (
            "firmware-gfx1151",
            halo() + "== packages/linux-firmware\nlinux-firmware 20251125-1\n",
            // The package is bad, and what is loaded is not.
            halo()
                + "== packages/linux-firmware\nlinux-firmware 20251125-1\n\
                      == drm/renderD128/device/fw_version/mes_fw_version\n0x00000080\n",
        ),
        (
            "firmware-gfx1151",
            halo() + "== drm/renderD128/device/fw_version/mes_fw_version\n0x00000083\n",
            card(110_000) + "== drm/renderD128/device/fw_version/mes_fw_version\n0x00000083\n",
        ),
        (
            "iommu-off",
            halo() + &command_line("amd_iommu=off"),
            halo() + &command_line("iommu=pt"),
        ),
    ]
}

fn of_memory() -> Vec<Case> {
    let limit = |pool: u64| {
        halo() + &ttm(pool) + &gpu(1, 110_501, 40, pool) + &drm(1, mib(512), pool, false)
    };
    let carved = |vram: u64, ram: u64| {
        halo()
            + &memory(ram, gib(8), gib(8))
            + &ttm(ram / 2)
            + &gpu(1, 110_501, 40, vram)
            + &drm(1, vram, ram / 2, false)
    };
    let cgroup = |max: &str| {
        halo() + "== proc/self/cgroup\n0::/box\n== sys/fs/cgroup/box/memory.max\n" + max + "\n"
    };
    let old = |release: &str| {
        halo()
            + &kernel(release)
            + &memory(gib(31), gib(8), gib(8))
            + &gpu(1, 110_003, 12, mib(512))
            + &drm(1, mib(512), mib(512), false)
    };
    let report = |lines: &str| {
        format!(
            "Radeon 8060S (gfx1151)\nhost RAM: 125 GiB\nmem_info_vram_total=536870912\n{lines}\n"
        )
    };
    let page_file =
        |size: &str| HIPINFO.to_owned() + WINDOWS + "Virtual Memory: Max Size: " + size + "\n";
    vec![
        ("ttm-limit-default", limit(gib(125) / 2), halo()),
        (
            "gtt-size-typo",
            halo() + &command_line("amdgpu.gtt_size=110000"),
            halo() + &command_line("amdgpu.gttsize=110000"),
        ),
        (
            "gttsize-deprecated",
            halo() + &command_line("amdgpu.gttsize=1 ttm.pages_limit=26214400"),
            halo() + &command_line("ttm.pages_limit=26214400"),
        ),
        (
            "gttsize-without-pages-limit",
            halo() + &command_line("amdgpu.gttsize=131072"),
            halo() + &command_line("amdgpu.gttsize=131072 ttm.pages_limit=26214400"),
        ),
        (
            "gtt-above-ram",
            halo() + &drm(1, mib(512), gib(128), false),
            halo(),
        ),
        (
            "gtt-above-ttm",
            halo() + &drm(1, mib(512), gib(120), false),
            halo(),
        ),
        ("pages-limit-not-in-effect", halo() + &ttm(gib(110)), halo()),
        (
            "ttm-limit-unknown",
            report("mem_info_gtt_total=133143986176"),
            report("mem_info_gtt_total=107374182400\nCurrent TTM pages limit: 26214400"),
        ),
        ("little-headroom", limit(gib(115)), halo()),
        ("cgroup-limit", cgroup("34359738368"), cgroup("max")),
        ("no-swap", halo() + &memory(gib(125), 0, 0), halo()),
        // A card whose memory the RAM does not hold twice.
        (
            "no-swap",
            card(110_000) + &memory(gib(15), 0, 0),
            card(110_000) + &memory(gib(15), gib(16), gib(16)),
        ),
        (
            "no-page-file",
            page_file("33,000 MB"),
            page_file("65,000 MB"),
        ),
        (
            "swap-full",
            halo() + &memory(gib(125), gib(8), mib(10)),
            halo(),
        ),
        (
            "carveout-only",
            include_str!("fixtures/forms/rocminfo_gfx90c.txt").to_owned(),
            include_str!("fixtures/forms/rocminfo_gfx1150.txt").to_owned(),
        ),
        (
            "kernel-uses-carveout-only",
            old("6.8.0-45-generic"),
            old("6.12.0-45-generic"),
        ),
        (
            "carveout-starves-host",
            carved(gib(96), gib(31)),
            carved(gib(16), gib(109)),
        ),
        (
            "smi-shows-carveout",
            "GPU[0]\t\t: Device ID: \t\t0x1586\nGPU[0]\t\t: VRAM Total Memory (B): 536870912\n"
                .to_owned(),
            "GPU[0]\t\t: Device ID: \t\t0x744c\nGPU[0]\t\t: VRAM Total Memory (B): 25753026560\n"
                .to_owned(),
        ),
        (
            "free-above-total",
            report("hip mem_get_info total: 62.47 GiB\nhip mem_get_info free: 120.00 GiB"),
            report("hip mem_get_info total: 62.47 GiB\nhip mem_get_info free: 60.00 GiB"),
        ),
        (
            "vram-plus-gtt",
            report("mem_info_gtt_total=107374182400\ninference compute: total=\"100.5 GiB\""),
            report("mem_info_gtt_total=107374182400\ninference compute: total=\"100.0 GiB\""),
        ),
    ]
}

fn of_python() -> Vec<Case> {
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
        ("architecture-needs-old-wheel", card(90_006), card(90_010)),
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

fn of_variables() -> Vec<Case> {
    let set = |lines: &str| card(110_000) + &environment(lines);
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

fn cases() -> Vec<Case> {
    [
        of_gpus(),
        of_the_system(),
        of_memory(),
        of_python(),
        of_variables(),
    ]
    .concat()
}

fn diagnose(text: &str) -> Report {
    // Parts of a dump; other texts are read as they are.
    let text = if text.starts_with("== ") {
        format!("# surefoot dump 1\n{text}")
    } else {
        text.to_owned()
    };
    diagnose_text(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn ids(report: &Report) -> Vec<&str> {
    report
        .findings
        .iter()
        .map(|finding| finding.id.as_str())
        .collect()
}

#[test]
fn every_finding_is_found_where_it_should_be_and_nowhere_else() {
    for (id, fires, silent) in cases() {
        let (fires, silent) = (diagnose(&fires), diagnose(&silent));
        assert!(
            ids(&fires).contains(&id),
            "{id} is not found: {:?}",
            ids(&fires)
        );
        assert!(
            !ids(&silent).contains(&id),
            "{id} is a false alarm: {:?}",
            ids(&silent)
        );
    }
}

#[test]
fn every_finding_has_a_case() {
    let shown: BTreeSet<&str> = cases().into_iter().map(|(id, ..)| id).collect();
    let known: BTreeSet<&str> = IDS.into_iter().collect();
    assert_eq!(shown, known);
}

#[test]
fn machines_that_are_in_order_raise_no_alarm() {
    for machine in [halo(), card(110_000), card(120_001), card(90_010)] {
        let report = diagnose(&machine);
        assert_eq!(ids(&report), [] as [&str; 0]);
    }
}

/// What was seen, why it matters, what to type, and where that is known from.
#[test]
fn every_finding_is_whole() {
    for (id, fires, _) in cases() {
        for finding in diagnose(&fires).findings {
            assert!(
                !finding.title.is_empty() && !finding.seen.is_empty() && !finding.why.is_empty(),
                "{id}: {finding:?}"
            );
            assert!(
                finding.source.starts_with("https://") || finding.source.starts_with("Linux, "),
                "{id}: {finding:?}"
            );
            let is_told_elsewhere = matches!(finding.id.as_str(), "no-gpu" | "torch-missing");
            assert!(
                !finding.fix.is_empty() || is_told_elsewhere,
                "{id}: {finding:?}"
            );
        }
    }
}
