//! The variables of modules' images, and the sizes of arrays.

use divvy_abi::*;
use divvy_charges::arrays::{bytes, mipmap_bytes};
use divvy_charges::images::{CONTAINER, ELF, Variables, variables_in};

fn text(text: &str) -> (u64, u64) {
    let Variables { bytes, allocations } = variables_in(text.as_bytes());
    (bytes, allocations)
}

/// A section's name, flags and bytes.
type Section<'a> = (&'a str, u64, u64);

/// A cubin with these sections, and then its table of names.
fn cubin(sections: &[Section<'_>]) -> Vec<u8> {
    let mut image = vec![0; 64];
    image[..4].copy_from_slice(ELF);
    let count = sections.len() + 1;
    let mut names: Vec<u8> = vec![0];
    image[0x28..0x30].copy_from_slice(&64_u64.to_le_bytes());
    image[0x3a..0x3c].copy_from_slice(&64_u16.to_le_bytes());
    image[0x3c..0x3e].copy_from_slice(&(count as u16).to_le_bytes());
    image[0x3e..0x40].copy_from_slice(&(count as u16 - 1).to_le_bytes());
    for (name, flags, bytes) in sections {
        let mut section = [0; 64];
        section[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
        section[8..16].copy_from_slice(&flags.to_le_bytes());
        section[32..40].copy_from_slice(&bytes.to_le_bytes());
        image.extend_from_slice(&section);
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    let mut section = [0; 64];
    section[24..32].copy_from_slice(&((image.len() + 64) as u64).to_le_bytes());
    image.extend_from_slice(&section);
    image.extend_from_slice(&names);
    image
}

/// A container of images, each compressed or not.
fn container(images: &[(&[u8], u32)]) -> Vec<u8> {
    let mut all = vec![0; 16];
    all[..4].copy_from_slice(&CONTAINER.to_le_bytes());
    all[6] = 16;
    for (image, compressed) in images {
        let mut header = [0; 64];
        header[4] = 64;
        header[8..12].copy_from_slice(&(image.len() as u32).to_le_bytes());
        header[16..20].copy_from_slice(&compressed.to_le_bytes());
        all.extend_from_slice(&header);
        all.extend_from_slice(image);
    }
    all
}

#[test]
fn a_cubins_variables_are_its_allocated_sections_without_code() {
    let image = cubin(&[
        (".nv.global", 3, 1000),
        (".text", 6, 5000),
        (".debug", 0, 700),
        (".nv.constant0", 2, 20),
        (".nv.shared.k", 3, 300),
        (".nv.local.k", 3, 400),
    ]);
    let found = variables_in(&image);
    assert_eq!((found.bytes, found.allocations), (1020, u64::MAX));
    let mut odd = image.clone();
    odd[0x3a] = 63;
    assert_eq!(variables_in(&odd).bytes, 0, "not such a table");
    let huge = cubin(&[("a", 2, u64::MAX), ("b", 2, 5)]);
    assert_eq!(variables_in(&huge).bytes, u64::MAX);
}

#[test]
fn a_container_counts_for_its_largest_image() {
    let small = cubin(&[("a", 2, 10)]);
    let large = cubin(&[("a", 2, 400)]);
    let ptx = b".global .b8 a[700]; .global .b8 b[1];\0";
    let of = |images: &[(&[u8], u32)]| {
        let found = variables_in(&container(images));
        (found.bytes, found.allocations)
    };
    assert_eq!(of(&[(&small, 0), (&large, 0), (&small, 0)]), (400, u64::MAX));
    assert_eq!(of(&[(&large, 1), (&small, 0)]), (10, u64::MAX));
    assert_eq!(of(&[(ptx, 0)]), (701, 2));
    assert_eq!(of(&[(ptx, 0), (&small, 0)]), (701, u64::MAX));
    assert_eq!(of(&[(&small, 0), (ptx, 0)]), (701, u64::MAX));
    assert_eq!(of(&[]), (0, 0));
    let mut endless = container(&[(&small, 0)]);
    endless[16 + 4..16 + 12].fill(0);
    assert_eq!(variables_in(&endless).bytes, 0, "an image without length");
    let mut short = container(&[(&large, 0)]);
    short.pop();
    assert_eq!(variables_in(&short).bytes, 0, "it is cut off");
    assert_eq!(variables_in(&CONTAINER.to_le_bytes()), Variables::default());
}

#[test]
fn comments_and_headings_of_text_are_no_variables() {
    assert_eq!(text(".global .b8 a[3];"), (3, 1));
    assert_eq!(text("// .global .b8 a[3];"), (0, 0));
    assert_eq!(
        text(".global .b8 a[3]; // .global .b8 b[5];\n.global .b8 c[7];"),
        (10, 2)
    );
    assert_eq!(
        text(".global .b8 a[3]; /* .global .b8 b[5];\n */.global .b8 c[7];"),
        (10, 2)
    );
    assert_eq!(text(".global .b8 a[3]; /*"), (3, 1));
    assert_eq!(text(".global .b8 a[3]; /"), (3, 1));
    assert_eq!(text(".global /* x */ .b8 a[3];"), (3, 1));
    assert_eq!(text(".version 7.0\n.global .b8 a[3];"), (3, 1));
    assert_eq!(
        text(".target sm_80, .global\n.address_size 64\n.b8 a[3];"),
        (0, 0),
        "a heading"
    );
    assert_eq!(text(".global\n.b8 a[3];"), (3, 1));
    assert_eq!(text(".version 7.0 .global .b8 a[3];"), (3, 1), "one line");
    assert_eq!(
        text(".file 1 \".global .b8\"\n.loc 1 2 3 .global\n.b8 a[3];"),
        (0, 0)
    );
    assert_eq!(text(".global .b8 a[3];\0.global .b8 b[5];"), (3, 1));
}

#[test]
fn functions_of_text_define_no_variables() {
    assert_eq!(text(".entry k() { .global .b8 a[3]; } .global .b8 b[5];"), (5, 1));
    assert_eq!(
        text(".entry k() { { } .global .b8 a[3]; } .global .b8 b[5];"),
        (5, 1)
    );
    assert_eq!(
        text(".func (.reg .b32 r) f(.param .global .b8 x); .global .b8 b[5];"),
        (5, 1)
    );
    assert_eq!(text("} .global .b8 a[3];"), (3, 1));
    assert_eq!(text(".global .b8 a[3] = { 1, 2, 3 };"), (3, 1));
    assert_eq!(
        text(".global .b8 a[2][2] = { {1, 2}, {3, 4} }; .const .u16 c;"),
        (6, 2)
    );
    let long = format!(".entry k(){{{}}} .global .b8 a[3];", "x;".repeat(5000));
    assert_eq!(text(&long), (3, 1));
    let name = "n".repeat(4096);
    assert_eq!(
        text(&format!(".global .b8 {name}[3];")),
        (1, 1),
        "the rest is cut off"
    );
}

#[test]
fn variables_of_text_have_the_size_of_their_type() {
    assert_eq!(text(".global .v2 .f32 a;"), (8, 1));
    assert_eq!(text(".global .v4 .f32 a;"), (16, 1));
    assert_eq!(text(".global .v8 .b16 a;"), (16, 1));
    assert_eq!(text(".const .s64 a[2][0x10];"), (256, 1));
    assert_eq!(
        text(".shared .b8 a[3]; .local .b8 a[3]; .global a; .extern .const .b8 a[3];"),
        (0, 0)
    );
    assert_eq!(text(".visible .global .align 8 .u16 a[ 5 ];"), (10, 1));
    assert_eq!(text(".global .u8 a[];"), (1, 1));
}

fn array(format: CUarray_format, channels: u32, shape: [usize; 3], flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: shape[0],
        Height: shape[1],
        Depth: shape[2],
        Format: format,
        NumChannels: channels,
        Flags: flags,
    }
}

#[test]
fn an_array_has_the_size_of_its_elements() {
    let of = |format, channels| bytes(&array(format, channels, [1024, 8, 0], 0)) / 8192;
    for (format, one, four) in [
        (CU_AD_FORMAT_UNSIGNED_INT8, 1, 4),
        (CU_AD_FORMAT_SIGNED_INT8, 1, 4),
        (CU_AD_FORMAT_UNSIGNED_INT16, 2, 8),
        (CU_AD_FORMAT_HALF, 2, 8),
        (CU_AD_FORMAT_FLOAT, 4, 16),
        (CU_AD_FORMAT_UNORM_INT8X1, 1, 1),
        (CU_AD_FORMAT_SNORM_INT8X2, 2, 2),
        (CU_AD_FORMAT_UNORM_INT8X4, 4, 4),
        (CUarray_format(0x7777), 8, 8),
    ] {
        assert_eq!((of(format, 1), of(format, 4)), (one, four), "{format:?}");
        assert_eq!(of(format, 0), one);
    }
    let compressed = |format| bytes(&array(format, 4, [1024, 1024, 0], 0));
    assert_eq!(compressed(CU_AD_FORMAT_BC1_UNORM), 512 << 10);
    assert_eq!(compressed(CU_AD_FORMAT_BC4_SNORM), 512 << 10);
    assert_eq!(compressed(CU_AD_FORMAT_BC2_UNORM), 1 << 20);
    assert_eq!(compressed(CU_AD_FORMAT_BC7_UNORM_SRGB), 1 << 20);
    let bare = |flags| bytes(&array(CU_AD_FORMAT_FLOAT, 1, [1024, 8, 2], flags));
    assert_eq!(
        (bare(CUDA_ARRAY3D_SPARSE), bare(CUDA_ARRAY3D_DEFERRED_MAPPING)),
        (0, 0)
    );
    assert_eq!((bare(0), bare(CUDA_ARRAY3D_LAYERED)), (64 << 10, 64 << 10));
}

#[test]
fn a_mipmap_has_levels_of_half_the_size() {
    let of = |shape: [usize; 3], flags, levels| {
        mipmap_bytes(&array(CU_AD_FORMAT_FLOAT, 4, shape, flags), levels) / 1024
    };
    assert_eq!((of([256, 0, 0], 0, 1), of([256, 0, 0], 0, 2)), (4, 6));
    assert_eq!((of([64, 64, 0], 0, 1), of([64, 64, 0], 0, 0)), (64, 64));
    assert_eq!(of([64, 64, 0], 0, 3), 64 + 16 + 4);
    assert_eq!(of([64, 64, 4], 0, 2), 256 + 32, "the depth as well");
    assert_eq!(of([64, 64, 4], CUDA_ARRAY3D_LAYERED, 2), 256 + 64);
    assert_eq!(of([64, 64, 6], CUDA_ARRAY3D_CUBEMAP, 2), 384 + 96);
    // 64, 16, 4, 1, then one row of blocks, and what is smaller takes a unit or a row of blocks as well.
    assert_eq!(of([64, 64, 0], 0, u32::MAX), of([64, 64, 0], 0, 7));
    assert!(of([64, 64, 0], 0, 7) > of([64, 64, 0], 0, 6) || of([64, 64, 0], 0, 7) == of([64, 64, 0], 0, 6));
    assert_eq!(
        of([2, 2, 8], CUDA_ARRAY3D_LAYERED, 99),
        of([2, 2, 8], CUDA_ARRAY3D_LAYERED, 2)
    );
    assert_eq!(of([2, 2, 8], 0, 99), of([2, 2, 8], 0, 4));
}
