//! Rotary position embedding in three dimensions: each head is divided among frames, rows and columns.

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::fused::{self, Angles, TurnedHeads};
use crate::model::layers::RmsNorm;
use crate::tensor::to_kind;

const THETA: f64 = 10_000.0;

/// The rotations of the tokens of a batch.
#[derive(Debug)]
pub struct Rotary {
    /// `[1 or batch, tokens, 1, head width / 2]`, complex numbers of magnitude one.
    rotations: Tensor,
    /// Whether a pair is a number of the first half of a head and that of the second at the same place; otherwise it is
    /// two adjacent ones.
    by_halves: bool,
}

impl Rotary {
    /// For `frames` × `rows` × `columns` tokens and heads of width `width`.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(grid: [i64; 3], width: i64, device: Device) -> Result<Self, Error> {
        let in_space = 2 * (width / 6);
        let widths = [width - 2 * in_space, in_space, in_space];
        let mut angles = Vec::new();
        for (axis, width) in widths.into_iter().enumerate() {
            let positions = Tensor::f_arange(grid[axis], (Kind::Double, Device::Cpu))?;
            let mut shape = [1, 1, 1, width / 2];
            shape[axis] = grid[axis];
            let all = [grid[0], grid[1], grid[2], width / 2];
            let axis = angles_of(&positions, width, THETA)?.f_view(shape)?;
            angles.push(axis.f_expand(all, false)?);
        }
        let tokens = grid.iter().product::<i64>();
        let angles = Tensor::f_cat(&angles, -1)?.f_view([1, tokens, 1, width / 2])?;
        Self::of_angles(&angles, device)
    }

    /// For tokens at any place: the positions on each axis, `[1 or batch, tokens]`, with the width of the part of a
    /// head that it turns. Angles are rounded to single precision, as by the models that are positioned like this.
    ///
    /// # Errors
    /// If shapes do not match or memory runs out.
    pub fn at(axes: &[(Tensor, i64)], theta: f64, device: Device) -> Result<Self, Error> {
        let axes = axes.iter().map(|(at, width)| (at, *width, theta));
        Self::of_angles(&angles_at(axes)?.f_to_kind(Kind::Float)?, device)
    }

    /// The same with angles in double precision.
    ///
    /// # Errors
    /// As [`Rotary::at`].
    pub fn exactly_at(axes: &[(Tensor, i64)], theta: f64, device: Device) -> Result<Self, Error> {
        let axes = axes.iter().map(|(at, width)| (at, *width, theta));
        Self::of_angles(&angles_at(axes)?, device)
    }

    /// The same for `words` tokens of a text, which are at position zero, and those of a picture of as many rows and columns;
    /// `widths` are the parts of a head that are turned by the picture, the row and the column.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn behind_text(
        (words, (rows, columns)): (i64, (i64, i64)),
        widths: [i64; 3],
        theta: f64,
        device: Device,
    ) -> Result<Self, Error> {
        let of = |count: i64| Tensor::f_arange(count, (Kind::Double, Device::Cpu));
        let [row, column] = places(&of(rows)?, &of(columns)?)?;
        let places = [row.f_zeros_like()?, row, column].into_iter();
        let mut axes = Vec::new();
        for (place, width) in places.zip(widths) {
            axes.push((place.f_constant_pad_nd([words, 0])?, width));
        }
        Self::exactly_at(&axes, theta, device)
    }

    /// As [`Rotary::at`], with a base of the frequencies for each axis, for models that pair the halves of a head.
    ///
    /// # Errors
    /// If shapes do not match or memory runs out.
    pub fn of_halves(axes: &[(Tensor, i64, f64)], device: Device) -> Result<Self, Error> {
        let axes = axes.iter().map(|(at, width, theta)| (at, *width, *theta));
        Ok(Self {
            by_halves: true,
            ..Self::of_angles(&angles_at(axes)?.f_to_kind(Kind::Float)?, device)?
        })
    }

    fn of_angles(angles: &Tensor, device: Device) -> Result<Self, Error> {
        let parts = [angles.f_cos()?, angles.f_sin()?];
        let parts = Tensor::f_stack(&parts, -1)?.f_to_kind(Kind::Float)?;
        Ok(Self {
            rotations: parts.f_to_device(device)?.f_view_as_complex()?,
            by_halves: false,
        })
    }

    /// What [`Rotary::rotated`] makes of heads after a `norm`, if there is one.
    ///
    /// # Errors
    /// As there.
    pub fn normed(&self, norm: Option<&RmsNorm>, input: &Tensor) -> Result<Tensor, Error> {
        let weight = norm.map(RmsNorm::weight_of_kernel).transpose()?;
        if !fused::may_be_on(input.device()) || matches!(weight, Some(None)) {
            return match norm {
                Some(norm) => self.by_operators(&norm.in_its_type(input)?),
                None => self.by_operators(input),
            };
        }
        let weight = weight.flatten();
        let parts = self.rotations.f_view_as_real()?.f_squeeze_dim(2)?;
        let heads = TurnedHeads {
            input,
            weight: weight.as_ref(),
            epsilon: norm.map(|norm| norm.epsilon),
            angles: &Angles {
                cosines: parts.f_select(-1, 0)?,
                sines: parts.f_select(-1, 1)?,
                by_halves: self.by_halves,
            },
        };
        match (heads.by_kernel()?, norm) {
            (Some(turned), _) => Ok(turned),
            (None, Some(norm)) => self.by_operators(&norm.in_its_type(input)?),
            (None, None) => self.by_operators(input),
        }
    }

    /// `[batch, tokens, heads, width]` with each pair rotated; computed in fp32.
    ///
    /// # Errors
    /// If shapes do not match or memory runs out.
    pub fn rotated(&self, input: &Tensor) -> Result<Tensor, Error> {
        self.normed(None, input)
    }

    fn by_operators(&self, input: &Tensor) -> Result<Tensor, Error> {
        let (batch, tokens, heads, width) = input.size4()?;
        let input_in_fp32 = to_kind(input, Kind::Float)?;
        let pairs = match self.by_halves {
            false => input_in_fp32.f_reshape([batch, tokens, heads, width / 2, 2])?,
            true => input_in_fp32
                .f_reshape([batch, tokens, heads, 2, width / 2])?
                .f_transpose(3, 4)?
                .f_contiguous()?,
        };
        let turned = pairs.f_view_as_complex()?.f_mul(&self.rotations)?;
        let turned = match self.by_halves {
            false => turned.f_view_as_real()?,
            true => turned.f_view_as_real()?.f_transpose(3, 4)?,
        };
        to_kind(
            &turned.f_reshape([batch, tokens, heads, width])?,
            input.kind(),
        )
    }

    /// A second handle to the same rotations.
    pub fn shallow_clone(&self) -> Self {
        Self {
            rotations: self.rotations.shallow_clone(),
            by_halves: self.by_halves,
        }
    }
}

/// The row and the column of each token, `[1, tokens]`, of the positions of rows and of columns.
pub(crate) fn places(rows: &Tensor, columns: &Tensor) -> Result<[Tensor; 2], Error> {
    let grid = [rows.size1()?, columns.size1()?];
    let of = |positions: Tensor| positions.f_expand(grid, false)?.f_reshape([1, -1]);
    Ok([of(rows.f_unsqueeze(1)?)?, of(columns.f_unsqueeze(0)?)?])
}

/// Angles of the positions on each axis, `[1 or batch, tokens]`, with the width of its part and the base of its
/// frequencies: `[1 or batch, tokens, 1, head width / 2]`, in double precision.
fn angles_at<'a>(axes: impl Iterator<Item = (&'a Tensor, i64, f64)>) -> Result<Tensor, Error> {
    let angles = axes.map(|(positions, width, theta)| {
        angles_of(&positions.f_to_kind(Kind::Double)?, width, theta)
    });
    let angles = Tensor::f_cat(&angles.collect::<Result<Vec<_>, Error>>()?, -1)?;
    Ok(angles.f_unsqueeze(2)?)
}

/// Angles of positions `[…]`: `[…, width / 2]`, in double precision like the reference.
fn angles_of(positions: &Tensor, width: i64, theta: f64) -> Result<Tensor, Error> {
    let options = (Kind::Double, Device::Cpu);
    let exponents = Tensor::f_arange_start_step(0, width, 2, options)?;
    let exponents = exponents.f_div_scalar(width as f64)?;
    let frequencies = Tensor::f_pow_scalar(theta, &exponents)?.f_reciprocal()?;
    Ok(positions.f_unsqueeze(-1)?.f_mul(&frequencies)?)
}
