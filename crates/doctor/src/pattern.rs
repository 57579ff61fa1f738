//! Regular expressions that are compiled when a text first has a word that each of their matches must contain.
//!
//! The doctor has more than 2,000 expressions. A text concerns a few of them; compiling all of them would take most of
//! the time that a diagnosis takes.

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex::{Captures, Match, Regex};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;

pub(crate) mod needs;

use needs::required;

/// Expressions of which those are compiled that a text may match.
pub(crate) struct Patterns<R> {
    texts: Vec<Cow<'static, str>>,
    compile: fn(&str) -> Option<R>,
    compiled: Vec<OnceLock<Option<R>>>,
    words: Option<AhoCorasick>,
    /// The expressions that need a word, for each word.
    needed_by: Vec<Cow<'static, [usize]>>,
    /// The expressions without such a word, which every text may match.
    always: Vec<usize>,
}

impl<R> Patterns<R> {
    /// Expressions that `compile` compiles. Case is ignored in the search for words, so that expressions may ignore it.
    pub(crate) fn new<T: Into<Cow<'static, str>>>(
        texts: impl IntoIterator<Item = T>,
        compile: fn(&str) -> Option<R>,
    ) -> Patterns<R> {
        let texts: Vec<Cow<'static, str>> = texts.into_iter().map(Into::into).collect();
        let mut by_word: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut always = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            match required(text) {
                Some(words) => {
                    for word in words {
                        by_word.entry(word).or_default().push(index);
                    }
                }
                None => always.push(index),
            }
        }
        Patterns {
            always,
            ..Self::with_words(texts, by_word, compile)
        }
    }

    /// The same for expressions whose words are known, each with the expressions that need it; all need one.
    pub(crate) fn with_words<W: AsRef<[u8]>, N: Into<Cow<'static, [usize]>>>(
        texts: Vec<Cow<'static, str>>,
        words: impl IntoIterator<Item = (W, N)>,
        compile: fn(&str) -> Option<R>,
    ) -> Patterns<R> {
        let words = words
            .into_iter()
            .map(|(word, needed_by)| (word, needed_by.into()));
        let (words, needed_by): (Vec<W>, Vec<Cow<'static, [usize]>>) = words.unzip();
        // Without a search, which needs memory alone, nothing is found.
        let search = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(&words)
            .ok();
        Patterns {
            compiled: texts.iter().map(|_| OnceLock::new()).collect(),
            texts,
            compile,
            words: search,
            needed_by,
            always: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Panics if one is not valid.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        for (at, text) in self.texts.iter().enumerate() {
            assert!(self.get(at).is_some(), "{text}");
        }
    }

    #[cfg(test)]
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.iter().map(|text| &**text)
    }

    /// The expressions that a text may match, in their order.
    pub(crate) fn candidates(&self, text: &str) -> Vec<usize> {
        let mut found = self.always.clone();
        if let Some(words) = &self.words {
            for word in words.find_overlapping_iter(text) {
                found.extend(&*self.needed_by[word.pattern().as_usize()]);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Those that match according to `is_match`, in their order.
    pub(crate) fn matching<'a>(
        &'a self,
        text: &'a str,
        is_match: impl Fn(&R, &str) -> bool + 'a,
    ) -> impl Iterator<Item = (usize, &'a R)> {
        let candidates = self.candidates(text).into_iter();
        let compiled = candidates.filter_map(|at| Some((at, self.get(at)?)));
        compiled.filter(move |(_, pattern)| is_match(pattern, text))
    }

    /// Whether a text may match one of them.
    fn may_match(&self, text: &str) -> bool {
        let words = self.words.as_ref();
        !self.always.is_empty() || words.is_some_and(|words| words.is_match(text))
    }

    /// An expression; `None` if it is not valid, which tests rule out.
    pub(crate) fn get(&self, index: usize) -> Option<&R> {
        let compiled = self.compiled[index].get_or_init(|| (self.compile)(&self.texts[index]));
        compiled.as_ref()
    }
}

impl Patterns<Regex> {
    /// Those that match, in their order.
    pub(crate) fn matches<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, &'a Regex)> {
        self.matching(text, Regex::is_match)
    }

    /// The first one that matches.
    pub(crate) fn first_match(&self, text: &str) -> Option<usize> {
        self.matches(text).next().map(|(at, _)| at)
    }
}

/// An expression with Unicode classes.
pub(crate) fn compile(text: &str) -> Option<Regex> {
    Regex::new(text).ok()
}

/// One expression, compiled when a text may match it.
pub(crate) struct Pattern {
    text: &'static str,
    compiled: OnceLock<Patterns<Regex>>,
}

impl Pattern {
    pub(crate) const fn new(text: &'static str) -> Pattern {
        Pattern {
            text,
            compiled: OnceLock::new(),
        }
    }

    /// The expression, if the text has a word that it needs.
    fn of(&self, text: &str) -> Option<&Regex> {
        let new = || Patterns::new([self.text], compile);
        let pattern = self.compiled.get_or_init(new);
        pattern.may_match(text).then(|| pattern.get(0))?
    }

    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.of(text).is_some_and(|pattern| pattern.is_match(text))
    }

    pub(crate) fn find<'a>(&self, text: &'a str) -> Option<Match<'a>> {
        self.of(text)?.find(text)
    }

    pub(crate) fn captures<'a>(&self, text: &'a str) -> Option<Captures<'a>> {
        self.of(text)?.captures(text)
    }

    pub(crate) fn captures_iter<'a>(&self, text: &'a str) -> impl Iterator<Item = Captures<'a>> {
        let pattern = self.of(text).into_iter();
        pattern.flat_map(|pattern| pattern.captures_iter(text))
    }
}

/// Defines expressions as statics, and a test that compiles each of them.
macro_rules! patterns {
    ($($(#[$doc:meta])* $name:ident = $text:expr;)+) => {
        $($(#[$doc])* static $name: $crate::pattern::Pattern = $crate::pattern::Pattern::new($text);)+

        #[cfg(test)]
        #[test]
        fn patterns_are_valid() {
            $($crate::pattern::check(stringify!($name), $text);)+
        }
    };
}
pub(crate) use patterns;

/// Panics if an expression is not valid.
#[cfg(test)]
pub(crate) fn check(name: &str, text: &str) {
    if let Err(error) = Regex::new(text) {
        panic!("{name}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_that_each_match_has() {
        for (text, words) in [
            (
                r"(?i)\bHIP error: invalid (?:device )?function",
                &["hip error: i"][..],
            ),
            (r"lib\w+\.so: cannot open", &[".so: cannot "]),
            (r"\d+ (?:cuda|hip)Error", &[" cudaerror", " hiperror"]),
            (r"a[ _]?bcd|x(?:xyz)+w", &["a bcd", "a_bcd", "abcd", "xyz"]),
            (r"(?:abc)?def\s+x", &["abcdef", "def"]),
            (r"权限不够", &["权限不够"]),
        ] {
            assert_eq!(
                required(text).as_deref(),
                Some(
                    &words
                        .iter()
                        .map(|word| (*word).to_owned())
                        .collect::<Vec<_>>()[..]
                ),
                "{text}"
            );
        }
        for text in [
            r"\w+",
            r"(?:abc)*",
            r"(?:abc){0,3}",
            r"abc|\d",
            r"[^a]bc",
            r"отказано",
            r"ab",
        ] {
            assert_eq!(required(text), None, "{text}");
        }
    }

    /// Expressions over a few letters, so that random texts match them.
    fn expression() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            "[ab]{1,5}",
            Just(".".to_owned()),
            Just(r"\w".to_owned()),
            Just("[ab]".to_owned()),
            Just("[^a]".to_owned()),
            Just("[a-c]".to_owned()),
            Just(r"\b".to_owned()),
            Just(String::new()),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let repeat = prop_oneof![
                Just("?"),
                Just("*"),
                Just("+"),
                Just("{0,2}"),
                Just("{2}"),
                Just("{1,}")
            ];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
                proptest::collection::vec(inner.clone(), 1..4)
                    .prop_map(|parts| format!("(?:{})", parts.join("|"))),
                (inner, repeat).prop_map(|(part, repeat)| format!("({part}){repeat}")),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_match_is_left_out(
            text in "[abAB]{0,14}",
            expression in expression(),
            ignores_case: bool,
        ) {
            let expression = match ignores_case {
                true => format!("(?i){expression}"),
                false => expression,
            };
            let all = Patterns::new([expression.clone()], compile);
            let matches = Regex::new(&expression).is_ok_and(|regex| regex.is_match(&text));
            prop_assert!(!matches || all.may_match(&text), "{expression} in {text}");
            prop_assert!(!matches || all.candidates(&text) == [0], "{expression} in {text}");
        }
    }

    #[test]
    fn only_candidates_are_compiled() {
        let all = Patterns::new(["abc", "(?i)DEF", r"^\d\d", "abcd?"], |text| {
            Regex::new(text).ok()
        });
        assert_eq!(all.candidates("xABCx"), [0, 2, 3]);
        assert_eq!(all.candidates("def abd"), [1, 2]);
        assert!(all.compiled.iter().all(|one| one.get().is_none()));
        assert!(all.get(1).is_some_and(|pattern| pattern.is_match("def")));
    }
}
