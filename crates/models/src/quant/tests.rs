//! Held against bitsandbytes, see `tests/reference/quantisation.py`.

use tch::{Device, Kind, Tensor};

use super::*;
use crate::formats::SafetensorsFile;

fn golden(name: &str) -> Tensor {
    SafetensorsFile::open(&crate::golden::golden("quantisation.safetensors"))
        .unwrap()
        .read_stored(name)
        .unwrap()
}

fn differing(a: &Tensor, b: &Tensor) -> i64 {
    i64::try_from(a.ne_tensor(b).sum(Kind::Int64)).unwrap()
}

#[test]
fn the_code_books_are_those_of_bitsandbytes() {
    for (code, name) in [
        (Code::Signed, "signed_map"),
        (Code::Unsigned, "unsigned_map"),
    ] {
        let ours = Tensor::from_slice(&dynamic_map(code));
        assert!(ours.allclose(&golden(name), 1e-6, 1e-12, false), "{name}");
    }
    assert_eq!(dynamic_map(Code::Signed)[127], 0.0);
    assert_eq!(dynamic_map(Code::Unsigned)[0], 0.0);
}

#[test]
fn dynamic_blocks_are_those_of_bitsandbytes() {
    for (code, name, numbers) in [
        (Code::Signed, "signed", golden("numbers")),
        (Code::Unsigned, "unsigned", golden("numbers").abs()),
    ] {
        let mut ours = Dynamic8::zeros(&numbers.size(), code, Device::Cpu).unwrap();
        ours.store(&numbers).unwrap();
        assert!(
            ours.scales
                .view(-1)
                .equal(&golden(&format!("{name}_absmax"))),
            "{name}"
        );
        // A number in the middle between two values may go to either, and in a block of
        // zeros every code means zero.
        let values = ours.values.view(-1).narrow(0, 0, numbers.numel() as i64);
        let differ = values.ne_tensor(&golden(&format!("{name}_values"))) * numbers.ne(0.0);
        assert!(
            i64::try_from(differ.sum(Kind::Int64)).unwrap() <= 2,
            "{name}"
        );
        let error = (ours.load().unwrap() - &numbers).abs();
        let theirs = (golden(&format!("{name}_back")) - &numbers).abs();
        // Not worse than the reference, but for the rounding of the arithmetic itself.
        let allowed = theirs + numbers.abs() * 1e-6;
        assert!(
            error.le_tensor(&allowed).all().int64_value(&[]) == 1,
            "{name}"
        );
    }
}

#[test]
fn nf4_is_that_of_bitsandbytes() {
    let ours = Nf4::quantize(&golden("matrix")).unwrap();
    assert_eq!(differing(&ours.packed.view(-1), &golden("nf4_packed")), 0);
    assert!(ours.scales.view(-1).equal(&golden("nf4_absmax")));
    let back = ours.dequantize(Kind::Float).unwrap();
    assert!(back.allclose(&golden("nf4_back"), 1e-6, 1e-12, false));
}

#[test]
fn int8_rows_are_those_of_bitsandbytes() {
    // The reference sees the matrix in fp16.
    let matrix = golden("matrix").to_kind(Kind::Half).to_kind(Kind::Float);
    let ours = Int8Rows::quantize(&matrix).unwrap();
    let theirs = golden("int8_values");
    assert_eq!(differing(&ours.values, &theirs), 0);
    let scales = golden("int8_scales").to_kind(Kind::Float);
    assert!(ours.scales.view(-1).allclose(&scales, 1e-3, 0.0, false));
    let error = (ours.dequantize(Kind::Float).unwrap() - &matrix).abs();
    assert!(
        error
            .le_tensor(&(&ours.scales / 253.0))
            .all()
            .int64_value(&[])
            == 1
    );
}

#[test]
fn zeros_and_odd_lengths_survive() {
    for count in [1i64, 255, 256, 257] {
        let numbers = Tensor::zeros([count], (Kind::Float, Device::Cpu));
        let mut state = Dynamic8::zeros(&[count], Code::Signed, Device::Cpu).unwrap();
        assert!(state.load().unwrap().equal(&numbers));
        state.store(&numbers).unwrap();
        assert!(state.load().unwrap().equal(&numbers));
        let four = Nf4::quantize(&numbers).unwrap();
        assert!(four.dequantize(Kind::Float).unwrap().equal(&numbers));
    }
}

#[test]
fn large_matrices_are_quantised_as_their_parts_are() {
    // More than is taken at once, and a part of a block at the end.
    let part = 4096 * 64;
    tch::manual_seed(4);
    let numbers = Tensor::randn([2 * part + 70], (Kind::Float, Device::Cpu));
    let whole = Nf4::quantize(&numbers).unwrap();
    let parts = [(0, part), (part, part), (2 * part, 70)];
    let parts =
        parts.map(|(start, count)| Nf4::quantize(&numbers.narrow(0, start, count)).unwrap());
    let packed = Tensor::cat(&parts.each_ref().map(|part| &part.packed), 0);
    let scales = Tensor::cat(&parts.each_ref().map(|part| &part.scales), 0);
    assert!(whole.packed.equal(&packed) && whole.scales.equal(&scales));
}

#[test]
fn both_tables_of_nf4_mean_the_same() {
    // Every pair of bytes.
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let packed = Tensor::from_slice(&bytes).view([-1, 32]);
    let ones = nf4::Table::of_bytes(nf4::Nibbles::Nf4)
        .unwrap()
        .look_up(&packed)
        .unwrap();
    for kind in [Kind::Float, Kind::BFloat16] {
        let twos = nf4::Table::of_two_bytes(Device::Cpu, kind, nf4::Nibbles::Nf4).unwrap();
        let twos = twos.look_up(&packed).unwrap();
        assert!(
            twos.view(-1).equal(&ones.to_kind(kind).view(-1)),
            "{kind:?}"
        );
    }
}

#[test]
fn the_table_of_a_gpu_has_its_shape_among_fake_tensors() {
    let _fake = torch_ext::fake::FakeMode::begin(Device::Cpu).unwrap();
    let packed = Tensor::empty([10, 32], (Kind::Uint8, Device::Cpu));
    for nibbles in [nf4::Nibbles::Nf4, nf4::Nibbles::Mxfp4] {
        let table = nf4::Table::of_two_bytes(Device::Cpu, Kind::BFloat16, nibbles).unwrap();
        assert_eq!(table.look_up(&packed).unwrap().numel(), 10 * 64);
    }
}
