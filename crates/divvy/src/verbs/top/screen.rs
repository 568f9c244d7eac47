//! `divvy top` on a terminal: bars for each device, a row for each slice, and the terminal as it was, whatever ends it.

use std::io::Stdout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use divvy_model::{Bytes, Code, DeviceKind, Fault, ProcessRecord};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table};
use ratatui::{Frame, Terminal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Source;
use super::picture::{COLUMNS, Device, Item, Picture, percent};
use super::state::{Action, State, Talk};
use crate::verbs::devices::marked;

const HELP: &str = " q, Ctrl-C    leave
 s            sort by the next column
 /            show only slices whose names hold what is typed
 esc          show all of them again
 up, down     choose a slice
 p            show each slice's processes, or hide them again
 x            ask the programs of the chosen slice to end
 USE          of the device's time, over 1 and 10 seconds
 LAST         the same for each of the last looks, from nothing to all (#)
 WAIT         how much of the last second it waited
 DEBT         device time that it has to repay before its turn comes";

/// Puts the terminal back when it goes, also in a panic.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows it until a key or a signal ends it.
///
/// # Errors
/// [`Code::Internal`] when the terminal cannot be used; what the first look at the agent refuses.
pub fn show(source: &mut Source<'_>, mut state: State, interval: Duration) -> Result<(), Fault> {
    let unusable =
        |error: &std::io::Error| Fault::new(Code::Internal, "the terminal cannot be used").because(error);
    // Before the terminal is touched: a refusal is a refusal as anywhere.
    let mut picture = source.look()?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, ended.clone()).map_err(|error| unusable(&error))?;
    }
    state.coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    state.history.note(&picture);
    let mut terminal: Terminal<CrosstermBackend<Stdout>> =
        ratatui::try_init().map_err(|error| unusable(&error))?;
    let _restored = Restore;
    let mut looked = Instant::now();
    loop {
        picture.sort(state.order);
        terminal
            .draw(|frame| draw(frame, &picture, &state))
            .map_err(|error| unusable(&error))?;
        match wait(looked + interval, &ended).map_err(|error| unusable(&error))? {
            Some(Event::Key(key)) if key.kind != KeyEventKind::Release => match state.key(key, &picture) {
                Action::Leave => return Ok(()),
                Action::End(id) => {
                    if let Err(fault) = source.end(&id) {
                        state.talk = Talk::Said(fault.to_string());
                    }
                }
                Action::Draw => {}
            },
            Some(_) => {}
            None if ended.load(Ordering::Relaxed) => return Ok(()),
            None => {
                looked = Instant::now();
                match source.look() {
                    Ok(now) => {
                        picture = now;
                        state.history.note(&picture);
                    }
                    // The last picture stays: the agent may be back in a moment.
                    Err(fault) => state.talk = Talk::Said(fault.to_string()),
                }
            }
        }
    }
}

/// The next event; none at `until`, or when a signal has come.
fn wait(until: Instant, ended: &AtomicBool) -> std::io::Result<Option<Event>> {
    const LOOK: Duration = Duration::from_millis(50);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if ended.load(Ordering::Relaxed) || left.is_zero() {
            return Ok(None);
        }
        match event::poll(left.min(LOOK)) {
            Ok(true) => return event::read().map(Some),
            Ok(false) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Draws one picture. ASCII only; colour never carries meaning alone.
pub fn draw(frame: &mut Frame<'_>, picture: &Picture, state: &State) {
    let devices = u16::try_from(picture.devices.len()).unwrap_or(u16::MAX);
    // A line each, and never more than half of the screen.
    let devices = devices.min(frame.area().height / 2);
    let [head, bars, rows, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(devices),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let items = state.shown(picture);
    let title = fitting(
        &[
            "divvy top".into(),
            counted(picture.devices.len(), "device"),
            counted(items.len(), "slice"),
            format!("sorted by {}", state.order.name()),
        ],
        "   ",
        head.width,
    );
    frame.render_widget(Line::styled(title, Modifier::BOLD), head);
    let width = usize::from(bars.width);
    let lines: Vec<Line<'_>> = picture
        .devices
        .iter()
        .map(|device| Line::styled(line(device, width), state.colour(device_level(device))))
        .collect();
    frame.render_widget(Paragraph::new(lines), bars);
    let columns = columns_within(rows.width);
    let looks = usize::from(looks_within(rows.width));
    let titles = columns.iter().map(|at| match at {
        1 => cell("DEV", false),
        at => cell(COLUMNS[*at].0, COLUMNS[*at].1),
    });
    let titles = titles.chain((looks > 0).then(|| cell("LAST", true)));
    let head = Row::new(titles).style(Style::new().add_modifier(Modifier::REVERSED));
    // The chosen row is always in sight.
    let room = usize::from(rows.height.saturating_sub(1)).max(1);
    let first = state.chosen.saturating_sub(room - 1);
    let shown = items.iter().enumerate().skip(first).flat_map(|(at, item)| {
        let marks = if at == state.chosen {
            Modifier::UNDERLINED
        } else {
            Modifier::empty()
        };
        let cells = item.cells();
        let text = |at: &usize| cell(&cells[*at].replace(char::is_control, "?"), COLUMNS[*at].1);
        let cells = columns.iter().map(text);
        let cells = cells.chain((looks > 0).then(|| cell(&state.history.drawn(item, looks), true)));
        let row = Row::new(cells.collect::<Vec<_>>());
        let row = row.style(state.colour(slice_level(item)).add_modifier(marks));
        let processes = item.processes.iter().filter(|_| state.processes);
        [row]
            .into_iter()
            .chain(processes.map(|process| process_row(process, &columns)))
    });
    let widths = columns.iter().map(|at| match at {
        0 => Constraint::Min(WIDTHS[0]),
        at => Constraint::Length(WIDTHS[*at]),
    });
    let widths = widths.chain((looks > 0).then_some(Constraint::Length(looks as u16)));
    frame.render_widget(Table::new(shown, widths).header(head).column_spacing(1), rows);
    frame.render_widget(Line::raw(last_line(state, foot.width)), foot);
    if state.talk == Talk::Help {
        help(frame);
    }
}

/// How wide each of the columns is.
const WIDTHS: [u16; 10] = [12, 3, 16, 6, 6, 6, 5, 8, 8, 9];
/// The columns that a narrow screen does without: debt, 10 s, waiting, share, state, limit.
const SPARE: [usize; 6] = [6, 4, 5, 2, 9, 8];
/// The column of the memory in use.
const MEMORY: usize = 7;

/// The columns of a screen of this width. None is cut but the slices' names.
fn columns_within(width: u16) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..COLUMNS.len()).collect();
    for spare in SPARE {
        if needed(&columns) <= width {
            break;
        }
        columns.retain(|at| *at != spare);
    }
    columns
}

fn needed(columns: &[usize]) -> u16 {
    columns
        .iter()
        .map(|at| WIDTHS[*at] + 1)
        .sum::<u16>()
        .saturating_sub(1)
}

/// How many looks there is space for beside all columns.
fn looks_within(width: u16) -> u16 {
    let all: Vec<usize> = (0..COLUMNS.len()).collect();
    match width.saturating_sub(needed(&all) + 1) {
        0..10 => 0,
        left => left.min(60),
    }
}

/// A row for a process, below its slice's.
fn process_row(process: &ProcessRecord, columns: &[usize]) -> Row<'static> {
    let command = process.command.replace(char::is_control, "?");
    let cells = columns.iter().map(|at| match *at {
        0 => cell(&format!(" {} {command}", process.pid), false),
        MEMORY => cell(&process.memory_used_bytes.to_string(), true),
        _ => cell("", false),
    });
    Row::new(cells.collect::<Vec<_>>())
}

/// How near something is to its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Usual,
    /// Above nine tenths.
    High,
    /// At it, or held back.
    Full,
}

impl Level {
    fn of(used: f64) -> Self {
        match used {
            0.99.. => Self::Full,
            0.9.. => Self::High,
            _ => Self::Usual,
        }
    }
}

fn device_level(device: &Device) -> Level {
    Level::of(part(device.memory_used_bytes, device.memory_total_bytes))
}

fn slice_level(item: &Item) -> Level {
    match item.standing {
        "throttled" | "stuck" | "frozen" => Level::Full,
        _ => Level::of(part(item.memory_used_bytes, item.memory_limit_bytes)),
    }
}

fn part(used: Bytes, of: Bytes) -> f64 {
    match of.0 {
        0 => 0.0,
        total => used.0 as f64 / total as f64,
    }
}

impl State {
    fn colour(&self, level: Level) -> Style {
        match level {
            _ if !self.coloured => Style::new(),
            Level::Usual => Style::new(),
            Level::High => Style::new().fg(Color::Yellow),
            Level::Full => Style::new().fg(Color::Red),
        }
    }
}

fn cell(text: &str, right: bool) -> Cell<'static> {
    let line = Line::raw(text.to_owned());
    Cell::from(if right { line.right_aligned() } else { line })
}

/// `0 NVIDIA H100      time [#####.....]  50.0%  memory [##........] 20 GiB of 80 GiB`
fn line(device: &Device, width: usize) -> String {
    // What the words and numbers take; the rest is for the bars.
    let steps = (width.saturating_sub(70) / 2).clamp(8, 30);
    let memory = part(device.memory_used_bytes, device.memory_total_bytes);
    let used = device.busy_1s_ratio.or(device.used_1s_ratio);
    let name = device.name.replace(char::is_control, "?");
    let cut = |name: &str, most| name.chars().take(most).collect::<String>();
    let name = match device.kind {
        // `H100 [emulated]`: the maker is none.
        DeviceKind::Emulated => marked(cut(name.trim_start_matches("NVIDIA "), 5).trim_end(), true),
        _ => cut(&name, 16),
    };
    // Without space for bars the numbers stay, and before them the name goes.
    let numbers = format!(
        "{:>6}  {} of {}",
        percent(used),
        device.memory_used_bytes,
        device.memory_total_bytes
    );
    let all = format!(
        "{:<2} {name:<16} time {} {:>6}  memory {} {} of {}",
        device.index,
        bar(used.unwrap_or(0.0), steps),
        percent(used),
        bar(memory, steps),
        device.memory_used_bytes,
        device.memory_total_bytes
    );
    let named = format!("{:<2} {name:<16} {numbers}", device.index);
    let fits = |text: &String| text.chars().count() <= width;
    let found = [all, named].into_iter().find(fits);
    found.unwrap_or_else(|| format!("{:<2} {numbers}", device.index))
}

/// As many of the parts as fit, in their order.
fn fitting(parts: &[String], between: &str, width: u16) -> String {
    let mut text = String::new();
    for part in parts {
        let more = match text.is_empty() {
            true => part.clone(),
            false => format!("{between}{part}"),
        };
        if (text.chars().count() + more.chars().count()) > usize::from(width) {
            break;
        }
        text.push_str(&more);
    }
    text
}

fn bar(ratio: f64, steps: usize) -> String {
    let full = ((ratio * steps as f64).round().max(0.0) as usize).min(steps);
    format!("[{}{}]", "#".repeat(full), ".".repeat(steps - full))
}

fn last_line(state: &State, width: u16) -> String {
    match &state.talk {
        Talk::Keys | Talk::Help if state.filter.is_empty() => {
            let keys = ["q leave", "? help", "s sort", "/ filter", "p processes", "x end"];
            fitting(&keys.map(String::from), "  ", width)
        }
        Talk::Keys | Talk::Help => format!("slices with `{}`  esc shows all  ? help", state.filter),
        Talk::Filter => format!("/{}_", state.filter),
        Talk::End(_, name) => format!("end the programs of {name}? y ends them, any other key does not"),
        Talk::Said(text) => text.replace(char::is_control, " "),
    }
}

fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (72.min(area.width), 13.min(area.height));
    let over = Rect::new(
        (area.width - width) / 2,
        (area.height - height) / 2,
        width,
        height,
    );
    frame.render_widget(Clear, over);
    let border = ratatui::symbols::border::Set {
        top_left: "+",
        top_right: "+",
        bottom_left: "+",
        bottom_right: "+",
        vertical_left: "|",
        vertical_right: "|",
        horizontal_top: "-",
        horizontal_bottom: "-",
    };
    let block = Block::bordered().border_set(border).title(" any key goes back ");
    frame.render_widget(Paragraph::new(HELP).block(block), over);
}

/// So many of something, in words.
fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::super::order::Order;
    use super::*;
    use divvy_agent::api::compute::ComputeRecord;
    use divvy_model::{DeviceRecord, SliceRecord};
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};
    use serde_json::json;

    fn device(index: u32) -> DeviceRecord {
        serde_json::from_value(json!({
            "index": index, "uuid": format!("GPU-{index}a2b3c4d"), "name": "NVIDIA H100 80GB HBM3", "kind": "gpu",
            "pci_address": "0000:01:00.0", "memory_total_bytes": 80_u64 << 30, "memory_used_bytes": 20_u64 << 30,
            "sm_count": 132, "compute_capability": "9.0",
        }))
        .expect("a device")
    }

    fn slice(name: &str, gib: u64, more: &serde_json::Value) -> SliceRecord {
        let mut record = json!({
            "id": name, "name": name, "uid": 0, "device_uuid": "GPU-0a2b3c4d", "memory_limit_bytes": gib << 30,
            "memory_used_bytes": (gib << 30) / 2, "isolation": "cooperative", "policy": "strict", "created_at": "",
            "processes": [], "state": "running",
        });
        let more = more.as_object().expect("fields").clone();
        record.as_object_mut().expect("fields").extend(more);
        serde_json::from_value(record).expect("a slice")
    }

    fn compute(name: &str, standing: &str, used: u32, queued: u32, debt_ns: u64) -> ComputeRecord {
        serde_json::from_value(json!({
            "slice_id": name, "slice": name, "uid": 0, "device_uuid": "GPU-0a2b3c4d", "standing": standing,
            "cap": "soft", "class": "best_effort", "effective": used, "used_1s": used, "used_10s": used + 11,
            "queued_1s": queued, "queued_10s": queued, "waiting_ns": 0, "debt_ns": debt_ns, "charged_ns": 0,
            "leases": 1, "kernel_ns": 0, "in_flight_ns": 0, "launched": 1, "overdue_total": 0, "expired_total": 0,
            "uncharged_ns": 0,
        }))
        .expect("a record")
    }

    fn picture() -> Picture {
        let processes = json!([{"pid": 4711, "command": "python", "memory_used_bytes": 5_u64 << 30}]);
        let slices = vec![
            slice("train", 40, &json!({"compute": 7000, "processes": processes})),
            slice(
                "serve\u{1b}[2J",
                8,
                &json!({"compute": 3000, "compute_cap": "hard", "compute_class": "latency"}),
            ),
            slice(
                "turns",
                2,
                &json!({"share_mode": "timeslice", "replicas": 4, "device_uuid": "GPU-1a2b3c4d"}),
            ),
        ];
        let compute = vec![
            compute("train", "running", 6912, 2900, 0),
            compute("serve\u{1b}[2J", "throttled", 3001, 6999, 12_345_678),
        ];
        Picture::of(vec![device(0), device(1)], slices, compute)
    }

    fn drawn(width: u16, height: u16, state: &State) -> String {
        let mut picture = picture();
        picture.sort(state.order);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal
            .draw(|frame| draw(frame, &picture, state))
            .expect("drawn");
        terminal.backend().to_string()
    }

    fn press(state: &mut State, keys: &str) -> Action {
        let mut action = Action::Draw;
        let mut picture = picture();
        for key in keys.chars() {
            let code = match key {
                '\u{1b}' => KeyCode::Esc,
                '\n' => KeyCode::Enter,
                letter => KeyCode::Char(letter),
            };
            picture.sort(state.order);
            action = state.key(KeyEvent::from(code), &picture);
        }
        action
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!(counted(1, "device"), "1 device");
        assert_eq!(counted(0, "slice"), "0 slices");
    }

    #[test]
    fn a_small_screen_and_a_wide_one() {
        let state = State::new(Order::Use, false);
        insta::assert_snapshot!("top_80x24", drawn(80, 24, &state));
        insta::assert_snapshot!("top_60x10", drawn(60, 10, &state));
        insta::assert_snapshot!("top_40x8", drawn(40, 8, &state));
        let mut state = state;
        for _ in 0..3 {
            state.history.note(&picture());
        }
        state.processes = true;
        insta::assert_snapshot!("top_120x10", drawn(120, 10, &state));
        // Nothing is drawn outside of a screen that is too small for anything.
        for (width, height) in [(1, 1), (10, 2), (300, 3)] {
            drawn(width, height, &state);
        }
    }

    #[test]
    fn help_is_over_everything_and_goes_with_any_key() {
        let mut state = State::new(Order::Use, false);
        press(&mut state, "?");
        insta::assert_snapshot!("top_help", drawn(80, 24, &state));
        assert_eq!(press(&mut state, "q"), Action::Draw);
        assert_eq!(press(&mut state, "q"), Action::Leave);
    }

    #[test]
    fn keys_sort_filter_and_end_after_asking() {
        let mut state = State::new(Order::Use, false);
        press(&mut state, "sss");
        assert_eq!(state.order, Order::Debt);
        let screen = drawn(120, 10, &state);
        assert!(
            screen.find("serve").expect("shown") < screen.find("train").expect("shown"),
            "{screen}"
        );
        press(&mut state, "/tur\n");
        let screen = drawn(80, 10, &state);
        assert!(
            screen.contains("1/4 timeslice") && !screen.contains("train"),
            "{screen}"
        );
        press(&mut state, "\u{1b}");
        assert!(drawn(80, 10, &state).contains("train"));
        assert_eq!(press(&mut state, "jx"), Action::Draw);
        assert!(drawn(80, 10, &state).contains("end the programs of train?"));
        assert_eq!(press(&mut state, "n"), Action::Draw, "any other key does not");
        assert_eq!(press(&mut state, "xy"), Action::End("train".into()));
        let mut readonly = State::new(Order::Use, true);
        assert_eq!(press(&mut readonly, "xy"), Action::Draw);
    }
}
