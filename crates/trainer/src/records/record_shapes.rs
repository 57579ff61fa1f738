//! Converts records in the ShareGPT and Alpaca formats to conversations.

use serde_json::{Map, Value, json};

use super::reader::unpacked;

/// The messages of a record with `conversations` or an `instruction`, and the key that they come from; keys that
/// were used are removed from the record.
///
/// ShareGPT has `conversations` of `from` and `value` (or of `role` and `content`), Alpaca an `instruction`, an
/// `input` on a line of its own below it, and the `output`; `history` is a list of earlier questions and answers. Calls of
/// functions are turns of their own in ShareGPT, and answers with `tool_calls` for templates.
/// Both may have a `system` prompt. LLaMA-Factory reads them in the same way. The headings "### Instruction:" of the
/// original Alpaca are not added, since the model's chat template separates messages.
///
/// # Errors
/// A reason with the key, if a message has another form, if a speaker has no role in chat templates, or if there are
/// two system prompts.
pub(super) fn messages(
    object: &mut Map<String, Value>,
) -> Result<Option<(&'static str, Value)>, String> {
    let (key, mut turns) = if let Some(turns) = object.shift_remove("conversations") {
        let Value::Array(turns) = unpacked(turns) else {
            return Err("`conversations` must be a list of {from, value}".into());
        };
        let turns = share_gpt("conversations", turns)?;
        wrap_tools(object);
        ("conversations", turns)
    } else if object.contains_key("instruction") {
        ("instruction", alpaca(object)?)
    } else {
        return Ok(None);
    };
    if let Some(system) = optional(object, "system")? {
        if turns.iter().any(|turn| turn["role"] == "system") {
            return Err("there are two `system` prompts: a key and a turn".into());
        }
        turns.insert(0, turn("system", system));
    }
    Ok(Some((key, turns.into())))
}

/// The messages of a record whose `prompt` and `completion` are lists of them, as TRL has conversations.
///
/// # Errors
/// If the prompt has answers, since all answers of a conversation are learned.
pub(super) fn prompt_and_completion(
    object: &mut Map<String, Value>,
) -> Result<Option<Vec<Value>>, String> {
    let is_list = |key: &str| object.get(key).is_some_and(Value::is_array);
    if !(is_list("prompt") && is_list("completion")) {
        return Ok(None);
    }
    let mut list = |key: &str| match object.shift_remove(key) {
        Some(Value::Array(turns)) => with_roles(key, turns),
        _ => Ok(Vec::new()),
    };
    let (mut turns, answers) = (list("prompt")?, list("completion")?);
    if turns.iter().any(|turn| turn["role"] == "assistant") {
        return Err(
            "`prompt` has turns of the assistant, which would be learned like those of `completion`: write one list \
             `messages` if they should be"
                .into(),
        );
    }
    turns.extend(answers);
    Ok(Some(turns))
}

fn turn(role: &str, content: String) -> Value {
    json!({"role": role, "content": content})
}

/// `turns` with a role and a content each, where they have `from` and `value` as in ShareGPT.
pub(super) fn with_roles(name: &str, turns: Vec<Value>) -> Result<Vec<Value>, String> {
    let is_share_gpt = |turn: &Value| turn.get("role").is_none() && turn.get("from").is_some();
    match turns.iter().any(is_share_gpt) {
        true => share_gpt(name, turns),
        false => Ok(turns),
    }
}

/// Refuses a `role` that is another word for one that chat templates know.
pub(super) fn refuse_misnamed(found: &str) -> Result<(), String> {
    let known = role(&found.into()).or_else(|_| match found.to_lowercase().as_str() {
        "bot" | "ai" | "agent" => Ok("assistant"),
        other => role(&other.into()),
    });
    match known {
        // Some templates have names of their own for it.
        Ok("tool") | Err(_) => Ok(()),
        Ok(known) => Err(format!(
            "has the `role` {found:?}, which chat templates call `{known}`: write that"
        )),
    }
}

fn share_gpt(name: &str, turns: Vec<Value>) -> Result<Vec<Value>, String> {
    let convert = |(index, turn): (usize, Value)| {
        let refused = |reason: String| format!("turn {} of `{name}` {reason}", index + 1);
        let Value::Object(mut turn) = turn else {
            return Err(refused("is not an object".into()));
        };
        if let Some(speaker) = turn.shift_remove("from") {
            let value = turn.shift_remove("value");
            let Some(Value::String(content)) = value else {
                return Err(refused("has no text in `value`".into()));
            };
            let (role, content, calls) = match speaker.as_str() {
                Some("function_call") => (
                    "assistant",
                    String::new(),
                    Some(calls(&content).map_err(refused)?),
                ),
                _ => (role(&speaker).map_err(refused)?, content, None),
            };
            // Before other keys, as expected by a template that writes all of them.
            turn.shift_insert(0, "role".into(), role.into());
            turn.shift_insert(1, "content".into(), content.into());
            if let Some(calls) = calls {
                turn.shift_insert(2, "tool_calls".into(), calls);
            }
        }
        Ok(Value::Object(turn))
    };
    turns.into_iter().enumerate().map(convert).collect()
}

/// The `tool_calls` of a ShareGPT turn of calls: one or a list of them, as JSON.
fn calls(text: &str) -> Result<Value, String> {
    let calls = match serde_json::from_str(text) {
        Ok(Value::Array(calls)) => calls,
        Ok(call @ Value::Object(_)) => vec![call],
        _ => Vec::new(),
    };
    let is_call = |call: &Value| call["name"].is_string() && call.get("arguments").is_some();
    match !calls.is_empty() && calls.iter().all(is_call) {
        true => Ok(calls.into_iter().map(function).collect()),
        false => Err(format!(
            "is a `function_call`, whose `value` must be JSON with a `name` and `arguments`, or a list of such, not {text:?}"
        )),
    }
}

/// A function or a call of one, as chat templates have it.
fn function(what: Value) -> Value {
    json!({"type": "function", "function": what})
}

/// Of the `tools` of a ShareGPT record, those that are functions alone become what templates have.
fn wrap_tools(object: &mut Map<String, Value>) {
    let Some(tools) = object.get_mut("tools") else {
        return;
    };
    *tools = unpacked(tools.take());
    for tool in tools.as_array_mut().into_iter().flatten() {
        if tool["name"].is_string() && tool.get("type").is_none() {
            *tool = function(tool.take());
        }
    }
}

/// The role of a ShareGPT speaker.
fn role(speaker: &Value) -> Result<&'static str, String> {
    match speaker.as_str() {
        Some("human" | "user") => Ok("user"),
        Some("gpt" | "assistant" | "chatgpt" | "model") => Ok("assistant"),
        Some("system") => Ok("system"),
        Some("tool" | "observation" | "function_response") => Ok("tool"),
        _ => Err(format!(
            "is from {speaker}, whose role is unknown; the known ones are human, gpt, system, function_call, observation \
            and tool"
        )),
    }
}

fn alpaca(object: &mut Map<String, Value>) -> Result<Vec<Value>, String> {
    let mut turns = Vec::new();
    match object.shift_remove("history").map(unpacked) {
        None | Some(Value::Null) => {}
        Some(Value::Array(rounds)) => {
            for round in rounds {
                let [Value::String(question), Value::String(answer)] =
                    round.as_array().map_or(&[][..], Vec::as_slice)
                else {
                    return Err("`history` must be a list of [question, answer]".into());
                };
                turns.push(turn("user", question.clone()));
                turns.push(turn("assistant", answer.clone()));
            }
        }
        Some(_) => return Err("`history` must be a list of [question, answer]".into()),
    }
    let mut question = required(object, "instruction")?;
    if let Some(input) = optional(object, "input")? {
        question = format!("{question}\n{input}");
    }
    turns.push(turn("user", question));
    turns.push(turn("assistant", required(object, "output")?));
    Ok(turns)
}

fn required(object: &mut Map<String, Value>, key: &str) -> Result<String, String> {
    match object.shift_remove(key) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("`{key}` must be a string")),
        None => Err(format!("`{key}` is missing")),
    }
}

/// A text; absent, null and empty all mean none.
fn optional(object: &mut Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match object.shift_remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(_) => Err(format!("`{key}` must be a string")),
    }
}
