//! What each slice used in the last looks, as one letter for each.

use std::collections::{HashMap, VecDeque};

use super::picture::{Item, Picture};

/// So many looks are kept.
const LOOKS: usize = 60;
/// From nothing to all of the device.
const LEVELS: [char; 9] = [' ', '.', ':', '-', '=', '+', '*', '%', '#'];

/// The use of each slice on each of its devices, the newest last.
#[derive(Clone, Debug, Default)]
pub struct History(HashMap<(String, String), VecDeque<Option<f64>>>);

fn key(item: &Item) -> (String, String) {
    (item.slice_id.clone(), item.device_uuid.clone())
}

impl History {
    /// Takes note of a look. Slices that are gone are forgotten.
    pub fn note(&mut self, picture: &Picture) {
        let here: Vec<_> = picture.items.iter().map(key).collect();
        self.0.retain(|of, _| here.contains(of));
        for (item, of) in picture.items.iter().zip(here) {
            let looks = self.0.entry(of).or_default();
            looks.push_back(item.use_1s());
            if looks.len() > LOOKS {
                looks.pop_front();
            }
        }
    }

    /// The last looks at a slice, at most `most` of them; a blank for each that there was not.
    pub fn drawn(&self, item: &Item, most: usize) -> String {
        let Some(looks) = self.0.get(&key(item)) else {
            return String::new();
        };
        let level = |used: &Option<f64>| {
            let top = (LEVELS.len() - 1) as f64;
            let at = used.unwrap_or(0.0).clamp(0.0, 1.0) * top;
            // Little is not nothing.
            LEVELS[at.ceil() as usize]
        };
        let shown: String = looks
            .iter()
            .skip(looks.len().saturating_sub(most))
            .map(level)
            .collect();
        format!("{shown:>most$}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(used: Option<f64>) -> Picture {
        let item = Item {
            slice_id: "a".into(),
            used_1s_ratio: used,
            ..Item::default()
        };
        Picture {
            items: vec![item],
            ..Picture::default()
        }
    }

    #[test]
    fn the_newest_is_the_last_and_the_oldest_go() {
        let mut history = History::default();
        for used in [Some(0.0), Some(0.01), Some(0.5), None, Some(1.0), Some(7.0)] {
            history.note(&picture(used));
        }
        let item = &picture(None).items[0];
        assert_eq!(history.drawn(item, 8), "   .= ##");
        assert_eq!(history.drawn(item, 2), "##");
        (0..1000).for_each(|_| history.note(&picture(Some(1.0))));
        assert_eq!(history.drawn(item, 100).trim_start().len(), LOOKS);
        history.note(&Picture::default());
        assert_eq!(history.drawn(item, 8), "");
    }
}
