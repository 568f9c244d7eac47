//! Events as the body of an answer: a line of JSON each, as they come.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use tokio::sync::{mpsc, watch};

use crate::api::viewer::Viewer;
use crate::journal::Journal;

/// A body of lines.
pub(crate) struct EventLines {
    lines: mpsc::Receiver<Bytes>,
}

/// Lines that a caller has not read yet. A reader that is slower than the events gets only those that are still
/// remembered.
const AHEAD: usize = 16;

impl EventLines {
    /// The events after number `since` as `viewer` may see them. With `follow`, also all later ones, until `closing`
    /// says true or the reader disconnects.
    pub fn begin(
        journal: Arc<Journal>,
        viewer: Viewer,
        since: u64,
        follow: bool,
        closing: watch::Receiver<bool>,
    ) -> Self {
        let (sender, lines) = mpsc::channel(AHEAD);
        tokio::spawn(write(journal, viewer, since, follow, closing, sender));
        Self { lines }
    }
}

async fn write(
    journal: Arc<Journal>,
    viewer: Viewer,
    mut since: u64,
    follow: bool,
    mut closing: watch::Receiver<bool>,
    lines: mpsc::Sender<Bytes>,
) {
    let mut more = journal.follow();
    loop {
        more.mark_unchanged();
        loop {
            let next = journal.next(since, viewer);
            if next.is_empty() {
                break;
            }
            for event in next {
                since = event.number;
                let Ok(mut line) = serde_json::to_vec(&event) else {
                    continue;
                };
                line.push(b'\n');
                if lines.send(line.into()).await.is_err() {
                    return;
                }
            }
        }
        if !follow {
            return;
        }
        tokio::select! {
            changed = more.changed() => if changed.is_err() { return },
            // Later events are dropped: an agent that ends waits for no reader.
            _ = closing.wait_for(|closing| *closing) => return,
            () = lines.closed() => return,
        }
    }
}

impl Body for EventLines {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.lines
            .poll_recv(context)
            .map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}
