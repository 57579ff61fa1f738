//! The rows that a published model learns from and is measured on, cut from the tokens of examples.
//!
//! ```text
//! unset              │A A A A B B│B C C C C D│      examples without gaps, cut where a row ends
//! packing: true      │A A A A C C│B B B D ·  │      whole examples that do not see each other
//! packing: false     │A A A A    │B B B      │      one example each
//! preferences        │P A A A    │P R R      │      a prompt with either answer
//! ```
//!
//! Rows are padded on the right to the longest of their batch: with causal attention, no token sees that.

use std::collections::BTreeMap;
use std::rc::Rc;

use tch::Tensor;

use super::Batch;
use super::blocks::{held_out_starts, spread};
use super::preference::{Answers, Form};
use crate::Error;
use crate::config::Config;
use crate::data::BlockOrder;
use crate::records::{Span, TokenFile};
use models::text::Example;

/// Target of a token that is not learned.
pub(super) const IGNORED: i64 = -100;

/// Rows of tokens, by number.
pub(super) struct Sequences {
    file: Rc<TokenFile>,
    block_size: usize,
    rows: Rows,
}

/// An example, or a part of one, as it stands in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// What it is to the others of the row, if they are not alike.
    pub(super) name: Option<&'static str>,
    pub(super) tokens: Vec<u32>,
    /// Whether each is learned here, from those before it in the row.
    pub(super) learned: Vec<bool>,
    /// Tokens of the example before these, and behind them.
    pub(super) before: u64,
    pub(super) after: u64,
}

enum Rows {
    Wrapped(Stream),
    Whole {
        /// The examples of each row.
        rows: Vec<Vec<Span>>,
        packed: bool,
    },
    Answers(Answers),
}

/// Pieces of a file, one after the other, as one text.
#[derive(Debug, Default)]
struct Stream {
    /// The first token of each piece in this text, and in the file.
    pieces: Vec<(u64, u64)>,
    tokens: u64,
}

/// What was done to examples that do not make a row as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Fitting {
    /// Longer than a row, and cut there.
    pub(super) truncated: u64,
    /// Of which nothing is left to learn, and which are left out.
    pub(super) left_out: u64,
}

impl Sequences {
    /// Full rows of `ranges` of tokens (first, and behind the last), one after the other.
    pub(super) fn wrapped(
        file: &Rc<TokenFile>,
        ranges: impl IntoIterator<Item = (u64, u64)>,
        block_size: usize,
    ) -> Self {
        let mut stream = Stream::default();
        for (start, end) in ranges {
            let last = stream.pieces.last();
            let follows = last.is_some_and(|(at, first)| first + (stream.tokens - at) == start);
            if end > start && !follows {
                stream.pieces.push((stream.tokens, start));
            }
            stream.tokens += end.saturating_sub(start);
        }
        Self {
            file: file.clone(),
            block_size,
            rows: Rows::Wrapped(stream),
        }
    }

    /// Rows of whole examples: of one each, or of as many as fit.
    pub(super) fn whole(
        file: &Rc<TokenFile>,
        examples: impl IntoIterator<Item = Span>,
        block_size: usize,
        packed: bool,
    ) -> (Self, Fitting) {
        let longest = block_size as u32;
        let mut fitting = Fitting::default();
        let mut kept = Vec::new();
        for example in examples {
            fitting.truncated += u64::from(example.length > longest);
            let length = example.length.min(longest);
            match example.first_learned < length {
                true => kept.push(Span { length, ..example }),
                false => fitting.left_out += 1,
            }
        }
        let rows = match packed {
            true => best_fit_decreasing(kept, longest),
            false => kept.into_iter().map(|example| vec![example]).collect(),
        };
        let rows = Rows::Whole { rows, packed };
        let file = file.clone();
        (
            Self {
                file,
                block_size,
                rows,
            },
            fitting,
        )
    }

    /// Rows of prompts with two answers each.
    pub(super) fn answers(
        file: &Rc<TokenFile>,
        examples: &[Span],
        block_size: usize,
        form: Form,
    ) -> (Self, Fitting) {
        let (answers, fitting) = Answers::new(examples, block_size as u32, form);
        let whole = Self {
            file: file.clone(),
            block_size,
            rows: Rows::Answers(answers),
        };
        (whole, fitting)
    }

    /// Tokens in all rows.
    pub(super) fn tokens(&self) -> u64 {
        match &self.rows {
            Rows::Wrapped(stream) => stream.tokens,
            Rows::Whole { rows, .. } => rows.iter().map(|row| tokens_of(row)).sum(),
            Rows::Answers(answers) => answers.tokens(),
        }
    }

    /// How many rows there are to train on; `None` where that depends on how they are cut.
    pub(super) fn rows(&self) -> Option<u64> {
        match &self.rows {
            Rows::Wrapped(_) => None,
            Rows::Whole { rows, .. } => Some(rows.len() as u64),
            Rows::Answers(answers) => Some(answers.rows()),
        }
    }

    /// Whether several examples share a row without seeing each other.
    pub(super) fn packed(&self) -> bool {
        matches!(self.rows, Rows::Whole { packed: true, .. })
    }

    /// Tokens in the longest row.
    pub(super) fn longest(&self) -> usize {
        match &self.rows {
            Rows::Wrapped(_) => self.block_size,
            Rows::Whole { rows, .. } => {
                let lengths = rows.iter().map(|row| tokens_of(row) as usize);
                lengths.max().unwrap_or(0)
            }
            Rows::Answers(answers) => answers.longest(),
        }
    }

    /// The longest row, as [`Sequences::batch`] numbers them.
    pub(super) fn longest_row(&self) -> u64 {
        let longest = match &self.rows {
            Rows::Wrapped(_) => None,
            Rows::Whole { rows, .. } => (0..rows.len()).max_by_key(|row| tokens_of(&rows[*row])),
            Rows::Answers(answers) => answers.longest_row(),
        };
        longest.unwrap_or(0) as u64
    }

    /// The order to train in.
    ///
    /// # Errors
    /// When there is not a single row, or there are too many.
    pub(super) fn order(&self, config: &Config) -> Result<BlockOrder, Error> {
        let by_length = config.train.group_by_length;
        let (count, block) = match &self.rows {
            Rows::Wrapped(stream) => (stream.tokens, self.block_size),
            // Each start is the number of a row.
            Rows::Whole { rows, .. } => (rows.len() as u64 + 1, 1),
            Rows::Answers(answers) => (answers.rows() + 1, 1),
        };
        if count > u64::from(u32::MAX) {
            return Err(Error::Data(
                "at most 4 billion tokens, or rows, can be trained on".into(),
            ));
        }
        match count as usize > block {
            true => {
                let order = BlockOrder::new(config.seed, count as usize, block);
                Ok(match &self.rows {
                    Rows::Answers(answers) if answers.in_order() => order.in_order(),
                    Rows::Answers(answers) if by_length => order.by_length(answers.lengths()),
                    Rows::Whole { rows, .. } if by_length => {
                        let lengths = rows.iter().map(|row| tokens_of(row) as u32);
                        order.by_length(lengths.collect())
                    }
                    _ => order,
                })
            }
            false => Err(Error::Internal("no row to train on".into())),
        }
    }

    /// Rows to measure, in order: all, or `limit` of them spread evenly; and whether that is all.
    pub(super) fn measured(&self, limit: Option<u64>) -> (Vec<u64>, bool) {
        match &self.rows {
            Rows::Wrapped(stream) => held_out_starts(stream.tokens, self.block_size, limit),
            Rows::Whole { rows, .. } => spread(rows.len() as u64, limit),
            Rows::Answers(answers) => spread(answers.rows(), limit),
        }
    }

    /// Inputs, the token after each, and for packed rows the position of each token in its example,
    /// all `[rows, longest]`; and how many targets are learned.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn batch(&self, numbers: &[u64]) -> Result<(Batch, u64), Error> {
        if let Rows::Answers(answers) = &self.rows {
            return answers.batch(&self.file, numbers);
        }
        let rows = numbers.iter().map(|number| self.row(*number));
        let rows = rows.collect::<Result<Vec<_>, Error>>()?;
        let width = rows.iter().map(Row::length).max().unwrap_or(0);
        let units: usize = rows.iter().map(Row::length).sum();
        let learned = rows.iter().flat_map(|row| &row.targets);
        let learned = learned.filter(|target| **target != IGNORED).count();
        let tensor = |part: fn(&Row) -> &[i64], padding: fn(i64) -> i64| -> Result<Tensor, Error> {
            let mut numbers = Vec::with_capacity(rows.len() * width);
            for row in &rows {
                let part = part(row);
                numbers.extend_from_slice(part);
                numbers.extend((0..(width - part.len()) as i64).map(padding));
            }
            let shape = [rows.len() as i64, width as i64];
            Ok(Tensor::f_from_slice(&numbers)?.f_view(shape)?)
        };
        let mut tensors = vec![
            ("tokens", tensor(|row| &row.tokens, |_| 0)?),
            ("targets", tensor(|row| &row.targets, |_| IGNORED)?),
        ];
        if rows.iter().any(|row| row.length() < width) {
            // One for each token that is not padding.
            let places = tensor(|row| &row.positions, |_| -1)?;
            tensors.push(("real", places.f_ge(0)?.f_to_kind(tch::Kind::Int64)?));
        }
        if self.packed() {
            // The padding is an example of its own, which nobody sees.
            tensors.push(("positions", tensor(|row| &row.positions, |place| place)?));
        }
        Ok((Batch::new(tensors, units as u64), learned as u64))
    }

    /// The examples of a row, each with what of it is not there.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn parts(&self, number: u64) -> Result<Vec<Part>, Error> {
        if let Rows::Answers(answers) = &self.rows {
            return answers.parts(&self.file, number);
        }
        // First tokens in the file, and how many.
        let mut stretches = Vec::new();
        match &self.rows {
            Rows::Wrapped(stream) => {
                // With the token after the last, which is learned, too.
                let left = stream.tokens.saturating_sub(number);
                let mut left = left.min(self.block_size as u64 + 1);
                let mut at = number;
                while left > 0 {
                    let (in_file, length) = stream.stretch(at, left)?;
                    stretches.push((in_file, length));
                    (at, left) = (at + length, left - length);
                }
            }
            Rows::Whole { rows, .. } => {
                let examples = rows.get(number as usize).into_iter().flatten();
                stretches.extend(examples.map(|one| (one.start, u64::from(one.length))));
            }
            Rows::Answers(_) => {}
        }
        let isolated = matches!(self.rows, Rows::Whole { .. });
        let mut parts = Vec::new();
        for (start, length) in stretches {
            let examples = self.file.examples();
            let first = examples.partition_point(|one| one.start + u64::from(one.length) <= start);
            let inside = examples[first..].iter();
            for example in inside.take_while(|one| one.start < start + length) {
                let from = example.start.max(start);
                let end = example.start + u64::from(example.length);
                let to = end.min(start + length);
                let Example {
                    tokens,
                    mut learned,
                } = self.file.block(from, (to - from) as usize)?;
                // Nothing stands before the first token that it could be learned from.
                if (parts.is_empty() || isolated)
                    && let Some(first) = learned.first_mut()
                {
                    *first = false;
                }
                parts.push(Part {
                    name: None,
                    tokens,
                    learned,
                    before: from - example.start,
                    after: end - to,
                });
            }
        }
        Ok(parts)
    }

    fn row(&self, number: u64) -> Result<Row, Error> {
        let mut row = Row::default();
        match &self.rows {
            Rows::Wrapped(stream) => {
                let left = stream.tokens.saturating_sub(number + 1);
                let length = left.min(self.block_size as u64) as usize;
                let Example { tokens, learned } = stream.read(&self.file, number, length + 1)?;
                row.extend(&tokens[..length], &tokens[1..], &learned[1..]);
            }
            Rows::Whole { rows, .. } => {
                let examples = rows.get(number as usize);
                let examples =
                    examples.ok_or_else(|| Error::Internal(format!("no row {number}")))?;
                for example in examples {
                    let length = example.length as usize;
                    let Example { tokens, learned } = self.file.block(example.start, length)?;
                    row.extend(&tokens, &tokens[1..], &learned[1..]);
                }
            }
            Rows::Answers(_) => return Err(Error::Internal("a row of answers".into())),
        }
        Ok(row)
    }
}

impl Stream {
    /// Where in the file the token `at` is, and how many of `most` tokens from there on are there too.
    fn stretch(&self, at: u64, most: u64) -> Result<(u64, u64), Error> {
        let piece = self.pieces.partition_point(|(begins, _)| *begins <= at);
        let piece = piece.max(1) - 1;
        let Some((begins, in_file)) = self.pieces.get(piece) else {
            return Err(Error::Internal(format!("no token {at} in a text")));
        };
        let next = self.pieces.get(piece + 1);
        let ends = next.map_or(self.tokens, |(begins, _)| *begins);
        Ok((in_file + (at - begins), most.min(ends.saturating_sub(at))))
    }

    /// `length` tokens from `start` on.
    fn read(&self, file: &TokenFile, start: u64, length: usize) -> Result<Example, Error> {
        let (mut at, mut left) = (start, length as u64);
        let mut whole = Example {
            tokens: Vec::with_capacity(length),
            learned: Vec::with_capacity(length),
        };
        while left > 0 {
            let (in_file, take) = self.stretch(at, left)?;
            if take == 0 {
                return Err(Error::Internal(format!("no token {at} in a text")));
            }
            let part = file.block(in_file, take as usize)?;
            whole.tokens.extend(part.tokens);
            whole.learned.extend(part.learned);
            (at, left) = (at + take, left - take);
        }
        Ok(whole)
    }
}

/// One row of a batch.
#[derive(Default)]
struct Row {
    tokens: Vec<i64>,
    targets: Vec<i64>,
    positions: Vec<i64>,
}

impl Row {
    fn length(&self) -> usize {
        self.tokens.len()
    }

    /// Appends a text: its tokens, and what comes after each, which is nothing after the last
    /// where `next` is the shorter one.
    fn extend(&mut self, tokens: &[u32], next: &[u32], learned: &[bool]) {
        self.tokens.extend(tokens.iter().map(|id| i64::from(*id)));
        let targets = next.iter().zip(learned);
        self.targets
            .extend(targets.map(|(id, learned)| match learned {
                true => i64::from(*id),
                false => IGNORED,
            }));
        self.targets.resize(self.tokens.len(), IGNORED);
        self.positions.extend(0..tokens.len() as i64);
    }
}

fn tokens_of(row: &[Span]) -> u64 {
    row.iter().map(|example| u64::from(example.length)).sum()
}

/// Examples in rows of at most `longest` tokens: the longest first, each into the fullest row that
/// still takes it (best-fit decreasing, as `packing_strategy: bfd` of TRL).
fn best_fit_decreasing(mut examples: Vec<Span>, longest: u32) -> Vec<Vec<Span>> {
    examples.sort_by_key(|example| std::cmp::Reverse(example.length));
    let mut rows: Vec<Vec<Span>> = Vec::new();
    // Rows by what they still take.
    let mut open: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for example in examples {
        let fitting = open.range_mut(example.length..).next();
        let (row, left) = match fitting {
            Some((&left, numbers)) => {
                let row = numbers.pop().unwrap_or_default();
                if numbers.is_empty() {
                    open.remove(&left);
                }
                (row, left)
            }
            None => {
                rows.push(Vec::new());
                (rows.len() - 1, longest)
            }
        };
        rows[row].push(example);
        open.entry(left - example.length).or_default().push(row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::records::Judged;

    fn spans(lengths: &[u32]) -> Vec<Span> {
        let mut start = 0;
        let span = |length: &u32| {
            let span = Span {
                start,
                length: *length,
                first_learned: 1.min(*length),
                judged: Judged::No,
            };
            start += u64::from(*length);
            span
        };
        lengths.iter().map(span).collect()
    }

    proptest! {
        #[test]
        fn packing_keeps_every_example_whole_and_fills_rows(
            lengths in prop::collection::vec(2u32..=32, 1..200),
        ) {
            let rows = best_fit_decreasing(spans(&lengths), 32);
            prop_assert!(rows.iter().all(|row| tokens_of(row) <= 32));
            let mut packed: Vec<_> = rows.concat();
            packed.sort_by_key(|example| example.start);
            prop_assert_eq!(packed, spans(&lengths));
            // No two rows would fit into one.
            let mut sizes: Vec<_> = rows.iter().map(|row| tokens_of(row)).collect();
            sizes.sort_unstable();
            prop_assert!(sizes.len() < 2 || sizes[0] + sizes[1] > 32);
        }
    }

    /// A file whose token `n` is `n`, learned when it is even.
    fn file(tokens: u32) -> Rc<TokenFile> {
        let folder = tempfile::tempdir().unwrap();
        let words = (0..tokens).map(|id| (id, id % 2 == 0));
        Rc::new(TokenFile::of_words(folder.path(), words).unwrap())
    }

    fn rows_of(batch: &Batch, name: &str) -> Vec<Vec<i64>> {
        Vec::<Vec<i64>>::try_from(batch.get(name).unwrap()).unwrap()
    }

    #[test]
    fn wrapped_rows_read_through_the_gaps_of_a_split() {
        let file = file(40);
        let rows = Sequences::wrapped(&file, [(0, 3), (3, 5), (20, 22), (30, 40)], 4);
        assert_eq!(rows.tokens(), 17);
        let (batch, learned) = rows.batch(&[3, 12]).unwrap();
        assert_eq!(
            rows_of(&batch, "tokens"),
            [[3, 4, 20, 21], [35, 36, 37, 38]]
        );
        let targets = [[4, 20, IGNORED, 30], [36, IGNORED, 38, IGNORED]];
        assert_eq!(rows_of(&batch, "targets"), targets);
        assert_eq!((batch.units, learned), (8, 5));
        assert!(batch.find("positions").is_none());
        assert_eq!(rows.measured(None), (vec![0, 4, 8, 12], true));
    }

    #[test]
    fn fewer_held_out_tokens_than_a_row_are_one_short_row() {
        let rows = Sequences::wrapped(&file(40), [(10, 13)], 16);
        assert_eq!(rows.measured(None), (vec![0], true));
        let (batch, learned) = rows.batch(&[0]).unwrap();
        assert_eq!(rows_of(&batch, "tokens"), [[10, 11]]);
        assert_eq!((batch.units, learned), (2, 1));
        let nothing = Sequences::wrapped(&file(40), [(10, 11)], 16);
        assert!(nothing.measured(None).0.is_empty());
    }

    #[test]
    fn examples_of_their_own_are_padded_and_what_is_too_long_is_counted() {
        let file = file(40);
        let examples = [
            (0, 3, 1),
            (3, 9, 1),
            (12, 6, 5),
            (18, 1, 1),
            (19, 4, 4),
            (23, 2, 1),
        ];
        let examples = examples.map(|(start, length, first_learned)| Span {
            start,
            length,
            first_learned,
            judged: Judged::No,
        });
        let (rows, fitting) = Sequences::whole(&file, examples, 5, false);
        // Too long: 3..12 and 12..18, of which nothing is learned before its end; 18..19 and
        // 19..23 teach nothing as they are.
        assert_eq!(
            fitting,
            Fitting {
                truncated: 2,
                left_out: 3
            }
        );
        assert_eq!(
            (rows.rows(), rows.longest(), rows.tokens()),
            (Some(3), 5, 10)
        );
        let (batch, learned) = rows.batch(&[0, 1, 2]).unwrap();
        let tokens = [[0, 1, 2, 0, 0], [3, 4, 5, 6, 7], [23, 24, 0, 0, 0]];
        assert_eq!(rows_of(&batch, "tokens"), tokens);
        let no = IGNORED;
        let targets = [
            [no, 2, no, no, no],
            [4, no, 6, no, no],
            [24, no, no, no, no],
        ];
        assert_eq!(rows_of(&batch, "targets"), targets);
        assert_eq!((batch.units, learned), (10, 4));
    }

    #[test]
    fn packed_rows_say_where_each_example_begins() {
        let file = file(40);
        let examples = spans(&[3, 2, 5, 2]);
        let (rows, _) = Sequences::whole(&file, examples, 5, true);
        assert!(rows.packed());
        assert_eq!(rows.rows(), Some(3));
        let (batch, learned) = rows.batch(&[1, 2]).unwrap();
        assert_eq!(
            rows_of(&batch, "tokens"),
            [[0, 1, 2, 3, 4], [10, 11, 0, 0, 0]]
        );
        let no = IGNORED;
        let targets = [[no, 2, no, 4, no], [no, no, no, no, no]];
        assert_eq!(rows_of(&batch, "targets"), targets);
        assert_eq!(
            rows_of(&batch, "positions"),
            [[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]]
        );
        assert_eq!(learned, 2);
    }
}
