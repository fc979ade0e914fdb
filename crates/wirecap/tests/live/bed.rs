//! The test bed of captures: two namespaces, a cable between them, and the engine under test.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wirecap::bpf::Link;
use wirecap::{Capture, CaptureBuilder, Chunk, Engine, Ledger, OpenError, Packet, Worker};
use wirecap_testbed::{Generator, Namespace, Traffic, VethPair, pass_program};

/// Time limit on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Two namespaces and the cable between them; captures happen at `a1`.
pub(crate) struct Bed {
    pub(crate) engine: Engine,
    pub(crate) sender: Namespace,
    pub(crate) receiver: Namespace,
    pub(crate) pair: VethPair,
    /// A veth end that shows AF_PACKET the frames of the generator has an XDP program.
    _pass: Option<Link>,
}

impl Bed {
    pub(crate) fn new(engine: Engine, queue_count: u32) -> Self {
        Self::with_mtu(engine, queue_count, 1500)
    }

    pub(crate) fn with_mtu(engine: Engine, queue_count: u32, mtu: u32) -> Self {
        let sender = Namespace::new().unwrap();
        let receiver = Namespace::new().unwrap();
        let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), queue_count, mtu)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        let pass = (engine == Engine::Packet).then(|| pass_program(&pair.receiver).unwrap());
        Self { _pass: pass, ..Self::of(engine, pair) }
    }

    /// A bed around an existing pair.
    pub(crate) fn of(engine: Engine, pair: VethPair) -> Self {
        let sender = pair.sender.namespace.clone();
        let receiver = pair.receiver.namespace.clone();
        Self { engine, sender, receiver, pair, _pass: None }
    }

    /// A capture with a pool of 16,384 cells: deep enough for the tests that send fewer packets
    /// than that.
    pub(crate) fn small(&self) -> CaptureBuilder {
        self.small_on("a1")
    }

    pub(crate) fn small_on(&self, device: &str) -> CaptureBuilder {
        Capture::on(device).engine(self.engine).chunk(64).pool(256)
    }

    pub(crate) fn traffic(&self) -> Traffic {
        Traffic::to(&self.pair.receiver)
    }

    pub(crate) fn generator(&self) -> Generator {
        Generator::new(&self.pair.sender, &self.traffic()).unwrap()
    }

    /// Runs `work` in the receiver's namespace.
    pub(crate) fn at_receiver<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.receiver.run_in(work).unwrap()
    }

    pub(crate) fn open(&self, builder: CaptureBuilder) -> Capture {
        self.at_receiver(|| builder.open()).unwrap()
    }

    pub(crate) fn close(&self, capture: Capture) -> Ledger {
        self.at_receiver(|| capture.close())
    }

    /// Checks that no capture holds any object of the receiver.
    pub(crate) fn assert_untouched(&self) {
        match self.engine {
            // The interface accepts another program.
            Engine::Xdp => drop(self.at_receiver(|| pass_program(&self.pair.receiver)).unwrap()),
            _ => assert_eq!(self.packet_sockets(), 0, "packet sockets are left"),
        }
    }

    /// How many packet sockets receive in the receiver's namespace.
    pub(crate) fn packet_sockets(&self) -> usize {
        let table =
            self.at_receiver(|| std::fs::read_to_string("/proc/thread-self/net/packet")).unwrap();
        // The columns: sk, RefCnt, Type, Proto, Iface, R (whether it runs), ...
        let runs = |line: &&str| line.split_whitespace().nth(5) == Some("1");
        table.lines().filter(runs).count()
    }

    /// The error of a capture that cannot be opened, with its causes.
    pub(crate) fn refusal(&self, builder: CaptureBuilder) -> (OpenError, String) {
        let Err(error) = self.at_receiver(|| builder.open()) else { panic!("the capture opened") };
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(source) = cause {
            text += &format!(": {source}");
            cause = source.source();
        }
        (error, text)
    }
}

/// Takes chunks until `packets` packets were delivered.
pub(crate) fn take(worker: &mut Worker, packets: u64, mut each: impl FnMut(&Chunk)) {
    let mut taken = 0;
    while taken < packets {
        let chunk = worker.next_chunk_timeout(PATIENCE).unwrap();
        let chunk = chunk.unwrap_or_else(|| panic!("only {taken} of {packets} packets came"));
        taken += chunk.len() as u64;
        heads_agree(&chunk);
        each(&chunk);
    }
    assert_eq!(taken, packets);
}

/// The heads of a chunk's first and last packets agree with the packets.
pub(crate) fn heads_agree(chunk: &Chunk) {
    let few = chunk.len().min(4);
    for range in [0..few, chunk.len() - few..chunk.len()] {
        let mut heads = Vec::new();
        let mut whole = Vec::new();
        let packets = chunk.iter().skip(range.start).take(few);
        chunk.for_each_head(range.clone(), |head| heads.push(head));
        chunk.for_each_whole(range.clone(), |head| whole.push(head));
        assert_eq!(heads, whole, "{range:?} of {chunk:?}");
        let of = |packet: Packet<'_>| {
            let time = packet.timestamp().unwrap_or_default();
            (packet.data().to_vec(), packet.wire_len(), time.unix_seconds(), time.subsec_nanos())
        };
        let heads =
            heads.iter().map(|head| (head.data.to_vec(), head.wire_len, head.seconds, head.nanos));
        assert!(heads.eq(packets.map(of)), "{range:?} of {chunk:?}");
    }
}

pub(crate) fn balanced(ledger: &Ledger, sent: u64) {
    assert_eq!(ledger.total.offered, sent, "the ledger does not have what was sent: {ledger}");
    assert_eq!(ledger.total.delivered + ledger.total.dropped.total(), sent, "{ledger}");
    let rings: u64 = ledger.rings.iter().map(|ring| ring.account.delivered).sum();
    assert_eq!(rings, ledger.total.delivered, "{ledger}");
}

pub(crate) fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

pub(crate) fn ip(namespace: &Namespace, arguments: &[&str]) {
    let status = namespace.run_in(|| Command::new("ip").args(arguments).status());
    assert!(status.unwrap().unwrap().success(), "ip {arguments:?} failed");
}
