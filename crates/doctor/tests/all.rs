//! The tests of what the crate offers: one program, so that it is linked once.

mod answer;
mod catalogue;
mod contradictions;
mod damaged;
mod findings;
mod fixtures;
mod forms;
mod hostile;
mod reviewed;
mod shape;
mod stories;
