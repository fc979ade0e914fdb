//! A firewall as a bump in the wire: hosts inside may begin conversations, hosts outside may only answer.
//!
//! `firewall INSIDE OUTSIDE`, two interfaces; Ctrl-C ends it.

use std::collections::HashMap;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use wirecap::{Capture, CaptureError, OpenError, Worker};

/// Idle time after which a conversation is over.
const SILENCE: Duration = Duration::from_secs(120);
/// Maximum number of conversations.
const CONVERSATIONS_MAX: usize = 1 << 20;

/// A conversation of TCP or UDP: protocol, and both ends in their own order.
type Conversation = (u8, (IpAddr, u16), (IpAddr, u16));

/// What the firewall knows.
#[derive(Debug, Default)]
pub(crate) struct Firewall {
    /// Time of the last packet from the inside.
    conversations: HashMap<Conversation, Instant>,
    /// Unsolicited packets from outside.
    pub(crate) refused: u64,
}

impl Firewall {
    /// Whether a packet may pass. Packets other than TCP and UDP may: ARP, neighbour discovery, ping.
    fn lets_pass(&mut self, frame: &[u8], from_inside: bool, now: Instant) -> bool {
        let Some(conversation) = conversation(frame) else { return true };
        let is_known = match self.conversations.get(&conversation) {
            Some(last) => now - *last < SILENCE,
            None => false,
        };
        if from_inside {
            if !is_known && self.conversations.len() >= CONVERSATIONS_MAX {
                self.conversations.retain(|_, last| now - *last < SILENCE);
            }
            self.conversations.insert(conversation, now);
        }
        let passes = from_inside || is_known;
        self.refused += u64::from(!passes);
        passes
    }
}

/// The conversation of an Ethernet frame.
fn conversation(frame: &[u8]) -> Option<Conversation> {
    let packet = frame.get(14..)?;
    let (protocol, source, destination, segment): (_, IpAddr, IpAddr, _) = match frame.get(12..14)? {
        [0x08, 0x00] => {
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
            let header_bytes = usize::from(packet.first()? & 0x0f) * 4;
            (*packet.get(9)?, address(12)?, address(16)?, packet.get(header_bytes..)?)
        }
        [0x86, 0xdd] => {
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
            (*packet.get(6)?, address(8)?, address(24)?, packet.get(40..)?)
        }
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes(*segment.get(at..)?.first_chunk()?));
    let (one, other) = ((source, port(0)?), (destination, port(2)?));
    // The same for both directions.
    matches!(protocol, 6 | 17).then(|| (protocol, one.min(other), one.max(other)))
}

/// Opens both interfaces, the inner one first.
pub(crate) fn open(inside: &str, outside: &str) -> Result<Capture, OpenError> {
    Capture::on(inside).and(outside).forwarding().open()
}

/// Forwards until the capture is stopped.
pub(crate) fn run(capture: &Capture, firewall: &Mutex<Firewall>) -> Result<(), Box<dyn Error + Send + Sync>> {
    thread::scope(|scope| {
        let work = |worker| scope.spawn(|| forward(worker, capture, firewall));
        let workers: Vec<_> = capture.workers().into_iter().map(work).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    Ok(())
}

fn forward(mut worker: Worker, capture: &Capture, firewall: &Mutex<Firewall>) -> Result<(), CaptureError> {
    let names = [&capture.interfaces()[1], &capture.interfaces()[0]].map(|to| &to.device.name);
    // Where the packets of each interface go.
    let mut ports = names.map(|name| capture.port(name).expect("the capture forwards"));
    while let Some(mut chunk) = worker.next_chunk()? {
        let from_inside = chunk.interface_index() == 0;
        let port = &mut ports[chunk.interface_index()];
        let now = Instant::now();
        // Once per chunk, not per packet.
        let mut firewall = firewall.lock().expect("no thread panics with the lock");
        for packet in chunk.drain() {
            if firewall.lets_pass(packet.data(), from_inside, now) {
                port.send(packet);
            } // else it is dropped, and its cell recycled
        }
        drop(firewall);
        port.flush();
    }
    Ok(())
}

#[allow(dead_code, reason = "a test has its own way to end")]
fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [inside, outside] = &names[..] else { return Err("give two interfaces: INSIDE OUTSIDE".into()) };
    let capture = open(inside, outside)?;
    let stopper = capture.stopper();
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT])?;
    thread::spawn(move || signals.forever().for_each(|_| stopper.stop()));
    let firewall = Mutex::default();
    run(&capture, &firewall)?;
    println!("{}", capture.close());
    let firewall = firewall.into_inner()?;
    println!("{} packets from outside were refused", firewall.refused);
    Ok(())
}
