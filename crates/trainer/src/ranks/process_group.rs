//! One of several ranks: how it finds the others, and how it determines which of them is gone or late.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};
use torch_ext::distributed::{Group, Interface, Store};
use torch_ext::rccl::Communicator;

use super::address;
use super::begun::{Begun, Known};
use super::membership::Membership;
use super::overlap::OverlappedSums;
use super::roster::{self, Arrival};
use crate::Error;
use crate::stop::Stop;

/// Maximum interval for polling the store. c10d's own wait logs a warning when it times out, and does not notice that
/// another rank has failed.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// How long a rank that lost a connection waits for the others to report why.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// Size of the sum that measures the link.
const PROBE_BYTES: usize = 4 << 20;

/// One of several ranks.
pub(super) struct ProcessGroup {
    // Dropped first: they hold the group, which holds the store.
    pub(super) overlapped: Option<OverlappedSums>,
    pub(super) group: Option<Group>,
    /// Sums tensors on the GPU, if all ranks can.
    pub(super) rccl: Option<Communicator>,
    pub(super) store: Store,
    /// Whether the store is in this process.
    hosts_store: bool,
    pub(super) me: Membership,
    /// Prefix of the keys of this start.
    prefix: String,
    host: String,
    /// The hosts of all ranks.
    hosts: Vec<String>,
    pub(super) timeout: Duration,
    /// Values broadcast so far; the same number on all ranks.
    pub(super) broadcasts: u64,
    pub(super) link: String,
}

/// Why a rank has ended.
#[derive(Serialize, Deserialize)]
struct Failure {
    host: String,
    message: String,
    /// How it lost another rank, if it has no error of its own.
    lost: Option<Lost>,
}

/// How a rank without an error of its own lost another one.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Lost {
    /// The connection broke.
    Broken,
    /// No answer came in time.
    Late,
}

impl ProcessGroup {
    /// Joins the others, and agrees with them on the run that an earlier start began, if any.
    pub(super) fn join(
        me: Membership,
        known: Known,
        timeout: Duration,
        stop: &Stop,
    ) -> Result<(Self, Option<Begun>), Error> {
        let hosts_store = me.rank == 0 && !me.agent_store;
        let store = match hosts_store {
            true => Store::host(&me.master, me.port),
            false => Store::connect(&me.master, me.port, timeout),
        };
        let store = store.map_err(|error| {
            Error::Ranks(format!(
                "rank {} cannot {} the store at {}:{}, by which ranks find each other: {error}\n\
                 is that machine up, and does its firewall let this port through?",
                me.rank,
                if hosts_store { "open" } else { "reach" },
                me.master,
                me.port
            ))
        })?;
        let address = platform::network::source_address(&me.master, me.port)
            .ok_or_else(|| Error::Ranks(format!("this machine has no route to {}", me.master)))?;
        let host = host_name();
        let own = Arrival::new(host.clone(), address, known);
        let roster = roster::agree(&store, &me, own, timeout, stop)?;
        let arrivals = roster.in_order();
        let known = arrivals.iter().map(|arrival| &arrival.known);
        let begun = Known::of_all(known).chosen(timeout, stop)?;
        let (hosts, addresses): (Vec<_>, Vec<_>) = arrivals
            .into_iter()
            .map(|arrival| (arrival.host, arrival.address))
            .unzip();
        let mut joined = Self {
            overlapped: None,
            group: None,
            rccl: None,
            store,
            hosts_store,
            host,
            hosts,
            timeout,
            broadcasts: 0,
            link: String::new(),
            me: Membership {
                rank: roster.rank_of(me.rank),
                ..me
            },
            prefix: roster.prefix,
        };
        let interface = std::env::var("GLOO_SOCKET_IFNAME").ok();
        let interface = interface.filter(|name| !name.is_empty());
        let listen = address::listen_address(address, &addresses).ok_or_else(|| {
            Error::Ranks(format!(
                "{} has no address that other machines reach: set MASTER_ADDR to one of the machine \
                 of rank 0, or GLOO_SOCKET_IFNAME to the interface between them",
                joined.name_of(joined.me.rank)
            ))
        })?;
        let listen = listen.to_string();
        let began = Instant::now();
        let group = Group::join(
            &joined.store,
            &joined.key("gloo"),
            (joined.me.rank, joined.me.size),
            match &interface {
                Some(name) => Interface::Name(name),
                None => Interface::Address(&listen),
            },
            timeout,
        );
        joined.group = Some(group.map_err(|error| joined.explain(error, began))?);
        let rate = joined.exchange(measure)?;
        let machines = joined.hosts.iter().collect::<BTreeSet<_>>().len();
        joined.link = format!(
            "{} on {machines} machine{}, by Gloo over {}, {rate:.0} MiB/s",
            joined.me.size,
            if machines == 1 { "" } else { "s" },
            interface.as_ref().unwrap_or(&listen),
        );
        Ok((joined, begun))
    }

    /// Runs a collective operation; an error names the rank at fault.
    pub(super) fn exchange<T>(
        &mut self,
        work: impl FnOnce(&Group) -> Result<T, torch_ext::Error>,
    ) -> Result<T, Error> {
        let began = Instant::now();
        let parted = || Error::Internal("ranks that have parted exchange nothing".into());
        let done = work(self.group.as_ref().ok_or_else(parted)?);
        done.map_err(|error| self.explain(error, began))
    }

    /// Sums a tensor over all ranks; an error names the rank at fault.
    pub(super) fn sum(&mut self, mut tensor: Tensor) -> Result<Tensor, Error> {
        let began = Instant::now();
        match &mut self.rccl {
            Some(rccl) => {
                let sum = rccl.sum(tensor);
                sum.map_err(|error| self.explain(error, began))
            }
            None => {
                self.exchange(|group| group.sum(&mut tensor))?;
                Ok(tensor)
            }
        }
    }

    /// Waits until all ranks have arrived here. It uses a sum, which fails as soon as a rank is killed; waiting for a key in
    /// the store would take until the timeout.
    pub(super) fn barrier(&mut self) -> Result<(), Error> {
        self.exchange(|group| group.sum_numbers(&[0.0])).map(drop)
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    pub(super) fn key_of(&self, name: &str, rank: usize) -> String {
        self.key(&format!("{name}/{rank}"))
    }

    /// Sets a key of this rank.
    pub(super) fn set(&self, name: &str, value: &[u8]) -> Result<(), Error> {
        let set = self.store.set(&self.key_of(name, self.me.rank), value);
        set.map_err(|error| self.store_is_gone(&error))
    }

    pub(super) fn name_of(&self, rank: usize) -> String {
        match self.hosts.get(rank) {
            Some(host) => format!("rank {rank} on {host}"),
            None => format!("rank {rank}"),
        }
    }

    /// Each other rank with the reason why it ended, if it has reported one.
    fn others(&self) -> Result<Vec<(usize, Option<Failure>)>, torch_ext::Error> {
        let mut others = Vec::new();
        for rank in (0..self.me.size).filter(|rank| *rank != self.me.rank) {
            let key = self.key_of("failed", rank);
            let failure = match self.store.has(&[&key])? {
                false => None,
                true => serde_json::from_slice(&self.store.get(&key, GRACE)?).ok(),
            };
            others.push((rank, failure));
        }
        Ok(others)
    }

    /// Publishes why this rank ends. A rank that publishes nothing counts as dead, so an unreachable store does not matter.
    pub(super) fn report(&mut self, message: &str, lost: Option<Lost>) {
        self.disconnect();
        let failure = Failure {
            host: self.host.clone(),
            message: message.to_owned(),
            lost,
        };
        // The first reason is the actual one.
        let key = self.key_of("failed", self.me.rank);
        if self.store.has(&[&key]).unwrap_or(true) {
            return;
        }
        let Ok(text) = serde_json::to_vec(&failure) else {
            return;
        };
        if let Err(error) = self.store.set(&key, &text) {
            tracing::debug!("the other ranks are not told: {error}");
        }
    }

    /// Closes all connections to the others except the one to the store.
    fn disconnect(&mut self) {
        self.overlapped = None;
        self.group = None;
        self.rccl = None;
    }

    /// Turns the failure of a collective operation that `began` then into an error that says which rank is gone, or why it
    /// ended.
    pub(super) fn explain(&mut self, error: torch_ext::Error, began: Instant) -> Error {
        if !matches!(error, torch_ext::Error::Peer(_)) {
            return error.into();
        }
        let own = match began.elapsed() >= self.timeout {
            true => Lost::Late,
            false => Lost::Broken,
        };
        // This closes the group, so that ranks waiting for this one notice now.
        self.report(&error.to_string(), Some(own));
        let until = Instant::now() + GRACE;
        loop {
            let others = match self.others() {
                Ok(others) => others,
                Err(gone) => return self.store_is_gone(&gone),
            };
            let said = others
                .iter()
                .filter_map(|(rank, said)| Some((rank, said.as_ref()?)));
            if let Some((rank, failure)) = said.clone().find(|(_, said)| said.lost.is_none()) {
                return Error::Ranks(format!(
                    "rank {rank} on {} has ended: {}",
                    failure.host, failure.message
                ));
            }
            // The first rank to time out breaks the connections of all others.
            let somebody_waited = said.clone().any(|(_, said)| said.lost == Some(Lost::Late));
            let silent = others.iter().filter(|(_, said)| said.is_none());
            let silent: Vec<usize> = silent.map(|(rank, _)| *rank).collect();
            if silent.is_empty() {
                let me = self.name_of(self.me.rank);
                return Error::Ranks(match own == Lost::Broken && somebody_waited {
                    true => format!(
                        "{me} was late: others have waited {} seconds (`train.rank_timeout`), and ended",
                        self.timeout.as_secs()
                    ),
                    false => format!(
                        "{me} lost the connection to the other ranks, though all of them are there: {error}"
                    ),
                });
            }
            if Instant::now() >= until {
                return self.missed(&silent, own == Lost::Late || somebody_waited);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// An error that names the ranks that are gone or late, and what each was last doing.
    fn missed(&self, ranks: &[usize], timed_out: bool) -> Error {
        let lines = ranks.iter().map(|rank| {
            let key = self.key_of("doing", *rank);
            let doing = match self.store.has(&[&key]) {
                Ok(true) => self.store.get(&key, GRACE).ok(),
                _ => None,
            };
            let doing = doing.map_or_else(
                || "the start".into(),
                |text| String::from_utf8_lossy(&text).into_owned(),
            );
            format!("\n  {}, last heard of at {doing}", self.name_of(*rank))
        });
        let lines: String = lines.collect();
        let me = self.name_of(self.me.rank);
        Error::Ranks(match timed_out {
            true => format!(
                "{me} waited {} seconds (`train.rank_timeout`) for an answer from{lines}\nlook at its \
                 output there; a firewall between the machines looks like this too",
                self.timeout.as_secs()
            ),
            false => format!(
                "{me} has lost the connection to{lines}\nit ended without reporting an error: look at its \
                 output there, and at that machine's log"
            ),
        })
    }

    pub(super) fn store_is_gone(&self, error: &torch_ext::Error) -> Error {
        let Membership { master, port, .. } = &self.me;
        let host = match self.me.agent_store {
            true => "what started the ranks",
            false => "the rank that has it",
        };
        Error::Ranks(format!(
            "{} has lost the store at {master}:{port}, so {host} has ended: {error}",
            self.name_of(self.me.rank)
        ))
    }
}

impl Drop for ProcessGroup {
    /// The rank that hosts the store leaves last: for the others, losing the store would be a failure.
    fn drop(&mut self) {
        self.disconnect();
        if self.set("left", b"").is_err() || !self.hosts_store {
            return;
        }
        let others = (0..self.me.size).filter(|rank| *rank != self.me.rank);
        let others: Vec<_> = others.map(|rank| self.key_of("left", rank)).collect();
        let until = Instant::now() + self.timeout.min(GRACE);
        while !self.store.has(&others).unwrap_or(true) && Instant::now() < until {
            std::thread::sleep(PAUSE);
        }
    }
}

/// MiB per second of a sum. The first sum, which opens connections, is not measured.
fn measure(group: &Group) -> Result<f64, torch_ext::Error> {
    let mut tensor = Tensor::f_zeros([PROBE_BYTES as i64 / 4], (Kind::Float, Device::Cpu))?;
    group.sum(&mut tensor)?;
    let began = Instant::now();
    group.sum(&mut tensor)?;
    Ok((PROBE_BYTES >> 20) as f64 / began.elapsed().as_secs_f64())
}

pub(super) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "an unnamed machine".into(),
        name => name.to_owned(),
    }
}
