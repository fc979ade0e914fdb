//! Sequences of requests that are correct in form, with numbers that exist and others, and what
//! they change in the kernel.

use std::env;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use wirecap::Timestamps;
use wirecap::device::DeviceSummary;
use wirecap::filter::{ClassicInsn, Filter};
use wirecap::privileged::{BindMode, HookPlan, Inquiry};
use wirecap::savefile::LinkType;
use wirecap_broker::{Ask, HookAsk, Reply, Terms};

use crate::bed::{Attacker, Bed, CAPTURED, OTHER, Sentinel, programs, steering, terms};

/// How long the sequences go on, in seconds.
const SECONDS: &str = "WIRECAP_ATTACK_SECONDS";
const SECONDS_DEFAULT: u64 = 10;
const REQUESTS_MAX: usize = 30;
/// Packets of the sentinel are sent after so many sequences.
const SEQUENCES_PER_CHECK: u32 = 16;

/// A number of an object: the choice among those that exist, or another one.
#[derive(Debug, Clone, Copy)]
struct Number(u8);

/// An interface.
#[derive(Debug, Clone, Copy)]
enum Place {
    Captured,
    Other,
    Index(u32),
}

/// A description of an interface, true or false.
#[derive(Debug, Clone)]
struct Description {
    place: Place,
    queues: Option<(u32, u32)>,
}

#[derive(Debug, Clone)]
struct Plan {
    device: Description,
    steering: (Vec<u32>, u32, usize),
    whole: bool,
    filter: Option<u8>,
    drop_rejected: bool,
    promiscuous: bool,
    timestamps: Timestamps,
}

/// A request before the numbers are known.
#[derive(Debug, Clone)]
enum Intent {
    Netlink(Inquiry),
    PoolFile(u64),
    XdpSocket {
        with_rings: bool,
    },
    RegisterUmem(Number, Number, u64, u32),
    BindXdp(Number, Place, u32, BindMode),
    BindXdpBeside(Number, Number, Place, u32),
    PacketSocket,
    BindPacket(Number, Place),
    Promiscuous(Place),
    GuardedHooks(Place),
    AttachLock(Description),
    OpenHook(Box<Plan>, Number),
    Hook(Number, Change),
    Release(Number),
    Run(Vec<u8>),
    /// What a capture does: opens a program with a turn that it releases again.
    Capture(Box<Plan>),
}

#[derive(Debug, Clone)]
enum Change {
    Receive(u32, Number),
    Prepare(Option<u8>),
    Exchange(Number),
    PrepareToPass,
    Claim(u32),
    Add(u32),
    Close(u32, Vec<u32>),
    MoveTo(Description),
    Filtered(u32),
    Plain(u8),
}

fn number() -> impl Strategy<Value = Number> {
    any::<u8>().prop_map(Number)
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        8 => Just(Place::Captured),
        3 => Just(Place::Other),
        1 => prop_oneof![Just(0), Just(1), Just(u32::MAX), any::<u32>()].prop_map(Place::Index),
    ]
}

fn queue() -> impl Strategy<Value = u32> {
    prop_oneof![6 => Just(0), 3 => Just(1), 1 => prop_oneof![Just(2), Just(4095), Just(4096), any::<u32>()]]
}

fn description() -> impl Strategy<Value = Description> {
    let count = || prop_oneof![0..4_u32, Just(4096), Just(u32::MAX)];
    let queues = prop_oneof![3 => Just(None), 1 => (count(), count()).prop_map(Some)];
    (place(), queues).prop_map(|(place, queues)| Description { place, queues })
}

fn plans() -> impl Strategy<Value = Box<Plan>> {
    let steering = prop_oneof![
        4 => Just((vec![0], 1, 1)),
        1 => Just((vec![0, 1], 1, 2)),
        1 => Just((vec![0], 4, 1)),
        1 => (vec(queue(), 0..4), prop_oneof![0..5_u32, any::<u32>()], 0..5_usize),
    ];
    let timestamps = prop_oneof![
        3 => Just(Timestamps::None),
        1 => prop_oneof![Just(Timestamps::Batch), Just(Timestamps::Packet), Just(Timestamps::Hardware)],
    ];
    let flags = (prop::bool::weighted(0.2), any::<bool>(), prop::bool::weighted(0.2));
    let parts = (description(), steering, proptest::option::of(any::<u8>()), flags, timestamps);
    parts.prop_map(|(device, steering, filter, (whole, drop_rejected, promiscuous), timestamps)| {
        Box::new(Plan { device, steering, whole, filter, drop_rejected, promiscuous, timestamps })
    })
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (prop_oneof![0..4_u32, any::<u32>()], number()).prop_map(|(key, socket)| Change::Receive(key, socket)),
        2 => proptest::option::of(any::<u8>()).prop_map(Change::Prepare),
        2 => number().prop_map(Change::Exchange),
        1 => Just(Change::PrepareToPass),
        2 => queue().prop_map(Change::Claim),
        2 => queue().prop_map(Change::Add),
        2 => (queue(), vec(queue(), 0..3)).prop_map(|(queue, keys)| Change::Close(queue, keys)),
        2 => description().prop_map(Change::MoveTo),
        1 => queue().prop_map(Change::Filtered),
        6 => (0..8_u8).prop_map(Change::Plain),
    ]
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    let part = proptest::sample::select(vec!["a", "b", "..", ".", "", "link"]);
    (prop::bool::weighted(0.8), vec(part, 0..4)).prop_map(|(inside, parts)| {
        let parts = parts.join("/");
        if inside { format!("DIRECTORY/{parts}") } else { format!("/tmp/{parts}") }.into_bytes()
    })
}

fn intent() -> impl Strategy<Value = Intent> {
    let bytes = || prop_oneof![4 => Just(1 << 20), 1 => Just(0), 1 => any::<u64>()];
    let cell = prop_oneof![4 => Just(2048), 1 => prop_oneof![Just(0), Just(3), Just(1 << 31), any::<u32>()]];
    let mode = (prop::bool::weighted(0.1), any::<bool>());
    prop_oneof![
        1 => any::<u32>().prop_map(|groups| Intent::Netlink(Inquiry::Route { groups })),
        1 => prop_oneof![Just(Inquiry::Generic), Just(Inquiry::Sockets)].prop_map(Intent::Netlink),
        3 => bytes().prop_map(Intent::PoolFile),
        3 => any::<bool>().prop_map(|with_rings| Intent::XdpSocket { with_rings }),
        3 => (number(), number(), bytes(), cell).prop_map(|(a, b, bytes, cell)| Intent::RegisterUmem(a, b, bytes, cell)),
        3 => (number(), place(), queue(), mode).prop_map(|(socket, place, queue, (zero_copy, fragments))| {
            Intent::BindXdp(socket, place, queue, BindMode { zero_copy, fragments })
        }),
        2 => (number(), number(), place(), queue()).prop_map(|(a, b, place, queue)| Intent::BindXdpBeside(a, b, place, queue)),
        2 => Just(Intent::PacketSocket),
        3 => (number(), place()).prop_map(|(socket, place)| Intent::BindPacket(socket, place)),
        2 => place().prop_map(Intent::Promiscuous),
        1 => place().prop_map(Intent::GuardedHooks),
        3 => description().prop_map(Intent::AttachLock),
        2 => (plans(), number()).prop_map(|(plan, turn)| Intent::OpenHook(plan, turn)),
        4 => plans().prop_map(Intent::Capture),
        14 => (number(), change()).prop_map(|(hook, change)| Intent::Hook(hook, change)),
        4 => number().prop_map(Intent::Release),
        1 => path().prop_map(Intent::Run),
    ]
}

/// A client in the middle of a sequence.
struct Client<'a> {
    stage: &'a Stage,
    attacker: Attacker,
    /// The numbers of its replies.
    numbers: Vec<u32>,
    descriptors: Vec<OwnedFd>,
    /// A socket is bound to the queue in the terms. Another attempt would take the ten seconds for
    /// which a queue may stay busy.
    is_bound: bool,
}

impl Client<'_> {
    fn number(&self, Number(choice): Number) -> u32 {
        let choice = usize::from(choice);
        let last = self.numbers.last().copied().unwrap_or_default();
        match choice % 12 {
            0 => 0,
            1 => last.wrapping_add(1),
            2 => u32::MAX,
            // The youngest is the most useful.
            3..=5 => last,
            _ if self.numbers.is_empty() => 1,
            _ => self.numbers[choice % self.numbers.len()],
        }
    }

    fn index(&self, place: Place) -> u32 {
        match place {
            Place::Captured => self.stage.captured.index,
            Place::Other => self.stage.other.index,
            Place::Index(index) => index,
        }
    }

    fn device(&self, description: &Description) -> DeviceSummary {
        let mut device = match description.place {
            Place::Other => self.stage.other.clone(),
            _ => self.stage.captured.clone(),
        };
        device.index = self.index(description.place);
        if let Some(queues) = description.queues {
            (device.rx_queues, device.rx_queues_max) = queues;
        }
        device
    }

    fn plan(&self, plan: &Plan) -> Box<HookPlan> {
        let (queues, most, with_most) = &plan.steering;
        Box::new(HookPlan {
            device: self.device(&plan.device),
            steering: steering(queues, *most, *with_most),
            whole: plan.whole,
            filter: plan.filter.map(filter),
            drop_rejected: plan.drop_rejected,
            timestamps: plan.timestamps,
            promiscuous: plan.promiscuous,
            counts_own: plan.whole,
        })
    }

    fn ask(&mut self, ask: &Ask) -> Option<u32> {
        let (reply, descriptor) = self.attacker.ask(ask);
        if env::var_os("WIRECAP_ATTACK_LOG").is_some() {
            println!("{ask:?}: {reply:?}");
        }
        self.descriptors.extend(descriptor);
        match reply {
            Reply::Object(number) | Reply::File(number, _) | Reply::Hook(number, _) => {
                self.numbers.push(number);
                Some(number)
            }
            _ => None,
        }
    }

    fn act(&mut self, intent: &Intent) {
        let ask = match intent {
            Intent::Netlink(inquiry) => Ask::Netlink(*inquiry),
            Intent::PoolFile(bytes) => Ask::PoolFile { bytes: *bytes },
            Intent::XdpSocket { with_rings: true } => {
                let (number, descriptor) = self.attacker.unbound_xdp_socket();
                self.numbers.push(number);
                self.descriptors.push(descriptor);
                return;
            }
            Intent::XdpSocket { with_rings: false } => Ask::XdpSocket,
            Intent::RegisterUmem(socket, file, bytes, cell_bytes) => Ask::RegisterUmem {
                socket: self.number(*socket),
                file: self.number(*file),
                bytes: *bytes,
                cell_bytes: *cell_bytes,
            },
            Intent::BindXdp(socket, place, queue, mode) => Ask::BindXdp {
                socket: self.number(*socket),
                ifindex: self.index(*place),
                queue: *queue,
                mode: *mode,
            },
            Intent::BindXdpBeside(socket, first, place, queue) => Ask::BindXdpBeside {
                socket: self.number(*socket),
                first: self.number(*first),
                ifindex: self.index(*place),
                queue: *queue,
            },
            Intent::PacketSocket => Ask::PacketSocket,
            Intent::BindPacket(socket, place) => {
                Ask::BindPacket { socket: self.number(*socket), ifindex: self.index(*place) }
            }
            Intent::Promiscuous(place) => Ask::Promiscuous { ifindex: self.index(*place) },
            Intent::GuardedHooks(place) => Ask::GuardedHooks { ifindex: self.index(*place) },
            Intent::AttachLock(description) => Ask::AttachLock(self.device(description)),
            Intent::OpenHook(plan, turn) => {
                Ask::OpenHook { plan: self.plan(plan), turn: self.number(*turn) }
            }
            Intent::Hook(hook, change) => {
                Ask::Hook { hook: self.number(*hook), ask: self.change(change) }
            }
            Intent::Release(object) => Ask::Release { object: self.number(*object) },
            Intent::Run(path) => {
                let directory = self.stage.directory.as_os_str().as_bytes();
                let path = match path.strip_prefix(b"DIRECTORY") {
                    Some(rest) => [directory, rest].concat(),
                    None => path.clone(),
                };
                Ask::Run { path }
            }
            Intent::Capture(plan) => {
                let plan = self.plan(plan);
                let Some(turn) = self.ask(&Ask::AttachLock(plan.device.clone())) else { return };
                self.ask(&Ask::OpenHook { plan, turn });
                Ask::Release { object: turn }
            }
        };
        let is_for_queue = |ifindex, queue| ifindex == self.stage.captured.index && queue == 0;
        match ask {
            Ask::BindXdp { ifindex, queue, .. } if is_for_queue(ifindex, queue) => {
                if self.is_bound {
                    return;
                }
                let (reply, _) = self.attacker.ask(&ask);
                self.is_bound = matches!(reply, Reply::Done);
            }
            _ => _ = self.ask(&ask),
        }
    }

    fn change(&self, change: &Change) -> HookAsk {
        match change {
            Change::Receive(key, socket) => {
                HookAsk::Receive { key: *key, socket: self.number(*socket) }
            }
            Change::Prepare(choice) => HookAsk::Prepare(choice.map(filter)),
            Change::Exchange(turn) => HookAsk::Exchange { turn: self.number(*turn) },
            Change::PrepareToPass => HookAsk::PrepareToPass,
            Change::Claim(queue) => HookAsk::ClaimQueue { queue: *queue },
            Change::Add(queue) => HookAsk::AddQueue { queue: *queue },
            Change::Close(queue, keys) => HookAsk::CloseQueue { queue: *queue, keys: keys.clone() },
            Change::MoveTo(description) => HookAsk::MoveTo(self.device(description)),
            Change::Filtered(queue) => HookAsk::Filtered { queue: *queue },
            Change::Plain(choice) => match choice {
                0 => HookAsk::KeepUnfiltered,
                1 => HookAsk::IsInPlace,
                2 => HookAsk::AttachAgain,
                3 => HookAsk::AttachAnew,
                4 => HookAsk::RunOnNewQueues,
                5 => HookAsk::Unseated,
                6 => HookAsk::Own,
                _ => HookAsk::Leave,
            },
        }
    }
}

/// One of a few filters.
fn filter(choice: u8) -> Filter {
    let insns: &[(u16, u8, u8, u32)] = match choice % 4 {
        0 => &[(0x06, 0, 0, 0)],
        1 => &[(0x06, 0, 0, u32::MAX)],
        2 => &[(0x28, 0, 0, 12), (0x15, 0, 1, 0x800), (0x06, 0, 0, 96), (0x06, 0, 0, 0)],
        _ => &[(0x01, 0, 0, u32::MAX), (0x50, 0, 0, 1), (0x06, 0, 0, 1)],
    };
    let insns = insns.iter().map(|&(code, jt, jf, k)| ClassicInsn { code, jt, jf, k });
    Filter::from_program(insns.collect(), LinkType(1)).unwrap()
}

/// What does not change.
struct Stage {
    bed: Bed,
    captured: DeviceSummary,
    other: DeviceSummary,
    folder: tempfile::TempDir,
    directory: PathBuf,
    terms: Terms,
    /// The sentinel's programs, each with its maps.
    programs: Vec<(u32, Vec<u32>)>,
    /// The interfaces of its packet sockets.
    sockets: Vec<u32>,
    promiscuity: u32,
}

impl Stage {
    fn play(&self, intents: &[Intent]) {
        let attacker = Attacker::new(&self.bed, &self.terms);
        let mut client = Client {
            stage: self,
            attacker,
            numbers: Vec::new(),
            descriptors: Vec::new(),
            is_bound: false,
        };
        for intent in intents {
            client.act(intent);
            assert!(client.attacker.broker_is_alive(), "{intent:?} ended the broker");
        }
        let binds = |intent: &Intent| match intent {
            Intent::BindXdp(_, place, ..) | Intent::BindXdpBeside(_, _, place, _) => {
                !matches!(place, Place::Captured)
            }
            _ => false,
        };
        if intents.iter().any(binds) {
            self.bed.assert_other_untouched();
        }
        self.assert_nothing_gained(true);
        let Client { attacker, descriptors, .. } = client;
        attacker.end();
        drop(descriptors);
        self.assert_nothing_gained(false);
    }

    fn assert_nothing_gained(&self, is_running: bool) {
        let Self { bed, .. } = self;
        bed.assert_other_plain();
        assert_eq!(bed.program_of(&bed.elsewhere), None, "a program in another namespace");
        let sockets = bed.packet_sockets();
        let is_permitted = |index: &u32| [0, self.captured.index].contains(index);
        assert!(sockets.iter().all(is_permitted), "packet sockets of {sockets:?}");
        if !is_running {
            assert_eq!(sockets, self.sockets, "packet sockets that remain");
            assert_eq!(
                bed.promiscuity(CAPTURED),
                self.promiscuity,
                "the interface stays promiscuous"
            );
        }
        let now = programs("wirecap_v1");
        for program in &self.programs {
            assert!(now.contains(program), "the sentinel's program and maps {program:?}: {now:?}");
        }
        let mut files: Vec<_> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|file| file.unwrap().file_name())
            .collect();
        files.sort();
        assert_eq!(files, ["recordings", "secret"], "a file outside of the directory");
        let written = fs::read_dir(&self.directory).unwrap().count();
        assert!(written <= 4 && fs::read(self.folder.path().join("secret")).unwrap() == b"root's");
    }
}

impl Attacker {
    /// Each request is answered, so it cannot have ended in between.
    fn broker_is_alive(&self) -> bool {
        Path::new(&format!("/proc/{}/fd/0", self.broker.id())).symlink_metadata().is_ok()
    }
}

pub(crate) fn sequences_of_requests_gain_nothing() {
    let seconds =
        env::var(SECONDS).ok().map_or(SECONDS_DEFAULT, |seconds| seconds.parse().unwrap());
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let bed = Bed::new();
    let mut sentinel = Sentinel::on(&bed, 1);
    sentinel.assert_undisturbed(&bed);
    let own = bed.program_of(&bed.captured).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("recordings");
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, Some(65534), Some(65534)).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(0), Some(65534)).unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o770))
        .unwrap();
    fs::write(folder.path().join("secret"), "root's").unwrap();
    std::os::unix::fs::symlink("../secret", directory.join("link")).unwrap();
    let stage = Stage {
        captured: bed.device(CAPTURED),
        other: bed.device(OTHER),
        sockets: bed.packet_sockets(),
        promiscuity: bed.promiscuity(CAPTURED),
        programs: programs("wirecap_v1").into_iter().filter(|(id, _)| *id == own).collect(),
        terms: Terms {
            directory: directory.clone(),
            command: Some(vec!["touch".to_owned(), "--".to_owned()]),
            ..terms(Some(&[0]))
        },
        bed,
        folder,
        directory,
    };
    assert_eq!(stage.programs.len(), 1);

    let config = Config {
        cases: SEQUENCES_PER_CHECK,
        failure_persistence: None,
        max_shrink_time: 30_000,
        ..Config::default()
    };
    let played = std::cell::Cell::new(0_u32);
    let sentinel = std::cell::RefCell::new(sentinel);
    while Instant::now() < deadline {
        let outcome =
            TestRunner::new(config.clone()).run(&vec(intent(), 1..REQUESTS_MAX), |intents| {
                if Instant::now() > deadline {
                    return Ok(());
                }
                let is_due = played.replace(played.get() + 1).is_multiple_of(SEQUENCES_PER_CHECK);
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    stage.play(&intents);
                    if is_due {
                        sentinel.borrow_mut().assert_undisturbed(&stage.bed);
                    }
                }));
                outcome.map_err(|_| TestCaseError::fail("see above"))
            });
        outcome.unwrap_or_else(|error| panic!("{error}"));
    }
    println!("  {} sequences", played.get());
    let mut sentinel = sentinel.into_inner();
    sentinel.assert_undisturbed(&stage.bed);
    sentinel.end(&stage.bed);
}
