//! Writing Python's pickle format, for plain data: what PyTorch's memory snapshots are written in.

use std::collections::HashMap;

/// Writes a pickle of plain data (protocol 2, which every Python 3 reads). A text is
/// written once and referred to after that: a history has the same few in each entry.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    remembered: HashMap<String, u32>,
}

impl Default for Writer {
    fn default() -> Self {
        Self {
            bytes: vec![0x80, 2],
            remembered: HashMap::new(),
        }
    }
}

impl Writer {
    /// A whole number.
    pub fn number(&mut self, number: i64) {
        if let Ok(small) = u8::try_from(number) {
            self.bytes.extend([b'K', small]);
        } else if let Ok(medium) = i32::try_from(number) {
            self.bytes.push(b'J');
            self.bytes.extend(medium.to_le_bytes());
        } else {
            self.bytes.extend([0x8a, 8]);
            self.bytes.extend(number.to_le_bytes());
        }
    }

    /// Yes or no.
    pub fn bool(&mut self, yes: bool) {
        self.bytes.push(if yes { 0x88 } else { 0x89 });
    }

    /// Writes a string.
    pub fn text(&mut self, text: &str) {
        if let Some(name) = self.remembered.get(text) {
            let name = *name;
            return self.with_name(b'h', b'j', name);
        }
        self.bytes.push(b'X');
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.bytes.extend(length.to_le_bytes());
        self.bytes.extend(&text.as_bytes()[..length as usize]);
        let Ok(name) = u32::try_from(self.remembered.len()) else {
            return;
        };
        self.remembered.insert(text.to_owned(), name);
        self.with_name(b'q', b'r', name);
    }

    /// An instruction and the name of what it remembers or recalls, in one byte or in four.
    fn with_name(&mut self, short: u8, long: u8, name: u32) {
        match u8::try_from(name) {
            Ok(name) => self.bytes.extend([short, name]),
            Err(_) => {
                self.bytes.push(long);
                self.bytes.extend(name.to_le_bytes());
            }
        }
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

    /// Ends the pickle and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }
}
