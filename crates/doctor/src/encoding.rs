//! In which encoding a text was written, and reading it piece by piece.
//!
//! PowerShell writes UTF-16, with a mark when it redirects and without one when a tool
//! appends to such a file. Everything else is UTF-8 with whatever broken bytes a log has.

/// How the characters of a text are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// ASCII included; broken bytes are replaced.
    Utf8,
    /// The low byte first, as on Windows.
    Utf16Le,
    /// The high byte first.
    Utf16Be,
}

impl Encoding {
    /// As many bytes are looked at when there is no mark.
    const SAMPLE: usize = 256;

    /// The encoding of a text that begins with these bytes, and the length of its mark.
    ///
    /// Without a mark, UTF-16 shows in the zero bytes of its ASCII characters: nearly
    /// all on one side of the pairs. A text of another script with hardly any ASCII is not recognised.
    #[must_use]
    pub fn of(start: &[u8]) -> (Self, usize) {
        match start {
            [0xff, 0xfe, ..] => return (Self::Utf16Le, 2),
            [0xfe, 0xff, ..] => return (Self::Utf16Be, 2),
            [0xef, 0xbb, 0xbf, ..] => return (Self::Utf8, 3),
            _ => {}
        }
        let sample = &start[..start.len().min(Self::SAMPLE)];
        let (mut first, mut second) = (0, 0);
        for pair in sample.chunks_exact(2) {
            first += usize::from(pair[0] == 0);
            second += usize::from(pair[1] == 0);
        }
        // A third of the characters are ASCII wherever there are paths, numbers and line ends.
        let enough = (sample.len() / 6).max(2);
        let shows = |these: usize, others: usize| these >= enough && others <= these / 8;
        let encoding = if shows(second, first) {
            Self::Utf16Le
        } else if shows(first, second) {
            Self::Utf16Be
        } else {
            Self::Utf8
        };
        (encoding, 0)
    }

    fn unit(self, pair: [u8; 2]) -> u16 {
        match self {
            Self::Utf16Be => u16::from_be_bytes(pair),
            Self::Utf8 | Self::Utf16Le => u16::from_le_bytes(pair),
        }
    }
}

/// The text of a whole file.
#[must_use]
pub fn decode(bytes: &[u8]) -> String {
    let mut decoder = Decoder::default();
    let mut text = Vec::with_capacity(bytes.len());
    decoder.read(bytes, |piece| text.extend_from_slice(piece));
    decoder.finish(|piece| text.extend_from_slice(piece));
    String::from_utf8(text)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Whether a decoded beginning is not that of a text but of an archive, a core dump or a picture.
///
/// Looks at the first 64 KiB: most of their characters do not occur in texts.
#[must_use]
pub fn is_binary(start: &[u8]) -> bool {
    let head = String::from_utf8_lossy(&start[..start.len().min(64 << 10)]);
    let is_strange =
        |c: &char| *c == '\u{fffd}' || c.is_control() && !c.is_whitespace() && *c != '\u{1b}';
    let strange = head.chars().filter(is_strange).count();
    strange > 64 && strange * 8 > head.chars().count()
}

/// Turns a text of any encoding into UTF-8, in pieces that may end anywhere.
///
/// UTF-8 text is passed on unchanged, even if it is malformed.
#[derive(Debug, Default)]
pub struct Decoder {
    encoding: Option<Encoding>,
    /// The start of the text until its encoding is known; then the remainder of the last piece.
    rest: Vec<u8>,
    /// The first half of a surrogate pair at the end of a piece.
    surrogate: Option<u16>,
}

impl Decoder {
    /// Takes the next piece and returns what can be decoded so far.
    pub fn read(&mut self, piece: &[u8], mut out: impl FnMut(&[u8])) {
        match self.encoding {
            Some(encoding) => self.decode(encoding, piece, &mut out),
            None => {
                self.rest.extend_from_slice(piece);
                if self.rest.len() >= Encoding::SAMPLE {
                    self.begin(&mut out);
                }
            }
        }
    }

    /// Returns the remainder at the end of the text.
    pub fn finish(mut self, mut out: impl FnMut(&[u8])) {
        if self.encoding.is_none() {
            self.begin(&mut out);
        }
        if self.surrogate.is_some() || !self.rest.is_empty() {
            out("\u{fffd}".as_bytes());
        }
    }

    fn begin(&mut self, out: &mut impl FnMut(&[u8])) {
        let start = std::mem::take(&mut self.rest);
        let (encoding, mark) = Encoding::of(&start);
        self.encoding = Some(encoding);
        self.decode(encoding, &start[mark..], out);
    }

    fn decode(&mut self, encoding: Encoding, piece: &[u8], out: &mut impl FnMut(&[u8])) {
        if encoding == Encoding::Utf8 {
            return out(piece);
        }
        let bytes = self.rest.drain(..).chain(piece.iter().copied());
        let bytes: Vec<u8> = bytes.collect();
        let pairs = bytes.chunks_exact(2);
        self.rest.extend_from_slice(pairs.remainder());
        let pairs = pairs.map(|pair| encoding.unit([pair[0], pair[1]]));
        let mut units: Vec<u16> = self.surrogate.take().into_iter().chain(pairs).collect();
        if units
            .last()
            .is_some_and(|last| (0xd800..0xdc00).contains(last))
        {
            self.surrogate = units.pop();
        }
        out(String::from_utf16_lossy(&units).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn utf16(text: &str, unit: fn(u16) -> [u8; 2]) -> Vec<u8> {
        text.encode_utf16().flat_map(unit).collect()
    }

    #[test]
    fn utf16_is_read_with_a_mark_and_without() {
        let text = "[WinError 126] 找不到指定的模块。 😀\r\nError loading fbgemm.dll\r\n";
        for mark in ["", "\u{feff}"] {
            let marked = format!("{mark}{text}");
            assert_eq!(decode(&utf16(&marked, u16::to_le_bytes)), text, "{mark:?}");
            assert_eq!(decode(&utf16(&marked, u16::to_be_bytes)), text, "{mark:?}");
        }
    }

    #[test]
    fn ordinary_bytes_stay_as_they_are() {
        assert_eq!(decode(b"\xef\xbb\xbfgfx1100"), "gfx1100");
        assert_eq!(decode(b"gfx\xff1100\x00\x00ab"), "gfx\u{fffd}1100\0\0ab");
        assert_eq!(decode(b""), "");
    }

    #[test]
    fn pieces_may_end_within_a_character() {
        let text = "amdgpu 😀 ".repeat(60);
        for bytes in [utf16(&text, u16::to_le_bytes), text.clone().into_bytes()] {
            for size in [1, 3, 7, 255] {
                let mut decoder = Decoder::default();
                let mut read = Vec::new();
                for piece in bytes.chunks(size) {
                    decoder.read(piece, |part| read.extend_from_slice(part));
                }
                decoder.finish(|part| read.extend_from_slice(part));
                assert_eq!(String::from_utf8_lossy(&read), text, "{size}");
            }
        }
    }

    #[test]
    fn a_text_that_is_cut_within_a_unit_is_read_to_there() {
        let bytes = utf16("Memory access fault", u16::to_le_bytes);
        let cut = decode(&bytes[..bytes.len() - 1]);
        assert_eq!(cut, "Memory access faul\u{fffd}");
    }
}
