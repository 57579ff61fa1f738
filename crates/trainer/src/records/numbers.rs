//! Numbers that are not read exactly as written.

use super::reader::Record;

/// Refuses a chat from a JSON text if [`changed`] has found a number that a template would write
/// differently.
pub(super) fn keep(record: Record, changed: Option<&str>) -> Result<Record, String> {
    match (&record, changed) {
        (Record::Chat(_) | Record::Preference(_), Some(number)) => Err(format!(
            "the number {number} would be changed when it is read: write it as a string, in quotes"
        )),
        _ => Ok(record),
    }
}

/// The first integer of a JSON text that is not read exactly: those with more than 64 bits become floats here but
/// stay integers in Python, and `-0` is `0` there.
pub(super) fn changed(json: &str) -> Option<&str> {
    let bytes = json.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = after_text(bytes, at),
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                let length = bytes[at..].iter().take_while(|byte| is_part(byte)).count();
                let number = &json[at..at + length];
                let is_whole = !number.contains(['.', 'e', 'E']);
                let fits = number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok();
                if is_whole && (!fits || number == "-0") {
                    return Some(number);
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    None
}

/// The end of the string that begins at `at`.
fn after_text(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_would_change_are_found() {
        for (json, found) in [
            (
                r#"{"a": 123456789012345678901234567890}"#,
                Some("123456789012345678901234567890"),
            ),
            (r#"[1, -0]"#, Some("-0")),
            (r#"[18446744073709551616]"#, Some("18446744073709551616")),
            (
                r#"[18446744073709551615, -9223372036854775808, 0, -1]"#,
                None,
            ),
            (
                r#"{"a": "99999999999999999999", "b\"": [1e30, -0.0, 12345678901234567890.5]}"#,
                None,
            ),
            (
                r#"{"a": "\\", "b": 99999999999999999999}"#,
                Some("99999999999999999999"),
            ),
        ] {
            assert_eq!(changed(json), found, "{json}");
        }
    }
}
