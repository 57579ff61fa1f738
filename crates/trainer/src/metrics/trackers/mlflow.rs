//! MLflow's REST interface (`/api/2.0/mlflow`).

use serde_json::{Value, json};
use ureq::Agent;

use super::{Begun, Point, Problem, Service, address, agent, is_id, now, post, refused};
use crate::summary::Ending;

/// The most parameters in a request.
const PARAMETERS: usize = 100;
/// The longest value of a parameter that all versions take.
const LONGEST_VALUE: usize = 500;

struct Mlflow {
    agent: Agent,
    address: String,
    /// The header `Authorization`.
    authorization: Option<String>,
    experiment: String,
    /// A run that exists already, as MLflow's client reads it.
    run: Option<String>,
}

/// The server of `MLFLOW_TRACKING_URI`.
pub(super) fn open(variable: &dyn Fn(&str) -> Option<String>) -> Result<Box<dyn Service>, String> {
    const ADDRESS: &str = "MLFLOW_TRACKING_URI";
    let server = variable(ADDRESS).ok_or_else(|| {
        format!("`mlflow` needs the address of a server in `{ADDRESS}`, such as that of `mlflow server`: http://127.0.0.1:5000")
    })?;
    let user = variable("MLFLOW_TRACKING_USERNAME");
    let password = variable("MLFLOW_TRACKING_PASSWORD").unwrap_or_default();
    let basic =
        user.map(|user| format!("Basic {}", base64(format!("{user}:{password}").as_bytes())));
    let token = variable("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
    Ok(Box::new(Mlflow {
        agent: agent(),
        address: address(ADDRESS, &server)?,
        authorization: basic.or(token),
        experiment: variable("MLFLOW_EXPERIMENT_NAME").unwrap_or_else(|| "Default".into()),
        run: variable("MLFLOW_RUN_ID").filter(|id| is_id(id)),
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
}

impl Service for Mlflow {
    fn name(&self) -> &'static str {
        "mlflow"
    }

    fn place(&self) -> String {
        // Without a user and a password.
        let (scheme, rest) = self.address.split_once("://").unwrap_or_default();
        let host = rest.rsplit('@').next().unwrap_or_default();
        format!("{scheme}://{host} {}", self.experiment)
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
        let begin = json!({
            "experiment_id": self.experiment()?,
            "run_name": run.name,
            "start_time": now(),
            "tags": [{"key": "mlflow.source.name", "value": "surefoot"}],
        });
        let answer = self.expect("runs/create", &begin)?;
        let id = answer["run"]["info"]["run_id"]
            .as_str()
            .filter(|id| is_id(id));
        let id = id.ok_or_else(strange)?.to_owned();
        let parameters: Vec<_> = run
            .config
            .iter()
            .filter(|(_, value)| !value.is_null())
            .collect();
        for parameters in parameters.chunks(PARAMETERS) {
            let params = parameters.iter().map(|(key, value)| {
                let value = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                let value: String = value.chars().take(LONGEST_VALUE).collect();
                json!({"key": key, "value": value})
            });
            let params: Vec<_> = params.collect();
            // Without them the numbers are worth having, too, and a second try would be a second run.
            if self
                .expect("runs/log-batch", &json!({"run_id": id, "params": params}))
                .is_err()
            {
                break;
            }
        }
        Ok(id)
    }

    fn log(&self, _: &Begun, id: &str, points: &[Point]) -> Result<(), Problem> {
        let metrics = points.iter().flat_map(|point| {
            point.values.iter().map(|(tag, value)| {
                json!({"key": tag, "value": value, "timestamp": point.time, "step": point.step})
            })
        });
        let metrics: Vec<_> = metrics.collect();
        self.expect("runs/log-batch", &json!({"run_id": id, "metrics": metrics}))?;
        Ok(())
    }

    fn end(&self, id: &str, ending: Ending) -> Result<(), Problem> {
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

fn strange() -> Problem {
    Problem::Never("it does not answer like MLflow: is `MLFLOW_TRACKING_URI` right?".into())
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let part = |at: usize| u32::from(chunk.get(at).copied().unwrap_or_default());
        let word = part(0) << 16 | part(1) << 8 | part(2);
        for place in 0..4 {
            text.push(match place <= chunk.len() {
                true => char::from(LETTERS[(word >> (18 - 6 * place) & 63) as usize]),
                false => '=',
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_place_of_a_server_has_no_password() {
        let variable = |name: &str| match name {
            "MLFLOW_TRACKING_URI" => Some("https://me:secret@host:5000/".to_owned()),
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
