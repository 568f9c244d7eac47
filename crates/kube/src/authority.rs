//! Lets the kubelet's requests into an HTTP/2 server of hyper's.
//!
//! The kubelet's plugin watcher dials the registration socket with `:authority: %2Fvar%2Flib%2Fkubelet%2F…`. hyper allows no
//! `%` there and answers PROTOCOL_ERROR (hyperium/h2#487), so a plain server never registers. This stands in front of one
//! connection and writes `localhost` in its place. One HPACK decoder keeps the client's table. What is written again uses
//! literals that are never indexed, so the server's side needs no table.

use std::io::{Error, ErrorKind, Result};

use fluke_hpack::Decoder;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;

/// The bytes that open a client's side of a connection.
const PREFACE: usize = 24;
/// The largest frame that a peer may send to a server that asks for no larger ones (RFC 9113, 4.2).
const LARGEST_FRAME: usize = 1 << 14;
/// The largest block of headers, in bytes: the kubelet's are some hundred.
const LARGEST_BLOCK: usize = 1 << 15;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// The connection as a server can read it. It ends when either side does.
#[must_use]
pub fn readable(socket: UnixStream) -> DuplexStream {
    let (server, ours) = tokio::io::duplex(64 << 10);
    let (mut from_client, mut to_client) = socket.into_split();
    let (mut from_server, mut to_server) = tokio::io::split(ours);
    tokio::spawn(async move {
        let _ended = tokio::io::copy(&mut from_server, &mut to_client).await;
        let _gone = to_client.shutdown().await;
    });
    tokio::spawn(async move {
        let _ended = rewrite(&mut from_client, &mut to_server).await;
        let _gone = to_server.shutdown().await;
    });
    server
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: [u8; 4],
    body: Vec<u8>,
}

impl Frame {
    async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if length > LARGEST_FRAME {
            return Err(wrong("a frame is larger than agreed"));
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body).await?;
        Ok(Self {
            kind,
            flags,
            stream,
            body,
        })
    }

    async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
        let length = u32::try_from(self.body.len()).map_err(|_| wrong("a frame is too large"))?;
        let [_, a, b, c] = length.to_be_bytes();
        let [d, e, f, g] = self.stream;
        let head = [a, b, c, self.kind, self.flags, d, e, f, g];
        to.write_all(&[&head[..], &self.body].concat()).await
    }

    /// A HEADERS frame's part of the block, without padding and priority.
    fn fragment(&self) -> Result<&[u8]> {
        let mut rest = &self.body[..];
        let mut padding = 0;
        if self.flags & PADDED != 0 {
            let (first, after) = rest.split_first().ok_or_else(|| wrong("no padding's length"))?;
            (padding, rest) = (usize::from(*first), after);
        }
        if self.flags & PRIORITY != 0 {
            rest = rest.get(5..).ok_or_else(|| wrong("no priority"))?;
        }
        let end = rest
            .len()
            .checked_sub(padding)
            .ok_or_else(|| wrong("more padding than frame"))?;
        Ok(&rest[..end])
    }
}

async fn rewrite(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
    let mut preface = [0; PREFACE];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    let mut decoder = Decoder::new();
    // The size that our side announces by saying nothing.
    decoder.set_max_allowed_table_size(4096);
    loop {
        let frame = Frame::read(from).await?;
        if frame.kind != HEADERS {
            frame.write(to).await?;
            continue;
        }
        let mut block = frame.fragment()?.to_vec();
        let mut flags = frame.flags;
        while flags & END_HEADERS == 0 {
            let more = Frame::read(from).await?;
            if more.kind != CONTINUATION || more.stream != frame.stream {
                return Err(wrong("a block of headers is interrupted"));
            }
            block.extend_from_slice(&more.body);
            if block.len() > LARGEST_BLOCK {
                return Err(wrong("a block of headers is too large"));
            }
            flags |= more.flags & END_HEADERS;
        }
        let headers = decoder
            .decode(&block)
            .map_err(|_| wrong("headers that are none"))?;
        let block = literals(&headers)?;
        let mut parts = block.chunks(LARGEST_FRAME).peekable();
        let mut kind = HEADERS;
        while let Some(part) = parts.next() {
            let end = if parts.peek().is_none() { END_HEADERS } else { 0 };
            let ends_stream = if kind == HEADERS { flags & END_STREAM } else { 0 };
            let written = Frame {
                kind,
                flags: ends_stream | end,
                stream: frame.stream,
                body: part.to_vec(),
            };
            written.write(to).await?;
            kind = CONTINUATION;
        }
    }
}

/// The headers as literals that are never indexed, with an authority that any server reads.
fn literals(headers: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<u8>> {
    let mut block = Vec::new();
    for (name, value) in headers {
        let value = match &name[..] {
            b":authority" => b"localhost",
            _ => &value[..],
        };
        block.push(0x10);
        for text in [name, value] {
            length(&mut block, text.len());
            block.extend_from_slice(text);
        }
        // A few bytes can stand for kilobytes of the table, again and again.
        if block.len() > 2 * LARGEST_BLOCK {
            return Err(wrong("a block of headers is too large"));
        }
    }
    Ok(block)
}

/// A length as HPACK writes it, in a prefix of 7 bits (RFC 7541, 5.1).
fn length(block: &mut Vec<u8>, mut rest: usize) {
    if rest < 127 {
        block.push(rest as u8);
        return;
    }
    block.push(127);
    rest -= 127;
    while rest >= 128 {
        block.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    block.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: &[u8]) -> (Result<()>, Vec<u8>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.build().expect("a loop");
        let mut out = Vec::new();
        let ended = runtime.block_on(rewrite(&mut &bytes[..], &mut out));
        (ended, out)
    }

    fn frame(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = u32::try_from(body.len()).expect("small").to_be_bytes();
        [&[a, b, c, kind, flags, 0, 0, 0, 1], body].concat()
    }

    #[test]
    fn padding_priority_and_continuations_are_understood() {
        let mut encoder = fluke_hpack::Encoder::new();
        let long = vec![b'x'; 20_000];
        let headers: [(&[u8], &[u8]); 3] = [(b":path", b"/a"), (b":authority", b"%2Fvar"), (b"long", &long)];
        let block = encoder.encode(headers);
        let (first, rest) = block.split_at(100);
        let padded = [&[3][..], &[0; 5], first, &[0; 3]].concat();
        let mut bytes = vec![b'P'; PREFACE];
        bytes.extend(frame(4, 0, &[]));
        bytes.extend(frame(HEADERS, PADDED | PRIORITY | END_STREAM, &padded));
        let mut parts = rest.chunks(LARGEST_FRAME).peekable();
        while let Some(part) = parts.next() {
            let end = if parts.peek().is_none() { END_HEADERS } else { 0 };
            bytes.extend(frame(CONTINUATION, end, part));
        }
        bytes.extend(frame(0, 0, b"data"));
        let (ended, out) = run(&bytes);
        assert_eq!(
            ended.expect_err("the stream ends").kind(),
            ErrorKind::UnexpectedEof
        );
        let mut rest = &out[PREFACE..];
        let (mut block, mut kinds) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
            assert!(length <= LARGEST_FRAME);
            kinds.push((rest[3], rest[4]));
            if matches!(rest[3], HEADERS | CONTINUATION) {
                block.extend_from_slice(&rest[9..9 + length]);
            }
            rest = &rest[9 + length..];
        }
        assert_eq!(
            kinds,
            [(4, 0), (HEADERS, END_STREAM), (CONTINUATION, END_HEADERS), (0, 0)]
        );
        let read = Decoder::new().decode(&block).expect("headers");
        assert_eq!(read[1], (b":authority".to_vec(), b"localhost".to_vec()));
        assert_eq!((read[0].1.as_slice(), read[2].1.len()), (&b"/a"[..], 20_000));
    }

    #[test]
    fn what_is_no_http_ends_the_connection() {
        let preface = vec![b'P'; PREFACE];
        let large = [&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1][..], &[0; 64]].concat();
        for (what, bytes) in [
            ("a large frame", large),
            (
                "more padding than frame",
                frame(HEADERS, PADDED | END_HEADERS, &[9, 0]),
            ),
            ("no padding", frame(HEADERS, PADDED | END_HEADERS, &[])),
            ("no priority", frame(HEADERS, PRIORITY | END_HEADERS, &[0; 4])),
            (
                "an index of nothing",
                frame(HEADERS, END_HEADERS, &[0xff, 0xff, 0x7f]),
            ),
            ("interrupted", [frame(HEADERS, 0, &[]), frame(0, 0, &[])].concat()),
        ] {
            let (ended, _) = run(&[&preface[..], &bytes].concat());
            assert_eq!(ended.expect_err(what).kind(), ErrorKind::InvalidData, "{what}");
        }
        // Blocks without end.
        let part = frame(CONTINUATION, 0, &[0; LARGEST_FRAME]);
        let endless = [preface, frame(HEADERS, 0, &[]), part.clone(), part.clone(), part].concat();
        assert_eq!(
            run(&endless).0.expect_err("too much").kind(),
            ErrorKind::InvalidData
        );
    }
}
