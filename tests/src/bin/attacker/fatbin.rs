//! An image that is small, and large once it is unpacked.

use cudarc::driver::CudaContext;
use cudarc::nvrtc::Ptx;

/// Loads an image of so many PTX files, each of so many mebibytes of spaces, and says how large this process became.
pub fn load(files: u32, mebibytes: usize) -> anyhow::Result<()> {
    let context = CudaContext::new(0)?;
    let before = peak();
    // No device runs it; the point is what is made of it until that is found out.
    let outcome = context.load_module(Ptx::from_binary(image(files, mebibytes << 20)));
    println!("{:?}", outcome.err().map(|error| error.0));
    println!("{}", peak().saturating_sub(before));
    Ok(())
}

/// The most memory that this process has had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        << 10
}

/// A fatbin container: see crates/emulator/src/image/fatbin.rs for its fields.
fn image(files: u32, bytes: usize) -> Vec<u8> {
    let payload = spaces(bytes);
    let mut rest = Vec::new();
    for file in 0..files {
        let mut header = [0; 64];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &1_u16.to_le_bytes());
        put(4, &64_u32.to_le_bytes());
        put(8, &(payload.len() as u64).to_le_bytes());
        put(16, &(payload.len() as u32).to_le_bytes());
        put(28, &(50 + file).to_le_bytes());
        put(40, &0x2000_u64.to_le_bytes());
        put(56, &(bytes as u64).to_le_bytes());
        rest.extend_from_slice(&header);
        rest.extend_from_slice(&payload);
    }
    let mut image = Vec::new();
    image.extend_from_slice(&0xba55_ed50_u32.to_le_bytes());
    image.extend_from_slice(&1_u16.to_le_bytes());
    image.extend_from_slice(&16_u16.to_le_bytes());
    image.extend_from_slice(&(rest.len() as u64).to_le_bytes());
    image.extend_from_slice(&rest);
    image
}

/// So many spaces as a block of LZ4: one, a match that repeats it, and the five last ones that end every block.
fn spaces(bytes: usize) -> Vec<u8> {
    const LAST: usize = 12;
    let repeated = bytes - 1 - LAST;
    // One literal; a match of 15 + 4 and what follows.
    let mut block = vec![0x1f, b' ', 1, 0];
    let mut more = repeated - 19;
    while more >= 255 {
        block.push(255);
        more -= 255;
    }
    block.push(more as u8);
    block.push((LAST as u8) << 4);
    block.extend_from_slice(&[b' '; LAST]);
    block
}
