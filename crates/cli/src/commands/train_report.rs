//! The final report of `surefoot train` as text.

use std::collections::BTreeMap;
use std::path::Path;

use platform::Bytes;
use serde_json::Value;
use trainer::text::thousands;
use trainer::{DryRun, Ending, Evaluation, Fit, FoundRate, MemoryPlan, Start, Summary};

/// The summary as text.
pub(crate) fn summary(summary: &Summary, folder: &Path) -> String {
    let mut lines = Vec::new();
    lines.push(match summary.ending {
        Ending::Completed if summary.stopped_early.is_some() => format!(
            "done: {} of {} steps, ended early",
            thousands(summary.steps),
            thousands(summary.max_steps)
        ),
        Ending::Completed => format!("done: {} steps", thousands(summary.steps)),
        Ending::Stopped if summary.steps == 0 => "stopped before the first step".into(),
        _ => format!(
            "stopped after {} of {} steps; `--resume {}` continues",
            thousands(summary.steps),
            thousands(summary.max_steps),
            folder.display()
        ),
    });
    if let (Some(first), Some(last)) = (summary.first_loss, summary.last_loss) {
        lines.push(format!("training loss   {first:.4} to {last:.4}"));
    }
    if summary.skipped_steps > 0 {
        lines.push(format!(
            "skipped steps   {}, and {} returns to a checkpoint",
            thousands(summary.skipped_steps),
            summary.rollbacks
        ));
    }
    if summary.repeated_steps > 0 {
        let rows = summary.micro_batch.map_or(String::new(), |rows| {
            format!(", at the end with {rows} samples in one pass")
        });
        let times = thousands(summary.repeated_steps);
        lines.push(format!("memory short    {times} steps repeated{rows}"));
    }
    if let Some(held_out) = &summary.held_out {
        lines.push(format!("held-out loss   {}", evaluation(held_out)));
    }
    lines.push(format!(
        "speed           {} tokens/s over {} tokens",
        thousands(summary.tokens_per_second.round() as u64),
        thousands(summary.tokens)
    ));
    let memory = &summary.memory;
    if let (Some(live), Some(held)) = (memory.peak_live_bytes, memory.peak_held_bytes) {
        lines.push(format!(
            "peak memory     {} live, {} held",
            Bytes(live),
            Bytes(held)
        ));
    }
    if let Some(error) = &summary.memory_estimate_error {
        lines.push(format!(
            "expected        {} before the first step, {:+.0} % from the {} that the steps took",
            Bytes(summary.memory_estimate.peak),
            100.0 * error.relative,
            Bytes(error.measured)
        ));
    }
    if let Some(streamed) = &summary.streamed {
        lines.push(format!(
            "streamed        {} blocks brought {} times, {} of them waited for",
            summary
                .memory_plan
                .as_ref()
                .map_or(0, |plan| plan.streamed.len()),
            thousands(streamed.copies),
            thousands(streamed.waited)
        ));
    }
    lines.push(format!(
        "process memory  {} at its peak",
        Bytes(memory.peak_resident_bytes)
    ));
    lines.push(format!(
        "time            {}",
        duration(summary.wall_seconds)
    ));
    lines.push(format!("results         {}", folder.display()));
    lines.join("\n") + "\n"
}

/// What a search for a learning rate found.
pub(crate) fn found(found: &FoundRate, folder: &Path) -> String {
    let results = folder.display();
    match found.learning_rate {
        Some(rate) => format!(
            "train.learning_rate={rate:.1e}: {}\nresults         {results}\n",
            found.reason
        ),
        None => format!("results         {results}\n"),
    }
}

/// How many steps a run has, and what they are of the data.
pub(crate) fn steps(start: &Start<'_>) -> String {
    let passes = match start.passes {
        None => String::new(),
        Some(passes) if passes < 0.995 => {
            format!(", {:.0} % of a pass over the data", 100.0 * passes)
        }
        Some(passes) => format!(
            ", {passes:.1} passes over the data{}",
            if passes > MANY_PASSES {
                "; that is many: `train.num_train_epochs: 3` is usual for chats"
            } else {
                ""
            }
        ),
    };
    format!("steps      {}{passes}", thousands(start.max_steps))
}

/// More passes than a language model is usually fine-tuned for: it learns its examples by heart.
const MANY_PASSES: f64 = 20.0;

/// What to do with the result, in order, as the run's folder says.
pub(crate) fn next(folder: &Path) -> String {
    let facts = std::fs::read(folder.join("run.json")).unwrap_or_default();
    let facts: Value = serde_json::from_slice(&facts).unwrap_or_default();
    let commands = facts["commands"].as_array().into_iter().flatten();
    let lines: String = commands
        .filter_map(|command| {
            let (what, line) = (command["what"].as_str()?, command["line"].as_str()?);
            Some(format!("  {what:<17} {line}\n"))
        })
        .collect();
    match lines.is_empty() {
        true => lines,
        false => format!("next\n{lines}"),
    }
}

fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, _) => format!("{seconds:.1} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

/// Where everything is placed, as lines.
pub(crate) fn plan(plan: Option<&MemoryPlan>) -> Vec<String> {
    let Some(plan) = plan else {
        return Vec::new();
    };
    let mut lines = vec![format!("plan       {}", plan.describe())];
    let notes = plan.notes().iter();
    lines.extend(notes.map(|note| format!("           {note}")));
    lines
}

/// The result of a dry run.
pub(crate) fn dry_run(found: &DryRun) -> String {
    let environment = &found.environment;
    let start = match found.resumed_at {
        None => format!("{} would be created", found.folder.display()),
        Some(step) => format!(
            "{} would resume after step {}",
            found.folder.display(),
            thousands(step)
        ),
    };
    let memory = &found.memory;
    let peak = match (memory.peak_live_bytes, memory.peak_held_bytes) {
        (Some(live), Some(held)) => format!("{} live, {} held; ", Bytes(live), Bytes(held)),
        _ => String::new(),
    };
    let plan: String = plan(found.memory_plan.as_ref())
        .iter()
        .map(|line| format!("{}{}{}\n", &line[..10], " ", &line[10..]))
        .collect();
    let held_out = match found.held_out_loss {
        Some(loss) => format!("held-out loss {loss:.4}"),
        None => "nothing held out".into(),
    };
    let changes = found.changes.iter();
    let changes: String = changes
        .map(|change| format!("changed     {change}\n"))
        .collect();
    let attention = environment.attention.as_ref();
    let attention = attention.map_or(String::new(), |path| format!("attention   {path}\n"));
    let batch = environment.batch.as_ref();
    let batch = batch.map_or(String::new(), |size| format!("batch       {size}\n"));
    let left = found.max_steps - found.resumed_at.unwrap_or(0).min(found.max_steps);
    format!(
        "dry run: everything is in place; nothing was trained, and no run folder made\n\
         libtorch    {}\n\
         device      {}\n\
         allocator   {}\n\
         data        {}\n\
         model       {}\n{attention}{batch}\
         run         {start}\n\
         {changes}{plan}\
         first batch loss {:.4}, gradient norm {:.3}, {held_out}\n\
         speed       {} tokens in {} forward and backward\n\
         time        about {} for {} steps; evaluations, samples and checkpoints come on top\n\
         expected    {}\n\
         peak memory {peak}{} in the process\n",
        environment.libtorch,
        environment.device,
        environment.allocator,
        environment.data,
        environment.model,
        found.loss,
        found.gradient_norm,
        thousands(found.units),
        duration(found.seconds),
        duration(found.estimated_seconds),
        thousands(left),
        expected(found),
        Bytes(memory.peak_resident_bytes),
    )
}

/// The memory estimate of a dry run, with advice if it does not fit.
fn expected(found: &DryRun) -> String {
    let advice = found.advice.iter();
    let advice = advice.map(|text| format!("\n            - {text}"));
    let advice: String = advice.collect();
    match advice.is_empty() {
        true => found.memory_estimate.describe(),
        false => format!(
            "{}; that is more than is available. What helps, most effective first:{advice}",
            found.memory_estimate.describe()
        ),
    }
}

/// An evaluation as text.
pub(crate) fn evaluation(evaluation: &Evaluation) -> String {
    let per_byte = evaluation
        .nats_per_byte
        .map(|nats| format!(" = {nats:.4} nats per byte"))
        .unwrap_or_default();
    let share = if evaluation.complete { "" } else { " (a part)" };
    let turns: String = (evaluation.turns.iter())
        .map(|(name, loss)| format!(", {name} {loss:.4}"))
        .collect();
    let rewards = rewards(&evaluation.measures);
    format!(
        "loss {:.4}{per_byte}{turns}{rewards}{share}",
        evaluation.loss
    )
}

/// Of what is measured of preferences, how far apart their rewards are, and of how many pairs in the right order.
pub(crate) fn rewards(measures: &BTreeMap<String, f64>) -> String {
    let shown = |name: &str| measures.get(&format!("rewards/{name}"));
    let margin = shown("margins").map(|margin| format!(", margin {margin:.4}"));
    let accuracy = shown("accuracies").map(|share| format!(", {:.0} % in order", share * 100.0));
    margin.unwrap_or_default() + &accuracy.unwrap_or_default()
}
/// How a model fits into memory: a line for each way that was tried.
pub(crate) fn fit(found: &Fit) -> String {
    let lines = found.ways.iter().map(|way| {
        let format = way
            .quantization
            .map(|kind| format!("{kind:?}").to_lowercase());
        let keys = [
            format.map(|format| format!("model.quantization: {format}")),
            way.offload.then(|| "model.offload: auto".to_owned()),
        ];
        let keys: Vec<_> = keys.into_iter().flatten().collect();
        let keys = match keys.is_empty() {
            true => "as it is".to_owned(),
            false => keys.join(", "),
        };
        let (need, memory) = (Bytes(way.need), Bytes(found.memory));
        let fits = if way.fits { "fits" } else { "does not fit" };
        format!("{keys}: {need} of {memory}, {fits}\n")
    });
    format!("{}\n{}", found.device, lines.collect::<String>())
}
