//! The requests of the hub's protocol that are needed for a model or a data set.

use std::io::Read;
use std::time::Duration;

use serde_json::Value;
use ureq::http::{Response, header};
use ureq::{Agent, Body};

use super::name::{HubName, escaped, is_commit};
use super::settings::Settings;

/// How often a request is repeated if it fails without having received a byte.
const TRIES: u32 = 6;
/// The longest `Retry-After` that is obeyed.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// The longest time without a byte.
const STALL: Duration = Duration::from_secs(60);
/// The most redirects of a request.
const REDIRECTS: usize = 5;
/// The most bytes of a listing.
const LONGEST_LISTING: u64 = 64 << 20;

/// Why a request to the hub failed.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The hub cannot be reached or is overloaded: the cache may be used instead.
    Unreachable(String),
    /// The hub answered with an error that a retry would not change.
    Answered(String),
}

/// The metadata of a file before it is fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileInfo {
    /// Its etag: the SHA-256 of a large file, otherwise git's hash.
    pub(super) etag: String,
    /// Its size in bytes, if the hub reports it.
    pub(super) size: Option<u64>,
    /// The address of its content.
    pub(super) address: String,
}

/// A commit of a repository and its files.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
}

/// A client of the hub.
pub(super) struct Client<'a> {
    settings: &'a Settings,
    agent: Agent,
}

impl<'a> Client<'a> {
    pub(super) fn new(settings: &'a Settings) -> Self {
        let config = Agent::config_builder()
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(STALL))
            .timeout_per_read(Some(STALL))
            // Redirects are followed here, since their target decides whether the token is sent.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            // The sizes must be those of the files, so no compression.
            .accept_encoding("identity")
            .user_agent(concat!("surefoot/", env!("CARGO_PKG_VERSION")));
        Self {
            settings,
            agent: Agent::new_with_config(config.build()),
        }
    }

    /// The commit that a revision points to, and its files.
    pub(super) fn listing(&self, name: &HubName) -> Result<Listing, Refusal> {
        let address = format!(
            "{}/api/{}/{}/revision/{}",
            self.settings.endpoint,
            name.plural(),
            name.repository,
            escaped(&name.revision, false)
        );
        let (_, mut answer) = self.asked(&address, false, 0)?;
        if !answer.status().is_success() {
            return Err(self.refusal(name, None, &answer));
        }
        let strange = |what: &str| {
            Refusal::Answered(format!(
                "{} does not answer like a hub ({what}): is `HF_ENDPOINT` right?",
                self.settings.endpoint
            ))
        };
        let body = answer.body_mut().with_config().limit(LONGEST_LISTING);
        let body = body.read_to_vec();
        let body = body.map_err(|error| strange(&error.to_string()))?;
        let value: Value =
            serde_json::from_slice(&body).map_err(|error| strange(&error.to_string()))?;
        let commit = value["sha"].as_str().filter(|commit| is_commit(commit));
        let commit = commit.ok_or_else(|| strange("no commit"))?;
        let files = value["siblings"].as_array();
        let files = files.ok_or_else(|| strange("no list of files"))?.iter();
        let files = files.filter_map(|file| file["rfilename"].as_str());
        Ok(Listing {
            commit: commit.to_owned(),
            files: files.map(str::to_owned).collect(),
        })
    }

    /// The hub's metadata of a file of `commit`.
    pub(super) fn info(
        &self,
        name: &HubName,
        commit: &str,
        file: &str,
    ) -> Result<FileInfo, Refusal> {
        let address = format!(
            "{}/{}/resolve/{commit}/{}",
            self.settings.endpoint,
            name.page(),
            escaped(file, true)
        );
        let (address, answer) = self.asked(&address, true, 0)?;
        if !answer.status().is_success() && !answer.status().is_redirection() {
            return Err(self.refusal(name, Some(file), &answer));
        }
        let text = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok());
        let lacks = |what: &str| {
            Refusal::Answered(format!(
                "{} sends no {what} for `{file}`: is `HF_ENDPOINT` a hub?",
                self.settings.endpoint
            ))
        };
        let etag = text("x-linked-etag").or_else(|| text("etag"));
        let etag = etag.map(normal_etag).filter(|etag| is_plain(etag));
        let size = text("x-linked-size").or_else(|| match answer.status().is_redirection() {
            true => None,
            false => text("content-length"),
        });
        let location = text("location").map(|location| joined(&address, location));
        Ok(FileInfo {
            etag: etag.ok_or_else(|| lacks("etag"))?,
            size: size.and_then(|size| size.parse().ok()),
            address: location.unwrap_or(address),
        })
    }

    /// The bytes of a file from `start` on, and where they really start: 0 if the server ignores the requested
    /// range.
    pub(super) fn bytes(
        &self,
        name: &HubName,
        file: &str,
        info: &FileInfo,
        start: u64,
    ) -> Result<(u64, Box<dyn Read>), Refusal> {
        let (_, answer) = self.asked(&info.address, false, start)?;
        let status = answer.status().as_u16();
        match status {
            200 => Ok((0, body(answer))),
            206 => {
                let range = answer.headers().get(header::CONTENT_RANGE);
                let begins = range.and_then(|range| {
                    let range = range.to_str().ok()?.strip_prefix("bytes ")?;
                    range.split('-').next()?.parse().ok()
                });
                if begins != Some(start) {
                    return Err(Refusal::Answered(format!(
                        "{} sends a different part of `{file}` than was requested",
                        host(&info.address)
                    )));
                }
                Ok((start, body(answer)))
            }
            // Beyond the end: what was downloaded is not of this file.
            416 if start > 0 => Ok((0, Box::new(std::io::empty()))),
            _ => Err(self.refusal(name, Some(file), &answer)),
        }
    }

    /// Sends a request, and returns the final address and the response. Redirects are followed, but for a HEAD only
    /// those that stay on one host. Failures and requests to wait are retried.
    fn asked(
        &self,
        address: &str,
        head: bool,
        start: u64,
    ) -> Result<(String, Response<Body>), Refusal> {
        let mut tried = 0;
        loop {
            let problem = match self.once(address, head, start) {
                Ok((at, answer)) => match answer.status().as_u16() {
                    status @ (408 | 429 | 500 | 502..=504) => {
                        let asked = answer.headers().get(header::RETRY_AFTER);
                        let asked = asked.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
                        (format!("{} answers {status}", host(&at)), asked)
                    }
                    _ => return Ok((at, answer)),
                },
                Err(Refusal::Unreachable(problem)) => (problem, None),
                Err(answered) => return Err(answered),
            };
            tried += 1;
            let (problem, asked) = problem;
            let wait = asked.map_or(
                self.settings.pause * (1_u32 << (tried - 1).min(5)),
                Duration::from_secs,
            );
            if tried >= TRIES || wait > LONGEST_WAIT {
                return Err(Refusal::Unreachable(match wait > LONGEST_WAIT {
                    true => format!("{problem}, and asks to wait for {} s", wait.as_secs()),
                    false => problem,
                }));
            }
            tracing::debug!("{problem}: retrying in {wait:?}");
            std::thread::sleep(wait);
        }
    }

    fn once(
        &self,
        address: &str,
        head: bool,
        start: u64,
    ) -> Result<(String, Response<Body>), Refusal> {
        let mut address = address.to_owned();
        for _ in 0..=REDIRECTS {
            let mut request = match head {
                true => self.agent.head(&address),
                false => self.agent.get(&address),
            };
            // The token is sent to the hub only.
            if let Some(token) = &self.settings.token
                && same_origin(&address, &self.settings.endpoint)
            {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if start > 0 {
                request = request.header(header::RANGE, format!("bytes={start}-"));
            }
            let answer = request.call().map_err(|error| {
                Refusal::Unreachable(format!("{} cannot be reached: {error}", host(&address)))
            })?;
            let location = answer.headers().get(header::LOCATION);
            let location = location.and_then(|location| location.to_str().ok());
            let Some(next) = location.filter(|_| answer.status().is_redirection()) else {
                return Ok((address, answer));
            };
            let next = joined(&address, next);
            if address.starts_with("https:") && !next.starts_with("https:") {
                let from = host(&address);
                return Err(Refusal::Answered(format!(
                    "{from} redirects to an address without TLS"
                )));
            }
            // This response's headers describe the file; its content is requested separately.
            if head
                && (answer.headers().contains_key("x-linked-etag") || !same_origin(&address, &next))
            {
                return Ok((address, answer));
            }
            address = next;
        }
        Err(Refusal::Answered(format!(
            "{} redirects too often",
            host(&address)
        )))
    }

    /// The error for an unsuccessful response.
    fn refusal(&self, name: &HubName, file: Option<&str>, answer: &Response<Body>) -> Refusal {
        let text = |name: &str| {
            let value = answer
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let (status, code) = (answer.status().as_u16(), text("x-error-code"));
        let page = format!("{}/{}", self.settings.endpoint, name.page());
        let who = match self.settings.token {
            Some(_) => "the token is not allowed to read it",
            None => "no token was given (`HF_TOKEN`, or `hf auth login`)",
        };
        Refusal::Answered(match (status, code.as_str()) {
            (_, "GatedRepo") | (403, _) => format!(
                "`{name}` has a licence to accept first: open {page} in a browser, accept it, and set \
                `HF_TOKEN` to a token of the account that did; {who}"
            ),
            (_, "RevisionNotFound") => format!(
                "`{}` has no branch, tag or commit `{}`: {page} lists them",
                name.repository, name.revision
            ),
            (404, _) if file.is_some() => format!(
                "`{name}` no longer has `{}`: try again",
                file.unwrap_or_default()
            ),
            (401 | 404, _) => format!(
                "there is no {} `{}` at {}, or it is private and {who}",
                name.noun(),
                name.repository,
                self.settings.endpoint
            ),
            _ => format!(
                "{} answers {status} {}",
                host(&page),
                text("x-error-message")
            ),
        })
    }
}

/// Resolves a `Location` against the address of the request.
fn joined(address: &str, location: &str) -> String {
    if location.contains("://") {
        return location.to_owned();
    }
    let scheme = address.split("://").next().unwrap_or("https");
    match location.strip_prefix("//") {
        Some(rest) => format!("{scheme}://{rest}"),
        None if location.starts_with('/') => format!("{}{location}", origin(address)),
        None => {
            let folder = address
                .rsplit_once('/')
                .map_or(address, |(folder, _)| folder);
            format!("{folder}/{location}")
        }
    }
}

/// `https://host:port` of an address.
fn origin(address: &str) -> &str {
    let begins = address.find("://").map_or(0, |at| at + 3);
    let ends = address[begins..].find(['/', '?', '#']);
    &address[..ends.map_or(address.len(), |at| begins + at)]
}

fn same_origin(one: &str, other: &str) -> bool {
    origin(one).eq_ignore_ascii_case(origin(other))
}

/// The body of a response as it arrives.
fn body(answer: Response<Body>) -> Box<dyn Read> {
    let body = answer.into_body().into_with_config().limit(u64::MAX);
    Box::new(body.reader())
}

/// The host of an address only: the rest may contain a signature.
fn host(address: &str) -> &str {
    let origin = origin(address);
    let host = origin.split("://").last().unwrap_or(origin);
    host.rsplit('@').next().unwrap_or(host)
}

/// An etag without its quotes and its `W/` prefix.
fn normal_etag(etag: &str) -> String {
    etag.trim()
        .trim_start_matches("W/")
        .trim_matches('"')
        .to_owned()
}

/// Whether it is safe as a file name.
fn is_plain(etag: &str) -> bool {
    (1..=200).contains(&etag.len())
        && !etag.starts_with('.')
        && etag
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_browsers_do() {
        let at = "https://hub.co/a/b?x=1";
        for (location, leads) in [
            ("https://cdn.co/x", "https://cdn.co/x"),
            ("//cdn.co/x", "https://cdn.co/x"),
            ("/api/x", "https://hub.co/api/x"),
            ("c", "https://hub.co/a/c"),
        ] {
            assert_eq!(joined(at, location), leads);
        }
        assert!(same_origin("https://Hub.co/a", "https://hub.co"));
        for other in [
            "https://hub.co.evil.org/",
            "http://hub.co/",
            "https://hub.co:8443/",
            "https://hub.co@evil.org/",
        ] {
            assert!(!same_origin("https://hub.co/a", other), "{other}");
        }
        assert_eq!(host("https://user:word@hub.co:1/secret"), "hub.co:1");
        assert_eq!(escaped("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(escaped("a b/ü.json", true), "a%20b/%C3%BC.json");
    }

    #[test]
    fn an_etag_with_a_path_is_rejected() {
        assert_eq!(normal_etag("W/\"abc\""), "abc");
        for etag in ["", "../x", "a/b", ".", "a\\b", "a:b"] {
            assert!(!is_plain(etag), "{etag}");
        }
        assert!(is_plain("0a-f_1.x"));
    }
}
