//! What machine is this: facts, findings, environment and error explanations from text alone.
