//! The kit's recorder: an audit library (`LD_AUDIT`, rtld-audit(7)) that notes a program's requests to NVIDIA's
//! libraries.
//!
//! It notes each name that is bound in libcuda.so.1 and libnvidia-ml.so.1, each name that `cuGetProcAddress` is asked
//! for, and the UUID of each table that `cuGetExportTable` is asked for. It answers nothing itself. Every question goes
//! on to the driver as it came, and the driver's answer goes back. `KIT_RECORD_TO` names the file.
//!
//! The loader gives it a namespace and a C library of its own, beside the program's. That C library's locks know
//! nothing of the program's fork(2). So after its start this allocates nothing, takes no lock, and makes system calls
//! only.
//!
//! A name that is not there is never bound, so a `dlsym` in vain is not seen. glibc 2.36 shows names of the PLT, with
//! `-z now` too. It does not show names that `-fno-plt` binds as data. Both were tried with small C programs.

mod audit;
mod line;
mod record;
mod seen;
mod wrappers;
