//! Trains a config, and says what came of it.
//!
//! ```sh
//! cargo run --release -p surefoot-trainer --example 01-train -- configs/small.yaml max_steps=20
//! ```

use std::path::PathBuf;

use surefoot_trainer::{Allocator, Config, NoObserver, Stop, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let config = arguments.next().ok_or("which config?")?;
    let overrides: Vec<String> = arguments.collect();
    let config = Config::load(&PathBuf::from(config), &overrides)?;
    // Before the first tensor: libtorch takes no other allocator later.
    let allocator = Allocator::install(&config)?;
    let summary = run(&config, &allocator, &mut NoObserver, &Stop::default())?;
    println!("{} steps, loss {:?}", summary.steps, summary.last_loss);
    Ok(())
}
