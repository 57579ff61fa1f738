//! The backend that sums gradients: RCCL or NCCL between GPUs if all ranks can use it, otherwise Gloo in host memory.
//!
//! Every step of the decision is taken by all ranks; if it fails on one of them, none uses RCCL.

use std::time::Duration;

use tch::{Device, Kind, Tensor};
use torch_ext::rccl::{Communicator, LIBRARY_VARIABLE, Library, UniqueId};

use super::Ranks;
use super::process_group::{GRACE, ProcessGroup};
use crate::Error;
use crate::config::Backend;

/// Time limit of joining, and of the first sum.
const PATIENCE: Duration = Duration::from_secs(10);
/// Size of the sum that tests the backend.
const TEST_BYTES: i64 = 1 << 20;
/// Key of the reason why a rank cannot use it.
const REFUSAL: &str = "rccl/refusal";
const SOMEBODY: &str = "rccl/somebody refused";

impl Ranks {
    /// Chooses the backend that sums gradients on `device`.
    ///
    /// # Errors
    /// If RCCL is required and one of the ranks cannot use it; if a rank is gone.
    pub(crate) fn choose_backend(&mut self, wanted: Backend, device: Device) -> Result<(), Error> {
        if self.size() == 1 || wanted == Backend::Gloo {
            return Ok(());
        }
        // Either all ranks try or none does: one may have no GPU.
        let is_named = std::env::var_os(LIBRARY_VARIABLE).is_some();
        let is_wanted = matches!(device, Device::Cuda(_)) || is_named;
        let candidates = self.sum_numbers(&[f64::from(u8::from(is_wanted))])?[0];
        if wanted == Backend::Auto && candidates == 0.0 {
            return Ok(());
        }
        let tried = self.try_rccl(device)?;
        let Some(joined) = &mut self.joined else {
            return Ok(());
        };
        match tried {
            Ok((communicator, version)) => {
                joined.link = format!("{}, gradients by RCCL {version}", joined.link);
                joined.rccl = Some(communicator);
                Ok(())
            }
            Err(refusal) if wanted == Backend::Nccl => Err(Error::Ranks(format!(
                "`train.ddp_backend` is nccl, and {refusal}\nset it to auto, or to gloo"
            ))),
            Err(refusal) => {
                joined.link = format!("{}; not by RCCL: {refusal}", joined.link);
                Ok(())
            }
        }
    }

    /// The communicator and the version of the library, or which rank cannot use it and why.
    fn try_rccl(
        &mut self,
        device: Device,
    ) -> Result<Result<(Communicator, String), String>, Error> {
        let library = Library::load().and_then(|library| {
            library.expect_usable_with(device)?;
            Ok(library)
        });
        let library = match self.all_have(library, 1)? {
            Ok(library) => library,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let id: Result<Vec<u8>, String> = self.broadcast_value(|| {
            let id = library.unique_id().map(|id| id.bytes().to_vec());
            Ok(id.map_err(|error| error.to_string()))
        })?;
        let id = match id {
            Ok(bytes) => UniqueId::from_bytes(&bytes)?,
            Err(error) => return Ok(Err(format!("{}: {error}", self.name_of(0)))),
        };
        let Some(joined) = &self.joined else {
            return Err(Error::Internal("one rank alone needs no RCCL".into()));
        };
        let made = joined.rccl(&library, id, device);
        let made = self.all_have(made, 2)?;
        Ok(made.map(|made| (made, library.version().to_owned())))
    }

    /// The value of this rank if every rank has one, or which rank failed and why.
    fn all_have<T>(
        &mut self,
        mine: Result<T, torch_ext::Error>,
        attempt: u32,
    ) -> Result<Result<T, String>, Error> {
        let (rank, size) = (self.rank(), self.size());
        let mut refused = vec![0.0; size];
        if let (Err(error), Some(joined)) = (&mine, &self.joined) {
            // A rank that failed only because another one did has less to report.
            let is_follower = joined.somebody_refused();
            refused[rank] = if is_follower { 1.0 } else { size as f64 };
            joined.set(
                &format!("{REFUSAL}/{attempt}"),
                error.to_string().as_bytes(),
            )?;
            joined.note_refusal()?;
        }
        let refused = self.sum_numbers(&refused)?;
        let most = refused.iter().copied().fold(0.0, f64::max);
        let Some(joined) = &self.joined else {
            return Ok(mine.map_err(|error| error.to_string()));
        };
        match (mine, refused.iter().position(|weight| *weight == most)) {
            (Ok(mine), _) if most == 0.0 => Ok(Ok(mine)),
            (_, first) => {
                let first = first.unwrap_or(rank);
                let key = joined.key_of(&format!("{REFUSAL}/{attempt}"), first);
                let text = joined.store.get(&key, GRACE);
                let text = text.map_err(|error| joined.store_is_gone(&error))?;
                let name = joined.name_of(first);
                Ok(Err(format!("{name}: {}", String::from_utf8_lossy(&text))))
            }
        }
    }

    /// Whether gradients are summed on the GPU.
    pub(crate) fn sums_on_device(&self) -> bool {
        let joined = self.joined.as_ref();
        joined.is_some_and(|joined| joined.rccl.is_some())
    }

    /// Sums a tensor over all ranks. It is on the device if [`Ranks::sums_on_device`], otherwise on the CPU.
    pub(crate) fn sum(&mut self, tensor: Tensor) -> Result<Tensor, Error> {
        match &mut self.joined {
            None => Ok(tensor),
            Some(joined) => joined.sum(tensor),
        }
    }
}

impl ProcessGroup {
    /// Joins, and sums one MiB whose sum is known.
    fn rccl(
        &self,
        library: &Library,
        id: UniqueId,
        device: Device,
    ) -> Result<Communicator, torch_ext::Error> {
        let (rank, size) = (self.me.rank, self.me.size);
        let timeouts = (PATIENCE, self.timeout);
        let go_on = || !self.somebody_refused();
        let mut made = Communicator::join(library, id, (rank, size), device, timeouts, go_on)?;
        // Different small integers, whose sum is exact.
        let places = Tensor::f_arange(TEST_BYTES / 4, (Kind::Float, Device::Cpu))?;
        let places = places.f_remainder(1021.0)?;
        let own = places.f_mul_scalar(rank as f64 + 1.0)?.f_to(device)?;
        let sum = made.sum_within(own, PATIENCE)?.f_to(Device::Cpu)?;
        let right = places.f_mul_scalar((size * (size + 1) / 2) as f64)?;
        match sum.f_equal(&right)? {
            true => Ok(made),
            false => Err(torch_ext::Error::Peer("its first sum was wrong".into())),
        }
    }

    fn somebody_refused(&self) -> bool {
        self.store.has(&[self.key(SOMEBODY)]).unwrap_or(true)
    }

    fn note_refusal(&self) -> Result<(), Error> {
        let set = self.store.set(&self.key(SOMEBODY), b"");
        set.map_err(|error| self.store_is_gone(&error))
    }
}
