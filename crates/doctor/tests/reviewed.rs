//! Statements that were once wrong beside the right answer: the same message explained twice, a
//! remark taken for an error, and steps for another GPU or system.

use surefoot_doctor::explain::explain;
use surefoot_doctor::{Report, diagnose_text};

fn ids(text: &str) -> Vec<String> {
    let found = explain(text).matches.into_iter();
    found.map(|found| found.id).collect()
}

fn report(text: &str) -> Report {
    diagnose_text(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn finding_ids(text: &str) -> Vec<String> {
    let found = report(text).findings.into_iter();
    found.map(|finding| finding.id).collect()
}

#[test]
fn a_message_has_one_explanation() {
    for (text, id) in [
        (
            "[ERROR] llama-server process has terminated with exit code: -1073740791",
            "runner-crash",
        ),
        (
            "amdgpu 0000:03:00.0: amdgpu: SMC engine is not correctly up!\namdgpu 0000:03:00.0: amdgpu: resume of IP block <smu> failed -5",
            "resume-failed",
        ),
        (
            "flash_attn_ck/mha_bwd.cpp:7:10: fatal error: 'fmha_bwd.hpp' file not found\nERROR: Failed building wheel for flash-attn\n",
            "flash-attention-composable-kernels",
        ),
        (
            "-- Could NOT find HIP: Found unsuitable version \"0.0.0\"\nCan't find CUDA or HIP installation.",
            "cmake-finds-no-hip",
        ),
        ("WARNING ROCm: no agent was found", "launcher-no-agent"),
        (
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE) ran for 600010 milliseconds before timing out.",
            "watchdog-timeout",
        ),
        (
            "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n`cutlassF` is not supported because:",
            "xformers-missing",
        ),
        (
            "RuntimeError: HIP error: invalid device ordinal",
            "device-number",
        ),
        (
            "[ZLUDA]\nRuntimeError: CUDA error: operation not supported",
            "zluda-call-unsupported",
        ),
    ] {
        assert_eq!(ids(text), [id], "{text}");
    }
}

#[test]
fn a_finding_and_a_message_do_not_say_the_same() {
    let text = "Command line: BOOT_IMAGE=/vmlinuz-6.14.0 ro amdgpu.gtt_size=122880\n[    3.6] amdgpu: unknown parameter 'gtt_size' ignored\n";
    let found = finding_ids(text);
    assert_eq!(found, ["gtt-size-typo"], "{found:?}");
}

#[test]
fn a_warning_of_a_program_is_no_failure() {
    let text = "[WARNING] failed to run amdgpu-arch: binary not found.\nTotal VRAM 16368 MB, total RAM 65462 MB\npytorch version: 2.9.0+rocmsdk20251116\nAMD arch: gfx1101\nDevice: cuda:0 AMD Radeon RX 7800 XT : native\n";
    let verdict = report(text).verdict();
    assert!(!verdict.contains("failed"), "{verdict}");
}

#[test]
fn nothing_is_said_of_wheels_for_a_gpu_that_is_not_known() {
    let text = "Looking in indexes: https://pypi.org/simple, https://download.pytorch.org/whl/rocm6.0\nCollecting torch\n  Downloading torch-2.6.0-cp312-cp312-manylinux1_x86_64.whl (766 MB)\n";
    let report = report(text);
    assert!(report.has_errors());
    let text = report.to_text(false);
    assert!(!text.contains("no published wheel"), "{text}");
}

/// A warning is not "nothing wrong", and a card of NVIDIA is a GPU that the text names.
#[test]
fn the_verdict_without_a_gpu_fits_what_was_found() {
    let verdict =
        report("[   96.7] BUG: unable to handle kernel paging request at ffffbc0bcf791000\n")
            .verdict();
    assert!(verdict.starts_with("No error was found"), "{verdict}");
    let verdict = report("GPU = NVIDIA A100 80GB PCIe. Max memory = 79.151 GB.\n").verdict();
    assert!(verdict.contains("names no AMD GPU"), "{verdict}");
}

/// An override that is right for one GPU and wrong for the other is one problem.
#[test]
fn an_override_of_two_gpus_is_judged_once() {
    let text = "  Board name:\t\t AMD Radeon AI PRO R9700\n  Name:\t\t gfx1201\n  Board name:\t\t Radeon 8060S Graphics\n  Name:\t\t gfx1201\nexport HSA_OVERRIDE_GFX_VERSION=12.0.1\n";
    let found = finding_ids(text);
    for wrong in ["override-needless", "override-relabels-all"] {
        assert!(!found.iter().any(|id| id == wrong), "{found:?}");
    }
    assert!(found.iter().any(|id| id == "override-harmful"), "{found:?}");
}

#[test]
fn the_report_of_another_torch_says_nothing_about_processors() {
    let text = "Collecting environment information...\nPyTorch version: 2.4.0\nIs debug build: False\nCUDA used to build PyTorch: None\nROCM used to build PyTorch: N/A\nPython platform: Linux-6.8.0\nIs CUDA available: False\nGPU models and configuration: No CUDA\n";
    let text = report(text).to_text(false);
    assert!(!text.contains("only CPUs"), "{text}");
}

#[test]
fn a_gpu_that_is_too_old_gets_no_driver() {
    let text = "01:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Oland XT [Radeon HD 8670 / R7 250/350] (rev 83)\n\tKernel modules: radeon, amdgpu\n";
    let text = report(text).to_text(false).replace("\n         ", " ");
    assert!(
        text.contains("too old") && !text.contains("modprobe"),
        "{text}"
    );
}

#[test]
fn what_cmd_says_is_from_windows() {
    let text = "'rocm-sdk' is not recognized as an internal or external command,\n[INFO] GPU arch: gfx1100\n";
    let fix = explain(text).matches.remove(0).fix.join("\n");
    assert!(!fix.contains("download.pytorch.org"), "{fix}");
}

/// A shell takes variables before a command, and people paste the whole line.
#[test]
fn variables_before_a_command_end_where_it_begins() {
    let text = "HIP_VISIBLE_DEVICES=0 HSA_OVERRIDE_GFX_VERSION=10.3.0 python main.py\nAMD arch: gfx1030\nDevice: cuda:0 AMD Radeon RX 6700 XT : native\n";
    let report = report(text);
    let value = |name: &str| report.machine.variable(name);
    assert_eq!(value("HSA_OVERRIDE_GFX_VERSION"), Some("10.3.0"));
    assert_eq!(value("HIP_VISIBLE_DEVICES"), Some("0"));
    assert!(!report.has_errors(), "{:?}", report.findings);
}

/// The memory of a card of NVIDIA, or of AMD, is no share of the RAM.
#[test]
fn a_full_card_beside_an_apu_is_no_limit_of_ttm() {
    let oom = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 7.65 GiB of which 1.02 GiB is free.\n";
    let card =
        "01:00.0 VGA compatible controller: NVIDIA Corporation AD107M [GeForce RTX 4060 Mobile]\n";
    let apu = "65:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Phoenix1 (rev c2)\n";
    assert_eq!(ids(&format!("{card}{apu}{oom}")), ["out-of-memory"]);
    assert_eq!(
        ids(&format!("Device: AMD Radeon 780M Graphics\n{oom}")),
        ["oom-ttm-limit"]
    );
    let text = report(&format!("{card}{apu}2.6.0+cu124 True\n{oom}")).to_text(false);
    assert!(!text.contains("wheel"), "{text}");
}

/// An error confirms what the machine made likely: one statement, and that an error.
#[test]
fn the_error_and_its_cause_are_one_statement() {
    let text = "pytorch version: 2.5.1+rocm6.1\nDevice: cuda:0 AMD Radeon RX 9070 XT : native\nRuntimeError: HIP error: invalid device function\n";
    let report = report(text);
    let errors: Vec<&str> = report
        .findings
        .iter()
        .map(|finding| finding.id.as_str())
        .collect();
    assert_eq!(errors, ["architecture-not-in-wheel"]);
    assert!(report.has_errors());
    let text = "crw-rw---- 1 root render 510, 0 Nov 1 10:00 /dev/kfd\nuid=1000(user) gid=1000(user) groups=1000(user),27(sudo)\nRuntimeError: No HIP GPUs are available\nAMD Radeon RX 7800 XT\n";
    assert_eq!(finding_ids(text), ["device-permission"]);
}

/// apt is of Debian and Ubuntu.
#[test]
fn other_distributions_install_in_their_own_way() {
    let error = "fatal error: 'cmath' file not found\n";
    let fix = |system: &str| {
        explain(&format!("{system}\n{error}"))
            .matches
            .remove(0)
            .fix
            .join("\n")
    };
    assert!(fix("6.8.0-60-generic").contains("apt install"));
    let fedora = fix("6.17.8-300.fc43.x86_64");
    assert!(
        fedora.contains("dnf install") && !fedora.contains("apt"),
        "{fedora}"
    );
    let arch = fix("6.17.7-arch1-1 x86_64");
    assert!(
        arch.contains("pacman") && !arch.contains("apt") && !arch.contains("dnf"),
        "{arch}"
    );
    let text = "Direct firmware load for amdgpu/psp_14_0_3_sos.bin failed with error -2\n6.14.5-300.fc42.x86_64\n";
    assert!(explain(text).matches[0].fix[0].contains("dracut"));
}

#[test]
fn a_rocm_build_is_not_called_one_for_the_cpu() {
    let text = "Linux host 6.6.87.2-microsoft-standard-WSL2\n>>> torch.__version__\n'2.9.1+rocm6.4'\n>>> torch.cuda.is_available()\nFalse\n";
    let found = explain(text).matches.remove(0);
    assert!(
        !found.cause.contains("build for the CPU") && found.cause.contains("WSL"),
        "{found:?}"
    );
}

/// The processor's own graphics under the number of a card.
#[test]
fn an_apu_under_an_override_stays_an_apu() {
    let text = "export HSA_OVERRIDE_GFX_VERSION=11.0.0\n$ rocminfo | grep -E 'gfx|Marketing'\n  Name:                    gfx1100\n  Marketing Name:          AMD Radeon 780M Graphics\n  Name:                    amdgcn-amd-amdhsa--gfx1100\n";
    let report = report(text);
    assert_eq!(
        report.gpus[0].gpu.gfx.map(|gfx| gfx.to_string()).as_deref(),
        Some("gfx1103")
    );
    assert!(report.gpus[0].gpu.is_apu());
}

/// The group of a device that only root may open is root, which is no group for users.
#[test]
fn nobody_is_put_into_the_group_of_root() {
    let text = "crw-------   1 root    root    234,   0 Mai 21 05:13 kfd\nUnable to open /dev/kfd read-write: Permission denied\n";
    let found = explain(text).matches.remove(0);
    assert!(found.fix[0].contains("udev rule"), "{found:?}");
    assert!(
        !found.fix.iter().any(|step| step.contains("stat -c %G")),
        "{found:?}"
    );
}

#[test]
fn a_loss_that_is_no_number_is_no_all_clear() {
    let text = "GPU available: True (cuda), used: True\nYou are using a CUDA device ('AMD Radeon RX 7900 XTX')\nEpoch 0: 2/1875 [00:03<52:10, 0.60it/s, train_loss=nan.0]\n";
    let report = report(text);
    assert!(ids(text).contains(&"nan-loss".to_owned()));
    let verdict = report.verdict();
    assert!(!verdict.starts_with("Nothing in this text"), "{verdict}");
}

#[test]
fn a_table_of_losses_that_are_no_numbers_is_read() {
    let row = "    10/299     7.98G       nan       nan         0       190       640: 100%|##| 93/93 [00:34<00:00,  2.71it/s]\n";
    assert_eq!(ids(&row.repeat(2)), ["nan-loss"]);
}

#[test]
fn a_loss_that_falls_shows_a_gpu_at_work() {
    let text = "{'loss': 1.61, 'grad_norm': 0.81}\n{'loss': 1.40, 'grad_norm': 0.63}\n{'loss': 1.29, 'grad_norm': 0.55}\nGPU: AMD Radeon RX 7900 XTX (gfx1100), torch 2.9.1+rocm6.4\n";
    let verdict = report(text).verdict();
    assert!(verdict.starts_with("Nothing in this text"), "{verdict}");
}

/// What is known to be harmless is not the line that tells most of a failure.
#[test]
fn a_harmless_helper_explains_no_failure() {
    let text = "comfy-aimdo failed to load: Could not find module 'E:\\x\\aimdo.dll' (or one of its dependencies). Try using the full path.\nGPU: RX 6950 XT\n";
    let verdict = report(text).verdict();
    assert!(!verdict.contains("aimdo"), "{verdict}");
}

/// A message of cuDNN's is none of MIOpen's where torch is built for CUDA.
#[test]
fn nothing_of_rocm_fails_in_a_torch_for_cuda() {
    let text = "RuntimeError: GET was unable to find an engine to execute this computation\ntorch 2.6.0+cu124, AMD Radeon RX 6800\n";
    let found = finding_ids(text);
    assert!(found.contains(&"torch-for-cuda".to_owned()), "{found:?}");
    assert!(
        !found.contains(&"miopen-unknown-error".to_owned()),
        "{found:?}"
    );
}

#[test]
fn the_graphics_of_a_processor_and_a_card_are_two_gpus() {
    let text = "Laptop with Ryzen 7 7840HS (Radeon 780M) and an RX 7700S\nWindows 11\ntorch==2.9.1+rocm7.2.1\n";
    let gpus = report(text).gpus;
    let mut found: Vec<String> = gpus
        .iter()
        .filter_map(|one| Some(one.gpu.gfx?.to_string()))
        .collect();
    found.sort();
    assert_eq!(found, ["gfx1102", "gfx1103"]);
}
