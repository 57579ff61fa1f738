//! `.cargo/libtorch.toml`: tells plain cargo and rust-analyzer which libtorch was chosen.
//!
//! `.cargo/config.toml` includes the file if it exists. Cargo then sets its variables
//! for everything it runs, including xtask, which therefore cannot distinguish values set by the user from those written
//! by an earlier setup. So the file also records the choice in separate variables.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use xshell::Shell;

use super::libtorch::{Libtorch, Source};
use super::pins::{RELEASES, Release, TORCH_VERSION};
use crate::workspace;

/// The folder that the last setup wrote, and [`FROM_USER`] if it came from `LIBTORCH`.
const CHOSEN: &str = "SUREFOOT_SETUP_LIBTORCH";
const SOURCE: &str = "SUREFOOT_SETUP_SOURCE";
const FROM_USER: &str = "LIBTORCH";
/// Unless this is set, torch-sys builds against one release only.
const ANY_RELEASE: &str = "LIBTORCH_BYPASS_VERSION_CHECK";
/// Additional flags for every C++ compiler, after those of torch-sys.
const CXXFLAGS: &str = "CXXFLAGS";

/// The libtorch that the user selected with `LIBTORCH`, now or when an earlier setup ran.
///
/// An earlier choice of the user remains valid until `LIBTORCH` is set to another folder or the file is
/// deleted; an earlier automatic choice does not, since another Python may be active by now.
pub(crate) fn libtorch_of_user() -> Option<PathBuf> {
    user_choice(|name| env::var(name).ok()).map(PathBuf::from)
}

/// Writes the file, if it would change.
pub(crate) fn write(libtorch: &Libtorch) -> Result<()> {
    let path = workspace::root().join(".cargo/libtorch.toml");
    let text = render(libtorch);
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))
}

/// Sets the chosen libtorch for the commands of `shell`, since the environment of this process may contain an older choice.
pub(crate) fn apply(libtorch: &Libtorch, shell: &Shell) {
    shell.set_var("LIBTORCH", &libtorch.root);
    shell.set_var(CHOSEN, &libtorch.root);
    shell.set_var(SOURCE, source_name(&libtorch.source));
    // A variable without effect would still make cargo compile again when it is run without xtask.
    let set = shell.var(CXXFLAGS).unwrap_or_default();
    let flags = cxx_flags(libtorch.release, &set);
    if flags != set {
        shell.set_var(CXXFLAGS, flags);
    }
    if !is_bound(libtorch.release) {
        shell.set_var(ANY_RELEASE, "1");
    }
}

/// Whether it is the release that torch-sys expects.
fn is_bound(release: &Release) -> bool {
    release.version == TORCH_VERSION
}

/// `set` with the flags that this release needs, and without those of other releases.
fn cxx_flags(release: &Release, set: &str) -> String {
    let ours: Vec<String> = RELEASES.iter().flat_map(Release::cxx_flags).collect();
    let kept = set.split_whitespace().map(str::to_owned);
    let kept = kept.filter(|flag| !ours.contains(flag));
    kept.chain(release.cxx_flags())
        .collect::<Vec<_>>()
        .join(" ")
}

fn user_choice(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let libtorch = variable("LIBTORCH").filter(|folder| !folder.is_empty())?;
    let ours = variable(CHOSEN).is_some_and(|chosen| chosen == libtorch);
    let from_user = variable(SOURCE).is_some_and(|source| source == FROM_USER);
    (!ours || from_user).then_some(libtorch)
}

fn render(libtorch: &Libtorch) -> String {
    let root = quote(&libtorch.root.to_string_lossy());
    let source = quote(&source_name(&libtorch.source));
    let mut text = format!(
        "# Written by `cargo xtask setup`. Delete this file to choose again.\n\
         [env]\nLIBTORCH = {root}\n{CHOSEN} = {root}\n{SOURCE} = {source}\n"
    );
    if !is_bound(libtorch.release) {
        text += &format!("{ANY_RELEASE} = \"1\"\n");
    }
    let flags = cxx_flags(libtorch.release, "");
    if !flags.is_empty() {
        text += &format!("{CXXFLAGS} = {}\n", quote(&flags));
    }
    text
}

fn source_name(source: &Source) -> String {
    match source {
        Source::Variable => FROM_USER.to_owned(),
        Source::Python(python) => python.display().to_string(),
        Source::Cache => "cache".to_owned(),
    }
}

/// A TOML basic string.
fn quote(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(variables: &[(&str, &str)]) -> Option<String> {
        user_choice(|name| {
            let pair = variables.iter().find(|(key, _)| *key == name)?;
            Some(pair.1.to_owned())
        })
    }

    #[test]
    fn a_variable_that_no_setup_wrote_is_the_users() {
        assert_eq!(choice(&[("LIBTORCH", "/a")]).as_deref(), Some("/a"));
    }

    #[test]
    fn what_an_earlier_setup_found_is_not_the_users() {
        let found = [("LIBTORCH", "/a"), (CHOSEN, "/a"), (SOURCE, "cache")];
        assert_eq!(choice(&found), None);
    }

    #[test]
    fn what_the_user_named_at_an_earlier_setup_holds() {
        let named = [("LIBTORCH", "/a"), (CHOSEN, "/a"), (SOURCE, FROM_USER)];
        assert_eq!(choice(&named).as_deref(), Some("/a"));
    }

    #[test]
    fn a_new_variable_overrides_what_an_earlier_setup_wrote() {
        let changed = [("LIBTORCH", "/b"), (CHOSEN, "/a"), (SOURCE, "cache")];
        assert_eq!(choice(&changed).as_deref(), Some("/b"));
    }

    #[test]
    fn an_empty_variable_names_nothing() {
        assert_eq!(choice(&[("LIBTORCH", "")]), None);
    }

    #[test]
    fn the_flags_of_a_release_come_and_go_with_it() {
        let [older, newer] = &RELEASES;
        let both = cxx_flags(newer, "-O1");
        assert!(
            both.starts_with("-O1 -std=c++20 -include/") && both.ends_with(".h"),
            "{both}"
        );
        assert_eq!(cxx_flags(newer, &both), both);
        assert_eq!(cxx_flags(older, &both), "-O1");
        assert_eq!(cxx_flags(older, ""), "");
    }

    #[test]
    fn a_path_with_quotes_stays_one_toml_string() {
        assert_eq!(quote(r#"/a "b"\c"#), r#""/a \"b\"\\c""#);
    }
}
