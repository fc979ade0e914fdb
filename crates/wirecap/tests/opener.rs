//! A process without privileges can capture if another process, or another part of it, makes the privileged calls.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use wirecap::filter::opener::{Answer, Direct, Opener, Request, set_opener};
use wirecap::{Capture, Engine};
use wirecap_testbed::{AfXdpSender, Namespace, Stamp, Traffic, VethPair, pass_program, privileged};

static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Has privileges only during a request: it simulates a process that makes the calls.
#[derive(Debug)]
struct Raising;

impl Opener for Raising {
    fn open(&self, request: Request<'_>) -> io::Result<Answer> {
        ASKED.fetch_add(1, Ordering::Relaxed);
        let before = capabilities(None)?;
        set_capabilities(None, CapabilitySets { effective: before.permitted, ..before })?;
        let answer = Direct.open(request);
        set_capabilities(None, before)?;
        answer
    }
}

#[test]
fn all_privileged_calls_use_the_opener() {
    // Before any other object is opened, including by the check below.
    set_opener(Box::new(Raising)).unwrap();
    if !privileged() {
        return;
    }
    for engine in [Engine::Xdp, Engine::Packet] {
        let (near, far) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let mut pair = VethPair::new((&near, "a0"), (&far, "a1"), 1, 1500).unwrap();
        let pass =
            |pair: &VethPair| (engine == Engine::Packet).then(|| pass_program(&pair.receiver).unwrap());
        let mut _passing = pass(&pair);
        let send = |pair: &VethPair| {
            let mut sender = AfXdpSender::on(&pair.sender, 0).unwrap();
            let traffic = Traffic::to(&pair.receiver);
            let frame = |sequence| traffic.frame(Stamp { queue: 0, sequence });
            (0..100).for_each(|sequence| sender.send(&frame(sequence)).unwrap());
            sender.flush().unwrap();
        };
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let gone = Mutex::new(gone);
        let (told, tell) = std::sync::mpsc::channel();
        let asked = ASKED.load(Ordering::Relaxed);
        // A separate thread: privileges belong to a thread, and threads that it starts have no more.
        let capturing = thread::scope(|scope| {
            let captured = scope.spawn(|| {
                far.run_in(|| {
                    let before = capabilities(None).unwrap();
                    let none = CapabilitySets { effective: CapabilitySet::empty(), ..before };
                    set_capabilities(None, none).unwrap();
                    let builder =
                        Capture::on("a1").engine(engine).workers(1).chunk(64).pool(64).filter("udp");
                    let capture = builder.reattach(true).open().unwrap();
                    told.send(()).unwrap();
                    gone.lock().unwrap().recv().unwrap();
                    capture.set_filter("udp dst port 9").unwrap();
                    told.send(()).unwrap();
                    gone.lock().unwrap().recv().unwrap();
                    let deadline = std::time::Instant::now() + Duration::from_secs(30);
                    while capture.ledger().unseen.last().is_none_or(|gap| gap.to.is_none()) {
                        assert!(std::time::Instant::now() < deadline, "{}", capture.ledger());
                        thread::sleep(Duration::from_millis(20));
                    }
                    told.send(()).unwrap();
                    gone.lock().unwrap().recv().unwrap();
                    let mut worker = capture.workers().pop().unwrap();
                    let mut taken = 0;
                    while let Some(chunk) = worker.next_chunk_timeout(Duration::from_millis(300)).unwrap() {
                        taken += chunk.len();
                    }
                    (taken, capture.close())
                })
                .unwrap()
            });
            tell.recv().unwrap();
            send(&pair);
            go.send(()).unwrap();
            tell.recv().unwrap();
            // The program, the sockets, the UMEM and promiscuous mode once more, by the watcher.
            pair.receiver.delete().unwrap();
            pair = VethPair::new((&near, "a0"), (&far, "a1"), 1, 1500).unwrap();
            _passing = pass(&pair);
            go.send(()).unwrap();
            tell.recv().unwrap();
            send(&pair);
            go.send(()).unwrap();
            captured.join().unwrap()
        });
        let (taken, ledger) = capturing;
        assert_eq!((taken, ledger.total.delivered), (200, 200), "{engine:?}: {ledger}");
        assert!(ASKED.load(Ordering::Relaxed) > asked, "{engine:?}: nothing was asked for");
    }
}
