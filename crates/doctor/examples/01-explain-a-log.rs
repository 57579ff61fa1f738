//! What the errors in a log mean, and what fixes them.
//!
//! ```sh
//! cargo run -p surefoot-doctor --example 01-explain-a-log -- train.log
//! ```

use surefoot_doctor::report::explanation_text;

fn main() -> std::io::Result<()> {
    let log = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(path)?,
        None => "RuntimeError: HIP error: invalid device function".to_owned(),
    };
    let explanation = surefoot_doctor::answer(&log).explanation;
    print!("{}", explanation_text(&explanation, false));
    Ok(())
}
