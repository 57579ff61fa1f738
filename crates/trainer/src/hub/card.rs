//! The metadata in a data set's `README.md`: which files belong to which subset and split.

use serde_json::Value;

/// The key of the list of subsets.
const CONFIGS: &str = "configs";
/// Keys of a subset that do not affect how its files are read.
const DESCRIPTIVE: [&str; 5] = [
    "default",
    "description",
    "version",
    "features",
    "dataset_info",
];

/// A subset of a data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subset {
    pub(super) name: String,
    /// Whether it is the default subset.
    pub(super) is_default: bool,
    /// The folder that its patterns are relative to, or empty.
    pub(super) folder: String,
    /// The patterns of each split; `None` if splits follow from the file names.
    pub(super) splits: Option<Vec<(String, Vec<String>)>>,
    /// Other keys, which affect how files are read.
    pub(super) options: Vec<String>,
}

/// The subsets that a card lists; empty if it lists none.
///
/// # Errors
/// A description of the problem with the card.
pub(super) fn subsets(card: &str) -> Result<Vec<Subset>, String> {
    let Some(head) = head(card) else {
        return Ok(Vec::new());
    };
    let head: Value = serde_saphyr::from_str(&head).map_err(|error| error.to_string())?;
    match &head[CONFIGS] {
        Value::Null => Ok(Vec::new()),
        Value::Array(list) => list.iter().map(subset).collect(),
        _ => Err(format!("`{CONFIGS}` is not a list")),
    }
}

/// The YAML front matter of `card`.
fn head(card: &str) -> Option<String> {
    let card = card.strip_prefix('\u{feff}').unwrap_or(card);
    let mut lines = card.lines();
    if lines.next()?.trim_end() != "---" {
        return None;
    }
    let rest: Vec<&str> = lines.collect();
    let end = rest.iter().position(|line| line.trim_end() == "---")?;
    Some(rest[..end].join("\n"))
}

fn subset(value: &Value) -> Result<Subset, String> {
    let map = value
        .as_object()
        .ok_or_else(|| format!("an entry of `{CONFIGS}` is not a mapping"))?;
    let name = text(&value["config_name"])
        .ok_or_else(|| format!("an entry of `{CONFIGS}` has no `config_name`"))?;
    let strange = |key: &str| format!("`{key}` of the subset `{name}` is not understood");
    let folder = match &value["data_dir"] {
        Value::Null => String::new(),
        folder => text(folder).ok_or_else(|| strange("data_dir"))?,
    };
    let splits = match &value["data_files"] {
        Value::Null => None,
        files => Some(splits(files).ok_or_else(|| strange("data_files"))?),
    };
    let known = ["config_name", "data_dir", "data_files"];
    let is_option =
        |key: &&String| !known.contains(&key.as_str()) && !DESCRIPTIVE.contains(&key.as_str());
    Ok(Subset {
        is_default: name == "default" || value["default"] == Value::Bool(true),
        folder: folder.trim_start_matches("./").trim_matches('/').to_owned(),
        splits,
        options: map.keys().filter(is_option).cloned().collect(),
        name,
    })
}

/// The patterns of `data_files`: one or several for the split `train`, or a list of splits.
fn splits(value: &Value) -> Option<Vec<(String, Vec<String>)>> {
    if let Some(patterns) = patterns(value) {
        return Some(vec![("train".to_owned(), patterns)]);
    }
    match value {
        Value::Array(list) => list
            .iter()
            .map(|entry| {
                let map = entry.as_object().filter(|map| map.len() == 2)?;
                Some((text(map.get("split")?)?, patterns(map.get("path")?)?))
            })
            .collect(),
        Value::Object(map) => map
            .iter()
            .map(|(split, value)| Some((split.clone(), patterns(value)?)))
            .collect(),
        _ => None,
    }
}

fn patterns(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(pattern) => Some(vec![pattern.clone()]),
        Value::Array(list) => list
            .iter()
            .map(|pattern| Some(pattern.as_str()?.to_owned()))
            .collect(),
        _ => None,
    }
}

/// A name as text, since YAML takes some names for numbers.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(configs: &str) -> Result<Vec<Subset>, String> {
        subsets(&format!("---\nlicense: mit\n{configs}---\n# A data set\n"))
    }

    #[test]
    fn a_card_without_a_head_or_without_subsets_names_none() {
        for card in [
            "",
            "# Title\n---\nconfigs: 1\n---\n",
            "---\nlicense: mit\n---\n",
            "---\nopen",
        ] {
            assert_eq!(subsets(card), Ok(Vec::new()), "{card}");
        }
    }

    #[test]
    fn data_files_may_be_one_pattern_several_or_a_list_of_splits() {
        let read = of(concat!(
            "configs:\n",
            "- config_name: one\n  data_files: a/*.parquet\n  default: true\n",
            "- config_name: some\n  data_files: [a.csv, b.csv]\n  data_dir: ./x/\n  sep: ';'\n",
            "- config_name: 2024\n  data_files:\n  - split: train\n    path: [t/1.json, t/2.json]\n  - {split: test, path: e.json}\n",
            "- config_name: told_by_names\n  description: nothing to read differently\n",
        ))
        .unwrap();
        let split = |name: &str, patterns: &[&str]| {
            (
                name.to_owned(),
                patterns
                    .iter()
                    .map(|&pattern| pattern.to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        let names: Vec<_> = read
            .iter()
            .map(|subset| (&*subset.name, subset.is_default))
            .collect();
        assert_eq!(
            names,
            [
                ("one", true),
                ("some", false),
                ("2024", false),
                ("told_by_names", false)
            ]
        );
        assert_eq!(read[0].splits, Some(vec![split("train", &["a/*.parquet"])]));
        assert_eq!(
            read[1].splits,
            Some(vec![split("train", &["a.csv", "b.csv"])])
        );
        assert_eq!(
            (&*read[1].folder, &read[1].options),
            ("x", &vec!["sep".to_owned()])
        );
        let two = vec![
            split("train", &["t/1.json", "t/2.json"]),
            split("test", &["e.json"]),
        ];
        assert_eq!(read[2].splits, Some(two));
        assert_eq!((&read[3].splits, &read[3].options), (&None, &Vec::new()));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (configs, said) in [
            ("configs: all\n", "`configs` is not a list"),
            ("configs: [a]\n", "not a mapping"),
            ("configs:\n- data_files: x\n", "no `config_name`"),
            (
                "configs:\n- {config_name: a, data_files: 7}\n",
                "`data_files` of the subset `a`",
            ),
            (
                "configs:\n- {config_name: a, data_files: [{split: train}]}\n",
                "`data_files` of the subset `a`",
            ),
            (
                "configs:\n- {config_name: a, data_dir: [x]}\n",
                "`data_dir` of the subset `a`",
            ),
            ("configs: [\n", ""),
        ] {
            let error = of(configs).unwrap_err();
            assert!(error.contains(said), "{configs}: {error}");
        }
    }
}
