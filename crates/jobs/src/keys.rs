//! Words of slurm.conf and gres.conf that are no settings: misspelt ones, with which Slurm's daemons do not start.
//!
//! The names are those of Slurm 20.02 to 26.05, from the tables in its `read_config.c` and `gres.c`.

use crate::configuration::Finding;
use crate::include::Conf;

/// What stands by itself, and what begins a line about a node or the like.
const SETTINGS: &str = "\
    AccountingStorageBackupHost AccountingStorageEnforce AccountingStorageExternalHost AccountingStorageHost \
    AccountingStorageLoc AccountingStorageParameters AccountingStoragePass AccountingStoragePort AccountingStorageTRES \
    AccountingStorageType AccountingStorageUser AccountingStoreFlags AccountingStoreJobComment AcctGatherEnergyType \
    AcctGatherFilesystemType AcctGatherInfinibandType AcctGatherInterconnectType AcctGatherNodeFreq \
    AcctGatherProfileType AllowSpecResourcesUsage AuthAltParameters AuthAltTypes AuthInfo AuthType BackupAddr \
    BackupController BatchStartTimeout BcastExclude BcastParameters BurstBufferParameters BurstBufferType CacheGroups \
    CertgenParameters CertgenType CertmgrParameters CertmgrType CheckpointType ChosLoc CliFilterParameters \
    CliFilterPlugins ClusterName CommunicationParameters CompleteWait ControlAddr ControlMachine CoreSpecPlugin \
    CpuFreqDef CpuFreqGovernors CredType CryptoType DataParserParameters DebugFlags DefaultStorageHost \
    DefaultStorageLoc DefaultStoragePass DefaultStoragePort DefaultStorageType DefaultStorageUser DefCPUPerGPU \
    DefMemPerCPU DefMemPerGPU DefMemPerNode DependencyParameters DisableRootJobs DownNodes EioTimeout EnforcePartLimits \
    Epilog EpilogMsgTime EpilogSlurmctld EpilogTimeout ExtSensorsFreq ExtSensorsType FairShareDampeningFactor \
    FastSchedule FederationParameters FirstJobId FrontendName GetEnvTimeout GpuFreqDef GresTypes GroupUpdateForce \
    GroupUpdateTime HashPlugin HealthCheckInterval HealthCheckNodeState HealthCheckProgram HealthCheckTimeout \
    HttpParserType InactiveLimit InteractiveStepOptions JobAcctGatherFrequency JobAcctGatherParams JobAcctGatherType \
    JobCheckpointDir JobCompHost JobCompLoc JobCompParams JobCompPass JobCompPassScript JobCompPort JobCompType \
    JobCompUser JobContainerType JobCredentialPrivateKey JobCredentialPublicCertificate JobFileAppend JobRequeue \
    JobSubmitPlugins KeepAliveTime KillOnBadExit KillWait LaunchParameters LaunchType Layouts LicenseParameters \
    Licenses LogTimeFormat MailDomain MailProg MaxArraySize MaxBatchRequeue MaxDBDMsgs MaxJobCount MaxJobId \
    MaxMemPerCPU MaxMemPerNode MaxNodeCount MaxStepCount MaxTasksPerNode MCSParameters MCSPlugin MemLimitEnforce \
    MessageTimeout MetricsAuthUsers MetricsParameters MetricsType MinJobAge MpiDefault MpiParams MsgAggregationParams \
    NamespaceType NodeFeaturesPlugins NodeName NodeSet OverTimeLimit PartitionName PluginDir PlugStackConfig \
    PowerAction PowerParameters PowerPlugin PreemptExemptTime PreemptMode PreemptParameters PreemptType PrEpParameters \
    PrEpPlugins PriorityCalcPeriod PriorityDecayHalfLife PriorityFavorSmall PriorityFlags PriorityMaxAge \
    PriorityParameters PrioritySiteFactorParameters PrioritySiteFactorPlugin PriorityType PriorityUsageResetPeriod \
    PriorityWeightAge PriorityWeightAssoc PriorityWeightFairshare PriorityWeightJobSize PriorityWeightPartition \
    PriorityWeightQOS PriorityWeightTRES PrivateData ProctrackType Prolog PrologEpilogTimeout PrologFlags \
    PrologSlurmctld PrologTimeout PropagatePrioProcess PropagateResourceLimits PropagateResourceLimitsExcept \
    RebootProgram ReconfigFlags RequeueExit RequeueExitHold ResumeFailProgram ResumeProgram ResumeRate ResumeTimeout \
    ResvEpilog ResvOverRun ResvProlog ReturnToService RoutePlugin SallocDefaultCommand SbcastParameters SchedulerAuth \
    SchedulerParameters SchedulerPort SchedulerRootFilter SchedulerTimeSlice SchedulerType ScronParameters SelectType \
    SelectTypeParameters SlurmctldAddr SlurmctldDebug SlurmctldHost SlurmctldHttpAuthParameters SlurmctldLogFile \
    SlurmctldParameters SlurmctldPidFile SlurmctldPlugstack SlurmctldPort SlurmctldPrimaryOffProg \
    SlurmctldPrimaryOnProg SlurmctldSyslogDebug SlurmctldTimeout SlurmdDebug SlurmdHttpAuthParameters SlurmdLogFile \
    SlurmdParameters SlurmdPidFile SlurmdPort SlurmdSpoolDir SlurmdSyslogDebug SlurmdTimeout SlurmdUser \
    SlurmSchedLogFile SlurmSchedLogLevel SlurmUser SrunEpilog SrunPortRange SrunProlog StateSaveLocation \
    SuspendExcNodes SuspendExcParts SuspendExcStates SuspendProgram SuspendRate SuspendTime SuspendTimeout \
    SwitchParameters SwitchType TaskEpilog TaskPlugin TaskPluginParam TaskProlog TCPTimeout TLSParameters TLSType TmpFS \
    TopologyParam TopologyPlugin TrackWCKey TreeWidth UnkillableStepProgram UnkillableStepTimeout UrlParserType UsePAM \
    VSizeFactor WaitTime X11Parameters";

/// Of a line that begins with `NodeName`.
const OF_NODES: &str = "\
    BcastAddr Boards CoreSpecCount CoresPerSocket CpuBind CPUs CPUSpecList Feature Features Gres GresConf MemSpecLimit \
    NodeAddr NodeHostname Parameters Port Procs RealMemory Reason RestrictedCoresPerGPU Sockets SocketsPerBoard State \
    SuspendTime ThreadsPerCore TmpDisk Topology TRESWeights Weight";

/// Of one that begins with `PartitionName`.
const OF_PARTITIONS: &str = "\
    AllocNodes AllowAccounts AllowGroups AllowQos Alternate CpuBind Default DefaultTime DefCPUPerGPU DefMemPerCPU \
    DefMemPerGPU DefMemPerNode DenyAccounts DenyQos DisableRootJobs Exclusive ExclusiveTopo ExclusiveUser GraceTime \
    Hidden LLN MaxCPUsPerNode MaxCPUsPerSocket MaxMemPerCPU MaxMemPerNode MaxNodes MaxTime MinNodes Nodes OverSubscribe \
    OverTimeLimit PowerDownOnIdle PreemptMode Priority PriorityJobFactor PriorityTier QOS ReqResv ResumeTimeout \
    RootOnly SelectTypeParameters Shared State SuspendTime SuspendTimeout Topology TRESBillingWeights";

/// Of one that begins with `FrontendName`.
const OF_FRONTENDS: &str = "\
    AllowGroups AllowUsers DenyGroups DenyUsers FrontendAddr Port Reason State";

/// Of every line of gres.conf.
const OF_GRES: &str = "AutoDetect Cores Count CPUs File Files Flags Links MultipleFiles Name NodeName Type";

/// The lines with names of their own, by the word that begins them.
const LINES: [(&str, &str); 6] = [
    ("NodeName", OF_NODES),
    ("PartitionName", OF_PARTITIONS),
    ("FrontendName", OF_FRONTENDS),
    ("DownNodes", "Reason State"),
    ("NodeSet", "Feature Nodes"),
    ("PowerAction", "Location Program"),
];

/// So many are told of each file: where there are more, it is another file.
const MOST: usize = 50;
/// No name is longer.
const LONGEST: usize = 64;

/// The lines of slurm.conf with words that Slurm does not know.
#[must_use]
pub fn of_slurm(conf: &Conf) -> Vec<Finding> {
    of(conf, |begins| {
        let own = LINES.iter().find(|(name, _)| name.eq_ignore_ascii_case(begins));
        own.map_or((0, SETTINGS), |(_, names)| (1, names))
    })
}

/// Those of gres.conf.
#[must_use]
pub fn of_gres(conf: &Conf) -> Vec<Finding> {
    of(conf, |_| (0, OF_GRES))
}

/// `known` says for the first word of a line how many of its words are known by that, and the names of the others.
fn of(conf: &Conf, known: impl Fn(&str) -> (usize, &'static str)) -> Vec<Finding> {
    let mut found = Vec::new();
    for line in lines(conf) {
        let (skipped, names) = known(line.keys.first().map_or("", String::as_str));
        let unknown = line.keys.iter().skip(skipped);
        found.extend(
            unknown
                .filter_map(|key| judge(&line.place, key, names))
                .take(MOST),
        );
        found.extend(line.rest());
        if found.len() >= MOST {
            break;
        }
    }
    found.truncate(MOST);
    found
}

fn judge(place: &str, key: &str, known: &str) -> Option<Finding> {
    let names = || known.split_whitespace();
    if names().any(|name| name.eq_ignore_ascii_case(key)) {
        return None;
    }
    let near = names()
        .filter(|_| key.len() <= LONGEST)
        .map(|name| (distance(name, key), name))
        .filter(|(steps, name)| *steps <= 2 && steps * 3 <= name.len())
        .min();
    let key = shown(key);
    Some(match near {
        Some((_, name)) => Finding {
            is_error: true,
            text: format!(
                "{place}: `{key}` is no setting there, and Slurm does not start with it: write `{name}`"
            ),
        },
        // A version of Slurm to come may know it.
        None => Finding {
            is_error: false,
            text: format!(
                "{place}: `{key}` is no setting there in Slurm 20.02 to 26.05, which do not start with it: remove it, or look \
                 at slurm.conf(5) of yours"
            ),
        },
    })
}

/// The begin of a text, as a terminal may have it: Slurm's files may be another user's.
fn shown(text: &str) -> String {
    let begin: String = text.chars().take(LONGEST).collect();
    let quoted = format!("{begin:?}");
    quoted.trim_start_matches('"').trim_end_matches('"').to_owned()
}

/// A line as Slurm reads it: without its comment, joined with the next one where it ends in a backslash.
struct Whole {
    place: String,
    /// The words before each `=`.
    keys: Vec<String>,
    /// What is no `KEY=VALUE`.
    left: String,
}

impl Whole {
    fn rest(&self) -> Option<Finding> {
        (!self.left.is_empty()).then(|| Finding {
            is_error: true,
            text: format!(
                "{}: `{}` is no KEY=VALUE, and Slurm does not start with it: put the value behind a `=`, and quotes round one \
                 with blanks",
                self.place,
                shown(&self.left)
            ),
        })
    }
}

fn lines(conf: &Conf) -> Vec<Whole> {
    let mut all = Vec::new();
    let mut begun: Option<(String, String)> = None;
    for line in &conf.lines {
        let text = without_comment(&line.text);
        let (place, mut whole) = begun.take().unwrap_or_else(|| (line.place(), String::new()));
        let ends = text.trim_end();
        let backslashes = ends.len() - ends.trim_end_matches('\\').len();
        if backslashes % 2 == 1 {
            whole.push_str(&ends[..ends.len() - 1]);
            begun = Some((place, whole));
            continue;
        }
        whole.push_str(text);
        all.push((place, whole));
    }
    all.extend(begun);
    let parsed = all.into_iter().map(|(place, text)| {
        let (keys, left) = keys(&text);
        Whole { place, keys, left }
    });
    parsed.collect()
}

fn without_comment(line: &str) -> &str {
    let mut is_literal = false;
    for (at, character) in line.char_indices() {
        if character == '#' && !is_literal {
            return line.get(..at).unwrap_or_default();
        }
        is_literal = character == '\\' && !is_literal;
    }
    line
}

/// The words before each `=` of a line, and what is left of it: `A = 1 B+="x y"` has two.
fn keys(line: &str) -> (Vec<String>, String) {
    let mut found = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let is_in_key = |character: char| character.is_ascii_alphanumeric() || "_.".contains(character);
        let behind = rest.trim_start_matches(is_in_key);
        let key = &rest[..rest.len() - behind.len()];
        let behind = behind.trim_start();
        // Slurm adds to, takes from, multiplies and divides a value so.
        let behind = behind.strip_prefix(['-', '*', '+', '/']).unwrap_or(behind);
        let value = behind.strip_prefix('=').map(str::trim_start);
        let Some(value) = value.filter(|value| !key.is_empty() && !value.is_empty()) else {
            return (found, rest.to_owned());
        };
        let quoted = value
            .strip_prefix('"')
            .and_then(|inner| inner.split_once('"'))
            .filter(|(_, after)| after.is_empty() || after.starts_with(char::is_whitespace));
        let after = match quoted {
            Some((_, after)) => after,
            None => value
                .split_once(char::is_whitespace)
                .map_or("", |(_, after)| after),
        };
        found.push(key.to_owned());
        rest = after.trim_start();
    }
    (found, String::new())
}

/// How many letters are put in, left out, changed, or exchanged with the next one, in any case.
fn distance(one: &str, other: &str) -> usize {
    let letters = |text: &str| text.to_ascii_lowercase().into_bytes();
    let (one, other) = (letters(one), letters(other));
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for (at, letter) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (to, wanted) in other.iter().enumerate() {
            let changed = rows[at][to] + usize::from(letter != wanted);
            let mut least = changed.min(rows[at][to + 1] + 1).min(row[to] + 1);
            if at > 0 && to > 0 && *letter == other[to - 1] && one[at - 1] == *wanted {
                least = least.min(rows[at - 1][to - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(found: &[Finding]) -> Vec<(bool, &str)> {
        found
            .iter()
            .map(|finding| (finding.is_error, finding.text.as_str()))
            .collect()
    }

    #[test]
    fn a_misspelt_word_is_named_with_its_line() {
        let text = "ClusterName=a\n# Prolg=/x\nPrologFlgas=Alloc # x\nNodeName=n1 CPUs=4 \\\n  Grse=gpu:1\nWhatIsThis=1\n\
                    prolog /opt/prolog\n";
        let found = of_slurm(&Conf::plain("slurm.conf", text));
        let said = said(&found);
        assert_eq!(said.len(), 4, "{said:?}");
        for ((is_error, text), (wanted_error, begins, ends)) in said.iter().zip([
            (true, "slurm.conf line 3: `PrologFlgas`", "write `PrologFlags`"),
            (true, "slurm.conf line 4: `Grse`", "write `Gres`"),
            (false, "slurm.conf line 6: `WhatIsThis`", "slurm.conf(5) of yours"),
            (true, "slurm.conf line 7: `prolog /opt/prolog`", "with blanks"),
        ]) {
            assert_eq!(*is_error, wanted_error, "{text}");
            assert!(text.starts_with(begins) && text.ends_with(ends), "{text}");
        }
    }

    #[test]
    fn what_slurm_takes_is_no_mistake() {
        let text = "clustername = a  SLURMCTLDHOST=n0(10.0.0.1)\nLaunchParameters+=use_interactive_step\n\
                    MailProg=\"/usr/bin/mail -s x=y\"\nNodeName=n[1-2] CPUs=4 Gres=gpu:1 Reason=\"a \\# b\" # c\n\
                    PartitionName=all Nodes=ALL Default=YES MaxTime=1:00\nDownNodes=n2 State=DOWN Reason=x\n\
                    NodeSet=s Feature=f\nPowerAction=off Program=/bin/off\n\n  \nPrologFlags=Alloc\\\n";
        assert_eq!(of_slurm(&Conf::plain("slurm.conf", text)), Vec::new());
        // A hash begins a comment in quotes too.
        let found = of_slurm(&Conf::plain(
            "slurm.conf",
            "MailProg=\"a # b\"\nPartitionName=all Reason=\"a b\n",
        ));
        assert_eq!(found.len(), 2, "{found:?}");
        let gres = "AutoDetect=off\nNodeName=n1 Name=gpu Type=a File=/dev/nvidia[0-3] Cores=0-7 Links=-1,0\nName=shard Count=8 Flags=one_sharing\n";
        assert_eq!(of_gres(&Conf::plain("gres.conf", gres)), Vec::new());
        let found = of_gres(&Conf::plain("gres.conf", "Name=gpu Fiel=/dev/nvidia0\n"));
        assert!(
            found[0].text.contains("gres.conf line 1: `Fiel`") && found[0].text.ends_with("write `File`")
        );
    }

    #[test]
    fn a_long_file_of_another_kind_is_told_of_in_short() {
        let long = "x".repeat(1 << 20);
        let text = format!(
            "{long}=1\n{}{}\u{1b}[2J{long}\n",
            "What=1\n".repeat(30),
            "who=1 ".repeat(1000)
        );
        let found = of_slurm(&Conf::plain("slurm.conf", &text));
        assert_eq!(found.len(), MOST);
        assert!(found.iter().all(|finding| finding.text.len() < 400));
        let control = of_gres(&Conf::plain("gres.conf", "Name=gpu \u{1b}[2J\n"));
        assert!(control[0].text.contains("\\u{1b}[2J"), "{control:?}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_ends(text in "[A-Za-z =\"#\\\\\n\u{e4}+-]{0,200}") {
            let conf = Conf::plain("slurm.conf", &text);
            proptest::prop_assert!(of_slurm(&conf).len() + of_gres(&conf).len() <= 2 * MOST);
        }
    }

    #[test]
    fn letters_that_change_places_are_one_step() {
        for (one, other, steps) in [
            ("Gres", "Grse", 1),
            ("Prolog", "prolog", 0),
            ("Prolog", "Prlog", 1),
            ("Prolog", "Epilog", 3),
            ("", "abc", 3),
        ] {
            assert_eq!(distance(one, other), steps, "{one} {other}");
        }
    }
}
