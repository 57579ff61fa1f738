//! What requests bring to the page's server: names, numbers, ranges, bodies.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| surefoot_ui::server::parsers::all(bytes));
