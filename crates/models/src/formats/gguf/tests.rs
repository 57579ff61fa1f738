//! Held against files that the `gguf` Python package wrote, and against damage.

use std::io::Cursor;

use proptest::prelude::*;
use tch::{Kind, Tensor};

use super::*;
use crate::formats::{SafetensorsFile, TensorSource};
use crate::golden::golden;

#[test]
fn every_format_is_what_the_reference_says() {
    let gguf = Gguf::open(&golden("formats.gguf")).unwrap();
    let expected = SafetensorsFile::open(&golden("formats.safetensors")).unwrap();
    assert_eq!(gguf.header().tensors.len(), Format::ALL.len());
    for format in Format::ALL {
        let ours = gguf.read(format.name()).unwrap();
        let theirs = expected.read(format.name(), Kind::Float).unwrap();
        assert!(
            ours.equal(&theirs),
            "{}: {}",
            format.name(),
            (&ours - &theirs).abs().max()
        );
        for index in 0..ours.size()[0] {
            let element = gguf.read_element(format.name(), index);
            match ours.dim() {
                1 => assert!(element.is_err() || format.block_elements() == 1),
                _ => assert!(element.unwrap().equal(&ours.get(index))),
            }
        }
        let beyond = gguf.read_element(format.name(), ours.size()[0]);
        assert!(beyond.unwrap_err().to_string().contains("has no element"));
    }
}

#[test]
fn metadata_of_every_shape_is_read() {
    let gguf = Gguf::open(&golden("formats.gguf")).unwrap();
    let metadata = &gguf.header().metadata;
    assert_eq!(
        metadata["general.architecture"],
        Value::String("formats".into())
    );
    assert_eq!(
        metadata["numbers"],
        Value::Array(Array::Signed(vec![1, -2, 3]))
    );
    let texts = ["one", "zwei", "три"].map(str::to_owned).to_vec();
    assert_eq!(metadata["texts"], Value::Array(Array::String(texts)));
    assert_eq!(metadata["third"], Value::Float(f64::from(1.0f32 / 3.0)));
    assert_eq!(metadata["yes"], Value::Bool(true));
}

#[test]
fn a_tensor_longer_than_a_stride_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.gguf");
    let numbers: Vec<f32> = (0..STRIDE as i32 + 7).map(|number| number as f32).collect();
    std::fs::write(&path, file_with(&numbers)).unwrap();
    let read = Gguf::open(&path).unwrap().read("t").unwrap();
    assert!(read.equal(&Tensor::from_slice(&numbers)));
}

#[test]
fn a_cut_file_says_that_it_is_cut() {
    let whole = file_with(&[1.0; 100]);
    let cut = &whole[..whole.len() - 1];
    let error = Header::read(Cursor::new(cut), cut.len() as u64).unwrap_err();
    assert_eq!(
        error,
        "tensor `t`: its 400 bytes at offset 0 reach beyond the end of the file; the download may be incomplete"
    );
}

#[test]
fn counts_are_not_believed() {
    // A string of 2^60 bytes, an array of 2^60 numbers, and 2^60 tensors.
    let mut string = b"GGUF\x03\0\0\0".to_vec();
    string.extend([0u64, 1, 1 << 60].map(u64::to_le_bytes).concat());
    let mut array = b"GGUF\x03\0\0\0".to_vec();
    array.extend([0u64, 1, 1].map(u64::to_le_bytes).concat());
    array.extend(b"k\x09\0\0\0\x04\0\0\0");
    array.extend((1u64 << 60).to_le_bytes());
    let mut tensors = b"GGUF\x03\0\0\0".to_vec();
    tensors.extend([1u64 << 60, 0].map(u64::to_le_bytes).concat());
    for (bytes, error) in [
        (
            string,
            "a string of 1152921504606846976 bytes, with 0 left in the file",
        ),
        (
            array,
            "metadata `k`: an array of 1152921504606846976 values, with 0 bytes left in the file",
        ),
        (
            tensors,
            "the file ends inside its header, after 24 bytes; the download may be incomplete",
        ),
    ] {
        assert_eq!(
            Header::read(Cursor::new(&bytes), bytes.len() as u64).unwrap_err(),
            error
        );
    }
}

/// A file with one fp32 tensor `t`.
fn file_with(numbers: &[f32]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([1u64, 0, 1].map(u64::to_le_bytes).concat());
    file.extend(b"t\x01\0\0\0");
    file.extend((numbers.len() as u64).to_le_bytes());
    file.extend([0; 4 + 8]);
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is done to a sound file, reading it ends in a header whose tensors lie
    /// inside the file, or in an error.
    #[test]
    fn damage_never_panics(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        words in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 0..2),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = std::fs::read(golden("formats.gguf")).unwrap();
        // The header is where damage matters; it ends before the first 2 KiB do.
        for (index, byte) in damage {
            bytes[index.index(2048)] = byte;
        }
        for (index, word) in words {
            bytes[index.index(2048)..][..8].copy_from_slice(&word.to_le_bytes());
        }
        if cut {
            bytes.truncate(length.index(bytes.len()));
        }
        if let Ok(header) = Header::read(Cursor::new(&bytes), bytes.len() as u64) {
            for entry in header.tensors.values() {
                if let Some(format) = entry.format() {
                    let size = format.bytes_of(entry.elements()).unwrap();
                    prop_assert!(entry.offset + size <= bytes.len() as u64);
                }
            }
        }
    }

    #[test]
    fn noise_after_the_magic_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let bytes = [b"GGUF\x03\0\0\0".as_slice(), &noise].concat();
        let _ = Header::read(Cursor::new(&bytes), bytes.len() as u64);
    }
}
