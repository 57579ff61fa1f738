//! Regular expressions that are compiled when a text first has a word that each of their matches must contain.
//!
//! The doctor has more than 2,000 expressions. A text concerns a few of them; compiling all of them would take most of
//! the time that a diagnosis takes.

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex::{Captures, Match, Regex};
use regex_syntax::ast::{self, Ast, ClassSetItem, RepetitionKind, RepetitionRange};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A shorter word says too little to be worth a search.
const SHORTEST_WORD: usize = 3;
/// Longer words are cut: they are found no more often, and make the search larger.
const LONGEST_WORD: usize = 12;
/// The most words that parts of an expression in a row are multiplied out to.
const MOST_PRODUCTS: usize = 24;
/// The most words that are searched for instead of an expression.
const MOST_WORDS: usize = 100;

/// Expressions of which those are compiled that a text may match.
pub(crate) struct Patterns<R> {
    texts: Vec<Cow<'static, str>>,
    compile: fn(&str) -> Option<R>,
    compiled: Vec<OnceLock<Option<R>>>,
    words: Option<AhoCorasick>,
    /// The expressions that need a word, for each word.
    needed_by: Vec<Vec<usize>>,
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
        let (words, needed_by): (Vec<String>, Vec<Vec<usize>>) = by_word.into_iter().unzip();
        let search = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(&words)
            .ok();
        if search.is_none() {
            always = (0..texts.len()).collect();
        }
        Patterns {
            compiled: texts.iter().map(|_| OnceLock::new()).collect(),
            texts,
            compile,
            words: search,
            needed_by,
            always,
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
                found.extend(&self.needed_by[word.pattern().as_usize()]);
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

/// Words of which every match of an expression has at least one; `None` if there are no such words.
fn required(text: &str) -> Option<Vec<String>> {
    let tree = ast::parse::Parser::new().parse(text).ok()?;
    let mut words = Needs::of(&tree).words?;
    for word in &mut words {
        let end = (0..=LONGEST_WORD)
            .rev()
            .find(|&end| word.is_char_boundary(end));
        word.truncate(end.unwrap_or(0));
        word.make_ascii_lowercase();
    }
    words.sort_unstable();
    words.dedup();
    Some(words)
}

/// What a part of an expression needs.
#[derive(Default)]
struct Needs {
    /// All texts that it matches, if they are few.
    exact: Option<Vec<String>>,
    /// Words of which each match has one.
    words: Option<Vec<String>>,
}

impl Needs {
    fn exactly(texts: Vec<String>) -> Needs {
        Needs {
            words: best(None, Some(&texts)),
            exact: Some(texts),
        }
    }

    fn of(tree: &Ast) -> Needs {
        match tree {
            Ast::Empty(_) | Ast::Flags(_) | Ast::Assertion(_) => {
                Needs::exactly(vec![String::new()])
            }
            Ast::Literal(literal) => Needs::of_characters(&[literal.c]),
            Ast::Dot(_) | Ast::ClassUnicode(_) | Ast::ClassPerl(_) => Needs::default(),
            Ast::ClassBracketed(class) if !class.negated => match &class.kind {
                ast::ClassSet::Item(item) => Needs::of_class(item),
                ast::ClassSet::BinaryOp(_) => Needs::default(),
            },
            Ast::ClassBracketed(_) => Needs::default(),
            Ast::Group(group) => Needs::of(&group.ast),
            Ast::Repetition(repetition) => Needs::of_repetition(repetition),
            Ast::Alternation(alternation) => Needs::of_alternatives(&alternation.asts),
            Ast::Concat(concat) => Needs::of_sequence(&concat.asts),
        }
    }

    fn of_characters(characters: &[char]) -> Needs {
        // Only the case of ASCII is ignored in the search, and where an expression ignores case is not looked at.
        let has_case = |c: &char| !c.is_ascii() && (c.is_lowercase() || c.is_uppercase());
        if characters.iter().any(has_case) {
            return Needs::default();
        }
        Needs::exactly(characters.iter().map(char::to_string).collect())
    }

    fn of_class(item: &ClassSetItem) -> Needs {
        const MOST: usize = 4;
        let items = match item {
            ClassSetItem::Union(union) => &union.items[..],
            item => std::slice::from_ref(item),
        };
        let character = |item: &ClassSetItem| match item {
            ClassSetItem::Literal(literal) => Some(literal.c),
            _ => None,
        };
        match items.iter().map(character).collect::<Option<Vec<_>>>() {
            Some(characters) if (1..=MOST).contains(&characters.len()) => {
                Needs::of_characters(&characters)
            }
            _ => Needs::default(),
        }
    }

    fn of_repetition(repetition: &ast::Repetition) -> Needs {
        let needs = Needs::of(&repetition.ast);
        match &repetition.op.kind {
            RepetitionKind::ZeroOrOne => match needs.exact {
                Some(mut texts) if texts.len() < MOST_PRODUCTS => {
                    texts.push(String::new());
                    Needs::exactly(texts)
                }
                _ => Needs::default(),
            },
            RepetitionKind::OneOrMore => Needs {
                exact: None,
                ..needs
            },
            RepetitionKind::Range(range) => match range {
                RepetitionRange::Exactly(0)
                | RepetitionRange::AtLeast(0)
                | RepetitionRange::Bounded(0, _) => Needs::default(),
                _ => Needs {
                    exact: None,
                    ..needs
                },
            },
            RepetitionKind::ZeroOrMore => Needs::default(),
        }
    }

    fn of_alternatives(trees: &[Ast]) -> Needs {
        let all: Vec<Needs> = trees.iter().map(Needs::of).collect();
        let union = |texts: fn(&Needs) -> &Option<Vec<String>>| {
            let all = all.iter().map(|needs| texts(needs).clone());
            let union: Vec<String> = all.collect::<Option<Vec<_>>>()?.concat();
            (union.len() <= MOST_WORDS).then_some(union)
        };
        Needs {
            exact: union(|needs| &needs.exact),
            words: union(|needs| &needs.words),
        }
    }

    fn of_sequence(trees: &[Ast]) -> Needs {
        // The texts of the parts since the last one that matches too many.
        let mut run = vec![String::new()];
        let (mut words, mut is_exact) = (None, true);
        for tree in trees {
            if let Ast::Literal(literal) = tree
                && literal.c.is_ascii()
            {
                run.iter_mut().for_each(|text| text.push(literal.c));
                continue;
            }
            let needs = Needs::of(tree);
            match needs.exact {
                Some(texts) if run.len() * texts.len() <= MOST_PRODUCTS => {
                    let joined = |before: &String| {
                        let before = before.clone();
                        texts
                            .iter()
                            .map(move |text| [&before, text.as_str()].concat())
                    };
                    run = run.iter().flat_map(joined).collect();
                }
                exact => {
                    words = best(words, Some(&run));
                    words = best(words, needs.words.as_deref());
                    run = exact.unwrap_or_else(|| vec![String::new()]);
                    is_exact = false;
                }
            }
        }
        Needs {
            words: best(words, Some(&run)),
            exact: is_exact.then_some(run),
        }
    }
}

/// The words that are in fewer texts: the longer ones, and the fewer.
fn best(known: Option<Vec<String>>, other: Option<&[String]>) -> Option<Vec<String>> {
    let value = |words: &[String]| {
        let shortest = words.iter().map(String::len).min()?;
        (shortest >= SHORTEST_WORD)
            .then(|| 3 * shortest.min(LONGEST_WORD) as isize - words.len() as isize)
    };
    let of_known = known.as_deref().and_then(value);
    match other.and_then(|other| Some((other, value(other)?))) {
        Some((other, worth)) if of_known.is_none_or(|of_known| worth > of_known) => {
            Some(other.to_vec())
        }
        _ => known,
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
