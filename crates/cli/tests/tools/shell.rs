//! `surefoot completions` and `surefoot man-pages`.

use crate::common::{show, surefoot};

#[test]
fn each_shell_is_told_of_the_commands() {
    for (shell, knows) in [
        ("bash", "complete -F _surefoot"),
        ("zsh", "#compdef surefoot"),
        ("fish", "complete -c surefoot"),
    ] {
        let output = surefoot()
            .args(["completions", shell])
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains(knows) && text.contains("fix-script"),
            "{shell}: {text}"
        );
    }
}

#[test]
fn each_command_has_a_page_with_its_options() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("man1");
    let output = surefoot()
        .arg("man-pages")
        .arg(&pages)
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", show(&output));
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).expect(name);
    assert!(page("surefoot.1").contains("surefoot\\-doctor"));
    assert!(page("surefoot-doctor.1").contains("fix\\-script"));
    assert!(!pages.join("surefoot-man-pages.1").exists());
}
