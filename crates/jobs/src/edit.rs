//! Putting Divvy's lines into Slurm's files, and taking them out again to the byte.
//!
//! A line that has to change stays as a comment behind [`MARK`]; what is new stands between [`BEGIN`] and [`END`].

use crate::configuration::{
    PROGRAMS, RESOURCES, SWEEP_INTERVAL_S, Wanted, counted, gres_lines, lists, node_line, node_value,
    setting, sweeps, value, words,
};
use crate::gres::{kinds, mistakes};
use crate::include::Conf;
use crate::plugin;

/// Before a line that was replaced.
const MARK: &str = "#divvy-setup# ";
/// Around the new lines.
const BEGIN: &str = "# BEGIN divvy slurm setup: --undo takes this away";
const END: &str = "# END divvy slurm setup";

/// Both files with Divvy's lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited {
    /// slurm.conf.
    pub slurm: String,
    /// gres.conf.
    pub gres: String,
    /// The programs that slurmd ran before, by the name of Divvy's: these run first.
    pub former: Vec<(&'static str, String)>,
}

/// One of Slurm's files.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Its own text, which is edited.
    pub own: &'a str,
    /// The same with what it includes, which is not.
    pub all: &'a Conf,
}

/// Puts the lines in that are missing. What an earlier setup put in for this node or another one stays, unless this node has
/// other devices now. A setting in an included file is overridden: Slurm takes the last.
///
/// # Errors
/// A sentence about what has to be edited by hand.
pub fn apply(slurm_file: File<'_>, gres_file: File<'_>, wanted: &Wanted) -> Result<Edited, String> {
    let (text, all) = (slurm_file.own, slurm_file.all.text());
    let slurm = all.as_str();
    let mut former = Vec::new();
    let mut replaced: Vec<&str> = Vec::new();
    let mut new = Vec::new();
    for (key, needed) in [("GresTypes", &RESOURCES[..]), ("PrologFlags", &["Alloc"])] {
        let there = setting(slurm, key);
        let missing = needed.iter().filter(|word| !lists(there, word));
        let all: Vec<&str> = there.into_iter().chain(missing.copied()).collect();
        if there.is_none_or(|there| all != [there]) {
            replaced.push(key);
            new.push(format!("{key}={}", all.join(",")));
        }
    }
    if !sweeps(slurm) {
        replaced.push("HealthCheckInterval");
        new.push(format!("HealthCheckInterval={SWEEP_INTERVAL_S}"));
    }
    for (key, name) in PROGRAMS {
        let own = format!("{}/{name}", wanted.folder);
        let marked = text.lines().filter_map(|line| line.strip_prefix(MARK));
        let before = marked.filter_map(|line| setting(line, key)).next_back();
        let there = setting(slurm, key);
        let others = there.filter(|path| *path != own);
        if let Some(path) = others.or(before.filter(|path| *path != own)) {
            if path.contains(['*', '?', '[']) {
                return Err(format!(
                    "{key}={path} names several programs: link {own} among them by hand"
                ));
            }
            former.push((name, path.to_owned()));
        }
        if there != Some(&own) {
            replaced.push(key);
            new.push(format!("{key}={own}"));
        }
    }
    let node = node_line(slurm, &wanted.node).ok_or_else(|| {
        format!(
            "slurm.conf has no NodeName line for {}: add one, or say with --node which line is this host's",
            wanted.node
        )
    })?;
    let mut there = node_value(slurm, &wanted.node, "Gres").unwrap_or_default();
    let is_sound = RESOURCES
        .iter()
        .all(|resource| counted(&there, resource) == Some(wanted.count(resource)));
    if !is_sound {
        let new_line = node_with_resources(node, &there, wanted);
        if let Some(place) = slurm_file.all.included_place(node) {
            return Err(format!("{place} is the node's: write there `{new_line}`"));
        }
        there = value(&new_line, "Gres").unwrap_or_default().to_owned();
        new.push(new_line);
    }
    let goes = |line: &str| {
        let key = words(line).next().map(|(key, _)| key);
        let is_replaced = |key: &str| replaced.iter().any(|other| other.eq_ignore_ascii_case(key));
        (line == node && !is_sound) || key.is_some_and(is_replaced)
    };
    if let Some(line) = text
        .lines()
        .find(|line| goes(line) && line.trim_end().ends_with('\\'))
    {
        return Err(format!(
            "the line `{}` goes on in the next one: join them first",
            line.trim()
        ));
    }
    let (kept, more) = of_gres(&there, gres_file, wanted)?;
    Ok(Edited {
        slurm: with_block(&marked(text, goes), &new),
        gres: with_block(&kept, &more),
        former,
    })
}

/// The text with the lines that go as comments.
fn marked(text: &str, goes: impl Fn(&str) -> bool) -> String {
    let line = |line: &str| match goes(line.trim_end_matches('\n')) {
        true => format!("{MARK}{line}"),
        false => line.to_owned(),
    };
    text.split_inclusive('\n').map(line).collect()
}

/// Takes Divvy's lines out.
#[must_use]
pub fn undo(text: &str) -> String {
    let mut kept = String::new();
    let mut inside = false;
    for line in text.split_inclusive('\n') {
        match line.trim_end() {
            BEGIN => inside = true,
            END => inside = false,
            _ if inside => {}
            _ => kept.push_str(line.strip_prefix(MARK).unwrap_or(line)),
        }
    }
    kept
}

/// A list of SPANK plugins with Divvy's.
#[must_use]
pub fn with_plugin(list: &str, plugin: &str) -> String {
    if plugin::lists(list, plugin) {
        return list.to_owned();
    }
    with_block(&undo(list), &[plugin::line(plugin)])
}

/// Whether each block of Divvy's lines has its end. Without one [`undo`] would take away all that follows.
#[must_use]
pub fn has_whole_blocks(text: &str) -> bool {
    let mut inside = false;
    let marks = text
        .lines()
        .map(str::trim_end)
        .filter(|line| [BEGIN, END].contains(line));
    marks
        .into_iter()
        .all(|line| std::mem::replace(&mut inside, line == BEGIN) != (line == BEGIN))
        && !inside
}

fn with_block(text: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return text.to_owned();
    }
    let gap = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    format!("{text}{gap}{BEGIN}\n{}\n{END}\n", lines.join("\n"))
}

/// The line of a node with as many of each resource as there are.
fn node_with_resources(line: &str, there: &str, wanted: &Wanted) -> String {
    let mut items: Vec<String> = there
        .split(',')
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect();
    for resource in RESOURCES {
        if counted(there, resource) != Some(wanted.count(resource)) {
            items.retain(|item| item.split([':', '(']).next() != Some(resource));
            items.push(format!("{resource}:{}", wanted.count(resource)));
        }
    }
    let rest = line.split('#').next().unwrap_or_default().split_whitespace();
    let rest = rest.filter(|word| !word.to_ascii_lowercase().starts_with("gres="));
    let mut words: Vec<String> = rest.map(str::to_owned).collect();
    words.push(format!("Gres={}", items.join(",")));
    words.join(" ")
}

/// gres.conf without this node's lines that are mistakes, and the lines that it lacks. `resources` is what slurm.conf says in the
/// node's `Gres=`.
fn of_gres(resources: &str, gres: File<'_>, wanted: &Wanted) -> Result<(String, Vec<String>), String> {
    let node = &wanted.node;
    let mut kept = gres.own.to_owned();
    let mut new = Vec::new();
    for resource in RESOURCES {
        let found = mistakes(resources, gres.all, wanted, resource);
        if found.is_empty() {
            continue;
        }
        let former: Vec<&str> = gres_lines(gres.all, node, resource)
            .map(|line| line.text.as_str())
            .collect();
        if let Some(place) = former.iter().find_map(|line| gres.all.included_place(line)) {
            return Err(format!("{place} has to be edited by hand: {}", found.join("; ")));
        }
        let kind = match kinds(resources).as_slice() {
            [] => String::new(),
            [(kind, _)] => format!(" Type={kind}"),
            _ if resource == "gpu" => return Err(found.join("; ")),
            _ => String::new(),
        };
        kept = marked(&kept, |line| former.contains(&line));
        if resource == "divvy_compute" {
            let count = wanted.count(resource);
            new.push(format!(
                "NodeName={node} Name={resource} Count={count} Flags=CountOnly"
            ));
            continue;
        }
        for device in &wanted.devices {
            let count = match resource {
                "shard" => format!(" Count={}", device.shards),
                _ => kind.clone(),
            };
            new.push(format!(
                "NodeName={node} Name={resource}{count} File={}",
                device.file
            ));
        }
    }
    Ok((kept, new))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::configuration::{self, Finding, WantedDevice};

    fn wanted() -> Wanted {
        let device = |number| WantedDevice {
            name: format!("device {number}"),
            file: format!("/dev/nvidia{number}"),
            memory_bytes: 80 << 30,
            shards: 80,
        };
        Wanted {
            node: "n1".into(),
            folder: "/etc/slurm/divvy".into(),
            devices: vec![device(0), device(1)],
            agent_timeout_s: 10,
            comment: false,
        }
    }

    fn gres(text: &str) -> Conf {
        Conf::plain("gres.conf", text)
    }

    fn check(slurm: &str, gres: &str, wanted: &Wanted) -> Vec<Finding> {
        configuration::check(slurm, &self::gres(gres), wanted)
    }

    /// Files that include nothing.
    fn apply(slurm: &str, gres: &str, wanted: &Wanted) -> Result<Edited, String> {
        let [all_slurm, all_gres] = [Conf::plain("slurm.conf", slurm), self::gres(gres)];
        let file = |own, all| File { own, all };
        super::apply(file(slurm, &all_slurm), file(gres, &all_gres), wanted)
    }

    const SLURM: &str = "ClusterName=c\nSelectType=select/cons_tres\nGresTypes=gpu # ours\nEpilog=/opt/site/epilog\n\
                         NodeName=n[1-2] CPUs=4 Gres=gpu:tesla:2 State=UNKNOWN\nPartitionName=all Nodes=ALL\n";

    #[test]
    fn what_is_put_in_has_no_mistake_left_and_comes_out_to_the_byte() {
        let found = check(SLURM, "", &wanted());
        assert!(
            found.iter().filter(|finding| finding.is_error).count() >= 8,
            "{found:#?}"
        );
        let edited = apply(SLURM, "", &wanted()).expect("edited");
        assert_eq!(check(&edited.slurm, &edited.gres, &wanted()), []);
        assert_eq!(edited.former, [("epilog", "/opt/site/epilog".to_owned())]);
        assert!(
            edited.slurm.contains("GresTypes=gpu,shard,divvy_compute\n"),
            "{}",
            edited.slurm
        );
        assert!(
            edited.slurm.contains(
                "NodeName=n[1-2] CPUs=4 State=UNKNOWN Gres=gpu:tesla:2,shard:160,divvy_compute:200\n"
            ),
            "{}",
            edited.slurm
        );
        assert_eq!(
            (undo(&edited.slurm).as_str(), undo(&edited.gres).as_str()),
            (SLURM, "")
        );
        // An administrator may have removed one of the two lines around the block.
        assert!(has_whole_blocks(SLURM) && has_whole_blocks(&edited.slurm));
        for cut in [BEGIN, END] {
            assert!(!has_whole_blocks(&edited.slurm.replace(cut, "")), "{cut}");
        }
        let twice = edited.slurm.replace(END, BEGIN);
        assert!(!has_whole_blocks(&twice));
        let again = apply(&edited.slurm, &edited.gres, &wanted()).expect("edited");
        assert_eq!(again, edited, "a second time changes nothing");
        // The cluster's other node, and this one with other shards.
        let mut other = wanted();
        other.node = "n2".into();
        other.devices.iter_mut().for_each(|device| device.shards = 80);
        let both = apply(&edited.slurm, &edited.gres, &other).expect("edited");
        assert_eq!(check(&both.slurm, &both.gres, &wanted()), []);
        assert_eq!(check(&both.slurm, &both.gres, &other), []);
        let mut fewer = wanted();
        fewer.devices.iter_mut().for_each(|device| device.shards = 40);
        let changed = apply(&both.slurm, &both.gres, &fewer).expect("edited");
        assert_eq!(check(&changed.slurm, &changed.gres, &fewer), []);
        assert_eq!(changed.former, edited.former);
        assert_eq!(
            (undo(&changed.slurm).as_str(), undo(&changed.gres).as_str()),
            (SLURM, "")
        );
    }

    #[test]
    fn the_list_of_plugins_gets_one_line_and_is_given_back() {
        let before = "# ours\noptional /opt/x11.so";
        let once = with_plugin(before, "/etc/slurm/divvy/options.so");
        assert!(
            once.contains("\noptional /etc/slurm/divvy/options.so\n"),
            "{once}"
        );
        assert_eq!(with_plugin(&once, "/etc/slurm/divvy/options.so"), once);
        let moved = with_plugin(&once, "/opt/slurm/etc/divvy/options.so");
        assert_eq!(moved.matches("options.so").count(), 1, "{moved}");
        assert_eq!(undo(&moved).trim_end(), before);
        assert_eq!(undo(&with_plugin("", "/a.so")), "");
    }

    #[test]
    fn an_administrators_health_check_and_its_interval_stay() {
        let before = format!("HealthCheckProgram=/usr/sbin/nhc\nHealthCheckInterval=300\n{SLURM}");
        let edited = apply(&before, "", &wanted()).expect("edited");
        assert!(edited.former.contains(&("sweep", "/usr/sbin/nhc".to_owned())));
        assert_eq!(setting(&edited.slurm, "HealthCheckInterval"), Some("300"));
        assert_eq!(undo(&edited.slurm), before);
    }

    #[test]
    fn what_cannot_be_edited_is_said() {
        let without = "SelectType=select/cons_tres\n";
        assert!(
            apply(without, "", &wanted())
                .expect_err("no node")
                .contains("NodeName")
        );
        let several = format!("Prolog=/etc/slurm/prolog.d/*\n{SLURM}");
        assert!(
            apply(&several, "", &wanted())
                .expect_err("several")
                .contains("by hand")
        );
        let long = SLURM.replace("State=UNKNOWN", "\\\n  State=UNKNOWN");
        assert!(
            apply(&long, "", &wanted())
                .expect_err("two lines")
                .contains("join")
        );
    }

    #[test]
    fn an_epilog_that_writes_comments_has_time_for_a_silent_database() {
        let sound = apply(SLURM, "", &wanted()).expect("edited");
        let found = |line: &str, comment: bool| {
            let slurm = format!(
                "AccountingStorageType=accounting_storage/slurmdbd\n{line}\n{}",
                sound.slurm
            );
            check(&slurm, &sound.gres, &Wanted { comment, ..wanted() })
        };
        for line in ["EpilogTimeout=30", "PrologEpilogTimeout=15"] {
            let said = found(line, true);
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(
                said[0]
                    .text
                    .contains("waits up to 30 s where the agent and slurmdbd")
            );
            assert_eq!(found(line, false), Vec::new());
        }
        assert_eq!(found("EpilogTimeout=31", true), Vec::new());
    }

    #[test]
    fn each_mistake_has_a_sentence() {
        let sound = apply(SLURM, "", &wanted()).expect("edited");
        let mistakes = |from: &str, to: &str| {
            let change = |text: &str| text.replace(from, to);
            let found = check(&change(&sound.slurm), &change(&sound.gres), &wanted());
            assert_eq!(found.len(), 1, "{from}: {found:#?}");
            found[0].text.clone()
        };
        assert!(mistakes("PrologFlags=Alloc", "").contains("before its slice is made"));
        assert!(mistakes("PrologFlags=Alloc", "PrologFlags=Alloc,NoHold").contains("NoHold"));
        let parameters = "SelectTypeParameters=CR_Core,MULTIPLE_SHARING_GRES_PJ\nPrologFlags=";
        assert!(mistakes("PrologFlags=", parameters).contains("as many of each"));
        assert!(mistakes("select/cons_tres", "select/linear").contains("select/linear"));
        assert!(mistakes("shard:160", "shard:80").contains("has 80 of `shard`"));
        assert!(mistakes("HealthCheckInterval=60", "HealthCheckInterval=0").contains("lost with slurmd"));
        assert!(mistakes("/divvy/sweep", "/nhc").contains("is not run"));
        assert!(mistakes("/divvy/task-prolog", "/other").contains("is not run"));
        assert!(
            mistakes("PrologFlags=", "PrologEpilogTimeout=5\nPrologFlags=").contains("drain the node first")
        );
        assert!(
            mistakes("PrologFlags=", "ProctrackType=proctrack/pgid\nPrologFlags=")
                .contains("outside its session")
        );
        // Each line of gres.conf beside its device.
        let fewer = sound
            .gres
            .replacen("Name=shard Count=80", "Name=shard Count=40", 1);
        let found = check(&sound.slurm, &fewer, &wanted());
        assert!(
            found.len() == 1 && found[0].text.contains("line 4: counts 40 of `shard` of device 0"),
            "{found:#?}"
        );
        let mut odd = wanted();
        odd.devices[0].memory_bytes += 1;
        let found = check(&sound.slurm, &sound.gres, &odd);
        assert!(
            found.len() == 1 && found[0].text.contains("do not divide"),
            "{found:#?}"
        );
    }

    #[test]
    fn what_included_files_say_counts_and_is_not_edited() {
        let read = |name: &str| match name {
            "nodes.conf" => Ok(
                "NodeName=n1 CPUs=4 Gres=gpu:2,shard:160,divvy_compute:200\nProlog=/opt/site/prolog\n"
                    .to_owned(),
            ),
            "bare.conf" => Ok("NodeName=n1 CPUs=4\n".to_owned()),
            "gpus.conf" => Ok("Name=gpu File=/dev/nvidia1\nName=gpu File=/dev/nvidia0\n".to_owned()),
            _ => Err(format!("there is no `{name}`")),
        };
        let with = |slurm: &str, gres: &str| {
            let conf = |file: &str, own: &str| Conf::expand(file, own, read).expect("expanded");
            let (all_slurm, all_gres) = (conf("slurm.conf", slurm), conf("gres.conf", gres));
            let file = |own, all| File { own, all };
            let edited = super::apply(file(slurm, &all_slurm), file(gres, &all_gres), &wanted())?;
            let left = configuration::check(
                &conf("slurm.conf", &edited.slurm).text(),
                &conf("gres.conf", &edited.gres),
                &wanted(),
            );
            Ok::<_, String>((edited, left))
        };
        let (edited, left) = with("SelectType=select/cons_tres\nInclude nodes.conf\n", "").expect("edited");
        assert_eq!(left, []);
        assert_eq!(edited.former, [("prolog", "/opt/site/prolog".to_owned())]);
        let bare = with("SelectType=select/cons_tres\nInclude bare.conf\n", "").expect_err("by hand");
        assert!(
            bare.starts_with("bare.conf line 1 is the node's: write there `NodeName=n1"),
            "{bare}"
        );
        let swapped = with("Include nodes.conf\n", "Include gpus.conf\n").expect_err("by hand");
        assert!(
            swapped.starts_with(
                "gpus.conf line 1 has to be edited by hand: gpus.conf line 1: device 0 is /dev/nvidia1"
            ),
            "{swapped}"
        );
    }

    proptest! {
        #[test]
        fn undoing_gives_any_file_back(lines in proptest::collection::vec("[A-Za-z=# ,:0-9]{0,30}", 0..12)) {
            let text = format!("{}\n{SLURM}", lines.join("\n"));
            if let Ok(edited) = apply(&text, "AutoDetect=off\n", &wanted()) {
                prop_assert_eq!(undo(&edited.slurm), text);
                prop_assert_eq!(undo(&edited.gres), "AutoDetect=off\n");
            }
        }
    }

    #[test]
    fn jobs_have_comments_in_slurms_database_only() {
        let with = Wanted {
            comment: true,
            ..wanted()
        };
        let sound = apply(SLURM, "", &with).expect("edited");
        let found = check(&sound.slurm, &sound.gres, &with);
        assert!(
            matches!(&found[..], [Finding { is_error: false, text }] if text.contains("slurmdbd")),
            "{found:?}"
        );
        let slurm = format!(
            "AccountingStorageType=accounting_storage/slurmdbd\n{}",
            sound.slurm
        );
        assert_eq!(check(&slurm, &sound.gres, &with), []);
    }
}
