//! Gives the functions of an IOMMU group to VFIO, all or none, and takes them back.
//!
//! The order is: look at everything, remember the first drivers on disk, forbid all other drivers, unbind every function,
//! let the kernel look for drivers, check what is bound. Whatever fails on the way, the first drivers come back.

use divvy_host::machine::Sysroot;
use divvy_model::{Code, Fault};

use crate::driver::{PLAIN, best_module, registered};
use crate::function::{DEVICES, Function, Kind};
use crate::group::Group;
use crate::holders::{Holder, holders};
use crate::kernel::{Kernel, Step};
use crate::record::{Phase, Record, Runner, Saved, Store, boot};

/// What the caller agreed to.
#[derive(Clone, Debug, Default)]
pub struct Consent {
    /// Functions of other cards that may go along.
    pub with: Vec<String>,
    /// The display of the boot messages may go.
    pub boot_display: bool,
}

/// What a bind would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The GPU that was asked for.
    pub asked: String,
    /// Its group.
    pub group: Group,
    /// The modules to be loaded first.
    pub modules: Vec<String>,
    /// The functions that change, each with its module. Those that are on VFIO already stay as they are.
    pub changes: Vec<(Function, String)>,
}

impl Plan {
    /// Looks whether a group can go, and how.
    ///
    /// # Errors
    /// As [`Group::of`]; [`Code::VmGroup`] for a group with functions of other cards, or the boot display, to which the
    /// caller did not agree; [`Code::VmHeld`] where something uses the group; [`Code::VmHost`] for a kernel without VFIO.
    pub fn make(root: &Sysroot, asked: &str, consent: &Consent) -> Result<Self, Fault> {
        let group = Group::of(root, asked)?;
        let functions = &group.functions;
        let is_gpu = functions
            .iter()
            .any(|function| function.address == asked && function.kind() == Kind::Gpu);
        if !is_gpu {
            return Err(Fault::new(Code::VmGroup, format!("{asked} is no GPU")).hint(
                "name the GPU of the group; the rest of its card goes along. `divvy vm status` lists GPUs",
            ));
        }
        agreed(&group, asked, consent)?;
        unused(root, functions)?;
        let mut changes = Vec::new();
        let mut modules = Vec::new();
        for function in functions {
            if function.is_on_vfio() {
                continue;
            }
            let module = best_module(root, function);
            if registered(root, &module).is_none() && !modules.contains(&module) {
                available(root, &module)?;
                modules.push(module.clone());
            }
            changes.push((function.clone(), module));
        }
        Ok(Self {
            asked: asked.to_owned(),
            group,
            modules,
            changes,
        })
    }

    /// The writes in order, for drivers of these names.
    #[must_use]
    pub fn steps(&self, target: impl Fn(&str) -> String) -> Vec<Step> {
        let changes = &self.changes;
        let overrides = changes
            .iter()
            .map(|(function, module)| Step::only(&function.address, Some(&target(module))));
        let unbinds = changes
            .iter()
            .filter(|(function, _)| function.driver.is_some())
            .map(|(function, _)| Step::unbind(&function.address));
        let probes = changes.iter().map(|(function, _)| Step::probe(&function.address));
        overrides.chain(unbinds).chain(probes).collect()
    }
}

/// The name that a module's driver has, or is going to have when the module is loaded.
#[must_use]
pub fn target(root: &Sysroot, module: &str) -> String {
    let default = || match module {
        "vfio_pci" => PLAIN.to_owned(),
        other => other.to_owned(),
    };
    registered(root, module).unwrap_or_else(default)
}

fn agreed(group: &Group, asked: &str, consent: &Consent) -> Result<(), Fault> {
    let lacking: Vec<&Function> = group
        .foreign(asked)
        .into_iter()
        .filter(|function| !consent.with.contains(&function.address))
        .collect();
    if !lacking.is_empty() {
        let names: Vec<String> = lacking
            .iter()
            .map(|function| format!("{} ({})", function.address, function.name()))
            .collect();
        let flags: Vec<String> = lacking
            .iter()
            .map(|function| format!("--with {}", function.address))
            .collect();
        let message = format!("IOMMU group {} has functions of other cards", group.number);
        return Err(Fault::new(Code::VmGroup, message).cause(names.join(", ")).hint(format!(
            "they would go to the virtual machine too: agree with `divvy vm bind {asked} {}`, or put the GPU in \
             another slot",
            flags.join(" ")
        )));
    }
    if let Some(unknown) = consent.with.iter().find(|address| {
        !group
            .functions
            .iter()
            .any(|function| function.address == **address)
    }) {
        let message = format!("{unknown} is not in IOMMU group {}", group.number);
        return Err(Fault::new(Code::VmGroup, message)
            .hint("`divvy vm status` shows the group; leave this --with out"));
    }
    let shows = group
        .functions
        .iter()
        .find(|function| function.boot_display && !function.is_on_vfio());
    if let Some(display) = shows.filter(|_| !consent.boot_display) {
        let message = format!("{} shows this machine's console", display.address);
        return Err(Fault::new(Code::VmGroup, message).hint(
            "the screen stays black once it is gone: make another GPU the primary one in the firmware's setup, or agree \
             with --boot-display where you come by the network",
        ));
    }
    Ok(())
}

/// Refuses functions that are in use.
///
/// # Errors
/// [`Code::VmHeld`], with the first that holds one.
pub(crate) fn unused(root: &Sysroot, functions: &[Function]) -> Result<(), Fault> {
    let used = holders(root, functions);
    let Some(first) = used.first() else { return Ok(()) };
    let more = match used.len() {
        1 => String::new(),
        count => format!(", and {} more", count - 1),
    };
    let message = match first {
        Holder::Process { file, .. } if file.starts_with("/dev/vfio") => "a virtual machine has the device",
        Holder::Process { .. } | Holder::Disk { .. } | Holder::Virtual { .. } | Holder::Link { .. } => {
            "the device is in use"
        }
    };
    Err(Fault::new(Code::VmHeld, message)
        .cause(format!("{first}{more}"))
        .hint(format!("{}; then try again", first.hint())))
}

/// Whether a module can be had.
fn available(root: &Sysroot, module: &str) -> Result<(), Fault> {
    let release = root.text("proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = format!("lib/modules/{release}");
    // A captured tree may lack it: nothing can be said then.
    if release.is_empty() || release.contains('/') || !root.has(&modules) {
        return Ok(());
    }
    let list = |file: &str| root.long_text(&format!("{modules}/{file}")).unwrap_or_default();
    let is_it = |line: &str| {
        let path = line.split(':').next().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        name.split('.').next().unwrap_or_default().replace('-', "_") == module
    };
    match list("modules.dep").lines().any(is_it) || list("modules.builtin").lines().any(is_it) {
        true => Ok(()),
        false => Err(Fault::new(
            Code::VmHost,
            format!("the kernel {release} has no module {module}"),
        )
        .hint("start a kernel with VFIO (CONFIG_VFIO_PCI), as distributions' usual kernels have it")),
    }
}

/// Gives a group to VFIO. Nothing changes where all of it is there already.
///
/// # Errors
/// As [`Plan::make`] and [`Store`]; [`Code::VmBind`] where the kernel refuses a step, and the first drivers are back, or
/// the message says what is not.
pub fn bind(
    root: &Sysroot,
    kernel: &mut dyn Kernel,
    store: &Store,
    asked: &str,
    consent: &Consent,
) -> Result<Plan, Fault> {
    bind_for(root, kernel, store, asked, consent, None)
}

/// The same for the time of a process, which its first record says already: where that is killed, [`crate::restore`] gives the
/// group back.
///
/// # Errors
/// As [`bind`].
pub fn bind_for(
    root: &Sysroot,
    kernel: &mut dyn Kernel,
    store: &Store,
    asked: &str,
    consent: &Consent,
    runner: Option<Runner>,
) -> Result<Plan, Fault> {
    let records = store.records()?;
    let plan = Plan::make(root, asked, consent)?;
    let group = &plan.group;
    let earlier = records.iter().find(|record| concerns(record, group));
    let now = boot(root);
    if let Some(half) = earlier.filter(|record| record.boot == now && record.phase != Phase::Bound) {
        return Err(Fault::new(
            Code::VmBind,
            format!("an earlier change of {} did not end", half.asked),
        )
        .hint("`divvy vm restore` puts its functions back first"));
    }
    if plan.changes.is_empty() {
        return Ok(plan);
    }
    for module in &plan.modules {
        kernel.load(module)?;
    }
    // kmod loads it behind vfio-pci, other programs do not. Where there is none, iommufd may do its work.
    let _without = kernel.load("vfio_iommu_type1");
    for (_, module) in &plan.changes {
        if registered(root, module).is_none() {
            return Err(Fault::new(
                Code::VmHost,
                format!("the module {module} is loaded and has no driver"),
            )
            .hint("look at the kernel's log: Secure Boot refuses modules without a signature"));
        }
    }
    let mut functions: Vec<Saved> = plan
        .changes
        .iter()
        .map(|(function, module)| Saved {
            address: function.address.clone(),
            id: function.id(),
            driver: function.driver.clone(),
            driver_override: function.driver_override(root),
            target: target(root, module),
        })
        .collect();
    // The first drivers of functions that an earlier bind gave away stay known, though another tool took some back since.
    for known in earlier
        .filter(|record| record.boot == now)
        .into_iter()
        .flat_map(|record| &record.functions)
    {
        let changed = functions.iter_mut().find(|saved| saved.address == known.address);
        match changed {
            Some(saved) if saved.id == known.id => {
                saved.driver.clone_from(&known.driver);
                saved.driver_override.clone_from(&known.driver_override);
            }
            // Another card is in its slot.
            Some(_) => {}
            None => functions.push(known.clone()),
        }
    }
    let mut record = Record::new(asked, now, functions);
    record.with.clone_from(&consent.with);
    record.boot_display = consent.boot_display;
    // What was on VFIO before stays there afterwards.
    record.runner = runner.filter(|_| earlier.is_none_or(|earlier| earlier.boot != record.boot));
    store.save(&record)?;
    if let Some(stale) = earlier.filter(|stale| stale.asked != asked) {
        store.remove(stale)?;
    }
    let steps = plan.steps(|module| target(root, module));
    let done = steps.iter().try_for_each(|step| {
        step.take(kernel).map_err(|error| {
            let message = match gone(root, &record) {
                Some(address) => format!("{address} was taken out of the machine"),
                None => "the kernel refuses to hand the device over".to_owned(),
            };
            let fault = Fault::new(Code::VmBind, message)
                .cause(step.as_shell())
                .because(&error);
            match error.kind() {
                std::io::ErrorKind::ReadOnlyFilesystem => {
                    fault.hint("/sys cannot be written here, as in a container: run it on the host itself")
                }
                _ => fault,
            }
        })
    });
    match done.and_then(|()| verify(root, &record)) {
        Ok(()) => {
            record.phase = Phase::Bound;
            store.save(&record)?;
            Ok(plan)
        }
        Err(fault) => Err(roll_back(root, kernel, store, &record, fault)),
    }
}

/// Whether a record is of functions of this group.
#[must_use]
pub fn concerns(record: &Record, group: &Group) -> bool {
    let mut saved = record.functions.iter();
    saved.any(|saved| {
        group
            .functions
            .iter()
            .any(|function| function.address == saved.address)
    })
}

/// A function of a record that is no longer there.
fn gone<'a>(root: &Sysroot, record: &'a Record) -> Option<&'a str> {
    let mut saved = record.functions.iter();
    let gone = saved.find(|saved| Function::read(root, &saved.address).is_none());
    gone.map(|saved| saved.address.as_str())
}

/// Whether each function is on the driver that it was given.
fn verify(root: &Sysroot, record: &Record) -> Result<(), Fault> {
    for saved in &record.functions {
        let Some(function) = Function::read(root, &saved.address) else {
            return Err(Fault::new(
                Code::VmBind,
                format!("{} was taken out of the machine", saved.address),
            ));
        };
        if function.driver.as_deref() != Some(saved.target.as_str()) {
            let bound = function.driver.unwrap_or_else(|| "no driver".into());
            let message = format!("{} is on {bound}, not on {}", saved.address, saved.target);
            return Err(Fault::new(Code::VmBind, message).hint("the kernel's log says why: `dmesg | tail`"));
        }
    }
    Ok(())
}

fn roll_back(root: &Sysroot, kernel: &mut dyn Kernel, store: &Store, record: &Record, fault: Fault) -> Fault {
    let left = put_back(root, kernel, &record.functions);
    let hint = fault.hint.clone();
    if left.is_empty() {
        // A record that stays says that something is to be put back: it is checked again and then removed.
        let _kept = store.remove(record);
        let fault = fault.cause("the first drivers are back");
        return match hint {
            Some(_) => fault,
            None => fault.hint("the kernel's log says why: `dmesg | tail`"),
        };
    }
    fault
        .cause(format!("not put back: {}", left.join("; ")))
        .hint("`divvy vm restore` tries again")
}

/// Brings functions back to their first drivers; says what could not be.
pub fn put_back(root: &Sysroot, kernel: &mut dyn Kernel, functions: &[Saved]) -> Vec<String> {
    let mut left = Vec::new();
    // All of them leave VFIO first: while one is there and open, none of its group may have a host's driver.
    for saved in functions {
        if let Err(why) = take_off(root, kernel, saved) {
            left.push(format!("{}: {why}", saved.address));
        }
    }
    for saved in functions {
        if let Err(why) = give_back(root, kernel, saved) {
            left.push(format!("{}: {why}", saved.address));
        }
    }
    left.dedup();
    left
}

/// The function of a record, if it is the same device still.
fn same(root: &Sysroot, saved: &Saved) -> Option<Function> {
    Function::read(root, &saved.address).filter(|function| function.id() == saved.id)
}

fn take_off(root: &Sysroot, kernel: &mut dyn Kernel, saved: &Saved) -> Result<(), String> {
    let Some(function) = same(root, saved) else {
        return Ok(());
    };
    if function.driver.is_none() || function.driver == saved.driver {
        return Ok(());
    }
    let step = Step::unbind(&saved.address);
    step.take(kernel)
        .map_err(|error| format!("{}: {error}", step.as_shell()))
}

fn give_back(root: &Sysroot, kernel: &mut dyn Kernel, saved: &Saved) -> Result<(), String> {
    let Some(function) = same(root, saved) else {
        // It was taken out, or another card is in its slot: there is nothing to give back.
        return Ok(());
    };
    let mut take = |step: Step| {
        step.take(kernel)
            .map_err(|error| format!("{}: {error}", step.as_shell()))
    };
    if let Some(driver) = saved.driver.as_deref()
        && function.driver.as_deref() != Some(driver)
    {
        take(Step::only(&saved.address, Some(driver)))?;
        take(Step::probe(&saved.address))?;
    }
    if same(root, saved).is_some_and(|function| function.driver_override(root) != saved.driver_override) {
        take(Step::only(&saved.address, saved.driver_override.as_deref()))?;
    }
    let now = same(root, saved).and_then(|function| function.driver);
    match now == saved.driver {
        true => Ok(()),
        false => Err(format!(
            "it is on {}, and was on {}",
            now.as_deref().unwrap_or("no driver"),
            saved.driver.as_deref().unwrap_or("none")
        )),
    }
}

/// Takes a group back from VFIO, to its first drivers. A group that something else gave to VFIO gets the drivers that the
/// kernel chooses.
///
/// # Errors
/// As [`Group::of`]; [`Code::VmHeld`] where a virtual machine has it; [`Code::VmBind`] where not all of it came back.
pub fn unbind(root: &Sysroot, kernel: &mut dyn Kernel, store: &Store, asked: &str) -> Result<Group, Fault> {
    leave(root, kernel, store, asked, true)
}

/// Gives back what was on VFIO for the time of a process. What was there before it stays there.
///
/// # Errors
/// As [`unbind`].
pub fn put_back_run(
    root: &Sysroot,
    kernel: &mut dyn Kernel,
    store: &Store,
    asked: &str,
) -> Result<(), Fault> {
    leave(root, kernel, store, asked, false).map(|_| ())
}

fn leave(
    root: &Sysroot,
    kernel: &mut dyn Kernel,
    store: &Store,
    asked: &str,
    all: bool,
) -> Result<Group, Fault> {
    let records = store.records()?;
    let group = Group::of(root, asked).map_err(|fault| {
        match fault.code == Code::UnknownDevice && is_remembered(&records, asked) {
            true => Fault::new(fault.code, fault.message)
                .hint("it was on VFIO when it was taken out of the machine: `divvy vm restore` forgets it"),
            false => fault,
        }
    })?;
    let on_vfio: Vec<Function> = group
        .functions
        .iter()
        .filter(|one| one.is_on_vfio())
        .cloned()
        .collect();
    unused(root, &on_vfio)?;
    let now = boot(root);
    let record = records
        .iter()
        .find(|record| record.boot == now && concerns(record, &group));
    let mut functions: Vec<Saved> = record.map_or_else(Vec::new, |record| record.functions.clone());
    let known = |address: &str| functions.iter().any(|saved| saved.address == address);
    let others: Vec<&Function> = on_vfio.iter().filter(|one| all && !known(&one.address)).collect();
    let others: Vec<String> = others.into_iter().map(|one| one.address.clone()).collect();
    if functions.is_empty() && others.is_empty() {
        return Err(Fault::new(
            Code::VmGroup,
            format!("IOMMU group {} is not on VFIO", group.number),
        )
        .hint("`divvy vm status` shows which drivers have it"));
    }
    let mut left = Vec::new();
    if let Some(record) = record {
        let mut leaving = record.clone();
        leaving.phase = Phase::Unbinding;
        store.save(&leaving)?;
        left.extend(put_back(root, kernel, &functions));
    }
    functions.clear();
    left.extend(to_kernel(root, kernel, &others));
    if left.is_empty() {
        for record in records.iter().filter(|record| concerns(record, &group)) {
            store.remove(record)?;
        }
        return Ok(Group::read(root, group.number));
    }
    Err(Fault::new(Code::VmBind, "not all of the group came back")
        .cause(left.join("; "))
        .hint("load the driver that it was on, and try `divvy vm restore`"))
}

fn is_remembered(records: &[Record], address: &str) -> bool {
    let mut saved = records.iter().flat_map(|record| &record.functions);
    saved.any(|saved| saved.address == address)
}

/// Takes functions off VFIO whose first drivers are not known, and lets the kernel choose.
fn to_kernel(root: &Sysroot, kernel: &mut dyn Kernel, addresses: &[String]) -> Vec<String> {
    let mut left = Vec::new();
    let rounds: [fn(&str) -> Step; 3] = [|address| Step::only(address, None), Step::unbind, Step::probe];
    for step in rounds {
        for address in addresses {
            let step = step(address);
            if root.has(&format!("{DEVICES}/{address}"))
                && let Err(error) = step.take(kernel)
            {
                left.push(format!("{}: {error}", step.as_shell()));
            }
        }
    }
    for address in addresses {
        if Function::read(root, address).is_some_and(|function| function.is_on_vfio()) {
            left.push(format!(
                "{address}: VFIO took it again, as `vfio-pci.ids` or a file of modprobe.d says for its id"
            ));
        }
    }
    left
}
