//! Commands of a Unix shell as PowerShell has them.

/// A step that begins with a command that sets or removes variables, for PowerShell; `None` for any other step.
/// What follows the command stays.
pub(crate) fn translated(step: &str) -> Option<String> {
    if let Some(rest) = step.strip_prefix("unset ") {
        let (names, rest) = leading_names(rest);
        let is_list = rest.starts_with(", ") || rest.starts_with(" and ");
        let goes_on = rest
            .trim_start_matches([',', ' '])
            .trim_start_matches("and ");
        if names.is_empty() || is_list && !leading_names(goes_on).0.is_empty() {
            return None;
        }
        let names: Vec<_> = names.iter().map(|name| format!("Env:{name}")).collect();
        return Some(format!("Remove-Item {}{rest}", names.join(", ")));
    }
    let (name, rest) = step.strip_prefix("export ")?.split_once('=')?;
    let (value, rest) = rest.split_at(rest.find([' ', ';', ',']).unwrap_or(rest.len()));
    // A second variable in the same command.
    let is_one = !rest.trim_start().split(' ').next()?.contains('=');
    is_one.then(|| format!("$env:{name} = \"{value}\"{rest}"))
}

/// The names of variables that a text begins with, separated by spaces, and what follows them.
fn leading_names(text: &str) -> (Vec<&str>, &str) {
    let mut names = Vec::new();
    let mut rest = text;
    loop {
        let next = if names.is_empty() {
            rest
        } else {
            rest.trim_start()
        };
        let is_of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let end = next.find(|c| !is_of_name(c)).unwrap_or(next.len());
        let ends_there = next[end..].starts_with([' ', ',', ';']) || end == next.len();
        if end < 2 || !ends_there {
            return (names, rest);
        }
        names.push(&next[..end]);
        rest = &next[end..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_set_and_removed() {
        for (step, expected) in [
            (
                "unset A_1 B_2  # then: surefoot env",
                "Remove-Item Env:A_1, Env:B_2  # then: surefoot env",
            ),
            ("unset ROCM_PATH", "Remove-Item Env:ROCM_PATH"),
            (
                "unset ROCM_PATH; a newer wheel",
                "Remove-Item Env:ROCM_PATH; a newer wheel",
            ),
            (
                "unset ROCM_PATH, if it is set",
                "Remove-Item Env:ROCM_PATH, if it is set",
            ),
            ("export A=b:c", "$env:A = \"b:c\""),
            ("export A=1  # until then", "$env:A = \"1\"  # until then"),
        ] {
            assert_eq!(translated(step).as_deref(), Some(expected));
        }
        for prose in [
            "surefoot env",
            "unset AB, CD and EF, or number within what they leave",
            "unset AB and CD",
            "unset the variables",
            "export A=b C=d",
        ] {
            assert_eq!(translated(prose), None, "{prose}");
        }
    }
}
