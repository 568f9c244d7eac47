//! Takes a device by VFIO, as QEMU does, and says line by line what the kernel answered.
//!
//! `vfio-probe GROUP GPU [SOUND]`: the group's number, and the addresses of its functions. The GPU's first BAR is mapped and
//! written. The sound function, an Intel HDA controller, reads a command from mapped memory and writes its answer there:
//! that is a device's own access to memory, through the IOMMU.

mod hda;
mod vfio;

use anyhow::{Context, ensure};

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [group, gpu, rest @ ..] = words.as_slice() else {
        anyhow::bail!("vfio-probe GROUP GPU [SOUND]");
    };
    let container = vfio::Container::new()?;
    let group = vfio::Group::open(group)?;
    let viable = group.is_viable()?;
    println!("viable {viable}");
    if let Err(error) = group.join(&container) {
        println!("container refused {}", error.raw_os_error().unwrap_or(0));
        return Ok(());
    }
    ensure!(viable, "a group that is not viable joined a container");
    container.choose_iommu().context("no IOMMU of type 1")?;
    println!("iommu type1v2");
    let device = group.device(gpu)?;
    let bar = device.map(0).context("the first BAR cannot be mapped")?;
    bar.write(0x1000, 0xd1_77_u32);
    ensure!(
        bar.read::<u32>(0x1000) == 0xd177,
        "the BAR does not keep what is written"
    );
    println!("bar mapped {} bytes", bar.length());
    if let Some(sound) = rest.first() {
        hda::check(&container, &group.device(sound)?)?;
    }
    Ok(())
}
