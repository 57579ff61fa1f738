//! The memory of a GPU according to Windows.
//!
//! `hipMemGetInfo` there calls nearly everything free, whatever other programs use (ROCm/librocdxg#57).

use super::capacity::{Bound, reserve};
use super::{DeviceKind, HostMemory, Inputs, Limit};
use crate::Bytes;

/// What Windows' memory manager gives this process, considering other programs (`IDXGIAdapter3::QueryVideoMemoryInfo`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VideoMemory {
    /// The size of memory that is the GPU's own.
    pub dedicated: Bytes,
    /// The size of RAM that it may use.
    pub shared: Bytes,
    /// The GPU's own memory: what this process may use, and what it uses.
    pub local: (Bytes, Bytes),
    /// The same of RAM. On some APUs all memory counts as the GPU's own.
    pub non_local: (Bytes, Bytes),
}

/// What stays free of Windows' budget: beyond it, memory of this process is moved away.
const VIDEO_MARGIN: Bytes = Bytes(512 << 20);

impl VideoMemory {
    /// What this process may still use of the GPU's own memory, and of RAM.
    fn rooms(self) -> (Bytes, Bytes) {
        let room = |(budget, usage): (Bytes, Bytes)| budget.saturating_sub(usage);
        (
            room(self.local).saturating_sub(VIDEO_MARGIN),
            room(self.non_local),
        )
    }
}

pub(super) fn bound_by_windows(
    inputs: &Inputs,
    video: VideoMemory,
    total: &mut Bound,
    free: &mut Bound,
) {
    let (local, non_local) = video.rooms();
    let shares = inputs.kind != DeviceKind::Discrete;
    if total.limit == Limit::Unknown {
        let shared = if shares { video.shared } else { Bytes::ZERO };
        total.at_most(video.dedicated.saturating_add(shared), Limit::VideoBudget);
    }
    if !shares {
        free.at_most(local, Limit::VideoBudget);
        return;
    }
    free.at_most(local.saturating_add(non_local), Limit::VideoBudget);
    let HostMemory {
        available,
        swap_free,
        ..
    } = inputs.host;
    if let Some(available) = available {
        let committable = available.saturating_add(swap_free.unwrap_or_default());
        // Other programs use the GPU's own memory, too, which its budget considers.
        let own = video.dedicated.min(video.local.0);
        let dedicated = own.saturating_sub(video.local.1);
        let shared = committable.saturating_sub(reserve(inputs));
        free.at_most(dedicated.saturating_add(shared), Limit::HostMemory);
    }
}

#[cfg(test)]
mod tests {
    use super::super::capacity;
    use super::*;

    /// A card on Windows: the driver calls nearly everything free.
    #[test]
    fn windows_knows_what_other_programs_use() {
        let mut inputs = Inputs {
            driver_total: Some(Bytes::gib(24)),
            driver_free: Some(Bytes::gib(23)),
            video: Some(VideoMemory {
                dedicated: Bytes::gib(24),
                shared: Bytes::gib(32),
                local: (Bytes::gib(10), Bytes::gib(3)),
                non_local: (Bytes::gib(31), Bytes::ZERO),
            }),
            ..Inputs::new(DeviceKind::Discrete)
        };
        let free = |inputs: &Inputs| {
            let capacity = capacity(inputs);
            (capacity.total, capacity.free, capacity.free_limited_by)
        };
        assert_eq!(
            free(&inputs),
            (Bytes::gib(24), Bytes::mib(6656), Limit::VideoBudget)
        );
        inputs.driver_free = Some(Bytes::gib(2));
        assert_eq!(
            free(&inputs),
            (Bytes::gib(24), Bytes::gib(2), Limit::Driver)
        );
        // A driver that does not answer.
        (inputs.driver_total, inputs.driver_free) = (None, None);
        assert_eq!(
            free(&inputs),
            (Bytes::gib(24), Bytes::mib(6656), Limit::VideoBudget)
        );
    }

    /// Strix Halo with 32 of 128 GiB dedicated, and a page file of 16 GiB.
    #[test]
    fn an_apu_on_windows_takes_what_can_be_committed() {
        let mut inputs = Inputs {
            driver_total: Some(Bytes::gib(80)),
            driver_free: Some(Bytes::gib(79)),
            host: HostMemory {
                total: Some(Bytes::gib(96)),
                available: Some(Bytes::gib(20)),
                swap_total: Some(Bytes::gib(16)),
                swap_free: Some(Bytes::gib(10)),
            },
            video: Some(VideoMemory {
                dedicated: Bytes::gib(32),
                shared: Bytes::gib(48),
                local: (Bytes::gib(31), Bytes::gib(4)),
                non_local: (Bytes::gib(47), Bytes::gib(1)),
            }),
            ..Inputs::new(DeviceKind::Apu)
        };
        // 27 GiB of its own are left, and 30 can be committed, of which 6 stay reserved.
        let found = capacity(&inputs);
        assert_eq!(
            (found.free, found.free_limited_by),
            (Bytes::gib(51), Limit::HostMemory)
        );
        // A game has 20 of its own, which much room in RAM does not replace.
        let before = inputs.video;
        inputs.video = before.map(|video| VideoMemory {
            local: (Bytes::gib(12), Bytes::gib(4)),
            ..video
        });
        assert_eq!(capacity(&inputs).free, Bytes::gib(32));
        inputs.video = before;
        inputs.host.available = Some(Bytes::gib(90));
        let found = capacity(&inputs);
        assert_eq!(
            (found.free, found.free_limited_by),
            (Bytes::mib(72 * 1024 + 512), Limit::VideoBudget)
        );
    }
}
