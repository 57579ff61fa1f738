//! RCCL, or NCCL: all-reduce between processes of this machine, in host memory, over local TCP.
//!
//! Rank 0 receives the values of all ranks, adds them in rank order, and sends the sum back. As
//! with the real library, a call only starts a sum; later failures are asynchronous errors.
//!
//! `DEVICE_SIM_RCCL=FAULT:RANK[:SUM]` makes one rank fail, in the sum with this number (default
//! 1): `init-fails`, `init-hangs`, `wrong-sum`, `call-fails`, `async-error`, `hangs`, `dies`.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::environment::RCCL;

const SUCCESS: c_int = 0;
const SYSTEM_ERROR: c_int = 2;
const INVALID_ARGUMENT: c_int = 4;
const REMOTE_ERROR: c_int = 6;

/// The listeners of rank 0 by port, from the creation of the ID to that of the communicator.
static LISTENERS: Mutex<Option<HashMap<u16, TcpListener>>> = Mutex::new(None);

/// `ncclUniqueId`: a port of this machine, and zeros.
#[repr(C)]
struct UniqueId([u8; 128]);

/// What `ncclComm_t` points to.
struct Communicator {
    fault: Option<Fault>,
    is_first: bool,
    sums: u64,
    sockets: Vec<TcpStream>,
    state: Arc<State>,
    work: Option<(Sender<Sum>, JoinHandle<()>)>,
}

#[derive(Default)]
struct State {
    started: AtomicU64,
    finished: AtomicU64,
    error: AtomicI32,
    aborted: AtomicBool,
}

struct Fault {
    kind: String,
    sum: u64,
}

impl Fault {
    fn of(rank: c_int) -> Option<Self> {
        let text = std::env::var(RCCL).ok()?;
        let mut words = text.split(':');
        let kind = words.next()?.to_owned();
        let is_ours = words.next()?.parse() == Ok(rank);
        let sum = words.next().map_or(Some(1), |word| word.parse().ok())?;
        is_ours.then_some(Self { kind, sum })
    }
}

/// A sum in progress: the program does not access either buffer until it is finished.
struct Sum {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
    data_type: c_int,
    fault: Option<String>,
}

// SAFETY: the library's contract gives this memory to it until the sum is finished, or aborted, and
// both are waited for; which thread reads and writes it matters to nobody.
unsafe impl Send for Sum {}

/// Written where the version goes: 2.27.3.
///
/// # Safety
/// `version` is a valid place for a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    if version.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: promised by the caller; null was excluded.
    unsafe { version.write(22_703) };
    SUCCESS
}

/// # Safety
/// `id` is a valid place for 128 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (false, Ok(listener)) = (id.is_null(), listener) else {
        return INVALID_ARGUMENT;
    };
    let Ok(address) = listener.local_addr() else {
        return SYSTEM_ERROR;
    };
    let mut bytes = [0; 128];
    bytes[..2].copy_from_slice(&address.port().to_le_bytes());
    let mut listeners = LISTENERS.lock();
    listeners
        .get_or_insert_default()
        .insert(address.port(), listener);
    // SAFETY: promised by the caller; null was excluded.
    unsafe { id.write(UniqueId(bytes)) };
    SUCCESS
}

/// # Safety
/// `communicator` is a valid place for a pointer.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRank(
    communicator: *mut *mut Communicator,
    size: c_int,
    id: UniqueId,
    rank: c_int,
) -> c_int {
    if communicator.is_null() || rank < 0 || rank >= size {
        return INVALID_ARGUMENT;
    }
    let fault = Fault::of(rank);
    match fault.as_ref().map(|fault| &*fault.kind) {
        Some("init-fails") => return SYSTEM_ERROR,
        Some("init-hangs") => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        _ => {}
    }
    let port = u16::from_le_bytes([id.0[0], id.0[1]]);
    let Ok(sockets) = connect(port, rank, size) else {
        return SYSTEM_ERROR;
    };
    let made = Box::new(Communicator {
        fault,
        is_first: rank == 0,
        sums: 0,
        sockets,
        state: Arc::default(),
        work: None,
    });
    // SAFETY: promised by the caller; null was excluded.
    unsafe { communicator.write(Box::into_raw(made)) };
    SUCCESS
}

/// Connections: for rank 0 those to all others in rank order, otherwise the one to rank 0.
fn connect(port: u16, rank: c_int, size: c_int) -> std::io::Result<Vec<TcpStream>> {
    if rank > 0 {
        let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        socket.set_nodelay(true)?;
        socket.write_all(&rank.to_le_bytes())?;
        return Ok(vec![socket]);
    }
    let listener = LISTENERS.lock().get_or_insert_default().remove(&port);
    let listener = listener.ok_or(std::io::ErrorKind::NotFound)?;
    let mut arrived = Vec::new();
    for _ in 1..size {
        let (mut socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        let mut rank = [0; 4];
        socket.read_exact(&mut rank)?;
        arrived.push((i32::from_le_bytes(rank), socket));
    }
    arrived.sort_by_key(|(rank, _)| *rank);
    Ok(arrived.into_iter().map(|(_, socket)| socket).collect())
}

/// Starts a sum of `count` elements, of fp32 (7), fp64 (8) or bf16 (9).
///
/// # Safety
/// `communicator` is live and used by nobody else; `from` and `to` are `count` elements each, left
/// alone until the sum is finished.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    data_type: c_int,
    operation: c_int,
    communicator: *mut Communicator,
    _stream: *mut c_void,
) -> c_int {
    let size = match data_type {
        7 => 4,
        8 => 8,
        9 => 2,
        _ => return INVALID_ARGUMENT,
    };
    let Some(bytes) = count.checked_mul(size) else {
        return INVALID_ARGUMENT;
    };
    if operation != 0 || communicator.is_null() || from.is_null() || to.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: promised by the caller; null was excluded.
    let communicator = unsafe { &mut *communicator };
    communicator.sums += 1;
    let fault = communicator.fault.as_ref();
    let fault = fault.filter(|fault| fault.sum == communicator.sums);
    let fault = fault.map(|fault| fault.kind.clone());
    match fault.as_deref() {
        Some("call-fails") => return SYSTEM_ERROR,
        Some("dies") => std::process::abort(),
        _ => {}
    }
    communicator.state.started.fetch_add(1, Ordering::SeqCst);
    let sum = Sum {
        from: from.cast(),
        to: to.cast(),
        bytes,
        data_type,
        fault,
    };
    match communicator.start(sum) {
        Ok(()) => SUCCESS,
        Err(_) => SYSTEM_ERROR,
    }
}

/// # Safety
/// `communicator` is live, and `error` a valid place for a number.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(
    communicator: *mut Communicator,
    error: *mut c_int,
) -> c_int {
    if communicator.is_null() || error.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: promised by the caller; null was excluded.
    let state = unsafe { &*communicator }.state.clone();
    // SAFETY: likewise.
    unsafe { error.write(state.error.load(Ordering::SeqCst)) };
    SUCCESS
}

/// Whether all sums are finished, which a real library reports through streams and events.
///
/// # Safety
/// `communicator` is live.
#[unsafe(no_mangle)]
unsafe extern "C" fn device_sim_rccl_is_done(communicator: *mut Communicator) -> c_int {
    if communicator.is_null() {
        return 0;
    }
    // SAFETY: promised by the caller; null was excluded.
    let state = unsafe { &*communicator }.state.clone();
    let finished = state.finished.load(Ordering::SeqCst);
    c_int::from(finished == state.started.load(Ordering::SeqCst))
}

/// # Safety
/// `communicator` is live, and not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(communicator: *mut Communicator) -> c_int {
    if communicator.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: promised by the caller: made by `Box::into_raw`, and given back once.
    let mut communicator = unsafe { Box::from_raw(communicator) };
    communicator.state.aborted.store(true, Ordering::SeqCst);
    for socket in &communicator.sockets {
        let _ = socket.shutdown(Shutdown::Both);
    }
    communicator.end();
    SUCCESS
}

/// # Safety
/// As [`ncclCommAbort`].
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(communicator: *mut Communicator) -> c_int {
    if communicator.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: as in `ncclCommAbort`.
    unsafe { Box::from_raw(communicator) }.end();
    SUCCESS
}

/// The messages of the real library.
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(status: c_int) -> *const c_char {
    let words = match status {
        SUCCESS => c"no error",
        SYSTEM_ERROR => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        INVALID_ARGUMENT => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        _ => c"unknown result code",
    };
    words.as_ptr()
}

impl Communicator {
    /// Passes a sum to the worker thread, which starts with the first sum.
    fn start(&mut self, sum: Sum) -> std::io::Result<()> {
        if self.work.is_none() {
            let (sender, sums) = mpsc::channel::<Sum>();
            let sockets = self.sockets.iter().map(TcpStream::try_clone);
            let mut sockets = sockets.collect::<Result<Vec<_>, _>>()?;
            let (state, is_first) = (self.state.clone(), self.is_first);
            let thread = std::thread::Builder::new().name("simulated rccl".into());
            let thread = thread.spawn(move || {
                for sum in sums {
                    match sum.run(&mut sockets, is_first, &state) {
                        Ok(()) => state.finished.fetch_add(1, Ordering::SeqCst),
                        // It is never finished.
                        Err(_) => return state.error.store(REMOTE_ERROR, Ordering::SeqCst),
                    };
                }
            })?;
            self.work = Some((sender, thread));
        }
        let sent = self.work.as_ref().map(|(sender, _)| sender.send(sum));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Waits until the thread has finished all its sums.
    fn end(&mut self) {
        if let Some((sender, thread)) = self.work.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

impl Sum {
    fn run(&self, sockets: &mut [TcpStream], is_first: bool, state: &State) -> std::io::Result<()> {
        match self.fault.as_deref() {
            Some("hangs") => {
                while !state.aborted.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return Err(std::io::ErrorKind::Interrupted.into());
            }
            Some("async-error") => return Err(std::io::ErrorKind::ConnectionReset.into()),
            _ => {}
        }
        let mut total = vec![0; self.bytes];
        // SAFETY: `from` are this many bytes that the program leaves alone; `total` is our own.
        unsafe {
            self.from
                .copy_to_nonoverlapping(total.as_mut_ptr(), self.bytes)
        };
        if is_first {
            let mut other = vec![0; self.bytes];
            for socket in &mut *sockets {
                socket.read_exact(&mut other)?;
                add(&mut total, &other, self.data_type);
            }
            for socket in sockets {
                socket.write_all(&total)?;
            }
        } else if let Some(first) = sockets.first_mut() {
            first.write_all(&total)?;
            first.read_exact(&mut total)?;
        }
        if self.fault.as_deref() == Some("wrong-sum") {
            total.iter_mut().for_each(|byte| *byte ^= 0x11);
        }
        // SAFETY: `to` are this many bytes that the program leaves alone; `total` is our own.
        unsafe { self.to.copy_from_nonoverlapping(total.as_ptr(), self.bytes) };
        Ok(())
    }
}

fn add(total: &mut [u8], other: &[u8], data_type: c_int) {
    match data_type {
        7 => add_as(total, other, |one, two| {
            (f32::from_le_bytes(one) + f32::from_le_bytes(two)).to_le_bytes()
        }),
        8 => add_as(total, other, |one, two| {
            (f64::from_le_bytes(one) + f64::from_le_bytes(two)).to_le_bytes()
        }),
        _ => add_as(total, other, |one: [u8; 2], two: [u8; 2]| {
            let wide = |half| f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16);
            let bits = (wide(one) + wide(two)).to_bits();
            // To the nearest, and to even between two.
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
            (rounded as u16).to_le_bytes()
        }),
    }
}

fn add_as<const N: usize>(
    total: &mut [u8],
    other: &[u8],
    sum: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    let (places, _) = total.as_chunks_mut::<N>();
    let (others, _) = other.as_chunks::<N>();
    for (place, other) in places.iter_mut().zip(others) {
        *place = sum(*place, *other);
    }
}
