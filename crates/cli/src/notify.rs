//! `notify.url`: notifies a web address about a run.
//!
//! One POST with JSON for ntfy, Slack and Discord: Slack shows `text`, Discord `content`, and headers make ntfy (2.10
//! or newer) show `content`, too. Redirects are not followed, the timeout is ten seconds, and errors are only
//! reported on stderr: a run never fails because of a notification.

use std::net::IpAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// Timeout for one message, including name resolution and the response.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest message in characters; Discord allows 2000.
const LONGEST: usize = 1500;

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// All steps were done.
    Completed {
        /// Their number.
        steps: u64,
        /// The last training loss, as text.
        loss: Option<String>,
    },
    /// It was asked to stop.
    Stopped {
        /// Steps done.
        steps: u64,
        /// Planned steps.
        of: u64,
    },
    /// It ended with an error.
    Failed {
        /// Steps done, as far as they were recorded.
        step: u64,
        /// The error.
        error: String,
    },
    /// It ended without reporting why.
    Interrupted {
        /// Steps done, as far as they were recorded.
        step: u64,
    },
    /// It returned to a checkpoint.
    RolledBack {
        /// The step before that.
        from: u64,
        /// The step of the checkpoint.
        to: u64,
    },
}

impl Event {
    /// The name of the event in JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Stopped { .. } => "stopped",
            Self::Failed { .. } => "failed",
            Self::Interrupted { .. } => "interrupted",
            Self::RolledBack { .. } => "rolled_back",
        }
    }

    fn step(&self) -> u64 {
        match self {
            Self::Completed { steps, .. } | Self::Stopped { steps, .. } => *steps,
            Self::Failed { step, .. } | Self::Interrupted { step } => *step,
            Self::RolledBack { to, .. } => *to,
        }
    }

    fn sentence(&self, run: &str) -> String {
        match self {
            Self::Completed { steps, loss } => {
                let loss = loss.as_ref().map(|loss| format!(", loss {loss}"));
                format!("{run} is done: {steps} steps{}", loss.unwrap_or_default())
            }
            Self::Stopped { steps, of } => format!("{run} was stopped after {steps} of {of} steps"),
            Self::Failed { step, error } => format!("{run} failed after step {step}: {error}"),
            Self::Interrupted { step } => format!(
                "{run} ended without an error message after step {step}: it was killed, or the machine went down"
            ),
            Self::RolledBack { from, to } => format!(
                "{run} went back from step {from} to the checkpoint of step {to}: losses or gradients \
                 were not finite"
            ),
        }
    }
}

/// Sends the events of one run.
#[derive(Debug, Default)]
pub struct Notifier {
    url: Option<String>,
    sending: Vec<JoinHandle<()>>,
}

impl Notifier {
    /// Sends to `url`, if there is one.
    pub fn new(url: Option<String>) -> Self {
        let sending = Vec::new();
        Self { url, sending }
    }

    /// Sends an event in the background.
    pub fn send(&mut self, run: &str, event: Event) {
        let Some(url) = self.url.clone() else {
            return;
        };
        let run = run.to_owned();
        let thread = std::thread::Builder::new().name("notify".into());
        let sending = thread.spawn(move || tell(&url, &run, &event));
        self.sending.extend(sending);
    }
}

/// Waits for messages that are being sent, at most ten seconds.
impl Drop for Notifier {
    fn drop(&mut self) {
        for sending in self.sending.drain(..) {
            let _ = sending.join();
        }
    }
}

/// Sends one message, and reports a failure on stderr.
pub fn tell(url: &str, run: &str, event: &Event) {
    if let Err(problem) = post(url, &body(run, event)) {
        // The address is as secret as a password, and errors may contain it.
        let problem = problem.replace(url, "it");
        eprintln!("surefoot: `notify.url` ({}): {problem}", host(url));
    }
}

fn post(url: &str, body: &str) -> Result<(), String> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(LIMIT))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .user_agent(concat!("surefoot/", env!("CARGO_PKG_VERSION")));
    let connector = DefaultConnector::default();
    let request = ureq::Agent::with_parts(config.build(), connector, OtherMachines::default())
        .post(url)
        .header("Content-Type", "application/json")
        .header("X-Template", "yes")
        .header("X-Title", "{{.title}}")
        .header("X-Message", "{{.content}}");
    let answer = request.send(body).map_err(|error| error.to_string())?;
    let status = answer.status();
    match (status.is_success(), status.is_redirection()) {
        (true, _) => Ok(()),
        (_, true) => Err(format!(
            "it answers with a redirect ({status}), which is not followed: use the target's address"
        )),
        _ => Err(format!("it answers {status}")),
    }
}

/// Finds the addresses of a host, and refuses link-local ones: no service for people has one, but that of a cloud
/// which gives away the machine's credentials does.
#[derive(Debug, Default)]
struct OtherMachines(DefaultResolver);

impl Resolver for OtherMachines {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.0.resolve(uri, config, timeout)?;
        match found.iter().any(|address| is_link_local(address.ip())) {
            true => Err(ureq::Error::Io(std::io::Error::other(
                "it has a link-local address, which is not used",
            ))),
            false => Ok(found),
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The message as JSON.
fn body(run: &str, event: &Event) -> String {
    let sentence = plain(&event.sentence(run));
    let title = plain(&format!("{run}: {}", event.word().replace('_', " ")));
    let value = json!({
        "event": event.word(),
        "run": run,
        "step": event.step(),
        "title": title,
        // `<!channel>` would notify everybody in Slack.
        "text": sentence.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"),
        "content": sentence,
        // `@everyone` must not notify anybody in Discord.
        "allowed_mentions": { "parse": [] },
    });
    value.to_string()
}

/// Text without control characters, truncated if it is too long.
fn plain(text: &str) -> String {
    let is_shown = |c: &char| *c == '\n' || !c.is_control();
    let mut shown: String = text.chars().filter(is_shown).take(LONGEST + 1).collect();
    if let Some((cut, _)) = shown.char_indices().nth(LONGEST) {
        shown.truncate(cut);
        shown.push('…');
    }
    shown
}

/// The part of an address that is not secret.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_works_for_each_of_the_services() {
        let error = format!("<!channel> @everyone \u{1b}[31mred & {}", "x".repeat(9000));
        let event = Event::Failed { step: 7, error };
        let body: serde_json::Value = serde_json::from_str(&body("a", &event)).expect("JSON");
        let (text, content) = (&body["text"], &body["content"]);
        let begins = "a failed after step 7: &lt;!channel&gt; @everyone [31mred &amp; xxx";
        assert!(text.as_str().is_some_and(|text| text.starts_with(begins)));
        let content = content.as_str().expect("a text");
        assert_eq!(content.chars().count(), LONGEST + 1);
        assert!(content.ends_with("x…"), "{content}");
        assert_eq!(body["title"], "a: failed");
        assert_eq!(
            (&body["event"], &body["step"]),
            (&"failed".into(), &7.into())
        );
        assert_eq!(body["allowed_mentions"], json!({ "parse": [] }));
    }

    #[test]
    fn nothing_is_sent_to_a_link_local_address() {
        for url in [
            "http://169.254.169.254/latest",
            "http://[fe80::1]:80/",
            "http://[::ffff:169.254.169.254]/",
        ] {
            let error = post(url, "{}").expect_err(url);
            assert!(error.contains("link-local"), "{url}: {error}");
        }
    }

    #[test]
    fn only_the_host_of_an_address_is_shown() {
        for url in [
            "https://a.org/secret",
            "http://a.org?auth=x",
            "https://a.org",
        ] {
            assert_eq!(host(url), "a.org");
        }
        assert_eq!(host("http://127.0.0.1:80/x"), "127.0.0.1:80");
    }
}
