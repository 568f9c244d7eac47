//! Arrays, textures and surfaces of a program without a device: by messages, and through shared memory.

mod common;

use std::ffi::CString;
use std::ptr::{null, null_mut};

use common::{alone, code, connect, connect_shared, cu, get, start};
use divvy_abi::*;
use divvy_remote::server::Quota;

/// Longer in bytes than a message, so rows travel in parts.
const WIDTH: usize = 1500;
const HEIGHT: usize = 5;
const ROW: usize = WIDTH * 4;
const MESSAGE: usize = 4096;

/// One thread samples a texture at (3, 1), and another kernel negates that texel through a surface.
const KERNELS: &str = ".version 8.5\n.target sm_90\n.address_size 64\n\
    .visible .entry sample(.param .u64 out_p, .param .u64 object)\n{\n\
     .reg .f32 %f<8>; .reg .b64 %o, %out;\n\
     ld.param.u64 %out, [out_p]; ld.param.u64 %o, [object]; mov.f32 %f0, 0f40600000; mov.f32 %f1, 0f3FC00000;\n\
     tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%o, {%f0, %f1}]; st.global.f32 [%out], %f3; ret;\n}\n\
    .visible .entry negate(.param .u64 object)\n{\n\
     .reg .b32 %x; .reg .f32 %f; .reg .b64 %o;\n\
     ld.param.u64 %o, [object]; mov.u32 %x, 12;\n\
     suld.b.2d.b32.trap {%f}, [%o, {%x, 1}]; neg.f32 %f, %f; sust.b.2d.b32.trap [%o, {%x, 1}], {%f}; ret;\n}\n";

fn picture() -> Vec<f32> {
    (0..WIDTH * HEIGHT).map(|at| at as f32).collect()
}

fn an_array() -> CUarray {
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: WIDTH,
        Height: HEIGHT,
        Depth: 0,
        Format: CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
        Flags: CUDA_ARRAY3D_SURFACE_LDST,
    };
    get!(cuArray3DCreate_v2(&raw const descriptor))
}

/// A copy of the whole picture, whose rows in the program's memory are so far apart.
fn whole(array: CUarray, host: *mut f32, pitch: usize, to_array: bool) -> CUDA_MEMCPY2D {
    let size = CUDA_MEMCPY2D {
        WidthInBytes: ROW,
        Height: HEIGHT,
        ..CUDA_MEMCPY2D::default()
    };
    match to_array {
        true => CUDA_MEMCPY2D {
            srcMemoryType: CU_MEMORYTYPE_HOST,
            srcHost: host.cast(),
            srcPitch: pitch,
            dstMemoryType: CU_MEMORYTYPE_ARRAY,
            dstArray: array,
            ..size
        },
        false => CUDA_MEMCPY2D {
            srcMemoryType: CU_MEMORYTYPE_ARRAY,
            srcArray: array,
            dstMemoryType: CU_MEMORYTYPE_HOST,
            dstHost: host.cast(),
            dstPitch: pitch,
            ..size
        },
    }
}

/// The array's rows end to end.
fn read(array: CUarray) -> Vec<f32> {
    let mut values = vec![0.0_f32; WIDTH * HEIGHT];
    let copy = whole(array, values.as_mut_ptr(), 0, false);
    cu!(cuMemcpy2D_v2(&raw const copy));
    values
}

fn copies() {
    let array = an_array();
    let mut values = picture();
    let copy = whole(array, values.as_mut_ptr(), ROW, true);
    cu!(cuMemcpy2D_v2(&raw const copy));
    assert_eq!(read(array), picture());

    // A part of the rows, to rows that stand further apart, in a stream.
    let stream: CUstream = get!(cuStreamCreate(1));
    let mut wide = vec![-1.0_f32; 2 * WIDTH * 3];
    let part = CUDA_MEMCPY2D {
        srcXInBytes: 8,
        srcY: 2,
        dstXInBytes: 4,
        dstY: 1,
        WidthInBytes: ROW - 16,
        Height: 2,
        ..whole(array, wide.as_mut_ptr(), 2 * ROW, false)
    };
    cu!(cuMemcpy2DAsync_v2(&raw const part, stream));
    cu!(cuStreamSynchronize(stream));
    let from = |x: usize, y: usize| (WIDTH * y + x) as f32;
    assert_eq!(wide[2 * WIDTH + 1], from(2, 2));
    assert_eq!(wide[4 * WIDTH + WIDTH - 4], from(WIDTH - 3, 3));
    let copied = wide.iter().filter(|value| **value >= 0.0).count();
    assert_eq!(copied, 2 * (WIDTH - 4), "and nothing else is written");

    // As one run of bytes, from the middle of a row to that of another one.
    let run: Vec<f32> = (0..2 * WIDTH).map(|at| -(at as f32) - 1.0).collect();
    let at = ROW + 400;
    cu!(cuMemcpyHtoA_v2(array, at, run.as_ptr().cast(), 2 * ROW));
    let now = read(array);
    assert_eq!(now[WIDTH + 99], picture()[WIDTH + 99]);
    assert_eq!(now[WIDTH + 100..3 * WIDTH + 100], run);
    assert_eq!(now[3 * WIDTH + 100], picture()[3 * WIDTH + 100]);
    let mut back = vec![0.0_f32; 2 * WIDTH];
    cu!(cuMemcpyAtoHAsync_v2(
        back.as_mut_ptr().cast(),
        array,
        at,
        2 * ROW,
        stream
    ));
    cu!(cuStreamSynchronize(stream));
    assert_eq!(back, run);
    let all = picture();
    cu!(cuMemcpyHtoAAsync_v2(
        array,
        0,
        all.as_ptr().cast(),
        ROW * HEIGHT,
        stream
    ));
    cu!(cuStreamSynchronize(stream));
    assert_eq!(read(array), all);
    let memory: CUdeviceptr = get!(cuMemAlloc_v2(ROW));
    cu!(cuMemcpyAtoD_v2(memory, array, ROW, ROW));
    cu!(cuMemcpyDtoA_v2(array, 0, memory, ROW));
    assert_eq!(read(array)[..WIDTH], all[WIDTH..2 * WIDTH]);
    cu!(cuMemcpyHtoA_v2(array, 0, all.as_ptr().cast(), 64));
    cu!(cuMemcpyAtoA_v2(array, ROW, array, 0, 64));
    assert_eq!(read(array)[WIDTH..WIDTH + 16], all[..16]);

    // What is not there.
    let host = back.as_mut_ptr().cast();
    let code = code!(cuMemcpyAtoH_v2(host, array, ROW * HEIGHT - 8, 12));
    assert_eq!(code, CUDA_ERROR_INVALID_VALUE);
    let code = code!(cuMemcpyHtoA_v2(array, usize::MAX - 4, host, 12));
    assert_eq!(code, CUDA_ERROR_INVALID_VALUE);
    let forged: CUarray = std::ptr::without_provenance_mut(0x1234_5678);
    assert_eq!(
        code!(cuMemcpyAtoH_v2(host, forged, 0, 12)),
        CUDA_ERROR_INVALID_HANDLE
    );
    let beyond = CUDA_MEMCPY2D {
        srcY: 2,
        ..whole(array, values.as_mut_ptr(), ROW, false)
    };
    assert_eq!(code!(cuMemcpy2D_v2(&raw const beyond)), CUDA_ERROR_INVALID_VALUE);
    cu!(cuArrayDestroy(array));
    assert_eq!(
        code!(cuMemcpyAtoH_v2(host, array, 0, 12)),
        CUDA_ERROR_INVALID_HANDLE
    );
}

fn of_array(array: CUarray) -> CUDA_RESOURCE_DESC {
    let array = CUDA_RESOURCE_DESC_v1_res_array { hArray: array };
    CUDA_RESOURCE_DESC {
        resType: CU_RESOURCE_TYPE_ARRAY,
        res: CUDA_RESOURCE_DESC_v1_res { array },
        flags: 0,
    }
}

fn linear(address: CUdeviceptr, bytes: usize) -> CUDA_RESOURCE_DESC {
    let linear = CUDA_RESOURCE_DESC_v1_res_linear {
        devPtr: address,
        format: CU_AD_FORMAT_FLOAT,
        numChannels: 1,
        sizeInBytes: bytes,
    };
    CUDA_RESOURCE_DESC {
        resType: CU_RESOURCE_TYPE_LINEAR,
        res: CUDA_RESOURCE_DESC_v1_res { linear },
        flags: 0,
    }
}

fn textures() {
    let array = an_array();
    let mut values = picture();
    let copy = whole(array, values.as_mut_ptr(), ROW, true);
    cu!(cuMemcpy2D_v2(&raw const copy));
    let text = CString::new(KERNELS).unwrap();
    let module: CUmodule = get!(cuModuleLoadData(text.as_ptr().cast()));
    let sample: CUfunction = get!(cuModuleGetFunction(module, c"sample".as_ptr()));
    let negate: CUfunction = get!(cuModuleGetFunction(module, c"negate".as_ptr()));
    let how = CUDA_TEXTURE_DESC {
        addressMode: [CU_TR_ADDRESS_MODE_CLAMP; 3],
        filterMode: CU_TR_FILTER_MODE_POINT,
        ..CUDA_TEXTURE_DESC::default()
    };
    let resource = of_array(array);
    let texture: CUtexObject = get!(cuTexObjectCreate(&raw const resource, &raw const how, null()));
    let surface: CUsurfObject = get!(cuSurfObjectCreate(&raw const resource));
    let out: CUdeviceptr = get!(cuMemAlloc_v2(4));
    let launch = |function, params: &mut [*mut c_void]| {
        let (none, params) = (null_mut(), params.as_mut_ptr());
        cu!(cuLaunchKernel(
            function,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            none,
            params,
            null_mut()
        ));
    };
    let sampled = || {
        let mut params = [
            (&raw const out).cast_mut().cast(),
            (&raw const texture).cast_mut().cast(),
        ];
        launch(sample, &mut params);
        let mut value = 0.0_f32;
        cu!(cuMemcpyDtoH_v2((&raw mut value).cast(), out, 4));
        value
    };
    assert_eq!(sampled(), (WIDTH + 3) as f32);
    launch(negate, &mut [(&raw const surface).cast_mut().cast()]);
    cu!(cuCtxSynchronize());
    assert_eq!(sampled(), -((WIDTH + 3) as f32));

    // What was said of it comes back with the program's own names.
    let back: CUDA_RESOURCE_DESC = get!(cuTexObjectGetResourceDesc(texture));
    // SAFETY: the kind says that it is an array.
    assert_eq!(unsafe { back.res.array.hArray }, array);
    let back: CUDA_TEXTURE_DESC = get!(cuTexObjectGetTextureDesc(texture));
    assert_eq!(back.addressMode, how.addressMode);
    let mut none = CUDA_RESOURCE_VIEW_DESC::default();
    let code = code!(cuTexObjectGetResourceViewDesc(&raw mut none, texture));
    assert_eq!(code, CUDA_ERROR_INVALID_VALUE, "it has none");

    // What the program does not have.
    let memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
    let mut object: CUtexObject = 0;
    let mut make = |resource: CUDA_RESOURCE_DESC| {
        code!(cuTexObjectCreate(
            &raw mut object,
            &raw const resource,
            &raw const how,
            null()
        ))
    };
    assert_eq!(make(linear(memory, 4096)), CUDA_SUCCESS);
    assert_eq!(make(linear(memory, 1 << 20)), CUDA_ERROR_INVALID_VALUE);
    let own = (&raw const values).addr() as u64;
    assert_eq!(make(linear(own, 64)), CUDA_ERROR_INVALID_VALUE);
    let forged: CUarray = std::ptr::without_provenance_mut(0x1234_5678);
    assert_eq!(make(of_array(forged)), CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(code!(cuTexObjectDestroy(0x1234_5678)), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(code!(cuTexObjectDestroy(u64::MAX)), CUDA_ERROR_INVALID_VALUE);
    cu!(cuSurfObjectDestroy(surface));
    assert_eq!(
        code!(cuSurfObjectDestroy(surface)),
        CUDA_ERROR_INVALID_VALUE,
        "once"
    );
    cu!(cuTexObjectDestroy(texture));
    let mut none = CUDA_RESOURCE_DESC::default();
    assert_eq!(
        code!(cuTexObjectGetResourceDesc(&raw mut none, texture)),
        CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
fn bytes_of_arrays_travel_in_messages() {
    alone("bytes_of_arrays_travel_in_messages", || {
        let (server, _) = connect(MESSAGE);
        start(0);
        copies();
        assert!(server.traffic().inline > 0 && server.traffic().staged == 0);
    });
}

#[test]
fn bytes_of_arrays_pass_through_shared_memory() {
    alone("bytes_of_arrays_pass_through_shared_memory", || {
        let (server, _) = connect_shared(Quota {
            area: 1 << 26,
            ..Quota::default()
        });
        start(0);
        copies();
        assert!(server.traffic().staged > 0);
    });
}

#[test]
fn kernels_read_textures_and_write_surfaces() {
    alone("kernels_read_textures_and_write_surfaces", || {
        connect(MESSAGE);
        start(0);
        textures();
    });
}

#[test]
fn textures_are_counted_and_go_with_their_context() {
    alone("textures_are_counted_and_go_with_their_context", || {
        let quota = Quota {
            objects: 8,
            message: MESSAGE,
            ..Quota::default()
        };
        common::connect_to(
            divvy_remote::server::Server::new(&common::EMULATED, quota),
            MESSAGE,
        );
        cu!(cuInit(0));
        let how = CUDA_TEXTURE_DESC::default();
        let fill = || {
            let memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
            let resource = linear(memory, 4096);
            let mut object: CUtexObject = 0;
            let mut made = Vec::new();
            loop {
                let code = code!(cuTexObjectCreate(
                    &raw mut object,
                    &raw const resource,
                    &raw const how,
                    null()
                ));
                match code {
                    CUDA_SUCCESS => made.push(object),
                    code => return (code, made),
                }
            }
        };
        let context: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let (code, made) = fill();
        assert_eq!((code, made.len()), (CUDA_ERROR_OUT_OF_MEMORY, 8));
        cu!(cuTexObjectDestroy(made[0]));
        cu!(cuCtxDestroy_v2(context));
        let _context: CUcontext = get!(cuCtxCreate_v2(0, 0));
        assert_eq!(
            code!(cuTexObjectDestroy(made[1])),
            CUDA_ERROR_INVALID_VALUE,
            "it is gone"
        );
        let (code, made) = fill();
        assert_eq!((code, made.len()), (CUDA_ERROR_OUT_OF_MEMORY, 8));
    });
}
