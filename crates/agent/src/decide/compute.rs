//! Promises of slices on their devices' time: which terms make sense, and how much each slice gets where slices are
//! nested. The arbiter says which slices fit beside each other ([`divvy_arbiter::Promises`]). docs/adr/0026.

use std::collections::BTreeMap;

use divvy_arbiter::{Part, Share, Terms};
use divvy_model::{Cap, Class, Code, Compute, ComputeTerms, Fault, Mode, SliceRecord, Weight};

use crate::decide::family::Family;
use crate::decide::held::is_leased;

/// Refuses terms that make no sense on any device and for any user.
///
/// # Errors
/// [`Code::BadCompute`].
pub fn check(terms: &ComputeTerms) -> Result<(), Fault> {
    let refused = |message: &str, hint: &str| Err(Fault::new(Code::BadCompute, message).hint(hint));
    if terms.share == Some(Compute(0)) {
        return refused(
            "a share of 0% could never run",
            "ask for more than 0%; without --compute a slice has its part of what no slice is promised",
        );
    }
    if terms.share.is_some_and(|share| share > Compute::WHOLE) {
        return refused("a share is at most 100%", "ask for 100% or less");
    }
    if terms
        .weight
        .is_some_and(|weight| weight.0 == 0 || weight > Weight::MAX)
    {
        return refused("a weight is from 1 to 10000", "100 is what others have");
    }
    if terms.share.is_some() && terms.weight.is_some() {
        return refused(
            "a slice has a share or a weight, not both",
            "--compute promises so much of the device; --weight divides what is not promised",
        );
    }
    Ok(())
}

/// Refuses terms that promise something without saying how much.
///
/// # Errors
/// [`Code::BadCompute`].
pub fn check_promise(terms: &ComputeTerms) -> Result<(), Fault> {
    if terms.share.is_some() {
        return Ok(());
    }
    let refused = |message: &str| {
        Err(Fault::new(Code::BadCompute, message).hint("say how much: --compute 30%, for example"))
    };
    match (terms.cap, terms.class) {
        (Cap::Hard, _) => refused("a hard cap needs a share"),
        (_, Class::Latency) => refused("the latency class needs a share: its work goes first within that"),
        _ => Ok(()),
    }
}

/// These terms as the arbiter knows them.
#[must_use]
pub fn for_arbiter(terms: &ComputeTerms) -> Terms {
    let part = match terms.share.and_then(|share| Share::new(share.0)) {
        Some(share) => Part::Share(share),
        None => Part::Weight(terms.weight.unwrap_or_default().0.max(1)),
    };
    with_part(terms, part)
}

fn with_part(terms: &ComputeTerms, part: Part) -> Terms {
    Terms {
        part,
        cap: match terms.cap {
            Cap::Soft => divvy_arbiter::Cap::Soft,
            Cap::Hard => divvy_arbiter::Cap::Hard,
        },
        class: match terms.class {
            Class::BestEffort => divvy_arbiter::Class::BestEffort,
            Class::Latency => divvy_arbiter::Class::LATENCY,
        },
    }
}

/// Divides a part between its owner, which comes first, and the slices inside it. A share is a share of the whole part.
/// A slice without a share divides the rest by weight. Each gets something as long as there is one unit for each;
/// together they get no more than there is.
fn divide(part: Part, owner: Weight, inside: &[ComputeTerms]) -> Vec<Part> {
    let whole = match part {
        Part::Share(share) => u64::from(share.parts()),
        Part::Weight(weight) => u64::from(weight),
    };
    let of_whole = |share: Compute| whole * u64::from(share.0) / u64::from(Compute::WHOLE.0);
    let promised: u64 = inside.iter().filter_map(|terms| terms.share).map(of_whole).sum();
    let rest = whole.saturating_sub(promised);
    let weight_of = |terms: &ComputeTerms| match terms.share {
        Some(_) => 0,
        None => u64::from(terms.weight.unwrap_or_default().0),
    };
    let owner = u64::from(owner.0);
    let weights = owner + inside.iter().map(weight_of).sum::<u64>();
    let by_weight = |weight: u64| rest * weight / weights.max(1);
    let mut units = vec![by_weight(owner)];
    units.extend(inside.iter().map(|terms| match terms.share {
        Some(share) => of_whole(share),
        None => by_weight(weight_of(terms)),
    }));
    for unit in &mut units {
        *unit = (*unit).max(1);
    }
    // The largest parts give up what the smallest were rounded up by.
    while units.iter().sum::<u64>() > whole {
        match units.iter_mut().max() {
            Some(largest) if *largest > 1 => *largest -= 1,
            _ => break,
        }
    }
    let as_part = |units: u64| {
        let units = u16::try_from(units).unwrap_or(u16::MAX);
        match part {
            Part::Share(_) => Part::Share(Share::new(units).unwrap_or(Share::WHOLE)),
            Part::Weight(_) => Part::Weight(units),
        }
    };
    units.into_iter().map(as_part).collect()
}

impl Family<'_> {
    /// How much each slice gets on each of its devices, by id: nested slices divide the outermost slice's part. A slice
    /// that gets no leases (the `env` isolation level, a whole device, another way of sharing) is not in the result.
    pub fn compute_terms(&self) -> BTreeMap<String, Terms> {
        let mut found = BTreeMap::new();
        for record in self.outermost().filter(|record| is_leased(record)) {
            let part = for_arbiter(&record.terms.compute).part;
            self.divide_inside(record, part, record.terms.compute.cap, &mut found);
        }
        found
    }

    /// A slice's cap is that of its outermost slice: all slices inside a hard cap are under it, and no others.
    fn divide_inside(&self, record: &SliceRecord, part: Part, cap: Cap, found: &mut BTreeMap<String, Terms>) {
        let inside: Vec<&SliceRecord> = self.inside(&record.id).collect();
        let terms: Vec<ComputeTerms> = inside.iter().map(|record| record.terms.compute).collect();
        let owner = match record.terms.compute.share {
            Some(_) => Weight::default(),
            None => record.terms.compute.weight.unwrap_or_default(),
        };
        let mut parts = match terms.is_empty() {
            true => vec![part],
            false => divide(part, owner, &terms),
        }
        .into_iter();
        let own = parts.next().unwrap_or(part);
        let terms = ComputeTerms {
            cap,
            ..record.terms.compute
        };
        found.insert(record.id.clone(), with_part(&terms, own));
        for (record, part) in inside.into_iter().zip(parts) {
            self.divide_inside(record, part, cap, found);
        }
    }

    /// The terms of a slice inside `parent`, if the parent has that much left. `without` is a slice inside it that is
    /// to have these terms instead of its own.
    ///
    /// # Errors
    /// [`Code::BadCompute`], [`Code::SliceFull`].
    pub fn compute_inside(
        &self,
        parent: &str,
        terms: ComputeTerms,
        without: Option<&str>,
    ) -> Result<ComputeTerms, Fault> {
        let Some(above) = self.get(parent) else {
            return Ok(terms);
        };
        let name = &above.name;
        let of_above = above.terms.compute;
        if above.terms.sharing.mode != Mode::Lease && !terms.is_default() {
            let message = format!(
                "slice {name} has no leases to divide: it shares by {}",
                above.terms.sharing.mode
            );
            return Err(Fault::new(Code::BadCompute, message)
                .hint("leave --compute, --cap, --class and --weight out"));
        }
        let refused = |message: String, hint: String| Err(Fault::new(Code::BadCompute, message).hint(hint));
        if terms.class == Class::Latency && of_above.class != Class::Latency {
            return refused(
                format!("nothing inside slice {name} is latency-critical, because it is not"),
                format!("`divvy resize {name} --compute SHARE --class latency` first"),
            );
        }
        if terms.cap == Cap::Hard && of_above.cap == Cap::Soft {
            return refused(
                format!("a hard cap inside slice {name} needs a hard cap around it"),
                format!("`divvy resize {name} --compute SHARE --cap hard` first, or leave --cap out"),
            );
        }
        let others = self
            .inside(parent)
            .filter(|record| Some(record.id.as_str()) != without);
        let promised: u32 = others
            .filter_map(|record| record.terms.compute.share)
            .map(|share| u32::from(share.0))
            .sum();
        let free = u32::from(Compute::WHOLE.0).saturating_sub(promised);
        let free = Compute(u16::try_from(free).unwrap_or(u16::MAX));
        if let Some(share) = terms.share.filter(|share| *share > free) {
            return Err(Fault::new(
                Code::SliceFull,
                format!("cannot promise {share} of slice {name}'s compute inside it"),
            )
            .hint(format!("{free} is free in it; see divvy ps")));
        }
        Ok(ComputeTerms {
            cap: of_above.cap,
            ..terms
        })
    }
}

/// Refuses user `uid` a weight that takes from other users, unless the caller is root or the agent's own user `agent`.
///
/// # Errors
/// [`Code::NotAllowed`].
pub fn check_weight(uid: u32, agent: u32, terms: &ComputeTerms) -> Result<(), Fault> {
    let usual = Weight::default();
    if terms.weight.is_none_or(|weight| weight <= usual) || uid == agent || uid == 0 {
        return Ok(());
    }
    Err(Fault::new(
        Code::NotAllowed,
        format!("only root and the agent's own user give a weight above {usual}"),
    )
    .hint(format!("ask for {usual} or less, or for a share: --compute 30%")))
}

/// The arbiter's name for a cap of the records.
#[must_use]
pub fn cap_of(terms: &Terms) -> Cap {
    match terms.cap {
        divvy_arbiter::Cap::Soft => Cap::Soft,
        divvy_arbiter::Cap::Hard => Cap::Hard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(parts: u16) -> ComputeTerms {
        ComputeTerms {
            share: Some(Compute(parts)),
            ..ComputeTerms::default()
        }
    }

    fn parts(parts: &[Part]) -> Vec<u16> {
        let number = |part: &Part| match part {
            Part::Share(share) => share.parts(),
            Part::Weight(weight) => *weight,
        };
        parts.iter().map(number).collect()
    }

    #[test]
    fn invalid_terms_are_refused() {
        let weight = |weight| ComputeTerms {
            weight: Some(Weight(weight)),
            ..ComputeTerms::default()
        };
        for terms in [share(0), share(10_001), weight(0), weight(10_001)] {
            assert_eq!(check(&terms).expect_err("nonsense").code, Code::BadCompute);
        }
        let both = ComputeTerms {
            weight: Some(Weight(1)),
            ..share(1)
        };
        assert!(check(&both).expect_err("two ways").message.contains("not both"));
        check(&share(1)).expect("a little");
        check(&weight(10_000)).expect("much");
        let hard = |terms| ComputeTerms {
            cap: Cap::Hard,
            ..terms
        };
        let latency = |terms| ComputeTerms {
            class: Class::Latency,
            ..terms
        };
        for terms in [hard(weight(5)), latency(ComputeTerms::default())] {
            let refusal = check_promise(&terms).expect_err("nothing is promised");
            assert!(refusal.message.contains("needs a share"), "{refusal:?}");
        }
        check_promise(&hard(latency(share(1)))).expect("a promise");
    }

    #[test]
    fn a_part_is_divided_and_never_exceeded() {
        let of = |whole, inside: &[ComputeTerms]| {
            let whole = Part::Share(Share::new(whole).expect("a share"));
            parts(&divide(whole, Weight::default(), inside))
        };
        assert_eq!(of(4000, &[share(5000)]), [2000, 2000]);
        assert_eq!(
            of(4000, &[share(5000), ComputeTerms::default()]),
            [1000, 2000, 1000]
        );
        assert_eq!(of(4000, &[share(10_000)]), [1, 3999], "the owner keeps a foot in");
        assert_eq!(of(4000, &[share(6000), share(4000)]), [1, 2399, 1600]);
        assert_eq!(of(1, &[share(5000)]), [1, 1], "less than a unit each");
        let weights = divide(
            Part::Weight(100),
            Weight(100),
            &[share(2500), ComputeTerms::default()],
        );
        assert_eq!(parts(&weights), [37, 25, 37]);
    }
}
