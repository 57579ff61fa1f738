//! The output of `surefoot train --show-data`.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use trainer::text::thousands;
use trainer::{Piece, ShownData, ShownExample, ShownMedia};

/// The rows as text: what is learned is green, or between `[[` and `]]` without colour.
pub(crate) fn shown(data: &ShownData, colour: bool) -> String {
    let mut text = format!("{}\n", data.data);
    for (index, row) in data.rows.iter().enumerate() {
        let _ = write!(
            text,
            "\nrow {} of {}: {} tokens, {} of them learned",
            index + 1,
            thousands(data.rows_in_epoch),
            thousands(row.tokens),
            thousands(row.learned),
        );
        if row.examples.len() > 1 {
            let _ = write!(text, ", {} examples", thousands(row.examples.len() as u64));
        }
        text.push('\n');
        for example in &row.examples {
            text.push_str(&body(example, data.whole_examples, colour));
        }
    }
    let _ = write!(
        text,
        "\nlearned: {}",
        mark("what is marked like this", colour)
    );
    for (count, what) in [
        (
            data.truncated,
            "are longer than `data.block_size` and are truncated",
        ),
        (
            data.left_out,
            "are left out, since nothing of them would be learned",
        ),
    ] {
        if count > 0 {
            let _ = write!(text, "\n{} training examples {what}", thousands(count));
        }
    }
    text.push('\n');
    text
}

/// Pictures and videos: the sizes they are trained at, and captions.
pub(crate) fn media(shown: &ShownMedia) -> String {
    let mut text = format!(
        "{}: {} pictures and videos\n",
        visible(&shown.folder.display().to_string()),
        thousands(shown.count as u64)
    );
    for medium in &shown.media {
        let _ = write!(text, "\n{}", visible(&medium.file.display().to_string()));
        if let Some((width, height)) = medium.size {
            let _ = write!(text, ": {width} × {height}");
        }
        if let Some((width, height)) = medium.bucket {
            let _ = write!(text, ", trained at {width} × {height}");
        }
        if let (Some(frames), false) = (medium.frames, medium.clips.is_empty()) {
            let clips = medium.clips.iter();
            let clips: Vec<_> = clips
                .map(|(from, count)| format!("{from}+{count}"))
                .collect();
            let _ = write!(
                text,
                ", {frames} frames at {} a second, clips {}",
                shown.fps,
                clips.join(" ")
            );
        }
        text.push('\n');
        for line in medium.caption.iter().flat_map(|caption| caption.lines()) {
            let _ = writeln!(text, "  │ {}", visible(line));
        }
        if let Some(problem) = &medium.problem {
            let _ = writeln!(text, "  ✕ {}", visible(problem));
        }
    }
    text
}

fn body(example: &ShownExample, whole: bool, colour: bool) -> String {
    let mut text: String = (example.pieces.iter())
        .map(|piece: &Piece| match piece.learned {
            true => mark(&visible(&piece.text), colour),
            false => visible(&piece.text),
        })
        .collect();
    if example.tokens_before > 0 {
        let before = thousands(example.tokens_before);
        text.insert_str(0, &format!("… ({before} tokens before)\n"));
    }
    if example.tokens_after > 0 {
        let after = thousands(example.tokens_after);
        let _ = match whole {
            true => write!(text, "\n… ({after} tokens are cut off)"),
            false => write!(text, "\n… ({after} tokens behind, in other rows)"),
        };
    }
    let name = example.name.map(|name| format!("  {name}\n"));
    text.lines()
        .fold(name.unwrap_or_default(), |mut text, line| {
            let _ = writeln!(text, "  │ {line}");
            text
        })
        + "  ╵\n"
}

/// Marks each line separately, since lines get a margin.
fn mark(text: &str, colour: bool) -> String {
    if !colour {
        return format!("[[{text}]]");
    }
    let style = Style::new().fg_color(Some(AnsiColor::Green.into())).bold();
    let lines = text.split('\n');
    let lines: Vec<_> = lines
        .map(|line| format!("{style}{line}{style:#}"))
        .collect();
    lines.join("\n")
}

/// Removes control characters, since the data may come from others.
fn visible(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            '\n' | '\t' => character.to_string(),
            character if character.is_control() => character.escape_default().to_string(),
            character => character.to_string(),
        })
        .collect()
}
