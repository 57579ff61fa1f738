//! The data of a fine-tuning run: read, turned into tokens, and divided into what is learned and what
//! is held out.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use serde_json::json;

use super::blocks::TrainingBlocks;
use super::sequences::{Fitting, Sequences};
use super::shown::{self, ShownData};
use crate::Error;
use crate::config::{Config, DataConfig};
use crate::data::{cache_folder, held_out_records, sweep};
use crate::examples::{Encoder, Span, TokenFile, records_of_columns};
use crate::locate::Located;
use crate::observer::Observer;
use crate::text::thousands;

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
        let path = located.training;
        let parts = Parts {
            config,
            fitting: Cell::default(),
        };
        let file = Rc::new(tokens(&path, data, encoder, observer)?);
        let (training, held_out) = match located.held_out {
            Some(other) => {
                let training = parts.all(&file, &path);
                let measured = Rc::new(tokens(&other, data, encoder, observer)?);
                (training, Some(parts.all(&measured, &other)))
            }
            None if data.validation_fraction == 0.0 => (parts.all(&file, &path), None),
            None => {
                let (training, held_out) = parts.split(&file, &path)?;
                (training, Some(held_out))
            }
        };
        parts.require_rows(&training, held_out.as_ref(), &path)?;
        let mut identity = json!({
            "fingerprint": file.fingerprint(),
            "block_size": data.block_size,
            "seed": config.seed,
            "training_tokens": training.tokens(),
        });
        if let Some(packing) = data.packing {
            identity["packing"] = packing.into();
        }
        if data.validation_shuffle {
            identity["validation_shuffle"] = true.into();
        }
        if let Some(moment) = encoder.moment() {
            identity["moment"] = moment.into();
        }
        let name = match data.dataset {
            Some(_) => "shakespeare".into(),
            None => path.display().to_string(),
        };
        Ok(Self {
            blocks: TrainingBlocks::new(training.order(config.seed)?, &config.train, identity),
            description: parts.describe(&name, &training, held_out.as_ref()),
            fitting: parts.fitting.get().unwrap_or_default(),
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

/// The records of `path` as tokens.
fn tokens(
    path: &Path,
    data: &DataConfig,
    encoder: &Encoder,
    observer: &mut dyn Observer,
) -> Result<TokenFile, Error> {
    let mut shown = 0;
    let mut on_progress = |records: u64, tokens: u64| {
        if tokens >= shown + 1_000_000 {
            shown = tokens;
            let (tokens, records) = (thousands(tokens), thousands(records));
            observer.preparing(&format!("tokenising: {tokens} tokens of {records} texts"));
        }
    };
    let tokens = cache_folder().join("tokens");
    sweep(&tokens);
    TokenFile::temporary(
        &tokens,
        records_of_columns(path, data.format, &data.columns)?,
        encoder,
        &mut on_progress,
    )
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

    /// Rows of these examples of a file.
    fn rows(&self, file: &Rc<TokenFile>, examples: Vec<Span>, path: &Path) -> Sequences {
        let block_size = self.block_size();
        let Some(packed) = self.config.data.packing else {
            let ranges = examples.iter();
            let ranges = ranges.map(|one| (one.start, one.start + u64::from(one.length)));
            return Sequences::wrapped(file, ranges, block_size);
        };
        let count = examples.len() as u64;
        let (rows, fitting) = Sequences::whole(file, examples, block_size, packed);
        if self.fitting.get().is_none() {
            self.fitting.set(Some(fitting));
        }
        let Fitting {
            truncated,
            left_out,
        } = fitting;
        let (path, count) = (path.display(), thousands(count));
        if truncated > 0 {
            tracing::warn!(
                "{} of {count} examples of `{path}` are longer than `data.block_size` \
                 {block_size}, and end there",
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

    fn all(&self, file: &Rc<TokenFile>, path: &Path) -> Sequences {
        self.rows(file, file.examples().to_vec(), path)
    }

    /// The training and the held-out rows of one file.
    fn split(&self, file: &Rc<TokenFile>, path: &Path) -> Result<(Sequences, Sequences), Error> {
        let data = &self.config.data;
        let fraction = data.validation_fraction;
        if data.packing.is_none() && !data.validation_shuffle {
            let tokens = file.tokens();
            let cut = tokens - (tokens as f64 * fraction) as u64;
            let part = |range| Sequences::wrapped(file, [range], self.block_size());
            return Ok((part((0, cut)), part((cut, tokens))));
        }
        let examples = file.examples();
        if examples.len() < 2 {
            return Err(Error::Data(format!(
                "`{}` has one record, which cannot be divided: set `data.validation_fraction: 0` \
                 to hold nothing out, or `data.eval_dataset` to other data",
                path.display()
            )));
        }
        let seed = data.validation_shuffle.then_some(self.config.seed);
        let chosen = held_out_records(examples.len(), fraction, seed);
        let part = |held_out: bool| -> Vec<Span> {
            let examples = examples.iter().zip(&chosen);
            let examples = examples.filter(|(_, chosen)| **chosen == held_out);
            examples.map(|(example, _)| *example).collect()
        };
        Ok((
            self.rows(file, part(false), path),
            self.rows(file, part(true), path),
        ))
    }

    /// Fails, with what to set, when one of the parts has no row.
    fn require_rows(
        &self,
        training: &Sequences,
        held_out: Option<&Sequences>,
        path: &Path,
    ) -> Result<(), Error> {
        let (block, tokens) = (self.block_size(), training.tokens());
        let path = path.display();
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
        let unit = match self.config.data.packing {
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
