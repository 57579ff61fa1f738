//! Rotary position embedding in three dimensions: each head is divided among frames, rows and columns.

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::tensor::to_kind;

const THETA: f64 = 10_000.0;

/// The rotations of the tokens of a batch.
#[derive(Debug)]
pub struct Rotary {
    /// `[1 or batch, tokens, 1, head width / 2]`, complex numbers of magnitude one.
    rotations: Tensor,
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
        let angles = Self::angles_at(axes, theta)?;
        Self::of_angles(&angles.f_to_kind(Kind::Float)?, device)
    }

    /// The same with angles in double precision.
    ///
    /// # Errors
    /// As [`Rotary::at`].
    pub fn exactly_at(axes: &[(Tensor, i64)], theta: f64, device: Device) -> Result<Self, Error> {
        Self::of_angles(&Self::angles_at(axes, theta)?, device)
    }

    /// `[1 or batch, tokens, 1, head width / 2]`
    fn angles_at(axes: &[(Tensor, i64)], theta: f64) -> Result<Tensor, Error> {
        let angles = axes.iter().map(|(positions, width)| {
            let positions = positions.f_to_kind(Kind::Double)?;
            angles_of(&positions, *width, theta)
        });
        let angles = Tensor::f_cat(&angles.collect::<Result<Vec<_>, _>>()?, -1)?;
        Ok(angles.f_unsqueeze(2)?)
    }

    fn of_angles(angles: &Tensor, device: Device) -> Result<Self, Error> {
        let parts = [angles.f_cos()?, angles.f_sin()?];
        let parts = Tensor::f_stack(&parts, -1)?.f_to_kind(Kind::Float)?;
        Ok(Self {
            rotations: parts.f_to_device(device)?.f_view_as_complex()?,
        })
    }

    /// `[batch, tokens, heads, width]` with each adjacent pair rotated; computed in fp32.
    ///
    /// # Errors
    /// If shapes do not match or memory runs out.
    pub fn rotated(&self, input: &Tensor) -> Result<Tensor, Error> {
        let (batch, tokens, heads, width) = input.size4()?;
        let pairs = to_kind(input, Kind::Float)?
            .f_reshape([batch, tokens, heads, width / 2, 2])?
            .f_view_as_complex()?;
        let turned = pairs.f_mul(&self.rotations)?.f_view_as_real()?;
        to_kind(
            &turned.f_reshape([batch, tokens, heads, width])?,
            input.kind(),
        )
    }

    /// A second handle to the same rotations.
    pub fn shallow_clone(&self) -> Self {
        Self {
            rotations: self.rotations.shallow_clone(),
        }
    }
}

/// Angles of positions `[…]`: `[…, width / 2]`, in double precision like the reference.
fn angles_of(positions: &Tensor, width: i64, theta: f64) -> Result<Tensor, Error> {
    let options = (Kind::Double, Device::Cpu);
    let exponents = Tensor::f_arange_start_step(0, width, 2, options)?;
    let exponents = exponents.f_div_scalar(width as f64)?;
    let frequencies = Tensor::f_pow_scalar(theta, &exponents)?.f_reciprocal()?;
    Ok(positions.f_unsqueeze(-1)?.f_mul(&frequencies)?)
}
