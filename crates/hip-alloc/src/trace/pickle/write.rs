//! Writing a pickle of plain data.

/// Writes a pickle of plain data (protocol 2, which every Python 3 reads).
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            bytes: vec![0x80, 2],
        }
    }
}

impl Writer {
    /// A whole number.
    pub fn number(&mut self, number: i64) {
        self.bytes.extend([0x8a, 8]);
        self.bytes.extend(number.to_le_bytes());
    }

    /// Yes or no.
    pub fn bool(&mut self, yes: bool) {
        self.bytes.push(if yes { 0x88 } else { 0x89 });
    }

    /// A text.
    pub fn text(&mut self, text: &str) {
        self.bytes.push(b'X');
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.bytes.extend(length.to_le_bytes());
        self.bytes.extend(&text.as_bytes()[..length as usize]);
    }

    /// A list with what `fill` writes.
    pub fn list(&mut self, fill: impl FnOnce(&mut Self)) {
        self.bytes.extend(b"](");
        fill(self);
        self.bytes.push(b'e');
    }

    /// A dictionary with what `fill` writes: a text and a value in turn.
    pub fn dict(&mut self, fill: impl FnOnce(&mut Self)) {
        self.bytes.extend(b"}(");
        fill(self);
        self.bytes.push(b'u');
    }

    /// A key and a number.
    pub fn entry(&mut self, key: &str, number: i64) {
        self.text(key);
        self.number(number);
    }

    /// The pickle.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }
}
