//! Wrong command lines: the message names the cause and the next step, in two lines at most, and
//! what it suggests works.

use std::collections::HashSet;

use wirecap_testbed::privileged;

use crate::day::{As, Day, Ran};

/// A wrong line; what its message names as the cause, and as the next step; and a line that takes
/// the step.
///
/// The last one is empty if there is nothing to type.
type Wrong = (&'static str, &'static str, &'static str, &'static str);

/// Columns of a terminal that shows a message in two lines.
const COLUMNS: usize = 100;

/// Commands, flags and words.
const COMMANDS: &[Wrong] = &[
    ("wirecap captur -i a1", "no command captur", "wirecap capture", "wirecap capture --help"),
    (
        "wirecap record -i a1",
        "no command record",
        "wirecap capture -i DEV -w FILE",
        "wirecap capture -i a1 -w record.pcap -c 1",
    ),
    (
        "wirecap merge a.pcap b.pcap",
        "no command merge",
        "wirecap find FILE FILE -w FILE",
        "wirecap find a.pcap b.pcap -w merge.pcap",
    ),
    (
        "wirecap editcap f.pcap g.pcap",
        "no command editcap",
        "wirecap capture -r FILE -w FILE",
        "wirecap capture -r f.pcap -w edit.pcap",
    ),
    (
        "wirecap capinfos f.pcap",
        "no command capinfos",
        "wirecap stats FILE",
        "wirecap stats f.pcap",
    ),
    (
        "wirecap tcpreplay -i b1 f.pcap",
        "no command tcpreplay",
        "wirecap replay FILE -i DEV",
        "wirecap replay f.pcap -i b1 -x 9999",
    ),
    ("wirecap tcpdump -ni a1", "no command tcpdump", "wirecap -i DEV", "wirecap -i a1 -c 1"),
    (
        "wirecap tshark -r f.pcap",
        "no command tshark",
        "wirecap show -r FILE",
        "wirecap show -r f.pcap",
    ),
    (
        "wirecap bridge a1 b1",
        "no command bridge",
        "wirecap forward DEV DEV",
        "wirecap forward a1 b1 -c 1",
    ),
    ("wirecap interfaces", "no command interfaces", "wirecap devices", "wirecap devices"),
    ("wirecap frobnicate", "no command frobnicate", "wirecap --help", "wirecap --help"),
    ("wirecap a1", "no command a1", "wirecap -i a1", "wirecap -i a1 -c 1"),
    ("wirecap f.pcap", "no command f.pcap", "wirecap -r f.pcap", "wirecap -r f.pcap"),
    ("wirecap lab nope", "the lab is a separate program", "wirecap-lab nope", ""),
    (
        "wirecap capture --froce -i a1",
        "no option --froce",
        "--force",
        "wirecap capture --force -i a1 -w froce.pcap -c 1",
    ),
    ("wirecap devices a1", "no argument a1", "wirecap doctor a1", "wirecap doctor a1 --help"),
    (
        "wirecap count --threads 2 -i a1",
        "no option --threads",
        "--workers N",
        "wirecap count --workers 2 -i a1 -c 1",
    ),
    (
        "wirecap capture --threads 2 -i a1 -w x.pcap",
        "no option --threads",
        "wirecap count",
        "wirecap count -i a1 -c 1 --workers 2",
    ),
    (
        "wirecap -i a1 --print -w x.pcap",
        "no option --print",
        "wirecap capture -i DEV -U -w - | tee FILE | wirecap show -r -",
        "wirecap capture -i a1 -U -w - -c 1 | tee print.pcap | wirecap show -r -",
    ),
    (
        "wirecap --config x.conf",
        "--config is an option of wirecap capture",
        "wirecap capture --config",
        "wirecap capture --config /dev/null -i a1 -w config.pcap -c 1",
    ),
];

/// What is missing, or does not exist.
const MISSING: &[Wrong] = &[
    (
        "wirecap capture",
        "--interface DEV[@QUEUES] and --write FILE",
        "wirecap capture -i DEV -w FILE",
        "wirecap capture -i a1 -w missing.pcap -c 1",
    ),
    (
        "wirecap capture -i a1",
        "needs --write FILE",
        "wirecap show -i a1",
        "wirecap show -i a1 -c 1",
    ),
    ("wirecap -w x.pcap", "needs --interface", "add -i DEV", "wirecap -i a1 -w add.pcap -c 1"),
    (
        "wirecap capture a1 -w x.pcap",
        "needs --interface",
        "-i a1",
        "wirecap capture -i a1 -w before.pcap -c 1",
    ),
    ("wirecap count f.pcap", "needs --interface", "-r f.pcap", "wirecap count -r f.pcap"),
    ("wirecap count a1", "needs --interface", "-i a1", "wirecap count -i a1 -c 1"),
    ("wirecap stats a1", "a1 is an interface", "write -i before it", "wirecap stats -i a1 -c 1"),
    ("wirecap show a1", "a1 is an interface", "wirecap show -i a1", "wirecap show -i a1 -c 1"),
    ("wirecap show", "name an interface", "-r FILE", "wirecap show -r f.pcap"),
    ("wirecap -i", "--interface needs a value", "--interface DEV", "wirecap --interface a1 -c 1"),
    (
        "wirecap capture -i a1 -w",
        "--write needs a value",
        "--write FILE",
        "wirecap capture -i a1 --write value.pcap -c 1",
    ),
    (
        "wirecap replay f.pcap",
        "needs --interface DEV",
        "wirecap replay --interface DEV FILE",
        "wirecap replay --interface b1 f.pcap -x 9999",
    ),
    ("wirecap forward a1", "needs B", "wirecap forward eth1 eth2", ""),
    ("wirecap stop", "needs NAME", "wirecap status", "wirecap status"),
    (
        "wirecap stop nosuch",
        "no running capture is named nosuch",
        "wirecap status",
        "wirecap status",
    ),
    ("wirecap release b1", "b1 is not dedicated", "wirecap devices", "wirecap devices"),
    ("wirecap -i eht1", "no interface eht1", "a1", "wirecap -i a1 -c 1"),
    ("wirecap capture -i a2 -w x.pcap", "no interface a2", "a1", ""),
    (
        "wirecap capture -i a1,b1 -w x.pcap",
        "a1,b1 is not an interface",
        "-i a1 -i b1",
        "wirecap capture -i a1 -i b1 -w both.pcap -c 1",
    ),
    ("wirecap capture -i zc:a1 -w x.pcap", "zc:a1 is not an interface", "-i a1", ""),
    ("wirecap capture -i a1@9 -w x.pcap", "a1@9 does not exist", "one receive queue, 0", ""),
    ("wirecap -r nosuch.pcap", "cannot open nosuch.pcap", "No such file or directory", ""),
    ("wirecap find f.pcap nosuch.pcap -w x.pcap", "nosuch.pcap: no such file", "no such file", ""),
    ("wirecap stats nosuch", "nosuch: no such file", "no such file", ""),
    ("wirecap capture -i a1 -w /no/such/x.pcap", "/no/such", "No such file or directory", ""),
    (
        "wirecap capture -i a1 -F nosuch -w x.pcap",
        "cannot read nosuch",
        "No such file or directory",
        "",
    ),
    ("wirecap -ni a1 -F nosuch", "cannot read nosuch", "No such file or directory", ""),
    (
        "wirecap capture --config nosuch.conf",
        "cannot read nosuch.conf",
        "No such file or directory",
        "",
    ),
    ("wirecap capture -i a1 -w x.pcap -Z nosuch", "no user nosuch", "-Z nosuch", ""),
];

/// Values, units, filters, files of another kind.
const VALUES: &[Wrong] = &[
    (
        "wirecap capture -i a1 -w x.pcap --duration 9q",
        "unknown unit \"q\"",
        "ms, s, m, h, d or w",
        "wirecap count -i a1 --duration 9ms",
    ),
    ("wirecap capture -i a1 -w x.pcap --file-size 10", "less than one packet", "10M", ""),
    (
        "wirecap capture -i a1 -w x.pcap --buffer 64",
        "64 bytes are too few",
        "64M",
        "wirecap capture -i a1 -w buffer.pcap --buffer 64M -c 1",
    ),
    (
        "wirecap replay f.pcap -i b1 --rate 100M",
        "frames or bits",
        "100Mbps",
        "wirecap replay f.pcap -i b1 --rate 100Mbps",
    ),
    ("wirecap capture -i a1 -w x.pcap -c ten", "--count ten", "expected a number", ""),
    ("wirecap capture -i a1 -w x.pcap -c 0", "--count 0", "a number above 0", ""),
    ("wirecap capture -i a1 -w x.pcap -a duration=5", "-a duration=5", "NAME:VALUE", ""),
    ("wirecap capture -i a1 -w x.pcap -b size:5", "unknown condition size:5", "filesize", ""),
    ("wirecap capture -i a1 -w x.pcap --engine dpdk", "--engine dpdk", "auto, xdp or packet", ""),
    ("wirecap capture -i a1 -w x.pcap -Q rx", "rx", "in, out or inout", ""),
    ("wirecap capture -i a1 -w x.pcap -T 600", "600", "0 to 100", ""),
    (
        "wirecap capture -i a1 -w x.pcap --http 0.0.0.0:80",
        "not a loopback address",
        "127.0.0.1:80",
        "",
    ),
    (
        "wirecap capture -i a1 -w x.pcap.bz2",
        "does not compress to .bz2",
        ".zst or .gz",
        "wirecap capture -i a1 -w bz2.pcap.gz -c 1",
    ),
    (
        "wirecap find f.pcap --from yesterday",
        "invalid time \"yesterday\"",
        "18:00",
        "wirecap find f.pcap --from 18:00 --count",
    ),
    (
        "wirecap find f.pcap --flow 10.0.0.1:53",
        "invalid flow \"10.0.0.1:53\"",
        "10.0.0.1.80:10.0.0.2",
        "wirecap find f.pcap --count --flow 10.0.0.1.80:10.0.0.2",
    ),
    ("wirecap find f.pcap --from 18:00 --to 17:00", "is not before", "no packet can match", ""),
    (
        "wirecap capture -i a1 -w x.pcap prot 53",
        "syntax error in the filter \"prot 53\"",
        "pcap-filter(7)",
        "",
    ),
    ("wirecap -i a1 'udp and ('", "syntax error", "pcap-filter(7)", ""),
    ("wirecap -r f.pcap dns", "the filter \"dns\"", "Wireshark's display filters", ""),
    (
        "wirecap capture -i a1 -w x.pcap ip.addr == 10.0.0.1",
        "syntax error",
        "Wireshark's display filters",
        "",
    ),
    ("wirecap find f.pcap port", "syntax error in the filter \"port\"", "pcap-filter(7)", ""),
    (
        "wirecap capture -i a1 -f udp -w x.pcap tcp",
        "each -i has its own -f",
        "join them with and",
        "wirecap capture -i a1 -f 'udp and not tcp' -w join.pcap -c 1",
    ),
    (
        "wirecap capture -i a1 -r f.pcap -w x.pcap",
        "cannot be used with --read",
        "omit one",
        "wirecap capture -r f.pcap -w omit.pcap",
    ),
    ("wirecap replay f.pcap -i b1 -t -x 2", "cannot be used with", "omit one", ""),
    ("wirecap capture -i a1 -w x.pcap -W 5", "-W requires -C or -G", "--keep-files", ""),
    ("wirecap capture -i a1 -w x.pcap --keep-files 5", "requires several files", "--file-size", ""),
    (
        "wirecap capture -i a1 -w - -C 1",
        "standard output is not a file",
        "options for sets of files do not apply",
        "",
    ),
    (
        "wirecap capture -i any --engine xdp -w x.pcap",
        "named interfaces, not any",
        "--engine auto or packet",
        "wirecap capture -i any --engine packet -w any.pcap -c 1",
    ),
    (
        "echo hello there > text.pcap; wirecap -r text.pcap",
        "neither pcapng nor pcap",
        "which is text",
        "",
    ),
    ("printf '\\3757zXZ.....' > f.xz; wirecap -r f.xz", "compressed by xz", "xz -d", ""),
    (
        "wirecap -r rec",
        "rec is a directory",
        "wirecap find rec | wirecap show -r -",
        "wirecap find rec | wirecap show -r -",
    ),
    (
        "wirecap capture -r rec -w x.pcap",
        "directory",
        "wirecap find rec -w FILE",
        "wirecap find rec -w directory.pcap",
    ),
    (
        "wirecap capture -r f.pcap -w f.pcap --force",
        "f.pcap is the input file",
        "write to another one",
        "",
    ),
    (
        "wirecap find f.pcap a.pcap -w a.pcap --force",
        "a.pcap is one of the files that are read",
        "write to another one",
        "",
    ),
    (
        "wirecap capture -r f.pcap -w b.pcap",
        "the file exists",
        "--force",
        "wirecap capture -r f.pcap -w forced.pcap --force",
    ),
    (
        "wirecap capture -i a1 -w rec",
        "rec is a directory",
        "name a file in it",
        "wirecap capture -i a1 -w rec/x.pcap -c 1",
    ),
    ("wirecap forward a1 a1", "cannot forward a1 to itself", "name two interfaces", ""),
    (
        "wirecap generate -i b1 -c 1 --size 9999",
        "9999",
        "60 to 1514",
        "wirecap generate -i b1 -c 1 --size 1514",
    ),
];

/// Flags of other programs.
const HABITS: &[Wrong] = &[
    (
        "wirecap capture -i a1 -w x.pcap -e",
        "no option -e",
        "wirecap show -i DEV",
        "wirecap show -i a1 -e -c 1",
    ),
    (
        "wirecap capture -i a1 -w x.pcap -B 4096",
        "no option -B",
        "--buffer SIZE",
        "wirecap capture -i a1 -w size.pcap --buffer 4M -c 1",
    ),
    (
        "wirecap capture -i a1 -w x.pcap -Y dns",
        "no option -Y",
        "wirecap show -i DEV --with tshark -Y FILTER",
        "wirecap show -i a1 --with tshark -Y udp -c 1",
    ),
    (
        "wirecap -i a1 -Y dns -c 3",
        "-Y is an option of tshark",
        "wirecap show --with tshark -i a1 -Y dns",
        "wirecap show --with tshark -i a1 -Y dns -c 3",
    ),
    (
        "wirecap show -r f.pcap -T json",
        "-T is an option of tshark",
        "wirecap show --with tshark -r f.pcap -T json",
        "wirecap show --with tshark -r f.pcap -T json",
    ),
    (
        "wirecap show --with tshark -r f.pcap -A",
        "-A is an option of tcpdump",
        "wirecap show --with tcpdump",
        "",
    ),
    (
        "wirecap -i a1 -k",
        "-k",
        "wirecap capture -i DEV -U -w - | wireshark -k -i -",
        "wirecap capture -i a1 -U -w - -c 1 | tshark -r -",
    ),
    ("wirecap -i a1 -a duration:5", "-a", "-c COUNT", "wirecap -i a1 -c 1"),
    (
        "wirecap show -i a1 -w x.pcap",
        "show does not write files",
        "wirecap capture -i DEV -w FILE",
        "wirecap capture -i a1 -w show.pcap -c 1",
    ),
    (
        "wirecap show -r f.pcap -Q in",
        "-Q has no effect on a file",
        "omit it",
        "wirecap show -r f.pcap",
    ),
    (
        "wirecap capture -i a1 -w x.pcap -P",
        "no option -P",
        "--format pcap",
        "wirecap capture -i a1 -w format --format pcap -c 1",
    ),
    (
        "wirecap capture -i a1 -w x.pcap -j host",
        "no option -j",
        "--timestamp packet",
        "wirecap capture -i a1 -w clock.pcap --timestamp packet -c 1",
    ),
    (
        "wirecap capture -i a1 -w x.pcap --ring-buffer files:5",
        "no option --ring-buffer",
        "-b filesize:100000 -b files:10",
        "wirecap capture -i a1 -w ring.pcap -b filesize:100000 -b files:10 -c 1",
    ),
    (
        "wirecap capture -i a1 -w x.pcap --autostop duration:5",
        "no option --autostop",
        "-a duration:60",
        "wirecap capture -i a1 -w stop.pcap -a duration:60 -c 1",
    ),
    ("wirecap capture -i a1 --output x.pcap", "no option --output", "-w FILE", ""),
    (
        "wirecap capture -i a1 -w x.pcap --compress-type gzip",
        "no option --compress-type",
        "-w FILE.pcapng.gz",
        "wirecap capture -i a1 -w type.pcapng.gz -c 1",
    ),
    (
        "wirecap capture -i a1 -w x.pcap -g 2",
        "no option -g",
        "--pin 0,2-3",
        "wirecap capture -i a1 -w pin.pcap --pin 0 -c 1",
    ),
    ("wirecap capture -i a1 -w x.pcap -I", "no option -I", "iw(8)", ""),
    ("wirecap count -i a1 -w x.pcap", "no option -w", "wirecap capture -i DEV -w FILE", ""),
    (
        "wirecap find f.pcap -n",
        "no option -n",
        "wirecap find FILE FILTER | wirecap show -r -",
        "wirecap find f.pcap udp | wirecap show -r - -n",
    ),
    (
        "wirecap find f.pcap -c 5",
        "no option -c",
        "wirecap find FILE FILTER | wirecap capture -r - -c 5 -w FILE",
        "wirecap find f.pcap udp | wirecap capture -r - -c 5 -w five.pcap",
    ),
    (
        "wirecap find -r f.pcap",
        "no option -r",
        "wirecap find FILE FILTER",
        "wirecap find f.pcap udp --count",
    ),
    (
        "wirecap replay -r f.pcap -i b1",
        "no option -r",
        "wirecap replay FILE -i DEV",
        "wirecap replay f.pcap -i b1 -x 9999",
    ),
    (
        "wirecap replay f.pcap -i b1 --mbps 100",
        "no option --mbps",
        "--rate 100Mbps",
        "wirecap replay f.pcap -i b1 --rate 100Mbps",
    ),
    (
        "wirecap replay f.pcap -i b1 -p 1000",
        "no option -p",
        "--rate 1000pps",
        "wirecap replay f.pcap -i b1 --rate 1000pps",
    ),
    (
        "wirecap replay f.pcap --intf1=b1",
        "no option --intf1",
        "-i DEV",
        "wirecap replay f.pcap -i b1 -x 9999",
    ),
    ("wirecap forward -i a1 -i b1", "no option -i", "wirecap forward eth1 eth2", ""),
    ("wirecap top", "needs a terminal", "wirecap status", "wirecap status"),
];

#[track_caller]
fn assert_short(ran: &Ran) {
    assert!(matches!(ran.status, Some(1 | 2)), "{ran:#?}");
    // A long command to be copied cannot be broken.
    let lines = ran.stderr.lines().map(|line| line.split("sudo setcap").next().unwrap_or_default());
    let lines = lines.map(|line| line.chars().count().div_ceil(COLUMNS).max(1)).sum::<usize>();
    assert!((1..=2).contains(&lines), "{lines} lines: {ran:#?}");
    assert_eq!(ran.stdout, "", "{ran:#?}");
    // Nothing of another library's or of the system's own words.
    for word in ["os error", "Usage:", "try '--help'", "as a value", "panicked"] {
        assert!(!ran.stderr.contains(word), "{ran:#?}");
    }
}

/// Every command that a message names is one. Those that are `known` were tried.
#[track_caller]
fn assert_commands_exist(day: &Day, ran: &Ran, known: &mut HashSet<String>) {
    let words: Vec<&str> = ran.stderr.split_whitespace().collect();
    for pair in words.windows(2).filter(|pair| pair[0].trim_start_matches('`') == "wirecap") {
        let command = pair[1].trim_end_matches(['`', ';', ',', '?']);
        // An option, or the verb of a sentence about the program.
        if command.starts_with('-') || command == "does" || !known.insert(command.to_owned()) {
            continue;
        }
        let help = day.types(&format!("wirecap {command} --help"));
        assert!(help.status == Some(0), "{command:?} is no command: {ran:#?}");
    }
}

fn judge(day: &Day, table: &[Wrong]) {
    let _sending = day.sending(&day.pairs[0].sender);
    let mut known = HashSet::new();
    for (line, cause, step, works) in table {
        let ran = day.types(line);
        assert_short(&ran);
        assert!(
            ran.stderr.contains(cause) && ran.stderr.contains(step),
            "{cause:?}, {step:?}: {ran:#?}"
        );
        assert_commands_exist(day, &ran, &mut known);
        assert!(!day.path("x.pcap").exists(), "{ran:#?}");
        if works.is_empty() {
            continue;
        }
        let taken = day.types(works);
        assert!(matches!(taken.status, Some(0)), "{step:?} does not work: {taken:#?}");
    }
}

#[test]
fn a_message_names_the_cause_and_the_next_step_in_two_lines() {
    if !privileged() {
        return;
    }
    let tables = [COMMANDS, MISSING, VALUES, HABITS];
    assert!(tables.iter().map(|table| table.len()).sum::<usize>() >= 60);
    std::thread::scope(|scope| {
        for table in tables {
            scope.spawn(|| judge(&Day::new(), table));
        }
    });
}

/// Rights that are missing, and files of others.
#[test]
fn a_message_names_the_missing_right_and_how_to_get_it() {
    if !privileged() {
        return;
    }
    let day = Day::of_user(As::User(""));
    assert!(day.types_as(As::Root, "chmod 600 b.pcap; mkdir -m 755 closed").status == Some(0));
    for (line, cause, step) in [
        ("wirecap -i a1", "CAP_NET_RAW", "sudo setcap cap_net_raw=ep /"),
        ("wirecap -i a1 -w x.pcap", "CAP_NET_RAW", "sudo setcap cap_net_raw=ep /"),
        ("wirecap capture -i any -w x.pcap", "CAP_NET_RAW", "use sudo"),
        (
            "wirecap capture -i a1 --engine xdp -w x.pcap",
            "CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF",
            "--engine packet",
        ),
        ("wirecap forward a1 b1", "CAP_NET_RAW", "use sudo"),
        ("wirecap replay f.pcap -i b1", "CAP_NET_RAW", "run as root"),
        ("wirecap generate -i b1 -c 1", "CAP_NET_RAW", "run as root"),
        ("wirecap dedicate a1", "requires root", "sudo wirecap dedicate a1"),
        ("wirecap release a1", "requires root", "sudo wirecap release a1"),
        ("wirecap -r b.pcap", "cannot open b.pcap", "Permission denied"),
        (
            "wirecap capture -r f.pcap -w closed/x.pcap",
            "cannot write to closed/x.pcap",
            "Permission denied",
        ),
        (
            "wirecap capture -i a1 -w closed/x.pcap",
            "cannot write to closed/x.pcap",
            "Permission denied",
        ),
    ] {
        let ran = day.types(line);
        assert_short(&ran);
        assert!(
            ran.stderr.contains(cause) && ran.stderr.contains(step),
            "{cause:?}, {step:?}: {ran:#?}"
        );
    }
}
