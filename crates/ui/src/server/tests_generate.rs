//! What comes of a prompt to what a run has made.

use std::fs;
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::tests::Place;
use super::tests_data::{send, with_program};

/// A run with a model, and a `surefoot` that says what it was asked.
fn with_model(script: &str) -> Place {
    let place = with_program(script);
    facts(&place, "a", "language", &["--model=/runs/a/model"]);
    place
}

/// Writes what the trainer does when a run has ended.
fn facts(place: &Place, run: &str, kind: &str, generate: &[&str]) {
    let facts = json!({
        "ending": "completed", "error": null, "kind": kind, "architecture": "llama", "device": "auto",
        "expected_memory": {}, "generate": generate, "generate_base": null, "commands": [],
    });
    fs::write(place.runs.join(run).join("run.json"), facts.to_string()).unwrap();
}

#[tokio::test]
async fn an_answer_comes_in_pieces_and_says_how_it_ended() {
    let place = with_model(
        "shift; for each; do echo \"[$each]\"; done; echo 'surefoot: no memory' >&2; exit 3\n",
    );
    let body = json!({ "run": "a", "prompt": "--model=/etc", "temperature": 0.5, "chat": true });
    let mut request = place.request("POST", "/api/generate");
    *request.body_mut() = Body::from(body.to_string());
    let response = place.answer(request).await;
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let lines = String::from_utf8(bytes.to_vec()).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let text: String = lines
        .iter()
        .filter_map(|line| line["text"].as_str())
        .collect();
    // A prompt is never an option.
    assert!(text.contains("[--prompt=--model=/etc]"), "{text}");
    assert!(
        text.contains("[--temperature=0.5]") && text.contains("[--chat]"),
        "{text}"
    );
    assert_eq!(
        lines.last().unwrap(),
        &json!({ "end": true, "error": "no memory" })
    );
}

#[tokio::test]
async fn a_model_without_a_client_is_stopped() {
    let place = with_model("echo $$ > \"$(dirname \"$0\")/pid\"; echo here; exec sleep 600\n");
    let mut request = place.request("POST", "/api/generate");
    *request.body_mut() = Body::from(json!({ "run": "a", "prompt": "x" }).to_string());
    let response = place.answer(request).await;
    let (status, _) = send(
        &place,
        "POST",
        "/api/generate",
        json!({ "run": "a", "prompt": "y" }),
    )
    .await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let mut body = response.into_body().into_data_stream();
    tokio_stream::StreamExt::next(&mut body)
        .await
        .unwrap()
        .unwrap();
    let pid = fs::read_to_string(place.runs.with_file_name("pid")).unwrap();
    let pid: u32 = pid.trim().parse().unwrap();
    let process = crate::runs::Process::of(pid).unwrap();
    drop(body);
    // It is over when the next may ask.
    let _permit = place.state.generating.acquire().await;
    assert!(!process.is_alive());
}

#[tokio::test]
async fn invalid_prompts_are_refused() {
    let place = with_model("echo x\n");
    // Of a run without an adapter.
    fs::create_dir_all(place.runs.join("a/checkpoints/step-000020")).unwrap();
    fs::create_dir_all(place.runs.join("b")).unwrap();
    fs::write(place.runs.join("b/config.yaml"), "name: b\n").unwrap();
    fs::create_dir_all(place.runs.join("c")).unwrap();
    fs::write(place.runs.join("c/config.yaml"), "name: c\n").unwrap();
    // A folder from elsewhere may say anything.
    facts(
        &place,
        "c",
        "language",
        &["--model=m", "--output=/home/me/.bashrc"],
    );
    for (body, code) in [
        (json!({ "run": "c", "prompt": "x" }), 409),
        (json!({ "run": "a", "prompt": "x", "base": true }), 409),
        (json!({ "run": "a", "prompt": "x", "checkpoint": 7 }), 409),
        (json!({ "run": "a", "prompt": "x", "checkpoint": 20 }), 409),
        (
            json!({ "run": "a", "prompt": "x", "checkpoint": "../20" }),
            400,
        ),
        (
            json!({ "run": "a", "prompt": "x", "history": [{ "role": "root", "content": "" }] }),
            400,
        ),
        (
            json!({ "run": "a", "prompt": "x", "history": [{ "role": "user", "content": "x".repeat(50 << 10) }] }),
            400,
        ),
        (json!({ "run": "../a", "prompt": "x" }), 400),
        (json!({ "run": "missing", "prompt": "x" }), 404),
        (json!({ "run": "b", "prompt": "x" }), 409),
        (json!({ "run": "a", "prompt": "x\0" }), 400),
        (json!({ "run": "a", "prompt": "x".repeat(20 << 10) }), 400),
        (
            json!({ "run": "a", "prompt": "x", "max_new_tokens": 0 }),
            400,
        ),
        (json!({ "run": "a", "prompt": "x", "temperature": -1 }), 400),
        (json!({ "run": "a", "prompt": "x", "strength": 11 }), 400),
        (json!({ "run": "a", "prompt": "x", "model": "/etc" }), 400),
        (json!({ "run": "a", "prompt": "x", "frames": 0 }), 400),
        (json!({ "run": "a", "prompt": "x", "width": 4096 }), 400),
        (json!({ "run": "a" }), 400),
    ] {
        let (status, said) = send(&place, "POST", "/api/generate", body.clone()).await;
        assert_eq!(status.as_u16(), code, "{body} {said}");
    }
}

/// All lines of an answer.
async fn lines(place: &Place, body: Value) -> Vec<Value> {
    let mut request = place.request("POST", "/api/generate");
    *request.body_mut() = Body::from(body.to_string());
    let response = place.answer(request).await;
    assert_eq!(response.status(), StatusCode::OK);
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The clock jumps as soon as nothing else is left to do: ten minutes pass at once.
#[tokio::test(start_paused = true)]
async fn a_model_without_output_for_long_is_stopped() {
    let place = with_model("echo $$ > \"$(dirname \"$0\")/pid\"; exec sleep 600\n");
    let began = Instant::now();
    let lines = lines(&place, json!({ "run": "a", "prompt": "x" })).await;
    assert!(began.elapsed() < Duration::from_secs(60));
    let error = lines.last().unwrap()["error"].as_str().unwrap();
    assert!(
        error.contains("after ten minutes without output"),
        "{error}"
    );
    let pid = fs::read_to_string(place.runs.with_file_name("pid"));
    // Where it was stopped before it could write that, there is nothing to look at.
    if let Some(pid) = pid.ok().and_then(|pid| pid.trim().parse().ok()) {
        assert_eq!(crate::runs::Process::of(pid), None);
    }
    let _permit = place.state.generating.try_acquire().unwrap();
}

/// A video run with an adapter of two experts, and a `surefoot` that makes its file.
fn with_video() -> Place {
    with_video_made_by(
        "for each; do echo \"[$each]\" >&2; file=$each; done; echo 'step 1 of 2' >&2; \
         printf made > \"$file\"; echo \"$file\"\n",
    )
}

/// A video run with an adapter of two experts, and this `surefoot`.
fn with_video_made_by(script: &str) -> Place {
    let place = with_program(script);
    let loading = [
        "--model=base",
        "--lora=a_high_noise.safetensors",
        "--lora-2=a_low_noise.safetensors",
        "--vae=v.safetensors",
        "--boundary-ratio=0.9",
        "--quantization=nf4",
        "--low-vram",
    ];
    facts(&place, "a", "diffusion", &loading);
    place
}

#[tokio::test]
async fn progress_that_comes_faster_than_it_is_passed_on_is_complete() {
    let place = with_video_made_by(
        "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo \"at $i\" >&2; done; exit 3\n",
    );
    let found = lines(&place, json!({ "run": "a", "prompt": "x" })).await;
    let progress = found.iter().filter_map(|line| line["progress"].as_str());
    let expected: String = (1..=3000).map(|number| format!("at {number}\n")).collect();
    assert_eq!(progress.collect::<String>(), expected);
}

#[tokio::test]
async fn a_video_is_made_with_its_adapters_and_served() {
    let place = with_video();
    let numbers = json!({ "frames": 9, "steps": 2, "seed": 3, "strength": 0.5 });
    let mut body = json!({ "run": "a", "prompt": "a horse" });
    for (name, number) in numbers.as_object().unwrap() {
        body[name] = number.clone();
    }
    let found = lines(&place, body).await;
    let told: String = found
        .iter()
        .filter_map(|line| line["progress"].as_str())
        .collect();
    for argument in [
        "[--model=base]",
        "[--lora=a_high_noise.safetensors:0.5]",
        "[--lora-2=a_low_noise.safetensors:0.5]",
        "[--vae=v.safetensors]",
        "[--boundary-ratio=0.9]",
        "[--low-vram]",
        "[--quantization=nf4]",
        "[--num-frames=9]",
        "[--num-inference-steps=2]",
        "[--seed=3]",
        "step 1 of 2",
    ] {
        assert!(told.contains(argument), "{argument} in {told}");
    }
    assert!(!told.contains("--max-new-tokens"), "{told}");
    let end = found.last().unwrap();
    assert_eq!(end["error"], Value::Null, "{end}");
    let path = end["file"].as_str().unwrap();
    let response = place.answer(place.request("GET", path)).await;
    assert_eq!(response.headers()["content-type"], "image/webp");
    let bytes = to_bytes(response.into_body(), 100).await.unwrap();
    assert_eq!(&bytes[..], b"made");
    // The newest few are kept.
    for _ in 0..6 {
        lines(&place, json!({ "run": "a", "prompt": "x" })).await;
    }
    let folder = place.state.runs.state_folder().join("tried");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 4);
    fs::write(folder.join("x.webp"), "x").unwrap();
    for name in [
        "x.webp",
        "..%2f..%2fa%2fconfig.yaml",
        "0123456789abcdef.webp",
        ".",
    ] {
        let response = place
            .answer(place.request("GET", &format!("/api/tried/{name}")))
            .await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{name}");
    }
}

#[tokio::test]
async fn a_checkpoint_is_tried_and_a_chat_goes_on() {
    let place = with_program("shift; for each; do echo \"[$each]\"; done\n");
    let run = std::path::absolute(place.runs.join("a")).unwrap();
    let run = run.display();
    let adapter = format!("--adapter={run}/adapter");
    facts(&place, "a", "language", &["--model=/adapter", &adapter]);
    fs::create_dir_all(place.runs.join("a/checkpoints/step-000020")).unwrap();
    fs::create_dir_all(place.runs.join("a/checkpoints/step-000040.aside")).unwrap();
    let history =
        json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }]);
    let body =
        json!({ "run": "a", "prompt": "c", "chat": true, "history": history, "checkpoint": 20 });
    let found = lines(&place, body).await;
    let told: String = found
        .iter()
        .filter_map(|line| line["text"].as_str())
        .collect();
    for argument in [
        "[--model=/adapter]".to_owned(),
        format!("[--adapter={run}/checkpoints/step-000020/]"),
        format!("[--history={history}]"),
        "[--chat]".to_owned(),
    ] {
        assert!(told.contains(&argument), "{argument} in {told}");
    }
    let (_, detail) = place.get("/api/runs/a").await;
    assert_eq!(detail["checkpoints"], json!([20]));
}

#[tokio::test]
async fn a_checkpoint_of_a_whole_model_needs_no_result() {
    let place = with_program("shift; for each; do echo \"[$each]\"; done\n");
    let facts = json!({
        "ending": "stopped", "error": null, "kind": "language", "architecture": "llama", "device": "auto",
        "expected_memory": {}, "generate": null, "generate_base": null, "commands": [],
        "generate_checkpoint": ["--model=/{checkpoint}", "--checkpoint={checkpoint}"],
    });
    fs::write(place.runs.join("a/run.json"), facts.to_string()).unwrap();
    fs::create_dir_all(place.runs.join("a/checkpoints/step-000020")).unwrap();
    let found = lines(
        &place,
        json!({ "run": "a", "prompt": "c", "checkpoint": 20 }),
    )
    .await;
    let told: String = found
        .iter()
        .filter_map(|line| line["text"].as_str())
        .collect();
    let run = std::path::absolute(place.runs.join("a")).unwrap();
    let wanted = format!(
        "[--model=/{{checkpoint}}]\n[--checkpoint={}/checkpoints/step-000020]\n",
        run.display()
    );
    assert!(told.starts_with(&wanted), "{told}");
    for (body, code) in [
        (json!({ "run": "a", "prompt": "c" }), 409),
        (json!({ "run": "a", "prompt": "c", "checkpoint": 7 }), 409),
    ] {
        let (status, said) = send(&place, "POST", "/api/generate", body).await;
        assert_eq!(status.as_u16(), code, "{said}");
    }
}

#[tokio::test]
async fn a_failed_video_is_not_linked() {
    let place = with_video();
    let program = &place.state.launch.program;
    fs::write(
        program,
        "#!/bin/sh\necho 'surefoot: no memory' >&2; exit 4\n",
    )
    .unwrap();
    let found = lines(&place, json!({ "run": "a", "prompt": "x" })).await;
    assert_eq!(
        found.last().unwrap(),
        &json!({ "end": true, "error": "no memory" })
    );
}

/// While a run uses the GPU, a prompt waits for somebody who says that it is worth the risk.
#[tokio::test]
async fn a_prompt_while_a_run_uses_the_gpu_needs_confirmation() {
    let place = with_model("echo here\n");
    let card = place.state.system.join("sys/class/drm/card0/device");
    fs::create_dir_all(&card).unwrap();
    fs::write(card.join("vendor"), "0x1002\n").unwrap();
    let other = place.runs.join("b");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("config.yaml"), "name: b\ndevice: auto\n").unwrap();
    // Who holds the lock on its folder is the run.
    let mut run = std::process::Command::new("sh")
        .args(["-c", "exec 9<\"$1\"; flock 9; exec sleep 60", "-"])
        .arg(&other)
        .spawn()
        .unwrap();
    let is_running = || place.state.queue.run_on_a_gpu().unwrap().is_some();
    let began = Instant::now();
    while !is_running() {
        assert!(began.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ask = |beside: bool| {
        send(
            &place,
            "POST",
            "/api/generate",
            json!({ "run": "a", "prompt": "x", "beside": beside }),
        )
    };
    let (status, said) = ask(false).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(
        said["error"].as_str().unwrap().contains("`b` uses the GPU"),
        "{said}"
    );
    assert_eq!(ask(true).await.0, StatusCode::OK);
    // On the CPU it is in nobody's way, and nobody is where there is no GPU.
    let _permit = place.state.generating.acquire().await.unwrap();
    drop(_permit);
    let cpu = json!({
        "ending": "running", "kind": "language", "device": "cpu", "expected_memory": {}, "commands": [],
    });
    fs::write(other.join("run.json"), cpu.to_string()).unwrap();
    assert_eq!(ask(false).await.0, StatusCode::OK);
    fs::remove_file(other.join("run.json")).unwrap();
    fs::remove_dir_all(&place.state.system).unwrap();
    let _permit = place.state.generating.acquire().await.unwrap();
    drop(_permit);
    assert_eq!(ask(false).await.0, StatusCode::OK);
    run.kill().unwrap();
    run.wait().unwrap();
}
