//! Which GPU to use, and the environment that it needs.
//!
//! Sets only what is needed: what the user has set already is not changed
//! (findings report it if it is harmful), and no variable is set just because a
//! guide says so.

use crate::{names, wheels};
use platform::gfx::Gfx;
use platform::machine::{Gpu, Machine, System};
use platform::python::Build;
use serde::Serialize;
use std::cmp::Reverse;

/// A variable to set, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Name of the environment variable.
    pub name: String,
    /// Value that it should have.
    pub value: String,
    /// Why this machine needs it, in one sentence.
    pub why: String,
}

/// What to train on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The GPU to train on; `None` if none trains correctly.
    pub pick: Option<usize>,
    /// All GPUs that stay visible, the selected one first.
    pub visible: Vec<usize>,
    /// GPUs to hide.
    pub hide: Vec<usize>,
    /// Variables to set.
    pub variables: Vec<Variable>,
}

/// The variables that mask GPUs.
pub const VISIBILITY: [&str; 4] = [
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
];

/// What keeps PyTorch away from hipBLASLt, whose kernels for gfx12 read past the end of an operand; rocBLAS calls it
/// too. AMD's own advice is the first one (ROCm/TheRock#7699). A control run on an R9700 with torch 2.13 for ROCm 7.2
/// died at step 32, and did not with both (ROCm/legacy-rocm-build#6413).
///
/// Two more are advised, and are not set: `PYTORCH_NO_HIP_MEMORY_CACHING=1` (3 of 3 runs went through,
/// ROCm/legacy-rocm-build#6647) trains 2 to 3 times slower. `HSA_SVM_GUARD_PAGES=0` is in none of AMD's threads, and
/// only makes it likelier that something else is mapped behind the operand (rootacite/AXLTrainer, `fixes/fix3`).
pub const WITHOUT_HIPBLASLT: [&str; 2] = ["TORCH_BLAS_PREFER_HIPBLASLT", "ROCBLAS_USE_HIPBLASLT"];

/// The first torch that heeds `TORCH_BLAS_PREFER_HIPBLASLT=0` on GPUs for which it prefers hipBLASLt (pytorch#174377).
const HEEDS_IT: (u32, u32) = (2, 12);

/// The first ROCm whose kernels for gfx12 read too far (ROCm/legacy-rocm-build#6413).
const READS_TOO_FAR: (u32, u32) = (7, 2);

/// The switch of attention's fast kernels.
pub const AOTRITON: &str = "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL";
/// The check that tries it.
pub const AOTRITON_CHECK: &str = "attention-aotriton";

/// Gradients come out wrong on this one, with every wheel tried (unsloth PR #8412).
pub const WRONG_GRADIENTS: Gfx = Gfx::new(10, 3, 3);

/// Decides what to use.
#[must_use]
pub fn plan(machine: &Machine) -> Plan {
    plan_with(machine, None)
}

/// The same, with a GPU that the user asks for.
#[must_use]
pub fn plan_with(machine: &Machine, wanted: Option<usize>) -> Plan {
    let mut plan = Plan {
        pick: wanted.or_else(|| pick(machine)),
        ..Plan::default()
    };
    if let Some(picked) = plan.pick.and_then(|index| machine.gpus.get(index)) {
        plan.visible.push(picked.index);
        for other in machine.gpus.iter().filter(|gpu| gpu.index != picked.index) {
            if wanted.is_some() || must_hide(machine, picked, other) {
                plan.hide.push(other.index);
            } else {
                plan.visible.push(other.index);
            }
        }
    }
    plan.variables = variables(machine, &plan);
    plan
}

/// Discrete before APU, native code before none, then the number of compute units.
/// Never by memory: the pool of an integrated GPU is often the larger one.
fn pick(machine: &Machine) -> Option<usize> {
    let candidates = machine
        .gpus
        .iter()
        .filter(|gpu| gpu.gfx != Some(WRONG_GRADIENTS) && !is_too_old(gpu));
    let best = candidates.max_by_key(|gpu| {
        (
            !gpu.is_apu(),
            runs(machine, gpu),
            gpu.compute_units
                .or_else(|| gpu.gfx.map(usual_units))
                .unwrap_or(0),
            gpu.gfx.is_some_and(|gfx| gfx.major >= 11),
            Reverse(gpu.index),
        )
    });
    best.map(|gpu| gpu.index)
}

/// The compute units of an architecture's largest card, for texts that do not tell them.
/// Source: AMD's product pages.
fn usual_units(gfx: Gfx) -> u32 {
    match (gfx.major, gfx.minor, gfx.stepping) {
        (9, 4, 2) => 304,
        (9, 5, 0) => 256,
        (9, 0, 8) => 120,
        (9, 0, 10) => 110,
        (11, 0, 0) => 96,
        (10, 3, 0) => 80,
        (9, 0, 0 | 6) | (12, 0, 1) => 64,
        (11, 0, 1) => 60,
        (10, 1, 0) | (10, 3, 1) | (11, 5, 1) => 40,
        (10, 3, 2) | (11, 0, 2) | (12, 0, 0) => 32,
        (10, 1, 2) => 24,
        (10, 3, 4) | (11, 5, 0) => 16,
        (10, 3, 5) | (11, 0, 3) => 12,
        (9, 0, 12) | (11, 5, 2) => 8,
        _ => 2,
    }
}

/// Whether a GPU is from before Vega, which no current ROCm has code for.
#[must_use]
pub fn is_too_old(gpu: &Gpu) -> bool {
    match gpu.gfx {
        Some(gfx) => gfx.is_too_old(),
        None => gpu.product.as_deref().is_some_and(names::is_before_rocm),
    }
}

/// How well the installed torch runs on a GPU: 3 natively, 2 perhaps, 1 under an override.
fn runs(machine: &Machine, gpu: &Gpu) -> u8 {
    let torch = machine
        .python
        .as_ref()
        .and_then(|python| python.torch.as_ref());
    let Some(gfx) = gpu.gfx else { return 0 };
    match torch.and_then(|torch| torch.supports(gfx)) {
        Some(true) => 3,
        // The installed torch is unknown: assume the most common one.
        None if wheels::is_in_newest_upstream(gfx) => 3,
        None if wheels::install(gfx).is_empty() => 0,
        None => 2,
        Some(false) => u8::from(wheels::override_for(gfx).is_some()),
    }
}

/// An integrated GPU next to a card does more harm than good: one visible GPU without
/// code in the wheel is enough to abort the process.
fn must_hide(machine: &Machine, picked: &Gpu, other: &Gpu) -> bool {
    let beside_a_card = !picked.is_apu() && other.is_apu();
    let cannot_run = runs(machine, other) == 0 && runs(machine, picked) > 0;
    beside_a_card || cannot_run || other.gfx == Some(WRONG_GRADIENTS)
}

fn variables(machine: &Machine, plan: &Plan) -> Vec<Variable> {
    let mut variables = Vec::new();
    let Some(picked) = plan.pick.and_then(|index| machine.gpus.get(index)) else {
        // Under WSL only ROCm can see the GPU, and it has to be told to look.
        return dxg_detection(machine).into_iter().collect();
    };
    let mut add = |name: &str, value: &str, why: String| {
        variables.push(Variable {
            name: name.to_owned(),
            value: value.to_owned(),
            why,
        });
    };
    let masked_by_user = VISIBILITY
        .iter()
        .any(|name| machine.variables.contains_key(*name));
    let in_order = plan.visible.is_sorted() && plan.hide.is_empty();
    if !masked_by_user && !in_order && !machine.posted.is_unordered {
        let list: Vec<String> = plan.visible.iter().map(usize::to_string).collect();
        let hidden: Vec<String> = plan
            .hide
            .iter()
            .filter_map(|&index| machine.gpus.get(index))
            .map(|gpu| format!("{} ({})", gpu.index, gpu.name()))
            .collect();
        let why = if hidden.is_empty() {
            format!("puts {} first", picked.name())
        } else {
            format!("hides GPU {}", hidden.join(", "))
        };
        // ROCr's variable keeps the driver away from the hidden GPU altogether;
        // Windows has no ROCr.
        let name = if machine.uses_rocr() {
            "ROCR_VISIBLE_DEVICES"
        } else {
            "HIP_VISIBLE_DEVICES"
        };
        add(name, &list.join(","), why);
    }
    if let Some((name, value)) = missing_override(machine, plan, picked) {
        let gfx = picked.gfx.map(|gfx| gfx.to_string()).unwrap_or_default();
        add(
            &name,
            value,
            format!("this torch has no code for {gfx} and runs on it as {value}"),
        );
    }
    let torch = machine
        .python
        .as_ref()
        .and_then(|python| python.torch.as_ref());
    variables.extend(dxg_detection(machine));
    let mut add = |name: &str, value: &str, why: String| {
        variables.push(Variable {
            name: name.to_owned(),
            value: value.to_owned(),
            why,
        });
    };
    // Only if it was tested: builds without kernels for the GPU abort, and some were wrong.
    if machine.probed.get(AOTRITON_CHECK) == Some(&true)
        && torch.is_some_and(|torch| torch.build == Build::Rocm)
        && !machine.variables.contains_key(AOTRITON)
    {
        add(
            AOTRITON,
            "1",
            "faster attention in less memory, and `surefoot probe` found its results right"
                .to_owned(),
        );
    }
    let heeds_it = torch.is_some_and(|torch| {
        wheels::major_minor(&torch.version).is_some_and(|own| own >= HEEDS_IT)
    });
    let is_wanted = (WITHOUT_HIPBLASLT.iter())
        .any(|name| machine.variable(name).is_some_and(|value| value != "0"));
    if heeds_it && !is_wanted && lora_may_fault(machine, picked) {
        for name in WITHOUT_HIPBLASLT {
            if machine.variable(name).is_none() {
                add(
                    name,
                    "0",
                    "hipBLASLt's kernels for RX 9000 read past their operands, which can end the training of a LoRA \
                     with a page fault (ROCm/TheRock#7699); slower, and not needed with hip-alloc"
                        .to_owned(),
                );
            }
        }
    }
    if picked.gfx.is_some_and(Gfx::is_rdna35) && !machine.variables.contains_key("MIOPEN_FIND_MODE")
    {
        add(
            "MIOPEN_FIND_MODE",
            "FAST",
            "MIOpen has no tuned database for this GPU and would search for minutes".to_owned(),
        );
    }
    variables
}

/// Whether it is not known if attention's fast kernels are right here, and nobody has decided about them: with a GPU, and a PyTorch that
/// has the switch.
#[must_use]
pub fn attention_is_untried(machine: &Machine) -> bool {
    let torch = machine.python.as_ref();
    let torch = torch.and_then(|python| python.torch.as_ref());
    let gpu = plan(machine).pick.and_then(|index| machine.gpus.get(index));
    torch.is_some_and(|torch| torch.build == Build::Rocm)
        && gpu.is_some_and(|gpu| gpu.gfx.is_some())
        && machine.variable(AOTRITON).is_none()
        && !machine.probed.contains_key(AOTRITON_CHECK)
}

/// Whether the training of a LoRA may end in a page fault on this GPU: a kernel reads past the end of an operand, and
/// nothing keeps what is there mapped.
pub(crate) fn lora_may_fault(machine: &Machine, gpu: &Gpu) -> bool {
    let torch = (machine.python.as_ref()).and_then(|python| python.torch.as_ref());
    let has_such_kernels = machine.system == System::Linux
        && gpu.gfx.is_some_and(|gfx| gfx.major == 12)
        && torch
            .and_then(|torch| torch.rocm)
            .is_some_and(|rocm| rocm >= READS_TOO_FAR);
    let is = |name, value| machine.variable(name) == Some(value);
    let conf = machine.variable("HIP_ALLOC_CONF").unwrap_or_default();
    let is_guarded = is("HIP_ALLOC", "1") && !conf.replace(' ', "").contains("guard:off");
    let has_no_cache = [
        "PYTORCH_NO_HIP_MEMORY_CACHING",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
    ]
    .iter()
    .any(|name| machine.variables.contains_key(*name));
    let uses_other_kernels = WITHOUT_HIPBLASLT.iter().all(|name| is(name, "0"));
    has_such_kernels && !is_guarded && !has_no_cache && !uses_other_kernels
}

/// What a ROCm before 7.13 needs to detect the GPU under WSL.
fn dxg_detection(machine: &Machine) -> Option<Variable> {
    let torch = machine.python.as_ref()?.torch.as_ref()?;
    let is_old = torch.rocm.is_some_and(|rocm| rocm < (7, 13));
    (machine.system == System::Wsl && is_old).then(|| Variable {
        name: "HSA_ENABLE_DXG_DETECTION".to_owned(),
        value: "1".to_owned(),
        why: "ROCm before 7.13 does not look for the GPU of WSL by itself".to_owned(),
    })
}

/// The override that the installed torch needs for the selected GPU, if one works.
#[must_use]
pub fn missing_override(
    machine: &Machine,
    plan: &Plan,
    picked: &Gpu,
) -> Option<(String, &'static str)> {
    let gfx = picked.gfx?;
    let torch = machine.python.as_ref()?.torch.as_ref()?;
    let value = wheels::override_for(gfx)?;
    let target = Gfx::from_override(value)?;
    let applies = machine.uses_rocr()
        && torch.build == Build::Rocm
        && torch.supports(gfx) == Some(false)
        && torch.supports(target) == Some(true);
    let is_set = machine
        .variables
        .keys()
        .any(|name| name.starts_with("HSA_OVERRIDE_GFX_VERSION"));
    if !applies || is_set {
        return None;
    }
    // The global variable relabels every GPU; next to another architecture only the
    // form with the KFD node will do.
    let mixed = plan
        .visible
        .iter()
        .filter_map(|&index| machine.gpus.get(index))
        .any(|gpu| gpu.gfx != picked.gfx);
    let name = match picked.kfd_node {
        Some(node) if mixed => format!("HSA_OVERRIDE_GFX_VERSION_{node}"),
        _ => "HSA_OVERRIDE_GFX_VERSION".to_owned(),
    };
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use platform::machine::Class;
    use platform::python::{Python, Torch};

    fn gpu(index: usize, gfx: &str, class: Class, compute_units: u32) -> Gpu {
        Gpu {
            index,
            gfx: gfx.parse().ok(),
            class: Some(class),
            compute_units: Some(compute_units),
            kfd_node: u32::try_from(index + 1).ok(),
            ..Gpu::default()
        }
    }

    fn machine(gpus: Vec<Gpu>, architectures: &[&str]) -> Machine {
        let torch = Torch {
            version: "2.11.0+rocm7.2".to_owned(),
            build: Build::Rocm,
            rocm: Some((7, 2)),
            architectures: Some(
                architectures
                    .iter()
                    .filter_map(|name| name.parse().ok())
                    .collect(),
            ),
            architectures_from: None,
        };
        let python = Python {
            torch: Some(torch),
            ..Python::default()
        };
        Machine {
            gpus,
            python: Some(python),
            ..Machine::default()
        }
    }

    fn pairs(plan: &Plan) -> Vec<(&str, &str)> {
        plan.variables
            .iter()
            .map(|variable| (variable.name.as_str(), variable.value.as_str()))
            .collect()
    }

    #[test]
    fn a_card_hides_the_integrated_gpu_in_front_of_it() {
        let machine = machine(
            vec![
                gpu(0, "gfx1036", Class::Apu, 2),
                gpu(1, "gfx1201", Class::Dgpu, 64),
            ],
            &["gfx1201"],
        );
        let plan = plan(&machine);
        assert_eq!((plan.pick, plan.hide.as_slice()), (Some(1), [0].as_slice()));
        assert_eq!(pairs(&plan), [("ROCR_VISIBLE_DEVICES", "1")]);
    }

    #[test]
    fn windows_gets_the_variable_that_works_there() {
        let mut machine = machine(
            vec![
                gpu(0, "gfx1036", Class::Apu, 2),
                gpu(1, "gfx1201", Class::Dgpu, 64),
            ],
            &["gfx1201"],
        );
        machine.system = System::Windows;
        assert_eq!(pairs(&plan(&machine)), [("HIP_VISIBLE_DEVICES", "1")]);
    }

    #[test]
    fn equal_cards_all_stay() {
        let machine = machine(
            (0..8)
                .map(|index| gpu(index, "gfx90a", Class::Dgpu, 104))
                .collect(),
            &["gfx90a"],
        );
        let plan = plan(&machine);
        assert_eq!((plan.pick, plan.visible.len()), (Some(0), 8));
        assert!(plan.variables.is_empty());
    }

    #[test]
    fn native_code_beats_compute_units() {
        let machine = machine(
            vec![
                gpu(0, "gfx1010", Class::Dgpu, 80),
                gpu(1, "gfx1100", Class::Dgpu, 60),
            ],
            &["gfx1100"],
        );
        let plan = plan(&machine);
        assert_eq!((plan.pick, plan.hide.as_slice()), (Some(1), [0].as_slice()));
    }

    #[test]
    fn an_override_is_set_only_when_the_wheel_is_known_to_need_it() {
        let card = || vec![gpu(0, "gfx1031", Class::Dgpu, 40)];
        assert_eq!(
            pairs(&plan(&machine(card(), &["gfx1030"]))),
            [("HSA_OVERRIDE_GFX_VERSION", "10.3.0")]
        );
        assert_eq!(pairs(&plan(&machine(card(), &["gfx1031"]))), []);
        assert_eq!(
            pairs(&plan(&Machine {
                gpus: card(),
                ..Machine::default()
            })),
            []
        );
    }

    #[test]
    fn beside_another_architecture_the_override_names_the_node() {
        let machine = machine(
            vec![
                gpu(0, "gfx1100", Class::Dgpu, 96),
                gpu(1, "gfx1031", Class::Dgpu, 40),
            ],
            &["gfx1030", "gfx1100"],
        );
        let plan = plan_with(&machine, None);
        assert_eq!(plan.pick, Some(0));
        let picked = &machine.gpus[1];
        assert_eq!(
            missing_override(&machine, &plan, picked),
            Some(("HSA_OVERRIDE_GFX_VERSION_2".to_owned(), "10.3.0"))
        );
    }

    #[test]
    fn what_the_user_has_set_is_left_alone() {
        let mut machine = machine(
            vec![
                gpu(0, "gfx1036", Class::Apu, 2),
                gpu(1, "gfx1201", Class::Dgpu, 64),
            ],
            &["gfx1201"],
        );
        machine
            .variables
            .insert("HIP_VISIBLE_DEVICES".into(), "1".into());
        assert_eq!(pairs(&plan(&machine)), []);
    }

    #[test]
    fn rx_9000_trains_without_hipblaslt_unless_a_guard_is_behind_each_operand() {
        let with = |version: &str, set: &[(&str, &str)]| {
            let mut machine = machine(vec![gpu(0, "gfx1201", Class::Dgpu, 64)], &["gfx1201"]);
            let torch = machine
                .python
                .as_mut()
                .and_then(|python| python.torch.as_mut());
            version.clone_into(&mut torch.expect("a torch").version);
            let own = (set.iter()).map(|&(name, value)| (name.to_owned(), value.to_owned()));
            machine.variables = own.collect();
            machine
        };
        let set = |version, own: &[_]| {
            let names = plan(&with(version, own)).variables.into_iter();
            names
                .map(|variable| variable.name + "=" + &variable.value)
                .collect::<Vec<_>>()
        };
        let both = ["TORCH_BLAS_PREFER_HIPBLASLT=0", "ROCBLAS_USE_HIPBLASLT=0"];
        assert_eq!(set("2.13.0+rocm7.2", &[]), both);
        assert_eq!(set("2.13.0+rocm7.2", &[("HIP_ALLOC", "0")]), both);
        let without_guard = [
            ("HIP_ALLOC", "1"),
            ("HIP_ALLOC_CONF", "keep:off, guard: off"),
        ];
        assert_eq!(set("2.13.0+rocm7.2", &without_guard), both);
        assert!(set("2.13.0+rocm7.2", &[("HIP_ALLOC", "1")]).is_empty());
        assert!(set("2.13.0+rocm7.2", &[("PYTORCH_NO_HIP_MEMORY_CACHING", "1")]).is_empty());
        // Who asks for the library gets it, and who has switched off a half gets the other.
        assert!(set("2.13.0+rocm7.2", &[("TORCH_BLAS_PREFER_HIPBLASLT", "1")]).is_empty());
        let half = [("TORCH_BLAS_PREFER_HIPBLASLT", "0")];
        assert_eq!(set("2.13.0+rocm7.2", &half), both[1..]);
        // This one would not heed them.
        assert!(set("2.11.0+rocm7.2", &[]).is_empty());
        // Their kernels do not read too far.
        let old = |rocm, gfx: &str| {
            let mut machine = with("2.13.0", &[]);
            machine.gpus[0].gfx = gfx.parse().ok();
            let torch = machine
                .python
                .as_mut()
                .and_then(|python| python.torch.as_mut());
            torch.expect("a torch").rocm = Some(rocm);
            plan(&machine).variables
        };
        assert!(old((7, 1), "gfx1201").is_empty());
        assert!(old((7, 2), "gfx1100").is_empty());
        assert_eq!(old((10, 0), "gfx1200").len(), 2);
    }

    #[test]
    fn the_steam_deck_is_not_picked() {
        assert_eq!(
            plan(&machine(vec![gpu(0, "gfx1033", Class::Apu, 8)], &[])).pick,
            None
        );
    }
}
