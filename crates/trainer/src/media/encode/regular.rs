//! Regularisation media: what the model should go on to know.

use std::path::Path;

use super::super::sources::is_inside;
use super::super::texts::PlannedTexts;
use super::{Encoder, PlannedClip};
use crate::Error;
use crate::config::DataConfig;
use crate::observer::Observer;

impl Encoder<'_> {
    /// The clips of the regularisation media in `folder`, where those to learn are at `path`.
    pub(super) fn regular(
        &self,
        folder: &Path,
        path: &Path,
        captions: &mut PlannedTexts,
        observer: &mut dyn Observer,
    ) -> Result<Vec<PlannedClip>, Error> {
        let reason = match () {
            () if !folder.exists() => "which does not exist",
            () if is_inside(folder, path) => {
                "inside `data.path`, where they would be learned: move it out of there"
            }
            () if is_inside(path, folder) => {
                "which has `data.path` in it, whose media would be both: move that out of there"
            }
            () => "",
        };
        if !reason.is_empty() {
            let folder = folder.display();
            return Err(Error::Data(format!(
                "`data.reg_data_dir` names `{folder}`, {reason}"
            )));
        }
        // The word stands for what is learned.
        let data = DataConfig {
            trigger_word: None,
            ..self.config.data.clone()
        };
        let mut planned = self.plan(folder, &data, captions, observer)?;
        for PlannedClip { clip, .. } in &mut planned {
            clip.is_regular = true;
        }
        Ok(planned)
    }
}
