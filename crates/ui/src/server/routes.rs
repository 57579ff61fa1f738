//! All routes, in one table, from which the router, the description of the API and the page's types are made.

use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{self, MethodRouter};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;

use super::describe::{Described, Operation};
use super::{
    State, api, assets, captioner, choose, data, dev, export, generate, media, media_folder, queue,
    stream, trim,
};

/// The schema of the config: a link to `configs/schema.json`.
pub(super) const SCHEMA: &str = include_str!("../../schema.json");

/// One method of a path.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) summary: &'static str,
    pub(super) describe: fn(&mut Operation<'_>),
    serve: MethodRouter<Arc<State>>,
    is_compressed: bool,
}

/// Every route.
pub(super) fn routes() -> Vec<Route> {
    vec![
        get("/", "The page.", assets::page),
        get(
            "/assets/{name}",
            "A script or style of the page.",
            assets::asset,
        ),
        post(
            "/api/session",
            "Exchange the token for the cookie.",
            api::session,
        ),
        get(
            "/api/openapi.json",
            "This description of the API.",
            api::openapi,
        ),
        get("/api/schema", "The JSON schema of a config.", api::schema),
        get(
            "/api/runs",
            "All runs, the most recently changed first.",
            api::runs,
        ),
        get(
            "/api/stream",
            "The list of runs, as an event `runs` whenever it changes.",
            stream::runs,
        ),
        get(
            "/api/compare",
            "Several runs, and the differences between their configs.",
            api::compare,
        ),
        get(
            "/api/gpus",
            "The current state of AMD GPUs, and what each run uses of them. What the driver does not report is null.",
            api::gpus,
        ),
        get(
            "/api/doctor",
            "The doctor's report on this machine.",
            api::doctor,
        ),
        get(
            "/api/doctor/dump",
            "A dump of this machine to post, with `~` for the home folder.",
            api::dump,
        ),
        post(
            "/api/explain",
            "Explains the error messages in a text.",
            api::explain_text,
        ),
        get(
            "/api/runs/{name}",
            "A run with its config and summary.",
            api::run,
        ),
        delete(
            "/api/runs/{name}",
            "Remove a run that is not running, with all its files.",
            api::remove,
        ),
        get(
            "/api/runs/{name}/curves",
            "Curves over the steps, decimated to a number of points with the minimum and maximum of each, and events.",
            api::curves,
        ),
        put(
            "/api/runs/{name}/notes",
            "Note tags and a text of a run.",
            api::note,
        ),
        get(
            "/api/runs/{name}/metrics.csv",
            "The numbers of all logged steps as comma-separated values.",
            export::csv,
        ),
        get(
            "/api/runs/{name}/samples",
            "The latest sets of samples, at most 2 MiB.",
            api::samples,
        ),
        get(
            "/api/runs/{name}/explain",
            "Why a run failed.",
            api::explain,
        ),
        get(
            "/api/runs/{name}/stream",
            "What changes: `state` (an Overview), `records` (new lines of metrics.jsonl), `anew` (another file: ask for the curves again), `gone`. The id of an event is `<inode>-<offset>`, which `Last-Event-ID` takes up.",
            stream::run,
        ),
        post(
            "/api/runs/{name}/stop",
            "Ask a run to finish its step, save and end, as Ctrl-C does.",
            api::stop,
        ),
        post(
            "/api/runs/{name}/save",
            "Ask a run to save a checkpoint after the current step, and go on.",
            queue::save,
        ),
        post(
            "/api/runs/{name}/sample",
            "Ask a run to generate samples after the current step, and go on.",
            queue::sample,
        ),
        get(
            "/api/runs/{name}/log",
            "The output of a run's jobs; null for a run that was not started by the queue.",
            queue::run_log,
        ),
        get(
            "/api/queue",
            "The queue: running jobs, waiting jobs in their order, and ended jobs.",
            queue::list,
        ),
        post(
            "/api/queue",
            "Add a job at the end of the queue; one of `config`, `like` and `resume` says what it trains (`like` beside a `config`: of which run it is a changed one). Paths in a config may only lead to the server's folder, that of the runs and those of `--data`.",
            queue::add,
        ),
        post(
            "/api/queue/pause",
            "Pause or resume the queue; running jobs go on.",
            queue::pause,
        ),
        post(
            "/api/queue/settings",
            "Set how many runs train at the same time; running jobs go on.",
            queue::settings,
        ),
        delete(
            "/api/queue/{job}",
            "Remove a job that is not running from the queue.",
            queue::remove,
        ),
        post(
            "/api/queue/{job}/move",
            "Move a waiting job to another position.",
            queue::move_to,
        ),
        post(
            "/api/queue/{job}/stop",
            "Ask the run of a job to finish its step, save and end; a check ends at once.",
            queue::stop,
        ),
        post(
            "/api/queue/{job}/retry",
            "Put an ended job at the end of the queue.",
            queue::retry,
        ),
        get(
            "/api/queue/{job}/config",
            "The config of a job.",
            queue::job_config,
        ),
        get(
            "/api/queue/{job}/log",
            "The output of a job.",
            queue::job_log,
        ),
        get(
            "/api/models",
            "The models on this machine that can be trained: in the caches, and in the allowed folders.",
            choose::models,
        ),
        get(
            "/api/folder",
            "What is in an allowed folder, for somebody who chooses data.",
            choose::folder,
        ),
        post(
            "/api/folder",
            "Make a folder for data in an allowed one.",
            choose::make_folder,
        ),
        post(
            "/api/media",
            "List the pictures and videos in an allowed folder and those below it, with their captions.",
            media_folder::open,
        ),
        post(
            "/api/fits",
            "How the model of a config fits into this machine's memory: `found.ways`, of which the last may fit.",
            queue::fits,
        ),
        post(
            "/api/check",
            "Check a config: `found.problems`, each with line and column.",
            queue::check,
        ),
        post(
            "/api/dry-run",
            "Make a dry run: speed, memory and its plan, or why it cannot work. It takes as long as loading the model.",
            queue::dry_run,
        ),
        post(
            "/api/data",
            "Show what a config would train on.",
            data::look,
        ),
        get(
            "/api/data/{set}/{medium}",
            "A picture or a video of a data set; for a folder of frames, the first.",
            data::file,
        )
        .uncompressed(),
        put(
            "/api/data/{set}/{medium}/caption",
            "Change a caption, unless it has changed since it was read.",
            data::caption,
        ),
        put(
            "/api/data/{set}/{medium}/trim",
            "Change which part of a video is trained on, unless that has changed since it was read.",
            trim::trim,
        ),
        get(
            "/api/data/{set}/{medium}/thumbnail",
            "A picture at most 320 pixels wide and high, as JPEG.",
            media_folder::thumbnail,
        )
        .uncompressed(),
        delete(
            "/api/data/{set}/{medium}",
            "Remove a picture or a video from an allowed folder, with its caption.",
            media_folder::remove,
        ),
        post(
            "/api/data/{set}/look",
            "Look at the next pictures for about a second: how sharp each is, and what it looks like.",
            media_folder::look,
        ),
        put(
            "/api/data/{set}/captions",
            "Change captions, except those that have changed since they were read.",
            media_folder::captions,
        ),
        put(
            "/api/data/{set}/files/{file}",
            "Add a file to the folder of a data set; nothing is replaced.",
            media_folder::upload,
        ),
        get(
            "/api/captioner",
            "How far the vision model is that writes captions; null before the first.",
            captioner::state,
        ),
        post(
            "/api/captioner",
            "Let a vision model on this machine write the captions of pictures that have none.",
            captioner::start,
        ),
        delete("/api/captioner", "Write no more captions.", captioner::stop),
        get(
            "/api/captioner/models",
            "The models of a server on this machine that speaks OpenAI's API; null if none answers.",
            captioner::models,
        ),
        post(
            "/api/generate",
            "Generate with a run's model, streaming the answer. Closing the connection stops it.",
            generate::generate,
        )
        .uncompressed(),
        get(
            "/api/tried/{file}",
            "A generated video; only the latest few are kept.",
            generate::made,
        )
        .uncompressed(),
        get(
            "/api/runs/{name}/samples/{step}/{sample}/{file}",
            "A picture or a video that a run generated as a sample.",
            media::sample,
        )
        .uncompressed(),
    ]
}

fn route<H: Described<Parts>, Parts>(
    method: Method,
    path: &'static str,
    summary: &'static str,
    serve: MethodRouter<Arc<State>>,
    _: H,
) -> Route {
    Route {
        method,
        path,
        summary,
        describe: H::describe,
        serve,
        is_compressed: true,
    }
}

impl Route {
    /// For responses that are streamed, or compressed already.
    fn uncompressed(mut self) -> Self {
        self.is_compressed = false;
        self
    }
}

macro_rules! methods {
    ($($name:ident $method:ident),*) => {$(
        fn $name<H, T: 'static, Parts>(path: &'static str, summary: &'static str, handler: H) -> Route
        where
            H: Handler<T, Arc<State>> + Described<Parts>,
        {
            route(Method::$method, path, summary, routing::$name(handler.clone()), handler)
        }
    )*};
}
methods!(get GET, post POST, put PUT, delete DELETE);

pub(super) fn router(state: Arc<State>) -> Router {
    let is_page = |route: &Route| !route.path.starts_with("/api/");
    let add = |router: Router<_>, route: Route| router.route(route.path, route.serve);
    // While it is developed, Vite has the page.
    let routes = routes().into_iter();
    let routes = routes.filter(|route| state.dev.is_none() || !is_page(route));
    let (compressed, others): (Vec<_>, Vec<_>) = routes.partition(|route| route.is_compressed);
    let router = compressed.into_iter().fold(Router::new(), add);
    let router = match state.dev {
        Some(_) => router.fallback(routing::get(dev::page)),
        None => router,
    };
    let router = router.layer(CompressionLayer::new());
    let router = others.into_iter().fold(router, add);
    router.with_state(state).layer(CatchPanicLayer::new())
}
