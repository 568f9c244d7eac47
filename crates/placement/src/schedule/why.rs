//! Reasons for which a pod has no place.

/// Why a pod has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Why {
    /// No node that would take it has its devices free.
    Devices,
    /// No node that it may go to has as much left of extended resources, or of other things that nodes have by name.
    Resources,
    /// No node that it may go to has the processors, the memory or the pods left.
    Node,
    /// Its author chose the node: no scheduler allocates its claims.
    Pinned,
}
