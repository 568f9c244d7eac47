//! What a person has chosen to see in `divvy top`, and what each key does to that.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::history::History;
use super::order::Order;
use super::picture::{Item, Picture};

/// What stands in the last line, and takes the keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Talk {
    /// What keys there are.
    #[default]
    Keys,
    /// The help, over everything.
    Help,
    /// A filter is being typed.
    Filter,
    /// Whether to end this slice's programs: its id and its name.
    End(String, String),
    /// Something went wrong, or happened.
    Said(String),
}

/// What a key asks of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing but to be drawn.
    Draw,
    /// To leave.
    Leave,
    /// To end the programs of the slice of this id.
    End(String),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// What the slices are sorted by.
    pub order: Order,
    /// Only slices whose names hold this are shown.
    pub filter: String,
    /// Which row is chosen.
    pub chosen: usize,
    /// The last line.
    pub talk: Talk,
    /// No key changes anything.
    pub readonly: bool,
    /// Each slice's processes are shown below it.
    pub processes: bool,
    /// Colours are used, beside the words that say the same.
    pub coloured: bool,
    /// What the slices used before.
    pub history: History,
}

impl State {
    /// At the beginning.
    pub fn new(order: Order, readonly: bool) -> Self {
        Self {
            order,
            readonly,
            ..Self::default()
        }
    }

    /// The slices to be shown, in order.
    pub fn shown<'a>(&self, picture: &'a Picture) -> Vec<&'a Item> {
        let items = picture.items.iter();
        items.filter(|item| item.slice.contains(&self.filter)).collect()
    }

    /// What a key does.
    pub fn key(&mut self, key: KeyEvent, picture: &Picture) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Leave;
        }
        match (&self.talk, key.code) {
            (Talk::Filter, code) => self.type_filter(code),
            (Talk::End(id, _), KeyCode::Char('y')) => {
                let action = Action::End(id.clone());
                self.talk = Talk::Keys;
                return action;
            }
            (Talk::End(..) | Talk::Help | Talk::Said(_), _) => self.talk = Talk::Keys,
            (Talk::Keys, KeyCode::Char('q')) => return Action::Leave,
            (Talk::Keys, KeyCode::Esc) => self.filter.clear(),
            (Talk::Keys, KeyCode::Char('?' | 'h')) => self.talk = Talk::Help,
            (Talk::Keys, KeyCode::Char('/')) => self.talk = Talk::Filter,
            (Talk::Keys, KeyCode::Char('p')) => self.processes = !self.processes,
            (Talk::Keys, KeyCode::Char('s')) => self.order = self.order.next(),
            (Talk::Keys, KeyCode::Down | KeyCode::Char('j')) => self.chosen = self.chosen.saturating_add(1),
            (Talk::Keys, KeyCode::Up | KeyCode::Char('k')) => self.chosen = self.chosen.saturating_sub(1),
            (Talk::Keys, KeyCode::Char('x')) => {
                let item = self.shown(picture).get(self.chosen).copied().cloned();
                self.talk = match (item, self.readonly) {
                    (_, true) => Talk::Said("--readonly: nothing is changed from here".into()),
                    (None, _) => Talk::Said("no slice is chosen".into()),
                    (Some(item), _) => Talk::End(item.slice_id, item.slice),
                };
            }
            (Talk::Keys, _) => {}
        }
        let last = self.shown(picture).len().saturating_sub(1);
        self.chosen = self.chosen.min(last);
        Action::Draw
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Esc => {
                self.filter.clear();
                self.talk = Talk::Keys;
            }
            KeyCode::Enter => self.talk = Talk::Keys,
            _ => {}
        }
    }
}
