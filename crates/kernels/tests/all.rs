//! The machine code of each architecture, executed in the simulated device and compared with the formula.
//!
//! `SUREFOOT_OBJDUMP` names llvm-objdump; without it, only the loading is tested. One process has one simulated
//! device, so each architecture is a process of its own: this one, started again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rows;

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsString, c_int, c_void};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use half::{bf16, f16};
use libloading::Library;
use surefoot_kernels::{Dequantize, Error, Format, Kernels, Kind};

/// Set in the processes that execute kernels.
const CHILD: &str = "SUREFOOT_KERNELS_CHILD";

/// Words of packed weights: more than a workgroup, and not whole ones.
const WORDS: usize = 256 + 37;

/// Any numbers, the same ones each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

fn simulator() -> Library {
    // The simulated device is preloaded.
    libloading::os::unix::Library::this().into()
}

fn run_again(test: &str, architecture: &str) -> Output {
    run_with(std::env::var_os("SUREFOOT_OBJDUMP"), test, architecture)
}

fn run_with(objdump: Option<OsString>, test: &str, architecture: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, "1");
    let library = device_sim::install::library_path().expect("cargo builds it with the tests");
    command.env("LD_PRELOAD", library);
    if let Some(objdump) = objdump {
        command.env("DEVICE_SIM_DISASSEMBLER", objdump);
    }
    command
        .env("DEVICE_SIM_ARCHITECTURE", architecture)
        .output()
        .unwrap()
}

/// Memory of the simulated device, which this process can write.
fn on_device<T: Copy>(values: &[T]) -> *mut T {
    let mut address: *mut c_void = std::ptr::null_mut();
    let library = simulator();
    // SAFETY: HIP's function, with the place of its result; the memory is as large as what is copied to it.
    unsafe {
        type Malloc = unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int;
        let malloc = library.get::<Malloc>(c"hipMalloc").unwrap();
        assert_eq!(malloc(&mut address, size_of_val(values)), 0);
        std::ptr::copy_nonoverlapping(values.as_ptr(), address.cast(), values.len());
    }
    address.cast()
}

fn synchronise() -> c_int {
    let library = simulator();
    // SAFETY: HIP's function, which takes nothing.
    unsafe {
        library
            .get::<unsafe extern "C" fn() -> c_int>(c"hipDeviceSynchronize")
            .unwrap()()
    }
}

/// What the kernel gives for these, as bits.
fn dequantized<T: Copy>(
    kernels: &Kernels,
    (format, kind): (Format, Kind),
    packed: &[u8],
    scales: &[T],
    levels: [f32; 16],
) -> Vec<u16> {
    let values = vec![0xffff_u16; packed.len() * 2];
    let out = on_device(&values);
    let weights = Dequantize {
        format,
        kind,
        packed: on_device(packed).cast(),
        scales: on_device(scales).cast(),
        values: out.cast(),
        words: packed.len() as u64 / 4,
        levels,
    };
    // SAFETY: memory of the device of these sizes, which is never freed, and the default stream.
    unsafe { kernels.dequantize(weights, std::ptr::null_mut()) }.unwrap();
    assert_eq!(synchronise(), 0);
    // SAFETY: the memory is as large, and the device is idle.
    unsafe { std::slice::from_raw_parts(out, values.len()) }.to_vec()
}

fn rounded(number: f32, kind: Kind) -> u16 {
    match kind {
        Kind::Bf16 => bf16::from_f32(number).to_bits(),
        Kind::Fp16 => f16::from_f32(number).to_bits(),
    }
}

fn same(ours: u16, theirs: u16, kind: Kind) -> bool {
    let number = |bits| match kind {
        Kind::Bf16 => bf16::from_bits(bits).to_f32(),
        Kind::Fp16 => f16::from_bits(bits).to_f32(),
    };
    let (ours, theirs) = (number(ours), number(theirs));
    // Zero has two signs, of which a fused product and sum gives one.
    ours == theirs || ours.is_nan() && theirs.is_nan()
}

fn compare_all(kernels: &Kernels) {
    let mut numbers = Numbers(7);
    let packed: Vec<u8> = (0..WORDS * 4).map(|_| numbers.next() as u8).collect();
    let levels: [f32; 16] =
        std::array::from_fn(|index| bf16::from_f32(index as f32 / 7.0 - 1.0).to_f32());
    // Powers of ten up to infinity, subnormal numbers, zero and NaN: both sides of each choice.
    let mut scales: Vec<f32> = (0..WORDS.div_ceil(8))
        .map(|index| (1.0 + numbers.next() as f32 / 1e9) * 10_f32.powi(index as i32 % 80 - 40))
        .collect();
    scales[3..7].copy_from_slice(&[0.0, f32::NAN, f32::INFINITY, 1e-40]);
    let exponents: Vec<u8> = (0..WORDS.div_ceil(4))
        .map(|index| [0, 1, 254, 255, 127, 110, 140][index % 7])
        .collect();
    for kind in [Kind::Bf16, Kind::Fp16] {
        let nf4 = dequantized(kernels, (Format::Nf4, kind), &packed, &scales, levels);
        let mxfp4 = dequantized(kernels, (Format::Mxfp4, kind), &packed, &exponents, levels);
        for (index, byte) in packed.iter().enumerate() {
            let (high, low) = (
                levels[usize::from(byte >> 4)],
                levels[usize::from(byte & 15)],
            );
            let scale = scales[index / 32];
            let power = match exponents[index / 16] {
                0 => f32::from_bits(1 << 22),
                exponent => f32::from_bits(u32::from(exponent) << 23),
            };
            let expected = [high * scale, low * scale, low * power, high * power];
            let ours = [
                nf4[2 * index],
                nf4[2 * index + 1],
                mxfp4[2 * index],
                mxfp4[2 * index + 1],
            ];
            for (ours, expected) in ours.into_iter().zip(expected) {
                let expected = rounded(expected, kind);
                assert!(
                    same(ours, expected, kind),
                    "byte {index}: {ours:#x} is not {expected:#x} in {kind:?}"
                );
            }
        }
    }
}

fn loaded() -> Result<Kernels, Error> {
    Kernels::of_this_process()
}

#[test]
fn each_architecture_computes_the_formula() {
    if std::env::var_os(CHILD).is_some() {
        let kernels = loaded().unwrap();
        if std::env::var_os("DEVICE_SIM_DISASSEMBLER").is_some() {
            compare_all(&kernels);
            rows::norms(&kernels);
            rows::rotations(&kernels);
        }
        return;
    }
    for (architecture, _) in objects() {
        let output = run_again("each_architecture_computes_the_formula", architecture);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{architecture}: {said}");
    }
}

#[test]
fn another_architecture_is_refused() {
    if std::env::var_os(CHILD).is_some() {
        let refused = loaded().unwrap_err();
        assert!(
            matches!(refused, Error::Call { status: 209, .. }),
            "{refused}"
        );
        return;
    }
    if std::env::var_os("SUREFOOT_OBJDUMP").is_some() {
        let output = run_again("another_architecture_is_refused", "gfx906");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Memory that is one word too small: the last lane writes behind it.
#[test]
fn an_address_outside_is_found() {
    if std::env::var_os(CHILD).is_some() {
        let kernels = loaded().unwrap();
        let weights = Dequantize {
            format: Format::Nf4,
            kind: Kind::Bf16,
            packed: on_device(&[0_u8; 64]).cast(),
            scales: on_device(&[1_f32; 2]).cast(),
            values: on_device(&[0_u16; 120]).cast(),
            words: 16,
            levels: [0.0; 16],
        };
        // SAFETY: not what the function asks for, which the simulated device finds out before it writes anything.
        unsafe { kernels.dequantize(weights, std::ptr::null_mut()) }.unwrap();
        assert_eq!(synchronise(), 700);
        return;
    }
    if std::env::var_os("SUREFOOT_OBJDUMP").is_some() {
        let output = run_again("an_address_outside_is_found", "gfx1151");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.contains("outside of all live memory"),
            "{said}"
        );
    }
}

/// The code objects of the bundle, by their architectures.
fn objects() -> Vec<(&'static str, &'static [u8])> {
    let bundle = include_bytes!("../kernels.bundle");
    let number = |at: usize| u64::from_le_bytes(*bundle[at..].first_chunk().unwrap()) as usize;
    let mut at = 32;
    let mut objects = Vec::new();
    for _ in 0..number(24) {
        let [start, size, length] = [0, 8, 16].map(|field| number(at + field));
        at += 24 + length;
        let target = std::str::from_utf8(&bundle[at - length..at]).unwrap();
        // The first one is for the host, and empty.
        if let Some(architecture) = target.strip_prefix("hipv4-amdgcn-amd-amdhsa--") {
            objects.push((architecture, &bundle[start..start + size]));
        }
    }
    assert_eq!(objects.len(), 17);
    objects
}

/// The listing of one architecture's code object.
fn listing(objdump: &OsString, architecture: &str) -> String {
    let objects = objects();
    let (_, object) = objects
        .iter()
        .find(|(name, _)| *name == architecture)
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("object");
    std::fs::write(&file, object).unwrap();
    let mut command = Command::new(objdump);
    let output = command
        .arg("-d")
        .arg("--no-show-raw-insn")
        .arg(file)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// A disassembler that has nothing to do in place of the `index`th line of those with `word`.
fn forgetful(folder: &std::path::Path, objdump: &OsString, word: &str, index: usize) -> OsString {
    let file = folder.join(format!("{word}-{index}"));
    let objdump = objdump.to_string_lossy();
    let script = format!(
        "#!/bin/sh\n{objdump} \"$@\" | awk '/^\\t{word}/ && n++ == {index} {{ sub(\"s_[^/]*\", \"s_nop 0 \") }} {{ print }}'\n"
    );
    std::fs::write(&file, script).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    file.into()
}

#[test]
fn each_missing_wait_and_barrier_is_noticed() {
    let Some(objdump) = std::env::var_os("SUREFOOT_OBJDUMP") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    // `s_wait` without `s_wait_alu`, which is for a hazard that is not simulated.
    for (architecture, wait, barrier) in [
        ("gfx1030", "s_waitcnt ", "s_barrier"),
        ("gfx1151", "s_waitcnt ", "s_barrier"),
        ("gfx1201", "s_wait_[dkls]", "s_barrier_wait"),
    ] {
        let text = listing(&objdump, architecture);
        let has = |line: &&str, words: &[&str]| {
            words
                .iter()
                .any(|word| line.starts_with(&format!("\t{word}")))
        };
        let waits = ["s_waitcnt ", "s_wait_d", "s_wait_k", "s_wait_l", "s_wait_s"];
        let waits = text.lines().filter(|line| has(line, &waits)).count();
        let barriers = text.lines().filter(|line| has(line, &[barrier])).count();
        assert!(
            waits >= 100 && barriers == 12,
            "{architecture}: {waits} waits, {barriers} barriers"
        );
        let is_noticed = |word: &str, index: usize| {
            let objdump = forgetful(folder.path(), &objdump, word, index);
            let output = run_with(
                Some(objdump),
                "each_architecture_computes_the_formula",
                architecture,
            );
            let said = String::from_utf8_lossy(&output.stderr);
            let noticed = said.contains("before its wait") || said.contains(" LDS at ");
            // Without a wait nothing else may happen.
            assert!(noticed || output.status.success(), "{word} {index}: {said}");
            noticed
        };
        // As many at once are tried as there are cores.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let unnoticed = |word: &str, indices: &[usize]| {
            let count = |part: &[usize]| part.iter().filter(|at| !is_noticed(word, **at)).count();
            std::thread::scope(|scope| {
                let parts = indices.chunks(indices.len().div_ceil(cores));
                let threads: Vec<_> = parts.map(|part| scope.spawn(|| count(part))).collect();
                let counts = threads.into_iter().map(|it| it.join().unwrap());
                counts.sum::<usize>()
            })
        };
        let all: Vec<usize> = (0..barriers).collect();
        assert_eq!(unnoticed(barrier, &all), 0, "{architecture}: barriers");
        // All of them take twenty minutes on two cores.
        let step = std::env::var("SUREFOOT_MUTATED_WAITS").map_or(1, |step| step.parse().unwrap());
        let tried: Vec<usize> = (0..waits).step_by(step).collect();
        // Some stand where two ways meet, for one that no wave takes.
        let count = unnoticed(wait, &tried);
        assert!(
            count * 10 <= tried.len(),
            "{architecture}: {count} of {} waits that are missing are not noticed",
            tried.len()
        );
    }
}

/// RDNA 4 reads a scalar register too early if, between its being read by a vector operation and being written,
/// nothing waits (llvm/llvm-project#100067): such a wait has to stand before the next read.
#[test]
fn scalars_of_rdna_4_are_waited_for() {
    let Some(objdump) = std::env::var_os("SUREFOOT_OBJDUMP") else {
        return;
    };
    for architecture in ["gfx1200", "gfx1201"] {
        let text = listing(&objdump, architecture);
        assert_eq!(unwaited(&text), [""; 0], "{architecture}");
        let without: Vec<&str> = text
            .lines()
            .filter(|line| !line.contains("s_wait_alu"))
            .collect();
        assert!(
            !unwaited(&without.join("\n")).is_empty(),
            "the scan sees nothing"
        );
    }
}

/// What has happened on some way to an instruction: the scalar registers that vector operations have read, and those that were
/// written after that, with whether by a vector operation.
#[derive(Clone, Default, PartialEq)]
struct Past {
    read: BTreeSet<String>,
    written: BTreeSet<(String, bool)>,
}

/// The vector operations that read a scalar register too early, whichever way leads there.
fn unwaited(listing: &str) -> Vec<&str> {
    let mut lines: Vec<(u64, &str)> = Vec::new();
    let mut entries = Vec::new();
    for line in listing.lines() {
        if line.ends_with(">:") {
            entries.push(lines.len());
        }
        if let (true, Some((_, place))) = (line.starts_with('\t'), line.split_once("//")) {
            let at = place.trim().split(':').next().unwrap();
            lines.push((u64::from_str_radix(at, 16).unwrap(), line));
        }
    }
    let mut pasts: Vec<Option<Past>> = vec![None; lines.len()];
    let mut waiting: Vec<(usize, Past)> = entries
        .into_iter()
        .map(|entry| (entry, Past::default()))
        .collect();
    let mut found = BTreeSet::new();
    while let Some((index, past)) = waiting.pop() {
        let (before, mut past) = match pasts.get(index) {
            None => continue,
            Some(None) => (None, past),
            Some(Some(before)) => {
                let read = before.read.union(&past.read).cloned().collect();
                let written = before.written.union(&past.written).cloned().collect();
                (Some(before.clone()), Past { read, written })
            }
        };
        if before.as_ref() == Some(&past) {
            continue;
        }
        pasts[index] = Some(past.clone());
        let text = lines[index].1.split("//").next().unwrap().trim();
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        if past.reads_early(name, rest) {
            found.insert(index);
        }
        if name.starts_with("s_branch") || name.starts_with("s_cbranch") {
            let words: u16 = rest.trim().parse().unwrap();
            let target = (lines[index].0 + 4).wrapping_add_signed(i64::from(words as i16) * 4);
            // A listing without its waits may lack the target, for which the next line stands.
            let (Ok(target) | Err(target)) = lines.binary_search_by_key(&target, |(at, _)| *at);
            waiting.push((target, past.clone()));
        }
        if name != "s_branch" && name != "s_endpgm" {
            waiting.push((index + 1, past));
        }
    }
    found.into_iter().map(|index| lines[index].1).collect()
}

impl Past {
    /// What is true after an operation; returns whether that reads a register too early.
    fn reads_early(&mut self, name: &str, rest: &str) -> bool {
        let operands: Vec<HashSet<String>> = rest
            .split(',')
            .map(|operand| scalars(operand.trim()))
            .collect();
        let mut is_early = false;
        if name == "s_wait_alu" {
            // Vector operations write in their order, so that a wait for the last one's is one for all.
            let waits = ["va_vcc(0)", "va_sdst(0)"].map(|what| rest.contains(what));
            self.written.retain(|(_, by_vector)| match by_vector {
                false => !rest.contains("sa_sdst(0)"),
                true => waits == [false, false],
            });
        } else if name.starts_with("v_") {
            let carries = ["v_add_co", "v_sub_co", "v_mad_co", "v_div_scale"]
                .iter()
                .any(|it| name.starts_with(it));
            let results = match (name.starts_with("v_cmp"), carries) {
                (true, _) if operands.len() < 3 => 0,
                (_, true) => 2,
                _ => 1,
            };
            let reads: HashSet<String> = operands.iter().skip(results).flatten().cloned().collect();
            is_early = (self.written.iter()).any(|(register, _)| reads.contains(register));
            self.read.extend(reads);
            self.writes(operands.iter().take(results), true);
        } else if name.starts_with("s_load") {
            // Its wait is another one.
            self.written
                .retain(|(register, _)| !operands[0].contains(register));
        } else if ![
            "s_wait",
            "s_cbranch",
            "s_branch",
            "s_nop",
            "s_delay",
            "s_cmp",
            "s_barrier",
        ]
        .iter()
        .any(|other| name.starts_with(other))
        {
            self.writes(operands.first().into_iter(), false);
        }
        is_early
    }

    fn writes<'a>(&mut self, operands: impl Iterator<Item = &'a HashSet<String>>, by_vector: bool) {
        for register in operands.flatten() {
            self.written.retain(|(other, _)| other != register);
            if self.read.contains(register) {
                self.written.insert((register.clone(), by_vector));
            }
        }
    }
}

/// The scalar registers of an operand.
fn scalars(operand: &str) -> HashSet<String> {
    let operand = operand.trim_matches(['-', '|']);
    if operand == "vcc_lo" {
        return HashSet::from(["vcc_lo".to_owned()]);
    }
    let Some(numbers) = operand
        .strip_prefix('s')
        .map(|rest| rest.trim_matches(['[', ']']))
    else {
        return HashSet::new();
    };
    let (first, last) = numbers.split_once(':').unwrap_or((numbers, numbers));
    match (first.parse::<u32>(), last.parse::<u32>()) {
        (Ok(first), Ok(last)) => (first..=last).map(|index| index.to_string()).collect(),
        _ => HashSet::new(),
    }
}
