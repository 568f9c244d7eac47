//! An Intel HDA controller, as far as it reaches memory by itself: it reads commands from one ring and writes answers to
//! another one.

use anyhow::ensure;

use crate::vfio::{Container, Device, Memory};

const CONTROL: usize = 0x08;
const COMMANDS: usize = 0x40;
const ANSWERS: usize = 0x50;
/// Behind a ring's base: its write and read index, its switch.
const WRITTEN: usize = 0x08;
const READ: usize = 0x0a;
const SWITCH: usize = 0x0c;
const RUN: u8 = 2;
/// Asks the first codec for its maker.
const WHO: u32 = 0x000f_0000;
/// Where the rings lie in the page.
const RING: usize = 0x800;
/// The address at which the device sees the page.
const PLACE: u64 = 0x40_0000;
const PAGE: usize = 4096;

/// Lets the device read and write memory that is mapped for it, and then memory that is not any more.
pub fn check(container: &Container, device: &Device) -> anyhow::Result<()> {
    let page = Memory::new(PAGE)?;
    container.map(&page, PLACE)?;
    device.enable()?;
    let registers = device.map(0)?;
    registers.write(CONTROL, 0_u32);
    registers.write(CONTROL, 1_u32);
    let base = u32::try_from(PLACE)?;
    registers.write(COMMANDS, base);
    registers.write(ANSWERS, base + u32::try_from(RING)?);
    // So many answers before the device waits for us.
    registers.write(ANSWERS + 0x0a, 200_u16);
    registers.write(ANSWERS + SWITCH, RUN);
    for number in 1..=2_u16 {
        page.write(4 * usize::from(number), WHO);
    }
    registers.write(COMMANDS + SWITCH, RUN);
    registers.write(COMMANDS + WRITTEN, 1_u16);
    let answer = || page.read::<u32>(RING + 8);
    for _ in 0..1000 {
        if answer() != 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    ensure!(
        answer() != 0,
        "the device wrote no answer; it read {} commands",
        registers.read::<u16>(COMMANDS + READ)
    );
    println!("dma answer {:#x}", answer());

    // What is no longer mapped is out of its reach.
    container.unmap(PLACE, PAGE)?;
    registers.write(COMMANDS + WRITTEN, 2_u16);
    std::thread::sleep(std::time::Duration::from_millis(50));
    ensure!(
        page.read::<u32>(RING + 16) == 0,
        "the device wrote to memory that is not mapped for it"
    );
    println!("dma stopped");
    Ok(())
}
