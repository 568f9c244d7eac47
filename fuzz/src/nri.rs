//! A plugin's conversation with a runtime that says any bytes.

use std::io::{self, Cursor, Read, Write};

use divvy_container::nri::frame::{RESPONSE, Trunk};
use divvy_container::nri::message::{Adjustment, Container, Pod, Synchronize};
use divvy_container::nri::wire::fields;
use divvy_container::nri::{Plugin, asks, serve};
use divvy_model::{Code, Fault};

/// A plugin that reads everything and makes nothing.
struct Reader;

impl Plugin for Reader {
    fn synchronize(&self, _: &str, _: Synchronize) {}

    fn create(&self, pod: &Pod, container: &Container) -> Result<Option<Adjustment>, Fault> {
        let asks = asks(pod, container)?;
        // Only an annotation of ours asks for a slice.
        let ours = pod.annotations.keys().any(|key| {
            let domain = key.split('/').next().unwrap_or_default();
            domain == "divvy.dev" || domain.ends_with(".divvy.dev")
        });
        assert!(ours || asks.container.annotations.is_empty());
        assert_eq!(asks.words.is_empty(), asks.container.annotations.is_empty());
        Ok(None)
    }

    fn start(&self, _: &Container) -> Result<(), Fault> {
        Err(Fault::new(Code::NotEnforceable, "static"))
    }

    fn stopped(&self, _: &str) {}

    fn pod_stopped(&self, _: &str) {}

    fn words(&self, fault: &Fault) -> String {
        fault.to_string()
    }
}

/// What is read and what was written.
struct Socket<'a> {
    input: Cursor<&'a [u8]>,
    output: &'a mut Vec<u8>,
}

impl Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.input.read(into)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Has a runtime send these bytes. Returns how many answers it got.
///
/// # Panics
/// Where something that must hold does not.
pub fn runtime(bytes: &[u8]) -> usize {
    let mut output = Vec::new();
    let socket = Socket {
        input: Cursor::new(bytes),
        output: &mut output,
    };
    std::thread::scope(|scope| drop(serve(scope, socket, "10", "divvy", &Reader)));
    let mut answers = 0;
    let mut trunk = Trunk::new(&output[..]);
    while let Some(message) = trunk.receive().expect("what we write is whole") {
        for field in fields(&message.data) {
            field.expect("what we write is well formed");
        }
        answers += usize::from(message.kind == RESPONSE);
    }
    answers
}
