//! Filling the cache of a run on videos without training: `surefoot cache CONFIG`.

use std::path::Path;

use crate::Error;
use crate::allocator::Allocator;
use crate::config::Config;
use crate::hub::{ModelKind, locate_model};
use crate::observer::Observer;
use crate::setup::Machine;
use crate::task::wan::encode_data;
use crate::video::Encoded;

/// Encodes the clips and captions that `config` names, as far as they are not in the cache.
///
/// # Errors
/// When the config is not one of videos, and as a run that begins with it.
pub fn encode(
    config: &Config,
    allocator: &Allocator,
    observer: &mut dyn Observer,
) -> Result<Encoded, Error> {
    let name = config
        .model
        .name_or_path
        .as_deref()
        .filter(|_| config.is_video());
    let Some(name) = name else {
        return Err(Error::Data(
            "only clips and their captions are encoded before a run, and this config is not one of \
             videos: `data.resolution` is not set"
                .into(),
        ));
    };
    let machine = Machine::prepare(config, allocator)?;
    let mut placer = machine.placer()?;
    let path = locate_model(Path::new(name), ModelKind::Video, &mut |text| {
        observer.preparing(text);
    })?;
    encode_data(config, &path, &mut placer, observer)
}
