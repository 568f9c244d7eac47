//! Messages as values: read, written and printed. The stable replay in crates/remote/tests/replay.rs includes this file.

use divvy_remote::fuzzing::{Done, Source, generate};
use divvy_remote::wire::message::{Sent, decode, encode};
use divvy_remote::wire::{HEADER_BYTES, Header, Hello, Printed, Reader, Shape, Sort, Writer, shapes};

/// Reads these bytes as any message, as the arguments of the call that the first two name, and as a source of arguments
/// for it.
///
/// # Panics
/// What was read is not what is written, a message that is cut off or has more is read as a whole one, or a line of a log
/// has another line in it.
pub fn messages(data: &[u8]) -> Done {
    let mut done = Done::default();
    line(data);
    if let Ok(hello) = Hello::decode(data) {
        assert_eq!(hello.encode(), data);
    }
    if let Ok((header, body)) = Header::read(data) {
        let mut again = vec![0; data.len()];
        let mut to = Writer::new(&mut again);
        header.write(&mut to);
        to.bytes(body.rest());
        assert_eq!(again, data);
    }
    let [low, high, rest @ ..] = data else { return done };
    let calls = shapes();
    let (_, id, arguments) = calls[usize::from(u16::from_le_bytes([*low, *high])) % calls.len()];
    match decode(arguments, Reader::new(rest)) {
        Ok(sent) => {
            done.made += 1;
            assert_eq!(written(arguments, &sent), rest, "one message in two ways");
        }
        Err(_) => done.refused += 1,
    }
    let sent = generate(arguments, &mut Source(rest));
    let body = written(arguments, &sent);
    assert_eq!(decode(arguments, Reader::new(&body)).as_ref(), Ok(&sent));
    if let Some(shorter) = body.len().checked_sub(1) {
        assert!(
            decode(arguments, Reader::new(&body[..shorter])).is_err(),
            "it is cut off"
        );
    }
    let longer = [&body[..], &[0]].concat();
    assert!(decode(arguments, Reader::new(&longer)).is_err(), "there is more");
    let mut whole = vec![0; HEADER_BYTES + body.len()];
    let mut to = Writer::new(&mut whole);
    let header = Header {
        length: (HEADER_BYTES + body.len()) as u32,
        id,
        sequence: 1,
        order: 0,
        sort: Sort::Call,
    };
    header.write(&mut to);
    to.bytes(&body);
    line(&whole);
    done
}

/// Prints a message: whatever it holds, that is one line.
fn line(message: &[u8]) {
    let text = Printed(message).to_string();
    assert!(!text.contains(['\n', '\r']), "{text:?}");
}

fn written(arguments: &[(&str, Shape)], sent: &[Sent]) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let mut to = Writer::new(&mut bytes);
    encode(arguments, sent, &mut to);
    let length = to.finish().unwrap_or(0);
    bytes.truncate(length);
    bytes
}
