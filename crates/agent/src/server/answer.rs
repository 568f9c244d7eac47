//! Answers: documents, and refusals as documents.

use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use divvy_model::{Code, Fault};
use serde::Serialize;

use crate::api::Document;

pub(super) type Answer = Result<Response, Refusal>;

/// A document as an answer.
pub(super) fn json<T: Serialize>(status: StatusCode, document: &T) -> Answer {
    Ok(written(status, write(document)?))
}

/// A document as bytes: for a long list that takes a while.
pub(super) fn write<T: Serialize>(document: &T) -> Result<Vec<u8>, Fault> {
    serde_json::to_vec(document)
        .map_err(|error| Fault::new(Code::Internal, "the answer cannot be written").because(&error))
}

/// A document that is written as an answer.
pub(super) fn written(status: StatusCode, document: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], document).into_response()
}

/// A fault as an HTTP answer.
#[derive(Debug)]
pub(super) struct Refusal(Fault);

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self(fault)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match self.0.code {
            Code::UnknownSlice | Code::UnknownDevice => StatusCode::NOT_FOUND,
            Code::NotAllowed => StatusCode::FORBIDDEN,
            Code::DeviceFull
            | Code::ComputeFull
            | Code::OtherMode
            | Code::TooManySlices
            | Code::DeviceTaken
            | Code::NameTaken
            | Code::SliceBusy => StatusCode::CONFLICT,
            Code::Busy | Code::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        tracing::debug!(code = %self.0.code, "{}", self.0);
        json(status, &Document::new("Error", self.0))
            .unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
    }
}

/// The whole answer to a connection over the limit, ready to be sent.
pub(super) fn no_room() -> Arc<[u8]> {
    let fault = Fault::new(Code::Busy, "too many connections to the agent are open")
        .hint("a user may have 32 at once, event streams included; try again in a moment");
    let body = serde_json::to_string(&Document::new("Error", fault)).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes().into()
}
