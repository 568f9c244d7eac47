//! Arguments on the server's side, one function for each role: from the message to what the driver is given, and back.

use divvy_abi::{CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};

use super::arena::{Arena, Spot};
use super::held::is_of_graphs;
use super::ranges::Freed;
use super::{Call, Stop};
use crate::handle::{Id, Kind};

/// An object in use.
#[derive(Clone, Copy)]
pub struct Used {
    bits: u64,
    /// The driver's handle.
    pub real: u64,
}

impl Used {
    /// An object with this name, and this handle of the driver.
    pub fn new(bits: u64, real: u64) -> Self {
        Self { bits, real }
    }

    /// Its name; nothing for a constant.
    pub fn id(&self) -> Option<Id> {
        Id::from_bits(self.bits)
    }
}

/// An object that the call makes.
#[derive(Clone, Copy)]
pub struct Made {
    id: Option<Id>,
    pub spot: Spot,
}

impl Made {
    /// The name that the client gave it.
    pub fn id(&self) -> Option<Id> {
        self.id
    }
}

/// A number that counts: an argument, or what an argument points to.
pub trait Count {
    fn count(&self, arena: &Arena) -> u64;
}

macro_rules! count {
    ($($of:ty)*) => {$(
        impl Count for $of {
            fn count(&self, _: &Arena) -> u64 {
                // A negative count is more than any list has: the driver could take it for a large one.
                u64::try_from(*self).unwrap_or(u64::MAX)
            }
        }
    )*};
}

count! { u32 u64 usize i32 }

impl Count for Spot {
    fn count(&self, arena: &Arena) -> u64 {
        match self.is_present() {
            true => arena.word(*self),
            false => 0,
        }
    }
}

impl Call<'_> {
    /// One element; members of it at these offsets are pointers, and null.
    pub fn input(&mut self, size: usize, cleared: &[usize]) -> Result<Spot, Stop> {
        let bytes = self.message.optional(size)?;
        let spot = self.arena.keep(bytes)?;
        self.clear(spot, cleared);
        Ok(spot)
    }

    fn clear(&mut self, spot: Spot, cleared: &[usize]) {
        let bytes = self.arena.bytes_mut(spot);
        for at in cleared {
            if let Some(pointer) = bytes.get_mut(*at..*at + size_of::<usize>()) {
                pointer.fill(0);
            }
        }
    }

    /// Elements of so many bytes.
    pub fn inputs(&mut self, size: usize) -> Result<Spot, Stop> {
        let bytes = self.message.list(size)?;
        self.arena.keep(bytes)
    }

    /// A list has as many bytes as its count says. A null pointer has none, whatever the count.
    pub fn must_have(&self, spot: Spot, count: u64, size: usize) -> Result<(), Stop> {
        let bytes = count.saturating_mul(size as u64);
        match spot.is_present() {
            true if spot.bytes() as u64 != bytes => Err(Stop::Malformed),
            false if count != 0 => Err(Stop::Code(CUDA_ERROR_INVALID_VALUE)),
            _ => Ok(()),
        }
    }

    /// A C string, with its end.
    pub fn string(&mut self) -> Result<Spot, Stop> {
        let Some(bytes) = self.message.list(1)? else {
            return Ok(Spot::NULL);
        };
        if bytes.contains(&0) {
            return Err(Stop::Malformed);
        }
        let spot = self.arena.zeros(bytes.len() as u64 + 1)?;
        self.arena.bytes_mut(spot)[..bytes.len()].copy_from_slice(bytes);
        Ok(spot)
    }

    /// Room for what the driver writes, where the program wants it. `bytes` is not looked at otherwise.
    pub fn wanted(&mut self, bytes: u64) -> Result<Spot, Stop> {
        match self.message.flag()? {
            true => self.arena.zeros(bytes),
            false => Ok(Spot::NULL),
        }
    }

    /// Whether a list is wanted, whose length is not known yet.
    pub fn wants(&mut self) -> Result<bool, Stop> {
        Ok(self.message.flag()?)
    }

    /// Room for a list that is wanted, which an answer must be able to carry.
    pub fn room(&mut self, wanted: bool, count: u64, size: usize) -> Result<Spot, Stop> {
        let bytes = count.saturating_mul(size as u64);
        if bytes > self.answer.left() as u64 {
            return Err(Stop::TOO_LARGE);
        }
        if wanted {
            self.arena.zeros(bytes)
        } else {
            Ok(Spot::NULL)
        }
    }

    /// An object that the call destroys.
    pub fn ended(&mut self, kind: Kind) -> Result<Used, Stop> {
        if kind == Kind::Context {
            // Before the call has a use of the context, which another one may wait for.
            self.end_contexts();
        }
        self.handle(kind)
    }

    /// An object in use.
    pub fn handle(&mut self, kind: Kind) -> Result<Used, Stop> {
        let bits = self.message.plain()?;
        let real = self.real(kind, bits)?;
        Ok(Used { bits, real })
    }

    /// The driver's handle for an object, which no other thread's call destroys until this call is over.
    pub fn real(&mut self, kind: Kind, bits: u64) -> Result<u64, Stop> {
        self.hold_graphs(kind);
        let (real, used) = self.server.tables().objects.real(kind, bits)?;
        self.uses.extend(used);
        match kind {
            Kind::Graph => self.graph = Some(real),
            Kind::GraphExec => self.exec = Id::from_bits(bits),
            Kind::Stream => self.stream = Some(real),
            // The call may make it the current one, or end that.
            Kind::Context => *self.current = None,
            _ => {}
        }
        Ok(real)
    }

    /// A call that uses or makes an object of graphs is the only one that does.
    pub fn hold_graphs(&mut self, kind: Kind) {
        if is_of_graphs(kind) && self.graphs.is_none() {
            self.graphs = Some(self.server.graphs());
        }
    }

    /// This call destroys an object that it has found: no other call finds it from now on, and those that use it are
    /// waited for.
    ///
    /// # Errors
    /// Another thread's call destroys it, or has done so.
    pub fn begin_end(&mut self, id: Id) -> Result<(), Stop> {
        let uses = self.server.tables().begin_end(id);
        // A call names what it destroys once.
        uses.ok_or(Stop::Code(CUDA_ERROR_INVALID_HANDLE))?.wait(1);
        Ok(())
    }

    /// Several.
    pub fn handles(&mut self, kind: Kind) -> Result<Spot, Stop> {
        let Some(names) = self.message.list(8)? else {
            return Ok(Spot::NULL);
        };
        self.hold_graphs(kind);
        let spot = self.arena.zeros(names.len() as u64)?;
        let (names, _) = names.as_chunks();
        let (places, _) = self.arena.bytes_mut(spot).as_chunks_mut();
        let tables = self.server.tables();
        for (name, place) in names.iter().zip(places) {
            let (real, used) = tables.objects.real(kind, u64::from_le_bytes(*name))?;
            self.uses.extend(used);
            *place = real.to_le_bytes();
        }
        Ok(spot)
    }

    /// An object that is to be made: the name is free, and there is room. No other call takes either until this one is over.
    pub fn made(&mut self, kind: Kind) -> Result<Made, Stop> {
        let bits: u64 = self.message.plain()?;
        if bits == 0 {
            return Ok(Made {
                id: None,
                spot: Spot::NULL,
            });
        }
        let id = Id::from_bits(bits).ok_or(Stop::Malformed)?;
        self.hold_graphs(kind);
        if kind == Kind::Context {
            *self.current = None;
        }
        let mut tables = self.server.tables();
        if self.reserved.is_some() || !tables.objects.is_free(kind, id) {
            return Err(Stop::Malformed);
        }
        let quota = self.server.quota;
        let has_room = match kind {
            Kind::Module | Kind::Library | Kind::Linker => tables.objects.modules() < quota.modules,
            kind if is_of_graphs(kind) => tables.nodes() < quota.nodes,
            _ => true,
        };
        if !has_room || !tables.objects.has_room() {
            return Err(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY));
        }
        let spot = self.arena.zeros(8)?;
        tables.objects.reserve(id);
        self.reserved = Some(id);
        Ok(Made { id: Some(id), spot })
    }

    /// Enters what was made.
    pub fn enter(&mut self, made: Made, parent: Option<Id>) {
        let real = self.arena.word(made.spot);
        if let Some(id) = made.id.filter(|_| real != 0) {
            let nodes = self.nodes_of_new(id.kind(), real);
            let mut tables = self.server.tables();
            tables.insert(id, real, parent);
            tables.weights.add(id, nodes);
            self.reserved = None;
        }
    }

    /// Bytes of device memory that the call uses: all of them are the program's. No other call frees
    /// them until this one is over.
    pub fn within(&mut self, address: u64, bytes: u64) -> Result<(), Stop> {
        match self.server.tables().ranges.take(address, bytes, self.uses) {
            true => Ok(()),
            false => Err(Stop::Code(CUDA_ERROR_INVALID_VALUE)),
        }
    }

    /// Rows of device memory that the call uses.
    pub fn rows_within(&mut self, address: u64, rows: u64, pitch: u64, width: u64) -> Result<(), Stop> {
        let bytes = match rows {
            0 => 0,
            rows => (rows - 1).saturating_mul(pitch).saturating_add(width),
        };
        self.within(address, bytes)
    }

    /// Memory that the call frees: where a range of the program begins, or null.
    pub fn beginning(&mut self) -> Result<Freed, Stop> {
        let address = self.message.plain()?;
        let freed = self.server.tables().ranges.beginning(address);
        freed.ok_or(Stop::Code(CUDA_ERROR_INVALID_VALUE))
    }

    /// No other call finds this memory from now on, and those that use it are waited for.
    ///
    /// # Errors
    /// Another thread's call frees it, or has done so.
    pub fn begin_free(&mut self, freed: &Freed) -> Result<(), Stop> {
        if freed.address == 0 {
            return Ok(());
        }
        let uses = self.server.tables().ranges.begin_end(freed);
        uses.ok_or(Stop::Code(CUDA_ERROR_INVALID_VALUE))?.wait(1);
        Ok(())
    }

    /// The driver below has freed it, or has not.
    pub fn end_free(&mut self, freed: &Freed, is_freed: bool) {
        let ranges = &mut self.server.tables().ranges;
        match is_freed {
            true => ranges.remove(freed),
            false => ranges.keep(freed),
        }
    }

    /// Room for the address of new memory, where there is room in the table.
    pub fn new_memory(&mut self) -> Result<Spot, Stop> {
        let spot = self.wanted(8)?;
        let quota = self.server.quota.objects;
        match self.server.tables().ranges.len() < quota {
            true => Ok(spot),
            false => Err(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY)),
        }
    }

    /// Enters new memory and answers its address. Where the call did not say its size, the driver does.
    pub fn enter_memory(&mut self, spot: Spot, bytes: u64, parent: Option<Id>) {
        if !spot.is_present() {
            return;
        }
        let address = self.arena.word(spot);
        let bytes = match bytes {
            0 => self.size_of(address),
            bytes => bytes,
        };
        self.server.tables().ranges.insert(address, bytes, parent);
        self.answer.plain(address);
    }

    fn size_of(&self, address: u64) -> u64 {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: the driver writes an address and a size to memory of ours.
        let code = unsafe { (self.driver.cuMemGetAddressRange_v2)(&raw mut base, &raw mut bytes, address) };
        match code == divvy_abi::CUDA_SUCCESS && base == address {
            true => bytes as u64,
            false => 0,
        }
    }

    /// Answers an object that was found.
    pub fn find(&mut self, kind: Kind, spot: Spot, parent: Option<Id>) -> Result<(), Stop> {
        if kind == Kind::Context {
            // It may be that the call took it from the thread's contexts.
            *self.current = None;
        }
        if spot.is_present() {
            let real = self.arena.word(spot);
            let found = self.server.tables().objects.found(kind, real, parent);
            let Some(found) = found else {
                if kind == Kind::Graph {
                    self.nameless_graph(real);
                }
                return Err(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY));
            };
            if kind == Kind::Graph {
                self.captured_graph(found, real);
            }
            self.answer.plain(found);
        }
        Ok(())
    }

    /// Answers several.
    pub fn finds(&mut self, kind: Kind, spot: Spot, parent: Option<Id>) -> Result<(), Stop> {
        if !spot.is_present() {
            return Ok(());
        }
        let (reals, _) = self.arena.read(spot).as_chunks();
        self.answer.count(Some(reals.len()));
        let mut tables = self.server.tables();
        for real in reals {
            let found = tables.objects.found(kind, u64::from_le_bytes(*real), parent);
            self.answer
                .plain(found.ok_or(Stop::Code(CUDA_ERROR_OUT_OF_MEMORY))?);
        }
        Ok(())
    }

    /// Answers one element.
    pub fn output(&mut self, spot: Spot, cleared: &[usize]) {
        self.clear(spot, cleared);
        self.answer.bytes(self.arena.read(spot));
    }

    /// Answers a list.
    pub fn outputs(&mut self, spot: Spot, size: usize) {
        if spot.is_present() {
            self.answer.count(Some(spot.bytes() / size.max(1)));
            self.answer.bytes(self.arena.read(spot));
        }
    }
}
