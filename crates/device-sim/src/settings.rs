//! Settings of the simulator: properties of the device, and faults.
//!
//! In the environment there is one variable for each setting
//! (`DEVICE_SIM_CAPACITY=16G`); `device_sim_control` accepts the same settings as
//! `key=value` pairs separated by semicolons, while the program runs:
//!
//! ```text
//! capacity=16G              bytes of memory per device (K, M, G, T: powers of 1024)
//! devices=2                 number of devices (environment only)
//! unified=32G               one pool of this size shared by device and pinned host memory
//! report_total=8G           total in memory info, regardless of the truth (free may exceed it)
//! granularity=4K            device allocations are rounded up to a multiple of this
//! data=none                 copies and memsets above 64 KiB are skipped, for traces of huge models
//! populate=on               device memory is committed when it is allocated
//! architecture=gfx1201      the architecture in HIP
//! overread=4K               matrix products read this far behind each operand: where nothing is mapped, the context
//!                           is lost when the kernel runs
//! disassembler=llvm-objdump-19                 kernels of HIP code objects are executed, by the listing of this program
//! latency=cudaMalloc:14us,*Free:100us          host time of calls, by name
//! device_time=kernel:5us,copy:10us,mib:40us    time on the stream
//! fail=cudaMalloc@3:out_of_memory              third call; @3+ from then on; no @: every call
//! lose=cudaLaunchKernel@7:illegal_address      the same, and the context is lost afterwards
//! crash=cudaLaunchKernel@100    hang=cudaMemcpyAsync@2
//! copy=h2d@2:zeros,d2h>=1M:nan,any@5+:truncate,h2d:late(20ms),h2d:flip
//! copy=h2d:stale,h2d:swap,h2d:mutate           nothing is copied; quarters are swapped; the source is changed first
//! reset_faults   reset_counters   reset_peaks
//! ```

use std::time::Duration;

use crate::architecture::Architecture;
use crate::status::Status;

/// A parsed setting.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// Bytes of memory per device.
    Capacity(u64),
    /// Number of devices.
    Devices(u32),
    /// Device and pinned host memory share one pool of this many bytes.
    Unified(u64),
    /// The total in memory info, which may be false.
    ReportTotal(u64),
    /// Allocations are rounded up to this, a power of two.
    Granularity(u64),
    /// Whether large copies and memsets are executed.
    Data(bool),
    /// Whether device memory is touched when it is allocated.
    Populate(bool),
    /// The architecture in HIP.
    Architecture(Architecture),
    /// Bytes that matrix products read behind each operand.
    Overread(u64),
    /// The program that lists code objects (llvm-objdump).
    Disassembler(String),
    /// Host time added to calls whose name matches.
    Latency(Vec<(Pattern, Duration)>),
    /// Time that work takes on a stream.
    DeviceTime(DeviceTime),
    /// Faults of calls.
    CallFaults(Vec<CallFault>),
    /// Faults of copies.
    CopyFaults(Vec<CopyFault>),
    /// Remove all faults.
    ResetFaults,
    /// Reset the counters of calls.
    ResetCounters,
    /// Reset peaks to the current values.
    ResetPeaks,
}

/// Time that work takes on a stream; zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceTime {
    /// Per kernel launch.
    pub kernel: Duration,
    /// Per copy or memset, whatever its size.
    pub copy: Duration,
    /// Per MiB that a copy or memset moves.
    pub mib: Duration,
}

/// A function name, where `*` stands for any run of characters.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern(String);

/// The matching events to which a fault applies, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Occurrence {
    /// All of them.
    Every,
    /// The n-th only.
    Nth(u64),
    /// The n-th and all later ones.
    From(u64),
}

/// A fault of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallFault {
    /// Which function.
    pub function: Pattern,
    /// Which of its calls.
    pub occurrence: Occurrence,
    /// What happens.
    pub effect: CallEffect,
}

/// The effect that replaces the call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CallEffect {
    /// It returns this status.
    Fail(Status),
    /// It returns this status, and so does every later call: the context is lost.
    Lose(Status),
    /// The process aborts.
    Crash,
    /// It never returns.
    Hang,
}

/// A silent fault of a copy.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyFault {
    /// The direction; `None` means any.
    pub direction: Option<Direction>,
    /// Only copies of at least this many bytes count.
    pub at_least: u64,
    /// Which of those.
    pub occurrence: Occurrence,
    /// The damage.
    pub damage: Damage,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Host to device.
    HostToDevice,
    /// Device to host.
    DeviceToHost,
    /// Device to device.
    DeviceToDevice,
}

/// The damage to a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Damage {
    /// All bytes zero.
    Zeros,
    /// All bits set, which is NaN in every floating-point format.
    Nan,
    /// Only the first half is copied; the rest keeps its previous contents.
    Truncate,
    /// The copy is delayed by this time, although the stream reports completion.
    Late(Duration),
    /// With one bit in the middle inverted.
    Flip,
    /// Nothing is copied: the destination keeps its previous contents.
    Stale,
    /// The second and the fourth quarter are swapped.
    Swap,
    /// As if the source was written to before it is read: each byte of its second half is
    /// incremented. The source in host memory really changes.
    Mutate,
}

/// Why a setting is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{text}`: {problem}")]
pub struct SettingError {
    text: String,
    problem: String,
}

/// Keys with a value, also used for the environment variables.
pub const KEYS: &[&str] = &[
    "capacity",
    "devices",
    "unified",
    "report_total",
    "granularity",
    "data",
    "populate",
    "architecture",
    "overread",
    "disassembler",
    "latency",
    "device_time",
    "fail",
    "lose",
    "crash",
    "hang",
    "copy",
];

/// The longest time allowed, so that sums of times in nanoseconds do not overflow.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Parses a control text: settings separated by semicolons.
///
/// # Errors
/// The first invalid setting, with the expected syntax.
pub fn parse_all(text: &str) -> Result<Vec<Setting>, SettingError> {
    let settings = text
        .split(';')
        .map(str::trim)
        .filter(|setting| !setting.is_empty());
    settings
        .map(|setting| match setting.split_once('=') {
            Some((key, value)) => parse(key.trim(), value.trim()),
            None => match setting {
                "reset_faults" => Ok(Setting::ResetFaults),
                "reset_counters" => Ok(Setting::ResetCounters),
                "reset_peaks" => Ok(Setting::ResetPeaks),
                _ => Err(error(
                    setting,
                    "expected key=value, reset_faults, reset_counters or reset_peaks",
                )),
            },
        })
        .collect()
}

/// Parses one `key=value` setting.
///
/// # Errors
/// An unknown key, or a value that does not fit it.
pub fn parse(key: &str, value: &str) -> Result<Setting, SettingError> {
    match key {
        "capacity" => bytes(value).map(Setting::Capacity),
        "devices" => match value.parse() {
            Ok(count @ 0..=16) => Ok(Setting::Devices(count)),
            _ => Err(error(value, "expected a number of devices from 0 to 16")),
        },
        "unified" => bytes(value).map(Setting::Unified),
        "report_total" => bytes(value).map(Setting::ReportTotal),
        "granularity" => match bytes(value)? {
            size if size.is_power_of_two() => Ok(Setting::Granularity(size)),
            _ => Err(error(value, "expected a power of two")),
        },
        "data" => switch(value, "all", "none").map(Setting::Data),
        "populate" => switch(value, "on", "off").map(Setting::Populate),
        "architecture" => match Architecture::named(value) {
            Some(architecture) => Ok(Setting::Architecture(architecture)),
            None => Err(error(value, "expected a name such as gfx1201")),
        },
        "overread" => bytes(value).map(Setting::Overread),
        "disassembler" => Ok(Setting::Disassembler(value.to_owned())),
        "latency" => list(value, latency).map(Setting::Latency),
        "device_time" => device_time(value).map(Setting::DeviceTime),
        "fail" => list(value, |item| failing_call(item, CallEffect::Fail)).map(Setting::CallFaults),
        "lose" => list(value, |item| failing_call(item, CallEffect::Lose)).map(Setting::CallFaults),
        "crash" => {
            list(value, |item| stopping_call(item, CallEffect::Crash)).map(Setting::CallFaults)
        }
        "hang" => {
            list(value, |item| stopping_call(item, CallEffect::Hang)).map(Setting::CallFaults)
        }
        "copy" => list(value, copy_fault).map(Setting::CopyFaults),
        _ => Err(error(
            key,
            &format!("unknown key; known are {}", KEYS.join(", ")),
        )),
    }
}

impl Pattern {
    /// Whether the pattern covers `name`.
    pub fn matches(&self, name: &str) -> bool {
        let mut pieces = self.0.split('*');
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let mut pieces = pieces.peekable();
        if pieces.peek().is_none() {
            return rest.is_empty();
        }
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() {
                return rest.ends_with(piece);
            }
            match rest.find(piece) {
                Some(at) => rest = &rest[at + piece.len()..],
                None => return false,
            }
        }
        true
    }
}

impl Occurrence {
    /// Whether the fault applies to the event with this number (the first is 1).
    pub fn covers(self, number: u64) -> bool {
        match self {
            Occurrence::Every => true,
            Occurrence::Nth(n) => number == n,
            Occurrence::From(n) => number >= n,
        }
    }
}

fn error(text: &str, problem: &str) -> SettingError {
    SettingError {
        text: text.to_owned(),
        problem: problem.to_owned(),
    }
}

fn list<T>(
    text: &str,
    item: impl Fn(&str) -> Result<T, SettingError>,
) -> Result<Vec<T>, SettingError> {
    text.split(',').map(str::trim).map(item).collect()
}

fn switch(text: &str, yes: &str, no: &str) -> Result<bool, SettingError> {
    match text {
        _ if text == yes => Ok(true),
        _ if text == no => Ok(false),
        _ => Err(error(text, &format!("expected {yes} or {no}"))),
    }
}

/// `512`, `64K`, `16M`, `8G`, `1T`; powers of 1024.
fn bytes(text: &str) -> Result<u64, SettingError> {
    let problem = || {
        error(
            text,
            "expected a size such as 4096, 64K, 512M, 8G or 1T, above zero",
        )
    };
    let (digits, shift) = match text.chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        Some('T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| problem())?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(problem()),
    }
}

fn duration(text: &str) -> Result<Duration, SettingError> {
    let problem = || {
        error(
            text,
            "expected a time such as 500ns, 14us, 2ms or 1s, of a year at most",
        )
    };
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .ok_or_else(problem)?;
    let number: u64 = text[..split].parse().map_err(|_| problem())?;
    let time = match &text[split..] {
        "ns" => Duration::from_nanos(number),
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => return Err(problem()),
    };
    if time > LONGEST {
        return Err(problem());
    }
    Ok(time)
}

fn latency(item: &str) -> Result<(Pattern, Duration), SettingError> {
    let (function, time) = item
        .rsplit_once(':')
        .ok_or_else(|| error(item, "expected function:time"))?;
    Ok((Pattern(function.to_owned()), duration(time)?))
}

fn device_time(text: &str) -> Result<DeviceTime, SettingError> {
    let mut times = DeviceTime::default();
    for item in text.split(',').map(str::trim) {
        let problem = || error(item, "expected kernel:time, copy:time or mib:time");
        let (what, time) = item.split_once(':').ok_or_else(problem)?;
        match what {
            "kernel" => times.kernel = duration(time)?,
            "copy" => times.copy = duration(time)?,
            "mib" => times.mib = duration(time)?,
            _ => return Err(problem()),
        }
    }
    Ok(times)
}

/// `name`, `name@3` or `name@3+`.
fn numbered(text: &str) -> Result<(&str, Occurrence), SettingError> {
    let Some((name, number)) = text.split_once('@') else {
        return Ok((text, Occurrence::Every));
    };
    let (digits, open) = match number.strip_suffix('+') {
        Some(digits) => (digits, true),
        None => (number, false),
    };
    match digits.parse() {
        Ok(n @ 1..) if open => Ok((name, Occurrence::From(n))),
        Ok(n @ 1..) => Ok((name, Occurrence::Nth(n))),
        _ => Err(error(text, "expected a call number from 1 after the @")),
    }
}

fn failing_call(item: &str, effect: fn(Status) -> CallEffect) -> Result<CallFault, SettingError> {
    let (call, status) = item
        .rsplit_once(':')
        .ok_or_else(|| error(item, "expected function[@n]:status"))?;
    let status = Status::parse(status).ok_or_else(|| {
        let words: Vec<_> = Status::words().collect();
        error(
            status,
            &format!("expected a status number or one of {}", words.join(", ")),
        )
    })?;
    stopping_call(call, effect(status))
}

fn stopping_call(item: &str, effect: CallEffect) -> Result<CallFault, SettingError> {
    let (function, occurrence) = numbered(item)?;
    Ok(CallFault {
        function: Pattern(function.to_owned()),
        occurrence,
        effect,
    })
}

fn copy_fault(item: &str) -> Result<CopyFault, SettingError> {
    let (which, damage) = item
        .split_once(':')
        .ok_or_else(|| error(item, "expected direction[>=size][@n]:damage"))?;
    let (which, occurrence) = numbered(which)?;
    let (direction, at_least) = match which.split_once(">=") {
        Some((direction, size)) => (direction, bytes(size)?),
        None => (which, 0),
    };
    let direction = match direction {
        "h2d" => Some(Direction::HostToDevice),
        "d2h" => Some(Direction::DeviceToHost),
        "d2d" => Some(Direction::DeviceToDevice),
        "any" => None,
        _ => return Err(error(direction, "expected h2d, d2h, d2d or any")),
    };
    let late = damage
        .strip_prefix("late(")
        .and_then(|rest| rest.strip_suffix(')'));
    let damage = match (damage, late) {
        ("zeros", _) => Damage::Zeros,
        ("nan", _) => Damage::Nan,
        ("truncate", _) => Damage::Truncate,
        ("flip", _) => Damage::Flip,
        ("stale", _) => Damage::Stale,
        ("swap", _) => Damage::Swap,
        ("mutate", _) => Damage::Mutate,
        (_, Some(time)) => Damage::Late(duration(time)?),
        _ => {
            return Err(error(
                damage,
                "expected zeros, nan, truncate, flip, stale, swap, mutate or late(time)",
            ));
        }
    };
    Ok(CopyFault {
        direction,
        at_least,
        occurrence,
        damage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Setting {
        parse_all(text).unwrap().remove(0)
    }

    #[test]
    fn sizes_take_binary_suffixes() {
        assert_eq!(one("capacity=16G"), Setting::Capacity(16 << 30));
        assert_eq!(one("granularity=4096"), Setting::Granularity(4096));
        for wrong in [
            "capacity=",
            "capacity=0",
            "capacity=-1",
            "capacity=99999999999T",
            "granularity=3K",
        ] {
            assert!(parse_all(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("cudaMalloc", "cudaMalloc", true),
            ("cudaMalloc", "cudaMallocAsync", false),
            ("*Malloc", "hipMalloc", true),
            ("*Malloc", "hipMallocAsync", false),
            ("cu*Alloc*", "cudaHostAlloc", true),
            ("cu*Alloc*", "hipHostAlloc", false),
            ("*", "", true),
        ] {
            assert_eq!(
                Pattern(pattern.to_owned()).matches(name),
                expected,
                "{pattern} on {name}"
            );
        }
    }

    #[test]
    fn call_faults_name_function_occurrence_and_effect() {
        let Setting::CallFaults(faults) = one("fail=*Malloc@3+:out_of_memory") else {
            panic!("not a fault")
        };
        assert_eq!(faults[0].occurrence, Occurrence::From(3));
        assert_eq!(faults[0].effect, CallEffect::Fail(Status::OUT_OF_MEMORY));
        let Setting::CallFaults(faults) = one("crash=cudaFree") else {
            panic!("not a fault")
        };
        assert_eq!(
            (faults[0].occurrence, faults[0].effect),
            (Occurrence::Every, CallEffect::Crash)
        );
    }

    #[test]
    fn copy_faults_name_direction_size_and_damage() {
        let Setting::CopyFaults(faults) = one("copy=h2d>=1M@2:zeros, any:late(20ms)") else {
            panic!("not a fault")
        };
        assert_eq!(faults[0].direction, Some(Direction::HostToDevice));
        assert_eq!(
            (faults[0].at_least, faults[0].occurrence),
            (1 << 20, Occurrence::Nth(2))
        );
        assert_eq!(faults[1].damage, Damage::Late(Duration::from_millis(20)));
    }

    #[test]
    fn every_documented_example_is_understood() {
        let source = include_str!("settings.rs");
        let examples = source.lines().take_while(|line| !line.starts_with("use "));
        let examples = examples
            .filter_map(|line| line.strip_prefix("//! "))
            .filter(|line| line.contains('='));
        let mut seen = 0;
        for line in
            examples.filter(|line| KEYS.iter().any(|key| line.starts_with(&format!("{key}="))))
        {
            for setting in line
                .split_whitespace()
                .take_while(|word| !word.starts_with("third"))
                .filter(|word| word.contains('='))
            {
                assert!(parse_all(setting).is_ok(), "{setting}");
                seen += 1;
            }
        }
        assert!(seen >= KEYS.len(), "only {seen} examples");
    }

    #[test]
    fn an_unknown_key_is_named_with_the_known_ones() {
        let message = parse_all("capacty=1G").unwrap_err().to_string();
        assert!(
            message.contains("capacty") && message.contains("capacity"),
            "{message}"
        );
    }
}
