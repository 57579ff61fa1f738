//! Distributed training with c10d, the library below PyTorch's `torchrun`.
//!
//! A [`Store`] has keys and values that all processes can read; `torchrun` hosts one, and so can any process. Through it,
//! the processes of a [`Group`] find each other. A group sums and broadcasts tensors on the CPU with Gloo; all processes
//! call the same functions in the same order. If one is gone, or does not answer in time, all others get an
//! [`Error::Peer`], after which the group is unusable.
//!
//! A [`Reduction`] of a group sums gradients while the backward pass still computes others.

mod reduction;

use std::ffi::{CString, c_char};
use std::ptr::NonNull;
use std::time::Duration;

use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::raw;

pub use reduction::Reduction;

/// Keys and values shared by several processes. Do not share it between threads: a call that waits blocks all others.
#[derive(Debug)]
pub struct Store {
    handle: NonNull<raw::StoreHandle>,
    port: u16,
}

impl Store {
    /// A store hosted by this process at `address` (`0.0.0.0`: all addresses of this machine), and a client of it. Port 0
    /// chooses a free one. The store ends with this value.
    ///
    /// # Errors
    /// [`Error::Peer`] when the port is taken.
    pub fn host(address: &str, port: u16) -> Result<Self> {
        Self::open(address, port, true, Duration::from_secs(60))
    }

    /// A client of the store at `host`. Waits up to `timeout` for the store to start.
    ///
    /// # Errors
    /// [`Error::Peer`] if there is none.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self> {
        Self::open(host, port, false, timeout)
    }

    fn open(host: &str, port: u16, server: bool, timeout: Duration) -> Result<Self> {
        let host = c_string(host)?;
        let (mut handle, mut bound) = (std::ptr::null_mut(), 0);
        // SAFETY: a C string that lives through the call, and two places for the results.
        raw::check(unsafe {
            raw::surefoot_store_open(
                host.as_ptr(),
                port,
                server,
                milliseconds(timeout),
                &mut handle,
                &mut bound,
            )
        })?;
        let handle = NonNull::new(handle);
        let handle = handle.ok_or_else(|| Error::Torch("a store without an address".into()))?;
        let port = bound;
        Ok(Self { handle, port })
    }

    /// The port in use.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets a key, replacing its previous value.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = c_string(key)?;
        // SAFETY: a live store, a C string and `value.len()` bytes, all borrowed for the call.
        raw::check(unsafe {
            raw::surefoot_store_set(
                self.handle.as_ptr(),
                key.as_ptr(),
                value.as_ptr(),
                value.len(),
            )
        })
    }

    /// Waits for a key to be set, and returns its value.
    ///
    /// # Errors
    /// [`Error::Peer`] if it is not set within `timeout`, or the store is gone.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let key = c_string(key)?;
        let value = raw::tensor(|out| {
            // SAFETY: a live store and a C string, borrowed for the call; `out` is where the tensor goes.
            unsafe {
                raw::surefoot_store_get(
                    self.handle.as_ptr(),
                    key.as_ptr(),
                    milliseconds(timeout),
                    out,
                )
            }
        })?;
        Ok(Vec::<u8>::try_from(&value)?)
    }

    /// Adds to a counter, shared by all processes, that starts at 0; returns the new value.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let key = c_string(key)?;
        let mut sum = 0;
        // SAFETY: a live store, a C string and a place for the result.
        raw::check(unsafe {
            raw::surefoot_store_add(self.handle.as_ptr(), key.as_ptr(), amount, &mut sum)
        })?;
        Ok(sum)
    }

    /// Whether all of these keys are set.
    pub fn has<T: AsRef<str>>(&self, keys: &[T]) -> Result<bool> {
        let (_owned, keys) = c_strings(keys)?;
        let mut answer = false;
        // SAFETY: `keys.len()` C strings that `_owned` keeps, and a place for the result.
        raw::check(unsafe {
            raw::surefoot_store_has(self.handle.as_ptr(), keys.as_ptr(), keys.len(), &mut answer)
        })?;
        Ok(answer)
    }

    /// Waits until all of these keys are set.
    ///
    /// # Errors
    /// [`Error::Peer`] if one is not set within `timeout`, or the store is gone.
    pub fn wait<T: AsRef<str>>(&self, keys: &[T], timeout: Duration) -> Result<()> {
        let (_owned, keys) = c_strings(keys)?;
        // SAFETY: `keys.len()` C strings that `_owned` keeps, borrowed for the call.
        raw::check(unsafe {
            raw::surefoot_store_wait(
                self.handle.as_ptr(),
                keys.as_ptr(),
                keys.len(),
                milliseconds(timeout),
            )
        })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: ours alone, and not used again.
        unsafe { raw::surefoot_store_free(self.handle.as_ptr()) };
    }
}

/// The interface on which a group listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface<'a> {
    /// By name, such as `eth0`.
    Name(&'a str),
    /// By address, such as `192.168.1.4`.
    Address(&'a str),
}

/// A group of processes, of which this one is `rank` of `size`.
#[derive(Debug)]
pub struct Group {
    handle: NonNull<raw::GroupHandle>,
    rank: usize,
    size: usize,
}

impl Group {
    /// Joins the group whose keys have this `prefix`, and waits for all other ranks. No call on the group takes longer than
    /// `timeout`.
    ///
    /// # Errors
    /// [`Error::Peer`] if a rank does not join, or there is no such interface; [`Error::InvalidArgument`] for a rank outside
    /// the group.
    pub fn join(
        store: &Store,
        prefix: &str,
        (rank, size): (usize, usize),
        interface: Interface<'_>,
        timeout: Duration,
    ) -> Result<Self> {
        let number = |number: usize| {
            i32::try_from(number)
                .map_err(|_| Error::InvalidArgument(format!("a group has no {number} ranks")))
        };
        if rank >= size {
            return Err(Error::InvalidArgument(format!(
                "there is no rank {rank} in a group of {size}"
            )));
        }
        let (name, is_address) = match interface {
            Interface::Name(name) => (c_string(name)?, false),
            Interface::Address(address) => (c_string(address)?, true),
        };
        let prefix = c_string(prefix)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a live store and two C strings, borrowed for the call, and a place for the
        // result. The group keeps a reference on the store of its own.
        raw::check(unsafe {
            raw::surefoot_group_new(
                store.handle.as_ptr(),
                prefix.as_ptr(),
                number(rank)?,
                number(size)?,
                name.as_ptr(),
                is_address,
                milliseconds(timeout),
                &mut handle,
            )
        })?;
        let handle = NonNull::new(handle);
        let handle = handle.ok_or_else(|| Error::Torch("a group without ranks".into()))?;
        Ok(Self { handle, rank, size })
    }

    /// The rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Replaces `tensor` (on the CPU, with the same shape and kind on all ranks) with the sum over all ranks, which is
    /// bit-identical on all of them.
    ///
    /// # Errors
    /// [`Error::Peer`] if another rank is gone or late; [`Error::InvalidArgument`] for a tensor that is not on the CPU or
    /// has gaps.
    pub fn sum(&self, tensor: &mut Tensor) -> Result<()> {
        // SAFETY: a live group, and a tensor that is borrowed exclusively; the call ends when the
        // sum is there, or with an error.
        raw::check(unsafe { raw::surefoot_group_sum(self.handle.as_ptr(), tensor.as_mut_ptr()) })
    }

    /// Replaces `tensor` with that of rank `root`.
    pub fn broadcast(&self, tensor: &mut Tensor, root: usize) -> Result<()> {
        if root >= self.size {
            return Err(Error::InvalidArgument(format!(
                "there is no rank {root} in a group of {}",
                self.size
            )));
        }
        // SAFETY: as in `sum`.
        raw::check(unsafe {
            raw::surefoot_group_broadcast(self.handle.as_ptr(), tensor.as_mut_ptr(), root as i32)
        })
    }

    /// Sums numbers over all ranks.
    pub fn sum_numbers(&self, numbers: &[f64]) -> Result<Vec<f64>> {
        let mut tensor = Tensor::f_from_slice(numbers)?.f_to_kind(Kind::Double)?;
        self.sum(&mut tensor)?;
        Ok(Vec::<f64>::try_from(&tensor)?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: ours alone, and not used again; no call is in progress, since each borrows it. A
        // `Reduction` has a reference on c10d's group of its own.
        unsafe { raw::surefoot_group_free(self.handle.as_ptr()) };
    }
}

fn milliseconds(duration: Duration) -> u64 {
    // c10d counts in signed nanoseconds.
    let most = Duration::from_secs(365 * 24 * 3600);
    duration.min(most).as_millis().max(1) as u64
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text)
        .map_err(|_| Error::InvalidArgument(format!("a name with a NUL byte: {text:?}")))
}

/// C strings, and pointers to them that are valid as long as the strings are.
fn c_strings<T: AsRef<str>>(texts: &[T]) -> Result<(Vec<CString>, Vec<*const c_char>)> {
    let owned = texts.iter().map(|text| c_string(text.as_ref()));
    let owned = owned.collect::<Result<Vec<_>>>()?;
    let pointers = owned.iter().map(|text| text.as_ptr()).collect();
    Ok((owned, pointers))
}
