//! Does the device compute correctly? The checks of `surefoot probe` on our own libtorch.
//!
//! The same checks, on the same shapes and within the same tolerances, as the Python ones
//! that run on a user's PyTorch (`probe/checks.py`). Each runs in
//! a process of its own; everything that can go wrong is an answer.

use platform::Bytes;
use serde::Serialize;
use tch::{Device, Kind, Reduction, TchError, Tensor};
use torch_ext::accelerator::{self, DeviceIndex};

/// How a check ended.
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    /// `ok`, `wrong`, `nan`, `zeros`, `error`, `oom` or `skipped`.
    pub(super) verdict: &'static str,
    /// What was seen.
    pub(super) detail: String,
}

impl From<TchError> for Answer {
    fn from(error: TchError) -> Self {
        Self::from_message(&error.to_string())
    }
}

impl From<torch_ext::Error> for Answer {
    fn from(error: torch_ext::Error) -> Self {
        Self::from_message(&error.to_string())
    }
}

impl Answer {
    fn new(verdict: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { verdict, detail }
    }

    fn from_message(message: &str) -> Self {
        // What follows the first line is the C++ stack.
        let first = message.lines().next().unwrap_or_default();
        let is_oom = message.contains("out of memory") || message.contains("OutOfMemory");
        Self::new(if is_oom { "oom" } else { "error" }, first)
    }
}

/// Ends a check: with the detail of a success, or with the answer of a failure.
type Ending = Result<String, Answer>;

/// Runs the check of this name on `gpu` or `cpu`.
pub(super) fn run(name: &str, device: &str) -> Answer {
    let device = match device {
        "cpu" => Device::Cpu,
        _ => Device::Cuda(0),
    };
    let ending = match name {
        "import" => import(device),
        "copy_small" => round_trips(&[4, 4], 1, device, 10),
        "copy_image" => round_trips(&[16, 1, 64, 64], 2, device, 10),
        "copy_mixed" => copy_mixed(device),
        "copy_loader" => copy_loader(device),
        // On gfx1030 with kernel 5.15 copies of this shape came back with NaN in them.
        "copy_large" => round_trips(&[13_000, 384], 10, device, 20),
        "matmul_fp32" => matmul_fp32(device),
        "matmul_bf16" => matmul_bf16(device),
        "autograd" => autograd(device),
        "conv" => conv(device),
        "conv3d" => conv3d(device),
        "attention" => attention(device),
        "handles" => handles(device),
        "memory" => memory(device),
        other => Err(Answer::new("error", format!("there is no check `{other}`"))),
    };
    match ending {
        Ok(detail) => Answer::new("ok", detail),
        Err(answer) => answer,
    }
}

/// How exactly a result must be met.
#[derive(Clone, Copy)]
enum Bound {
    /// Every bit.
    Bits,
    /// `|got - expected| <= absolute + relative * |expected|`.
    Within { relative: f64, absolute: f64 },
}

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

fn normal(shape: &[i64], seed: i64) -> Result<Tensor, TchError> {
    tch::manual_seed(seed);
    Tensor::f_randn(shape, CPU)
}

fn synchronize(device: Device) -> Result<(), Answer> {
    if let Device::Cuda(index) = device {
        accelerator::synchronize(DeviceIndex(u8::try_from(index).unwrap_or(0)))?;
    }
    Ok(())
}

/// Compares what came back to the CPU with what it should be.
fn judge(got: &Tensor, expected: &Tensor, what: &str, bound: Bound) -> Result<(), Answer> {
    let (got, expected) = (
        got.f_detach()?.f_to(Device::Cpu)?,
        expected.f_detach()?.f_to(Device::Cpu)?,
    );
    if got.size() != expected.size() || got.kind() != expected.kind() {
        let shape = |tensor: &Tensor| format!("{:?}{:?}", tensor.kind(), tensor.size());
        let (got, expected) = (shape(&got), shape(&expected));
        return Err(Answer::new(
            "wrong",
            format!("{what}: {expected} came back as {got}"),
        ));
    }
    let double = |tensor: &Tensor| tensor.f_to_kind(Kind::Double);
    let is_same = match bound {
        Bound::Bits => {
            let bytes = |tensor: &Tensor| tensor.f_contiguous()?.f_view_dtype(Kind::Uint8);
            bytes(&got)?.f_equal(&bytes(&expected)?)?
        }
        Bound::Within { relative, absolute } => {
            double(&got)?.f_allclose(&double(&expected)?, relative, absolute, false)?
        }
    };
    if is_same {
        return Ok(());
    }
    let count =
        |tensor: Tensor| -> Result<i64, TchError> { i64::try_from(&tensor.f_sum(Kind::Int64)?) };
    let all = got.numel();
    if got.is_floating_point() {
        let nan = count(got.f_isnan()?)? - count(expected.f_isnan()?)?;
        if nan > 0 {
            return Err(Answer::new(
                "nan",
                format!("{what}: {nan} of {all} values are NaN"),
            ));
        }
    }
    let nonzero = |tensor: &Tensor| count(tensor.f_ne(0)?);
    if nonzero(&got)? == 0 && nonzero(&expected)? != 0 {
        return Err(Answer::new(
            "zeros",
            format!("{what}: all {all} values are zero"),
        ));
    }
    let different = count(got.f_ne_tensor(&expected)?)?;
    let largest = double(&got)?.f_sub(&double(&expected)?)?.f_abs()?.f_max()?;
    let largest = f64::try_from(&largest)?;
    Err(Answer::new(
        "wrong",
        format!("{what}: {different} of {all} values differ, by {largest:.3} at most"),
    ))
}

fn import(device: Device) -> Ending {
    let libtorch = trainer::device::describe_libtorch();
    if device == Device::Cpu {
        return Ok(format!("libtorch {libtorch}, on the CPU"));
    }
    match accelerator::device_count() {
        0 => Err(Answer::new(
            "error",
            format!("libtorch {libtorch} sees no GPU"),
        )),
        count => Ok(format!("libtorch {libtorch}, {count} GPUs")),
    }
}

fn round_trip(tensor: &Tensor, what: &str, device: Device) -> Result<(), Answer> {
    let there = tensor.f_to(device)?;
    synchronize(device)?;
    judge(&there, tensor, what, Bound::Bits)
}

fn round_trips(shape: &[i64], seed: i64, device: Device, repeats: u32) -> Ending {
    let tensor = normal(shape, seed)?;
    for repeat in 1..=repeats {
        round_trip(&tensor, &format!("{shape:?}, copy {repeat}"), device)?;
    }
    Ok(String::new())
}

fn copy_mixed(device: Device) -> Ending {
    let kinds = |seed: i64, shape: &[i64], kind| normal(shape, seed)?.f_to_kind(kind);
    let batch = [
        ("float", normal(&[8, 77, 768], 3)?),
        ("half", kinds(4, &[8, 4, 64, 64], Kind::Half)?),
        ("bfloat", kinds(5, &[8, 1024], Kind::BFloat16)?),
        (
            "long",
            Tensor::f_randint(1 << 40, [8, 512], (Kind::Int64, Device::Cpu))?,
        ),
        ("bool", normal(&[8, 77], 7)?.f_gt(0.0)?),
        (
            "byte",
            Tensor::f_randint(256, [8, 3, 63, 65], (Kind::Uint8, Device::Cpu))?,
        ),
        ("transposed", normal(&[33, 65], 9)?.f_transpose(0, 1)?),
    ];
    for _ in 0..5 {
        let there: Vec<Tensor> = batch
            .iter()
            .map(|(_, tensor)| tensor.f_to(device))
            .collect::<Result<_, _>>()?;
        synchronize(device)?;
        for ((name, tensor), there) in batch.iter().zip(&there) {
            judge(there, tensor, &format!("{name} of a batch"), Bound::Bits)?;
        }
    }
    Ok(String::new())
}

/// Batches made on another thread while this one copies, as a data loader makes them; in
/// pinned memory where there is a GPU.
fn copy_loader(device: Device) -> Ending {
    let (sender, batches) = std::sync::mpsc::sync_channel(2);
    let is_gpu = device != Device::Cpu;
    let worker = std::thread::spawn(move || {
        for first in (0..64).step_by(8) {
            let batch = || -> Result<Tensor, TchError> {
                let images: Vec<Tensor> = (first..first + 8)
                    .map(|index: i64| Tensor::f_full([3, 32, 32], index, CPU))
                    .collect::<Result<_, _>>()?;
                let images = Tensor::f_stack(&images, 0)?;
                if is_gpu {
                    images.f_pin_memory(device)
                } else {
                    Ok(images)
                }
            };
            // The other side is gone when it has found something wrong.
            if sender.send((first, batch())).is_err() {
                return;
            }
        }
    });
    for (first, images) in batches {
        let images = images?;
        let there = images.f_to(device)?;
        synchronize(device)?;
        judge(&there, &images, "a batch of a data loader", Bound::Bits)?;
        let expected = Tensor::f_arange_start(first, first + 8, CPU)?;
        let values = there
            .f_to(Device::Cpu)?
            .f_select(1, 0)?
            .f_select(1, 0)?
            .f_select(1, 0)?;
        judge(
            &values,
            &expected,
            "the order of a data loader",
            Bound::Bits,
        )?;
    }
    // It has sent everything, or it panicked and sent less: then nothing was found wrong
    // in what there was, and that is not enough.
    match worker.join() {
        Ok(()) => Ok(String::new()),
        Err(_) => Err(Answer::new(
            "error",
            "the thread that makes the batches died",
        )),
    }
}

fn matmul_fp32(device: Device) -> Ending {
    let (a, b) = (normal(&[512, 768], 11)?, normal(&[768, 640], 12)?);
    let got = a.f_to(device)?.f_matmul(&b.f_to(device)?)?;
    // Summing 768 products in another order, and TF32 where it is on.
    let bound = Bound::Within {
        relative: 1e-3,
        absolute: 5e-2,
    };
    judge(&got, &a.f_matmul(&b)?, "fp32 matmul", bound)?;
    Ok(String::new())
}

fn matmul_bf16(device: Device) -> Ending {
    let half = |seed| normal(&[512, 512], seed)?.f_to_kind(Kind::BFloat16);
    let (a, b) = (half(13)?, half(14)?);
    let got = a.f_to(device)?.f_matmul(&b.f_to(device)?)?;
    let expected = a
        .f_to_kind(Kind::Float)?
        .f_matmul(&b.f_to_kind(Kind::Float)?)?;
    let bound = Bound::Within {
        relative: 2e-2,
        absolute: 0.5,
    };
    judge(
        &got,
        &expected.f_to_kind(Kind::BFloat16)?,
        "bf16 matmul",
        bound,
    )?;
    Ok(String::new())
}

/// The loss after five steps, and the gradients of the last one.
fn five_steps(device: Device) -> Result<(Tensor, Vec<Tensor>), TchError> {
    let (data, target) = (
        normal(&[16, 32], 16)?.f_to(device)?,
        normal(&[16, 8], 17)?.f_to(device)?,
    );
    let parameter = |shape: &[i64], seed| {
        normal(shape, seed)?
            .f_mul_scalar(0.2)?
            .f_to(device)?
            .f_detach()?
            .f_set_requires_grad(true)
    };
    let mut parameters = [
        parameter(&[64, 32], 15)?,
        parameter(&[64], 25)?,
        parameter(&[8, 64], 35)?,
    ];
    let mut last = None;
    for _ in 0..5 {
        let [first, bias, second] = &parameters;
        let hidden = data.f_linear(first, Some(bias))?.f_gelu("none")?;
        let hidden = hidden.f_layer_norm([64], None::<Tensor>, None::<Tensor>, 1e-5, false)?;
        let output = hidden
            .f_linear(second, None::<Tensor>)?
            .f_softmax(-1, Kind::Float)?;
        let loss = output.f_mse_loss(&target, Reduction::Mean)?;
        loss.f_backward()?;
        let gradients: Vec<Tensor> = parameters
            .iter()
            .map(|parameter| parameter.f_grad()?.f_detach())
            .collect::<Result<_, _>>()?;
        for (parameter, gradient) in parameters.iter_mut().zip(&gradients) {
            *parameter = parameter
                .f_detach()?
                .f_sub(&gradient.f_mul_scalar(0.1)?)?
                .f_set_requires_grad(true)?;
        }
        last = Some((loss.f_detach()?, gradients));
    }
    last.ok_or_else(|| TchError::Kind("no step was made".to_owned()))
}

fn autograd(device: Device) -> Ending {
    let (expected, got) = (five_steps(Device::Cpu)?, five_steps(device)?);
    let loss = Bound::Within {
        relative: 1e-3,
        absolute: 1e-4,
    };
    judge(&got.0, &expected.0, "the loss after five steps", loss)?;
    let gradient = Bound::Within {
        relative: 1e-2,
        absolute: 1e-4,
    };
    for (number, (expected, got)) in expected.1.iter().zip(&got.1).enumerate() {
        judge(got, expected, &format!("gradient {number}"), gradient)?;
    }
    Ok(String::new())
}

fn convolve(image: &Tensor, weight: &Tensor, padding: i64) -> Result<Tensor, TchError> {
    image.f_conv2d(
        weight,
        None::<Tensor>,
        [1, 1],
        [padding, padding],
        [1, 1],
        1,
    )
}

fn conv(device: Device) -> Ending {
    let (image, weight) = (normal(&[2, 8, 33, 35], 18)?, normal(&[16, 8, 3, 3], 19)?);
    let got = convolve(&image.f_to(device)?, &weight.f_to(device)?, 1)?;
    let bound = Bound::Within {
        relative: 1e-3,
        absolute: 2e-2,
    };
    judge(&got, &convolve(&image, &weight, 1)?, "conv2d", bound)?;
    Ok(String::new())
}

fn conv3d(device: Device) -> Ending {
    // As wide as a layer of a video autoencoder: MIOpen without a fast kernel for it takes the better part of a minute.
    let frames = normal(&[1, 128, 4, 32, 32], 23)?;
    let weight = normal(&[128, 128, 3, 3, 3], 24)?;
    let convolve = |frames: &Tensor, weight: &Tensor| {
        frames.f_conv3d(weight, None::<Tensor>, [1; 3], [1; 3], [1; 3], 1)
    };
    let got = convolve(&frames.f_to(device)?, &weight.f_to(device)?)?;
    // A value is the sum of 3456 products, some 60 in size.
    let bound = Bound::Within {
        relative: 1e-3,
        absolute: 0.2,
    };
    judge(&got, &convolve(&frames, &weight)?, "conv3d", bound)?;
    Ok(String::new())
}

fn attend(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor, TchError> {
    Tensor::f_scaled_dot_product_attention(q, k, v, None::<Tensor>, 0.0, true, None, false)
}

fn attention(device: Device) -> Ending {
    // bf16, as in training, and long enough for the flash kernels to be worth it.
    let half = |seed| normal(&[1, 4, 256, 64], seed)?.f_to_kind(Kind::BFloat16);
    let (q, k, v) = (half(20)?, half(21)?, half(22)?);
    let float = |tensor: &Tensor| tensor.f_to_kind(Kind::Float);
    let expected = attend(&float(&q)?, &float(&k)?, &float(&v)?)?.f_to_kind(Kind::BFloat16)?;
    let got = attend(&q.f_to(device)?, &k.f_to(device)?, &v.f_to(device)?)?;
    let bound = Bound::Within {
        relative: 5e-2,
        absolute: 2e-2,
    };
    judge(&got, &expected, "attention", bound)?;
    Ok(String::new())
}

/// The first product makes the handle of the BLAS, the first convolution that of MIOpen.
fn handles(device: Device) -> Ending {
    let on_device = (Kind::Float, device);
    let size = Tensor::f_ones([8, 8], on_device)?;
    let eight = Tensor::f_full([8, 8], 8.0, CPU)?;
    judge(
        &size.f_matmul(&size)?,
        &eight,
        "the first product",
        Bound::Bits,
    )?;
    let image = Tensor::f_ones([1, 1, 8, 8], on_device)?;
    let kernel = Tensor::f_ones([1, 1, 3, 3], on_device)?;
    let nine = Tensor::f_full([1, 1, 6, 6], 9.0, CPU)?;
    judge(
        &convolve(&image, &kernel, 0)?,
        &nine,
        "the first convolution",
        Bound::Bits,
    )?;
    Ok(String::new())
}

fn memory(device: Device) -> Ending {
    const PIECE: u64 = 256 << 20;
    if device == Device::Cpu {
        return Err(Answer::new("skipped", "the CPU has no pool of its own"));
    }
    let info = accelerator::memory_info(DeviceIndex(0))?;
    // Free can be reported above the total (APUs); the total bounds what is tried.
    let goal = info.free.min(info.total) / 10 * 6;
    let mut kept = Vec::new();
    let mut left = goal;
    while left > 0 {
        let size = i64::try_from(left.min(PIECE)).unwrap_or(i64::MAX);
        let mut block = Tensor::f_empty([size], (Kind::Uint8, device))?;
        // Promised pages become real only when they are written.
        let value = i64::try_from(kept.len() % 251).unwrap_or(0);
        kept.push((block.f_fill_(value)?, value));
        left = left.saturating_sub(PIECE);
    }
    synchronize(device)?;
    for (number, (block, value)) in kept.iter().enumerate() {
        let edges = Tensor::f_stack(&[block.f_select(0, 0)?, block.f_select(0, -1)?], 0)?;
        let expected = Tensor::f_full([2], *value, (Kind::Uint8, Device::Cpu))?;
        judge(
            &edges,
            &expected,
            &format!("block {number} of {}", kept.len()),
            Bound::Bits,
        )?;
    }
    Ok(format!(
        "{} of {} allocated and written",
        Bytes(goal),
        Bytes(info.total)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(got: &Tensor, expected: &Tensor, bound: Bound) -> &'static str {
        judge(got, expected, "x", bound).map_or_else(|answer| answer.verdict, |()| "ok")
    }

    #[test]
    fn every_check_passes_on_the_cpu() {
        for name in [
            "import",
            "copy_small",
            "copy_image",
            "copy_mixed",
            "copy_loader",
            "copy_large",
            "matmul_fp32",
            "matmul_bf16",
            "autograd",
            "conv",
            "conv3d",
            "attention",
            "handles",
        ] {
            let answer = run(name, "cpu");
            assert_eq!(answer.verdict, "ok", "{name}: {}", answer.detail);
        }
        assert_eq!(run("memory", "cpu").verdict, "skipped");
        assert_eq!(run("nothing", "cpu").verdict, "error");
    }

    #[test]
    fn wrong_results_are_told_apart() -> Result<(), TchError> {
        let right = normal(&[4, 4], 1)?;
        let close = Bound::Within {
            relative: 1e-3,
            absolute: 1e-3,
        };
        for bound in [Bound::Bits, close] {
            assert_eq!(verdict(&right.f_mul_scalar(1.0)?, &right, bound), "ok");
            assert_eq!(verdict(&right.f_zeros_like()?, &right, bound), "zeros");
            assert_eq!(verdict(&right.f_full_like(f64::NAN)?, &right, bound), "nan");
            assert_eq!(verdict(&right.f_neg()?, &right, bound), "wrong");
        }
        // A bit that no tolerance notices.
        let almost = right.f_mul_scalar(1.000_001)?;
        assert_eq!(verdict(&almost, &right, close), "ok");
        assert_eq!(verdict(&almost, &right, Bound::Bits), "wrong");
        Ok(())
    }
}
