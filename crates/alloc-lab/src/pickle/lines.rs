//! The values that protocol 0 writes as lines of text.

/// `I` and `L`: Python writes its two truth values as `I01` and `I00`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Integer {
    Bool(bool),
    Number(i64),
}

/// A whole number, with an `L` at its end if Python 2 thought it long. Numbers beyond 64
/// bits become the nearest.
pub(super) fn integer(line: &[u8]) -> Option<Integer> {
    match line {
        b"00" => return Some(Integer::Bool(false)),
        b"01" => return Some(Integer::Bool(true)),
        _ => {}
    }
    let text = std::str::from_utf8(line).ok()?.trim();
    let digits = text.strip_suffix('L').unwrap_or(text);
    let number = digits.parse().or_else(|_| {
        let unsigned = digits.strip_prefix('-').unwrap_or(digits);
        let all_digits = !unsigned.is_empty() && unsigned.bytes().all(|byte| byte.is_ascii_digit());
        let nearest = if digits.starts_with('-') {
            i64::MIN
        } else {
            i64::MAX
        };
        all_digits.then_some(nearest).ok_or(())
    });
    number.ok().map(Integer::Number)
}

/// A number with a point.
pub(super) fn float(line: &[u8]) -> Option<f64> {
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// `S`: bytes between quotes, as `repr` shows them.
pub(super) fn quoted(line: &[u8]) -> Option<String> {
    let line = line.trim_ascii();
    let inner = match line {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        _ => return None,
    };
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (&escaped, after) = rest.split_first()?;
        rest = after;
        bytes.push(match escaped {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'x' => {
                let value = u8::try_from(hexadecimal(rest.get(..2)?)?).ok()?;
                rest = &rest[2..];
                value
            }
            other => other,
        });
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// `V`: one byte a character, and `\u` or `\U` with four or eight digits for those beyond (Python's
/// "raw-unicode-escape"). Any other backslash is itself.
pub(super) fn unicode(line: &[u8]) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        let width = match (byte, after.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => 0,
        };
        let escaped = (width > 0).then(|| after.get(1..=width)).flatten();
        let (character, used) = match escaped.and_then(hexadecimal) {
            Some(code) => {
                let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                (character, width + 2)
            }
            None => (char::from(byte), 1),
        };
        text.push(character);
        rest = &rest[used..];
    }
    text
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number: u32, digit| {
        let value = char::from(*digit).to_digit(16)?;
        number.checked_mul(16)?.checked_add(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_64_bits_become_the_nearest() {
        let read = |text: &str| integer(text.as_bytes());
        assert_eq!(
            read("123456789012345678901L"),
            Some(Integer::Number(i64::MAX))
        );
        assert_eq!(
            read("-123456789012345678901L"),
            Some(Integer::Number(i64::MIN))
        );
        assert_eq!(read("7"), Some(Integer::Number(7)));
        assert_eq!(read("00"), Some(Integer::Bool(false)));
        for wrong in ["", "L", "-", "1x", "é"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn escapes_that_end_early_are_no_text() {
        assert_eq!(quoted(b"'a\\x4'"), None);
        assert_eq!(quoted(b"'a\\'"), None);
        assert_eq!(quoted(b"'"), None);
        assert_eq!(quoted(b"'it\\'s \\x41\\n'").as_deref(), Some("it's A\n"));
        assert_eq!(unicode(b"\\u12"), "\\u12");
        assert_eq!(unicode(b"\\ud800\\U0001F600"), "\u{FFFD}\u{1F600}");
    }
}
