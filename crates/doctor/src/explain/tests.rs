//! What explanations say, and how logs are read.

use super::*;

#[test]
fn the_same_error_is_reported_once() {
    let line = "RuntimeError: HIP error: invalid device function\n";
    let explanation = explain(&line.repeat(3));
    assert_eq!(explanation.matches.len(), 1);
    assert_eq!(
        (
            explanation.matches[0].line_number,
            explanation.matches[0].count
        ),
        (1, 3)
    );
}

#[test]
fn pieces_may_end_anywhere() {
    let text = "\u{1b}[31mé loss: nan\u{1b}[0m\r\nHIP out of memory. Tried to allocate 2.00 GiB\n 10%|#   |\r 20%|##  |\rMemory access fault by GPU node-1\n";
    let whole = explain(text);
    assert_eq!(whole.matches.len(), 3, "{whole:?}");
    for size in 1..text.len() {
        let mut explainer = Explainer::new(Hints::default());
        for piece in text.as_bytes().chunks(size) {
            explainer.read(piece);
        }
        assert_eq!(explainer.finish(), whole, "{size}");
    }
}

#[test]
fn a_line_without_end_is_cut_and_the_next_one_is_read() {
    let mut text = "x".repeat(1 << 20);
    text.push_str("\nHIP error: invalid device function\n");
    let found = explain(&text).matches;
    assert_eq!((found.len(), found[0].line_number), (1, 2));
}

#[test]
fn progress_bars_hide_nothing_and_lines_keep_their_numbers() {
    let text = "start\r\n  1%|  | 1/100\r  2%|  | 2/100\rhipErrorInvalidImage\r\nend\r\n";
    let found = explain(text).matches;
    assert_eq!(
        (found[0].line_number, found[0].line.as_str()),
        (2, "hipErrorInvalidImage")
    );
}

#[test]
fn errors_come_before_remarks() {
    let text = "Overriding blas backend to hipblas\nHIP error: invalid device function\n";
    let ids: Vec<String> = explain(text)
        .matches
        .into_iter()
        .map(|found| found.id)
        .collect();
    assert_eq!(ids, ["invalid-device-function", "hipblaslt-unsupported"]);
}

#[test]
fn what_is_certain_asks_for_nothing_and_what_is_not_asks_for_few_commands() {
    let asked = |text: &str| explain(text).to_ask().len();
    assert_eq!(
        asked("rocBLAS error: Cannot read x/TensileLibrary.dat: Illegal seek\n"),
        0
    );
    assert_eq!(
        asked("RuntimeError: No HIP GPUs are available\nHIP error: unknown error\n"),
        3
    );
    assert_eq!(asked("ValueError: not enough values to unpack\n"), 3);
}

#[test]
fn commands_of_another_system_are_not_asked_for() {
    let text = "C:\\ai> python main.py\nRuntimeError: HIP error: invalid image\nRuntimeError: HIP error: shared object initialization failed\n";
    let asked = explain(text).to_ask().join("\n");
    assert!(
        asked.contains("hipInfo") && !asked.contains("rocminfo"),
        "{asked}"
    );
}

#[test]
fn a_gpu_that_the_text_names_is_used_with_its_line() {
    let text = "AMD arch: gfx1102\nHIP error: invalid device function\n";
    let found = &explain(text).matches[0];
    assert!(found.cause.contains("no code for gfx1102"), "{found:?}");
    assert_eq!(found.facts, ["gfx1102 (line 1)"]);
    assert!(found.fix.iter().any(|step| step.contains("device-gfx1102")));
    // A card is named by its product as well, and two GPUs leave it open.
    let text =
        "Device: cuda:0 AMD Radeon RX 9070 XT : native\nHIP error: invalid device function\n";
    let found = &explain(text).matches[0];
    assert_eq!(found.facts, ["gfx1201 (line 1)"]);
    assert!(
        !found
            .fix
            .iter()
            .any(|step| step.contains("HSA_OVERRIDE_GFX_VERSION=")),
        "{found:?}"
    );
    let text = "gfx1102\ngfx1036\nHIP error: invalid device function\n";
    assert_eq!(explain(text).matches[0].facts, Vec::<String>::new());
}

#[test]
fn on_windows_nothing_is_installed_from_an_index_for_linux() {
    let steps = |system: &str| {
        let text = format!(
            "{system}\nAMD arch: gfx1100\nRuntimeError: HIP error: invalid device function\n"
        );
        explain(&text).matches.remove(0).fix.join("\n")
    };
    let (windows, linux) = (steps("Platform: Windows"), steps("/home/user"));
    assert!(linux.contains("download.pytorch.org/whl/rocm"), "{linux}");
    assert!(!windows.contains("download.pytorch.org"), "{windows}");
    assert!(windows.contains("device-gfx1100"), "{windows}");
}

#[test]
fn on_windows_variables_are_removed_as_powershell_does() {
    let text = "C:\\ai> python main.py\nHSA_OVERRIDE_GFX_VERSION=10.3.0\nRuntimeError: HIP error: invalid device function\n";
    let fix = explain(text).matches.remove(0).fix;
    assert_eq!(fix[0], "Remove-Item Env:HSA_OVERRIDE_GFX_VERSION");
    assert!(
        !fix.iter().any(|step| step.starts_with("unset ")),
        "{fix:?}"
    );
}

#[test]
fn a_message_that_a_terminal_broke_is_whole() {
    let text = "Traceback (most recent call last):\n\
        OSError: libhsa-runtime64.so.1: cannot open shared object file: No such file or \n\
        RuntimeError: No HIP GPUs are available, and this line is as long as a terminal i\n\
        s\n\
        a third line that is exactly as wide as the terminal: HIP error: invalid device f\n\
        unction\n";
    let found = explain(text).matches;
    let numbers: Vec<_> = found
        .iter()
        .map(|found| (found.id.as_str(), found.line_number, found.count))
        .collect();
    assert!(
        numbers.contains(&("invalid-device-function", 5, 1)),
        "{numbers:?}"
    );
    // An empty line ends it, also where lines end as on Windows.
    for text in [
        text.replace("f\nunction", "f\n\nunction"),
        text.replace('\n', "\r\n")
            .replace("f\r\nunction", "f\r\n\r\nunction"),
    ] {
        let found = explain(&text).matches;
        assert!(
            found
                .iter()
                .all(|found| found.id != "invalid-device-function"),
            "{found:?}"
        );
    }
    assert!(
        explain(&text.replace('\n', "\r\n"))
            .matches
            .iter()
            .any(|found| found.id == "invalid-device-function")
    );
}

#[test]
fn a_question_and_its_answer_can_stand_on_two_lines() {
    let ids = |text: &str| {
        let found = explain(text).matches.into_iter();
        found.map(|found| found.id).collect::<Vec<_>>()
    };
    assert_eq!(
        ids(">>> print(torch.cuda.is_available())\nFalse\n"),
        ["torch-cpu-only"]
    );
    assert!(ids(">>> print(torch.cuda.is_available())\nTrue\n\nFalse\n").is_empty());
    assert!(ids(">>> x.is_pinned()\nFalse\n").is_empty());
}

#[test]
fn what_a_program_says_for_information_is_no_error() {
    let line = "librccl-net.so: cannot open shared object file: No such file or directory";
    assert!(
        explain(&format!("host:1:1 [0] NCCL INFO NET/Plugin: {line}\n"))
            .matches
            .is_empty()
    );
    assert!(!explain(&format!("OSError: {line}\n")).matches.is_empty());
}

#[test]
fn nothing_from_bare_metal_is_told_under_wsl_or_windows() {
    let no_device = "Call returned HSA_STATUS_ERROR_OUT_OF_RESOURCES\nRuntimeError: No HIP GPUs are available\n";
    let told = |before: &str| {
        let found = explain(&format!("{before}\n{no_device}")).matches;
        let texts = found
            .iter()
            .flat_map(|found| found.fix.iter().chain(&found.ask).chain([&found.cause]));
        texts.cloned().collect::<Vec<_>>().join("\n")
    };
    for (system, bare) in [
        ("Linux", "/home/user/x"),
        ("WSL", "WSL environment detected."),
        ("Windows", "C:\\Users\\user>"),
    ] {
        let text = told(bare);
        assert!(!text.is_empty(), "{system}");
        assert_eq!(
            text.contains("atomics"),
            system == "Linux",
            "{system}: {text}"
        );
        assert_eq!(
            text.contains("/dev/kfd"),
            system == "Linux",
            "{system}: {text}"
        );
    }
}

#[test]
fn ordinary_output_is_not_explained() {
    let text = "step 100 loss 0.123 grad_norm 1.2\nEpoch 1: 100%|####| 10/10 [00:01<00:00]\nValueError: not enough values to unpack\n";
    assert_eq!(explain(text), Explanation::default());
}

const LION: &str = r"rank = 100

[[entry]]
id = 'lion-optimizer-missing'
patterns = ['(?i)No optimizer named lion\w*']
cause = 'The trainer has no Lion optimizer.'
fix = ['pip install lion-pytorch', { when = ['windows'], do = 'in the environment of the program' }]
source = 'https://github.com/lucidrains/lion-pytorch'
seen = ['ValueError: No optimizer named lion8bit is known']
";

#[test]
fn a_file_adds_its_entries_to_the_catalogue() {
    let catalogue = Catalogue::with("mine.toml", LION).expect("a valid file");
    let explained = |log: &str| {
        let mut explainer = Explainer::with(Hints::default(), catalogue);
        explainer.read(log.as_bytes());
        explainer.finish().matches
    };
    let found =
        explained("C:\\Users\\user\\train.py\nValueError: No optimizer named lion is known");
    assert_eq!(found[0].id, "lion-optimizer-missing");
    assert_eq!(found[0].fix.len(), 2);
    let found = explained("/home/user/train.py\nValueError: No optimizer named lion is known");
    assert_eq!(found[0].fix, ["pip install lion-pytorch"]);
    assert_eq!(
        explained("RuntimeError: HIP error: invalid device function")[0].id,
        "invalid-device-function"
    );
}

#[test]
fn what_is_wrong_with_a_file_is_named_with_its_line_and_key() {
    for (right, wrong, message) in [
        (
            "'windows'",
            "'beos'",
            "mine.toml: TOML parse error at line 7, column ",
        ),
        ("cause = 'The", "causse = 'The", "unknown field `causse`"),
        (
            "id = 'lion-optimizer-missing'",
            "id = 'torch-cpu-only'",
            "mine.toml:3: torch-cpu-only: id: there is already an entry",
        ),
        (
            "No optimizer named lion",
            "(?:ab|cd)",
            "mine.toml:3: lion-optimizer-missing: patterns: ",
        ),
        ("lion\\w*", "lion(", "unclosed group"),
        (
            "source = 'https://github.com/lucidrains/lion-pytorch'",
            "source = ''",
            "source: it is empty",
        ),
        (
            "seen = ['ValueError: No optimizer named lion8bit is known']",
            "seen = []",
            "seen: there is none",
        ),
        (
            "No optimizer named lion8bit is known",
            "ValueError: lion",
            "must be explained by this entry first",
        ),
        (
            "fix = [",
            "covers = ['nothing']\nfix = [",
            "covers: there is no other entry nothing",
        ),
    ] {
        assert!(LION.contains(right), "{right}");
        let text = LION.replace(right, wrong);
        let error = Catalogue::with("mine.toml", &text).err().expect(message);
        assert!(error.contains(message), "{message}: {error}");
    }
}
