//! The config's `data.mixture`: several data sets and their proportions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::consistency::columns_problem;
use super::data::DataFormat;
use super::problem::Problem;
use super::tree::{Node, Value};

/// One of several data sets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MixtureSource {
    /// A file, a folder or a data set on the hub, as for `data.path`.
    #[schemars(extend("format" = "path"))]
    pub path: PathBuf,
    /// The proportion of examples from this data set, relative to the weights of the others. Set it for all
    /// or for none; without weights, every example of each is used once per epoch.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e9))]
    pub weight: Option<f64>,
    /// Which subset of a data set on the hub is used. Unset means the default one.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub subset: Option<String>,
    /// Which split is used, or several joined as in `train+validation`. Unset means `train`.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub split: Option<String>,
    /// The format of its files. Unset means `data.format`, or else the format that names and contents tell.
    #[serde(default)]
    pub format: Option<DataFormat>,
    /// The names of its columns, in place of `data.columns`.
    #[serde(default)]
    pub columns: BTreeMap<String, String>,
}

impl MixtureSource {
    /// Every example of this data set, once per epoch.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            weight: None,
            subset: None,
            split: None,
            format: None,
            columns: BTreeMap::new(),
        }
    }
}

/// When an epoch of data sets with weights ends, named as by `interleave_datasets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoppingStrategy {
    /// When every example of one data set was used; some examples of the others are left out.
    FirstExhausted,
    /// When every example of all data sets was used; examples of the others are repeated.
    AllExhausted,
}

/// Problems of a mixture, each with its position.
pub(super) fn problems(config: &Config, tree: &Node) -> Vec<Problem> {
    let data = &config.data;
    let at = |key: &str| tree.find(&["data", key]).unwrap_or(tree);
    let mut problems = Vec::new();
    let mut report = |node: &Node, message: String, help: String| {
        problems.push(Problem::at(&node.place, message).with_help(help));
    };
    let weights = data.mixture.iter().filter(|one| one.weight.is_some());
    let weights = weights.count();
    if data.stopping_strategy.is_some() && weights == 0 {
        report(
            at("stopping_strategy"),
            "without weights every example is used once per epoch, and no data set is exhausted first"
                .into(),
            "give each entry of `data.mixture` a `weight`, or remove `data.stopping_strategy`".into(),
        );
    }
    if data.mixture.is_empty() || config.is_video() {
        // For videos the key is refused as a whole.
        return problems;
    }
    for (key, value) in [("subset", &data.subset), ("split", &data.split)] {
        if value.is_some() {
            report(
                at(key),
                format!("`data.{key}` selects from one data set, but `data.mixture` has its own"),
                format!("move `{key}` into an entry of `data.mixture`"),
            );
        }
    }
    let list = at("mixture");
    let items = match &list.value {
        Value::List(items) => &items[..],
        _ => &[],
    };
    for (number, source) in data.mixture.iter().enumerate() {
        let item = items.get(number).unwrap_or(list);
        if source.weight.is_none() && weights > 0 {
            report(
                item,
                format!(
                    "`{}` has no `weight`, but others have one",
                    source.path.display()
                ),
                "set a weight for each, or for none: then every example is used once per epoch"
                    .into(),
            );
        }
        if let Some((message, help)) = columns_problem(&source.columns) {
            report(item.find(&["columns"]).unwrap_or(item), message, help);
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: &str = "c.yaml";

    fn problems_of(data: &str, more: &[&str]) -> Vec<Problem> {
        let text = format!("model: {{name_or_path: m}}\ndata:\n{data}");
        let more: Vec<String> = more.iter().map(|text| (*text).to_owned()).collect();
        match Config::parse(PLACE, &text, &more) {
            Ok(_) => Vec::new(),
            Err(error) => error.problems,
        }
    }

    #[test]
    fn each_problem_of_a_mixture_has_its_position() {
        let cases = [
            (
                "  mixture:\n  - {path: a, weight: 1}\n  - {path: b}\n",
                (5, "`b` has no `weight`"),
            ),
            (
                "  mixture:\n  - {path: a, columns: {question: q}}\n",
                (4, "`question` is not a key of records"),
            ),
            ("  mixture:\n  - {weight: 1}\n", (4, "has no `path`")),
            (
                "  mixture:\n  - {path: a, wight: 1}\n",
                (4, "unknown key `wight`"),
            ),
            (
                "  mixture:\n  - {path: a, weight: 0}\n",
                (4, "`data.mixture.weight`"),
            ),
            (
                "  mixture:\n  - {path: $GONE_FOR_GOOD/a}\n",
                (4, "`$GONE_FOR_GOOD` is not set"),
            ),
            (
                "  stopping_strategy: all_exhausted\n  mixture: [{path: a}]\n",
                (3, "no data set is exhausted first"),
            ),
            (
                "  split: test\n  mixture: [{path: org/a}]\n",
                (3, "`data.mixture` has its own"),
            ),
            (
                "  path: a\n  mixture: [{path: b}]\n",
                (
                    4,
                    "`data.path` and `data.mixture` both set what is trained on",
                ),
            ),
        ];
        for (data, (line, want)) in cases {
            let found = problems_of(data, &[]);
            assert!(
                found.len() == 1 && found[0].message.contains(want) && found[0].line == line,
                "{data}: {found:?}"
            );
        }
        let found = problems_of("  mixture: [{path: a}]\n", &["model.name_or_path=null"]);
        assert!(found.len() == 1 && found[0].message.contains("needs a published model"));
    }

    #[test]
    fn a_mixture_is_allowed_with_and_without_weights_and_overrides_a_path() {
        for data in [
            "  mixture: [{path: a}, {path: org/b, split: test, subset: c, format: jsonl}]\n",
            "  stopping_strategy: all_exhausted\n  mixture: [{path: a, weight: 0.5}, {path: b, weight: 3}]\n",
            "  path: a\n  mixture: []\n",
        ] {
            assert_eq!(problems_of(data, &[]), [], "{data}");
        }
        assert_eq!(
            problems_of("  path: a\n", &["data.mixture=[{path: b}]"]),
            []
        );
        assert_eq!(
            problems_of("  mixture: [{path: a}]\n", &["data.path=b"]),
            []
        );
    }
}
