//! The table of queries against the types, and both sides over a library that a test made.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use divvy_abi::nvml::*;
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::client::{self, TABLE};
use super::queries;
use super::server::Server;
use super::wire::{Argument, MOST};
use crate::wire::Reader;

const RECORDS: &str = include_str!("../../../abi/src/nvml/generated/records.rs");
const ALIASES: &str = include_str!("../../../abi/src/nvml/generated/aliases.rs");

/// The C types of each symbol's parameters, as the table has them.
fn types() -> BTreeMap<&'static str, Vec<&'static str>> {
    macro_rules! types {
        ([] $($name:ident ($($parameter:ident: $of:ty),*) -> $result:ty;)*) => {
            [$((stringify!($name), vec![$(stringify!($of)),*])),*].into()
        };
    }
    divvy_abi::nvml_functions! { [types] }
}

/// The last word of a type, behind what aliases name.
fn pointee(of: &str) -> String {
    let mut name = of.rsplit([':', ' ']).next().unwrap_or_default().to_owned();
    while let Some(line) = ALIASES
        .lines()
        .find_map(|line| line.strip_prefix(&format!("pub type {name} = ")))
    {
        name = line
            .trim_end_matches(';')
            .rsplit([':', ' '])
            .next()
            .unwrap_or_default()
            .to_owned();
    }
    name
}

/// The members of a structure or a union: their names and types.
fn members(record: &str) -> Vec<(&'static str, &'static str)> {
    let open = [
        format!("pub struct {record} {{"),
        format!("pub union {record} {{"),
    ];
    let mut lines = RECORDS
        .lines()
        .skip_while(|line| !open.iter().any(|open| line.starts_with(open)));
    lines.next();
    lines
        .take_while(|line| *line != "}")
        .filter_map(|line| {
            line.trim()
                .strip_prefix("pub ")?
                .trim_end_matches(',')
                .split_once(": ")
        })
        .collect()
}

/// Whether a structure holds an address or a handle, in whatever depth.
fn has_pointers(record: &str) -> bool {
    members(record).iter().any(|(_, of)| {
        let inner = of
            .trim_start_matches('[')
            .split([';', ']'])
            .next()
            .unwrap_or_default();
        of.contains('*')
            || of.contains("Option<")
            || ["nvmlDevice_t", "nvmlGpuInstance_t"].contains(&inner)
            || (!members(&pointee(inner)).is_empty() && has_pointers(&pointee(inner)))
    })
}

#[test]
fn what_is_served_is_as_its_types_say() {
    let types = types();
    for query in queries::all() {
        let name = query.symbol.name();
        let names = query.symbol.parameter_names();
        for (at, parameter) in query.parameters.iter().enumerate() {
            let is_list = query.counted.is_some_and(|counted| counted.list == at);
            let record = pointee(types[name][at]);
            match parameter {
                Parameter::Handle => panic!("{name}: a handle"),
                Parameter::Text { constant: false } => assert!(is_list, "{name}: a text without a length"),
                Parameter::Pointer { .. } => {
                    assert!(!has_pointers(&record), "{name}: {record} holds addresses");
                    let first = members(&record).first().copied();
                    let is_versioned = first == Some(("version", "u32"));
                    assert_eq!(query.versioned == Some(at), is_versioned, "{name}: {record}");
                }
                _ => {}
            }
            let counts = ["count", "length", "size"];
            if counts.iter().any(|word| names[at].to_lowercase().ends_with(word)) && names.len() > 1 {
                let is_single = matches!(
                    name,
                    "nvmlDeviceGetEncoderStats"
                        | "nvmlDeviceGetMaxMigDeviceCount"
                        | "nvmlDeviceGetMemoryErrorCounter"
                );
                assert!(
                    is_single || query.counted.is_some_and(|counted| counted.count == at),
                    "{name}: {}",
                    names[at]
                );
            }
        }
    }
    // The check above sees what it is for.
    assert!(has_pointers("nvmlProcessDetailList_v1_t") && has_pointers("nvmlEventData_t"));
    assert!(!has_pointers("nvmlFieldValue_t") && members("nvmlMemory_v2_t").len() == 5);
    let mut ids: Vec<u64> = queries::all().iter().map(|query| query.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), queries::all().len(), "two queries have one id");
    assert!(queries::of(Symbol::nvmlDeviceSetPowerManagementLimit).is_none());
}

// A library with two devices; the first has three processes.

fn is_known(device: nvmlDevice_t) -> bool {
    [0x10, 0x20].contains(&device.addr())
}

unsafe extern "C-unwind" fn init() -> nvmlReturn_t {
    NVML_SUCCESS
}

unsafe extern "C-unwind" fn count(count: *mut u32) -> nvmlReturn_t {
    // SAFETY: the caller's place.
    unsafe { count.write(2) };
    NVML_SUCCESS
}

unsafe extern "C-unwind" fn by_index(index: u32, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    if index > 1 || device.is_null() {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    // SAFETY: the caller's place.
    unsafe { device.write(core::ptr::without_provenance_mut(0x10 + 0x10 * index as usize)) };
    NVML_SUCCESS
}

unsafe extern "C-unwind" fn by_uuid(uuid: *const c_char, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    // SAFETY: a C string.
    match unsafe { std::ffi::CStr::from_ptr(uuid) }.to_bytes() {
        // SAFETY: as above.
        b"GPU-2" => unsafe { by_index(1, device) },
        b"GPU-of-another" => {
            // SAFETY: the caller's place.
            unsafe { device.write(core::ptr::without_provenance_mut(0x30)) };
            NVML_SUCCESS
        }
        _ => NVML_ERROR_NOT_FOUND,
    }
}

unsafe extern "C-unwind" fn name(device: nvmlDevice_t, name: *mut c_char, length: u32) -> nvmlReturn_t {
    assert!(is_known(device), "a handle that is none reached the library");
    if length < 5 {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    // SAFETY: the caller's place has so much room.
    unsafe { core::ptr::copy_nonoverlapping(c"H100".as_ptr(), name, 5) };
    NVML_SUCCESS
}

unsafe extern "C-unwind" fn memory(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t) -> nvmlReturn_t {
    assert!(is_known(device));
    // SAFETY: the caller's structure.
    let memory = unsafe { &mut *memory };
    memory.total = u64::from(memory.version);
    NVML_SUCCESS
}

unsafe extern "C-unwind" fn running(
    device: nvmlDevice_t,
    count: *mut u32,
    infos: *mut nvmlProcessInfo_v2_t,
) -> nvmlReturn_t {
    assert!(is_known(device));
    if count.is_null() {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    // SAFETY: the caller's places.
    unsafe {
        let room = count.replace(3);
        if room < 3 {
            return NVML_ERROR_INSUFFICIENT_SIZE;
        }
        for at in 0..3 {
            infos.add(at).write(nvmlProcessInfo_v2_t {
                pid: 100 + at as u32,
                ..nvmlProcessInfo_v2_t::default()
            });
        }
    }
    NVML_SUCCESS
}

unsafe extern "C-unwind" fn fields(
    device: nvmlDevice_t,
    count: i32,
    values: *mut nvmlFieldValue_t,
) -> nvmlReturn_t {
    assert!(is_known(device));
    for at in 0..count as usize {
        // SAFETY: the caller's list.
        let value = unsafe { &mut *values.add(at) };
        value.timestamp = i64::from(value.fieldId) * 2;
    }
    NVML_SUCCESS
}

static LIBRARY: Table = Table {
    nvmlInit_v2: init,
    nvmlDeviceGetCount_v2: count,
    nvmlDeviceGetHandleByIndex_v2: by_index,
    nvmlDeviceGetHandleByUUID: by_uuid,
    nvmlDeviceGetName: name,
    nvmlDeviceGetMemoryInfo_v2: memory,
    nvmlDeviceGetComputeRunningProcesses_v3: running,
    nvmlDeviceGetFieldValues: fields,
    ..Table::UNSUPPORTED
};

fn listen(path: &std::path::Path) -> OwnedFd {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a socket");
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("bound");
    rustix::net::listen(&socket, 8).expect("it listens");
    socket
}

#[test]
fn a_program_sees_what_the_library_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("nvml.sock");
    let listener = listen(&path);
    let serving = std::thread::spawn(move || {
        // The second connection comes after the first one's end.
        for _ in 0..2 {
            let connection = rustix::net::accept(&listener).expect("a program");
            Server::new(&LIBRARY).serve(connection.as_fd()).expect("served");
        }
    });
    client::connect_at(path);
    // SAFETY: all calls below have places for what they ask, as NVML's reference says.
    unsafe {
        let mut number = 0;
        assert_eq!(
            (TABLE.nvmlDeviceGetCount_v2)(&raw mut number),
            NVML_ERROR_UNINITIALIZED
        );
        for _ in 0..2 {
            assert_eq!((TABLE.nvmlInit_v2)(), NVML_SUCCESS);
            assert_eq!((TABLE.nvmlInit)(), NVML_SUCCESS);
            assert_eq!((TABLE.nvmlShutdown)(), NVML_SUCCESS);
            looks();
            assert_eq!((TABLE.nvmlShutdown)(), NVML_SUCCESS);
            assert_eq!((TABLE.nvmlShutdown)(), NVML_ERROR_UNINITIALIZED);
        }
    }
    serving.join().expect("it served both");
    // SAFETY: no arguments.
    let code = unsafe { (TABLE.nvmlInit_v2)() };
    assert_eq!(code, NVML_ERROR_DRIVER_NOT_LOADED, "no process listens");
}

/// # Safety
/// nvmlInit was called.
unsafe fn looks() {
    // SAFETY: places for all that is asked, as NVML's reference says.
    unsafe {
        let mut device = core::ptr::null_mut();
        assert_eq!(
            (TABLE.nvmlDeviceGetHandleByIndex_v2)(1, &raw mut device),
            NVML_SUCCESS
        );
        let mut second = core::ptr::null_mut();
        assert_eq!(
            (TABLE.nvmlDeviceGetHandleByUUID)(c"GPU-2".as_ptr(), &raw mut second),
            NVML_SUCCESS
        );
        assert_eq!(device, second);
        assert_eq!(
            (TABLE.nvmlDeviceGetHandleByUUID)(c"GPU-3".as_ptr(), &raw mut second),
            NVML_ERROR_NOT_FOUND
        );
        assert_eq!(
            (TABLE.nvmlDeviceGetHandleByIndex_v2)(2, &raw mut second),
            NVML_ERROR_INVALID_ARGUMENT
        );
        assert_eq!(
            (TABLE.nvmlDeviceGetHandleByIndex_v2)(0, core::ptr::null_mut()),
            NVML_ERROR_INVALID_ARGUMENT
        );
        let mut text = [7; 96];
        assert_eq!(
            (TABLE.nvmlDeviceGetName)(device, text.as_mut_ptr(), 96),
            NVML_SUCCESS
        );
        assert_eq!(std::ffi::CStr::from_ptr(text.as_ptr()), c"H100");
        assert_eq!(text[5], 7, "no more is written than the text");
        assert_eq!(
            (TABLE.nvmlDeviceGetName)(device, text.as_mut_ptr(), 4),
            NVML_ERROR_INSUFFICIENT_SIZE
        );
        let mut memory = nvmlMemory_v2_t {
            version: nvmlMemory_v2,
            ..nvmlMemory_v2_t::default()
        };
        assert_eq!(
            (TABLE.nvmlDeviceGetMemoryInfo_v2)(device, &raw mut memory),
            NVML_SUCCESS
        );
        assert_eq!(memory.total, u64::from(nvmlMemory_v2));
        memory.version += 8;
        assert_eq!(
            (TABLE.nvmlDeviceGetMemoryInfo_v2)(device, &raw mut memory),
            NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        );
        let (mut count, mut infos) = (2, [nvmlProcessInfo_v2_t::default(); 8]);
        let running = TABLE.nvmlDeviceGetComputeRunningProcesses_v3;
        assert_eq!(
            running(device, &raw mut count, infos.as_mut_ptr()),
            NVML_ERROR_INSUFFICIENT_SIZE
        );
        assert_eq!((count, infos[0].pid), (3, 0));
        count = u32::MAX;
        assert_eq!(running(device, &raw mut count, infos.as_mut_ptr()), NVML_SUCCESS);
        assert_eq!((count, infos[2].pid, infos[3].pid), (3, 102, 0));
        count = 0;
        assert_eq!(
            running(device, &raw mut count, core::ptr::null_mut()),
            NVML_ERROR_INSUFFICIENT_SIZE
        );
        assert_eq!(
            running(device, core::ptr::null_mut(), core::ptr::null_mut()),
            NVML_ERROR_INVALID_ARGUMENT
        );
        let mut values = [21, 4].map(|field| nvmlFieldValue_t {
            fieldId: field,
            ..nvmlFieldValue_t::default()
        });
        assert_eq!(
            (TABLE.nvmlDeviceGetFieldValues)(device, 2, values.as_mut_ptr()),
            NVML_SUCCESS
        );
        assert_eq!(values.map(|value| value.timestamp), [42, 8]);
        // A handle that the program made up reaches no library.
        let forged = core::ptr::without_provenance_mut(0x10);
        assert_eq!(
            (TABLE.nvmlDeviceGetName)(forged, text.as_mut_ptr(), 96),
            NVML_ERROR_INVALID_ARGUMENT
        );
        // A device that the library names and that is none of the slice's has no name here.
        assert_eq!(
            (TABLE.nvmlDeviceGetHandleByUUID)(c"GPU-of-another".as_ptr(), &raw mut second),
            NVML_SUCCESS
        );
        assert!(second.is_null());
        assert_eq!(
            (TABLE.nvmlDeviceSetPowerManagementLimit)(device, 1),
            NVML_ERROR_NOT_SUPPORTED
        );
        assert_eq!(
            (TABLE.nvmlDeviceGetTemperature)(device, nvmlTemperatureSensors_t(0), &raw mut count),
            NVML_ERROR_NOT_SUPPORTED
        );
        assert_eq!(
            std::ffi::CStr::from_ptr((TABLE.nvmlErrorString)(NVML_ERROR_TIMEOUT)),
            c"Timeout"
        );
        let (own, mut text) = (std::process::id(), [7; 4]);
        assert_eq!(
            (TABLE.nvmlSystemGetProcessName)(own, text.as_mut_ptr(), 4),
            NVML_SUCCESS
        );
        assert_eq!(std::ffi::CStr::from_ptr(text.as_ptr()).count_bytes(), 3);
    }
}

/// A query's bytes with arguments of a forger's choice.
fn forged() -> impl Strategy<Value = Vec<u8>> {
    let head = (0..queries::all().len(), any::<u64>());
    (
        head,
        proptest::collection::vec(any::<u8>(), 0..200),
        any::<bool>(),
    )
        .prop_map(|((at, serial), rest, known)| {
            let query = &queries::all()[at];
            let mut message = query.id.to_le_bytes().to_vec();
            message.extend(serial.to_le_bytes());
            if known && query.parameters.first() == Some(&Parameter::Device) {
                message.extend(0xd1_0000_u64.to_le_bytes());
                message.push(1);
            }
            message.extend(rest);
            message
        })
}

proptest! {
    /// Whatever comes is answered or refused, and only handles of the library's own reach it.
    #[test]
    fn no_message_does_harm(message in forged()) {
        let server = Server::new(&LIBRARY);
        let mut answer = vec![0; MOST];
        if let Ok(length) = server.answer(&message, &mut answer) {
            prop_assert!(length >= 12);
            prop_assert_eq!(&answer[..8], &message[8..16]);
        }
    }
}

#[test]
fn a_list_longer_than_a_message_and_a_wrong_version_are_no_query() {
    let read = |symbol: Symbol, bytes: &[u8]| {
        let query = queries::of(symbol).expect("served");
        query
            .arguments(&mut Reader::new(bytes))
            .map(|arguments| arguments.len())
    };
    let device = 7_u64.to_le_bytes().to_vec();
    let with = |parts: &[&[u8]]| [&device[..], &parts.concat()].concat();
    let list = |count: u32| with(&[&[1], &[0; 4], &[1], &count.to_le_bytes()]);
    let symbol = Symbol::nvmlDeviceGetComputeRunningProcesses_v3;
    assert_eq!(read(symbol, &list(100)), Ok(3));
    for count in [3000, u32::MAX / 2, u32::MAX] {
        assert!(read(symbol, &list(count)).is_err(), "{count}");
    }
    let memory = |version: u32| with(&[&[1], &version.to_le_bytes(), &[0; 36]]);
    assert_eq!(
        read(Symbol::nvmlDeviceGetMemoryInfo_v2, &memory(nvmlMemory_v2)),
        Ok(2)
    );
    assert!(read(Symbol::nvmlDeviceGetMemoryInfo_v2, &memory(nvmlMemory_v2 + 1)).is_err());
    let mut rest = Reader::new(&[0; 9]);
    let name = queries::of(Symbol::nvmlDeviceGetCount_v2)
        .expect("served")
        .arguments(&mut rest);
    assert!(name.is_err(), "bytes in excess");
    let arguments = queries::of(Symbol::nvmlDeviceGetCount_v2).expect("served");
    assert_eq!(
        arguments.arguments(&mut Reader::new(&[0])),
        Ok(vec![Argument::One(None)])
    );
}
