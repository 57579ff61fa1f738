//! Which clips are cut from a video, by musubi-tuner's rules.

use models::diffusion::Geometry;

use crate::config::{DataConfig, FrameExtraction};

/// A range of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first frame, from zero.
    pub(crate) start: u32,
    /// Number of frames.
    pub(crate) frames: u32,
}

/// How clips are cut from videos.
#[derive(Debug, Clone)]
pub(crate) struct ClipExtraction {
    extraction: FrameExtraction,
    /// Lengths of clips, each of which can be encoded.
    lengths: Vec<u32>,
    stride: u32,
    count: u32,
    most: u32,
    geometry: Geometry,
}

fn whole(frames: u32, geometry: Geometry) -> u32 {
    geometry.whole_frames(frames.into()) as u32
}

impl ClipExtraction {
    /// The rules in the config for a model; `None` if it does not set the length of clips.
    pub(crate) fn of(config: &DataConfig, geometry: Geometry) -> Option<Self> {
        let extraction = config.frame_extraction.unwrap_or(FrameExtraction::Head);
        let lengths = match (&config.num_frames, extraction) {
            (Some(numbers), _) => {
                let numbers = numbers.list().iter();
                numbers.map(|frames| whole(*frames, geometry)).collect()
            }
            (None, FrameExtraction::Full) => Vec::new(),
            (None, _) => return None,
        };
        Some(Self {
            extraction,
            lengths,
            stride: config.frame_stride.unwrap_or(1),
            count: config.frame_sample.unwrap_or(1),
            most: config.max_frames.unwrap_or(129),
            geometry,
        })
    }

    /// The clips of a part of a video, and the lengths for which it is too short.
    pub(crate) fn clips(&self, part: Span) -> (Vec<Span>, Vec<u32>) {
        let frames = part.frames;
        if self.extraction == FrameExtraction::Full {
            let frames = whole(frames.min(self.most), self.geometry);
            return (vec![Span { frames, ..part }], Vec::new());
        }
        let (mut clips, mut too_long) = (Vec::new(), Vec::new());
        for &length in &self.lengths {
            if frames < length {
                too_long.push(length);
                continue;
            }
            let last = frames - length;
            let starts: Vec<u32> = match self.extraction {
                FrameExtraction::Head | FrameExtraction::Full => vec![0],
                FrameExtraction::Chunk => (0..=last).step_by(length as usize).collect(),
                FrameExtraction::Slide => (0..=last).step_by(self.stride as usize).collect(),
                FrameExtraction::Uniform => {
                    let gaps = u64::from(self.count.max(2) - 1);
                    let start = |index: u32| u64::from(index) * u64::from(last) / gaps;
                    (0..self.count).map(|index| start(index) as u32).collect()
                }
            };
            clips.extend(starts.into_iter().map(|start| Span {
                start: part.start + start,
                frames: length,
            }));
        }
        (clips, too_long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Numbers;

    const GEOMETRY: Geometry = Geometry {
        channels: 16,
        pixels: 8,
        patch: 2,
        frames: Some(4),
        fps: 16,
    };

    fn cut(extraction: FrameExtraction, lengths: &[u32], frames: u32) -> (Vec<u32>, Vec<u32>) {
        let config = DataConfig {
            frame_extraction: Some(extraction),
            num_frames: Some(Numbers::List(lengths.to_vec())),
            frame_stride: Some(4),
            frame_sample: Some(3),
            ..DataConfig::default()
        };
        let part = Span { start: 0, frames };
        let extraction = ClipExtraction::of(&config, GEOMETRY).unwrap();
        let (clips, short) = extraction.clips(part);
        let later = extraction.clips(Span { start: 5, ..part }).0;
        assert!((later.iter().zip(&clips)).all(|(later, clip)| later.start == clip.start + 5));
        (clips.iter().map(|clip| clip.start).collect(), short)
    }

    #[test]
    fn clips_begin_where_the_rule_says() {
        use FrameExtraction::{Chunk, Head, Slide, Uniform};
        assert_eq!(cut(Head, &[9], 30), (vec![0], vec![]));
        assert_eq!(cut(Chunk, &[9], 30), (vec![0, 9, 18], vec![]));
        assert_eq!(cut(Slide, &[9], 19), (vec![0, 4, 8], vec![]));
        assert_eq!(cut(Uniform, &[9], 30), (vec![0, 10, 21], vec![]));
        // Lengths are rounded down, and one that does not fit is reported.
        assert_eq!(cut(Chunk, &[8, 100], 10), (vec![0, 5], vec![97]));
        assert_eq!(cut(Head, &[9], 8), (vec![], vec![9]));
    }

    #[test]
    fn a_whole_video_is_one_clip_of_whole_chunks() {
        let config = DataConfig {
            frame_extraction: Some(FrameExtraction::Full),
            max_frames: Some(20),
            ..DataConfig::default()
        };
        let full = ClipExtraction::of(&config, GEOMETRY).unwrap();
        for (frames, length) in [(1, 1), (4, 1), (5, 5), (16, 13), (17, 17), (90, 17)] {
            let span = Span {
                start: 0,
                frames: length,
            };
            assert_eq!(full.clips(Span { start: 0, frames }).0, [span]);
        }
        assert!(ClipExtraction::of(&DataConfig::default(), GEOMETRY).is_none());
    }
}
