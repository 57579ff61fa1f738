//! Samples during training. Several processes generate a share each, and rank 0 collects them.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Run;
use crate::Error;
use crate::checkpoint;
use crate::events::Sample;
use crate::observer::Observer;
use crate::task::Share;

/// The samples of a rank, as they are sent to rank 0: this as JSON, followed by the contents of the files.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SamplePacket {
    samples: Vec<(usize, Sample)>,
    /// Names and lengths of the files.
    files: Vec<(String, usize)>,
}

impl Run<'_> {
    /// Generates samples, and writes their files into the run folder.
    pub(super) fn sample(&mut self, observer: &mut dyn Observer) -> Result<(), Error> {
        if self.config.sample.max_new_tokens == 0 {
            return Ok(());
        }
        let what = format!("the samples after step {}", self.step);
        self.ranks.doing(&what)?;
        let name = format!("step-{:06}", self.step);
        let folder = self.folder.join("samples");
        // Samples of a step that is repeated after a resume are written again.
        let (draft, target) = (folder.join(format!(".{name}.tmp")), folder.join(&name));
        let is_written_here = self.folder.is_written_here();
        if is_written_here {
            checkpoint::remove_if_there(&draft)?;
        }
        let made = self.with_averages(|run| run.samples_of_all(&draft))?;
        let Some(mut samples) = made.filter(|_| is_written_here) else {
            return Ok(());
        };
        if samples.iter().all(|sample| sample.files.is_empty()) {
            // Remove incomplete samples.
            checkpoint::remove_if_there(&draft)?;
        } else {
            checkpoint::remove_if_there(&target)?;
            fs::rename(&draft, &target).map_err(|error| Error::io("write", &target, error))?;
        }
        for file in samples.iter_mut().flat_map(|sample| &mut sample.files) {
            *file = format!("samples/{name}/{file}");
        }
        self.recorder.samples(self.step, &samples)?;
        observer.sampled(self.step, &samples);
        Ok(())
    }

    /// Returns the samples of all ranks on rank 0, with their files in `draft`; nothing on the other ranks.
    fn samples_of_all(&mut self, draft: &Path) -> Result<Option<Vec<Sample>>, Error> {
        let (step, size) = (self.step, self.ranks.size());
        let is_first = self.ranks.is_first();
        let share = Share::of(self.ranks.rank(), size);
        // The run folder may be on another machine.
        let elsewhere = match is_first {
            true => None,
            false => {
                let folder = tempfile::tempdir();
                let place = std::env::temp_dir();
                Some(folder.map_err(|error| Error::io("write into", &place, error))?)
            }
        };
        let folder: PathBuf = match &elsewhere {
            None => draft.to_owned(),
            Some(elsewhere) => elsewhere.path().to_owned(),
        };
        let own = self.task.sample(step, share, &folder, &mut self.placer)?;
        let packet = match is_first {
            true => Vec::new(),
            false => serialize(own.clone(), &folder)?,
        };
        let parcels = self.ranks.gather_bytes(packet)?;
        if !is_first {
            return Ok(None);
        }
        let mut samples = own;
        for packet in parcels {
            samples.extend(deserialize(&packet, draft)?);
        }
        samples.sort_by_key(|(number, _)| *number);
        Ok(Some(
            samples.into_iter().map(|(_, sample)| sample).collect(),
        ))
    }
}

/// Serialises samples and their files from `folder`: the length of the JSON, the JSON, the files.
fn serialize(samples: Vec<(usize, Sample)>, folder: &Path) -> Result<Vec<u8>, Error> {
    let (mut files, mut contents) = (Vec::new(), Vec::new());
    for name in samples.iter().flat_map(|(_, sample)| &sample.files) {
        let path = folder.join(name);
        let content = fs::read(&path).map_err(|error| Error::io("read", &path, error))?;
        files.push((name.clone(), content.len()));
        contents.extend(content);
    }
    let json = serde_json::to_vec(&SamplePacket { samples, files })
        .map_err(|error| Error::Internal(format!("samples of a rank: {error}")))?;
    let mut packet = (json.len() as u64).to_le_bytes().to_vec();
    packet.extend(json);
    packet.extend(contents);
    Ok(packet)
}

/// Deserialises samples, and writes their files into `folder`.
fn deserialize(packet: &[u8], folder: &Path) -> Result<Vec<(usize, Sample)>, Error> {
    let broken = || Error::Internal("the samples of a rank are incomplete".into());
    let (length, rest) = packet.split_first_chunk::<8>().ok_or_else(broken)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| broken())?;
    let (json, mut rest) = rest.split_at_checked(length).ok_or_else(broken)?;
    let SamplePacket { samples, files } = serde_json::from_slice(json).map_err(|_| broken())?;
    for (name, length) in files {
        let content;
        (content, rest) = rest.split_at_checked(length).ok_or_else(broken)?;
        // A file name only, without a path to another folder, whoever sent it.
        let name = Path::new(&name).file_name().ok_or_else(broken)?;
        fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, error))?;
        let path = folder.join(name);
        fs::write(&path, content).map_err(|error| Error::io("write", &path, error))?;
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn samples_and_their_files_arrive_unchanged() {
        let (there, here) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(there.path().join("3.mp4"), [7u8; 3000]).unwrap();
        fs::write(there.path().join("3-frames.png"), b"").unwrap();
        let video = Sample {
            prompt: "a ship".into(),
            text: "16 frames".into(),
            files: vec!["3.mp4".into(), "3-frames.png".into()],
        };
        let samples = vec![(3, video), (5, Sample::default())];
        let packet = serialize(samples.clone(), there.path()).unwrap();
        let draft = here.path().join("draft");
        assert_eq!(deserialize(&packet, &draft).unwrap(), samples);
        assert_eq!(fs::read(draft.join("3.mp4")).unwrap(), [7u8; 3000]);
        assert!(draft.join("3-frames.png").exists());
        for cut in [0, 7, 40, packet.len() - 1] {
            assert!(deserialize(&packet[..cut], &draft).is_err(), "{cut}");
        }
    }

    #[test]
    fn files_are_written_to_no_other_folder() {
        let here = tempfile::tempdir().unwrap();
        let json = serde_json::to_vec(&SamplePacket {
            samples: Vec::new(),
            files: vec![("../../outside".into(), 1)],
        });
        let json = json.unwrap();
        let mut packet = (json.len() as u64).to_le_bytes().to_vec();
        packet.extend(json);
        packet.push(b'x');
        deserialize(&packet, &here.path().join("a/b")).unwrap();
        assert!(here.path().join("a/b/outside").exists());
        assert!(!here.path().join("outside").exists());
    }
}
