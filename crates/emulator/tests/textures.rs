//! Texture and surface objects over arrays, pitched and linear memory, read and written by kernels.

mod common;

use common::{alone, code, cu, download, function, get, launch, module, param, start};
use divvy_abi::*;
use std::ptr::{null, null_mut};

const KERNELS: &str = ".version 8.5\n.target sm_90\n.address_size 64\n\
    .visible .entry sample(.param .u64 out_p, .param .u64 object, .param .f32 step, .param .f32 y)\n{\n\
     .reg .b32 %t; .reg .f32 %f<8>; .reg .b64 %o, %out;\n\
     ld.param.u64 %out, [out_p]; ld.param.u64 %o, [object]; ld.param.f32 %f0, [step]; ld.param.f32 %f1, [y];\n\
     mov.u32 %t, %tid.x; mad.wide.u32 %out, %t, 4, %out; cvt.rn.f32.u32 %f2, %t; mul.f32 %f2, %f2, %f0;\n\
     tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%o, {%f2, %f1}]; st.global.f32 [%out], %f3; ret;\n}\n\
    .visible .entry fetch(.param .u64 out_p, .param .u64 object)\n{\n\
     .reg .b32 %t, %r<4>; .reg .b64 %o, %out;\n\
     ld.param.u64 %out, [out_p]; ld.param.u64 %o, [object];\n\
     mov.u32 %t, %tid.x; mad.wide.u32 %out, %t, 4, %out;\n\
     tex.1d.v4.u32.s32 {%r0, %r1, %r2, %r3}, [%o, {%t}]; st.global.u32 [%out], %r0; ret;\n}\n\
    .visible .entry negate(.param .u64 object)\n{\n\
     .reg .b32 %t, %x; .reg .f32 %f; .reg .b64 %o;\n\
     ld.param.u64 %o, [object]; mov.u32 %t, %tid.x; shl.b32 %x, %t, 2;\n\
     suld.b.2d.b32.trap {%f}, [%o, {%x, 1}]; neg.f32 %f, %f; sust.b.2d.b32.trap [%o, {%x, 1}], {%f}; ret;\n}\n";

const WIDTH: usize = 8;
const HEIGHT: usize = 4;

/// The texel at a place of the tests' picture.
fn texel(x: usize, y: usize) -> f32 {
    (x * x + 10 * y) as f32
}

fn picture() -> Vec<f32> {
    (0..WIDTH * HEIGHT)
        .map(|at| texel(at % WIDTH, at / WIDTH))
        .collect()
}

fn an_array(flags: u32) -> CUarray {
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR {
        Width: WIDTH,
        Height: HEIGHT,
        Depth: 0,
        Format: CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
        Flags: flags,
    };
    let array: CUarray = get!(cuArray3DCreate_v2(&raw const descriptor));
    let data = picture();
    let copy = CUDA_MEMCPY2D {
        srcMemoryType: CU_MEMORYTYPE_HOST,
        srcHost: data.as_ptr().cast(),
        srcPitch: WIDTH * 4,
        dstMemoryType: CU_MEMORYTYPE_ARRAY,
        dstArray: array,
        WidthInBytes: WIDTH * 4,
        Height: HEIGHT,
        ..CUDA_MEMCPY2D::default()
    };
    cu!(cuMemcpy2D_v2(&raw const copy));
    array
}

fn write<T: Copy>(to: CUdeviceptr, values: &[T]) {
    cu!(cuMemcpyHtoD_v2(to, values.as_ptr().cast(), size_of_val(values)));
}

fn resource(kind: CUresourcetype, res: CUDA_RESOURCE_DESC_v1_res) -> CUDA_RESOURCE_DESC {
    CUDA_RESOURCE_DESC {
        resType: kind,
        res,
        flags: 0,
    }
}

fn of_array(array: CUarray) -> CUDA_RESOURCE_DESC {
    let array = CUDA_RESOURCE_DESC_v1_res_array { hArray: array };
    resource(CU_RESOURCE_TYPE_ARRAY, CUDA_RESOURCE_DESC_v1_res { array })
}

fn linear(address: CUdeviceptr, format: CUarray_format, bytes: usize) -> CUDA_RESOURCE_DESC {
    let linear = CUDA_RESOURCE_DESC_v1_res_linear {
        devPtr: address,
        format,
        numChannels: 1,
        sizeInBytes: bytes,
    };
    resource(CU_RESOURCE_TYPE_LINEAR, CUDA_RESOURCE_DESC_v1_res { linear })
}

fn pitched(address: CUdeviceptr, pitch: usize) -> CUDA_RESOURCE_DESC {
    let plane = CUDA_RESOURCE_DESC_v1_res_pitch2D {
        devPtr: address,
        format: CU_AD_FORMAT_FLOAT,
        numChannels: 1,
        width: WIDTH,
        height: HEIGHT,
        pitchInBytes: pitch,
    };
    resource(
        CU_RESOURCE_TYPE_PITCH2D,
        CUDA_RESOURCE_DESC_v1_res { pitch2D: plane },
    )
}

fn sampling(filter: CUfilter_mode, mode: CUaddress_mode, flags: u32) -> CUDA_TEXTURE_DESC {
    CUDA_TEXTURE_DESC {
        addressMode: [mode; 3],
        filterMode: filter,
        flags,
        ..CUDA_TEXTURE_DESC::default()
    }
}

fn texture(resource: &CUDA_RESOURCE_DESC, how: &CUDA_TEXTURE_DESC) -> CUtexObject {
    get!(cuTexObjectCreate(&raw const *resource, &raw const *how, null()))
}

/// What `threads` threads sample at `y` and at multiples of `step`.
fn samples(object: CUtexObject, threads: usize, step: f32, y: f32) -> Vec<f32> {
    let code = module(KERNELS);
    let out: CUdeviceptr = get!(cuMemAlloc_v2(threads * 4));
    let mut params = [param(&out), param(&object), param(&step), param(&y)];
    cu!(cuCtxSynchronize());
    let sample = function(code, c"sample");
    assert_eq!(
        launch(sample, 1, threads as u32, null_mut(), &mut params),
        CUDA_SUCCESS
    );
    cu!(cuCtxSynchronize());
    let values = download::<f32>(out, threads);
    cu!(cuMemFree_v2(out));
    values
}

#[test]
fn kernels_sample_arrays_and_pitched_memory() {
    alone("kernels_sample_arrays_and_pitched_memory", &[], || {
        start(0);
        let array = an_array(0);
        let of_array = of_array(array);
        let nearest = sampling(CU_TR_FILTER_MODE_POINT, CU_TR_ADDRESS_MODE_CLAMP, 0);
        let object = texture(&of_array, &nearest);
        let row = |y: usize| (0..WIDTH).map(|x| texel(x, y)).collect::<Vec<f32>>();
        assert_eq!(samples(object, WIDTH, 1.0, 2.5), row(2));
        // Halfway between texels, and beyond the end; one picture after the other.
        let between = sampling(
            CU_TR_FILTER_MODE_LINEAR,
            CU_TR_ADDRESS_MODE_WRAP,
            CU_TRSF_NORMALIZED_COORDINATES,
        );
        let smooth = texture(&of_array, &between);
        let halfway = |x: usize| (texel((x + WIDTH - 1) % WIDTH, 1) + texel(x % WIDTH, 1)) / 2.0;
        let want: Vec<f32> = (0..2 * WIDTH).map(halfway).collect();
        assert_eq!(samples(smooth, 2 * WIDTH, 0.125, 1.5 / 4.0), want);
        let found: CUDA_TEXTURE_DESC = get!(cuTexObjectGetTextureDesc(smooth));
        assert_eq!(
            (found.filterMode, found.flags),
            (between.filterMode, between.flags)
        );
        let found: CUDA_RESOURCE_DESC = get!(cuTexObjectGetResourceDesc(smooth));
        assert_eq!(found.resType, CU_RESOURCE_TYPE_ARRAY);
        // The same picture in memory of the program.
        let pitch = 64;
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(pitch * HEIGHT));
        for (y, row) in picture().chunks_exact(WIDTH).enumerate() {
            write(memory + (y * pitch) as u64, row);
        }
        let plane = texture(&pitched(memory, pitch), &between);
        assert_eq!(samples(plane, 2 * WIDTH, 0.125, 1.5 / 4.0), want);
        for object in [object, smooth, plane] {
            cu!(cuTexObjectDestroy(object));
            assert_eq!(code!(cuTexObjectDestroy(object)), CUDA_ERROR_INVALID_VALUE);
        }
    });
}

#[test]
fn kernels_fetch_from_linear_memory() {
    alone("kernels_fetch_from_linear_memory", &[], || {
        start(0);
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
        write(memory, &(0..64u16).map(|n| 1000 + n).collect::<Vec<_>>());
        let whole = sampling(
            CU_TR_FILTER_MODE_POINT,
            CU_TR_ADDRESS_MODE_CLAMP,
            CU_TRSF_READ_AS_INTEGER,
        );
        let object = texture(&linear(memory, CU_AD_FORMAT_UNSIGNED_INT16, 20), &whole);
        let out: CUdeviceptr = get!(cuMemAlloc_v2(128));
        let fetch = function(module(KERNELS), c"fetch");
        let mut params = [param(&out), param(&object)];
        assert_eq!(launch(fetch, 1, 16, null_mut(), &mut params), CUDA_SUCCESS);
        cu!(cuCtxSynchronize());
        let want: Vec<u32> = (0..16).map(|n| if n < 10 { 1000 + n } else { 0 }).collect();
        assert_eq!(download::<u32>(out, 16), want);
        // The texture stands for memory of the program, which frees it: nothing is there to read.
        cu!(cuMemFree_v2(memory));
        assert_eq!(launch(fetch, 1, 16, null_mut(), &mut params), CUDA_SUCCESS);
        assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn kernels_write_surfaces() {
    alone("kernels_write_surfaces", &[], || {
        start(0);
        let array = an_array(CUDA_ARRAY3D_SURFACE_LDST);
        let resource = of_array(array);
        let object: CUsurfObject = get!(cuSurfObjectCreate(&raw const resource));
        let negate = function(module(KERNELS), c"negate");
        assert_eq!(
            launch(negate, 1, WIDTH as u32, null_mut(), &mut [param(&object)]),
            CUDA_SUCCESS
        );
        cu!(cuCtxSynchronize());
        let nearest = sampling(CU_TR_FILTER_MODE_POINT, CU_TR_ADDRESS_MODE_CLAMP, 0);
        let read = texture(&resource, &nearest);
        let want: Vec<f32> = (0..WIDTH).map(|x| -texel(x, 1)).collect();
        assert_eq!(samples(read, WIDTH, 1.0, 1.0), want);
        assert_eq!(samples(read, 1, 1.0, 2.0), [texel(0, 2)]);
        let found: CUDA_RESOURCE_DESC = get!(cuSurfObjectGetResourceDesc(object));
        assert_eq!(found.resType, CU_RESOURCE_TYPE_ARRAY);
        // An array that is gone leaves nothing behind its objects.
        cu!(cuArrayDestroy(array));
        assert_eq!(
            launch(negate, 1, 1, null_mut(), &mut [param(&object)]),
            CUDA_SUCCESS
        );
        assert_eq!(code!(cuCtxSynchronize()), CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

#[test]
fn objects_that_are_refused() {
    alone("objects_that_are_refused", &[], || {
        start(0);
        let array = an_array(0);
        let memory: CUdeviceptr = get!(cuMemAlloc_v2(4096));
        let nearest = sampling(CU_TR_FILTER_MODE_POINT, CU_TR_ADDRESS_MODE_CLAMP, 0);
        let make = |resource: CUDA_RESOURCE_DESC, how: CUDA_TEXTURE_DESC| {
            let mut object = 0;
            code!(cuTexObjectCreate(
                &raw mut object,
                &raw const resource,
                &raw const how,
                null()
            ))
        };
        let mut flagged = of_array(array);
        flagged.flags = 1;
        let mut mipmap = of_array(array);
        mipmap.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
        let float = CU_AD_FORMAT_FLOAT;
        for (what, resource, how, wanted) in [
            ("flags", flagged, nearest, CUDA_ERROR_INVALID_VALUE),
            ("a mipmap", mipmap, nearest, CUDA_ERROR_NOT_SUPPORTED),
            (
                "no array",
                of_array(null_mut()),
                nearest,
                CUDA_ERROR_INVALID_HANDLE,
            ),
            (
                "no address",
                linear(0, float, 64),
                nearest,
                CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "an odd address",
                linear(memory + 4, float, 64),
                nearest,
                CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "no texel",
                linear(memory, float, 3),
                nearest,
                CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "a short pitch",
                pitched(memory, 16),
                nearest,
                CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "an odd pitch",
                pitched(memory, 40),
                nearest,
                CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "between whole numbers",
                linear(memory, CU_AD_FORMAT_UNSIGNED_INT8, 64),
                sampling(
                    CU_TR_FILTER_MODE_LINEAR,
                    CU_TR_ADDRESS_MODE_CLAMP,
                    CU_TRSF_READ_AS_INTEGER,
                ),
                CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "no such addressing",
                of_array(array),
                sampling(CU_TR_FILTER_MODE_POINT, CUaddress_mode(9), 0),
                CUDA_ERROR_INVALID_VALUE,
            ),
            (
                "sRGB",
                of_array(array),
                sampling(CU_TR_FILTER_MODE_POINT, CU_TR_ADDRESS_MODE_CLAMP, CU_TRSF_SRGB),
                CUDA_ERROR_NOT_SUPPORTED,
            ),
        ] {
            assert_eq!(make(resource, how), wanted, "{what}");
        }
        assert_eq!(make(of_array(array), nearest), CUDA_SUCCESS);
        // A surface needs an array that was made for one.
        let mut object = 0;
        for resource in [of_array(array), linear(memory, float, 64)] {
            let refused = code!(cuSurfObjectCreate(&raw mut object, &raw const resource));
            assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);
        }
        let own: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let theirs = texture(&linear(get!(cuMemAlloc_v2(512)), float, 64), &nearest);
        cu!(cuCtxDestroy_v2(own));
        assert_eq!(code!(cuTexObjectDestroy(theirs)), CUDA_ERROR_INVALID_VALUE);
    });
}
