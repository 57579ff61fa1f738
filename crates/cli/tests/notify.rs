//! `notify.url` against a real HTTP server: what it gets, and that a run does not depend on it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

const CONFIG: &str = "\
name: tiny
device: cpu
threads: 1
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 2}
data: {path: text.txt, block_size: 16}
sample: {max_new_tokens: 0}
train:
  bf16: false
  max_steps: 6
  per_device_train_batch_size: 2
  logging_steps: 1
  eval_steps: 0
  save_steps: 0
";

/// How long a test waits for what must come, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(300);

/// A request: its head in small letters, and its body.
struct Request {
    head: String,
    body: Value,
}

/// Answers each request with `answer`, and passes it on.
fn serve(answer: String) -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/a-secret", listener.local_addr().unwrap());
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(stream.read_line(&mut head).unwrap(), 0, "{head}");
            }
            let head = head.to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.unwrap().parse().unwrap()];
            stream.read_exact(&mut body).unwrap();
            write!(
                stream.get_mut(),
                "HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n"
            )
            .unwrap();
            let body = serde_json::from_slice(&body).unwrap();
            let _ = sender.send(Request { head, body });
        }
    });
    (url, requests)
}

/// A folder with a text and a config that names `url`.
struct Place(tempfile::TempDir);

impl Place {
    fn new(url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = crate::common::bottles(400);
        fs::write(folder.path().join("text.txt"), text).unwrap();
        let config = format!("{CONFIG}notify: {{url: '{url}'}}\n");
        fs::write(folder.path().join("config.yaml"), config).unwrap();
        Self(folder)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.0.path())
            .env_remove("HIP_ALLOC_LIB")
            .env_remove("RUST_LOG")
            .env("HIP_ALLOC", "0")
            .env("SUREFOOT_CACHE", self.0.path().join("cache"));
        for proxy in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(proxy);
        }
        command
    }

    fn train(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(env!("CARGO_BIN_EXE_surefoot-trainer"));
        command.args(["train", "config.yaml"]).args(arguments);
        command.output().unwrap()
    }

    fn runs(&self, arguments: &[&str]) -> Value {
        let mut command = self.command(env!("CARGO_BIN_EXE_surefoot"));
        let output = command.args(["--json", "runs"]).args(arguments).output();
        serde_json::from_slice(&output.unwrap().stdout).unwrap_or_default()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_run_that_is_done_is_told_once() {
    let (url, requests) = serve("200 OK".into());
    let place = Place::new(&url);
    let dry = place.train(&["--dry-run"]);
    assert!(dry.status.success(), "{}", stderr(&dry));
    let output = place.train(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let request = requests.recv_timeout(LIMIT).unwrap();
    assert!(request.head.starts_with("post /a-secret http/1.1\r\n"));
    assert!(
        request
            .head
            .contains("\r\ncontent-type: application/json\r\n")
    );
    assert!(request.head.contains("\r\nx-message: {{.content}}\r\n"));
    let content = request.body["content"].as_str().unwrap();
    assert!(
        content.starts_with("tiny is done: 6 steps, loss "),
        "{content}"
    );
    assert_eq!(request.body["event"], "completed");
    assert!(requests.try_recv().is_err());
    // The page is passed on, the config is not.
    let read =
        |file: &str| fs::read_to_string(place.0.path().join("runs/tiny").join(file)).unwrap();
    assert!(read("config.yaml").contains("a-secret"));
    assert!(!read("report.html").contains("a-secret"));
}

#[test]
fn a_redirect_is_not_followed_and_the_run_goes_on() {
    let (elsewhere, followed) = serve("200 OK".into());
    let (url, requests) = serve(format!("307 Temporary Redirect\r\nLocation: {elsewhere}"));
    let output = Place::new(&url).train(&[]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(requests.try_recv().is_ok());
    assert!(followed.try_recv().is_err());
    assert!(
        stderr(&output).contains("a redirect (307"),
        "{}",
        stderr(&output)
    );
    assert!(!stderr(&output).contains("a-secret"), "{}", stderr(&output));
}

#[test]
fn a_server_that_refuses_or_is_not_there_breaks_nothing() {
    let (refusing, _requests) = serve("500 Internal Server Error".into());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}/a-secret", listener.local_addr().unwrap());
    drop(listener);
    for (url, said) in [(refusing, "it answers 500"), (nobody, "refused")] {
        let output = Place::new(&url).train(&[]);
        assert!(output.status.success(), "{}", stderr(&output));
        let lines = stderr(&output).to_lowercase();
        assert!(lines.contains(said), "{said}: {lines}");
        assert!(!lines.contains("a-secret"), "{lines}");
    }
}

#[test]
fn a_return_to_a_checkpoint_and_a_run_that_breaks_are_told() {
    let (url, requests) = serve("200 OK".into());
    let place = Place::new(&url);
    // Steps as far as that soon overflow.
    let far = [
        "train.learning_rate=10",
        "train.weight_decay=1",
        "train.lr_scheduler_type=constant",
        "train.warmup_steps=0",
        "train.max_grad_norm=1",
        "train.save_steps=1",
        "train.max_steps=200",
    ];
    let output = place.train(&far.map(|set| ["--set", set]).concat());
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let told: Vec<Value> = requests.try_iter().map(|request| request.body).collect();
    // They are sent side by side while the run goes on.
    let count = |event: &str| told.iter().filter(|body| body["event"] == event).count();
    assert!(count("rolled_back") >= 1, "{told:?}");
    assert_eq!(count("failed"), 1, "{told:?}");
    assert_eq!(count("rolled_back") + 1, told.len(), "{told:?}");
}

#[test]
fn a_run_that_was_killed_is_told_by_the_queue() {
    let (url, requests) = serve("200 OK".into());
    let place = Place::new(&url);
    place.runs(&["add", "config.yaml", "--set", "train.max_steps=1000000"]);
    let began = Instant::now();
    let pid = loop {
        let run = place.runs(&["show", "tiny"])["run"].clone();
        match run["process"]["pid"].as_u64() {
            Some(pid) if run["latest"]["step"].as_u64() > Some(0) => break pid,
            _ => assert!(began.elapsed() < LIMIT, "{run}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
    assert!(killed.unwrap().success());
    let request = requests.recv_timeout(LIMIT).unwrap();
    assert_eq!(
        (&request.body["event"], &request.body["run"]),
        (&"interrupted".into(), &"tiny".into())
    );
    assert!(request.body["step"].as_u64() > Some(0), "{}", request.body);
}

#[test]
fn an_address_that_is_none_is_refused_with_its_place() {
    for url in [
        "file:///etc/passwd",
        "ntfy.sh/topic",
        "https://",
        "https://me:pass@a.org/",
    ] {
        let output = Place::new(url).train(&["--check"]);
        assert_eq!(output.status.code(), Some(2), "{url}");
        assert!(
            stderr(&output).contains("`notify.url` cannot be"),
            "{}",
            stderr(&output)
        );
    }
}
