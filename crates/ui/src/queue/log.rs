//! What jobs print, as plain text.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use serde::Serialize;

use super::{JobId, Queue};
use crate::runs::{Error, RunName, identity};

/// The file in a run's folder that has what its jobs printed.
pub(super) const OUTPUT: &str = "output.log";
/// Most bytes of a log in one answer.
const PIECE: u64 = 128 << 10;

/// A part of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogPart {
    /// Which file it is of.
    pub inode: u64,
    /// Where the part begins, in bytes.
    pub from: u64,
    /// Where it ends: the next part begins there.
    pub to: u64,
    /// Whole lines, without the codes of terminals.
    pub text: String,
}

impl Queue {
    /// What the jobs of a run printed, from byte `from` of the file `inode` on, or its end; nothing of a run that
    /// was started elsewhere.
    ///
    /// # Errors
    /// [`Error::NotFound`], or what the system says.
    pub fn run_log(
        &self,
        run: &RunName,
        from: Option<(u64, u64)>,
    ) -> Result<Option<LogPart>, Error> {
        let file = self.runs().file_of(run, OUTPUT)?;
        let io = |error| Error::io("read", &self.runs().root().join(run.as_str()), error);
        file.map(|file| part(file, from)).transpose().map_err(io)
    }

    /// What a job printed, wherever it is by now.
    ///
    /// # Errors
    /// [`Error::NoJob`], or what the system says.
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

/// The part from there on, or the last one.
fn part(mut file: File, from: Option<(u64, u64)>) -> io::Result<LogPart> {
    let metadata = file.metadata()?;
    let (inode, length) = (identity(&metadata), metadata.len());
    let known = from.filter(|(of, at)| *of == inode && *at <= length);
    let at = match known {
        Some((_, at)) => at,
        None => length.saturating_sub(PIECE),
    };
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    file.take(PIECE).read_to_end(&mut bytes)?;
    // A part that begins anywhere begins with what is left of a line.
    let skipped = match known.is_none() && at > 0 {
        true => bytes
            .iter()
            .position(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1),
        false => 0,
    };
    // A line that is still being written comes whole later, unless it fills the piece.
    let end = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(end) => end + 1,
        None if bytes.len() as u64 == PIECE => bytes.len(),
        None => skipped,
    };
    Ok(LogPart {
        inode,
        from: at + skipped as u64,
        to: at + end as u64,
        text: plain(&String::from_utf8_lossy(&bytes[skipped..end])),
    })
}

/// Text without the codes that move a terminal's cursor, change its colours or its title. Where a line is written
/// over, what it was before stays as a line of its own.
pub fn plain(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' => match letters.next() {
                // Parameters, and one letter that says what is done with them.
                Some('[') => {
                    while letters
                        .next_if(|letter| matches!(letter, ' '..='?'))
                        .is_some()
                    {}
                    letters.next_if(|letter| matches!(letter, '@'..='~'));
                }
                // A text that ends with BEL or ESC \.
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
            // What turns the direction of writing around can make a line look like another.
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
    fn codes_of_terminals_are_taken_out() {
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
        fn nothing_but_text_is_left(text in "[\\x00-\\x7f\u{9b}\u{202e}]{0,60}") {
            let left = plain(&text);
            let is_text = |letter: char| letter == '\n' || letter == '\t' || !letter.is_control();
            prop_assert!(left.chars().all(is_text));
            prop_assert_eq!(plain(&left), left);
        }
    }

    #[test]
    fn a_log_is_read_from_where_the_reader_stands() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"one\ntwo\nthr").unwrap();
        let again = || file.try_clone().unwrap();
        let first = part(again(), None).unwrap();
        assert_eq!((first.text.as_str(), first.to), ("one\ntwo\n", 8));
        (&file).seek(SeekFrom::End(0)).unwrap();
        (&file).write_all(b"ee\n").unwrap();
        let next = part(again(), Some((first.inode, first.to))).unwrap();
        assert_eq!((next.text.as_str(), next.to), ("three\n", 14));
        // Another file, or one that was cut: the end of it.
        for from in [(first.inode + 1, 8), (first.inode, 99)] {
            assert_eq!(part(again(), Some(from)).unwrap().from, 0);
        }
    }

    #[test]
    fn of_a_long_log_the_end_is_shown_and_begins_with_a_line() {
        let mut file = tempfile::tempfile().unwrap();
        for number in 0..40_000 {
            writeln!(file, "line {number}").unwrap();
        }
        let part = part(file, None).unwrap();
        assert!(part.text.len() as u64 <= PIECE);
        assert!(part.text.starts_with("line ") && part.text.ends_with("line 39999\n"));
    }
}
