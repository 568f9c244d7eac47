//! What QEMU is told of the shared memory and of the control channel.

use crate::PORT;

/// Where QEMU finds the other end of the control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// A descriptor that it has from its start.
    Descriptor(i32),
    /// A socket at this path, which listens.
    Path(String),
    /// A socket with this abstract name, which listens.
    Abstract(String),
}

/// QEMU's arguments, for memory of so many bytes at this path.
#[must_use]
pub fn arguments(memory: &str, bytes: u64, control: &Control) -> Vec<String> {
    // A comma ends a value, unless it stands twice.
    let value = |text: &str| text.replace(',', ",,");
    let control = match control {
        Control::Descriptor(number) => format!("fd={number}"),
        Control::Path(path) => format!("path={}", value(path)),
        Control::Abstract(name) => format!("abstract=on,tight=on,path={}", value(name)),
    };
    [
        "-object".to_owned(),
        format!(
            "memory-backend-file,id=divvy-memory,share=on,size={bytes},mem-path={}",
            value(memory)
        ),
        "-device".to_owned(),
        "ivshmem-plain,memdev=divvy-memory".to_owned(),
        "-device".to_owned(),
        "virtio-serial-pci,id=divvy-serial".to_owned(),
        "-chardev".to_owned(),
        format!("socket,id=divvy-control,{control}"),
        "-device".to_owned(),
        format!("virtserialport,bus=divvy-serial.0,chardev=divvy-control,name={PORT}"),
    ]
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_path_is_no_end() {
        let words = arguments("/proc/7/fd/3", 1 << 30, &Control::Path("/run/a,b".to_owned()));
        assert!(
            words[1].contains("size=1073741824,mem-path=/proc/7/fd/3"),
            "{words:?}"
        );
        assert_eq!(words[7], "socket,id=divvy-control,path=/run/a,,b");
    }
}
