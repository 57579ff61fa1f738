//! What comes of requests to the queue.

use std::fs;
use std::io::Read as _;

use axum::body::Body;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::tests::{Place, json as body_of};
use crate::queue::JobId;

async fn post(place: &Place, path: &str, body: Value) -> (StatusCode, Value) {
    let mut request = place.request("POST", path);
    *request.body_mut() = Body::from(body.to_string());
    let response = place.answer(request).await;
    (response.status(), body_of(response).await)
}

/// A place whose queue pauses: nothing is started.
fn paused() -> Place {
    let place = Place::new();
    place.state.queue.pause(true).unwrap();
    place
}

#[tokio::test]
async fn jobs_are_added_moved_and_removed() {
    let place = paused();
    for name in ["x", "y"] {
        let config = format!("name: {name}\ntrain: {{max_steps: 3}}\n");
        let (status, job) = post(&place, "/api/queue", json!({ "config": config })).await;
        assert_eq!(status, StatusCode::CREATED, "{job}");
        assert_eq!(job["name"], name);
        assert!(!job.to_string().contains("max_steps"), "{job}");
    }
    let set = json!({ "train.learning_rate": "1e-3" });
    let (_, job) = post(&place, "/api/queue", json!({ "like": "a", "set": set })).await;
    let settings = json!([
        "train.resume_from_checkpoint=null",
        "train.learning_rate=1e-3"
    ]);
    assert_eq!(job["set"], settings);
    let (_, job) = post(&place, "/api/queue", json!({ "resume": "a" })).await;
    assert_eq!(job["work"], json!({ "kind": "resume", "run": "a" }));
    let (_, queue) = post(&place, "/api/queue/4/move", json!({ "place": 1 })).await;
    let ids: Vec<_> = queue["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| &job["id"])
        .collect();
    assert_eq!(ids, [4, 1, 2, 3]);
    let status = place
        .answer(place.request("DELETE", "/api/queue/1"))
        .await
        .status();
    assert_eq!(status, StatusCode::NO_CONTENT);
    let (_, queue) = place.get("/api/queue").await;
    assert_eq!(queue["jobs"].as_array().unwrap().len(), 3);
    assert_eq!(queue["paused"], true);
}

/// A run that is changed as a whole keeps where its relative paths start, and is a run of its own.
#[tokio::test]
async fn a_changed_config_of_a_run_begins_where_that_run_does() {
    let place = paused();
    let elsewhere = place.runs.join("elsewhere");
    let facts = json!({ "ending": "completed", "error": null, "kind": "language", "device": "cpu", "folder": elsewhere,
        "expected_memory": {}, "commands": [] });
    fs::write(place.runs.join("a/run.json"), facts.to_string()).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    let config = "name: c\ndata: {path: text.txt}\n";
    let (status, said) = post(
        &place,
        "/api/queue",
        json!({ "config": config, "like": "a" }),
    )
    .await;
    assert_eq!(status, StatusCode::CREATED, "{said}");
    let job = place.state.queue.job(JobId(1)).unwrap();
    assert_eq!(job.what.folder, elsewhere);
    assert_eq!(job.what.set, ["train.resume_from_checkpoint=null"]);
    assert_eq!(
        job.what.confined_to,
        Some(place.state.launch.allowed.clone())
    );
    for wrong in [
        json!({ "config": config, "like": "missing" }),
        json!({ "config": config, "like": "../a" }),
        json!({ "config": config, "like": "a", "resume": "a" }),
    ] {
        let (status, said) = post(&place, "/api/queue", wrong).await;
        assert!(status.is_client_error(), "{said}");
    }
}

/// Each was once read again for each that was added, and written to the disk before the answer.
#[tokio::test]
async fn what_is_known_of_the_queue_is_read_again_only_if_somebody_else_changed_it() {
    let place = paused();
    let queue = &place.state.queue;
    for number in 1..=1100 {
        let config = format!("name: x{number}");
        let (status, _) = post(&place, "/api/queue", json!({ "config": config })).await;
        let is_room = number <= 1000;
        assert_eq!(status == StatusCode::CREATED, is_room, "{number} {status}");
    }
    assert_eq!(queue.list().unwrap().jobs.len(), 1000);
    // Nothing but the first listing, which was before there was a job, looked at the files.
    assert_eq!(queue.readings(), 1);
    // Others see the same, and what they do is seen: a job less, and one more.
    let other = crate::queue::Queue::new(place.state.runs.clone());
    assert_eq!(other.list().unwrap(), queue.list().unwrap());
    other.remove(JobId(7)).unwrap();
    assert!(queue.job(JobId(7)).is_err());
    let (status, job) = post(&place, "/api/queue", json!({ "config": "name: y" })).await;
    assert_eq!((status, &job["id"]), (StatusCode::CREATED, &json!(1001)));
    assert_eq!(other.job(JobId(1001)).unwrap().what.name.as_str(), "y");
    // Also what was done by hand.
    let folder = place.state.runs.state_folder().join("queue");
    fs::remove_file(folder.join("job-000008.json")).unwrap();
    assert!(queue.job(JobId(8)).is_err());
}

#[tokio::test]
async fn the_concurrency_can_be_set_and_read() {
    let place = Place::new();
    assert_eq!(place.get("/api/queue").await.1["at_once"], "one");
    for word in ["per_gpu", "memory", "one"] {
        let (status, queue) = post(&place, "/api/queue/settings", json!({ "at_once": word })).await;
        assert_eq!((status, &queue["at_once"]), (StatusCode::OK, &json!(word)));
        assert_eq!(place.state.queue.at_once().name(), word);
    }
    for body in [
        json!({}),
        json!({ "at_once": 2 }),
        json!({ "at_once": "many" }),
        json!({ "at_once": "one", "more": 1 }),
    ] {
        let (status, said) = post(&place, "/api/queue/settings", body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{said}");
    }
    // What somebody wrote there that is no setting is none.
    let path = place.state.runs.state_folder().join("queue/settings.json");
    fs::write(path, "{\"at_once\": \"x\"}").unwrap();
    assert_eq!(place.get("/api/queue").await.1["at_once"], "one");
}

/// Otherwise it starts again when somebody stops it.
#[tokio::test]
async fn a_run_is_resumed_by_one_job_at_a_time() {
    let place = paused();
    let resume = json!({ "resume": "a" });
    let (status, _) = post(&place, "/api/queue", resume.clone()).await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, said) = post(&place, "/api/queue", resume.clone()).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(said["error"], "job 1 already trains `a`");
    // What was done by hand a moment ago counts, too.
    let folder = place.state.runs.state_folder().join("queue");
    fs::remove_file(folder.join("job-000001.json")).unwrap();
    let (status, job) = post(&place, "/api/queue", resume.clone()).await;
    assert_eq!((status, &job["id"]), (StatusCode::CREATED, &json!(1)));
    place.state.queue.remove(JobId(1)).unwrap();
    // A process that trains in the folder holds a lock on it.
    let mut training = std::process::Command::new("sh")
        .args(["-c", "exec 9<\"$1\"; flock 9; echo; exec sleep 60", "-"])
        .arg(place.runs.join("a"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut began = [0];
    training
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut began)
        .unwrap();
    let (status, said) = post(&place, "/api/queue", resume.clone()).await;
    assert_eq!(
        (status, &said["error"]),
        (StatusCode::CONFLICT, &json!("`a` is already running"))
    );
    training.kill().unwrap();
    training.wait().unwrap();
    let (status, _) = post(&place, "/api/queue", resume).await;
    assert_eq!(status, StatusCode::CREATED);
}

#[tokio::test]
async fn a_job_that_was_asked_to_stop_is_stopping_until_its_step_ends() {
    let place = paused();
    post(&place, "/api/queue", json!({ "config": "name: a" })).await;
    let mut training = std::process::Command::new("sh")
        .args(["-c", "trap '' INT; echo; exec sleep 60"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut began = [0];
    training
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut began)
        .unwrap();
    let path = place.state.runs.state_folder();
    let path = path.join("queue/job-000001.json");
    let mut job: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    job["state"] = json!("running");
    job["run"] = json!("a");
    job["boot"] = json!("x");
    job["process"] = json!(crate::runs::Process::of(training.id()));
    fs::write(&path, job.to_string()).unwrap();
    let stopping = async || place.get("/api/queue").await.1["jobs"][0]["stopping"].clone();
    assert_eq!(stopping().await, false);
    post(&place, "/api/queue/1/stop", Value::Null).await;
    assert_eq!(stopping().await, true);
    training.kill().unwrap();
    training.wait().unwrap();
}

/// A waiting or refused job has no run whose page would show it.
#[tokio::test]
async fn the_config_of_a_job_can_be_read() {
    let place = paused();
    let set = json!({ "train.max_steps": "5" });
    let body = json!({ "config": "name: x # mine\n", "set": set });
    post(&place, "/api/queue", body).await;
    let wanted = json!({ "config": "name: x # mine\n", "set": set });
    let got = place.get("/api/queue/1/config").await;
    assert_eq!(got, (StatusCode::OK, wanted));
    assert_eq!(
        place.get("/api/queue/2/config").await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn another_folder_of_runs_is_refused_instead_of_ignored() {
    let place = paused();
    let body = json!({ "config": "name: x\noutput_dir: elsewhere\n" });
    for path in ["/api/queue", "/api/check"] {
        let (status, said) = post(&place, path, body.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
        let said = said["error"].as_str().unwrap();
        assert!(said.starts_with("`output_dir` (line 2) is not"), "{said}");
    }
    let runs = place.runs.display();
    let body = json!({ "config": format!("output_dir: {runs}\n") });
    assert_eq!(
        post(&place, "/api/queue", body).await.0,
        StatusCode::CREATED
    );
}

#[tokio::test]
async fn a_run_that_was_started_elsewhere_keeps_its_relative_paths() {
    let place = paused();
    let elsewhere = tempfile::tempdir().unwrap();
    for (folder, wanted) in [
        (elsewhere.path(), elsewhere.path()),
        (std::path::Path::new("/gone"), &*place.state.launch.folder),
    ] {
        let facts = json!({
            "ending": "stopped", "error": null, "kind": "language", "device": "cpu",
            "expected_memory": {}, "commands": [], "folder": folder,
        });
        fs::write(place.runs.join("a/run.json"), facts.to_string()).unwrap();
        for body in [json!({ "like": "a" }), json!({ "resume": "a" })] {
            let (_, job) = post(&place, "/api/queue", body).await;
            assert_eq!(job["folder"], wanted.display().to_string());
            let id = job["id"].as_u64().unwrap();
            place.state.queue.remove(JobId(id)).unwrap();
        }
    }
}

/// What comes over the network says nothing of folders and programs.
#[tokio::test]
async fn a_config_from_the_page_is_confined_and_its_run_is_in_the_folder_of_runs() {
    let place = paused();
    post(
        &place,
        "/api/queue",
        json!({ "config": "data: {path: /etc/passwd}\n" }),
    )
    .await;
    let job = place.state.queue.job(JobId(1)).unwrap();
    assert_eq!(
        job.what.confined_to,
        Some(place.state.launch.allowed.clone())
    );
    assert_eq!(job.what.folder, place.state.launch.folder);
}

#[tokio::test]
async fn invalid_jobs_are_refused() {
    let place = paused();
    let long = "x".repeat(5000);
    for body in [
        json!({}),
        json!({ "config": "", "resume": "a" }),
        json!({ "like": "a", "resume": "a" }),
        json!({ "config": "name: ../x\n" }),
        json!({ "config": "name: [\n" }),
        json!({ "config": "", "name": ".hidden" }),
        json!({ "config": "", "set": { "output_dir": "/tmp" } }),
        json!({ "config": "", "set": { "name": "x" } }),
        json!({ "config": "", "set": { "a b": "1" } }),
        json!({ "config": "", "set": { "--resume": "1" } }),
        json!({ "config": "", "set": { "train.x": long } }),
        json!({ "config": "", "folder": "/" }),
        json!({ "config": "", "confined_to": null }),
        json!({ "like": "../a" }),
        json!({ "like": "missing" }),
        json!({ "resume": "missing" }),
        json!({ "resume": "a", "set": { "train.x": "1" } }),
        json!([]),
    ] {
        for path in ["/api/queue", "/api/check", "/api/dry-run"] {
            // What is no YAML at all is told by the trainer, with its place.
            if path == "/api/check" && body["config"] == "name: [\n" {
                continue;
            }
            let (status, said) = post(&place, path, body.clone()).await;
            assert!(
                matches!(status.as_u16(), 400 | 404),
                "{path} {body}: {status} {said}"
            );
        }
    }
    for job in [
        "0x1",
        "-1",
        "1e3",
        "..",
        "%2e%2e",
        "99999999999999999999",
        "1%00",
        "",
    ] {
        let status = place
            .answer(place.request("DELETE", &format!("/api/queue/{job}")))
            .await
            .status();
        assert!(
            matches!(status.as_u16(), 400 | 404 | 405),
            "{job}: {status}"
        );
    }
    assert_eq!(place.get("/api/queue").await.1["jobs"], json!([]));
}

#[tokio::test]
async fn a_missing_program_is_reported_and_the_job_stays() {
    let place = Place::new();
    let (status, said) = post(&place, "/api/queue", json!({ "config": "" })).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{said}");
    assert!(
        said["error"].as_str().unwrap().contains("no-program"),
        "{said}"
    );
    assert_eq!(
        place.get("/api/queue").await.1["jobs"][0]["state"],
        "waiting"
    );
}

#[tokio::test]
async fn a_log_is_text_and_never_that_of_another_file() {
    let place = Place::new();
    assert_eq!(place.get("/api/runs/a/log").await.1, Value::Null);
    let path = place.runs.join("a/output.log");
    fs::write(&path, "\u{1b}[31m<b>x</b>\u{1b}[0m\n").unwrap();
    let (_, part) = place.get("/api/runs/a/log").await;
    assert_eq!(part["text"], "<b>x</b>\n");
    let next = format!(
        "/api/runs/a/log?inode={}&offset={}",
        part["inode"], part["to"]
    );
    assert_eq!(place.get(&next).await.1["text"], "");
    fs::remove_file(&path).unwrap();
    fs::write(place.runs.with_file_name("secret"), "secret\n").unwrap();
    std::os::unix::fs::symlink("../../secret", &path).unwrap();
    let (status, said) = place.get("/api/runs/a/log").await;
    assert!(
        !status.is_success() && !said.to_string().contains("secret\\n"),
        "{status} {said}"
    );
}

#[tokio::test]
async fn a_run_that_is_not_running_takes_no_requests() {
    let place = Place::new();
    for what in ["save", "sample"] {
        let (status, _) = post(&place, &format!("/api/runs/a/{what}"), json!({})).await;
        assert_eq!(status, StatusCode::CONFLICT);
    }
}
