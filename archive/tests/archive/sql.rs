//! `sql`: results compared with naive searches, excluded segments and pieces, formats.

use std::fs::File;

use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::recordings::{BEGIN, PACKETS, Packet, Recordings, STEP, packets, record, run, tcpdump};

/// A condition, and whether it is true for a packet.
type Case = (&'static str, fn(&Packet) -> bool);

#[test]
fn conditions_select_exactly_the_packets_that_a_naive_search_selects() {
    let recordings = Recordings::new();
    let cases: &[Case] = &[
        ("true", |_| true),
        ("src_addr = '10.0.0.7'", |p| p.source.as_deref() == Some("10.0.0.7")),
        ("'10.0.0.7' IN (src_addr, dst_addr)", |p| {
            p.source.as_deref() == Some("10.0.0.7") || p.destination.as_deref() == Some("10.0.0.7")
        }),
        ("src_addr = 'fd00::5' OR dst_addr = '10.0.0.9'", |p| {
            p.source.as_deref() == Some("fd00::5") || p.destination.as_deref() == Some("10.0.0.9")
        }),
        ("src_addr LIKE 'fd00:%'", |p| p.source.as_deref().is_some_and(|a| a.starts_with("fd00:"))),
        ("dst_port = 53", |p| p.ports.is_some_and(|(_, port)| port == 53)),
        ("dst_port IN (80, 443) AND protocol = 17", |p| {
            p.ports.is_some_and(|(_, port)| port == 80 || port == 443) && p.protocol == Some(17)
        }),
        ("NOT (dst_port = 53)", |p| p.ports.is_some_and(|(_, port)| port != 53)),
        ("dst_port <> 53 AND src_port BETWEEN 1030 AND 1035", |p| {
            p.ports.is_some_and(|(source, port)| port != 53 && (1030..=1035).contains(&source))
        }),
        ("src_port IS NULL", |p| p.ports.is_none()),
        ("protocol = 1", |p| p.protocol == Some(1)),
        ("protocol IS NULL AND ether_type = 2054", |p| p.protocol.is_none()),
        ("vlan = 101", |p| p.vlan == Some(101)),
        ("vlan IS NULL AND dst_port = 8080", |p| {
            p.vlan.is_none() && p.ports.is_some_and(|(_, port)| port == 8080)
        }),
        ("tcp_flags = 2", |p| p.flags == Some(2)),
        ("tcp_flags & 1 = 1", |p| p.flags.is_some_and(|flags| flags & 1 == 1)),
        ("length > 1000", |p| p.data.len() > 1000),
        ("length < 60 OR length BETWEEN 500 AND 510", |p| {
            p.data.len() < 60 || (500..=510).contains(&p.data.len())
        }),
        ("captured = length", |_| true),
        ("time < '2026-11-22T17:00:10Z'", |p| p.nanos < BEGIN + 1000 * STEP),
        ("time >= '2026-11-22T18:00:00Z' AND time < '2026-11-22T18:00:01Z'", |p| {
            (BEGIN + 360_000 * STEP..BEGIN + 360_100 * STEP).contains(&p.nanos)
        }),
        ("time = '2026-11-22T17:00:00.010Z'", |p| p.nanos == BEGIN + STEP),
        ("segment = 'b.pcapng' AND protocol = 6", |p| {
            (BEGIN + 360_000 * STEP..BEGIN + 720_000 * STEP).contains(&p.nanos)
                && p.protocol == Some(6)
        }),
        ("src_mac = '02:00:00:00:00:02' AND queue = 3 AND interface_name = 'eth0'", |_| true),
        ("sensor = 'x'", |_| false),
        ("src_addr = '192.0.2.1'", |_| false),
        ("pcap_filter('udp') AND dst_port = 53", |p| {
            p.vlan.is_none()
                && p.protocol == Some(17)
                && p.ports.is_some_and(|(_, port)| port == 53)
        }),
        ("pcap_filter('arp') OR vlan = 102", |p| {
            p.vlan == Some(102) || p.vlan.is_none() && p.protocol.is_none()
        }),
    ];
    for (condition, is_match) in cases {
        let rows = recordings.sql(&format!(
            "SELECT count(*), sum(length), sum(number), sum(octet_length(encode(data, 'hex'))) / 2 FROM packets WHERE {condition}"
        ));
        let matching: Vec<(usize, &Packet)> =
            recordings.packets.iter().enumerate().filter(|(_, packet)| is_match(packet)).collect();
        let bytes: usize = matching.iter().map(|(_, packet)| packet.data.len()).sum();
        let numbers: usize = matching.iter().map(|(place, _)| place % PACKETS).sum();
        let expected = match matching.len() {
            0 => "0,,,".to_owned(),
            count => format!("{count},{bytes},{numbers},{bytes}"),
        };
        assert_eq!(rows, [expected], "{condition}");
    }
}

#[test]
fn pcap_filter_selects_what_tcpdump_selects() {
    let recordings = Recordings::new();
    let plain = recordings.plain();
    for expression in [
        "tcp port 80",
        "host 10.0.0.3 and not udp",
        "src net 10.0.0.0/29 or ip6 host fd00::3",
        "tcp[tcpflags] & tcp-syn != 0",
        "vlan 101 and udp",
        "icmp or arp",
        "greater 1000",
        "ip[8] = 64 and udp[8] > 200",
        "ether[0] & 1 = 0 and less 80",
    ] {
        let expected = tcpdump(&plain, expression);
        assert!(expected > 0, "{expression} selects nothing");
        for condition in [
            format!("pcap_filter('{expression}')"),
            // Here the scan does not apply the filter.
            format!("(pcap_filter('{expression}') OR length = 0)"),
            format!("pcap_filter('{expression}', link_type, length, data)"),
        ] {
            let count = recordings.sql(&format!("SELECT count(*) FROM packets WHERE {condition}"));
            assert_eq!(count, [expected.to_string()], "{condition}");
        }
        let count = recordings.sql(&format!(
            "SELECT count(*) FROM (SELECT pcap_filter('{expression}') AS is_match FROM packets AS p) WHERE is_match"
        ));
        assert_eq!(count, [expected.to_string()], "{expression}");
    }
}

#[test]
fn flows_sum_up_to_the_packets() {
    let recordings = Recordings::new();
    let bytes: usize = recordings.packets.iter().map(|packet| packet.data.len()).sum();
    let sums =
        recordings.sql("SELECT sum(packets), sum(bytes), count(DISTINCT segment) FROM flows");
    assert_eq!(sums, [format!("{},{bytes},3", recordings.packets.len())]);
    let of = |table: &str, count: &str| {
        recordings.sql(&format!(
            "SELECT segment, src_addr, dst_addr, protocol, src_port, dst_port, vlan, {count} FROM {table}
             GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7"
        ))
    };
    assert_eq!(of("flows", "sum(packets)"), of("packets", "count(*)"));
    // For these conditions, only the rows of an index that may match are read.
    let cases: &[Case] = &[
        ("src_addr = '10.0.0.7'", |p| p.source.as_deref() == Some("10.0.0.7")),
        ("'fd00::5' IN (src_addr, dst_addr)", |p| {
            p.source.as_deref() == Some("fd00::5") || p.destination.as_deref() == Some("fd00::5")
        }),
        ("dst_port IN (80, 443) AND protocol = 17", |p| {
            p.ports.is_some_and(|(_, port)| port == 80 || port == 443) && p.protocol == Some(17)
        }),
        (
            "(src_addr = '10.0.0.7' AND dst_port = 53) OR (dst_addr = '10.0.0.7' AND src_port = 53)",
            |p| {
                let is = |address: &Option<String>| address.as_deref() == Some("10.0.0.7");
                p.ports.is_some_and(|(from, to)| {
                    is(&p.source) && to == 53 || is(&p.destination) && from == 53
                })
            },
        ),
        ("src_addr = '192.0.2.1'", |_| false),
        ("src_addr = '10.0.0.7' AND src_addr = '10.0.0.8'", |_| false),
    ];
    for (condition, is_match) in cases {
        let count = recordings.packets.iter().filter(|packet| is_match(packet)).count();
        let packets = recordings
            .sql(&format!("SELECT coalesce(sum(packets), 0) FROM flows WHERE {condition}"));
        assert_eq!(packets, [count.to_string()], "{condition}");
    }
}

#[test]
fn explain_shows_that_indexes_are_searched_by_addresses_and_ports() {
    let recordings = Recordings::new();
    let is_searched = |condition: &str| {
        let statement = format!("EXPLAIN SELECT flow FROM flows WHERE {condition}");
        run(&["sql", "-a", recordings.archive(), &statement])
            .text()
            .contains("indexes by addresses and ports")
    };
    assert!(is_searched("src_addr = '10.0.0.7' AND packets > 1"));
    assert!(!is_searched("src_addr = '10.0.0.7' OR packets > 1"));
}

/// The numbers in the line of a plan: segments, of how many, pieces, of how many.
fn excluded(recordings: &Recordings, statement: &str) -> [usize; 4] {
    let run = run(&["sql", "-a", recordings.archive(), &format!("EXPLAIN {statement}")]);
    let text = run.text();
    let start = text.find("PacketScan: ").unwrap_or_else(|| panic!("{text}{}", run.said));
    let line = text[start..].split(", bytes").next().unwrap();
    let numbers: Vec<usize> = line
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect();
    numbers.try_into().unwrap()
}

#[test]
fn explain_shows_the_segments_and_pieces_that_a_condition_excludes() {
    let recordings = Recordings::new();
    let of = |condition: &str| {
        excluded(&recordings, &format!("SELECT data FROM packets WHERE {condition}"))
    };
    let [segments, all_segments, pieces, all_pieces] = of("true");
    // A piece of the uncompressed file contains no packets, but its interface.
    assert_eq!((segments, all_segments, pieces), (3, 3, all_pieces - 1));
    assert!(pieces > 10, "{pieces}");
    let [segments, _, pieces, _] = of("time < '2026-11-22T17:00:00.5Z'");
    assert_eq!((segments, pieces), (1, 1));
    assert_eq!(of("src_addr = '192.0.2.1'")[..3], [0, 3, 0]);
    assert_eq!(of("pcap_filter('host 192.0.2.1')")[..3], [0, 3, 0]);
    assert_eq!(of("protocol = 89")[0], 0);
    assert_eq!(of("length > 4000")[0], 0);
    assert_eq!(of("segment = 'a.pcapng.zst'")[0], 1);
    // Few pieces contain a single flow.
    let packet = recordings.packets.iter().find(|packet| packet.ports.is_some()).unwrap();
    let (source_port, port) = packet.ports.unwrap();
    let one = format!(
        "src_addr = '{}' AND dst_addr = '{}' AND src_port = {source_port} AND dst_port = {port}",
        packet.source.as_ref().unwrap(),
        packet.destination.as_ref().unwrap()
    );
    let [.., pieces, all_pieces] = of(&one);
    assert!(pieces >= 1 && pieces * 3 < all_pieces, "{pieces} of {all_pieces}");
}

#[test]
fn all_formats_have_the_same_rows() {
    let recordings = Recordings::new();
    let statement = "SELECT * FROM packets WHERE dst_port = 53";
    let expected = recordings.sql("SELECT count(*) FROM packets WHERE dst_port = 53")[0]
        .parse::<usize>()
        .unwrap();
    let path = |name: &str| recordings.folder.path().join(name).to_str().unwrap().to_owned();
    for name in ["r.csv", "r.json", "r.parquet", "r.arrow", "r.txt"] {
        let path = path(name);
        let written = run(&["sql", "-a", recordings.archive(), statement, "-w", &path]);
        assert!(written.is_success && written.output.is_empty(), "{name}: {}", written.said);
        let again = run(&["sql", "-a", recordings.archive(), statement, "-w", &path]);
        assert!(!again.is_success && again.said.contains("--force"), "{name}: {}", again.said);
    }
    let lines = |name: &str| std::fs::read_to_string(path(name)).unwrap().lines().count();
    assert_eq!(lines("r.csv"), expected + 1);
    assert_eq!(lines("r.json"), expected);
    assert_eq!(lines("r.txt"), expected + 4);
    let parquet = SerializedFileReader::new(File::open(path("r.parquet")).unwrap()).unwrap();
    assert_eq!(parquet.metadata().file_metadata().num_rows(), expected as i64);
    let arrow = arrow::ipc::reader::FileReader::try_new(File::open(path("r.arrow")).unwrap(), None)
        .unwrap();
    assert_eq!(arrow.map(|batch| batch.unwrap().num_rows()).sum::<usize>(), expected);
}

#[test]
fn a_reader_that_closes_the_pipe_ends_the_command_without_an_error() {
    let recordings = Recordings::new();
    let script = format!(
        "{} sql -a {} 'SELECT * FROM packets' --format csv | head -n 3; exit ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_wirecap-archive"),
        recordings.archive()
    );
    let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 3);
}

#[test]
fn names_in_the_layout_exclude_segments_without_their_indexes() {
    let folder = tempfile::tempdir().unwrap();
    let mut names = Vec::new();
    for (number, sensor) in ["berlin", "paris", "rome"].into_iter().enumerate() {
        let packets = packets(number as u64, 500);
        let first = packets[0].nanos;
        let last = packets[499].nanos;
        let name = format!(
            "sensor={sensor}/date=2026-11-22/hour={}/{first}-{last}-0123456789abcde{number}-eth0.pcapng.zst",
            17 + number
        );
        let path = folder.path().join(&name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        record(&path, &packets);
        // The index is damaged and excludes nothing: only the names exclude segments.
        std::fs::write(wirecap_index::index_path(&path), "not an index").unwrap();
        names.push(name);
    }
    let archive = folder.path().to_str().unwrap();
    let answer = |statement: &str| {
        let run = run(&["sql", "-a", archive, statement, "--format", "csv"]);
        assert!(run.is_success, "{statement}: {}", run.said);
        run.text().lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let by_sensor = "SELECT sensor, count(*) FROM packets GROUP BY 1 ORDER BY 1";
    assert_eq!(answer(by_sensor), ["berlin,500", "paris,500", "rome,500"]);
    let paris =
        "FROM packets WHERE time >= '2026-11-22T18:00:01Z' AND time < '2026-11-22T18:30:00Z'";
    assert_eq!(answer(&format!("SELECT sensor, count(*) {paris} GROUP BY 1")), ["paris,400"]);
    assert_eq!(answer("SELECT sum(packets) FROM flows WHERE sensor = 'rome'"), ["500"]);
    // Segments excluded by their names are not opened, so their damage is not noticed.
    for place in [0, 2] {
        std::fs::write(folder.path().join(&names[place]), [0x28, 0xb5, 0x2f, 0xfd, 0, 0]).unwrap();
    }
    assert_eq!(answer(&format!("SELECT sensor, count(*) {paris} GROUP BY 1")), ["paris,400"]);
    assert_eq!(answer("SELECT count(*) FROM packets WHERE sensor = 'paris'"), ["500"]);
    assert_eq!(answer("SELECT sum(packets) FROM flows WHERE sensor = 'paris'"), ["500"]);
}
