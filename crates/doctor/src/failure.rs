//! The lines in which a text tells of a failure: what a program printed, or what its user says.

use crate::pasted::HARMLESS_LEVELS;
use crate::pattern::patterns;
use crate::signs::REMARKS;

patterns! {
    FAILED = r"(?im)traceback \(most recent|\b(?-i:Runtime|Value|Type|Import|OS|Attribute|Key|Index|Memory|System|Assertion)Error: |^\s*(?:\w+\.)*\w*(?:Error|Exception)\b:|\berror:|\bfatal\b|core dumped|segmentation fault|segfault|terminate called|\baborted\b|\bfailed (?:to|with)\b|hipError\w+|HSA_STATUS_ERROR|undefined symbol|cannot open shared object|page fault|out of memory|\bstatus = \d|SIGABRT|SIGSEGV|unable to open|permission denied|api call failure|exit code [1-9-]|exception code|panicked at|CUDA_ERROR_[A-Z]";
    /// A frame of a traceback, whose beginning and end may be missing.
    FRAME = r#"^\s*(?:\[rank\d+\]:\s*)?File "[^"]+", line \d+, in "#;
    /// What people say of programs that do not do what they should.
    COMPLAINT = concat!(
        r"(?i)\b(?:fails?|failed|failing|failures?|crash(?:es|ed|ing)?|hangs?|hung|hanging|freez(?:es?|ing)|frozen|froze|stuck|lock(?:s|ed)?[- ]?ups?|unable to",
        r"|(?:can ?not|can'?t|could ?n[o']t|will not|won'?t|never|does(?: not|n'?t)|do(?: not|n'?t)|did(?: not|n'?t)|is(?: not|n'?t)|not|no longer) (?:\w+ ){0,2}(?:work(?:s|ed|ing)?|starts?|running|train|recogni[sz]\w+|detect\w*|initiali[sz]ed|used?|converge\w*|goes down)",
        r"|segfaults?|(?:memory access|page|segmentation) faults?|stall(?:s|ed|ing)?|gibberish|(?:an|the|this|same|following|fatal|new|sort of) (?:\w+ )?errors?|errors? (?:out|still)|NaNs?|garbage|black (?:image|screen)s?|unresponsive|stop(?:s|ped)? (?:\w+ )?(?:responding|working)",
        r"|(?:wrong|incorrect|bad|poor) (?:results?|accuracy|outputs?)|instability|unstable|not stable|refuses? to|low(?:er)? accuracy|crawl(?:s|ed|ing)?|noise|garbled|corrupted|slow(?:er|ly)?)\b",
    );
    /// Words before one that say that it does not happen, or no more.
    DENIED = r"(?i)\b(?:no|without|never|any|fix\w*|solv\w*|resolv\w*|avoid\w*|prevent\w*|if|may|might|could|would|unless|whether|handl\w*)\b[^.;:(]*$";
    /// A sentence that tells of what is over.
    SOLVED = r"(?i)\b(?:fix(?:ed|es)|solved|resolved|workaround|used to)\b";
    /// How a line begins that a program prints, and what only programs write.
    PROGRAM = r"^\s*(?:\[(?:rank|INFO|WARN|ERR|DEBUG| *\d+[]/.:,-])|\d{1,4}[-/:.]\d\d|[\w.]+(?:Error|Exception|Warning|Fault)\b:?|(?i:error|info|warn|warning|debug|fatal|traceback)\b[: |]|(?:step|epoch|iter\w*) \d|(?:[a-z][\w.-]*|\w+\(\w+\)): |[$>/{(<|=~^]|File \x22)|\d%\||://\S+:\d|\blevel=|Warning: ";
    /// The label of an issue.
    LABEL = r"^\[?(?i:bug|issue|help|question|feature|discussion)\b\]?:? ";
    PRODUCT = r"(?i)\b(?:AMD|Radeon|ROCm|RX ?\d{4}|\d{4} ?XTX?|gfx\d+|Strix|Ryzen)\b";
    /// The same behind it.
    OVER = r"(?i)^[^.;]{0,40}\b(?:fixed|gone|solved|resolved|disappear\w*|no longer)\b";
}

/// What tells most of a failure.
pub(crate) struct Failure<'a> {
    /// The number of its line, from 1.
    pub(crate) line_number: usize,
    pub(crate) line: &'a str,
    /// A person says it, and no program.
    pub(crate) is_said: bool,
}

/// Whether a program failed according to what it printed.
pub(crate) fn is_printed(text: &str) -> bool {
    const FRAMES: usize = 2;
    let fails = |line: &str| !is_warning(line) && FAILED.is_match(line);
    text.lines().any(fails) || text.lines().filter(|line| FRAME.is_match(line)).count() >= FRAMES
}

/// The line that tells most of a failure, of those that are not known to be harmless: the last exception, or else what a program
/// printed first of it, the last frame of a traceback, or what the user says, mostly in the title.
pub(crate) fn failure<'a>(text: &'a str, harmless: &[&str]) -> Option<Failure<'a>> {
    let is_post = is_post(text);
    let is_said = |line: &str, number: usize| is_post && is_of_person(line, number);
    let lines = || (1..).zip(text.lines());
    let failed = lines()
        .filter(|(_, line)| !is_warning(line) && FAILED.is_match(line))
        .filter(|(_, line)| !harmless.iter().any(|known| line.contains(known)));
    let (said, printed): (Vec<_>, Vec<_>) =
        failed.partition(|&(number, line)| is_said(line, number));
    let is_exception = |line: &str| {
        let name = line.split(':').next().unwrap_or_default().trim();
        !name.contains(' ') && (name.ends_with("Error") || name.ends_with("Exception"))
    };
    let is_telling = |line: &str| !line.contains("Traceback (most recent");
    let of_program = printed
        .iter()
        .rfind(|(_, line)| is_exception(line))
        .or_else(|| printed.iter().find(|(_, line)| is_telling(line)))
        .copied()
        .or_else(|| lines().filter(|(_, line)| FRAME.is_match(line)).last());
    let is_said = of_program.is_none();
    let (line_number, line) = of_program
        .or_else(|| complaint(text))
        .or_else(|| said.first().copied())?;
    Some(Failure {
        line_number,
        line: line.trim(),
        is_said,
    })
}

/// The first line in which somebody complains of a program.
pub(crate) fn complaint(text: &str) -> Option<(usize, &str)> {
    if !is_post(text) {
        return None;
    }
    let mut lines = (1..).zip(text.lines());
    lines.find(|&(number, line)| {
        is_of_person(line, number)
            && COMPLAINT.captures_iter(line).any(|found| {
                let word = found.get(0).map_or(0..0, |word| word.range());
                !DENIED.is_match(&line[..word.start]) && !OVER.is_match(&line[word.end..])
            })
    })
}

/// The sentences of a line that a person wrote; `number` is that of the line.
pub(crate) fn sentences(line: &str, number: usize) -> impl Iterator<Item = &str> {
    let is_said = is_of_person(line, number);
    let sentences = line.split_inclusive(['!', '?']);
    let sentences = sentences.flat_map(|part| part.split(". "));
    sentences.filter(move |_| is_said)
}

/// Whether a sentence tells of what is over.
pub(crate) fn is_over(sentence: &str) -> bool {
    SOLVED.is_match(sentence)
}

/// Whether a person wrote the text, and not a program alone: it has a title or headings, or somebody speaks of himself.
pub(crate) fn is_post(text: &str) -> bool {
    text.lines()
        .next()
        .is_some_and(|line| is_title(line) || is_prose(line))
        || text.lines().any(|line| {
            let speaks = [
                "I ", "I'm ", "I've ", "My ", "my ", "i get", "i have ", "i am ", "i'm ", "i use",
                "i tried ",
            ];
            is_heading(line)
                || speaks.iter().any(|word| {
                    line.match_indices(word)
                        .any(|(at, _)| at == 0 || line[..at].ends_with(' '))
                })
        })
}

/// Whether a line of a post is a title, a heading or a sentence.
fn is_of_person(line: &str, number: usize) -> bool {
    is_prose(line) || number == 1 && is_title(line)
}

fn is_heading(line: &str) -> bool {
    let text = line.trim_start_matches('#');
    text.len() < line.len() && text.starts_with(' ')
}

/// The number of words that a line has, and of how many of them sentences are made; none of what programs print.
fn words(line: &str) -> (usize, usize) {
    const GLUE: [&str; 37] = [
        "the", "a", "an", "i", "my", "is", "it", "when", "with", "and", "but", "to", "of", "for",
        "on", "after", "this", "that", "was", "not", "have", "be", "are", "does", "in", "from",
        "at", "no", "so", "while", "only", "just", "can't", "doesn't", "i'm", "has", "its",
    ];
    let line = line.strip_prefix("> ").unwrap_or(line);
    if PROGRAM.is_match(line) || REMARKS.iter().any(|mark| line.contains(mark)) {
        return (0, 0);
    }
    let words = line.split_whitespace();
    let is_glue = |word: &&str| GLUE.contains(&word.to_ascii_lowercase().as_str());
    (words.clone().count(), words.filter(is_glue).count())
}

/// Whether the first line of a text is the title of a post.
fn is_title(line: &str) -> bool {
    const LONGEST: usize = 200;
    let (all, glue) = words(line);
    let is_labelled = LABEL.is_match(line);
    let is_telling = is_labelled || glue > 0 || PRODUCT.is_match(line);
    is_heading(line) || line.len() <= LONGEST && all > 2 && is_telling
}

/// Whether a line is a heading or a sentence.
pub(crate) fn is_prose(line: &str) -> bool {
    const LEAST: usize = 5;
    let (all, glue) = words(line);
    is_heading(line) || all >= LEAST && glue > 1
}

/// Whether the program itself marks a line as a warning or as information: it went on.
fn is_warning(line: &str) -> bool {
    const MARKS: [&str; 4] = ["Warning:", "NCCL INFO", "level=DEBUG", "level=INFO"];
    let mut marks = MARKS.iter().chain(&HARMLESS_LEVELS);
    marks.any(|mark| line.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_say_of_a_failure_is_heard() {
        let told = |text: &str| complaint(text).map(|(number, _)| number);
        for text in [
            "# Training always fails\nRadeon RX 7800 XT",
            "I start it, and after an hour the whole machine is stuck.",
            "# GPU lockup in the first convolution",
            "There is a NaN in the loss of my model after some steps.",
            "The progress of my training never starts, and the GPU is busy.",
        ] {
            assert_eq!(told(text), Some(1), "{text}");
        }
        for text in [
            "# Fix the crash of ROCm 6\nit trains now",
            "I trained it for a day without a single crash.",
            "# What to do if it hangs",
            "The crash is gone with the wheel that I have now.",
            "step 10 failed 0 of 12 and the rest",
        ] {
            assert_eq!(told(text), None, "{text}");
        }
    }

    #[test]
    fn sentences_of_people_are_told_from_lines_of_programs() {
        let count = |line: &str, number| sentences(line, number).count();
        assert_eq!(
            count("It works on the CPU. With the GPU it is very slow!", 5),
            2
        );
        assert!(is_over("It was slow, and that is fixed now."));
        assert_eq!(count("[Bug]: black images in ComfyUI", 1), 1);
        for line in [
            "RuntimeError: the size of a tensor must match the size of the other",
            "2026-01-01 10:00:00 the loss of this step is not a number",
            "[ 12.3] amdgpu: the ring of the GPU is not empty",
            "step 10 loss 2.31 grad_norm 0.91",
        ] {
            assert_eq!(count(line, 1), 0, "{line}");
        }
        assert!(is_post("[9070XT] Forge makes only noise\nx"));
        assert!(!is_post("Total VRAM 16368 MB, total RAM 32000 MB"));
    }

    #[test]
    fn a_line_of_a_program_tells_more_than_a_sentence() {
        let text = "# It fails to train with both of my cards\n[rank1]:   File \"/a/run.py\", line 5, in main\n[rank1]:   File \"/a/tune.py\", line 9, in run\n";
        let found = failure(text, &[]).expect("a failure");
        assert_eq!((found.line_number, found.is_said), (3, false));
        let found = failure("# It fails to train with my card\n", &[]).expect("a failure");
        assert_eq!((found.line_number, found.is_said), (1, true));
    }
}
