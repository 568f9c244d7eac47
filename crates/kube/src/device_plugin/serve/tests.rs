//! A kubelet's part: it has the plugin registered, lists its devices, and allocates them, over the real sockets.

use std::sync::Mutex;
use std::time::Duration;

use divvy_model::{
    Bytes, Compute, DeviceRecord, DeviceShare, MemoryAmount, Mode, Shares, SliceRecord, SliceRequest,
};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;

use super::super::config::Config;
use super::super::resources::resources;
use super::*;
use crate::devices::tests::{device, ill};
use crate::grpc::deviceplugin::device_plugin_client::DevicePluginClient;
use crate::grpc::deviceplugin::registration_server::{Registration, RegistrationServer};
use crate::kept::Host;
use crate::pods::Pods;
use crate::state::State;

#[derive(Default)]
pub(crate) struct World {
    pub(crate) slices: Vec<SliceRecord>,
    pub(crate) made: u32,
    busy: bool,
    pub(crate) full_after: Option<usize>,
}

#[derive(Clone, Default)]
pub(crate) struct StandIn(Arc<Mutex<World>>);

impl StandIn {
    pub(crate) fn world(&self) -> std::sync::MutexGuard<'_, World> {
        self.0.lock().expect("a lock")
    }

    pub(crate) fn terms(&self) -> Vec<(Bytes, Option<Compute>, usize)> {
        let world = self.world();
        let of = |slice: &SliceRecord| {
            (
                slice.shares.first.memory_limit_bytes,
                slice.terms.compute.share,
                slice.shares.count(),
            )
        };
        world.slices.iter().map(of).collect()
    }
}

impl Host for StandIn {
    fn uid(&self) -> u32 {
        0
    }
    fn devices(&self) -> Result<Vec<DeviceRecord>, Fault> {
        Ok(vec![device(0), device(1)])
    }
    fn slices(&self) -> Result<Vec<SliceRecord>, Fault> {
        Ok(self.world().slices.clone())
    }
    fn make(&self, ask: &SliceRequest, words: &[String]) -> Result<SliceRecord, Fault> {
        let mut world = self.world();
        if world.full_after.is_some_and(|most| world.slices.len() >= most) {
            return Err(Fault::new(Code::DeviceFull, "the device is full"));
        }
        world.made += 1;
        let shares = ask.selectors().map(|selector| DeviceShare {
            device_uuid: selector.to_string(),
            memory_limit_bytes: match ask.memory {
                Some(MemoryAmount::Bytes(bytes)) => bytes,
                _ => device(0).memory_usable_bytes(),
            },
            ..DeviceShare::default()
        });
        let slice = SliceRecord {
            id: format!("{:08x}", world.made),
            name: ask.name.clone().expect("a name"),
            shares: Shares::of(shares).expect("a device"),
            terms: ask.terms,
            command: words.to_vec(),
            ..SliceRecord::default()
        };
        world.slices.push(slice.clone());
        Ok(slice)
    }
    fn describe(&self, slice: &SliceRecord) -> Result<String, Fault> {
        Ok(format!("divvy.dev/slice={}", slice.name))
    }
    fn end(&self, slice: &SliceRecord) -> Result<(), Fault> {
        let mut world = self.world();
        if world.busy {
            return Err(Fault::new(Code::Claim, "programs run in it"));
        }
        world.slices.retain(|other| other.id != slice.id);
        Ok(())
    }
}

/// The kubelet's registry: tells the test which resources were registered, and where.
struct Registry(mpsc::UnboundedSender<wire::RegisterRequest>);

#[tonic::async_trait]
impl Registration for Registry {
    async fn register(
        &self,
        request: Request<wire::RegisterRequest>,
    ) -> Result<Response<wire::Empty>, Status> {
        let _told = self.0.send(request.into_inner());
        Ok(Response::new(wire::Empty {}))
    }
}

/// A kubelet: its folder, and its registry while it runs.
struct Kubelet {
    folder: tempfile::TempDir,
    registered: mpsc::UnboundedReceiver<wire::RegisterRequest>,
    sender: mpsc::UnboundedSender<wire::RegisterRequest>,
    running: Option<tokio::task::JoinHandle<()>>,
}

impl Kubelet {
    fn new() -> Self {
        let (sender, registered) = mpsc::unbounded_channel();
        let folder = tempfile::tempdir().expect("a folder");
        Self {
            folder,
            registered,
            sender,
            running: None,
        }
    }

    /// Starts as a kubelet does: it removes all sockets of its folder and makes its own.
    fn start(&mut self) {
        if let Some(running) = self.running.take() {
            running.abort();
        }
        for entry in std::fs::read_dir(self.folder.path()).expect("a folder").flatten() {
            std::fs::remove_file(entry.path()).expect("removed");
        }
        let listener = UnixListener::bind(self.folder.path().join("kubelet.sock")).expect("bound");
        let registry = Registry(self.sender.clone());
        self.running = Some(tokio::spawn(async move {
            let incoming = UnixListenerStream::new(listener);
            let server = Server::builder().add_service(RegistrationServer::new(registry));
            server.serve_with_incoming(incoming).await.expect("served");
        }));
    }

    async fn next(
        &mut self,
    ) -> (
        wire::RegisterRequest,
        DevicePluginClient<tonic::transport::Channel>,
    ) {
        let told = tokio::time::timeout(Duration::from_secs(60), self.registered.recv());
        let told = told.await.expect("registered").expect("a request");
        let channel = dial(&self.folder.path().join(&told.endpoint))
            .await
            .expect("the plugin listens");
        (told, DevicePluginClient::new(channel))
    }
}

fn with(config: &str, devices: &[DeviceRecord]) -> Vec<Resource> {
    resources(devices, &Config::read(config).expect("understood")).expect("resources")
}

const FOUR: &str = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}";

struct Bench {
    kubelet: Kubelet,
    stand_in: StandIn,
    allocator: Arc<Allocator>,
    _records: tempfile::TempDir,
    served: tokio::task::JoinHandle<Result<(), Fault>>,
    end: tokio::sync::oneshot::Sender<()>,
}

impl Bench {
    fn start(config: &str, annotations: bool) -> Self {
        let (kubelet, stand_in) = (Kubelet::new(), StandIn::default());
        let records = tempfile::tempdir().expect("a folder");
        let allocator = open(&stand_in, &records);
        allocator.set(with(config, &[device(0), device(1)]));
        let terms = Terms {
            choice: Choice::Distinct,
            annotations,
            granted: None,
            line: |fault| fault.message.clone(),
            log: Arc::new(|_| {}),
        };
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let (folder, served) = (kubelet.folder.path().to_owned(), allocator.clone());
        let served = tokio::spawn(async move {
            serve(&folder, served, terms, async {
                let _told = ended.await;
            })
            .await
        });
        Self {
            kubelet,
            stand_in,
            allocator,
            _records: records,
            served,
            end,
        }
    }
}

pub(crate) fn open(stand_in: &StandIn, records: &tempfile::TempDir) -> Arc<Allocator> {
    let state = State::open(records.path()).expect("records");
    Arc::new(Allocator::open(Box::new(stand_in.clone()), state).expect("an allocator"))
}

fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a loop").block_on(work);
}

fn ask(containers: &[&[&str]]) -> wire::AllocateRequest {
    let of = |ids: &&[&str]| wire::ContainerAllocateRequest {
        devices_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    wire::AllocateRequest {
        container_requests: containers.iter().map(of).collect(),
    }
}

#[test]
fn a_kubelet_has_replicas_listed_preferred_and_allocated() {
    run(async {
        let mut bench = Bench::start(FOUR, false);
        bench.kubelet.start();
        let (told, mut plugin) = bench.kubelet.next().await;
        assert_eq!(
            (told.version.as_str(), told.resource_name.as_str()),
            ("v1beta1", "nvidia.com/gpu")
        );
        assert!(told.options.expect("options").get_preferred_allocation_available);
        let mut list = plugin
            .list_and_watch(wire::Empty {})
            .await
            .expect("a stream")
            .into_inner();
        let first = list.next().await.expect("a list").expect("devices").devices;
        let ids: Vec<String> = first.iter().map(|device| device.id.clone()).collect();
        assert!(ids.len() == 8 && ids.iter().all(|id| id.len() <= 63), "{ids:?}");
        assert!(first.iter().all(|device| device.health == "Healthy"));
        // A device falls ill and recovers, without a restart.
        bench.allocator.set(with(FOUR, &[ill(0), device(1)]));
        let second = list.next().await.expect("a list").expect("devices").devices;
        let sick = |devices: &[wire::Device]| {
            devices
                .iter()
                .filter(|device| device.health == "Unhealthy")
                .count()
        };
        assert_eq!(sick(&second), 4);
        bench.allocator.set(with(FOUR, &[device(0), device(1)]));
        assert_eq!(
            sick(&list.next().await.expect("a list").expect("devices").devices),
            0
        );

        let wanted = wire::PreferredAllocationRequest {
            container_requests: vec![wire::ContainerPreferredAllocationRequest {
                available_device_i_ds: ids.clone(),
                must_include_device_i_ds: vec![ids[2].clone()],
                allocation_size: 2,
            }],
        };
        let answer = plugin
            .get_preferred_allocation(wanted)
            .await
            .expect("preferred")
            .into_inner();
        assert_eq!(
            answer.container_responses[0].device_i_ds,
            [ids[2].clone(), ids[4].clone()]
        );

        let answer = plugin
            .allocate(ask(&[&[&ids[2]], &[&ids[3], &ids[4]]]))
            .await
            .expect("allocated")
            .into_inner();
        let slices = bench.stand_in.world().slices.clone();
        let cdi: Vec<&str> = answer
            .container_responses
            .iter()
            .map(|one| one.cdi_devices[0].name.as_str())
            .collect();
        assert_eq!(
            cdi,
            slices
                .iter()
                .map(|slice| format!("divvy.dev/slice={}", slice.name))
                .collect::<Vec<_>>()
        );
        let quarter = Bytes((device(0).memory_usable_bytes().0 / 4) >> 20 << 20);
        let share = Some(Compute(2500));
        assert_eq!(bench.stand_in.terms(), [(quarter, share, 1), (quarter, share, 2)]);
        assert_eq!(&slices[1].command[..2], ["kubernetes", "nvidia.com/gpu"]);
        assert_eq!(&slices[1].command[3..], [ids[3].clone(), ids[4].clone()]);

        // The kubelet gives an id out again: its last pod has ended.
        plugin.allocate(ask(&[&[&ids[4]]])).await.expect("allocated");
        assert_eq!(bench.stand_in.terms(), [(quarter, share, 1), (quarter, share, 1)]);
        for wrong in [&["x"][..], &[], &[&ids[0], &ids[0]]] {
            assert!(plugin.allocate(ask(&[wrong])).await.is_err(), "{wrong:?}");
        }
        // A pod is served as a whole or not at all.
        bench.stand_in.world().full_after = Some(3);
        let refused = plugin
            .allocate(ask(&[&[&ids[0]], &[&ids[1]]]))
            .await
            .expect_err("full");
        assert!(refused.message().contains("full"), "{refused:?}");
        assert_eq!(bench.stand_in.world().slices.len(), 2);

        bench.end.send(()).expect("it serves");
        bench.served.await.expect("no panic").expect("ended well");
        let left = std::fs::read_dir(bench.kubelet.folder.path())
            .expect("a folder")
            .flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["kubelet.sock"]);
    });
}

#[test]
fn a_kubelet_that_starts_again_has_the_plugin_registered_again() {
    run(async {
        let both =
            "sharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 2, devices: [1]}]}}";
        let mut bench = Bench::start(both, true);
        for turn in 0..3 {
            // The first start is after the plugin's.
            bench.kubelet.start();
            let (first, _) = bench.kubelet.next().await;
            let (second, mut shared) = bench.kubelet.next().await;
            assert_eq!(
                (first.resource_name.as_str(), second.resource_name.as_str()),
                ("nvidia.com/gpu", "nvidia.com/gpu.shared"),
                "{turn}"
            );
            let ids = [format!("{}::0", device(1).uuid), format!("{}::1", device(1).uuid)];
            let refused = shared
                .allocate(ask(&[&[&ids[0], &ids[1]]]))
                .await
                .expect_err("MPS gives one");
            assert!(refused.message().contains("maximum of a shared resource is 1"));
            let answer = shared
                .allocate(ask(&[&[&ids[0]]]))
                .await
                .expect("allocated")
                .into_inner();
            let annotations = &answer.container_responses[0].annotations;
            let (key, value) = annotations.iter().next().expect("an annotation");
            assert!(
                key.starts_with("cdi.k8s.io/") && value.starts_with("divvy.dev/slice=gpu.shared-"),
                "{key}: {value}"
            );
            assert!(answer.container_responses[0].cdi_devices.is_empty());
        }
        let slices = bench.stand_in.world().slices.clone();
        assert_eq!((slices.len(), slices[0].terms.sharing.mode), (1, Mode::Mps));
        // A device comes: the resources are others, and are told.
        bench.allocator.set(with("", &[device(0)]));
        let (told, _) = bench.kubelet.next().await;
        assert_eq!(told.resource_name, "nvidia.com/gpu");
    });
}

/// The kubelet is told to ask before a container starts, and of ids that say nothing about devices.
#[test]
fn granted_slices_are_asked_for_before_the_start() {
    let terms = |granted| Terms {
        choice: Choice::Distinct,
        annotations: false,
        granted,
        line: |fault| fault.message.clone(),
        log: Arc::new(|_| {}),
    };
    let none = terms(None);
    assert!(!is_granted(RESOURCE, &none) && !options(false).pre_start_required);
    let (of, not) = (options(true), options(false));
    assert!(of.pre_start_required && !of.get_preferred_allocation_available);
    assert!(not.get_preferred_allocation_available);
    let mut local = device(0);
    local.hardware.get_or_insert_default().numa_node = Some(1);
    let counted = super::super::granted::counted(&[local.clone()]);
    let told = Plugin::list(RESOURCE, &[counted]);
    assert_eq!(told.devices.len(), 16);
    assert!(told.devices.iter().all(|device| device.topology.is_none()));
    let told = Plugin::list("nvidia.com/gpu", &with("", &[local]));
    assert!(told.devices[0].topology.is_some());
}

#[test]
fn allocations_end_with_their_pods_and_outlive_the_plugin() {
    let (stand_in, records) = (StandIn::default(), tempfile::tempdir().expect("a folder"));
    let allocator = open(&stand_in, &records);
    allocator.set(with(FOUR, &[device(0), device(1)]));
    let ids: Vec<String> = (0..3)
        .map(|number| format!("{}::{number}", device(0).uuid))
        .collect();
    let names: Vec<String> = ids
        .iter()
        .map(|id| {
            allocator
                .allocate("nvidia.com/gpu", std::slice::from_ref(id))
                .expect("allocated")
        })
        .collect();
    drop(allocator);
    // The host starts again: the kubelet starts the containers with the devices that it noted.
    stand_in.world().slices.clear();
    let allocator = open(&stand_in, &records);
    assert!(allocator.restore().is_empty());
    let found: Vec<String> = stand_in
        .world()
        .slices
        .iter()
        .map(|slice| format!("divvy.dev/slice={}", slice.name))
        .collect();
    assert!(names.iter().all(|name| found.contains(name)) && found.len() == 3);
    let mut pods = Pods {
        count: 1,
        ..Pods::default()
    };
    pods.ids.insert(("nvidia.com/gpu".into(), ids[0].clone()));
    // A kubelet that knows no pods yet, one look, and programs that still run.
    for _ in 0..3 {
        assert!(allocator.sweep(&Pods::default()).0.is_empty());
    }
    stand_in.world().busy = true;
    assert!(allocator.sweep(&pods).0.is_empty());
    let (done, failed) = allocator.sweep(&pods);
    assert_eq!((done.len(), failed.len()), (0, 2));
    stand_in.world().busy = false;
    assert_eq!(allocator.sweep(&pods).0.len(), 2);
    let left: Vec<String> = stand_in
        .world()
        .slices
        .iter()
        .map(|slice| format!("divvy.dev/slice={}", slice.name))
        .collect();
    assert_eq!(left, names[..1]);
}
