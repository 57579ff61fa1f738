//! What the model makes on the way.

use super::Run;
use crate::Error;
use crate::checkpoint;
use crate::observer::Observer;

impl Run<'_> {
    /// Samples, and their files in the run folder.
    pub(super) fn sample(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        if self.config.sample.max_new_tokens == 0 || !self.folder.is_written_here() {
            return Ok(());
        }
        let what = format!("the samples after step {}", self.step);
        self.ranks.doing(&what)?;
        let name = format!("step-{:06}", self.step);
        let folder = self.folder.join("samples");
        // A round that a run goes on from before it is made again.
        let (draft, target) = (folder.join(format!(".{name}.tmp")), folder.join(&name));
        checkpoint::remove_if_there(&draft)?;
        let mut samples =
            self.with_averages(|run| run.task.sample(run.step, &draft, &mut run.placer))?;
        if samples.iter().all(|sample| sample.files.is_empty()) {
            // What broke off is nothing to look at.
            checkpoint::remove_if_there(&draft)?;
        } else {
            checkpoint::remove_if_there(&target)?;
            std::fs::rename(&draft, &target).map_err(|error| Error::io("write", &target, error))?;
        }
        for file in samples.iter_mut().flat_map(|sample| &mut sample.files) {
            *file = format!("samples/{name}/{file}");
        }
        self.recorder.samples(self.step, &samples)?;
        observer.sampled(self.step, &samples);
        Ok(())
    }
}
