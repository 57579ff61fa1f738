//! Filling the cache of a run on videos without training: `surefoot cache CONFIG`.

use crate::Error;
use crate::allocator::Allocator;
use crate::config::Config;
use crate::media::Encoded;
use crate::observer::Observer;
use crate::setup::{Machine, video_model};
use crate::task::diffusion::encode_data;

/// Encodes the clips and captions that `config` names, as far as they are not in the cache.
///
/// # Errors
/// When the config is not one of videos, and as a run that begins with it.
pub fn encode(
    config: &Config,
    allocator: &Allocator,
    observer: &mut dyn Observer,
) -> Result<Encoded, Error> {
    if !config.is_video() {
        return Err(Error::Data(
            "only clips and their captions are encoded before a run, and this config is not one of \
             videos: `data.resolution` is not set"
                .into(),
        ));
    }
    let machine = Machine::prepare(config, allocator)?;
    let mut placer = machine.placer()?;
    let path = video_model(config, observer)?;
    encode_data(config, &path, &mut placer, observer)
}
