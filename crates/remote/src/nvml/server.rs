//! The process that answers one program's queries. It believes nothing that a message says.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;

use divvy_abi::nvml::*;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::queries::{self, Query};
use super::wire::{Argument, GREETING, MOST, has_results};
use crate::wire::{Malformed, Reader, Writer};

/// The name of a device is its place among those of the slice, and this.
const DEVICES: u64 = 0xd1_0000;

/// The most devices of a slice.
const MOST_DEVICES: u32 = 64;

/// More bytes than any of NVML's structures has lie behind each place that the library below writes to.
const SPARE: usize = 4096;

/// Answers queries with a table: the limiter's, which shows the slice.
pub struct Server {
    table: &'static Table,
    /// What NVML said at its start.
    started: nvmlReturn_t,
    devices: Vec<Device>,
}

/// A handle of the library below. It is only compared, and given back to that library.
#[derive(Clone, Copy)]
struct Device(nvmlDevice_t);

/// Memory for what the library below reads and writes.
struct Place {
    words: Vec<u64>,
    bytes: usize,
}

impl Place {
    fn new(bytes: usize) -> Self {
        let words = vec![0; (bytes + SPARE).div_ceil(8)];
        Self { words, bytes }
    }

    fn with(content: &[u8]) -> Self {
        let mut place = Self::new(content.len());
        place.all()[..content.len()].copy_from_slice(content);
        place
    }

    fn all(&mut self) -> &mut [u8] {
        let bytes = self.words.len() * 8;
        // SAFETY: the words are here, they are as many bytes, and any bytes are numbers.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), bytes) }
    }

    fn content(&mut self) -> &[u8] {
        let bytes = self.bytes;
        &self.all()[..bytes]
    }

    fn word(&mut self) -> Word {
        self.words.as_mut_ptr().cast()
    }
}

impl Server {
    /// Starts the library below, and finds the devices. A library that does not start says so in the greeting.
    #[must_use]
    pub fn new(table: &'static Table) -> Self {
        // SAFETY: no arguments.
        let started = unsafe { (table.nvmlInit_v2)() };
        let mut devices = Vec::new();
        let mut count = 0;
        // SAFETY: a place for a number.
        if started == NVML_SUCCESS && unsafe { (table.nvmlDeviceGetCount_v2)(&raw mut count) } == NVML_SUCCESS
        {
            for index in 0..count.min(MOST_DEVICES) {
                let mut device = core::ptr::null_mut();
                // SAFETY: a number, and a place for a handle.
                if unsafe { (table.nvmlDeviceGetHandleByIndex_v2)(index, &raw mut device) } == NVML_SUCCESS {
                    devices.push(Device(device));
                }
            }
        }
        Self {
            table,
            started,
            devices,
        }
    }

    /// Answers the program at the other end, until it is gone.
    ///
    /// # Errors
    /// `EPROTO` where the program sends what is no query; else the system's reason.
    pub fn serve(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut message = vec![0; MOST + 1];
        let mut answer = vec![0; MOST];
        let length = self.greeting(&mut answer);
        rustix::net::send(socket, &answer[..length], SendFlags::NOSIGNAL)?;
        loop {
            let received = match rustix::net::recv(socket, &mut message[..], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                received => received?.0,
            };
            if received == 0 {
                return Ok(());
            }
            // The first word, where no listener has taken it.
            if crate::local::handshake::is_begin(&message[..received]) {
                continue;
            }
            let length = self
                .answer(&message[..received], &mut answer)
                .map_err(|_| Errno::PROTO)?;
            match rustix::net::send(socket, &answer[..length], SendFlags::NOSIGNAL) {
                Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
                sent => sent?,
            };
        }
    }

    /// Writes the greeting, and gives its length.
    fn greeting(&self, into: &mut [u8]) -> usize {
        let mut m = Writer::new(into);
        m.bytes(&GREETING);
        m.plain(self.started);
        m.len()
    }

    /// Answers one query, and gives the answer's length.
    ///
    /// # Errors
    /// It is no query: its program is a forger, or of another version with the same names.
    pub fn answer(&self, message: &[u8], into: &mut [u8]) -> Result<usize, Malformed> {
        let mut m = Reader::new(message);
        let (id, serial): (u64, u64) = (m.plain()?, m.plain()?);
        let mut answer = Writer::new(into);
        answer.plain(serial);
        let Some(query) = queries::named(id) else {
            answer.plain(NVML_ERROR_NOT_SUPPORTED);
            return Ok(answer.len());
        };
        let arguments = query.arguments(&mut m)?;
        let start = answer.len();
        if self.call(query, &arguments, &mut answer).is_none() {
            answer.truncate(start);
            answer.plain(NVML_ERROR_INVALID_ARGUMENT);
        }
        answer.finish().map_err(|_| Malformed)
    }

    /// Makes a call, and writes its results; none for arguments that no library should see.
    fn call(&self, query: &Query, arguments: &[Argument<'_>], answer: &mut Writer<'_>) -> Option<()> {
        // Whatever the library below writes to stays here until the results are out.
        let mut places: Vec<Option<Place>> = Vec::with_capacity(arguments.len());
        let mut strings: Vec<CString> = Vec::new();
        let mut words: Vec<Word> = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let mut place = None;
            words.push(match argument {
                Argument::Number(number) => core::ptr::without_provenance_mut(usize::try_from(*number).ok()?),
                Argument::Device(name) => self.device(*name)?.cast(),
                Argument::String(Some(text)) => {
                    strings.push(CString::new(*text).ok()?);
                    strings.last()?.as_ptr().cast_mut().cast()
                }
                Argument::String(None)
                | Argument::NewDevice(false)
                | Argument::One(None)
                | Argument::Counted(None) => core::ptr::null_mut(),
                Argument::NewDevice(true) => place.insert(Place::new(size_of::<nvmlDevice_t>())).word(),
                Argument::Counted(Some((bytes, []))) => place.insert(Place::new(*bytes)).word(),
                Argument::One(Some(content)) | Argument::Counted(Some((_, content))) => {
                    place.insert(Place::with(content)).word()
                }
            });
            places.push(place);
        }
        let listed = query.list();
        if let Some((counted, element, _)) = listed {
            // What the library below takes for the number of elements is what there is room for, and no more.
            let room = places
                .get(counted.list)?
                .as_ref()
                .map_or(0, |place| place.bytes / element);
            let room = u32::try_from(room).ok()?;
            match arguments.get(counted.count)? {
                Argument::Number(_) => *words.get_mut(counted.count)? = word(room),
                _ => {
                    if let Some(place) = places.get_mut(counted.count)? {
                        place.all()[..4].copy_from_slice(&room.to_le_bytes());
                    }
                }
            }
        }
        // SAFETY: each pointer is null or leads to a place of at least the type's size, or to a string with its end;
        // handles are the library's own; a count is what its list has room for; a structure's version says its size.
        let code = unsafe { self.table.call(query.symbol, &words) };
        answer.plain(code);
        if !has_results(code) {
            return Some(());
        }
        let count = listed.and_then(|(counted, ..)| match places.get_mut(counted.count)? {
            Some(place) => Reader::new(place.content()).plain::<u32>().ok(),
            None => None,
        });
        for (at, (place, parameter)) in places.iter_mut().zip(&query.parameters).enumerate() {
            let Some(place) = place else { continue };
            match listed {
                Some((counted, element, _)) if counted.list == at => {
                    let bytes = match (code == NVML_SUCCESS, parameter, count) {
                        (false, ..) => 0,
                        (_, Parameter::Text { .. }, _) => text_length(place.content()),
                        (_, _, Some(count)) => place.bytes.min((count as usize).saturating_mul(element)),
                        (_, _, None) => place.bytes,
                    };
                    answer.plain(u32::try_from(bytes).ok()?);
                    answer.bytes(&place.content()[..bytes]);
                }
                _ if *parameter == Parameter::NewDevice => {
                    // SAFETY: the place has a handle's size, and any address may be one: it is compared only.
                    let device = unsafe { place.word().cast::<nvmlDevice_t>().read() };
                    answer.plain(
                        self.name(device)
                            .filter(|_| code == NVML_SUCCESS)
                            .unwrap_or_default(),
                    );
                }
                _ => {
                    if let Parameter::Pointer { constant: false, .. } = parameter {
                        answer.bytes(place.content());
                    }
                }
            }
        }
        Some(())
    }

    /// The handle of a name.
    fn device(&self, name: u64) -> Option<nvmlDevice_t> {
        let place = usize::try_from(name.checked_sub(DEVICES)?).ok()?;
        Some(self.devices.get(place)?.0)
    }

    /// The name of a handle.
    fn name(&self, device: nvmlDevice_t) -> Option<u64> {
        let place = self.devices.iter().position(|known| known.0 == device)?;
        Some(DEVICES + place as u64)
    }
}

/// The bytes of a text and its end.
fn text_length(bytes: &[u8]) -> usize {
    CStr::from_bytes_until_nul(bytes).map_or(bytes.len(), |text| text.count_bytes() + 1)
}
