//! Steps with kernels of our own, whose machine code is executed in the simulated device.

use super::*;
use crate::fused::tests::{in_simulated_gpu, name_of};
use crate::fused::{UseKernels, use_kernels};

/// The losses of ten steps of an adapter in bf16.
fn losses(adapter: &str, base: &str, how: UseKernels) -> Vec<f64> {
    use_kernels(how);
    let saved = PeftAdapter::open(&golden(&format!("adapters/{adapter}"))).unwrap();
    let mut attachment = Attachment::saved(saved)
        .unwrap()
        .computing_in(Kind::BFloat16);
    let folder = HfFolder::open(&golden(&format!("models/{base}"))).unwrap();
    let mut placer = Placer::new(Device::Cpu, placement::Policy::default()).unwrap();
    let mut source = FileWeights::new(&folder, Kind::BFloat16, &mut placer);
    let mut parameters = Parameters::default();
    let frozen = Base::Frozen(Kind::BFloat16);
    let mut builder = Builder::new(&mut source, &mut parameters, Kind::BFloat16, frozen)
        .with_adapters(&mut attachment);
    let options = DecoderOptions {
        positions: 64,
        initializer_range: 0.0,
        device: Device::Cpu,
    };
    let model = Decoder::new(folder.config(), options, &mut builder).unwrap();
    let tokens = Tensor::arange(24, (Kind::Int64, Device::Cpu)).view([2, 12]);
    let step = |_| {
        let pass = Pass::Train { checkpoint: true };
        let logits = model.logits(&tokens.narrow(1, 0, 11), pass).unwrap();
        let logits = logits.to_kind(Kind::Float).view([22, -1]);
        let loss = logits.cross_entropy_for_logits(&tokens.narrow(1, 1, 11).reshape([22]));
        torch_ext::backward(&loss).unwrap();
        for tensor in parameters.tensors() {
            let gradient = tensor.grad();
            let _ = tch::no_grad(|| tensor.shallow_clone().subtract_(&(&gradient * 0.05)));
            tensor.shallow_clone().zero_grad();
        }
        f64::try_from(loss).unwrap()
    };
    (0..10).map(step).collect()
}

#[test]
fn ten_steps_with_kernels_lose_as_much_as_without() {
    in_simulated_gpu(
        name_of!(ten_steps_with_kernels_lose_as_much_as_without),
        |executes| {
            let run = |how| losses("kronecker-whole", "qwen3-untied", how);
            let (theirs, ours) = (run(UseKernels::Off), run(UseKernels::Auto));
            assert!(theirs[9] < theirs[0], "it learns nothing: {theirs:?}");
            for (ours, theirs) in ours.iter().zip(&theirs) {
                let difference = (ours - theirs).abs();
                assert!(difference < 0.01 * theirs, "{ours} and {theirs}");
            }
            // They round otherwise.
            assert_eq!(ours != theirs, executes);
        },
    );
}
