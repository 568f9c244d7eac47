//! Products by PCI id, for what neither a driver nor the kernel tells: names, memory, multiprocessors.
//!
//! From the PCI id database and the vendors' data sheets. A product that is not here is shown by its id.

/// A product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// PCI vendor and device.
    pub pci_id: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Its memory, nominal.
    pub memory_bytes: u64,
    /// Streaming multiprocessors or compute units.
    pub multiprocessors: u32,
}

const fn product(pci_id: &'static str, name: &'static str, gib: u64, multiprocessors: u32) -> Product {
    Product {
        pci_id,
        name,
        memory_bytes: gib << 30,
        multiprocessors,
    }
}

const PRODUCTS: [Product; 21] = [
    product("10de:1db6", "NVIDIA Tesla V100-PCIE-32GB", 32, 80),
    product("10de:1eb8", "NVIDIA Tesla T4", 16, 40),
    product("10de:20b0", "NVIDIA A100-SXM4-40GB", 40, 108),
    product("10de:20b1", "NVIDIA A100-PCIE-40GB", 40, 108),
    product("10de:20b2", "NVIDIA A100-SXM4-80GB", 80, 108),
    product("10de:20b5", "NVIDIA A100 80GB PCIe", 80, 108),
    product("10de:20b7", "NVIDIA A30", 24, 56),
    product("10de:2235", "NVIDIA A40", 48, 84),
    product("10de:2236", "NVIDIA A10", 24, 72),
    product("10de:2322", "NVIDIA H800 PCIe", 80, 114),
    product("10de:2324", "NVIDIA H800", 80, 132),
    product("10de:2330", "NVIDIA H100 80GB HBM3", 80, 132),
    product("10de:2331", "NVIDIA H100 PCIe", 80, 114),
    product("10de:2335", "NVIDIA H200", 141, 132),
    product("10de:2684", "NVIDIA GeForce RTX 4090", 24, 128),
    product("10de:26b9", "NVIDIA L40S", 48, 142),
    product("10de:27b8", "NVIDIA L4", 24, 58),
    product("1002:740c", "AMD Instinct MI250X", 64, 110),
    product("1002:74a1", "AMD Instinct MI300X", 192, 304),
    product("1002:74a0", "AMD Instinct MI300A", 128, 228),
    product("1002:744c", "AMD Radeon RX 7900 XTX", 24, 96),
];

/// The product of a PCI id, if it is known here.
pub fn known(pci_id: &str) -> Option<&'static Product> {
    PRODUCTS.iter().find(|product| product.pci_id == pci_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_the_kernel_does() {
        for product in PRODUCTS {
            assert!(product.pci_id.len() == 9 && product.pci_id == product.pci_id.to_lowercase());
            assert_eq!(known(product.pci_id), Some(&product), "each once");
        }
        assert_eq!(known("ffff:ffff"), None);
    }
}
