//! A kubelet's list of pods, which it tells on a socket of its own (PodResourcesLister of k8s.io/kubelet, v1): HTTP/2 by hand, since one
//! question on each connection is all that is asked.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use divvy_container::nri::wire::Writer;

use crate::dra::frame;

/// See the module. It serves until the test ends.
#[derive(Clone, Debug, Default)]
pub struct PodResources(Arc<Mutex<Vec<u8>>>);

impl PodResources {
    /// Serves in this kubelet's directory, with no pod so far.
    pub fn start(kubelet: &Path) -> Self {
        let folder = kubelet.join("pod-resources");
        fs::create_dir_all(&folder).expect("a folder");
        let listener = UnixListener::bind(folder.join("kubelet.sock")).expect("a socket");
        let all = Self::default();
        let told = all.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let told = told.clone();
                std::thread::spawn(move || told.serve(stream));
            }
        });
        all
    }

    /// A container of a pod runs with a claim, whose device container runtimes call so.
    pub fn add(&self, pod: &str, container: &str, claim: &str, cdi: &str) {
        let device = Writer::default().message(1, Writer::default().text(1, cdi));
        let claim = Writer::default()
            .text(2, claim)
            .text(3, "default")
            .message(4, device);
        let container = Writer::default().text(1, container).message(5, claim);
        let pod = Writer::default()
            .text(1, pod)
            .text(2, "default")
            .message(3, container);
        let bytes = Writer::default().message(1, pod).into_bytes();
        self.0.lock().expect("a list").extend(bytes);
    }

    fn serve(&self, mut stream: UnixStream) -> Option<()> {
        stream.read_exact(&mut [0; 24]).ok()?;
        stream.write_all(&frame(4, 0, 0, &[])).ok()?;
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).ok()?;
            let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            stream.read_exact(&mut body).ok()?;
            let (kind, ends) = (head[3], head[4] & 1 != 0);
            match kind {
                4 | 6 if !ends => {
                    // A ping comes back as it was; settings are taken note of.
                    let echo: &[u8] = if kind == 6 { &body } else { &[] };
                    stream.write_all(&frame(kind, 1, 0, echo)).ok()?;
                }
                0 | 1 if ends => {
                    let mut encoder = fluke_hpack::Encoder::new();
                    let status: [(&[u8], &[u8]); 2] =
                        [(b":status", b"200"), (b"content-type", b"application/grpc")];
                    let trailers: [(&[u8], &[u8]); 1] = [(b"grpc-status", b"0")];
                    let list = self.0.lock().ok()?.clone();
                    let length = u32::try_from(list.len()).ok()?.to_be_bytes();
                    let stream_id = head[8];
                    let answer = [
                        frame(1, 4, stream_id, &encoder.encode(status)),
                        frame(0, 0, stream_id, &[&[0][..], &length, &list].concat()),
                        frame(1, 5, stream_id, &encoder.encode(trailers)),
                    ];
                    stream.write_all(&answer.concat()).ok()?;
                }
                _ => {}
            }
        }
    }
}
