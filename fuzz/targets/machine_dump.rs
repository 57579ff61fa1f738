//! What people post of their machines: any text becomes a machine or is not recognised, and
//! every machine can be judged.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(machine) = platform::dump::read(text) {
        let plan = platform::plan::plan(&machine);
        let _ = platform::findings::findings(&machine, &plan);
    }
});
