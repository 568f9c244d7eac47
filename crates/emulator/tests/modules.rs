//! Modules and libraries: every kind of image, what is found in it, launches, and refusals that say why.

mod common;

use common::{
    POKE, VECTOR_ADD, alone, code, cu, download, function, get, launch, module, param, start, upload,
};
use divvy_abi::*;
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

const PLAIN: &[u8] = include_bytes!("fixtures/scale-plain.fatbin");
const LZ4: &[u8] = include_bytes!("fixtures/scale-lz4.fatbin");
const ZSTD: &[u8] = include_bytes!("fixtures/scale-zstd.fatbin");
const MACHINE_CODE: &[u8] = include_bytes!("fixtures/scale-machine-code.fatbin");
const MANY: &[u8] = include_bytes!("fixtures/scale-many.fatbin");

/// Runs `scale` from the fixtures on a few values.
fn scale(scale: CUfunction) {
    let values = upload(&[1.0f32, 2.0, 3.0, 4.0]);
    let (factor, count) = (10.0f32, 3i32);
    let mut params = [param(&values), param(&factor), param(&count)];
    assert_eq!(launch(scale, 1, 32, null_mut(), &mut params), CUDA_SUCCESS);
    assert_eq!(download::<f32>(values, 4), [11.0, 21.0, 31.0, 4.0]);
    cu!(cuMemFree_v2(values));
}

#[test]
fn ptx_text_runs() {
    alone("ptx_text_runs", &[], || {
        start(0);
        let add = function(module(VECTOR_ADD), c"add");
        let n = 1000u32;
        let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let b: Vec<f32> = a.iter().map(|x| 2.0 * x).collect();
        let (a, b, c) = (upload(&a), upload(&b), upload(&vec![0f32; n as usize]));
        let mut params = [param(&a), param(&b), param(&c), param(&n)];
        assert_eq!(
            launch(add, n.div_ceil(128), 128, null_mut(), &mut params),
            CUDA_SUCCESS
        );
        let sums = download::<f32>(c, n as usize);
        assert!(sums.iter().enumerate().all(|(i, &sum)| sum == 3.0 * i as f32));

        // The same through a packed buffer.
        cu!(cuMemsetD8_v2(c, 0, 4000));
        let mut packed = Vec::new();
        for pointer in [a, b, c] {
            packed.extend(pointer.to_le_bytes());
        }
        packed.extend(n.to_le_bytes());
        let mut size = packed.len();
        let mut extra = [
            CU_LAUNCH_PARAM_BUFFER_POINTER,
            packed.as_mut_ptr().cast(),
            CU_LAUNCH_PARAM_BUFFER_SIZE,
            (&raw mut size).cast(),
            CU_LAUNCH_PARAM_END,
        ];
        let stream = CU_STREAM_PER_THREAD;
        cu!(cuLaunchKernel(
            add,
            8,
            1,
            1,
            128,
            1,
            1,
            0,
            stream,
            null_mut(),
            extra.as_mut_ptr()
        ));
        assert_eq!(
            download::<f32>(c, n as usize),
            sums,
            "the legacy stream waits for the thread's own"
        );
        size = 10;
        assert_eq!(size, 10);
        let short = code!(cuLaunchKernel(
            add,
            8,
            1,
            1,
            128,
            1,
            1,
            0,
            stream,
            null_mut(),
            extra.as_mut_ptr()
        ));
        assert_eq!(short, CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn fatbins_of_every_compression_run() {
    alone("fatbins_of_every_compression_run", &[], || {
        start(0);
        for image in [PLAIN, LZ4, ZSTD, MANY] {
            let module: CUmodule = get!(cuModuleLoadData(image.as_ptr().cast()));
            scale(function(module, c"scale"));
            let module: CUmodule = get!(cuModuleLoadFatBinary(image.as_ptr().cast()));
            cu!(cuModuleUnload(module));
        }
        // As an executable holds it: behind a wrapper.
        #[repr(C)]
        struct Wrapper(u32, u32, *const u8, *const *const u8);
        let list = [MACHINE_CODE.as_ptr(), null()];
        for wrapper in [
            Wrapper(0x4662_43b1, 1, LZ4.as_ptr(), null()),
            Wrapper(0x4662_43b1, 2, ZSTD.as_ptr(), list.as_ptr()),
        ] {
            let library: CUlibrary = get!(cuLibraryLoadData(
                (&raw const wrapper).cast(),
                null_mut(),
                null_mut(),
                0,
                null_mut(),
                null_mut(),
                0
            ));
            let kernel: CUkernel = get!(cuLibraryGetKernel(library, c"scale".as_ptr()));
            scale(kernel.cast());
            cu!(cuLibraryUnload(library));
            assert_eq!(
                code!(cuKernelGetFunction(&mut null_mut(), kernel)),
                CUDA_ERROR_INVALID_HANDLE
            );
        }
    });
}

#[test]
fn an_image_the_device_cannot_run_says_why() {
    let test = "an_image_the_device_cannot_run_says_why";
    let log = tempfile::NamedTempFile::new().unwrap();
    let path = log.path().to_str().unwrap();
    alone(test, &[("DIVVY_EMULATED", "t4"), ("DIVVY_LOG", path)], || {
        start(0);
        let mut module = null_mut();
        let mut load = |image: &[u8]| code!(cuModuleLoadData(&raw mut module, image.as_ptr().cast()));
        assert_eq!(load(MACHINE_CODE), CUDA_ERROR_NO_BINARY_FOR_GPU);
        assert_eq!(load(b"\x7fELF\x02\x01\x01\0"), CUDA_ERROR_NO_BINARY_FOR_GPU);
        assert_eq!(
            load(b".version 7.8\n.target sm_90\n.address_size 64\n\0"),
            CUDA_ERROR_NO_BINARY_FOR_GPU
        );
        assert_eq!(load(b"this is not PTX\0"), CUDA_ERROR_INVALID_PTX);
        assert_eq!(load(MANY), CUDA_SUCCESS, "one of its texts is for this device");
        assert_eq!(
            code!(cuModuleLoadData(&raw mut module, null())),
            CUDA_ERROR_INVALID_VALUE
        );
        let missing = code!(cuModuleLoad(&raw mut module, c"/nonexistent.ptx".as_ptr()));
        assert_eq!(missing, CUDA_ERROR_FILE_NOT_FOUND);
        let log = std::fs::read_to_string(std::env::var("DIVVY_LOG").unwrap()).unwrap();
        for said in [
            "machine code only",
            "needs sm_90 and the device is sm_75",
            "line 1",
            "/nonexistent.ptx",
        ] {
            assert!(log.contains(said), "{said} in {log}");
        }
    });
}

#[test]
fn a_container_that_claims_more_than_is_mapped_is_refused() {
    alone(
        "a_container_that_claims_more_than_is_mapped_is_refused",
        &[],
        || {
            start(0);
            // A true header whose length, the last 8 of its 16 bytes, was damaged.
            let mut image = vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
            image.extend(0x0300_0000_0000_0101_u64.to_le_bytes());
            image.resize(4096, 0);
            let mut module = null_mut();
            let loaded = code!(cuModuleLoadData(&raw mut module, image.as_ptr().cast()));
            assert_eq!(loaded, CUDA_ERROR_INVALID_IMAGE);
            assert!(module.is_null());
        },
    );
}

#[test]
fn the_parser_speaks_through_the_error_log() {
    alone("the_parser_speaks_through_the_error_log", &[], || {
        start(0);
        let text = CString::new(VECTOR_ADD.replace("add.f32", "add.f33")).unwrap();
        let mut log = [1u8; 256];
        let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
        let mut module = null_mut();
        let refused = code!(cuModuleLoadDataEx(
            &raw mut module,
            text.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr()
        ));
        assert_eq!(refused, CUDA_ERROR_INVALID_PTX);
        let said = CStr::from_bytes_until_nul(&log).unwrap().to_str().unwrap();
        assert!(said.contains("add.f33") && said.contains("line 31"), "{said}");
        assert_eq!(
            values[1] as usize,
            said.len(),
            "the size becomes what was written"
        );

        let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), 8 as *mut c_void];
        let link: CUlinkState = {
            let mut link = null_mut();
            cu!(cuLinkCreate_v2(
                2,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
                &raw mut link
            ));
            link
        };
        let (data, size) = (text.as_ptr().cast_mut().cast(), text.as_bytes().len());
        let added = code!(cuLinkAddData_v2(
            link,
            CU_JIT_INPUT_PTX,
            data,
            size,
            null(),
            0,
            null_mut(),
            null_mut()
        ));
        assert_eq!(added, CUDA_ERROR_INVALID_PTX);
        assert_eq!(
            (log[7], values[1] as usize),
            (0, 7),
            "a small buffer is filled, not overrun"
        );
        cu!(cuLinkDestroy(link));
        assert_eq!(code!(cuLinkDestroy(link)), CUDA_ERROR_INVALID_HANDLE);
    });
}

#[test]
fn the_linker_passes_ptx_through() {
    alone("the_linker_passes_ptx_through", &[], || {
        start(0);
        let mut link = null_mut();
        cu!(cuLinkCreate_v2(0, null_mut(), null_mut(), &raw mut link));
        for text in [VECTOR_ADD, POKE] {
            let data = text.as_ptr().cast_mut().cast();
            cu!(cuLinkAddData_v2(
                link,
                CU_JIT_INPUT_PTX,
                data,
                text.len(),
                c"a".as_ptr(),
                0,
                null_mut(),
                null_mut()
            ));
        }
        let (mut image, mut size) = (null_mut(), 0);
        cu!(cuLinkComplete(link, &raw mut image, &raw mut size));
        // SAFETY: the linker gave out this many bytes and still lives.
        let image = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) }.to_vec();
        cu!(cuLinkDestroy(link));
        let module: CUmodule = get!(cuModuleLoadData(image.as_ptr().cast()));
        let target = upload(&[0u32]);
        assert_eq!(
            launch(function(module, c"poke"), 1, 1, null_mut(), &mut [param(&target)]),
            CUDA_SUCCESS
        );
        assert_eq!(download::<u32>(target, 1), [1]);
        function(module, c"add");
    });
}

#[test]
fn variables_have_addresses_and_initial_values() {
    alone("variables_have_addresses_and_initial_values", &[], || {
        start(0);
        let code = module(
            ".version 7.0\n.target sm_75\n.address_size 64\n\
             .visible .global .align 4 .b8 table[12] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0};\n\
             .visible .const .align 4 .u32 limit = 7;\n\
             .visible .global .align 8 .u64 place = table;\n",
        );
        let global = |name: &CStr| {
            let (mut address, mut bytes) = (0, 0);
            cu!(cuModuleGetGlobal_v2(
                &raw mut address,
                &raw mut bytes,
                code,
                name.as_ptr()
            ));
            (address, bytes)
        };
        let (table, bytes) = global(c"table");
        assert_eq!((download::<u32>(table, 3), bytes), (vec![1, 2, 3], 12));
        assert_eq!(download::<u32>(global(c"limit").0, 1), [7]);
        assert_eq!(
            download::<u64>(global(c"place").0, 1),
            [table],
            "an initial value may be an address"
        );
        let missing = code!(cuModuleGetGlobal_v2(
            null_mut(),
            null_mut(),
            code,
            c"nothing".as_ptr()
        ));
        assert_eq!(missing, CUDA_ERROR_NOT_FOUND);
        assert_eq!(
            code!(cuModuleGetFunction(&mut null_mut(), code, c"nothing".as_ptr())),
            CUDA_ERROR_NOT_FOUND
        );
        cu!(cuModuleUnload(code));
        assert_eq!(code!(cuModuleUnload(code)), CUDA_ERROR_INVALID_HANDLE);
        let mut value = 0u32;
        assert_eq!(
            code!(cuMemcpyDtoH_v2((&raw mut value).cast(), table, 4)),
            CUDA_ERROR_INVALID_VALUE
        );
    });
}

#[test]
fn kernels_describe_themselves() {
    alone("kernels_describe_themselves", &[], || {
        start(0);
        let library: CUlibrary = get!(cuLibraryLoadData(
            ZSTD.as_ptr().cast(),
            null_mut(),
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0
        ));
        let count: u32 = get!(cuLibraryGetKernelCount(library));
        assert_eq!(count, 1);
        let mut kernels = [null_mut(); 4];
        cu!(cuLibraryEnumerateKernels(kernels.as_mut_ptr(), 4, library));
        let kernel = kernels[0];
        let name: *const c_char = get!(cuKernelGetName(kernel));
        // SAFETY: the name lives as long as the kernel.
        assert_eq!(unsafe { CStr::from_ptr(name) }, c"scale");
        let places = [(0, 8), (8, 4), (12, 4)];
        for (index, &place) in places.iter().enumerate() {
            let (mut offset, mut size) = (0, 0);
            cu!(cuKernelGetParamInfo(
                kernel,
                index,
                &raw mut offset,
                &raw mut size
            ));
            assert_eq!((offset, size), place);
        }
        assert_eq!(
            code!(cuKernelGetParamInfo(kernel, 3, &mut 0, &mut 0)),
            CUDA_ERROR_INVALID_VALUE
        );
        let attribute = |number| -> i32 { get!(cuKernelGetAttribute(number, kernel, 0)) };
        assert_eq!(attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
        assert_eq!(attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 0);
        assert!((1..=255).contains(&attribute(CU_FUNC_ATTRIBUTE_NUM_REGS)));
        cu!(cuKernelSetAttribute(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            100 << 10,
            kernel,
            0
        ));
        let function: CUfunction = get!(cuKernelGetFunction(kernel));
        let shared: i32 = get!(cuFuncGetAttribute(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            function
        ));
        assert_eq!(
            shared,
            100 << 10,
            "what is set on the kernel holds for its function"
        );
        let (mut grid, mut block) = (0, 0);
        cu!(cuOccupancyMaxPotentialBlockSize(
            &raw mut grid,
            &raw mut block,
            kernel.cast(),
            None,
            0,
            0
        ));
        assert_eq!(grid % 132, 0);
        let blocks: i32 = get!(cuOccupancyMaxActiveBlocksPerMultiprocessor(function, block, 0));
        assert_eq!(blocks * 132, grid);
    });
}

#[test]
fn launches_outside_the_limits_are_refused() {
    alone("launches_outside_the_limits_are_refused", &[], || {
        start(0);
        let bounded = VECTOR_ADD.replacen("\n)\n{", "\n)\n.maxntid 64, 1, 1\n{", 1);
        let add = function(module(VECTOR_ADD), c"add");
        let bounded = function(module(&bounded), c"add");
        let zero = 0u64;
        let mut params = [param(&zero), param(&zero), param(&zero), param(&zero)];
        let mut go = |f, grid: [u32; 3], block: [u32; 3], shared| {
            code!(cuLaunchKernel(
                f,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared,
                null_mut(),
                params.as_mut_ptr(),
                null_mut()
            ))
        };
        assert_eq!(go(add, [1, 1, 1], [1024, 1, 1], 0), CUDA_SUCCESS);
        for (grid, block) in [
            ([0, 1, 1], [1, 1, 1]),
            ([1, 1, 1], [1, 0, 1]),
            ([1, 1, 1], [1025, 1, 1]),
            ([1, 1, 1], [1, 1, 65]),
            ([1, 1, 1], [32, 33, 1]),
            ([1, 65_536, 1], [1, 1, 1]),
        ] {
            assert_eq!(
                go(add, grid, block, 0),
                CUDA_ERROR_INVALID_VALUE,
                "{grid:?} {block:?}"
            );
        }
        assert_eq!(go(bounded, [1, 1, 1], [64, 1, 1], 0), CUDA_SUCCESS);
        assert_eq!(go(bounded, [1, 1, 1], [65, 1, 1], 0), CUDA_ERROR_INVALID_VALUE);
        assert_eq!(go(add, [1, 1, 1], [1, 1, 1], 48 << 10), CUDA_SUCCESS);
        assert_eq!(
            go(add, [1, 1, 1], [1, 1, 1], (48 << 10) + 1),
            CUDA_ERROR_INVALID_VALUE
        );
        cu!(cuFuncSetAttribute(
            add,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            200 << 10
        ));
        assert_eq!(go(add, [1, 1, 1], [1, 1, 1], 200 << 10), CUDA_SUCCESS);
        let beyond = code!(cuFuncSetAttribute(
            add,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            228 << 10
        ));
        assert_eq!(beyond, CUDA_ERROR_INVALID_VALUE);
        let mut cooperative = |blocks| {
            code!(cuLaunchCooperativeKernel(
                add,
                blocks,
                1,
                1,
                1024,
                1,
                1,
                0,
                null_mut(),
                params.as_mut_ptr()
            ))
        };
        assert_eq!(cooperative(264), CUDA_SUCCESS);
        assert_eq!(cooperative(265), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
        assert_eq!(
            launch(add, 1, 1, null_mut(), &mut [null_mut(); 4]),
            CUDA_ERROR_INVALID_VALUE
        );
        cu!(cuCtxSynchronize());
    });
}

#[test]
fn an_unsupported_instruction_names_itself() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let path = log.path().to_str().unwrap();
    alone(
        "an_unsupported_instruction_names_itself",
        &[("DIVVY_LOG", path)],
        || {
            start(0);
            let text = POKE.replace(
                "mov.u32 %r1, 1;",
                "mov.u32 %r1, 1;\n    wgmma.fence.sync.aligned;",
            );
            let poke = function(module(&text), c"poke");
            let target = upload(&[0u32]);
            let outcome = launch(poke, 1, 1, null_mut(), &mut [param(&target)]);
            assert_eq!(outcome, CUDA_ERROR_NOT_SUPPORTED);
            let log = std::fs::read_to_string(std::env::var("DIVVY_LOG").unwrap()).unwrap();
            assert!(
                log.contains("wgmma.fence") && log.contains("`poke`") && log.contains("line 12"),
                "{log}"
            );
            assert_eq!(download::<u32>(target, 1), [0], "the context goes on");
        },
    );
}

/// A module's variable takes the device's memory and not the machine's until it is touched; one that is larger than
/// the device is refused, and so is shared memory that no kernel can have.
#[test]
fn large_variables() {
    let with = |line: &str| {
        format!(
            ".version 8.0\n.target sm_75\n.address_size 64\n{line}\n.visible .entry read(.param .u64 out)\n{{\n \
             .reg .b64 %o, %a; .reg .b32 %r;\n ld.param.u64 %o, [out];\n mov.u64 %a, large;\n \
             ld.global.u32 %r, [%a+40000000];\n st.global.u32 [%o], %r;\n ret;\n}}\n"
        )
    };
    alone("large_variables", &[], || {
        start(0);
        let text = CString::new(with(".visible .global .align 8 .b8 large[30000000000];")).unwrap();
        let large: CUmodule = get!(cuModuleLoadData(text.as_ptr().cast()));
        let out = upload(&[7u32]);
        let read = function(large, c"read");
        assert_eq!(launch(read, 1, 1, null_mut(), &mut [param(&out)]), CUDA_SUCCESS);
        assert_eq!(download::<u32>(out, 1), [0]);
        // The PTX was for an older device than this one.
        let value: i32 = get!(cuFuncGetAttribute(CU_FUNC_ATTRIBUTE_PTX_VERSION, read));
        assert_eq!(value, 75);
        let value: i32 = get!(cuFuncGetAttribute(CU_FUNC_ATTRIBUTE_BINARY_VERSION, read));
        assert_eq!(value, 90);
        cu!(cuModuleUnload(large));
        let refused = |line: &str| {
            let text = CString::new(with(line)).unwrap();
            code!(cuModuleLoadData(&mut null_mut(), text.as_ptr().cast()))
        };
        assert_eq!(
            refused(".visible .global .align 8 .b8 large[300000000000];"),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        assert_eq!(
            refused(
                ".global .b8 large[8];\n.shared .b8 s[4000000000];\n.entry k() { .reg .b32 %r; mov.u32 %r, s; ret; }"
            ),
            CUDA_ERROR_INVALID_PTX
        );
    });
}

/// A kernel's `malloc` takes from the context's heap, what one kernel took another frees, and what is not there is null.
#[test]
fn memory_that_kernels_allocate() {
    const TEXT: &str = r"
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b64 out) malloc(.param .b64 bytes);
.extern .func free(.param .b64 what);
.visible .entry take(.param .u64 out_p, .param .u64 bytes_p)
{
 .reg .b32 %t, %v; .reg .b64 %out, %n, %p; .reg .pred %q;
 ld.param.u64 %out, [out_p]; ld.param.u64 %n, [bytes_p]; mov.u32 %t, %tid.x;
 { .param .b64 b; .param .b64 r; st.param.b64 [b], %n; call.uni (r), malloc, (b); ld.param.b64 %p, [r]; }
 mad.wide.u32 %out, %t, 8, %out; st.global.u64 [%out], %p;
 setp.eq.s64 %q, %p, 0; @%q ret;
 mul.lo.u32 %v, %t, 7; st.u32 [%p], %v; st.u32 [%p+12], %t;
 ret;
}
.visible .entry give(.param .u64 in_p, .param .u64 out_p)
{
 .reg .b32 %t, %v, %w; .reg .b64 %in, %out, %p;
 ld.param.u64 %in, [in_p]; ld.param.u64 %out, [out_p]; mov.u32 %t, %tid.x;
 mad.wide.u32 %in, %t, 8, %in; ld.global.u64 %p, [%in];
 ld.u32 %v, [%p]; ld.u32 %w, [%p+12]; add.u32 %v, %v, %w;
 mad.wide.u32 %out, %t, 4, %out; st.global.u32 [%out], %v;
 { .param .b64 b; st.param.b64 [b], %p; call.uni free, (b); }
 ret;
}
";
    alone("memory_that_kernels_allocate", &[], || {
        start(0);
        cu!(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 4 << 20));
        let loaded = module(TEXT);
        let (take, give) = (function(loaded, c"take"), function(loaded, c"give"));
        let (addresses, sums) = (upload(&[1u64; 96]), upload(&[0u32; 96]));
        let taken = |bytes: u64| {
            let mut params = [param(&addresses), param(&bytes)];
            assert_eq!(launch(take, 1, 96, null_mut(), &mut params), CUDA_SUCCESS);
            download::<u64>(addresses, 96)
        };
        let given = || {
            let mut params = [param(&addresses), param(&sums)];
            assert_eq!(launch(give, 1, 96, null_mut(), &mut params), CUDA_SUCCESS);
            download::<u32>(sums, 96)
        };
        // More rounds than the heap holds at once: what is freed is given again.
        for _ in 0..3 {
            let mut all = taken(40_000);
            all.sort_unstable();
            assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= 40_000), "{all:?}");
            assert!(all.iter().all(|address| address % 16 == 0 && *address != 0));
            assert_eq!(given(), (0..96).map(|t| t * 8).collect::<Vec<u32>>());
        }
        // 4 MiB have room for 52 allocations of 80,000 bytes; sizes that no heap has are null as well.
        assert_eq!(taken(80_000).iter().filter(|address| **address != 0).count(), 52);
        for bytes in [1 << 40, u64::MAX, u64::MAX - 14, 0] {
            assert_eq!(taken(bytes), [0; 96], "{bytes}");
        }
        // What is not the heap's cannot be freed.
        let wrong = upload(&[sums; 96]);
        let mut params = [param(&wrong), param(&sums)];
        assert_eq!(launch(give, 1, 96, null_mut(), &mut params), CUDA_SUCCESS);
        assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_LAUNCH_FAILED);
    });
}
