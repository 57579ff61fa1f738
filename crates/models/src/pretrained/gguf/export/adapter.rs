//! Writes a LoRA as a GGUF file, which llama.cpp adds to its base when it loads both.
//!
//! Its factors are those of the matrices as llama.cpp stores them: what is done there to a matrix's rows is done to `B`, and
//! what is done to its columns to `A`. The file has one alpha, so that all other scales are in `B`.

use std::path::Path;

use tch::{Device, Kind, Tensor};

use super::super::delta::Change;
use super::super::{gguf_name, permuted_heads};
use super::interleaved;
use crate::Error;
use crate::adapters::{
    AdapterType, Attachment, Biases, Change as Adapted, EMBEDDING, HEAD, LoraLayer, PeftAdapter,
};
use crate::formats::LazyTensor;
use crate::formats::gguf::{Format, GgufTensor, GgufWriter, Value};
use crate::language::{self, DecoderConfig};
use crate::parameters::Parameters;
use crate::pretrained::slices::expert;
use crate::pretrained::{Pretrained, names_used};
use crate::weight::Weight;

/// Writes `adapter`, which belongs to `model`, as the file `path`; `name` is its `general.name`.
///
/// # Errors
/// If it has something that such a file cannot say, does not belong to the model, or cannot be written.
pub fn export_adapter(
    model: &Pretrained,
    adapter: &PeftAdapter,
    name: &str,
    path: &Path,
) -> Result<(), Error> {
    let refuse = |what: &str| {
        adapter.error(format!(
            "{what} no form in a GGUF file of an adapter: leave out `--adapter-only`, which merges it into its base"
        ))
    };
    let (lora, config) = (adapter.config(), &model.config);
    let kind = format!("a {} has", lora.kind.name());
    for (is_set, what) in [
        (lora.kind != AdapterType::Lora, kind.as_str()),
        (lora.dora, "DoRA has"),
        (!lora.modules_to_save.is_empty(), "`modules_to_save` has"),
        (lora.bias != Biases::None, "`bias` has"),
    ] {
        if is_set {
            return Err(refuse(what));
        }
    }
    let family = config.family;
    let rules = family.gguf.as_ref();
    let rules =
        rules.ok_or_else(|| refuse(&format!("an adapter of `{}` has", family.model_type)))?;
    let alpha = if lora.alpha > 0.0 { lora.alpha } else { 1.0 };
    let mut attachment = Attachment::saved(adapter.clone())?;
    if config.tie_word_embeddings && attachment.changes(HEAD)? {
        return Err(refuse(
            "a head that shares its weight with the embedding has",
        ));
    }
    let mut parameters = Parameters::default();
    let mut tensors = Vec::new();
    let mut experts = String::new();
    for name in names_used(config)? {
        if let Some((all, ..)) = expert(&name) {
            if experts != all {
                experts = all.to_owned();
                let of_layer = (rules, config, all);
                tensors.extend(of_experts(of_layer, alpha, &mut attachment)?);
            }
            continue;
        }
        let shape = model.tensors.shape(&name).unwrap_or_default();
        let module = name.strip_suffix(".weight").filter(|_| shape.len() == 2);
        let Some(module) = module else { continue };
        // Only its shape matters.
        let weight = Tensor::f_zeros([1, 1], (Kind::Float, Device::Cpu))?;
        let weight = weight.f_expand(&shape, false)?;
        if [EMBEDDING, HEAD].contains(&module)
            && let Some(own) = attachment.table(module, &shape, None)?
            && own != model.tensors.read(&name, Kind::Float)?
        {
            return Err(refuse(&format!("a `{module}` of its own has")));
        }
        let layer = match module {
            EMBEDDING => attachment.attach_embedding(module, &weight, &mut parameters)?,
            _ => {
                let weight = Weight::Dense(weight);
                attachment.attach(module, &weight, Device::Cpu, &mut parameters)?
            }
        };
        let Some(LoraLayer {
            change: Adapted::Lora { a, b },
            scaling,
            ..
        }) = layer
        else {
            continue;
        };
        let theirs = gguf_name(rules, &name).ok_or_else(|| refuse(&format!("`{module}` has")))?;
        let (mut a, mut b) = (a.f_detach()?, b.f_detach()?);
        let heads = permuted_heads(config, &theirs).filter(|_| rules.interleaved);
        if let Some(heads) = heads {
            b = interleaved(&b, heads)?;
        }
        [a, b] = Change::of(config, &name).apply_to_factors([a, b])?;
        let rank = b.size().last().copied().unwrap_or(1) as f64;
        b = b.f_mul_scalar(scaling * rank / alpha)?;
        if module == EMBEDDING {
            // Rows are looked up in it.
            a = a.f_tr()?;
        }
        tensors.extend(factors(&theirs, [a, b])?);
    }
    attachment.finish()?;
    let text = |text: &str| Value::String(text.to_owned());
    let metadata = [
        ("general.architecture".to_owned(), text(rules.architecture)),
        ("general.type".into(), text("adapter")),
        ("general.name".into(), text(name)),
        ("general.file_type".into(), Value::Unsigned(0)),
        ("adapter.type".into(), text("lora")),
        ("adapter.lora.alpha".into(), Value::Float(alpha)),
    ];
    GgufWriter::new(&metadata, tensors)?.write(path)
}

/// The factors for the matrix `theirs`.
fn factors(theirs: &str, [a, b]: [Tensor; 2]) -> Result<[GgufTensor<'static>; 2], Error> {
    let tensor = |factor: &str, tensor: &Tensor| -> Result<_, Error> {
        Ok(GgufTensor {
            name: format!("{theirs}.{factor}"),
            format: Format::F32,
            tensor: LazyTensor::ready(&tensor.f_contiguous()?),
        })
    };
    Ok([tensor("lora_a", &a)?, tensor("lora_b", &b)?])
}

/// The factors for the experts `all` of a layer: those of each expert one after the other, as their matrices are there. Gate
/// and up, which have an `A` together, may be apart there.
fn of_experts(
    (rules, config, all): (&language::Gguf, &DecoderConfig, &str),
    alpha: f64,
    attachment: &mut Attachment,
) -> Result<Vec<GgufTensor<'static>>, Error> {
    let Some(mixture) = &config.experts else {
        return Ok(Vec::new());
    };
    let sizes = mixture.sizes(config.hidden_size);
    let parameters = &mut Parameters::default();
    let [gate_up, down] = attachment.attach_experts(all, &sizes, Device::Cpu, parameters)?;
    let (inner, hidden) = (sizes.inner, sizes.hidden);
    let mut tensors = Vec::new();
    for (adapter, part, start, rows) in [
        (&gate_up, "gate_up_proj", 0, 2 * inner),
        (&gate_up, "gate_proj", 0, inner),
        (&gate_up, "up_proj", inner, inner),
        (&down, "down_proj", 0, hidden),
    ] {
        let Some(adapter) = adapter else { continue };
        // They are one or two there.
        let theirs = gguf_name(rules, &format!("{all}.{part}.weight"));
        let Some(theirs) = theirs else { continue };
        let [a, b] = adapter.factors(Kind::Float)?;
        let scale = adapter.scaling() * adapter.rank() as f64 / alpha;
        let b = b
            .f_detach()?
            .f_narrow(1, start, rows)?
            .f_mul_scalar(scale)?;
        tensors.extend(factors(&theirs, [a.f_detach()?, b])?);
    }
    Ok(tensors)
}
