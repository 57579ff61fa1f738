//! How each parameter is trained: groups from the config, LoRA+, and the usual rule.
//!
//! ```text
//! train.parameter_groups ──first match──▶ Treatment of each parameter ──alike──▶ the optimizer's groups
//! adapter.loraplus_lr_ratio ──else───────▶
//! decay of matrices only ────else────────▶
//! ```

use regex::Regex;

use crate::Error;
use crate::config::Config;
use crate::model::Parameters;

/// How one parameter is trained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Treatment {
    /// Its learning rate in units of the schedule's.
    pub learning_rate_ratio: f64,
    /// Its decoupled weight decay.
    pub weight_decay: f64,
}

impl Treatment {
    /// What every parameter gets that the config does not single out: the matrices decay.
    pub fn usual(weight_decay: f64, parameters: &Parameters) -> Vec<Self> {
        let treatment = |decay| Self {
            learning_rate_ratio: 1.0,
            weight_decay: if decay { weight_decay } else { 0.0 },
        };
        let decays = parameters.iter().map(|parameter| parameter.decay);
        decays.map(treatment).collect()
    }
}

/// The treatment of each of `parameters`, in their order.
///
/// # Errors
/// When a group's expression cannot be read, or it has no parameter: a typing error would
/// otherwise train everything as if the group were not there.
pub fn treatments(config: &Config, parameters: &Parameters) -> Result<Vec<Treatment>, Error> {
    let train = &config.train;
    let mut treatments = Treatment::usual(train.weight_decay, parameters);
    let ratio = config.adapter.as_ref().and_then(|a| a.loraplus_lr_ratio);
    if let Some(ratio) = ratio {
        for (treatment, parameter) in treatments.iter_mut().zip(parameters.iter()) {
            if parameter.name.contains(".lora_B.") {
                treatment.learning_rate_ratio = ratio;
            }
        }
    }
    let mut taken = vec![false; treatments.len()];
    for (number, group) in train.parameter_groups.iter().enumerate() {
        let key = format!("`train.parameter_groups[{number}].names`");
        let names = Regex::new(&group.names)
            .map_err(|error| Error::Data(format!("{key} is no regular expression: {error}")))?;
        let mut found = false;
        for (index, parameter) in parameters.iter().enumerate() {
            if !names.is_match(&parameter.name) {
                continue;
            }
            found = true;
            if std::mem::replace(&mut taken[index], true) {
                continue;
            }
            let treatment = &mut treatments[index];
            if let Some(rate) = group.learning_rate {
                treatment.learning_rate_ratio = rate / train.learning_rate;
            }
            if let Some(decay) = group.weight_decay {
                treatment.weight_decay = decay;
            }
        }
        if !found {
            let example = parameters.iter().next().map_or("", |p| &p.name);
            return Err(Error::Data(format!(
                "{key}: `{}` is in the name of no parameter; the first of them is `{example}`",
                group.names
            )));
        }
    }
    Ok(treatments)
}

/// The positions of equal treatments together, in the order of their first.
pub(super) fn alike(treatments: &[Treatment]) -> Vec<(Treatment, Vec<usize>)> {
    let mut groups: Vec<(Treatment, Vec<usize>)> = Vec::new();
    for (index, treatment) in treatments.iter().enumerate() {
        match groups.iter_mut().find(|(known, _)| known == treatment) {
            Some((_, indices)) => indices.push(index),
            None => groups.push((*treatment, vec![index])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;
    use crate::optim::{AdamW, Gradients};

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

    fn of(yaml: &str) -> Result<Vec<(f64, f64)>, Error> {
        let text = format!("data: {{dataset: shakespeare}}\n{yaml}");
        let config = Config::parse("test.yaml", &text, &[]).unwrap();
        let list = treatments(&config, &parameters())?;
        Ok(list
            .iter()
            .map(|t| (t.learning_rate_ratio, t.weight_decay))
            .collect())
    }

    #[test]
    fn matrices_decay_and_norms_do_not() {
        let got = of("train: {weight_decay: 0.1}").unwrap();
        assert_eq!(got, [(1.0, 0.1), (1.0, 0.1), (1.0, 0.0), (1.0, 0.1)]);
    }

    #[test]
    fn lora_plus_speeds_up_b() {
        let got = of("model: {name_or_path: m}\nadapter: {loraplus_lr_ratio: 16}").unwrap();
        assert_eq!(got.map_ratio(), [1.0, 16.0, 1.0, 1.0]);
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
        assert!(refused("lora_C").contains("`lora_C` is in the name of no parameter"));
        assert!(refused("(").contains("`train.parameter_groups[0].names` is no regular"));
    }

    #[test]
    fn a_group_learns_at_its_own_rate() {
        let parameters = parameters();
        let ratios = [1.0, 16.0, 0.0, 1.0].map(|learning_rate_ratio| Treatment {
            learning_rate_ratio,
            weight_decay: 0.0,
        });
        let settings = (&crate::config::TrainConfig::default()).into();
        let mut optimizer = AdamW::with_treatments(settings, &ratios, &parameters).unwrap();
        let mut gradients = Gradients::default();
        let sum = parameters
            .tensors()
            .fold(Tensor::from(0.0f32), |sum, tensor| {
                sum + tensor.sum(Kind::Float)
            });
        gradients.accumulate(&sum, &parameters).unwrap();
        optimizer.step(&gradients, 0.01).unwrap();
        // Adam's first step is the learning rate, whatever the gradient.
        for (tensor, change) in parameters.tensors().zip([0.01, 0.16, 0.0, 0.01]) {
            let now = tensor.double_value(&[0, 0]);
            assert!((1.0 - now - change).abs() < 1e-5, "{now} after {change}");
        }
    }

    trait Ratios {
        fn map_ratio(&self) -> Vec<f64>;
    }

    impl Ratios for Vec<(f64, f64)> {
        fn map_ratio(&self) -> Vec<f64> {
            self.iter().map(|(ratio, _)| *ratio).collect()
        }
    }
}
