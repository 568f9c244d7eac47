//! Barriers of a kernel that is checked: which lanes came to each, and which of a warp's did not.

use super::findings::Kind;
use super::launch::Launched;
use super::race::Who;
use super::state::Arrival;
use divvy_ptx::WarpAt;

impl Launched<'_> {
    /// Lanes of a warp have come to a barrier.
    pub fn arrived(&self, at: &WarpAt, id: u32, count: u32, waits: bool, aligned: bool) {
        let threads = self.identity.threads();
        if !count.is_multiple_of(32) || count > threads.next_multiple_of(32) {
            self.report(Kind::Barrier, at, at.lanes, || {
                let message = match count % 32 {
                    0 => format!("barrier {id} awaits {count} threads, and the block has {threads}"),
                    _ => format!(
                        "barrier {id} awaits {count} threads, which is not a multiple of the warp's 32"
                    ),
                };
                (message, None)
            });
        }
        let warps = self.warps();
        let mut state = self.state();
        let arrival = Arrival {
            at: *at,
            count,
            waits,
            aligned,
            went_on: 0,
        };
        state
            .running(at, warps)
            .arrived
            .entry(id)
            .or_default()
            .push(arrival);
    }

    /// A barrier opens: those that wait at it go on.
    pub fn opened(&self, slot: u64, id: u32) {
        let mut state = self.state();
        let Some(running) = state.blocks.get_mut(&slot) else {
            return;
        };
        let arrivals = running.arrived.remove(&id).unwrap_or_default();
        let mut warps: Vec<(u32, bool)> = Vec::new();
        for arrival in &arrivals {
            match warps.iter_mut().find(|(warp, _)| *warp == arrival.at.warp) {
                Some((_, waits)) => *waits |= arrival.waits,
                None => warps.push((arrival.at.warp, arrival.waits)),
            }
        }
        let came: Vec<u32> = warps.iter().map(|(warp, _)| *warp).collect();
        // Where every thread is awaited, those that did not come have ended: what they did is over.
        if arrivals.iter().all(|arrival| arrival.count == 0) {
            let all = 0..running.clocks.warps();
            warps.extend(all.filter(|warp| !came.contains(warp)).map(|warp| (warp, false)));
        }
        running.clocks.barrier(&warps);
        drop(state);
        for warp in came {
            self.divergence(
                id,
                warp,
                arrivals.iter().filter(|arrival| arrival.at.warp == warp),
            );
        }
    }

    /// A warp passes a barrier that not all of its threads came to, or not together.
    fn divergence<'b>(&self, id: u32, warp: u32, arrivals: impl Iterator<Item = &'b Arrival>) {
        let arrivals: Vec<&Arrival> = arrivals.filter(|arrival| arrival.aligned).collect();
        let Some(first) = arrivals.first() else { return };
        let threads = self.identity.threads() - warp * 32;
        let all = if threads >= 32 {
            u32::MAX
        } else {
            (1 << threads) - 1
        };
        let came = arrivals.iter().fold(0, |lanes, arrival| lanes | arrival.at.lanes);
        let went_on = arrivals.iter().fold(0, |lanes, arrival| lanes | arrival.went_on) & !came;
        let elsewhere = arrivals
            .iter()
            .find(|arrival| arrival.at.instruction != first.at.instruction);
        let (count, of) = (first.at.lanes.count_ones(), all.count_ones());
        if let Some(other) = elsewhere {
            self.report(Kind::Barrier, &first.at, first.at.lanes, || {
                let place = self.identity.site(
                    Who {
                        block: other.at.block,
                        thread: warp * 32 + other.at.lanes.trailing_zeros(),
                    },
                    other.at.instruction,
                );
                let line = place.source.unwrap_or_else(|| format!("PTX line {}", place.ptx_line));
                let message = format!(
                    "barrier {id} is reached by {count} of the warp's {of} threads, while others of the warp are at \
                     the barrier at {line}"
                );
                (message, None)
            });
        } else if went_on != 0 {
            self.report(Kind::Barrier, &first.at, came, || {
                let message = format!(
                    "barrier {id} is reached by {} of the warp's {of} threads, and {} others went on without it",
                    came.count_ones(),
                    went_on.count_ones()
                );
                (message, None)
            });
        }
    }
}
