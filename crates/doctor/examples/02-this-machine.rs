//! What would stop training on this machine?
//!
//! ```sh
//! cargo run -p surefoot-doctor --example 02-this-machine
//! ```

use surefoot_doctor::diagnose_live;

fn main() {
    let report = diagnose_live();
    print!("{}", report.to_text(false));
    std::process::exit(if report.has_errors() { 3 } else { 0 });
}
