//! A code object: its kernels, its bytes and its listing.

use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};

use object::{Object, ObjectSegment, ObjectSymbol};
use rmpv::Value;

use super::listing::Listing;
use crate::status::Status;

/// Flags of a kernel descriptor (LLVM, "User Guide for AMDGPU Backend", code object v5): what is in scalar registers before
/// the address of the arguments, with their number, and that address; then wave32.
const BEFORE_ARGUMENTS: [(u16, usize); 3] = [(1, 4), (2, 2), (4, 2)];
const KERNARG_POINTER: u16 = 8;
const WAVE32: u16 = 1 << 10;
/// In the second word of settings: that the number of the workgroup is a register.
const WORKGROUP_NUMBER: u32 = 1 << 7;

/// A code object, as `hipModuleLoadData` takes it.
#[derive(Debug)]
pub(crate) struct CodeObject {
    pub(super) listing: Listing,
    kernels: HashMap<String, Kernel>,
    /// Whether it is for RDNA 4, which counts what is under way by other counters.
    pub(super) is_gfx12: bool,
}

/// What a launch needs to know of a kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Where its code begins.
    pub(super) entry: u64,
    /// Bytes of LDS.
    pub(super) lds: usize,
    /// The first of the two scalar registers with the address of the arguments.
    pub(super) arguments_at: usize,
    /// The scalar register with the number of the workgroup; in RDNA 4 it is another one.
    pub(super) workgroup_at: Option<usize>,
    /// Offset and size of each argument.
    pub(crate) arguments: Vec<(usize, usize)>,
    /// Bytes of all of them.
    pub(crate) arguments_size: usize,
}

/// What a bundle of code objects begins with.
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
/// What an architecture is called in one.
const TARGET: &str = "hipv4-amdgcn-amd-amdhsa--";

/// The code object for `architecture` in the bundle that begins here, of which only its address was passed.
///
/// # Safety
/// What begins at `bundle` is a bundle, or at least as many readable bytes as its first words.
pub(crate) unsafe fn bundled(bundle: *const u8, architecture: &str) -> Result<Vec<u8>, Status> {
    // SAFETY: what is read is the bundle's head and what its head says that it has, as the caller promises.
    let bytes =
        |at: usize, count: usize| unsafe { std::slice::from_raw_parts(bundle.add(at), count) };
    let number = |at| {
        bytes(at, 8)
            .iter()
            .rev()
            .fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte))
    };
    if bytes(0, BUNDLE.len()) != BUNDLE {
        return Err(Status::INVALID_IMAGE);
    }
    let mut at = BUNDLE.len() + 8;
    for _ in 0..number(BUNDLE.len()) {
        let [start, size, name] = [0, 8, 16].map(|field| number(at + field));
        if bytes(at + 24, name).strip_prefix(TARGET.as_bytes()) == Some(architecture.as_bytes()) {
            return Ok(bytes(start, size).to_vec());
        }
        at += 24 + name;
    }
    Err(Status::NO_BINARY_FOR_GPU)
}

impl CodeObject {
    /// Reads a code object, with the listing that `disassembler` (llvm-objdump) makes of it.
    pub(crate) fn read(elf: &[u8], architecture: &str, disassembler: &str) -> Result<Self, String> {
        let file = object::File::parse(elf).map_err(|error| error.to_string())?;
        let mut image = Vec::new();
        for segment in file.segments() {
            let data = segment.data().map_err(|error| error.to_string())?;
            let start = segment.address() as usize;
            image.resize(image.len().max(start + segment.size() as usize), 0);
            image[start..start + data.len()].copy_from_slice(data);
        }
        let mut kernels = HashMap::new();
        for (name, arguments, arguments_size) in arguments(&file)? {
            let descriptor = file
                .dynamic_symbols()
                .find(|symbol| symbol.name().is_ok_and(|it| it == format!("{name}.kd")))
                .ok_or_else(|| format!("`{name}` has no descriptor"))?
                .address();
            let kernel = descriptor_of(&image, descriptor).ok_or_else(|| {
                format!("the descriptor of `{name}` is not one of wave32 without scratch memory")
            })?;
            let kernel = Kernel {
                arguments,
                arguments_size,
                ..kernel
            };
            kernels.insert(name, kernel);
        }
        Ok(Self {
            listing: Listing::parse(&disassembled(elf, architecture, disassembler)?)?,
            kernels,
            is_gfx12: architecture.starts_with("gfx12"),
        })
    }

    /// The kernel with this name.
    pub(crate) fn kernel(&self, name: &str) -> Result<&Kernel, String> {
        let missing = || format!("there is no kernel `{name}`");
        self.kernels.get(name).ok_or_else(missing)
    }
}

/// The kernels that the metadata names, with offset and size of each argument and the size of all.
type Arguments = Vec<(String, Vec<(usize, usize)>, usize)>;

fn arguments(file: &object::File<'_>) -> Result<Arguments, String> {
    use object::ObjectSection;
    let section = file
        .section_by_name(".note")
        .ok_or("there is no metadata")?;
    let note = section.data().map_err(|error| error.to_string())?;
    // Sizes of name and description, the type, then the name in words of four bytes.
    let mut metadata = note
        .get(12 + b"AMDGPU\0\0".len()..)
        .ok_or("the metadata is cut off")?;
    let metadata = rmpv::decode::read_value(&mut metadata).map_err(|error| error.to_string())?;
    let field = |value: &Value, key: &str| {
        let entries = value.as_map()?.iter();
        let found = entries.filter(|(name, _)| name.as_str() == Some(key));
        found.map(|(_, value)| value.clone()).next()
    };
    let number = |value: &Value, key| Some(field(value, key)?.as_u64()? as usize);
    let read = || -> Option<Arguments> {
        let kernels = field(&metadata, "amdhsa.kernels")?;
        kernels
            .as_array()?
            .iter()
            .map(|kernel| {
                let name = field(kernel, ".name")?.as_str()?.to_owned();
                let arguments = field(kernel, ".args")?;
                let arguments = arguments.as_array()?.iter();
                let arguments: Option<_> = arguments
                    .map(|argument| {
                        Some((number(argument, ".offset")?, number(argument, ".size")?))
                    })
                    .collect();
                Some((name, arguments?, number(kernel, ".kernarg_segment_size")?))
            })
            .collect()
    };
    read().ok_or_else(|| "the metadata is not that of a code object".to_owned())
}

/// What the descriptor at this place of the image says, without the arguments.
fn descriptor_of(image: &[u8], at: u64) -> Option<Kernel> {
    let bytes = image.get(at as usize..)?.first_chunk::<64>()?;
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
    let flags = word(56) as u16;
    let scratch = word(4);
    if scratch != 0 || flags & WAVE32 == 0 || flags & KERNARG_POINTER == 0 {
        return None;
    }
    let before = BEFORE_ARGUMENTS
        .iter()
        .filter(|(flag, _)| flags & flag != 0);
    let registers = word(52);
    Some(Kernel {
        entry: at.wrapping_add_signed(i64::from(word(16) as i32)),
        lds: word(0) as usize,
        arguments_at: before.map(|(_, count)| count).sum(),
        // It follows the user's registers, of which RDNA 3 has more than are filled.
        workgroup_at: (registers & WORKGROUP_NUMBER != 0).then_some((registers >> 1 & 31) as usize),
        arguments: Vec::new(),
        arguments_size: 0,
    })
}

fn disassembled(elf: &[u8], architecture: &str, disassembler: &str) -> Result<String, String> {
    // LLVM 19 does not know it; it has the instructions of its neighbour.
    let architecture = match architecture {
        "gfx1153" => "gfx1152",
        other => other,
    };
    let failed = |error: std::io::Error| format!("{disassembler}: {error}");
    let mut child = Command::new(disassembler)
        .args([
            "--disassemble",
            "--no-show-raw-insn",
            &format!("--mcpu={architecture}"),
            "-",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(elf).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        return Err(format!("{disassembler}: {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}
