//! Measures the speed of the link between two machines over TCP.
//!
//! ```text
//! client                          listener
//!   GREETING                   ─▶
//!                              ◀─  GREETING
//!   'p' 0                      ─▶
//!                              ◀─  its clock, nanoseconds since 1970
//!   'u' n, n bytes             ─▶
//!                              ◀─  its clock, after the last byte
//!   'd' n                      ─▶
//!                              ◀─  n bytes
//!   'b' n, n bytes             ─▶
//!                              ◀─  n bytes at the same time, then its clock
//! ```
//!
//! Numbers are little-endian 64-bit integers. The listener stores nothing that it receives, and sends only bytes
//! that it has generated.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// The listener's default port.
pub const PORT: u16 = 29_600;

const GREETING: [u8; 16] = *b"surefoot link 1\n";
/// Timeout for the other side's next byte.
const PATIENCE: Duration = Duration::from_secs(15);
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const PINGS: usize = 200;
/// First amount to send, to estimate how much takes a second, in bytes.
const FIRST_BYTES: u64 = 256 << 10;
/// The most bytes that a listener sends or receives for one request.
const MOST_BYTES: u64 = 64 << 30;
/// The minimum duration of a valid measurement.
const LONG_ENOUGH: Duration = Duration::from_secs(1);
const CHUNK: usize = 1 << 20;

/// The measured properties of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Time to connect, in seconds.
    pub connect_seconds: f64,
    /// Median round-trip time of a few bytes, in seconds.
    pub round_trip_seconds: f64,
    /// The 99th percentile of the round-trip time, in seconds.
    pub slow_round_trip_seconds: f64,
    /// Towards the other machine, without other traffic.
    pub bytes_per_second_to: f64,
    /// From the other machine, without other traffic.
    pub bytes_per_second_from: f64,
    /// In each direction, both at once, as when gradients are summed.
    pub bytes_per_second_both: f64,
    /// How far the other machine's clock is ahead, in seconds.
    pub clock_ahead_seconds: f64,
}

impl Link {
    /// Seconds that two machines need to sum `bytes` over this link: each sends and receives
    /// as many.
    #[must_use]
    pub fn sum_seconds(&self, bytes: f64) -> f64 {
        bytes / self.bytes_per_second_both + self.round_trip_seconds
    }
}

/// Why a measurement failed.
#[derive(Debug)]
pub enum Failure {
    /// The host name cannot be resolved.
    Unknown(io::Error),
    /// The connection was refused.
    Refused,
    /// There was no answer.
    NoAnswer,
    /// Another program listens there, or another version of this one.
    Stranger,
    /// Any other error.
    Other(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{ConnectionRefused, TimedOut, UnexpectedEof, WouldBlock};
        match error.kind() {
            ConnectionRefused => Self::Refused,
            TimedOut | WouldBlock => Self::NoAnswer,
            UnexpectedEof => Self::Stranger,
            _ => Self::Other(error),
        }
    }
}

/// Measures the link to the listener at `host`; `tell` is called with the name of each measurement.
///
/// # Errors
/// A [`Failure`], by what a user can do about it.
pub fn measure(host: &str, port: u16, mut tell: impl FnMut(&str)) -> Result<Link, Failure> {
    tell("connecting");
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = (bare, port).to_socket_addrs().map_err(Failure::Unknown)?;
    let (mut stream, connect_seconds) = connect(addresses)?;
    prepare(&stream)?;
    stream.write_all(&GREETING)?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting)?;
    if greeting != GREETING {
        return Err(Failure::Stranger);
    }

    tell("round trips");
    let mut trips = Vec::with_capacity(PINGS);
    let mut best = (f64::INFINITY, 0.0);
    for _ in 0..PINGS {
        let (sent, began) = (now(), Instant::now());
        request(&mut stream, b'p', 0)?;
        let there = number(&mut stream)? as f64 / 1e9;
        let trip = began.elapsed().as_secs_f64();
        trips.push(trip);
        // The shortest round trip gives the most accurate clock difference.
        if trip < best.0 {
            best = (trip, there - (sent + trip / 2.0));
        }
    }
    trips.sort_by(f64::total_cmp);

    tell("to the other machine");
    let data = noise();
    let to = rate(|bytes| {
        request(&mut stream, b'u', bytes)?;
        send(&mut stream, &data, bytes)?;
        number(&mut stream).map(drop)
    })?;
    tell("from the other machine");
    let from = rate(|bytes| {
        request(&mut stream, b'd', bytes)?;
        swallow(&mut stream, bytes)
    })?;
    tell("in both directions at once");
    let both = rate(|bytes| {
        request(&mut stream, b'b', bytes)?;
        both_ways(&mut stream, &data, bytes)?;
        number(&mut stream).map(drop)
    })?;
    Ok(Link {
        connect_seconds,
        round_trip_seconds: trips[PINGS / 2],
        slow_round_trip_seconds: trips[PINGS * 99 / 100],
        bytes_per_second_to: to,
        bytes_per_second_from: from,
        bytes_per_second_both: both,
        clock_ahead_seconds: best.1,
    })
}

/// Answers clients one after another; `tell` is called for each. Returns only if the listener itself
/// fails.
pub fn listen(
    listener: &TcpListener,
    mut tell: impl FnMut(SocketAddr, io::Result<()>),
) -> io::Error {
    let data = noise();
    loop {
        match listener.accept() {
            Ok((stream, address)) => tell(address, answer(stream, &data)),
            // A client that has already disconnected is no reason to stop.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return error,
        }
    }
}

fn connect(addresses: impl Iterator<Item = SocketAddr>) -> Result<(TcpStream, f64), Failure> {
    let mut last = None;
    for address in addresses {
        let began = Instant::now();
        match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
            Ok(stream) => return Ok((stream, began.elapsed().as_secs_f64())),
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| io::Error::other("the name has no address"));
    Err(error.into())
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

fn answer(mut stream: TcpStream, data: &[u8]) -> io::Result<()> {
    prepare(&stream)?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting)?;
    if greeting != GREETING {
        return Err(io::Error::other("not `surefoot probe --link`"));
    }
    stream.write_all(&GREETING)?;
    loop {
        let mut command = [0];
        if stream.read(&mut command)? == 0 {
            return Ok(());
        }
        let bytes = number(&mut stream)?;
        if bytes > MOST_BYTES {
            return Err(io::Error::other(format!(
                "asked for {bytes} bytes at once, more than the {MOST_BYTES} that a link is measured with"
            )));
        }
        match command[0] {
            b'p' => {}
            b'u' => swallow(&mut stream, bytes)?,
            b'd' => {
                send(&mut stream, data, bytes)?;
                continue;
            }
            b'b' => both_ways(&mut stream, data, bytes)?,
            other => return Err(io::Error::other(format!("an unknown request, {other}"))),
        }
        let clock = (now() * 1e9) as u64;
        stream.write_all(&clock.to_le_bytes())?;
    }
}

fn request(stream: &mut TcpStream, command: u8, bytes: u64) -> io::Result<()> {
    let mut request = [command; 9];
    request[1..].copy_from_slice(&bytes.to_le_bytes());
    stream.write_all(&request)
}

fn number(stream: &mut TcpStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Bytes per second of `transfer`, with an amount that takes at least a second.
fn rate(mut transfer: impl FnMut(u64) -> io::Result<()>) -> io::Result<f64> {
    let mut bytes = FIRST_BYTES;
    loop {
        let began = Instant::now();
        transfer(bytes)?;
        let took = began.elapsed();
        if took >= LONG_ENOUGH || bytes >= MOST_BYTES {
            return Ok(bytes as f64 / took.as_secs_f64());
        }
        let factor = 1.3 * LONG_ENOUGH.as_secs_f64() / took.as_secs_f64().max(1e-9);
        let wanted = bytes as f64 * factor.clamp(2.0, 16.0);
        bytes = (wanted as u64).min(MOST_BYTES);
    }
}

fn send(stream: &mut impl Write, data: &[u8], mut bytes: u64) -> io::Result<()> {
    while bytes > 0 {
        let now = bytes.min(data.len() as u64);
        // At most the length of `data`.
        stream.write_all(&data[..now as usize])?;
        bytes -= now;
    }
    Ok(())
}

fn swallow(stream: &mut impl Read, bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    let mut chunk = vec![0; CHUNK];
    while left > 0 {
        let most = left.min(CHUNK as u64) as usize;
        let read = stream.read(&mut chunk[..most])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= read as u64;
    }
    Ok(())
}

fn both_ways(stream: &mut TcpStream, data: &[u8], bytes: u64) -> io::Result<()> {
    let mut outward = stream.try_clone()?;
    thread::scope(|scope| {
        let sent = scope.spawn(move || send(&mut outward, data, bytes));
        let read = swallow(stream, bytes);
        let sent = sent.join();
        read?;
        sent.unwrap_or_else(|_| Err(io::Error::other("the sending thread panicked")))
    })
}

/// Incompressible bytes, which no tunnel can make fewer.
fn noise() -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(CHUNK / 8).flatten().collect()
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    #[test]
    fn a_link_to_this_machine_is_measured_twice_by_one_listener() {
        let (listener, port) = listener();
        thread::spawn(move || listen(&listener, |_, _| ()));
        for _ in 0..2 {
            let mut told = Vec::new();
            let link = measure("127.0.0.1", port, |what| told.push(what.to_owned())).unwrap();
            assert_eq!(told.len(), 5);
            for rate in [
                link.bytes_per_second_to,
                link.bytes_per_second_from,
                link.bytes_per_second_both,
            ] {
                assert!(rate.is_finite() && rate > 1e6, "{link:?}");
            }
            assert!(link.round_trip_seconds > 0.0);
            assert!(link.round_trip_seconds <= link.slow_round_trip_seconds);
            // Both sides read the same clock.
            assert!(link.clock_ahead_seconds.abs() <= link.slow_round_trip_seconds);
            assert!(link.sum_seconds(1e9) > link.sum_seconds(1e6));
        }
    }

    #[test]
    fn refused_connections_and_other_programs_are_distinguished() {
        let (closed, port) = listener();
        drop(closed);
        let refused = measure("127.0.0.1", port, |_| ());
        assert!(matches!(refused, Err(Failure::Refused)), "{refused:?}");

        let (stranger, port) = listener();
        thread::spawn(move || {
            let (mut stream, _) = stranger.accept().unwrap();
            stream
                .write_all(b"SSH-2.0-OpenSSH_10.0p1 Debian-5\r\n")
                .unwrap();
            let _ = stream.read(&mut [0; 64]);
        });
        let refused = measure("127.0.0.1", port, |_| ());
        assert!(matches!(refused, Err(Failure::Stranger)), "{refused:?}");

        let unknown = measure("no-such-host.invalid", port, |_| ());
        assert!(matches!(unknown, Err(Failure::Unknown(_))), "{unknown:?}");
    }

    #[test]
    fn a_listener_survives_other_programs_and_excessive_requests() {
        let (listener, port) = listener();
        let (told, heard) = std::sync::mpsc::channel();
        thread::spawn(move || listen(&listener, |_, end| told.send(end.is_ok()).unwrap()));
        let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut stream = connect();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        assert!(!heard.recv().unwrap());

        let mut stream = connect();
        stream.write_all(&GREETING).unwrap();
        request(&mut stream, b'd', u64::MAX).unwrap();
        assert!(!heard.recv().unwrap());

        let mut stream = connect();
        stream.write_all(&GREETING).unwrap();
        stream.read_exact(&mut [0; GREETING.len()]).unwrap();
        drop(stream);
        assert!(heard.recv().unwrap());
    }
}
