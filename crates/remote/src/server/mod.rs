//! The driver's other half: it makes the calls that messages ask for.
//!
//! A message comes from a program that may be hostile. It is judged on a private copy, and nothing in it is used as an
//! address or as a handle: objects are looked up by name and kind, addresses have to lie in memory that a call made, and
//! every length is compared with what is there. A message that is none ends the connection ([`Malformed`]); one that
//! asks for what is not there gets CUDA's code for that.

mod area;
mod arena;
mod arguments;
mod attribute;
mod callback;
mod capture;
mod copy3d;
mod device;
mod dispatch;
mod held;
mod launch;
mod link;
mod memcpy;
mod module;
mod names;
mod node;
mod objects;
mod order;
mod pinned;
mod primary;
mod ranges;
mod start;
mod texture;
mod uses;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use divvy_abi::*;
use divvy_ledger::CopyPath;
use divvy_ring::Region;

use crate::handle::{Id, Kind};
use crate::wire::{HEADER_BYTES, Header, Hello, Malformed, Reader, Sort, VERSION, Writer, by_hand};
pub use area::Traffic;
use area::{Area, Counters};
use arena::Arena;
use held::Held;
use objects::Objects;
use ranges::Ranges;

/// What one connection may use.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// Objects and ranges of device memory, each.
    pub objects: usize,
    /// Bytes of the largest message, in either direction.
    pub message: usize,
    /// Bytes of the largest image.
    pub image: usize,
    /// How long a call waits for calls that other threads of the program submitted before it.
    pub order: Duration,
    /// Bytes of the data area. It takes memory only where it is used.
    pub area: u64,
    /// Bytes of the data area that the device below has pinned.
    pub pinned: u64,
    /// Threads of the program that wait for functions which the device's work calls.
    pub callbacks: usize,
    /// Functions of the program that the device's work has still to call.
    pub queued: usize,
    /// Modules, libraries and linkers together.
    pub modules: usize,
    /// Bytes of the images of all of these, each counted as it is when it is decompressed.
    pub images: u64,
    /// Nodes of graphs, those of copies included.
    pub nodes: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            objects: 1 << 20,
            message: 1 << 20,
            image: 1 << 30,
            order: Duration::from_secs(20),
            area: 1 << 36,
            pinned: 1 << 34,
            callbacks: 1,
            queued: 1 << 16,
            modules: 1 << 14,
            images: 1 << 32,
            nodes: 1 << 20,
        }
    }
}

/// Bytes of the smallest message that a side may set as its largest.
pub const LEAST_MESSAGE: usize = 256;

/// Why a call is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The message is not as its call says.
    Malformed,
    /// The answer is this code.
    Code(CUresult),
}

impl Stop {
    /// The call asks for more than a message can carry.
    const TOO_LARGE: Stop = Stop::Code(CUDA_ERROR_INVALID_VALUE);
}

impl From<Malformed> for Stop {
    fn from(_: Malformed) -> Self {
        Stop::Malformed
    }
}

impl From<CUresult> for Stop {
    fn from(code: CUresult) -> Self {
        Stop::Code(code)
    }
}

/// What the threads of one connection share.
struct Tables {
    objects: Objects,
    ranges: Ranges,
    /// References to each device's primary context.
    primary: HashMap<CUdevice, u64>,
    /// Where the parameters of functions lie.
    layouts: HashMap<Id, Arc<launch::Layout>>,
    /// What objects take beside their place in the table.
    weights: held::Weights,
    /// What streams capture.
    captures: capture::Captures,
    /// The memory of linkers, which the driver below uses as long as they are there.
    linkers: HashMap<Id, link::Shared>,
    /// Texture and surface objects.
    textures: texture::Textures,
}

impl Tables {
    /// Enters an object that a call made.
    fn insert(&mut self, id: Id, real: u64, parent: Option<Id>) {
        let gone = self.objects.insert(id, real, parent);
        self.forget(gone);
    }

    /// Forgets an object and all that went with it.
    fn remove(&mut self, id: Id) {
        let gone = self.objects.remove(id);
        self.forget(gone);
    }

    fn forget(&mut self, gone: Vec<Id>) {
        if gone.is_empty() {
            return;
        }
        self.ranges.remove_of(&gone);
        self.captures.forget(&gone);
        self.textures.forget(&gone);
        for id in gone {
            self.layouts.remove(&id);
            self.weights.remove(id);
            self.linkers.remove(&id);
        }
    }

    /// A call that destroys an object begins: no other call finds it from now on, nor what goes with it, memory included.
    /// Gives what the call has to wait for. None where another thread's call destroys it already, or has done so.
    fn begin_end(&mut self, id: Id) -> Option<uses::Uses> {
        let (mut uses, all) = self.objects.begin_end(id)?;
        self.ranges.begin_end_of(&all, &mut uses);
        Some(uses)
    }

    /// That call failed: all is there as before.
    fn keep(&mut self, id: Id) {
        let all = self.objects.keep(id);
        self.ranges.keep_of(&all);
    }

    /// Nodes of graphs, with those that streams capture.
    fn nodes(&self) -> u64 {
        self.weights.nodes.saturating_add(self.captures.nodes())
    }
}

/// The server of one connection: a program's calls over a driver.
pub struct Server {
    driver: &'static Table,
    quota: Quota,
    tables: Mutex<Tables>,
    /// Held for a whole call that destroys a context, or counts references to one.
    contexts: Mutex<()>,
    /// Held for a whole call that uses a graph: the driver's graphs are for one thread at a time.
    graphs: Mutex<()>,
    /// The memory that is shared with the program.
    area: OnceLock<Area>,
    traffic: Counters,
    order: order::Order,
    held: Held,
    callbacks: Arc<callback::Callbacks>,
    /// Told of the id of each call that is not known.
    unknown: fn(u32),
}

impl Server {
    /// A server over a driver. A message may have [`LEAST_MESSAGE`] bytes at least, whatever the quota says.
    pub fn new(driver: &'static Table, quota: Quota) -> Arc<Self> {
        Self::with_listener(driver, quota, |_| {})
    }

    /// The same, and `unknown` is told of the id of each call that the server does not know.
    pub fn with_listener(driver: &'static Table, quota: Quota, unknown: fn(u32)) -> Arc<Self> {
        Self::with_listeners(driver, quota, unknown, |_, _| {})
    }

    /// The same, and `copied` is told how many bytes of a copy between the program's memory and the device's took which
    /// path.
    pub fn with_listeners(
        driver: &'static Table,
        quota: Quota,
        unknown: fn(u32),
        copied: fn(CopyPath, u64),
    ) -> Arc<Self> {
        let quota = Quota {
            message: quota.message.max(LEAST_MESSAGE),
            ..quota
        };
        Arc::new(Self {
            driver,
            quota,
            tables: Mutex::new(Tables {
                objects: Objects::new(quota.objects),
                ranges: Ranges::default(),
                primary: HashMap::new(),
                layouts: HashMap::new(),
                weights: held::Weights::default(),
                captures: capture::Captures::default(),
                linkers: HashMap::new(),
                textures: texture::Textures::default(),
            }),
            contexts: Mutex::default(),
            graphs: Mutex::default(),
            area: OnceLock::new(),
            traffic: Counters::new(copied),
            order: order::Order::default(),
            held: Held::default(),
            callbacks: Arc::default(),
            unknown,
        })
    }

    /// Serves calls that name memory of this region's data area too. Only the first region counts.
    pub fn share(&self, region: &Region) {
        self.share_within(region, u64::MAX);
    }

    /// The same, and no more than `pinned` bytes of it are pinned, whatever the quota allows.
    pub fn share_within(&self, region: &Region, pinned: u64) {
        let pinned = pinned.min(self.quota.pinned);
        let _first = self.area.set(Area::new(region.clone(), pinned));
    }

    /// Bytes that were copied between the program's memory and the device's until now, by path.
    pub fn traffic(&self) -> Traffic {
        self.traffic.read()
    }

    /// The server's half for one thread of the program. Its calls are to be made on one thread here, which has the
    /// current context of that one.
    pub fn session(self: &Arc<Self>) -> Session {
        Session {
            server: Arc::clone(self),
            thread: None,
            next: 1,
            late: CUDA_SUCCESS,
            arena: Arena::new(2 * self.quota.message),
            answer: vec![0; self.quota.message],
            upload: Vec::new(),
            uses: Vec::new(),
            current: None,
        }
    }

    /// What the connection may use.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// Bytes of images that were sent and not loaded yet, bytes of those that are loaded, and nodes of graphs.
    pub fn loads(&self) -> (u64, u64, u64) {
        let tables = self.tables();
        (self.held.in_flight(), tables.weights.images, tables.nodes())
    }

    /// How many objects and ranges of memory the program has.
    pub fn held(&self) -> (usize, usize) {
        let tables = self.tables();
        (tables.objects.len(), tables.ranges.len())
    }

    fn graphs(&self) -> MutexGuard<'_, ()> {
        self.graphs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contexts(&self) -> MutexGuard<'_, ()> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // A table is changed in single steps: what a panic left is whole.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server's half for one thread of the program.
pub struct Session {
    server: Arc<Server>,
    /// The thread's number, once it said hello.
    thread: Option<u32>,
    /// The number of the next message.
    next: u64,
    /// The first failure of a submitted call that no answer has told.
    late: CUresult,
    arena: Arena,
    answer: Vec<u8>,
    /// The image that is being sent.
    upload: Vec<u8>,
    /// The objects that the present call uses.
    uses: Vec<uses::Use>,
    /// The context that is current on this thread, where it is known.
    current: Option<Weak<uses::UseCount>>,
}

/// A call that is being made.
struct Call<'a> {
    driver: &'static Table,
    server: &'a Server,
    message: Reader<'a>,
    arena: &'a mut Arena,
    answer: Writer<'a>,
    upload: &'a mut Vec<u8>,
    uses: &'a mut Vec<uses::Use>,
    /// The name of the object that it makes.
    reserved: Option<Id>,
    /// The thread's current context, where it is known.
    current: &'a mut Option<Weak<uses::UseCount>>,
    /// The call's use of it.
    in_current: Option<uses::Use>,
    /// Held by a call that destroys a context, or counts references to one.
    contexts: Option<MutexGuard<'a, ()>>,
    /// Held by a call that uses a graph.
    graphs: Option<MutexGuard<'a, ()>>,
    /// The graph that it uses: the last one, where there are several.
    graph: Option<u64>,
    /// The executable graph that it uses.
    exec: Option<Id>,
    /// The stream that it uses.
    stream: Option<u64>,
    /// What it does to a capture.
    capture: capture::Part,
}

/// Where an answer's own part begins: behind the header, the code, and the late code.
const ANSWER_BYTES: usize = HEADER_BYTES + 8;

impl Session {
    /// Makes the call that a message asks for. Gives the answer to send, or nothing for a submitted call.
    ///
    /// `message` is a copy that the other side cannot change.
    ///
    /// # Errors
    /// It is no message, or not the next one: the connection ends.
    pub fn receive(&mut self, message: &[u8]) -> Result<Option<&[u8]>, Malformed> {
        if message.len() > self.server.quota.message {
            return Err(Malformed);
        }
        if self.thread.is_none() {
            return self.greet(message).map(Some);
        }
        let (header, body) = Header::read(message)?;
        let called = matches!(header.sort, Sort::Call | Sort::Submit);
        if !called || header.sequence != self.next {
            return Err(Malformed);
        }
        self.next += 1;
        self.server.order.wait(&header, self.server.quota.order);
        self.arena.clear();
        let before = self.upload.len() as u64;
        let (outcome, body) = {
            let mut call = Call {
                driver: self.server.driver,
                server: &self.server,
                message: body,
                arena: &mut self.arena,
                answer: Writer::new(&mut self.answer[ANSWER_BYTES..]),
                upload: &mut self.upload,
                uses: &mut self.uses,
                reserved: None,
                current: &mut self.current,
                in_current: None,
                contexts: None,
                graphs: None,
                graph: None,
                exec: None,
                stream: None,
                capture: capture::Part::None,
            };
            (call.make(header.id), call.answer.finish())
        };
        // The call is over: another thread's may destroy what it used.
        self.uses.clear();
        self.server.order.made(&header);
        self.server.held.changed(before, self.upload.len() as u64);
        let code = match outcome {
            Ok(code) | Err(Stop::Code(code)) => code,
            Err(Stop::Malformed) => return Err(Malformed),
        };
        // A result that does not fit is one that the client did not leave room for.
        let body = body.map_err(|_| Malformed)?;
        if header.sort == Sort::Submit {
            if self.late == CUDA_SUCCESS {
                self.late = code;
            }
            return Ok(None);
        }
        // A call that fails tells its own code, and the next one the late one.
        let late = match code {
            CUDA_SUCCESS => std::mem::replace(&mut self.late, CUDA_SUCCESS),
            _ => CUDA_SUCCESS,
        };
        let length = ANSWER_BYTES + body;
        let mut to = Writer::new(&mut self.answer);
        let answer = Header {
            length: length as u32,
            sort: Sort::Answer,
            ..header
        };
        answer.write(&mut to);
        to.plain(code);
        to.plain(late);
        Ok(Some(&self.answer[..length]))
    }

    fn greet(&mut self, message: &[u8]) -> Result<&[u8], Malformed> {
        let hello = Hello::decode(message)?;
        // Another version has other messages, and one of its own calls could mean anything here.
        if hello.version != VERSION || (hello.capacity as usize) < LEAST_MESSAGE {
            return Err(Malformed);
        }
        self.thread = Some(hello.thread);
        // No answer is longer than the client takes.
        self.answer.truncate(hello.capacity as usize);
        let answer = Hello::ours(hello.thread, self.server.quota.message as u32).encode();
        self.answer[..answer.len()].copy_from_slice(&answer);
        Ok(&self.answer[..answer.len()])
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.server.held.changed(self.upload.len() as u64, 0);
    }
}

impl Call<'_> {
    /// Makes it. A panic in the driver below is an unknown error.
    fn make(&mut self, id: u32) -> Result<CUresult, Stop> {
        let mut stop = None;
        // The first question comes before the driver below is ready, and these two use no context.
        let enters = !matches!(id, by_hand::START | by_hand::UPLOAD | by_hand::CALLBACK_WAIT);
        let code = guard(|| match self.entered(enters).and_then(|()| self.one(id)) {
            Ok(code) => code,
            Err(Stop::Code(code)) => {
                self.answer.truncate(0);
                code
            }
            Err(Stop::Malformed) => {
                stop = Some(Stop::Malformed);
                CUDA_ERROR_UNKNOWN
            }
        });
        if let Some(id) = self.reserved.take() {
            self.server.tables().objects.release(id);
        }
        stop.map_or(Ok(code), Err)
    }

    fn entered(&mut self, enters: bool) -> Result<(), Stop> {
        if enters {
            self.enter_current();
        }
        Ok(())
    }

    fn one(&mut self, id: u32) -> Result<CUresult, Stop> {
        match id {
            by_hand::START => start::start(self),
            by_hand::UPLOAD => module::upload(self),
            by_hand::MODULE_LOAD => module::load(self),
            by_hand::FUNCTION => module::function(self),
            by_hand::LIBRARY_LOAD => module::load_library(self),
            by_hand::LINK_CREATE => link::create(self),
            by_hand::LINK_ADD => link::add(self),
            by_hand::LINK_COMPLETE => link::complete(self),
            by_hand::LINK_READ => link::read(self),
            by_hand::LINK_DESTROY => link::destroy(self),
            by_hand::LAYOUT => launch::layout(self),
            by_hand::LAUNCH => launch::launch(self),
            by_hand::TO_DEVICE => memcpy::to_device(self),
            by_hand::FROM_DEVICE => memcpy::from_device(self),
            by_hand::COPY => memcpy::copy(self),
            by_hand::IS_DEVICE => memcpy::is_device(self),
            by_hand::COPY_BOX => copy3d::copy(self),
            by_hand::HOST_FUNCTION => callback::launch(self),
            by_hand::CALLBACK_WAIT => callback::wait(self),
            by_hand::USER_OBJECT => callback::user_object(self),
            by_hand::NODE_ADD => node::add(self),
            by_hand::NODE_SET => node::set(self),
            by_hand::EXEC_NODE_SET => node::set_in_exec(self),
            by_hand::NODE_GET => node::get(self),
            by_hand::INSTANTIATE => node::instantiate(self),
            by_hand::EXEC_UPDATE => node::update(self),
            by_hand::POINTER => attribute::pointer(self),
            by_hand::POOL_GET => attribute::get_pool(self),
            by_hand::POOL_SET => attribute::set_pool(self),
            by_hand::GRAPH_MEMORY_GET => attribute::get_graph_memory(self),
            by_hand::GRAPH_MEMORY_SET => attribute::set_graph_memory(self),
            by_hand::DEVICE_ATTRIBUTES => device::attributes(self),
            by_hand::SET_ATTRIBUTE => launch::set_attribute(self),
            by_hand::NAME => names::name(self),
            by_hand::CAPTURE => names::capture(self),
            by_hand::FREE => memcpy::free(self),
            by_hand::PIN => pinned::pin(self),
            by_hand::UNPIN => pinned::unpin(self),
            by_hand::TEXTURE_CREATE => texture::create(self),
            by_hand::TEXTURE_DESTROY => texture::destroy(self),
            by_hand::SET_CURRENT => primary::set_current(self),
            by_hand::PRIMARY_RETAIN => primary::retain(self),
            by_hand::PRIMARY_RELEASE => primary::release(self),
            by_hand::PRIMARY_RESET => primary::reset(self),
            id => dispatch::generated(self, id).unwrap_or_else(|| {
                (self.server.unknown)(id);
                Err(Stop::Code(CUDA_ERROR_NOT_SUPPORTED))
            }),
        }
    }

    /// The driver's handle of the thread's current context.
    fn current_real(&self) -> Option<u64> {
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: the driver writes one handle to memory of ours.
        let code = unsafe { (self.driver.cuCtxGetCurrent)(&raw mut context) };
        let known = code == CUDA_SUCCESS && !context.is_null();
        known.then_some(context.addr() as u64)
    }

    /// The name of the thread's current context.
    fn current(&self) -> Option<Id> {
        let context = self.current_real()?;
        self.server.tables().objects.id(Kind::Context, context)
    }

    /// The call uses the thread's current context: no other call destroys it until this one is over.
    ///
    /// One that was destroyed earlier is not there to be used, and the driver below says so itself.
    fn enter_current(&mut self) {
        self.in_current = self.current.as_ref().and_then(uses::enter);
        if self.in_current.is_some() {
            return;
        }
        let find = |call: &Self| {
            let real = call.current_real()?;
            call.server.tables().objects.use_count(Kind::Context, real)
        };
        *self.current = find(self);
        self.in_current = self.current.as_ref().and_then(uses::enter);
        if self.current.is_some() && self.in_current.is_none() {
            // Another thread's call destroys it. That one waits for no call that uses nothing yet, as this one.
            let over = self.server.contexts();
            *self.current = find(self);
            self.in_current = self.current.as_ref().and_then(uses::enter);
            drop(over);
        }
    }

    /// This call destroys a context, or counts references to one, and is the only one that does. It uses none of its own
    /// meanwhile, so that two such calls do not wait for each other.
    fn end_contexts(&mut self) {
        self.in_current = None;
        *self.current = None;
        if self.contexts.is_none() {
            self.contexts = Some(self.server.contexts());
        }
    }
}
