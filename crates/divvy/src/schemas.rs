//! The JSON schemas of what `-o json` prints, as docs/schema has them.

macro_rules! schemas {
    ($($kind:ident)*) => {
        /// Every kind of document with its schema, by name.
        pub const SCHEMAS: &[(&str, &str)] = &[$((
            stringify!($kind),
            include_str!(concat!("../../../docs/schema/", stringify!($kind), ".json")),
        )),*];
    };
}

schemas! {
    AdviceList
    AgentStatus
    CdiDeviceList
    CdiFileList
    CdiFindingList
    CdiSlice
    CheckReport
    Code
    CodeList
    ComputeList
    ConfigList
    DeviceList
    DoctorReport
    EngineConfiguration
    Environment
    Error
    Event
    HistoryList
    IsolationList
    K8sPlan
    Killed
    KernelProfile
    KitReport
    MigChanges
    MigDeviceList
    MigPlan
    MpsStatus
    NovaMistakeList
    PartitionList
    PodSliceList
    RunPlan
    SharingModeList
    Slice
    SliceList
    Topology
    TraceSummary
    Usage
    VgpuList
    VisibleDevices
    VmGroupList
    VmPlan
    VmReport
}

/// The schema of this kind.
pub fn schema(kind: &str) -> Option<&'static str> {
    let mut known = SCHEMAS.iter();
    known.find(|(name, _)| *name == kind).map(|(_, schema)| *schema)
}

/// For `divvy explain json`.
pub fn story() -> String {
    let kinds: Vec<&str> = SCHEMAS.iter().map(|(kind, _)| *kind).collect();
    format!(
        "With `-o json` (and `-o yaml`) every verb prints documents: `apiVersion`, `kind`, and the fields of that kind; \
         `divvy events` prints one Event a line. Within `divvy/v1` fields and words are added, never changed or removed: \
         read what you know and let the rest be. A failure is an Error, on stderr.\n\n\
         `divvy explain KIND` prints the JSON schema of a kind as this version has it:\n  {}",
        kinds.join("\n  ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_there_is_can_be_had() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema");
        let mut there: Vec<String> = std::fs::read_dir(folder)
            .expect("a folder")
            .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_str()?.to_owned()))
            .collect();
        there.sort();
        let mut known: Vec<&str> = SCHEMAS.iter().map(|(kind, _)| *kind).collect();
        known.sort_unstable();
        assert_eq!(there, known);
    }
}
