//! The codec: each generated message as it was written, and any bytes at all.

use divvy_remote::fuzzing::{FAKE, QUOTA, Source, generate};
use divvy_remote::server::{Quota, Server};
use divvy_remote::wire::{
    HEADER_BYTES, Header, Hello, Malformed, Printed, Reader, Sort, VERSION, Writer, message, shapes,
};
use proptest::prelude::*;

fn whole(id: u32, sequence: u64, sort: Sort, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    let header = Header {
        length: (HEADER_BYTES + body.len()) as u32,
        id,
        sequence,
        order: 0,
        sort,
    };
    header.write(&mut Writer::new(&mut bytes));
    bytes.extend_from_slice(body);
    bytes
}

fn hello() -> [u8; divvy_remote::wire::HELLO_BYTES] {
    Hello::ours(0, QUOTA.message as u32).encode()
}

proptest! {
    // Each case is all calls.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn each_message_is_read_as_it_was_written(source in prop::collection::vec(any::<u8>(), 0..400)) {
        for (symbol, id, arguments) in shapes() {
            let sent = generate(arguments, &mut Source(&source));
            let mut bytes = [0; 4096];
            let mut to = Writer::new(&mut bytes);
            message::encode(arguments, &sent, &mut to);
            let length = to.finish().expect("room");
            let body = &bytes[..length];
            prop_assert_eq!(message::decode(arguments, Reader::new(body)), Ok(sent), "{}", symbol);
            for end in (0..length).step_by(1 + length / 16) {
                prop_assert!(message::decode(arguments, Reader::new(&body[..end])).is_err(), "{} cut", symbol);
            }
            let longer = [body, &[0]].concat();
            prop_assert!(message::decode(arguments, Reader::new(&longer)).is_err(), "{} and more", symbol);
            let text = Printed(&whole(*id, 3, Sort::Call, body)).to_string();
            prop_assert!(text.starts_with(&format!("3/0 {symbol}(")) && text.ends_with(')'), "{}", text);
            prop_assert!(!text.contains('\n'));
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_their_end_at_most(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Printed(&bytes).to_string();
        let _ = Hello::decode(&bytes);
        for (_, _, arguments) in shapes() {
            let _ = message::decode(arguments, Reader::new(&bytes));
        }
        let mut reader = Reader::new(&bytes);
        if let Ok(Some(list)) = reader.list(8) {
            prop_assert!(list.len() + 4 <= bytes.len());
        }
    }

    #[test]
    fn any_bytes_behind_a_header_end_in_an_answer_or_the_connection(
        call in any::<prop::sample::Index>(),
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let (_, id, _) = shapes()[call.index(shapes().len())];
        let mut session = Server::new(&FAKE, QUOTA).session();
        prop_assert!(session.receive(&hello()).is_ok());
        match session.receive(&whole(id, 1, Sort::Call, &body)) {
            Ok(Some(answer)) => {
                let (header, _) = Header::read(answer).expect("an answer");
                prop_assert_eq!((header.sort, header.sequence, header.id), (Sort::Answer, 1, id));
            }
            Ok(None) => prop_assert!(false, "no answer"),
            Err(Malformed) => {}
        }
        divvy_remote::fuzzing::issued();
    }

    #[test]
    fn a_writer_takes_what_fits(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..10)) {
        let all = parts.concat();
        for room in 0..=all.len() {
            let mut memory = vec![0; room];
            let mut to = Writer::new(&mut memory);
            for part in &parts {
                to.bytes(part);
            }
            match to.finish() {
                Ok(length) => prop_assert_eq!(&memory[..length], &all[..]),
                Err(_) => prop_assert!(room < all.len()),
            }
        }
    }
}

#[test]
fn a_connection_begins_with_a_hello_of_one_version() {
    let server = Server::new(&FAKE, QUOTA);
    let (_, id, _) = shapes()[0];
    assert_eq!(
        server.session().receive(&whole(id, 0, Sort::Call, &[])).err(),
        Some(Malformed)
    );
    // The first version's messages had no place in the order of submitted calls.
    for version in [0, VERSION - 1, VERSION + 1, u32::MAX] {
        let other = Hello {
            version,
            ..Hello::ours(0, 4096)
        };
        let refused = server.session().receive(&other.encode()).err();
        assert_eq!(refused, Some(Malformed), "version {version}");
    }
    let mut session = server.session();
    let answer = session.receive(&hello()).expect("a hello").expect("an answer");
    let theirs = Hello::decode(answer).expect("a hello");
    assert_eq!(
        (theirs.version, theirs.digest),
        (VERSION, divvy_abi::ROLES_DIGEST)
    );
    assert_eq!(session.receive(&hello()).err(), Some(Malformed), "once");
}

#[test]
fn messages_come_in_order() {
    let device = shapes()
        .iter()
        .find(|(symbol, ..)| symbol.name() == "cuCtxGetDevice")
        .expect("a call");
    let message = |sequence, sort| whole(device.1, sequence, sort, &[1]);
    let session = || {
        let mut session = Server::new(&FAKE, QUOTA).session();
        assert!(session.receive(&hello()).is_ok());
        session
    };
    let mut good = session();
    for sequence in 1..4 {
        assert!(matches!(
            good.receive(&message(sequence, Sort::Call)),
            Ok(Some(_))
        ));
    }
    assert!(matches!(good.receive(&message(4, Sort::Submit)), Ok(None)));
    for (sequence, sort) in [
        (2, Sort::Call),
        (0, Sort::Call),
        (1, Sort::Answer),
        (1, Sort::Hello),
    ] {
        assert_eq!(
            session().receive(&message(sequence, sort)).err(),
            Some(Malformed),
            "{sequence} {sort:?}"
        );
    }
    let mut other_length = message(1, Sort::Call);
    other_length.push(0);
    assert_eq!(session().receive(&other_length).err(), Some(Malformed));
}

#[test]
fn a_call_that_the_server_does_not_know_is_not_supported() {
    static UNKNOWN: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let listener = |id| UNKNOWN.store(id, std::sync::atomic::Ordering::Relaxed);
    let mut session = Server::with_listener(&FAKE, QUOTA, listener).session();
    assert!(session.receive(&hello()).is_ok());
    let id = 0x1234_5678;
    let answer = session.receive(&whole(id, 1, Sort::Call, b"of another version"));
    let answer = answer.expect("a message").expect("an answer").to_vec();
    let (_, mut body) = Header::read(&answer).expect("a header");
    let code: divvy_abi::CUresult = body.plain().expect("a code");
    assert_eq!(code, divvy_abi::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(UNKNOWN.load(std::sync::atomic::Ordering::Relaxed), id);
}

#[test]
fn objects_end_with_the_quota() {
    let create = shapes()
        .iter()
        .find(|(symbol, ..)| symbol.name() == "cuGraphCreate")
        .expect("a call");
    let quota = Quota { objects: 3, ..QUOTA };
    let server = Server::new(&FAKE, quota);
    let mut session = server.session();
    assert!(session.receive(&hello()).is_ok());
    for serial in 1..=10_u64 {
        let id = divvy_remote::handle::Id::new(
            divvy_remote::handle::Kind::Graph,
            divvy_remote::handle::Origin::Client,
            serial,
        );
        let body = [id.bits().to_le_bytes().as_slice(), &[0; 4]].concat();
        assert!(
            session
                .receive(&whole(create.1, serial, Sort::Call, &body))
                .is_ok()
        );
    }
    assert_eq!(server.held(), (3, 0));
}
