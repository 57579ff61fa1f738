//! The description of the API, from the routes and the types that their handlers take and return.
//!
//! `typescript` makes the page's types from it; a test compares both with the committed files.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest, Path, Query, RawQuery, Request, State as Shared};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::Sse;
use axum::response::{IntoResponse, Response};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::State;
use super::api::parse;
use super::error::Refusal;

/// A JSON body. An empty one is `null`, for `Body<Option<T>>`.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(IntoResponse::into_response)?;
        let text: &[u8] = if body.is_empty() { b"null" } else { &body };
        parse(text).map(Self).map_err(IntoResponse::into_response)
    }
}

/// A file as it arrives.
pub(super) struct Upload(pub(super) axum::body::Body);

impl<S: Send + Sync> FromRequest<S> for Upload {
    type Rejection = std::convert::Infallible;

    async fn from_request(request: Request, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(request.into_body()))
    }
}

/// The description of one method of a path.
pub(crate) struct Operation<'a> {
    requests: &'a mut SchemaGenerator,
    answers: &'a mut SchemaGenerator,
    fields: Map<String, Value>,
    parameters: Vec<Value>,
}

impl Operation<'_> {
    fn answer(&mut self, status: &str, content: Value) {
        let description = match content.is_null() {
            true => "Done.",
            false => "The answer.",
        };
        let mut answer = json!({ "description": description });
        if !content.is_null() {
            answer["content"] = content;
        }
        self.fields
            .insert("responses".into(), json!({ status: answer }));
    }
}

/// What a handler takes or returns, as far as the description tells of it.
pub(crate) trait Part {
    /// Adds it to the description.
    fn describe(_: &mut Operation<'_>) {}
}

impl Part for Shared<Arc<State>> {}
impl<T> Part for Path<T> {}
impl Part for HeaderMap {}

impl<T: JsonSchema> Part for Body<T> {
    fn describe(operation: &mut Operation<'_>) {
        let schema = operation.requests.subschema_for::<T>();
        let body = json!({ "content": { "application/json": { "schema": schema } } });
        operation.fields.insert("requestBody".into(), body);
    }
}

impl Part for Upload {
    fn describe(operation: &mut Operation<'_>) {
        let body = json!({ "content": { "application/octet-stream": {} } });
        operation.fields.insert("requestBody".into(), body);
    }
}

impl<T: JsonSchema> Part for Result<Query<T>, QueryRejection> {
    fn describe(operation: &mut Operation<'_>) {
        let schema = T::json_schema(operation.requests);
        for (name, schema) in schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let parameter = json!({ "name": name, "in": "query", "schema": schema });
            operation.parameters.push(parameter);
        }
    }
}

/// The only route whose query names something several times.
impl Part for RawQuery {
    fn describe(operation: &mut Operation<'_>) {
        let schema = json!({ "type": "array", "items": { "type": "string" } });
        operation
            .parameters
            .push(json!({ "name": "run", "in": "query", "schema": schema }));
    }
}

impl<T: Part> Part for Result<T, Refusal> {
    fn describe(operation: &mut Operation<'_>) {
        T::describe(operation);
    }
}

impl<T: JsonSchema> Part for Json<T> {
    fn describe(operation: &mut Operation<'_>) {
        let schema = operation.answers.subschema_for::<T>();
        operation.answer("200", json!({ "application/json": { "schema": schema } }));
    }
}

/// Something was created.
impl<T: JsonSchema> Part for (StatusCode, Json<T>) {
    fn describe(operation: &mut Operation<'_>) {
        let schema = operation.answers.subschema_for::<T>();
        operation.answer("201", json!({ "application/json": { "schema": schema } }));
    }
}

/// Without content.
impl Part for StatusCode {
    fn describe(operation: &mut Operation<'_>) {
        operation.answer("204", Value::Null);
    }
}

impl<T> Part for Sse<T> {
    fn describe(operation: &mut Operation<'_>) {
        operation.answer("200", json!({ "text/event-stream": {} }));
    }
}

/// A file, or lines as they come.
impl Part for Response {
    fn describe(operation: &mut Operation<'_>) {
        operation.answer("200", json!({ "*/*": {} }));
    }
}

/// A handler, whose parts describe it.
pub(crate) trait Described<Parts> {
    /// Adds its parts to the description.
    fn describe(operation: &mut Operation<'_>);
}

macro_rules! described {
    ($($part:ident)*) => {
        impl<F, A, $($part),*> Described<($($part,)*)> for F
        where
            F: Fn($($part),*) -> A,
            A: Future,
            A::Output: Part,
            $($part: Part),*
        {
            fn describe(operation: &mut Operation<'_>) {
                $($part::describe(operation);)*
                A::Output::describe(operation);
            }
        }
    };
}
described!();
described!(A1);
described!(A1 A2);
described!(A1 A2 A3);
described!(A1 A2 A3 A4);

/// The parts of a path.
const IN_PATHS: [(&str, &str); 6] = [
    (
        "name",
        "The name of a run's folder, or of a file of the page.",
    ),
    ("job", "The number of the job."),
    (
        "set",
        "The number in the answer of `POST /api/data` or `POST /api/media`; the latest eight are known.",
    ),
    ("medium", "The index in its list, from 0."),
    ("step", "The step of the samples."),
    ("sample", "The index among the samples of the step, from 0."),
];

/// The description in the form of OpenAPI.
pub(super) fn description(routes: &[super::routes::Route]) -> Value {
    let generator = |settings: SchemaSettings| {
        let settings = settings.with(|settings| {
            settings.definitions_path = "/components/schemas".into();
        });
        settings.into_generator()
    };
    let mut requests = generator(SchemaSettings::draft2020_12());
    let mut answers = generator(SchemaSettings::draft2020_12().for_serialize());
    let mut paths = Map::new();
    for route in routes {
        let mut operation = Operation {
            requests: &mut requests,
            answers: &mut answers,
            fields: Map::new(),
            parameters: Vec::new(),
        };
        operation
            .fields
            .insert("summary".into(), route.summary.into());
        (route.describe)(&mut operation);
        let names = route
            .path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        for name in names {
            let about = IN_PATHS.iter().find(|(known, _)| *known == name);
            let about = about.map_or("The name or index in an answer.", |(_, about)| about);
            operation.parameters.push(json!({
                "name": name, "in": "path", "required": true, "description": about,
                "schema": { "type": "string" },
            }));
        }
        let Operation {
            mut fields,
            parameters,
            ..
        } = operation;
        if !parameters.is_empty() {
            fields.insert("parameters".into(), parameters.into());
        }
        fields["responses"]["default"] = json!({ "$ref": "#/components/responses/Refused" });
        paths.entry(route.path).or_insert_with(|| json!({}))
            [route.method.as_str().to_lowercase()] = fields.into();
    }
    let mut schemas = requests.take_definitions(true);
    schemas.extend(answers.take_definitions(true));
    schemas.sort_keys();
    let error = json!({ "type": "object", "properties": { "error": { "type": "string" } } });
    json!({
        "openapi": "3.1.0",
        "info": { "title": "surefoot ui", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT },
        "security": [{ "cookie": [] }, { "bearer": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "cookie": { "type": "apiKey", "in": "cookie", "name": "surefoot-PORT" },
                "bearer": { "type": "http", "scheme": "bearer" },
            },
            "responses": {
                "Refused": {
                    "description": "400 a malformed request, 401 no token, 403 another Host or Origin, 404 no such thing, \
                                    409 not in this state, 429 or 503 too much at once",
                    "content": { "application/json": { "schema": error } },
                },
            },
            "schemas": schemas,
        },
    })
}

const ABOUT: &str = "Training runs, read from their folders. Every request must name one of the server's hosts; those \
    below `/api/` need the token, as a cookie from `POST /api/session` or as `Authorization: Bearer`; methods other \
    than GET and HEAD also bring the server's own `Origin`. What fails has a body `{\"error\": \"one sentence\"}`. \
    Unknown query parameters and body keys are refused.";
