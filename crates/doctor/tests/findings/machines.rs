//! Machines as dumps, made of parts.

/// Bytes of this many MiB.
pub(crate) fn mib(count: u64) -> u64 {
    count << 20
}

pub(crate) fn gib(count: u64) -> u64 {
    count << 30
}

/// A GPU of KFD: node, `gfx_target_version`, compute units, pool.
pub(crate) fn gpu(node: u32, version: u32, units: u32, pool: u64) -> String {
    let (simds, location, minor) = (units * 2, (node + 2) << 8, 127 + node);
    format!(
        "== kfd/nodes/{node}/gpu_id\n{node}4711\n\
         == kfd/nodes/{node}/properties\nsimd_count {simds}\nsimd_per_cu 2\nvendor_id 4098\n\
         gfx_target_version {version}\nlocation_id {location}\ndrm_render_minor {minor}\n\
         == kfd/nodes/{node}/mem_banks/0/properties\nheap_type 1\nsize_in_bytes {pool}\n"
    )
}

/// The DRM files of the GPU of this node; a card has a board.
pub(crate) fn drm(node: u32, vram: u64, gtt: u64, is_card: bool) -> String {
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
pub(crate) fn memory(ram: u64, swap: u64, free: u64) -> String {
    format!(
        "== proc/meminfo\nMemTotal: {} kB\nMemAvailable: {} kB\nSwapTotal: {} kB\nSwapFree: {} kB\n",
        ram >> 10,
        ram >> 11,
        swap >> 10,
        free >> 10
    )
}

pub(crate) fn ttm(limit: u64) -> String {
    format!("== module/ttm/parameters/pages_limit\n{}\n", limit / 4096)
}

pub(crate) fn kernel(release: &str) -> String {
    format!("== proc/sys/kernel/osrelease\n{release}\n")
}

pub(crate) fn command_line(text: &str) -> String {
    format!("== proc/cmdline\nquiet {text}\n")
}

pub(crate) fn environment(lines: &str) -> String {
    format!("== environment\n{lines}\n")
}

pub(crate) fn packages(lines: &str) -> String {
    format!("== python/prefix\n/venv\n== python/packages\n{lines}\n")
}

/// What every machine of this file has: a kernel, limits, an environment, its devices.
pub(crate) fn host() -> String {
    kernel("6.19.2-200.fc43.x86_64")
        + &environment("")
        + "== dev/kfd\naccess=ok mode=0660 uid=0 gid=105\n\
           == proc/self/limits\nMax open files            65536                524288               files\n\
           == proc/self/status\nUid: 1000 1000 1000 1000\nGid: 1000 1000 1000 1000\nGroups: 105\n"
}

/// Strix Halo, 128 GiB, the limit of TTM raised to 100.
pub(crate) fn halo() -> String {
    host()
        + &memory(gib(125), gib(8), gib(8))
        + &ttm(gib(100))
        + &gpu(1, 110_501, 40, gib(100))
        + &drm(1, mib(512), gib(100), false)
}

/// A card of this version with 16 GiB, in a machine of 64.
pub(crate) fn card(version: u32) -> String {
    host()
        + &memory(gib(62), gib(8), gib(8))
        + &gpu(1, version, 60, gib(16))
        + &drm(1, gib(16), gib(31), true)
}

/// The integrated GPU of a Ryzen at this node, and an RX 9070 XT at the other.
pub(crate) fn mixed(integrated: u32) -> String {
    let other = 3 - integrated;
    host()
        + &memory(gib(62), gib(8), gib(8))
        + &gpu(integrated, 100_306, 2, gib(31))
        + &drm(integrated, mib(512), gib(31), false)
        + &gpu(other, 120_001, 64, gib(16))
        + &drm(other, gib(16), gib(31), true)
}

/// A machine without KFD, and one GPU on its bus with this driver.
pub(crate) fn on_the_bus(driver: &str) -> String {
    host()
        + &memory(gib(62), gib(8), gib(8))
        + "== pci-devices\n40\n== pci/0000:03:00.0/vendor\n0x1002\n== pci/0000:03:00.0/device\n0x744c\n"
        + &format!("== pci/0000:03:00.0/uevent\n{driver}\n")
}

/// Windows 11 with 32 GiB, 8 GiB of page file, and no display adapter yet.
pub(crate) fn windows() -> String {
    "== environment\n\n== windows/version\nProductName: Windows 10 Pro\nCurrentBuildNumber: 26100\n\
     == windows/memory\nMemTotal: 33419264 kB\nMemAvailable: 20000000 kB\nSwapTotal: 8388608 kB\nSwapFree: 8000000 kB\n"
        .to_owned()
}

/// An RX 7900 XTX in the registry, with the driver of this provider.
pub(crate) fn adapter(provider: &str) -> String {
    format!(
        "== windows/adapters/0000\nDriverDesc: AMD Radeon RX 7900 XTX\nProviderName: {provider}\n\
         MatchingDeviceId: PCI\\VEN_1002&DEV_744C&REV_C8\n\
         HardwareInformation.qwMemorySize: 25753026560\n"
    )
}

pub(crate) const DRIVER_OF_AMD: &str = "Advanced Micro Devices, Inc.";

/// The same card as hipInfo lists it.
pub(crate) const HIPINFO_LIVE: &str = "== windows/hipinfo-program\nC:\\venv\\hipInfo.exe\n\
    == windows/hipinfo\ndevice#    0\nName:   AMD Radeon RX 7900 XTX\ngcnArchName: gfx1100\n\
    totalGlobalMem: 23.98 GB\nisIntegrated: 0\n";

/// HIP runtimes: that of the driver, and that of the wheels.
pub(crate) fn runtimes(driver: &str) -> String {
    format!(
        "== windows/hip-runtimes\nC:\\Windows\\System32\\{driver}\n\
         C:\\venv\\Lib\\site-packages\\_rocm_sdk_core\\bin\\amdhip64_7.dll\n"
    )
}

pub(crate) const KFD_SHUT: &str = "== dev/kfd\naccess=";
pub(crate) const GPU_BY_SMI: &str =
    "GPU[0]\t\t: Device ID: \t\t0x744c\nGPU[1]\t\t: Device ID: \t\t0x744c\n";
pub(crate) const HIPINFO: &str =
    "device#    0\nName:   AMD Radeon RX 9070 XT\ngcnArchName: gfx1201\ntotalGlobalMem: 15.92 GB\n";
pub(crate) const WINDOWS: &str =
    "OS Name: Microsoft Windows 11 Pro\nTotal Physical Memory: 32,562 MB\n";

/// Id, the machine where it is found, the one where it is not.
pub(crate) type Case = (&'static str, String, String);
