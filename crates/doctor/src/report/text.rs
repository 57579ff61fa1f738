//! Terminal output: lines of at most a hundred columns, and colours if wanted.

use crate::explain;
use crate::explain::{Explanation, Severity};
use anstyle::{AnsiColor, Style};
use std::fmt::Write as _;

/// Breaks a sentence into lines of at most 100 columns; all but the first are indented.
pub(super) fn wrap(text: &str, indent: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let options = textwrap::Options::new(100 - indent)
        .break_words(false)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let indentation = format!("\n{}", " ".repeat(indent));
    textwrap::fill(&words.join(" "), options).replace('\n', &indentation)
}

pub(super) struct Paint {
    pub(super) colour: bool,
}

impl Paint {
    pub(super) fn label(&self, severity: Option<Severity>) -> String {
        let (word, colour) = match severity {
            None => ("ok", AnsiColor::Green),
            Some(Severity::Info) => ("note", AnsiColor::Cyan),
            Some(Severity::Warning) => ("warn", AnsiColor::Yellow),
            Some(Severity::Error) => ("ERROR", AnsiColor::Red),
        };
        self.style(&format!("{word:>5}"), colour.on_default())
    }

    pub(super) fn bold(&self, text: &str) -> String {
        self.style(text, Style::new().bold())
    }

    fn style(&self, text: &str, style: Style) -> String {
        let style = if self.colour { style } else { Style::new() };
        format!("{style}{text}{style:#}")
    }
}

/// An explanation, for people.
#[must_use]
pub fn explanation_text(explanation: &Explanation, colour: bool) -> String {
    let paint = Paint { colour };
    let mut text = String::new();
    for found in &explanation.matches {
        let times = if found.count > 1 {
            format!(" ({} times)", found.count)
        } else {
            String::new()
        };
        let _ = writeln!(
            text,
            "{} {}",
            paint.label(Some(found.severity)),
            paint.bold(&format!(
                "{}{times}: {}",
                match found.line_number {
                    0 => "the machine".to_owned(),
                    number => format!("line {number}"),
                },
                explain::clip(&found.line, 160)
            ))
        );
        let _ = writeln!(text, "    cause {}", wrap(&found.cause, 10));
        for (index, step) in found.fix.iter().enumerate() {
            let _ = writeln!(text, "    {:<6}{step}", if index == 0 { "fix" } else { "" });
        }
        let confidence = match found.confidence {
            explain::Confidence::High => "certain",
            explain::Confidence::Medium => "likely",
            explain::Confidence::Low => "one of several causes",
        };
        if found.confidence == explain::Confidence::Low && found.severity < Severity::Info {
            for (index, command) in found.ask.iter().take(Explanation::MOST_TO_ASK).enumerate() {
                let _ = writeln!(
                    text,
                    "    {:<6}{command}",
                    if index == 0 { "ask" } else { "" }
                );
            }
        }
        if !found.facts.is_empty() {
            let facts = found.facts.join(", ");
            let _ = writeln!(text, "    from  line {}, and {facts}", found.line_number);
        }
        let _ = writeln!(
            text,
            "    see   {}   [{}, {confidence}]\n",
            found.source, found.id
        );
    }
    let said = explanation.verdict.text().or(explanation.summary.clone());
    if let Some(said) = &said {
        let _ = writeln!(text, "{}", wrap(said, 0));
    }
    if explanation.matches.is_empty() && said.is_none() {
        text.push_str("Nothing in this text is a message we know. To find out more, collect:\n");
        for step in explain::WHAT_TO_COLLECT {
            let _ = writeln!(text, "    {step}");
        }
    }
    text
}
