//! Text without what only a terminal understands.
//!
//! Not `strip-ansi-escapes`, which drops tabs too: the columns of many tools.

use std::borrow::Cow;

/// Removes colours, cursor movements and links, also those whose escape character a copy
/// turned into the letters `ESC`. Returns the same text where there is nothing to remove.
pub(crate) fn strip_escapes(text: &str) -> Cow<'_, str> {
    let Some(mut at) = next_escape(text) else {
        return Cow::Borrowed(text);
    };
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        clean.push_str(&rest[..at]);
        rest = &rest[at + length_of_escape(&rest[at..])..];
        match next_escape(rest) {
            Some(next) => at = next,
            None => break,
        }
    }
    clean.push_str(rest);
    Cow::Owned(clean)
}

/// Where the next one begins.
fn next_escape(text: &str) -> Option<usize> {
    let escape = text.find('\u{1b}');
    let before = &text[..escape.unwrap_or(text.len())];
    let mut letters = before.match_indices('E');
    let spelled = letters.find(|(at, _)| text[*at..].starts_with("ESC["));
    spelled.map(|(at, _)| at).or(escape)
}

/// Bytes of the sequence that `text` begins with; at least one character.
fn length_of_escape(text: &str) -> usize {
    let body = if text.starts_with("ESC[") {
        "ESC".len()
    } else {
        1
    };
    let rest = &text[body..];
    let after = |from: usize, is_end: fn(char) -> bool| {
        let end = rest[from..]
            .char_indices()
            .find(|(_, c)| is_end(*c))
            .map_or(rest.len(), |(at, c)| from + at + c.len_utf8());
        body + end
    };
    match rest.chars().next() {
        // CSI: parameters, then one byte from `@` to `~`.
        Some('[') => after(1, |c| !matches!(c, '\u{20}'..='\u{3f}')),
        // OSC: a title or a link, to BEL or to the next escape.
        Some(']') => after(1, |c| matches!(c, '\u{7}' | '\u{1b}')),
        Some(c) => body + c.len_utf8(),
        None => body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_terminal_shows_is_what_is_left() {
        for (text, shown) in [
            ("\u{1b}[37mROCk\u{1b}[0m ESC[1;31mmodule", "ROCk module"),
            ("\u{1b}[?25l50%\u{1b}[K done\u{1b}[2A", "50% done"),
            (
                "\u{1b}]8;;https://x.y\u{7}link\u{1b}]8;;\u{7} end",
                "link end",
            ),
            ("nothing to remove", "nothing to remove"),
            ("cut\u{1b}", "cut"),
            ("cut\u{1b}[", "cut"),
        ] {
            assert_eq!(strip_escapes(text), shown, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_leaves_no_escape(text in "(ESC\\[|\u{1b}|\u{7}|\\[|\\]|[0-9;?mK]|\\PC){0,24}") {
            let escapes = strip_escapes(&text).matches('\u{1b}').count();
            prop_assert_eq!(escapes, 0);
        }
    }
}
