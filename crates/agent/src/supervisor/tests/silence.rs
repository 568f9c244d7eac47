//! A driver that hangs: it keeps nothing frozen, it does not keep the agent from its end, and what it says too late touches
//! nothing.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use divvy_host::nvidia::{DeviceUse, NvidiaLibrary, NvidiaReport};
use divvy_host::{Nvidia, Nvlinks};
use divvy_model::{Bytes, Hardware, OnOveruse};

use super::whole::{DEVICE, MIB, MS, Whole, lives, pass, supervised};
use super::{Shell, is_stopped, until};
use crate::api::events::EventKind;
use crate::life::slice::Slice;

const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Figures {
    held: Vec<(u32, u64)>,
    hangs: bool,
    /// A question waits for its answer.
    is_asked: bool,
}

/// A driver's library that can be made to hang and to come back.
#[derive(Clone, Default)]
struct Driver(Arc<(Mutex<Figures>, Condvar)>);

impl Driver {
    fn set(&self, change: impl FnOnce(&mut Figures)) {
        change(&mut self.0.0.lock().expect("no panic"));
        self.0.1.notify_all();
    }

    fn is_asked(&self) -> bool {
        self.0.0.lock().expect("no panic").is_asked
    }
}

impl NvidiaLibrary for Driver {
    fn report(&self) -> NvidiaReport {
        NvidiaReport::default()
    }

    fn usage(&self, _uuid: &str) -> DeviceUse {
        let mut figures = self.0.0.lock().expect("no panic");
        figures.is_asked = true;
        let mut figures = self
            .0
            .1
            .wait_while(figures, |figures| figures.hangs)
            .expect("no panic");
        figures.is_asked = false;
        let held = figures.held.iter();
        DeviceUse {
            used: None,
            processes: held.map(|(pid, held)| (*pid, Some(Bytes(*held)))).collect(),
        }
    }

    fn cuda_version(&self) -> Option<(u32, u32)> {
        None
    }

    fn utilization(&self, _uuid: &str) -> Vec<(u32, u32)> {
        Vec::new()
    }

    fn facts(&self, _uuid: &str) -> Hardware {
        Hardware::default()
    }

    fn links(&self) -> Nvlinks {
        Nvlinks::new()
    }
}

/// A slice that is to be frozen, on a driver that waits so long for an answer.
struct Scene {
    whole: Whole,
    driver: Driver,
    shell: Shell,
    outside: Shell,
    /// The slice's process, and one of no slice.
    pids: [u32; 2],
}

impl Scene {
    fn of(time_limit: Duration) -> Self {
        let driver = Driver::default();
        let library = driver.clone();
        let whole = Whole::over(Nvidia::over(move || library, LONG, time_limit));
        let (mut shell, mut outside) = (Shell::start(), Shell::start());
        let pids = [shell.spawn(), outside.spawn()];
        let mut record = supervised("0123abcd", &shell);
        record.terms.on_overuse = OnOveruse::Freeze;
        let mut state = whole.daemon.state.lock();
        state.inventory.devices.push(whole.device.clone());
        state.owned.insert(DEVICE.into());
        let slice = Slice::new(
            record.clone(),
            record.page_server_pid,
            std::slice::from_ref(&whole.device),
        );
        state.slices.insert(record.id.clone(), slice);
        drop(state);
        driver.set(|figures| figures.held = pids.map(|pid| (pid, 3000 * MIB)).to_vec());
        Self {
            whole,
            driver,
            shell,
            outside,
            pids,
        }
    }

    /// Looks until the slice's process is stopped, or goes on.
    fn look_until(&self, stopped: bool) {
        until(|| {
            pass(100 * MS);
            self.whole.supervisor.look();
            std::thread::sleep(Duration::from_millis(2));
            is_stopped(self.pids[0]) == stopped
        });
    }

    fn assert_all_live(&self) {
        let shells = [&self.shell, &self.outside].map(|shell| shell.child.id());
        assert!(self.pids.into_iter().chain(shells).all(lives));
        assert!(!is_stopped(self.pids[1]), "it is in no slice");
        assert!(!self.whole.has(EventKind::OveruseEnded));
    }
}

#[test]
fn what_is_frozen_goes_on_while_the_driver_hangs_and_is_frozen_again_when_it_answers() {
    let scene = Scene::of(SOON);
    scene.look_until(true);
    scene.driver.set(|figures| figures.hangs = true);
    scene.look_until(false);
    assert!(scene.whole.has(EventKind::Thawed), "{:?}", scene.whole.events());
    for _ in 0..30 {
        pass(100 * MS);
        scene.whole.supervisor.look();
    }
    assert!(!is_stopped(scene.pids[0]), "no figure says that it has too much");
    scene.driver.set(|figures| figures.hangs = false);
    scene.look_until(true);
    scene.assert_all_live();
    scene.whole.supervisor.release();
    until(|| !is_stopped(scene.pids[0]));
}

#[test]
fn an_agent_ends_while_its_driver_hangs_and_a_late_answer_stops_nothing() {
    let scene = Scene::of(LONG);
    scene.look_until(true);
    scene.driver.set(|figures| figures.hangs = true);
    std::thread::scope(|threads| {
        let look = threads.spawn(|| scene.whole.supervisor.look());
        until(|| scene.driver.is_asked());
        // The agent ends. The look that waits for the driver holds up nothing.
        scene.whole.supervisor.release();
        until(|| !is_stopped(scene.pids[0]));
        assert!(!look.is_finished(), "the driver hangs still");
        scene.driver.set(|figures| figures.hangs = false);
        look.join().expect("it returns");
    });
    for _ in 0..30 {
        pass(100 * MS);
        scene.whole.supervisor.look();
    }
    assert!(!is_stopped(scene.pids[0]), "this agent has ended");
    let noted = crate::life::records::stored_frozen::<crate::supervisor::stopped::Stopped>(
        &scene.whole.supervisor.run,
    );
    assert_eq!(noted, []);
    scene.assert_all_live();
}
