//! Writes a function for each line of `operators.txt`, which `operators.py` made. In a line `CODES RESULT: names`,
//! a name is tch's, or tch's with the operator's after `=`; `CODES` has one for each argument of its schema:
//!
//! | code | argument |
//! |---|---|
//! | `T` `t` `L` `l` | a tensor, one that may be null, a list of those |
//! | `S` | a `Scalar` |
//! | `i` `f` `b` `s`, `I` `F` | an integer, a number, a truth value, a string; one that may be missing |
//! | `A` `D`, `a` | integers, numbers; integers that may be missing |
//! | `N` | integers that are `SymInt` in C++, beside a `Scalar` |
//! | `K` `d` `Y`, `k` `y` | a dtype, a device, a layout; a dtype or layout that may be missing |
//! | `o`, `O` | dtype, layout, device, pinned; an empty tensor of these, which the operator fills |
//! | `_`, `m`, `{1}` | the default: nothing, a contiguous memory format, a `Scalar` |
//! | `>`, `&`, `?` | before: an output, which C has first; a tensor that is written to. After: optional in the schema |
//!
//! `RESULT` is a number of tensors, or `L`, `b`, `i`, `f`. Codes after `-` are of functions that no operator is like.

use std::fmt::Write;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=operators.txt");
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    // The tests have the C++ bindings beside these, which are linked to libtorch.
    if let Ok(root) = std::env::var("LIBTORCH") {
        println!("cargo::rustc-link-arg-tests=-Wl,-rpath={root}/lib");
    }
    let table = include_str!("operators.txt");
    let mut source = String::new();
    let mut shape = Shape::default();
    for line in table.lines() {
        let names = match line.split_once(':') {
            Some((head, names)) => {
                shape = Shape::new(head);
                names
            }
            None => line,
        };
        for name in names.split_whitespace() {
            shape.write(&mut source, name).expect("a string takes all");
        }
    }
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    std::fs::write(folder.join("operators.rs"), source).expect("cargo's folder can be written to");
}

/// What the functions of a line have in common.
#[derive(Default)]
struct Shape {
    codes: String,
    result: String,
    parameters: String,
    words: String,
}

impl Shape {
    fn new(head: &str) -> Self {
        let (codes, result) = head.split_once(' ').expect("codes and a result");
        let returned = match result {
            "L" => " -> *mut *mut C_tensor",
            "b" => " -> c_int",
            "i" => " -> i64",
            "f" => " -> f64",
            _ => "",
        };
        let mut outputs = Vec::new();
        let mut inputs = Vec::new();
        let mut words = Vec::new();
        let mut is_output = false;
        let mut is_default = false;
        for code in codes.chars() {
            is_default = (is_default || code == '{') && code != '}';
            if !is_default {
                for of in types(code) {
                    let name = format!("a{}", words.len());
                    let list = if is_output { &mut outputs } else { &mut inputs };
                    list.push(format!("{name}: {of}"));
                    words.push(format!("{name}.word()"));
                }
            }
            is_output = code == '>' || is_output && types(code).is_empty();
        }
        let tensors =
            matches!(result.parse(), Ok(1..)).then(|| "out: *mut *mut C_tensor".to_owned());
        let parameters: Vec<String> = tensors.into_iter().chain(outputs).chain(inputs).collect();
        Self {
            codes: codes.to_owned(),
            result: result.to_owned(),
            parameters: format!("({}){returned}", parameters.join(", ")),
            words: words.join(", "),
        }
    }

    fn write(&self, source: &mut String, name: &str) -> std::fmt::Result {
        let Self {
            codes,
            result,
            parameters,
            words,
        } = self;
        let (name, operator) = name.split_once('=').unwrap_or((name, name));
        let (operator, overload) = operator.split_once('.').unwrap_or((operator, ""));
        let out = if parameters.starts_with("(out") {
            "out"
        } else {
            "null_mut()"
        };
        let way = match codes.as_bytes() {
            [b'-', ..] => "Refused",
            _ if codes.contains(['S', '{']) => "Scalar",
            _ => "Dispatcher",
        };
        writeln!(
            source,
            r#"pub unsafe fn atg_{name}{parameters} {{
    static OPERATOR: Operator = Operator::new(Way::{way}, c"aten::{operator}", c"{overload}", "{codes}", "{result}");
    // SAFETY: the caller keeps to the schema, as tch does.
    unsafe {{ FromWord::from_word(OPERATOR.call({out}, &[{words}])) }}
}}"#
        )
    }
}

/// The parameters in C for a code; none for what is no code of an argument.
fn types(code: char) -> &'static [&'static str] {
    match code {
        'T' | 't' => &["*mut C_tensor"],
        'S' => &["*mut C_scalar"],
        'L' | 'l' => &["*const *mut C_tensor", "c_int"],
        'A' | 'N' | 'a' => &["*const i64", "c_int"],
        'D' => &["*const f64", "c_int"],
        's' => &["*const u8", "c_int"],
        'i' => &["i64"],
        'I' => &["i64", "i8"],
        'f' => &["f64"],
        'F' => &["f64", "i8"],
        'b' | 'K' | 'k' | 'd' => &["c_int"],
        'Y' | 'y' => &["i8"],
        'o' | 'O' => &["c_int", "c_int"],
        _ => &[],
    }
}
