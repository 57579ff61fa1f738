//! One answer to a text: `surefoot explain` and `surefoot doctor --from` say the same of it.

use platform::snapshot::Snapshot;
use surefoot_doctor::answer;
use surefoot_doctor::answer::{Answer, add_log};
use surefoot_doctor::explain::{Confidence, Match, Severity, Verdict};
use surefoot_doctor::report::explanation_text;

fn found<'a>(answer: &'a Answer, id: &str) -> &'a Match {
    let found = answer.explanation.matches.iter().find(|one| one.id == id);
    found.unwrap_or_else(|| panic!("no {id} in {:?}", answer.explanation))
}

#[test]
fn a_failure_that_nothing_explains_is_no_all_clear() {
    let text = "GPU: Radeon RX 7900 XTX\nTraceback (most recent call last):\n  File \"/home/user/venv/lib/python3.12/site-packages/frobnicate/core.py\", line 8, in go\nfrobnicate.FrobError: cannot frob the tensor\n";
    let answer = answer(text);
    let Verdict::Failed {
        line_number,
        component,
        ask,
        ..
    } = &answer.explanation.verdict
    else {
        panic!("{:?}", answer.explanation.verdict);
    };
    assert_eq!(
        (*line_number, component.as_deref()),
        (4, Some("frobnicate"))
    );
    assert_eq!(ask.len(), 3);
    let report = answer.report.expect("a machine");
    assert!(report.verdict().contains("why is not known"));
    assert_eq!(report.of_text, Some(answer.explanation.verdict));
}

#[test]
fn an_all_clear_needs_a_gpu_that_works() {
    let verdict = |text: &str| answer(text).report.expect("a machine").verdict();
    assert!(verdict("I have a Radeon RX 7900 XTX\n").contains("does not show the GPU at work"));
    assert!(
        verdict("Radeon RX 7900 XTX\nsteps: 5%| 10/200 [00:10<03:10, 1.00it/s, avr_loss=0.123]\n")
            .contains("keeps the GPU from training")
    );
}

#[test]
fn work_refutes_what_age_makes_likely() {
    let bench = "  Device 0: AMD Radeon RX 570 Series, gfx803 (0x803), VMM: no, Wave Size: 64\n";
    let rate = "| llama 1B Q4_0 | 3.56 GiB | 6.74 B | ROCm | 99 | pp512 | 669.04 ± 0.90 |\n";
    let severity = |text: &str| found_severity(text, "gpu-too-old");
    assert_eq!(severity(bench), Some(Severity::Error));
    assert_eq!(severity(&format!("{bench}{rate}")), Some(Severity::Info));
    let wheel = "Name: gfx1031\nexport HSA_OVERRIDE_GFX_VERSION=10.3.0\nstep 30 loss 1.93\n 10%|#| 30/300 [00:30<04:30,  1.00it/s]\n";
    assert_eq!(
        found_severity(wheel, "architecture-needs-device-wheel"),
        None
    );
}

fn found_severity(text: &str, id: &str) -> Option<Severity> {
    let report = answer(text).report.expect("a machine");
    let found = report.findings.iter().find(|finding| finding.id == id);
    found.map(|finding| finding.severity)
}

#[test]
fn what_is_set_already_is_not_offered() {
    let error =
        "RuntimeError: HIP error: invalid device function\nNote: the GPU is a Radeon RX 6700 XT\n";
    let offers = |text: &str| {
        let answer = answer(text);
        let fix = &found(&answer, "invalid-device-function").fix;
        fix.iter()
            .any(|step| step.contains("HSA_OVERRIDE_GFX_VERSION=10.3.0"))
    };
    assert!(offers(error));
    assert!(!offers(&format!(
        "export HSA_OVERRIDE_GFX_VERSION=10.3.0\n{error}"
    )));
}

#[test]
fn certain_is_only_what_no_command_could_settle() {
    let answer = answer("RuntimeError: Found no NVIDIA driver on your system.\n");
    let found = found(&answer, "torch-cuda-build");
    assert!(!found.ask.is_empty() && found.confidence == Confidence::Medium);
}

#[test]
fn cards_in_prose_are_found() {
    let gpus = |text: &str| {
        let report = answer(text).report.expect("a machine");
        let named = report
            .gpus
            .iter()
            .filter_map(|entry| Some(entry.gpu.gfx?.to_string()));
        named.collect::<Vec<_>>()
    };
    assert_eq!(gpus("GPU model and memory: Radeon VII\n"), ["gfx906"]);
    assert_eq!(
        gpus("dual-gpu system with RX 9070 and GTX 1060\n"),
        ["gfx1201"]
    );
    let mut two = gpus("I have 2 GPUs, a Radeon RX 9060 XT 16GB and a Radeon RX 6600 8GB.\n");
    two.sort();
    assert_eq!(two, ["gfx1032", "gfx1200"]);
}

#[test]
fn a_dump_with_a_log_tells_both() {
    let mut snapshot = Snapshot::default();
    snapshot.insert_text(
        "kfd/nodes/0/properties",
        "gfx_target_version 110000\nsimd_count 192\n",
    );
    snapshot.insert_text("kfd/nodes/0/gpu_id", "1\n");
    add_log(
        &mut snapshot,
        "RuntimeError: HIP error: invalid device function\n",
    );
    let answer = answer(&snapshot.to_text());
    let found = found(&answer, "invalid-device-function");
    assert_eq!(found.facts, ["gfx1100"]);
    let report = answer.report.as_ref().expect("a machine");
    assert!(report.findings.iter().any(|finding| finding.id == found.id));
    assert_eq!(report.gpus.len(), 1);
}

#[test]
fn two_cards_in_a_line_are_no_card_under_an_override() {
    let text = "AMD Radeon RX 9070 XT (gfx1201) + AMD Radeon RX 9060 XT (gfx1200)\nSegmentation fault (core dumped)\n";
    let report = answer(text).report.expect("a failure");
    assert!(
        report.machine.variables.is_empty(),
        "{:?}",
        report.machine.variables
    );
    assert!(report.gpus.is_empty(), "{:?}", report.gpus);
}

#[test]
fn more_free_than_there_is_means_two_pools() {
    let text = "gfx1151\ntorch.OutOfMemoryError: HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.49 GiB of which 84.98 GiB is free. Of the allocated memory 1.67 GiB is allocated by PyTorch, and 8.08 GiB is reserved by PyTorch but unallocated.\n";
    found(&answer(text), "oom-ttm-limit");
}

fn fix_of(text: &str, id: &str) -> String {
    found(&answer(text), id).fix.join("\n")
}

#[test]
fn a_wheel_with_the_code_is_not_replaced() {
    let error =
        "Radeon RX 7900 XTX\nHIP error: invalid device function\nPyTorch version: 2.6.0+rocm";
    let fix = |release: &str| fix_of(&format!("{error}{release}\n"), "invalid-device-function");
    assert!(!fix("6.2.4").contains("pip install"), "{}", fix("6.2.4"));
    assert!(fix("5.4").contains("pip install"), "{}", fix("5.4"));
}

#[test]
fn other_frameworks_get_no_remedies_of_pytorch() {
    let text = "Radeon RX 6700 XT\nimport jax\nhipErrorInvalidImage\n";
    let both = answer(text);
    let said = |text: &str| !text.contains("torch") && !text.contains("pip install");
    let report = both.report.as_ref().expect("a machine");
    assert!(
        report
            .findings
            .iter()
            .all(|finding| said(&finding.fix.join(" "))),
        "{report:?}"
    );
    assert!(
        both.explanation
            .matches
            .iter()
            .all(|one| said(&one.fix.join(" ")))
    );
    let report = answer(&text.replace("jax", "torch"))
        .report
        .expect("a machine");
    assert!(
        report
            .findings
            .iter()
            .any(|finding| !said(&finding.fix.join(" ")))
    );
}

#[test]
fn a_complaint_is_no_all_clear() {
    for text in [
        "# Training always fails\nRadeon RX 7800 XT\n",
        "# How to use my card\nI have a Radeon RX 7800 XT, and it hangs at the first step.\n",
        "# NaN in the second epoch\nRadeon RX 7800 XT, the loss is wrong\n",
        "# A question\nI see that the kernel has a lockup in my training\n",
    ] {
        let report = answer(text).report.expect("something is said");
        let verdict = report.verdict();
        assert!(!verdict.contains("No error was found"), "{text}: {verdict}");
        assert!(!verdict.contains("Nothing"), "{text}: {verdict}");
    }
}

#[test]
fn both_commands_say_the_same_where_nothing_is_known() {
    for text in [
        "Radeon RX 580\n| llama 3B | 1.87 GiB | 3.21 B | Vulkan | 99 | pp512 | 346.76 ± 0.45 |\n",
        "Radeon RX 7900 XTX\nsteps: 5%| 10/200 [00:10<03:10, 1.00it/s, avr_loss=0.123]\n",
        "I have a Radeon RX 7900 XTX\n",
    ] {
        let answer = answer(text);
        let verdict = answer.report.expect("a machine").verdict();
        assert_eq!(answer.explanation.summary, Some(verdict), "{text}");
    }
    let lost = answer("File \"/a/b.py\", line 3, in f\n  File \"/a/c.py\", line 9, in g\n");
    let Verdict::Failed { line_number, .. } = lost.explanation.verdict else {
        panic!("{:?}", lost.explanation);
    };
    assert_eq!(line_number, 2);
    assert!(lost.report.is_ok());
}

#[test]
fn a_program_that_goes_on_refutes_warnings() {
    let text = "Radeon RX 6700 XT\nUserWarning: Can't initialize NVML\n";
    let at_work = "Step 10: 0.208075\nStep 20: 0.237863\nStep 30: 0.181474\n";
    let warns = |text: &str| {
        let report = answer(text).report.expect("a machine");
        let mut findings = report.findings.iter();
        findings.any(|finding| finding.severity < Severity::Info)
    };
    assert!(warns(text));
    assert!(!warns(&format!("{text}{at_work}")));
    assert!(warns(&format!(
        "{text}{at_work}RuntimeError: HIP error: unknown\n"
    )));
}

#[test]
fn the_graphics_of_the_title_outrank_the_card_of_a_form() {
    let text = "# JAX on Radeon 780M Graphics\n\n### CPU\n\nAMD Ryzen 7 7840U w/ Radeon 780M Graphics\n\n### GPU\n\nAMD Radeon VII\n";
    let report = answer(text).report.expect("a machine");
    let named = report
        .gpus
        .iter()
        .filter_map(|entry| Some(entry.gpu.gfx?.to_string()));
    assert_eq!(named.collect::<Vec<_>>(), ["gfx1103"]);
}

#[test]
fn what_the_text_shows_as_done_is_not_offered() {
    let error = "Device: cuda:0 AMD Radeon RX 6800 [ZLUDA] : native\nCUDA error: CUBLAS_STATUS_ALLOC_FAILED\n";
    assert!(fix_of(error, "zluda-cublas").contains("the HIP SDK that this ZLUDA asks for"));
    let done = format!("with the Tensile fix of the guide\n{error}");
    assert!(!fix_of(&done, "zluda-cublas").contains("the HIP SDK that this ZLUDA asks for"));
}

#[test]
fn graphics_that_two_tools_name_are_one() {
    let text = "amdgpu-arch\ngfx1036\nAMD Ryzen 5 9600X 6-Core Processor\nAMD Radeon(TM) Graphics\nAMD Radeon RX 6800 XT\n";
    assert_eq!(answer(text).report.expect("a machine").gpus.len(), 2);
}

#[test]
fn a_complaint_without_a_message_gets_its_usual_causes_and_questions() {
    let ids = |text: &str| -> Vec<String> {
        let found = answer(text).explanation.matches;
        found.into_iter().map(|found| found.id).collect()
    };
    // One of several, the title's before others; a question only where nothing is wrong.
    let text = "Noisy images with my RX 7800 XT\nIt is also very slow. Does it work with ROCm on a Radeon at all?\n";
    assert_eq!(ids(text), ["said-broken-images"]);
    // A message that tells the cause outranks what people say; sentences of a program say nothing.
    let text =
        "Training crashes on my RX 7800 XT\nRuntimeError: HIP error: invalid device function\n";
    assert_eq!(ids(text), ["invalid-device-function"]);
    // So does a warning about the same sentence.
    let text = "The loss becomes NaN in the training on my RX 7800 XT.\n";
    assert_eq!(ids(text), ["nan-loss"]);
    let log = "step 1 of the training of the model is very slow on the first run\n";
    assert_eq!(ids(log), [""; 0]);
    // What would tell them apart is asked for.
    let explanation = answer("My RX 7600 hangs the whole PC in training on Ubuntu.\n").explanation;
    let shown = explanation_text(&explanation, false);
    assert!(shown.contains("\n    ask   journalctl -k -b -1"), "{shown}");
}

#[test]
fn a_card_is_found_beside_the_graphics_that_a_program_took() {
    let text = "ComfyUI crashes on my RX 9070 XT under Windows 11\nTotal VRAM 512 MB, total RAM 65200 MB\npytorch version: 2.9.1+rocm7.2\nAMD arch: gfx1036\n";
    let found = answer(text);
    let report = found.report.expect("a machine");
    assert!(
        report
            .findings
            .iter()
            .any(|finding| finding.id == "igpu-visible")
    );
    assert!(
        report
            .findings
            .iter()
            .all(|finding| finding.id != "architecture-not-in-wheel")
    );
}

#[test]
fn what_its_author_found_to_work_is_kept() {
    let ids = |text: &str| {
        let answer = answer(text);
        let findings = answer.report.map(|report| report.findings);
        let findings = findings.into_iter().flatten().map(|found| found.id);
        findings
            .chain(answer.explanation.matches.into_iter().map(|found| found.id))
            .collect::<Vec<_>>()
    };
    let title = "My 890M (gfx1150) crashes in a container\n";
    let set = "HSA_OVERRIDE_GFX_VERSION=11.5.1";
    let has = |text: &str, id: &str| ids(text).iter().any(|found| found == id);
    let works = format!("{title}With {set} the container runs, and without it I get an error.\n");
    assert!(has(&works, "said-works-with-override") && !has(&works, "override-harmful"));
    let fails = format!("{title}With {set} the container never runs.\n");
    assert!(!has(&fails, "said-works-with-override") && has(&fails, "override-harmful"));
    let since = "My 6800 XT crashes in training since I updated the driver.\n";
    assert!(has(since, "said-since-update"));
    let healthy = "I trained this on my RX 7900 XTX after the update to ROCm 7.2.4.\n";
    assert!(!has(healthy, "said-since-update"));
    let healthy = "I trained this on my RX 7900 XTX. With --fast it runs well.\n";
    assert!(!has(healthy, "said-works-with"));
}

#[test]
fn a_program_with_which_it_works_is_not_the_one_that_runs() {
    let replaces = |sentence: &str| {
        let text = format!("My Radeon VII hangs in training on Ubuntu\n{sentence}\n");
        let report = answer(&text).report.expect("a machine");
        report.machine.posted.instead_of_rocm.is_some()
    };
    assert!(!replaces("With DirectML on Windows it is fine at 250 W."));
    assert!(replaces("The web UI takes DirectML and says nothing."));
}

#[test]
fn a_version_of_torch_is_none_of_rocm() {
    let rocm = |text: &str| answer(text).report.expect("a machine").machine.posted.rocm;
    let text = |version: &str| format!("My RX 6900 XT crashes with PyTorch ROCm {version}\n");
    assert_eq!(rocm(&text("2.9.1+rocm7.2.1")), None);
    assert_eq!(rocm(&text("2.9.1")), None);
    assert_eq!(rocm(&text("6.4")).as_deref(), Some("6.4"));
}

#[test]
fn the_name_of_a_program_tells_nothing_of_the_machine() {
    assert!(answer("ollama version is 0.6.0\n").report.is_err());
    assert!(answer("ollama on a Radeon RX 7900 XTX\n").report.is_ok());
}

#[test]
fn a_complaint_in_the_title_is_the_complaint() {
    let first = |text: &str| {
        answer(text)
            .explanation
            .matches
            .first()
            .map(|one| one.id.clone())
    };
    let slow = "Slow decoding on my R9700\nIt takes 38 seconds. The clocks drop meanwhile.\n";
    assert_eq!(first(slow).as_deref(), Some("said-slow"));
    let bad =
        "Bad PyTorch performance on my RX 9070 XT\nThe loss falls the same, it is only slow.\n";
    assert_eq!(first(bad).as_deref(), Some("said-slow"));
    let program = "Foo Desktop crashes on my RX 6900 XT\n";
    assert_eq!(first(program).as_deref(), Some("said-crashes"));
}

#[test]
fn a_long_first_sentence_is_a_complaint_too() {
    let text = "Radeon 890M with Ubuntu 24.04, ROCm 7.2 and the driver of its packages: rocminfo lists the GPU under its right name, so does PyTorch, the groups of the user are as they should be, and all the same the first tensor on it hangs forever.\n>>> torch.cuda.is_available()\nTrue\n";
    let explanation = answer(text).explanation;
    let is_heard = |one: &Match| one.id.starts_with("said-");
    assert!(explanation.matches.iter().any(is_heard), "{explanation:?}");
}

#[test]
fn no_line_of_a_harmless_message_is_a_failure() {
    let text = "WSL with a Radeon RX 7900 XTX\nERROR:root:Unable to get devices, driver not initialized (amdgpu not found in modules)\nERROR:root:Unable to detect any GPU devices, check amdgpu version and module status (sudo modprobe amdgpu)\nLinux host 6.6.87.2-microsoft-standard-WSL2 x86_64\n";
    let answer = answer(text);
    found(&answer, "wsl-no-amdsmi");
    assert_eq!(answer.explanation.verdict, Verdict::Unknown);
}

#[test]
fn sizes_that_people_cut_out_are_read() {
    let text = "Ryzen AI Max+ 395, Radeon 8060S\n$ cat /sys/class/drm/card0/device/mem_info_vram_total\n68719476736\n$ cat /sys/class/drm/card0/device/mem_info_gtt_total\n32985776128\n$ free -h\n               total        used        free\nMem:            61Gi       6.1Gi        48Gi\n";
    let answer = answer(text);
    let carve_out = found(&answer, "carveout-starves-host");
    assert!(carve_out.line.contains("61 GiB"), "{carve_out:?}");
}

#[test]
fn the_kernel_is_no_version_of_a_module() {
    let text = "Autoinstall of module amdgpu/6.16.13-2278356.24.04 for kernel 6.18.7-061807-generic (x86_64)\nERROR (dkms apport): kernel package linux-headers-6.18.7-061807-generic is not supported\n";
    let cause = &found(&answer(text), "amdgpu-dkms-build").cause.clone();
    assert!(cause.contains("(6.18.7-061807-generic)"), "{cause}");
}
