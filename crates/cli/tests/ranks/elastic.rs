//! What `torchrun` does when a process ends or a machine comes or goes: it starts all ranks again, perhaps
//! fewer or more of them, with other numbers, and beside another store.

use rustix::process::Signal;

use super::*;

/// A machine, as far as a rank can tell, with an agent of `torchrun`.
struct Machine<'a> {
    place: &'a Place,
    name: &'static str,
}

impl Machine<'_> {
    fn rank(&self, store: &Store, rank: usize, size: usize, settings: &[&str]) -> Child {
        let runs = format!("output_dir={}", self.name);
        let mut arguments = vec!["--set", &runs];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let folder = self.place.path(&format!("agent-{}/none_abc", self.name));
        let mut command = self.place.rank_command(store, rank, size, &arguments);
        command
            .env(
                "SUREFOOT_CACHE",
                self.place.path(&format!("cache-{}", self.name)),
            )
            .env("TORCHELASTIC_RUN_ID", "none")
            // Of an agent that joined later, or whose ranks were not at fault, it is still 0.
            .env("TORCHELASTIC_RESTART_COUNT", "0")
            .env(
                "TORCHELASTIC_ERROR_FILE",
                folder.join(format!("attempt_0/{rank}/error.json")),
            );
        command.spawn().unwrap()
    }

    fn checkpoints(&self) -> Vec<PathBuf> {
        self.place.checkpoints_in(self.name, "tiny")
    }

    /// The last step that it has saved.
    fn saved(&self) -> u64 {
        step_of(&self.checkpoints().pop().unwrap())
    }

    /// Lets it look for the run's folder where there is none.
    fn remember_elsewhere(&self) {
        let memory = self.place.path(&format!("cache-{}/torchrun", self.name));
        for file in fs::read_dir(memory).unwrap() {
            let file = file.unwrap().path();
            let mut begun: Value =
                serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
            begun["path"] = "/of/another/machine".into();
            fs::write(file, begun.to_string()).unwrap();
        }
    }

    fn runs(&self) -> usize {
        let runs = fs::read_dir(self.place.path(self.name));
        runs.map_or(0, Iterator::count)
    }
}

const LONG_RUN: [&str; 3] = [
    "train.max_steps=1000000",
    "train.save_steps=3",
    "train.eval_steps=0",
];

/// The step from which a run was gone on with.
fn resumed_at(output: &Output) -> Option<u64> {
    let shown = stderr(output);
    let line = shown.lines().find(|line| line.starts_with("resumed "))?;
    line.rsplit(' ').next()?.replace(',', "").parse().ok()
}

fn store() -> Store {
    Store::host("127.0.0.1", 0).unwrap()
}

fn ended(ranks: [Child; 2]) -> [Output; 2] {
    ranks.map(|rank| rank.wait_with_output().unwrap())
}

fn kill(mut ranks: [Child; 2]) {
    for rank in &mut ranks {
        rank.kill().unwrap();
        rank.wait().unwrap();
    }
}

#[test]
fn a_rank_that_is_left_alone_goes_on_from_the_last_checkpoint() {
    let place = Place::new();
    let place = Machine {
        place: &place,
        name: "runs",
    };
    let first_store = store();
    let ranks = [0, 1].map(|rank| place.rank(&first_store, rank, 2, &LONG_RUN));
    wait_for("a checkpoint", || !place.checkpoints().is_empty());
    kill(ranks);
    let saved = place.saved();

    // As under `torchrun --nnodes 1:2`.
    let steps = |more: u64| format!("train.max_steps={}", saved + more);
    let alone = place.rank(&store(), 0, 1, &[&steps(4), "train.save_steps=1"]);
    let alone = alone.wait_with_output().unwrap();
    assert_fine(&alone);
    assert_eq!(resumed_at(&alone), Some(saved), "{}", stderr(&alone));
    assert!(stderr(&alone).contains("changed    ranks 2 → 1"));
    assert_eq!(place.runs(), 1, "a run was begun anew");
    assert_eq!(place.saved(), saved + 4);

    // What is complete is not gone on with.
    let next = store();
    let outputs = ended([0, 1].map(|rank| place.rank(&next, rank, 2, &["train.max_steps=2"])));
    outputs.iter().for_each(assert_fine);
    assert_eq!(resumed_at(&outputs[0]), None);
    assert_eq!(place.runs(), 2);
}

#[test]
fn a_run_without_a_checkpoint_is_begun_anew_in_its_place() {
    let place = Place::new();
    let machine = Machine {
        place: &place,
        name: "runs",
    };
    let settings = [
        "train.max_steps=1000000",
        "train.save_steps=1000000",
        "train.eval_steps=0",
        "sample.sample_steps=0",
    ];
    let metrics = place.path("runs/tiny/metrics.jsonl");
    let first = store();
    let ranks = [0, 1].map(|rank| machine.rank(&first, rank, 2, &settings));
    wait_for("a step", || {
        fs::read_to_string(&metrics).is_ok_and(|text| text.contains("train"))
    });
    kill(ranks);
    assert_eq!(machine.runs(), 1);
    assert!(machine.checkpoints().is_empty());
    let next = store();
    let steps = ["train.max_steps=2"];
    let outputs = ended([0, 1].map(|rank| machine.rank(&next, rank, 2, &steps)));
    outputs.iter().for_each(assert_fine);
    assert_eq!(resumed_at(&outputs[0]), None);
    assert_eq!(machine.runs(), 1);
    assert_eq!(place.losses("tiny").len(), 2);
}

#[test]
fn a_rank_that_joins_one_that_was_alone_goes_on_with_it() {
    let place = Place::new();
    let place = Machine {
        place: &place,
        name: "runs",
    };
    let mut alone = place.rank(&store(), 0, 1, &LONG_RUN);
    wait_for("a checkpoint", || !place.checkpoints().is_empty());
    alone.kill().unwrap();
    alone.wait().unwrap();
    let saved = place.saved();
    let steps = format!("train.max_steps={}", saved + 4);
    let next = store();
    let outputs = ended([0, 1].map(|rank| place.rank(&next, rank, 2, &[&steps])));
    outputs.iter().for_each(assert_fine);
    assert_eq!(resumed_at(&outputs[0]), Some(saved));
    assert_eq!(place.runs(), 1, "a run was begun anew");
}

#[test]
fn a_machine_that_is_asked_to_stop_leaves_and_the_others_are_to_be_started_again() {
    let place = Place::new();
    let machine = Machine {
        place: &place,
        name: "runs",
    };
    let store = store();
    let ranks = [0, 1].map(|rank| machine.rank(&store, rank, 2, &LONG_RUN));
    wait_for("a checkpoint", || !machine.checkpoints().is_empty());
    send(&ranks[1], Signal::TERM);
    let [first, second] = ended(ranks);
    assert_fine(&second);
    // `torchrun` takes a rank that ends well for one whose work is done.
    assert_eq!(first.status.code(), Some(1));
    let shown = stderr(&first);
    assert!(shown.contains("another rank was asked to stop"), "{shown}");
    assert_eq!(machine.saved(), place.losses("tiny").len() as u64);
}

#[test]
fn the_machine_that_has_the_run_is_rank_0_whatever_torchrun_calls_it() {
    let place = Place::new();
    let [one, other] = ["one", "other"].map(|name| Machine {
        place: &place,
        name,
    });
    let first_store = store();
    let ranks = [
        one.rank(&first_store, 0, 2, &LONG_RUN),
        other.rank(&first_store, 1, 2, &LONG_RUN),
    ];
    wait_for("a checkpoint", || !one.checkpoints().is_empty());
    kill(ranks);
    let saved = one.saved();
    // All of these are on one machine, which another one's folder is not.
    other.remember_elsewhere();

    // The machine without the run does not begin it anew.
    let alone = other.rank(&store(), 0, 1, &["train.rank_timeout=1"]);
    let alone = alone.wait_with_output().unwrap();
    assert_eq!(alone.status.code(), Some(1));
    let shown = stderr(&alone);
    assert!(shown.contains("the run goes on in `"), "{shown}");
    assert!(shown.contains("not among the machines"), "{shown}");
    assert_eq!(other.runs(), 0);

    let steps = format!("train.max_steps={}", saved + 4);
    let next = store();
    let ranks = [
        other.rank(&next, 0, 2, &[&steps]),
        one.rank(&next, 1, 2, &[&steps]),
    ];
    let [second, first] = ended(ranks);
    assert_fine(&first);
    assert_fine(&second);
    assert_eq!(resumed_at(&first), Some(saved), "{}", stderr(&first));
    assert_eq!((one.runs(), other.runs()), (1, 0));
    // What all have done is shown by the one that writes it.
    let shown = String::from_utf8_lossy(&first.stdout);
    assert!(shown.contains("done: "), "{shown}");
    assert!(second.stdout.is_empty());
}
