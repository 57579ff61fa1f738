//! Agrees on which processes are the ranks of this start.
//!
//! The store of `torchrun`'s agent outlives the ranks, so it still contains the keys of earlier starts, and nothing in the
//! environment distinguishes two starts: an agent that joined later has restarted less often than the others. So each
//! process writes a nonce, rank 0 announces the nonces that it found, and continues once each of those processes has
//! answered. A process that is gone does not answer; rank 0 announces again when another has taken its place.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use torch_ext::distributed::Store;

use super::begun::Known;
use super::membership::Membership;
use super::process_group::{GRACE, PAUSE};
use crate::Error;
use crate::stop::Stop;

/// What a rank announces about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Arrival {
    pub(super) host: String,
    pub(super) address: IpAddr,
    /// What its machine knows about the run of an earlier start.
    pub(super) known: Known,
    /// Identifies this process.
    nonce: String,
}

impl Arrival {
    pub(super) fn new(host: String, address: IpAddr, known: Known) -> Self {
        Self {
            host,
            address,
            known,
            nonce: nonce(),
        }
    }
}

/// A unique name.
pub(super) fn nonce() -> String {
    // Seeded from the system's random numbers.
    let random = RandomState::new().build_hasher().finish();
    format!("{}-{random:016x}", std::process::id())
}

/// All ranks of a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Roster {
    /// Prefix of the keys of this start.
    pub(super) prefix: String,
    /// In the order of `torchrun`'s ranks.
    arrivals: Vec<Arrival>,
}

impl Roster {
    /// The rank in the run for a rank of `torchrun`. Rank 0 of the run reads and writes the run folder, so it must be on
    /// the machine with that folder, which may not have `torchrun`'s rank 0 after a machine has joined or was away. The
    /// two ranks are swapped.
    pub(super) fn rank_of(&self, number: usize) -> usize {
        let saved = self.arrivals.iter().map(|arrival| arrival.known.saved);
        let newest = saved.clone().max().flatten();
        let first = match newest {
            None => 0,
            Some(_) => saved
                .into_iter()
                .position(|saved| saved == newest)
                .unwrap_or(0),
        };
        match number {
            _ if number == first => 0,
            0 => first,
            other => other,
        }
    }

    /// All ranks, in the order of the run.
    pub(super) fn in_order(&self) -> Vec<Arrival> {
        let mut order: Vec<_> = self.arrivals.iter().enumerate().collect();
        order.sort_by_key(|(number, _)| self.rank_of(*number));
        order
            .into_iter()
            .map(|(_, arrival)| arrival.clone())
            .collect()
    }
}

/// Waits for all ranks to arrive, for at most `timeout`.
///
/// # Errors
/// Names the ranks that did not arrive. Also if another process claims to be this rank, or `stop` is requested.
pub(super) fn agree(
    store: &Store,
    me: &Membership,
    own: Arrival,
    timeout: Duration,
    stop: &Stop,
) -> Result<Roster, Error> {
    let hello = me.key("hello", me.rank);
    write(store, &hello, &own)?;
    let mut assembly = Assembly {
        store,
        me,
        own,
        announced: None,
        attempts: 0,
    };
    let until = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    loop {
        let agreed = match me.rank {
            0 => assembly.announce()?,
            _ => assembly.answer()?,
        };
        if let Some(roster) = agreed {
            return Ok(roster);
        }
        if read::<Arrival>(store, &hello)?.as_ref() != Some(&assembly.own) {
            return Err(Error::RankDiffers(format!(
                "another process says that it is rank {}, too: each of the {} ranks is to be started \
                 once",
                me.rank, me.size
            )));
        }
        if stop.is_requested() {
            return Err(Error::Ranks(format!(
                "rank {} was asked to stop before all ranks were there",
                me.rank
            )));
        }
        if Instant::now() >= until {
            return Err(assembly.missed(timeout));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE);
    }
}

struct Assembly<'a> {
    store: &'a Store,
    me: &'a Membership,
    own: Arrival,
    /// The last announcement of rank 0.
    announced: Option<Roster>,
    attempts: u32,
}

impl Assembly<'_> {
    /// On rank 0: all ranks, once all of them have answered.
    fn announce(&mut self) -> Result<Option<Roster>, Error> {
        let Some(arrivals) = self.arrivals()? else {
            return Ok(None);
        };
        let announced = self.announced.take();
        let roster = match announced.filter(|roster| roster.arrivals == arrivals) {
            Some(roster) => roster,
            None => {
                self.attempts += 1;
                let prefix = format!("{}/{}/{}", self.me.job, self.own.nonce, self.attempts);
                let roster = Roster { prefix, arrivals };
                write(self.store, &self.me.key_of_all("roster"), &roster)?;
                roster
            }
        };
        let answers: Vec<_> = (1..self.me.size)
            .map(|rank| answer_of(&roster, rank))
            .collect();
        let all = answers.is_empty() || self.store.has(&answers).map_err(unreachable)?;
        if all {
            let go = format!("{}/go", roster.prefix);
            self.store.set(&go, b"").map_err(unreachable)?;
            return Ok(Some(roster));
        }
        self.announced = Some(roster);
        Ok(None)
    }

    /// On other ranks: the announcement of rank 0, once rank 0 continues with it.
    fn answer(&self) -> Result<Option<Roster>, Error> {
        let Some(roster) = read::<Roster>(self.store, &self.me.key_of_all("roster"))? else {
            return Ok(None);
        };
        // In an announcement of an earlier start, another process has this rank.
        if roster.arrivals.len() != self.me.size
            || roster.arrivals.get(self.me.rank) != Some(&self.own)
        {
            return Ok(None);
        }
        let answer = answer_of(&roster, self.me.rank);
        self.store.set(&answer, b"").map_err(unreachable)?;
        let go = format!("{}/go", roster.prefix);
        let goes_on = self.store.has(&[go]).map_err(unreachable)?;
        Ok(goes_on.then_some(roster))
    }

    /// What all ranks announced about themselves, in this start or an earlier one; `None` if one is missing.
    fn arrivals(&self) -> Result<Option<Vec<Arrival>>, Error> {
        let all = (0..self.me.size).map(|rank| read(self.store, &self.me.key("hello", rank)));
        all.collect()
    }

    fn missed(&self, timeout: Duration) -> Error {
        let is_there = |rank: usize| {
            let key = match &self.announced {
                Some(roster) => answer_of(roster, rank),
                None => self.me.key("hello", rank),
            };
            self.store.has(&[key]).unwrap_or(false)
        };
        let others = (0..self.me.size).filter(|rank| *rank != self.me.rank);
        let mut missing: Vec<_> = others.filter(|rank| !is_there(*rank)).collect();
        if missing.is_empty() && self.me.rank != 0 {
            missing.push(0);
        }
        let names: Vec<_> = missing.iter().map(|rank| format!("rank {rank}")).collect();
        Error::Ranks(format!(
            "rank {} waited {} seconds (`train.rank_timeout`) for {} to start\nlook at its output \
             there; a firewall between the machines looks like this too",
            self.me.rank,
            timeout.as_secs(),
            names.join(", "),
        ))
    }
}

fn answer_of(roster: &Roster, rank: usize) -> String {
    format!("{}/answer/{rank}", roster.prefix)
}

fn write(store: &Store, key: &str, value: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_vec(value).map_err(|error| Error::Internal(error.to_string()))?;
    store.set(key, &text).map_err(unreachable)
}

/// The value of a key, if it exists and can be parsed: another version may have written it.
fn read<T: DeserializeOwned>(store: &Store, key: &str) -> Result<Option<T>, Error> {
    if !store.has(&[key]).map_err(unreachable)? {
        return Ok(None);
    }
    let text = store.get(key, GRACE).map_err(unreachable)?;
    Ok(serde_json::from_slice(&text).ok())
}

fn unreachable(error: torch_ext::Error) -> Error {
    Error::Ranks(format!(
        "the store by which ranks find each other is gone: {error}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn member(rank: usize, size: usize) -> Membership {
        Membership {
            rank,
            size,
            master: "127.0.0.1".into(),
            port: 0,
            agent_store: true,
            job: "surefoot/test".into(),
        }
    }

    fn arrival() -> Arrival {
        of_machine("box", None)
    }

    fn of_machine(host: &str, saved: Option<u64>) -> Arrival {
        let known = Known { begun: None, saved };
        Arrival::new(host.into(), IpAddr::from([127, 0, 0, 1]), known)
    }

    #[test]
    fn the_machine_with_the_newest_checkpoint_is_rank_0_of_the_run() {
        for (saved, ranks) in [
            ([None, None, None], [0, 1, 2]),
            ([None, None, Some(0)], [2, 1, 0]),
            ([Some(3), Some(8), None], [1, 0, 2]),
            ([Some(3), Some(3), Some(2)], [0, 1, 2]),
        ] {
            let hosts = ["a", "b", "c"].into_iter();
            let arrivals: Vec<_> = hosts
                .zip(saved)
                .map(|(host, saved)| of_machine(host, saved))
                .collect();
            let roster = Roster {
                prefix: String::new(),
                arrivals,
            };
            assert_eq!([0, 1, 2].map(|number| roster.rank_of(number)), ranks);
            for (rank, arrival) in roster.in_order().iter().enumerate() {
                let number = ranks.iter().position(|other| *other == rank).unwrap();
                assert_eq!(*arrival, roster.arrivals[number]);
            }
        }
    }

    /// All of these ranks at once, each with a connection of its own.
    fn start(port: u16, size: usize) -> Vec<Roster> {
        let ranks = (0..size).map(|rank| {
            std::thread::spawn(move || {
                let store = Store::connect("127.0.0.1", port, PATIENCE).unwrap();
                let me = member(rank, size);
                agree(&store, &me, arrival(), PATIENCE, &Stop::default()).unwrap()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    #[test]
    fn each_start_is_another_one_whatever_the_store_remembers() {
        let store = Store::host("127.0.0.1", 0).unwrap();
        let mut prefixes = Vec::new();
        for size in [2, 3, 1, 3] {
            let rosters = start(store.port(), size);
            assert_eq!(rosters[0].arrivals.len(), size);
            assert!(rosters.iter().all(|roster| *roster == rosters[0]));
            assert!(!prefixes.contains(&rosters[0].prefix));
            prefixes.push(rosters[0].prefix.clone());
        }
    }

    #[test]
    fn a_rank_that_died_while_it_waited_is_replaced() {
        let store = Store::host("127.0.0.1", 0).unwrap();
        // It has said hello, and was killed then.
        write(&store, &member(1, 2).key("hello", 1), &arrival()).unwrap();
        let port = store.port();
        let first = std::thread::spawn(move || {
            let store = Store::connect("127.0.0.1", port, PATIENCE).unwrap();
            agree(&store, &member(0, 2), arrival(), PATIENCE, &Stop::default()).unwrap()
        });
        let announced = member(0, 2).key_of_all("roster");
        store.wait(&[announced], PATIENCE).unwrap();
        let second = agree(&store, &member(1, 2), arrival(), PATIENCE, &Stop::default());
        assert_eq!(second.unwrap(), first.join().unwrap());
    }

    #[test]
    fn who_does_not_come_is_named() {
        let store = Store::host("127.0.0.1", 0).unwrap();
        let short = Duration::from_millis(100);
        let stop = Stop::default();
        let error = agree(&store, &member(0, 2), arrival(), short, &stop);
        let told = error.unwrap_err().to_string();
        assert!(told.contains("for rank 1 to start"), "{told}");
        // One of an earlier start does not count.
        let error = agree(&store, &member(1, 2), arrival(), short, &stop);
        let told = error.unwrap_err().to_string();
        assert!(told.contains("for rank 0 to start"), "{told}");
        stop.request();
        let error = agree(&store, &member(0, 2), arrival(), PATIENCE, &stop);
        assert!(error.unwrap_err().to_string().contains("asked to stop"));
    }

    #[test]
    fn two_processes_with_one_number_are_told() {
        let store = Store::host("127.0.0.1", 0).unwrap();
        let port = store.port();
        let first = std::thread::spawn(move || {
            let store = Store::connect("127.0.0.1", port, PATIENCE).unwrap();
            agree(&store, &member(1, 2), arrival(), PATIENCE, &Stop::default())
        });
        let hello = member(1, 2).key("hello", 1);
        store.wait(std::slice::from_ref(&hello), PATIENCE).unwrap();
        write(&store, &hello, &arrival()).unwrap();
        let told = first.join().unwrap().unwrap_err().to_string();
        assert!(told.contains("says that it is rank 1"), "{told}");
    }
}
