//! The optimizer's parameter groups: from the config, from LoRA+, and the rule that only matrices get weight
//! decay.
//!
//! ```text
//! train.parameter_groups ──first match──▶ options of each parameter ──equal ones together──▶ ParameterGroup
//! adapter.loraplus_… ────────else────────▶
//! decay of matrices only ────else────────▶
//! ```

use regex::Regex;

use crate::Error;
use crate::config::Config;
use models::Parameters;

/// Parameters that share their options, as in PyTorch's `param_groups`.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterGroup {
    /// Learning rate as a multiple of the schedule's.
    pub learning_rate_ratio: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Indices of the parameters in [`Parameters`], in ascending order.
    pub indices: Vec<usize>,
}

impl ParameterGroup {
    /// The groups of a config without parameter groups: with and without weight decay.
    pub fn by_decay(weight_decay: f64, parameters: &Parameters) -> Vec<Self> {
        collect(&default_options(weight_decay, parameters))
    }
}

/// The groups for `config`. Every parameter is in exactly one of them.
///
/// # Errors
/// If a group's regular expression is invalid or matches no parameter: a typo would otherwise train
/// everything as if the group did not exist.
pub fn parameter_groups(
    config: &Config,
    parameters: &Parameters,
) -> Result<Vec<ParameterGroup>, Error> {
    let train = &config.train;
    let mut options = default_options(train.weight_decay, parameters);
    let adapter = config.adapter.as_ref();
    if let Some((adapter, ratio)) = adapter.and_then(|a| Some((a, a.loraplus_lr_ratio?))) {
        let of_embeddings = adapter.loraplus_lr_embedding / train.learning_rate;
        for ((rate, _), parameter) in options.iter_mut().zip(parameters.iter()) {
            // PEFT's `create_loraplus_optimizer`.
            if parameter.name.contains(".lora_embedding_") {
                *rate = of_embeddings;
            } else if parameter.name.contains(".lora_B.") || parameter.tensor.dim() == 1 {
                *rate = ratio;
            }
        }
    }
    if let Some(rate) = train.text_encoder_lr {
        for ((ratio, _), parameter) in options.iter_mut().zip(parameters.iter()) {
            if parameter.name.contains("model.text_encoder") {
                *ratio *= rate / train.learning_rate;
            }
        }
    }
    let mut has_group = vec![false; options.len()];
    for (number, group) in train.parameter_groups.iter().enumerate() {
        let key = format!("`train.parameter_groups[{number}].names`");
        let names = Regex::new(&group.names)
            .map_err(|error| Error::Data(format!("{key} is not a regular expression: {error}")))?;
        let mut is_empty = true;
        for (index, parameter) in parameters.iter().enumerate() {
            if !names.is_match(&parameter.name) {
                continue;
            }
            is_empty = false;
            if std::mem::replace(&mut has_group[index], true) {
                continue;
            }
            let (ratio, decay) = &mut options[index];
            *ratio = match group.learning_rate {
                Some(rate) => rate / train.learning_rate,
                None => *ratio,
            };
            *decay = group.weight_decay.unwrap_or(*decay);
        }
        if is_empty {
            let example = parameters.iter().next().map_or("", |p| &p.name);
            return Err(Error::Data(format!(
                "{key}: `{}` matches no parameter; the first one is `{example}`",
                group.names
            )));
        }
    }
    Ok(collect(&options))
}

/// Learning-rate ratio and weight decay of each parameter.
fn default_options(weight_decay: f64, parameters: &Parameters) -> Vec<(f64, f64)> {
    let decay = parameters.iter().map(|parameter| match parameter.decay {
        true => weight_decay,
        false => 0.0,
    });
    decay.map(|decay| (1.0, decay)).collect()
}

/// Groups equal options, ordered by their first parameter.
fn collect(options: &[(f64, f64)]) -> Vec<ParameterGroup> {
    let mut groups: Vec<ParameterGroup> = Vec::new();
    for (index, &(learning_rate_ratio, weight_decay)) in options.iter().enumerate() {
        let same = |group: &&mut ParameterGroup| {
            (group.learning_rate_ratio, group.weight_decay) == (learning_rate_ratio, weight_decay)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.indices.push(index),
            None => groups.push(ParameterGroup {
                learning_rate_ratio,
                weight_decay,
                indices: vec![index],
            }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;
    use crate::optim::{Gradients, Optimizer};

    const NAMES: [&str; 4] = [
        "layers.0.q_proj.lora_A.weight",
        "layers.0.q_proj.lora_B.weight",
        "layers.0.norm.weight",
        "embed.weight",
    ];

    fn parameters() -> Parameters {
        let mut parameters = Parameters::default();
        for name in NAMES {
            let tensor = Tensor::ones([2, 2], (Kind::Float, Device::Cpu));
            let decay = !name.contains("norm");
            let _ = parameters.register(name, &tensor, decay).unwrap();
        }
        parameters
    }

    /// Learning-rate ratio and weight decay of each parameter.
    fn of(yaml: &str) -> Result<Vec<(f64, f64)>, Error> {
        let text = format!("data: {{dataset: shakespeare}}\n{yaml}");
        let config = Config::parse("test.yaml", &text, &[]).unwrap();
        let groups = parameter_groups(&config, &parameters())?;
        let options = (0..NAMES.len()).map(|index| {
            let mut of_index = groups.iter().filter(|group| group.indices.contains(&index));
            let group = of_index.next().unwrap();
            assert!(of_index.next().is_none(), "{index} is in two groups");
            (group.learning_rate_ratio, group.weight_decay)
        });
        Ok(options.collect())
    }

    #[test]
    fn matrices_decay_and_norms_do_not() {
        let got = of("train: {weight_decay: 0.1}").unwrap();
        assert_eq!(got, [(1.0, 0.1), (1.0, 0.1), (1.0, 0.0), (1.0, 0.1)]);
    }

    #[test]
    fn lora_plus_speeds_up_b() {
        let got = of("model: {name_or_path: m}\nadapter: {loraplus_lr_ratio: 16}").unwrap();
        let ratios: Vec<f64> = got.iter().map(|(ratio, _)| *ratio).collect();
        assert_eq!(ratios, [1.0, 16.0, 1.0, 1.0]);
    }

    /// Like PEFT's `create_loraplus_optimizer`.
    #[test]
    fn lora_plus_has_its_own_rate_for_embeddings_and_speeds_up_vectors() {
        let mut parameters = Parameters::default();
        for (name, size) in [
            ("embed_tokens.lora_embedding_A", &[2i64, 2][..]),
            ("embed_tokens.lora_embedding_B", &[2, 2]),
            ("embed_tokens.lora_magnitude_vector", &[2]),
            ("q_proj.base_layer.bias", &[2]),
            ("lm_head.weight", &[2, 2]),
        ] {
            let tensor = Tensor::ones(size, (Kind::Float, Device::Cpu));
            let _ = parameters.register(name, &tensor, true).unwrap();
        }
        let yaml = "model: {name_or_path: m}\ndata: {dataset: shakespeare}\n\
                    train: {learning_rate: 0.001}\n\
                    adapter: {loraplus_lr_ratio: 16, loraplus_lr_embedding: 0.00002}";
        let config = Config::parse("test.yaml", yaml, &[]).unwrap();
        let groups = parameter_groups(&config, &parameters).unwrap();
        for (ratio, indices) in [(0.02, vec![0, 1]), (16.0, vec![2, 3]), (1.0, vec![4])] {
            let found = groups.iter().find(|group| group.indices == indices);
            let found = found.unwrap().learning_rate_ratio;
            assert!((found - ratio).abs() < 1e-9, "{found} for {indices:?}");
        }
    }

    #[test]
    fn the_first_group_that_matches_counts() {
        let yaml = "train: {learning_rate: 0.001, weight_decay: 0.1, parameter_groups: \
                    [{names: norm|embed, learning_rate: 0.0005}, {names: weight, weight_decay: 0.2}]}";
        let got = of(yaml).unwrap();
        assert_eq!(got, [(1.0, 0.2), (1.0, 0.2), (0.5, 0.0), (0.5, 0.1)]);
    }

    #[test]
    fn a_group_of_nothing_and_a_broken_expression_are_refused() {
        let refused = |names: &str| {
            let yaml = format!("train: {{parameter_groups: [{{names: '{names}'}}]}}");
            of(&yaml).unwrap_err().to_string()
        };
        assert!(refused("lora_C").contains("`lora_C` matches no parameter"));
        assert!(refused("(").contains("`train.parameter_groups[0].names` is not a regular"));
    }

    #[test]
    fn a_group_learns_at_its_own_rate() {
        let parameters = parameters();
        let groups = collect(&[1.0, 16.0, 0.0, 1.0].map(|ratio| (ratio, 0.0)));
        let settings = (&crate::config::TrainConfig::default()).into();
        let mut optimizer = Optimizer::with_groups(settings, groups, &parameters).unwrap();
        let mut gradients = Gradients::default();
        let sum = parameters
            .tensors()
            .fold(Tensor::from(0.0f32), |sum, tensor| {
                sum + tensor.sum(Kind::Float)
            });
        gradients.accumulate(&sum, &parameters).unwrap();
        optimizer.step(&gradients, 0.01).unwrap();
        // Adam's first step is as large as the learning rate, whatever the gradient.
        for (tensor, change) in parameters.tensors().zip([0.01, 0.16, 0.0, 0.01]) {
            let now = tensor.double_value(&[0, 0]);
            assert!((1.0 - now - change).abs() < 1e-5, "{now} after {change}");
        }
    }
}
