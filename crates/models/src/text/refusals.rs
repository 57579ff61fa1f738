//! What a chat template would leave out or write wrongly, and where it fails.

use std::borrow::Cow;

use serde_json::{Value as Json, json};

use super::chat::{ChatTemplate, Conversation, Message, not_plain};

/// What templates call the reasoning of a message.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl ChatTemplate {
    /// Refuses what the template does not support and would silently leave out.
    pub(super) fn check(&self, conversation: &Conversation, text: &str) -> Result<(), String> {
        let unknown = |word: &str| !self.source.contains(word);
        let has = |list: &Option<Vec<Json>>| list.as_ref().is_some_and(|list| !list.is_empty());
        for (key, list) in [
            ("tools", &conversation.tools),
            ("documents", &conversation.documents),
        ] {
            if has(list) && unknown(key) {
                return Err(format!(
                    "the record has `{key}`, but the model's chat template does not use them: \
                    remove the key, or put its content into a system message"
                ));
            }
        }
        for (name, _) in &conversation.template_arguments {
            if unknown(name) {
                return Err(format!(
                    "`chat_template_kwargs` sets `{name}`, but the model's chat template does \
                    not use it"
                ));
            }
        }
        for (turn, message) in conversation.messages.iter().enumerate() {
            let turn = turn + 1;
            let calls = message.fields().get("tool_calls").and_then(Json::as_array);
            if calls.is_some_and(|calls| !calls.is_empty()) && unknown("tool_calls") {
                return Err(format!(
                    "turn {turn} has `tool_calls`, but the model's chat template does not use \
                    them: use a model whose template does, or write the calls into `content`"
                ));
            }
            // Templates that know it may leave it out of what is not the last answer.
            let is_last = || {
                let later = &mut conversation.messages[turn..].iter();
                later.all(|later| !["user", "assistant"].contains(&later.role()))
            };
            if conversation.is_unread(turn, text)
                && (REASONING.iter().all(|word| unknown(word)) || is_last())
            {
                return Err(format!(
                    "turn {turn} has reasoning (`reasoning_content`, `thinking` or `reasoning`), but the \
                    model's chat template does not write it: remove the key, or write the reasoning into \
                    `content`"
                ));
            }
            // A template for plain text writes the list as Python would print it, or
            // nothing.
            let lost = message.parts().any(|part| !text.contains(part.trim()));
            if message.parts().next().is_some() && (lost || text.contains("[{'type'")) {
                return Err(not_plain(turn));
            }
        }
        Ok(())
    }

    /// The conversation as the template takes it: with the arguments of tool calls as objects where they are JSON in a
    /// string that the template would encode once more, or fails on.
    pub(super) fn with_arguments<'a>(
        &self,
        conversation: &'a Conversation,
    ) -> Cow<'a, Conversation> {
        let has_calls = |message: &Message| message.0.contains_key("tool_calls");
        if !conversation.messages.iter().any(has_calls) {
            return Cow::Borrowed(conversation);
        }
        let mut parsed = conversation.clone();
        let mut texts = Vec::new();
        for message in &mut parsed.messages {
            let calls = message.0.get_mut("tool_calls").and_then(Json::as_array_mut);
            for call in calls.into_iter().flatten() {
                let call = match call.get("function") {
                    Some(_) => &mut call["function"],
                    None => call,
                };
                let Some(arguments) = call.get_mut("arguments") else {
                    continue;
                };
                let Some(text) = arguments.as_str().map(str::to_owned) else {
                    continue;
                };
                if let Ok(object @ Json::Object(_)) = serde_json::from_str(&text) {
                    *arguments = object;
                    texts.push(Json::from(text).to_string());
                }
            }
        }
        let is_needed = || match self.run(&conversation.messages, conversation, false) {
            Ok(text) => texts.iter().any(|twice| text.contains(twice)),
            Err(_) => self.run(&parsed.messages, &parsed, false).is_ok(),
        };
        match !texts.is_empty() && is_needed() {
            true => Cow::Owned(parsed),
            false => Cow::Borrowed(conversation),
        }
    }

    /// `error` of the template with the turn, the key and the value that it fails on.
    pub(super) fn explained(&self, conversation: &Conversation, error: String) -> String {
        let messages = &conversation.messages;
        // One that does not end would not end many times.
        if error.contains("ran out of fuel") {
            return error;
        }
        let fails = |messages: &[Message]| {
            self.run(messages, conversation, false).err().as_ref() == Some(&error)
        };
        let Some(turn) = (0..messages.len()).find(|turn| fails(&messages[..=*turn])) else {
            return error;
        };
        let cures = |path: &[Step]| {
            substitutes(path).into_iter().any(|substitute| {
                let mut changed = messages[..=turn].to_vec();
                let mut message = Json::Object(std::mem::take(&mut changed[turn].0));
                replace(&mut message, path, substitute);
                let Json::Object(message) = message else {
                    return false;
                };
                changed[turn].0 = message;
                self.run(&changed, conversation, false).is_ok()
            })
        };
        let value = Json::Object(messages[turn].0.clone());
        let mut paths = Vec::new();
        collect(&value, &mut Vec::new(), &mut paths);
        // The smallest part that explains it; a role last, since most errors about other keys depend on it.
        let is_role = |path: &[Step]| matches!(path, [Step::Key(key)] if key == "role");
        paths.sort_by_key(|path| (is_role(path), std::cmp::Reverse(path.len())));
        let found = paths.into_iter().take(MAX_TRIED).find(|path| cures(path));
        let turn = turn + 1;
        let Some(path) = found else {
            return format!("turn {turn}: {error}");
        };
        let at = |value: Option<Json>, step: &Step| step.of(&value?).cloned();
        let value = path.iter().fold(Some(value), at).unwrap_or_default();
        let mut key = String::new();
        for step in &path {
            match step {
                Step::Key(name) if key.is_empty() => key.push_str(name),
                Step::Key(name) => key.push_str(&format!(".{name}")),
                Step::Item(index) => key.push_str(&format!("[{index}]")),
            }
        }
        let mut text = value.to_string();
        if text.chars().count() > MAX_VALUE {
            text = text.chars().take(MAX_VALUE).chain(['…']).collect();
        }
        format!("turn {turn}, `{key}` is {text}: {error}")
    }
}

/// Parts of a message that are tried.
const MAX_TRIED: usize = 200;

/// Characters of a value in an error.
const MAX_VALUE: usize = 60;

/// A step from a JSON value into what it contains.
#[derive(Debug, Clone)]
enum Step {
    Key(String),
    Item(usize),
}

impl Step {
    fn of<'a>(&self, value: &'a Json) -> Option<&'a Json> {
        match self {
            Self::Key(key) => value.get(key),
            Self::Item(index) => value.get(index),
        }
    }
}

/// The ways into a value and all that it contains.
fn collect(value: &Json, path: &mut Vec<Step>, paths: &mut Vec<Vec<Step>>) {
    let inner: Vec<(Step, &Json)> = match value {
        Json::Object(object) => {
            let keys = object.iter();
            keys.map(|(key, value)| (Step::Key(key.clone()), value))
                .collect()
        }
        Json::Array(list) => {
            let items = list.iter().enumerate();
            items
                .map(|(index, value)| (Step::Item(index), value))
                .collect()
        }
        _ => Vec::new(),
    };
    for (step, value) in inner {
        path.push(step);
        paths.push(path.clone());
        collect(value, path, paths);
        path.pop();
    }
}

/// What may stand in place of a value, to see whether the template then runs; `None` removes its key.
fn substitutes(path: &[Step]) -> Vec<Option<Json>> {
    match path.last() {
        Some(Step::Key(key)) if key == "role" => ["user", "assistant", "system", "tool"]
            .map(|role| Some(json!(role)))
            .into(),
        _ => vec![None, Some(json!("")), Some(json!({})), Some(json!([]))],
    }
}

fn replace(value: &mut Json, path: &[Step], substitute: Option<Json>) {
    let Some((step, rest)) = path.split_first() else {
        if let Some(substitute) = substitute {
            *value = substitute;
        }
        return;
    };
    match (step, value, rest.is_empty() && substitute.is_none()) {
        (Step::Key(key), Json::Object(object), true) => drop(object.shift_remove(key)),
        (Step::Item(index), Json::Array(list), true) => drop(list.remove(*index)),
        (Step::Key(key), value, false) => {
            if let Some(inner) = value.get_mut(key) {
                replace(inner, rest, substitute);
            }
        }
        (Step::Item(index), value, false) => {
            if let Some(inner) = value.get_mut(index) {
                replace(inner, rest, substitute);
            }
        }
        _ => {}
    }
}

impl Conversation {
    /// Whether the `turn`th message (from 1) has reasoning that is not in `text`.
    fn is_unread(&self, turn: usize, text: &str) -> bool {
        let reasoning = self.messages[turn - 1].fields().get("reasoning_content");
        let reasoning = reasoning.and_then(Json::as_str).unwrap_or_default().trim();
        !text.contains(reasoning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(messages: Json) -> Conversation {
        let messages = messages.as_array().unwrap().iter();
        let messages = messages.map(|message| Message::from_json(message.clone()).unwrap());
        Conversation::new(messages.collect())
    }

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new(source, Vec::new()).unwrap()
    }

    const TURNS: &str =
        "{% for m in messages %}[{{ m.role }}]\r\n{{ m.content }}{{ '<\r\n>' }}{% endfor %}";

    /// As in transformers, which the corpus in `tests/reference` compares.
    #[test]
    fn line_ends_of_windows_are_line_ends() {
        let chat = conversation(json!([{"role": "user", "content": "a\r\nb"}]));
        let text = template(TURNS).render(&chat, false).unwrap();
        assert_eq!(text, "[user]\na\r\nb<\n>");
    }

    fn call(arguments: Json) -> Conversation {
        conversation(
            json!([{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": arguments}}]}]),
        )
    }

    #[test]
    fn arguments_that_are_strings_are_encoded_once() {
        let body = |arguments: &str| {
            format!(
                "{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{arguments}{{% endfor %}}{{% endfor %}}"
            )
        };
        let encodes = body("{{ c.function.arguments | tojson }}");
        let writes = body(
            "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}",
        );
        let iterates =
            body("{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}");
        let text = json!("{\"city\":\"Paris\"}");
        for (source, arguments, expected) in [
            (&encodes, &text, "{\"city\": \"Paris\"}"),
            (&writes, &text, "{\"city\":\"Paris\"}"),
            (&iterates, &text, "city=Paris"),
            (&encodes, &json!({"a": 1}), "{\"a\": 1}"),
        ] {
            let found = template(source).render(&call(arguments.clone()), false);
            assert_eq!(found.as_deref(), Ok(expected), "{source}");
        }
        let error = template(&iterates)
            .render(&call(json!("nothing")), false)
            .unwrap_err();
        let place = "turn 2, `tool_calls[0].function.arguments` is \"nothing\"";
        assert!(error.starts_with(place), "{error}");
    }

    #[test]
    fn errors_name_the_turn_the_key_and_the_value() {
        let chat = conversation(json!([{"role": "user", "content": "a"},
            {"role": "narrator", "content": "b"}, {"role": "assistant", "content": "c"}]));
        let source = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}\
            {{ raise_exception('what?') }}{% endif %}{{ m.content }}{% endfor %}";
        let error = template(source).render(&chat, false).unwrap_err();
        assert!(
            error.starts_with("turn 2, `role` is \"narrator\": "),
            "{error}"
        );
        let source = "{% for m in messages %}{{ m.content + (m.name or '') }}{% endfor %}";
        let chat = conversation(json!([{"role": "user", "content": "a", "name": 12}]));
        let error = template(source).render(&chat, false).unwrap_err();
        assert!(error.starts_with("turn 1, `name` is 12: "), "{error}");
    }

    #[test]
    fn reasoning_that_no_template_writes_is_refused() {
        let chat = conversation(json!([{"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": " so "}]));
        let error = template(TURNS).render(&chat, false).unwrap_err();
        assert!(error.contains("turn 2 has reasoning"), "{error}");
        // Of earlier turns, templates leave it out.
        let last = "{% for m in messages %}{{ m.content }}{% if loop.last %}{{ m.reasoning_content }}\
            {% endif %}{% endfor %}";
        assert!(template(last).render(&chat, false).is_ok());
        let mut longer = chat.clone();
        longer.messages.push(Message::new("user", "c"));
        assert!(template(last).render(&longer, false).is_ok());
        assert!(template(TURNS).render(&longer, false).is_err());
    }
}
