//! Files: shown, cut, joined, converted, counted.

use wirecap_testbed::privileged;

use crate::day::{As, BEGIN, COUNT, Day, names};

/// Types the tasks with files, for which nobody needs a right.
pub(crate) fn type_all(day: &Day) {
    shown(day);
    written(day);
    searched(day);
    described(day);
}

/// Packets of a file, decoded.
pub(crate) fn shown(day: &Day) {
    for (line, other) in [
        ("wirecap -r f.pcap", "tcpdump -r f.pcap"),
        ("wirecap -nr f.pcap 'port 53'", "tcpdump -nr f.pcap 'port 53'"),
        ("wirecap -nnvvXr f.pcap -c 3", "tcpdump -nnvvXr f.pcap -c 3"),
        ("wirecap -r f.pcap -nn -tttt udp port 53", "tcpdump -r f.pcap -nn -tttt udp port 53"),
        ("wirecap show -r f.pcap -A -X -e -vv", "tcpdump -r f.pcap -A -X -e -vv"),
        ("wirecap show f.pcap -n -S", "tcpdump -nSr f.pcap"),
        ("wirecap -r - < f.pcap", "tcpdump -r - < f.pcap"),
        ("cat f.pcap | wirecap -nr - port 53", "tcpdump -nr f.pcap port 53"),
        ("wirecap -nr f.pcap | head -n 2", "tcpdump -nr f.pcap | head -n 2"),
        ("echo udp port 53 > filter; wirecap -nr f.pcap -F filter", "tcpdump -nr f.pcap -F filter"),
        // The decoder gets nanoseconds.
        (
            r"wirecap show --with tshark -r f.pcap | sed -E 's/(\.[0-9]{6})000/\1/' | tr -s ' '",
            "tshark -r f.pcap | tr -s ' '",
        ),
        (
            "wirecap show -r f.pcap --with tshark -T fields -e udp.dstport",
            "tshark -r f.pcap -T fields -e udp.dstport",
        ),
        (
            "wirecap show -r f.pcap --with tshark -nV -Y 'udp.dstport == 53' | grep -c ^Frame",
            "tshark -r f.pcap -nV -Y 'udp.dstport == 53' | grep -c ^Frame",
        ),
        ("wirecap find f.pcap port 53 | wirecap show -r - -n", "tcpdump -nr f.pcap port 53"),
    ] {
        day.prints_as(line, other);
    }
    // Those of tshark, typed where tcpdump decodes.
    for (line, other) in [
        (
            "wirecap -r f.pcap -T fields -e frame.number -Y 'udp.dstport == 53'",
            "tshark -r f.pcap -T fields -e frame.number -Y 'udp.dstport == 53'",
        ),
        ("wirecap show -r f.pcap -T fields -e ip.src", "tshark -r f.pcap -T fields -e ip.src"),
        ("wirecap f.pcap", "tcpdump -r f.pcap"),
    ] {
        day.prints_as(&day.types(line).advice(), other);
    }
}

/// Packets of a file, written to another one.
fn written(day: &Day) {
    for (line, file, other) in [
        ("wirecap -r f.pcap -w dns.pcap port 53", "dns.pcap", "tcpdump -r f.pcap -w - port 53"),
        ("wirecap capture -r f.pcap -w f.pcapng", "f.pcapng", "editcap f.pcap -"),
        ("wirecap capture -r f.pcapng -w again.pcap", "again.pcap", "editcap -F pcap f.pcap -"),
        (
            "wirecap capture -r f.pcap -s 50 -w short.pcap",
            "short.pcap",
            "editcap -F pcap -s 50 f.pcap -",
        ),
        ("wirecap capture -r f.pcap -c 10 -w ten.pcap", "ten.pcap", "tcpdump -r f.pcap -c 10 -w -"),
        ("wirecap capture -r f.pcap -w f.pcapng.gz", "f.pcapng.gz", "editcap f.pcap -"),
        ("wirecap capture -r f.pcapng.gz -w - > out.pcapng", "out.pcapng", "editcap f.pcap -"),
        (
            "wirecap find a.pcap b.pcap -w all.pcap",
            "all.pcap",
            "mergecap -F pcap -w - a.pcap b.pcap",
        ),
        ("wirecap find rec -w rec.pcapng", "rec.pcapng", "mergecap -w - rec/a.pcap rec/b.pcap"),
        (
            "wirecap find f.pcap --from 2023-11-14T22:13:30 --to 2023-11-14T22:13:40 -w cut.pcap",
            "cut.pcap",
            "editcap -F pcap -A '2023-11-14 22:13:30' -B '2023-11-14 22:13:40' f.pcap -",
        ),
        (
            "wirecap find rec/*.pcap port 53 -w found.pcap",
            "found.pcap",
            "tcpdump -r f.pcap -w - port 53",
        ),
    ] {
        day.writes_as(line, file, other);
    }

    day.prints_as(
        "wirecap capture -r f.pcap -w - | tshark -r - -T fields -e frame.time_epoch -e udp.length",
        "tshark -r f.pcap -T fields -e frame.time_epoch -e udp.length",
    );
    let compressed = day.types(
        "wirecap capture -r f.pcap -w f.pcap.zst && wirecap capture -r f.pcap.zst -w z.pcap",
    );
    compressed.assert_success();
    assert_eq!(day.packets("z.pcap"), day.packets("f.pcap"));

    // As people call it who know mergecap; the message has two names for files, and one for the
    // result.
    let advice = day.types("wirecap mergecap -w m.pcap a.pcap b.pcap").advice();
    let line = ["a.pcap", "b.pcap", "m.pcap"]
        .iter()
        .fold(advice, |line, name| line.replacen("FILE", name, 1));
    day.writes_as(&line, "m.pcap", "mergecap -F pcap -w - a.pcap b.pcap");

    // tcpdump would overwrite the file; with the flag that the message names, so does wirecap.
    let refused = day.types("wirecap -r a.pcap -w m.pcap");
    assert!(refused.status == Some(1) && refused.stderr.contains("--force"), "{refused:#?}");
    day.writes_as("wirecap -r a.pcap -w m.pcap --force", "m.pcap", "tcpdump -r a.pcap -w -");
    // Never the file that is read.
    for line in
        ["wirecap find m.pcap b.pcap -w m.pcap --force", "wirecap -r m.pcap -w m.pcap --force"]
    {
        let refused = day.types(line);
        let is_refused =
            refused.status == Some(2) && refused.stderr.contains("write to another one");
        assert!(is_refused, "was not refused: {refused:#?}");
    }
    assert_eq!(day.packets("m.pcap"), day.packets("a.pcap"));
}

fn searched(day: &Day) {
    let matching = (COUNT / 3).to_string() + "\n";
    assert_eq!(day.types("wirecap find f.pcap --count port 53").stdout, matching);
    let listed = day.types("wirecap find rec --list udp");
    assert!(
        ["a", "b"]
            .iter()
            .all(|name| listed.stdout.contains(&format!("rec/{name}.pcap: 30 packets"))),
        "{listed:#?}"
    );
    day.types("wirecap index rec").assert_success();
    assert_eq!(names(&day.path("rec"), "b.pcap"), ["b.pcap", "b.pcap.flows.parquet"]);
    assert_eq!(day.types("wirecap find rec --count --flow 10.0.0.1:10.0.0.2.53").stdout, matching);
    let some = format!("wirecap find f.pcap --from {} --count", BEGIN + 10);
    assert_eq!(day.types(&some).stdout, format!("{}\n", COUNT - 10));
}

/// What capinfos and wc tell.
fn described(day: &Day) {
    let line = day.types("wirecap capinfos f.pcap").advice().replace("FILE", "f.pcap");
    day.types(&line).assert_success();
    let stats = day.types(&format!("{line} --json")).json();
    let capinfos = day.types_as(As::Root, "capinfos -Tr -c -d -a -e -S f.pcap");
    let theirs: Vec<&str> = capinfos.stdout.trim().split('\t').collect();
    let [_, packets, bytes, first, last] = theirs[..] else { panic!("{capinfos:#?}") };
    let seconds = |text: &str| text.parse::<f64>().unwrap();
    assert_eq!(stats["packets"], packets.parse::<u64>().unwrap(), "{stats}");
    assert_eq!(stats["bytes"], bytes.parse::<u64>().unwrap(), "{stats}");
    assert!((seconds(last) - seconds(first) - (COUNT - 1) as f64).abs() < 1e-6, "{capinfos:#?}");

    let ledger = day.types("wirecap count -r f.pcap --json").json();
    assert_eq!(ledger["delivered"], COUNT, "{ledger}");
    let ledger = day.types("wirecap count -r - --json port 53 < f.pcap").json();
    assert_eq!(ledger["delivered"], COUNT / 3, "{ledger}");
    day.types("wirecap profile -r f.pcap --svg f.svg --csv f.csv").assert_success();
    day.types("wirecap generate --model even -c 100 -w gen.pcap").assert_success();
    assert_eq!(day.packets("gen.pcap").len(), 100);
    for line in [
        "wirecap --version",
        "wirecap --help",
        "wirecap capture --help",
        "wirecap help find",
        "wirecap status",
    ] {
        day.types(line).assert_success();
    }
    let listed = day.types("wirecap -D");
    listed.assert_success();
    assert!(["a1", "b1", "lo"].iter().all(|name| listed.stdout.contains(name)), "{listed:#?}");
    let checked = day.types("wirecap doctor a1");
    assert!(matches!(checked.status, Some(0 | 3)), "{checked:#?}");
}

#[test]
fn tasks_with_files_work_as_with_the_usual_programs() {
    if !privileged() {
        return;
    }
    type_all(&Day::new());
}
