//! CUDA arrays and mipmaps: what they cost, what copies to and from them do, what is refused.

mod common;

use common::{alone, code, cu, download, get, memory_info, start, upload};
use divvy_abi::*;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;

fn shape(width: usize, height: usize, depth: usize, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
        Flags: flags,
    }
}

fn flat(width: usize, height: usize) -> CUarray {
    let descriptor = CUDA_ARRAY_DESCRIPTOR {
        Width: width,
        Height: height,
        Format: CU_AD_FORMAT_UNSIGNED_INT8,
        NumChannels: 1,
    };
    get!(cuArrayCreate_v2(&raw const descriptor))
}

#[test]
fn arrays_cost_the_device_and_come_back() {
    alone("arrays_cost_the_device_and_come_back", &[], || {
        start(0);
        let (free, total) = memory_info();
        let large: CUarray = get!(cuArray3DCreate_v2(&shape(4096, 1024, 0, 0)));
        assert_eq!(memory_info().0, free - 16 * MIB);
        let found: CUDA_ARRAY3D_DESCRIPTOR = get!(cuArray3DGetDescriptor_v2(large));
        assert_eq!((found.Width, found.Height, found.Depth), (4096, 1024, 0));
        let flat: CUDA_ARRAY_DESCRIPTOR = get!(cuArrayGetDescriptor_v2(large));
        assert_eq!(
            (flat.Width, flat.Height, flat.Format),
            (4096, 1024, CU_AD_FORMAT_FLOAT)
        );
        cu!(cuArrayDestroy(large));
        assert_eq!(code!(cuArrayDestroy(large)), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(memory_info().0, free);
        // 64 GiB fits an H100, a second of them does not.
        let wide = CUDA_ARRAY3D_DESCRIPTOR {
            NumChannels: 2,
            ..shape(131_072, 65_536, 0, 0)
        };
        let first: CUarray = get!(cuArray3DCreate_v2(&raw const wide));
        assert_eq!(memory_info().0, total - 65_536 * MIB);
        assert_eq!(
            code!(cuArray3DCreate_v2(&mut null_mut(), &raw const wide)),
            CUDA_ERROR_OUT_OF_MEMORY
        );
        cu!(cuArrayDestroy(first));
        assert_eq!(memory_info().0, free);
    });
}

#[test]
fn a_context_takes_its_arrays_with_it() {
    alone("a_context_takes_its_arrays_with_it", &[], || {
        start(0);
        let (free, _) = memory_info();
        let own: CUcontext = get!(cuCtxCreate_v2(0, 0));
        let array: CUarray = get!(cuArray3DCreate_v2(&shape(64, 64, 64, 0)));
        let mipmap: CUmipmappedArray = get!(cuMipmappedArrayCreate(&shape(1024, 1024, 0, 0), 3));
        assert!(memory_info().0 < free);
        cu!(cuCtxDestroy_v2(own));
        assert_eq!(memory_info().0, free);
        assert_eq!(code!(cuArrayDestroy(array)), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(code!(cuMipmappedArrayDestroy(mipmap)), CUDA_ERROR_INVALID_HANDLE);
    });
}

#[test]
fn blocks_go_in_and_come_out() {
    alone("blocks_go_in_and_come_out", &[], || {
        start(0);
        let array = flat(100, 20);
        let picture: Vec<u8> = (0..2000).map(|at| (at % 251) as u8).collect();
        let into = CUDA_MEMCPY2D {
            srcMemoryType: CU_MEMORYTYPE_HOST,
            srcHost: picture.as_ptr().cast(),
            srcPitch: 100,
            dstMemoryType: CU_MEMORYTYPE_ARRAY,
            dstArray: array,
            WidthInBytes: 100,
            Height: 20,
            ..CUDA_MEMCPY2D::default()
        };
        cu!(cuMemcpy2D_v2(&raw const into));
        let device: CUdeviceptr = get!(cuMemAlloc_v2(4096));
        let part = CUDA_MEMCPY2D {
            srcMemoryType: CU_MEMORYTYPE_ARRAY,
            srcArray: array,
            srcXInBytes: 7,
            srcY: 3,
            dstMemoryType: CU_MEMORYTYPE_DEVICE,
            dstDevice: device,
            dstPitch: 10,
            WidthInBytes: 10,
            Height: 4,
            ..CUDA_MEMCPY2D::default()
        };
        let stream: CUstream = get!(cuStreamCreate(0));
        cu!(cuMemcpy2DAsync_v2(&raw const part, stream));
        cu!(cuStreamSynchronize(stream));
        let expected: Vec<u8> = (3..7)
            .flat_map(|row| picture[row * 100 + 7..row * 100 + 17].to_vec())
            .collect();
        assert_eq!(download::<u8>(device, 40), expected);
        cu!(cuMemcpy2DUnaligned_v2(&raw const part));
        for beyond in [
            CUDA_MEMCPY2D {
                srcXInBytes: 91,
                ..part
            },
            CUDA_MEMCPY2D {
                srcXInBytes: usize::MAX,
                ..part
            },
            CUDA_MEMCPY2D { srcY: 17, ..part },
            CUDA_MEMCPY2D {
                srcY: usize::MAX,
                ..part
            },
            CUDA_MEMCPY2D {
                srcArray: device as CUarray,
                ..part
            },
            CUDA_MEMCPY2D {
                srcArray: null_mut(),
                ..part
            },
        ] {
            assert_eq!(code!(cuMemcpy2D_v2(&raw const beyond)), CUDA_ERROR_INVALID_VALUE);
        }

        // Of a volume, the middle; the destination is another volume.
        let (first, second): (CUarray, CUarray) = (
            get!(cuArray3DCreate_v2(&shape(4, 4, 4, 0))),
            get!(cuArray3DCreate_v2(&shape(2, 2, 2, 0))),
        );
        let cube: Vec<f32> = (0..64).map(|at| at as f32).collect();
        let whole = CUDA_MEMCPY3D {
            srcMemoryType: CU_MEMORYTYPE_HOST,
            srcHost: cube.as_ptr().cast(),
            srcPitch: 16,
            srcHeight: 4,
            dstMemoryType: CU_MEMORYTYPE_ARRAY,
            dstArray: first,
            WidthInBytes: 16,
            Height: 4,
            Depth: 4,
            ..CUDA_MEMCPY3D::default()
        };
        cu!(cuMemcpy3D_v2(&raw const whole));
        let middle = CUDA_MEMCPY3D {
            srcMemoryType: CU_MEMORYTYPE_ARRAY,
            srcArray: first,
            srcXInBytes: 4,
            srcY: 1,
            srcZ: 1,
            dstMemoryType: CU_MEMORYTYPE_ARRAY,
            dstArray: second,
            WidthInBytes: 8,
            Height: 2,
            Depth: 2,
            ..CUDA_MEMCPY3D::default()
        };
        cu!(cuMemcpy3D_v2(&raw const middle));
        let mut out = [0f32; 8];
        let back = CUDA_MEMCPY3D {
            srcMemoryType: CU_MEMORYTYPE_ARRAY,
            srcArray: second,
            dstMemoryType: CU_MEMORYTYPE_HOST,
            dstHost: out.as_mut_ptr().cast(),
            dstPitch: 8,
            dstHeight: 2,
            WidthInBytes: 8,
            Height: 2,
            Depth: 2,
            ..CUDA_MEMCPY3D::default()
        };
        cu!(cuMemcpy3DAsync_v2(&raw const back, stream));
        cu!(cuStreamSynchronize(stream));
        assert_eq!(out, [21.0, 22.0, 25.0, 26.0, 37.0, 38.0, 41.0, 42.0]);
        let part_of_an_element = CUDA_MEMCPY3D {
            srcXInBytes: 2,
            ..middle
        };
        assert_eq!(
            code!(cuMemcpy3D_v2(&raw const part_of_an_element)),
            CUDA_ERROR_INVALID_VALUE
        );
        let too_deep = CUDA_MEMCPY3D { srcZ: 3, ..middle };
        assert_eq!(
            code!(cuMemcpy3D_v2(&raw const too_deep)),
            CUDA_ERROR_INVALID_VALUE
        );
        let a_level = CUDA_MEMCPY3D { srcLOD: 1, ..middle };
        assert_eq!(code!(cuMemcpy3D_v2(&raw const a_level)), CUDA_ERROR_INVALID_VALUE);
    });
}

#[test]
fn an_array_as_one_run_of_bytes() {
    alone("an_array_as_one_run_of_bytes", &[], || {
        start(0);
        // Rows of 100 bytes lie 128 bytes apart: runs have to be taken apart.
        let (array, other) = (flat(100, 8), flat(30, 40));
        let run: Vec<u8> = (0..800).map(|at| (at % 241) as u8).collect();
        cu!(cuMemcpyHtoA_v2(array, 0, run.as_ptr().cast(), 800));
        let mut back = vec![0u8; 555];
        cu!(cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), array, 55, 555));
        assert_eq!(back, run[55..610]);
        cu!(cuMemcpyAtoA_v2(other, 17, array, 55, 555));
        back.fill(0);
        cu!(cuMemcpyAtoHAsync_v2(
            back.as_mut_ptr().cast(),
            other,
            17,
            555,
            null_mut()
        ));
        cu!(cuCtxSynchronize());
        assert_eq!(back, run[55..610]);
        let device = upload(&[9u8; 800]);
        cu!(cuMemcpyDtoA_v2(array, 250, device, 100));
        cu!(cuMemcpyAtoD_v2(device, array, 200, 200));
        let bytes = download::<u8>(device, 200);
        assert_eq!(bytes[..50], run[200..250]);
        assert!(bytes[50..150].iter().all(|&byte| byte == 9));
        assert_eq!(bytes[150..], run[350..400]);
        cu!(cuMemcpyHtoAAsync_v2(
            array,
            0,
            run.as_ptr().cast(),
            100,
            null_mut()
        ));
        cu!(cuMemcpyAtoD_v2(device, array, 800, 0));
        for (offset, bytes) in [
            (0, 801),
            (800, 1),
            (usize::MAX, 1),
            (1, usize::MAX),
            (usize::MAX, usize::MAX),
        ] {
            assert_eq!(
                code!(cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), array, offset, bytes)),
                CUDA_ERROR_INVALID_VALUE
            );
        }
        let volume: CUarray = get!(cuArray3DCreate_v2(&shape(4, 4, 4, 0)));
        assert_eq!(
            code!(cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), volume, 0, 4)),
            CUDA_ERROR_INVALID_VALUE,
            "a volume is no run"
        );
        assert_eq!(
            code!(cuMemcpyAtoD_v2(1 << 40, array, 0, 4)),
            CUDA_ERROR_INVALID_VALUE
        );
    });
}

#[test]
fn mipmaps_have_levels() {
    alone("mipmaps_have_levels", &[], || {
        start(0);
        let (free, _) = memory_info();
        let mipmap: CUmipmappedArray = get!(cuMipmappedArrayCreate(&shape(1024, 512, 0, 0), 100));
        let cost = free - memory_info().0;
        assert!(
            (2 * MIB..=4 * MIB).contains(&cost),
            "4/3 of the first level: {cost}"
        );
        let level = |level: u32| -> CUarray { get!(cuMipmappedArrayGetLevel(mipmap, level)) };
        let third: CUDA_ARRAY3D_DESCRIPTOR = get!(cuArray3DGetDescriptor_v2(level(2)));
        assert_eq!((third.Width, third.Height), (256, 128));
        let last: CUDA_ARRAY3D_DESCRIPTOR = get!(cuArray3DGetDescriptor_v2(level(10)));
        assert_eq!((last.Width, last.Height), (1, 1));
        assert_eq!(level(2), level(2));
        assert_eq!(
            code!(cuMipmappedArrayGetLevel(&mut null_mut(), mipmap, 11)),
            CUDA_ERROR_INVALID_VALUE
        );
        // Levels do not overlap.
        let values = [1.5f32, 2.5];
        let copy = |array, from: &f32| {
            let copy = CUDA_MEMCPY2D {
                srcMemoryType: CU_MEMORYTYPE_HOST,
                srcHost: std::ptr::from_ref(from).cast(),
                dstMemoryType: CU_MEMORYTYPE_ARRAY,
                dstArray: array,
                WidthInBytes: 4,
                Height: 1,
                ..CUDA_MEMCPY2D::default()
            };
            cu!(cuMemcpy2D_v2(&raw const copy));
        };
        copy(level(9), &values[0]);
        copy(level(10), &values[1]);
        let mut out = 0f32;
        cu!(cuMemcpyAtoH_v2((&raw mut out).cast(), level(9), 0, 4));
        assert_eq!(out, 1.5);
        let first = level(0);
        assert_eq!(
            code!(cuArrayDestroy(first)),
            CUDA_ERROR_INVALID_HANDLE,
            "it goes with its mipmap"
        );
        cu!(cuMipmappedArrayDestroy(mipmap));
        assert_eq!(code!(cuMipmappedArrayDestroy(mipmap)), CUDA_ERROR_INVALID_HANDLE);
        assert_eq!(
            code!(cuArray3DGetDescriptor_v2(&mut shape(0, 0, 0, 0), first)),
            CUDA_ERROR_INVALID_HANDLE
        );
        assert_eq!(memory_info().0, free);
    });
}

#[test]
fn what_no_array_can_be() {
    alone("what_no_array_can_be", &[], || {
        start(0);
        let (free, _) = memory_info();
        let make = |descriptor: CUDA_ARRAY3D_DESCRIPTOR| {
            code!(cuArray3DCreate_v2(&mut null_mut(), &raw const descriptor))
        };
        let good = shape(8, 8, 0, 0);
        for bad in [
            CUDA_ARRAY3D_DESCRIPTOR { Width: 0, ..good },
            CUDA_ARRAY3D_DESCRIPTOR {
                Width: usize::MAX,
                ..good
            },
            CUDA_ARRAY3D_DESCRIPTOR {
                NumChannels: 3,
                ..good
            },
            CUDA_ARRAY3D_DESCRIPTOR {
                NumChannels: 0,
                ..good
            },
            CUDA_ARRAY3D_DESCRIPTOR {
                Format: CUarray_format(7),
                ..good
            },
            CUDA_ARRAY3D_DESCRIPTOR {
                Flags: 1 << 30,
                ..good
            },
        ] {
            assert_eq!(make(bad), CUDA_ERROR_INVALID_VALUE);
        }
        assert_eq!(
            make(CUDA_ARRAY3D_DESCRIPTOR {
                Format: CU_AD_FORMAT_NV12,
                ..good
            }),
            CUDA_ERROR_NOT_SUPPORTED
        );
        assert_eq!(
            code!(cuArray3DCreate_v2(null_mut(), &raw const good)),
            CUDA_ERROR_INVALID_VALUE
        );
        assert_eq!(
            code!(cuArray3DCreate_v2(&mut null_mut(), std::ptr::null())),
            CUDA_ERROR_INVALID_VALUE
        );
        for bogus in [null_mut(), 3 as CUarray, usize::MAX as CUarray] {
            assert_eq!(code!(cuArrayDestroy(bogus)), CUDA_ERROR_INVALID_HANDLE);
            assert_eq!(
                code!(cuMipmappedArrayDestroy(bogus.cast())),
                CUDA_ERROR_INVALID_HANDLE
            );
        }
        assert_eq!(memory_info().0, free, "refusals cost nothing");
        // Memory that the program binds later: none yet, and nothing to copy.
        let later: CUarray = get!(cuArray3DCreate_v2(&shape(
            64,
            64,
            0,
            CUDA_ARRAY3D_DEFERRED_MAPPING
        )));
        assert_eq!(memory_info().0, free);
        let needs: CUDA_ARRAY_MEMORY_REQUIREMENTS = get!(cuArrayGetMemoryRequirements(later, 0));
        assert_eq!(needs.size, 64 * 64 * 4);
        assert_eq!(
            code!(cuMemcpyAtoH_v2([0u8; 4].as_mut_ptr().cast(), later, 0, 4)),
            CUDA_ERROR_INVALID_VALUE
        );
        let now: CUarray = get!(cuArray3DCreate_v2(&raw const good));
        assert_eq!(
            code!(cuArrayGetMemoryRequirements(
                &mut CUDA_ARRAY_MEMORY_REQUIREMENTS::default(),
                now,
                0
            )),
            CUDA_ERROR_INVALID_VALUE
        );
    });
}
