//! Pictures in overlapping tiles that are computed independently and blended.

use tch::Tensor;

use crate::Error;

/// How a picture is split into tiles, in pixels. A picture that fits into one tile is not split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Height and width of a tile.
    pub size: (i64, i64),
    /// Rows and columns from one tile to the next; the rest of `size` overlaps.
    pub stride: (i64, i64),
}

impl Default for Tiling {
    /// diffusers' defaults.
    fn default() -> Self {
        Self {
            size: (256, 256),
            stride: (192, 192),
        }
    }
}

/// The tiles of a picture, in its own units.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    picture: (i64, i64),
    size: (i64, i64),
    stride: (i64, i64),
    rows: i64,
    columns: i64,
    /// Size of a tile's output relative to its input, as a fraction.
    scale: (i64, i64),
    /// Height and width of the overlap between outputs.
    overlap: (i64, i64),
}

impl Grid {
    /// One tile, the whole picture.
    pub(crate) fn single(picture: (i64, i64)) -> Self {
        Self {
            picture,
            size: picture,
            stride: picture,
            rows: 1,
            columns: 1,
            scale: (1, 1),
            overlap: (0, 0),
        }
    }

    /// Tiles of `size`, `stride` apart, whose outputs are `scale` times as large and overlap by `overlap`.
    pub(crate) fn new(
        picture: (i64, i64),
        size: (i64, i64),
        stride: (i64, i64),
        scale: (i64, i64),
        overlap: (i64, i64),
    ) -> Self {
        let count = |length: i64, stride: i64| (length + stride - 1) / stride;
        Self {
            picture,
            size,
            stride,
            rows: count(picture.0, stride.0),
            columns: count(picture.1, stride.1),
            scale,
            overlap,
        }
    }

    /// Number of tiles.
    pub(crate) fn count(&self) -> usize {
        (self.rows * self.columns) as usize
    }

    /// Applies `compute` to each tile of `[frames, channels, height, width]`, with the tile's index, and
    /// blends the results.
    pub(crate) fn map(
        &self,
        picture: &Tensor,
        mut compute: impl FnMut(usize, &Tensor) -> Result<Tensor, Error>,
    ) -> Result<Tensor, Error> {
        if self.count() == 1 {
            return compute(0, picture);
        }
        let (times, over) = self.scale;
        let made = |length: i64| length * times / over;
        let kept = (made(self.stride.0), made(self.stride.1));
        let mut above: Vec<Tensor> = Vec::new();
        let mut bands = Vec::new();
        for row in 0..self.rows {
            let mut tiles: Vec<Tensor> = Vec::new();
            let mut band = Vec::new();
            for column in 0..self.columns {
                let (top, left) = (row * self.stride.0, column * self.stride.1);
                let height = self.size.0.min(self.picture.0 - top);
                let width = self.size.1.min(self.picture.1 - left);
                let tile = picture
                    .f_narrow(2, top, height)?
                    .f_narrow(3, left, width)?
                    .f_contiguous()?;
                let number = (row * self.columns + column) as usize;
                let mut tile = compute(number, &tile)?;
                if let Some(above) = above.get(column as usize) {
                    tile = blended(above, &tile, 2, self.overlap.0)?;
                }
                if let Some(before) = tiles.last() {
                    tile = blended(before, &tile, 3, self.overlap.1)?;
                }
                let (_, _, height, width) = tile.size4()?;
                band.push(tile.f_narrow(2, 0, kept.0.min(height))?.f_narrow(
                    3,
                    0,
                    kept.1.min(width),
                )?);
                tiles.push(tile);
            }
            bands.push(Tensor::f_cat(&band, 3)?);
            above = tiles;
        }
        Ok(Tensor::f_cat(&bands, 2)?
            .f_narrow(2, 0, made(self.picture.0))?
            .f_narrow(3, 0, made(self.picture.1))?)
    }
}

/// `tile` with its first `overlap` rows (columns, depending on `dim`) cross-faded with the last ones of
/// `before`.
fn blended(before: &Tensor, tile: &Tensor, dim: i64, overlap: i64) -> Result<Tensor, Error> {
    let lengths = (before.size()[dim as usize], tile.size()[dim as usize]);
    let overlap = overlap.min(lengths.0).min(lengths.1);
    if overlap == 0 {
        return Ok(tile.shallow_clone());
    }
    let mut shape = [1; 4];
    shape[dim as usize] = overlap;
    let share = Tensor::f_arange(overlap, (tch::Kind::Float, tile.device()))?
        .f_div_scalar(overlap as f64)?
        .f_to_kind(tile.kind())?
        .f_view(shape)?;
    let others = before.f_narrow(dim, lengths.0 - overlap, overlap)?;
    let own = tile.f_narrow(dim, 0, overlap)?;
    let mixed = others
        .f_mul(&share.f_neg()?.f_add_scalar(1.0)?)?
        .f_add(&own.f_mul(&share)?)?;
    let rest = tile.f_narrow(dim, overlap, lengths.1 - overlap)?;
    Ok(Tensor::f_cat(&[&mixed, &rest], dim)?)
}
