//! Placement: looks at the host, so that [`crate::decide::placement`] and [`crate::decide::nesting`] can decide.

use std::collections::HashSet;
use std::sync::Arc;

use divvy_host::Nvidia;
use divvy_model::{DeviceRecord, Fault, Isolation, ModeTerms};

use crate::admission::asked::asked;
use crate::admission::claims::Claims;
use crate::admission::wanted::Wanted;
use crate::decide::nesting::{Parent, gone};
use crate::decide::placement::{Host, Placed, Question, Sight, candidates};
use crate::decide::queue::Ahead;
use crate::decide::rules::Rules;
use crate::life::names::user_name;
use crate::lookout::audit::MemoryAudit;
use crate::lookout::silence::DriverWatch;
use crate::start::settings::{Current, Settings};
use crate::state::State;
use crate::system::peer::Peer;

/// Finds places for slices.
pub(crate) struct Placing {
    pub settings: Arc<Current>,
    pub nvidia: Arc<Nvidia>,
    pub claims: Arc<Claims>,
    pub audit: Arc<MemoryAudit>,
    pub driver: Arc<DriverWatch>,
}

struct Looks<'a>(&'a Placing, &'a mut State);

impl Host for Looks<'_> {
    fn check_owner(&mut self, device: &DeviceRecord) -> Result<(), Fault> {
        self.0.claims.check(self.1, device)
    }

    fn look(&mut self, device: &DeviceRecord) -> Result<Sight, Fault> {
        let used = self.0.audit.used_on(self.1, device);
        self.0.driver.require_answers(device)?;
        Ok(Sight {
            used,
            tenants: self.1.tenants(),
        })
    }
}

impl Placing {
    /// The agent's rules for a user.
    pub fn rules<'a>(settings: &'a Settings, state: &State, asker: u32) -> Rules<'a> {
        Rules {
            settings,
            asker,
            account: state.accounts.one(asker),
            name_of: user_name,
        }
    }

    /// The devices that a request gets, with its share of each. Named devices are taken all or none; without names it
    /// gets the first candidate with space.
    ///
    /// # Errors
    /// The reason why none will do.
    pub fn place(
        &self,
        state: &mut State,
        peer: Peer,
        wanted: &Wanted,
        isolation: Isolation,
        ahead: &Ahead,
    ) -> Result<Placed, Fault> {
        state.inventory.refresh(&self.nvidia);
        let asked = asked(&mut state.inventory, &wanted.ask)?;
        let settings = self.settings.get();
        let rules = Self::rules(&settings, state, peer.uid);
        if let Some(id) = &wanted.parent {
            let slice = state.slices.get_mut(id).ok_or_else(gone)?;
            let usages = slice.usages();
            let parent = Parent {
                record: &slice.record,
                used: usages.iter().map(|usage| usage.used).collect(),
                is_unknown: usages.iter().any(|usage| usage.unknown),
            };
            return parent.place(&rules, &state.inventory, &asked, ahead);
        }
        let question = Question {
            rules,
            request: asked.request,
            isolation,
            ahead,
        };
        let candidates = candidates(&state.inventory, &asked)?;
        let (inventory, tenants) = (state.inventory.clone(), state.tenants());
        question.place(&inventory, candidates, &tenants, &mut Looks(self, state))
    }

    /// The devices that a request may get, by UUID.
    pub fn candidates(&self, state: &mut State, wanted: &Wanted) -> HashSet<String> {
        let asked = asked(&mut state.inventory, &wanted.ask);
        let devices = asked.and_then(|asked| candidates(&state.inventory, &asked));
        let devices = devices.unwrap_or_default().into_iter().flatten();
        devices.map(|device| device.uuid).collect()
    }

    /// How a new slice shares the devices that were found for it.
    ///
    /// # Errors
    /// As [`Question::mode_of`].
    pub fn mode_of<'d>(
        &self,
        state: &State,
        uid: u32,
        devices: impl IntoIterator<Item = &'d DeviceRecord>,
        wanted: &Wanted,
        isolation: Isolation,
    ) -> Result<ModeTerms, Fault> {
        let settings = self.settings.get();
        let question = Question {
            rules: Self::rules(&settings, state, uid),
            request: &wanted.ask.request,
            isolation,
            ahead: &Ahead::default(),
        };
        question.mode_of(devices, &state.tenants())
    }
}
