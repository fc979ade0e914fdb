//! A program that uses the crate `pcap`.

fn main() {
    let mut capture = pcap::Capture::from_device("a1").unwrap().promisc(true).snaplen(200).timeout(100).open().unwrap();
    capture.filter("udp port 5000", true).unwrap();
    for _ in 0..10 {
        let packet = capture.next_packet().unwrap();
        println!("{} {:02x?}", packet.header.len, packet.data);
    }
    let stats = capture.stats().unwrap();
    println!("{} {}", stats.received, stats.dropped);
}
