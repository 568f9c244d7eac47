//! The wrappers of `cuGetProcAddress` and `cuGetExportTable`: each notes the question, and passes it on as it came.
//!
//! There may be more than one driver in a process, as the limiter has another one below it. So each address gets a
//! wrapper of its own, from a fixed number of them.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use divvy_abi::{CUDA_SUCCESS, CUresult, CUuuid};

use crate::audit::quietly;
use crate::line::Line;
use crate::record::{name_at, note};

/// How many drivers a process can have. Requests for the tables of a further one are not noted.
const DRIVERS: usize = 4;

/// `cuGetProcAddress_v2`. The first version lacks the last parameter, and one wrapper serves both. On x86-64 and
/// AArch64 five arguments are five registers, so the last one goes on as it came, and nothing here looks at it.
type GetProcAddress =
    unsafe extern "C-unwind" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_void) -> CUresult;
type GetExportTable = unsafe extern "C-unwind" fn(*mut *const c_void, *const CUuuid) -> CUresult;

static PROC_ADDRESS: Originals = Originals::new();
static EXPORT_TABLE: Originals = Originals::new();

/// The address that a program is to have for the function that the driver has under this name.
pub(crate) fn wrapped(name: &[u8], address: *mut c_void) -> *mut c_void {
    let (originals, wrappers) = match name {
        b"cuGetProcAddress" | b"cuGetProcAddress_v2" => (&PROC_ADDRESS, proc_address_wrappers()),
        b"cuGetExportTable" => (&EXPORT_TABLE, export_table_wrappers()),
        _ => return address,
    };
    // A driver hands out another one's: it is a wrapper already.
    if address.is_null() || wrappers.contains(&address) {
        return address;
    }
    originals
        .place_of(address)
        .map_or(address, |place| wrappers[place])
}

fn proc_address_wrappers() -> [*mut c_void; DRIVERS] {
    let wrappers: [GetProcAddress; DRIVERS] = [
        proc_address::<0>,
        proc_address::<1>,
        proc_address::<2>,
        proc_address::<3>,
    ];
    wrappers.map(|wrapper| wrapper as *mut c_void)
}

fn export_table_wrappers() -> [*mut c_void; DRIVERS] {
    let wrappers: [GetExportTable; DRIVERS] = [
        export_table::<0>,
        export_table::<1>,
        export_table::<2>,
        export_table::<3>,
    ];
    wrappers.map(|wrapper| wrapper as *mut c_void)
}

/// # Safety
/// As cuda.h says of `cuGetProcAddress`, of the version that the program asked for.
unsafe extern "C-unwind" fn proc_address<const DRIVER: usize>(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_void,
) -> CUresult {
    // SAFETY: this wrapper was handed out after its original was set, which has this type.
    let below: GetProcAddress = unsafe { core::mem::transmute(PROC_ADDRESS.at(DRIVER)) };
    // SAFETY: the arguments are handed on as they came.
    let result = unsafe { below(symbol, function, version, flags, status) };
    quietly((), || {
        // SAFETY: the driver has taken the name, and has written the address where it says that it succeeded.
        let (name, address) = unsafe {
            let has_address = result == CUDA_SUCCESS && !function.is_null();
            (
                name_at(symbol),
                if has_address {
                    *function
                } else {
                    core::ptr::null_mut()
                },
            )
        };
        note(&Line::entry(name.bytes(), version, flags, !address.is_null()));
        let ours = wrapped(name.bytes(), address);
        if ours != address {
            // SAFETY: the driver has written there.
            unsafe { *function = ours };
        }
    });
    result
}

/// # Safety
/// As cuda.h says of `cuGetExportTable`.
unsafe extern "C-unwind" fn export_table<const DRIVER: usize>(
    table: *mut *const c_void,
    id: *const CUuuid,
) -> CUresult {
    // SAFETY: this wrapper was handed out after its original was set, which has this type.
    let below: GetExportTable = unsafe { core::mem::transmute(EXPORT_TABLE.at(DRIVER)) };
    // SAFETY: the arguments are handed on as they came.
    let result = unsafe { below(table, id) };
    quietly((), || {
        if id.is_null() {
            return;
        }
        // SAFETY: the program gave a UUID, and the driver has written the table where it says that it succeeded.
        let (uuid, answered) = unsafe {
            let answered = result == CUDA_SUCCESS && !table.is_null() && !(*table).is_null();
            ((*id).bytes, answered)
        };
        note(&Line::table(uuid.map(|byte| byte as u8), answered));
    });
    result
}

/// The driver's own functions, each in the place of its wrapper.
struct Originals([AtomicPtr<c_void>; DRIVERS]);

impl Originals {
    const fn new() -> Self {
        Self([const { AtomicPtr::new(core::ptr::null_mut()) }; DRIVERS])
    }

    /// The place of this one, which is taken where it had none; none where all are taken.
    fn place_of(&self, address: *mut c_void) -> Option<usize> {
        let holds = |place: &AtomicPtr<c_void>| {
            let empty = core::ptr::null_mut();
            match place.compare_exchange(empty, address, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => true,
                Err(other) => other == address,
            }
        };
        self.0.iter().position(holds)
    }

    fn at(&self, place: usize) -> *mut c_void {
        self.0[place].load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use divvy_abi::{CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN};

    use super::*;

    #[test]
    fn each_original_has_one_place() {
        let originals = Originals::new();
        let address = |number: usize| number as *mut c_void;
        for _ in 0..2 {
            for number in 1..=DRIVERS {
                assert_eq!(originals.place_of(address(number)), Some(number - 1));
            }
        }
        assert_eq!(originals.place_of(address(99)), None);
        assert_eq!(originals.at(2), address(3));
    }

    /// A driver that hands itself out, and knows its fifth argument.
    unsafe extern "C-unwind" fn proc_address_below(
        symbol: *const c_char,
        function: *mut *mut c_void,
        version: c_int,
        flags: u64,
        status: *mut c_void,
    ) -> CUresult {
        assert_eq!((version, flags, status as usize), (12000, 2, 77));
        // SAFETY: this test's own arguments.
        let name = unsafe { name_at(symbol) };
        let below: GetProcAddress = proc_address_below;
        let tables: GetExportTable = export_table_below;
        let address = match name.bytes() {
            b"cuGetProcAddress" => below as *mut c_void,
            b"cuGetExportTable" => tables as *mut c_void,
            b"cuInit" => 8 as *mut c_void,
            _ => return CUDA_ERROR_UNKNOWN,
        };
        // SAFETY: this test's own variable.
        unsafe { *function = address };
        CUDA_SUCCESS
    }

    unsafe extern "C-unwind" fn export_table_below(_: *mut *const c_void, _: *const CUuuid) -> CUresult {
        CUDA_ERROR_NOT_SUPPORTED
    }

    #[test]
    fn questions_and_answers_pass_unchanged_and_wrappers_hand_out_wrappers() {
        let below: GetProcAddress = proc_address_below;
        let ours = wrapped(b"cuGetProcAddress_v2", below as *mut c_void);
        assert_ne!(ours, below as *mut c_void);
        assert_eq!(
            wrapped(b"cuGetProcAddress", ours),
            ours,
            "it is a wrapper already"
        );
        assert_eq!(wrapped(b"cuInit", below as *mut c_void), below as *mut c_void);
        // SAFETY: a wrapper has its original's type.
        let ask: GetProcAddress = unsafe { core::mem::transmute(ours) };
        let asked = |name: &core::ffi::CStr| {
            let mut address = 5 as *mut c_void;
            // SAFETY: a C string and a live variable; the driver above does not look at the last.
            let result = unsafe { ask(name.as_ptr(), &raw mut address, 12000, 2, 77 as *mut c_void) };
            (result, address as usize)
        };
        assert_eq!(asked(c"cuInit"), (CUDA_SUCCESS, 8));
        assert_eq!(
            asked(c"cuNoSuch"),
            (CUDA_ERROR_UNKNOWN, 5),
            "what was there stays there"
        );
        assert_eq!(asked(c"cuGetProcAddress"), (CUDA_SUCCESS, ours as usize));
        let (_, tables) = asked(c"cuGetExportTable");
        let own: GetExportTable = export_table_below;
        assert_ne!(tables, own as usize);
        // SAFETY: as above.
        let ask: GetExportTable = unsafe { core::mem::transmute(tables) };
        let (mut table, id) = (core::ptr::null(), CUuuid { bytes: [3; 16] });
        // SAFETY: live variables.
        let refused = unsafe { ask(&raw mut table, &raw const id) };
        assert_eq!(refused, CUDA_ERROR_NOT_SUPPORTED);
        assert!(table.is_null());
        // SAFETY: the driver above looks at neither.
        let none = unsafe { ask(core::ptr::null_mut(), core::ptr::null()) };
        assert_eq!(none, CUDA_ERROR_NOT_SUPPORTED);
    }
}
