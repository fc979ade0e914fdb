//! The place of the attacks: a namespace with a captured interface and another one, a second
//! namespace with an interface of the same index, and a broker in the first.

use std::env;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_passcred;
use wirecap::bpf::{Program, programs_named};
use wirecap::device::{Device, DeviceSummary};
use wirecap::privileged::{BindMode, HookPlan, HookState, Steering};
use wirecap::{Capture, Engine, Timestamps, Worker};
use wirecap_broker::{Ask, HookAsk, Permitted, Reply, Terms, User, raw};
use wirecap_testbed::{AfXdpSender, Namespace, Stamp, Traffic, VethPair};

use crate::ROLE;

/// Longer than any request takes.
const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const CAPTURED: &str = "cap0";
pub(crate) const OTHER: &str = "other0";
pub(crate) const COPY: BindMode = BindMode { zero_copy: false, fragments: false };

pub(crate) struct Bed {
    pub(crate) here: Namespace,
    /// `receiver` is in the terms, perhaps only its queue 0 of two.
    pub(crate) captured: VethPair,
    /// `receiver` is not.
    pub(crate) other: VethPair,
    /// A namespace whose interface has the index of the captured one.
    pub(crate) elsewhere: VethPair,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let [here, there, elsewhere] = [(); 3].map(|()| Namespace::new().unwrap());
        let captured = VethPair::new((&there, "peer0"), (&here, CAPTURED), 2, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        let other = VethPair::new((&there, "peer1"), (&here, OTHER), 2, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        let far = VethPair::new((&there, "peer2"), (&elsewhere, CAPTURED), 2, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        assert_eq!(captured.receiver.index, far.receiver.index, "the test needs the same index");
        Self { here, captured, other, elsewhere: far }
    }

    pub(crate) fn index(&self) -> u32 {
        self.captured.receiver.index
    }

    pub(crate) fn other(&self) -> u32 {
        self.other.receiver.index
    }

    pub(crate) fn in_here<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.here.run_in(work).unwrap()
    }

    pub(crate) fn device(&self, name: &str) -> DeviceSummary {
        self.in_here(|| DeviceSummary::from(&Device::find(name).unwrap()))
    }

    fn links(&self, arguments: &[&str]) -> String {
        output(&self.here, "ip", arguments)
    }

    /// How many sockets and programs keep the interface promiscuous, as the kernel counts them.
    pub(crate) fn promiscuity(&self, name: &str) -> u32 {
        let text = self.links(&["-d", "link", "show", "dev", name]);
        let count = text.split_whitespace().skip_while(|word| *word != "promiscuity").nth(1);
        count.expect("ip prints it").parse().unwrap()
    }

    /// The number of the program that is attached to an interface.
    pub(crate) fn program_of(&self, pair: &VethPair) -> Option<u32> {
        let Interface { namespace, name } = Interface::of(pair);
        let text = output(&namespace, "ip", &["-d", "link", "show", "dev", &name]);
        let mut words = text.split_whitespace().skip_while(|word| !word.starts_with("prog/xdp"));
        words.nth(2).map(|id| id.parse().unwrap())
    }

    /// The interfaces of the packet sockets in the namespace; 0 is none, or all.
    pub(crate) fn packet_sockets(&self) -> Vec<u32> {
        let table =
            self.in_here(|| std::fs::read_to_string("/proc/thread-self/net/packet").unwrap());
        table
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().nth(4).unwrap().parse().unwrap())
            .collect()
    }

    /// Whether no AF_XDP socket is bound to a queue: then another one can be.
    pub(crate) fn is_free(&self, pair: &VethPair, queue: u32) -> bool {
        AfXdpSender::on(&pair.receiver, queue).is_ok()
    }

    /// Nothing of the attacker's is on the other interface.
    #[track_caller]
    pub(crate) fn assert_other_untouched(&self) {
        assert!([0, 1].iter().all(|queue| self.is_free(&self.other, *queue)), "an AF_XDP socket");
        self.assert_other_plain();
    }

    /// The same without AF_XDP sockets, which takes a tenth of a second to find out.
    #[track_caller]
    pub(crate) fn assert_other_plain(&self) {
        assert!(!self.packet_sockets().contains(&self.other()), "a packet socket");
        assert_eq!(self.promiscuity(OTHER), 0, "promiscuous mode");
        assert_eq!(self.program_of(&self.other), None, "a program");
    }

    /// Sends frames to a queue of the captured interface, numbered from 0.
    pub(crate) fn send(&self, queue: u16, count: u64) {
        let mut sender = AfXdpSender::on(&self.captured.sender, queue.into()).unwrap();
        let traffic = Traffic::to(&self.captured.receiver);
        (0..count)
            .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap());
        sender.flush().unwrap();
    }
}

struct Interface {
    namespace: Namespace,
    name: String,
}

impl Interface {
    fn of(pair: &VethPair) -> Self {
        Self { namespace: pair.receiver.namespace.clone(), name: pair.receiver.name.clone() }
    }
}

fn output(namespace: &Namespace, program: &str, arguments: &[&str]) -> String {
    let output =
        namespace.run_in(|| Command::new(program).args(arguments).output()).unwrap().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Terms with all queues of the captured interface, or some.
pub(crate) fn terms(queues: Option<&[u32]>) -> Terms {
    Terms {
        interfaces: vec![Permitted {
            name: CAPTURED.to_owned(),
            queues: queues.map(<[u32]>::to_vec),
        }],
        any: false,
        user: User { name: "nobody".to_owned(), uid: 65534, gid: 65534 },
        directory: PathBuf::from("/nonexistent/recordings"),
        command: None,
        sockets: Vec::new(),
    }
}

pub(crate) fn terms_with(command: &[&str], directory: &Path) -> Terms {
    let command = Some(command.iter().map(|&word| word.to_owned()).collect());
    Terms { directory: directory.to_owned(), command, ..terms(None) }
}

/// This program as the broker, with its end of a new pair of sockets.
pub(crate) fn start_broker(namespace: &Namespace) -> (UnixStream, Child) {
    let (socket, far) = UnixStream::pair().unwrap();
    set_socket_passcred(&far, true).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(ROLE, "broker").stdin(OwnedFd::from(far));
    let child = namespace.run_in(|| command.spawn()).unwrap().unwrap();
    (socket, child)
}

/// A client that an attacker controls, and its broker.
pub(crate) struct Attacker {
    pub(crate) socket: UnixStream,
    pub(crate) broker: Child,
}

pub(crate) type Answer = (Reply, Option<OwnedFd>);

impl Attacker {
    pub(crate) fn new(bed: &Bed, terms: &Terms) -> Self {
        let (socket, broker) = start_broker(&bed.here);
        let attacker = Self { socket, broker };
        assert!(matches!(attacker.exchange(&raw::greeting(terms)), (Reply::Done, None)));
        attacker
    }

    #[track_caller]
    pub(crate) fn exchange(&self, bytes: &[u8]) -> Answer {
        raw::send(&self.socket, bytes).unwrap();
        raw::receive(&self.socket).unwrap().expect("the broker has ended")
    }

    #[track_caller]
    pub(crate) fn ask(&self, ask: &Ask) -> Answer {
        self.exchange(&raw::to_bytes(ask))
    }

    #[track_caller]
    pub(crate) fn hook(&self, hook: u32, ask: HookAsk) -> Reply {
        self.ask(&Ask::Hook { hook, ask }).0
    }

    /// Gets nothing for a request.
    #[track_caller]
    pub(crate) fn is_refused(&self, ask: &Ask) {
        let (reply, descriptor) = self.ask(ask);
        assert!(is_refusal(&reply) && descriptor.is_none(), "{ask:?}: {reply:?}");
    }

    #[track_caller]
    pub(crate) fn is_done(&self, ask: &Ask) {
        let reply = self.ask(ask).0;
        assert!(matches!(reply, Reply::Done), "{ask:?}: {reply:?}");
    }

    /// A new object, with its descriptor.
    #[track_caller]
    pub(crate) fn object(&self, ask: &Ask) -> (u32, Option<OwnedFd>) {
        match self.ask(ask) {
            (Reply::Object(number) | Reply::File(number, _), descriptor) => (number, descriptor),
            (reply, _) => panic!("{ask:?}: {reply:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn turn(&self, device: &DeviceSummary) -> u32 {
        self.object(&Ask::AttachLock(device.clone())).0
    }

    #[track_caller]
    pub(crate) fn open(&self, plan: &HookPlan) -> (u32, HookState) {
        let turn = self.turn(&plan.device);
        let (reply, _) = self.ask(&Ask::OpenHook { plan: Box::new(plan.clone()), turn });
        self.is_done(&Ask::Release { object: turn });
        match reply {
            Reply::Hook(number, state) => (number, state),
            reply => panic!("{plan:?}: {reply:?}"),
        }
    }

    /// An AF_XDP socket with rings and memory, bound to a queue.
    pub(crate) fn xdp_socket(&self, ifindex: u32, queue: u32) -> (u32, OwnedFd) {
        let (number, socket) = self.unbound_xdp_socket();
        self.is_done(&Ask::BindXdp { socket: number, ifindex, queue, mode: COPY });
        (number, socket)
    }

    pub(crate) fn unbound_xdp_socket(&self) -> (u32, OwnedFd) {
        let (file, _memory) = self.object(&Ask::PoolFile { bytes: 1 << 20 });
        let (number, socket) = self.object(&Ask::XdpSocket);
        let socket = socket.unwrap();
        self.is_done(&Ask::RegisterUmem { socket: number, file, bytes: 1 << 20, cell_bytes: 2048 });
        make_rings(&socket);
        (number, socket)
    }

    /// The client ends; the broker must end without an error or a panic.
    #[track_caller]
    pub(crate) fn end(self) {
        let Self { socket, mut broker } = self;
        drop(socket);
        let status = ended(&mut broker);
        assert!(status.success(), "the broker ended with {status}");
    }
}

#[track_caller]
pub(crate) fn ended(broker: &mut Child) -> std::process::ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = broker.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = broker.kill();
            panic!("the broker does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn make_rings(socket: &OwnedFd) {
    use rustix::net::sockopt;
    sockopt::set_xdp_umem_fill_ring_size(socket, 64).unwrap();
    sockopt::set_xdp_umem_completion_ring_size(socket, 64).unwrap();
    sockopt::set_xdp_rx_ring_size(socket, 64).unwrap();
}

pub(crate) fn is_refusal(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(_) | Reply::Failed(_) | Reply::Bpf(_) | Reply::Fault(_))
}

/// Distributions that no function makes.
pub(crate) fn steering(queues: &[u32], most: u32, with_most: usize) -> Steering {
    raw::of_bytes(&raw::to_bytes(&(queues, most, with_most))).unwrap()
}

pub(crate) fn plan(device: &DeviceSummary, queues: &[u32]) -> HookPlan {
    HookPlan {
        device: device.clone(),
        steering: steering(queues, 1, queues.len()),
        whole: false,
        filter: None,
        drop_rejected: false,
        timestamps: Timestamps::None,
        promiscuous: false,
        counts_own: false,
    }
}

/// A capture of another process on a queue of the captured interface, which the attacker must not
/// disturb.
pub(crate) struct Sentinel {
    capture: Capture,
    worker: Worker,
    queue: u16,
    sent: u64,
}

impl Sentinel {
    pub(crate) fn on(bed: &Bed, queue: u16) -> Self {
        let device = format!("{CAPTURED}@{queue}");
        let builder = Capture::on(&*device).engine(Engine::Xdp).chunk(64).pool(256).reattach(false);
        let capture = bed.in_here(|| builder.open()).unwrap();
        let worker = capture.workers().remove(0);
        Self { capture, worker, queue, sent: 0 }
    }

    /// All of 1,000 packets arrive.
    #[track_caller]
    pub(crate) fn assert_undisturbed(&mut self, bed: &Bed) {
        bed.send(self.queue, 1000);
        self.sent += 1000;
        let mut taken = 0;
        while taken < 1000 {
            let chunk = self.worker.next_chunk_timeout(Duration::from_secs(3)).unwrap();
            let Some(chunk) = chunk else {
                panic!("{taken} of 1000 packets of another capture arrived")
            };
            taken += chunk.len();
        }
        assert_eq!(taken, 1000);
    }

    #[track_caller]
    pub(crate) fn end(self, bed: &Bed) {
        let Self { capture, worker, sent, .. } = self;
        drop(worker);
        let ledger = bed.in_here(|| capture.close());
        assert!(ledger.is_lossless() && ledger.total.delivered == sent, "{ledger}");
    }
}

/// The loaded programs of this name, each with its maps.
pub(crate) fn programs(name: &str) -> Vec<(u32, Vec<u32>)> {
    let describe = |program: &Program| program.info().map(|info| (info.id, info.map_ids)).ok();
    programs_named(name).unwrap().iter().filter_map(describe).collect()
}
