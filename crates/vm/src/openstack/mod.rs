//! GPUs of a host for OpenStack: what Nova's files say, which commands follow, and what is wrong with files there are.
//!
//! - [`conf`]: `nova.conf` for compute hosts and for the API; [`vgpu`]: the same for virtual GPUs.
//! - [`commands`]: traits, flavors and a first server, in order.
//! - [`check`]: reads files, and names the mistakes.

pub mod check;
pub mod commands;
pub mod conf;
pub mod ini;
pub mod vgpu;

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};

use crate::function::{DEVICES, Function, Kind};

/// GPUs of one product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    /// `10de`.
    pub vendor: u16,
    /// `26b9`.
    pub device: u16,
    /// The alias by which flavors ask for it.
    pub alias: String,
    /// Its trait: `CUSTOM_GPU_10DE_26B9`.
    pub trait_name: String,
    /// Whether it has virtual functions, so that Nova takes it for a physical function.
    pub is_sriov: bool,
    /// The addresses of those there are.
    pub addresses: Vec<String>,
}

impl Product {
    /// What Nova calls a whole device of this product. One with virtual functions is `type-PF` even where it has none of them
    /// on: with `type-PCI` no server ever finds a host.
    #[must_use]
    pub fn device_type(&self) -> &'static str {
        match self.is_sriov {
            true => "type-PF",
            false => "type-PCI",
        }
    }
}

/// The GPUs of a host by product, in the order of their addresses; all of them, or those that are named.
///
/// # Errors
/// [`Code::UnknownDevice`] where there is none.
pub fn products(root: &Sysroot, only: &[String]) -> Result<Vec<Product>, Fault> {
    let mut products: Vec<Product> = Vec::new();
    let gpus = Function::all(root).into_iter();
    let gpus = gpus.filter(|function| function.kind() == Kind::Gpu && function.vendor != 0x8086);
    for gpu in gpus.filter(|gpu| only.is_empty() || only.contains(&gpu.address)) {
        let folder = format!("{DEVICES}/{}", gpu.address);
        if root.has(&format!("{folder}/physfn")) {
            continue;
        }
        let virtual_functions: u32 = root.number(&format!("{folder}/sriov_totalvfs")).unwrap_or(0);
        let known = products
            .iter_mut()
            .find(|known| (known.vendor, known.device) == (gpu.vendor, gpu.device));
        match known {
            Some(known) => {
                known.is_sriov |= virtual_functions > 0;
                known.addresses.push(gpu.address);
            }
            None => products.push(Product {
                vendor: gpu.vendor,
                device: gpu.device,
                alias: format!("gpu-{:04x}-{:04x}", gpu.vendor, gpu.device),
                trait_name: format!("CUSTOM_GPU_{:04X}_{:04X}", gpu.vendor, gpu.device),
                is_sriov: virtual_functions > 0,
                addresses: vec![gpu.address],
            }),
        }
    }
    if let Some(missing) = only
        .iter()
        .find(|address| !products.iter().any(|product| product.addresses.contains(address)))
    {
        return Err(Fault::new(
            Code::UnknownDevice,
            format!("{missing} is no GPU of this machine"),
        )
        .hint("`divvy vm status` lists them"));
    }
    match products.is_empty() {
        true => Err(
            Fault::new(Code::UnknownDevice, "this machine has no GPU to give away")
                .hint("run it on the compute host, or name a captured one with --sysroot"),
        ),
        false => Ok(products),
    }
}
