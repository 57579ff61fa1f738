//! Renders the problems of a config, each below its line.

use std::io::IsTerminal;

use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource};
use surefoot_cli::output;
use trainer::config::{ConfigError, Problem};

/// All problems with their lines, what is allowed, and suggestions.
pub(crate) fn render(error: &ConfigError) -> anyhow::Error {
    let stderr = std::io::stderr();
    let theme = match (stderr.is_terminal(), output::wants_colour(&stderr)) {
        (true, true) => GraphicalTheme::unicode(),
        (true, false) => GraphicalTheme::unicode_nocolor(),
        (false, _) => GraphicalTheme::none(),
    };
    let handler = GraphicalReportHandler::new_themed(theme)
        .with_links(false)
        .with_width(100);
    let count = error.problems.len();
    let mut text = match count {
        1 => "the config has a problem\n".to_owned(),
        _ => format!("the config has {count} problems\n"),
    };
    for problem in &error.problems {
        text.push('\n');
        text += &draw(&handler, problem).unwrap_or_else(|| format!("{problem}\n"));
    }
    anyhow::Error::msg(text.trim_end().to_owned())
}

/// The problems as JSON: a list with positions; lines and columns start from 1, offsets and lengths are in bytes.
pub(crate) fn json(problems: &[Problem]) -> serde_json::Value {
    let problems = problems.iter().map(|problem| {
        serde_json::json!({
            "source": &*problem.source_name,
            "line": problem.line,
            "column": problem.column,
            "offset": problem.offset,
            "length": problem.length,
            "message": problem.message,
            "help": problem.help,
        })
    });
    serde_json::json!({ "problems": problems.collect::<Vec<_>>() })
}

/// `None` if there is no text to point at.
fn draw(handler: &GraphicalReportHandler, problem: &Problem) -> Option<String> {
    if problem.source_text.is_empty() {
        return None;
    }
    let Problem {
        source_name,
        line,
        column,
        message,
        ..
    } = problem;
    let mut diagnostic = MietteDiagnostic::new(format!("{source_name}:{line}:{column}: {message}"))
        .with_label(LabeledSpan::underline(
            problem.offset..problem.offset + problem.length,
        ));
    if let Some(help) = &problem.help {
        diagnostic = diagnostic.with_help(help);
    }
    let source = NamedSource::new(&**source_name, problem.source_text.to_string());
    let report = miette::Report::new(diagnostic).with_source_code(source);
    let mut text = String::new();
    handler.render_report(&mut text, report.as_ref()).ok()?;
    Some(text)
}
