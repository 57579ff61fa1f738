//! Every key of records in TRL, Hugging Face's `messages` and the most common other formats, and how it is
//! treated.

use serde_json::{Map, Value, json};

use super::columns::Keys;
use super::reader::{Record, record};

/// How a key is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treatment {
    /// It becomes part of the record.
    Obeyed,
    /// It is listed in the warning of its file.
    Told,
    /// The record is refused, with the key in the reason.
    Refused,
}

use Treatment::{Obeyed, Refused, Told};

fn read(value: &Value) -> (Result<Record, String>, String) {
    let mut unread = Keys::default();
    let record = record(value.to_string().as_bytes(), &mut unread);
    (record, unread.list().unwrap_or_default())
}

/// Compares the record `with` the `key` to the same record `without` it.
fn assert_treated(treatment: Treatment, key: &str, without: &Value, with: &Value) {
    let (plain, _) = read(without);
    let (record, told) = read(with);
    let named = format!("`{key}`");
    match treatment {
        Obeyed => {
            assert_ne!(
                record.clone().unwrap(),
                plain.unwrap_or(Record::Text(String::new())),
                "{key}"
            );
            assert!(!told.contains(&named), "{told}");
        }
        Told => {
            assert_eq!(record.unwrap(), plain.unwrap(), "{key}");
            assert!(
                told.contains(&named) || told.contains(&format!("messages[].{key}")),
                "{told}"
            );
        }
        Refused => {
            let reason = record.unwrap_err();
            assert!(reason.contains(&named), "{key}: {reason}");
        }
    }
}

fn with(record: &Value, key: &str, value: Value) -> Value {
    let mut object: Map<String, Value> = record.as_object().unwrap().clone();
    object.insert(key.to_owned(), value);
    object.into()
}

#[test]
fn each_key_of_a_record_is_obeyed_told_or_refused() {
    let chat = json!({"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]});
    let pair = json!({"prompt": "a", "completion": "b"});
    let text = json!({"text": "a"});
    let none = json!({});
    let shared = json!([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]);
    let share_gpt = json!({"conversations": shared});
    let alpaca = json!({"instruction": "a", "input": "", "output": "b"});
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for (record, key, value, treatment) in [
        (&none, "text", json!("b"), Obeyed),
        (&none, "text", json!(["b"]), Refused),
        (&none, "text", json!(7), Refused),
        (&none, "text", json!(null), Refused),
        (&pair, "prompt", json!("c"), Obeyed),
        (
            &pair,
            "prompt",
            json!([{"role": "user", "content": "c"}]),
            Refused,
        ),
        (&pair, "completion", json!("c"), Obeyed),
        (&pair, "completion", json!(null), Refused),
        (&none, "messages", chat["messages"].clone(), Obeyed),
        (&none, "messages", json!("hello"), Refused),
        (&chat, "tools", tool, Obeyed),
        (&chat, "tools", json!(["f"]), Refused),
        (&chat, "documents", json!([{"title": "t"}]), Obeyed),
        (&chat, "documents", json!(7), Refused),
        (
            &chat,
            "chat_template_kwargs",
            json!({"enable_thinking": false}),
            Obeyed,
        ),
        (&chat, "chat_template_kwargs", json!(7), Refused),
        // Preferences, and data that is tokenised already.
        (&none, "chosen", json!("c"), Refused),
        (&none, "rejected", json!("c"), Refused),
        (&text, "label", json!(true), Told),
        (&text, "score", json!(0.5), Told),
        (&none, "input_ids", json!([1, 2]), Refused),
        (&text, "attention_mask", json!([1, 1]), Told),
        (&text, "completion_mask", json!([0, 1]), Told),
        (&text, "assistant_masks", json!([0, 1]), Told),
        // Other names for a conversation.
        (&none, "conversations", shared.clone(), Obeyed),
        (&none, "conversations", json!(shared.to_string()), Obeyed),
        (&none, "conversations", json!([]), Refused),
        (&none, "conversations", json!("hello"), Refused),
        (&none, "conversations", json!([{"from": "gpt"}]), Refused),
        (
            &none,
            "conversations",
            json!([{"from": "function_call", "value": "c"}]),
            Refused,
        ),
        (&share_gpt, "system", json!("c"), Obeyed),
        (&share_gpt, "system", json!(7), Refused),
        (&share_gpt, "tools", json!([{"type": "function"}]), Obeyed),
        (&share_gpt, "id", json!("identity_0"), Told),
        (&alpaca, "instruction", json!("c"), Obeyed),
        (&alpaca, "instruction", json!(null), Refused),
        (&alpaca, "input", json!("c"), Obeyed),
        (&alpaca, "input", json!(["c"]), Refused),
        (&alpaca, "output", json!("c"), Obeyed),
        (&alpaca, "output", json!(7), Refused),
        (&alpaca, "system", json!("c"), Obeyed),
        (&alpaca, "history", json!([["q", "a"]]), Obeyed),
        (&alpaca, "history", json!([["q"]]), Refused),
        (&alpaca, "category", json!("c"), Told),
        (&none, "output", json!("c"), Refused),
        (&chat, "system", json!("c"), Told),
        (&chat, "functions", json!([]), Told),
        (&chat, "parallel_tool_calls", json!(true), Told),
        (&chat, "images", json!(["a.png"]), Told),
        (&text, "meta", json!({"id": 1}), Told),
        (&pair, "text", json!("c"), Told),
        (&chat, "text", json!("c"), Told),
    ] {
        assert_treated(treatment, key, record, &with(record, key, value));
    }
}

#[test]
fn a_completion_without_a_prompt_is_refused() {
    let reason = read(&json!({"completion": "c"})).0.unwrap_err();
    assert!(reason.contains("`prompt` is missing"), "{reason}");
}

#[test]
fn each_key_of_a_turn_is_obeyed_told_or_refused() {
    let of = |turn: Value| json!({"messages": [{"role": "user", "content": "a"}, turn]});
    let turn = json!({"role": "assistant", "content": "b"});
    let call = json!([{"type": "function", "function": {"name": "f", "arguments": {}}}]);
    for (key, value, treatment) in [
        ("role", json!(7), Refused),
        ("content", json!("c"), Obeyed),
        ("content", json!([{"type": "text", "text": "c"}]), Obeyed),
        (
            "content",
            json!([{"type": "image", "url": "a.png"}]),
            Refused,
        ),
        ("content", json!(7), Refused),
        ("name", json!("ada"), Obeyed),
        ("tool_calls", call, Obeyed),
        ("tool_calls", json!("f"), Refused),
        ("tool_call_id", json!("1"), Obeyed),
        ("tools", json!([]), Obeyed),
        ("documents", json!([]), Obeyed),
        ("reasoning_content", json!("hm"), Obeyed),
        ("reasoning", json!("hm"), Obeyed),
        ("thinking", json!("hm"), Obeyed),
        ("weight", json!(0), Refused),
    ] {
        assert_treated(
            treatment,
            key,
            &of(turn.clone()),
            &of(with(&turn, key, value)),
        );
    }
    // The template gets these all the same, as in transformers.
    for key in [
        "function_call",
        "refusal",
        "audio",
        "annotations",
        "train",
        "from",
        "value",
    ] {
        let (_, told) = read(&of(with(&turn, key, json!("c"))));
        assert!(told.contains(&format!("messages[].{key}")), "{key}: {told}");
    }
    for other in [
        json!({"content": "b"}),
        json!({"role": "assistant"}),
        json!("b"),
    ] {
        assert!(read(&of(other)).0.is_err());
    }
}

#[test]
fn share_gpt_and_alpaca_conversations_equal_messages() {
    let messages = read(&json!({"messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
        {"role": "user", "content": "do\nthis"}, {"role": "assistant", "content": "done"}]}))
    .0
    .unwrap();
    for same in [
        json!({"system": "s", "instruction": "do", "input": "this", "output": "done",
               "history": [["q", "a"]]}),
        json!({"conversations": [
            {"from": "system", "value": "s"}, {"from": "human", "value": "q"},
            {"from": "gpt", "value": "a"}, {"from": "user", "value": "do\nthis"},
            {"from": "chatgpt", "value": "done"}]}),
        json!({"system": "s", "conversations": [
            {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
            {"from": "human", "value": "do\nthis"}, {"from": "model", "value": "done"}]}),
    ] {
        assert_eq!(read(&same), (Ok(messages.clone()), String::new()), "{same}");
    }
}

/// Function calls of LLaMA-Factory's ShareGPT are those of `messages`.
#[test]
fn share_gpt_calls_equal_tool_calls() {
    let call = json!({"name": "add", "arguments": {"a": 2, "b": 2}});
    let function = json!({"name": "add", "description": "Adds.", "parameters": {"type": "object"}});
    let wrapped = |what: &Value| json!({"type": "function", "function": what});
    let with_calls = |calls: &[&Value]| {
        let calls: Vec<_> = calls.iter().map(|call| wrapped(call)).collect();
        json!({"tools": [wrapped(&function)], "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "4"}, {"role": "assistant", "content": "a"}]})
    };
    let shared = |value: &Value, tools: Value| {
        json!({"tools": tools, "conversations": [
            {"from": "human", "value": "q"}, {"from": "function_call", "value": value.to_string()},
            {"from": "observation", "value": "4"}, {"from": "gpt", "value": "a"}]})
    };
    let tools = json!([function]);
    for (ours, same) in [
        (with_calls(&[&call]), shared(&call, tools.clone())),
        (
            with_calls(&[&call]),
            shared(&call, json!([wrapped(&function)])),
        ),
        (
            with_calls(&[&call, &call]),
            shared(&json!([call, call]), tools.to_string().into()),
        ),
    ] {
        assert_eq!(read(&same), (read(&ours).0, String::new()), "{same}");
    }
    let none = json!({"conversations": [{"from": "gpt", "value": "a"}]});
    assert_eq!(read(&with(&none, "tools", json!(""))), read(&none));
}

#[test]
fn incomplete_records_are_refused_with_the_key() {
    for (record, reason) in [
        (json!({"instruction": "a"}), "`output` is missing"),
        (
            json!({"system": "s", "conversations": [
                {"from": "system", "value": "t"}, {"from": "gpt", "value": "a"}]}),
            "two `system` prompts",
        ),
        (
            json!({"conversations": [{"from": "human", "value": "a"}]}),
            "`conversations` has no turn of the assistant",
        ),
        (
            json!({"conversations": [{"from": "gpt", "value": "a", "weight": 0}]}),
            "turn 1 of `conversations` has a `weight`",
        ),
        (
            json!({"conversations": [{"from": "function_call", "value": "add(2, 2)"}]}),
            "turn 1 of `conversations` is a `function_call`, whose `value` must be JSON",
        ),
        (
            json!({"conversations": [{"from": "function_call", "value": "[]"}]}),
            "must be JSON with a `name` and `arguments`",
        ),
    ] {
        let refused = read(&record).0.unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn columns_are_renamed_as_the_config_says() {
    let columns = |pairs: &[(&str, &str)]| {
        let owned = |(ours, theirs): &(&str, &str)| ((*ours).to_owned(), (*theirs).to_owned());
        Keys::new(&pairs.iter().map(owned).collect())
    };
    let read = |value: &Value, keys: &mut Keys| record(value.to_string().as_bytes(), keys);
    let question = json!({"question": "a", "answer": "b", "id": 3});
    let mut keys = columns(&[("prompt", "question"), ("completion", "answer")]);
    let expected = Record::Completion {
        prompt: "a".into(),
        completion: "b".into(),
    };
    assert_eq!(read(&question, &mut keys).unwrap(), expected);
    assert_eq!(keys.list().unwrap(), "`id` (once)");
    let swapped = json!({"prompt": "b", "completion": "a"});
    let mut keys = columns(&[("prompt", "completion"), ("completion", "prompt")]);
    assert_eq!(read(&swapped, &mut keys).unwrap(), expected);
    let mut keys = columns(&[("text", "body")]);
    let both = json!({"text": "a", "body": "b"});
    let reason = read(&both, &mut keys).unwrap_err();
    assert!(reason.contains("reads as `text`"), "{reason}");
}

#[test]
fn messages_may_have_share_gpt_turns_and_misnamed_roles_are_refused() {
    let messages = read(&json!({"messages": [
        {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}));
    let turns = json!({"messages": [
        {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]});
    assert_eq!(read(&turns), messages);
    for (role, reason) in [
        (
            "human",
            "turn 1 of `messages` has the `role` \"human\", which chat templates call `user`",
        ),
        ("GPT", "call `assistant`"),
        ("bot", "call `assistant`"),
        ("User", "call `user`"),
    ] {
        let record = json!({"messages": [
            {"role": role, "content": "q"}, {"role": "assistant", "content": "a"}]});
        let refused = read(&record).0.unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
    let alone = json!({"messages": [{"role": "user", "content": "q"}]});
    let refused = read(&alone).0.unwrap_err();
    assert!(refused.contains("its roles are [\"user\"]"), "{refused}");
}

#[test]
fn records_that_teach_to_say_nothing_are_known() {
    for (record, is_empty) in [
        (json!({"text": "a"}), false),
        (json!({"text": " "}), true),
        (json!({"prompt": "a", "completion": "\n"}), true),
        (
            json!({"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": "b"}]}),
            false,
        ),
        (
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}),
            true,
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}]}),
            false,
        ),
    ] {
        assert_eq!(
            read(&record).0.unwrap().has_empty_answer(),
            is_empty,
            "{record}"
        );
    }
}
