//! Converts a Jinja2 template to an equivalent one for minijinja.
//!
//! | Jinja2 | here |
//! |---|---|
//! | `{% generation %}…{% endgeneration %}`, as transformers adds it | the filter `__generation` |
//! | `'%d items' % n` | the filter `format` |
//! | `{% for x in y %}`, refused where `y` is none | `{% for x in (y)\|__iterable %}` |

use std::sync::LazyLock;

use regex::Regex;

/// `source` for minijinja.
pub(super) fn adapted(source: &str) -> Result<String, String> {
    let patterns = patterns().ok_or("a pattern of this module is wrong")?;
    if patterns.safe_sum.is_match(source) {
        return Err(
            "it concatenates to the result of `|safe`, which Jinja2 then escapes for HTML; that is not \
            supported here"
                .into(),
        );
    }
    let mut out = String::with_capacity(source.len() + 256);
    let mut rest = source;
    while let Some(at) = rest.find(['{']) {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let close = match tag.as_bytes().get(1) {
            Some(b'#') => "#}",
            Some(b'{') => "}}",
            Some(b'%') => "%}",
            _ => {
                out.push('{');
                rest = &tag[1..];
                continue;
            }
        };
        let Some(length) = tag_length(tag, close) else {
            // The engine reports the error.
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(length);
        rest = after;
        if close == "#}" {
            out.push_str(tag);
            continue;
        }
        let word = tag[2..].trim_start_matches(['-', '+']).trim_start();
        if close == "%}" && word.starts_with("autoescape") {
            return Err(
                "it escapes for HTML (`{% autoescape %}`), which is not supported here".into(),
            );
        }
        if let Some(name) = patterns.of_macros.find(tag) {
            return Err(format!(
                "it reads `{}` of a macro, which is not supported here",
                name.as_str()
            ));
        }
        if close == "%}" && word.starts_with("raw") {
            out.push_str(tag);
            let end = patterns
                .end_raw
                .find(rest)
                .map_or(rest.len(), |end| end.end());
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        } else if let Some(found) = patterns.generation.captures(tag) {
            let (left, right) = (&found[1], &found[3]);
            let block = match found.get(2) {
                Some(_) => "endfilter",
                None => "filter __generation",
            };
            out.push_str(&format!("{{%{left} {block} {right}%}}"));
        } else if close == "%}" && word.starts_with("for ") {
            out.push_str(&with_iterable(&with_printf(tag, &patterns.operand)));
        } else {
            out.push_str(&with_printf(tag, &patterns.operand));
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Whether a template marks what the assistant says with tags.
pub(super) fn has_generation_tags(source: &str) -> bool {
    patterns().is_some_and(|patterns| patterns.tagged.is_match(source))
}

struct Patterns {
    generation: Regex,
    tagged: Regex,
    end_raw: Regex,
    /// The operand of `%`: a tuple, or a name with what follows it.
    operand: Regex,
    safe_sum: Regex,
    /// What Jinja2 passes to a macro besides its arguments.
    of_macros: Regex,
}

fn patterns() -> Option<&'static Patterns> {
    static PATTERNS: LazyLock<Option<Patterns>> = LazyLock::new(|| {
        let operand = r#"^\s*(\((?:[^()]|\([^()]*\))*\)|'[^']*'|"[^"]*"|\d+|[A-Za-z_][\w.]*(?:\[[^\]]*\]|\([^()]*\)|\.\w+)*)"#;
        Some(Patterns {
            generation: Regex::new(r"^\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}$").ok()?,
            tagged: Regex::new(r"\{%[-+]?\s*generation\s*[-+]?%\}").ok()?,
            end_raw: Regex::new(r"\{%[-+]?\s*endraw\s*[-+]?%\}").ok()?,
            operand: Regex::new(operand).ok()?,
            safe_sum: Regex::new(r"\|\s*safe\s*[+~]").ok()?,
            of_macros: Regex::new(r"\b(?:varargs|kwargs)\b").ok()?,
        })
    });
    PATTERNS.as_ref()
}

/// The length of the tag at the start of `text` in bytes, including `close`.
fn tag_length(text: &str, close: &str) -> Option<usize> {
    if close == "#}" {
        return text.find(close).map(|at| at + 2);
    }
    let mut at = 2;
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with(close) {
            return Some(at + 2);
        }
        at += match literal_length(rest) {
            Some(length) => length,
            None => rest.chars().next().map_or(1, char::len_utf8),
        };
    }
    None
}

/// The length of the string literal at the start of `text` in bytes, including quotes.
fn literal_length(text: &str) -> Option<usize> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        if !escaped && character == quote {
            return Some(at + 1);
        }
        escaped = !escaped && character == '\\';
    }
    None
}

/// `'literal' % operand` as `('literal'|format(operand))`.
fn with_printf(tag: &str, operand: &Regex) -> String {
    let mut out = String::with_capacity(tag.len());
    let mut rest = tag;
    while let Some(at) = rest.find(['\'', '"']) {
        out.push_str(&rest[..at]);
        let Some(length) = literal_length(&rest[at..]) else {
            rest = &rest[at..];
            break;
        };
        let (literal, after) = rest[at..].split_at(length);
        let given = after.trim_start().strip_prefix('%');
        let found = given.and_then(|given| Some((given, operand.find(given)?)));
        match found {
            Some((given, found)) => {
                let operand = found.as_str().trim();
                let inner = operand.strip_prefix('(').and_then(|o| o.strip_suffix(')'));
                let arguments = inner.unwrap_or(operand).trim_end_matches([',', ' ']);
                out.push_str(&format!("({literal}|format({arguments}))"));
                rest = &given[found.end()..];
            }
            None => {
                out.push_str(literal);
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// Passes the values of a `for` through a filter that accepts everything iterable.
fn with_iterable(tag: &str) -> String {
    let Some(start) = word(tag, 2, "in").map(|at| at + 2) else {
        return tag.to_owned();
    };
    let end = tag.len() - 2;
    let end = match tag.as_bytes()[end - 1] {
        b'-' | b'+' => end - 1,
        _ => end,
    };
    let stop = |name| word(tag, start, name).unwrap_or(end);
    let stop = stop("if").min(stop("recursive"));
    let (head, values, tail) = (&tag[..start], tag[start..stop].trim(), &tag[stop..]);
    format!("{head} ({values})|__iterable {tail}")
}

/// The position of the word `name` from `from` on, outside literals and brackets.
fn word(tag: &str, from: usize, name: &str) -> Option<usize> {
    let (mut at, mut depth) = (from, 0);
    let mut before = ' ';
    while at < tag.len() {
        let rest = &tag[at..];
        if let Some(length) = literal_length(rest) {
            at += length;
            before = '"';
            continue;
        }
        let apart = |c: char| !(c.is_alphanumeric() || c == '_' || c == '.');
        if depth == 0
            && apart(before)
            && let Some(after) = rest.strip_prefix(name)
            && after.starts_with(apart)
        {
            return Some(at);
        }
        before = rest.chars().next()?;
        match before {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        at += before.len_utf8();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_means_something_else_in_minijinja_is_rewritten() {
        for (source, expected) in [
            ("a 'b' % (c) {{ d }}", "a 'b' % (c) {{ d }}"),
            (
                "{{ '%s: %d' % (a.b, c[0]) }}",
                "{{ ('%s: %d'|format(a.b, c[0])) }}",
            ),
            (
                "{{ f('%Y') + '-%m' % x + 'y' }}",
                "{{ f('%Y') + ('-%m'|format(x)) + 'y' }}",
            ),
            (
                "{% if a == 'b' %}%c{% endif %}",
                "{% if a == 'b' %}%c{% endif %}",
            ),
            (
                "{{ a % 2 }}{{ '}}' % b }}",
                "{{ a % 2 }}{{ ('}}'|format(b)) }}",
            ),
            (
                "{%- for a, b in c['in'] if d is defined -%}",
                "{%- for a, b in (c['in'])|__iterable if d is defined -%}",
            ),
            ("{% for a in b -%}", "{% for a in (b)|__iterable -%}"),
            (
                "{# 'x' % y #}{% raw %}{{ 'x' % y }}{% endraw %}",
                "{# 'x' % y #}{% raw %}{{ 'x' % y }}{% endraw %}",
            ),
        ] {
            assert_eq!(adapted(source).unwrap(), expected);
        }
        assert!(adapted("{{ 'a'|safe + b }}").is_err());
    }
}
