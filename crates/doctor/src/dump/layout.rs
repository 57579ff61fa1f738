//! A posted text as the program printed it: without the marks of quotes, lists, containers
//! and clocks at the beginnings of lines, and with the line breaks that a copy lost.

use super::gpu_mention::is_other_vendor;
use crate::pattern::patterns;
use std::borrow::Cow;

patterns! {
    /// `comfyui-1  | `, as docker compose writes it, and pods of Kubernetes.
    CONTAINER = r"^[0-9A-Za-z_./-]{1,60}-[0-9]+[ \t]+\| ?";
    /// `2025-05-30T19:10:08.644588 - `.
    CLOCK = r"^\[?[0-9]{4}-[0-9][0-9]-[0-9][0-9][T ][0-9][0-9]:[0-9][0-9]:[0-9][0-9](?:[.,][0-9]+)?(?:Z|[+-][0-9][0-9]:?[0-9][0-9])?\]?(?: - | +)";
    /// The beginnings of lines of `rocminfo`, `hipInfo`, `collect_env` and logs.
    STARTS = r"[ \t](\*{7}\s*Agent \d+|Agent \d+\s+\*{7}|(?:Marketing |Vendor )?Name:|Uuid:|Feature:|Profile:|Float Round Mode:|Queue Type:|Node:|Device Type:|Cache Info:|Chip ID:|ASIC Revision:|Cacheline Size:|Max Clock Freq\. \(MHz\):|BDFID:|Internal Node ID:|Compute Unit:|SIMDs per CU:|Shader Engines:|Features:|Memory Properties:|Fast F16 Operation:|Wavefront Size:|Workgroup Max Size:|Pool Info:|Pool \d+ |Segment:|Size:|Allocatable:|ISA Info:|ISA \d+ |device#|gcnArchName:|totalGlobalMem:|multiProcessorCount:|pciBusID:|isIntegrated:|time=\d{4}-|\*\*time=|Is debug build:|CUDA used to build PyTorch:|ROCM used to build PyTorch:|OS:|GCC version:|Python version:|Python platform:|Is CUDA available:|GPU models and configuration ?:|HIP runtime version:|MIOpen runtime version:|PyTorch version:|GPU\[\d+\]|Total VRAM \d|pytorch version:|Set vram state|Device: )";
}

/// How many beginnings of lines a line has when its breaks were lost.
const LOST_BREAKS: usize = 3;

/// The text with its lines as the program printed them.
pub(super) fn unwrapped(text: &str) -> Cow<'_, str> {
    let is_traced = is_traced(text);
    let mut clean = String::with_capacity(text.len() + text.len() / 16);
    let mut is_asked = false;
    for line in text.lines() {
        let mut line = unquoted(line);
        if is_traced {
            line = line.strip_prefix('+').map_or(line, str::trim_start);
        }
        if line.contains('|')
            && let Some(mark) = CONTAINER.find(line)
        {
            line = &line[mark.end()..];
        }
        if line.starts_with(|c: char| c == '[' || c.is_ascii_digit())
            && let Some(mark) = CLOCK.find(line)
        {
            line = &line[mark.end()..];
        }
        // `### GPU`, an empty line and the answer, as the forms of GitHub have it.
        if asks_for_gpu(line) {
            is_asked = true;
        } else if !line.trim().is_empty() {
            // An answer with a card of another vendor is left to what finds names in passing.
            if is_asked && !line.contains(':') && !is_other_vendor(line) {
                clean.push_str("GPU: ");
                clean.push_str(line.trim());
                clean.push('\n');
            }
            is_asked = false;
        }
        // The colon of Chinese and Japanese keyboards.
        let line = match line.contains('：') {
            true => Cow::Owned(line.replace('：', ": ")),
            false => Cow::Borrowed(line),
        };
        break_line(&line, &mut clean);
    }
    Cow::Owned(clean)
}

/// The heading of a form that asks for the GPU.
fn asks_for_gpu(line: &str) -> bool {
    let Some(question) = line.trim().strip_prefix('#') else {
        return false;
    };
    let question = question.trim_start_matches('#').trim().to_ascii_lowercase();
    let asks =
        question == "gpu" || question.starts_with("gpu ") || question.starts_with("graphics card");
    asks && question.len() <= 30 && !question.contains(':')
}

/// `> > text`; Python's prompt `>>> ` stays.
fn unquoted(mut line: &str) -> &str {
    while let Some(rest) = line.trim_start().strip_prefix('>') {
        if !rest.is_empty() && !rest.starts_with(' ') {
            break;
        }
        line = rest.strip_prefix(' ').unwrap_or(rest);
    }
    line
}

/// A difference, or the trace of a shell: nearly every line begins with a plus.
fn is_traced(text: &str) -> bool {
    let mut lines = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .take(200);
    let (mut with, mut without) = (0, 0);
    for line in &mut lines {
        if line.trim_start().starts_with('+') {
            with += 1;
        } else {
            without += 1;
        }
    }
    with > 2 && with > 4 * without
}

/// Appends a line, broken where lines begin, without the marks of bold text.
fn break_line(line: &str, clean: &mut String) {
    let mut from = 0;
    if line.len() > 80 {
        let breaks: Vec<usize> = STARTS
            .captures_iter(line)
            .filter_map(|found| found.get(1).map(|start| start.start()))
            .take(4000)
            .collect();
        if breaks.len() >= LOST_BREAKS {
            for at in breaks {
                push(&line[from..at], clean);
                from = at;
            }
        }
    }
    push(&line[from..], clean);
}

fn push(part: &str, clean: &mut String) {
    let mut rest = part;
    // `- **Name:** value`: the marks go, the words stay.
    while let Some(at) = rest.find("**") {
        // The lines of stars around the agents of rocminfo are no marks.
        let stars = rest[at..].bytes().take_while(|&byte| byte == b'*').count();
        clean.push_str(&rest[..at]);
        if stars > 2 {
            clean.push_str(&rest[at..at + stars]);
        }
        rest = &rest[at + stars..];
    }
    clean.push_str(rest);
    clean.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn marks_at_the_beginning_of_a_line_are_removed() {
        for (posted, printed) in [
            ("> > Name: gfx1100", "Name: gfx1100\n"),
            (">>> import torch", ">>> import torch\n"),
            ("comfyui-1  | Total VRAM 16 MB", "Total VRAM 16 MB\n"),
            ("2025-05-30T19:10:08.644588 - [START]", "[START]\n"),
            ("- **VRAM Total:** 17", "- VRAM Total: 17\n"),
            ("*******", "*******\n"),
            ("GPU：AMD 7900XTX", "GPU: AMD 7900XTX\n"),
        ] {
            assert_eq!(unwrapped(posted), printed);
        }
    }

    #[test]
    fn the_answer_of_a_form_is_behind_its_question() {
        assert_eq!(
            unwrapped("### GPU\n\nRx 7900 xtx\n\n### CPU\n\n9600x\n"),
            "### GPU\n\nGPU: Rx 7900 xtx\nRx 7900 xtx\n\n### CPU\n\n9600x\n"
        );
        assert_eq!(
            unwrapped("## GPU\nName: gfx1100\n"),
            "## GPU\nName: gfx1100\n"
        );
    }

    #[test]
    fn the_trace_of_a_shell_loses_its_plus() {
        assert_eq!(unwrapped("+ a\n+ b\n+ c\n"), "a\nb\nc\n");
        assert_eq!(unwrapped("+ a\nb\nc\nd\n"), "+ a\nb\nc\nd\n");
    }

    #[test]
    fn lost_line_breaks_come_back() {
        let line = "  Name: gfx1031 Uuid: GPU-XX Marketing Name: AMD Radeon RX 6700 XT Vendor Name: AMD Node: 1 Device Type: GPU";
        let lines = unwrapped(line);
        let lines: Vec<&str> = lines.lines().map(str::trim).collect();
        assert!(
            lines.contains(&"Marketing Name: AMD Radeon RX 6700 XT"),
            "{lines:?}"
        );
        assert!(lines.contains(&"Device Type: GPU"));
    }

    proptest! {
        #[test]
        fn never_panics(text in "(> |\\+ |\\*\\*|Name:|é| |\n|x){0,40}") {
            let _ = unwrapped(&text);
        }
    }
}
