//! A slice whose pages a bench makes and whose page server is a thread of the bench.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use divvy_ledger::GrantSpec;
use divvy_ledger::attach::{Door, PageServer, Pages};

/// A slice of 64 GiB on no device in particular.
pub struct Slice {
    socket: PathBuf,
    /// Held, or the folder with the socket would go.
    _folder: tempfile::TempDir,
    pages: Pages,
}

impl Slice {
    /// Makes the pages, and serves them from now on.
    ///
    /// # Errors
    /// The system's reason.
    pub fn new() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("attach.sock");
        let listener = UnixListener::bind(&socket)?;
        let page_server = Arc::new(PageServer::new());
        let serving = Arc::clone(&page_server);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A worker that went away is its own parent's affair.
                let _served = serving.serve(&stream, Door::Container);
            }
        });
        let pages = Pages::create(&GrantSpec {
            memory_limit_bytes: 64 << 30,
            device_uuid: [0; 16],
            slice_id: "bench",
            slice_name: "bench",
            ..GrantSpec::default()
        })?;
        page_server.hold(&pages)?;
        Ok(Self {
            socket,
            _folder: folder,
            pages,
        })
    }

    /// Its pages, for a bench that plays the agent.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// What a tenant finds in `DIVVY_SLICE`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Fails when bytes are still charged.
    ///
    /// # Errors
    /// How many there are.
    pub fn require_empty(&self) -> anyhow::Result<()> {
        let left = self.pages.ledger.total_used();
        if left != 0 {
            bail!("The ledger reads {left} bytes although every allocation was freed");
        }
        Ok(())
    }
}
