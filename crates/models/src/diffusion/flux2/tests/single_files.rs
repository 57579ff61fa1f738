//! The single files that ComfyUI loads, and the LoRAs for them.

use tch::{Device, Kind, Tensor};

use super::REFERENCE;
use crate::diffusion::files::PartFile;
use crate::diffusion::flux2::transformer::TransformerConfig;
use crate::diffusion::flux2::{ARCH, names};
use crate::diffusion::lora::{LoraFile, LoraForm, LoraModule};
use crate::diffusion::parts::kl::{self, KlConfig};
use crate::diffusion::reference::{SingleFiles, difference};
use crate::formats::{SafetensorsFile, TensorSource, write_tensors};

#[test]
fn single_files_have_the_same_weights() {
    let files = SingleFiles::new(&REFERENCE, &[]);
    let unknown: [&[&str]; 2] = [&[], &["bn.num_batches_tracked"]];
    files.have_the_same_weights(&REFERENCE, unknown);
}

#[test]
fn shapes_say_what_the_configs_say() {
    let files = SingleFiles::new(&REFERENCE, &[]);
    let single = PartFile::open(&names::TRANSFORMER, &files.path("transformer")).unwrap();
    let config = REFERENCE.golden("model/transformer/config.json");
    let config = TransformerConfig::read(&config).unwrap();
    assert_eq!(TransformerConfig::of_shapes(&single).unwrap(), config);
    let vae = PartFile::open(&kl::NAMES, &files.path("vae")).unwrap();
    let error = KlConfig::of_shapes(&vae, (1.0, 0.0))
        .unwrap_err()
        .to_string();
    assert!(error.contains("`norm_num_groups` is 32"), "{error}");
    let error = TransformerConfig::of_shapes(&vae).unwrap_err().to_string();
    assert!(error.contains("not a FLUX.2 klein transformer"), "{error}");
}

#[test]
fn a_single_transformer_asks_for_the_other_parts() {
    let files = SingleFiles::new(&REFERENCE, &[]);
    files.ask_for_the_other_parts(&REFERENCE, None);
}

/// FLUX.2 [dev] has a second embedding, of its guidance.
#[test]
fn a_guided_transformer_is_refused() {
    let files = SingleFiles::new(&REFERENCE, &["guidance_in.in_layer.weight"]);
    files.ask_for_the_other_parts(&REFERENCE, Some("FLUX.2 [dev], which is not supported"));
}

fn change(module: &LoraModule) -> Tensor {
    module.change.matrix().unwrap() * module.scale()
}

/// What is trained layer by layer is one layer in the files that others read, and comes back as it was.
#[test]
fn a_lora_of_stacked_layers_is_written_as_one_and_read_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let mut lora = LoraFile::read(&REFERENCE.golden("lora.safetensors"), &ARCH, None).unwrap();
    // One of another rank and strength, and one that is missing.
    let options = (Kind::Float, Device::Cpu);
    let other = LoraModule::lora(
        Tensor::randn([2, 32], options),
        Tensor::randn([32, 2], options),
        3.0,
    );
    lora.modules
        .insert("transformer_blocks.1.attn.to_k".into(), other);
    lora.modules
        .remove("transformer_blocks.1.attn.to_q")
        .unwrap();
    for (form, prefix) in [
        (
            LoraForm::Comfy,
            "diffusion_model.double_blocks.1.img_attn.qkv.lora_A",
        ),
        (
            LoraForm::Diffusers,
            "transformer.transformer_blocks.1.attn.to_k.lora_A",
        ),
    ] {
        lora.write(&path, form).unwrap();
        let written = SafetensorsFile::open(&path).unwrap();
        let down = written.shape(&format!("{prefix}.weight")).unwrap();
        let rank = if form == LoraForm::Comfy { 6 } else { 2 };
        assert_eq!(down, [rank, 32]);
        let read = LoraFile::read(&path, &ARCH, None).unwrap();
        assert_eq!(
            read.modules.keys().collect::<Vec<_>>(),
            lora.modules.keys().collect::<Vec<_>>()
        );
        for (name, module) in &lora.modules {
            let read = &read.modules[name];
            assert_eq!(read.change.rank(), module.change.rank(), "{name}");
            let apart = difference(&change(read), &change(module));
            assert!(apart < 1e-5, "{name}: {apart}");
        }
    }
}

/// kohya's form is that of musubi-tuner, in which the stacked layers are one, too.
#[test]
fn kohyas_form_has_the_stacked_layers_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let lora = LoraFile::read(&REFERENCE.golden("lora.safetensors"), &ARCH, None).unwrap();
    lora.write(&path, LoraForm::Kohya).unwrap();
    let written = SafetensorsFile::open(&path).unwrap();
    let name = "lora_unet_double_blocks_0_txt_attn_qkv";
    let up = written.shape(&format!("{name}.lora_up.weight")).unwrap();
    assert_eq!(up, [96, 12]);
    // Three times that of each part, of which the rank is a third.
    let alpha = written.read(&format!("{name}.alpha"), Kind::Float).unwrap();
    assert_eq!(f64::try_from(&alpha).unwrap(), 12.0);
    let read = LoraFile::read(&path, &ARCH, None).unwrap();
    assert_eq!(read.modules.len(), 28);
    for (name, module) in &lora.modules {
        let apart = difference(&change(&read.modules[name]), &change(module));
        assert!(apart < 1e-6, "{name}: {apart}");
    }
    assert_eq!(ARCH.split_layer(), None);
}

/// A LoRA that was trained on the stacked layer shares a matrix, and one of nothing learned yet has equal parts.
#[test]
fn a_lora_of_a_whole_stacked_layer_is_one_of_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let options = (Kind::Float, Device::Cpu);
    let down = Tensor::randn([6, 32], options);
    for (up, rank) in [
        (Tensor::randn([96, 6], options), 6),
        (Tensor::zeros([96, 6], options), 2),
    ] {
        let name = "diffusion_model.double_blocks.0.img_attn.qkv";
        let tensors = [
            (format!("{name}.lora_A.weight"), &down),
            (format!("{name}.lora_B.weight"), &up),
        ];
        write_tensors(&path, &tensors).unwrap();
        let file = LoraFile::read(&path, &ARCH, None).unwrap();
        for (number, part) in ["to_q", "to_k", "to_v"].iter().enumerate() {
            let module = &file.modules[&format!("transformer_blocks.0.attn.{part}")];
            assert_eq!((module.change.rank(), module.scale()), (Some(rank), 1.0));
            let rows = up.narrow(0, 32 * number as i64, 32).matmul(&down);
            assert!(difference(&change(module), &rows) < 1e-6, "{part}");
        }
    }
    for (key, told) in [
        (
            "diffusion_model.final_layer.adaLN_modulation.1",
            "does not belong to a known layer",
        ),
        (
            "lora_unet_transformer_blocks_0_attn_to_nothing",
            "does not belong to a known layer",
        ),
    ] {
        let tensors = [(format!("{key}.lora_A.weight"), &down)];
        write_tensors(&path, &tensors).unwrap();
        let error = LoraFile::read(&path, &ARCH, None).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}
