//! The words that a text must have for an expression to match in it. The build script uses them as well.

use regex_syntax::ast::{self, Ast, ClassSetItem, RepetitionKind, RepetitionRange};

/// A shorter word says too little to be worth a search.
const SHORTEST_WORD: usize = 3;
/// Longer words are cut: they are found no more often, and make the search larger.
const LONGEST_WORD: usize = 12;
/// The most words that parts of an expression in a row are multiplied out to.
const MOST_PRODUCTS: usize = 24;
/// The most words that are searched for instead of an expression.
const MOST_WORDS: usize = 100;

/// Words of which every match of an expression has at least one; `None` if there are no such words.
pub(crate) fn required(text: &str) -> Option<Vec<String>> {
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

/// Whether an expression over bytes is valid, and has a word that every match of it contains.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let mut parser = regex_syntax::ParserBuilder::new()
        .unicode(false)
        .utf8(false)
        .build();
    parser.parse(text).map_err(|error| error.to_string())?;
    match required(text) {
        Some(_) => Ok(()),
        None => Err("three letters in a row must be in all that it matches, so that it is tried on few lines".to_owned()),
    }
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
