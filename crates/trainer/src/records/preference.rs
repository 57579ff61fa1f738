//! Records of answers that were preferred to others, or judged, as TRL's data sets have them.

use serde_json::{Map, Value};

use super::columns::Keys;
use super::reader::{context, string, turns, unpacked};
use super::token_file::Judged;
use crate::Error;
use crate::config::LossType;
use models::text::{Conversation, Encoder, Example, Message};

/// The sides of a pair, by the keys of a record.
const SIDES: [&str; 2] = ["chosen", "rejected"];

/// A prompt, with what was answered and how it was judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Preference {
    /// What was asked.
    pub prompt: Prompt,
    /// What was answered.
    pub answers: Answers,
    /// What it is read for.
    pub loss: LossType,
}

/// What answers answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// A text that they continue.
    Text(String),
    /// A conversation, which the chat template writes.
    Chat(Conversation),
}

/// The answers to a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Answers {
    /// One that was chosen, and one that was rejected.
    Pair([Answer; 2]),
    /// One, and whether it is desirable.
    One(Answer, bool),
}

/// One answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// To a text.
    Text(String),
    /// To a conversation.
    Turns(Vec<Message>),
}

impl Answer {
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.trim().is_empty(),
            Self::Turns(turns) => turns.iter().all(|turn| {
                let content = turn.fields().get("content");
                content.is_none_or(|text| text.as_str().is_some_and(|text| text.trim().is_empty()))
                    && !turn.fields().contains_key("tool_calls")
            }),
        }
    }
}

impl Preference {
    /// Whether an answer says nothing, or both are the same.
    pub(super) fn is_void(&self) -> bool {
        match &self.answers {
            Answers::Pair([chosen, rejected]) => {
                chosen == rejected || chosen.is_empty() || rejected.is_empty()
            }
            Answers::One(answer, _) => answer.is_empty(),
        }
    }

    /// The tokens of prompt and answer; of a pair, of the prompt with what was chosen, and then with what was rejected.
    pub(super) fn encode(&self, encoder: &Encoder) -> Result<(Example, Judged), Error> {
        // TRL's trainers for ORPO and CPO make tokens in another way.
        let enclosed = !self.loss.has_reference();
        let one = |answer: &Answer| match (&self.prompt, answer) {
            (Prompt::Text(prompt), Answer::Text(answer)) => {
                let example = encoder.encode_answer(prompt, answer, enclosed);
                example.map_err(Error::of_config)
            }
            (Prompt::Chat(prompt), Answer::Turns(answer)) => {
                let example = encoder.encode_turns(prompt, answer, enclosed);
                example.map_err(Error::of_config)
            }
            _ => Err(Error::Internal("a text that answers a chat".into())),
        };
        let given = |example: &Example| {
            let learned = example.learned.iter().position(|learned| *learned);
            learned.unwrap_or(example.tokens.len()) as u32
        };
        match &self.answers {
            Answers::One(answer, desirable) => {
                let example = one(answer)?;
                let prompt = given(&example);
                let desirable = *desirable;
                Ok((example, Judged::One { prompt, desirable }))
            }
            Answers::Pair(pair) => {
                let [mut chosen, mut rejected] = [one(&pair[0])?, one(&pair[1])?];
                let mut prompts = [given(&chosen), given(&rejected)];
                if self.loss.has_reference() && self.loss != LossType::Kto {
                    // The answers of a pair begin at the same place.
                    prompts = [prompts[0].min(prompts[1]); 2];
                }
                for (example, prompt) in [&mut chosen, &mut rejected].into_iter().zip(prompts) {
                    let learned = (0..example.tokens.len()).map(|index| index >= prompt as usize);
                    example.learned = learned.collect();
                }
                let second = chosen.tokens.len() as u32;
                chosen.tokens.extend(rejected.tokens);
                chosen.learned.extend(rejected.learned);
                Ok((chosen, Judged::Pair { second, prompts }))
            }
        }
    }
}

/// The record for a run with this loss.
pub(super) fn record(
    object: &mut Map<String, Value>,
    keys: &mut Keys,
    loss: LossType,
) -> Result<Preference, String> {
    let has_pair = SIDES.iter().any(|side| object.contains_key(*side));
    if !has_pair && object.contains_key("completion") && loss == LossType::Kto {
        return judged(object, keys);
    }
    if !has_pair {
        let there: Vec<_> = object.keys().map(|key| format!("`{key}`")).collect();
        let wanted = match (loss, object.contains_key("label")) {
            (LossType::Kto, _) => "`prompt`, `completion` and `label`, nor `chosen` and `rejected`",
            (_, true) => "`chosen` and `rejected` (`label` is for `preference.loss_type: kto`)",
            _ => "`chosen` and `rejected`",
        };
        return Err(format!(
            "a record for `preference` has not {wanted}, but {}",
            match there.is_empty() {
                true => "nothing".to_owned(),
                false => there.join(", "),
            }
        ));
    }
    let [chosen, rejected] = SIDES.map(|side| said(object, side, keys));
    let (prompt, answers) = match (chosen?, rejected?) {
        (Answer::Text(chosen), Answer::Text(rejected)) => {
            let (prompt, answers) = match object.contains_key("prompt") {
                true => (string(object, "prompt")?, [chosen, rejected]),
                false => divided(&chosen, &rejected),
            };
            (Prompt::Text(prompt), answers.map(Answer::Text))
        }
        (Answer::Turns(chosen), Answer::Turns(rejected)) => {
            let prompt = match object.get("prompt") {
                Some(Value::String(_)) | None => None,
                Some(_) => said(object, "prompt", keys).map(Some)?,
            };
            let (prompt, answers) = match prompt {
                Some(Answer::Turns(prompt)) => (prompt, [chosen, rejected]),
                // A text beside conversations is what they begin with.
                _ => common_turns(chosen, rejected)?,
            };
            if prompt.is_empty() {
                return Err(
                    "`chosen` and `rejected` have no turn in common that they answer: write it into both, or into \
                     `prompt` as a list of messages"
                        .into(),
                );
            }
            let prompt = context(prompt, object)?;
            (Prompt::Chat(prompt), answers.map(Answer::Turns))
        }
        _ => {
            return Err(
                "`chosen` and `rejected` must both be texts, or both lists of messages".into(),
            );
        }
    };
    Ok(Preference {
        prompt,
        answers: Answers::Pair(answers),
        loss,
    })
}

/// One answer that is judged for itself.
fn judged(object: &mut Map<String, Value>, keys: &mut Keys) -> Result<Preference, String> {
    let desirable = match object.shift_remove("label") {
        Some(Value::Bool(label)) => label,
        Some(Value::Number(label)) if label.as_u64() == Some(1) => true,
        Some(Value::Number(label)) if label.as_u64() == Some(0) => false,
        // Of a table.
        Some(Value::String(label)) if ["true", "True", "1"].contains(&label.as_str()) => true,
        Some(Value::String(label)) if ["false", "False", "0"].contains(&label.as_str()) => false,
        Some(_) => return Err("`label` must be true (desirable) or false".into()),
        None => return Err("`label` is missing: true for a desirable answer, or false".into()),
    };
    let prompt = said(object, "prompt", keys)?;
    let (prompt, answer) = match (prompt, said(object, "completion", keys)?) {
        (Answer::Text(prompt), answer @ Answer::Text(_)) => (Prompt::Text(prompt), answer),
        (Answer::Turns(prompt), answer @ Answer::Turns(_)) => {
            (Prompt::Chat(context(prompt, object)?), answer)
        }
        _ => {
            return Err(
                "`prompt` and `completion` must both be texts, or both lists of messages".into(),
            );
        }
    };
    Ok(Preference {
        prompt,
        answers: Answers::One(answer, desirable),
        loss: LossType::Kto,
    })
}

/// A text, or a list of messages.
fn said(object: &mut Map<String, Value>, key: &str, keys: &mut Keys) -> Result<Answer, String> {
    let is_turns = |value: &Value| {
        let list = value.as_array();
        list.is_some_and(|list| list.iter().any(Value::is_object))
    };
    match object.shift_remove(key) {
        None => Err(format!("`{key}` is missing")),
        Some(Value::String(text)) => match unpacked(Value::String(text.clone())) {
            // In a table, lists are texts.
            list if is_turns(&list) => Ok(Answer::Turns(turns(key, list, keys)?)),
            _ => Ok(Answer::Text(text)),
        },
        Some(list) if is_turns(&list) => Ok(Answer::Turns(turns(key, list, keys)?)),
        Some(_) => Err(format!(
            "`{key}` must be a text or a list of {{role, content}}"
        )),
    }
}

/// What two texts begin with, and what each goes on with; as TRL does, a space between is the answers'.
fn divided(chosen: &str, rejected: &str) -> (String, [String; 2]) {
    let both = chosen.char_indices().zip(rejected.chars());
    let mut last = 0;
    for ((at, one), other) in both {
        last = at;
        if one != other {
            last -= usize::from(chosen[..at].ends_with(' '));
            break;
        }
    }
    let answers = [chosen, rejected].map(|text| text[last..].to_owned());
    (chosen[..last].to_owned(), answers)
}

/// The turns that two conversations begin with, and those with which they go on.
fn common_turns(
    mut chosen: Vec<Message>,
    mut rejected: Vec<Message>,
) -> Result<(Vec<Message>, [Vec<Message>; 2]), String> {
    let common = chosen.iter().zip(&rejected);
    let common = common.take_while(|(one, other)| one == other).count();
    // Where one of them is all of it, its last turn is the answer.
    let common = common.min(chosen.len().min(rejected.len()).saturating_sub(1));
    let answers = [chosen.split_off(common), rejected.split_off(common)];
    match answers.iter().any(Vec::is_empty) {
        true => Err("`chosen` and `rejected` must have a turn each".into()),
        false => Ok((chosen, answers)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value, loss: LossType) -> Result<(Preference, String), String> {
        let mut keys = Keys::default();
        let mut object = value.as_object().unwrap().clone();
        let record = record(&mut object, &mut keys, loss)?;
        for key in object.keys() {
            keys.note(key);
        }
        Ok((record, keys.list().unwrap_or_default()))
    }

    fn refused(value: &Value, loss: LossType) -> String {
        read(value, loss).unwrap_err()
    }

    #[test]
    fn a_prompt_that_both_begin_with_is_found_as_by_trl() {
        let texts = json!({"chosen": "The sky is blue.", "rejected": "The sky is green."});
        let (found, _) = read(&texts, LossType::Sigmoid).unwrap();
        assert_eq!(found.prompt, Prompt::Text("The sky is".into()));
        let answers = [" blue.", " green."].map(|text| Answer::Text(text.into()));
        assert_eq!(found.answers, Answers::Pair(answers));
        let turn = |role: &str, text: &str| json!({"role": role, "content": text});
        let chats = json!({
            "prompt": "the question once more",
            "chosen": [turn("user", "q"), turn("assistant", "a")],
            "rejected": [turn("user", "q"), turn("assistant", "b")],
        });
        let (found, unread) = read(&chats, LossType::Kto).unwrap();
        let Prompt::Chat(prompt) = &found.prompt else {
            panic!()
        };
        assert_eq!(prompt.messages, [Message::new("user", "q")]);
        assert_eq!(unread, "`prompt` (once)");
        let explicit = json!({
            "prompt": [turn("user", "q")], "chosen": [turn("assistant", "a")], "rejected": [turn("assistant", "b")],
        });
        assert_eq!(
            read(&explicit, LossType::Kto).unwrap(),
            (found, String::new())
        );
        let in_a_table = json!({
            "chosen": chats["chosen"].to_string(), "rejected": chats["rejected"].to_string(),
        });
        assert!(matches!(
            read(&in_a_table, LossType::Sigmoid).unwrap().0.prompt,
            Prompt::Chat(_)
        ));
    }

    #[test]
    fn each_mistake_in_a_record_is_refused_with_its_key() {
        let turn = json!([{"role": "user", "content": "q"}]);
        let other = json!([{"role": "assistant", "content": "a"}]);
        for (record, loss, reason) in [
            (json!({"text": "a"}), LossType::Sigmoid, "but `text`"),
            (json!({}), LossType::Sigmoid, "but nothing"),
            (
                json!({"prompt": "a", "chosen": "b"}),
                LossType::Sigmoid,
                "`rejected` is missing",
            ),
            (
                json!({"prompt": "a", "rejected": "b"}),
                LossType::Orpo,
                "`chosen` is missing",
            ),
            (
                json!({"prompt": "a", "completion": "b", "label": true}),
                LossType::Sigmoid,
                "`label` is for `preference.loss_type: kto`",
            ),
            (
                json!({"prompt": "a", "completion": "b"}),
                LossType::Kto,
                "`label` is missing",
            ),
            (
                json!({"prompt": "a", "completion": "b", "label": 2}),
                LossType::Kto,
                "`label` must be",
            ),
            (
                json!({"completion": "b", "label": true}),
                LossType::Kto,
                "`prompt` is missing",
            ),
            (
                json!({"prompt": "a", "completion": 7, "label": true}),
                LossType::Kto,
                "`completion` must be",
            ),
            (
                json!({"prompt": "a", "completion": turn, "label": true}),
                LossType::Kto,
                "must both be texts",
            ),
            (
                json!({"prompt": 7, "chosen": "a", "rejected": "b"}),
                LossType::Sigmoid,
                "`prompt` must be",
            ),
            (
                json!({"prompt": "a", "chosen": null, "rejected": "b"}),
                LossType::Sigmoid,
                "`chosen` must be",
            ),
            (
                json!({"prompt": "a", "chosen": "c", "rejected": turn}),
                LossType::Sigmoid,
                "must both be texts",
            ),
            (
                json!({"chosen": other, "rejected": turn}),
                LossType::Sigmoid,
                "no turn in common",
            ),
            (
                json!({"chosen": [{"role": "user"}], "rejected": turn}),
                LossType::Sigmoid,
                "turn 1 of `chosen` has neither",
            ),
            (
                json!({"prompt": turn, "chosen": other, "rejected": other, "tools": 7}),
                LossType::Sigmoid,
                "`tools` must be",
            ),
            (
                json!({"prompt": turn, "chosen": other, "rejected": other, "chat_template_kwargs": 7}),
                LossType::Sigmoid,
                "`chat_template_kwargs` must be",
            ),
        ] {
            let found = refused(&record, loss);
            assert!(found.contains(reason), "{record}: {found}");
        }
    }

    #[test]
    fn other_keys_are_told_and_those_of_a_chat_obeyed() {
        let pair =
            json!({"prompt": "a", "chosen": "b", "rejected": "c", "score_chosen": 8, "label": 1});
        let (_, unread) = read(&pair, LossType::Hinge).unwrap();
        assert_eq!(unread, "`label` (once), `score_chosen` (once)");
        let chat = json!({
            "prompt": [{"role": "user", "content": "q"}],
            "completion": [{"role": "assistant", "content": "a"}],
            "label": "False", "tools": [{"name": "f"}], "chat_template_kwargs": {"enable_thinking": false},
        });
        let (found, unread) = read(&chat, LossType::Kto).unwrap();
        let Prompt::Chat(prompt) = found.prompt else {
            panic!()
        };
        assert!(prompt.tools.is_some() && prompt.template_arguments.len() == 1);
        assert!(matches!(
            found.answers,
            Answers::One(Answer::Turns(_), false)
        ));
        assert_eq!(unread, "");
    }

    #[test]
    fn pairs_of_which_nothing_is_learned_are_known() {
        for (chosen, rejected, is_void) in [("b", "c", false), ("b", "b", true), (" ", "c", true)] {
            let pair = json!({"prompt": "a", "chosen": chosen, "rejected": rejected});
            assert_eq!(read(&pair, LossType::Ipo).unwrap().0.is_void(), is_void);
        }
    }
}
