//! The keyword arguments in calls of a Python program that set up a training, as far as they are literals or names of
//! literals. Nothing is executed.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::read::Item;

/// Functions and classes whose arguments are read.
const CALLS: [&str; 22] = [
    "FastLanguageModel.from_pretrained",
    "FastModel.from_pretrained",
    "AutoModelForCausalLM.from_pretrained",
    "FastLanguageModel.get_peft_model",
    "FastModel.get_peft_model",
    "LoraConfig",
    "TrainingArguments",
    "UnslothTrainingArguments",
    "SFTConfig",
    "SFTTrainer",
    "BitsAndBytesConfig",
    "DPOConfig",
    "DPOTrainer",
    "ORPOConfig",
    "ORPOTrainer",
    "KTOConfig",
    "KTOTrainer",
    "CPOConfig",
    "CPOTrainer",
    "load_dataset",
    "get_chat_template",
    "train_on_responses_only",
];

/// Of TRL's trainers, those on preferences.
pub(super) const PREFERENCES: [&str; 4] = ["dpo", "orpo", "kto", "cpo"];

/// Arguments that are objects of the program, and no settings.
const OBJECTS: [&str; 9] = [
    "model",
    "tokenizer",
    "processing_class",
    "train_dataset",
    "args",
    "peft_config",
    "quantization_config",
    "formatting_func",
    "data_collator",
];

/// The arguments of all known calls. A positional argument of `from_pretrained` and `load_dataset` is the name.
pub(super) fn items(text: &str) -> Vec<Item> {
    let text = without_comments(text);
    let names = assignments(&text);
    let mut found = Vec::new();
    for call in CALLS {
        for (start, _) in text.match_indices(&format!("{call}(")) {
            let before = text[..start].chars().next_back();
            if before
                .is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == '.')
            {
                continue;
            }
            let class = ["Trainer", "Config"]
                .iter()
                .find_map(|end| call.strip_suffix(end));
            let trainer = class.unwrap_or_default().to_lowercase();
            if PREFERENCES.contains(&trainer.as_str()) {
                found.push(Item::new(format!("{call}.rl"), trainer.into()));
            }
            let inside = balanced(&text[start + call.len() + 1..]);
            let method = call.rsplit('.').next().unwrap_or(call);
            for (index, argument) in split(inside).into_iter().enumerate() {
                let (key, expression) = match keyword(argument) {
                    Some(pair) => pair,
                    None if index == 0 && call == "load_dataset" => ("dataset_name", argument),
                    None if index == 1 && call == "load_dataset" => {
                        ("dataset_config_name", argument)
                    }
                    None if index == 0 && method == "from_pretrained" => ("model_name", argument),
                    None => continue,
                };
                let key = if key == "name" && call == "load_dataset" {
                    "dataset_config_name"
                } else {
                    key
                };
                let value = literal(expression, &names);
                let is_object = OBJECTS.contains(&key) || key == "eval_dataset" && value.is_none();
                if is_object && value.as_ref().is_none_or(|value| !value.is_string()) {
                    continue;
                }
                let value =
                    value.unwrap_or_else(|| serde_json::json!({ "expression": expression.trim() }));
                found.push(Item::new(format!("{method}.{key}"), value));
            }
        }
    }
    found
}

/// Text without comments, in which strings stay.
fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut quote: Option<char> = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (None, '#') => {
                while letters.next_if(|next| *next != '\n').is_some() {}
                continue;
            }
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), letter) if letter == open => quote = None,
            (Some(_), '\n') => quote = None,
            (Some(_), '\\') => {
                out.push(letter);
                out.extend(letters.next());
                continue;
            }
            _ => {}
        }
        out.push(letter);
    }
    out
}

/// Names at the beginning of a line that are set to a literal.
fn assignments(text: &str) -> HashMap<String, Value> {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    let known = lines.filter_map(|(name, value)| {
        let name = name.split(':').next().unwrap_or(name).trim();
        let is_name = !name.is_empty()
            && name
                .chars()
                .all(|letter| letter.is_alphanumeric() || letter == '_');
        let value = literal(value, &HashMap::new()).filter(|_| is_name)?;
        Some((name.to_owned(), value))
    });
    known.collect()
}

/// What is before the bracket that closes.
fn balanced(text: &str) -> &str {
    let mut depth = 1;
    let end = scan(text, |letter, _| {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    &text[..end.first().copied().unwrap_or(text.len())]
}

/// The parts between commas that are in no brackets.
fn split(text: &str) -> Vec<&str> {
    let mut start = 0;
    let mut parts: Vec<&str> = Vec::new();
    for comma in scan(text, |letter, depth| letter == ',' && depth == 0) {
        parts.push(&text[start..comma]);
        start = comma + 1;
    }
    parts.push(&text[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

/// Positions of letters outside of strings for which `is` holds; it gets the depth of brackets.
fn scan(text: &str, mut is: impl FnMut(char, usize) -> bool) -> Vec<usize> {
    let (mut found, mut depth, mut quote, mut escaped) = (Vec::new(), 0usize, None, false);
    for (at, letter) in text.char_indices() {
        if let Some(open) = quote {
            if letter == open && !escaped {
                quote = None;
            }
            escaped = letter == '\\' && !escaped;
            continue;
        }
        if is(letter, depth) {
            found.push(at);
        }
        match letter {
            '"' | '\'' => quote = Some(letter),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    found
}

/// `key = value`.
fn keyword(argument: &str) -> Option<(&str, &str)> {
    let (key, value) = argument.split_once('=')?;
    let key = key.trim();
    let is_key = !key.is_empty()
        && key
            .chars()
            .all(|letter| letter.is_alphanumeric() || letter == '_');
    (is_key && !value.starts_with('=')).then_some((key, value))
}

/// The value of a literal, or of a name that is one.
fn literal(text: &str, names: &HashMap<String, Value>) -> Option<Value> {
    let text = text.trim();
    let inside = |open: char, close: char| text.strip_prefix(open)?.strip_suffix(close);
    if let Some(items) = inside('[', ']').or_else(|| inside('(', ')')) {
        return split(items)
            .into_iter()
            .map(|item| literal(item, names))
            .collect();
    }
    if let Some(entries) = inside('{', '}') {
        let entries = split(entries).into_iter().map(|entry| {
            let (key, value) = entry.split_once(':')?;
            Some((
                literal(key, names)?.as_str()?.to_owned(),
                literal(value, names)?,
            ))
        });
        return entries.collect::<Option<Map<_, _>>>().map(Value::Object);
    }
    for quote in ['"', '\''] {
        if let Some(text) = inside(quote, quote).filter(|text| !text.contains(quote)) {
            return Some(text.replace("\\n", "\n").into());
        }
    }
    match text {
        "True" => Some(true.into()),
        "False" => Some(false.into()),
        "None" => Some(Value::Null),
        text => {
            let number = text.replace('_', "");
            let number = serde_json::from_str::<Value>(&number)
                .ok()
                .filter(Value::is_number);
            let float = || {
                text.parse::<f64>().ok().filter(|_| {
                    text.starts_with(|first: char| first.is_ascii_digit() || first == '.')
                })
            };
            let short = || text.strip_prefix("torch.").map(Value::from);
            number
                .or_else(|| float().map(Value::from))
                .or_else(|| names.get(text).cloned())
                .or_else(short)
        }
    }
}
