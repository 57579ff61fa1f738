//! The engine's strategies, and when each is skipped.

use std::fmt;

use serde::Serialize;

use crate::transfer::report::Failure;
use crate::transfer::transport::{DeviceFacts, Element, Origin, Pool, SourceFacts};

/// A way to move a tensor, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferStrategy {
    /// One copy on the current stream.
    Direct,
    /// The same again: many errors are random.
    Retry,
    /// Through a pinned buffer used by this move only.
    Staged,
    /// Through a small pinned buffer, chunk by chunk, waiting for each.
    Chunked,
    /// On another stream, followed by a device synchronisation.
    OtherStream,
    /// Uses the host memory itself, registered with the device, without a copy (unified memory only).
    ZeroCopy,
    /// Converted on the host, then staged, then in chunks.
    CastOnHost,
    /// Left on the host, with a warning.
    StayOnHost,
}

impl TransferStrategy {
    /// All strategies, in the order in which they are tried.
    pub const ALL: [TransferStrategy; 8] = [
        TransferStrategy::Direct,
        TransferStrategy::Retry,
        TransferStrategy::Staged,
        TransferStrategy::Chunked,
        TransferStrategy::OtherStream,
        TransferStrategy::ZeroCopy,
        TransferStrategy::CastOnHost,
        TransferStrategy::StayOnHost,
    ];

    /// The strategies that put the tensor on the device.
    pub const TO_DEVICE: [TransferStrategy; 7] = [
        TransferStrategy::Direct,
        TransferStrategy::Retry,
        TransferStrategy::Staged,
        TransferStrategy::Chunked,
        TransferStrategy::OtherStream,
        TransferStrategy::ZeroCopy,
        TransferStrategy::CastOnHost,
    ];

    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            TransferStrategy::Direct => "direct",
            TransferStrategy::Retry => "retry",
            TransferStrategy::Staged => "staged",
            TransferStrategy::Chunked => "chunked",
            TransferStrategy::OtherStream => "other_stream",
            TransferStrategy::ZeroCopy => "zero_copy",
            TransferStrategy::CastOnHost => "cast_on_host",
            TransferStrategy::StayOnHost => "stay_on_host",
        }
    }
}

impl fmt::Display for TransferStrategy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// What the choice of the next strategy depends on.
pub(crate) struct StrategyContext<'a> {
    pub(crate) device: &'a DeviceFacts,
    pub(crate) source: SourceFacts,
    pub(crate) cast: Option<Element>,
    /// The failure of the previous strategy; `None` at the start.
    pub(crate) last_failure: Option<&'a Failure>,
}

impl StrategyContext<'_> {
    /// Why a strategy is skipped, if it is.
    pub(crate) fn skip_reason(&self, strategy: TransferStrategy) -> Option<&'static str> {
        self.missing_capability(strategy)
            .or_else(|| self.would_repeat(strategy))
    }

    /// The capability that this machine or this tensor lacks for the strategy.
    fn missing_capability(&self, strategy: TransferStrategy) -> Option<&'static str> {
        let mapped = self.source.origin == Origin::MappedFile && self.device.unified_memory;
        match strategy {
            TransferStrategy::Direct
            | TransferStrategy::Retry
            | TransferStrategy::OtherStream
            | TransferStrategy::ZeroCopy
                if mapped =>
            {
                Some("copies from mapped files hang on APUs")
            }
            TransferStrategy::Staged if !self.device.pinned_memory => Some("no pinned memory here"),
            TransferStrategy::OtherStream if !self.device.other_streams => {
                Some("only one stream here")
            }
            TransferStrategy::ZeroCopy if !self.device.unified_memory => {
                Some("the memory is not unified")
            }
            TransferStrategy::ZeroCopy if !self.device.zero_copy => {
                Some("host memory cannot be registered")
            }
            TransferStrategy::CastOnHost if self.cast.is_none() => Some("no cast was asked for"),
            _ => None,
        }
    }

    /// Why the strategy would fail like the previous one.
    fn would_repeat(&self, strategy: TransferStrategy) -> Option<&'static str> {
        match self.last_failure? {
            // The bytes had arrived: copying them another way changes nothing.
            Failure::CastFailed { .. } | Failure::WrongCast { .. }
                if strategy < TransferStrategy::CastOnHost =>
            {
                Some("the copy was right, the cast was not")
            }
            Failure::OutOfMemory {
                pool: Pool::Device, ..
            } if matches!(
                strategy,
                TransferStrategy::Staged
                    | TransferStrategy::Chunked
                    | TransferStrategy::OtherStream
            ) =>
            {
                Some("it needs the same device memory")
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use platform::Bytes;

    fn apu() -> DeviceFacts {
        DeviceFacts {
            name: "apu:0".to_owned(),
            unified_memory: true,
            zero_copy: true,
            pinned_memory: true,
            other_streams: true,
        }
    }

    fn open_strategies(
        device: &DeviceFacts,
        origin: Origin,
        failure: Option<&Failure>,
    ) -> Vec<TransferStrategy> {
        let situation = StrategyContext {
            device,
            source: SourceFacts {
                bytes: Bytes::mib(1),
                element: Element::F32,
                origin,
            },
            cast: Some(Element::BF16),
            last_failure: failure,
        };
        TransferStrategy::ALL
            .into_iter()
            .filter(|strategy| situation.skip_reason(*strategy).is_none())
            .collect()
    }

    #[test]
    fn an_apu_never_copies_straight_from_a_mapped_file() {
        assert_eq!(
            open_strategies(&apu(), Origin::MappedFile, None),
            [
                TransferStrategy::Staged,
                TransferStrategy::Chunked,
                TransferStrategy::CastOnHost,
                TransferStrategy::StayOnHost
            ]
        );
    }

    #[test]
    fn a_discrete_card_may_copy_from_a_mapped_file_but_never_without_a_copy() {
        let card = DeviceFacts {
            unified_memory: false,
            ..apu()
        };
        let open = open_strategies(&card, Origin::MappedFile, None);
        assert!(
            open.contains(&TransferStrategy::Direct) && !open.contains(&TransferStrategy::ZeroCopy)
        );
    }

    #[test]
    fn a_full_device_leaves_only_the_strategies_that_need_less_of_it() {
        let full = Failure::OutOfMemory {
            pool: Pool::Device,
            message: String::new(),
        };
        assert_eq!(
            open_strategies(&apu(), Origin::Memory, Some(&full)),
            [
                TransferStrategy::Direct,
                TransferStrategy::Retry,
                TransferStrategy::ZeroCopy,
                TransferStrategy::CastOnHost,
                TransferStrategy::StayOnHost
            ]
        );
    }

    #[test]
    fn a_wrong_cast_goes_straight_to_the_cast_on_the_host() {
        let wrong = Failure::CastFailed {
            message: String::new(),
        };
        assert_eq!(
            open_strategies(&apu(), Origin::Memory, Some(&wrong)),
            [TransferStrategy::CastOnHost, TransferStrategy::StayOnHost]
        );
    }
}
