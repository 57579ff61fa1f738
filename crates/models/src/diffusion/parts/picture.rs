//! A picture's latents as the tokens of a transformer, and back.

use tch::{Device, Kind, Tensor};

use super::double::{modulated, vectors};
use crate::Error;
use crate::model::layers::Linear;
use crate::model::{Builder, Initial};
use crate::tensor::to_kind;

/// Rows and columns of the tokens of latents `[batch, channels, 1, height, width]`, of which each has `patch` × `patch`.
pub(crate) fn grid(latents: &Tensor, channels: i64, patch: i64) -> Result<(i64, i64), Error> {
    let (_, found, frames, height, width) = latents.size5()?;
    let fits = |side: i64| side >= patch && side % patch == 0;
    match found == channels && frames == 1 && fits(height) && fits(width) {
        true => Ok((height / patch, width / patch)),
        false => Err(Error::Invalid(format!(
            "latents of {found} channels and {frames} × {height} × {width}: this model takes {channels} channels, one frame \
             and sides that are multiples of {patch}"
        ))),
    }
}

/// Fails unless there is a text of this `width` for each of `batch` pictures, of whose rows as many count as `tokens` says.
pub(crate) fn check_texts(
    text: &Tensor,
    (batch, width): (i64, i64),
    tokens: Option<&[i64]>,
) -> Result<(), Error> {
    let (texts, rows, found) = text.size3()?;
    let counted = tokens.is_none_or(|tokens| {
        tokens.len() as i64 == batch && tokens.iter().all(|count| (1..=rows).contains(count))
    });
    if texts == batch && rows > 0 && found == width && counted {
        return Ok(());
    }
    let tokens = tokens.map_or(String::new(), |tokens| format!(" with {tokens:?} tokens"));
    Err(Error::Invalid(format!(
        "texts of shape [{texts}, {rows}, {found}]{tokens} for {batch} pictures: this model takes one of width {width} for \
         each"
    )))
}

/// Which tokens of texts padded to `words` tokens, and of the pictures behind them, are seen on `device`, if of each text as
/// many count as `tokens` says: `[batch, 1, 1, tokens]`; `None` for all.
pub(crate) fn seen(
    tokens: &[i64],
    (words, pictured): (i64, i64),
    device: Device,
) -> Result<Option<Tensor>, Error> {
    if tokens.iter().all(|count| *count == words) {
        return Ok(None);
    }
    let counts = Tensor::f_from_slice(tokens)?.f_unsqueeze(1)?;
    let texts = Tensor::f_arange(words, (Kind::Int64, Device::Cpu))?.f_lt_tensor(&counts)?;
    let batch = tokens.len() as i64;
    let pictures = Tensor::f_ones([batch, pictured], (Kind::Bool, Device::Cpu))?;
    let seen = Tensor::f_cat(&[texts, pictures], 1)?;
    let seen = seen.f_unsqueeze(1)?.f_unsqueeze(1)?;
    Ok(Some(seen.f_to_device(device)?))
}

/// `[batch, tokens, numbers of a token]`: the channel comes first.
pub(crate) fn patched(latents: &Tensor, patch: i64) -> Result<Tensor, Error> {
    let (batch, channels, _, height, width) = latents.size5()?;
    let (rows, columns) = (height / patch, width / patch);
    Ok(latents
        .f_reshape([batch, channels, rows, patch, columns, patch])?
        .f_permute([0, 2, 4, 1, 3, 5])?
        .f_reshape([batch, rows * columns, channels * patch * patch])?)
}

/// Tokens as `[batch, channels, 1, height, width]`.
pub(crate) fn unpatched(
    tokens: &Tensor,
    (rows, columns): (i64, i64),
    patch: i64,
) -> Result<Tensor, Error> {
    let (batch, _, numbers) = tokens.size3()?;
    let channels = numbers / (patch * patch);
    Ok(tokens
        .f_reshape([batch, rows, columns, channels, patch, patch])?
        .f_permute([0, 3, 1, 4, 2, 5])?
        .f_reshape([batch, channels, 1, rows * patch, columns * patch])?)
}

/// The last norm of a picture, scaled and shifted by the time, and the layer that makes its tokens.
#[derive(Debug)]
pub(crate) struct LastLayer {
    /// `None` if the model makes the vectors.
    modulation: Option<Linear>,
    output: Linear,
    epsilon: f64,
}

impl LastLayer {
    /// For a stream of `width`, with `outputs` numbers of a token.
    pub(crate) fn new(
        (width, outputs): (i64, i64),
        bias: bool,
        epsilon: f64,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        let initial = Initial::Normal(0.02);
        let modulation = builder.linear("norm_out.linear", (width, 2 * width), bias, initial)?;
        Ok(Self {
            modulation: Some(modulation),
            ..Self::unmodulated((width, outputs), bias, epsilon, builder)?
        })
    }

    /// The same for a model that makes the norm's scale and shift itself.
    pub(crate) fn unmodulated(
        (width, outputs): (i64, i64),
        bias: bool,
        epsilon: f64,
        builder: &mut Builder,
    ) -> Result<Self, Error> {
        Ok(Self {
            modulation: None,
            output: builder.linear("proj_out", (width, outputs), bias, Initial::Zeros)?,
            epsilon,
        })
    }

    /// Of the picture's stream `[batch, tokens, width]`, and of the `time` after its activation, `[batch, width]`, or of scale
    /// and shift, `[batch, 2 · width]`: tokens in fp32.
    pub(crate) fn forward(
        &self,
        picture: &Tensor,
        time: &Tensor,
        dropout: bool,
    ) -> Result<Tensor, Error> {
        let [scale, shift] = match &self.modulation {
            Some(linear) => vectors(&to_kind(&linear.forward(time, dropout)?, Kind::Float)?)?,
            None => vectors(time)?,
        };
        let normed = modulated(picture, (&shift, &scale), self.epsilon)?;
        to_kind(&self.output.forward(&normed, dropout)?, Kind::Float)
    }
}
