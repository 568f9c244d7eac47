//! Slurm's functions, found in the program that loaded the plugin: a name that is missing there is an error and no end of
//! that program.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// A handle of Slurm's; nothing in it is known here.
pub type Handle = *mut c_void;

/// Where the plugin is loaded: `enum spank_context` of spank.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// srun.
    Local,
    /// slurmstepd.
    Remote,
    /// sbatch and salloc.
    Allocator,
    /// slurmd, and its prologs and epilogs.
    Other,
}

/// `struct spank_option` of spank.h.
#[repr(C)]
pub struct SpankOption {
    /// The long option.
    pub name: *const c_char,
    /// A word for its value.
    pub arginfo: *const c_char,
    /// A line of the help.
    pub usage: *const c_char,
    /// Whether it has a value.
    pub has_arg: c_int,
    /// What the callback is told.
    pub val: c_int,
    /// Called with the value.
    pub callback: Callback,
}

/// `spank_opt_cb_f`.
pub type Callback = extern "C" fn(c_int, *const c_char, c_int) -> c_int;

type Log = unsafe extern "C" fn(*const c_char, ...);

/// A function of the program by its name.
fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a zero, and RTLD_DEFAULT asks for what is loaded already.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Has Slurm print a line as an error: srun's user sees it, and a daemon's log has it.
pub fn error(line: &str) {
    let Some(found) = find(c"slurm_error") else {
        return;
    };
    let Ok(line) = CString::new(line.replace('\0', " ")) else {
        return;
    };
    // SAFETY: spank.h declares `void slurm_error(const char *, ...)`, and the format takes one text.
    unsafe {
        let log = std::mem::transmute::<*mut c_void, Log>(found);
        log(c"%s".as_ptr(), line.as_ptr());
    }
}

/// Where this is.
pub fn context() -> Context {
    let Some(found) = find(c"spank_context") else {
        return Context::Other;
    };
    // SAFETY: spank.h declares `spank_context_t spank_context(void)`, an enum without negative values.
    let number = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(found)() };
    match number {
        1 => Context::Local,
        2 => Context::Remote,
        3 => Context::Allocator,
        _ => Context::Other,
    }
}

/// Makes an option known. Slurm copies the record and its texts.
pub fn register(handle: Handle, option: &mut SpankOption) -> bool {
    let Some(found) = find(c"spank_option_register") else {
        return false;
    };
    // SAFETY: spank.h declares `spank_err_t spank_option_register(spank_t, struct spank_option *)`. The handle is the one that
    // Slurm gave to the function that is being called, and the record's texts are static.
    let status = unsafe {
        let call = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle, *mut SpankOption) -> c_int>(
            found,
        );
        call(handle, option)
    };
    status == 0
}

/// Sets a variable of the step's tasks, or takes it away.
pub fn set_variable(handle: Handle, name: &CStr, value: Option<&str>) -> bool {
    let (Some(set), Some(unset)) = (find(c"spank_setenv"), find(c"spank_unsetenv")) else {
        return false;
    };
    let Some(value) = value else {
        // SAFETY: spank.h declares `spank_err_t spank_unsetenv(spank_t, const char *)`; the handle is the caller's.
        unsafe {
            let call = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle, *const c_char) -> c_int>(
                unset,
            );
            call(handle, name.as_ptr());
        }
        return true;
    };
    let Ok(value) = CString::new(value) else {
        return false;
    };
    // SAFETY: spank.h declares `spank_err_t spank_setenv(spank_t, const char *, const char *, int)`, which copies both texts;
    // the handle is the caller's.
    let status = unsafe {
        let call = std::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(Handle, *const c_char, *const c_char, c_int) -> c_int,
        >(set);
        call(handle, name.as_ptr(), value.as_ptr(), 1)
    };
    status == 0
}
