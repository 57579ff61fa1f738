//! What the errors in a log mean, and what fixes them.
//!
//! ```sh
//! cargo run -p surefoot-doctor --example 01-explain-a-log -- train.log
//! ```

use surefoot_doctor::explain::explain;

fn main() -> std::io::Result<()> {
    let log = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(path)?,
        None => "RuntimeError: HIP error: invalid device function".to_owned(),
    };
    for found in explain(&log).matches {
        println!("{found:#?}");
    }
    Ok(())
}
