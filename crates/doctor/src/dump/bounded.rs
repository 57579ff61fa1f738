//! Keeps the relevant parts of a text of any size: its beginning, its end, and between
//! them the lines that name a GPU, its software or an error.

use crate::encoding::{Decoder, is_binary};
use regex::bytes::Regex;
use std::io::{self, Read};
use std::sync::LazyLock;

/// Size of the beginning that is kept whole.
const HEAD: usize = 1 << 20;
/// Limit for the lines in between.
const MIDDLE: usize = 1 << 20;
/// Size of the end that is kept whole.
const TAIL: usize = 1 << 19;

static RELEVANT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"(?i-u)gfx[0-9]|amdgpu|radeon|rocm|hip|hsa_|1002:|error|fault|exception|killed process",
    )
    .ok()
});

/// Reads a text and decodes it, in bounded memory.
///
/// Lines that are left out of a long text become empty ones, so that line numbers stay right. Of a file that is not
/// text, only the beginning is read; [`crate::dump::read`] refuses it.
///
/// # Errors
/// I/O errors of the reader.
pub fn read_text(mut from: impl Read) -> io::Result<String> {
    let mut decoder = Decoder::default();
    let mut kept = Kept::default();
    let mut piece = vec![0; 256 << 10];
    loop {
        match from.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => {
                let is_first = kept.text.is_empty();
                decoder.read(&piece[..length], |text| kept.read(text));
                if is_first && is_binary(&kept.text) {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    decoder.finish(|text| kept.read(text));
    Ok(kept.into_text())
}

/// What has been kept so far.
pub(crate) struct Kept {
    /// The beginning, and the relevant lines after it.
    text: Vec<u8>,
    /// The latest part, which may be the end.
    tail: Vec<u8>,
    /// Bytes that may still be kept from the middle.
    room: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            text: Vec::new(),
            tail: Vec::new(),
            room: MIDDLE,
        }
    }
}

impl Kept {
    pub(crate) fn read(&mut self, mut piece: &[u8]) {
        if self.text.len() < HEAD {
            let (head, rest) = piece.split_at(piece.len().min(HEAD - self.text.len()));
            self.text.extend_from_slice(head);
            piece = rest;
        }
        self.tail.extend_from_slice(piece);
        if self.tail.len() > 2 * TAIL {
            let before = self.tail.len() - TAIL;
            // Up to the end of a line; a line without an end is truncated.
            let end = self.tail[..before]
                .iter()
                .rposition(|&byte| byte == b'\n')
                .map_or(before, |at| at + 1);
            keep_relevant(&self.tail[..end], &mut self.text, &mut self.room);
            self.tail.drain(..end);
        }
    }

    pub(crate) fn into_text(mut self) -> String {
        self.text.append(&mut self.tail);
        String::from_utf8(self.text)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }
}

/// Keeps the lines that matter, and an empty line for each other one, while there is room.
///
/// Searches the whole part at once: most of it has no match, and a search for each line costs
/// several times as much.
fn keep_relevant(part: &[u8], text: &mut Vec<u8>, room: &mut usize) {
    let mut keep = |bytes: &[u8]| {
        let kept = &bytes[..bytes.len().min(*room)];
        text.extend_from_slice(kept);
        *room -= kept.len();
        *room > 0
    };
    let mut at = 0;
    while let Some(found) = RELEVANT
        .as_ref()
        .and_then(|pattern| pattern.find_at(part, at))
    {
        let before = &part[at..found.start()];
        let start = before.iter().rposition(|&byte| byte == b'\n');
        let start = start.map_or(at, |newline| at + newline + 1);
        let rest = &part[found.end()..];
        let end = rest.iter().position(|&byte| byte == b'\n');
        let end = end.map_or(part.len(), |newline| found.end() + newline + 1);
        if !keep(&empty_lines(&part[at..start])) || !keep(&part[start..end]) {
            // Whatever was cut is not to run into what follows.
            text.push(b'\n');
            return;
        }
        at = end;
    }
    keep(&empty_lines(&part[at..]));
}

fn empty_lines(part: &[u8]) -> Vec<u8> {
    part.iter().copied().filter(|&byte| byte == b'\n').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_long_text_keeps_its_errors_and_their_numbers() {
        let filler =
            "step 100 loss 0.1, nothing to see in this line of a hundred characters or so\n";
        let lines = 8 * (HEAD + TAIL) / filler.len() / 4;
        let mut long = filler.repeat(lines);
        long.push_str("HIP error: invalid device function\n");
        long.push_str(&filler.repeat(lines));
        let text = read_text(long.as_bytes()).expect("a text");
        assert!(text.len() < HEAD + MIDDLE + 3 * TAIL, "{}", text.len());
        let at = text.lines().position(|line| line.starts_with("HIP error"));
        assert_eq!(at, Some(lines));
    }

    #[test]
    fn a_long_text_of_powershell_keeps_its_end() {
        let long = "nothing to see in this line\n".repeat((HEAD + 3 * TAIL) / 28) + "gfx1151\n";
        let bytes: Vec<u8> = long.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let text = read_text(&bytes[..]).expect("a text");
        assert!(text.ends_with("line\ngfx1151\n") && text.lines().count() == long.lines().count());
    }

    #[test]
    fn of_an_archive_only_the_beginning_is_read() {
        let bytes = (0..1u32 << 24).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8);
        let archive: Vec<u8> = bytes.collect();
        let mut rest = &archive[..];
        let text = read_text(&mut rest).expect("its beginning");
        assert!(crate::dump::read(&text).is_err());
        assert!(rest.len() > archive.len() - (1 << 20), "{}", rest.len());
    }

    #[test]
    fn a_short_text_is_whole() {
        assert_eq!(read_text(&b"a\nb"[..]).expect("a text"), "a\nb");
    }
}
