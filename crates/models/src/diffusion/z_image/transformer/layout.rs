//! Which tokens there are in a pass, where they are, and which of them are seen.

use tch::{Device, Kind, Tensor};

use super::{PATCH, SEQUENCE_STEP, TransformerConfig};
use crate::Error;

/// `length` as a multiple of [`SEQUENCE_STEP`].
pub(in crate::diffusion::z_image) fn filled(length: i64) -> i64 {
    (length + SEQUENCE_STEP - 1) / SEQUENCE_STEP * SEQUENCE_STEP
}

/// Positions of the tokens of one row of a batch, on each axis.
pub(super) type Positions = [Vec<i64>; 3];

/// Which tokens there are in a pass.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) batch: i64,
    /// Rows and columns of the picture's tokens.
    grid: (i64, i64),
    /// Tokens of each text.
    pub(super) tokens: Vec<i64>,
    channels: i64,
}

impl Layout {
    pub(super) fn new(
        config: &TransformerConfig,
        latents: &Tensor,
        text: &Tensor,
        tokens: &[i64],
    ) -> Result<Self, Error> {
        let (batch, channels, frames, height, width) = latents.size5()?;
        let (texts, rows, text_width) = text.size3()?;
        let grid = (height / PATCH, width / PATCH);
        let [_, most_rows, most_columns] = config.axes_lens;
        let fits = height % PATCH == 0
            && width % PATCH == 0
            && (1..=most_rows).contains(&grid.0)
            && (1..=most_columns).contains(&grid.1);
        if channels != config.in_channels || frames != 1 || !fits {
            return Err(Error::Invalid(format!(
                "latents of {channels} channels and {frames} × {height} × {width}: this model takes {} channels, one \
                 frame, and multiples of {PATCH} up to {most_rows} × {most_columns} times that",
                config.in_channels
            )));
        }
        let most = (config.axes_lens[0] - 2) / SEQUENCE_STEP * SEQUENCE_STEP;
        let counted = tokens
            .iter()
            .all(|count| (1..=rows.min(most)).contains(count));
        if texts != batch
            || tokens.len() as i64 != batch
            || text_width != config.cap_feat_dim
            || !counted
        {
            return Err(Error::Invalid(format!(
                "texts of shape [{texts}, {rows}, {text_width}] with {tokens:?} tokens for {batch} pictures: this model \
                 takes one of width {} and from 1 to {most} tokens for each",
                config.cap_feat_dim
            )));
        }
        Ok(Self {
            batch,
            grid,
            tokens: tokens.to_vec(),
            channels,
        })
    }

    /// Tokens of the picture.
    pub(super) fn picture_tokens(&self) -> i64 {
        self.grid.0 * self.grid.1
    }

    /// The same with the fillers.
    pub(super) fn picture(&self) -> i64 {
        filled(self.picture_tokens())
    }

    pub(super) fn picture_fill(&self) -> i64 {
        self.picture() - self.picture_tokens()
    }

    /// Tokens of the longest text with its fillers.
    pub(super) fn text(&self) -> i64 {
        filled(self.tokens.iter().max().copied().unwrap_or(1))
    }

    /// Whether all texts have the same length with their fillers.
    fn is_even(&self) -> bool {
        self.tokens
            .iter()
            .all(|count| filled(*count) == self.text())
    }

    /// Booleans `[batch, tokens of the longest text]`.
    pub(super) fn row_by_row(&self, is: impl Fn(usize, i64) -> bool) -> Result<Tensor, Error> {
        let rows = 0..self.tokens.len();
        let all = rows.flat_map(|row| (0..self.text()).map(move |index| (row, index)));
        let all: Vec<bool> = all.map(|(row, index)| is(row, index)).collect();
        Ok(Tensor::f_from_slice(&all)?.f_view([self.batch, self.text()])?)
    }

    /// Which of `before` tokens of the picture and those of the text are seen, `[batch, 1, 1, tokens]`; `None` for all.
    pub(super) fn seen(&self, before: i64) -> Result<Option<Tensor>, Error> {
        if self.is_even() {
            return Ok(None);
        }
        let texts = self.row_by_row(|row, index| index < filled(self.tokens[row]))?;
        let pictures = Tensor::f_ones([self.batch, before], (Kind::Bool, Device::Cpu))?;
        let seen = Tensor::f_cat(&[pictures, texts], 1)?;
        Ok(Some(seen.f_unsqueeze(1)?.f_unsqueeze(1)?))
    }

    /// The picture behind a text whose length with fillers is `text`.
    fn picture_behind(&self, text: i64) -> Positions {
        let (rows, columns) = self.grid;
        let mut positions = Positions::default();
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
        {
            for (axis, position) in positions.iter_mut().zip([text + 1, row, column]) {
                axis.push(position);
            }
        }
        for axis in &mut positions {
            axis.resize(self.picture() as usize, 0);
        }
        positions
    }

    /// One row if all are alike.
    fn rows(&self) -> Vec<i64> {
        let rows = if self.is_even() { 1 } else { self.tokens.len() };
        self.tokens.iter().take(rows).copied().map(filled).collect()
    }

    pub(super) fn picture_positions(&self) -> Vec<Positions> {
        let rows = self.rows();
        rows.iter().map(|text| self.picture_behind(*text)).collect()
    }

    pub(super) fn text_positions(&self) -> Vec<Positions> {
        let zeros = vec![0; self.text() as usize];
        vec![[(1..=self.text()).collect(), zeros.clone(), zeros]]
    }

    /// Picture, then text.
    pub(super) fn positions(&self) -> Vec<Positions> {
        let mut rows = self.picture_positions();
        let text = &self.text_positions()[0];
        for row in &mut rows {
            for (axis, text) in row.iter_mut().zip(text) {
                axis.extend(text);
            }
        }
        rows
    }

    /// Patches, whose channels come last, as `[batch, channels, 1, height, width]`.
    pub(super) fn unpatched(&self, patches: &Tensor) -> Result<Tensor, Error> {
        let (rows, columns) = self.grid;
        Ok(patches
            .f_reshape([self.batch, rows, columns, PATCH, PATCH, self.channels])?
            .f_permute([0, 5, 1, 3, 2, 4])?
            .f_reshape([self.batch, self.channels, 1, rows * PATCH, columns * PATCH])?)
    }
}
