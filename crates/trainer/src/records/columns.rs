//! The keys of a file's records: how they are renamed, and which of them are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

use crate::config::LossType;

/// A file's own names for the keys of records, by our names.
pub type Columns = BTreeMap<String, String>;

/// How the keys in a file are read, and statistics of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys {
    /// The loss for which preferences are read in place of texts.
    pub(super) preferences: Option<LossType>,
    /// Keys that were not read, with counts.
    unread: BTreeMap<String, u64>,
    /// Roles that few templates know, as `messages[].role: critic`.
    roles: BTreeSet<String>,
    /// The file's own names for keys.
    columns: Columns,
    /// Those of them that no record has had yet.
    unseen: BTreeSet<String>,
}

impl Keys {
    pub(super) fn new(columns: &Columns) -> Self {
        Self {
            columns: columns.clone(),
            unseen: columns.values().cloned().collect(),
            ..Self::default()
        }
    }

    /// The file's own names for keys.
    pub(super) fn columns(&self) -> &Columns {
        &self.columns
    }

    pub(super) fn note(&mut self, key: &str) {
        *self.unread.entry(key.to_owned()).or_default() += 1;
    }

    pub(super) fn note_role(&mut self, list: &str, role: &str) {
        self.roles.insert(format!("`{role}` in `{list}`"));
    }

    /// Renames the keys of a record to our names.
    pub(super) fn rename(&mut self, object: &mut Map<String, Value>) -> Result<(), String> {
        // Removed first, since two keys may be swapped.
        let mut renamed = Vec::new();
        for (name, column) in &self.columns {
            if let Some(value) = object.shift_remove(column) {
                self.unseen.remove(column);
                renamed.push((name, column, value));
            }
        }
        for (name, column, value) in renamed {
            if object.insert(name.clone(), value).is_some() {
                return Err(format!(
                    "it has `{name}`, and also `{column}`, which `data.columns` reads as `{name}`"
                ));
            }
        }
        Ok(())
    }

    /// For example `id` (3 times), `source` (once); `None` if all keys were read.
    pub(super) fn list(&self) -> Option<String> {
        let times = |count: &u64| match count {
            1 => "once".to_owned(),
            count => format!("{} times", crate::text::thousands(*count)),
        };
        let keys = self
            .unread
            .iter()
            .map(|(key, count)| format!("`{key}` ({})", times(count)));
        let keys = keys.collect::<Vec<_>>().join(", ");
        (!keys.is_empty()).then_some(keys)
    }

    pub(super) fn tell(&self, path: &Path) {
        if let Some(keys) = self.list() {
            tracing::warn!("`{}` has keys that are not read: {keys}", path.display());
        }
        if !self.roles.is_empty() {
            let roles: Vec<_> = self.roles.iter().map(String::as_str).collect();
            tracing::warn!(
                "`{}` has roles that few chat templates know (`--show-data` shows what becomes of them): {}",
                path.display(),
                roles.join(", ")
            );
        }
        for column in &self.unseen {
            tracing::warn!(
                "no record of `{}` has the key `{column}` from `data.columns`",
                path.display()
            );
        }
    }
}
