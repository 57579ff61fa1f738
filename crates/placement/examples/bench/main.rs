//! What placement costs on this machine, and how good its plans are; started by
//! `cargo xtask bench placement`. Prints JSON.

mod plans;
mod routes;

use std::process::ExitCode;

use serde::Serialize;

#[derive(Serialize)]
struct Report {
    routes: Vec<routes::RouteCost>,
    plans: Vec<plans::PlanQuality>,
}

fn main() -> ExitCode {
    let rounds = match std::env::args().nth(1).map(|rounds| rounds.parse()) {
        None => 20,
        Some(Ok(rounds)) => rounds,
        Some(Err(_)) => {
            eprintln!("usage: bench [ROUNDS]");
            return ExitCode::from(2);
        }
    };
    let measured = routes::measure(rounds).map(|routes| Report {
        routes,
        plans: plans::measure(),
    });
    let printed = measured
        .map_err(|error| error.to_string())
        .and_then(|report| {
            serde_json::to_string_pretty(&report).map_err(|error| error.to_string())
        });
    match printed {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
