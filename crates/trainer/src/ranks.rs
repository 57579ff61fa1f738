//! Several processes, perhaps on several machines, that train one model.
//!
//! Each process is a *rank*. Ranks are started by `torchrun` or `surefoot train --nproc`, find each other through
//! c10d's store, and exchange what a step needs: the sum of all gradients, with Gloo or RCCL, and a few numbers, with
//! Gloo. Every decision about the run is the same on all ranks: either rank 0 decides and
//! [`Ranks::broadcast_value`] sends the decision, or each rank contributes what it observed and
//! [`Ranks::sum_numbers`] adds it up.
//!
//! A rank that fails writes the reason to the store, and every rank writes there what it is doing. A rank that loses
//! its connection, or times out, can therefore name the rank and the machine at fault.

mod address;
mod backend;
mod begun;
mod membership;
mod overlap;
mod process_group;
mod roster;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::stop::Stop;
use begun::{Begun, Known, Memory};
use membership::Membership;
use process_group::{GRACE, ProcessGroup};

pub(crate) use membership::on_this_machine;

/// The rank of this process, once all ranks have found each other.
static RANK: OnceLock<usize> = OnceLock::new();

/// The rank of this process, or 0 if it trains alone; rank 0 reports progress for all. Before the ranks have found each
/// other, this is the rank in the environment, which may still change.
pub fn rank_of_this_process() -> usize {
    let of_environment = || match Membership::from_environment() {
        Ok(Some(me)) => me.rank,
        _ => 0,
    };
    RANK.get().copied().unwrap_or_else(of_environment)
}

/// The ranks of a run, as seen by one of them. A process that trains alone is the only one.
pub(crate) struct Ranks {
    joined: Option<ProcessGroup>,
    /// Where a process started by `torchrun` stores its run for the next start.
    memory: Option<Memory>,
    /// The run that an earlier start of these processes began.
    begun: Option<Begun>,
}

impl Ranks {
    /// A process that trains alone.
    #[cfg(test)]
    fn alone() -> Self {
        Self {
            joined: None,
            memory: None,
            begun: None,
        }
    }

    /// Joins the other ranks, if the environment describes any. Waits at most `timeout` for each answer of another rank,
    /// and stops waiting for ranks to start once `stop` is requested.
    pub(crate) fn join(timeout: Duration, stop: &Stop) -> Result<Self, Error> {
        let memory = Memory::from_environment();
        let begun = memory.as_ref().and_then(Memory::read);
        let own = Known::new(begun)?;
        let (joined, begun) = match Membership::from_environment()? {
            None => (None, own.chosen(timeout, stop)?),
            Some(me) => {
                let (joined, begun) = ProcessGroup::join(me, own, timeout, stop)?;
                // A process is in one run.
                RANK.get_or_init(|| joined.me.rank);
                (Some(joined), begun)
            }
        };
        Ok(Self {
            joined,
            memory,
            begun,
        })
    }

    /// The rank of this process, from 0.
    pub(crate) fn rank(&self) -> usize {
        self.joined.as_ref().map_or(0, |joined| joined.me.rank)
    }

    /// The number of ranks.
    pub(crate) fn size(&self) -> usize {
        self.joined.as_ref().map_or(1, |joined| joined.me.size)
    }

    /// Whether this is rank 0, which writes the run folder and reports progress.
    pub(crate) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// One line about the ranks and the link between them; `None` for a single process.
    pub(crate) fn description(&self) -> Option<&str> {
        self.joined.as_ref().map(|joined| &*joined.link)
    }

    /// The rank and its host, as in "rank 1 on ryzen".
    pub(crate) fn name_of(&self, rank: usize) -> String {
        match &self.joined {
            Some(joined) => joined.name_of(rank),
            None => "this process".into(),
        }
    }

    /// Publishes what this rank is about to do, for the error message of ranks that wait for it in vain.
    pub(crate) fn doing(&self, what: &str) -> Result<(), Error> {
        match &self.joined {
            Some(joined) => joined.set("doing", what.as_bytes()),
            None => Ok(()),
        }
    }

    /// The result of `find` on rank 0, on all ranks. The others do not run it; if it fails, they fail too.
    pub(crate) fn broadcast_value<T: Serialize + DeserializeOwned>(
        &mut self,
        find: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(joined) = &mut self.joined else {
            return find();
        };
        joined.broadcasts += 1;
        let key = joined.key(&format!("told/{}", joined.broadcasts));
        let json = |error: serde_json::Error| Error::Internal(format!("between ranks: {error}"));
        if joined.me.rank == 0 {
            let found = find()?;
            let text = serde_json::to_vec(&found).map_err(json)?;
            let set = joined.store.set(&key, &text);
            set.map_err(|error| joined.store_is_gone(&error))?;
            joined.barrier()?;
            return Ok(found);
        }
        joined.barrier()?;
        let text = joined.store.get(&key, GRACE);
        let text = text.map_err(|error| joined.store_is_gone(&error))?;
        serde_json::from_slice(&text).map_err(json)
    }

    /// Fails on ranks whose `mine` differs from that of rank 0. No rank continues before all have compared.
    pub(crate) fn expect_same(&mut self, mine: &Value) -> Result<(), Error> {
        let first = self.broadcast_value(|| Ok(mine.clone()))?;
        let mut found = Vec::new();
        differences("", &first, mine, &mut found);
        if !found.is_empty() {
            let lines: String = found.iter().map(|line| format!("\n  {line}")).collect();
            return Err(Error::RankDiffers(format!(
                "{} would train something else than {}:{lines}\nstart all ranks with the same \
                 config, data, model and version",
                self.name_of(self.rank()),
                self.name_of(0),
            )));
        }
        self.barrier()
    }

    /// Waits until all ranks have arrived here.
    pub(crate) fn barrier(&mut self) -> Result<(), Error> {
        match &mut self.joined {
            None => Ok(()),
            Some(joined) => joined.barrier(),
        }
    }

    /// Sums these numbers over all ranks.
    pub(crate) fn sum_numbers(&mut self, numbers: &[f64]) -> Result<Vec<f64>, Error> {
        match &mut self.joined {
            None => Ok(numbers.to_vec()),
            Some(joined) => joined.exchange(|group| group.sum_numbers(numbers)),
        }
    }

    /// Overwrites a tensor on the CPU with that of rank 0.
    pub(crate) fn broadcast_tensor(&mut self, tensor: &mut Tensor) -> Result<(), Error> {
        match &mut self.joined {
            None => Ok(()),
            Some(joined) => joined.exchange(|group| group.broadcast(tensor, 0)),
        }
    }

    /// On rank 0, the bytes of all other ranks, in order; empty on the others.
    pub(crate) fn gather_bytes(&mut self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        let (rank, size) = (self.rank(), self.size());
        let mut lengths = vec![0.0; size];
        lengths[rank] = own.len() as f64;
        let lengths = self.sum_numbers(&lengths)?;
        let mut all = Vec::new();
        for other in 1..size {
            // An f64 represents the lengths of files exactly.
            let length = lengths.get(other).copied().unwrap_or_default() as usize;
            let Some(joined) = &mut self.joined else {
                break;
            };
            let mut bytes = match rank == other {
                true => Tensor::f_from_slice(&own)?,
                false => Tensor::f_zeros([length as i64], (Kind::Uint8, Device::Cpu))?,
            };
            if length > 0 {
                joined.exchange(|group| group.broadcast(&mut bytes, other))?;
            }
            if rank == 0 {
                all.push(Vec::<u8>::try_from(&bytes)?);
            }
        }
        Ok(all)
    }

    /// The numbers of rank 0; every rank passes equally many.
    pub(crate) fn broadcast_numbers(&mut self, numbers: &[f64]) -> Result<Vec<f64>, Error> {
        let mut tensor = Tensor::f_from_slice(numbers)?;
        self.broadcast_tensor(&mut tensor)?;
        Ok(Vec::<f64>::try_from(&tensor)?)
    }

    /// Stores the path of the run folder, which is on the machine of rank 0, for the next start of these ranks by
    /// `torchrun`.
    pub(crate) fn remember_folder(&mut self, folder: &Path) -> Result<(), Error> {
        let begun = self.begun.take();
        let begun = self.broadcast_value(|| Begun::new(folder, begun.as_ref()))?;
        if self.is_first() && self.memory.is_some() {
            begun.mark()?;
        }
        if let Some(memory) = &self.memory {
            memory.write(&begun)?;
        }
        self.begun = Some(begun);
        Ok(())
    }

    /// Removes what [`Self::remember_folder`] stored, since the run is complete.
    pub(crate) fn forget_folder(&self) {
        if let Some(memory) = &self.memory {
            memory.clear();
        }
    }

    /// Whether `torchrun` started this process, and will restart it if it fails.
    pub(crate) fn is_started_again(&self) -> bool {
        self.memory.is_some()
    }

    /// The folder of the run that an earlier start of these ranks began.
    pub(crate) fn folder_before_restart(&self) -> Option<&Path> {
        self.begun.as_ref().map(|begun| &*begun.path)
    }

    /// Removes that folder if it contains no checkpoint and nothing else to keep, so that the run starts again in its
    /// place. For rank 0.
    pub(crate) fn remove_folder_without_results(&self) -> Result<(), Error> {
        if let Some(begun) = &self.begun
            && begun.remove_without_results()?
        {
            let folder = begun.path.display();
            tracing::info!("`{folder}` had no checkpoint yet: the run starts again there");
        }
        Ok(())
    }

    /// Publishes why this rank ends, so that the others do not wait for it.
    pub(crate) fn failed(&mut self, error: &Error) {
        if let Some(joined) = &mut self.joined {
            joined.report(&error.to_string(), None);
        }
    }
}

/// One line for each value in which this rank differs from rank 0.
fn differences(path: &str, first: &Value, mine: &Value, found: &mut Vec<String>) {
    match (first, mine) {
        _ if first == mine => {}
        (Value::Object(one), Value::Object(other)) => {
            let keys: BTreeSet<_> = one.keys().chain(other.keys()).collect();
            for key in keys {
                let dot = if path.is_empty() { "" } else { "." };
                let value = |map: &serde_json::Map<String, Value>| {
                    map.get(key).cloned().unwrap_or(Value::Null)
                };
                let path = format!("{path}{dot}{key}");
                differences(&path, &value(one), &value(other), found);
            }
        }
        _ => found.push(format!(
            "`{path}` is {} there, and {} here",
            shown(first),
            shown(mine)
        )),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "unset".into(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_difference_is_named_with_both_values() {
        let first = json!({"config": {"seed": 1, "train.lr": 0.1}, "version": "1"});
        let mine = json!({"config": {"seed": 2, "train.lr": 0.1}, "data": 7, "version": "1"});
        let mut found = Vec::new();
        differences("", &first, &mine, &mut found);
        assert_eq!(
            found,
            [
                "`config.seed` is 1 there, and 2 here",
                "`data` is unset there, and 7 here"
            ]
        );
    }

    #[test]
    fn a_process_alone_is_rank_0_of_one_and_waits_for_nobody() {
        let mut alone = Ranks::alone();
        assert_eq!((alone.rank(), alone.size(), alone.is_first()), (0, 1, true));
        assert_eq!(alone.sum_numbers(&[2.0]).unwrap(), [2.0]);
        assert_eq!(alone.broadcast_numbers(&[3.0]).unwrap(), [3.0]);
        assert_eq!(alone.broadcast_value(|| Ok(5)).unwrap(), 5);
        alone.barrier().unwrap();
        alone.expect_same(&json!({"a": 1})).unwrap();
        assert!(alone.description().is_none());
    }
}
