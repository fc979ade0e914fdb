//! How a host without an address gets one.

use std::net::{IpAddr, Ipv6Addr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use wirecap_testbed::{Interface, PacketReceiver, PacketSender, VethPair};

use crate::client::marked;
use crate::host::{patience, run, sysctl};

type Arrival = Box<dyn FnOnce()>;

const DISCOVER: u8 = b'd';
const OFFER: u8 = b'o';
/// A DHCP client or a router repeats itself after this time, and gives up after so many seconds.
const REPETITION: Duration = Duration::from_millis(300);
const PATIENCE_S: u64 = 6;

/// A DHCP client, as far as a capture is concerned: it broadcasts its question, receives the
/// answer, which is sent to its hardware address, by a packet socket, and adds the address.
pub(crate) fn by_dhcp(cable: &VethPair) -> Arrival {
    let server = cable.sender.clone();
    let host = cable.receiver.clone();
    Box::new(move || {
        let mut asked = PacketReceiver::on(&server).unwrap();
        let mut answers = PacketReceiver::on(&host).unwrap();
        let deadline = Instant::now() + patience(PATIENCE_S);
        while Instant::now() < deadline {
            send(&host, [0xff; 6], [8, 0], &marked(DISCOVER, 0));
            if receives(&mut asked, DISCOVER) {
                send(&server, host.mac, [8, 0], &marked(OFFER, 0));
            }
            if receives(&mut answers, OFFER) {
                run(&host.namespace, &format!("ip address add 10.9.0.2/24 dev {}", host.name));
                return;
            }
        }
    })
}

/// Whether a frame with this mark arrives.
fn receives(receiver: &mut PacketReceiver, kind: u8) -> bool {
    let wanted = marked(kind, 0);
    let deadline = Instant::now() + REPETITION;
    while let Ok(Some(frame)) = receiver.receive(deadline.saturating_duration_since(Instant::now()))
    {
        if frame.ends_with(&wanted) {
            return true;
        }
    }
    false
}

fn send(from: &Interface, to: [u8; 6], kind: [u8; 2], payload: &[u8]) {
    let frame = [&to[..], &from.mac, &kind, &[0; 20], payload].concat();
    PacketSender::on(from).unwrap().send(&frame).unwrap();
}

const NETWORK: [u16; 4] = [0x2001, 0xdb8, 9, 0];

/// The kernel of the host, which accepts router advertisements, and a router that sends some.
pub(crate) fn by_router_advertisement(cable: &VethPair) -> (IpAddr, Arrival) {
    let router = cable.sender.clone();
    let host = cable.receiver.clone();
    for (interface, accepts) in [(&router, "0"), (&host, "1")] {
        let setting = |name: &str| format!("net/ipv6/conf/{}/{name}", interface.name);
        for (name, value) in [
            ("accept_ra", accepts),
            ("autoconf", accepts),
            ("dad_transmits", "0"),
            ("disable_ipv6", "0"),
        ] {
            sysctl(&interface.namespace, &setting(name), value);
        }
    }
    run(&router.namespace, &format!("ip address add 2001:db8:9::1/64 dev {} nodad", router.name));
    let [a, b, c, d, e, f] = host.mac;
    let [x, y, z, w] = NETWORK;
    let words = [[a ^ 2, b], [c, 0xff], [0xfe, d], [e, f]].map(u16::from_be_bytes);
    let address = Ipv6Addr::new(x, y, z, w, words[0], words[1], words[2], words[3]);
    let arrival = move || {
        let mut sender = PacketSender::on(&router).unwrap();
        let deadline = Instant::now() + patience(PATIENCE_S);
        while Instant::now() < deadline && !has_address(&host, address) {
            sender.send(&advertisement(&router)).unwrap();
            thread::sleep(REPETITION);
        }
    };
    (address.into(), Box::new(arrival))
}

fn has_address(host: &Interface, address: Ipv6Addr) -> bool {
    let mut command = Command::new("ip");
    command.args(["-6", "address", "show", "dev", &host.name]);
    let output = host.namespace.run_in(|| command.output()).unwrap().unwrap();
    String::from_utf8_lossy(&output.stdout).contains(&address.to_string())
}

/// A router advertisement (RFC 4861) that announces the network for autonomous configuration.
fn advertisement(router: &Interface) -> Vec<u8> {
    let source = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let everybody = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let [x, y, z, w] = NETWORK;
    let prefix = Ipv6Addr::new(x, y, z, w, 0, 0, 0, 0);
    // Type, code, checksum, hop limit, flags, and a lifetime of 1800 s; reachable time and
    // retransmission timer.
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    // The prefix: on link, autonomous, valid for 3600 s, preferred for 1800 s.
    message.extend([3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 7, 8, 0, 0, 0, 0]);
    message.extend(prefix.octets());
    let length = (message.len() as u16).to_be_bytes();
    let pseudo_header =
        [&source.octets()[..], &everybody.octets(), &[0, 0], &length, &[0, 0, 0, 58]].concat();
    let checksum = checksum(&[&pseudo_header[..], &message].concat());
    message[2..4].copy_from_slice(&checksum.to_be_bytes());

    let ethernet = [&[0x33, 0x33, 0, 0, 0, 1][..], &router.mac, &[0x86, 0xdd]].concat();
    let header =
        [&[0x60, 0, 0, 0][..], &length, &[58, 255], &source.octets(), &everybody.octets()].concat();
    [ethernet, header, message].concat()
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    !((folded >> 16) + folded) as u16
}
