//! Cleans prompts like diffusers' pipelines: `ftfy.fix_text`, `html.unescape` twice, and each run of
//! whitespace replaced by one space.
//!
//! ftfy's repair of wrongly decoded text comes from `plsfix`. What it does differently (character references,
//! terminal escapes) is done here. Two differences remain: text that was read as Windows-1257 is not
//! repaired, and for random letters the two may disagree on what is text.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// The cleaned `text`, as in the models' training and in diffusers.
pub fn clean(text: &str) -> String {
    let fixed = fix_text(text);
    let unescaped = unescaped(&unescaped(&fixed)).into_owned();
    let words = unescaped.split(is_space).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// Python's definition of whitespace: Unicode's, plus four ASCII separators.
fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\x1c'..='\x1f').contains(&letter)
}

/// Placeholder for `&`, because plsfix always resolves references.
const AMPERSAND: &str = "&=~=";

/// Like `ftfy.fix_text`.
fn fix_text(text: &str) -> String {
    static ESCAPES: LazyLock<Regex> = LazyLock::new(|| pattern("\x1b\\[[\\d;]*[a-zA-Z]"));
    let config = plsfix::TextFixerConfig {
        unescape_html: Some(false),
        ..plsfix::TextFixerConfig::default()
    };
    // A literal `<` indicates HTML, where references are intended.
    let is_html = text.contains('<');
    let mut text = text.to_owned();
    // Each pass may expose more to fix; texts settle after two or three.
    for _ in 0..16 {
        let unescaped = match is_html {
            true => Cow::Borrowed(text.as_str()),
            false => unambiguous_unescaped(&text),
        };
        let plain = ESCAPES.replace_all(&unescaped, "");
        let fixed = match is_html && !plain.contains(AMPERSAND) {
            true => {
                let hidden = plain.replace('&', AMPERSAND);
                plsfix::fix_text(&hidden, Some(&config)).replace(AMPERSAND, "&")
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

/// Like ftfy: only references that end in a semicolon, but also names in capitals.
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
                true => whole.to_owned(), // Only a prefix is a name.
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

/// Like Python's `html.unescape`.
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

/// `text`, which starts with `&`, with the named reference at its start resolved.
fn named(text: &str) -> Cow<'_, str> {
    htmlize::unescape(text)
}

/// The character of a numeric HTML reference; `None` if it stands for nothing.
fn character(number: Option<u32>) -> Option<char> {
    /// 0x80 to 0x9f are read as Windows-1252.
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

/// Compiles one of the constant patterns in this file, which are tested.
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
