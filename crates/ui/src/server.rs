//! The page and its API.
//!
//! ```text
//! connection ─▶ guard (Host, Origin, token, size and time of the body) ─▶ routes ─▶ runs
//! ```
//!
//! The guard decides before a route is looked up, so every new route is
//! protected like the others.

mod api;
mod assets;
mod captioner;
mod choose;
mod data;
mod describe;
mod dev;
mod error;
mod export;
mod generate;
mod guard;
mod guests;
mod media;
mod media_folder;
#[doc(hidden)]
pub mod parsers;
mod queue;
mod routes;
mod stream;
mod thumbnails;
mod token;
mod trim;
#[cfg(test)]
mod typescript;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower::Layer;

use crate::queue::Queue;
use crate::runs::{Error, Metrics, RunName, Runs};

use guests::{Guest, Guests};

pub use guard::{COOKIE, Guard};
pub use token::Token;

/// The most connections at once; more wait.
const MAX_CONNECTIONS: usize = 128;
/// The most event streams at once; more are refused.
const MAX_STREAMS: usize = 48;
/// The most pictures and videos that are sent at once; more wait.
const MAX_FILES: usize = 24;
/// Timeout for receiving the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A client that receives nothing for this long is disconnected.
#[cfg(unix)]
const WRITE_TIMEOUT_MS: u32 = 30_000;
/// How often to look whether the queue needs a worker.
const QUEUE_PERIOD: Duration = Duration::from_secs(10);
/// How many runs have their curves kept.
const MAX_CACHED_METRICS: usize = 8;

/// Settings of a server.
pub struct Options {
    /// The folder of runs.
    pub runs: PathBuf,
    /// The address to listen at.
    pub address: IpAddr,
    /// The port; 0 chooses a free one.
    pub port: u16,
    /// Further host names by which browsers may reach this server.
    pub names: Vec<String>,
    /// `surefoot`, which starts runs.
    pub program: PathBuf,
    /// The folder that relative paths in a config from the page start from.
    pub folder: PathBuf,
    /// Folders besides it, and that of the runs, that such paths may lead to.
    pub data: Vec<PathBuf>,
    /// The file of the token.
    pub token_file: PathBuf,
    /// The port of a local Vite that serves the page from its sources, instead of the embedded one.
    pub dev: Option<u16>,
    /// The root of `sys` and `proc`: `/` outside tests.
    pub system: PathBuf,
    /// Diagnoses this machine.
    pub diagnose: fn() -> doctor::Report,
    /// Returns a dump of this machine, to post.
    pub dump: fn() -> String,
}

/// The state that all requests share.
pub struct State {
    pub(crate) runs: Runs,
    pub(crate) queue: Queue,
    pub(crate) launch: queue::Launch,
    /// Limits how many configs the trainer checks at once.
    pub(crate) asking: Arc<Semaphore>,
    /// Limits how many models are fitted into memory at once.
    pub(crate) fitting: Arc<Semaphore>,
    pub(crate) guard: Guard,
    pub(crate) dev: Option<u16>,
    pub(crate) system: PathBuf,
    pub(crate) diagnose: fn() -> doctor::Report,
    pub(crate) dump: fn() -> String,
    metrics: Mutex<VecDeque<(RunName, Arc<Mutex<Metrics>>)>>,
    pub(crate) streams: Arc<Semaphore>,
    /// What the streams of all pages send.
    pub(crate) snapshot: Mutex<stream::Snapshot>,
    /// The data sets that the page shows.
    pub(crate) sets: Mutex<data::Sets>,
    /// Small versions of pictures.
    pub(crate) thumbnails: thumbnails::Cache,
    /// Who writes captions.
    pub(crate) captioner: Mutex<Option<Arc<captioner::Work>>>,
    /// Limits how many files are sent at once.
    pub(crate) files: Semaphore,
    /// Limits how many models generate at once.
    pub(crate) generating: Arc<Semaphore>,
    /// Limits how many whole files are read at once.
    pub(crate) scans: Arc<Semaphore>,
    /// True once the server shuts down.
    pub(crate) closing: watch::Receiver<bool>,
}

impl State {
    /// Starts a worker for the queue, if it needs one.
    pub(crate) fn ensure_worker(&self) -> Result<(), Error> {
        match self.queue.needs_worker()? {
            true => self.queue.start_worker(&self.launch.program),
            false => Ok(()),
        }
    }

    /// The cached metrics of a run; those of the most recently requested runs are kept.
    pub(crate) fn metrics(&self, name: &RunName) -> Arc<Mutex<Metrics>> {
        let mut kept = lock(&self.metrics);
        let found = kept.iter().position(|(run, _)| run == name);
        let entry = match found.and_then(|at| kept.remove(at)) {
            Some(entry) => entry,
            None => (
                name.clone(),
                Arc::new(Mutex::new(Metrics::new(<_>::default()))),
            ),
        };
        let metrics = entry.1.clone();
        kept.push_front(entry);
        kept.truncate(MAX_CACHED_METRICS);
        metrics
    }
}

/// Ignores poisoning: what is cached can be read again.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A server that is listening; [`run`](Self::run) answers.
pub struct Server {
    listener: TcpListener,
    state: Arc<State>,
    close: watch::Sender<bool>,
}

impl Server {
    /// Binds the port, and reads or creates the token.
    ///
    /// # Errors
    /// If the port is in use or the token cannot be saved.
    pub async fn bind(options: Options) -> io::Result<Self> {
        let listener = TcpListener::bind((options.address, options.port)).await?;
        let address = listener.local_addr()?;
        let token = Token::load(&options.token_file)?;
        let (close, closing) = watch::channel(false);
        let runs = Runs::new(std::path::absolute(options.runs)?);
        let mut allowed = vec![options.folder.clone(), runs.root().to_owned()];
        allowed.extend(options.data);
        let state = State {
            queue: Queue::new(runs.clone()),
            launch: queue::Launch {
                program: options.program,
                folder: options.folder,
                allowed,
            },
            asking: Arc::new(Semaphore::new(1)),
            fitting: Arc::new(Semaphore::new(1)),
            runs,
            guard: Guard::new(token, address, &options.names),
            dev: options.dev,
            system: options.system,
            diagnose: options.diagnose,
            dump: options.dump,
            metrics: Mutex::default(),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            snapshot: Mutex::default(),
            sets: Mutex::default(),
            thumbnails: thumbnails::Cache::default(),
            captioner: Mutex::default(),
            files: Semaphore::new(MAX_FILES),
            generating: Arc::new(Semaphore::new(1)),
            scans: Arc::new(Semaphore::new(2)),
            closing,
        };
        Ok(Self {
            listener,
            state: Arc::new(state),
            close,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.state.guard.address()
    }

    /// The address to open in a browser: the token is in the fragment, which browsers do not send.
    pub fn url(&self) -> String {
        let address = self.address();
        let host = match address.ip().is_unspecified() {
            true => format!("127.0.0.1:{}", address.port()),
            false => address.to_string(),
        };
        format!("http://{host}/#token={}", self.state.guard.token().reveal())
    }

    /// Answers requests until `until` completes.
    pub async fn run(self, until: impl Future<Output = ()>) {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        tokio::pin!(until);
        tokio::spawn(keep_working(self.state.clone()));
        let guests = Guests::default();
        loop {
            let accepted = tokio::select! {
                () = &mut until => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    if connections.available_permits() == 0 {
                        guests.make_room();
                    }
                    let permit = tokio::select! {
                        () = &mut until => break,
                        permit = connections.clone().acquire_owned() => permit,
                    };
                    let (state, guest) = (self.state.clone(), guests.add());
                    tokio::spawn(async move {
                        connection(stream, state, guest).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    // Probably out of file descriptors: wait until other connections end.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
        let _ = self.close.send(true);
    }
}

/// Starts a worker for the queue if there is work, as after a reboot, or when the worker has ended.
async fn keep_working(state: Arc<State>) {
    let mut closing = state.closing.clone();
    let mut before = None;
    loop {
        let shared = state.clone();
        let done = api::blocking(move || Ok(shared.ensure_worker()?)).await;
        let problem = done.err().map(|refusal| refusal.1);
        if problem != before
            && let Some(problem) = &problem
        {
            tracing::warn!("the queue: {problem}");
        }
        before = problem;
        tokio::select! {
            () = tokio::time::sleep(QUEUE_PERIOD) => {}
            _ = closing.changed() => return,
        }
    }
}

/// Answers the requests of one connection, until it ends or the server does.
async fn connection(stream: TcpStream, state: Arc<State>, guest: Arc<Guest>) {
    // Windows disconnects an unresponsive client by itself.
    #[cfg(unix)]
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, WRITE_TIMEOUT_MS);
    let _ = stream.set_nodelay(true);
    let local = stream.local_addr().ok();
    let mut closing = state.closing.clone();
    let service = service(state);
    let known = guest.clone();
    let service = tower::util::MapRequest::new(service, move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(known.clone());
        if let Some(local) = local {
            request.extensions_mut().insert(guard::Local(local));
        }
        request.map(axum::body::Body::new)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(32 << 10)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let result = tokio::select! {
        result = connection => result,
        _ = closing.changed() => Ok(()),
        () = guest.asked_to_leave() => Ok(()),
    };
    if let Err(error) = result {
        tracing::debug!("a connection ended: {error}");
    }
}

/// The routes behind the guard.
fn service(
    state: Arc<State>,
) -> impl tower::Service<
    Request<axum::body::Body>,
    Response = axum::response::Response,
    Error = std::convert::Infallible,
    Future: Send,
> + Clone {
    let routes = routes::router(state.clone());
    axum::middleware::from_fn_with_state(state, guard::check).layer(routes)
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
#[cfg(test)]
#[cfg(unix)]
mod tests_changes;
#[cfg(test)]
#[cfg(unix)]
mod tests_data;
#[cfg(test)]
#[cfg(unix)]
mod tests_faults;
#[cfg(test)]
#[cfg(unix)]
mod tests_generate;
#[cfg(test)]
#[cfg(unix)]
mod tests_media_folder;
#[cfg(test)]
#[cfg(unix)]
mod tests_queue;
