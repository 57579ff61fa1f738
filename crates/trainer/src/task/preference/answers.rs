//! The rows of preferences: prompts with two answers each.
//!
//! ```text
//! pairs      row i   prompt i + chosen i          prompt i + rejected i
//! KTO        row i   prompt i + answer i          prompt i + the answer of the row before
//! ```
//!
//! KTO's second answers are those of TRL: those of each group of as many records as a batch has, in the order of the
//! file, rotated by one. Pairs become records for KTO as there, too: of each thousand, all that were chosen, and then
//! all that were rejected.

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::records::{Judged, Span, TokenFile};
use crate::task::Batch;
use crate::task::sequences::{Fitting, IGNORED, Part};

/// Pairs that are divided into records together: the rows that `datasets` maps at once.
const TOGETHER: usize = 1000;

/// What rows are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::task) enum Form {
    /// Pairs.
    Pairs,
    /// Pairs of which the whole of what was chosen is learned, prompt included.
    WholePairs,
    /// Single answers, and those of another prompt of this many.
    Mismatched(usize),
}

/// A prompt with an answer: first tokens in the file, and how many.
#[derive(Debug, Clone, Copy)]
struct Text {
    prompt: (u64, u32),
    answer: (u64, u32),
    /// Tokens of the answer that do not fit.
    cut: u32,
}

impl Text {
    fn new(start: u64, length: u32, prompt: u32) -> Self {
        Self {
            prompt: (start, prompt),
            answer: (start + u64::from(prompt), length - prompt),
            cut: 0,
        }
    }

    /// This prompt with the answer of another text, within `longest` tokens.
    fn answered_by(self, other: Self, longest: u32) -> Self {
        let all = other.answer.1 + other.cut;
        let length = all.min(longest - self.prompt.1);
        Self {
            answer: (other.answer.0, length),
            cut: all - length,
            ..self
        }
    }

    fn length(self) -> usize {
        (self.prompt.1 + self.answer.1) as usize
    }

    fn tokens(self, file: &TokenFile) -> Result<Vec<u32>, Error> {
        let mut tokens = file.block(self.prompt.0, self.prompt.1 as usize)?.tokens;
        tokens.extend(file.block(self.answer.0, self.answer.1 as usize)?.tokens);
        Ok(tokens)
    }
}

/// Rows of two texts each.
pub(in crate::task) struct Answers {
    rows: Vec<[Text; 2]>,
    /// Of single answers, whether each is desirable.
    desirable: Vec<bool>,
    form: Form,
}

impl Answers {
    /// The rows of these examples, in texts of at most `longest` tokens.
    pub(in crate::task) fn new(examples: &[Span], longest: u32, form: Form) -> (Self, Fitting) {
        let mut fitting = Fitting::default();
        let mut fits = |texts: &mut [Text]| {
            if texts.iter().any(|text| text.prompt.1 >= longest) {
                fitting.left_out += 1;
                return false;
            }
            for text in &mut *texts {
                *text = text.answered_by(*text, longest);
            }
            fitting.truncated += u64::from(texts.iter().any(|text| text.cut > 0));
            true
        };
        let pair = |example: &Span| match example.judged {
            Judged::Pair {
                second,
                prompts: [one, other],
            } => {
                let rest = example.length - second;
                Some([
                    Text::new(example.start, second, one),
                    Text::new(example.start + u64::from(second), rest, other),
                ])
            }
            _ => None,
        };
        let (mut rows, mut desirable) = (Vec::new(), Vec::new());
        let Form::Mismatched(together) = form else {
            for mut pair in examples.iter().filter_map(pair) {
                if fits(&mut pair) {
                    rows.push(pair);
                }
            }
            let answers = Self {
                rows,
                desirable,
                form,
            };
            return (answers, fitting);
        };
        let mut texts = Vec::new();
        let mut keep = |mut text: Text, is_desirable: bool| {
            if fits(std::slice::from_mut(&mut text)) {
                texts.push(text);
                desirable.push(is_desirable);
            }
        };
        // Pairs in a row, and single answers.
        for stretch in examples.chunk_by(|one, other| pair(one).is_some() == pair(other).is_some())
        {
            for example in stretch {
                if let Judged::One { prompt, desirable } = example.judged {
                    keep(Text::new(example.start, example.length, prompt), desirable);
                }
            }
            let pairs: Vec<_> = stretch.iter().filter_map(pair).collect();
            for pairs in pairs.chunks(TOGETHER) {
                for (side, is_desirable) in [(0, true), (1, false)] {
                    pairs.iter().for_each(|pair| keep(pair[side], is_desirable));
                }
            }
        }
        for group in texts.chunks(together.max(1)) {
            let before = group.iter().cycle().skip(group.len() - 1);
            let pairs = group.iter().zip(before);
            rows.extend(pairs.map(|(own, other)| [*own, own.answered_by(*other, longest)]));
        }
        let answers = Self {
            rows,
            desirable,
            form,
        };
        (answers, fitting)
    }

    pub(in crate::task) fn rows(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Whether they are used in the order of the file: so the answers of a batch and its second ones are the same.
    pub(in crate::task) fn in_order(&self) -> bool {
        matches!(self.form, Form::Mismatched(_))
    }

    pub(in crate::task) fn tokens(&self) -> u64 {
        self.rows
            .iter()
            .flatten()
            .map(|text| text.length() as u64)
            .sum()
    }

    /// Tokens in the longer text of each row.
    pub(in crate::task) fn lengths(&self) -> Vec<u32> {
        let longer = |[one, other]: &[Text; 2]| one.length().max(other.length()) as u32;
        self.rows.iter().map(longer).collect()
    }

    /// Tokens in the longest text.
    pub(in crate::task) fn longest(&self) -> usize {
        self.lengths().into_iter().max().unwrap_or(0) as usize
    }

    /// The row with the longest text.
    pub(in crate::task) fn longest_row(&self) -> Option<usize> {
        let length = |row: &usize| self.rows[*row].iter().map(|text| text.length()).max();
        (0..self.rows.len()).max_by_key(length)
    }

    fn row(&self, number: u64) -> Result<[Text; 2], Error> {
        let row = self.rows.get(number as usize);
        row.copied()
            .ok_or_else(|| Error::Internal(format!("no row {number}")))
    }

    /// `tokens` and `targets`, the token after each where that is of the answer, `[rows, 2, longest]`; `real`, whether
    /// each is not padding, where there is some; for KTO `desirable`, `[rows]`; of pairs `chosen_tokens`, the mean number
    /// of targets of what was chosen, `[rows]`; and where that is learned as a whole `texts`, all of its targets, `[rows,
    /// longest]`. And how many targets answers have.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(in crate::task) fn batch(
        &self,
        file: &TokenFile,
        numbers: &[u64],
    ) -> Result<(Batch, u64), Error> {
        let rows = numbers.iter().map(|number| self.row(*number));
        let rows = rows.collect::<Result<Vec<_>, Error>>()?;
        let width = rows.iter().flatten().map(|text| text.length()).max();
        let width = width.unwrap_or(0);
        let [mut tokens, mut targets, mut real, mut texts] = [const { Vec::new() }; 4];
        let (mut units, mut learned, mut chosen) = (0, 0, 0);
        let count_of = |ids: &[i64]| ids.iter().filter(|id| **id != IGNORED).count() as u64;
        for row in &rows {
            for (side, text) in row.iter().enumerate() {
                let ids = text.tokens(file)?;
                let filled = |from: usize, to: usize| {
                    // The token after each, from one on.
                    let after = |at: usize| match (from..to).contains(&(at + 1)) {
                        true => i64::from(ids[at + 1]),
                        false => IGNORED,
                    };
                    (0..width).map(after).collect::<Vec<i64>>()
                };
                let answer = filled(text.prompt.1 as usize, ids.len());
                learned += count_of(&answer);
                if side == 0 && self.form == Form::WholePairs {
                    let text = filled(1, ids.len());
                    chosen += count_of(&text);
                    texts.extend(text);
                } else if side == 0 {
                    chosen += count_of(&answer);
                }
                targets.extend(answer);
                units += ids.len() as u64;
                tokens.extend(ids.iter().map(|id| i64::from(*id)));
                tokens.resize(tokens.len() + width - ids.len(), 0);
                real.extend((0..width).map(|at| i64::from(at < ids.len())));
            }
        }
        let count = rows.len() as i64;
        let shaped = |numbers: &[i64]| -> Result<Tensor, Error> {
            Ok(Tensor::f_from_slice(numbers)?.f_view([count, 2, width as i64])?)
        };
        let mut tensors = vec![("tokens", shaped(&tokens)?), ("targets", shaped(&targets)?)];
        if real.contains(&0) {
            tensors.push(("real", shaped(&real)?));
        }
        if let Form::Mismatched(_) = self.form {
            let desirable = numbers.iter().map(|number| {
                let desirable = self.desirable.get(*number as usize);
                f32::from(desirable.copied().unwrap_or_default())
            });
            let desirable: Vec<f32> = desirable.collect();
            tensors.push(("desirable", Tensor::f_from_slice(&desirable)?));
        } else {
            let mean = chosen as f64 / count as f64;
            let mean = Tensor::f_full([count], mean, (Kind::Float, Device::Cpu))?;
            tensors.push(("chosen_tokens", mean));
        }
        if self.form == Form::WholePairs {
            let texts = Tensor::f_from_slice(&texts)?.f_view([count, width as i64])?;
            tensors.push(("texts", texts));
        }
        Ok((Batch::new(tensors, units), learned))
    }

    /// The texts of a row, for people.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(in crate::task) fn parts(&self, file: &TokenFile, number: u64) -> Result<Vec<Part>, Error> {
        let texts = self.row(number)?;
        let desirable = self.desirable.get(number as usize);
        let names = match desirable {
            None => ["chosen", "rejected"],
            Some(true) => ["desirable", "of another prompt"],
            Some(false) => ["undesirable", "of another prompt"],
        };
        let part = |(text, name): (Text, &'static str)| {
            let tokens = text.tokens(file)?;
            let learned = (0..tokens.len()).map(|at| at > 0 && at >= text.prompt.1 as usize);
            Ok(Part {
                name: Some(name),
                learned: learned.collect(),
                tokens,
                before: 0,
                after: text.cut.into(),
            })
        };
        texts.into_iter().zip(names).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of `(prompt, chosen, rejected)` tokens, one after the other.
    fn pairs(lengths: &[[u32; 3]]) -> Vec<Span> {
        let mut start = 0;
        let span = |[prompt, chosen, rejected]: &[u32; 3]| {
            let span = Span {
                start,
                length: 2 * prompt + chosen + rejected,
                first_learned: *prompt,
                judged: Judged::Pair {
                    second: prompt + chosen,
                    prompts: [*prompt; 2],
                },
            };
            start += u64::from(span.length);
            span
        };
        lengths.iter().map(span).collect()
    }

    /// Token `n` of the file is `n`.
    fn file() -> TokenFile {
        let folder = tempfile::tempdir().unwrap();
        TokenFile::of_words(folder.path(), (0..100).map(|id| (id, true))).unwrap()
    }

    fn shown(answers: &Answers) -> Vec<[Vec<u32>; 2]> {
        let row = |number| answers.parts(&file(), number).unwrap();
        let rows = (0..answers.rows()).map(row);
        rows.map(|parts| [0, 1].map(|side: usize| parts[side].tokens.clone()))
            .collect()
    }

    #[test]
    fn pairs_are_cut_at_their_end_and_left_out_when_nothing_of_an_answer_fits() {
        let examples = pairs(&[[1, 2, 3], [1, 9, 1], [5, 1, 1]]);
        let (answers, fitting) = Answers::new(&examples, 4, Form::Pairs);
        assert_eq!(
            fitting,
            Fitting {
                truncated: 1,
                left_out: 1
            }
        );
        let rows = [
            [vec![0, 1, 2], vec![3, 4, 5, 6]],
            [vec![7, 8, 9, 10], vec![17, 18]],
        ];
        assert_eq!(shown(&answers), rows);
        assert_eq!((answers.rows(), answers.longest()), (2, 4));
        let (batch, learned) = answers.batch(&file(), &[0]).unwrap();
        let targets = batch.get("targets").unwrap().view(-1);
        let no = IGNORED;
        assert_eq!(
            Vec::<i64>::try_from(&targets).unwrap(),
            [1, 2, no, no, 4, 5, 6, no]
        );
        assert_eq!((learned, batch.units), (5, 7));
    }

    #[test]
    fn whole_texts_are_targets_of_what_was_chosen() {
        let (answers, _) = Answers::new(&pairs(&[[3, 1, 1], [1, 1, 1]]), 9, Form::WholePairs);
        let (batch, _) = answers.batch(&file(), &[0, 1]).unwrap();
        let no = IGNORED;
        let texts = Vec::<i64>::try_from(&batch.get("texts").unwrap().view(-1)).unwrap();
        assert_eq!(texts, [1, 2, 3, no, 9, no, no, no]);
        let mean = Vec::<f32>::try_from(batch.get("chosen_tokens").unwrap()).unwrap();
        assert_eq!(mean, [2.0; 2]);
    }

    /// As TRL does: chosen first, then rejected; and in each group the answer of the one before, the first with the last.
    #[test]
    fn single_answers_of_pairs_are_mismatched_within_groups() {
        let mut examples = pairs(&[[1, 1, 1], [1, 1, 1]]);
        examples.push(Span {
            start: 50,
            length: 2,
            first_learned: 1,
            judged: Judged::One {
                prompt: 1,
                desirable: true,
            },
        });
        let (answers, _) = Answers::new(&examples, 9, Form::Mismatched(3));
        let rows = [
            [vec![0, 1], vec![0, 3]],
            [vec![4, 5], vec![4, 1]],
            [vec![2, 3], vec![2, 5]],
            [vec![6, 7], vec![6, 51]],
            [vec![50, 51], vec![50, 7]],
        ];
        assert_eq!(shown(&answers), rows);
        let (batch, _) = answers.batch(&file(), &[0, 1, 2, 3, 4]).unwrap();
        let desirable = Vec::<f32>::try_from(batch.get("desirable").unwrap()).unwrap();
        assert_eq!(desirable, [1.0, 1.0, 0.0, 0.0, 1.0]);
    }
}
