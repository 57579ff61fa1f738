//! The hub's address, cache and token, from the environment variables of Python's `huggingface_hub`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ENDPOINT: &str = "https://huggingface.co";

/// Settings for access to the hub.
#[derive(Clone)]
pub struct Settings {
    /// Address of the hub, without a trailing slash.
    pub endpoint: String,
    /// The folder with a subfolder for each model and data set.
    pub cache: PathBuf,
    /// The folder with a subfolder of links for each split of a data set that was used.
    pub splits: PathBuf,
    /// The access token.
    pub token: Option<String>,
    /// Whether only the cache is used.
    pub offline: bool,
    /// The delay before the first retry of a failed request.
    pub pause: Duration,
}

/// Without the token, which is as secret as a password.
impl std::fmt::Debug for Settings {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("cache", &self.cache)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// The settings from the variables of this process.
    pub fn of_the_environment() -> Self {
        Self::from(&|name| std::env::var_os(name))
    }

    /// The settings from variables that the given function returns.
    pub fn from(variables: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let set = |names: &[&str]| {
            let mut values = names.iter().filter_map(|name| variables(name));
            values.find(|value| !value.is_empty())
        };
        let text = |names: &[&str]| set(names).and_then(|value| value.into_string().ok());
        let home = set(&["HF_HOME"]).map(PathBuf::from).unwrap_or_else(|| {
            let cache = set(&["XDG_CACHE_HOME"]).map(PathBuf::from);
            let of_user = || Some(Path::new(&set(&["HOME"])?).join(".cache"));
            let cache = cache.or_else(of_user).unwrap_or_else(std::env::temp_dir);
            cache.join("huggingface")
        });
        let cache = set(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]);
        let token = text(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]).or_else(|| {
            let file = set(&["HF_TOKEN_PATH"]).map(PathBuf::from);
            std::fs::read_to_string(file.unwrap_or_else(|| home.join("token"))).ok()
        });
        let token = token.map(|token| token.trim().to_owned());
        let endpoint = text(&["HF_ENDPOINT"]).unwrap_or_else(|| ENDPOINT.to_owned());
        let yes = |name: &str| {
            let value = text(&[name]).unwrap_or_default().to_uppercase();
            ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
        };
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache: cache.map_or_else(|| home.join("hub"), PathBuf::from),
            splits: crate::data::cache_folder().join("hub-splits"),
            // A token that is not a valid header value is ignored.
            token: token.filter(|token| {
                !token.is_empty() && token.chars().all(|letter| letter.is_ascii_graphic())
            }),
            offline: yes("HF_HUB_OFFLINE") || yes("TRANSFORMERS_OFFLINE"),
            pause: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        Settings::from(&|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).into())
        })
    }

    #[test]
    fn the_cache_folder_follows_from_the_variables() {
        for (variables, cache) in [
            (&[("HOME", "/h")][..], "/h/.cache/huggingface/hub"),
            (
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
                "/x/huggingface/hub",
            ),
            (&[("HOME", "/h"), ("HF_HOME", "/y")], "/y/hub"),
            (&[("HF_HOME", "/y"), ("HF_HUB_CACHE", "/z")], "/z"),
            (&[("HF_HUB_CACHE", ""), ("HF_HOME", "/y")], "/y/hub"),
        ] {
            assert_eq!(settings(variables).cache, Path::new(cache));
        }
    }

    #[test]
    fn a_token_comes_from_its_variable_or_its_file_and_is_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        assert_eq!(settings(&[("HF_HOME", home)]).token, None);
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let of_file = settings(&[("HF_HOME", home)]);
        assert_eq!(of_file.token.as_deref(), Some("hf_file"));
        let of_variable = settings(&[("HF_HOME", home), ("HF_TOKEN", "hf_variable")]);
        assert_eq!(of_variable.token.as_deref(), Some("hf_variable"));
        assert!(!format!("{of_variable:?}").contains("hf_variable"));
        let broken = settings(&[("HF_TOKEN", "hf\r\nX-Evil: 1"), ("HF_HOME", home)]);
        assert_eq!(broken.token, None);
    }

    #[test]
    fn offline_and_the_endpoint_are_read_as_python_reads_them() {
        assert!(settings(&[("HF_HUB_OFFLINE", "true")]).offline);
        assert!(settings(&[("TRANSFORMERS_OFFLINE", "1")]).offline);
        assert!(!settings(&[("HF_HUB_OFFLINE", "0")]).offline);
        assert_eq!(settings(&[]).endpoint, ENDPOINT);
        let mirror = settings(&[("HF_ENDPOINT", "http://mirror:1/")]);
        assert_eq!(mirror.endpoint, "http://mirror:1");
    }
}
