//! A model's chat template: the Jinja program that turns a conversation into text.

use std::ops::Range;
use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value, context};
use regex::{Captures, Regex};
use serde::{Deserialize, Serialize};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// A chat template and the names it may use.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

/// Steps that a template may take: far more than any honest one does.
const FUEL: u64 = 50_000_000;

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// When it is not a Jinja template that can be run here.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, String> {
        let mut environment = Environment::new();
        // What `transformers` sets for every chat template.
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| error.to_string())?;
        environment.set_syntax(syntax);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_function("raise_exception", |message: String| {
            Err::<String, _>(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned("chat", without_generation_tags(source))
            .map_err(|error| format!("the chat template: {error}"))?;
        Ok(Self {
            environment,
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
        })
    }

    /// The text of a conversation; with `add_generation_prompt`, up to where the
    /// assistant would begin to speak.
    ///
    /// # Errors
    /// What the template objects to.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, String> {
        self.environment
            .get_template("chat")
            .and_then(|template| {
                template.render(context! {
                    messages => Value::from(Serde(messages)),
                    add_generation_prompt,
                    // What transformers passes for them when there are none.
                    tools => (),
                    documents => (),
                    bos_token => self.bos_token.as_str(),
                    eos_token => self.eos_token.as_str(),
                })
            })
            .map_err(|error| format!("the chat template: {error}"))
    }

    /// The text of a conversation and the byte ranges in it that the assistant says,
    /// the token that ends each turn included.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], and when a template changes what came before a turn, so
    /// that the turn cannot be told from its surroundings.
    pub fn render_answers(
        &self,
        messages: &[Message],
    ) -> Result<(String, Vec<Range<usize>>), String> {
        let whole = self.render(messages, false)?;
        let mut answers = Vec::new();
        for (turn, message) in messages.iter().enumerate() {
            if message.role != "assistant" {
                continue;
            }
            let answer = self.answer(messages, turn, &whole)?.ok_or_else(|| {
                format!(
                    "the chat template writes the text before turn {} in another way when the turn \
                     is there, so the answer cannot be told apart",
                    turn + 1
                )
            })?;
            answers.push(answer);
        }
        Ok((whole, answers))
    }

    /// Where the answer `turn` lies in `whole`; `None` when that cannot be told.
    fn answer(
        &self,
        messages: &[Message],
        turn: usize,
        whole: &str,
    ) -> Result<Option<Range<usize>>, String> {
        let before = self.render(&messages[..turn], true)?;
        if !whole.starts_with(&before) {
            return Ok(None);
        }
        let with = self.render(&messages[..=turn], false)?;
        if with.starts_with(&before) && whole.starts_with(&with) {
            return Ok(Some(before.len()..with.len()));
        }
        // Some write a turn in another way when it is the last, as Qwen3 with its thoughts. So
        // the end of its words is marked, in the whole and in the part that ends with the turn,
        // and what follows there is what ends a turn.
        let mut marked = messages.to_vec();
        let words = messages[turn].content.trim_end();
        marked[turn].content = format!("{words}{MARK}");
        let end_of_turn = self.render(&marked[..=turn], false)?;
        let marked = self.render(&marked, false)?;
        let (Some((start, _)), Some((_, end))) =
            (marked.split_once(MARK), end_of_turn.split_once(MARK))
        else {
            return Ok(None);
        };
        let spaces = &messages[turn].content[words.len()..];
        let rest = whole.strip_prefix(start);
        let ends = rest.and_then(|rest| {
            // Templates trim what is said, or do not.
            let rest = rest.strip_prefix(spaces).unwrap_or(rest);
            rest.strip_prefix(end)
        });
        Ok(ends.and_then(|after| {
            let end = whole.len() - after.len();
            (before.len() <= end).then_some(before.len()..end)
        }))
    }
}

/// Nothing that anybody says: a noncharacter of Unicode.
const MARK: &str = "\u{fdd0}";

/// Templates made for training tell with tags where the assistant speaks. Here that is found
/// without them, so they become a condition that always holds, with their control of spaces.
fn without_generation_tags(source: &str) -> String {
    static TAG: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").ok());
    match &*TAG {
        None => source.to_owned(),
        Some(tag) => tag
            .replace_all(source, |found: &Captures| {
                let word = match found.get(2) {
                    Some(_) => "endif",
                    None => "if true",
                };
                format!("{{%{} {word} {}%}}", &found[1], &found[3])
            })
            .into_owned(),
    }
}
