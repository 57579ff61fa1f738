//! The machine code of the kernels, executed in the simulated device on tensors of the CPU.
//!
//! `SUREFOOT_OBJDUMP` names llvm-objdump; without it, kernels that are not executed must be refused.

use std::ffi::{c_int, c_void};
use std::process::Command;

use libloading::os::unix::Library;
use tch::Tensor;
use torch_ext::fake::FakeMode;

use super::*;

/// Set in the process whose GPU is simulated.
const CHILD: &str = "SUREFOOT_KERNELS_CHILD";

/// The library's function, which takes these and returns a status.
fn hip<F: Copy>(name: &str) -> F {
    // SAFETY: the callers name functions of HIP with their types; the simulated device is preloaded.
    unsafe { *Library::this().get::<F>(name.as_bytes()).unwrap() }
}

/// Memory of tensors that the simulated GPU may use until this is dropped.
pub(super) struct Shared(Vec<(usize, usize)>);

impl Shared {
    pub(super) fn new(tensors: &[&Tensor]) -> Self {
        let place = |tensor: &&Tensor| {
            let steps = tensor.size().into_iter().zip(tensor.stride());
            let last: i64 = steps.map(|(size, stride)| (size - 1) * stride).sum();
            let start = tensor.data_ptr() as usize;
            (
                start,
                start + (last + 1) as usize * tensor.kind().elt_size_in_bytes(),
            )
        };
        let mut places: Vec<(usize, usize)> = tensors.iter().map(place).collect();
        places.sort_unstable();
        // Views of one tensor overlap.
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (start, end) in places {
            match merged.last_mut() {
                Some(last) if start < last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        for (start, end) in &merged {
            let register: unsafe extern "C" fn(*mut c_void, usize, u32) -> c_int =
                hip("hipHostRegister");
            // SAFETY: the memory of tensors, which live until it is unregistered.
            let status = unsafe { register(*start as *mut c_void, end - start, 0) };
            assert_eq!(status, 0);
        }
        Self(merged)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let synchronise: unsafe extern "C" fn() -> c_int = hip("hipDeviceSynchronize");
        // SAFETY: HIP's function, which takes nothing.
        assert_eq!(unsafe { synchronise() }, 0);
        for (start, _) in &self.0 {
            let unregister: unsafe extern "C" fn(*mut c_void) -> c_int = hip("hipHostUnregister");
            // SAFETY: it was registered.
            assert_eq!(unsafe { unregister(*start as *mut c_void) }, 0);
        }
    }
}

/// Runs `test` of this program again with a simulated GPU: without a disassembler, so that kernels are not executed, and
/// with one if there is one. In these processes `inside` is called, with whether kernels are executed.
pub(crate) fn in_simulated_gpu(test: &str, inside: impl Fn(bool)) {
    let objdump = std::env::var_os("SUREFOOT_OBJDUMP");
    if std::env::var_os(CHILD).is_some() {
        return inside(objdump.is_some());
    }
    let library = device_sim::install::library_path().expect("cargo builds it with the tests");
    for objdump in [None, objdump] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args([test, "--exact"])
            .env(CHILD, "1")
            .env("LD_PRELOAD", &library);
        child.env_remove("SUREFOOT_OBJDUMP");
        if let Some(objdump) = &objdump {
            child
                .env("SUREFOOT_OBJDUMP", objdump)
                .env("DEVICE_SIM_DISASSEMBLER", objdump);
        }
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}{failed}"
        );
    }
}

/// The full name of a test of this crate, as its program knows it.
macro_rules! name_of {
    ($test:ident) => {
        concat!(module_path!(), "::", stringify!($test))
            .split_once("::")
            .unwrap()
            .1
    };
}
pub(crate) use name_of;

#[test]
fn norms_and_heads_are_those_of_operators() {
    in_simulated_gpu(
        name_of!(norms_and_heads_are_those_of_operators),
        |executes| {
            let chosen = |family, compare: fn(&Chosen, Device) -> Result<(), Error>| {
                Chosen::on(Device::Cpu, family, compare).is_some()
            };
            // Kernels that are not executed write nothing, which has to be seen.
            assert_eq!(chosen(Family::Norms, norm::compare), executes);
            assert_eq!(chosen(Family::Heads, heads::compare), executes);
            if executes {
                plans_take_no_numbers();
            }
        },
    );
}

/// What kernels allocate is counted among tensors without numbers, also once the kernels were tried.
fn plans_take_no_numbers() {
    let _fake = FakeMode::begin(Device::Cpu).unwrap();
    let ones = |size: &[i64], kind| Tensor::ones(size, (kind, Device::Cpu));
    let input = ones(&[2, 3, 4, 64], Kind::BFloat16).set_requires_grad(true);
    let weight = ones(&[64], Kind::Float);
    let norm = RowNorm::new(&input, Some(&weight), 1e-5, Kind::BFloat16);
    let [normed, _] = norm.by_kernel().unwrap().unwrap();
    let tables = ones(&[1, 3, 32], Kind::Float);
    let heads = TurnedHeads {
        input: &normed,
        weight: None,
        epsilon: None,
        angles: &Angles {
            cosines: tables.shallow_clone(),
            sines: tables,
            by_halves: true,
        },
    };
    let turned = heads.by_kernel().unwrap().unwrap();
    torch_ext::backward(&turned.sum(Kind::Float)).unwrap();
    assert_eq!(input.grad().size(), input.size());
}
