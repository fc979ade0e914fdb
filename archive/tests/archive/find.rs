//! `find`: the packets that tcpdump finds, in order of time.

use std::fs;

use crate::recordings::{BEGIN, Recordings, SECOND, read, run, tcpdump};

#[test]
fn find_writes_the_matching_packets_of_all_segments_in_order_of_time() {
    let recordings = Recordings::new();
    let found = recordings.folder.path().with_extension("found.pcapng.zst");
    let path = found.to_str().unwrap();
    let is_match = |packet: &crate::recordings::Packet| {
        packet.vlan.is_none()
            && packet.protocol == Some(17)
            && packet.ports.is_some_and(|(_, port)| port == 53)
    };
    let expected: Vec<_> = recordings
        .packets
        .iter()
        .filter(|packet| is_match(packet))
        .map(|packet| (packet.nanos, packet.data.clone()))
        .collect();
    let arguments = ["find", "-a", recordings.archive(), "-w", path, "udp", "dst", "port", "53"];
    let run_found = run(&arguments);
    assert!(run_found.is_success, "{}", run_found.said);
    assert_eq!(read(&found), expected);
    assert!(run(&arguments).said.contains("--force"), "a file was replaced");
    let standard = run(&["find", "-a", recordings.archive(), "udp dst port 53"]);
    fs::write(&found, &standard.output).unwrap();
    assert_eq!(read(&found), expected);
    fs::remove_file(found).unwrap();
}

#[test]
fn find_counts_what_tcpdump_counts() {
    let recordings = Recordings::new();
    let plain = recordings.plain();
    for expression in
        ["", "tcp port 443", "host 10.0.0.3", "ip6 and greater 900", "vlan", "host 192.0.2.1"]
    {
        let run = run(&["find", "-a", recordings.archive(), "--count", expression]);
        assert_eq!(
            run.text().trim(),
            tcpdump(&plain, expression).to_string(),
            "{expression}: {}",
            run.said
        );
    }
}

#[test]
fn find_reads_only_pieces_in_the_period() {
    let recordings = Recordings::new();
    let begin = BEGIN / SECOND + 3600;
    let from = begin.to_string();
    let to = format!("{}.5", begin + 2);
    let run_count =
        run(&["find", "-a", recordings.archive(), "--count", "--from", &from, "--to", &to]);
    assert_eq!(run_count.text().trim(), "250", "{}", run_count.said);
    assert!(run_count.said.contains("in 1 of 3 segments"), "{}", run_count.said);
    let list = run(&["find", "-a", recordings.archive(), "--list", "--from", &from, "--to", &to]);
    assert!(
        list.text().contains("b.pcapng") && !list.text().contains("a.pcapng"),
        "{}",
        list.text()
    );
    let wrong = run(&["find", "-a", recordings.archive(), "--from", &to, "--to", &from]);
    assert_eq!(wrong.status, Some(2), "{}", wrong.said);
}

#[test]
fn find_selects_one_flow_in_both_directions() {
    let recordings = Recordings::new();
    let packet = recordings.packets.iter().find(|packet| packet.protocol == Some(6)).unwrap();
    let ends = [packet.source.clone().unwrap(), packet.destination.clone().unwrap()];
    let expected = recordings.packets.iter().filter(|packet| {
        let of = [packet.source.clone(), packet.destination.clone()].map(Option::unwrap_or_default);
        of == ends || [of[1].clone(), of[0].clone()] == ends
    });
    let flow = match ends[0].contains(':') {
        true => format!("[{}]:[{}]", ends[0], ends[1]),
        false => format!("{}:{}", ends[0], ends[1]),
    };
    let run = run(&["find", "-a", recordings.archive(), "--count", "--flow", &flow]);
    assert_eq!(run.text().trim(), expected.count().to_string(), "{}", run.said);
}
