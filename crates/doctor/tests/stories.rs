//! Whole machines, told as dumps: what is found, and what would be set.

use surefoot_doctor::findings::Severity;
use surefoot_doctor::{Report, diagnose_text};

/// The consumer machines of the fixtures, to build stories on.
const NAVI22_WITH_IGPU: &str = include_str!("fixtures/synthetic/kfd_gfx1031_plus_gfx1036.txt");
const STRIX_HALO: &str = include_str!("fixtures/synthetic/kfd_gfx1151_128g_gtt110.txt");
const CPU_ONLY: &str = include_str!("fixtures/synthetic/kfd_cpu_only.txt");

fn diagnose(parts: &[&str]) -> Report {
    diagnose_text(&parts.join("\n")).expect("recognised")
}

fn severity(report: &Report, id: &str) -> Option<Severity> {
    report
        .findings
        .iter()
        .find(|finding| finding.id == id)
        .map(|finding| finding.severity)
}

fn fixes(report: &Report, id: &str) -> String {
    let finding = report.findings.iter().find(|finding| finding.id == id);
    finding
        .unwrap_or_else(|| panic!("no {id}: {:?}", ids(report)))
        .fix
        .join("\n")
}

fn ids(report: &Report) -> Vec<&str> {
    report
        .findings
        .iter()
        .map(|finding| finding.id.as_str())
        .collect()
}

fn python(packages: &str) -> String {
    format!("== environment\n== python/prefix\n/venv\n== python/packages\n{packages}\n")
}

#[test]
fn navi22_with_an_upstream_wheel_needs_both_variables() {
    let report = diagnose(&[NAVI22_WITH_IGPU, &python("torch 2.11.0+rocm7.2")]);
    assert_eq!(severity(&report, "override-missing"), Some(Severity::Error));
    let env: Vec<(&str, &str)> = report
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        env,
        [
            ("HSA_OVERRIDE_GFX_VERSION", "10.3.0"),
            ("ROCR_VISIBLE_DEVICES", "0")
        ]
    );
}

#[test]
fn navi22_with_its_own_wheel_must_not_be_overridden() {
    let packages = "torch 2.13.0+rocm7.14.0\namd-torch-device-gfx1031 2.13.0";
    let report = diagnose(&[NAVI22_WITH_IGPU, &python(packages)]);
    assert_eq!(
        report.env.keys().collect::<Vec<_>>(),
        ["ROCR_VISIBLE_DEVICES"]
    );
    let overridden = python(packages).replace(
        "== environment\n",
        "== environment\nHSA_OVERRIDE_GFX_VERSION=10.3.0\n",
    );
    let report = diagnose(&[NAVI22_WITH_IGPU, &overridden]);
    assert_eq!(severity(&report, "override-harmful"), Some(Severity::Error));
}

#[test]
fn a_wheel_that_lacks_the_target_of_the_override_is_told() {
    let text = python("torch 2.13.0+rocm7.14.0\namd-torch-device-gfx1100 1").replace(
        "== environment\n",
        "== environment\nHSA_OVERRIDE_GFX_VERSION=10.3.0\n",
    );
    let report = diagnose(&[NAVI22_WITH_IGPU, &text]);
    assert_eq!(
        severity(&report, "override-target-not-in-wheel"),
        Some(Severity::Error)
    );
}

#[test]
fn a_global_override_relabels_the_integrated_gpu_too() {
    let text = python("torch 2.11.0+rocm7.2").replace(
        "== environment\n",
        "== environment\nHSA_OVERRIDE_GFX_VERSION=10.3.0\n",
    );
    let report = diagnose(&[NAVI22_WITH_IGPU, &text]);
    assert!(fixes(&report, "override-relabels-all").contains("HSA_OVERRIDE_GFX_VERSION_<node>"));
}

#[test]
fn a_torch_for_the_cpu_is_an_error_and_the_right_command_is_given() {
    let report = diagnose(&[STRIX_HALO, &python("torch 2.13.0+cpu")]);
    assert_eq!(severity(&report, "torch-cpu-only"), Some(Severity::Error));
    assert!(
        fixes(&report, "torch-cpu-only")
            .contains("--index-url https://download.pytorch.org/whl/rocm7.2")
    );
    assert!(report.has_errors());
}

#[test]
fn companions_that_do_not_fit_are_named() {
    let text = python(
        "torch 2.13.0+rocm7.2\ntorchvision 0.26.0\nbitsandbytes 0.45.0\ntriton 3.5\npytorch-triton-rocm 3.5",
    ) + "== python/bitsandbytes\nlibbitsandbytes_cpu.so\nlibbitsandbytes_cuda124.so\n";
    let report = diagnose(&[STRIX_HALO, &text]);
    for id in [
        "torchvision-mismatch",
        "bitsandbytes-without-rocm",
        "two-tritons",
    ] {
        assert_eq!(severity(&report, id), Some(Severity::Warning), "{id}");
    }
}

#[test]
fn known_bad_kernels_and_firmware_of_strix_halo() {
    let at = |release: &str| {
        diagnose(&[
            STRIX_HALO,
            &format!("== proc/sys/kernel/osrelease\n{release}\n"),
        ])
    };
    assert_eq!(
        severity(&at("6.17.0-1011-oem"), "kernel-gfx1151"),
        Some(Severity::Error)
    );
    assert_eq!(severity(&at("6.17.0-1012-oem"), "kernel-gfx1151"), None);
    assert_eq!(
        severity(&at("6.17.0-14-generic"), "kernel-gfx1151"),
        Some(Severity::Warning)
    );
    assert_eq!(
        severity(&at("6.18.4-200.fc43.x86_64"), "kernel-gfx1151"),
        None
    );
    assert_eq!(severity(&at("7.1.0"), "kernel-gfx1151"), None);
    let firmware = diagnose(&[
        STRIX_HALO,
        "== packages/linux-firmware\nlinux-firmware-20251125-1\n",
    ]);
    assert_eq!(
        severity(&firmware, "firmware-gfx1151"),
        Some(Severity::Error)
    );
}

#[test]
fn memory_parameters_are_judged_wherever_they_are_set() {
    let report = diagnose(&[
        STRIX_HALO,
        "== etc/modprobe.d/gpu.conf\noptions amdgpu gttsize=131072 gtt_size=1\n",
    ]);
    assert_eq!(
        severity(&report, "gttsize-without-pages-limit"),
        Some(Severity::Warning)
    );
    assert_eq!(severity(&report, "gtt-size-typo"), Some(Severity::Warning));
    let report = diagnose(&[
        STRIX_HALO,
        "== proc/cmdline\nquiet amdgpu.gttsize=131072 ttm.pages_limit=28835840\n",
    ]);
    assert_eq!(severity(&report, "gttsize-without-pages-limit"), None);
    assert_eq!(
        severity(&report, "gttsize-deprecated"),
        Some(Severity::Info)
    );
}

#[test]
fn a_limit_raised_after_the_start_of_amdgpu_is_not_in_effect() {
    let text = STRIX_HALO.replace("28835840", "31457280");
    let report = diagnose(&[&text]);
    assert_eq!(
        severity(&report, "pages-limit-not-in-effect"),
        Some(Severity::Warning)
    );
    assert_eq!(
        report.gpus[0].gpu.usable_bytes,
        Some(platform::Bytes::gib(110))
    );
}

#[test]
fn permissions_are_judged_by_what_opening_answered() {
    let kfd = |line: &str, more: &str| {
        diagnose(&[
            STRIX_HALO,
            &format!("== environment\n== dev/kfd\n{line}\n== etc/group\nrender:x:992:\n{more}"),
        ])
    };
    let report = kfd("access=EACCES mode=0660 uid=0 gid=992", "");
    assert!(fixes(&report, "device-permission").contains("usermod -aG render"));
    let report = kfd("access=EACCES mode=0666 uid=0 gid=992", "");
    assert!(!fixes(&report, "device-permission").contains("usermod"));
    let report = kfd("access=EACCES mode=0660 uid=0 gid=992", "== .dockerenv\n");
    assert!(fixes(&report, "device-permission").contains("--group-add"));
    let report = kfd(
        "access=EACCES mode=0660 uid=0 gid=992",
        "== proc/self/status\nUid:\t1000\t1000\t1000\t1000\nGroups:\t992 1000\n",
    );
    assert!(
        !fixes(&report, "device-permission").contains("usermod"),
        "the group is there already"
    );
    for (error, id) in [
        ("ENOENT", "kfd-missing"),
        ("EINVAL", "kfd-refuses"),
        ("ENOMEM", "kfd-no-memory"),
        ("EBUSY", "kfd-unusable"),
    ] {
        assert_eq!(
            severity(&kfd(&format!("access={error}"), ""), id),
            Some(Severity::Error)
        );
    }
    assert_eq!(
        ids(&kfd("access=ok mode=0660 uid=0 gid=992", "")),
        ["little-headroom"]
    );
}

#[test]
fn limits_of_the_process_are_judged() {
    let text = "== environment\n== .dockerenv\n== proc/self/limits\nMax open files            1024                 524288               files\n\
                == proc/mounts\nshm /dev/shm tmpfs rw,size=65536k 0 0\n== proc/meminfo\nMemTotal: 131072000 kB\nSwapTotal: 0 kB\n\
                == sys/fs/cgroup/memory.max\n34359738368\n== sys/fs/cgroup/memory.current\n0\n";
    let report = diagnose(&[STRIX_HALO, text]);
    for id in ["open-files", "small-shm", "no-swap", "cgroup-limit"] {
        assert_eq!(
            severity(&report, id),
            Some(Severity::Warning),
            "{id}: {:?}",
            ids(&report)
        );
    }
}

#[test]
fn wsl_has_no_kfd_and_that_is_no_error() {
    let text = "# surefoot dump 1\n== dev/dxg\naccess=ok\n== dev/kfd\naccess=ENOENT\n== environment\n== proc/sys/kernel/osrelease\n6.6.87.2-microsoft-standard-WSL2\n";
    let report = diagnose(&[text]);
    assert_eq!(ids(&report), ["wsl-without-librocdxg", "wsl"]);
    assert!(!report.has_errors());
}

#[test]
fn a_blacklisted_card_is_named() {
    let text = "== pci/0000:03:00.0/vendor\n0x1002\n== pci/0000:03:00.0/device\n0x7550\n== pci/0000:03:00.0/class\n0x030000\n== proc/cmdline\nquiet modprobe.blacklist=amdgpu\n";
    let report = diagnose(&[CPU_ONLY, text]);
    assert_eq!(
        severity(&report, "gpu-without-driver"),
        Some(Severity::Error)
    );
    assert!(report.findings.iter().any(|finding| {
        finding
            .seen
            .contains("blacklisted in the kernel command line")
    }));
}

#[test]
fn the_same_tree_pasted_with_grep_gives_the_same_gpus() {
    let mut path = "";
    let mut pasted = String::new();
    for line in NAVI22_WITH_IGPU
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        if let Some(next) = line.strip_prefix("== ") {
            path = next;
            continue;
        }
        let root = path
            .strip_prefix("kfd/")
            .map(|rest| format!("/sys/class/kfd/kfd/topology/{rest}"));
        let root = root
            .or_else(|| {
                path.strip_prefix("drm/")
                    .map(|rest| format!("/sys/class/drm/{rest}"))
            })
            .expect("a known root");
        pasted.push_str(&format!("{root}:{line}\r\n"));
    }
    let facts = |report: Report| {
        serde_json::to_value((report.gpus, report.env, report.hide)).expect("JSON")
    };
    assert_eq!(
        facts(diagnose(&[&pasted])),
        facts(diagnose(&[NAVI22_WITH_IGPU]))
    );
}

/// The allocator refuses what does not leave the reserve, and the doctor says the same number.
#[test]
fn an_apu_has_for_a_process_what_the_allocator_would_give() {
    use platform::Bytes;
    let ram = "== proc/meminfo\nMemTotal: 129000000 kB\nMemAvailable: 60000000 kB\n";
    let report = diagnose(&[STRIX_HALO, ram]);
    let capacity = report.gpus[0].capacity.expect("the pool is known");
    let expected = Bytes(60_000_000 << 10).saturating_sub(
        platform::memory::capacity::auto_reserve(Bytes(129_000_000 << 10)),
    );
    assert_eq!(capacity.free, expected);
    let line = format!("{expected} for a process now");
    assert!(
        report.to_text(false).contains(&line),
        "{}",
        report.to_text(false)
    );
}

#[test]
fn a_dump_of_the_doctor_reads_back_as_the_same_machine() {
    let report = diagnose(&[STRIX_HALO]);
    let dump = platform::Snapshot::parse(STRIX_HALO).to_text();
    let again = diagnose(&[&dump]);
    assert_eq!(
        serde_json::to_value(&again.gpus).expect("JSON"),
        serde_json::to_value(&report.gpus).expect("JSON")
    );
}

#[test]
fn amd_smi_static_is_read_as_text_and_as_json() {
    let text = "GPU: 0\n    ASIC:\n        MARKET_NAME: AMD Radeon RX 9070 XT\n        DEVICE_ID: 0x7550\n        NUM_COMPUTE_UNITS: 64\n        TARGET_GRAPHICS_VERSION: gfx1201\n    BUS:\n        BDF: 0000:03:00.0\n    VRAM:\n        TYPE: GDDR6\n        SIZE: 16304 MB\n\nGPU: 1\n    ASIC:\n        MARKET_NAME: AMD Radeon Graphics\n        TARGET_GRAPHICS_VERSION: gfx1036\n    BUS:\n        BDF: 0000:7b:00.0\n    VRAM:\n        SIZE: 512 MB\n";
    let json = r#"[{"gpu":0,"asic":{"market_name":"AMD Radeon RX 9070 XT","device_id":"0x7550","num_compute_units":64,"target_graphics_version":"gfx1201"},"bus":{"bdf":"0000:03:00.0"},"vram":{"type":"GDDR6","size":{"value":16304,"unit":"MB"}}},
        {"gpu":1,"asic":{"market_name":"AMD Radeon Graphics","target_graphics_version":"gfx1036"},"bus":{"bdf":"0000:7b:00.0"},"vram":{"size":{"value":512,"unit":"MB"}}}]"#;
    for text in [text, json] {
        let report = diagnose(&[text]);
        assert_eq!(
            (report.gpus.len(), report.pick, report.hide.as_slice()),
            (2, Some(0), [1].as_slice()),
            "{text}"
        );
        assert_eq!(
            report.gpus[0].gpu.usable_bytes,
            Some(platform::Bytes::mib(16304))
        );
        // 512 MiB of "VRAM" is the carve-out of the APU and not what it can use.
        assert_eq!(report.gpus[1].gpu.usable_bytes, None);
        assert_eq!(
            report.gpus[1].gpu.product.as_deref(),
            Some("Ryzen 7000/9000 desktop graphics")
        );
    }
}

#[test]
fn rocm_smi_is_read_in_all_its_forms() {
    let table = "============================================ ROCm System Management Interface ============================================\nDevice  Node  IDs              Temp    Power     Partitions          SCLK   MCLK     Fan  Perf  PwrCap  VRAM%  GPU%\n              (DID,     GUID)  (Edge)  (Socket)  (Mem, Compute, ID)\n0       2     0x13c0,   11111  45.0°C  20.0W     N/A, N/A, 0         None   1800Mhz  0%   auto  N/A     4%     0%\n1       1     0x744c,   12345  50.0°C  30.0W     N/A, N/A, 0         0Mhz   96Mhz    0%   auto  339.0W  1%     0%\n";
    let report = diagnose(&[table]);
    // HIP's order is that of the KFD nodes, not that of the tool.
    assert_eq!(
        report.gpus[0].gpu.gfx.map(|gfx| gfx.to_string()).as_deref(),
        Some("gfx1100")
    );
    let json = r#"{"card0": {"Device ID": "0x744c", "GFX Version": "gfx1100", "VRAM Total Memory (B)": "25753026560", "PCI Bus": "0000:2C:00.0"}, "system": {"Driver version": "6.12"}}"#;
    let report = diagnose(&[json]);
    assert_eq!(
        report.gpus[0].gpu.usable_bytes,
        Some(platform::Bytes(25_753_026_560))
    );
}

#[test]
fn an_npu_among_the_agents_is_no_gpu() {
    let text = include_str!("fixtures/rocminfo_gfx1151_strixhalo_96g_carveout.txt").to_owned()
        + "\n*******\nAgent 3\n*******\n  Name:                    aie2p\n  Device Type:             DSP\n  Pool Info:\n    Pool 1\n      Segment:                 GLOBAL; FLAGS: KERNARG, COARSE GRAINED\n      Size:                    32484672(0x1efad40) KB\n";
    assert_eq!(diagnose(&[&text]).gpus.len(), 1);
}

#[test]
fn the_fix_script_runs_nothing_dangerous_by_itself() {
    let text = include_str!("fixtures/synthetic/kfd_gfx1151_128g_default.txt");
    let script = diagnose(&[text]).fix_script();
    assert!(script.starts_with("#!/bin/sh\n"));
    assert!(
        script.contains("\necho 'options ttm pages_limit="),
        "{script}"
    );
    assert!(script.contains("\n# sudo reboot\n"), "{script}");
}

#[test]
fn a_raised_gtt_behind_a_default_ttm_limit_is_a_trap() {
    // gttsize=131072 on the command line of a machine whose pasted tree lacks it.
    let text = include_str!("fixtures/synthetic/kfd_gfx1151_128g_default.txt").replace(
        "mem_info_gtt_total\n67076648960",
        "mem_info_gtt_total\n137438953472",
    );
    let report = diagnose(&[&text]);
    assert_eq!(
        report.gpus[0].gpu.usable_bytes,
        Some(platform::Bytes(67_076_648_960))
    );
    for id in ["gtt-above-ttm", "gtt-above-ram", "ttm-limit-default"] {
        assert_eq!(
            severity(&report, id),
            Some(Severity::Warning),
            "{id}: {:?}",
            ids(&report)
        );
    }
}

#[test]
fn the_kernel_log_of_that_trap_gives_the_exact_limit() {
    let log = "[drm] GTT size has been set as 128849018880 but TTM size has been set as 66818834432, this is unusual\n\
               Ryzen AI MAX+ 395, hipMemGetInfo total: 62.2299 GB\n";
    let report = diagnose(&[log]);
    assert_eq!(
        report.gpus[0].gpu.usable_bytes,
        Some(platform::Bytes(66_818_834_432)),
        "{:?}",
        report.gpus
    );
    assert_eq!(
        severity(&report, "ttm-smaller-than-gtt"),
        Some(Severity::Warning)
    );
    // Without the number from HIP the limit is still the bound.
    let report = diagnose(&[log.lines().next().expect("a line"), "gfx1151"]);
    assert_eq!(
        report.gpus[0].gpu.usable_bytes,
        Some(platform::Bytes(66_818_834_432))
    );
}

#[test]
fn sixty_three_partitions_are_numbered_in_the_order_of_their_nodes() {
    let mut text = String::from(
        "== nodes/0/properties\ncpu_cores_count 96\nsimd_count 0\n== nodes/1/properties\ncpu_cores_count 96\nsimd_count 0\n",
    );
    for node in (2..65).rev() {
        let (card, partition) = ((node - 2) / 8, (node - 2) % 8);
        text += &format!(
            "== nodes/{node}/gpu_id\n{node}00\n== nodes/{node}/properties\ncpu_cores_count 0\nsimd_count 152\nsimd_per_cu 4\ngfx_target_version 90402\nvendor_id 4098\ndevice_id 29857\nlocation_id {}\ndomain 0\ndrm_render_minor {}\nunique_id {}\n",
            (10 + card) << 8 | partition,
            128 + node - 2,
            7000 + card
        );
    }
    let report = diagnose(&[&text]);
    assert_eq!(report.gpus.len(), 63);
    for (index, entry) in report.gpus.iter().enumerate() {
        assert_eq!(
            (entry.gpu.index, entry.gpu.kfd_node),
            (index, u32::try_from(index + 2).ok())
        );
    }
    assert_eq!(
        report.gpus[10]
            .gpu
            .pci
            .map(|pci| pci.to_string())
            .as_deref(),
        Some("0000:0b:00.2")
    );
    assert_eq!(severity(&report, "partitioned"), Some(Severity::Info));
    assert!(report.hide.is_empty() && report.env.is_empty());
}

#[test]
fn a_laptop_with_the_integrated_gpu_first() {
    let node = |number: u32, gfx: u32, device: u32, location: u32, simds: u32| {
        format!(
            "== kfd/nodes/{number}/gpu_id\n{number}\n== kfd/nodes/{number}/properties\nsimd_count {simds}\nsimd_per_cu 2\ngfx_target_version {gfx}\nvendor_id 4098\ndevice_id {device}\nlocation_id {location}\ndrm_render_minor {}\n",
            127 + number
        )
    };
    let text = node(1, 110_003, 0x15bf, 0xc300, 24) + &node(2, 110_002, 0x7480, 0x300, 64);
    let report = diagnose(&[&text]);
    assert_eq!(
        (report.pick, report.hide.as_slice()),
        (Some(1), [0].as_slice())
    );
    assert_eq!(
        report.env.get("ROCR_VISIBLE_DEVICES").map(String::as_str),
        Some("1")
    );
    assert_eq!(severity(&report, "igpu-in-front"), Some(Severity::Warning));
}

#[test]
fn rocminfo_with_two_gpus_keeps_their_order_and_identity() {
    let agent = |number: u32, name: &str, uuid: &str, kind: &str, chip: u32, bdf: u32, kib: u64| {
        format!(
            "*******\nAgent {number}\n*******\n  Name:                    {name}\n  Uuid:                    {uuid}\n  Marketing Name:          AMD Radeon Graphics\n  Node:                    {}\n  Device Type:             {kind}\n  Chip ID:                 {chip}({chip:#x})\n  BDFID:                   {bdf}\n  Compute Unit:            2\n  Pool Info:\n    Pool 1\n      Segment:                 GLOBAL; FLAGS: COARSE GRAINED\n      Size:                    {kib}({kib:#x}) KB\n    Pool 2\n      Segment:                 GROUP\n      Size:                    64(0x40) KB\n",
            number - 1
        )
    };
    let text = "HSA Agents\n".to_owned()
        + &agent(1, "AMD Ryzen 9 9900X", "CPU-XX", "CPU", 0, 0, 63_378_604)
        + &agent(
            2,
            "gfx1201",
            "GPU-2f987739463f9020",
            "GPU",
            30032,
            768,
            16_695_296,
        )
        + &agent(3, "gfx1036", "GPU-XX", "GPU", 5056, 31488, 31_689_300);
    let report = diagnose(&[&text]);
    assert_eq!(
        report.gpus[0].gpu.usable_bytes,
        Some(platform::Bytes::kib(16_695_296))
    );
    assert_eq!(
        report.gpus[0].gpu.uuid.as_deref(),
        Some("GPU-2f987739463f9020")
    );
    assert_eq!(report.gpus[1].gpu.uuid, None);
    assert_eq!(
        (report.pick, report.hide.as_slice()),
        (Some(0), [1].as_slice())
    );
    // Half of the CPU pool: the TTM limit, and no reason to raise it for a hidden GPU.
    assert_eq!(
        report.gpus[1].gpu.memory_rule,
        Some(platform::memory::MemoryRule::Gtt)
    );
    assert_eq!(severity(&report, "ttm-limit-default"), None);
}

#[test]
fn an_rx_9000_is_warned_of_faults_unless_something_prevents_them() {
    const CARD: &str = include_str!("fixtures/synthetic/kfd_gfx1201_plus_gfx1036.txt");
    let with = |torch: &str, set: &str| {
        let python = format!(
            "== environment\n{set}\n== python/prefix\n/venv\n== python/packages\ntorch {torch}\n"
        );
        diagnose(&[CARD, &python])
    };
    let id = "lora-may-fault";
    let report = with("2.13.0+rocm7.2", "");
    assert_eq!(severity(&report, id), Some(Severity::Warning));
    assert_eq!(
        fixes(&report, id),
        "surefoot run --alloc -- python train.py"
    );
    assert_eq!(
        report.env.get("ROCBLAS_USE_HIPBLASLT").map(String::as_str),
        Some("0")
    );
    let unguarded = with("2.13.0+rocm7.2", "HIP_ALLOC=1\nHIP_ALLOC_CONF=guard:off");
    assert_eq!(severity(&unguarded, id), Some(Severity::Warning));
    for prevented in [
        "HIP_ALLOC=1",
        "HIP_ALLOC=1\nHIP_ALLOC_CONF=keep:off",
        "PYTORCH_NO_HIP_MEMORY_CACHING=1",
        "TORCH_BLAS_PREFER_HIPBLASLT=0\nROCBLAS_USE_HIPBLASLT=0",
    ] {
        let report = with("2.13.0+rocm7.2", prevented);
        assert_eq!(severity(&report, id), None, "{prevented}");
        // Nor is it found fault with where it is needed.
        assert_eq!(
            severity(&report, "leave-to-the-library"),
            None,
            "{prevented}"
        );
    }
    assert_eq!(severity(&with("2.9.0+rocm6.4", ""), id), None);
    let other = diagnose(&[STRIX_HALO, &python("torch 2.13.0+rocm7.2")]);
    assert_eq!(severity(&other, id), None);
}
