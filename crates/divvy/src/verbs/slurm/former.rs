//! A slice that is there before its job starts on the node. It may be the job's own, where slurmd runs a prolog again, or that of
//! an earlier job with the same number: Slurm's numbers begin again when its controller has lost its state.

use divvy_model::{MemoryAmount, SliceRecord, SliceRequest};

use super::job::Job;

/// Why a slice of this job's number is not the one that the job is to have: the end of a sentence about the slice. None where the
/// job runs and has it.
///
/// `has_steps` says whether a step of the job runs on this host.
pub fn difference(job: &Job, request: &SliceRequest, slice: &SliceRecord, has_steps: bool) -> Option<String> {
    let restarts = slice.job.as_ref().map_or(0, |before| before.restarts);
    if slice.uid != job.uid {
        return Some(format!("is of user {}, and the job is of {}", slice.uid, job.uid));
    }
    if restarts != job.restarts {
        return Some(format!(
            "is of a job that was requeued {restarts} times, and this one was {} times",
            job.restarts
        ));
    }
    if !has_steps {
        return Some("has no step of the job, which is about to start".into());
    }
    let asked: Vec<String> = request.selectors().map(ToString::to_string).collect();
    let has: Vec<&str> = slice
        .shares
        .iter()
        .map(|share| share.device_uuid.as_str())
        .collect();
    if asked != has {
        return Some(format!(
            "is of {}, and the job has {}",
            has.join(","),
            asked.join(",")
        ));
    }
    if request.terms.whole != slice.terms.whole {
        let kind = |whole| if whole { "whole devices" } else { "a part of them" };
        return Some(format!(
            "has {}, and the job has {}",
            kind(slice.terms.whole),
            kind(request.terms.whole)
        ));
    }
    if let Some(MemoryAmount::Bytes(asked)) = request.memory
        && let Some(other) = slice
            .shares
            .iter()
            .find(|share| share.memory_limit_bytes != asked)
    {
        return Some(format!(
            "has {} of memory, and the job has {asked}",
            other.memory_limit_bytes
        ));
    }
    let (asked, has) = (&request.terms.compute, &slice.terms.compute);
    if !request.terms.whole && (asked.share, asked.cap) != (has.share, has.cap) {
        return Some(format!("has {has} of the time, and the job has {asked}"));
    }
    (!request.isolation_unasked && request.terms.isolation != slice.terms.isolation).then(|| {
        format!(
            "is {}, and the node's file says {}",
            slice.terms.isolation, request.terms.isolation
        )
    })
}

#[cfg(test)]
mod tests {
    use divvy_model::{Bytes, Cap, Compute, DeviceShare, Isolation, Shares};

    use super::*;

    fn job() -> Job {
        Job {
            id: 7,
            uid: 1001,
            node: "n1".into(),
            restarts: 0,
            has_devices: true,
        }
    }

    fn request() -> SliceRequest {
        let mut request = SliceRequest {
            memory: Some(MemoryAmount::Bytes(Bytes(8 << 30))),
            isolation_unasked: true,
            ..SliceRequest::default()
        };
        request.terms.compute.share = Some(Compute(1000));
        request.select(vec!["GPU-a".parse().expect("a device")]);
        request
    }

    fn slice() -> SliceRecord {
        let share = DeviceShare {
            device_uuid: "GPU-a".into(),
            memory_limit_bytes: Bytes(8 << 30),
            ..DeviceShare::default()
        };
        let mut slice = SliceRecord {
            uid: 1001,
            job: Some(job().record()),
            shares: Shares {
                first: share,
                further: Vec::new(),
            },
            ..SliceRecord::default()
        };
        slice.terms.compute.share = Some(Compute(1000));
        slice
    }

    #[test]
    fn a_job_that_runs_keeps_its_slice() {
        assert_eq!(difference(&job(), &request(), &slice(), true), None);
    }

    #[test]
    fn a_slice_of_an_earlier_job_with_the_number_is_none_of_this_one() {
        type Change = fn(&mut SliceRecord);
        let changes: [(&str, Change); 8] = [
            ("of user 1002", |slice| slice.uid = 1002),
            ("requeued 3 times", |slice| {
                slice.job.as_mut().expect("a job").restarts = 3;
            }),
            ("is of GPU-b", |slice| {
                slice.shares.first.device_uuid = "GPU-b".into();
            }),
            ("is of GPU-a,GPU-b", |slice| {
                slice.shares.further.push(DeviceShare {
                    device_uuid: "GPU-b".into(),
                    memory_limit_bytes: Bytes(8 << 30),
                    ..DeviceShare::default()
                });
            }),
            ("has whole devices", |slice| slice.terms.whole = true),
            ("has 4 GiB of memory", |slice| {
                slice.shares.first.memory_limit_bytes = Bytes(4 << 30);
            }),
            ("20% of the time", |slice| {
                slice.terms.compute.share = Some(Compute(2000));
            }),
            ("hard of the time", |slice| slice.terms.compute.cap = Cap::Hard),
        ];
        for (said, change) in changes {
            let mut other = slice();
            change(&mut other);
            let why = difference(&job(), &request(), &other, true).unwrap_or_else(|| panic!("{said}"));
            assert!(why.contains(said), "{said}: {why}");
        }
        let mut asked = request();
        asked.isolation_unasked = false;
        asked.terms.isolation = Isolation::Supervised;
        let why = difference(&job(), &asked, &slice(), true).expect("another level");
        assert!(why.contains("supervised"), "{why}");
        let why = difference(&job(), &request(), &slice(), false).expect("it has not started");
        assert!(why.contains("no step"), "{why}");
    }
}
