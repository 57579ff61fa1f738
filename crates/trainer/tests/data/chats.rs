//! Data that are chats: what a model that learns them is asked on the way, and when its template says the time.

use super::*;

/// Forty chats, and a model for them with this template; returns the setting that names it.
fn chats(template: &str) -> (Place, String) {
    let place = Place::new(1);
    let lines: String = (0..40)
        .map(|n| {
            format!(
                "{{\"messages\": [{{\"role\": \"user\", \"content\": \"on {n}\"}}, \
                 {{\"role\": \"assistant\", \"content\": \"the 42.\"}}]}}\n"
            )
        })
        .collect();
    fs::write(place.path("data.jsonl"), lines).unwrap();
    let model = place.path("model");
    let target = golden("llama-grouped");
    fs::create_dir(&model).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(target.join(file), model.join(file)).unwrap();
    }
    models::pretrained::Pretrained::open(&golden("llama-grouped.gguf"))
        .unwrap()
        .tokenizer
        .save(model.join("tokenizer.json"), false)
        .unwrap();
    fs::write(model.join("chat_template.jinja"), template).unwrap();
    let name = format!("model.name_or_path={}", model.display());
    (place, name)
}

#[test]
fn samples_of_a_model_that_learns_chats_answer_in_its_template() {
    let (place, name) = chats(
        "{% for message in messages %}{% if message['content'] == 'never' %}{{ raise_exception('refused') }}{% endif %}\
         on {{ message['content'] }}{% endfor %}{% if add_generation_prompt %} the{% endif %}",
    );
    let settings = [
        &*name,
        "data.packing=false",
        "sample.max_new_tokens=64",
        "sample.temperature=0",
    ];
    place.run("asked", &settings);
    let records = fs::read_to_string(place.path("runs/asked/metrics.jsonl")).unwrap();
    let records = records
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let samples: Vec<_> = records
        .filter(|record| record["kind"] == "samples")
        .collect();
    let [first, .., last] = samples.as_slice() else {
        panic!("{samples:?}")
    };
    for each in [first, last] {
        // The question of the first chat.
        assert_eq!(each["samples"][0]["prompt"], "on 0");
        assert_eq!(each["samples"][1], serde_json::Value::Null);
    }
    let length = |each: &serde_json::Value| each["samples"][0]["text"].as_str().unwrap().len();
    assert_eq!(first["step"], 0);
    assert!(length(first) < length(last), "{first} {last}");
    // What the config asks is asked in the template, too.
    let refused = [&settings[..], &["sample.prompts=[never]"]].concat();
    let told = place.refused(&refused);
    assert!(
        told.contains("a sample's prompt") && told.contains("refused"),
        "{told}"
    );
}

/// The template says the time to the microsecond: every encoding of the data is another one.
#[test]
fn a_template_that_writes_the_date_resumes_with_that_of_the_first_day() {
    let (place, name) = chats(
        "{{ strftime_now('%H %M %S %f') }}{% for message in messages %}on {{ message['content'] }}{% endfor %}",
    );
    let settings = [
        &*name,
        "data.packing=false",
        "per_device_train_batch_size=3",
        "data.block_size=128",
    ];
    let stop = Stop::default();
    place
        .watched("cut", &settings, &mut StopAt(2, stop.clone()), &stop)
        .unwrap();
    let state = place.path("runs/cut/checkpoints/step-000002/state.json");
    let read = |path: &Path| -> serde_json::Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    };
    let before = read(&state)["data"].clone();
    assert!(before["moment"].is_string(), "{before}");
    let resumed = [&settings[..], &["resume_from_checkpoint=latest"]].concat();
    assert_eq!(place.run("cut", &resumed).steps, 4);
    let after = read(&place.path("runs/cut/checkpoints/step-000004/state.json"));
    for key in ["moment", "fingerprint"] {
        assert_eq!(before[key], after["data"][key]);
    }
    // A run that begins later is another one.
    place.run("later", &settings);
    let later = read(&place.path("runs/later/checkpoints/step-000004/state.json"));
    assert_ne!(later["data"]["fingerprint"], before["fingerprint"]);
}
