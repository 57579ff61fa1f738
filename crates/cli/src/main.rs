//! The surefoot command: train, diagnose, explain, launch.

fn main() {}
