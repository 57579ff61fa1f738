//! Prompts as diffusers' pipelines clean them: `ftfy.fix_text`, `html.unescape` twice, and each run
//! of whitespace as one space.
//!
//! ftfy's repair of text that was decoded wrongly comes from `plsfix`. What differs there (character
//! references, terminal escapes) is done here. Two things are left: text that was read as Windows-1257
//! is not repaired, and of letters thrown together at random the two may judge differently which are
//! text.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// `text` as the models were told it in training and are told it by diffusers.
pub fn clean(text: &str) -> String {
    let fixed = fixed(text);
    let unescaped = unescaped(&unescaped(&fixed)).into_owned();
    let words = unescaped.split(is_space).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// What Python counts as whitespace: Unicode's, and four separators of ASCII.
fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\x1c'..='\x1f').contains(&letter)
}

/// Takes the place of `&`, since plsfix resolves references whatever it is told.
const HIDDEN: &str = "&=~=";

/// As `ftfy.fix_text`.
fn fixed(text: &str) -> String {
    static ESCAPES: LazyLock<Regex> = LazyLock::new(|| pattern("\x1b\\[[\\d;]*[a-zA-Z]"));
    let config = plsfix::TextFixerConfig {
        unescape_html: Some(false),
        ..plsfix::TextFixerConfig::default()
    };
    // A literal `<` means that the text is HTML, in which references are meant.
    let is_html = text.contains('<');
    let mut text = text.to_owned();
    // Each round may uncover something for the next; texts settle after two or three.
    for _ in 0..16 {
        let unescaped = match is_html {
            true => Cow::Borrowed(text.as_str()),
            false => unambiguous_unescaped(&text),
        };
        let plain = ESCAPES.replace_all(&unescaped, "");
        let fixed = match is_html && !plain.contains(HIDDEN) {
            true => {
                let hidden = plain.replace('&', HIDDEN);
                plsfix::fix_text(&hidden, Some(&config)).replace(HIDDEN, "&")
            }
            false => plsfix::fix_text(&plain, Some(&config)),
        };
        if fixed == text {
            break;
        }
        text = fixed;
    }
    text
}

/// As ftfy: only references that end in a semicolon, but names in capitals, too.
fn unambiguous_unescaped(text: &str) -> Cow<'_, str> {
    static REFERENCE: LazyLock<Regex> = LazyLock::new(|| pattern("&#?[0-9A-Za-z]{1,24};"));
    REFERENCE.replace_all(text, |found: &Captures<'_>| {
        let whole = &found[0];
        if whole.starts_with("&#") {
            let letters = unescaped(whole).into_owned();
            return match letters.contains(';') {
                true => whole.to_owned(),
                false => letters,
            };
        }
        let named = named(whole);
        if named != whole {
            return match named.ends_with(';') && whole != "&semi;" {
                true => whole.to_owned(), // Only the beginning is a name.
                false => named.into_owned(),
            };
        }
        let lower = whole.to_lowercase();
        match self::named(&lower) {
            letters if whole == whole.to_uppercase() && !letters.ends_with(';') => {
                letters.to_uppercase()
            }
            _ => whole.to_owned(),
        }
    })
}

/// As Python's `html.unescape`.
fn unescaped(text: &str) -> Cow<'_, str> {
    static NUMBER: LazyLock<Regex> =
        LazyLock::new(|| pattern("^&#(?:([0-9]+)|[xX]([0-9a-fA-F]+));?"));
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    let mut result = String::with_capacity(text.len());
    let starts = text.match_indices('&').map(|(start, _)| start);
    let ends = starts.clone().skip(1).chain([text.len()]);
    result.push_str(text.split('&').next().unwrap_or(""));
    for (start, end) in starts.zip(ends) {
        let part = &text[start..end];
        let Some(found) = NUMBER.captures(part) else {
            result.push_str(&named(part));
            continue;
        };
        let decimal = found.get(1).map(|digits| digits.as_str().parse());
        let hexadecimal = || u32::from_str_radix(found.get(2).map_or("", |d| d.as_str()), 16);
        result.extend(character(decimal.unwrap_or_else(hexadecimal).ok()));
        result.push_str(&part[found[0].len()..]);
    }
    Cow::Owned(result)
}

/// `text`, which begins with `&`, after a named reference at its beginning.
fn named(text: &str) -> Cow<'_, str> {
    htmlize::unescape(text)
}

/// What a numeric reference stands for in HTML; `None` for nothing at all.
fn character(number: Option<u32>) -> Option<char> {
    /// Of 0x80 to 0x9f, which are read as Windows-1252.
    const WINDOWS: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž',
        '\u{8f}', '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}',
        'ž', 'Ÿ',
    ];
    let number = number.filter(|number| *number > 0);
    let Some(letter) = number.and_then(char::from_u32) else {
        return Some('\u{fffd}');
    };
    match u32::from(letter) {
        code @ 0x80..=0x9f => Some(WINDOWS[code as usize - 0x80]),
        0x1..=0x8 | 0xb | 0xe..=0x1f | 0x7f | 0xfdd0..=0xfdef => None,
        code if code & 0xfffe == 0xfffe => None,
        _ => Some(letter),
    }
}

/// The patterns here are fixed and tested.
fn pattern(text: &str) -> Regex {
    #[expect(clippy::unwrap_used)]
    Regex::new(text).unwrap()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::golden::golden;

    #[test]
    fn prompts_are_cleaned_as_by_diffusers() {
        let text = std::fs::read_to_string(golden("wan/text/prompts.json")).unwrap();
        let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert!(rows.len() > 300);
        let mut wrong = Vec::new();
        for row in &rows {
            let (text, cleaned) = (row["text"].as_str().unwrap(), &row["cleaned"]);
            if clean(text) != *cleaned {
                wrong.push(format!("{text:?}: {:?}, not {cleaned}", clean(text)));
            }
        }
        assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    }
}
