//! MLflow's REST interface (`/api/2.0/mlflow`).

use std::cell::Cell;

use serde_json::{Value, json};
use ureq::Agent;

use super::{Begun, Point, Problem, Service, address, agent, basic, is_id, now, post, refused};
use crate::summary::Ending;

/// The most parameters in a request.
const PARAMETERS: usize = 100;
/// The longest value of a parameter that all versions take.
const LONGEST_VALUE: usize = 500;
/// The tag with our own id of a run.
const TAG: &str = "surefoot.run";

struct Mlflow {
    agent: Agent,
    address: String,
    /// The header `Authorization`.
    authorization: Option<String>,
    experiment: String,
    /// A run that exists already, as MLflow's client reads it.
    run: Option<String>,
    /// How many parameters of the run were written.
    written: Cell<usize>,
}

/// The server of `MLFLOW_TRACKING_URI`.
pub(super) fn open(variable: &dyn Fn(&str) -> Option<String>) -> Result<Box<dyn Service>, String> {
    const ADDRESS: &str = "MLFLOW_TRACKING_URI";
    let server = variable(ADDRESS).ok_or_else(|| {
        format!("`mlflow` needs the address of a server in `{ADDRESS}`, such as that of `mlflow server`: http://127.0.0.1:5000")
    })?;
    let user = variable("MLFLOW_TRACKING_USERNAME");
    let password = variable("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
    let user = user.map(|user| basic(format!("{user}:{password}")));
    let token = variable("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
    let (address, authorization) = address(ADDRESS, &server)?;
    Ok(Box::new(Mlflow {
        agent: agent(),
        address,
        // In the order of MLflow's client.
        authorization: authorization.or(user).or(token),
        experiment: variable("MLFLOW_EXPERIMENT_NAME").unwrap_or_else(|| "Default".into()),
        run: variable("MLFLOW_RUN_ID").filter(|id| is_id(id)),
        // A run that exists has them.
        written: Cell::new(usize::MAX),
    }))
}

impl Mlflow {
    fn call(&self, what: &str, body: &Value) -> Result<(u16, Value), Problem> {
        let url = format!("{}/api/2.0/mlflow/{what}", self.address);
        let authorization = self.authorization.as_deref();
        let headers: Vec<_> = authorization
            .map(|value| ("Authorization", value))
            .into_iter()
            .collect();
        post(&self.agent, &url, &headers, body)
    }

    fn expect(&self, what: &str, body: &Value) -> Result<Value, Problem> {
        match self.call(what, body)? {
            (200, answer) => Ok(answer),
            (status, answer) => Err(refused(status, &answer)),
        }
    }

    fn experiment(&self) -> Result<String, Problem> {
        // A search is the question for a name that needs no address with a name in it.
        let name = self.experiment.replace('\'', "''");
        let filter = json!({"filter": format!("name = '{name}'"), "max_results": 1});
        let find = || -> Result<Option<String>, Problem> {
            let found = self.expect("experiments/search", &filter)?;
            Ok(text(&found["experiments"][0]["experiment_id"]))
        };
        if let Some(id) = find()? {
            return Ok(id);
        }
        match self.call("experiments/create", &json!({"name": self.experiment}))? {
            (200, answer) => text(&answer["experiment_id"]).ok_or_else(strange),
            // Somebody else was faster.
            (400, _) => find()?.ok_or_else(strange),
            (status, answer) => Err(refused(status, &answer)),
        }
    }

    /// Creates the run, once: an earlier try may have got no answer in time, and have been obeyed nevertheless.
    fn create(&self, run: &Begun) -> Result<String, Problem> {
        let experiment = self.experiment()?;
        let filter = format!("tags.`{TAG}` = '{}'", run.key);
        let search = json!({"experiment_ids": [experiment], "filter": filter, "max_results": 1});
        let mut found = self.expect("runs/search", &search)?["runs"][0].clone();
        if found.is_null() {
            let begin = json!({
                "experiment_id": experiment,
                "run_name": run.name,
                "start_time": now(),
                "tags": [{"key": "mlflow.source.name", "value": "surefoot"}, {"key": TAG, "value": run.key}],
            });
            found = self.expect("runs/create", &begin)?["run"].clone();
        }
        let id = found["info"]["run_id"].as_str().filter(|id| is_id(id));
        let id = id.ok_or_else(strange)?.to_owned();
        self.written.set(0);
        Ok(id)
    }

    /// Writes what is not written yet of the config.
    fn parameters(&self, run: &Begun, id: &str) -> Result<(), Problem> {
        let all: Vec<_> = run
            .config
            .iter()
            .filter(|(_, value)| !value.is_null())
            .collect();
        while let Some(left) = all
            .get(self.written.get()..)
            .filter(|left| !left.is_empty())
        {
            let part = &left[..left.len().min(PARAMETERS)];
            let params = part.iter().map(|(key, value)| {
                let value = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                let value: String = value.chars().take(LONGEST_VALUE).collect();
                json!({"key": key, "value": value})
            });
            let params: Vec<_> = params.collect();
            match self.expect("runs/log-batch", &json!({"run_id": id, "params": params})) {
                Err(Problem::Never(reason)) => lacks_parameters(part.len(), &reason),
                written => drop(written?),
            }
            self.written.set(self.written.get() + part.len());
        }
        Ok(())
    }
}

impl Service for Mlflow {
    fn name(&self) -> &'static str {
        "mlflow"
    }

    fn place(&self) -> String {
        format!("{} {}", self.address, self.experiment)
    }

    fn begin(&self, run: &Begun, id: Option<&str>) -> Result<String, Problem> {
        if let Some(id) = id.or(self.run.as_deref()) {
            let (status, answer) =
                self.call("runs/update", &json!({"run_id": id, "status": "RUNNING"}))?;
            match status {
                200 => return Ok(id.to_owned()),
                // It is gone.
                400 | 404 => {}
                _ => return Err(refused(status, &answer)),
            }
        }
        self.create(run)
    }

    fn log(&self, run: &Begun, id: &str, points: &[Point]) -> Result<(), Problem> {
        // If it may succeed later, it is tried then: the numbers do not wait for it.
        let _ = self.parameters(run, id);
        let metrics = points.iter().flat_map(|point| {
            point.values.iter().map(|(tag, value)| {
                json!({"key": tag, "value": value, "timestamp": point.time, "step": point.step})
            })
        });
        let metrics: Vec<_> = metrics.collect();
        self.expect("runs/log-batch", &json!({"run_id": id, "metrics": metrics}))?;
        Ok(())
    }

    fn end(&self, run: &Begun, id: &str, ending: Ending) -> Result<(), Problem> {
        if let Err(Problem::Later(reason) | Problem::Never(reason)) = self.parameters(run, id) {
            lacks_parameters(run.config.len() - self.written.get(), &reason);
        }
        let status = match ending {
            Ending::Completed => "FINISHED",
            Ending::Stopped => "KILLED",
            Ending::Failed | Ending::Running => "FAILED",
        };
        let body = json!({"run_id": id, "status": status, "end_time": now()});
        self.expect("runs/update", &body).map(drop)
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn lacks_parameters(count: usize, reason: &str) {
    tracing::warn!(
        "mlflow lacks up to {count} parameters of the run, which its folder has: {reason}"
    );
}

fn strange() -> Problem {
    Problem::Never("it does not answer like MLflow: is `MLFLOW_TRACKING_URI` right?".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_server_has_no_password() {
        let variable = |name: &str| match name {
            "MLFLOW_TRACKING_URI" => Some("https://me:sec@ret@host:5000/".to_owned()),
            _ => None,
        };
        let place = open(&variable)
            .unwrap_or_else(|reason| panic!("{reason}"))
            .place();
        assert_eq!(place, "https://host:5000 Default");
        assert!(open(&|_| None).is_err_and(|reason| reason.contains("MLFLOW_TRACKING_URI")));
        let file = |_: &str| Some("sqlite:///mlflow.db".to_owned());
        assert!(open(&file).is_err_and(|reason| !reason.contains("sqlite")));
    }
}
