//! Compares chat templates with transformers: `tests/reference/templates.py` recorded its output for each of fifteen
//! kinds of conversation.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value as Json;

use super::chat::{ChatTemplate, Conversation, Message};

/// The script's time: 3 February 2026, 04:05:06.
fn fixed_time() -> jiff::Zoned {
    let time = jiff::civil::date(2026, 2, 3).at(4, 5, 6, 0);
    time.to_zoned(jiff::tz::TimeZone::UTC).unwrap()
}

fn reference() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference")
}

fn conversations() -> BTreeMap<String, Conversation> {
    let text = std::fs::read_to_string(reference().join("conversations.json")).unwrap();
    let shapes: BTreeMap<String, Json> = serde_json::from_str(&text).unwrap();
    let conversation = |shape: &Json| Conversation {
        messages: shape["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| Message::from_json(message.clone()).unwrap())
            .collect(),
        tools: shape["tools"].as_array().cloned(),
        ..Conversation::default()
    };
    shapes
        .iter()
        .map(|(name, shape)| (name.clone(), conversation(shape)))
        .collect()
}

/// The differences from the recorded file, and how many texts were compared.
fn differences(path: &Path) -> (usize, Vec<String>) {
    let text = std::fs::read_to_string(path).unwrap();
    let templates: BTreeMap<String, Json> = serde_json::from_str(&text).unwrap();
    let conversations = conversations();
    let special = ["bos", "eos", "pad", "unk"].into_iter();
    let special = special.zip(["<s>", "</s>", "<pad>", "<unk>"]);
    let special: Vec<_> = special
        .map(|(name, token)| (format!("{name}_token"), token.to_owned()))
        .collect();
    let (mut compared, mut wrong) = (0, Vec::new());
    for (name, entry) in templates {
        let source = entry["template"].as_str().unwrap();
        let template = ChatTemplate::at(source, special.clone(), fixed_time());
        for (shape, conversation) in &conversations {
            let case = &entry["cases"][shape];
            for (key, prompt) in [("whole", false), ("asked", true)] {
                compared += 1;
                let ours = template
                    .as_ref()
                    .map_err(Clone::clone)
                    .and_then(|template| {
                        template.run(&conversation.messages, conversation, prompt)
                    });
                let plain = |text: &String| text.replace(['\u{fdd1}', '\u{fdd2}'], "");
                match (case[key].as_str(), ours.as_ref().map(plain)) {
                    (None, Err(_)) => {}
                    (Some(theirs), Ok(ours)) if theirs == ours => {}
                    (theirs, Err(error)) => {
                        let length = theirs.unwrap_or_default().len();
                        wrong.push(format!(
                            "{name}, {shape}, {key}: {length} bytes, ours {error}"
                        ));
                    }
                    (None, Ok(_)) => wrong.push(format!("{name}, {shape}, {key}: not refused")),
                    (Some(theirs), Ok(ours)) => {
                        let mut pairs = theirs.char_indices().zip(ours.chars());
                        let at = pairs
                            .find(|((_, a), b)| a != b)
                            .map_or(0, |((at, _), _)| at);
                        let at = theirs.floor_char_boundary(at.saturating_sub(40));
                        let part = |text: &str| {
                            text.get(at..)
                                .map(|t| t.chars().take(90).collect::<String>())
                        };
                        let (theirs, ours) = (part(theirs), part(&ours));
                        wrong.push(format!(
                            "{name}, {shape}, {key}:\n  theirs {theirs:?}\n  ours   {ours:?}"
                        ));
                    }
                }
            }
            if let (Some(spans), Ok(template)) = (case["spans"].as_array(), &template) {
                let whole = template.run(&conversation.messages, conversation, false);
                let whole = whole.unwrap_or_default();
                let (text, ours) = super::chat::tagged_answers(&whole);
                let characters = |at: usize| text[..at].chars().count() as u64;
                let ours: Vec<[u64; 2]> = ours
                    .iter()
                    .map(|span| [characters(span.start), characters(span.end)])
                    .collect();
                let theirs: Vec<[u64; 2]> = serde_json::from_value(spans.clone().into()).unwrap();
                if ours != theirs {
                    wrong.push(format!("{name}, {shape}: spans {theirs:?}, ours {ours:?}"));
                }
            }
        }
    }
    (compared, wrong)
}

#[test]
fn templates_are_rendered_as_transformers_renders_them() {
    let (compared, wrong) = differences(&reference().join("golden/templates.json"));
    assert!(compared >= 15 * 2 * 10, "only {compared} texts");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is learned of a conversation with channels: each message of the assistant from its channel to its end.
#[test]
fn answers_have_the_channels_and_the_end_that_the_template_gives_them() {
    let source = std::fs::read_to_string(reference().join("templates/channels.jinja")).unwrap();
    let template = ChatTemplate::at(&source, Vec::new(), fixed_time()).unwrap();
    let answers = |conversation: &Conversation| -> Vec<String> {
        let (text, answers) = template.render_answers(conversation).unwrap();
        answers
            .into_iter()
            .map(|answer| text[answer].to_owned())
            .collect()
    };
    let conversations = conversations();
    let found = answers(&conversations["reasoning beside the answer"]);
    let last = "<|channel|>analysis<|message|>Four\nand three.\n<|end|><|start|>assistant<|channel|>final\
                <|message|>7.<|return|>";
    assert_eq!(found, ["<|channel|>final<|message|>4.<|end|>", last]);
    let found = answers(&conversations["several turns"]);
    let ends: Vec<_> = found.iter().map(|text| text.rsplit("<|").next()).collect();
    assert_eq!(ends, ["end|>", "end|>", "return|>"].map(Some));
    // What was thought before a call is left out once an answer follows.
    let mut called = conversations["a tool is called"].clone();
    let at = |role: &str| {
        called
            .messages
            .iter()
            .position(|message| message.role() == role)
    };
    let (call, answer) = (at("assistant").unwrap(), called.messages.len() - 1);
    let mut fields = called.messages[call].fields().clone();
    fields.remove("content");
    fields.insert("thinking".into(), "A tool knows.".into());
    called.messages[call] = Message::from_json(fields.into()).unwrap();
    let found = answers(&called);
    assert!(
        found[0].starts_with(" to=functions.get_weather<|channel|>commentary json<|message|>{")
    );
    assert!(
        found[0].ends_with("}<|call|>") && found[1].ends_with("<|return|>"),
        "{found:?}"
    );
    called.messages.truncate(answer);
    let found = answers(&called);
    assert!(
        found[0].starts_with("<|channel|>analysis<|message|>A tool knows.<|end|>"),
        "{found:?}"
    );
}

/// What a tool answers within the model's turn is not learned; thoughts are, in the last turn.
#[test]
fn answers_go_on_behind_what_a_tool_says_in_their_turn() {
    let source = std::fs::read_to_string(reference().join("templates/turns.jinja")).unwrap();
    let template = ChatTemplate::at(&source, Vec::new(), fixed_time()).unwrap();
    let conversations = conversations();
    for (name, expected) in [
        (
            "a tool is called",
            [
                "<|tool_call>call:get_weather{days:2,place:<|\"|>Zürich<|\"|>}<tool_call|>",
                "Yes, it is.<turn|>\n",
            ],
        ),
        (
            "reasoning beside the answer",
            [
                "4.<turn|>\n",
                "<|channel>thought\nFour\nand three.\n<channel|>7.<turn|>\n",
            ],
        ),
    ] {
        let (text, answers) = template.render_answers(&conversations[name]).unwrap();
        let found: Vec<_> = answers.into_iter().map(|answer| &text[answer]).collect();
        assert_eq!(found, expected, "{name}");
    }
}

/// Templates that only one side refuses: `|safe` with something concatenated to it, refused here; and
/// `tojson` of the result of `map`, refused by Python.
const KNOWN: [&str; 2] = ["functionary-medium-v3.1", "llama-cpp-deepseek-r1"];

/// `SUREFOOT_CHAT_TEMPLATES` names the file that the script wrote for the templates of published models.
#[test]
fn templates_of_published_models_are_rendered_as_transformers_renders_them() {
    let Some(path) = std::env::var_os("SUREFOOT_CHAT_TEMPLATES") else {
        return;
    };
    let (compared, mut wrong) = differences(Path::new(&path));
    wrong.retain(|difference| !KNOWN.iter().any(|known| difference.contains(known)));
    assert!(
        wrong.is_empty(),
        "{} of {compared} differ\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
