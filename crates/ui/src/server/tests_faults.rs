//! What the server makes of folders that are removed, half written or strange while they are watched.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use axum::body::{Body, BodyDataStream};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio_stream::StreamExt;

use super::tests::{Place, json as body_of};
use crate::queue::{NewJob, Work};

/// What a stream sends.
struct Watch {
    body: BodyDataStream,
    text: String,
}

impl Watch {
    async fn of(place: &Place, path: &str) -> Self {
        let response = place.answer(place.request("GET", path)).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        Self {
            body: response.into_body().into_data_stream(),
            text: String::new(),
        }
    }

    /// Reads on until some text has come, which is taken out with all before it.
    async fn until(&mut self, wanted: &str) -> String {
        let time = Duration::from_secs(30);
        loop {
            if let Some(at) = self.text.find(wanted) {
                let rest = self.text.split_off(at + wanted.len());
                return std::mem::replace(&mut self.text, rest);
            }
            let next = tokio::time::timeout(time, self.body.next()).await;
            let piece = next.unwrap_or_else(|_| panic!("no {wanted:?} in {:?}", self.text));
            let piece =
                piece.unwrap_or_else(|| panic!("ended without {wanted:?}: {:?}", self.text));
            self.text += &String::from_utf8_lossy(&piece.unwrap());
        }
    }
}

async fn stream_of(place: &Place, run: &str) -> Watch {
    let (_, curves) = place.get(&format!("/api/runs/{run}/curves")).await;
    let path = format!(
        "/api/runs/{run}/stream?inode={}&offset={}",
        curves["inode"], curves["offset"]
    );
    Watch::of(place, &path).await
}

const ROUTES: [&str; 7] = [
    "/api/runs",
    "/api/runs/a",
    "/api/runs/a/curves",
    "/api/runs/a/samples",
    "/api/runs/a/explain",
    "/api/runs/a/log",
    "/api/compare?run=a",
];

#[tokio::test]
async fn a_stream_begins_where_the_curves_end() {
    let place = Place::new();
    let (_, curves) = place.get("/api/runs/a/curves").await;
    let mut file = fs::File::options()
        .append(true)
        .open(place.runs.join("a/metrics.jsonl"))
        .unwrap();
    std::io::Write::write_all(
        &mut file,
        b"{\"kind\":\"train\",\"step\":2}\n{\"kind\":\"tr",
    )
    .unwrap();
    let path = format!(
        "/api/runs/a/stream?inode={}&offset={}",
        curves["inode"], curves["offset"]
    );
    let response = place.answer(place.request("GET", &path)).await;
    let mut body = response.into_body().into_data_stream();
    let mut text = String::new();
    while !text.contains("event: records") || !text.ends_with("\n\n") {
        text += &String::from_utf8_lossy(&body.next().await.unwrap().unwrap());
    }
    assert!(text.contains("event: state"), "{text}");
    assert!(
        text.contains("data: [{\"kind\":\"train\",\"step\":2}]\n"),
        "{text}"
    );
}

#[tokio::test]
async fn removing_a_watched_run_is_reported() {
    let place = Place::new();
    let mut run = stream_of(&place, "a").await;
    run.until("event: state").await;
    let mut list = Watch::of(&place, "/api/stream").await;
    list.until("\"name\":\"a\"").await;
    fs::remove_dir_all(place.runs.join("a")).unwrap();
    run.until("event: gone").await;
    list.until("data: {\"runs\":[]}").await;
    assert_eq!(place.get("/api/runs").await.1["runs"], json!([]));
    assert_eq!(
        place.get("/api/runs/a/curves").await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn a_folder_of_runs_that_disappears_and_comes_back_is_followed() {
    let place = Place::new();
    let mut list = Watch::of(&place, "/api/stream").await;
    list.until("\"name\":\"a\"").await;
    let aside = place.runs.with_extension("aside");
    fs::rename(&place.runs, &aside).unwrap();
    list.until("data: {\"runs\":[]}").await;
    assert_eq!(place.get("/api/queue").await.1["jobs"], json!([]));
    fs::rename(&aside, &place.runs).unwrap();
    list.until("\"name\":\"a\"").await;
}

/// Cut at any byte, each file of a run gives an answer; whole again, the right one.
#[tokio::test]
async fn half_written_files_are_read_as_far_as_they_go() {
    let place = Place::new();
    let folder = place.runs.join("a");
    let facts = r#"{"ending":"completed","error":null,"kind":"language","device":"cpu","expected_memory":{"peak":5},"commands":[]}"#;
    fs::write(folder.join("run.json"), facts).unwrap();
    fs::write(
        folder.join("summary.json"),
        r#"{"name":"a","ending":"completed"}"#,
    )
    .unwrap();
    fs::write(folder.join("output.log"), "trained \u{1f40e}\n").unwrap();
    for file in [
        "config.yaml",
        "metrics.jsonl",
        "run.json",
        "summary.json",
        "output.log",
    ] {
        let path = folder.join(file);
        let whole = fs::read(&path).unwrap();
        for end in (0..whole.len()).step_by(7) {
            fs::write(&path, &whole[..end]).unwrap();
            for route in ROUTES {
                let (status, said) = place.get(route).await;
                assert!(
                    status.is_success(),
                    "{file} cut at {end}: {route}: {status} {said}"
                );
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    let (_, run) = place.get("/api/runs/a").await;
    assert_eq!(
        (&run["state"], &run["max_steps"]),
        (&json!("completed"), &json!(8))
    );
    let (_, curves) = place.get("/api/runs/a/curves").await;
    assert_eq!(curves["train"]["steps"], json!([1]));
}

/// A line that comes in two halves is one record, and one that begins anew after a crash leaves the rest readable.
#[tokio::test]
async fn an_incomplete_line_is_sent_once_it_is_complete() {
    let place = Place::new();
    let mut run = stream_of(&place, "a").await;
    run.until("event: state").await;
    let add = |text: &str| {
        let mut file = fs::File::options()
            .append(true)
            .open(place.runs.join("a/metrics.jsonl"))
            .unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    };
    add("{\"kind\":\"train\",\"step\":2,");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    add("\"loss\":2.0}\n");
    let sent = run.until("event: records\n").await;
    assert!(!sent.contains("records\ndata: []"), "{sent}");
    let sent = run.until("\n\n").await;
    assert!(sent.contains("\"step\":2,\"loss\":2.0"), "{sent}");
}

#[tokio::test]
async fn a_replaced_metrics_file_is_read_again() {
    let place = Place::new();
    let mut run = stream_of(&place, "a").await;
    run.until("event: state").await;
    let path = place.runs.join("a/metrics.jsonl");
    let new = path.with_extension("tmp");
    fs::write(&new, "{\"kind\":\"train\",\"step\":7,\"loss\":1.0}\n").unwrap();
    fs::rename(&new, &path).unwrap();
    run.until("event: anew").await;
    let (_, curves) = place.get("/api/runs/a/curves").await;
    assert_eq!(curves["train"]["steps"], json!([7]));
}

fn set_time(path: &Path, time: SystemTime) {
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// Files of tomorrow, and of before 1970, are files.
#[tokio::test]
async fn a_clock_that_jumps_changes_no_answer() {
    let place = Place::new();
    let metrics = place.runs.join("a/metrics.jsonl");
    let now = SystemTime::now();
    let day = Duration::from_secs(86_400);
    let mut run = stream_of(&place, "a").await;
    run.until("event: state").await;
    for time in [now + 40_000 * day, SystemTime::UNIX_EPOCH - day, now - day] {
        set_time(&metrics, time);
        for route in ROUTES {
            let (status, said) = place.get(route).await;
            assert!(status.is_success(), "{route}: {status} {said}");
        }
        run.until("event: state").await;
    }
    // Rows whose steps go back, as of a run that was begun anew in the middle.
    let rows: String = [1, 2, 3, 2, 3, 4]
        .map(|step| format!("{{\"kind\":\"train\",\"step\":{step},\"loss\":1.5}}\n"))
        .concat();
    fs::write(&metrics, rows).unwrap();
    let (_, curves) = place.get("/api/runs/a/curves").await;
    assert_eq!(curves["train"]["steps"], json!([1, 2, 3, 4]));
    assert_eq!(curves["latest"]["step"], 4);
}

fn job(place: &Place, name: &str) -> Result<u64, crate::runs::Error> {
    let job = place.state.queue.add(NewJob {
        name: name.parse().unwrap(),
        work: Work::Train {
            config: String::new(),
            source: "c.yaml".into(),
        },
        set: Vec::new(),
        folder: place.runs.clone(),
        confined_to: None,
        force: false,
    })?;
    Ok(job.id.0)
}

/// Jobs that ended in what is now the future do not push the newest out.
#[tokio::test]
async fn a_clock_that_was_set_back_removes_no_new_job() {
    let place = Place::new();
    place.state.queue.pause(true).unwrap();
    let queue = place.state.runs.state_folder().join("queue");
    let end = |id: u64, at: u64| {
        let path = queue.join(format!("job-{id:06}.json"));
        let mut job: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let state =
            json!({ "state": "ended", "how": "completed", "error": null, "at": at, "run": null });
        job.as_object_mut()
            .unwrap()
            .extend(state.as_object().unwrap().clone());
        fs::write(path, job.to_string()).unwrap();
        // What is done by hand is seen by who lists the jobs.
        place.state.queue.list().unwrap();
    };
    for _ in 0..100 {
        let id = job(&place, "x").unwrap();
        end(id, u64::MAX - 5);
    }
    let newest = job(&place, "y").unwrap();
    end(newest, 1_700_000_000);
    let kept = job(&place, "z").unwrap();
    let (status, queue) = place.get("/api/queue").await;
    assert_eq!(status, StatusCode::OK);
    let ids: Vec<u64> = queue["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["id"].as_u64().unwrap())
        .collect();
    assert!(ids.contains(&kept), "{ids:?}");
    assert_eq!(ids.len(), 100);
}

/// A file that takes nothing, as on a full disk: what is written there is not, and nothing is half written.
#[tokio::test]
async fn a_full_disk_is_reported_and_files_stay_intact() {
    let place = Place::new();
    place.state.queue.pause(true).unwrap();
    job(&place, "x").unwrap();
    let queue = place.state.runs.state_folder().join("queue");
    let full = |name: &str| std::os::unix::fs::symlink("/dev/full", queue.join(name)).unwrap();
    full("job-000002.tmp");
    let mut request = place.request("POST", "/api/queue");
    *request.body_mut() = Body::from("{\"config\":\"\"}");
    let response = place.answer(request).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let said = body_of(response).await;
    assert!(
        said["error"].as_str().unwrap().contains("No space left"),
        "{said}"
    );
    full("settings.tmp");
    let mut request = place.request("POST", "/api/queue/settings");
    *request.body_mut() = Body::from("{\"at_once\":\"memory\"}");
    assert_eq!(
        place.answer(request).await.status(),
        StatusCode::INTERNAL_SERVER_ERROR
    );
    let (_, listing) = place.get("/api/queue").await;
    assert_eq!(listing["jobs"].as_array().unwrap().len(), 1, "{listing}");
    assert_eq!(
        (&listing["at_once"], &listing["unreadable"]),
        (&json!("one"), &json!([]))
    );
    // There is room again.
    assert_eq!(job(&place, "y").unwrap(), 2);
}

#[tokio::test]
async fn two_hundred_runs_are_listed_and_followed() {
    let place = Place::new();
    for number in 0..200 {
        let folder = place.runs.join(format!("run-{number:03}"));
        fs::create_dir(&folder).unwrap();
        fs::write(
            folder.join("config.yaml"),
            "name: x\ntrain:\n  max_steps: 8\n",
        )
        .unwrap();
        fs::write(
            folder.join("metrics.jsonl"),
            "{\"kind\":\"train\",\"step\":3}\n",
        )
        .unwrap();
    }
    let (_, runs) = place.get("/api/runs").await;
    assert_eq!(runs["runs"].as_array().unwrap().len(), 201);
    let mut list = Watch::of(&place, "/api/stream").await;
    list.until("\"run-199\"").await;
    let metrics = place.runs.join("run-100/metrics.jsonl");
    fs::write(&metrics, "{\"kind\":\"train\",\"step\":4}\n").unwrap();
    list.until("event: runs").await;
    list.until("\"step\":4").await;
    // More than are kept between two looks.
    for number in 0..20 {
        let (status, _) = place
            .get(&format!("/api/runs/run-{number:03}/curves"))
            .await;
        assert_eq!(status, StatusCode::OK);
    }
}
