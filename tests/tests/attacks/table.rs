//! Which test shows which finding: this table, docs/threat-model.md's, and the tests that there are say the same.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use divvy_tests::build::workspace;

/// Finding, and the tests that failed for it.
const TESTS: [(&str, &[&str]); 23] = [
    (
        "F1",
        &[
            "f01_a_link_in_the_place_of_the_box_leads_root_nowhere",
            "f01_a_link_in_the_place_of_the_socket_is_not_given_away",
        ],
    ),
    (
        "F2",
        &[
            "f02_root_writes_nothing_through_links_in_a_users_folder_of_pipes",
            "f02_a_fifo_in_a_users_folder_of_pipes_delays_no_other_user",
        ],
    ),
    (
        "F3",
        &["f03_a_containers_root_cannot_bring_its_slice_a_grant_of_its_own"],
    ),
    (
        "F4",
        &[
            "f04_processes_that_a_container_claims_are_neither_ended_nor_taken_for_its_own",
            "f04_a_container_that_claims_an_ancestor_of_roots_shell_stops_no_admission",
        ],
    ),
    (
        "F5",
        &["f05_a_user_who_leads_the_agent_to_anothers_page_server_changes_nothing_there"],
    ),
    (
        "F6",
        &["f06_a_link_in_the_place_of_the_box_is_mounted_into_no_container"],
    ),
    (
        "F7",
        &[
            "f07_half_open_connections_silence_no_other_user_and_end_no_slice",
            "f07_silent_connections_at_the_other_sockets_keep_no_program_from_its_slice",
        ],
    ),
    (
        "F8",
        &[
            "f08_a_page_server_that_shrinks_its_memory_while_it_is_looked_at_ends_no_agent",
            "f08_a_page_server_that_is_taken_over_by_its_user_ends_no_agent",
            "f08_a_look_at_memory_that_shrinks_meanwhile_faults_no_process",
            "f08_a_container_that_shortens_its_devices_page_ends_nothing_of_the_hosts",
            "f08_two_users_of_one_device_see_each_others_use_and_shorten_nothing",
        ],
    ),
    (
        "F9",
        &["f09_page_servers_that_accept_nothing_delay_no_other_user"],
    ),
    (
        "F10",
        &["f10_one_user_neither_fills_the_queue_nor_the_agents_memory"],
    ),
    (
        "F11",
        &[
            "f11_a_caller_that_is_dead_decides_nothing",
            "f11_an_attach_by_a_peer_that_is_dead_ends_nothing",
        ],
    ),
    (
        "F12",
        &["f12_a_container_joins_no_other_users_slice_by_a_name_or_a_part_of_an_id"],
    ),
    (
        "F13",
        &["f13_what_a_caller_says_of_emulated_devices_is_nothing_to_the_others"],
    ),
    ("F14", &["f14_a_users_claim_on_a_device_refuses_root_nothing"]),
    ("F15", &["f15_a_crowd_that_is_not_there_costs_the_others_nothing"]),
    ("F16", &["f16_silent_connections_are_not_kept"]),
    (
        "F17",
        &["f17_root_takes_no_settings_from_a_file_that_is_another_users"],
    ),
    (
        "F18",
        &["f18_a_set_id_program_writes_no_log_where_its_caller_says"],
    ),
    (
        "F19",
        &["f19_an_image_that_is_large_once_unpacked_is_not_unpacked_whole"],
    ),
    (
        "F20",
        &["f20_processes_that_changed_their_root_hide_no_program_past_the_limiter"],
    ),
    ("F21", &["f21_one_callers_requests_do_not_fill_the_log"]),
    ("F22", &["f22_no_user_reads_anothers_command_line"]),
    ("F23", &["f23_no_process_is_talked_to_in_anothers_folder"]),
];

/// The tests of the first eight findings on the level `enforced`.
const ENFORCED: [&str; 8] = [
    "enforced_f1_links_in_the_places_of_a_workers_sockets_lead_root_nowhere",
    "enforced_f2_neither_pipes_nor_variables_of_a_tenant_reach_root_or_its_worker",
    "enforced_f3_a_containers_root_has_two_sockets_and_can_give_them_nothing",
    "enforced_f4_processes_that_a_container_claims_are_no_ones_of_its_slice",
    "enforced_f5_an_agent_that_is_led_to_anothers_pages_changes_no_workers_limit",
    "enforced_f6_what_is_mounted_into_a_container_is_the_agents_alone",
    "enforced_f7_a_crowd_of_connections_keeps_no_program_from_its_worker",
    "enforced_f8_memory_that_a_program_shares_cannot_be_shortened",
];

/// The names of all tests of the workspace's Rust files below `folder`.
fn tests_below(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path: PathBuf = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(tests_below(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                is_test |= line == "#[test]";
                if let Some(name) = line.strip_prefix("fn ").and_then(|rest| rest.split('(').next())
                    && std::mem::take(&mut is_test)
                {
                    found.insert(name.to_owned());
                }
            }
        }
    }
    found
}

#[test]
fn every_finding_has_its_tests() {
    let there = tests_below(&workspace().join("tests/tests/attacks"));
    for (number, (finding, tests)) in TESTS.iter().enumerate() {
        assert_eq!(*finding, format!("F{}", number + 1));
        for test in *tests {
            assert!(there.contains(*test), "{finding}: there is no test {test}");
            assert!(
                test.starts_with(&format!("f{:02}_", number + 1)),
                "{test} is of another finding"
            );
        }
    }
    for (number, test) in (1..).zip(ENFORCED) {
        assert!(there.contains(test), "there is no test {test}");
        assert!(
            test.starts_with(&format!("enforced_f{number}_")),
            "{test} is of another finding"
        );
    }
    let named: BTreeSet<&str> = TESTS
        .iter()
        .flat_map(|(_, tests)| tests.iter().copied())
        .collect();
    let attacks = there
        .iter()
        .filter(|test| test.starts_with('f') && test[1..].starts_with(|c: char| c.is_ascii_digit()));
    for test in attacks {
        assert!(named.contains(test.as_str()), "{test} is in no row of the table");
    }
}

/// Rows of the threat model such as `| F3 | … | `f03_a_test` |`: each names tests that there are, and no finding is left out.
#[test]
fn the_threat_model_names_the_tests_that_there_are() {
    let text = std::fs::read_to_string(workspace().join("docs/threat-model.md")).expect("the page");
    let rows: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| F")?.split_once(" |"))
        .filter(|(number, _)| number.parse::<u32>().is_ok())
        .collect();
    if rows.is_empty() {
        println!("there is no table of findings yet");
        return;
    }
    let there: BTreeSet<String> = ["tests", "crates", "dropin", "xtask"]
        .iter()
        .flat_map(|folder| tests_below(&workspace().join(folder)))
        .collect();
    for (number, rest) in &rows {
        let named: Vec<&str> = rest
            .split('`')
            .skip(1)
            .step_by(2)
            .map(|name| name.rsplit("::").next().unwrap_or(name))
            // A test's name has several words; paths and commands stand in other columns.
            .filter(|name| name.matches('_').count() > 2 && !name.contains(['/', ' ', '.']))
            .collect();
        assert!(!named.is_empty(), "F{number} names no test");
        for name in named {
            assert!(there.contains(name), "F{number}: there is no test {name}");
        }
    }
    let numbers: BTreeSet<u32> = rows
        .iter()
        .filter_map(|(number, _)| number.parse().ok())
        .collect();
    assert_eq!(numbers, (1..=23).collect(), "findings in docs/threat-model.md");
    for test in ENFORCED {
        assert!(
            text.contains(&format!("`{test}`")),
            "docs/threat-model.md does not name {test}"
        );
    }
}
