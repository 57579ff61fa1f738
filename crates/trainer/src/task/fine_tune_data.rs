//! The data of a fine-tuning run: read, turned into tokens, and divided into what is learned and what
//! is held out.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::ops::Range;
use std::rc::Rc;

use serde_json::json;

use super::blocks::TrainingBlocks;
use super::mixture;
use super::preference;
use super::sequences::{Fitting, Sequences};
use super::shown::{self, ShownData};
use crate::Error;
use crate::config::{Config, StoppingStrategy};
use crate::data::{SplitMix64, cache_folder, held_out_records, sweep};
use crate::locate::{Located, Place};
use crate::observer::Observer;
use crate::records::{
    self, Conversation, Message, Prompt, Record, Span, TokenFile, preferences, records_of_columns,
};
use crate::text::thousands;
use models::text::Encoder;

/// What a run learns from, and what it is measured on.
pub(super) struct FineTuneData {
    pub(super) training: Sequences,
    /// Unset when nothing is held out.
    pub(super) held_out: Option<Sequences>,
    /// The order of the training rows, and where the run stands in it.
    pub(super) blocks: TrainingBlocks,
    /// One line for the start-up message.
    pub(super) description: String,
    /// What was done to training examples that do not fit.
    pub(super) fitting: Fitting,
    /// What the first short record has before its answer; `None` of texts.
    pub(super) question: Option<Question>,
}

/// What a record has before its answer.
pub(super) enum Question {
    /// The turns before the assistant's first.
    Chat(Conversation),
    Prompt(String),
}

/// The longest question of a record that previews ask, in bytes.
const SHORT: usize = 2000;

impl Question {
    fn of(record: &Record) -> Option<Self> {
        let of_text = |prompt: &String| {
            (!prompt.is_empty() && prompt.len() <= SHORT).then(|| Self::Prompt(prompt.clone()))
        };
        match record {
            Record::Text(_) => None,
            Record::Completion { prompt, .. } => of_text(prompt),
            Record::Preference(preference) => match &preference.prompt {
                Prompt::Text(prompt) => of_text(prompt),
                Prompt::Chat(prompt) => Self::of(&Record::Chat(prompt.clone())),
            },
            Record::Chat(conversation) => {
                let turns = conversation.messages.iter();
                let before = turns.take_while(|turn| turn.role() != "assistant");
                let asked = Conversation {
                    messages: before.cloned().collect(),
                    ..conversation.clone()
                };
                let length = |turn: &Message| {
                    serde_json::to_string(turn.fields()).map_or(0, |json| json.len())
                };
                let length: usize = asked.messages.iter().map(length).sum();
                let is_asked = asked
                    .messages
                    .last()
                    .is_some_and(|turn| turn.role() == "user");
                (is_asked && length <= SHORT).then_some(Self::Chat(asked))
            }
        }
    }
}

impl FineTuneData {
    /// Reads and divides what `config` names.
    ///
    /// # Errors
    /// When a file cannot be read or encoded, or one of the two parts has no row.
    pub(super) fn load(
        config: &Config,
        encoder: &Encoder,
        observer: &mut dyn Observer,
    ) -> Result<Self, Error> {
        let data = &config.data;
        let located = Located::find(data, &mut |text| observer.preparing(text))?;
        let parts = Parts {
            config,
            fitting: Cell::default(),
        };
        let name = parts.name(&located.training);
        let Tokenised {
            file,
            sets,
            question,
        } = tokens(config, &located.training, encoder, observer)?;
        let measured = match located.held_out.is_empty() {
            true => None,
            false => Some(tokens(config, &located.held_out, encoder, observer)?.file),
        };
        let hold_out = measured.is_none() && data.validation_fraction > 0.0;
        let mut mixed = None;
        // The rows to train on are made first.
        let (training, held_out) = match data.mixture.is_empty() {
            false => {
                let mixture = parts.mixture(&file, &sets, &located.training, hold_out)?;
                let training = parts.rows(&file, mixture.training, &name);
                mixed = Some(mixture.taken);
                let held_out = hold_out.then(|| parts.rows(&file, mixture.held_out, &name));
                (training, held_out)
            }
            true if hold_out => {
                let (training, held_out) = parts.split(&file, &name)?;
                (training, Some(held_out))
            }
            true => (parts.all(&file, &name), None),
        };
        parts.tell_of_cut_answers(&file);
        let other = measured.as_ref().map(|file| file.fingerprint().to_owned());
        let measured = measured.map(|file| parts.all(&file, &listed(&located.held_out)));
        let held_out = measured.or(held_out);
        parts.require_rows(&training, held_out.as_ref(), &name)?;
        let mut identity = json!({
            "fingerprint": file.fingerprint(),
            "block_size": data.block_size,
            "seed": config.seed,
            "training_tokens": training.tokens(),
        });
        if let Some(packing) = data.packing {
            identity["packing"] = packing.into();
        }
        if let Some(preference::Form::Mismatched(batch)) = preference::form(config) {
            // With it, each prompt would have another second answer.
            identity["per_device_train_batch_size"] = batch.into();
        }
        if let (Some(other), Some(_)) = (other, &config.preference) {
            // The run folder has reference log-probabilities of these, too.
            identity["eval_fingerprint"] = json!(other);
        }
        if data.validation_shuffle {
            identity["validation_shuffle"] = true.into();
        }
        if let Some(taken) = &mixed {
            identity["mixture"] = json!(taken.iter().map(|set| set.taken).collect::<Vec<_>>());
        }
        if let Some(moment) = encoder.moment() {
            identity["moment"] = moment.into();
        }
        let name = match (data.dataset, mixed) {
            (Some(_), _) => "shakespeare".into(),
            (None, Some(taken)) => described(&taken, &located.training),
            (None, None) => name,
        };
        Ok(Self {
            blocks: TrainingBlocks::new(training.order(config)?, &config.train, identity),
            description: parts.describe(&name, &training, held_out.as_ref()),
            fitting: parts.fitting.get().unwrap_or_default(),
            question,
            training,
            held_out,
        })
    }
}

impl FineTuneData {
    /// The first `count` rows in the order of training, as text.
    ///
    /// # Errors
    /// When a row cannot be read, or tokens have no text.
    pub(super) fn shown(&self, count: u64, encoder: &Encoder) -> Result<ShownData, Error> {
        let decode = |ids: &[u32]| {
            let text = encoder.tokenizer().decode(ids, false);
            text.map_err(|error| Error::Data(format!("tokens without text: {error}")))
        };
        let rows_in_epoch = self.blocks.blocks_in_epoch();
        let numbers = self.blocks.first_starts(count);
        let rows = numbers.map(|number| shown::row(&self.training.parts(number)?, &decode));
        Ok(ShownData {
            rows: rows.collect::<Result<_, Error>>()?,
            rows_in_epoch,
            data: self.description.clone(),
            whole_examples: self.training.rows().is_some(),
            truncated: self.fitting.truncated,
            left_out: self.fitting.left_out,
        })
    }

    /// Tokens in the longest row.
    pub(super) fn longest(&self) -> usize {
        let held_out = self.held_out.as_ref().map_or(0, Sequences::longest);
        self.training.longest().max(held_out)
    }
}

/// Records as tokens.
struct Tokenised {
    file: Rc<TokenFile>,
    /// The examples of each set.
    sets: Vec<Range<usize>>,
    question: Option<Question>,
}

/// The records of `places`, one place after the other, as tokens; and which examples are of each.
fn tokens(
    config: &Config,
    places: &[Place],
    encoder: &Encoder,
    observer: &mut dyn Observer,
) -> Result<Tokenised, Error> {
    let mut shown = 0;
    let mut on_progress = |records: u64, tokens: u64| {
        if tokens >= shown + 1_000_000 {
            shown = tokens;
            let (tokens, records) = (thousands(tokens), thousands(records));
            observer.preparing(&format!("tokenising: {tokens} tokens of {records} texts"));
        }
    };
    let folder = cache_folder().join("tokens");
    sweep(&folder);
    // What cannot be read of any of them is told before the first is.
    let all = places.iter().map(|place| {
        let Place {
            path,
            format,
            columns,
        } = place;
        Ok(match &config.preference {
            None => {
                Box::new(records_of_columns(path, *format, columns)?) as Box<dyn Iterator<Item = _>>
            }
            Some(preference) => {
                Box::new(preferences(path, *format, columns, preference.loss_type)?)
            }
        })
    });
    let all = all.collect::<Result<Vec<_>, Error>>()?;
    let counts: Vec<Cell<usize>> = places.iter().map(|_| Cell::new(0)).collect();
    let (empty, first_empty) = (Cell::new(0), RefCell::new(String::new()));
    let question = RefCell::new(None);
    let look = |record: &Result<records::Located, Error>| {
        let Ok(located) = record else { return };
        if question.borrow().is_none() {
            question.replace(Question::of(&located.record));
        }
        if located.record.has_empty_answer() {
            if empty.get() == 0 {
                first_empty.replace(located.place.clone());
            }
            empty.set(empty.get() + 1);
        }
    };
    let records = all.into_iter().zip(&counts);
    let records = records.flat_map(|(records, count)| {
        records.inspect(|record| {
            count.set(count.get() + 1);
            look(record);
        })
    });
    let file = TokenFile::temporary(&folder, records, encoder, &mut on_progress)?;
    if let Some((place, _)) = places
        .iter()
        .zip(&counts)
        .find(|(_, count)| count.get() == 0)
    {
        return Err(Error::Data(format!(
            "`{}` has no record and no text in it: it is empty, or has a header or an empty list only",
            place.path.display()
        )));
    }
    if empty.get() > 0 {
        let (count, first) = (thousands(empty.get()), first_empty.borrow());
        let what = match config.preference {
            None => "records with an empty answer, of which the model learns to say nothing",
            Some(_) => "records with an empty answer, or two that are the same",
        };
        tracing::warn!("{what}: {count}, first {first}");
    }
    let mut end = 0;
    let sets = counts.iter().map(|count| {
        let start = end;
        end += count.get();
        start..end
    });
    let sets = sets.collect();
    Ok(Tokenised {
        file: Rc::new(file),
        sets,
        question: question.into_inner(),
    })
}

/// The names of places, for people.
fn listed(places: &[Place]) -> String {
    let names = places.iter().map(|place| place.path.display().to_string());
    names.collect::<Vec<_>>().join("`, `")
}

/// Examples of several sets, in the order in which they make rows.
struct Mixture {
    training: Vec<Span>,
    held_out: Vec<Span>,
    /// Of each set.
    taken: Vec<Taken>,
}

/// What a pass has of one set.
struct Taken {
    /// Examples that could be learned.
    examples: usize,
    /// Examples that are.
    taken: usize,
}

/// `a.jsonl (300 of 1,000 examples) and b.jsonl (40 examples 7.5 times)`.
fn described(taken: &[Taken], places: &[Place]) -> String {
    let sets = taken.iter().zip(places).map(|(set, place)| {
        let (all, count) = (thousands(set.examples as u64), thousands(set.taken as u64));
        let what = match set.taken.cmp(&set.examples) {
            Ordering::Less => format!("{count} of {all} examples"),
            Ordering::Equal => format!("{all} examples"),
            Ordering::Greater => {
                let times = set.taken as f64 / set.examples.max(1) as f64;
                format!("{all} examples {times:.2} times")
            }
        };
        format!("{} ({what})", place.path.display())
    });
    sets.collect::<Vec<_>>().join(" and ")
}

/// The examples to learn from, and those that are held out: the last ones, or any that `seed` chooses.
fn divided(
    examples: &[Span],
    fraction: f64,
    seed: Option<u64>,
    path: &dyn std::fmt::Display,
) -> Result<(Vec<Span>, Vec<Span>), Error> {
    if examples.len() < 2 {
        return Err(Error::Data(format!(
            "`{path}` has one record, which cannot be divided: set `data.validation_fraction: 0` \
             to hold nothing out, or `data.eval_dataset` to other data"
        )));
    }
    let chosen = held_out_records(examples.len(), fraction, seed);
    let (held_out, learned): (Vec<_>, Vec<_>) =
        (examples.iter().zip(&chosen)).partition(|(_, held_out)| **held_out);
    let spans = |part: Vec<(&Span, &bool)>| part.into_iter().map(|(example, _)| *example).collect();
    Ok((spans(learned), spans(held_out)))
}

/// How examples become rows.
struct Parts<'a> {
    config: &'a Config,
    /// What was done to the examples of the rows that were made first, which are those to train on.
    fitting: Cell<Option<Fitting>>,
}

impl Parts<'_> {
    fn block_size(&self) -> usize {
        self.config.data.block_size as usize
    }

    /// How whole examples become rows, if they stay whole; preferences do.
    fn packing(&self) -> Option<bool> {
        match self.config.preference {
            Some(_) => Some(false),
            None => self.config.data.packing,
        }
    }

    /// What the training data are called in messages.
    fn name(&self, places: &[Place]) -> String {
        match self.config.data.mixture.is_empty() {
            true => listed(places),
            false => "data.mixture".to_owned(),
        }
    }

    /// The examples of several sets: what is held out of each, and of the others so many as the weights
    /// say.
    fn mixture(
        &self,
        file: &TokenFile,
        sets: &[Range<usize>],
        places: &[Place],
        hold_out: bool,
    ) -> Result<Mixture, Error> {
        let (config, data) = (self.config, &self.config.data);
        let (mut training, mut held_out) = (Vec::new(), Vec::new());
        for (number, (set, place)) in sets.iter().zip(places).enumerate() {
            let examples = &file.examples()[set.clone()];
            let path = place.path.display();
            if !hold_out {
                training.push(examples.to_vec());
                continue;
            }
            let seed = data
                .validation_shuffle
                .then_some(config.seed ^ number as u64);
            let (learned, measured) = divided(examples, data.validation_fraction, seed, &path)?;
            training.push(learned);
            held_out.extend(measured);
        }
        let there: Vec<usize> = training.iter().map(Vec::len).collect();
        let weights = data.mixture.iter().map(|source| source.weight);
        let counts = match weights.collect::<Option<Vec<f64>>>() {
            None => there.clone(),
            Some(weights) => {
                let strategy = data.stopping_strategy;
                let strategy = strategy.unwrap_or(StoppingStrategy::FirstExhausted);
                mixture::counts(&there, &weights, strategy)
            }
        };
        let chosen = training.iter().zip(&counts).enumerate();
        let chosen = chosen.map(|(number, (examples, count))| {
            // Not the words of the training order's generator, nor those of what is held out.
            let mut random = SplitMix64::new(&[config.seed, u64::MAX - 1, number as u64]);
            let chosen = mixture::chosen(examples.len(), *count, &mut random);
            chosen.into_iter().map(|index| examples[index]).collect()
        });
        let chosen: Vec<Vec<Span>> = chosen.collect();
        let taken = there.into_iter().zip(counts);
        Ok(Mixture {
            training: mixture::interleaved(&chosen),
            held_out,
            taken: taken
                .map(|(examples, taken)| Taken { examples, taken })
                .collect(),
        })
    }

    /// Rows of these examples of a file.
    fn rows(&self, file: &Rc<TokenFile>, examples: Vec<Span>, path: &str) -> Sequences {
        let block_size = self.block_size();
        let Some(packed) = self.packing() else {
            let ranges = examples.iter();
            let ranges = ranges.map(|one| (one.start, one.start + u64::from(one.length)));
            return Sequences::wrapped(file, ranges, block_size);
        };
        let count = examples.len() as u64;
        let (rows, fitting) = match preference::form(self.config) {
            Some(form) => Sequences::answers(file, &examples, block_size, form),
            None => Sequences::whole(file, examples, block_size, packed),
        };
        if self.fitting.get().is_none() {
            self.fitting.set(Some(fitting));
        }
        let Fitting {
            truncated,
            left_out,
        } = fitting;
        let count = thousands(count);
        if truncated > 0 {
            tracing::warn!(
                "{} of {count} examples of `{path}` are longer than `data.block_size` \
                 {block_size}, and are truncated",
                thousands(truncated)
            );
        }
        if left_out > 0 {
            tracing::warn!(
                "{} of {count} examples of `{path}` are left out: nothing of them is learned \
                 within `data.block_size` {block_size}",
                thousands(left_out)
            );
        }
        rows
    }

    /// Warns about answers that a row begins in the middle of.
    fn tell_of_cut_answers(&self, file: &TokenFile) {
        // In a text, everything is an answer.
        let is_answer = |example: &Span| (2..example.length).contains(&example.first_learned);
        let (examples, block) = (file.examples(), self.block_size());
        if self.packing().is_some() || !examples.iter().any(is_answer) {
            return;
        }
        let rows = file.tokens() / block as u64;
        let starts = (0..rows).map(|row| row * block as u64);
        let inside = starts.filter(|start| {
            let next = examples.partition_point(|one| one.start + u64::from(one.length) <= *start);
            let example = examples.get(next).filter(|example| is_answer(example));
            example.is_some_and(|one| *start > one.start + u64::from(one.first_learned))
        });
        let inside = inside.count();
        if inside > 0 {
            tracing::warn!(
                "about {} of {} rows of `data.block_size` {block} begin inside an answer and do not see its \
                 question: `data.packing: true` keeps examples whole",
                thousands(inside as u64),
                thousands(rows)
            );
        }
    }

    fn all(&self, file: &Rc<TokenFile>, path: &str) -> Sequences {
        self.rows(file, file.examples().to_vec(), path)
    }

    /// The training and the held-out rows of one file.
    fn split(&self, file: &Rc<TokenFile>, path: &str) -> Result<(Sequences, Sequences), Error> {
        let data = &self.config.data;
        let fraction = data.validation_fraction;
        if self.packing().is_none() && !data.validation_shuffle {
            let tokens = file.tokens();
            let cut = tokens - (tokens as f64 * fraction) as u64;
            let part = |range| Sequences::wrapped(file, [range], self.block_size());
            return Ok((part((0, cut)), part((cut, tokens))));
        }
        let seed = data.validation_shuffle.then_some(self.config.seed);
        let (learned, measured) = divided(file.examples(), fraction, seed, &path)?;
        Ok((
            self.rows(file, learned, path),
            self.rows(file, measured, path),
        ))
    }

    /// Fails, with what to set, when one of the parts has no row.
    fn require_rows(
        &self,
        training: &Sequences,
        held_out: Option<&Sequences>,
        path: &str,
    ) -> Result<(), Error> {
        let (block, tokens) = (self.block_size(), training.tokens());
        let whole = training.rows();
        if whole == Some(0) {
            return Err(Error::Data(format!(
                "`{path}` has no example of which something is learned within `data.block_size` \
                 {block}"
            )));
        }
        if tokens == 0 && whole.is_none() {
            return Err(Error::Data(format!(
                "`{path}` has no tokens to train on: there is no text in it, or all of it is held out"
            )));
        }
        if whole.is_none() && tokens <= block as u64 {
            let smaller = match tokens {
                ..=2 => String::new(),
                _ => format!("`data.block_size: {}` or less, ", tokens - 1),
            };
            return Err(Error::Data(format!(
                "`{path}` has {} tokens to train on, and one row of `data.block_size` {block} needs \
                 more: set {smaller}`data.packing: false` for one example a row, or give more data",
                thousands(tokens)
            )));
        }
        if let Some(held_out) = held_out
            && held_out.measured(Some(1)).0.is_empty()
        {
            let other = self.config.data.eval_data();
            let source = other.unwrap_or_else(|| format!("the held-out part of `{path}`"));
            return Err(Error::Data(format!(
                "{source} has nothing to measure: raise `data.validation_fraction`, name other \
                 data with `data.eval_dataset`, or set `data.validation_fraction: 0` to hold \
                 nothing out"
            )));
        }
        Ok(())
    }

    /// `data.jsonl, 1,200 training and 60 held-out tokens`.
    fn describe(&self, name: &str, training: &Sequences, held_out: Option<&Sequences>) -> String {
        let count = |part: &Sequences| thousands(part.rows().unwrap_or(part.tokens()));
        let unit = match self.packing() {
            Some(_) if self.config.preference.is_some() => "rows of two answers",
            None => "tokens",
            Some(true) => "rows of whole examples",
            Some(false) => "examples, one a row",
        };
        let training = count(training);
        match (held_out, self.config.data.eval_data()) {
            (None, _) => format!("{name}, {training} training {unit}, nothing held out"),
            (Some(part), None) => {
                format!(
                    "{name}, {training} training and {} held-out {unit}",
                    count(part)
                )
            }
            (Some(part), Some(other)) => format!(
                "{name}, {training} training {unit}, and {} held out of {other}",
                count(part)
            ),
        }
    }
}
