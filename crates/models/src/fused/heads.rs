//! The norm of queries or keys and their rotation, in one launch.

use kernels::Heads;
use tch::{Device, Kind, Tensor, no_grad};
use torch_ext::{differentiable_outputs, gradients_are_recorded};

use super::{Chosen, Family, address, compared, half_of, kind_of, numbers, pointer};
use crate::Error;
use crate::tensor::to_kind;

/// By which angles tokens are rotated.
#[derive(Debug)]
pub(crate) struct Angles {
    /// `[1 or batch, tokens, pairs]`: in fp32, or in the type of what is rotated.
    pub(crate) cosines: Tensor,
    /// Like the cosines, with the same strides.
    pub(crate) sines: Tensor,
    /// Whether a pair is a number of the first half of what is rotated and that of the second at the same place; otherwise it
    /// is two adjacent ones.
    pub(crate) by_halves: bool,
}

impl Angles {
    fn shallow_clone(&self) -> Self {
        Self {
            cosines: self.cosines.shallow_clone(),
            sines: self.sines.shallow_clone(),
            by_halves: self.by_halves,
        }
    }
}

/// Heads of queries or keys, normalised if there is an `epsilon`, and rotated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnedHeads<'a> {
    /// `[batch, tokens, heads, width]` in 16 bits.
    pub(crate) input: &'a Tensor,
    /// `[width]` fp32
    pub(crate) weight: Option<&'a Tensor>,
    /// What is added to the mean square.
    pub(crate) epsilon: Option<f64>,
    pub(crate) angles: &'a Angles,
}

impl TurnedHeads<'_> {
    /// The result in the shape and type of the input, by a kernel; `None` if it must be computed by operators: on other devices,
    /// and in fp32. The weight must not learn.
    pub(crate) fn by_kernel(&self) -> Result<Option<Tensor>, Error> {
        if !self.fits()? {
            return Ok(None);
        }
        let Some(chosen) = Chosen::on(self.input.device(), Family::Heads, compare) else {
            return Ok(None);
        };
        let made = self.made(&chosen)?;
        if chosen.verifies && !torch_ext::fake::is_on() {
            let expected = no_grad(|| self.by_operators())?;
            compared(
                &[made.shallow_clone()],
                &[expected],
                ("`train.kernels: verify`, rotated heads", true),
            )?;
        }
        Ok(Some(made))
    }

    fn fits(&self) -> Result<bool, Error> {
        let (batch, tokens, _, width) = self.input.size4()?;
        let (tables, rows, pairs) = self.angles.cosines.size3()?;
        let kinds = [self.input.kind(), self.angles.cosines.kind()];
        let is_here = |tensor: &Tensor| tensor.device() == self.input.device();
        Ok(self.input.kind() != Kind::Float
            && half_of(kinds).is_some()
            && (tables == 1 || tables == batch)
            && rows == tokens
            && 2 * pairs <= width
            && self.angles.cosines.stride() == self.angles.sines.stride()
            && is_here(&self.angles.cosines)
            && is_here(&self.angles.sines)
            && self.input.is_contiguous()
            && self.input.numel() > 0
            && (batch * tokens) as u64 <= kernels::MOST_GROUPS
            && self.weight.is_none_or(|weight| {
                weight.size() == [width]
                    && weight.kind() == Kind::Float
                    && weight.is_contiguous()
                    && is_here(weight)
            }))
    }

    /// Launches the kernel, or that of the backward pass if there is a gradient.
    fn launch(
        &self,
        chosen: &Chosen,
        gradient: Option<&Tensor>,
        output: &Tensor,
    ) -> Result<(), Error> {
        let (batch, tokens, heads, width) = self.input.size4()?;
        let Angles {
            cosines,
            sines,
            by_halves,
        } = self.angles;
        let (tables, _, pairs) = cosines.size3()?;
        let strides = cosines.stride();
        // Without a norm a gradient does not depend on the input, of which the kernel then uses zero times each number.
        let input = match (gradient, self.epsilon) {
            (Some(gradient), None) => gradient,
            _ => self.input,
        };
        let launch = Heads {
            input: address(input),
            weight: pointer(self.weight),
            cosines: address(cosines),
            sines: address(sines),
            output: address(output),
            gradient: pointer(gradient),
            heads: heads as u32,
            width: width as u32,
            turned: 2 * pairs as u32,
            tokens: tokens as u32,
            sample: if tables == 1 { 0 } else { strides[0] as u32 },
            token: strides[1] as u32,
            pair: strides[2] as u32,
            is_full: u32::from(cosines.kind() == Kind::Float),
            next: if *by_halves { 1 } else { 2 },
            partner: if *by_halves { pairs as u32 } else { 1 },
            inverse: self.epsilon.map_or(0.0, |_| 1.0 / width as f32),
            epsilon: self.epsilon.unwrap_or(0.0) as f32,
        };
        let others = [self.weight, gradient].into_iter().flatten();
        let reads: Vec<&Tensor> = [cosines, sines, input].into_iter().chain(others).collect();
        let name = match gradient {
            None => c"surefoot::heads",
            Some(_) => c"surefoot::heads_backward",
        };
        let how = (kind_of(self.input.kind()), (batch * tokens) as u64);
        chosen.launch(name, &reads, &[output], |kernels, stream| {
            // SAFETY: tensors of these sizes on the device, contiguous but for the tables, whose strides are passed, and whose
            // memory libtorch gives to no other stream before this one has come so far.
            unsafe { kernels.heads(launch, how, stream) }
        })
    }

    fn made(&self, chosen: &Chosen) -> Result<Tensor, Error> {
        let options = (self.input.kind(), self.input.device());
        let output = no_grad(|| chosen.memory(&self.input.size(), options))?;
        self.launch(chosen, None, &output)?;
        if !gradients_are_recorded() || !self.input.requires_grad() {
            return Ok(output);
        }
        let (chosen, epsilon) = (chosen.clone(), self.epsilon);
        let angles = self.angles.shallow_clone();
        // Without a norm the input is not needed.
        let input = self.input;
        let kept: Vec<&Tensor> = epsilon
            .map(|_| input)
            .into_iter()
            .chain(self.weight)
            .collect();
        let has_weight = self.weight.is_some();
        let steps = differentiable_outputs(&[self.input], &kept, &[&output], move |saved| {
            let gradient = || -> Result<Tensor, Error> {
                let [kept @ .., gradient] = saved else {
                    return Err(Error::Internal("heads without a gradient".into()));
                };
                let gradient = gradient.f_contiguous()?;
                let weight = kept.last().filter(|_| has_weight);
                let heads = TurnedHeads {
                    input: kept
                        .first()
                        .filter(|_| epsilon.is_some())
                        .unwrap_or(&gradient),
                    weight,
                    epsilon,
                    angles: &angles,
                };
                let options = (gradient.kind(), gradient.device());
                let of_input = chosen.memory(&gradient.size(), options)?;
                heads.launch(&chosen, Some(&gradient), &of_input)?;
                Ok(of_input)
            };
            Ok(vec![gradient().map_err(Error::into_torch)?])
        })?;
        let none = || Error::Internal("heads without their output".into());
        steps.into_iter().next().ok_or_else(none)
    }

    /// The same by operators.
    pub(crate) fn by_operators(&self) -> Result<Tensor, Error> {
        let (_, _, _, width) = self.input.size4()?;
        let (_, _, pairs) = self.angles.cosines.size3()?;
        let mut heads = to_kind(self.input, Kind::Float)?;
        if let Some(epsilon) = self.epsilon {
            heads = heads.f_rms_norm([width], None::<&Tensor>, epsilon)?;
        }
        if let Some(weight) = self.weight {
            heads = heads.f_mul(weight)?;
        }
        let turned = heads.f_narrow(-1, 0, 2 * pairs)?;
        let rest = heads.f_narrow(-1, 2 * pairs, width - 2 * pairs)?;
        let (split, place) = match self.angles.by_halves {
            true => ([2, pairs], -2),
            false => ([pairs, 2], -1),
        };
        let turned = turned.f_unflatten(-1, split)?;
        let (a, b) = (turned.f_select(place, 0)?, turned.f_select(place, 1)?);
        let cosines = self.angles.cosines.f_unsqueeze(2)?;
        let sines = self.angles.sines.f_unsqueeze(2)?;
        let first = a.f_mul(&cosines)?.f_sub(&b.f_mul(&sines)?)?;
        let second = b.f_mul(&cosines)?.f_add(&a.f_mul(&sines)?)?;
        let turned = Tensor::f_stack(&[first, second], place)?.f_flatten(-2, -1)?;
        to_kind(&Tensor::f_cat(&[turned, rest], -1)?, self.input.kind())
    }
}

/// Compares kernels with operators on a device, for both kinds of pairs, with and without a norm, in both directions.
pub(super) fn compare(chosen: &Chosen, device: Device) -> Result<(), Error> {
    let size = [2, 3, 9, 70];
    let weight = numbers(&size[3..], (Kind::Float, device))?;
    for half in [Kind::BFloat16, Kind::Half] {
        for index in 0..4 {
            let is = |bit: u32| index >> bit & 1 == 1;
            let kind = if is(0) { Kind::Float } else { half };
            let tables = if is(1) { 2 } else { 1 };
            let both = numbers(&[2, tables, 3, 33], (kind, device))?;
            let angles = Angles {
                cosines: both.f_select(0, 0)?,
                sines: both.f_select(0, 1)?,
                by_halves: is(0) != is(1),
            };
            let run = |ours: bool| -> Result<Vec<Tensor>, Error> {
                let input = numbers(&size, (half, device))?.set_requires_grad(true);
                let heads = TurnedHeads {
                    input: &input,
                    weight: is(0).then_some(&weight),
                    epsilon: is(1).then_some(1e-5),
                    angles: &angles,
                };
                let output = match ours {
                    true => heads.made(chosen)?,
                    false => heads.by_operators()?,
                };
                let gradient = numbers(&size, (Kind::Float, device))?.f_flip([3])?;
                torch_ext::backward(&output.f_mul(&gradient)?.f_sum(Kind::Float)?)?;
                Ok(vec![output.f_detach()?, input.grad()])
            };
            let (ours, theirs) = tch::with_grad(|| Ok::<_, Error>((run(true)?, run(false)?)))?;
            compared(
                &ours,
                &theirs,
                (&format!("heads {index} in {half:?}"), false),
            )?;
        }
    }
    Ok(())
}
