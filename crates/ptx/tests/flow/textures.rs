//! Textures and surfaces: samples against the formulas of CUDA's programming guide, and elements byte for byte.

use divvy_ptx::{Addressing, Channel, Fault, Image, Texture};

use crate::support::{Buffer, Loaded};

const ADDRESSINGS: [Addressing; 4] = [
    Addressing::Wrap,
    Addressing::Clamp,
    Addressing::Mirror,
    Addressing::Border,
];
const BORDER: f32 = -7.0;

fn image(buffer: &Buffer, extent: [u32; 3], channel: Channel, channels: u32) -> Image {
    let row = u64::from(extent[0] * channel.bytes() * channels);
    // Rows and slices that are longer than what they hold.
    let pitch = row.next_multiple_of(16) + 16;
    Image {
        address: buffer.address(),
        pitch,
        slice: pitch * u64::from(extent[1] + 1),
        extent,
        channel,
        channels,
    }
}

fn bytes(image: &Image) -> usize {
    (image.slice * u64::from(image.extent[2])) as usize
}

/// A buffer with the image's texels: `value` of x, y, z and the channel.
fn picture(
    extent: [u32; 3],
    channel: Channel,
    channels: u32,
    value: impl Fn([u32; 3], u32) -> u32,
) -> (Buffer, Image) {
    let plan = image(&Buffer::zeroed(1), extent, channel, channels);
    let mut data = vec![0xee; bytes(&plan)];
    let size = channel.bytes() as usize;
    for z in 0..extent[2] {
        for y in 0..extent[1] {
            for x in 0..extent[0] {
                for n in 0..channels {
                    let at = u64::from(z) * plan.slice + u64::from(y) * plan.pitch;
                    let at = at as usize + (x * channels + n) as usize * size;
                    data[at..at + size].copy_from_slice(&value([x, y, z], n).to_le_bytes()[..size]);
                }
            }
        }
    }
    let buffer = Buffer::of_bytes(&data);
    let image = image(&buffer, extent, channel, channels);
    (buffer, image)
}

fn texture(image: Image) -> Texture {
    Texture {
        image,
        addressing: [Addressing::Clamp; 3],
        linear: false,
        normalised: false,
        as_float: true,
        border: [BORDER; 4],
        of_memory: false,
    }
}

const OBJECT: u64 = 0x7e57;

/// Runs `instruction` in 32 threads; `%c0` to `%c3` are the thread's words of the input, `%f0` to `%f3` the same as
/// floats, `%o` the object. Gives back `%r0` to `%r3` of each.
fn run(
    instruction: &str,
    inputs: &[[u32; 4]],
    texture: Option<Texture>,
    surface: Option<Image>,
) -> Result<Vec<[u32; 4]>, Fault> {
    let text = format!(
        ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out_p, .param .u64 in_p, .param .u64 o_p)\n{{\n\
         .reg .b32 %r<4>, %c<4>, %t; .reg .f32 %f<4>; .reg .b64 %o, %in, %out, %w; .reg .b16 %h;\n\
         ld.param.u64 %out, [out_p]; ld.param.u64 %in, [in_p]; ld.param.u64 %o, [o_p];\n\
         mov.u32 %t, %tid.x; mad.wide.u32 %in, %t, 16, %in; mad.wide.u32 %out, %t, 16, %out;\n\
         ld.global.v4.u32 {{%c0, %c1, %c2, %c3}}, [%in]; ld.global.v4.f32 {{%f0, %f1, %f2, %f3}}, [%in];\n\
         mov.u32 %r0, 0; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0;\n\
         {instruction}\n st.global.v4.u32 [%out], {{%r0, %r1, %r2, %r3}};\n ret;\n}}\n"
    );
    let words: Vec<u32> = inputs.iter().flatten().copied().collect();
    let (input, out) = (Buffer::of_u32(&words), Buffer::zeroed(words.len() * 4));
    let loaded = Loaded::new(&text);
    let mut launch = loaded
        .kernel("k")
        .block(inputs.len() as u32)
        .buffer(&out)
        .buffer(&input)
        .u64(OBJECT);
    if let Some(texture) = texture {
        launch = launch.texture(OBJECT, texture);
    }
    if let Some(surface) = surface {
        launch = launch.surface(OBJECT, surface);
    }
    launch.end()?;
    Ok(out
        .u32s()
        .chunks_exact(4)
        .map(|four| four.try_into().unwrap())
        .collect())
}

/// The texel of a coordinate along one dimension, by the guide: x is first brought inside, then cut.
fn inside(addressing: Addressing, normalised: bool, at: i64, n: u32) -> Option<u32> {
    let n = i64::from(n);
    Some(match addressing {
        Addressing::Border if at < 0 || at >= n => return None,
        Addressing::Wrap if normalised => at - n * at.div_euclid(n),
        Addressing::Mirror if normalised && at.div_euclid(n) % 2 != 0 => n - 1 - at.rem_euclid(n),
        Addressing::Mirror if normalised => at.rem_euclid(n),
        _ => at.max(0).min(n - 1),
    } as u32)
}

/// Coordinates around an image of 8 by 4 by 4, on steps that eight bits hold.
fn coordinates(normalised: bool) -> Vec<[f32; 3]> {
    (0..96)
        .map(|n: i32| {
            let texels = [
                (n * 37 % 191 - 40) as f32 / 8.0,
                (n * 11 % 67 - 12) as f32 / 8.0,
                (n * 7 % 61 - 10) as f32 / 16.0,
            ];
            if normalised {
                [texels[0] / 8.0, texels[1] / 4.0, texels[2] / 4.0]
            } else {
                texels
            }
        })
        .collect()
}

#[test]
fn samples_of_every_kind() {
    let extent = [8, 4, 4];
    let value = |[x, y, z]: [u32; 3]| (x * x + 16 * y + 100 * z) as f32;
    let (buffer, image) = picture(extent, Channel::F32, 1, |at, _| value(at).to_bits());
    for (dimensions, name, list) in [
        (1, "1d", "{%f0}"),
        (2, "2d", "{%f0, %f1}"),
        (3, "3d", "{%f0, %f1, %f2, %f2}"),
    ] {
        for addressing in ADDRESSINGS {
            for (linear, normalised) in [(false, false), (false, true), (true, false), (true, true)] {
                let texture = Texture {
                    addressing: [addressing; 3],
                    linear,
                    normalised,
                    ..texture(image)
                };
                let at = coordinates(normalised);
                let inputs: Vec<[u32; 4]> = at
                    .iter()
                    .map(|[x, y, z]| [x.to_bits(), y.to_bits(), z.to_bits(), 0])
                    .collect();
                let text = format!("tex.{name}.v4.f32.f32 {{%r0, %r1, %r2, %r3}}, [%o, {list}];");
                let got = run(&text, &inputs, Some(texture), None).unwrap();
                for (at, got) in at.iter().zip(&got) {
                    let texels: Vec<f64> = (0..dimensions)
                        .map(|n| f64::from(at[n]) * if normalised { f64::from(extent[n]) } else { 1.0 })
                        .collect();
                    let fetch = |index: &[i64]| {
                        let mut place = [0; 3];
                        for (n, index) in index.iter().enumerate() {
                            match inside(addressing, normalised, *index, extent[n]) {
                                Some(inside) => place[n] = inside,
                                None => return f64::from(BORDER),
                            }
                        }
                        f64::from(value(place))
                    };
                    let want = if linear {
                        (0..1usize << dimensions)
                            .map(|corner| {
                                let mut index = Vec::new();
                                let mut weight = 1.0;
                                for (n, x) in texels.iter().enumerate() {
                                    let alpha = (x - 0.5) - (x - 0.5).floor();
                                    let upper = corner >> n & 1 == 1;
                                    weight *= if upper { alpha } else { 1.0 - alpha };
                                    index.push((x - 0.5).floor() as i64 + i64::from(upper));
                                }
                                weight * fetch(&index)
                            })
                            .sum()
                    } else {
                        fetch(&texels.iter().map(|x| x.floor() as i64).collect::<Vec<_>>())
                    };
                    let red = f64::from(f32::from_bits(got[0]));
                    assert!(
                        (red - want).abs() < 1e-3,
                        "{text} {texture:?} at {at:?}: {red} for {want}"
                    );
                }
            }
        }
    }
    drop(buffer);
}

/// A place between two texels counts in steps of 1/256.
#[test]
fn eight_bits_between_texels() {
    let (_buffer, image) = picture([2, 1, 1], Channel::F32, 1, |[x, ..], _| (x as f32).to_bits());
    let texture = Texture {
        linear: true,
        ..texture(image)
    };
    let at: Vec<f32> = (0..32).map(|n| 0.5 + n as f32 / 1024.0).collect();
    let inputs: Vec<[u32; 4]> = at.iter().map(|x| [x.to_bits(), 0, 0, 0]).collect();
    let got = run(
        "tex.1d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%o, {%f0}];",
        &inputs,
        Some(texture),
        None,
    )
    .unwrap();
    for (n, got) in got.iter().enumerate() {
        let steps = f32::from_bits(got[0]) * 256.0;
        assert!(
            steps.fract() == 0.0 && (steps - n as f32 / 4.0).abs() <= 0.5,
            "{n}: {steps}"
        );
    }
}

/// Channels of every type, as floats and as they are; those that are not there.
#[test]
fn channels() {
    let float = |x: f32| x.to_bits();
    for (channel, bits, as_float, want) in [
        (Channel::U8, 51, true, float(0.2)),
        (Channel::S8, 0x80, true, float(-1.0)),
        (Channel::S8, 127, true, float(1.0)),
        (Channel::U16, 0xffff, true, float(1.0)),
        (Channel::S16, 0x8001, true, float(-1.0)),
        (Channel::F16, 0x3e00, true, float(1.5)),
        (Channel::F32, float(2.5), true, float(2.5)),
        (Channel::U8, 200, false, 200),
        (Channel::S8, 0x80, false, -128i32 as u32),
        (Channel::U16, 0xffff, false, 0xffff),
        (Channel::S16, 0x8000, false, -32768i32 as u32),
        (Channel::U32, 0xdead_beef, true, 0xdead_beef),
        (Channel::S32, 0xdead_beef, false, 0xdead_beef),
    ] {
        for channels in [1, 2, 4] {
            let (_buffer, image) = picture([4, 2, 1], channel, channels, |[x, y, _], _| {
                if (x, y) == (3, 1) { bits } else { 0 }
            });
            let texture = Texture {
                as_float,
                ..texture(image)
            };
            let ty = if as_float { "f32" } else { "u32" };
            let text = format!("tex.2d.v4.{ty}.s32 {{%r0, %r1, %r2, %r3}}, [%o, {{%c0, %c1}}];");
            let got = run(&text, &[[3, 1, 0, 0]], Some(texture), None).unwrap()[0];
            let is_bits = matches!(channel, Channel::U32 | Channel::S32) || !as_float;
            let one = if is_bits { 1 } else { float(1.0) };
            let mut expected = [0, 0, 0, one];
            expected[..channels as usize].fill(want);
            assert_eq!(got, expected, "{channel:?} {channels} {as_float}");
        }
    }
}

#[test]
fn layers_gathers_and_queries() {
    let (_buffer, image) = picture([8, 4, 3], Channel::F32, 2, |[x, y, z], n| {
        ((x + 10 * y + 100 * z) as f32 + 1000.0 * n as f32).to_bits()
    });
    let texture = texture(image);
    let at = |layer: u32, x: f32, y: f32| [layer, x.to_bits(), y.to_bits(), 0];
    let floats = |four: [u32; 4]| four.map(f32::from_bits);
    let inputs = [at(0, 3.5, 2.5), at(2, 3.5, 2.5), at(9, 7.9, -1.0)];
    let text = "tex.a2d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%o, {%c0, %f1, %f2, %f2}];";
    let got = run(text, &inputs, Some(texture), None).unwrap();
    assert_eq!(
        got.iter().map(|four| floats(*four)[0]).collect::<Vec<_>>(),
        [23.0, 223.0, 207.0]
    );
    let text = "tex.a1d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%o, {%c0, %f1}];";
    let got = run(text, &inputs, Some(texture), None).unwrap();
    assert_eq!(
        got.iter().map(|four| floats(*four)[1]).collect::<Vec<_>>(),
        [1003.0, 1203.0, 1207.0]
    );
    // The level of detail and derivatives change nothing where there is one level.
    let text = "tex.level.2d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%o, {%f1, %f2}], %f3;";
    assert_eq!(
        floats(run(text, &inputs, Some(texture), None).unwrap()[0])[0],
        23.0
    );
    let text = "tex.grad.2d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%o, {%f1, %f2}], {%f3, %f3}, {%f3, %f3};";
    assert_eq!(
        floats(run(text, &inputs, Some(texture), None).unwrap()[0])[0],
        23.0
    );
    // Between (2, 1), (3, 1), (2, 2) and (3, 2): counted from the lower left corner.
    for (channel, more) in [("r", 0.0), ("g", 1000.0)] {
        let text = format!("tld4.{channel}.2d.v4.f32.f32 {{%r0, %r1, %r2, %r3}}, [%o, {{%f1, %f2}}];");
        let got = floats(run(&text, &[at(0, 3.2, 2.1)], Some(texture), None).unwrap()[0]);
        assert_eq!(got, [22.0, 23.0, 13.0, 12.0].map(|v: f32| v + more), "{text}");
    }
    let text = "txq.width.b32 %r0, [%o]; txq.height.b32 %r1, [%o]; txq.depth.b32 %r2, [%o];";
    assert_eq!(
        run(text, &inputs[..1], Some(texture), None).unwrap()[0],
        [8, 4, 3, 0]
    );
    let text = "suq.width.b32 %r0, [%o]; suq.height.b32 %r1, [%o];";
    assert_eq!(
        run(text, &inputs[..1], None, Some(image)).unwrap()[0],
        [8, 4, 0, 0]
    );
    // Memory that is no array has zeros around it.
    let memory = Texture {
        of_memory: true,
        ..texture
    };
    let text = "tex.1d.v4.f32.s32 {%r0, %r1, %r2, %r3}, [%o, {%c0}];";
    let got = run(
        text,
        &[[7, 0, 0, 0], [8, 0, 0, 0], [u32::MAX, 0, 0, 0]],
        Some(memory),
        None,
    )
    .unwrap();
    assert_eq!(
        got.iter().map(|four| floats(*four)[0]).collect::<Vec<_>>(),
        [7.0, 0.0, 0.0]
    );
}

/// Elements of every size go where they belong, in planes, layers and volumes.
#[test]
fn surfaces_are_read_and_written() {
    for (kind, vector, width, list) in [
        ("b32", "", 4, "{%r0}"),
        ("b32", ".v2", 8, "{%r0, %r1}"),
        ("b32", ".v4", 16, "{%r0, %r1, %r2, %r3}"),
    ] {
        for (geometry, coordinates) in [
            ("2d", "{%c0, %c1}"),
            ("3d", "{%c0, %c1, %c2, %c2}"),
            ("a2d", "{%c2, %c0, %c1, %c1}"),
        ] {
            let (buffer, image) = picture([8, 4, 2], Channel::U32, 4, |[x, y, z], n| {
                x + 10 * y + 100 * z + 1000 * n
            });
            let z = if geometry == "2d" { 0 } else { 1 };
            let text = format!(
                "suld.b.{geometry}{vector}.{kind}.trap {list}, [%o, {coordinates}];\n\
                 add.u32 %c0, %c0, {width}; sust.b.{geometry}{vector}.{kind}.trap [%o, {coordinates}], {list};"
            );
            let got = run(&text, &[[32, 3, z, 0]], None, Some(image)).unwrap()[0];
            let texel = |n: u32| 2 + 30 + 100 * z + 1000 * n;
            let count = width as usize / 4;
            let want: Vec<u32> = (0..4)
                .map(|n| if (n as usize) < count { texel(n) } else { 0 })
                .collect();
            assert_eq!(got.to_vec(), want, "{text}");
            let at = (u64::from(z) * image.slice + 3 * image.pitch) as usize / 4 + 8 + count;
            assert_eq!(buffer.u32s()[at..at + count], want[..count], "{text}");
        }
    }
    let (buffer, image) = picture([32, 2, 1], Channel::U8, 1, |[x, y, _], _| x + 100 * y);
    let text = "suld.b.2d.b8.trap {%h}, [%o, {%c0, %c1}]; cvt.u32.u16 %r0, %h; sust.b.2d.b16.trap [%o, {%c0, 0}], {%h};\n\
                suld.b.1d.b64.trap {%w}, [%o, {24}]; cvt.u32.u64 %r1, %w;";
    let got = run(text, &[[6, 1, 0, 0]], None, Some(image)).unwrap()[0];
    assert_eq!(got, [106, 0x1b1a_1918, 0, 0]);
    assert_eq!(buffer.bytes()[5..9], [5, 106, 0, 8]);
}

#[test]
fn outside_a_surface() {
    let (buffer, image) = picture([8, 4, 1], Channel::U32, 1, |[x, y, _], _| x + 10 * y);
    let outside = [
        [32, 0, 0, 0],
        [u32::MAX - 3, 1, 0, 0],
        [0, 4, 0, 0],
        [28, 3, 0, 0],
    ];
    let load = |mode: &str| format!("suld.b.2d.b32.{mode} {{%r0}}, [%o, {{%c0, %c1}}];");
    let first = |words: Vec<[u32; 4]>| words.iter().map(|four| four[0]).collect::<Vec<_>>();
    assert_eq!(
        first(run(&load("zero"), &outside, None, Some(image)).unwrap()),
        [0, 0, 0, 37]
    );
    assert_eq!(
        first(run(&load("clamp"), &outside, None, Some(image)).unwrap()),
        [7, 10, 30, 37]
    );
    for at in &outside[..3] {
        let end = run(&load("trap"), &[*at], None, Some(image));
        assert!(matches!(end, Err(Fault::IllegalAddress { .. })), "{end:?}");
    }
    let end = run(&load("zero"), &[[2, 0, 0, 0]], None, Some(image));
    assert!(matches!(end, Err(Fault::MisalignedAddress { .. })), "{end:?}");
    let before = buffer.bytes();
    run(
        "sust.b.2d.b32.zero [%o, {%c0, %c1}], {%c1};",
        &outside[..3],
        None,
        Some(image),
    )
    .unwrap();
    assert_eq!(buffer.bytes(), before);
}

/// An object that the address space does not know is an illegal address; a texture is no surface.
#[test]
fn objects_that_are_not_there() {
    let (_buffer, image) = picture([8, 4, 1], Channel::F32, 1, |_, _| 0);
    for text in [
        "tex.2d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%o, {%f0, %f1}];",
        "txq.width.b32 %r0, [%o];",
    ] {
        let end = run(text, &[[0; 4]], None, Some(image));
        assert!(
            matches!(end, Err(Fault::IllegalAddress { .. })),
            "{text}: {end:?}"
        );
    }
    let end = run(
        "suld.b.2d.b32.zero {%r0}, [%o, {%c0, %c1}];",
        &[[0; 4]],
        Some(texture(image)),
        None,
    );
    assert!(matches!(end, Err(Fault::IllegalAddress { .. })), "{end:?}");
}
