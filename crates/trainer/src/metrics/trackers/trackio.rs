//! The HTTP interface of a server that `trackio.show()` or `trackio show` starts.

use serde_json::{Value, json};
use ureq::Agent;

use super::{Begun, Point, Problem, Service, address, agent, post, refused};
use crate::summary::Ending;

struct Trackio {
    agent: Agent,
    address: String,
    /// The header `Authorization`.
    authorization: Option<String>,
    token: String,
    project: String,
}

/// The server of `TRACKIO_SERVER_URL`, which has the token to write there in it or beside it, as for trackio's client.
pub(super) fn open(variable: &dyn Fn(&str) -> Option<String>) -> Result<Box<dyn Service>, String> {
    const ADDRESS: &str = "TRACKIO_SERVER_URL";
    let server = variable(ADDRESS).ok_or_else(|| {
        format!("`trackio` needs the address of a server in `{ADDRESS}`: that with `write_token` which `trackio show` prints")
    })?;
    let (server, query) = server.split_once('?').unwrap_or((&server, ""));
    let mut words = query.split('&');
    let token = words.find_map(|word| word.strip_prefix("write_token=").map(str::to_owned));
    let token = token.or_else(|| variable("TRACKIO_WRITE_TOKEN"));
    let (address, authorization) = address(ADDRESS, server)?;
    Ok(Box::new(Trackio {
        agent: agent(),
        address,
        authorization,
        token: token.ok_or(
            "`trackio` needs a token to write, in `TRACKIO_WRITE_TOKEN` or in the address",
        )?,
        project: variable("TRACKIO_PROJECT").unwrap_or_else(|| "surefoot".into()),
    }))
}

impl Trackio {
    fn send(&self, logs: &[Value]) -> Result<(), Problem> {
        let url = format!("{}/api/bulk_log", self.address);
        let body = json!({"args": [], "kwargs": {"logs": logs, "hf_token": null}});
        let mut headers = vec![("x-trackio-write-token", self.token.as_str())];
        headers.extend(
            self.authorization
                .as_deref()
                .map(|value| ("Authorization", value)),
        );
        match post(&self.agent, &url, &headers, &body)? {
            (200, answer) if answer["error"].is_null() && answer.is_object() => Ok(()),
            (200, _) => Err(Problem::Never(
                "it does not answer like trackio: is `TRACKIO_SERVER_URL` right?".into(),
            )),
            (status, answer) => Err(refused(status, &answer)),
        }
    }
}

impl Service for Trackio {
    fn name(&self) -> &'static str {
        "trackio"
    }

    fn place(&self) -> String {
        format!("{} {}", self.address, self.project)
    }

    /// The server knows of a run by its first numbers; its id is ours to choose.
    fn begin(&self, run: &Begun, id: Option<&str>) -> Result<String, Problem> {
        Ok(id.unwrap_or(&run.key).to_owned())
    }

    fn log(&self, run: &Begun, id: &str, points: &[Point]) -> Result<(), Problem> {
        let logs = points.iter().enumerate().map(|(number, point)| {
            let first = point.values.first().map_or("", |(tag, _)| tag);
            let metrics = point.values.iter();
            let metrics = metrics.map(|(tag, value)| (tag.clone(), json!(value)));
            json!({
                "project": self.project,
                "run": run.name,
                "run_id": id,
                "step": point.step,
                "metrics": metrics.collect::<serde_json::Map<_, _>>(),
                "config": (number == 0).then_some(&run.config),
                // So that what is sent twice counts once.
                "log_id": format!("{id}-{}-{}-{first}", point.time, point.step),
            })
        });
        self.send(&logs.collect::<Vec<_>>())
    }

    fn end(&self, _: &Begun, _: &str, _: Ending) -> Result<(), Problem> {
        Ok(())
    }
}
