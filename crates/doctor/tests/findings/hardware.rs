//! GPUs, the system around them, and memory.

use super::machines::*;

pub(crate) fn of_gpus() -> Vec<Case> {
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

pub(crate) fn of_the_system() -> Vec<Case> {
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
        (
            "wsl-without-librocdxg",
            wsl() + dxg,
            wsl() + dxg + "== wsl/librocdxg\npresent\n",
        ),
        (
            "wsl-without-librocdxg",
            wsl() + dxg + &packages("torch 2.9.1+rocm7.1"),
            wsl() + dxg + &packages("torch 2.7.0+rocm6.4"),
        ),
        (
            "wsl-memory",
            wsl() + dxg + &memory(gib(15), gib(8), gib(8)),
            wsl() + dxg,
        ),
        (
            "windows-driver-missing",
            windows() + &adapter("Microsoft"),
            windows() + &adapter(DRIVER_OF_AMD) + HIPINFO_LIVE,
        ),
        (
            "hipinfo-missing",
            windows() + &adapter(DRIVER_OF_AMD),
            windows() + &adapter(DRIVER_OF_AMD) + HIPINFO_LIVE,
        ),
        (
            "hip-runtime-shadowed",
            windows() + &adapter(DRIVER_OF_AMD) + HIPINFO_LIVE + &runtimes("amdhip64_7.dll"),
            windows() + &adapter(DRIVER_OF_AMD) + HIPINFO_LIVE + &runtimes("amdhip64_6.dll"),
        ),
        ("open-files", files(1024), files(65_536)),
        ("small-shm", shm("65536k"), shm("16777216k")),
        (
            "no-ffmpeg",
            card(110_000) + "== surefoot/ffmpeg\nmissing\n",
            card(110_000) + "== surefoot/ffmpeg\nfound\n",
        ),
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

pub(crate) fn of_memory() -> Vec<Case> {
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
            include_str!("../fixtures/forms/rocminfo_gfx90c.txt").to_owned(),
            include_str!("../fixtures/forms/rocminfo_gfx1150.txt").to_owned(),
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
