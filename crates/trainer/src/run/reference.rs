//! What a task needs of the model before the first step: computed then, and kept in the run folder.

use std::path::Path;

use tch::{Kind, Tensor};

use super::Run;
use crate::Error;
use crate::observer::Observer;
use crate::run_folder::REFERENCE;
use crate::task::{Share, Task};
use models::formats::{SafetensorsFile, TensorSource, write_tensors};

/// Its only tensor in the file.
const NAME: &str = "reference";

impl Run<'_> {
    /// Computes it in a new run, each rank its share, and reads it in one that goes on.
    pub(super) fn prepare_reference(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        let Some(reference) = self.task.reference() else {
            return Ok(());
        };
        self.ranks
            .doing("the log-probabilities of the model before the first step")?;
        let path = self.folder.join(REFERENCE);
        let own = match self.resumed_at {
            None => {
                let share = Share::of(self.ranks.rank(), self.ranks.size());
                reference.compute(share, &mut self.placer, observer)?
            }
            Some(_) if self.folder.is_written_here() => read(&path)?,
            Some(_) => vec![0.0; reference.numbers()],
        };
        let all = self.ranks.sum_numbers(&own)?;
        if self.resumed_at.is_none() && self.folder.is_written_here() {
            let tensor = Tensor::f_from_slice(&all)?.f_to_kind(Kind::Float)?;
            write_tensors(&path, &[(NAME.to_owned(), &tensor)])?;
        }
        reference.set(&all)
    }
}

/// Has `task` know what the run in `folder` computed.
///
/// # Errors
/// If the file is missing or damaged.
pub(crate) fn restore_reference(task: &mut dyn Task, folder: &Path) -> Result<(), Error> {
    match task.reference() {
        Some(reference) => reference.set(&read(&folder.join(REFERENCE))?),
        None => Ok(()),
    }
}

fn read(path: &Path) -> Result<Vec<f64>, Error> {
    let tensor = SafetensorsFile::open(path)?.read(NAME, Kind::Double)?;
    Ok(Vec::<f64>::try_from(&tensor)?)
}
