//! Ranks decide alike: what one of them meets, a device that is too small or a loss that is no
//! number, is answered by all, and their weights stay equal to the bit. Each rank is this test
//! program again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use models::Parameters;
use models::formats::write_tensors;
use serde_json::{Value, json};
use surefoot_trainer::task::{Batch, EvaluationSums, Share, Task};
use surefoot_trainer::{
    Allocator, Config, Error, Footprint, Observer, PassSize, Sample, Start, Stop,
};
use tch::{Device, Kind, TchError, Tensor};
use torch_ext::distributed::Store;

const WIDTH: i64 = 8;
/// Of one rank.
const ROWS: i64 = 4;
/// The folder of a test, and what goes wrong in it.
const FOLDER: &str = "SUREFOOT_TEST_FOLDER";
const FAULT: &str = "SUREFOOT_TEST_FAULT";

/// Matrices, one after another, that learn to be one; mostly there is a single one.
struct Waves {
    parameters: Parameters,
    students: Vec<Tensor>,
    width: i64,
    position: i64,
    rows: i64,
    /// What this rank meets.
    fault: String,
    /// What it has room for, where that is asked.
    pass_size: Option<PassSize>,
}

impl Waves {
    fn new(rows: i64, rank: usize, fault: &str) -> Self {
        // Of gradients of 1.5 MiB, sums overlap with the backward pass.
        let (depth, width) = match fault.starts_with("deep") {
            true => (6, 256),
            false => (1, WIDTH),
        };
        // Initial weights differ, as between unlike CPUs.
        let numbers = Tensor::arange(width * width, (Kind::Float, Device::Cpu)) * 0.37;
        let mut parameters = Parameters::default();
        let students = (0..depth).map(|index| {
            let numbers = &numbers + f64::from(index);
            let initial = numbers.sin().view([width, width]) * 0.1 + rank as f64 * 1e-6;
            let initial = match depth {
                1 => initial,
                // So that a product of several is neither tiny nor huge.
                _ => Tensor::eye(width, (Kind::Float, Device::Cpu)) * 0.9 + initial * 0.02,
            };
            let name = format!("student {index}");
            parameters.register(&name, &initial, true).unwrap()
        });
        Self {
            students: students.collect(),
            parameters,
            width,
            position: 0,
            rows,
            pass_size: (fault == "auto").then(|| PassSize {
                rows: [4, 2][rank],
                samples: 4,
                reason: String::new(),
            }),
            // Of all ranks, the second meets it.
            fault: if rank == 1 {
                fault.into()
            } else {
                String::new()
            },
        }
    }
}

impl Task for Waves {
    fn description(&self) -> String {
        "a student".into()
    }

    fn data_description(&self) -> String {
        "waves".into()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn footprint(&self) -> Footprint {
        Footprint {
            weights: 0,
            activations: 0,
            logits: 0,
        }
    }

    fn pass_size(&self) -> Option<&PassSize> {
        self.pass_size.as_ref()
    }

    /// The next rows, whatever their number: so that batches of any size are cut from one order.
    fn next_batch(&mut self) -> Result<Batch, Error> {
        let first = self.position * self.width;
        self.position += self.rows;
        let numbers = Tensor::f_arange(self.rows * self.width, (Kind::Float, Device::Cpu))?;
        let inputs = ((numbers + first as f64) * 0.7).sin();
        let inputs = inputs.view([self.rows, self.width]);
        Ok(Batch::new(vec![("inputs", inputs)], self.rows as u64))
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, Error> {
        if self.fault.ends_with("short") && batch.rows()? > 2 {
            let text = "HIP out of memory. Tried to allocate 9 bytes. GPU 0 has a total capacity of \
                        8 bytes of which 0 bytes is free.";
            return Err(TchError::Torch(text.into()).into());
        }
        let inputs = batch.get("inputs")?;
        let target = inputs.f_roll([1], [1])?;
        // In the first step no sum starts in the pass.
        let ends_in_the_pass = self.fault.ends_with("in the pass")
            && self.position > 5 * 2 * ROWS
            && batch.rows()? > 2;
        let mut made = inputs.shallow_clone();
        for (index, student) in self.students.iter().enumerate() {
            made = match ends_in_the_pass && index == 2 {
                true => product_that_ends_the_pass(&made, student, self.fault.contains("short"))?,
                false => made.f_matmul(student)?,
            };
        }
        let loss = made.f_sub(&target)?.f_square()?.f_mean(Kind::Float)?;
        // Steps 7 to 9 of two ranks; the step after a return has other data.
        let bad = (6 * 2 * ROWS + 1..=9 * 2 * ROWS).contains(&self.position);
        match self.fault.as_str() {
            "no number" | "deep, no number" if bad => Ok(loss.f_mul_scalar(f64::NAN)?),
            "broken" | "deep, broken" if bad => {
                Err(Error::Internal("the second rank is broken".into()))
            }
            _ => Ok(loss),
        }
    }

    fn evaluate(
        &self,
        _: Option<u64>,
        _: Share,
        _: &mut placement::Placer,
    ) -> Result<EvaluationSums, Error> {
        let loss = self.students[0].f_square()?.f_mean(Kind::Double)?;
        Ok(EvaluationSums {
            loss: f64::try_from(&loss)?,
            units: 1,
            samples: 1,
            complete: true,
            ..EvaluationSums::default()
        })
    }

    fn sample(
        &self,
        _: u64,
        _: Share,
        _: &Path,
        _: &mut placement::Placer,
    ) -> Result<Vec<(usize, Sample)>, Error> {
        Ok(Vec::new())
    }

    fn data_state(&self) -> Result<Value, Error> {
        Ok(json!({ "position": self.position }))
    }

    fn restore_data(&mut self, state: &Value) -> Result<(), Error> {
        self.position = state["position"].as_i64().unwrap();
        Ok(())
    }

    fn export(&self, folder: &Path) -> Result<(), Error> {
        fs::create_dir_all(folder).unwrap();
        write_tensors(&folder.join("weights"), &self.parameters.named())?;
        Ok(())
    }
}

/// A product that runs out of memory when the backward pass comes to it, or fails otherwise.
fn product_that_ends_the_pass(
    inputs: &Tensor,
    matrix: &Tensor,
    is_short: bool,
) -> Result<Tensor, Error> {
    let (matrix, runs) = (matrix.shallow_clone(), AtomicUsize::new(0));
    let product = move |inputs: &[Tensor]| match runs.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(vec![inputs[0].f_matmul(&matrix)?]),
        _ if is_short => Err(torch_ext::Error::OutOfMemory {
            message: "too small for the second run".into(),
        }),
        _ => Err(torch_ext::Error::InvalidArgument(
            "the second rank is broken".into(),
        )),
    };
    let mut outputs = torch_ext::checkpoint(&[inputs], product)?;
    Ok(outputs.pop().unwrap())
}

/// What of the config a fault is about.
fn keys(fault: &str) -> &'static str {
    match fault {
        "auto" => "max_steps: 20, ema_decay: 0.9, gradient_accumulation_steps: 4",
        "bf16" => "max_steps: 20, ema_decay: 0.9, reduce_dtype: bfloat16",
        "deep, twice" => "max_steps: 20, gradient_accumulation_steps: 2",
        "deep, bf16" => "max_steps: 20, reduce_dtype: bfloat16",
        _ => "max_steps: 20, ema_decay: 0.9",
    }
}

/// What a run says of its ranks.
#[derive(Default)]
struct Link(String);

impl Observer for Link {
    fn started(&mut self, start: &Start<'_>) {
        self.0 = start.ranks.unwrap_or_default().to_owned();
    }
}

/// A run of which this process is a rank: it leaves its weights and its summary.
fn train(folder: &Path, name: &str, rows: i64, rank: usize, fault: &str) {
    let text = format!(
        "{{seed: 5, device: cpu, threads: 1, name: {name}, output_dir: '{runs}', data: {{path: \
         unused}}, sample: {{max_new_tokens: 0}}, train: {{bf16: false, {keys}, \
         per_device_train_batch_size: {batch}, learning_rate: {rate}, lr_scheduler_type: constant, \
         logging_steps: 1, eval_steps: 6, save_steps: 3, load_best_model_at_end: true}}}}",
        runs = folder.join("runs").display(),
        keys = keys(fault),
        batch = match fault {
            "auto" => "auto".to_owned(),
            _ => rows.to_string(),
        },
        rate = if fault.starts_with("deep") {
            0.0003
        } else {
            0.01
        },
    );
    let config = Config::parse("test.yaml", &text, &[]).unwrap();
    let task = Waves::new(rows, rank, fault);
    let students: Vec<_> = task.students.iter().map(Tensor::shallow_clone).collect();
    let mut link = Link::default();
    let summary = surefoot_trainer::run_task(
        &config,
        &Allocator::torch(),
        &mut link,
        &Stop::default(),
        |_, _| Ok(Box::new(task)),
    );
    let summary = summary.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    let weights = students.iter().enumerate();
    let weights: Vec<_> = weights
        .map(|(index, student)| (format!("student {index}"), student))
        .collect();
    write_tensors(&folder.join(format!("{name}-{rank}")), &weights).unwrap();
    fs::write(folder.join(format!("{name}-{rank}.link")), link.0).unwrap();
    let summary = serde_json::to_string(&summary).unwrap();
    fs::write(folder.join(format!("{name}-{rank}.json")), summary).unwrap();
}

#[test]
#[ignore = "started by the other tests, as a process of its own"]
fn one_rank() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let rank = std::env::var("RANK").unwrap().parse().unwrap();
    let fault = std::env::var(FAULT).unwrap();
    train(&folder, "ranks", ROWS, rank, &fault);
}

/// Two ranks, the second of which meets `fault`.
fn two_ranks(folder: &Path, fault: &str) -> Vec<Output> {
    let store = Store::host("127.0.0.1", 0).unwrap();
    let ranks = [0, 1].map(|rank: usize| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "ranks::one_rank", "--nocapture"])
            .env(FOLDER, folder)
            .env(FAULT, fault)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", store.port().to_string())
            .env("TORCHELASTIC_USE_AGENT_STORE", "True")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let outputs = ranks.map(|rank| rank.wait_with_output().unwrap());
    outputs.into()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Two ranks that end well, with equal weights; the summary of each.
fn two_equal_ranks(folder: &Path, fault: &str) -> [Value; 2] {
    for output in two_ranks(folder, fault) {
        assert!(output.status.success(), "{}", said(&output));
    }
    let weights = [0, 1].map(|rank| fs::read(folder.join(format!("ranks-{rank}"))).unwrap());
    assert!(weights[0] == weights[1], "{fault}: weights differ");
    [0, 1].map(|rank| {
        let text = fs::read_to_string(folder.join(format!("ranks-{rank}.json"))).unwrap();
        serde_json::from_str(&text).unwrap()
    })
}

/// The weights after 20 steps.
fn student(folder: &Path, file: &str) -> Vec<f32> {
    let bytes = fs::read(folder.join(file)).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let numbers = bytes[8 + header..].chunks_exact(4);
    numbers
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
        .collect()
}

#[test]
fn two_ranks_end_where_one_with_their_batch_does() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(folder, "alone", 2 * ROWS, 0, "");
    let [first, second] = two_equal_ranks(folder, "");
    assert_eq!(first["best"], second["best"]);
    let pairs = student(folder, "alone-0");
    let pairs = pairs.into_iter().zip(student(folder, "ranks-0"));
    let apart = pairs.map(|(one, other)| f64::from((one - other).abs()));
    let apart = apart.fold(0.0, f64::max);
    println!("weights differ by {apart:.1e}");
    assert!(apart < 1e-5, "{apart}");
}

#[test]
fn ranks_take_passes_for_which_all_have_room() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    train(folder, "alone", 2 * ROWS, 0, "");
    for summary in two_equal_ranks(folder, "auto") {
        assert_eq!(summary["micro_batch"], 2);
    }
    let text = fs::read_to_string(folder.join("ranks-0.json")).unwrap();
    assert!(
        text.contains("another process has no room for more"),
        "{text}"
    );
    let pairs = student(folder, "alone-0");
    let pairs = pairs.into_iter().zip(student(folder, "ranks-0"));
    assert!(
        pairs
            .into_iter()
            .all(|(one, other)| (one - other).abs() < 1e-5)
    );
}

#[test]
fn weights_are_equal_where_gradients_are_sent_as_bf16() {
    let folder = tempfile::tempdir().unwrap();
    two_equal_ranks(folder.path(), "bf16");
    let rounded = student(folder.path(), "ranks-0");
    two_equal_ranks(folder.path(), "");
    assert_ne!(rounded, student(folder.path(), "ranks-0"));
}

#[test]
fn a_device_that_is_too_small_in_one_rank_makes_the_passes_of_all_smaller() {
    let folder = tempfile::tempdir().unwrap();
    for summary in two_equal_ranks(folder.path(), "short") {
        assert_eq!(summary["micro_batch"], 2);
        assert_eq!(summary["steps"], 20);
    }
}

#[test]
fn a_loss_that_is_no_number_in_one_rank_is_skipped_by_all_who_go_back_together() {
    let folder = tempfile::tempdir().unwrap();
    for summary in two_equal_ranks(folder.path(), "no number") {
        assert_eq!(summary["skipped_steps"], 3);
        assert_eq!(summary["rollbacks"], 1);
        assert_eq!(summary["steps"], 20);
    }
}

#[test]
fn why_a_rank_ended_is_told_by_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let outputs = two_ranks(folder.path(), "broken");
    assert!(outputs.iter().all(|output| !output.status.success()));
    let told = said(&outputs[0]);
    assert!(told.contains("rank 1 on "), "{told}");
    assert!(told.contains("the second rank is broken"), "{told}");
}

/// Losses of one process and of two ranks whose sums overlap with the backward pass.
fn losses_of_one_and_two(folder: &Path, fault: &str) -> [f64; 4] {
    let [two, _] = two_equal_ranks(folder, fault);
    let link = fs::read_to_string(folder.join("ranks-0.link")).unwrap();
    assert!(link.contains("in 6 buckets"), "{link}");
    let text = fs::read_to_string(folder.join("alone-0.json")).unwrap();
    let one: Value = serde_json::from_str(&text).unwrap();
    let loss = |summary: &Value, key: &str| summary[key].as_f64().unwrap();
    [
        loss(&one, "first_loss"),
        loss(&two, "first_loss"),
        loss(&one, "last_loss"),
        loss(&two, "last_loss"),
    ]
}

#[test]
fn sums_that_overlap_with_the_backward_pass_are_those_of_one() {
    for fault in [
        "deep",
        "deep, twice",
        "deep, short",
        "deep, short in the pass",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        train(folder, "alone", 2 * ROWS, 0, fault);
        let [one, two, last_one, last_two] = losses_of_one_and_two(folder, fault);
        assert!(last_one < one / 2.0, "{fault}: nothing was learned");
        let apart = ((one - two) / one)
            .abs()
            .max(((last_one - last_two) / last_one).abs());
        println!("{fault}: losses differ by {apart:.1e}");
        assert!(apart < 1e-6, "{fault}: {apart}");
        let weights = fs::read(folder.join("ranks-0")).unwrap();
        two_equal_ranks(folder, fault);
        let again = fs::read(folder.join("ranks-0")).unwrap();
        assert!(weights == again, "{fault}: another run ends elsewhere");
    }
}

#[test]
fn sums_that_overlap_are_of_no_use_to_any_rank_where_one_fails() {
    let folder = tempfile::tempdir().unwrap();
    for fault in ["deep, short", "deep, short in the pass"] {
        let folder = tempfile::tempdir().unwrap();
        for summary in two_equal_ranks(folder.path(), fault) {
            assert_eq!(summary["micro_batch"], 2, "{fault}");
            assert_eq!(summary["steps"], 20, "{fault}");
        }
    }
    for summary in two_equal_ranks(folder.path(), "deep, no number") {
        assert_eq!(summary["skipped_steps"], 3);
        assert_eq!(summary["rollbacks"], 1);
        assert_eq!(summary["steps"], 20);
    }
    for fault in ["deep, broken", "deep, broken in the pass"] {
        let outputs = two_ranks(folder.path(), fault);
        assert!(outputs.iter().all(|output| !output.status.success()));
        let told = said(&outputs[0]);
        assert!(
            told.contains("the second rank is broken"),
            "{fault}: {told}"
        );
    }
}

#[test]
fn overlapping_sums_of_bf16_leave_equal_weights() {
    let folder = tempfile::tempdir().unwrap();
    two_equal_ranks(folder.path(), "deep, bf16");
    let rounded = fs::read(folder.path().join("ranks-0")).unwrap();
    two_equal_ranks(folder.path(), "deep");
    assert!(rounded != fs::read(folder.path().join("ranks-0")).unwrap());
}
