//! The rungs of the ladder, and when each makes sense.

use std::fmt;

use serde::Serialize;

use crate::report::Failure;
use crate::transport::{DeviceFacts, Element, Origin, Pool, SourceFacts};

/// One way of getting a tensor where it is wanted, in the order they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// One copy on the current stream.
    Direct,
    /// The same again: many wrong arrivals are a matter of chance.
    Retry,
    /// Through a pinned buffer that belongs to this move alone.
    Staged,
    /// Through a small pinned buffer, piece by piece, each complete before the next.
    Chunked,
    /// On a stream of its own, with everything on the device complete afterwards.
    OtherStream,
    /// The host memory itself, registered with the device: no copy (unified memory only).
    ZeroCopy,
    /// Converted on the host, then staged, then in pieces.
    CastOnHost,
    /// Left where it is, with a warning.
    StayOnHost,
}

impl Rung {
    /// Every rung, in the order they are tried.
    pub const ALL: [Rung; 8] = [
        Rung::Direct,
        Rung::Retry,
        Rung::Staged,
        Rung::Chunked,
        Rung::OtherStream,
        Rung::ZeroCopy,
        Rung::CastOnHost,
        Rung::StayOnHost,
    ];

    /// The rungs that end on the device.
    pub const TO_DEVICE: [Rung; 7] = [
        Rung::Direct,
        Rung::Retry,
        Rung::Staged,
        Rung::Chunked,
        Rung::OtherStream,
        Rung::ZeroCopy,
        Rung::CastOnHost,
    ];

    /// As tables and JSON name it.
    pub fn name(self) -> &'static str {
        match self {
            Rung::Direct => "direct",
            Rung::Retry => "retry",
            Rung::Staged => "staged",
            Rung::Chunked => "chunked",
            Rung::OtherStream => "other_stream",
            Rung::ZeroCopy => "zero_copy",
            Rung::CastOnHost => "cast_on_host",
            Rung::StayOnHost => "stay_on_host",
        }
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// What the choice of the next rung depends on.
pub(crate) struct Situation<'a> {
    pub(crate) device: &'a DeviceFacts,
    pub(crate) source: SourceFacts,
    pub(crate) cast: Option<Element>,
    /// How the rung before this one failed; `None` at the start.
    pub(crate) last_failure: Option<&'a Failure>,
}

impl Situation<'_> {
    /// Why a rung makes no sense here, if it does not.
    pub(crate) fn obstacle(&self, rung: Rung) -> Option<&'static str> {
        self.lack(rung).or_else(|| self.futility(rung))
    }

    /// What this machine or this tensor lacks for the rung.
    fn lack(&self, rung: Rung) -> Option<&'static str> {
        let mapped = self.source.origin == Origin::MappedFile && self.device.unified_memory;
        match rung {
            Rung::Direct | Rung::Retry | Rung::OtherStream | Rung::ZeroCopy if mapped => {
                Some("copies from mapped files hang on APUs")
            }
            Rung::Staged if !self.device.pinned_memory => Some("no pinned memory here"),
            Rung::OtherStream if !self.device.other_streams => Some("only one stream here"),
            Rung::ZeroCopy if !self.device.unified_memory => Some("the memory is not unified"),
            Rung::ZeroCopy if !self.device.zero_copy => Some("host memory cannot be registered"),
            Rung::CastOnHost if self.cast.is_none() => Some("no cast was asked for"),
            _ => None,
        }
    }

    /// Why the rung would only repeat the failure before it.
    fn futility(&self, rung: Rung) -> Option<&'static str> {
        match self.last_failure? {
            // The bytes had arrived: another way to copy them changes nothing.
            Failure::CastFailed { .. } | Failure::WrongCast { .. } if rung < Rung::CastOnHost => {
                Some("the copy was right, the cast was not")
            }
            Failure::OutOfMemory {
                pool: Pool::Device, ..
            } if matches!(rung, Rung::Staged | Rung::Chunked | Rung::OtherStream) => {
                Some("it needs the same device memory")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;

    fn apu() -> DeviceFacts {
        DeviceFacts {
            name: "fake:0".to_owned(),
            unified_memory: true,
            zero_copy: true,
            pinned_memory: true,
            other_streams: true,
        }
    }

    fn open_rungs(device: &DeviceFacts, origin: Origin, failure: Option<&Failure>) -> Vec<Rung> {
        let situation = Situation {
            device,
            source: SourceFacts {
                bytes: Bytes::mib(1),
                element: Element::F32,
                origin,
            },
            cast: Some(Element::BF16),
            last_failure: failure,
        };
        Rung::ALL
            .into_iter()
            .filter(|rung| situation.obstacle(*rung).is_none())
            .collect()
    }

    #[test]
    fn an_apu_never_copies_straight_from_a_mapped_file() {
        assert_eq!(
            open_rungs(&apu(), Origin::MappedFile, None),
            [
                Rung::Staged,
                Rung::Chunked,
                Rung::CastOnHost,
                Rung::StayOnHost
            ]
        );
    }

    #[test]
    fn a_discrete_card_may_copy_from_a_mapped_file_but_never_without_a_copy() {
        let card = DeviceFacts {
            unified_memory: false,
            ..apu()
        };
        let open = open_rungs(&card, Origin::MappedFile, None);
        assert!(open.contains(&Rung::Direct) && !open.contains(&Rung::ZeroCopy));
    }

    #[test]
    fn a_full_device_leaves_only_the_rungs_that_need_less_of_it() {
        let full = Failure::OutOfMemory {
            pool: Pool::Device,
            message: String::new(),
        };
        assert_eq!(
            open_rungs(&apu(), Origin::Memory, Some(&full)),
            [
                Rung::Direct,
                Rung::Retry,
                Rung::ZeroCopy,
                Rung::CastOnHost,
                Rung::StayOnHost
            ]
        );
    }

    #[test]
    fn a_wrong_cast_goes_straight_to_the_cast_on_the_host() {
        let wrong = Failure::CastFailed {
            message: String::new(),
        };
        assert_eq!(
            open_rungs(&apu(), Origin::Memory, Some(&wrong)),
            [Rung::CastOnHost, Rung::StayOnHost]
        );
    }
}
