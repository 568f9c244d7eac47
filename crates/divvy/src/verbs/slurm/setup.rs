//! `divvy slurm setup`: what Slurm's files have to say, put there and taken away, and the mistakes in them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::builder::NonEmptyStringValueParser;
use divvy_jobs::configuration::{Finding, PROGRAMS, SWEEP, Wanted, WantedDevice, check};
use divvy_jobs::include::Conf;
use divvy_jobs::{Edited, File, Node, NodeDevice, apply, has_whole_blocks, keys, undo};
use divvy_model::{Code, DeviceKind, DeviceRecord, Fault};

use super::files::{self, expanded, folder, remove, rewrite, text, write};
use super::node;
use super::plugin::Plugin;
use crate::context::Context;
use crate::output;

/// Flags of `divvy slurm setup`.
#[derive(Debug, clap::Args)]
#[command(before_help = "Examples:
  divvy slurm setup
  divvy slurm setup --shards 80 --apply
  divvy slurm setup --conf-dir /opt/slurm/etc --node gpu7
  divvy slurm setup --undo")]
pub struct Args {
    /// Put the lines, the programs and the node's file in place
    #[arg(long, conflicts_with = "undo")]
    apply: bool,
    /// Take all of it away again
    #[arg(long)]
    undo: bool,
    /// Shards of each device [default: one for each GiB of its memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65_535))]
    shards: Option<u64>,
    /// The node's name in slurm.conf [default: this host's, to the first dot]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    node: Option<String>,
    /// The folder of slurm.conf and gres.conf [default: that of SLURM_CONF, or /etc/slurm]
    #[arg(long, value_name = "DIR")]
    conf_dir: Option<PathBuf>,
    /// The device files that gres.conf names, in the devices' order: for emulated devices and MIG instances
    #[arg(long, value_name = "PATHS", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    files: Vec<String>,
}

/// Slurm's files and Divvy's.
struct Places {
    slurm: PathBuf,
    gres: PathBuf,
    programs: PathBuf,
    node_file: PathBuf,
    /// As the programs name it: with `%n` for the node, where it was given so.
    node_files: PathBuf,
}

/// Prints, puts in place or takes away.
///
/// # Errors
/// Files that cannot be read or written, and configurations that have to be edited by hand.
pub fn run(args: &Args, node_file: &Path, context: &Context) -> Result<u8, Fault> {
    // Slurm takes no program by a path from where it happens to run.
    let folder = absolute(&args.conf_dir.clone().unwrap_or_else(conf_dir))?;
    let node_file = &absolute(node_file)?;
    let name = args.node.clone().unwrap_or_else(host_name);
    let places = Places {
        slurm: folder.join("slurm.conf"),
        gres: folder.join("gres.conf"),
        programs: folder.join("divvy"),
        node_file: node::file_of(node_file, &name)?,
        node_files: node_file.into(),
    };
    if args.undo {
        node::require_root("setup --undo")?;
        return take_away(&places);
    }
    let devices = devices(context)?;
    let mut node = new_node(args, &places, &devices, context)?;
    let wanted = wanted(args, &places, &node, &devices)?;
    for (device, known) in node.devices.iter_mut().zip(&wanted.devices) {
        device.file = Some(known.file.clone());
    }
    let (slurm, gres) = (text(&places.slurm, true)?, text(&places.gres, false)?);
    let (all_slurm, all_gres) = (expanded(&places.slurm, &slurm)?, expanded(&places.gres, &gres)?);
    let edit = || {
        let file = |own, all| File { own, all };
        apply(file(&slurm, &all_slurm), file(&gres, &all_gres), &wanted)
    };
    let plugin = Plugin::new(&places.slurm, &all_slurm.text(), &places.programs);
    if args.apply {
        node::require_root("setup --apply")?;
        let edited = edit().map_err(by_hand)?;
        put(&places, &edited, &node, &plugin)?;
        output::print(&format!(
            "wrote {}, {}, {} and {}\nrestart slurmctld and slurmd, then try: srun --gres=shard:1 env\n",
            places.slurm.display(),
            places.gres.display(),
            places.programs.display(),
            places.node_file.display()
        ))?;
        let slurm = expanded(&places.slurm, &edited.slurm)?;
        let found = mistakes(&slurm, &expanded(&places.gres, &edited.gres)?, &wanted);
        return report(found, plugin.check()?, None);
    }
    let node_problem = node_problem(&places, &node);
    match edit() {
        Ok(edited) => show(&places, &edited, &node, &plugin)?,
        Err(words) => output::print(&format!("{words}\n"))?,
    }
    let found = mistakes(&all_slurm, &all_gres, &wanted);
    report(found, plugin.check()?, node_problem)
}

fn mistakes(slurm: &Conf, gres: &Conf, wanted: &Wanted) -> Vec<Finding> {
    let mut found = check(&slurm.text(), gres, wanted);
    found.extend(keys::of_slurm(slurm));
    found.extend(keys::of_gres(gres));
    found
}

fn by_hand(words: String) -> Fault {
    Fault::new(Code::Config, words).hint("edit that line, then `divvy slurm setup --apply` does the rest")
}

fn absolute(path: &Path) -> Result<PathBuf, Fault> {
    std::path::absolute(path).map_err(|error| {
        Fault::new(Code::Usage, format!("`{}` leads nowhere", path.display())).because(&error)
    })
}

/// This host's name, to the first dot.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

fn conf_dir() -> PathBuf {
    let named = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    let folder = named.and_then(|path| path.parent().map(Path::to_path_buf));
    folder.unwrap_or_else(|| "/etc/slurm".into())
}

/// The devices that are not divided further, as the agent or this machine shows them.
fn devices(context: &Context) -> Result<Vec<DeviceRecord>, Fault> {
    let mut devices = match context.agent_if_any() {
        Some(agent) => agent.devices()?.body.items,
        None => context.inventory()?.devices,
    };
    devices.retain(|device| !device.is_divided());
    if devices.is_empty() {
        return Err(
            Fault::new(Code::NoDevice, "this node has no device that Slurm could count")
                .hint("`divvy devices` and `divvy doctor` say more"),
        );
    }
    Ok(devices)
}

/// The node's file as it is to be: what an administrator chose in the present one stays.
fn new_node(
    args: &Args,
    places: &Places,
    devices: &[DeviceRecord],
    context: &Context,
) -> Result<Node, Fault> {
    let before = match node::is_there(&places.node_file) {
        true => node::read(&places.node_file)?,
        false => Node {
            agent_timeout_s: 10,
            ..Node::default()
        },
    };
    let shards = |device: &DeviceRecord| {
        let former = before.devices.iter().find(|former| former.uuid == device.uuid);
        let gib = (device.memory_usable_bytes().0 >> 30).max(1);
        args.shards.or(former.map(|former| former.shards)).unwrap_or(gib)
    };
    let run = context.peek();
    let is_usual = run.path() == divvy_agent::system_run_dir();
    Ok(Node {
        run_dir: before
            .run_dir
            .clone()
            .or_else(|| (!is_usual).then(|| run.path().display().to_string())),
        devices: devices
            .iter()
            .map(|device| NodeDevice {
                uuid: device.uuid.clone(),
                memory_bytes: device.memory_usable_bytes(),
                shards: shards(device),
                file: before
                    .devices
                    .iter()
                    .find(|former| former.uuid == device.uuid)
                    .and_then(|former| former.file.clone()),
            })
            .collect(),
        ..before.clone()
    })
}

fn wanted(args: &Args, places: &Places, node: &Node, devices: &[DeviceRecord]) -> Result<Wanted, Fault> {
    if !args.files.is_empty() && args.files.len() != devices.len() {
        return Err(Fault::new(
            Code::Usage,
            format!(
                "the number of files in --files is {}, and that of this node's devices {}",
                args.files.len(),
                devices.len()
            ),
        )
        .hint("`divvy devices` lists them"));
    }
    let former = |at: usize| node.devices.get(at).and_then(|device| device.file.clone());
    let file = |(at, device): (usize, &DeviceRecord)| match args.files.get(at).cloned().or_else(|| former(at))
    {
        Some(file) => Ok(file),
        None => file_of(at, device),
    };
    let files = devices
        .iter()
        .enumerate()
        .map(file)
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Wanted {
        node: args.node.clone().unwrap_or_else(host_name),
        folder: places.programs.display().to_string(),
        devices: devices
            .iter()
            .zip(&node.devices)
            .zip(files)
            .map(|((device, known), file)| WantedDevice {
                name: format!("{} ({})", device.name, device.uuid),
                file,
                memory_bytes: known.memory_bytes.0,
                shards: known.shards,
            })
            .collect(),
        agent_timeout_s: node.agent_timeout_s,
        comment: node.comment,
    })
}

/// The file by which gres.conf names a device. Slurm looks whether it is there.
fn file_of(at: usize, device: &DeviceRecord) -> Result<String, Fault> {
    /// An emulated device has no node: Slurm only counts these.
    const STANDING: [&str; 5] = [
        "/dev/zero",
        "/dev/null",
        "/dev/full",
        "/dev/random",
        "/dev/urandom",
    ];
    let by_hand = |what: &str| {
        Fault::new(
            Code::Usage,
            format!("{} is {what}, whose device file is not known here", device.uuid),
        )
        .hint("name all devices' files: --files /dev/nvidia0,/dev/nvidia-caps/nvidia-cap21")
    };
    match device.kind {
        DeviceKind::Emulated => STANDING
            .get(at)
            .map(|file| (*file).to_owned())
            .ok_or_else(|| by_hand("one of many emulated devices")),
        DeviceKind::Mig => Err(by_hand("a MIG instance")),
        DeviceKind::Partition => Err(by_hand("a partition")),
        DeviceKind::Gpu => Ok(minor_of(&device.pci_address).map_or_else(
            || format!("/dev/nvidia{}", device.index),
            |minor| format!("/dev/nvidia{minor}"),
        )),
    }
}

/// The number of a device's node, as NVIDIA's kernel module tells.
fn minor_of(pci_address: &str) -> Option<u32> {
    let path = format!(
        "/proc/driver/nvidia/gpus/{}/information",
        pci_address.to_ascii_lowercase()
    );
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
    line.trim().parse().ok()
}

/// What a node's file lacks.
fn node_problem(places: &Places, node: &Node) -> Option<String> {
    let shown = places.node_file.display();
    match node::is_there(&places.node_file).then(|| node::read(&places.node_file)) {
        None => Some(format!(
            "there is no {shown}: the prolog does not know the node's devices"
        )),
        Some(Err(fault)) => Some(fault.to_string()),
        Some(Ok(there)) if !is_same(&there.devices, &node.devices) => Some(format!(
            "{shown} names other devices, memory or shards than this node has"
        )),
        Some(Ok(_)) => None,
    }
}

/// Whether both name the same devices, by what a prolog reads.
fn is_same(there: &[NodeDevice], node: &[NodeDevice]) -> bool {
    let known = |device: &NodeDevice| (device.uuid.clone(), device.memory_bytes, device.shards);
    there.iter().map(known).eq(node.iter().map(known))
}

/// Prints the mistakes; the exit status.
fn report(mut found: Vec<Finding>, more: Vec<Finding>, node_problem: Option<String>) -> Result<u8, Fault> {
    found.extend(more);
    let mut text = String::new();
    let errors = found
        .iter()
        .filter(|finding| finding.is_error)
        .map(|finding| finding.text.clone());
    let errors: Vec<String> = node_problem.into_iter().chain(errors).collect();
    for error in &errors {
        text.push_str(&format!("error    {error}\n"));
    }
    for finding in found.iter().filter(|finding| !finding.is_error) {
        text.push_str(&format!("warning  {}\n", finding.text));
    }
    if text.is_empty() {
        text.push_str("no mistakes found\n");
    }
    output::print(&text)?;
    Ok(u8::from(!errors.is_empty()))
}

/// Prints what `--apply` would write.
fn show(places: &Places, edited: &Edited, node: &Node, plugin: &Plugin) -> Result<(), Fault> {
    let block = |text: &str| {
        let lines = text.lines().skip_while(|line| !line.starts_with("# BEGIN divvy"));
        lines
            .filter(|line| !line.starts_with("# "))
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    let mut shown = format!(
        "# {}\n{}\n# {}\n{}\n{}\n# {}\n{}\n",
        places.slurm.display(),
        block(&edited.slurm),
        places.gres.display(),
        block(&edited.gres),
        plugin.show(),
        places.node_file.display(),
        node.write()?
    );
    for (name, script) in scripts(places, edited)? {
        shown.push_str(&format!("# {}/{name}\n{script}\n", places.programs.display()));
    }
    output::print(&shown)
}

/// The programs that slurmd runs, by name: each calls what was there before, then Divvy.
fn scripts(places: &Places, edited: &Edited) -> Result<Vec<(&'static str, String)>, Fault> {
    let own = std::env::current_exe().map_err(|error| {
        Fault::new(Code::Internal, "this program's own path is not known").because(&error)
    })?;
    let words = |path: &Path| quoted(&path.display().to_string());
    let script = |name: &'static str| {
        let former = edited.former.iter().find(|(of, _)| *of == name);
        let own = format!(
            "{} slurm {name} --node-file {}",
            words(&own),
            words(&places.node_files)
        );
        let before = former.map(|(_, path)| format!("{} \"$@\"", quoted(path)));
        // slurmd gives its health check few variables.
        let conf = match name {
            SWEEP => format!(
                "[ -n \"$SLURM_CONF\" ] || SLURM_CONF={}\nexport SLURM_CONF\n",
                words(&places.slurm)
            ),
            _ => String::new(),
        };
        let lines = match before {
            // The administrator's own check keeps its say over the node.
            Some(before) if name == SWEEP => format!("{before}\nstatus=$?\n{own}\nexit $status\n"),
            Some(before) => format!("{before} || exit $?\nexec {own}\n"),
            None => format!("exec {own}\n"),
        };
        (
            name,
            format!("#!/bin/sh\n# Written by `divvy slurm setup --apply`.\n{conf}{lines}"),
        )
    };
    Ok(PROGRAMS.iter().map(|(_, name)| script(name)).collect())
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = word
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    if is_plain {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn put(places: &Places, edited: &Edited, node: &Node, plugin: &Plugin) -> Result<(), Fault> {
    // Before anything is written.
    for path in [&places.slurm, &places.gres] {
        files::place(path)?;
    }
    plugin.list()?;
    files::folder_of_programs(&places.programs)?;
    plugin.put()?;
    for (name, script) in scripts(places, edited)? {
        write(&places.programs.join(name), script.as_bytes(), 0o755)?;
    }
    if let Some(above) = places.node_file.parent() {
        folder(above)?;
    }
    write(&places.node_file, node.write()?.as_bytes(), 0o644)?;
    // slurm.conf comes last: what it names is there by then.
    rewrite(&places.gres, &edited.gres)?;
    rewrite(&places.slurm, &edited.slurm)
}

fn take_away(places: &Places) -> Result<u8, Fault> {
    let slurm = text(&places.slurm, false)?;
    // What cannot be followed any more keeps no line from being taken away.
    let all_slurm = expanded(&places.slurm, &slurm).map_or(slurm, |all| all.text());
    let plugin = Plugin::new(&places.slurm, &all_slurm, &places.programs);
    let mut all = vec![plugin.list()?];
    for path in [&places.slurm, &places.gres] {
        files::place(path)?;
        all.push((path, has_whole_blocks(&text(path, false)?)));
    }
    if let Some((path, _)) = all.iter().find(|(_, is_whole)| !is_whole) {
        return Err(Fault::new(
            Code::Config,
            format!(
                "the lines of `divvy slurm setup` in {} have lost their begin or their end",
                path.display()
            ),
        )
        .hint("put the line `# END divvy slurm setup` behind them again, or remove them by hand"));
    }
    let mut is_changed = places.programs.exists() || places.node_file.exists();
    for path in [&places.slurm, &places.gres] {
        let before = text(path, false)?;
        let after = undo(&before);
        is_changed |= after != before;
        if after.is_empty() && !before.is_empty() {
            remove(path)?;
        } else if after != before {
            rewrite(path, &after)?;
        }
    }
    // srun would look for a file that its list names.
    plugin.take_away()?;
    for (_, name) in PROGRAMS {
        remove(&places.programs.join(name))?;
    }
    let _others = fs::remove_dir(&places.programs);
    remove(&places.node_file)?;
    output::print(match is_changed {
        true => "Slurm's files are as they were; restart slurmctld and slurmd\n",
        false => "these files have nothing of `divvy slurm setup`: nothing is changed\n",
    })?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(folder: &Path) -> Places {
        Places {
            slurm: folder.join("slurm.conf"),
            gres: folder.join("gres.conf"),
            programs: folder.join("divvy"),
            node_file: folder.join("node.toml"),
            node_files: folder.join("node.toml"),
        }
    }

    #[test]
    fn a_block_without_its_end_takes_nothing_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let places = places(folder.path());
        let cut =
            "A=1\n# BEGIN divvy slurm setup: --undo takes this away\nB=2\nPartitionName=all Nodes=ALL\n";
        fs::write(&places.slurm, cut).expect("a file");
        let fault = take_away(&places).expect_err("cut");
        assert!(fault.message.contains("their end"), "{fault:?}");
        assert_eq!(fs::read_to_string(&places.slurm).expect("there"), cut);
    }

    #[test]
    fn a_misspelt_word_of_either_file_is_a_mistake() {
        let wanted = Wanted {
            node: "n1".into(),
            folder: "/etc/slurm/divvy".into(),
            devices: Vec::new(),
            agent_timeout_s: 10,
            comment: false,
        };
        let found = mistakes(
            &Conf::plain("slurm.conf", "ClusterName=a\nPrlog=/x\n"),
            &Conf::plain("gres.conf", "Name=gpu Fiel=/dev/nvidia0\n"),
            &wanted,
        );
        for wanted in ["slurm.conf line 2: `Prlog`", "gres.conf line 1: `Fiel`"] {
            let named = found.iter().find(|finding| finding.text.starts_with(wanted));
            assert!(
                named.is_some_and(|finding| finding.is_error),
                "{wanted}: {found:?}"
            );
        }
    }
}
