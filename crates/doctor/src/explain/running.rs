//! What a program shows of its work: how fast it goes, and how its loss develops.

use crate::failure;
use crate::signs::{FINISHED, NOT_ON_GPU, RATES};
use aho_corasick::AhoCorasick;
use std::sync::LazyLock;

/// The numbers of the lines that report progress.
#[derive(Default)]
pub(super) struct Running {
    /// A line that shows that something is computed.
    works: Option<String>,
    loss: Series,
    gradient: Series,
    accuracy: Series,
    /// The number of each line of a step or an epoch, whatever it is.
    steps: Series,
    /// A line that shows a first step that goes on for minutes, and how many.
    waiting: Option<(usize, u64)>,
    /// A line that shows steps of minutes, and the seconds of one.
    slow: Option<(usize, f64)>,
    /// How many rows of a table of an epoch have NaN, and the last of them.
    nan_rows: usize,
    nan_line: usize,
    /// The line of a summary whose loss of a whole run is 0.
    without_loss: Option<usize>,
    /// The last line with a number: a bar prints a step again and again.
    last: String,
}

/// A quantity that a program reports again and again.
#[derive(Default)]
struct Series {
    line: usize,
    count: usize,
    first: f64,
    last: f64,
    /// How many of the last values are the same.
    same: usize,
    nan: usize,
    /// From what it fell to exactly 0 within one report.
    fell_from: Option<f64>,
}

static INTERESTING: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    // Constant words: without them nothing here works, and its tests fail.
    AhoCorasick::new([
        "/s",
        "s/it",
        "per second",
        "oss",
        "norm",
        "ccuracy",
        " ± ",
        "<?",
        " nan ",
        "Prompt executed",
        "Processed:",
        "  fps ",
        "====> Epoch",
        "tep ",
        "poch ",
    ])
    .ok()
});

impl Running {
    /// Fewer zeros, or fewer equal values, show nothing: a bar shows each number several times.
    const ZEROS: usize = 4;
    const EQUAL: usize = 6;
    /// Seconds of a step that show no GPU at its usual work.
    const SLOW: f64 = 60.0;
    /// No loss comes from here to 0 in one report.
    const CLEAR: f64 = 0.5;
    /// Fewer numbers of a loss show no direction.
    const MOVING: usize = 3;
    /// A loss that grows so much is no evidence of a training that is right.
    const RISEN: f64 = 4.0;

    pub(super) fn read(&mut self, line: &str, number: usize) {
        let is_interesting = INTERESTING.as_ref().is_some_and(|any| any.is_match(line));
        if !is_interesting || failure::is_prose(line) {
            return;
        }
        let value = |names: &[&str]| names.iter().find_map(|name| value_of(line, name));
        let values = [
            value(&["loss", "Loss"]).or_else(|| value(&["loss_mel", "loss_gen", "loss_g"])),
            value(&["grad_norm", "grad norm"]),
            value(&["accuracy", "Accuracy"]),
        ];
        if values.iter().any(Option::is_some) && self.last != line {
            line.clone_into(&mut self.last);
            let all = [&mut self.loss, &mut self.gradient, &mut self.accuracy];
            for (series, value) in all.into_iter().zip(values) {
                if let Some(value) = value {
                    series.add(value, number);
                }
            }
        }
        if let Some(value) = value_of_step(line) {
            self.steps.add(value, number);
        }
        let all = [&self.loss, &self.gradient, &self.steps];
        if self.works.is_none() && all.into_iter().any(Series::moves) {
            self.works = Some(super::clip(line.trim(), 160).to_owned());
        }
        if values[0] == Some(0.0) && is_summary(line) {
            self.without_loss = Some(number);
        }
        if is_row_of_nan(line) {
            self.nan_rows += 1;
            self.nan_line = number;
        }
        if let Some(minutes) = minutes_of_first_step(line) {
            self.waiting = Some((number, minutes));
        }
        if let Some(seconds) = seconds_of_step(line).filter(|&seconds| seconds >= Self::SLOW) {
            self.slow = Some((number, seconds));
        } else if (self.works.is_none() || self.waiting.is_some() || self.slow.is_some())
            && shows_work(line)
        {
            (self.waiting, self.slow) = (None, None);
            let shown = || super::clip(line.trim(), 160).to_owned();
            self.works.get_or_insert_with(shown);
        }
    }

    /// The line that shows a program at work, unless what it computes is wrong.
    pub(super) fn works(&self) -> Option<&str> {
        let is_wrong = self.loss.nan > 0 || self.sentences().next().is_some();
        self.works.as_deref().filter(|_| !is_wrong)
    }

    /// What is wrong with the numbers, in words that the catalogue knows, each with its line.
    pub(super) fn sentences(&self) -> impl Iterator<Item = (usize, String)> {
        let (loss, gradient, accuracy) = (&self.loss, &self.gradient, &self.accuracy);
        let mut told = Vec::new();
        if loss.is_zero() && gradient.last == 0.0 {
            told.push((
                loss.line,
                format!("training: the loss is exactly 0 in {} reports", loss.same),
            ));
        } else if let Some(before) = loss.fell_from.filter(|_| loss.last == 0.0) {
            told.push((
                loss.line,
                format!("training: the loss falls from {before} to exactly 0"),
            ));
        } else if let Some(line) = self.without_loss {
            told.push((
                line,
                "training: the loss of the whole run is exactly 0".to_owned(),
            ));
        } else if loss.is_constant() {
            told.push((
                loss.line,
                format!(
                    "training: the loss stays exactly {} in {} reports",
                    loss.last, loss.same
                ),
            ));
        } else if gradient.is_zero() {
            told.push((
                gradient.line,
                format!(
                    "training: the norm of the gradient is exactly 0 in {} reports",
                    gradient.same
                ),
            ));
        }
        if self.nan_rows > 0 {
            told.push((
                self.nan_line,
                format!("training: the loss is nan in {} rows", self.nan_rows),
            ));
        }
        if let Some((line, minutes)) = self.waiting {
            told.push((
                line,
                format!("training: the first step has not ended after {minutes} minutes"),
            ));
        }
        if let Some((line, seconds)) = self.slow {
            told.push((line, format!("training: a step takes {seconds:.0} seconds")));
        }
        let is_chance = [0.5, 50.0].contains(&accuracy.last);
        if accuracy.is_constant() && is_chance {
            told.push((
                accuracy.line,
                format!(
                    "training: the accuracy stays at chance in {} reports",
                    accuracy.same
                ),
            ));
        }
        told.into_iter()
    }
}

impl Series {
    fn add(&mut self, value: f64, line: usize) {
        if value.is_nan() {
            self.nan += 1;
            return;
        }
        if self.count == 0 {
            self.line = line;
            self.first = value;
        }
        if value == 0.0 && self.count > 0 && self.last > Running::CLEAR {
            self.fell_from = Some(self.last);
            self.line = line;
        }
        // The same number as it was printed.
        let is_same = self.count > 0 && value.to_bits() == self.last.to_bits();
        self.same = if is_same { self.same + 1 } else { 1 };
        self.count += 1;
        self.last = value;
    }

    /// Whether it is a number other than 0 that hardly ever was another one.
    fn is_constant(&self) -> bool {
        self.same >= Running::EQUAL && self.same * 10 >= self.count * 8 && self.last != 0.0
    }

    /// Whether it is another number again and again, and none that runs away.
    fn moves(&self) -> bool {
        let is_calm = self.first <= 0.0 || self.last < Running::RISEN * self.first;
        self.count >= Running::MOVING && self.same == 1 && self.last > 0.0 && is_calm
    }

    /// Whether it ends in zeros.
    fn is_zero(&self) -> bool {
        self.same >= Running::ZEROS && self.last == 0.0
    }
}

/// Whether a line reports a rate of work, or the measurement of one.
fn shows_work(line: &str) -> bool {
    if NOT_ON_GPU.iter().any(|word| line.contains(word)) {
        return false;
    }
    let rate = |unit: &&str| {
        let mut found = line.match_indices(*unit);
        found.any(|(at, _)| number_before(&line[..at]).is_some_and(|rate| rate > 0.0))
    };
    // llama-bench: `| llama 7B Q4_0 | 3.56 GiB | 6.74 B | ROCm | 99 | pp512 | 669.04 ± 0.90 |`.
    let is_bench = || {
        let names = ["ROCm", "HIP", "Vulkan"];
        line.starts_with('|')
            && line.contains(" ± ")
            && names.iter().any(|name| line.contains(name))
    };
    // ComfyUI says it after a failure as well, which the failure then shows.
    let is_finished = || FINISHED.iter().any(|words| line.contains(words));
    RATES.iter().any(rate) || is_bench() || is_finished()
}

/// Whether a line sums up a run, as Trainer does: `{'train_runtime': 19.8, …, 'train_loss': 0.0}`, `train_loss  =  0.0`.
fn is_summary(line: &str) -> bool {
    line.contains("train_runtime") || line.trim_start().starts_with("train_loss  ")
}

/// Whether a line is a row of a table of losses, `12/300  7.98G  nan  nan  …`, in which several are NaN.
fn is_row_of_nan(line: &str) -> bool {
    let mut fields = line.split_whitespace();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let epoch = fields.next().and_then(|first| first.split_once('/'));
    epoch.is_some_and(|(at, of)| is_number(at) && is_number(of))
        && fields
            .filter(|field| field.eq_ignore_ascii_case("nan"))
            .count()
            > 1
}

/// For how long a bar shows no step: `0%|          | 0/1600 [12:31<?, ?it/s]`; nothing for a minute.
fn minutes_of_first_step(line: &str) -> Option<u64> {
    const SHORT: u64 = 2;
    let (before, _) = line.split_once("<?")?;
    let (counted, time) = before.rsplit_once('[')?;
    let (step, _) = counted.rsplit_once('/')?;
    let mut parts = time
        .rsplit(':')
        .skip(1)
        .map(|part| part.parse::<u64>().ok());
    let minutes = parts.next()?? + 60 * parts.next().flatten().unwrap_or(0);
    (step.ends_with(" 0") && minutes >= SHORT).then_some(minutes)
}

/// The first number with a decimal point in a line of a step or of an epoch: `Step 10: 0.208075`, `epoch 5/20  train 0.421`.
fn value_of_step(line: &str) -> Option<f64> {
    let line = line.trim_start();
    let rest = ["step ", "Step ", "epoch ", "Epoch ", "iter ", "Iter "]
        .iter()
        .find_map(|word| line.strip_prefix(word))?;
    if !rest.trim_start().starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut words = rest.split([' ', ':', '=', ',', '|', '\t']);
    let number = words.find(|word| word.contains('.') && word.parse::<f64>().is_ok())?;
    number.parse().ok()
}

/// The seconds that a bar gives for a step; one of an epoch or of a whole run has many.
fn seconds_of_step(line: &str) -> Option<f64> {
    let label = line.trim_start().to_ascii_lowercase();
    let has_many = ["epoch", "total"]
        .iter()
        .any(|word| label.starts_with(word));
    if has_many || NOT_ON_GPU.iter().any(|word| line.contains(word)) {
        return None;
    }
    let (before, _) = line.split_once("s/it")?;
    number_before(before)
}

/// The number at the end of a text, before spaces.
fn number_before(text: &str) -> Option<f64> {
    let text = text.trim_end();
    let start = text
        .rfind(|c: char| !c.is_ascii_digit() && c != '.')
        .map_or(0, |at| {
            at + text[at..].chars().next().map_or(1, char::len_utf8)
        });
    text[start..].parse().ok()
}

/// The number that follows a name: `'loss': 0.0`, `loss=nan`, `loss 1.5`.
fn value_of(line: &str, name: &str) -> Option<f64> {
    line.match_indices(name).find_map(|(at, _)| {
        let rest = &line[at + name.len()..];
        let value = rest.trim_start_matches(['\'', '"']);
        let value = value.trim_start_matches([' ', ':', '=', '\'', '"']);
        // A name of its own, and something between it and the number.
        if value.len() == rest.len() {
            return None;
        }
        let end = value
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+')))
            .unwrap_or(value.len());
        let number = &value[..end];
        // Lightning writes `nan.0`.
        let is_nan = number
            .get(..3)
            .is_some_and(|start| start.eq_ignore_ascii_case("nan"));
        match is_nan && !number[3..].starts_with(|c: char| c.is_ascii_alphabetic()) {
            true => Some(f64::NAN),
            false => number.parse().ok(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Running {
        let mut running = Running::default();
        for (at, line) in text.lines().enumerate() {
            running.read(line, at + 1);
        }
        running
    }

    #[test]
    fn numbers_stand_behind_their_names() {
        for (line, expected) in [
            ("{'loss': 0.0, 'grad_norm': 0.0}", Some(0.0)),
            (
                "steps: 5%| 10/200 [00:10<03:10, 1.00it/s, avr_loss=0.123]",
                Some(0.123),
            ),
            ("step 12 loss: 2.5e-1", Some(0.25)),
            ("the loss of a file", None),
            ("train_loss=1.5", Some(1.5)),
        ] {
            assert_eq!(value_of(line, "loss"), expected, "{line}");
        }
        for nan in ["loss=nan", "train_loss=nan.0]", "'loss': NaN,"] {
            assert!(value_of(nan, "loss").is_some_and(f64::is_nan), "{nan}");
        }
        assert_eq!(value_of("loss: nano", "loss"), None);
    }

    #[test]
    fn rates_of_work_are_no_rates_of_the_disk() {
        for line in [
            "100%|####| 20/20 [00:10<00:00,  1.97it/s]",
            "eval time = 4321 ms / 128 runs (33.76 ms per token, 29.62 tokens per second)",
            "| llama 7B Q4_0 | 3.56 GiB | 6.74 B | ROCm | 99 | pp512 | 669.04 ± 0.90 |",
            "12%|#  | 12/100 [01:00<07:20,  5.01s/it]",
        ] {
            assert!(read(line).works().is_some(), "{line}");
        }
        for line in [
            "Fetching 5 files: 100%|####| 5/5 [00:00<00:00, 1234.5it/s]",
            "0%|          | 0/20 [00:00<?, ?it/s]",
            "model.safetensors: 100% 5.0G/5.0G [01:00<00:00, 83.1MB/s]",
            "Loading checkpoint shards: 100%|##| 4/4 [00:08<00:00, 2.1s/it]",
        ] {
            assert_eq!(read(line).works(), None, "{line}");
        }
    }

    #[test]
    fn a_step_of_minutes_shows_no_gpu_at_work() {
        let running = read("  1%|  | 8/1200 [14:10<35:11:20, 106.2s/it]");
        assert_eq!(running.works(), None);
        let told: Vec<_> = running.sentences().collect();
        assert_eq!(told, [(1, "training: a step takes 106 seconds".to_owned())]);
        let bars = "step: 100%|##| 40/40 [02:01<00:00, 3.03s/it]\nepoch:   1%|  | 1/100 [02:25<4:00:12, 145.58s/it]\n";
        let running = read(bars);
        assert_eq!(running.sentences().count(), 0);
        assert!(running.works().is_some());
    }

    #[test]
    fn a_first_step_takes_no_minutes() {
        let minutes = minutes_of_first_step;
        assert_eq!(
            minutes("steps:   0%|          | 0/1600 [12:31<?, ?it/s]"),
            Some(12)
        );
        assert_eq!(
            minutes("  0%|          | 0/20 [1:02:03<?, ?it/s]"),
            Some(62)
        );
        assert_eq!(minutes("  0%|          | 0/20 [00:00<?, ?it/s]"), None);
    }

    #[test]
    fn numbers_that_never_change_are_told() {
        let told = |line: &str| {
            let numbered = |at: usize| format!("step {at}: {line}");
            let running = read(&(0..6).map(numbered).collect::<String>());
            let found = running.sentences().next().map(|(_, text)| text);
            found.unwrap_or_default()
        };
        assert!(told("{'loss': 0.0, 'grad_norm': 0.0}\n").contains("exactly 0 in 6"));
        assert!(told("loss 11.93\n").contains("stays exactly 11.93"));
        assert!(told("loss: 1.1, grad_norm: 0.0\n").contains("stays exactly 1.1"));
        assert!(told("eval_accuracy: 0.5\n").contains("at chance"));
        assert_eq!(told("eval_accuracy: 0.91\n"), "");
        let fell = "{'loss': 2.7044}\n{'loss': 0.0}\n";
        assert!(told(fell).contains("exactly 0"));
        let summary = "  train_loss               =        0.0\n";
        assert!(told(summary).contains("exactly 0"));
        assert_eq!(
            read("val loss: 0.02\nval loss: 0.0\n").sentences().count(),
            0
        );
        let rows =
            "  10/299  7.98G  nan  nan  0  190  640: 100%|##| 93/93 [00:34<00:00, 2.7it/s]\n";
        let running = read(&rows.repeat(2));
        assert_eq!(running.works(), None);
        assert!(
            running
                .sentences()
                .any(|(_, text)| text.contains("nan in 2 rows"))
        );
        for log in [
            "Step 10: 0.208075\nStep 20: 0.237863\nStep 30: 0.181474\n",
            "epoch  1/20  train 0.6921\nepoch  5/20  train 0.4210\nepoch 10/20  train 0.2911\n",
            "{'loss': 0.81}\n{'loss': 0.85}\n{'loss': 0.79}\n",
            "loss_disc=4.3, loss_mel=24.1\nloss_disc=4.1, loss_mel=22.0\nloss_disc=3.9, loss_mel=19.2\n",
            "{'loss': 0.0, 'grad_norm': 0.41}\n{'loss': 0.0001, 'grad_norm': 0.39}\n{'loss': 0.0003, 'grad_norm': 0.43}\n",
        ] {
            assert!(read(log).works().is_some(), "{log}");
        }
        let runs_away = "loss: 2.1\nloss: 80.5\nloss: 9000.1\n";
        assert_eq!(read(runs_away).works(), None);
        let works = read("{'loss': 1.6}\n{'loss': 1.4}\n{'loss': 1.3}\n");
        assert_eq!(works.works(), Some("{'loss': 1.3}"));
        let falling = "loss: 3.1\nloss: 2.9\nloss: 2.9\nloss: 2.7\nloss: 2.7\n";
        assert_eq!(read(falling).sentences().count(), 0);
    }
}
