//! Paths in a config: `~`, `$VAR` and `${VAR}` are expanded as by a shell, since YAML does not, and a shell does not
//! expand what follows the `=` of `--set data.path=~/texts`.
//!
//! Paths are marked in the schema by `format: path`.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use serde_json::Value as Json;

use super::problem::Problem;
use super::tree::{Node, Value};

/// Environment variables by name.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The value of a variable, as far as whoever wrote the config may see it: messages name the paths that come of it.
pub(crate) fn visible_variable(
    name: &str,
    confinement: Option<&Confinement>,
    variables: Variables<'_>,
) -> Option<OsString> {
    let is_visible = confinement.is_none() || name == "HOME";
    is_visible.then(|| variables(name)).flatten()
}

/// Expands all paths of a config in place, and returns the problems with their positions.
pub(crate) fn expand(tree: &mut Node, schema: &Json, variables: Variables<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    expand_below(tree, schema, schema, variables, &mut problems);
    problems
}

fn expand_below(
    node: &mut Node,
    root: &Json,
    schema: &Json,
    variables: Variables<'_>,
    problems: &mut Vec<Problem>,
) {
    let schema = resolve(root, schema);
    match &mut node.value {
        Value::String(text) if is_path(schema) => match expanded(text, variables) {
            Ok(path) => *text = path,
            Err(Refusal { message, help }) => {
                problems.push(Problem::at(&node.place, message).with_help(help));
            }
        },
        Value::Map(entries) => {
            for entry in entries {
                if let Some(schema) = schema["properties"].get(&entry.key) {
                    expand_below(&mut entry.node, root, schema, variables, problems);
                }
            }
        }
        Value::List(items) => {
            for item in items {
                expand_below(item, root, &schema["items"], variables, problems);
            }
        }
        _ => {}
    }
}

/// The only folders that the paths of a config may lead to, and what the files found there refer to: set if the config
/// comes from somebody who must not read all files of this user.
#[derive(Debug, Clone)]
pub(crate) struct Confinement {
    folders: Vec<PathBuf>,
}

impl Confinement {
    /// That of this process, if [`FOLDERS`](super::FOLDERS) is set.
    pub(crate) fn of_the_environment() -> Option<Self> {
        let folders = std::env::var_os(super::FOLDERS)?;
        Some(Self::new(std::env::split_paths(&folders)))
    }

    /// Only these folders.
    pub(crate) fn new(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let folders = folders.into_iter();
        Self {
            folders: folders.filter_map(|f| f.canonicalize().ok()).collect(),
        }
    }

    /// Whether a path, or its nearest existing parent, is in one of the folders, also after links are followed.
    /// Relative paths start from the current folder.
    pub(crate) fn allows(&self, path: &Path) -> bool {
        let base = std::env::current_dir().unwrap_or_default();
        is_within(&base.join(path), &self.folders)
    }

    /// The paths of a config that lead elsewhere.
    pub(super) fn problems(&self, tree: &Node, schema: &Json) -> Vec<Problem> {
        let mut problems = Vec::new();
        let is_allowed = |path: &str| self.allows(Path::new(path));
        confine_below(tree, schema, schema, &is_allowed, &mut problems);
        let shown = self.folders.iter().map(|f| format!("`{}`", f.display()));
        let shown = shown.collect::<Vec<_>>().join(", ");
        let help = format!("a config from the page may only use files in {shown}");
        let problems = problems.into_iter();
        problems.map(|problem| problem.with_help(&*help)).collect()
    }
}

/// What is said of a file that is not in the folders.
pub(crate) const LEADS_ELSEWHERE: &str = "leads to a folder that is not allowed here";

fn confine_below(
    node: &Node,
    root: &Json,
    schema: &Json,
    is_allowed: &dyn Fn(&str) -> bool,
    problems: &mut Vec<Problem>,
) {
    let schema = resolve(root, schema);
    match &node.value {
        Value::String(text) if is_path(schema) && !is_allowed(text) => {
            let message = format!("`{text}` {LEADS_ELSEWHERE}");
            problems.push(Problem::at(&node.place, message));
        }
        Value::Map(entries) => {
            for entry in entries {
                if let Some(schema) = schema["properties"].get(&entry.key) {
                    confine_below(&entry.node, root, schema, is_allowed, problems);
                }
            }
        }
        Value::List(items) => {
            for item in items {
                confine_below(item, root, &schema["items"], is_allowed, problems);
            }
        }
        _ => {}
    }
}

/// Whether a path, or its nearest existing parent, is in one of `folders`.
fn is_within(path: &Path, folders: &[PathBuf]) -> bool {
    let is_plain = |path: &Path| !path.components().any(|part| part == Component::ParentDir);
    let mut ancestors = path.ancestors();
    let nearest = ancestors.find_map(|ancestor| {
        // A dangling link exists, too.
        ancestor.symlink_metadata().ok()?;
        Some(ancestor.canonicalize())
    });
    is_plain(path)
        && matches!(nearest, Some(Ok(found)) if folders.iter().any(|folder| found.starts_with(folder)))
}

/// Escapes the paths of a config so that [`expand`] restores them.
pub(crate) fn escape(config: &mut Json, schema: &Json) {
    escape_below(config, schema, schema);
}

fn escape_below(value: &mut Json, root: &Json, schema: &Json) {
    let schema = resolve(root, schema);
    match value {
        Json::String(text) if is_path(schema) => {
            *text = text.replace('$', "$$");
            if text.starts_with('~') {
                text.insert_str(0, "./");
            }
        }
        Json::Object(entries) => {
            for (key, value) in entries {
                if let Some(schema) = schema["properties"].get(key) {
                    escape_below(value, root, schema);
                }
            }
        }
        Json::Array(items) => {
            for item in items {
                escape_below(item, root, &schema["items"]);
            }
        }
        _ => {}
    }
}

fn is_path(schema: &Json) -> bool {
    schema["format"] == "path"
}

/// The struct that a schema refers to, possibly as an alternative to null.
pub(super) fn resolve<'a>(root: &'a Json, schema: &'a Json) -> &'a Json {
    let variants = schema["anyOf"].as_array().into_iter().flatten();
    let mut references = variants
        .chain([schema])
        .filter_map(|variant| variant["$ref"].as_str());
    let pointer = references
        .next()
        .map(|reference| reference.trim_start_matches('#'));
    pointer
        .and_then(|pointer| root.pointer(pointer))
        .unwrap_or(schema)
}

/// Why a path cannot be expanded, and what to write instead.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    message: String,
    help: String,
}

fn expanded(path: &str, variables: Variables<'_>) -> Result<String, Refusal> {
    let refuse = |message: String, help: String| Err(Refusal { message, help });
    let variable = |name: &str, written: &str| match variables(name).map(OsString::into_string) {
        Some(Ok(value)) if !value.is_empty() => Ok(value),
        found => refuse(
            match found {
                Some(Err(_)) => format!("the variable of `{written}` is not UTF-8 text"),
                Some(Ok(_)) => format!("the variable of `{written}` is empty"),
                None => format!("`{written}` is not set here"),
            },
            format!("set `{name}`, or write the path without it; `$$` is a `$` in a name"),
        ),
    };
    let mut result = String::new();
    let mut rest = path;
    if let Some(after) = path.strip_prefix('~') {
        if !(after.is_empty() || after.starts_with(std::path::is_separator)) {
            let user = after
                .split(std::path::is_separator)
                .next()
                .unwrap_or_default();
            return refuse(
                format!("the home folder of `~{user}` is not looked up"),
                format!("write the full path, or `./~{user}` for a file with that name"),
            );
        }
        result = variable("HOME", "~ (HOME)")?;
        rest = after;
    }
    while let Some((before, after)) = rest.split_once('$') {
        result += before;
        let name_length = |text: &str| {
            let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            match text.bytes().next() {
                Some(first) if !first.is_ascii_digit() => {
                    text.bytes().take_while(|b| is_part(b)).count()
                }
                _ => 0,
            }
        };
        if let Some(after) = after.strip_prefix('$') {
            result.push('$');
            rest = after;
        } else if let Some(braced) = after.strip_prefix('{') {
            let (name, behind) = braced.split_at(name_length(braced));
            let Some(behind) = behind.strip_prefix('}').filter(|_| !name.is_empty()) else {
                let end = braced.find('}').map_or(braced.len(), |end| end + 1);
                return refuse(
                    format!("`${{{}` is not a variable", &braced[..end]),
                    "write `$NAME` or `${NAME}`; `$$` is a `$` in a name".into(),
                );
            };
            result += &variable(name, &format!("${{{name}}}"))?;
            rest = behind;
        } else {
            let (name, behind) = after.split_at(name_length(after));
            match name.is_empty() {
                // As in a shell.
                true => result.push('$'),
                false => result += &variable(name, &format!("${name}"))?,
            }
            rest = behind;
        }
    }
    Ok(result + rest)
}

#[cfg(test)]
mod tests {
    use super::super::{Config, MixtureSource};
    use super::*;

    fn variables(name: &str) -> Option<OsString> {
        use std::os::unix::ffi::OsStringExt;
        match name {
            "HOME" => Some("/home/ada".into()),
            "DATA_1" => Some("/data $x ~".into()),
            "EMPTY" => Some("".into()),
            "BYTES" => Some(OsString::from_vec(vec![0xff])),
            _ => None,
        }
    }

    #[test]
    fn a_path_is_expanded_as_by_a_shell() {
        for (path, want) in [
            ("~", "/home/ada"),
            ("~/my-texts", "/home/ada/my-texts"),
            ("$HOME/x", "/home/ada/x"),
            ("${HOME}x", "/home/adax"),
            // The value of a variable is not expanded again.
            ("a/$DATA_1/b", "a//data $x ~/b"),
            ("a~/b", "a~/b"),
            ("./~ada", "./~ada"),
            ("a$$b", "a$b"),
            ("$$HOME", "$HOME"),
            ("5$", "5$"),
            ("$5/x$-", "$5/x$-"),
            ("smollm2-135m-instruct", "smollm2-135m-instruct"),
        ] {
            assert_eq!(expanded(path, &variables).as_deref(), Ok(want), "{path}");
        }
    }

    #[test]
    fn a_confined_config_stays_in_its_folders() {
        let place = tempfile::tempdir().unwrap();
        let inside = place.path().join("inside");
        std::fs::create_dir_all(inside.join("data")).unwrap();
        std::fs::create_dir(place.path().join("outside")).unwrap();
        std::os::unix::fs::symlink("../outside", inside.join("link")).unwrap();
        std::os::unix::fs::symlink("../outside/new", inside.join("dangling")).unwrap();
        let outside = place.path().join("outside").display().to_string();
        let whole = inside.join("data").display().to_string();
        let confinement = Confinement::new([inside.clone()]);
        for (path, allowed) in [
            ("data", true),
            ("data/new/text.txt", true),
            ("a-model-in-the-cache", true),
            (&*whole, true),
            (&*outside, false),
            ("/etc/passwd", false),
            ("..", false),
            ("../inside/data", false),
            ("new/../../outside", false),
            ("link", false),
            ("link/x", false),
            ("dangling", false),
        ] {
            let found = confinement.allows(&inside.join(path));
            assert_eq!(found, allowed, "{path}");
        }
        let text = "data:\n  path: /etc/passwd\nname: x\n";
        let tree = super::super::tree::parse_file("c.yaml", text).unwrap();
        let problems = confinement.problems(&tree, super::super::schema::schema());
        let [problem] = &problems[..] else {
            panic!("{problems:?}");
        };
        assert_eq!((problem.line, problem.column), (2, 9));
    }

    /// Its value would be in the messages, and set variables would differ from others.
    #[test]
    fn a_confined_config_sees_no_variables() {
        let confinement = Confinement::new([std::env::temp_dir()]);
        let see = |name: &str| visible_variable(name, Some(&confinement), &variables);
        assert_eq!((see("HOME"), see("DATA_1")), (variables("HOME"), None));
        assert_eq!(
            expanded("$DATA_1/x", &see),
            expanded("$GONE/x", &see).map_err(|mut refusal| {
                refusal.message = refusal.message.replace("GONE", "DATA_1");
                refusal.help = refusal.help.replace("GONE", "DATA_1");
                refusal
            })
        );
        assert_eq!(
            visible_variable("DATA_1", None, &variables),
            variables("DATA_1")
        );
    }

    #[test]
    fn a_path_that_cannot_be_expanded_is_refused_by_name() {
        for (path, name) in [
            ("~bob/x", "`~bob`"),
            ("$GONE/x", "`$GONE` is not set"),
            ("x/${GONE}", "`${GONE}` is not set"),
            ("$EMPTY/x", "`$EMPTY` is empty"),
            ("$BYTES", "`$BYTES` is not UTF-8"),
            ("${HOME:-/x}/y", "`${HOME:-/x}` is not a variable"),
            ("${HOME", "`${HOME` is not a variable"),
            ("${}", "`${}` is not a variable"),
        ] {
            let refusal = expanded(path, &variables).unwrap_err();
            assert!(refusal.message.contains(name), "{path}: {refusal:?}");
        }
        let refusal = expanded("~/x", &|_| None).unwrap_err();
        assert!(refusal.message.contains("HOME"), "{refusal:?}");
    }

    /// Every key that the schema marks as a path, or that is one.
    #[test]
    fn the_keys_that_are_paths() {
        fn collect(root: &Json, schema: &Json, path: &str, found: &mut Vec<String>) {
            let schema = resolve(root, schema);
            if is_path(schema) {
                found.push(path.trim_start_matches('.').to_owned());
            }
            for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
                collect(root, schema, &format!("{path}.{key}"), found);
            }
            if let Some(schema) = schema.get("items") {
                collect(root, schema, &format!("{path}[]"), found);
            }
        }
        let schema = super::super::schema::schema();
        let mut found = Vec::new();
        collect(schema, schema, "", &mut found);
        found.sort();
        assert_eq!(
            found,
            [
                "adapter.resume_from",
                "data.cache_dir",
                "data.control_path",
                "data.control_path[]",
                "data.eval_dataset",
                "data.mask_path",
                "data.mixture[].path",
                "data.path",
                "data.reg_data_dir",
                "model.name_or_path",
                "model.offload_folder",
                "model.text_encoder",
                "model.text_encoder_2",
                "model.tokenizer",
                "model.training_adapter",
                "model.transformer",
                "model.transformer_2",
                "model.vae",
                "output_dir",
                "sample.control_image",
                "sample.control_image[]",
                "sample.image",
                "sample.transformer",
                "train.resume_from_checkpoint",
            ]
        );
    }

    #[test]
    fn a_config_that_a_run_writes_reads_as_the_same() {
        let mut config = Config::default();
        for path in ["/a$HOME/$$", "~x/y", "~", "plain", "./~"] {
            config.data.mixture = vec![MixtureSource::at(path)];
            config.model.name_or_path = Some(path.into());
            config.output_dir = path.into();
            let text = config.to_yaml().unwrap();
            let read = Config::parse("config.yaml", &text, &[]).unwrap();
            let shown = |path: &std::path::Path| path.strip_prefix("./").unwrap_or(path).to_owned();
            let want = std::path::Path::new(path);
            assert_eq!(shown(&read.data.mixture[0].path), shown(want), "{text}");
            assert_eq!(shown(&read.output_dir), shown(want), "{text}");
            let name = read.model.name_or_path.unwrap();
            assert_eq!(shown(name.as_ref()), shown(want), "{text}");
        }
    }
}
