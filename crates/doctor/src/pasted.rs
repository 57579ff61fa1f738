//! Lines as programs print them: without what terminals, log collectors, forums and word processors make of them.

use serde::Deserialize;
use std::borrow::Cow;

/// A line with the characters of a terminal: the spaces and quotes of word processors become those of ASCII, the
/// entities of HTML and escapes of Markdown the characters they stand for. Of a record of Docker, only what the program printed.
pub(crate) fn plain(line: &str) -> Cow<'_, str> {
    if line.starts_with(r#"{"log":""#)
        && let Ok(record) = serde_json::from_str::<Record>(line)
    {
        return Cow::Owned(record.log.trim_end_matches(['\n', '\r']).to_owned());
    }
    // One search for each is faster than one for both.
    if line.is_ascii() && !line.contains('&') && !line.contains('\\') {
        return Cow::Borrowed(line);
    }
    // A folder of Windows may begin with an underscore.
    let is_of_markdown = |c: char| "[]*#<>".contains(c) || c == '_' && !line.contains(":\\");
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let escaped = rest.strip_prefix('\\').and_then(|rest| rest.chars().next());
        let (character, length) = match (entity(rest), escaped) {
            (Some(found), _) => found,
            (None, Some(escaped)) if is_of_markdown(escaped) => (Some(escaped), 2),
            (None, _) => (ascii(c), c.len_utf8()),
        };
        plain.extend(character);
        rest = &rest[length..];
    }
    Cow::Owned(plain)
}

/// A line of the log files that Docker keeps of its containers.
#[derive(Deserialize)]
struct Record {
    log: String,
}

/// The character that the text begins with as an entity of HTML, and the length of that.
fn entity(text: &str) -> Option<(Option<char>, usize)> {
    const NAMED: [(&str, char); 7] = [
        ("&quot;", '"'),
        ("&apos;", '\''),
        ("&nbsp;", ' '),
        ("&lt;", '<'),
        ("&gt;", '>'),
        ("&amp;", '&'),
        ("&hellip;", '…'),
    ];
    if !text.starts_with('&') {
        return None;
    }
    if let Some((name, character)) = NAMED.iter().find(|(name, _)| text.starts_with(name)) {
        return Some((Some(*character), name.len()));
    }
    // `&#39;`, `&#x27;`: the longest number of a character has seven digits.
    let number = text.strip_prefix("&#")?;
    let end = number.bytes().take(8).position(|byte| byte == b';')?;
    let code = match number[..end].strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => number[..end].parse().ok()?,
    };
    let character = char::from_u32(code).filter(|c| !c.is_control())?;
    Some((ascii(character), "&#".len() + end + 1))
}

/// The character of ASCII that a typographic one stands for; nothing for those without a width.
fn ascii(c: char) -> Option<char> {
    match c {
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => Some(' '),
        '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' | '\u{ad}' => None,
        '“' | '”' | '„' => Some('"'),
        '‘' | '’' | '‚' => Some('\''),
        c => Some(c),
    }
}

/// The lines of a text that was posted as one string of JSON or of Python, with `\n` for its line breaks.
///
/// A folder of Windows may begin with an `n`; three breaks are no coincidence.
pub(crate) fn unescaped(line: &str) -> impl Iterator<Item = &str> {
    const LEAST: usize = 3;
    let has_breaks = || line.matches("\\n").count() >= LEAST;
    let separator = match line.contains('\\') && has_breaks() {
        true => "\\n",
        false => "\n",
    };
    line.split(separator)
}

/// What a program printed of a line to which quoting, a log collector, a launcher or a logger added its marks.
///
/// Times and levels go as well, except where a line is nothing else.
pub(crate) fn without_prefix(line: &str) -> &str {
    /// A container's log in a journal that somebody quotes has three.
    const MOST: usize = 4;
    let mut rest = line;
    for _ in 0..MOST {
        let shorter = PREFIXES.iter().find_map(|prefix| prefix(rest));
        match shorter {
            Some(shorter) if !shorter.trim().is_empty() => rest = shorter,
            _ => break,
        }
    }
    rest
}

/// How loggers mark what did not stop the program.
pub(crate) const HARMLESS_LEVELS: [&str; 4] = ["[WARNING]", "[INFO]", "- WARNING -", "- INFO -"];

/// The same, but a line that tells of a failure keeps the level of a warning or a remark: it did not stop the program.
pub(crate) fn without_prefix_but_level(line: &str) -> &str {
    let printed = without_prefix(line);
    let prefix = &line[..line.len() - printed.len()];
    let level = HARMLESS_LEVELS.iter().find_map(|level| prefix.rfind(level));
    let tells_of_failure = || {
        let text = printed.to_ascii_lowercase();
        text.contains("fail") || text.contains("error")
    };
    match level {
        Some(at) if tells_of_failure() => &line[at..],
        _ => printed,
    }
}

/// The number that a line begins with, and what follows it and its separator.
pub(crate) fn after_number(line: &str) -> Option<(u32, &str)> {
    let rest = line.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    let (number, rest) = rest.split_at(end);
    let number = number.parse().ok().filter(|_| end <= 6)?;
    let rest = rest.strip_prefix([':', '|', '.']).unwrap_or(rest);
    // One space separates, or a column of two; the rest indents.
    let text = match rest.strip_prefix('\t') {
        Some(text) => text,
        None => rest.strip_prefix("  ").or(rest.strip_prefix(' '))?,
    };
    Some((number, text))
}

/// Each of them removes one kind of prefix.
const PREFIXES: [fn(&str) -> Option<&str>; 8] = [
    quote, container, process, rank, date, stream, of_journal, level,
];

/// `> text`; Python's prompt `>>> ` stays.
fn quote(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('>')?;
    match rest.strip_prefix(' ') {
        Some(rest) => Some(rest),
        None => rest.is_empty().then_some(rest),
    }
}

/// `comfyui-1  | text`, as docker compose and pods of Kubernetes have it; `[pod/name/container] text`.
fn container(line: &str) -> Option<&str> {
    if let Some(rest) = line.strip_prefix("[pod/") {
        return Some(rest.split_once("] ")?.1);
    }
    let (name, rest) = line.split_once('|')?;
    let (name, number) = name.trim().rsplit_once('-')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let is_container = !name.is_empty() && name.len() <= 60 && name.chars().all(is_name);
    let is_numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_container && is_numbered).then(|| rest.strip_prefix(' ').unwrap_or(rest))
}

/// `(EngineCore_DP0 pid=42) text`, as vLLM and Ray have it.
fn process(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix('(')?.split_once(") ")?;
    let (name, number) = name.split_once(" pid=")?;
    let digits = number.split([',', ' ']).next()?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !name.contains(' ')).then_some(rest)
}

/// `[rank0]: text`, as torchrun and Python's excepthook of PyTorch have it; `[default0]:text`; mpirun's `[1,0]<stderr>:text`.
fn rank(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix('[')?.split_once(']')?;
    let number = name.strip_prefix("rank").or(name.strip_prefix("default"));
    let is_rank = match number {
        Some(number) => number.bytes().all(|byte| byte.is_ascii_digit()),
        None => name
            .split_once(',')
            .is_some_and(|(job, rank)| job.parse::<u32>().is_ok() && rank.parse::<u32>().is_ok()),
    };
    if !is_rank {
        return None;
    }
    let rest = rest
        .strip_prefix("<stdout>")
        .or(rest.strip_prefix("<stderr>"))
        .unwrap_or(rest);
    let rest = rest.strip_prefix(':')?;
    Some(rest.strip_prefix(' ').unwrap_or(rest))
}

/// A date or a time at the beginning, and what separates it from the text.
///
/// `2025-05-30T19:10:08.644588Z `, `[2025-05-30 19:10:08,644] `, `2025/05/30 19:10:08 `, `05-30 19:10:08 `, `19:10:08-644588 `,
/// `[19:10:08] `, `May 30 19:10:08 `.
fn date(line: &str) -> Option<&str> {
    const MONTHS: [&str; 12] = [
        "Jan ", "Feb ", "Mar ", "Apr ", "May ", "Jun ", "Jul ", "Aug ", "Sep ", "Oct ", "Nov ",
        "Dec ",
    ];
    let line = line.trim_start();
    let is_bracketed = line.starts_with('[');
    let start = line.strip_prefix('[').unwrap_or(line);
    let rest = match MONTHS.iter().find_map(|month| start.strip_prefix(month)) {
        Some(rest) => rest.trim_start(),
        None => start,
    };
    // Digits and their separators up to the end of the time.
    let is_of_date = |c: char| c.is_ascii_digit() || "-/:., T".contains(c);
    let end = rest.find(|c| !is_of_date(c)).unwrap_or(rest.len());
    // The text may begin with a digit: the date ends with the first space after a time.
    let time = rest[..end].find(':').filter(|&at| at >= 1)?;
    let end = rest[time..end].find(' ').map_or(end, |at| time + at);
    if !is_time(&rest[..end]) {
        return None;
    }
    let mut rest = &rest[end..];
    rest = rest.strip_prefix('Z').unwrap_or(rest);
    if let Some(zone) = rest.strip_prefix(['+', '-']) {
        rest = zone.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':');
    }
    if is_bracketed {
        rest = rest.strip_prefix(']')?;
    }
    let text = rest.strip_prefix([' ', '\t'])?.trim_start();
    Some(text.strip_prefix("- ").unwrap_or(text))
}

/// Whether a text ends with a time of day, `19:10:08` with fractions behind it.
fn is_time(text: &str) -> bool {
    let word = text.rsplit([' ', 'T']).next().unwrap_or_default();
    let mut parts = word.splitn(3, ':');
    let two_digits = |part: Option<&str>| {
        part.is_some_and(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let is_second = |part: &str| {
        let (second, fraction) = part.split_at(part.len().min(2));
        let is_fraction = fraction.is_empty()
            || fraction.starts_with(['.', ',', '-'])
                && fraction[1..].bytes().all(|byte| byte.is_ascii_digit());
        second.len() == 2 && second.bytes().all(|byte| byte.is_ascii_digit()) && is_fraction
    };
    two_digits(parts.next()) && two_digits(parts.next()) && parts.next().is_some_and(is_second)
}

/// The stream behind the date in a log of Kubernetes: `stderr F text`.
fn stream(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("stderr ")
        .or(line.strip_prefix("stdout "))?;
    rest.strip_prefix("F ").or(rest.strip_prefix("P "))
}

/// What stands between the date of a journal and its text: `host ollama[1234]: `, `host kernel: `.
fn of_journal(line: &str) -> Option<&str> {
    let (host, rest) = line.split_once(' ')?;
    let (program, rest) = rest.split_once(": ")?;
    let is_program = program == "kernel" || program.ends_with(']') && program.contains('[');
    let is_word =
        |word: &str| !word.is_empty() && word.len() <= 60 && !word.contains(char::is_whitespace);
    (is_program && is_word(program) && is_word(host) && !host.ends_with(':')).then_some(rest)
}

/// The level and the name of a logger: `INFO - `, `[ERROR] `, `INFO     `, `INFO 05-30 19:10:08 [core.py:708] `.
fn level(line: &str) -> Option<&str> {
    const LEVELS: [&str; 7] = [
        "DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL",
    ];
    let start = line.strip_prefix('[').unwrap_or(line);
    let name = LEVELS.iter().find(|name| start.starts_with(**name))?;
    let rest = &start[name.len()..];
    if line.starts_with('[') {
        return Some(rest.strip_prefix(']')?.trim_start());
    }
    if let Some(rest) = rest.strip_prefix(" - ") {
        return Some(rest);
    }
    // vLLM: the date follows, and then the line of its source.
    if let Some(rest) = date(rest.strip_prefix(' ')?) {
        let of_source = rest
            .strip_prefix('[')
            .and_then(|rest| rest.split_once("] "));
        return Some(of_source.map_or(rest, |(_, text)| text));
    }
    // SD.Next's columns.
    rest.starts_with("    ").then(|| rest.trim_start())
}

/// The width of the terminal at which the lines of a text were broken, if they were: no line is longer, and several
/// are as long, or one if it is one of the `usual` widths.
pub(crate) fn columns(text: &str, usual: &[usize]) -> Option<usize> {
    const LEAST: usize = 60;
    const MOST: usize = 400;
    let mut longest = (0, "", 0);
    for line in text.lines().map(|line| line.trim_end_matches('\r')) {
        // Bytes are at least as many as characters.
        if line.len() < longest.0 {
            continue;
        }
        let width = line.chars().count();
        if width > longest.0 {
            longest = (width, line, 1);
        } else if width == longest.0 && line != longest.1 {
            longest.2 += 1;
        }
    }
    let (width, _, lines) = longest;
    let is_terminal = (LEAST..=MOST).contains(&width) && lines > 1 || usual.contains(&width);
    is_terminal.then_some(width)
}

/// Whether a line that fills the columns may go on in the next one: not the border or a row of a table.
pub(crate) fn goes_on(line: &str, columns: usize) -> bool {
    let line = line.trim_end_matches('\r');
    line.len() >= columns
        && line.chars().count() == columns
        && !line.ends_with(|c: char| c.is_whitespace() || "|+=-*#_~│┃║╝╗┘┐┤╣─═█".contains(c))
}

/// Whether a line may be the rest of the one before it, rather than one that begins anew or another record of the same kind.
pub(crate) fn is_rest(line: &str, before: &str) -> bool {
    // `Swap:          0B`, a row of a table with a name.
    let is_named = line
        .split_once(':')
        .is_some_and(|(_, rest)| rest.starts_with("  "));
    let begins_anew =
        line.is_empty() || line.starts_with("  ") || line.starts_with('\t') || is_named;
    !begins_anew && shape(line) != shape(before) && without_prefix(line).len() == line.len()
}

/// How a line begins, whatever its numbers are.
fn shape(line: &str) -> [char; 4] {
    let mut characters = line
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c });
    std::array::from_fn(|_| characters.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn characters_are_those_of_a_terminal() {
        for (posted, printed) in [
            ("HIP\u{a0}error: “x” ’y’", "HIP error: \"x\" 'y'"),
            (
                "&lt;class &#39;x&#39;&gt; &amp;&amp; &quot;&#x27;",
                "<class 'x'> && \"'",
            ),
            (
                "a & b; &unknown; &#99999999;",
                "a & b; &unknown; &#99999999;",
            ),
            ("zero\u{200b}width", "zerowidth"),
            (r"GPU\[0\] \_a \*\*b", "GPU[0] _a **b"),
            (r"D:\_a\x", r"D:\_a\x"),
            (
                r#"{"log":"a \"b\"\r\n","stream":"stderr","time":"x"}"#,
                "a \"b\"",
            ),
            (r#"{"log":"cut"#, r#"{"log":"cut"#),
            ("权限不够", "权限不够"),
        ] {
            assert_eq!(plain(posted), printed);
        }
    }

    #[test]
    fn escaped_line_breaks_end_lines() {
        let lines = |text| unescaped(text).collect::<Vec<_>>();
        assert_eq!(lines(r"a\nb\n\nc"), ["a", "b", "", "c"]);
        assert_eq!(lines(r"C:\new\name"), [r"C:\new\name"]);
        assert_eq!(lines(""), [""]);
    }

    #[test]
    fn prefixes_are_removed() {
        const TEXT: &str = "HIP error: invalid device function";
        for prefix in [
            "> ",
            "> > ",
            "comfyui-1  | ",
            "[pod/train-0/main] ",
            "(EngineCore_DP0 pid=4242) ",
            "(RayWorkerWrapper pid=42, ip=10.0.0.1) ",
            "[rank0]: ",
            "[default12]:",
            "[1,0]<stderr>:",
            "2025-05-30T19:10:08.644588Z ",
            "2025-05-30T19:10:08.644588 - ",
            "2025-05-30T19:10:08.644588Z stderr F ",
            "[2025-05-30 19:10:08,644] [INFO] ",
            "2025-05-30 19:10:08,644 - INFO - ",
            "2025-11-03T20:15:01+0100 host python3[12]: ",
            "May  3 19:10:08 host kernel: ",
            "2025/05/30 19:10:08 ",
            "19:10:08-644588 INFO     ",
            "INFO 05-30 19:10:08 [core.py:708] ",
            "(EngineCore_0 pid=42) ERROR 05-30 19:10:08 [core.py:708] ",
            "ERROR - ",
            "> trainer-1  | [rank0]: ",
        ] {
            assert_eq!(without_prefix(&format!("{prefix}{TEXT}")), TEXT, "{prefix}");
        }
    }

    #[test]
    fn a_failure_keeps_the_level_of_a_warning() {
        for (line, expected) in [
            ("2026-03-01 12:00:00,123 - INFO - GPU[0]: x", "GPU[0]: x"),
            (
                "12:00:00 [WARNING] failed to run x",
                "[WARNING] failed to run x",
            ),
            ("2026-03-01 12:00:00,123 - ERROR - failed", "failed"),
        ] {
            assert_eq!(without_prefix_but_level(line), expected);
        }
    }

    #[test]
    fn what_a_program_printed_stays() {
        for line in [
            ">>> import torch",
            "03:00.0 VGA compatible controller: AMD",
            "0000:03:00.0: amdgpu: VRAM",
            "[    4.123456] amdgpu 0000:03:00.0: amdgpu: ring gfx timeout",
            "12:30 is a time",
            "2026-01-01",
            "19:10:08",
            "ERROR: failed",
            "INFO",
            "[rank0]:",
            "Error: x | y",
            "(a) b",
            "GPU[0]\t\t: Card series: x",
            "May be: it",
        ] {
            assert_eq!(without_prefix(line), line);
        }
    }

    #[test]
    fn lines_that_fill_a_terminal_go_on() {
        let (full, other) = ("x".repeat(80), "é".repeat(80));
        assert_eq!(
            columns(&format!("{full}\nrest\n{other}\r\nrest\n"), &[]),
            Some(80)
        );
        // The same line twice, a longer one, and a narrow table.
        for text in [
            format!("{full}x\n{full}x\n"),
            format!("{full}\n{other}\n{other}x\n"),
            "ab\ncd\n".to_owned(),
        ] {
            assert_eq!(columns(&text, &[80]), None, "{text}");
        }
        assert!(goes_on(&full, 80) && goes_on(&other, 80) && !goes_on("x", 80));
        assert!(!goes_on(&"=".repeat(80), 80));
        for (line, expected) in [
            ("ror: x", true),
            ("  File", false),
            ("", false),
            ("[rank0]: x", false),
            ("xxxx", false),
        ] {
            assert_eq!(is_rest(line, &full), expected, "{line}");
        }
        assert!(!is_rest("1,03:00.0", "0,07:00.0") && !is_rest("Swap:     0B", "Mem:     30Gi"));
    }

    proptest! {
        #[test]
        fn never_panics(text in "(> |\\[rank0\\]: |INFO |[0-9]{1,2}[:-]|&#x?|;|é|\u{a0}|\\(|\\)| pid=|\\||x| ){0,30}") {
            let plain = plain(&text);
            let _ = without_prefix(&plain);
        }
    }
}
