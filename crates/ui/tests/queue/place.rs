//! A queue with a program that trains nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use doctor::Report;
use serde_json::Value;
use surefoot_ui::queue::{
    Callbacks, Ended, InterruptedRun, Job, JobId, NewJob, Queue, State, Work, WorkerExit, work,
};
use surefoot_ui::runs::{Error, Runs};

/// A file `faults` says how many starts end in a page fault; each saves a checkpoint before, unless there is a file `stuck`.
/// Passes every check but that of a config with `refuse` in it; a run is a folder that says it was completed. Lines of a
/// config as `# peak: 5` say what a check expects of memory, `# on: GPU 0` where it was made, and a run with `# slow` ends
/// once there is a file `go`.
const PROGRAM: &str = r#"#!/bin/sh
config=$(cat)
said() { echo "$config" | sed -n "s/^# $1: //p"; }
for argument in "$@"; do
  case "$argument" in
    --dry-run)
      case "$config" in *refuse*) echo 'surefoot: no such thing' >&2; exit 2;; esac
      case "$config" in *full*) if [ -e RUNS/busy ]; then echo 'surefoot: out of memory' >&2; exit 1; fi;; esac
      advice=$(said advice); peak=$(said peak)
      echo "{\"advice\":[${advice:+\"$advice\"}],\"memory_estimate\":{\"peak\":${peak:-null}},\"environment\":{\"device\":\"$(said on)\"}}"
      exit 0;;
    name=*) name=$(echo "$argument" | sed 's/^name="\(.*\)"$/\1/');;
  esac
done
echo "$*" >> RUNS/started
echo "$SUREFOOT_RESTARTS" >> RUNS/restarts
fault() {
  left=$(cat RUNS/faults 2>/dev/null || echo 0)
  if [ "$left" -gt 0 ]; then
    echo $((left - 1)) > RUNS/faults
    if [ ! -e RUNS/stuck ]; then mkdir -p "$1/checkpoints/step-00000$((9 - left))"; fi
    echo 'Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x7f00. Reason: Page not present.' >&2
    kill -ABRT $$
  fi
}
case "$*" in
  *--resume*)
    for run in "$@"; do :; done
    fault "$run"
    if [ -e RUNS/faults ]; then echo '{"ending":"completed","error":null}' > "$run/run.json"; fi
    exit 0;;
esac
mkdir "RUNS/$name" && echo "name: $name" > "RUNS/$name/config.yaml"
fault "RUNS/$name"
case "$config" in *'# slow'*) until [ -e RUNS/go ]; do sleep 0.05; done;; esac
echo '{"ending":"completed","error":null}' > "RUNS/$name/run.json"
echo trained
"#;

pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) queue: Queue,
    program: PathBuf,
    /// What the doctor says of the machine.
    pub(crate) report: Report,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("runs");
        fs::create_dir(&root).unwrap();
        let program = folder.path().join("surefoot");
        let text = PROGRAM.replace("RUNS", &root.display().to_string());
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Self {
            queue: Queue::new(Runs::new(root)),
            folder,
            program,
            report: report("kfd_cpu_only"),
        }
    }

    pub(crate) fn add(&self, name: &str, config: &str) -> JobId {
        let job = self.queue.add(NewJob {
            name: name.parse().unwrap(),
            work: Work::Train {
                config: config.into(),
                source: "c.yaml".into(),
            },
            set: Vec::new(),
            folder: self.folder.path().to_owned(),
            confined_to: None,
            force: false,
        });
        job.unwrap().id
    }

    pub(crate) fn work(&self) -> WorkerExit {
        self.work_and_tell(&|_| {})
    }

    pub(crate) fn work_and_tell(&self, tell: &(dyn Fn(&InterruptedRun) + Sync)) -> WorkerExit {
        self.try_work(tell).unwrap()
    }

    pub(crate) fn try_work(
        &self,
        tell: &(dyn Fn(&InterruptedRun) + Sync),
    ) -> Result<WorkerExit, Error> {
        let callbacks = Callbacks {
            diagnose: &|| self.report.clone(),
            on_interrupted: tell,
        };
        work(&self.queue, &self.program, &callbacks)
    }

    pub(crate) fn jobs(&self) -> Vec<Job> {
        let listing = self.queue.list().unwrap();
        assert_eq!(listing.unreadable, Vec::<String>::new());
        listing.jobs
    }

    pub(crate) fn how(&self, id: JobId) -> (Ended, Option<String>) {
        match self.queue.job(id).unwrap().state {
            State::Ended { how, error, .. } => (how, error),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn started(&self) -> Vec<String> {
        let text = fs::read_to_string(self.queue.runs().root().join("started"));
        text.unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// Gives a job the state that a process left it in.
    pub(crate) fn leave(&self, id: JobId, state: &Value) {
        let name = format!("queue/job-{:06}.json", id.0);
        let path = self.queue.runs().state_folder().join(name);
        let mut job: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let fields = state.as_object().unwrap().clone();
        job.as_object_mut().unwrap().extend(fields);
        fs::write(path, job.to_string()).unwrap();
    }

    /// An interrupted run: it has no report of how it ended.
    pub(crate) fn cut_off(&self, name: &str, checkpoint: bool) {
        let run = self.queue.runs().root().join(name);
        fs::create_dir_all(run.join("checkpoints")).unwrap();
        fs::write(run.join("config.yaml"), "name: a\n").unwrap();
        if checkpoint {
            fs::create_dir(run.join("checkpoints/step-000004")).unwrap();
        }
    }
}

/// What the doctor says of a machine of its tests.
pub(crate) fn report(name: &str) -> Report {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../doctor/tests/fixtures/synthetic"
    );
    let text = fs::read_to_string(format!("{folder}/{name}.txt")).unwrap();
    doctor::diagnose_text(&text).unwrap()
}
