//! What a device is to hold, from the instances that are asked for and what is to be in each.

use divvy_model::{Code, Fault};

use super::compute::Filled;
use super::geometry::Shapes;
use super::plan::Goal;

/// The goal of a device that is to hold exactly these.
///
/// # Errors
/// [`Code::MigRequest`] for a place that a profile cannot begin at; [`Code::MigFit`] for two that overlap or are more than
/// the device holds.
pub fn goal(shapes: &Shapes, wanted: &[Filled], device: &str) -> Result<Goal, Fault> {
    let geometry = &shapes.geometry;
    let mut goal = Goal {
        counts: vec![0; geometry.profiles.len()],
        pinned: 0,
        exact: true,
    };
    for one in wanted {
        let profile = one.profile;
        let kind = &geometry.profiles[profile];
        goal.counts[profile] = goal.counts[profile].saturating_add(1);
        if goal.counts[profile] > kind.max {
            return Err(Fault::new(
                Code::MigFit,
                format!("{device} holds at most {} of {}", kind.max, kind.name),
            )
            .hint("`divvy gpu mig list` shows how many of each profile a device holds"));
        }
        let Some(start) = one.start else { continue };
        let place = shapes.place(profile, start).ok_or_else(|| {
            let starts: Vec<String> = kind.starts.iter().map(u8::to_string).collect();
            Fault::new(
                Code::MigRequest,
                format!("{} cannot begin at memory slice {start}", kind.name),
            )
            .hint(format!("it can begin at {}", starts.join(", ")))
        })?;
        if !shapes.fits(goal.pinned, place) {
            return Err(Fault::new(
                Code::MigFit,
                format!(
                    "{}:{start} overlaps another instance that is asked for on {device}",
                    kind.name
                ),
            )
            .hint("leave the place out, and one is found"));
        }
        goal.pinned |= 1 << place;
    }
    Ok(goal)
}
