//! A firewall as a bump in the wire: inside hosts may start conversations, outside hosts may only
//! answer.
//!
//! `firewall INSIDE OUTSIDE`: two interfaces. Ctrl-C ends it.

use std::collections::HashMap;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use wirecap::{Capture, CaptureError, OpenError, Worker};

/// Idle time after which a conversation is over.
const SILENCE: Duration = Duration::from_secs(120);
/// Maximum number of conversations. While there are as many, packets that would begin another are
/// refused.
const CONVERSATIONS_MAX: usize = 1 << 20;
/// Time between searches for conversations that are over, each of which reads the whole table.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);

/// A TCP or UDP conversation: protocol, and both endpoints in ascending order, which is the same in
/// both directions.
type Conversation = (u8, (IpAddr, u16), (IpAddr, u16));

/// What decides about a packet.
enum Kind {
    /// TCP or UDP.
    Conversation(Conversation),
    /// ARP, ICMP, neighbour discovery, multicast listener discovery; a later fragment, which is of
    /// no use without the first.
    Service,
    /// Other packets, also those with a VLAN tag, or an IPv6 extension header other than hop-by-hop
    /// options.
    Other,
}

/// The state of the firewall.
#[derive(Debug, Default)]
pub(crate) struct Firewall {
    /// The known conversations, each with the time of its last packet from inside.
    conversations: HashMap<Conversation, Instant>,
    /// The last search for conversations that are over.
    searched: Option<Instant>,
    /// Packets that did not pass.
    pub(crate) refused: u64,
}

impl Firewall {
    fn lets_pass(&mut self, frame: &[u8], from_inside: bool, now: Instant) -> bool {
        let passes = match kind(frame) {
            Kind::Service => true,
            Kind::Other => from_inside,
            Kind::Conversation(conversation) if from_inside => self.remember(conversation, now),
            Kind::Conversation(conversation) => {
                self.conversations.get(&conversation).is_some_and(|last| now - *last < SILENCE)
            }
        };
        self.refused += u64::from(!passes);
        passes
    }

    /// Notes a packet from inside. Returns false if there are too many conversations.
    fn remember(&mut self, conversation: Conversation, now: Instant) -> bool {
        let is_full = self.conversations.len() >= CONVERSATIONS_MAX;
        if is_full && self.searched.is_none_or(|searched| now - searched >= SEARCH_INTERVAL) {
            self.conversations.retain(|_, last| now - *last < SILENCE);
            self.searched = Some(now);
        }
        let is_full = self.conversations.len() >= CONVERSATIONS_MAX;
        match self.conversations.get_mut(&conversation) {
            Some(last) => *last = now,
            None if is_full => return false,
            None => drop(self.conversations.insert(conversation, now)),
        }
        true
    }
}

fn kind(frame: &[u8]) -> Kind {
    const ARP: &[u8] = &[0x08, 0x06];
    match frame.get(12..14) {
        Some(ARP) => Kind::Service,
        _ => kind_of_ip(frame).unwrap_or(Kind::Other),
    }
}

/// Returns `None` if the frame is not IP, or is truncated.
fn kind_of_ip(frame: &[u8]) -> Option<Kind> {
    let packet = frame.get(14..)?;
    let (protocol, source, destination, segment): (_, IpAddr, IpAddr, _) = match frame
        .get(12..14)?
    {
        [0x08, 0x00] => {
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
            let header_bytes = usize::from(packet.first()? & 0x0f) * 4;
            let fragment_offset = u16::from_be_bytes(*packet.get(6..)?.first_chunk()?) & 0x1fff;
            if fragment_offset != 0 {
                return Some(Kind::Service);
            }
            (*packet.get(9)?, address(12)?, address(16)?, packet.get(header_bytes..)?)
        }
        [0x86, 0xdd] => {
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
            let mut protocol = *packet.get(6)?;
            let mut segment = packet.get(40..)?;
            // Every multicast listener report is behind hop-by-hop options (RFC 3810, section 5).
            if protocol == 0 {
                let options_bytes = (usize::from(*segment.get(1)?) + 1) * 8;
                (protocol, segment) = (*segment.first()?, segment.get(options_bytes..)?);
            }
            (protocol, address(8)?, address(24)?, segment)
        }
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes(*segment.get(at..)?.first_chunk()?));
    Some(match protocol {
        1 | 58 => Kind::Service,
        6 | 17 => {
            let one = (source, port(0)?);
            let other = (destination, port(2)?);
            Kind::Conversation((protocol, one.min(other), one.max(other)))
        }
        _ => Kind::Other,
    })
}

/// Opens both interfaces. The inside interface is the first.
pub(crate) fn open(inside: &str, outside: &str) -> Result<Capture, OpenError> {
    Capture::on(inside).and(outside).forwarding().open()
}

/// Forwards until the capture is stopped.
pub(crate) fn run(
    capture: &Capture,
    firewall: &Mutex<Firewall>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    thread::scope(|scope| {
        let work = |worker| scope.spawn(|| forward(worker, capture, firewall));
        let workers: Vec<_> = capture.workers().into_iter().map(work).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    Ok(())
}

fn forward(
    mut worker: Worker,
    capture: &Capture,
    firewall: &Mutex<Firewall>,
) -> Result<(), CaptureError> {
    let names = [&capture.interfaces()[1], &capture.interfaces()[0]].map(|to| &to.device.name);
    // The output port of each interface's packets.
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
            } // Otherwise the packet is dropped and its cell is recycled.
        }
        drop(firewall);
        port.flush();
    }
    Ok(())
}

#[allow(dead_code, reason = "a test has its own way to end")]
fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let [inside, outside] = &names[..] else {
        return Err("give two interfaces: INSIDE OUTSIDE".into());
    };
    let capture = open(inside, outside)?;
    let stopper = capture.stopper();
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT])?;
    thread::spawn(move || signals.forever().for_each(|_| stopper.stop()));
    let firewall = Mutex::default();
    run(&capture, &firewall)?;
    println!("{}", capture.close());
    let firewall = firewall.into_inner()?;
    println!("{} packets were refused", firewall.refused);
    Ok(())
}
