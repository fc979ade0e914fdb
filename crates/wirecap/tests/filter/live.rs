//! Filters in captures: every engine accepts exactly the packets that libpcap's interpreter
//! accepts.

use std::path::Path;
use std::thread;
use std::time::Duration;

use wirecap::filter::{Context, Filter, FilterRequest, Interpreter, Libpcap, LibpcapFilter};
use wirecap::savefile::{FileSink, Format, Interface, LinkType, Record, Section, Writer};
use wirecap::{Capture, CaptureBuilder, Engine, Ledger, Worker};
use wirecap_testbed::{Namespace, PacketSender, VethPair, pass_program, privileged};

use crate::choices::Choices;
use crate::expressions::{expressions, winpcap_filters};
use crate::packets::frame;
use crate::programs::{Contents, program};

const PATIENCE: Duration = Duration::from_secs(60);

/// Frames of at least Ethernet's minimum length, as on a cable: the kernel drops frames that end
/// within a tag before any socket sees them.
fn frames(seed: u64, count: usize) -> Vec<Vec<u8>> {
    let mut choices = Choices::from_seed(seed, count * 2048);
    let padded = |mut data: Vec<u8>| {
        data.resize(data.len().clamp(60, 1514), 0);
        data
    };
    (0..count).map(|_| padded(frame(&mut choices).data)).collect()
}

/// A filter, and its reference.
struct Case {
    request: FilterRequest,
    oracle: Oracle,
}

enum Oracle {
    Libpcap(LibpcapFilter),
    Interpreter(Interpreter),
}

impl Case {
    fn of_expression(expression: &str) -> Self {
        let libpcap = Libpcap::get().expect("libpcap is needed for this test");
        let filter =
            Filter::compile(expression, LinkType::ETHERNET, 0).expect("it was compiled before");
        let oracle = Oracle::Libpcap(libpcap.prepare(&filter).expect("no extensions"));
        Self { request: expression.into(), oracle }
    }

    /// The reference is our interpreter, because libpcap's does not initialise scratch memory.
    fn of_program(filter: &Filter) -> Self {
        let oracle = Oracle::Interpreter(Interpreter::new(filter).expect("no extensions"));
        Self { request: FilterRequest::Program(filter.program().to_vec()), oracle }
    }

    fn accepts(&self, frame: &[u8]) -> bool {
        let wire_len = frame.len() as u32;
        let kept = match &self.oracle {
            Oracle::Libpcap(filter) => filter.matches(frame, wire_len),
            Oracle::Interpreter(filter) => filter.matches(frame, wire_len, &Context::default()),
        };
        kept > 0
    }

    fn wanted<'a>(&self, frames: &'a [Vec<u8>]) -> Vec<&'a [u8]> {
        frames.iter().map(Vec::as_slice).filter(|frame| self.accepts(frame)).collect()
    }
}

/// The next `count` packets.
fn take(worker: &mut Worker, count: usize) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while packets.len() < count {
        let chunk = worker.next_chunk_timeout(PATIENCE).unwrap();
        let chunk =
            chunk.unwrap_or_else(|| panic!("only {} of {count} packets came", packets.len()));
        packets.extend(chunk.iter().map(|packet| packet.data().to_vec()));
    }
    packets
}

fn at<T: Send>(namespace: &Namespace, work: impl FnOnce() -> T + Send) -> T {
    namespace.run_in(work).unwrap()
}

fn capture(engine: Engine) -> CaptureBuilder {
    Capture::on("a1")
        .engine(engine)
        .chunk(64)
        .pool(64)
        .workers(1)
        .retire_after(Duration::from_millis(1))
}

/// Every filter in turn, on one running capture.
fn compare(engine: Engine, cases: &[Case]) -> Ledger {
    let near = Namespace::new().unwrap();
    let far = Namespace::new().unwrap();
    let pair = VethPair::new((&near, "a0"), (&far, "a1"), 1, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    let _pass = (engine == Engine::Packet).then(|| pass_program(&pair.receiver).unwrap());
    let mut sender = PacketSender::on(&pair.sender).unwrap();
    let frames = frames(21, 50);
    let capture = at(&far, || capture(engine).filter(cases[0].request.clone()).open()).unwrap();
    let mut worker = capture.workers().pop().unwrap();
    let mut delivered = 0;
    for (number, case) in cases.iter().enumerate() {
        let request = &case.request;
        at(&far, || capture.set_filter(request.clone()))
            .unwrap_or_else(|error| panic!("{request}: {error}"));
        frames.iter().for_each(|frame| sender.send(frame).unwrap());
        let expected = case.wanted(&frames);
        // An excess packet would precede those of the next filter.
        let packets = take(&mut worker, expected.len());
        let place = |packet: &[u8]| frames.iter().position(|frame| frame == packet);
        assert!(
            packets.iter().eq(&expected),
            "{engine:?}, filter {number}: frames {:?} came, not {:?}: {request:?}",
            packets.iter().map(|packet| place(packet)).collect::<Vec<_>>(),
            expected.iter().map(|packet| place(packet)).collect::<Vec<_>>(),
        );
        delivered += expected.len() as u64;
    }
    assert!(worker.next_chunk_timeout(Duration::from_millis(100)).unwrap().is_none());
    let ledger = at(&far, || capture.close());
    assert_eq!((ledger.total.delivered, ledger.total.offered), (delivered, delivered), "{ledger}");
    let filtered = (frames.len() * cases.len()) as u64 - delivered;
    // AF_PACKET counts them only in user space.
    let may_be_unknown = engine == Engine::Packet && ledger.total.filtered.is_none();
    assert!(may_be_unknown || ledger.total.filtered == Some(filtered), "{ledger}");
    ledger
}

/// One expression in `one_in` of more than a thousand, from number `first` on, and the longest.
fn some_expressions(first: usize, one_in: usize) -> Vec<Case> {
    let all = expressions(5, 1200).into_iter().skip(first).step_by(one_in);
    all.chain(winpcap_filters()).map(|expression| Case::of_expression(&expression)).collect()
}

/// Random programs, including some that the kernel would evaluate differently or reject.
fn some_programs() -> Vec<Case> {
    let mut choices = Choices::from_seed(23, 1 << 20);
    let contents = |number: u32| Contents {
        insns_max: if number % 40 == 39 { 5000 } else { 30 },
        slots_stored_first: number.is_multiple_of(2),
        extensions: false,
        far: true,
    };
    (0..160).map(|number| Case::of_program(&program(&mut choices, contents(number)))).collect()
}

#[test]
fn packet_sockets_accept_the_packets_that_libpcap_accepts() {
    if privileged() {
        compare(Engine::Packet, &some_expressions(0, 4));
        compare(Engine::Packet, &some_programs());
    }
}

#[test]
fn the_xdp_engine_accepts_the_packets_that_libpcap_accepts_and_counts_the_rest() {
    if privileged() {
        // Each change of the filter waits for earlier packets, so several concurrent captures take
        // little longer than one.
        const CAPTURES: usize = 4;
        let check = |cases: Vec<Case>| {
            let ledger = compare(Engine::Xdp, &cases);
            assert!(ledger.total.filtered.is_some(), "{ledger}");
        };
        thread::scope(|scope| {
            (0..CAPTURES).for_each(|first| {
                _ = scope.spawn(move || check(some_expressions(first, CAPTURES)));
            });
            check(some_programs());
        });
    }
}

fn write_file(path: &Path, frames: &[Vec<u8>]) {
    let mut writer =
        Writer::new(FileSink::create(path).unwrap(), Format::Pcapng, &Section::default());
    writer
        .add_interface(&Interface { link_type: LinkType::ETHERNET, ..Interface::default() })
        .unwrap();
    for data in frames {
        let wire_len = data.len() as u32;
        let record = Record {
            interface: 0,
            timestamp: None,
            queue: None,
            direction: None,
            wire_len,
            data: &data[..],
            ..Record::default()
        };
        writer.write(&record).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn files_deliver_the_packets_that_libpcap_accepts_and_count_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frames");
    let frames = frames(22, 200);
    write_file(&path, &frames);
    let mut all = expressions(5, 1200);
    all.extend(winpcap_filters());
    for expression in all {
        let capture = Capture::file(&path).chunk(16).filter(expression.as_str()).open().unwrap();
        let mut worker = capture.workers().pop().unwrap();
        let mut packets = Vec::new();
        while let Some(chunk) = worker.next_chunk().unwrap() {
            packets.extend(chunk.iter().map(|packet| packet.data().to_vec()));
        }
        let expected = Case::of_expression(&expression).wanted(&frames);
        assert!(packets.iter().eq(&expected), "{expression}");
        let total = capture.close().total;
        let filtered = frames.len() - expected.len();
        assert_eq!(
            (total.delivered, total.filtered),
            (expected.len() as u64, Some(filtered as u64))
        );
    }
}
