//! The folder that a model trained from scratch is exported to.

use std::path::Path;

use models::Parameters;
use models::formats::write_tensors;

use crate::Error;

/// Writes a model with the parts in `from` and a transformer with `weights`.
pub(super) fn write_model(from: &Path, to: &Path, weights: &Parameters) -> Result<(), Error> {
    copy(from, to)?;
    let path = to.join("transformer/diffusion_pytorch_model.safetensors");
    write_tensors(&path, &weights.named())?;
    Ok(())
}

/// Copies a folder recursively.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(to).map_err(|error| Error::io("create", to, error))?;
    let entries = std::fs::read_dir(from).map_err(|error| Error::io("read", from, error))?;
    for entry in entries {
        let path = entry
            .map_err(|error| Error::io("read", from, error))?
            .path();
        let target = to.join(path.file_name().unwrap_or_default());
        match path.is_dir() {
            true => copy(&path, &target)?,
            false => {
                let copied = std::fs::copy(&path, &target);
                copied.map_err(|error| Error::io("write", &target, error))?;
            }
        }
    }
    Ok(())
}
