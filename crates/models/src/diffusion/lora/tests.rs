//! Held against files that diffusers loads, and what it computes with them.

use placement::{Placer, Policy};
use tch::Device;

use super::*;
use crate::Parameters;
use crate::diffusion::files::PartFile;
use crate::diffusion::wan::ARCH;
use crate::diffusion::wan::names::TRANSFORMER;
use crate::diffusion::wan::transformer::{Timesteps, Transformer, TransformerConfig};
use crate::formats::write_tensors;
use crate::golden::golden;
use crate::model::{Base, Builder, FileWeights, Pass};

fn path(form: &str) -> PathBuf {
    match form {
        "peft" => golden("wan/lora/peft"),
        _ => golden(&format!("wan/lora/{form}.safetensors")),
    }
}

fn lora(form: &str) -> LoraFile {
    LoraFile::read(&path(form), &ARCH, None).unwrap()
}

fn base() -> Box<dyn TensorSource> {
    let folder = golden("wan/transformer-t2v");
    Box::new(PartFile::open(&TRANSFORMER, &folder).unwrap())
}

fn velocity(loras: Vec<(LoraFile, f64)>) -> Tensor {
    let folder = golden("wan/transformer-t2v");
    let config = TransformerConfig::read(&folder.join("config.json")).unwrap();
    let tensors = WithLoras::new(base(), loras).unwrap();
    let mut placer = Placer::new(Device::Cpu, Policy::default()).unwrap();
    let mut source = FileWeights::new(&tensors, Kind::Float, &mut placer);
    let mut parameters = Parameters::default();
    let base = Base::Frozen(Kind::Float);
    let mut builder = Builder::new(&mut source, &mut parameters, Kind::Float, base);
    let model = Transformer::new(&config, Device::Cpu, &mut builder).unwrap();
    let file = SafetensorsFile::open(&folder.join("expected.safetensors")).unwrap();
    let read = |name: &str| file.read(name, Kind::Float).unwrap();
    let text = read("text");
    let text = text.constant_pad_nd([0, 0, 0, 512 - text.size()[1]]);
    let times = Timesteps::Uniform(read("times"));
    let latents = read("latents");
    model
        .velocity(&latents, &times, &text, Pass::Evaluate)
        .unwrap()
}

fn expected(name: &str) -> Tensor {
    let file = SafetensorsFile::open(&golden("wan/lora/expected.safetensors")).unwrap();
    file.read(name, Kind::Float).unwrap()
}

fn difference(ours: &Tensor, theirs: &Tensor) -> f64 {
    assert_eq!(ours.size(), theirs.size());
    f64::try_from((ours - theirs).abs().max()).unwrap()
}

#[test]
fn a_folder_of_peft_is_read_as_what_was_written() {
    for form in ["kohya", "comfy_alpha", "diffusers"] {
        let (folder, from) = (tempfile::tempdir().unwrap(), lora(form));
        from.write_peft(folder.path()).unwrap();
        let read = LoraFile::read(folder.path(), &ARCH, None).unwrap();
        assert_eq!(read.modules.len(), from.modules.len());
        for (name, module) in &from.modules {
            let read = &read.modules[name];
            assert!((read.alpha - module.alpha).abs() < 1e-6, "{form}: {name}");
            assert_eq!(
                difference(read.factors().unwrap()[0], module.factors().unwrap()[0]),
                0.0
            );
            assert_eq!(
                difference(read.factors().unwrap()[1], module.factors().unwrap()[1]),
                0.0
            );
        }
        let adapter = crate::adapters::PeftAdapter::open(folder.path()).unwrap();
        assert!(crate::adapters::Attachment::saved(adapter).is_ok());
    }
}

#[test]
fn every_form_computes_what_diffusers_does() {
    let theirs = expected("velocity");
    for form in [
        "kohya",
        "comfy",
        "comfy_alpha",
        "diffusers",
        "diffusers_header",
        "peft",
    ] {
        let apart = difference(&velocity(vec![(lora(form), 1.0)]), &theirs);
        assert!(apart <= 5e-5, "{form}: {apart}");
    }
    let weak = velocity(vec![(lora("kohya"), 0.6)]);
    assert!(difference(&weak, &expected("velocity_0.6")) <= 5e-5);
    // Strengths of several are added.
    let twice = velocity(vec![(lora("kohya"), 0.2), (lora("comfy"), 0.4)]);
    assert!(difference(&twice, &weak) <= 5e-5);
    assert!(difference(&weak, &theirs) > 1e-3);
}

/// Diffusers reads the files that were made for it; equal ones it reads as well.
#[test]
fn written_forms_are_those_that_diffusers_reads() {
    let folder = tempfile::tempdir().unwrap();
    for (name, form) in [
        ("kohya", LoraForm::Kohya),
        ("comfy", LoraForm::Comfy),
        ("diffusers", LoraForm::Diffusers),
    ] {
        for from in ["kohya", "comfy_alpha", "peft", "diffusers_header"] {
            let written = folder.path().join(format!("{from}-{name}.safetensors"));
            lora(from).write(&written, form).unwrap();
            let (ours, theirs) = (
                SafetensorsFile::open(&written).unwrap(),
                SafetensorsFile::open(&path(name)).unwrap(),
            );
            assert_eq!(ours.names(), theirs.names(), "{from} as {name}");
            for key in ours.names() {
                let [ours, theirs] = [&ours, &theirs].map(|file| file.read_stored(&key).unwrap());
                assert!(
                    difference(&ours, &theirs) <= 1e-6,
                    "{from} as {name}: {key}"
                );
            }
            let metadata = ours.metadata();
            assert_eq!(metadata["ss_network_dim"], "2");
            let alpha = if name == "kohya" { "3" } else { "2" };
            assert_eq!(metadata["ss_network_alpha"], alpha);
            assert!(!metadata.contains_key("lora_adapter_metadata"));
        }
    }
}

fn with(keys: &[(&str, &[i64])]) -> Result<LoraFile, Error> {
    read_with(keys, |path| LoraFile::read(path, &ARCH, None))
}

fn read_with(
    keys: &[(&str, &[i64])],
    read: impl FnOnce(&Path) -> Result<LoraFile, Error>,
) -> Result<LoraFile, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let tensors: Vec<(String, Tensor)> = keys
        .iter()
        .map(|(key, shape)| {
            (
                (*key).to_owned(),
                Tensor::ones(*shape, (Kind::Float, Device::Cpu)),
            )
        })
        .collect();
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(key, tensor)| (key.clone(), tensor))
        .collect();
    write_tensors(&path, &tensors).unwrap();
    read(&path)
}

/// What is wrong with a file is told by the model whose layers it names.
#[test]
fn faults_of_a_file_are_those_for_its_own_model() {
    let told = |keys: &[(&str, &[i64])]| {
        let read = read_with(keys, |path| LoraFile::read_any(path, None));
        read.unwrap_err().to_string()
    };
    let unet = "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_q";
    let (down, up) = (
        format!("{unet}.lora_down.weight"),
        format!("{unet}.lora_up.weight"),
    );
    let other = "lora_unet_nothing.lora_up.weight";
    let error = told(&[(&down, &[2, 3]), (&up, &[4, 2]), (other, &[4, 2])]);
    assert!(
        error.contains("`lora_unet_nothing") && error.contains("SDXL"),
        "{error}"
    );
    let error = told(&[(other, &[4, 2])]);
    for part in ["no known layer of these models", "Wan", "SDXL"] {
        assert!(error.contains(part), "{error}");
    }
    // What is wrong for all.
    assert!(told(&[("a.oft_blocks", &[2])]).contains("belongs to OFT"));
    let missing = LoraFile::read_any(Path::new("nothing.safetensors"), None);
    assert!(
        missing
            .unwrap_err()
            .to_string()
            .contains("nothing.safetensors")
    );
}

#[test]
fn other_keys_are_read_or_refused_with_the_reason() {
    for key in [
        "lora_unet__blocks_1_ffn_0",
        "lora_unet_blocks_1_ffn_net_0_proj",
        "lora_transformer_blocks_1_ffn_net_0_proj",
        "lycoris_blocks_1_ffn_net_0_proj",
        "blocks.1.ffn.0",
        "model.diffusion_model.blocks.1.ffn.0",
        "base_model.model.diffusion_model.blocks.1.ffn.0",
        "base_model.model.blocks.1.ffn.net.0.proj",
    ] {
        let (down, up) = (
            format!("{key}.lora_A.weight"),
            format!("{key}.lora_up.weight"),
        );
        let lora = with(&[(&down, &[2, 3]), (&up, &[4, 2])]).unwrap();
        let names: Vec<_> = lora.modules.keys().collect();
        assert_eq!(names, ["blocks.1.ffn.net.0.proj"], "{key}");
        assert_eq!(lora.modules["blocks.1.ffn.net.0.proj"].scale(), 1.0);
    }
    let changes = with(&[
        ("diffusion_model.blocks.0.norm3.diff", &[4]),
        ("diffusion_model.blocks.0.self_attn.q.diff_b", &[4]),
        ("diffusion_model.head.head.diff", &[4, 4]),
    ]);
    let changes: Vec<_> = changes.unwrap().differences.into_keys().collect();
    let names = [
        "blocks.0.attn1.to_q.bias",
        "blocks.0.norm2.weight",
        "proj_out.weight",
    ];
    assert_eq!(changes, names);
    for (keys, reason) in [
        (
            vec![("lora_unet_blocks_0_ffn_0.lokr_w1", &[2, 2][..])],
            "only one of the two factors of a LoKr",
        ),
        (
            vec![("lora_unet_blocks_0_ffn_0.lokr_t2", &[2, 2, 3, 3][..])],
            "a LoKr in Tucker's form",
        ),
        (
            vec![
                ("blocks.0.ffn.0.hada_w1_a", &[4, 2][..]),
                ("blocks.0.ffn.0.hada_w1_b", &[2, 3]),
            ],
            "only one of the two products of a LoHa",
        ),
        (
            vec![
                ("blocks.0.ffn.0.hada_w1_a", &[4, 2][..]),
                ("blocks.0.ffn.0.hada_w1_b", &[3, 3]),
            ],
            "which have no product",
        ),
        (
            vec![
                ("blocks.0.ffn.0.lora_A.weight", &[2, 3][..]),
                ("blocks.0.ffn.0.lora_B.weight", &[4, 2]),
                ("blocks.0.ffn.0.dora_scale", &[1, 3]),
            ],
            "only that of each of its 4 rows",
        ),
        (
            vec![("diffusion_model.blocks.0.ffn.0.dora_scale", &[2][..])],
            "has nothing that changes it",
        ),
        (
            vec![("lora_te_text_model.lora_down.weight", &[2, 2][..])],
            "belongs to a text encoder",
        ),
        (
            vec![("diffusion_model.blocks.0.ffn.9.lora_A.weight", &[2, 2][..])],
            "does not belong to a known layer",
        ),
        (vec![("something", &[2][..])], "is not a known LoRA tensor"),
        (
            vec![(
                "transformer_2.blocks.0.ffn.net.2.lora_A.weight",
                &[2, 2][..],
            )],
            "ignores this prefix",
        ),
        (
            vec![("blocks.0.ffn.0.lora_A.weight", &[2, 2][..])],
            "only one of its two",
        ),
        (
            vec![
                ("blocks.0.ffn.0.lora_A.weight", &[2, 3][..]),
                ("blocks.0.ffn.0.lora_B.weight", &[3, 4]),
            ],
            "in one matrix and",
        ),
        (
            vec![
                ("blocks.0.ffn.0.lora_A.weight", &[2, 3][..]),
                ("lora_unet_blocks_0_ffn_0.lora_down.weight", &[2, 3]),
            ],
            "a second definition",
        ),
        (
            vec![(
                "diffusion_model.transformer_1.blocks.0.ffn.0.lora_A.weight",
                &[2, 2][..],
            )],
            "both experts",
        ),
    ] {
        let error = with(&keys).unwrap_err().to_string();
        assert!(error.contains(reason), "{keys:?}: {error}");
    }
}

#[test]
fn both_experts_in_one_file_are_read_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("both.safetensors");
    let options = (Kind::Float, Device::Cpu);
    let (high, low) = (
        Tensor::ones([2, 3], options),
        Tensor::zeros([2, 3], options),
    );
    let up = Tensor::ones([3, 2], options);
    let key =
        |expert: &str, part: &str| format!("diffusion_model.{expert}.blocks.0.ffn.0.{part}.weight");
    let tensors = [
        (key("transformer_1", "lora_A"), &high),
        (key("transformer_1", "lora_B"), &up),
        (key("transformer_2", "lora_A"), &low),
        (key("transformer_2", "lora_B"), &up),
    ];
    write_tensors(&path, &tensors).unwrap();
    for (expert, expected) in [(Expert::High, &high), (Expert::Low, &low)] {
        let lora = LoraFile::read(&path, &ARCH, Some(expert)).unwrap();
        assert_eq!(
            lora.modules["blocks.0.ffn.net.0.proj"].factors().unwrap()[0],
            expected
        );
    }
}

#[test]
fn what_a_form_cannot_hold_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("x.safetensors");
    let mut partial = lora("kohya");
    partial.modules.remove("blocks.1.attn2.to_v").unwrap();
    let error = partial
        .write(&out, LoraForm::Kohya)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("blocks.1.attn2.to_v") && error.contains("comfy"),
        "{error}"
    );
    partial.write(&out, LoraForm::Comfy).unwrap();
    assert_eq!(LoraFile::read(&out, &ARCH, None).unwrap().modules.len(), 19);
    let change = Tensor::ones([4], (Kind::Float, Device::Cpu));
    partial
        .differences
        .insert("blocks.0.norm2.weight".into(), change);
    let error = partial
        .write(&out, LoraForm::Diffusers)
        .unwrap_err()
        .to_string();
    assert!(error.contains("norm2"), "{error}");
}

#[test]
fn a_lora_for_another_model_is_refused() {
    let mut other = lora("kohya");
    let module = other.modules.remove("blocks.1.ffn.net.2").unwrap();
    other.modules.insert("blocks.7.ffn.net.2".into(), module);
    let error = WithLoras::new(base(), vec![(other, 1.0)])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("blocks.7.ffn.net.2") && error.contains("does not have"),
        "{error}"
    );
    let mut other = lora("kohya");
    let module = other.modules.remove("blocks.1.ffn.net.2").unwrap();
    other
        .modules
        .insert("blocks.1.ffn.net.0.proj".into(), module);
    let error = WithLoras::new(base(), vec![(other, 1.0)])
        .unwrap_err()
        .to_string();
    assert!(error.contains("as if its shape were"), "{error}");
}

/// LoHa, LoKr and DoRA as LyCORIS writes them, of layers and convolutions, change weights as there; and through PEFT's form,
/// where it has one.
#[test]
fn files_of_lycoris_change_what_they_do_there() {
    let arch = &crate::diffusion::sdxl::ARCH;
    let read = |path: &Path| LoraFile::read(path, arch, None).unwrap();
    // LyCORIS is not among the programs of which files are made anew.
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/golden/lycoris");
    let lora = read(&kept.join("lycoris.safetensors"));
    let expected = SafetensorsFile::open(&kept.join("expected.safetensors")).unwrap();
    let weight = |name: &str| expected.read(name, Kind::Float).unwrap();
    assert_eq!(lora.modules.len() * 2, expected.names().len());
    let folder = tempfile::tempdir().unwrap();
    let forms = [LoraForm::Kohya, LoraForm::Comfy].map(|form| {
        let path = folder.path().join(format!("{form:?}.safetensors"));
        lora.write(&path, form).unwrap();
        read(&path)
    });
    for (name, module) in &lora.modules {
        let (before, after) = (
            weight(&format!("before.{name}")),
            weight(&format!("after.{name}")),
        );
        let apart = |module: &LoraModule| difference(&module.merged(&before, 1.0).unwrap(), &after);
        for module in [module, &forms[0].modules[name], &forms[1].modules[name]] {
            assert!(apart(module) <= 1e-5, "{name}: {}", apart(module));
        }
        let half = module.merged(&before, 0.5).unwrap();
        assert!(
            difference(&half, &((&before + &after) / 2.0)) <= 1e-5,
            "{name}"
        );
        // PEFT has no DoRA of LoHa and LoKr, and kinds of its own for each.
        let mut one = LoraFile::new(arch);
        one.modules.insert(name.clone(), module.shallow_clone());
        let (peft, dora) = (folder.path().join(name), module.magnitude.is_some());
        match one.write_peft(&peft) {
            // Sides of convolutions are divided otherwise there.
            _ if name.contains("resnets") => {}
            Err(error) => {
                let error = error.to_string();
                assert!(
                    dora && !module.change.is_lora() && error.contains("PEFT has no form"),
                    "{name}: {error}"
                );
            }
            Ok(()) => {
                assert!(!dora || module.change.is_lora(), "{name}");
                assert!(apart(&read(&peft).modules[name]) <= 1e-5, "{name}");
                crate::adapters::PeftAdapter::open(&peft).unwrap();
            }
        }
        let error = one.write(&folder.path().join("x"), LoraForm::Diffusers);
        let is_plain = module.change.is_lora() && !dora;
        assert_eq!(error.is_ok(), is_plain, "{name}");
    }
    let error = lora
        .write_peft(&folder.path().join("all"))
        .unwrap_err()
        .to_string();
    assert!(error.contains("several kinds"), "{error}");

    // A Kronecker product of a layer that diffusers has in parts is one of each; joined it is not.
    let klein = &crate::diffusion::flux2::ARCH;
    let random = |size: [i64; 2]| Tensor::randn(size, (Kind::Float, Device::Cpu));
    for first in [[6, 2], [4, 2]] {
        let whole = |tensor: &Tensor| tensor.shallow_clone();
        let parts = [random(first), random([24 / first[0], 4])];
        let matrix = parts[0].kron(&parts[1]);
        let path = folder.path().join("klein.safetensors");
        let name = "diffusion_model.double_blocks.0.img_attn.qkv";
        let named = ["lokr_w1", "lokr_w2"].map(|part| format!("{name}.{part}"));
        let tensors: Vec<_> = named.into_iter().zip(&parts).collect();
        write_tensors(&path, &tensors).unwrap();
        let read = |path: &Path| LoraFile::read(path, klein, None).unwrap();
        let again = folder.path().join("again.safetensors");
        read(&path).write(&again, LoraForm::Comfy).unwrap();
        let names = SafetensorsFile::open(&again).unwrap().names();
        let start = "lycoris_transformer_blocks_0_attn_to_";
        assert!(
            names.iter().all(|name| name.starts_with(start)),
            "{names:?}"
        );
        for file in [path, again] {
            let modules = read(&file).modules;
            let all = ["q", "k", "v"].map(|part| {
                let module = &modules[&format!("transformer_blocks.0.attn.to_{part}")];
                module.change.matrix().unwrap() * module.scale()
            });
            assert!(difference(&Tensor::cat(&all.each_ref().map(whole), 0), &matrix) <= 1e-5);
        }
    }
}
