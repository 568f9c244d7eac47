//! The limiter as a program meets it: which driver it finds below, and what it answers when there is none.

mod support;

use std::ffi::CStr;
use std::path::Path;

use divvy_abi::{
    CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_INITIALIZED, CUDA_SUCCESS, CUDA_VERSION, CUresult, Symbol, c_char,
    c_void,
};
use support::{Library, child, is_child, limiter, null_driver, nvidia_driver, quiet_child};

type Init = unsafe extern "C" fn(u32) -> CUresult;
type GetCount = unsafe extern "C" fn(*mut i32) -> CUresult;
type GetVersion = unsafe extern "C" fn(*mut i32) -> CUresult;
type GetName = unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult;
type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut u32) -> CUresult;

/// cuInit and cuDeviceGetCount through the limiter.
fn init_and_count() -> (CUresult, CUresult, i32) {
    let library = Library::load(&limiter());
    let mut count = -1;
    // SAFETY: these exports have these types; valid out-parameters.
    unsafe {
        let init = library.function::<Init>(c"cuInit")(0);
        let result = library.function::<GetCount>(c"cuDeviceGetCount")(&raw mut count);
        (init, result, count)
    }
}

#[test]
fn a_named_driver_is_used() {
    if is_child() {
        assert_eq!(init_and_count(), (CUDA_SUCCESS, CUDA_SUCCESS, 1));
        return;
    }
    quiet_child("a_named_driver_is_used", &[("DIVVY_DRIVER", &null_driver())]);
}

#[test]
fn without_a_driver_there_is_no_device() {
    const NAME: &str = "without_a_driver_there_is_no_device";
    if is_child() {
        assert_eq!(
            init_and_count(),
            (CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_INITIALIZED, -1)
        );
        let library = Library::load(&limiter());
        let mut name = std::ptr::null();
        // SAFETY: the export has this type; a valid out-parameter.
        unsafe {
            let get = library.function::<GetName>(c"cuGetErrorName");
            assert_eq!(get(CUDA_ERROR_NO_DEVICE, &raw mut name), CUDA_SUCCESS);
            assert_eq!(CStr::from_ptr(name), c"CUDA_ERROR_NO_DEVICE");
        }
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    let text = folder.path().join("not-a-library");
    std::fs::write(&text, "no ELF").expect("it is writable");
    for (driver, reason) in [
        (
            Path::new("/nonexistent/libcuda.so.1"),
            "/nonexistent/libcuda.so.1",
        ),
        // A bare name would find ourselves.
        (Path::new("libcuda.so.1"), "absolute path"),
        (text.as_path(), "not-a-library"),
        (limiter().as_path(), "the limiter itself"),
    ] {
        quiet_child(NAME, &[("DIVVY_DRIVER", driver), ("DIVVY_LOG", &log)]);
        let said = std::fs::read_to_string(&log).expect("it says why in the log");
        assert!(said.contains(reason), "{reason}: {said}");
        std::fs::remove_file(&log).expect("it was there");
    }
    // A link to ourselves is ourselves.
    let link = folder.path().join("libcuda.so.1");
    std::os::unix::fs::symlink(limiter(), &link).expect("links can be made");
    quiet_child(NAME, &[("DIVVY_DRIVER", &link)]);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "plays the program that cleans its environment"
)]
fn what_the_program_does_to_its_environment_is_too_late() {
    if is_child() {
        let library = Library::load(&limiter());
        // SAFETY: this child has one thread that touches the environment.
        unsafe { std::env::remove_var("DIVVY_DRIVER") };
        // SAFETY: the export has this type.
        let init = unsafe { library.function::<Init>(c"cuInit")(0) };
        assert_eq!(init, CUDA_SUCCESS);
        return;
    }
    quiet_child(
        "what_the_program_does_to_its_environment_is_too_late",
        &[("DIVVY_DRIVER", &null_driver())],
    );
}

#[test]
fn each_variant_is_handed_out_as_itself() {
    if is_child() {
        every_query_gives_the_drivers_variant(&null_driver());
        return;
    }
    quiet_child(
        "each_variant_is_handed_out_as_itself",
        &[("DIVVY_DRIVER", &null_driver())],
    );
}

/// The same over NVIDIA's own library, which answers cuGetProcAddress on a machine without a GPU as well.
#[test]
fn over_a_driver_of_nvidias() {
    if is_child() {
        let driver = std::env::var_os("DIVVY_DRIVER").expect("set by the parent");
        let driver = Path::new(&driver);
        every_query_gives_the_drivers_variant(driver);
        // SAFETY: the export has this type.
        let bare = unsafe { Library::load(driver).function::<Init>(c"cuInit")(0) };
        assert_eq!(init_and_count().0, bare);
        return;
    }
    match nvidia_driver() {
        Some(driver) => quiet_child("over_a_driver_of_nvidias", &[("DIVVY_DRIVER", &driver)]),
        None => assert!(
            std::env::var_os("DIVVY_REQUIRE_ALL").is_none(),
            "`cargo xtask setup` brings NVIDIA's driver library"
        ),
    }
}

fn every_query_gives_the_drivers_variant(driver: &Path) {
    let limiter = Library::load(&limiter());
    let below = Library::load(driver);
    let (mut asked, mut substituted) = (0, 0);
    let mut of_driver = 0;
    // SAFETY: the export has this type; a valid out-parameter.
    unsafe { below.function::<GetVersion>(c"cuDriverGetVersion")(&raw mut of_driver) };
    // SAFETY: both export it with this type.
    let (ours, theirs) = unsafe {
        (
            limiter.function::<GetProcAddress>(c"cuGetProcAddress_v2"),
            below.function::<GetProcAddress>(c"cuGetProcAddress_v2"),
        )
    };
    let mut names: Vec<&str> = Symbol::ALL.iter().map(|symbol| symbol.public_name()).collect();
    names.dedup();
    names.extend(["", "cuNoSuchFunction"]);
    for name in names {
        let name = std::ffi::CString::new(name).expect("no NUL in a name");
        for version in [3020, 6050, 11_040, 12_020, CUDA_VERSION as i32] {
            for flags in [0, 1, 2] {
                let (mut here, mut there) = (std::ptr::null_mut(), std::ptr::null_mut());
                let (mut said_here, mut said_there) = (9, 9);
                // SAFETY: C strings and valid out-parameters.
                let (answer, expected) = unsafe {
                    (
                        ours(name.as_ptr(), &raw mut here, version, flags, &raw mut said_here),
                        theirs(name.as_ptr(), &raw mut there, version, flags, &raw mut said_there),
                    )
                };
                assert_eq!(
                    (answer, said_here),
                    (expected, said_there),
                    "{name:?} {version} {flags}"
                );
                asked += 1;
                // Up to the driver's release, our own rule, by which the emulated device answers, is the driver's.
                let rule = divvy_abi::lookup(name.to_str().expect("ASCII"), version, flags);
                let export = |symbol: Symbol| below.address(symbol.c_name());
                if version <= of_driver && !rule.is_some_and(|symbol| export(symbol).is_null()) {
                    let by_rule = rule.map_or(std::ptr::null_mut(), export);
                    assert_eq!(there, by_rule, "{name:?} {version} {flags}: {rule:?}");
                }
                if here == there {
                    continue;
                }
                // Ours instead of theirs: of the same variant, and one that we have.
                let theirs = Symbol::ALL
                    .iter()
                    .find(|symbol| below.address(symbol.c_name()) == there)
                    .expect("what the driver hands out is exported");
                assert!(
                    divvy_limiter::hooks::is_hooked(*theirs),
                    "{theirs} is not ours to replace"
                );
                assert_eq!(exported_as(here), limiter_file(), "{theirs}");
                substituted += 1;
            }
        }
    }
    assert!(asked > 5_000 && substituted > 100, "{asked} {substituted}");
    // And none of those to replace was passed through.
    for name in [
        "cuMemAlloc",
        "cuMemFree",
        "cuMemAllocAsync",
        "cuMemGetInfo",
        "cuGetProcAddress",
        "cuInit",
    ] {
        let name = std::ffi::CString::new(name).expect("no NUL in a name");
        let mut here = std::ptr::null_mut();
        // SAFETY: a C string and a valid out-parameter.
        let answer = unsafe { ours(name.as_ptr(), &raw mut here, 12_020, 2, std::ptr::null_mut()) };
        assert_eq!(answer, CUDA_SUCCESS, "{name:?}");
        assert_eq!(exported_as(here), limiter_file(), "{name:?}");
    }
}

/// The file that an address lies in.
fn exported_as(address: *const c_void) -> String {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: a valid out-parameter; dladdr fills it in or answers 0.
    unsafe {
        assert_ne!(libc::dladdr(address, info.as_mut_ptr()), 0);
        CStr::from_ptr(info.assume_init().dli_fname)
            .to_string_lossy()
            .into_owned()
    }
}

fn limiter_file() -> String {
    limiter().to_string_lossy().into_owned()
}

#[test]
fn a_driver_that_is_wanted_by_name_alone_is_never_ourselves() {
    const NAME: &str = "a_driver_that_is_wanted_by_name_alone_is_never_ourselves";
    if is_child() {
        // Preloaded, the limiter answers every dlopen of the SONAME.
        // SAFETY: C strings; the handles stay open.
        let (by_name, by_path) = unsafe {
            let path = std::ffi::CString::new(limiter_file()).expect("no NUL in a path");
            (
                libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW),
                libc::dlopen(path.as_ptr(), libc::RTLD_NOW),
            )
        };
        assert!(!by_name.is_null() && by_name == by_path);
        assert_eq!(init_and_count(), (CUDA_SUCCESS, CUDA_SUCCESS, 1));
        return;
    }
    quiet_child(
        NAME,
        &[("DIVVY_DRIVER", &null_driver()), ("LD_PRELOAD", &limiter())],
    );
    // With no driver named, the usual places are searched. Whatever is there, the search ends, and never in ourselves.
    let searched = child("a_search_ends", &[("LD_PRELOAD", &limiter())]);
    assert!(searched.status.success(), "{searched:?}");
}

#[test]
fn a_search_ends() {
    if is_child() {
        init_and_count();
    }
}
