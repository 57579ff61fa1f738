//! A posted text as the program printed it: without the marks of quotes, lists, containers
//! and clocks at the beginnings of lines, and with the line breaks that a copy lost.

use super::gpu_mention::is_other_vendor;
use crate::pasted;
use crate::pattern::patterns;
use std::borrow::Cow;

patterns! {
    /// The beginnings of lines of `rocminfo`, `hipInfo`, `collect_env` and logs.
    STARTS = r"[ \t](\*{7}\s*Agent \d+|Agent \d+\s+\*{7}|(?:Marketing |Vendor )?Name:|Uuid:|Feature:|Profile:|Float Round Mode:|Queue Type:|Node:|Device Type:|Cache Info:|Chip ID:|ASIC Revision:|Cacheline Size:|Max Clock Freq\. \(MHz\):|BDFID:|Internal Node ID:|Compute Unit:|SIMDs per CU:|Shader Engines:|Features:|Memory Properties:|Fast F16 Operation:|Wavefront Size:|Workgroup Max Size:|Pool Info:|Pool \d+ |Segment:|Size:|Allocatable:|ISA Info:|ISA \d+ |device#|gcnArchName:|totalGlobalMem:|multiProcessorCount:|pciBusID:|isIntegrated:|time=\d{4}-|\*\*time=|Is debug build:|CUDA used to build PyTorch:|ROCM used to build PyTorch:|OS:|GCC version:|Python version:|Python platform:|Is CUDA available:|GPU models and configuration ?:|HIP runtime version:|MIOpen runtime version:|PyTorch version:|GPU\[\d+\]|Total VRAM \d|pytorch version:|Set vram state|Device: |GPU: \d|BDF: |UUID: |MARKET_NAME: |DEVICE_ID: |TARGET_GRAPHICS_VERSION: |TOTAL_VRAM: |TOTAL_GTT: |Nvidia driver version ?:|cuDNN version ?:|Is XNNPACK available ?:|\[pip3\] |\[conda\] |[0-9a-f]{2}:[0-9a-f]{2}\.[0-9] (?:VGA|Display|3D|Processing|Audio)|\[ *[0-9]{1,6}\.[0-9]{6}\] |(?:Device|Platform|Board) (?:Name|name|Board|Vendor|Version|Topology|PCI-e|Type|Profile)|Global memory size|Max compute units|[0-9]{1,2} +[0-9]{1,2} +0x[0-9a-f]{4}, |GPU(?: [0-9])?: |CPU: |Memory: |Kernel: |ROCm[0-9]: |GPU_BDF|={20})";
}

/// How many beginnings of lines a line has when its breaks were lost.
const LOST_BREAKS: usize = 3;

/// The text with its lines as the program printed them.
pub(super) fn unwrapped(text: &str) -> String {
    let text = without_prefixes(&rejoined(text));
    let marks = Marks::of(&text);
    let mut clean = String::with_capacity(text.len() + text.len() / 16);
    let mut is_asked = false;
    for line in text.lines() {
        let line = marks.removed_from(line);
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
    clean
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

/// The text without its indentation, and its lines without what a log collector or a forum made of them.
fn without_prefixes(text: &str) -> String {
    let indentation = indentation(text);
    let mut clean = String::with_capacity(text.len());
    for line in text.lines().flat_map(pasted::unescaped) {
        let line = line.get(indentation..).unwrap_or(line.trim_start());
        clean.push_str(pasted::without_prefix_but_level(&pasted::plain(line)));
        clean.push('\n');
    }
    clean
}

/// What stands before each line of a text that somebody listed, numbered or compared.
struct Marks<'a> {
    /// A difference, or the trace of a shell.
    is_traced: bool,
    is_listed: bool,
    is_numbered: bool,
    /// The name of the container in `ollama  | text`.
    name: Option<&'a str>,
}

impl<'a> Marks<'a> {
    fn of(text: &'a str) -> Marks<'a> {
        Marks {
            is_traced: is_marked(text, "+"),
            is_listed: is_marked(text, "- "),
            is_numbered: is_numbered(text),
            name: name_before_bars(text),
        }
    }

    fn removed_from<'b>(&self, mut line: &'b str) -> &'b str {
        if self.is_numbered {
            line = pasted::after_number(line).map_or(line, |(_, rest)| rest);
        }
        if self.is_traced {
            line = line.strip_prefix('+').map_or(line, str::trim_start);
        }
        if self.is_listed {
            line = line.trim_start().strip_prefix("- ").unwrap_or(line);
        }
        if let Some(name) = self.name
            && let Some(rest) = line.trim_start().strip_prefix(name)
            && let Some(rest) = rest.trim_start().strip_prefix('|')
        {
            line = rest.strip_prefix(' ').unwrap_or(rest);
        }
        line
    }
}

/// Spaces before every line that is not empty.
fn indentation(text: &str) -> usize {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let spaces = lines.map(|line| line.bytes().take_while(|&byte| byte == b' ').count());
    spaces.min().unwrap_or(0)
}

/// Whether something holds of nearly every line: of more than two, and of four in five of the first 200.
fn holds_of_nearly_all<'a>(
    lines: impl Iterator<Item = &'a str>,
    mut holds: impl FnMut(&'a str) -> bool,
) -> bool {
    let (mut with, mut without) = (0, 0);
    for line in lines.filter(|line| !line.trim().is_empty()).take(200) {
        if holds(line) {
            with += 1;
        } else {
            without += 1;
        }
    }
    with > 2 && with > 4 * without
}

/// Whether nearly every line begins with the number after that of the line before.
fn is_numbered(text: &str) -> bool {
    let mut last = None;
    holds_of_nearly_all(text.lines(), |line| {
        let number = pasted::after_number(line).map(|(number, _)| number);
        let before = std::mem::replace(&mut last, number);
        // Empty lines have a number, too.
        before
            .zip(number)
            .is_some_and(|(before, number)| (1..=3_u32).contains(&number.saturating_sub(before)))
    })
}

/// The text with the lines that a terminal broke in one piece.
fn rejoined(text: &str) -> Cow<'_, str> {
    let Some(columns) = pasted::columns(text, &[]) else {
        return Cow::Borrowed(text);
    };
    let mut joined = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        joined.push_str(line);
        let goes_on = pasted::goes_on(line, columns)
            && lines.peek().is_some_and(|next| pasted::is_rest(next, line));
        if !goes_on {
            joined.push('\n');
        }
    }
    Cow::Owned(joined)
}

/// Whether nearly every line begins with a mark: a difference or the trace of a shell with a plus, a list
/// with a dash.
fn is_marked(text: &str, mark: &str) -> bool {
    holds_of_nearly_all(text.lines(), |line| line.trim_start().starts_with(mark))
}

/// The name of the container in `ollama  | text`, if nearly every line begins with the same one.
fn name_before_bars(text: &str) -> Option<&str> {
    let name = |line: &'_ str| -> Option<usize> {
        let (name, _) = line.split_once('|')?;
        let name = name.trim_end();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        (!name.is_empty() && name.len() <= 40 && name.chars().all(is_name)).then_some(name.len())
    };
    let first = text.lines().find(|line| !line.trim().is_empty())?;
    let first = &first[..name(first)?];
    let is_same = |line: &str| name(line).is_some_and(|end| &line[..end] == first);
    holds_of_nearly_all(text.lines(), is_same).then_some(first)
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
            ("Nov  3 20:15:01 host ollama[12]: gfx1100", "gfx1100\n"),
            (
                "2025-11-03T20:15:01+0100 host kernel: amdgpu: VRAM",
                "amdgpu: VRAM\n",
            ),
            ("May 3 is a date", "May 3 is a date\n"),
            (
                "GPU\\[0\\] \\_a: &quot;b&quot;\u{a0}c",
                "GPU[0] _a: \"b\" c\n",
            ),
            ("D:\\x\\_a", "D:\\x\\_a\n"),
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
    fn what_every_line_begins_with_is_removed() {
        assert_eq!(unwrapped("- a\n- b\n- c\n"), "a\nb\nc\n");
        assert_eq!(unwrapped("llm | a\nllm | b\nllm | c\n"), "a\nb\nc\n");
        assert_eq!(
            unwrapped("GPU | a\nCPU | b\nRAM | c\n"),
            "GPU | a\nCPU | b\nRAM | c\n"
        );
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
