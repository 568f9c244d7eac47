//! What is recorded, and its bytes.
//!
//! A record is numbers of eight bytes and texts with their length in front. Both sides are of one version: the command and
//! the libraries are installed together.

use std::borrow::Cow;

/// Something that happened in a traced process. Times are nanoseconds of CLOCK_MONOTONIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The first record of a library in a process.
    Process {
        /// When.
        at: u64,
        /// The process that started it.
        parent: u32,
        /// Its program and arguments.
        program: String,
    },
    /// The first record of a thread.
    Thread {
        /// When.
        at: u64,
        /// The thread's id.
        tid: u32,
        /// Its name.
        name: String,
    },
    /// A device that the process opened.
    Device {
        /// When.
        at: u64,
        /// Its CUdevice.
        ordinal: u32,
        /// Its name.
        name: String,
    },
    /// A call has begun.
    Enter {
        /// When.
        at: u64,
        /// The thread that makes it.
        tid: u32,
        /// The function.
        name: String,
    },
    /// A call has ended.
    Call(Call),
    /// Work of a stream has ended.
    Operation(Operation),
    /// The device memory that the process has in use.
    Memory {
        /// When.
        at: u64,
        /// The CUdevice.
        device: u32,
        /// In bytes.
        bytes: u64,
    },
}

/// A call of the driver or of the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Call {
    /// The thread that made it.
    pub tid: u32,
    /// When it began.
    pub begin: u64,
    /// When it ended.
    pub end: u64,
    /// Its number among the calls of its library in this process.
    pub number: u64,
    /// It answered an error.
    pub failed: bool,
    /// The function: `cuMemAlloc_v2`.
    pub name: Cow<'static, str>,
    /// What it answered: `CUDA_SUCCESS`; nothing for a function without an answer.
    pub result: String,
    /// Names and values of its arguments, in order.
    pub arguments: Vec<(Cow<'static, str>, String)>,
}

/// Work of a stream: a kernel, a copy, a fill, a function of the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Operation {
    /// The call that it came from: its thread.
    pub tid: u32,
    /// When that call began.
    pub called: u64,
    /// That call's function.
    pub call: Cow<'static, str>,
    /// That call's number.
    pub number: u64,
    /// When it began, by the device clock.
    pub begin: u64,
    /// When it ended, by the device clock.
    pub end: u64,
    /// How long the processor took for it, in nanoseconds.
    pub host_ns: u64,
    /// The CUdevice.
    pub device: u32,
    /// The context's id.
    pub context: u64,
    /// The stream's id in its context.
    pub stream: u64,
    /// The stream as the program knows it; 0 for default streams.
    pub handle: u64,
    /// Its context had failed when it ended.
    pub failed: bool,
    /// What was launched, for kernels.
    pub kernel: Option<Kernel>,
}

/// A launch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kernel {
    /// The kernel's name.
    pub name: String,
    /// Blocks, by dimension.
    pub grid: [u32; 3],
    /// Threads of a block, by dimension.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// Blocks can wait for one another.
    pub cooperative: bool,
    /// Its arguments in order, as texts: CUDA's driver knows their sizes only.
    pub arguments: Vec<String>,
}

impl Event {
    /// When it was recorded: of what has a length, its end by the host's clock as far as it is known.
    pub fn at(&self) -> u64 {
        match self {
            Event::Process { at, .. }
            | Event::Thread { at, .. }
            | Event::Device { at, .. }
            | Event::Enter { at, .. }
            | Event::Memory { at, .. } => *at,
            Event::Call(call) => call.end,
            Event::Operation(operation) => operation.end,
        }
    }

    /// Its bytes.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Event::Process { at, parent, program } => {
                words(into, &[0, *at, u64::from(*parent)]);
                text(into, program);
            }
            Event::Thread { at, tid, name } => {
                words(into, &[1, *at, u64::from(*tid)]);
                text(into, name);
            }
            Event::Device { at, ordinal, name } => {
                words(into, &[2, *at, u64::from(*ordinal)]);
                text(into, name);
            }
            Event::Enter { at, tid, name } => {
                words(into, &[3, *at, u64::from(*tid)]);
                text(into, name);
            }
            Event::Call(call) => encode_call(call, into),
            Event::Operation(operation) => encode_operation(operation, into),
            Event::Memory { at, device, bytes } => words(into, &[6, *at, u64::from(*device), *bytes]),
        }
    }

    /// Reads them; None where they are no event.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Event> {
        let mut from = Reader(bytes);
        Some(match from.word()? {
            0 => Event::Process {
                at: from.word()?,
                parent: from.number()?,
                program: from.text()?,
            },
            1 => Event::Thread {
                at: from.word()?,
                tid: from.number()?,
                name: from.text()?,
            },
            2 => Event::Device {
                at: from.word()?,
                ordinal: from.number()?,
                name: from.text()?,
            },
            3 => Event::Enter {
                at: from.word()?,
                tid: from.number()?,
                name: from.text()?,
            },
            4 => Event::Call(from.call()?),
            5 => Event::Operation(from.operation()?),
            6 => Event::Memory {
                at: from.word()?,
                device: from.number()?,
                bytes: from.word()?,
            },
            _ => return None,
        })
    }
}

fn words(into: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        into.extend(word.to_le_bytes());
    }
}

fn text(into: &mut Vec<u8>, text: &str) {
    into.extend((text.len() as u32).to_le_bytes());
    into.extend(text.as_bytes());
}

fn encode_call(call: &Call, into: &mut Vec<u8>) {
    words(
        into,
        &[
            4,
            u64::from(call.tid),
            call.begin,
            call.end,
            call.number,
            u64::from(call.failed),
            call.arguments.len() as u64,
        ],
    );
    text(into, &call.name);
    text(into, &call.result);
    for (name, value) in &call.arguments {
        text(into, name);
        text(into, value);
    }
}

fn encode_operation(operation: &Operation, into: &mut Vec<u8>) {
    words(
        into,
        &[
            5,
            u64::from(operation.tid),
            operation.called,
            operation.number,
            operation.begin,
            operation.end,
            operation.host_ns,
            u64::from(operation.device),
            operation.context,
            operation.stream,
            operation.handle,
            u64::from(operation.failed),
            u64::from(operation.kernel.is_some()),
        ],
    );
    text(into, &operation.call);
    if let Some(kernel) = &operation.kernel {
        let sizes = kernel.grid.iter().chain(&kernel.block);
        words(into, &sizes.map(|&size| u64::from(size)).collect::<Vec<_>>());
        words(
            into,
            &[
                u64::from(kernel.shared),
                u64::from(kernel.cooperative),
                kernel.arguments.len() as u64,
            ],
        );
        text(into, &kernel.name);
        for argument in &kernel.arguments {
            text(into, argument);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn number(&mut self) -> Option<u32> {
        u32::try_from(self.word()?).ok()
    }

    fn text(&mut self) -> Option<String> {
        let (length, rest) = self.0.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.0 = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    fn call(&mut self) -> Option<Call> {
        let (tid, begin, end, number) = (self.number()?, self.word()?, self.word()?, self.word()?);
        let (failed, count) = (self.word()? != 0, self.word()?);
        let (name, result) = (self.text()?.into(), self.text()?);
        let arguments = (0..count).map(|_| Some((self.text()?.into(), self.text()?)));
        Some(Call {
            tid,
            begin,
            end,
            number,
            failed,
            name,
            result,
            arguments: arguments.collect::<Option<_>>()?,
        })
    }

    fn operation(&mut self) -> Option<Operation> {
        let mut operation = Operation {
            tid: self.number()?,
            called: self.word()?,
            number: self.word()?,
            begin: self.word()?,
            end: self.word()?,
            host_ns: self.word()?,
            device: self.number()?,
            context: self.word()?,
            stream: self.word()?,
            handle: self.word()?,
            failed: self.word()? != 0,
            ..Operation::default()
        };
        let is_kernel = self.word()? != 0;
        operation.call = self.text()?.into();
        if is_kernel {
            let mut sizes = [0; 6];
            for size in &mut sizes {
                *size = self.number()?;
            }
            let [x, y, z, p, q, r] = sizes;
            let (shared, cooperative, count) = (self.number()?, self.word()? != 0, self.word()?);
            operation.kernel = Some(Kernel {
                grid: [x, y, z],
                block: [p, q, r],
                shared,
                cooperative,
                name: self.text()?,
                arguments: (0..count).map(|_| self.text()).collect::<Option<_>>()?,
            });
        }
        Some(operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Event> {
        let (at, name) = (7, "näme".to_owned());
        let operation = Operation {
            tid: 1,
            called: 2,
            call: "cuLaunchKernel".into(),
            number: 3,
            begin: 4,
            end: 5,
            host_ns: 6,
            device: 7,
            context: 8,
            stream: 9,
            handle: 10,
            failed: true,
            kernel: None,
        };
        let kernel = Kernel {
            name: name.clone(),
            grid: [1, 2, 3],
            block: [4, 5, 6],
            shared: 7,
            cooperative: true,
            arguments: vec!["0x7f00*".into(), "0x04".into()],
        };
        vec![
            Event::Process {
                at,
                parent: 1,
                program: name.clone(),
            },
            Event::Thread {
                at,
                tid: 2,
                name: name.clone(),
            },
            Event::Device {
                at,
                ordinal: 3,
                name: name.clone(),
            },
            Event::Enter { at, tid: 4, name },
            Event::Call(Call {
                tid: 1,
                begin: 2,
                end: 3,
                number: 4,
                failed: true,
                name: "cuInit".into(),
                result: "CUDA_SUCCESS".into(),
                arguments: vec![("Flags".into(), "0".into())],
            }),
            Event::Operation(operation.clone()),
            Event::Operation(Operation {
                kernel: Some(kernel),
                ..operation
            }),
            Event::Memory {
                at,
                device: 1,
                bytes: u64::MAX,
            },
        ]
    }

    #[test]
    fn what_is_written_is_read_and_what_is_cut_is_not() {
        for event in all() {
            let mut bytes = Vec::new();
            event.encode(&mut bytes);
            assert_eq!(Event::decode(&bytes).as_ref(), Some(&event));
            for end in 0..bytes.len() {
                assert_eq!(Event::decode(&bytes[..end]), None, "{event:?} cut at {end}");
            }
        }
        assert_eq!(Event::decode(&u64::MAX.to_le_bytes()), None);
    }
}
