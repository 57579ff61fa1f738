//! The weights of a model that is trained as a whole, as they were at a checkpoint: for using it, not for resuming.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use models::diffusion::Expert;
use models::formats::{SafetensorsFile, TensorSource};
use tch::{Kind, Tensor};

use super::{MODEL, OPTIMIZER, integrity};
use crate::Error;
use crate::config::{Config, Experts};

/// The tensors of a model with those of a checkpoint in their place. Where the run keeps averages, as its result is made of,
/// these; with a schedule-free optimizer, the weights as they are trained.
pub(crate) struct CheckpointWeights {
    trained: SafetensorsFile,
    state: SafetensorsFile,
    /// What precedes the names of this expert's tensors.
    prefix: &'static str,
    /// Tensors that are part of the model and not trained; `None` if all are.
    base: Option<Box<dyn TensorSource>>,
    unread: Unread,
}

/// Names of trained tensors that no model has read yet.
#[derive(Debug, Clone)]
pub(crate) struct Unread(Rc<RefCell<BTreeSet<String>>>, PathBuf);

impl Unread {
    /// Call this when the model is there.
    ///
    /// # Errors
    /// If it has not all of the trained tensors: it is another model.
    pub(crate) fn expect_none(&self) -> Result<(), Error> {
        match self.0.borrow().first() {
            None => Ok(()),
            Some(name) => Err(Error::checkpoint(
                &self.1,
                format!(
                    "it has `{name}`, which the model does not have: give the one that the run started from"
                ),
            )),
        }
    }
}

impl CheckpointWeights {
    /// Those of the checkpoint in the folder `path`, of this one of two experts, over `base`; `None` if the run did not train
    /// that expert.
    ///
    /// # Errors
    /// If it is none, or that of a LoRA.
    pub(crate) fn open(
        path: &Path,
        expert: Expert,
        base: Option<Box<dyn TensorSource>>,
    ) -> Result<Option<Self>, Error> {
        let config = integrity::read_state(path)?.config;
        let config = Config::parse("state.json", &config, &[])?;
        if config.adapter.is_some() {
            return Err(Error::checkpoint(
                path,
                "it is of a run that trains an adapter: give that with `--adapter`, or with `--lora` the file of the LoRA in it",
            ));
        }
        let trained = super::open(&path.join(MODEL))?;
        let names = trained.names();
        let mine = match expert {
            Expert::High => "high_noise.",
            Expert::Low => "low_noise.",
        };
        let is_of_both = names.iter().any(|name| name.starts_with(mine));
        let only = match config.train.experts {
            Some(Experts::Low) => Expert::Low,
            _ => Expert::High,
        };
        if !is_of_both && only != expert {
            return Ok(None);
        }
        let prefix = if is_of_both { mine } else { "" };
        let names = names.iter().filter_map(|name| name.strip_prefix(prefix));
        let unread = names.map(str::to_owned).collect();
        Ok(Some(Self {
            state: super::open(&path.join(OPTIMIZER))?,
            trained,
            prefix,
            base,
            unread: Unread(Rc::new(RefCell::new(unread)), path.to_owned()),
        }))
    }

    /// What of it no model has read yet.
    pub(crate) fn unread(&self) -> Unread {
        self.unread.clone()
    }

    /// The file that has the tensor `name`, and what it is called there; `None` if it is not trained.
    fn place(&self, name: &str) -> Option<(&SafetensorsFile, String)> {
        let name = format!("{}{name}", self.prefix);
        self.trained.shape(&name)?;
        let average = format!("ema.{name}");
        Some(match self.state.shape(&average) {
            Some(_) => (&self.state, average),
            None => (&self.trained, name),
        })
    }
}

impl TensorSource for CheckpointWeights {
    fn path(&self) -> &Path {
        self.trained.path()
    }

    fn names(&self) -> Vec<String> {
        let trained = self.trained.names();
        let trained = trained
            .iter()
            .filter_map(|name| name.strip_prefix(self.prefix));
        let mut names: BTreeSet<String> = trained.map(str::to_owned).collect();
        names.extend(self.base.iter().flat_map(|base| base.names()));
        names.into_iter().collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<i64>> {
        match (self.place(name), &self.base) {
            (Some((file, name)), _) => file.shape(&name),
            (None, base) => base.as_ref()?.shape(name),
        }
    }

    fn kind(&self, name: &str) -> Option<Kind> {
        match (self.place(name), &self.base) {
            (Some((file, name)), _) => file.kind(&name),
            (None, base) => base.as_ref()?.kind(name),
        }
    }

    fn read(&self, name: &str, kind: Kind) -> Result<Tensor, models::Error> {
        match (self.place(name), &self.base) {
            (Some((file, place)), _) => {
                self.unread.0.borrow_mut().remove(name);
                file.read(&place, kind)
            }
            (None, Some(base)) => base.read(name, kind),
            (None, None) => self.trained.read(name, kind),
        }
    }
}
