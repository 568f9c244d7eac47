//! A program as there are many: it copies a grid to the device, replaces each point by the mean of itself and its four
//! neighbours step by step, and copies the grid back.

use std::path::Path;

use anyhow::bail;
use divvy_abi::c_void;

use crate::program::{Driver, cu};

/// Points in a row, and rows.
const WIDTH: u32 = 512;

const SOURCE: &std::ffi::CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry stencil(.param .u64 from, .param .u64 to, .param .u32 width)
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .f32 %f<12>;
    .reg .b64 %a<12>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    mov.u32 %r5, %ctaid.y;
    ld.param.u32 %r6, [width];
    sub.u32 %r7, %r6, 2;
    sub.u32 %r8, %r4, 1;
    sub.u32 %r9, %r5, 1;
    setp.ge.u32 %p1, %r8, %r7;
    setp.ge.u32 %p2, %r9, %r7;
    or.pred %p3, %p1, %p2;
    @%p3 ret;
    ld.param.u64 %a1, [from];
    ld.param.u64 %a2, [to];
    mad.lo.u32 %r10, %r5, %r6, %r4;
    mul.wide.u32 %a3, %r10, 4;
    add.u64 %a4, %a1, %a3;
    add.u64 %a5, %a2, %a3;
    mul.wide.u32 %a6, %r6, 4;
    sub.u64 %a7, %a4, %a6;
    add.u64 %a8, %a4, %a6;
    ld.global.f32 %f1, [%a4];
    ld.global.f32 %f2, [%a4+-4];
    ld.global.f32 %f3, [%a4+4];
    ld.global.f32 %f4, [%a7];
    ld.global.f32 %f5, [%a8];
    add.f32 %f6, %f1, %f2;
    add.f32 %f7, %f6, %f3;
    add.f32 %f8, %f7, %f4;
    add.f32 %f9, %f8, %f5;
    mul.f32 %f10, %f9, 0f3E4CCCCD;
    st.global.f32 [%a5], %f10;
    ret;
}
";

/// Runs it over a driver. The sum of the grid has to be what it was: no point near the rim is other than zero.
pub fn run(library: &Path, steps: u32) -> anyhow::Result<()> {
    let driver = Driver::load(library)?;
    let function = driver.start(SOURCE, c"stencil")?;
    let count = (WIDTH * WIDTH) as usize;
    let mut grid = vec![0.0_f32; count];
    let middle = (WIDTH / 2 * WIDTH + WIDTH / 2) as usize;
    grid[middle] = 1000.0;
    let bytes = size_of_val(grid.as_slice());
    let mut from = driver.device_memory(bytes)?;
    let mut to = driver.device_memory(bytes)?;
    // SAFETY: both memories have so many bytes.
    unsafe {
        cu((driver.to_device)(from, grid.as_ptr().cast(), bytes))?;
        cu((driver.to_device)(to, grid.as_ptr().cast(), bytes))?;
    }
    let mut width = WIDTH;
    for _ in 0..steps {
        let mut params: [*mut c_void; 3] = [
            (&raw mut from).cast(),
            (&raw mut to).cast(),
            (&raw mut width).cast(),
        ];
        // SAFETY: the kernel has these parameters.
        cu(unsafe {
            (driver.launch)(
                function,
                WIDTH / 128,
                WIDTH,
                1,
                128,
                1,
                1,
                0,
                std::ptr::null_mut(),
                params.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })?;
        std::mem::swap(&mut from, &mut to);
    }
    // SAFETY: as above.
    cu(unsafe { (driver.from_device)(grid.as_mut_ptr().cast(), from, bytes) })?;
    let sum: f32 = grid.iter().sum();
    let reached = steps == 0 || grid[middle] < 1000.0;
    if !reached || (sum - 1000.0).abs() > 1.0 {
        bail!("The grid sums to {sum}, and its middle is {}", grid[middle]);
    }
    Ok(())
}
