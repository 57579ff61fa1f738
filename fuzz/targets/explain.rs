//! `surefoot explain`: any bytes, in pieces that end anywhere.

#![no_main]

use libfuzzer_sys::fuzz_target;
use doctor::explain::{Explainer, Hints};

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, log)) = bytes.split_first() else {
        return;
    };
    let mut explainer = Explainer::new(Hints::default());
    for piece in log.chunks(usize::from(first) + 1) {
        explainer.read(piece);
    }
    let _ = explainer.finish();
});
