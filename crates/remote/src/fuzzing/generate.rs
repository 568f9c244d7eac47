//! Arguments of calls, well formed and small, from bytes.

use crate::handle::{Id, Origin};
use crate::wire::Shape;
use crate::wire::message::Sent;

/// Bytes that choices are made of; zeros once they are used up.
pub struct Source<'a>(pub &'a [u8]);

impl Source<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// So many bytes: a small number where there are no more than eight, else as they come.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut all = vec![0; count];
        let wild = self.next();
        match count {
            1..=8 if wild & 0x80 == 0 => all[0] = wild & 0x1f,
            _ => all.fill_with(|| self.next()),
        }
        all
    }
}

/// A value for each argument.
pub fn generate(shapes: &[(&str, Shape)], source: &mut Source<'_>) -> Vec<Sent> {
    shapes.iter().map(|(_, shape)| one(*shape, source)).collect()
}

fn one(shape: Shape, source: &mut Source<'_>) -> Sent {
    match shape {
        Shape::Value(size) => Sent::Value(source.bytes(size)),
        Shape::Optional(size) => Sent::Bytes((source.next() & 7 != 0).then(|| source.bytes(size))),
        Shape::List(size) => Sent::Bytes(list(source, |source| source.bytes(size)).map(|all| all.concat())),
        Shape::String => {
            Sent::Bytes(list(source, |source| vec![source.next().max(1)]).map(|all| all.concat()))
        }
        Shape::Wanted => Sent::Wanted(source.next() & 7 != 0),
        Shape::Handle(kind) => Sent::Word(word(kind, source)),
        Shape::Created(kind) => Sent::Word(Id::new(kind, Origin::Client, u64::from(source.next())).bits()),
        Shape::Handles(kind) => Sent::Words(list(source, |source| word(kind, source))),
        // Where the driver below makes memory, and elsewhere.
        Shape::Address => Sent::Word(match source.next() {
            0 => 0,
            255 => u64::MAX,
            slot => super::fake::MEMORY + (u64::from(slot & 15) << 32) + u64::from(slot >> 4),
        }),
        Shape::Nothing => Sent::Nothing,
    }
}

fn list<T>(source: &mut Source<'_>, mut element: impl FnMut(&mut Source<'_>) -> T) -> Option<Vec<T>> {
    let count = source.next();
    (count & 0x0f != 0x0f).then(|| (0..count & 0x07).map(|_| element(source)).collect())
}

fn word(kind: crate::handle::Kind, source: &mut Source<'_>) -> u64 {
    let number = source.next();
    match number {
        0..=2 => u64::from(number),
        3..=0x7f => Id::new(kind, Origin::Client, u64::from(number & 0x1f)).bits(),
        0x80..=0xf7 => Id::new(kind, Origin::Server, u64::from(number & 0x1f)).bits(),
        _ => u64::from_le_bytes([number; 8]),
    }
}
