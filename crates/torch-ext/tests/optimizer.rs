//! Fused AdamW against the formula, and the norms.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use tch::{Device, Kind, Tensor};
use torch_ext::optimizer::{AdamW, AdamWState, clip_norm, fused_adamw, total_norm};

const OPTIONS: AdamW = AdamW {
    learning_rate: 0.01,
    beta1: 0.9,
    beta2: 0.95,
    weight_decay: 0.1,
    epsilon: 1e-8,
};

struct Group {
    parameters: Vec<Tensor>,
    gradients: Vec<Tensor>,
    averages: Vec<Tensor>,
    squares: Vec<Tensor>,
    steps: Vec<Tensor>,
}

impl Group {
    fn new(kinds: &[Kind]) -> Self {
        let cpu = |kind| (kind, Device::Cpu);
        let random = |kind: &Kind| Tensor::randn([7, 5], cpu(Kind::Float)).to_kind(*kind);
        let zeros = |kind: &Kind| Tensor::zeros([7, 5], cpu(*kind));
        Self {
            parameters: kinds
                .iter()
                .map(|kind| random(kind).set_requires_grad(true))
                .collect(),
            gradients: kinds.iter().map(random).collect(),
            averages: kinds.iter().map(zeros).collect(),
            squares: kinds.iter().map(zeros).collect(),
            steps: kinds
                .iter()
                .map(|_| Tensor::zeros([], cpu(Kind::Float)))
                .collect(),
        }
    }

    fn state(&self) -> AdamWState<'_> {
        AdamWState {
            parameters: &self.parameters,
            gradients: &self.gradients,
            averages: &self.averages,
            squares: &self.squares,
            steps: &self.steps,
        }
    }
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.detach().to_kind(Kind::Double).view(-1)).unwrap()
}

/// The kernel of the CPU walks over memory: elements that lie in another order would be mixed up.
#[test]
fn moments_in_another_layout_are_refused_and_the_same_one_is_right() {
    let transposed = |tensors: &[Tensor]| -> Vec<Tensor> {
        let tensors = tensors.iter();
        tensors
            .map(|tensor| tensor.detach().tr().contiguous().tr())
            .collect()
    };
    let plain = Group::new(&[Kind::Float]);
    let mut group = Group {
        parameters: transposed(&plain.parameters),
        gradients: transposed(&plain.gradients),
        averages: transposed(&plain.averages),
        squares: transposed(&plain.squares),
        steps: plain.steps.iter().map(Tensor::copy).collect(),
    };
    fused_adamw(&OPTIONS, plain.state()).unwrap();
    fused_adamw(&OPTIONS, group.state()).unwrap();
    assert!(group.parameters[0].equal(&plain.parameters[0].detach()));

    let before = group.parameters[0].copy();
    for mixed in [0, 1, 2] {
        let lists = [
            &mut group.gradients,
            &mut group.averages,
            &mut group.squares,
        ];
        let kept = lists[mixed][0].shallow_clone();
        lists[mixed][0] = kept.contiguous();
        let error = fused_adamw(&OPTIONS, group.state()).unwrap_err();
        assert!(error.to_string().contains("layout"), "{error}");
        let lists = [
            &mut group.gradients,
            &mut group.averages,
            &mut group.squares,
        ];
        lists[mixed][0] = kept;
    }
    assert!(group.parameters[0].equal(&before));
    assert_eq!(values(&group.steps[0]), [1.0]);
}

#[test]
fn three_steps_agree_with_the_formula() {
    let group = Group::new(&[Kind::Float]);
    let gradient = values(&group.gradients[0]);
    let mut parameter = values(&group.parameters[0]);
    let (mut average, mut square) = (vec![0.0; 35], vec![0.0; 35]);
    for step in 1..=3 {
        fused_adamw(&OPTIONS, group.state()).unwrap();
        for i in 0..35 {
            parameter[i] *= 1.0 - OPTIONS.learning_rate * OPTIONS.weight_decay;
            average[i] = OPTIONS.beta1 * average[i] + (1.0 - OPTIONS.beta1) * gradient[i];
            square[i] = OPTIONS.beta2 * square[i] + (1.0 - OPTIONS.beta2) * gradient[i].powi(2);
            let unbiased = average[i] / (1.0 - OPTIONS.beta1.powi(step));
            let spread = (square[i] / (1.0 - OPTIONS.beta2.powi(step))).sqrt() + OPTIONS.epsilon;
            parameter[i] -= OPTIONS.learning_rate * unbiased / spread;
        }
    }
    for (found, expected) in values(&group.parameters[0]).iter().zip(&parameter) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    assert_eq!(values(&group.steps[0]), [3.0]);
}

#[test]
fn dtypes_may_be_mixed() {
    let group = Group::new(&[Kind::Float, Kind::BFloat16, Kind::Float]);
    let before: Vec<_> = group.parameters.iter().map(values).collect();
    fused_adamw(&OPTIONS, group.state()).unwrap();
    for (parameter, before) in group.parameters.iter().zip(&before) {
        assert_ne!(&values(parameter), before);
    }
}

#[test]
fn a_wrong_shape_is_refused_before_anything_changes() {
    let mut group = Group::new(&[Kind::Float, Kind::Float]);
    group.gradients[1] = Tensor::zeros([5, 7], (Kind::Float, Device::Cpu));
    let before = values(&group.parameters[0]);
    let error = fused_adamw(&OPTIONS, group.state())
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("parameter 1 and its gradient"), "{error}");
    assert_eq!(values(&group.parameters[0]), before);
    assert_eq!(values(&group.steps[0]), [0.0]);
}

#[test]
fn the_norm_is_over_all_elements_of_all_tensors() {
    let tensors = [
        Tensor::from_slice(&[3f32, 0.0]),
        Tensor::from_slice(&[4f32]).to_kind(Kind::BFloat16),
        Tensor::from_slice(&[12f32]),
    ];
    assert_eq!(f64::try_from(total_norm(&tensors).unwrap()).unwrap(), 13.0);
    assert!(total_norm(&[]).is_err());
}

#[test]
fn clipping_scales_down_and_never_up() {
    let tensors = [Tensor::from_slice(&[3f32]), Tensor::from_slice(&[4f32])];
    assert_eq!(
        f64::try_from(clip_norm(&tensors, 10.0).unwrap()).unwrap(),
        5.0
    );
    assert_eq!(values(&tensors[0]), [3.0]);
    assert_eq!(
        f64::try_from(clip_norm(&tensors, 1.0).unwrap()).unwrap(),
        5.0
    );
    let norm = f64::try_from(total_norm(&tensors).unwrap()).unwrap();
    assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    assert!(clip_norm(&tensors, 0.0).is_err());
}
