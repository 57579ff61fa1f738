//! Whole machines, told as dumps: what is found, and what would be set.

use platform::findings::Severity;
use platform::report::{Report, diagnose_text};

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
    assert_eq!(ids(&report), ["wsl"]);
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
