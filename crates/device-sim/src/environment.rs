//! Orders that the environment gives, and where it wants the report.

use crate::orders::{self, KEYS, Order};
use crate::process::stop;

/// Every variable of ours starts so.
const PREFIX: &str = "DEVICE_SIM_";

/// Where to write the report when the process ends.
pub(crate) const REPORT: &str = "DEVICE_SIM_REPORT";
/// What goes wrong between processes (`api/rccl.rs`).
pub(crate) const RCCL: &str = "DEVICE_SIM_RCCL";

/// The orders in the environment. One that is not understood ends the program:
/// a test that thinks it ordered a fault must not run without it.
pub(crate) fn orders_of_environment() -> Vec<Order> {
    let mut orders = Vec::new();
    for (name, value) in std::env::vars_os() {
        // What is no text is none of ours, and a value that is none is understood by no order.
        let (Some(name), value) = (name.to_str(), value.to_string_lossy()) else {
            continue;
        };
        let Some(key) = name
            .strip_prefix(PREFIX)
            .filter(|_| ![REPORT, RCCL].contains(&name))
        else {
            continue;
        };
        let key = key.to_ascii_lowercase();
        match KEYS
            .contains(&key.as_str())
            .then(|| orders::parse(&key, &value))
        {
            Some(Ok(order)) => orders.push(order),
            Some(Err(problem)) => stop(&format!("{name}: {problem}")),
            None => stop(&format!("{name}: unknown; known are {}", KEYS.join(", "))),
        }
    }
    orders
}
