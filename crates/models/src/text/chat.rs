//! Conversations, and a model's chat template: the Jinja program that converts one to text.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use jiff::Zoned;
use minijinja::value::Serde;
use minijinja::{Environment, Value};
use serde_json::{Map, Value as Json};

use super::jinja::{self, GENERATION};
use super::refusals::REASONING;
use super::template_source::has_generation_tags;

/// One message of a conversation: an object with a `role` and other keys that the template reads, such as
/// `content`, `tool_calls`, `name` or `reasoning_content`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message(pub(super) Map<String, Json>);

/// A conversation, and the other inputs of its template.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conversation {
    /// The messages, in order.
    pub messages: Vec<Message>,
    /// The tools that the assistant may call, as JSON schemas.
    pub tools: Option<Vec<Json>>,
    /// The documents that the assistant may read.
    pub documents: Option<Vec<Json>>,
    /// Further template variables, such as `enable_thinking`.
    pub template_arguments: Map<String, Json>,
}

impl Message {
    /// A message of `role` with this `content`.
    pub fn new(role: &str, content: &str) -> Self {
        let entry = |(key, text): (&str, &str)| (key.to_owned(), Json::from(text));
        Self(
            [("role", role), ("content", content)]
                .map(entry)
                .into_iter()
                .collect(),
        )
    }

    /// A message from a record.
    ///
    /// Keys without a value are dropped, and reasoning is available under all of its names, as in
    /// `apply_chat_template` of transformers.
    ///
    /// # Errors
    /// A reason with the key, if it is not a message that a template for text can render.
    pub fn from_json(value: Json) -> Result<Self, String> {
        let Json::Object(mut message) = value else {
            return Err("is not an object".into());
        };
        message.retain(|_, value| !value.is_null());
        match message.get("role") {
            Some(Json::String(_)) => {}
            Some(_) => return Err("`role` must be a string".into()),
            None => return Err("`role` is missing".into()),
        }
        match message.get("content") {
            None | Some(Json::String(_)) => {}
            Some(Json::Array(parts)) => parts.iter().try_for_each(text_part)?,
            Some(_) => return Err("`content` must be a string or a list of parts".into()),
        }
        match message.get("tool_calls") {
            None => {}
            Some(Json::Array(calls)) if calls.iter().all(Json::is_object) => {}
            Some(_) => return Err("`tool_calls` must be a list of objects".into()),
        }
        if message.get("content").is_none() && message.get("tool_calls").is_none() {
            return Err("has neither `content` nor `tool_calls`".into());
        }
        let reasoning = REASONING.iter().find_map(|key| message.get(*key).cloned());
        if let Some(reasoning) = reasoning {
            if !message.contains_key("thinking") {
                message.shift_insert(0, "thinking".into(), reasoning.clone());
            }
            message.insert("reasoning_content".into(), reasoning);
        }
        Ok(Self(message))
    }

    /// The speaker: `system`, `user`, `assistant`, `tool`, or another role of the template.
    pub fn role(&self) -> &str {
        self.text("role").unwrap_or_default()
    }

    /// The keys and values of the message.
    pub fn fields(&self) -> &Map<String, Json> {
        &self.0
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.as_str()
    }

    /// The texts of a content that consists of parts.
    pub(super) fn parts(&self) -> impl Iterator<Item = &str> {
        let parts = self.0.get("content").and_then(Json::as_array);
        parts
            .into_iter()
            .flatten()
            .filter_map(|part| part["text"].as_str())
    }

    /// The same message with its content as one text.
    fn joined(&self) -> Self {
        let mut joined = self.0.clone();
        if self.parts().next().is_some() {
            let text: String = self.parts().collect();
            joined.insert("content".into(), text.into());
        }
        Self(joined)
    }

    /// The same message without what the assistant thought.
    fn without_thoughts(&self) -> Self {
        let mut said = self.0.clone();
        said.retain(|key, _| !REASONING.contains(&key.as_str()));
        Self(said)
    }

    /// The same message with `mark` in its content at byte `at`, if the content is a text.
    fn marked(&self, at: fn(&str) -> usize) -> Option<Self> {
        let mut marked = self.0.clone();
        let content = marked.get_mut("content")?;
        let text = match content {
            Json::String(text) => text,
            Json::Array(parts) => match parts.last_mut()?.get_mut("text")? {
                Json::String(text) => text,
                _ => return None,
            },
            _ => return None,
        };
        let at = at(text);
        text.insert_str(at, MARK);
        Some(Self(marked))
    }
}

/// The error for a content in parts, if the template supports plain text only.
pub(super) fn not_plain(turn: usize) -> String {
    format!(
        "the `content` of turn {turn} is a list of parts, but the model's chat template supports plain \
        text only: join the parts into one string"
    )
}

/// Models here read text only.
fn text_part(part: &Json) -> Result<(), String> {
    match (part["type"].as_str(), &part["text"]) {
        (Some("text") | None, Json::String(_)) => Ok(()),
        (Some("text"), _) => Err("`content` has a part of type `text` without a `text`".into()),
        (Some(other), _) => Err(format!(
            "`content` has a part of type `{other}`, but only `text` can be read here"
        )),
        (None, _) => Err("`content` has a part without a `type`".into()),
    }
}

impl Conversation {
    /// A conversation with these messages and nothing else.
    pub fn new(messages: Vec<Message>) -> Self {
        Self {
            messages,
            ..Self::default()
        }
    }
}

/// A chat template with its special tokens.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The time for `strftime_now`.
    now: Zoned,
    pub(super) source: String,
    /// `bos_token`, `eos_token` and others that the tokenizer names.
    special_tokens: Vec<(String, String)>,
    /// Whether it marks what the assistant says with tags.
    tagged: bool,
}

impl ChatTemplate {
    /// Compiles a template that may use these special tokens, by their names in `tokenizer_config.json`. For
    /// `strftime_now` the time is that of compilation, for all
    /// conversations.
    pub fn new(source: &str, special_tokens: Vec<(String, String)>) -> Result<Self, String> {
        Self::at(source, special_tokens, Zoned::now())
    }

    pub(super) fn at(
        source: &str,
        special_tokens: Vec<(String, String)>,
        now: Zoned,
    ) -> Result<Self, String> {
        // Jinja's lexer does the same, within its literals too.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let environment = jinja::environment(&source, now.clone()).map_err(objection)?;
        Ok(Self {
            environment,
            now,
            special_tokens,
            tagged: has_generation_tags(&source),
            source,
        })
    }

    /// The time that the template reads, if it does.
    pub(super) fn moment(&self) -> Option<&Zoned> {
        self.source.contains("strftime_now").then_some(&self.now)
    }

    /// The same template at another time.
    pub(super) fn moved_to(&self, now: Zoned) -> Result<Self, String> {
        Self::at(&self.source, self.special_tokens.clone(), now)
    }

    /// The text of a conversation; with `add_generation_prompt`, up to the start of the assistant's
    /// next message.
    ///
    /// # Errors
    /// If the template raises an error, or would silently leave out tools, tool calls or content in
    /// parts.
    pub fn render(
        &self,
        conversation: &Conversation,
        add_generation_prompt: bool,
    ) -> Result<String, String> {
        let conversation = &*self.with_arguments(conversation);
        let text = self.run(&conversation.messages, conversation, add_generation_prompt);
        let text = text.map_err(|error| self.explained(conversation, error))?;
        self.check(conversation, &text)?;
        Ok(text.replace([GENERATION.0, GENERATION.1], ""))
    }

    /// The text that transformers would render, with [`GENERATION`] around tagged parts.
    pub(super) fn run(
        &self,
        messages: &[Message],
        conversation: &Conversation,
        add_generation_prompt: bool,
    ) -> Result<String, String> {
        let turns: Vec<_> = messages.iter().map(Message::fields).collect();
        let given = |list: &Option<Vec<Json>>| match list {
            Some(list) => Value::from(Serde(list)),
            None => Value::from(()),
        };
        let arguments = conversation.template_arguments.iter();
        let tokens = self.special_tokens.iter();
        let context = tokens
            .map(|(name, token)| (name.clone(), Value::from(token.as_str())))
            .chain(arguments.map(|(name, value)| (name.clone(), Value::from(Serde(value)))))
            .chain([
                ("messages".to_owned(), Value::from(Serde(turns))),
                ("tools".to_owned(), given(&conversation.tools)),
                ("documents".to_owned(), given(&conversation.documents)),
                (
                    "add_generation_prompt".to_owned(),
                    Value::from(add_generation_prompt),
                ),
            ]);
        let context = Value::from(context.collect::<BTreeMap<String, Value>>());
        // The engine panics on a few templates, such as `''[::-1]` in version 3.0.5.
        let render = AssertUnwindSafe(|| {
            let template = self.environment.get_template("chat");
            template.and_then(|template| template.render(context))
        });
        match catch_unwind(render) {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(error)) => {
                // A template for plain text fails on a list with a message of the engine.
                let plain: Vec<_> = messages.iter().map(Message::joined).collect();
                let first = messages.iter().zip(&plain).position(|(a, b)| a != b);
                match first {
                    Some(turn)
                        if self
                            .run(&plain, conversation, add_generation_prompt)
                            .is_ok() =>
                    {
                        Err(not_plain(turn + 1))
                    }
                    _ => Err(objection(error)),
                }
            }
            Err(_) => Err("the chat template: the template engine panics on it".into()),
        }
    }

    /// The text of a conversation, and the byte ranges of the assistant's messages.
    ///
    /// A template with `{% generation %}` tags defines those itself, as for transformers'
    /// `return_assistant_tokens_mask`. Otherwise a range goes from the end of the generation prompt to the end of
    /// the message.
    ///
    /// # Errors
    /// See [`ChatTemplate::render`]. Also if the template writes the text around an answer differently with and
    /// without it, so that the range cannot be determined.
    pub fn render_answers(
        &self,
        conversation: &Conversation,
    ) -> Result<(String, Vec<Range<usize>>), String> {
        let conversation = &*self.with_arguments(conversation);
        let whole = self.run(&conversation.messages, conversation, false);
        let whole = whole.map_err(|error| self.explained(conversation, error))?;
        self.check(conversation, &whole)?;
        if self.tagged {
            let (text, answers) = tagged_answers(&whole);
            return match answers.is_empty() {
                true => Err("the chat template does not mark any text of the assistant".into()),
                false => Ok((text, answers)),
            };
        }
        let mut answers: Vec<Range<usize>> = Vec::new();
        for (turn, message) in conversation.messages.iter().enumerate() {
            if message.role() != "assistant" {
                continue;
            }
            let answer = self.answer(conversation, turn, &whole)?;
            // An answer that follows an answer begins at the end of that one at the earliest.
            let earliest = answers.last().map_or(0, |answer| answer.end);
            let answer = answer
                .map(|answer| answer.start.max(earliest)..answer.end)
                .filter(|answer| answer.start <= answer.end);
            answers.push(answer.ok_or_else(|| {
                format!(
                    "the chat template writes the text before turn {} differently when the turn \
                     is present, so its range cannot be determined",
                    turn + 1
                )
            })?);
        }
        Ok((whole, answers))
    }

    /// The range of the answer `turn` in `whole`; `None` if it cannot be determined.
    fn answer(
        &self,
        conversation: &Conversation,
        turn: usize,
        whole: &str,
    ) -> Result<Option<Range<usize>>, String> {
        let messages = &conversation.messages;
        let run = |messages: &[Message], prompt| self.run(messages, conversation, prompt);
        // Some templates leave out the thoughts of a message once there are others after it.
        let plain: Vec<_> = messages.iter().map(Message::without_thoughts).collect();
        // Some refuse a conversation without a user message, or one that ends with it.
        let beginning = |count: usize, prompt: bool, without: &str| {
            let forms = [&messages[..count], &plain[..count]].into_iter();
            let texts = forms.filter_map(|messages| run(messages, prompt).ok());
            let mut lengths = texts.filter_map(|text| {
                let text = text.strip_suffix(without)?;
                whole.starts_with(text).then_some(text.len())
            });
            lengths.next()
        };
        let before = beginning(turn, true, "");
        let start = match before {
            Some(before) => before,
            None => match self.words_start(conversation, turn, whole)? {
                Some(start) => start,
                None => return Ok(None),
            },
        };
        // A template that writes the end of the last message differently writes it like any other before a generation
        // prompt.
        let prompt = before.and_then(|before| {
            let given = beginning(turn, false, "")?;
            whole.get(given..before)
        });
        let end = beginning(turn + 1, false, "").filter(|end| *end >= start);
        let end = end.or_else(|| beginning(turn + 1, true, prompt?));
        if let Some(end) = end.filter(|end| *end >= start) {
            return Ok(Some(start..end));
        }
        // Some templates write the last message differently, as those of models that reason do. So the end of the
        // content is marked both in the whole and in the part that ends with this message, and the text after it
        // in the part is the end of a message.
        let Some(message) = messages[turn].marked(|text| text.trim_end().len()) else {
            return Ok(None);
        };
        let mut marked = messages.clone();
        marked[turn] = message;
        let end_of_turn = run(&marked[..=turn], false)?;
        let marked = run(&marked, false)?;
        let (Some((until, _)), Some((_, end))) =
            (marked.split_once(MARK), end_of_turn.split_once(MARK))
        else {
            return Ok(None);
        };
        // Templates may trim the content.
        let spaces = |text: &str| text[text.trim_end().len()..].to_owned();
        let spaces = messages[turn]
            .text("content")
            .map(spaces)
            .unwrap_or_default();
        let end = end.strip_prefix(spaces.as_str()).unwrap_or(end);
        let rest = whole.strip_prefix(until);
        let after = rest.and_then(|rest| {
            let rest = rest.strip_prefix(spaces.as_str()).unwrap_or(rest);
            rest.strip_prefix(end)
        });
        Ok(after.and_then(|after| {
            let end = whole.len() - after.len();
            (start <= end).then_some(start..end)
        }))
    }

    /// The start of the content of a message in `whole`, for templates whose generation prompt is longer than what they
    /// write before a message, such as DeepSeek-R1's distillations with `<think>`.
    fn words_start(
        &self,
        conversation: &Conversation,
        turn: usize,
        whole: &str,
    ) -> Result<Option<usize>, String> {
        // The text before must be the same as the generation prompt's beginning.
        let earlier = &conversation.messages[..turn];
        let given = match earlier.is_empty() {
            true => String::new(),
            false => self.run(earlier, conversation, false)?,
        };
        if !whole.starts_with(&given) {
            return Ok(None);
        }
        fn thoughts_end(text: &str) -> usize {
            const END: &str = "</think>";
            text.rfind(END).map_or(0, |at| at + END.len())
        }
        let places: [fn(&str) -> usize; 2] = [|_| 0, thoughts_end];
        for place in places {
            let mut messages = conversation.messages.clone();
            let Some(marked) = messages[turn].marked(place) else {
                break;
            };
            messages[turn] = marked;
            let text = self.run(&messages, conversation, false)?;
            if let Some(start) = text.find(MARK)
                && whole.as_bytes().get(..start) == text.as_bytes().get(..start)
            {
                return Ok(Some(start));
            }
        }
        // A message without content: where the two texts diverge.
        let asked = self.run(earlier, conversation, true).unwrap_or_default();
        let common = asked.chars().zip(whole.chars()).take_while(|(a, b)| a == b);
        let common: usize = common.map(|(character, _)| character.len_utf8()).sum();
        Ok(Some(common).filter(|common| turn > 0 && *common >= given.len()))
    }
}

/// The text without the marks, and the ranges between them.
pub(super) fn tagged_answers(text: &str) -> (String, Vec<Range<usize>>) {
    let mut plain = String::with_capacity(text.len());
    let (mut answers, mut open) = (Vec::new(), None);
    for character in text.chars() {
        if character == GENERATION.0 {
            open = Some(plain.len());
        } else if character == GENERATION.1 {
            answers.extend(open.take().map(|start| start..plain.len()));
        } else {
            plain.push(character);
        }
    }
    (plain, answers)
}

fn objection(error: minijinja::Error) -> String {
    format!("the chat template: {error}")
}

/// A noncharacter of Unicode, which no text contains.
const MARK: &str = "\u{fdd0}";
