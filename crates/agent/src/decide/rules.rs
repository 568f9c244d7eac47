//! The agent's rules for one caller, and the slices on devices: the input of every decision of admission.

use divvy_model::{Bytes, ComputeTerms, DeviceRecord, Fault};

use crate::decide::admission::{DeviceView, Hold};
use crate::decide::quota::{Having, Quota};
use crate::start::settings::Settings;

/// Memory in use on a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedOn {
    /// By all programs together.
    pub device: Bytes,
    /// By programs outside any slice.
    pub unmanaged: Bytes,
    /// Bytes held by no living process, as far as no ledger accounts for them.
    pub unheld: Bytes,
}

/// A slice with what it holds of each of its devices, by UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The slice's id.
    pub id: String,
    /// The accounts that it counts for: one, unless the user's ranges have changed since it was made.
    pub accounts: Vec<u32>,
    /// Its holds.
    pub holds: Vec<(String, Hold)>,
}

/// The slices that are inside no other: a nested slice is part of what its parent holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenants(pub Vec<Tenant>);

impl Tenants {
    /// The holds on a device.
    #[must_use]
    pub fn on(&self, device_uuid: &str) -> Vec<Hold> {
        let holds = self.0.iter().flat_map(|tenant| &tenant.holds);
        let here = holds.filter(|(uuid, _)| uuid == device_uuid);
        here.map(|(_, hold)| hold.clone()).collect()
    }

    fn of_account(&self, account: u32) -> Self {
        let own = self.0.iter().filter(|tenant| tenant.accounts.contains(&account));
        Self(own.cloned().collect())
    }

    /// The accounts that a slice counts for.
    #[must_use]
    pub fn accounts_of(&self, id: &str) -> &[u32] {
        let found = self.0.iter().find(|tenant| tenant.id == id);
        found.map_or(&[][..], |tenant| tenant.accounts.as_slice())
    }
}

/// The configuration, and the user that asks.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// The configuration.
    pub settings: &'a Settings,
    /// The user that asks.
    pub asker: u32,
    /// The account that it counts for.
    pub account: u32,
    /// The name of a user in a refusal.
    pub name_of: fn(u32) -> String,
}

impl Rules<'_> {
    /// A device as admission sees it.
    #[must_use]
    pub fn view<'d>(&self, device: &'d DeviceRecord, used: UsedOn, tenants: &Tenants) -> DeviceView<'d> {
        DeviceView {
            device,
            limits: self.settings.limits(device),
            asker: self.asker,
            holds: tenants.on(&device.uuid),
            unmanaged: used.unmanaged,
            unheld: used.unheld,
            name_of: self.name_of,
        }
    }

    /// The quota of each account.
    #[must_use]
    pub fn quota(&self) -> Quota {
        Quota {
            memory: self.settings.user_memory,
            slices: self.settings.user_slices,
            compute: self.settings.user_compute,
            name_of: self.name_of,
        }
    }

    /// Whether an account may have `more` bytes of `device`, in `new` new slices.
    ///
    /// # Errors
    /// [`divvy_model::Code::QuotaFull`].
    pub fn check_quota(
        &self,
        tenants: &Tenants,
        account: u32,
        device: &DeviceRecord,
        more: Bytes,
        new: u32,
    ) -> Result<(), Fault> {
        let own = tenants.of_account(account);
        let holds = own.on(&device.uuid);
        let having = Having {
            holds: holds.iter().collect(),
            slices: u32::try_from(own.0.len()).unwrap_or(u32::MAX),
        };
        self.quota().admit(account, &having, device, more, new)
    }

    /// Whether the device can promise so much of its time, and an account may have it. Slice `without` is to have this in
    /// place of its present terms.
    ///
    /// # Errors
    /// [`divvy_model::Code::ComputeFull`], [`divvy_model::Code::QuotaFull`].
    pub fn check_compute(
        &self,
        tenants: &Tenants,
        account: u32,
        device: &DeviceRecord,
        terms: &ComputeTerms,
        without: Option<&str>,
    ) -> Result<(), Fault> {
        let view = self.view(device, UsedOn::default(), tenants);
        view.admit_compute(terms, without)?;
        let own = tenants.of_account(account).on(&device.uuid);
        let holds: Vec<&Hold> = own
            .iter()
            .filter(|hold| Some(hold.id.as_str()) != without)
            .collect();
        self.quota().admit_compute(account, &holds, device, terms.share)
    }
}
