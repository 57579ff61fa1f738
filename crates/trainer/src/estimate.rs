//! Estimates the memory of a training step before the first one.
//!
//! What is already in memory (weights, moments, averages) is counted; what a step adds is derived from the
//! model's shapes: the tensors that autograd keeps for the backward pass, layer by layer, and the
//! intermediate results of the loss when all of those exist. The summary of every run shows how far off the
//! estimate was, if the allocator keeps statistics.
//!
//! ```text
//! weights │ optimizer │ averages │ gradients so far │ activations │ logits     end of forward
//! weights │ optimizer │ averages │ all gradients                               end of backward
//! ```

mod mixer;

use platform::Bytes;
use serde::Serialize;
use tch::{Device, Kind};

use crate::config::Config;
use mixer::Mixer;
use models::Parameters;
use models::language::{DecoderConfig, Mixture, logits_at_once};
use models::model::AttentionPath;
use models::quant::Quantization;

/// Bytes of an fp32 element.
const FP32_BYTES: u64 = 4;
/// Numbers of experts that are dequantised at a time.
const EXPERTS_AT_A_TIME: u64 = 1 << 24;

/// What a task needs besides gradients, moments and averages. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// The whole model, trained or not.
    pub weights: u64,
    /// What a forward pass keeps for its backward pass.
    pub activations: u64,
    /// The peak of what the loss, or the backward pass of one block, needs in addition.
    pub logits: u64,
}

/// Estimated memory of a run's tensors, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// The model's weights.
    pub weights: u64,
    /// The optimizer's moments.
    pub optimizer: u64,
    /// Averaged weights.
    pub averages: u64,
    /// Gradients of all trained parameters.
    pub gradients: u64,
    /// What a forward pass keeps for its backward pass.
    pub activations: u64,
    /// What the loss needs in addition.
    pub logits: u64,
    /// Peak of the total.
    pub peak: u64,
    /// Bytes that could still be allocated before the first step, if known.
    pub free: Option<u64>,
}

/// The accuracy of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EstimateError {
    /// Peak bytes of tensors during a step.
    pub measured: u64,
    /// `estimated / measured - 1`.
    pub relative: f64,
}

impl Estimate {
    /// For a task whose model, `optimizer` bytes of moments and averages are already in memory; a step of the optimizer
    /// needs `update` bytes more.
    pub(crate) fn new(
        config: &Config,
        footprint: Footprint,
        parameters: &Parameters,
        (optimizer, update): (u64, u64),
        free: Option<u64>,
    ) -> Self {
        let trained = parameters.count() * FP32_BYTES;
        let averages = u64::from(config.train.ema_decay.is_some()) * trained;
        let several = config.train.gradient_accumulation_steps > 1;
        // Gradients of earlier passes exist during the next forward pass.
        let so_far = if several { trained } else { 0 };
        let Footprint {
            weights,
            activations,
            logits,
        } = footprint;
        let resting = weights + optimizer + averages;
        let forward = so_far + activations + logits;
        Self {
            weights,
            optimizer,
            averages,
            gradients: trained,
            activations,
            logits,
            peak: resting + forward.max(so_far + trained).max(trained + update),
            free,
        }
    }

    /// What the steps still have to allocate.
    pub fn to_come(&self) -> u64 {
        self.peak - self.weights - self.optimizer - self.averages
    }

    /// Whether it fits into the free memory; true if that is unknown.
    pub fn fits(&self) -> bool {
        self.free.is_none_or(|free| self.to_come() <= free)
    }

    /// The estimate compared with a measurement.
    pub fn error(&self, measured: u64) -> EstimateError {
        EstimateError {
            measured,
            relative: self.peak as f64 / measured.max(1) as f64 - 1.0,
        }
    }

    /// One line: `1.12 GiB expected (weights 513 MiB, …)`.
    pub fn describe(&self) -> String {
        let parts = [
            ("weights", self.weights),
            ("optimizer", self.optimizer),
            ("averages", self.averages),
            ("gradients", self.gradients),
            ("activations", self.activations),
            ("logits", self.logits),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(_, size)| *size > 0)
            .map(|(name, size)| format!("{name} {}", Bytes(*size)))
            .collect();
        let free = self
            .free
            .map_or(String::new(), |free| format!("; {} are free", Bytes(free)));
        format!("{} expected ({}){free}", Bytes(self.peak), parts.join(", "))
    }

    /// What to change if it does not fit, most effective first.
    pub fn advice(&self, config: &Config) -> Vec<&'static str> {
        let train = &config.train;
        let mut advice: Vec<(u64, &'static str)> = Vec::new();
        if config.model.name_or_path.is_some() && !train.gradient_checkpointing {
            advice.push((
                self.activations,
                "`train.gradient_checkpointing: true` keeps one tensor of each block",
            ));
        }
        if train.per_device_train_batch_size > 1 {
            advice.push((
                self.activations / 2,
                "a smaller `train.per_device_train_batch_size` with as much more \
                 `train.gradient_accumulation_steps` learns the same",
            ));
        } else {
            let shorter = match config.is_video() {
                true => "a smaller `data.resolution` or `data.num_frames` makes shorter sequences",
                false => "a smaller `data.block_size` makes shorter sequences",
            };
            advice.push((self.activations / 2, shorter));
        }
        if config.adapter.is_some() && config.model.quantization.is_none() {
            advice.push((
                self.weights / 2,
                "`model.quantization: nf4` keeps the frozen weights in four bits",
            ));
        }
        if config.adapter.is_some() && config.model.offload_options().is_none() {
            advice.push((
                self.weights / 4 * 3,
                "`model.offload: all` streams the frozen blocks through a small ring",
            ));
        }
        if config.adapter.is_none() && config.model.name_or_path.is_some() {
            advice.push((
                self.weights + self.gradients,
                "an `adapter:` trains a small part of the model",
            ));
        }
        if train.optim.is_plain_adamw() {
            advice.push((
                self.optimizer / 4 * 3,
                "`train.optim: adamw_8bit` keeps the optimizer in a quarter",
            ));
        }
        advice.sort_by_key(|(saved, _)| std::cmp::Reverse(*saved));
        advice.into_iter().map(|(_, text)| text).collect()
    }
}

/// How a decoder is trained, as far as memory depends on it.
#[derive(Debug, Clone)]
pub(crate) struct DecoderUse {
    /// Samples per pass.
    pub rows: u64,
    /// Tokens per sample.
    pub length: u64,
    /// Whether an attention mask separates the texts of a row.
    pub packed: bool,
    /// The type of matrix products.
    pub compute: Kind,
    /// The type of the adapters' products.
    pub adapters: Kind,
    /// The type of frozen matrices; `None` if all are trained.
    pub frozen: Option<Kind>,
    /// How those are stored, if they are quantised.
    pub quantization: Option<Quantization>,
    /// Device of the computation.
    pub device: Device,
    /// Whether blocks are recomputed in the backward pass.
    pub checkpoint: bool,
    /// Blocks that are always recomputed, because they are streamed.
    pub streamed: Vec<usize>,
    /// Whether the inputs of recomputed blocks are offloaded.
    pub offload: bool,
    /// Dropout probability of the adapters.
    pub dropout: f64,
    /// Whether all logits are computed at once.
    pub whole_logits: bool,
    /// Which kernel attention runs.
    pub attention: AttentionPath,
}

/// The footprint of training this decoder, with `frozen` bytes of frozen weights in memory.
pub(crate) fn decoder(
    config: &DecoderConfig,
    parameters: &Parameters,
    frozen: u64,
    how: &DecoderUse,
) -> Footprint {
    let shape = Shape::new(config);
    let layers = config.num_hidden_layers.max(1) as u64;
    let tokens = how.rows * how.length;
    let stream = tokens * shape.hidden * FP32_BYTES;
    // For recomputed blocks the inputs are kept, and the activations of one block after the logits are freed.
    let (mut activations, mut inputs, mut inside) = (0, 0, 0);
    for layer in 0..layers {
        let adapters = Adapters::of(layer, parameters);
        let half = size_of_kind(how.compute) < FP32_BYTES;
        let same = how.adapters == how.compute;
        let keeps_output = how.frozen.is_none() || ((!half || same) && adapters.inputs[1]);
        let mixer = Mixer::of(config, layer as usize, keeps_output, how);
        let feed_forward = shape.feed_forward(layer as usize);
        let kept = shape.kept(tokens, &adapters, (&mixer, feed_forward), how);
        if how.checkpoint || how.streamed.contains(&(layer as usize)) {
            inputs += 1;
            inside = kept.max(inside);
        } else {
            activations += kept;
        }
    }
    // One is on the device while in use, another while it is copied.
    let inputs = if how.offload { inputs.min(2) } else { inputs };
    // All layers with the same window share one mask, and without packing, all rows.
    let square = how.length * how.length * size_of_kind(how.compute);
    let mask = match (how.packed, &config.local) {
        _ if how.attention.scores.is_none() => 0,
        (true, None) => how.rows * square,
        (true, Some(_)) => 2 * how.rows * square,
        (false, Some(local)) if local.window < how.length as i64 => square,
        (false, _) => 0,
    };
    let activations = activations + inputs * stream + inside + mask;
    // If scores are materialised, their gradients are too, after the logits are freed.
    let scores = how.attention.scores.map_or(0, |kind| {
        2 * tokens * shape.heads * how.length * size_of_kind(kind)
    });
    let logits = shape.logits(tokens, how, Head::of(parameters));
    // The norm before the head, and the gradient of the residual stream.
    Footprint {
        weights: frozen + parameters.count() * FP32_BYTES,
        activations: activations + 3 * stream,
        logits: logits.saturating_sub(inside).max(scores).max(
            shape.prepared(how)
                + shape
                    .assigned(tokens, how)
                    .max(Mixer::chunks(config, tokens)),
        ),
    }
}

/// How the head is trained.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    Frozen,
    Adapted,
    Whole,
}

impl Head {
    fn of(parameters: &Parameters) -> Self {
        let names = || parameters.iter().map(|parameter| &parameter.name);
        if names().any(|name| name.ends_with("lm_head.weight")) {
            Self::Whole
        } else if names().any(|name| name.contains("lm_head.lora_")) {
            Self::Adapted
        } else {
            Self::Frozen
        }
    }
}

/// The decoder's dimensions.
struct Shape<'a> {
    vocabulary: u64,
    hidden: u64,
    inner: u64,
    heads: u64,
    query: u64,
    key_value: u64,
    /// The widest input or output of the mixers' matrices.
    mixed: u64,
    /// Number of norms in a layer.
    norms: u64,
    /// Whether layers with the same input are one matrix.
    fused: bool,
    experts: Option<&'a Mixture>,
}

/// The feed-forward layer of a block.
#[derive(Clone, Copy)]
struct FeedForward {
    /// Width of what a token goes through, of all its experts together.
    inner: u64,
    /// Elements of its matrices.
    matrices: u64,
    /// Number of experts of a token, and of all; zero without any.
    experts: (u64, u64),
}

/// The adapters on one layer.
#[derive(Default)]
struct Adapters {
    /// Whether the input of q, k, v; of o; of gate, up; of down is kept for an adapter.
    inputs: [bool; 4],
    /// Sum of the ranks.
    ranks: u64,
    /// Sum of the input widths.
    widths: u64,
    /// Sum of the output widths of layers with DoRA.
    magnitudes: u64,
}

impl Adapters {
    fn of(layer: u64, parameters: &Parameters) -> Self {
        const INPUTS: [(&str, usize); 12] = [
            ("in_proj_qkv", 0),
            ("in_proj_z", 0),
            ("in_proj_a", 0),
            ("in_proj_b", 0),
            ("out_proj", 1),
            ("q_proj", 0),
            ("k_proj", 0),
            ("v_proj", 0),
            ("o_proj", 1),
            ("gate_proj", 2),
            ("up_proj", 2),
            ("down_proj", 3),
        ];
        let mut found = Self::default();
        let of_layer = format!(".layers.{layer}.");
        for parameter in parameters.iter().filter(|p| p.name.contains(&of_layer)) {
            let size = parameter.tensor.size();
            let whole = |name: &str| parameter.name.ends_with(&format!("{name}.weight"));
            if let Some((_, input)) = INPUTS.iter().find(|(name, _)| whole(name)) {
                // A layer that is trained in full keeps its input, like an adapter.
                found.inputs[*input] = true;
            } else if parameter.name.contains("lora_A") {
                found.ranks += size[0] as u64;
                found.widths += size.get(1).map_or(0, |width| *width as u64);
                for (_, input) in INPUTS.iter().filter(|(n, _)| parameter.name.contains(n)) {
                    found.inputs[*input] = true;
                }
            } else if parameter.name.contains("lora_magnitude") {
                found.magnitudes += size[0] as u64;
            }
        }
        found
    }
}

impl<'a> Shape<'a> {
    fn new(config: &'a DecoderConfig) -> Self {
        let width = |number: i64| number.max(0) as u64;
        let head = width(config.head_dim);
        let queries = width(config.num_attention_heads) * head * if config.gated { 2 } else { 1 };
        let channels = config
            .delta
            .as_ref()
            .map_or(0, |delta| width(delta.channels()));
        Self {
            mixed: queries.max(channels),
            vocabulary: width(config.vocab_size),
            hidden: width(config.hidden_size),
            inner: width(config.intermediate_size),
            heads: width(config.num_attention_heads),
            query: width(config.num_attention_heads) * head,
            key_value: width(config.num_key_value_heads) * head,
            norms: config.norms() as u64,
            fused: config.fused,
            experts: config.experts.as_ref(),
        }
    }

    /// The feed-forward layer of block `index`.
    fn feed_forward(&self, index: usize) -> FeedForward {
        match self.experts.filter(|experts| experts.is_in(index)) {
            None => FeedForward {
                inner: self.inner,
                matrices: 3 * self.hidden * self.inner,
                experts: (0, 0),
            },
            Some(experts) => {
                let number = |number: i64| number.max(0) as u64;
                let (used, all) = (number(experts.used), number(experts.count));
                let width = number(experts.width);
                FeedForward {
                    inner: used * width,
                    matrices: all * 3 * self.hidden * width,
                    experts: (used, all),
                }
            }
        }
    }

    /// Bytes that one layer keeps for its backward pass.
    fn kept(
        &self,
        tokens: u64,
        adapters: &Adapters,
        (mixer, feed_forward): (&Mixer, FeedForward),
        how: &DecoderUse,
    ) -> u64 {
        let FeedForward {
            inner,
            matrices,
            experts: (used, all),
        } = feed_forward;
        let compute = size_of_kind(how.compute);
        let trained = how.frozen.is_none();
        let half = compute < FP32_BYTES;
        // The residual stream before each norm; a trained norm also keeps the normalised input.
        let mut each = self.norms * self.hidden * FP32_BYTES * if trained { 2 } else { 1 };
        // Inputs of the matrices. Trained matrices each keep their own copy if it had to be converted;
        // adapters share one.
        let (users, assigned) = match used {
            0 => ([mixer.users, 1, 2, 1], self.hidden),
            // The rows of experts are gathered once for gate and up.
            _ => ([mixer.users, 1, 1, 1], used * self.hidden),
        };
        let widths = [self.hidden, mixer.output, assigned, inner];
        for ((width, users), adapted) in widths.into_iter().zip(users).zip(adapters.inputs) {
            each += match (trained, half, adapted) {
                (true, true, _) => users * width * compute,
                (true, false, _) => width * FP32_BYTES,
                (false, _, true) => width * size_of_kind(how.adapters),
                (false, _, false) => 0,
            };
        }
        each += mixer.kept;
        // Gate, its activation, and the gated product.
        each += 3 * inner * compute;
        if used > 0 {
            // What experts give, for the gradient of their weights; the router's probabilities; and the order of rows.
            each += used * self.hidden * compute + all * FP32_BYTES + used * 3 * 8;
        }
        each += adapters.ranks * FP32_BYTES + adapters.magnitudes * FP32_BYTES;
        if how.dropout > 0.0 {
            // The input after dropout, and the mask.
            each += adapters.widths * (FP32_BYTES + 1);
        }
        // Weights are converted to the compute type in each pass.
        let converted = match trained && half {
            true => (mixer.matrices + matrices) * compute,
            false => 0,
        };
        tokens * each + converted
    }

    /// The temporary memory in which the largest quantised matrix is prepared for a product.
    fn prepared(&self, how: &DecoderUse) -> u64 {
        let inputs = match self.fused {
            false => self.inner.max(self.mixed).max(self.hidden),
            true => (2 * self.inner).max(self.query + 2 * self.key_value),
        };
        // Experts are dequantised a few at a time.
        let experts = self.experts.map_or(0, |experts| {
            let one = 2 * self.hidden * experts.width.max(0) as u64;
            (one * experts.count.max(0) as u64).min(one.max(EXPERTS_AT_A_TIME))
        });
        how.quantization.map_or(0, |quantization| {
            let one = quantization.temporary(how.compute, how.device) * self.hidden * inputs;
            // Experts are scaled in fp32 in either form.
            one.max((FP32_BYTES + size_of_kind(how.compute)) * experts)
        })
    }

    /// The temporary memory for the rows of experts: in the order of tokens and in that of experts, and what comes out.
    fn assigned(&self, tokens: u64, how: &DecoderUse) -> u64 {
        let used = self.experts.map_or(0, |experts| experts.used.max(0) as u64);
        3 * tokens * used * self.hidden * size_of_kind(how.compute)
    }

    /// Peak of the logits, their logarithms, and the gradient of either.
    fn logits(&self, tokens: u64, how: &DecoderUse, learns: Head) -> u64 {
        let all = tokens * self.vocabulary;
        let head = self.vocabulary * self.hidden;
        let converted = match size_of_kind(how.compute) < FP32_BYTES && how.frozen.is_none() {
            true => head * size_of_kind(how.compute),
            false => 0,
        };
        if how.whole_logits {
            return 3 * all * FP32_BYTES + head * FP32_BYTES + converted;
        }
        let part = all.min(logits_at_once(how.device) as u64);
        match how.frozen {
            // Two tensors per chunk, and the gradient of the residual stream.
            Some(_) if learns == Head::Frozen => {
                2 * part * FP32_BYTES + tokens * self.hidden * FP32_BYTES
            }
            // Chunks are recomputed in the backward pass: logits, logarithms and gradients, and for a head
            // that is trained in full its weight in the compute type.
            Some(_) => {
                let whole = match learns == Head::Whole {
                    true => head * (FP32_BYTES + size_of_kind(how.compute)),
                    false => 0,
                };
                4 * part * FP32_BYTES + tokens * self.hidden * FP32_BYTES + whole
            }
            // The log-probabilities of a single chunk are kept, those of several recomputed.
            None => {
                let several = u64::from(part < all);
                (3 + several) * part * FP32_BYTES + head * FP32_BYTES + converted
            }
        }
    }
}

fn size_of_kind(kind: Kind) -> u64 {
    kind.elt_size_in_bytes() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(free: Option<u64>) -> Estimate {
        let footprint = Footprint {
            weights: 100,
            activations: 50,
            logits: 25,
        };
        let config = Config::default();
        Estimate::new(&config, footprint, &Parameters::default(), (10, 0), free)
    }

    #[test]
    fn the_peak_is_all_that_is_there_at_once() {
        let estimate = estimate(None);
        assert_eq!((estimate.peak, estimate.to_come()), (185, 75));
        assert_eq!(estimate.error(370).relative, -0.5);
    }

    #[test]
    fn only_what_is_still_to_come_has_to_fit() {
        assert!(estimate(Some(75)).fits());
        assert!(!estimate(Some(74)).fits());
        assert!(estimate(None).fits());
    }

    #[test]
    fn advice_names_what_saves_most_first_and_nothing_that_is_on_already() {
        let mut config = Config::default();
        config.model.name_or_path = Some("model".into());
        let mut estimate = estimate(Some(0));
        estimate.activations = 1000;
        let advice = estimate.advice(&config);
        assert!(advice[0].contains("gradient_checkpointing"), "{advice:?}");
        config.train.gradient_checkpointing = true;
        let advice = estimate.advice(&config);
        assert!(!advice.iter().any(|text| text.contains("checkpointing")));
    }
}
