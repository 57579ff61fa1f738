//! Turns `catalogue/` into static tables, and refuses what is wrong in it.

#[path = "src/pattern/needs.rs"]
mod needs;
#[allow(unreachable_pub, reason = "it is a part of the crate as well")]
#[path = "src/schema.rs"]
mod schema;

use schema::{Entry, Fact, Scope, Severity, Step};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::{Debug, Write};
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=catalogue");
    let out = env::var("OUT_DIR")?;
    let write = |name: &str, text: String| fs::write(Path::new(&out).join(name), text);
    let entries = schema::read(&files_in("catalogue")?, &[], needs::check)?;
    write("findings.rs", findings(&entries)?)?;
    write("entries.rs", table_of(&entries)?)?;
    write("variables.rs", variables()?)?;
    write("tables.rs", tables()?)?;
    Ok(())
}

/// The files of a folder with their names, sorted.
fn files_in(folder: &str) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let mut files = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        if path.is_file() {
            files.push((path.display().to_string(), fs::read_to_string(&path)?));
        }
    }
    files.sort();
    Ok(files)
}

/// The entries, and the words by which lines that may be theirs are found.
fn table_of(entries: &[Entry]) -> Result<String, Box<dyn Error>> {
    let mut out =
        "/// All entries, in the order of judgement.\npub static ENTRIES: &[Entry] = &[\n"
            .to_owned();
    let mut by_word: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut patterns = 0;
    for entry in entries {
        let Entry {
            id,
            rank,
            severity,
            confidence,
            scope,
            times,
            page_fault,
            said,
            by_numbers: _,
            patterns: own,
            also,
            absent,
            covers,
            cause,
            causes,
            fix,
            ask,
            probe,
            source,
            seen: _,
        } = entry;
        let rank = rank.unwrap_or_default();
        let [causes, fix, ask] = [causes, fix, ask].map(|steps| literal(steps));
        writeln!(
            out,
            "Entry {{ id: {id:?}, rank: {rank}, severity: Severity::{severity:?}, confidence: Confidence::{confidence:?}, \
             scope: Scope::{scope:?}, times: {times}, page_fault: {page_fault}, said: {said}, patterns: &{own:?}, also: &{also:?}, absent: &{absent:?}, covers: &{covers:?}, \
             cause: {cause:?}, causes: {causes}, fix: {fix}, ask: {ask}, probe: &{probe:?}, source: {source:?} }},"
        )?;
        for pattern in own.iter().chain(also).chain(absent) {
            for word in needs::required(pattern).unwrap_or_default() {
                by_word.entry(word).or_default().push(patterns);
            }
            patterns += 1;
        }
    }
    out += "];\npub(crate) static WORDS: &[(&str, &[usize])] = &[\n";
    for row in &by_word {
        writeln!(out, "({:?}, &{:?}),", row.0, row.1)?;
    }
    Ok(out + "];\n")
}

fn literal(steps: &[Step]) -> String {
    let facts = |facts: &[Fact]| -> String {
        facts
            .iter()
            .map(|fact| format!("Fact::{fact:?}, "))
            .collect()
    };
    let steps = steps.iter().map(|step| {
        let (when, unless) = (facts(&step.when), facts(&step.unless));
        format!(
            "Step {{ when: &[{when}], unless: &[{unless}], gpus: &{:?}, named: &{:?}, unnamed: &{:?}, text: {:?} }}, ",
            step.gpus, step.named, step.unnamed, step.text
        )
    });
    format!("&[{}]", steps.collect::<String>())
}

/// What a finding says, as it is written. What is not given is as in the row that it is `like`, which is by default the one whose
/// id is before a slash in its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    id: String,
    like: Option<String>,
    check: Option<String>,
    severity: Option<Severity>,
    scope: Option<Scope>,
    refuted_by_work: Option<bool>,
    covers: Option<Vec<String>>,
    title: Option<String>,
    seen: Option<String>,
    why: Option<String>,
    whys: Option<Vec<Step>>,
    fix: Option<Vec<Step>>,
    probe: Option<Vec<String>>,
    source: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Findings {
    finding: Vec<Said>,
}

/// A static for each row of `catalogue/findings`, so that the compiler finds those that are missing or never said.
fn findings(entries: &[Entry]) -> Result<String, Box<dyn Error>> {
    let mut rows = Vec::new();
    for (name, text) in files_in("catalogue/findings")? {
        let file: Findings = toml::from_str(&text).map_err(|error| format!("{name}: {error}"))?;
        rows.extend(file.finding);
    }
    let of = |id: &str| rows.iter().find(|row| row.id == id);
    let (mut out, mut ids) = (String::new(), Vec::new());
    for row in &rows {
        let place = format!("catalogue/findings: {}", row.id);
        let (id, is_variant) = match row.id.split_once('/') {
            Some((id, _)) => (id, true),
            None => (&*row.id, false),
        };
        let like = row.like.as_deref().or(is_variant.then_some(id));
        let base = match like {
            Some(like) => Some(of(like).ok_or(format!("{place}: there is no {like}"))?),
            None => None,
        };
        macro_rules! given {
            ($key:ident) => {
                row.$key
                    .as_ref()
                    .or(base.and_then(|base| base.$key.as_ref()))
            };
            ($key:ident!) => {
                given!($key).ok_or(format!("{place}: {} is missing", stringify!($key)))?
            };
        }
        let covers = given!(covers).map_or(&[][..], Vec::as_slice);
        if let Some(covered) = covers.iter().find(|covered| {
            of(covered).is_none() && entries.iter().all(|entry| entry.id != **covered)
        }) {
            return Err(format!("{place}: covers: there is no {covered}").into());
        }
        let check = given!(check!);
        let check = check[..1].to_uppercase() + &check[1..];
        let (title, seen, why, source) =
            (given!(title!), given!(seen!), given!(why!), given!(source!));
        let whys = literal(given!(whys).map_or(&[], Vec::as_slice));
        let fix = literal(given!(fix!));
        let probe = given!(probe).map_or(&[][..], Vec::as_slice);
        schema::check_probe(probe).map_err(|error| format!("{place}: {error}"))?;
        let severity = given!(severity!);
        let scope = given!(scope).copied().unwrap_or_default();
        let refuted_by_work = given!(refuted_by_work) == Some(&true);
        let name = row.id.to_uppercase().replace(['-', '/', '.'], "_");
        writeln!(
            out,
            "pub(crate) static {name}: Said = Said {{ id: {id:?}, check: Check::{check}, severity: Severity::{severity:?}, \
             scope: Scope::{scope:?}, refuted_by_work: {refuted_by_work}, covers: &{covers:?}, title: {title:?}, seen: {seen:?}, \
             why: {why:?}, whys: {whys}, fix: {fix}, probe: &{probe:?}, source: {source:?} }};"
        )?;
        if !is_variant {
            ids.push(id);
        }
    }
    out += "/// Every id that a finding about a machine can have; programs rely on them. Findings from a log have those of the entries.\n";
    writeln!(out, "pub const IDS: &[&str] = &{ids:?};")?;
    Ok(out)
}

/// An architecture, and the first releases of ROCm and of the kernel that know it.
type Since = (String, (u32, u32), (u32, u32));

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Names {
    chips: Vec<(String, String)>,
    processors: Vec<(String, String)>,
    since: Vec<Since>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mentions {
    mentions: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Libraries {
    libraries: Vec<(String, String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Components {
    components: Vec<(String, Vec<String>, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variables {
    known: Vec<String>,
    rule: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    names: Vec<String>,
    severity: Severity,
    id: String,
    applies: Option<String>,
    why: String,
    #[serde(default)]
    instead: String,
    source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Distributions {
    signs: Vec<String>,
    apt: String,
    initramfs: String,
    distribution: Vec<Distribution>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Distribution {
    fact: Fact,
    name: String,
    signs: Vec<String>,
    apt: String,
    initramfs: String,
}

/// The tables beside the entries.
fn tables() -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    let names: Names = table("names")?;
    let mut since = Vec::new();
    for (gfx, rocm, kernel) in names.since {
        since.push((version(&gfx)?, rocm, kernel));
    }
    constant(&mut out, "SINCE", "&[Since]", &since)?;
    for (name, rows) in [("CHIPS", names.chips), ("PROCESSORS", names.processors)] {
        let rows: Result<Vec<_>, String> = rows
            .into_iter()
            .map(|(names, gfx)| Ok((names, version(&gfx)?)))
            .collect();
        constant(&mut out, name, "&[(&str, (u8, u8, u8))]", &rows?)?;
    }
    let signs: BTreeMap<String, Vec<String>> = table("signs")?;
    for (name, signs) in signs {
        constant(&mut out, &name.to_uppercase(), "&[&str]", &signs)?;
    }
    let tools: BTreeMap<String, Vec<String>> = table("tools")?;
    out += "pub(crate) const TOOLS: &[(&str, &[&str])] = &[\n";
    for (name, signs) in tools {
        writeln!(out, "({name:?}, &{signs:?}),")?;
    }
    out += "];\n";
    let Mentions { mentions } = table("mentions")?;
    constant(&mut out, "MENTIONS", "&[(&str, &str)]", &mentions)?;
    let phrases: BTreeMap<String, Vec<String>> = table("translations")?;
    let phrases = phrases
        .iter()
        .flat_map(|(english, others)| others.iter().map(move |other| (other, english)));
    constant(
        &mut out,
        "PHRASES",
        "&[(&str, &str)]",
        phrases.collect::<Vec<_>>(),
    )?;
    let keys: BTreeMap<String, Vec<String>> = table("keys")?;
    out += "pub(crate) const KEYS: &[(Field, &[&str])] = &[\n";
    for (field, keys) in keys {
        let words = field
            .split('_')
            .map(|word| word[..1].to_uppercase() + &word[1..]);
        writeln!(out, "(Field::{}, &{keys:?}),", words.collect::<String>())?;
    }
    out += "];\n";
    let Libraries { libraries } = table("shared_libraries")?;
    constant(&mut out, "LIBRARIES", "&[(&str, &str, &str)]", &libraries)?;
    let Components { components } = table("components")?;
    out += "pub(crate) const COMPONENTS: &[(&str, &[&str], &str)] = &[\n";
    for (name, words, ask) in components {
        writeln!(out, "({name:?}, &{words:?}, {ask:?}),")?;
    }
    out += "];\n";

    let all: Distributions = table("distributions")?;
    constant(&mut out, "UBUNTU", "(&str, &str)", (all.apt, all.initramfs))?;
    constant(&mut out, "UBUNTU_SIGNS", "&[&str]", all.signs)?;
    out += "pub(crate) const DISTRIBUTIONS: &[Distribution] = &[\n";
    for Distribution {
        fact,
        name,
        signs,
        apt,
        initramfs,
    } in all.distribution
    {
        writeln!(
            out,
            "Distribution {{ fact: Fact::{fact:?}, name: {name:?}, signs: &{signs:?}, apt: {apt:?}, initramfs: {initramfs:?} }},"
        )?;
    }
    Ok(out + "];\n")
}

/// The variables that exist, and the rules of some.
fn variables() -> Result<String, Box<dyn Error>> {
    let mut out = String::new();
    let variables: Variables = table("variables")?;
    constant(&mut out, "KNOWN_VARIABLES", "&[&str]", &variables.known)?;
    out += "const VARIABLE_RULES: &[VariableRule] = &[\n";
    for Rule {
        names,
        severity,
        id,
        applies,
        why,
        instead,
        source,
    } in variables.rule
    {
        let said = id.to_uppercase().replace('-', "_");
        let applies = match applies
            .as_deref()
            .map(|applies| applies.split_at(applies.len().min(3)))
        {
            None => "Any".to_owned(),
            Some(("= 0", "")) => "Zero".to_owned(),
            Some(("not", " 0")) => "NotZero".to_owned(),
            Some((">= ", number)) => format!("AtLeast({})", number.parse::<u32>()?),
            Some(_) => {
                return Err(format!(
                    "variables.toml: applies of {names:?}: = 0, not 0 or >= NUMBER"
                )
                .into());
            }
        };
        writeln!(
            out,
            "VariableRule {{ names: &{names:?}, severity: Severity::{severity:?}, said: &said::{said}, applies: Applies::{applies}, why: {why:?}, instead: {instead:?}, source: {source:?} }},"
        )?;
    }
    Ok(out + "];\n")
}

fn table<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    let path = format!("catalogue/tables/{name}.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    toml::from_str(&text).map_err(|error| format!("{path}: {error}"))
}

fn constant(out: &mut String, name: &str, kind: &str, value: impl Debug) -> std::fmt::Result {
    let borrow = if kind.starts_with('&') { "&" } else { "" };
    writeln!(out, "pub(crate) const {name}: {kind} = {borrow}{value:?};")
}

/// `gfx90a` as major, minor and stepping version.
fn version(gfx: &str) -> Result<(u8, u8, u8), String> {
    let parse = || {
        let digits = gfx.strip_prefix("gfx")?;
        let (major, rest) = digits.split_at_checked(digits.len().checked_sub(2)?)?;
        let (minor, stepping) = rest.split_at_checked(1)?;
        Some((
            major.parse().ok()?,
            minor.parse().ok()?,
            u8::from_str_radix(stepping, 16).ok()?,
        ))
    };
    parse().ok_or_else(|| format!("names.toml: {gfx} is not an architecture"))
}
