//! The output of jobs, as plain text.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use schemars::JsonSchema;
use serde::Serialize;

use super::{JobId, Queue};
use crate::runs::{Error, RunName, identity};

/// The file in a run's folder with the output of its jobs.
pub(super) const OUTPUT: &str = "output.log";
/// The most bytes of a log in one answer.
const MAX_PART_BYTES: u64 = 128 << 10;

/// A part of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LogPart {
    /// The file that it is from.
    pub inode: u64,
    /// Where the part starts, in bytes.
    pub from: u64,
    /// Where it ends, and the next part starts, in bytes.
    pub to: u64,
    /// Whole lines, without terminal escape sequences.
    pub text: String,
}

impl Queue {
    /// The output of a run's jobs from byte `from` of the file `inode` on, or its end; `None` for a run that was not
    /// started by a queue.
    ///
    /// # Errors
    /// [`Error::NotFound`], or an I/O error.
    pub fn run_log(
        &self,
        run: &RunName,
        from: Option<(u64, u64)>,
    ) -> Result<Option<LogPart>, Error> {
        let file = self.runs().file_of(run, OUTPUT)?;
        let io = |error| Error::io("read", &self.runs().root().join(run.as_str()), error);
        file.map(|file| part(file, from)).transpose().map_err(io)
    }

    /// The output of a job, wherever its log is.
    ///
    /// # Errors
    /// [`Error::NoJob`], or an I/O error.
    pub fn job_log(&self, id: JobId, from: Option<(u64, u64)>) -> Result<Option<LogPart>, Error> {
        let job = self.job(id)?;
        if let Some(run) = job.state.run() {
            match self.run_log(run, from) {
                Ok(Some(part)) => return Ok(Some(part)),
                Ok(None) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let path = self.log_path(id);
        match File::open(&path) {
            Ok(file) => {
                let part = part(file, from).map_err(|error| Error::io("read", &path, error))?;
                Ok(Some(part))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io("read", &path, error)),
        }
    }
}

/// The part that starts there, or the last one.
fn part(mut file: File, from: Option<(u64, u64)>) -> io::Result<LogPart> {
    let metadata = file.metadata()?;
    let (inode, length) = (identity(&metadata), metadata.len());
    let known = from.filter(|(of, at)| *of == inode && *at <= length);
    let at = match known {
        Some((_, at)) => at,
        None => length.saturating_sub(MAX_PART_BYTES),
    };
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    file.take(MAX_PART_BYTES).read_to_end(&mut bytes)?;
    // A part at an arbitrary position starts with the rest of a line, which is skipped.
    let skipped = match known.is_none() && at > 0 {
        true => bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1),
        false => 0,
    };
    // A line that is still being written comes complete with the next part, unless it fills this one.
    let end = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(end) => end + 1,
        None if bytes.len() as u64 == MAX_PART_BYTES => bytes.len(),
        None => skipped,
    };
    Ok(LogPart {
        inode,
        from: at + skipped as u64,
        to: at + end as u64,
        text: plain(&String::from_utf8_lossy(&bytes[skipped..end])),
    })
}

/// Removes terminal escape sequences: cursor movements, colours, titles. If a line is overwritten, its earlier
/// contents stay as a line of their own.
pub fn plain(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' => match letters.next() {
                // CSI: parameters, and one final letter.
                Some('[') => {
                    while letters
                        .next_if(|letter| matches!(letter, ' '..='?'))
                        .is_some()
                    {}
                    letters.next_if(|letter| matches!(letter, '@'..='~'));
                }
                // A string that ends with BEL or ESC \.
                Some(']' | 'P' | 'X' | '^' | '_') => {
                    while let Some(letter) = letters.next_if(|letter| *letter != '\n') {
                        if letter == '\u{7}' {
                            break;
                        }
                        if letter == '\u{1b}' {
                            letters.next_if_eq(&'\\');
                            break;
                        }
                    }
                }
                Some('\n') => result.push('\n'),
                _ => {}
            },
            '\r' if letters.peek() == Some(&'\n') => {}
            '\r' => result.push('\n'),
            '\n' | '\t' => result.push(letter),
            // Characters that change the writing direction can make a line look like another.
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            letter if letter.is_control() => {}
            letter => result.push(letter),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn terminal_escape_sequences_are_removed() {
        for (text, expected) in [
            ("\u{1b}[1;31mred\u{1b}[0m\n", "red\n"),
            ("\u{1b}]0;title\u{7}after\n", "after\n"),
            ("\u{1b}]8;;http://x\u{1b}\\link\n", "link\n"),
            ("10%\r20%\r\n", "10%\n20%\n"),
            ("a\u{8}b\0c\td\n", "abc\td\n"),
            ("\u{202e}evil\u{9b}31m", "evil31m"),
            ("<b>&amp;</b>", "<b>&amp;</b>"),
            ("cut \u{1b}[31", "cut "),
            ("\u{1b}]open\nnext\n", "\nnext\n"),
        ] {
            assert_eq!(plain(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn only_plain_text_is_left(text in "[\\x00-\\x7f\u{9b}\u{202e}]{0,60}") {
            let left = plain(&text);
            let is_text = |letter: char| letter == '\n' || letter == '\t' || !letter.is_control();
            prop_assert!(left.chars().all(is_text));
            prop_assert_eq!(plain(&left), left);
        }
    }

    #[test]
    fn a_log_is_read_from_the_reader_s_position() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"one\ntwo\nthr").unwrap();
        let again = || file.try_clone().unwrap();
        let first = part(again(), None).unwrap();
        assert_eq!((first.text.as_str(), first.to), ("one\ntwo\n", 8));
        (&file).seek(SeekFrom::End(0)).unwrap();
        (&file).write_all(b"ee\n").unwrap();
        let next = part(again(), Some((first.inode, first.to))).unwrap();
        assert_eq!((next.text.as_str(), next.to), ("three\n", 14));
        // Another file, or a truncated one: its end.
        for from in [(first.inode + 1, 8), (first.inode, 99)] {
            assert_eq!(part(again(), Some(from)).unwrap().from, 0);
        }
    }

    #[test]
    fn the_end_of_a_long_log_starts_with_a_whole_line() {
        let mut file = tempfile::tempfile().unwrap();
        for number in 0..40_000 {
            writeln!(file, "line {number}").unwrap();
        }
        let part = part(file, None).unwrap();
        assert!(part.text.len() as u64 <= MAX_PART_BYTES);
        assert!(part.text.starts_with("line ") && part.text.ends_with("line 39999\n"));
    }
}
