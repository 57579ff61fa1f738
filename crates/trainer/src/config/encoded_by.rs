//! Clips encoded by another trainer, and which keys have no effect on them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;

/// A trainer whose cache can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EncodedBy {
    /// musubi-tuner: `path` is the `cache_directory` of a data set.
    Musubi,
    /// ai-toolkit: `path` is the `folder_path` of a data set.
    AiToolkit,
}

/// Problems of a config with this key: the affected key, the message, and the help.
pub(super) fn problems(config: &Config) -> Vec<([&'static str; 2], String, &'static str)> {
    if config.data.encoded_by.is_none() {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let no_size = |preview: &super::previews::Preview| preview.width == 0 || preview.height == 0;
    if config.previews().is_ok_and(|list| list.iter().any(no_size)) {
        problems.push((
            ["sample", "width"],
            "without `data.resolution`, the size of previews is unknown".to_owned(),
            "set `sample.width` and `sample.height`",
        ));
    }
    problems
}
