//! `train.report_to` against servers that behave, are silent, or mean harm: numbers arrive, and no run depends on one.
//! The real servers are asked in `python/tests/test_trackers.py`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};

const CONFIG: &str = "\
name: tiny
device: cpu
threads: 1
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
data: {path: text.txt, block_size: 16}
sample: {max_new_tokens: 0}
notify: {url: 'http://127.0.0.1:9/a-secret'}
train:
  bf16: false
  max_steps: 6
  per_device_train_batch_size: 2
  logging_steps: 1
  eval_steps: 3
  save_steps: 3
";

/// What a server does with a connection.
type Answers = fn(&mut TcpStream, &str, &Value);

/// A path and a body that a server got.
type Asked = (String, Value);

fn serve(answers: Answers) -> (String, Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, asked) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let sender = sender.clone();
            std::thread::spawn(move || while one(&stream, answers, &sender).is_some() {});
        }
    });
    (url, asked)
}

/// Takes a request and answers it.
fn one(
    stream: &std::io::Result<TcpStream>,
    answers: Answers,
    sender: &Sender<Asked>,
) -> Option<()> {
    let mut stream = stream.as_ref().ok()?.try_clone().ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let small = head.to_lowercase();
    let length = small
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))?;
    let mut body = vec![0; length.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    let body: Value = serde_json::from_slice(&body).ok()?;
    let path = head.split(' ').nth(1)?.to_owned();
    answers(&mut stream, &path, &body);
    let _ = sender.send((path, body));
    Some(())
}

fn answer(stream: &mut TcpStream, status: &str, body: &str) {
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
}

/// As much of MLflow and trackio as a run needs.
fn good(stream: &mut TcpStream, path: &str, _: &Value) {
    let body = match path.rsplit('/').next().unwrap() {
        "search" => json!({}),
        "create" if path.contains("experiments") => json!({"experiment_id": "7"}),
        "create" => json!({"run": {"info": {"run_id": "abc123"}}}),
        "bulk_log" => json!({"data": null}),
        _ => json!({}),
    };
    answer(stream, "200 OK", &body.to_string());
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = crate::common::bottles(400);
        fs::write(folder.path().join("text.txt"), text).unwrap();
        fs::write(folder.path().join("config.yaml"), CONFIG).unwrap();
        Self(folder)
    }

    fn train(&self, servers: &[(&str, &str)], more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefoot-trainer"));
        command
            .args(["train", "config.yaml"])
            .args(more.iter().flat_map(|key| ["--set", key]))
            .current_dir(self.0.path())
            .env_remove("HIP_ALLOC_LIB")
            .env_remove("RUST_LOG")
            .env("HIP_ALLOC", "0")
            .env("SUREFOOT_CACHE", self.0.path().join("cache"))
            .env("TRACKIO_WRITE_TOKEN", "a-token")
            .envs(servers.iter().copied());
        for proxy in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(proxy);
        }
        command.output().unwrap()
    }

    /// The losses of `metrics.jsonl`.
    fn losses(&self) -> Vec<(u64, f64)> {
        let text = fs::read_to_string(self.0.path().join("runs/tiny/metrics.jsonl")).unwrap();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let losses =
            lines.filter_map(|line| Some((line["step"].as_u64()?, line["loss"].as_f64()?)));
        losses.collect()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const BOTH: &str = "train.report_to=[mlflow, trackio]";

/// The losses that a server got: step, and value.
fn losses(asked: &[Asked]) -> Vec<(u64, f64)> {
    let mut found = Vec::new();
    for (path, body) in asked {
        if path.ends_with("/runs/log-batch") {
            for metric in body["metrics"].as_array().into_iter().flatten() {
                if metric["key"] == "train/loss" {
                    found.push((
                        metric["step"].as_u64().unwrap(),
                        metric["value"].as_f64().unwrap(),
                    ));
                }
            }
        }
        for log in body["kwargs"]["logs"].as_array().into_iter().flatten() {
            if let Some(loss) = log["metrics"]["train/loss"].as_f64() {
                found.push((log["step"].as_u64().unwrap(), loss));
            }
        }
    }
    found
}

#[test]
fn numbers_arrive_and_a_resumed_run_goes_on_there() {
    let place = Place::new();
    let [(mlflow, to_mlflow), (trackio, to_trackio)] = [serve(good), serve(good)];
    let servers = [
        ("MLFLOW_TRACKING_URI", &*mlflow),
        ("TRACKIO_SERVER_URL", &*trackio),
    ];
    let output = place.train(
        &servers,
        &[
            BOTH,
            "train.max_steps=3",
            "train.lr_scheduler_type=constant",
        ],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let resume = "train.resume_from_checkpoint=latest";
    let output = place.train(
        &servers,
        &[BOTH, "train.lr_scheduler_type=constant", resume],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    let recorded = place.losses();
    assert_eq!(recorded.len(), 6);
    let asked: Vec<Asked> = to_mlflow.try_iter().collect();
    assert_eq!(losses(&asked), recorded);
    let count = |end: &str| asked.iter().filter(|(path, _)| path.ends_with(end)).count();
    // Begun once, gone on with once, ended twice.
    assert_eq!((count("runs/create"), count("runs/update")), (1, 3));
    assert_eq!(asked.last().unwrap().1["status"], "FINISHED");
    let all = format!("{asked:?}");
    assert!(
        all.contains("train.learning_rate") && !all.contains("a-secret"),
        "{all}"
    );
    let asked: Vec<Asked> = to_trackio.try_iter().collect();
    assert_eq!(losses(&asked), recorded);
    let ids = asked
        .iter()
        .flat_map(|(_, body)| body["kwargs"]["logs"].as_array().unwrap());
    let ids: std::collections::BTreeSet<_> = ids.map(|log| log["run_id"].to_string()).collect();
    assert_eq!(ids.len(), 1);
}

#[test]
fn a_server_that_is_silent_gone_or_hostile_ends_no_run() {
    // The listener takes connections, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let (other, redirected) = serve(good);
    let hostile: [(&str, Answers); 6] = [
        ("an endless answer", |stream, _, _| {
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"
            );
            while stream.write_all(&[b'x'; 65536]).is_ok() {}
        }),
        ("an id that is a path", |stream, path, _| {
            let run = json!({"run": {"info": {"run_id": "../../etc/passwd\u{1b}[31m"}}, "experiment_id": "1"});
            answer(
                stream,
                "200 OK",
                &if path.ends_with("search") {
                    json!({})
                } else {
                    run
                }
                .to_string(),
            );
        }),
        ("no HTTP", |stream, _, _| {
            drop(stream.write_all(b"\x00\xff nonsense"))
        }),
        ("no JSON", |stream, _, _| answer(stream, "200 OK", "[[[[")),
        ("other JSON", |stream, _, _| answer(stream, "200 OK", "[]")),
        ("an error with colours", |stream, _, _| {
            answer(
                stream,
                "403 Forbidden",
                &json!({"message": "\u{1b}[31mno\n"}).to_string(),
            );
        }),
    ];
    let servers = [
        ("silent", format!("http://{}", silent.local_addr().unwrap())),
        ("gone", gone),
    ]
    .into_iter();
    let servers = servers.chain(hostile.map(|(name, answers)| (name, serve(answers).0)));
    for (name, url) in servers {
        let place = Place::new();
        let output = place.train(
            &[("MLFLOW_TRACKING_URI", &url), ("TRACKIO_SERVER_URL", &url)],
            &[BOTH],
        );
        let told = stderr(&output);
        assert!(output.status.success(), "{name}: {told}");
        assert_eq!(place.losses().len(), 6, "{name}");
        assert!(told.contains("mlflow"), "{name}: {told}");
        assert!(
            !told.contains('\u{1b}') && !told.contains("passwd"),
            "{name}: {told}"
        );
        assert!(
            !place.0.path().join("runs/tiny/mlflow.json").exists(),
            "{name}"
        );
    }
    // A redirect is not followed.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 65536]);
            let _ = write!(
                stream,
                "HTTP/1.1 307 Other\r\nLocation: {other}/api\r\nContent-Length: 0\r\n\r\n"
            );
        }
    });
    let place = Place::new();
    let output = place.train(
        &[("MLFLOW_TRACKING_URI", &url), ("TRACKIO_SERVER_URL", &url)],
        &[BOTH],
    );
    assert!(
        output.status.success() && stderr(&output).contains("307"),
        "{}",
        stderr(&output)
    );
    assert!(redirected.try_recv().is_err());
    drop(silent);
}

#[test]
fn a_run_is_created_once_and_its_parameters_arrive_in_another_try() {
    /// The tag of each run that was created, and how often parameters were refused for now.
    static CREATED: Mutex<(Vec<Value>, u32)> = Mutex::new((Vec::new(), 0));
    let (url, asked) = serve(|stream, path, body| {
        let mut known = CREATED.lock().unwrap();
        let run = json!({"info": {"run_id": "abc123"}});
        if path.ends_with("runs/create") {
            let mut tags = body["tags"].as_array().unwrap().iter();
            let tag = tags.find(|tag| tag["key"] == "surefoot.run").unwrap();
            known.0.push(tag["value"].clone());
            // It is created, and nobody is told.
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        } else if path.ends_with("runs/search") {
            let is_asked_for = |tag: &Value| {
                let tag = format!("tags.`surefoot.run` = '{}'", tag.as_str().unwrap());
                body["filter"] == tag && body["experiment_ids"] == json!(["7"])
            };
            let found = known.0.iter().any(is_asked_for).then_some(run);
            let found = json!({"runs": found.as_slice()});
            answer(stream, "200 OK", &found.to_string());
        } else if !body["params"].is_null() && known.1 < 1 {
            known.1 += 1;
            answer(stream, "503 Later", "{}");
        } else {
            good(stream, path, body);
        }
    });
    let place = Place::new();
    let output = place.train(
        &[("MLFLOW_TRACKING_URI", &url)],
        &["train.report_to=mlflow"],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(CREATED.lock().unwrap().0.len(), 1);
    let asked: Vec<Asked> = asked.try_iter().collect();
    assert_eq!(losses(&asked), place.losses());
    assert_eq!(asked.last().unwrap().1["status"], "FINISHED");
    let batches = asked.iter().filter(|(_, body)| !body["params"].is_null());
    let batches: Vec<_> = batches.map(|(_, body)| &body["params"]).collect();
    assert!(batches.len() == 2 && batches[0] == batches[1], "{asked:?}");
}

#[test]
fn parameters_that_are_refused_are_told_and_the_numbers_go_on() {
    let (url, asked) = serve(|stream, path, body| {
        let params = body["params"].as_array();
        if params.is_some_and(|params| params.iter().any(|param| param["key"] == "name")) {
            return answer(stream, "400 Bad", r#"{"message": "no such name"}"#);
        }
        good(stream, path, body);
    });
    let place = Place::new();
    let output = place.train(
        &[("MLFLOW_TRACKING_URI", &url)],
        &["train.report_to=mlflow"],
    );
    let told = stderr(&output);
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains("mlflow lacks up to ") && told.contains("no such name"),
        "{told}"
    );
    let asked: Vec<Asked> = asked.try_iter().collect();
    assert_eq!(losses(&asked), place.losses());
}

#[test]
fn what_cannot_be_reported_to_is_refused_by_name() {
    let place = Place::new();
    for (report_to, told) in [
        ("mlflow", "MLFLOW_TRACKING_URI"),
        ("trackio", "TRACKIO_SERVER_URL"),
        ("wandb", "trackio"),
        ("[mlflow, comet_ml]", "comet_ml"),
    ] {
        let output = place.train(&[], &[&format!("train.report_to={report_to}")]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains(told) && said.contains("report_to"), "{said}");
        assert!(!place.0.path().join("runs").exists());
    }
    for fine in ["none", "tensorboard", "[]"] {
        let output = place.train(
            &[],
            &[&format!("train.report_to={fine}"), "train.max_steps=1"],
        );
        assert!(output.status.success(), "{}", stderr(&output));
    }
}
