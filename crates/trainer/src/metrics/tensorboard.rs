//! TensorBoard event files, written without TensorFlow. Our own writer, because three message types
//! need no protobuf library.
//!
//! A file is a sequence of records, each framed by its length and two checksums
//! (TFRecord), holding one `Event` message of protocol buffers. Only three message
//! types occur, so they are encoded by hand:
//!
//! ```text
//! Event   { double wall_time = 1; int64 step = 2; string file_version = 3;
//!           Summary summary = 5; SessionLog session_log = 7; }
//! Summary { repeated Value value = 1 { string tag = 1; float simple_value = 2; } }
//! SessionLog { SessionStatus status = 1; }   // START = 1
//! ```

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::Error;

pub(super) struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    /// A new event file in `folder`. `step` is where the run stands: TensorBoard then drops
    /// what an earlier file says of later steps, which happen again.
    pub(super) fn create(folder: &Path, step: u64) -> Result<Self, Error> {
        let seconds = now().as_secs();
        // Two starts within a second get different names by the process.
        let name = format!(
            "events.out.tfevents.{seconds:010}.surefoot.{}",
            std::process::id()
        );
        let path = folder.join(name);
        let file = File::create(&path).map_err(|error| Error::io("create", &path, error))?;
        let mut writer = Self { path, file };
        writer.event(0, &field_bytes(3, b"brain.Event:2"))?;
        if step > 0 {
            writer.event(step + 1, &field_bytes(7, &field_varint(1, 1)))?;
        }
        Ok(writer)
    }

    /// Appends the values of one step.
    pub(super) fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> Result<(), Error> {
        let mut summary = Vec::new();
        for (tag, value) in values {
            let mut message = field_bytes(1, tag.as_bytes());
            message.push(2 << 3 | 5);
            message.extend((*value as f32).to_le_bytes());
            summary.extend(field_bytes(1, &message));
        }
        self.event(step, &field_bytes(5, &summary))
    }

    fn event(&mut self, step: u64, what: &[u8]) -> Result<(), Error> {
        let mut event = vec![1 << 3 | 1];
        event.extend(now().as_secs_f64().to_le_bytes());
        event.extend(field_varint(2, step));
        event.extend(what);
        let record = framed(&event);
        self.file
            .write_all(&record)
            .map_err(|error| Error::io("write", &self.path, error))
    }
}

fn now() -> std::time::Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// A TFRecord: length, its checksum, the data, its checksum; all little-endian.
fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut record = length.to_vec();
    record.extend(masked_checksum(&length).to_le_bytes());
    record.extend(data);
    record.extend(masked_checksum(data).to_le_bytes());
    record
}

/// TFRecord rotates and shifts its CRC-32C, so that data which holds checksums itself has
/// checksums that differ.
fn masked_checksum(data: &[u8]) -> u32 {
    crc32c::crc32c(data)
        .rotate_right(15)
        .wrapping_add(0xA282_EAD8)
}

fn field_varint(number: u8, value: u64) -> Vec<u8> {
    let mut bytes = vec![number << 3];
    push_varint(&mut bytes, value);
    bytes
}

fn field_bytes(number: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    push_varint(&mut bytes, value.len() as u64);
    bytes.extend(value);
    bytes
}

fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_length_checksum_data_checksum() {
        let record = framed(b"abc");
        assert_eq!(record[..8], 3u64.to_le_bytes());
        assert_eq!(
            record[8..12],
            masked_checksum(&3u64.to_le_bytes()).to_le_bytes()
        );
        assert_eq!(record[12..15], *b"abc");
        assert_eq!(record[15..], masked_checksum(b"abc").to_le_bytes());
    }

    #[test]
    fn long_numbers_take_several_bytes() {
        assert_eq!(field_varint(2, 300), [0x10, 0xAC, 0x02]);
        assert_eq!(field_bytes(3, b"xy"), [0x1A, 2, b'x', b'y']);
    }

    #[test]
    fn the_checksum_is_the_masked_crc_of_the_format() {
        // CRC-32C of "123456789" is 0xE3069283 (RFC 3720, appendix B.4); rotated and shifted
        // by hand.
        let want = 0xC78A_B0E5;
        assert_eq!(masked_checksum(b"123456789"), want);
    }
}
