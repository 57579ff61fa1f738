//! Every fixture is answered as its `.expect.json` says.
//!
//! The expectations hold facts, not wording. Numbers and names are compared here one
//! by one; each warning in words is mapped to the finding or the explanation that must
//! say it, and a warning without a mapping fails.

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use surefoot_doctor::explain::{Match, explain};
use surefoot_doctor::{Report, diagnose_text};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Every fixture: its path below the folder, its text and its expectations.
fn fixtures() -> Vec<(String, String, Value)> {
    let mut all = Vec::new();
    for folder in [folder(), folder().join("synthetic")] {
        for entry in fs::read_dir(&folder).expect("the folder of fixtures") {
            let path = entry.expect("an entry").path();
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let Some(stem) = name.strip_suffix(".expect.json") else {
                continue;
            };
            let expected = fs::read_to_string(&path).expect("expectations");
            let text = fs::read_to_string(folder.join(format!("{stem}.txt"))).expect("a fixture");
            all.push((
                stem.to_owned(),
                text,
                serde_json::from_str(&expected).expect("JSON"),
            ));
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn report(text: &str, name: &str) -> Report {
    diagnose_text(text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn has(report: &Report, id: &str) -> bool {
    report.findings.iter().any(|finding| finding.id == id)
}

#[test]
fn there_are_as_many_fixtures_as_were_given() {
    assert!(fixtures().len() >= 31, "fixtures are missing");
}

/// The facts of every GPU, whatever they are called in the expectation.
#[test]
fn gpus_are_as_expected() {
    for (name, text, expected) in fixtures() {
        let Some(gpus) = expected.get("gpus").and_then(Value::as_array) else {
            continue;
        };
        let report = report(&text, &name);
        assert_eq!(report.gpus.len(), gpus.len(), "{name}");
        let actual = serde_json::to_value(&report).expect("JSON");
        for (index, wanted) in gpus.iter().enumerate() {
            let gpu = &actual["gpus"][index];
            for (key, value) in wanted.as_object().expect("an object") {
                let found = match key.as_str() {
                    "kfd_pool_bytes" | "pool_bytes" => gpu["usable_bytes"].clone(),
                    // The old kernel says nothing; what we say instead comes from the device id.
                    "gfx" if value.is_null() => {
                        assert_eq!(gpu["gfx"], expected["gfx_from_device_id"], "{name}");
                        assert!(has(&report, "kernel-without-gfx-version"), "{name}");
                        continue;
                    }
                    "mode" => match gpu["memory_rule"].as_str() {
                        Some("carveout") => json!("vram_carveout"),
                        rule => json!(rule),
                    },
                    "mem_total_mb" => json!(gpu["vram_bytes"].as_u64().map(|bytes| bytes >> 20)),
                    // What is in use is not part of a diagnosis.
                    "mem_used_mb" => continue,
                    "total_gib" => json!(
                        gpu["usable_bytes"]
                            .as_f64()
                            .map(|bytes| (bytes / (1u64 << 30) as f64 * 100.0).round() / 100.0)
                    ),
                    "pci_bus" => json!(
                        gpu["pci"]
                            .as_str()
                            .and_then(|pci| u8::from_str_radix(&pci[5..7], 16).ok())
                    ),
                    "vendor_id" => json!("0x1002"),
                    "location_id" => {
                        let pci = platform::pci::PciAddress::parse(
                            gpu["pci"].as_str().expect("an address"),
                        )
                        .expect("an address");
                        json!(
                            u32::from(pci.bus) << 8
                                | u32::from(pci.device) << 3
                                | u32::from(pci.function)
                        )
                    }
                    // The tool's name is generic; ours comes from the device id, or is the tool's.
                    "marketing_name" | "name" => {
                        let generic = value == "AMD Radeon Graphics";
                        assert!(
                            generic || gpu["product"] == *value,
                            "{name}: {}",
                            gpu["product"]
                        );
                        continue;
                    }
                    "rocminfo_says_apu" => match value.as_bool() {
                        None => continue,
                        Some(apu) => {
                            assert_eq!(gpu["class_from"], "rocminfo: Memory Properties", "{name}");
                            assert_eq!(gpu["class"] == "apu", apu, "{name}");
                            continue;
                        }
                    },
                    key => gpu[key].clone(),
                };
                assert_eq!(found, *value, "{name}: GPU {index}: {key}");
            }
        }
    }
}

#[test]
fn kinds_are_recognised() {
    for (name, text, expected) in fixtures() {
        let Some(kind) = expected["kind"].as_str() else {
            continue;
        };
        let wanted = if matches!(kind, "oom" | "error" | "warning") {
            "log"
        } else {
            kind
        };
        let actual = serde_json::to_value(report(&text, &name).machine.read_from).expect("JSON");
        assert_eq!(actual, wanted, "{name}");
    }
}

#[test]
fn classes_are_as_expected() {
    for (name, text, expected) in fixtures() {
        let Some(classes) = expected["class"].as_array() else {
            continue;
        };
        let report = report(&text, &name);
        let actual: Vec<Value> = report
            .gpus
            .iter()
            .map(|entry| serde_json::to_value(entry.gpu.class).expect("JSON"))
            .collect();
        assert_eq!(actual, *classes, "{name}");
    }
}

#[test]
fn the_right_gpu_is_picked_and_the_rest_hidden() {
    for (name, text, expected) in fixtures() {
        let Some(pick) = expected.get("pick") else {
            continue;
        };
        let report = report(&text, &name);
        if pick == "all (multi-GPU)" {
            assert_eq!(
                (report.pick, report.visible.len()),
                (Some(0), report.gpus.len()),
                "{name}"
            );
        } else {
            assert_eq!(json!(report.pick), *pick, "{name}");
        }
        let hide = expected.get("hide").cloned().unwrap_or_else(|| json!([]));
        assert_eq!(json!(report.hide), hide, "{name}");
    }
}

#[test]
fn the_environment_is_as_expected() {
    for (name, text, expected) in fixtures() {
        if let Some(environment) = expected.get("env") {
            assert_eq!(json!(report(&text, &name).env), *environment, "{name}");
        }
        if expected.get("windows_env").is_some() {
            let names: Vec<String> = report(&text, &name).env.into_keys().collect();
            assert_eq!(names, ["HIP_VISIBLE_DEVICES"], "{name}");
        }
    }
}

#[test]
fn overrides_are_advised_only_where_they_work() {
    for (name, text, expected) in fixtures() {
        let none_needed =
            expected["override_needed"] == false || expected["override_must_not_be_set"] == true;
        let report = report(&text, &name);
        let needed = report
            .gpus
            .iter()
            .filter(|entry| !report.hide.contains(&entry.gpu.index))
            .find_map(|entry| entry.upstream_wheel_override);
        if none_needed {
            assert_eq!(needed, None, "{name}");
        }
        if let Some(wanted) = expected["override"]["upstream_pytorch_wheel"].as_str() {
            let value = wanted.rsplit('=').next();
            assert_eq!(needed, value, "{name}");
            let finding = report
                .findings
                .iter()
                .find(|finding| finding.id == "architecture-needs-device-wheel")
                .expect(&name);
            assert!(
                finding.fix[0].contains("torch[device-gfx1031]"),
                "{name}: {:?}",
                finding.fix
            );
            // Which wheel is installed is not known, so nothing is set.
            assert!(
                !report.env.contains_key("HSA_OVERRIDE_GFX_VERSION"),
                "{name}"
            );
        }
        assert!(
            !report.env.contains_key("HSA_OVERRIDE_GFX_VERSION"),
            "{name}"
        );
    }
}

#[test]
fn overrides_seen_in_guides_are_judged() {
    let (_, text, expected) = fixtures()
        .into_iter()
        .find(|(name, ..)| name == "rocminfo_gfx1031_rx6750gre")
        .expect("the fixture");
    assert_eq!(
        expected["override"]["invalid_values_seen_in_seeds"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    for (value, id) in [
        ("gfx1031", "override-invalid"),
        ("10.3.1", "override-needless"),
    ] {
        let report = report(
            &format!("{text}\nexport HSA_OVERRIDE_GFX_VERSION={value}\n"),
            value,
        );
        assert!(has(&report, id), "{value}: {:?}", report.findings);
    }
    let report = report(
        &format!("{text}\nexport HSA_OVERRIDE_GFX_VERSION=10.3.0\n"),
        "10.3.0",
    );
    assert!(
        !report
            .findings
            .iter()
            .any(|finding| finding.id.starts_with("override")),
        "10.3.0 is right with an upstream wheel"
    );
}

#[test]
fn memory_of_apus_is_as_expected() {
    for (name, text, expected) in fixtures() {
        let report = report(&text, &name);
        let gpu = || {
            &report
                .gpus
                .first()
                .unwrap_or_else(|| panic!("{name}: no GPU"))
                .gpu
        };
        let usable = |value: &Value| assert_eq!(json!(gpu().usable_bytes), *value, "{name}");
        if let Some(memory) = expected.get("memory") {
            usable(&memory["usable_bytes"]);
            let mode = match gpu().memory_rule {
                Some(platform::memory::MemoryRule::Carveout) => "vram_carveout",
                Some(platform::memory::MemoryRule::Gtt) => "gtt",
                _ => "?",
            };
            assert_eq!(memory["mode"], mode, "{name}");
            if let Some(host) = memory.get("host_ram_left_bytes") {
                assert_eq!(json!(report.machine.memory.total), *host, "{name}");
            }
        }
        if expected["kind"] == "memory" {
            if let Some(value) = expected.get("usable_bytes") {
                usable(value);
            }
            if let Some(most) = expected["usable_bytes_max"].as_u64() {
                assert!(
                    gpu().usable_bytes.is_some_and(|bytes| bytes.0 <= most),
                    "{name}"
                );
            }
            assert_eq!(json!(gpu().gfx), expected["gfx"], "{name}");
        }
        if let Some(bytes) = expected.get("cpu_pool_bytes") {
            assert_eq!(json!(report.machine.memory.total), *bytes, "{name}");
        }
    }
}

/// What must be said for each warning of the expectations.
#[test]
fn warnings_are_said() {
    const SAID: &[(&str, &[&str])] = &[
        ("amd-smi prints N/A", &["smi-shows-carveout"]),
        (
            "amd-smi total is the VRAM carve-out only",
            &["smi-shows-carveout"],
        ),
        ("two usable devices", &["several-usable-gpus"]),
        ("kernel too old", &["kernel-without-gfx-version"]),
        ("partitioned device", &["partitioned"]),
        ("VRAM+GTT", &["vram-plus-gtt"]),
        ("frameworks that read TTM", &["carveout-starves-host"]),
        ("free > total", &["free-above-total"]),
        ("GTT (128 GiB) is larger than host RAM", &["gtt-above-ram"]),
        (
            "amdgpu.gttsize without ttm.pages_limit",
            &["gttsize-without-pages-limit"],
        ),
        ("bf16 is not hardware accelerated", &["rdna2-prefers-fp16"]),
        ("hipBLASLt has no gfx103x kernels", &["rdna2-prefers-fp16"]),
        ("RDNA2: prefer fp16", &["rdna2-prefers-fp16"]),
        ("host RAM left for the OS", &["carveout-starves-host"]),
        ("hipStreamCreate OOM", &["carveout-starves-host"]),
        ("host has 31 GiB left", &["carveout-starves-host"]),
        ("KFD topology has only CPU nodes", &["no-gpu"]),
        ("training on gfx1033", &["gfx1033-wrong-gradients"]),
        ("only half of the RAM", &["ttm-limit-default"]),
        ("pool is 88 %", &["little-headroom"]),
        ("iGPU pool is larger", &["igpu-pool-larger"]),
    ];
    /// Warnings that are a property of how the file is read; each has a test of its own.
    const PROVED: &[&str] = &[
        "multiProcessorCount 20 counts WGPs",
        "isIntegrated is not in this excerpt",
        "strip feature suffix",
        "in this dump /dev/kfd is 0666",
        "ROCm not in /opt/rocm",
        "reporter set HSA_OVERRIDE_GFX_VERSION=11.0.0",
        "\"GFX Version: gfx11003\"",
        "\"Subsystem ID: Radeon HD 6470M\"",
        "do not set HSA_OVERRIDE_GFX_VERSION",
        "an APU heuristic",
    ];
    for (name, text, expected) in fixtures() {
        let report = report(&text, &name);
        for warning in expected["warnings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
        {
            if PROVED.iter().any(|start| warning.starts_with(start)) {
                continue;
            }
            let (_, ids) = SAID
                .iter()
                .find(|(start, _)| warning.starts_with(start))
                .unwrap_or_else(|| panic!("{name}: no mapping for {warning:?}"));
            for id in *ids {
                assert!(
                    has(&report, id),
                    "{name}: {warning:?} needs {id}; found {:?}",
                    report.findings.iter().map(|f| &f.id).collect::<Vec<_>>()
                );
            }
        }
        if expected["warnings"].as_array().is_some_and(Vec::is_empty) {
            let loud: Vec<_> = report
                .findings
                .iter()
                .filter(|finding| finding.severity != surefoot_doctor::findings::Severity::Info)
                .map(|f| &f.id)
                .collect();
            assert!(loud.is_empty(), "{name}: {loud:?}");
        }
    }
}

#[test]
fn hipinfo_counts_pairs_of_compute_units() {
    let (_, text, _) = fixtures()
        .into_iter()
        .find(|(name, ..)| name == "hipinfo_windows_gfx1151_8060s")
        .expect("the fixture");
    let report = report(&text, "hipinfo");
    assert_eq!(report.gpus[0].gpu.compute_units, Some(40));
    assert_eq!(
        report.gpus[0].gpu.class_from,
        "the architecture exists only as an APU"
    );
}

#[test]
fn an_override_on_native_code_is_harmful() {
    for (fixture, value) in [
        ("kfd_gfx1151_128g_gtt110", "11.0.0"),
        ("rocminfo_gfx1103_780m_gtt_half_ram", "11.0.0"),
        ("kfd_gfx1201_plus_gfx1036", "11.0.0"),
    ] {
        let (_, text, _) = fixtures()
            .into_iter()
            .find(|(name, ..)| name == fixture)
            .expect(fixture);
        let mut machine = surefoot_doctor::dump::read(&text).expect(fixture);
        machine
            .variables
            .insert("HSA_OVERRIDE_GFX_VERSION".to_owned(), value.to_owned());
        let report = surefoot_doctor::report::diagnose(machine);
        assert!(
            has(&report, "override-harmful") && report.has_errors(),
            "{fixture}: {:?}",
            report.findings
        );
    }
}

fn explained(fixture: &str) -> (Vec<Match>, Value) {
    let (_, text, expected) = fixtures()
        .into_iter()
        .find(|(name, ..)| name == fixture)
        .expect(fixture);
    (explain(&text).matches, expected)
}

#[test]
fn the_numbers_of_out_of_memory_messages_are_read() {
    let cases = [
        ("oom_apu_512m", "oom-carveout-only"),
        ("oom_free_underflow", "oom-carveout-only"),
        ("oom_gfx1151_128g_capacity_lie", "oom-capacity-not-honoured"),
        ("oom_windows_fragmentation", "oom-fragmentation"),
    ];
    for (fixture, id) in cases {
        let (matches, expected) = explained(fixture);
        assert_eq!(matches[0].id, id, "{fixture}");
        let number = |name: &str| matches[0].numbers.get(name).copied();
        for (key, value) in expected.as_object().expect("an object") {
            let (name, scale) = match key.as_str() {
                "capacity_mib" => ("capacity_bytes", 1u64 << 20),
                "capacity_gib" => ("capacity_bytes", 1 << 30),
                "allocated_gib" => ("allocated_bytes", 1 << 30),
                "reserved_unallocated_gib" => ("reserved_unallocated_bytes", 1 << 30),
                "free_mib" => ("free_bytes", 1 << 20),
                "free_bytes" => ("free_bytes", 1),
                _ => continue,
            };
            let wanted = value.as_f64().map(|value| (value * scale as f64) as u64);
            assert_eq!(number(name), wanted, "{fixture}: {key}");
        }
    }
}

#[test]
fn expandable_segments_is_not_advised_on_windows() {
    let (matches, _) = explained("oom_windows_fragmentation");
    let advice = matches[0].fix.join("\n");
    assert!(
        advice.contains("max_split_size_mb") && advice.contains("not expandable_segments"),
        "{advice}"
    );
    assert!(
        matches
            .iter()
            .any(|found| found.id == "expandable-segments-unsupported")
    );
}

#[test]
fn the_ttm_limit_is_advised_where_the_capacity_is_not_honoured() {
    let (matches, _) = explained("oom_gfx1151_128g_capacity_lie");
    assert!(matches[0].fix[0].contains("ttm.pages_limit"));
    assert!(
        matches[0].cause.contains("58.54 GiB") && matches[0].cause.contains("not fragmentation"),
        "{}",
        matches[0].cause
    );
}

#[test]
fn the_override_that_a_log_mentions_is_named() {
    let (matches, _) = explained("err_invalid_device_function_gfx1103");
    assert_eq!(matches[0].id, "invalid-device-function");
    assert!(
        matches[0].cause.contains("pass for gfx1102")
            && matches[0]
                .cause
                .contains("rocm6.1 wheel has no code for gfx1102"),
        "{}",
        matches[0].cause
    );
    assert_eq!(matches[0].fix[0], "unset HSA_OVERRIDE_GFX_VERSION");
}

#[test]
fn three_errors_of_kfd_are_told_apart() {
    let (matches, expected) = explained("err_kfd_open");
    let mut ids: Vec<&str> = matches.iter().map(|found| found.id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(
        ids,
        ["kfd-invalid-argument", "kfd-no-memory", "kfd-permission"]
    );
    assert_eq!(expected["rows"].as_array().map(Vec::len), Some(3));
    let permission = matches
        .iter()
        .find(|found| found.id == "kfd-permission")
        .expect("the entry");
    assert!(
        !permission.fix.iter().any(|step| step.contains("usermod")),
        "/dev/kfd is 0666 here"
    );
}

#[test]
fn a_page_fault_and_a_warning_are_explained() {
    let (matches, _) = explained("err_memory_fault");
    assert_eq!(
        (matches.len(), matches[0].id.as_str()),
        (1, "memory-access-fault")
    );
    let (matches, _) = explained("err_aotriton_experimental");
    assert_eq!(
        (matches.len(), matches[0].id.as_str(), matches[0].count),
        (1, "aotriton-experimental", 4)
    );
    assert_eq!(
        matches[0].severity,
        surefoot_doctor::findings::Severity::Info
    );
}
