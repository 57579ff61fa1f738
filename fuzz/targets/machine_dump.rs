//! What people post of their machines: any text becomes a machine or is not recognised, and
//! every machine can be judged.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(machine) = doctor::dump::read(text) {
        let plan = doctor::plan::plan(&machine);
        let _ = doctor::findings::findings(&machine, &plan);
    }
});
