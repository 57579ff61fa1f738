//! Folders whose weights were saved quantised.

use std::collections::BTreeMap;

use super::*;
use crate::quant::{Int8Rows, Nf4};

/// A tensor under its name.
type Named = (String, Tensor);

/// The folder `llama-grouped`, with matrices stored as `pack` does; and their numbers, as `pack` gives them.
fn packed(
    method: Value,
    pack: impl Fn(&str, &Tensor) -> (Vec<Named>, Tensor),
) -> (tempfile::TempDir, BTreeMap<String, Tensor>) {
    let source = HfFolder::open(&golden("llama-grouped")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(golden("llama-grouped/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["quantization_config"] = method;
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let (mut stored, mut numbers) = (Vec::new(), BTreeMap::new());
    for name in source.names() {
        let tensor = source.read(&name, Kind::Float).unwrap();
        let (tensors, values) = match name.contains("_proj.") {
            true => pack(&name, &tensor),
            false => (vec![(name.clone(), tensor.copy())], tensor),
        };
        stored.extend(tensors);
        numbers.insert(name, values);
    }
    let lazy = stored
        .iter()
        .map(|(name, tensor)| (name.clone(), LazyTensor::ready(tensor)));
    write_safetensors(&folder.path().join("model.safetensors"), lazy, None).unwrap();
    (folder, numbers)
}

fn expect_numbers(folder: &Path, numbers: &BTreeMap<String, Tensor>, most: f64) {
    let folder = HfFolder::open(folder).unwrap();
    assert_eq!(folder.names(), numbers.keys().cloned().collect::<Vec<_>>());
    for (name, values) in numbers {
        assert_eq!(folder.shape(name).unwrap(), values.size(), "{name}");
        let read = folder.read(name, Kind::Float).unwrap();
        let difference = f64::try_from((read - values).abs().max()).unwrap();
        assert!(difference <= most, "{name}: {difference}");
    }
}

/// Blocks of 5 x 7 leave smaller ones at the end.
#[test]
fn weights_saved_in_fp8_are_read_with_their_factors() {
    for (block, [high, wide]) in [(json!([5, 7]), [5, 7]), (Value::Null, [1 << 20; 2])] {
        let method = json!({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": block});
        let (folder, numbers) = packed(method, |name, tensor| {
            let (rows, columns) = tensor.size2().unwrap();
            let (values, factors) = (tensor.copy(), tensor.zeros_like());
            let (mut all, mut count) = (Vec::new(), Vec::new());
            for row in (0..rows).step_by(high) {
                for column in (0..columns).step_by(wide) {
                    let factor = 0.5 + all.len() as f64;
                    let of = |tensor: &Tensor| {
                        tensor
                            .narrow(0, row, rows.min(row + high as i64) - row)
                            .narrow(1, column, columns.min(column + wide as i64) - column)
                    };
                    let _ = of(&factors).fill_(factor);
                    all.push(factor as f32);
                }
                count.push(all.len() as i64);
            }
            let eight = (values / &factors).to_kind(Kind::Float8e4m3fn);
            let numbers = eight.to_kind(Kind::Float) * &factors;
            let size = [count.len() as i64, count[0]];
            let scales = match block.is_null() {
                true => Tensor::from(all[0]),
                false => Tensor::from_slice(&all).view(size),
            };
            let module = name.strip_suffix("weight").unwrap();
            let stored = vec![
                (name.to_owned(), eight),
                (format!("{name}_scale_inv"), scales),
                (format!("{module}activation_scale"), Tensor::from(2.0f32)),
            ];
            (stored, numbers)
        });
        expect_numbers(folder.path(), &numbers, 0.0);
    }
}

#[test]
fn weights_saved_by_bitsandbytes_are_read() {
    let (folder, numbers) = packed(json!({"load_in_8bit": true}), |name, tensor| {
        let int8 = Int8Rows::quantize(tensor).unwrap();
        let module = name.strip_suffix("weight").unwrap();
        let stored = vec![
            (name.to_owned(), int8.values.copy()),
            (format!("{module}SCB"), int8.scales.view(-1)),
            (format!("{module}weight_format"), Tensor::from_slice(&[0u8])),
        ];
        (stored, int8.dequantize(Kind::Float).unwrap())
    });
    expect_numbers(folder.path(), &numbers, 1e-7);

    // What the codes 0, 1, … 15 stand for.
    let codes = Nf4::quantize(&Tensor::ones([64], (Kind::Float, Device::Cpu))).unwrap();
    let bytes = Tensor::from_slice(&[0x01u8, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
    codes.packed.view(-1).narrow(0, 0, 8).copy_(&bytes);
    let levels = codes.dequantize(Kind::Float).unwrap().narrow(0, 0, 16);
    for nested in [false, true] {
        let method = json!({"quant_method": "bitsandbytes", "load_in_4bit": true});
        let (folder, numbers) = packed(method, |name, tensor| {
            let nf4 = Nf4::quantize(tensor).unwrap();
            let mut state = json!({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": tensor.size()});
            let bytes = (tensor.numel() as i64 + 1) / 2;
            let mut stored = vec![
                (
                    name.to_owned(),
                    nf4.packed.view([-1, 1]).narrow(0, 0, bytes),
                ),
                (format!("{name}.quant_map"), levels.copy()),
            ];
            let (mut scales, mut numbers) =
                (nf4.scales.view(-1), nf4.dequantize(Kind::Float).unwrap());
            if nested {
                // All blocks have the same: 0.25 · 2 + 0.5.
                numbers /= scales
                    .repeat_interleave_self_int(64, 0, None)
                    .narrow(0, 0, tensor.numel() as i64)
                    .view_as(tensor);
                state["nested_blocksize"] = json!(4);
                state["nested_offset"] = json!(0.5);
                let map = Tensor::zeros([256], (Kind::Float, Device::Cpu));
                let _ = map.get(9).fill_(0.25);
                let blocks = scales.numel() as i64;
                stored.push((format!("{name}.nested_quant_map"), map));
                stored.push((
                    format!("{name}.nested_absmax"),
                    Tensor::full([(blocks + 3) / 4], 2.0, (Kind::Float, Device::Cpu)),
                ));
                scales = Tensor::full([blocks], 9, (Kind::Uint8, Device::Cpu));
            }
            stored.push((format!("{name}.absmax"), scales));
            stored.push((
                format!("{name}.quant_state.bitsandbytes__nf4"),
                Tensor::from_slice(state.to_string().as_bytes()),
            ));
            (stored, numbers)
        });
        expect_numbers(folder.path(), &numbers, 1e-6);
    }
}
