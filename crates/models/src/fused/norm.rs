//! A norm of rows with all that stands around it in a block, in one launch.

use kernels::{Norm, NormBackward};
use tch::{Device, Kind, Tensor, no_grad};
use torch_ext::{differentiable_outputs, gradients_are_recorded};

use super::{Chosen, Family, address, compared, half_of, kind_of, numbers, pointer};
use crate::Error;
use crate::tensor::to_kind;

/// What `input` and `change` add up to, normalised over the last dimension, times `weight` and `factor`, plus `shift` and
/// `residual`: computed in fp32.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowNorm<'a> {
    /// `[…, width]`
    pub(crate) input: &'a Tensor,
    /// Like `input`, in the type of 16 bits.
    pub(crate) change: Option<&'a Tensor>,
    /// `[width]` fp32
    pub(crate) weight: Option<&'a Tensor>,
    /// `[batch, 1, width]` fp32
    pub(crate) factor: Option<&'a Tensor>,
    /// `[batch, 1, width]` fp32
    pub(crate) shift: Option<&'a Tensor>,
    /// Like `input`, in the type `kind`.
    pub(crate) residual: Option<&'a Tensor>,
    /// The type of the result. Whatever is not in fp32 has one type of 16 bits.
    pub(crate) kind: Kind,
    /// Whether the mean is subtracted.
    pub(crate) is_centred: bool,
    /// Added to the variance.
    pub(crate) epsilon: f64,
}

impl<'a> RowNorm<'a> {
    /// A norm alone.
    pub(crate) fn new(
        input: &'a Tensor,
        weight: Option<&'a Tensor>,
        epsilon: f64,
        kind: Kind,
    ) -> Self {
        Self {
            input,
            change: None,
            weight,
            factor: None,
            shift: None,
            residual: None,
            kind,
            is_centred: false,
            epsilon,
        }
    }

    /// The result, and what was normalised in the type of `input`, by a kernel; `None` if it must be computed by operators: on
    /// other devices, and in fp32 alone. The weight must not learn.
    pub(crate) fn by_kernel(&self) -> Result<Option<[Tensor; 2]>, Error> {
        if !self.fits() {
            return Ok(None);
        }
        let Some(chosen) = Chosen::on(self.input.device(), Family::Norms, compare) else {
            return Ok(None);
        };
        let made = self.made(&chosen)?;
        if chosen.verifies && !torch_ext::fake::is_on() {
            let expected = no_grad(|| self.by_operators())?;
            compared(&made, &expected, ("`train.kernels: verify`, a norm", true))?;
        }
        Ok(Some(made))
    }

    fn half(&self) -> Option<Kind> {
        let change = self.change.map(Tensor::kind);
        half_of([self.input.kind(), self.kind].into_iter().chain(change))
    }

    fn fits(&self) -> bool {
        let size = self.input.size();
        let Some((width, batch)) = size.last().zip(size.first()) else {
            return false;
        };
        let is_here = |tensor: &Tensor| tensor.device() == self.input.device();
        let is_vector = |tensor: &Tensor| {
            tensor.size() == [*batch, 1, *width] && tensor.kind() == Kind::Float && is_here(tensor)
        };
        let is_like = |tensor: &Tensor, kind: Kind| {
            tensor.size() == size
                && tensor.kind() == kind
                && tensor.is_contiguous()
                && is_here(tensor)
        };
        self.half().is_some_and(|half| {
            self.change.is_none_or(|change| is_like(change, half))
                && self.residual.is_none_or(|it| is_like(it, self.kind))
                && is_like(self.input, self.input.kind())
        }) && self.weight.is_none_or(|weight| {
            weight.size() == [*width]
                && weight.kind() == Kind::Float
                && weight.is_contiguous()
                && is_here(weight)
        }) && [self.factor, self.shift]
            .into_iter()
            .flatten()
            .all(is_vector)
            && (1..=kernels::MOST_GROUPS)
                .contains(&(self.input.numel() as u64 / (*width).max(1) as u64))
    }

    fn made(&self, chosen: &Chosen) -> Result<[Tensor; 2], Error> {
        let (input, device) = (self.input, self.input.device());
        let size = input.size();
        let width = size.last().copied().unwrap_or(1);
        let rows = input.numel() as i64 / width;
        let whole = |tensor: Option<&Tensor>| tensor.map(Tensor::f_contiguous).transpose();
        let (factor, shift) = (whole(self.factor)?, whole(self.shift)?);
        let (factor, shift) = (factor.as_ref(), shift.as_ref());
        let half = self
            .half()
            .ok_or_else(|| Error::Internal("a norm without a type of 16 bits".into()))?;
        let is_full = |kind| u32::from(kind == Kind::Float);
        let (output, sum, statistics) = no_grad(|| -> Result<_, Error> {
            Ok((
                chosen.memory(&size, (self.kind, device))?,
                match self.change {
                    Some(_) => chosen.memory(&size, (input.kind(), device))?,
                    None => input.f_detach()?,
                },
                chosen.memory(&[rows, 2], (Kind::Float, device))?,
            ))
        })?;
        let norm = Norm {
            input: address(input),
            change: pointer(self.change),
            weight: pointer(self.weight),
            factor: pointer(factor),
            shift: pointer(shift),
            residual: pointer(self.residual),
            sum: address(&sum),
            output: address(&output),
            statistics: address(&statistics),
            width: width as u32,
            rows: match factor.or(shift) {
                Some(_) => (rows / size[0]) as u32,
                None => rows as u32,
            },
            stride: width as u32,
            is_full: is_full(input.kind()),
            gives_full: is_full(self.kind),
            is_centred: u32::from(self.is_centred),
            inverse: 1.0 / width as f32,
            epsilon: self.epsilon as f32,
        };
        let others = [self.change, self.weight, factor, shift, self.residual];
        let reads: Vec<&Tensor> = [Some(input)].into_iter().chain(others).flatten().collect();
        let sums = self.change.map(|_| &sum);
        let writes: Vec<&Tensor> = [&output, &statistics].into_iter().chain(sums).collect();
        let how = (kind_of(half), rows as u64);
        chosen.launch(c"surefoot::norm", &reads, &writes, |kernels, stream| {
            // SAFETY: tensors of these sizes on the device, contiguous, whose memory libtorch gives to no other stream before
            // this one has come so far.
            unsafe { kernels.norm(norm, how, stream) }
        })?;
        let learned = [factor, shift].map(|vector| vector.filter(|vector| vector.requires_grad()));
        let inputs = [
            Some(input),
            self.change,
            self.residual,
            learned[0],
            learned[1],
        ];
        let inputs: Vec<&Tensor> = inputs.into_iter().flatten().collect();
        if !gradients_are_recorded() || !inputs.iter().any(|input| input.requires_grad()) {
            return Ok([output, sum]);
        }
        let kept = [Some(&sum), Some(&statistics), self.weight, factor];
        let backward = Backward {
            chosen: chosen.clone(),
            norm: NormCopy(norm),
            half,
            weight: self.weight.is_some(),
            factor: self.factor.is_some(),
            change: self.change.is_some(),
            residual: self.residual.is_some(),
            learned: learned.map(|vector| vector.is_some()),
        };
        let kept: Vec<&Tensor> = kept.into_iter().flatten().collect();
        let outputs: Vec<&Tensor> = [&output].into_iter().chain(sums).collect();
        let steps = differentiable_outputs(&inputs, &kept, &outputs, move |saved| {
            backward.gradients(saved).map_err(Error::into_torch)
        })?;
        let mut steps = steps.into_iter();
        let output = steps
            .next()
            .ok_or_else(|| Error::Internal("a norm without its output".into()))?;
        let sum = steps.next().unwrap_or_else(|| input.shallow_clone());
        Ok([output, sum])
    }

    /// The same by operators.
    pub(crate) fn by_operators(&self) -> Result<[Tensor; 2], Error> {
        let full = |tensor: &Tensor| to_kind(tensor, Kind::Float);
        let sum = match self.change {
            Some(change) => to_kind(&full(self.input)?.f_add(&full(change)?)?, self.input.kind())?,
            None => self.input.shallow_clone(),
        };
        let width = sum.size().last().copied().unwrap_or(1);
        let none = None::<&Tensor>;
        let mut output = match self.is_centred {
            true => full(&sum)?.f_layer_norm([width], none, none, self.epsilon, true)?,
            false => full(&sum)?.f_rms_norm([width], none, self.epsilon)?,
        };
        for factor in [self.weight, self.factor].into_iter().flatten() {
            output = output.f_mul(factor)?;
        }
        for addend in [self.shift, self.residual].into_iter().flatten() {
            output = output.f_add(addend)?;
        }
        Ok([to_kind(&output, self.kind)?, sum])
    }
}

/// The arguments of the forward pass, of which the backward pass uses the numbers alone.
struct NormCopy(Norm);

// SAFETY: its pointers are not used.
unsafe impl Send for NormCopy {}

/// The backward pass of a norm.
struct Backward {
    chosen: Chosen,
    norm: NormCopy,
    half: Kind,
    weight: bool,
    factor: bool,
    change: bool,
    residual: bool,
    /// Whether factor and shift learn, whose gradients operators compute.
    learned: [bool; 2],
}

impl Backward {
    /// Gradients of the input, the change and the residual, and of the factor and the shift if they learn.
    fn gradients(&self, saved: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let mut saved = saved.iter();
        let mut next = || {
            let missing = || Error::Internal("a norm without what it kept".into());
            saved.next().ok_or_else(missing)
        };
        let (input, statistics) = (next()?, next()?);
        let weight = self.weight.then(&mut next).transpose()?;
        let factor = self.factor.then(&mut next).transpose()?;
        let gradient = next()?.f_contiguous()?;
        let of_sum = match self.change {
            true => Some(next()?.f_contiguous()?),
            false => None,
        };
        let options = (input.kind(), input.device());
        let of_input = self.chosen.memory(&input.size(), options)?;
        // One tensor for both, where they have one type.
        let of_change = match self.change && input.kind() != self.half {
            true => Some(self.chosen.memory(&input.size(), (self.half, options.1))?),
            false => None,
        };
        let norm = self.norm.0;
        let launch = NormBackward {
            gradient: address(&gradient),
            input: address(input),
            weight: pointer(weight),
            factor: pointer(factor),
            statistics: address(statistics),
            of_sum: pointer(of_sum.as_ref()),
            of_input: address(&of_input),
            of_change: pointer(of_change.as_ref()).cast_mut(),
            width: norm.width,
            rows: norm.rows,
            stride: norm.stride,
            is_full: norm.is_full,
            gives_full: norm.gives_full,
            is_centred: norm.is_centred,
            inverse: norm.inverse,
        };
        let others = [weight, factor, of_sum.as_ref()];
        let reads: Vec<&Tensor> = [&gradient, input, statistics]
            .into_iter()
            .chain(others.into_iter().flatten())
            .collect();
        let writes: Vec<&Tensor> = [&of_input].into_iter().chain(&of_change).collect();
        let how = (kind_of(self.half), statistics.numel() as u64 / 2);
        self.chosen.launch(
            c"surefoot::norm_backward",
            &reads,
            &writes,
            |kernels, stream| {
                // SAFETY: as in the forward pass, with tensors that were made for it or made contiguous.
                unsafe { kernels.norm_backward(launch, how, stream) }
            },
        )?;
        let mut gradients = Vec::new();
        if self.change {
            gradients.push(of_change.unwrap_or_else(|| of_input.shallow_clone()));
        }
        let of_vectors = self.of_vectors(input, statistics, weight, &gradient)?;
        if self.residual {
            gradients.push(gradient);
        }
        gradients.insert(0, of_input);
        gradients.extend(of_vectors);
        Ok(gradients)
    }

    fn of_vectors(
        &self,
        input: &Tensor,
        statistics: &Tensor,
        weight: Option<&Tensor>,
        gradient: &Tensor,
    ) -> Result<Vec<Tensor>, Error> {
        let [of_factor, of_shift] = self.learned;
        let mut found = Vec::new();
        if !of_factor && !of_shift {
            return Ok(found);
        }
        let gradient = to_kind(gradient, Kind::Float)?;
        let over_tokens = |rows: Tensor| rows.f_sum_dim_intlist(1, true, Kind::Float);
        if of_factor {
            let (batch, tokens, _) = input.size3()?;
            let statistics = statistics.f_view([batch, tokens, 2])?;
            let of = |index| statistics.f_narrow(2, index, 1);
            let mut rows = to_kind(input, Kind::Float)?
                .f_sub(&of(0)?)?
                .f_mul(&of(1)?)?;
            rows = rows.f_mul(&gradient)?;
            if let Some(weight) = weight {
                rows = rows.f_mul(weight)?;
            }
            found.push(over_tokens(rows)?);
        }
        if of_shift {
            found.push(over_tokens(gradient)?);
        }
        Ok(found)
    }
}

/// Compares kernels with operators on a device, with and without each part, in both directions.
pub(super) fn compare(chosen: &Chosen, device: Device) -> Result<(), Error> {
    for (width, parts) in [(301, 0..16), (2100, 14..15)] {
        for half in [Kind::BFloat16, Kind::Half] {
            for index in parts.clone() {
                compare_one(chosen, device, ([2, 3, width], half), index)?;
            }
        }
    }
    Ok(())
}

/// The bits of `index` say which parts there are.
fn compare_one(
    chosen: &Chosen,
    device: Device,
    (size, half): ([i64; 3], Kind),
    index: i32,
) -> Result<(), Error> {
    let full = (Kind::Float, device);
    let is = |bit: i32| index >> bit & 1 == 1;
    let typed = |is_full: bool| if is_full { Kind::Float } else { half };
    let kinds = [typed(is(0)), half, typed(is(1))];
    if is(0) && is(1) && !is(2) {
        // Nothing of it would be in 16 bits.
        return Ok(());
    }
    let weight = numbers(&size[2..], full)?;
    let run = |ours: bool| -> Result<Vec<Tensor>, Error> {
        let leaf = |tensor: Tensor| tensor.set_requires_grad(true);
        let mut leaves = Vec::new();
        for kind in kinds {
            leaves.push(leaf(numbers(&size, (kind, device))?));
        }
        for _ in 0..2 {
            leaves.push(leaf(numbers(&[size[0], 1, size[2]], full)?));
        }
        let norm = RowNorm {
            input: &leaves[0],
            change: is(2).then_some(&leaves[1]),
            weight: is(3).then_some(&weight),
            factor: is(1).then_some(&leaves[3]),
            shift: (is(1) != is(2)).then_some(&leaves[4]),
            residual: (is(0) != is(1)).then_some(&leaves[2]),
            kind: kinds[2],
            is_centred: is(1) == is(2),
            epsilon: 1e-5,
        };
        let outputs = match ours {
            true => norm.made(chosen)?,
            false => norm.by_operators()?,
        };
        // Another gradient for each number; with the input's own numbers, those of the input would be nearly nothing.
        let mut total = outputs[0].f_mul(&numbers(&size, full)?.f_flip([2])?)?;
        if norm.change.is_some() {
            total = total.f_add(&outputs[1])?;
        }
        torch_ext::backward(&total.f_sum(Kind::Float)?)?;
        let gradients = leaves.iter().map(Tensor::grad).filter(Tensor::defined);
        Ok(outputs
            .iter()
            .map(Tensor::detach)
            .chain(gradients)
            .collect())
    };
    let (ours, theirs) = tch::with_grad(|| Ok::<_, Error>((run(true)?, run(false)?)))?;
    compared(
        &ours,
        &theirs,
        (&format!("norm {index} in {half:?}"), false),
    )
}
