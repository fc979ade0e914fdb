//! The clients.

use crate::bed::Engine;
use crate::normal::{as_is, lines_with, lines_without, numbers, sorted, sorted_times, times};

/// The script for both packages of pcapy.
macro_rules! pcapy {
    () => {
        "
import pcapy
p = pcapy.open_live('a1', 200, True, 100)
p.setfilter('udp port 5000')
n = 0
while n < 10:
    header, data = p.next()
    if header:
        n += 1
        print(header.getlen(), header.getcaplen(), data.hex(), flush=True)
print(p.stats())"
    };
}

/// Makes malloc return zeroed memory; malloc's cache would return memory as the program freed it.
macro_rules! zeros {
    () => {
        "export GLIBC_TUNABLES=glibc.malloc.perturb=255:glibc.malloc.tcache_count=0; "
    };
}

/// How a client gets packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It listens to other hosts.
    Listens,
    /// It listens to other hosts, but with libpcap it would wait for more packets than there are.
    /// Its output is compared with its output for the same packets in a savefile, FILE, which this
    /// script reads.
    ListensAlone(&'static str),
    /// It sends requests and reads the answers.
    Asks,
}

/// How a client is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Itself,
    Interrupt,
    Terminate,
    Kill,
}

/// A program, and how to check its result.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) name: &'static str,
    /// `COMMAND:PACKAGE`, for `.ci/need`; several with spaces between them.
    pub(crate) needs: &'static str,
    /// A script that builds it in BUILD; SOURCE is the folder of this file.
    pub(crate) prepare: Option<&'static str>,
    pub(crate) way: Way,
    /// A shell script that runs it, with IF (the interface), HERE and THERE (addresses), and DIR (a
    /// separate folder, in which it runs).
    pub(crate) script: &'static str,
    /// The minimum number of handles that it has open at once.
    pub(crate) handles: usize,
    /// Whether it captures with libpcap.
    pub(crate) captures: bool,
    /// Its last line has the counts of pcap_stats, and is not compared with the engine `xdp`: if
    /// the filter runs in user space, packets that were not filtered yet count as received.
    pub(crate) ends_with_statistics: bool,
    /// Why it cannot use the engine `xdp`.
    pub(crate) without_xdp: Option<&'static str>,
    pub(crate) end: End,
    /// A script that prints what the client wrote, if its result is not its output.
    pub(crate) report: Option<&'static str>,
    /// Removes what depends on the time.
    pub(crate) normal: fn(&str) -> String,
    /// What its result must contain.
    pub(crate) expects: &'static [&'static str],
}

impl Client {
    /// The engines to test: clients that only listen also run with `xdp`, if they can use it.
    pub(crate) fn engines(&self) -> impl Iterator<Item = Engine> {
        let only_listens = self.way != Way::Asks && self.captures && self.without_xdp.is_none();
        [Engine::Packet, Engine::Xdp]
            .into_iter()
            .filter(move |engine| *engine == Engine::Packet || only_listens)
    }
}

/// The values that most clients have in common.
const LISTENER: Client = Client {
    name: "",
    needs: "",
    prepare: None,
    way: Way::Listens,
    script: "",
    handles: 1,
    captures: true,
    ends_with_statistics: false,
    without_xdp: None,
    end: End::Interrupt,
    report: None,
    normal: as_is,
    expects: &[],
};
/// Before dumpcap opens a device, it drops all capabilities except CAP_NET_ADMIN and CAP_NET_RAW.
const GIVES_RIGHTS_UP: Option<&str> =
    Some("it drops the capabilities to load programs and to lock memory");

/// tcpdump, when it only records.
pub(crate) const RECORDER: Client = LISTENER;
const ASKER: Client = Client { way: Way::Asks, end: End::Itself, ..LISTENER };

pub(crate) const CLIENTS: &[Client] = &[
    Client {
        name: "tcpdump",
        needs: "tcpdump:tcpdump",
        script: "exec tcpdump -i $IF -n -t -v -l",
        expects: &["wirecap.example", "GET /index.html", "0 packets dropped"],
        ..LISTENER
    },
    Client {
        name: "tcpdump-filter",
        needs: "tcpdump:tcpdump",
        script: "exec tcpdump -i $IF -n -t -l -s 70 'udp port 5000 or icmp'",
        expects: &["ICMP echo request", "UDP, length 13", "14 packets captured"],
        ..LISTENER
    },
    Client {
        name: "tshark",
        without_xdp: GIVES_RIGHTS_UP,
        needs: "tshark:tshark",
        script: "exec tshark -i $IF -n -l -T fields -e frame.len -e ip.src -e _ws.col.Info 2>/dev/null",
        expects: &["GET /index.html", "wirecap.example"],
        ..LISTENER
    },
    Client {
        name: "dumpcap",
        without_xdp: GIVES_RIGHTS_UP,
        needs: "dumpcap:wireshark-common",
        script: "exec dumpcap -q -i $IF -w $DIR/x.pcapng",
        report: Some("tcpdump -r $DIR/x.pcapng -n -t -v 2>/dev/null; capinfos -c -d $DIR/x.pcapng | tail -2"),
        expects: &["GET /index.html"],
        ..LISTENER
    },
    Client {
        name: "dumpcap-statistics",
        without_xdp: GIVES_RIGHTS_UP,
        needs: "dumpcap:wireshark-common",
        script: "exec dumpcap -S -M -i $IF",
        normal: |text| numbers(&lines_with(text, &["a1"])).lines().take(1).collect(),
        expects: &["a#"],
        ..LISTENER
    },
    Client {
        name: "ngrep",
        needs: "ngrep:ngrep",
        script: "exec ngrep -d $IF -q -l -W byline 'number|GET|PASS' ip",
        expects: &["word number 3", "GET /index.html", "PASS anything"],
        ..LISTENER
    },
    Client {
        name: "tcpflow",
        needs: "tcpflow:tcpflow",
        script: "exec tcpflow -i $IF -o $DIR/flows",
        report: Some("cd $DIR/flows && for f in 0* 1*; do echo \"== $f\"; cat $f; done 2>/dev/null"),
        expects: &["all that was said", "second"],
        normal: sorted,
        ..LISTENER
    },
    Client {
        name: "p0f",
        needs: "p0f:p0f",
        script: "exec p0f -i $IF -p",
        expects: &["syn", "10.9.0.1"],
        normal: |text| lines_without(text, &["uptime", "Processed"]),
        ..LISTENER
    },
    Client {
        name: "argus",
        needs: "argus:argus-server ra:argus-client",
        // argus reports active flows at intervals, which would split flows at arbitrary points.
        script: "exec argus -i $IF -S 3600 -w $DIR/argus",
        report: Some("ra -n -r $DIR/argus -s proto saddr sport dir daddr dport spkts dpkts sbytes dbytes"),
        // argus's management records count its wake-ups.
        normal: |text| sorted(&lines_without(text, &["   man "])),
        expects: &["10.9.0.1", "tcp", "udp"],
        ..LISTENER
    },
    Client {
        name: "softflowd",
        needs: "softflowd:softflowd",
        way: Way::ListensAlone("softflowd -r $FILE -d -D -v 9 2>&1"),
        script: "trap : INT; softflowd -i $IF -d -c $DIR/ctl -p $DIR/pid >/dev/null 2>&1 & P=$!; wait; \
                 softflowctl -c $DIR/ctl dump-flows; softflowctl -c $DIR/ctl statistics; kill $P",
        normal: |text| lines_with(text, &["Packets processed"]),
        expects: &["Packets processed: "],
        ..LISTENER
    },
    Client {
        name: "nfpcapd",
        needs: "nfpcapd:nfdump",
        script: "exec nfpcapd -i $IF -l $DIR -t 60 -e 2,2",
        end: End::Terminate,
        // It captures by itself, and uses libpcap for filters and savefiles.
        captures: false,
        // Flows are aggregated, because files end each minute and split flows.
        report: Some("nfdump -R $DIR -a -q -N -o 'fmt:%pr %sa %sp %da %dp %pkt %byt'"),
        normal: sorted,
        expects: &["10.9.0.1"],
        ..LISTENER
    },
    Client {
        name: "scapy-sniff",
        needs: "/var/lib/dpkg/info/python3-scapy.list:python3-scapy",
        script: "exec /usr/bin/python3 -c \"
from scapy.all import *
conf.use_pcap = True
conf.iface = 'a1'
sniff(iface='a1', filter='udp or tcp', prn=lambda p: print(p.summary(), flush=True), store=0)\"",
        expects: &["DNS Qry", "http"],
        ..LISTENER
    },
    Client {
        name: "tcpick",
        needs: "tcpick:tcpick",
        script: "exec tcpick -i $IF -C -yP -n",
        normal: |text| lines_without(text, &["tcpick 0", "Starting", "captured"]),
        expects: &["GET /index.html"],
        ..LISTENER
    },
    Client {
        name: "httpry",
        needs: "httpry:httpry",
        script: "exec httpry -i $IF -q -F",
        normal: |text| times(&lines_without(text, &["Writing", "#", "packets/min"])),
        expects: &["www.example.org"],
        ..LISTENER
    },
    Client {
        name: "daemonlogger",
        needs: "daemonlogger:daemonlogger",
        script: "exec daemonlogger -i $IF -l $DIR -n log",
        report: Some("tcpdump -r $DIR/log* -n -t -v 2>/dev/null"),
        expects: &["GET /index.html"],
        ..LISTENER
    },
    Client {
        name: "dnscap",
        needs: "dnscap:dnscap",
        script: "exec dnscap -i $IF -g",
        normal: times,
        expects: &["wirecap.example"],
        ..LISTENER
    },
    Client {
        name: "sipgrep",
        needs: "sipgrep:sipgrep",
        script: "exec sipgrep -d $IF -C",
        // After the last message it prints earlier contents of its memory.
        normal: |text| times(text.split("BAD M").next().unwrap_or_default()),
        expects: &["INVITE sip:there"],
        ..LISTENER
    },
    Client {
        name: "sngrep",
        needs: "sngrep:sngrep",
        script: "exec sngrep -N -q -d $IF -O $DIR/sip.pcap",
        report: Some("tcpdump -r $DIR/sip.pcap -n -t -v 2>/dev/null"),
        expects: &["INVITE sip:there"],
        ..LISTENER
    },
    Client {
        name: "dsniff",
        needs: "dsniff:dsniff",
        script: "exec dsniff -i $IF -n -m",
        normal: times,
        expects: &["USER somebody"],
        ..LISTENER
    },
    Client {
        name: "urlsnarf",
        without_xdp: Some("it opens the device twice, and a receive queue serves one capture"),
        needs: "urlsnarf:dsniff",
        // It sets no timeout, so libpcap waits until a block is full.
        way: Way::ListensAlone("stdbuf -oL urlsnarf -n -p $FILE"),
        script: "exec stdbuf -oL urlsnarf -i $IF -n",
        normal: |text| times(&lines_without(text, &["urlsnarf:"])),
        expects: &["http://www.example.org/index.html"],
        ..LISTENER
    },
    Client {
        name: "ettercap",
        needs: "ettercap:ettercap-text-only",
        // It waits for keys. At the end of its input it never sleeps, and an instance on a busy
        // machine may not have written its last packets when it is interrupted.
        script: "mkfifo $DIR/keys; exec ettercap -T -u -q -i $IF -w $DIR/x.pcap <> $DIR/keys",
        report: Some("tcpdump -r $DIR/x.pcap -n -t -v 2>/dev/null | sed 's/^ *//'"),
        expects: &["GET /index.html"],
        ..LISTENER
    },
    Client {
        name: "ipgrab",
        needs: "ipgrab:ipgrab",
        script: "exec ipgrab -i $IF -m -l",
        normal: |text| times(&lines_without(text, &["Timestamp"])),
        expects: &["TCP"],
        ..LISTENER
    },
    Client {
        name: "knockd",
        without_xdp: Some("it needs packets to an address of the host"),
        needs: "knockd:knockd",
        script: "printf '[options]\\n[door]\\nsequence = 80,21,9000\\nseq_timeout = 30\\ntcpflags = syn\\ncommand = echo opened\\n' \
                 > $DIR/k.conf; exec knockd -i $IF -c $DIR/k.conf -v",
        expects: &["Stage 3", "OPEN SESAME"],
        normal: times,
        ..LISTENER
    },
    Client {
        name: "pads",
        needs: "pads:pads",
        // It reads uninitialised memory, and crashes unless that is zero.
        way: Way::ListensAlone(concat!(zeros!(), "exec pads -r $FILE -w $DIR/assets.csv")),
        script: concat!(zeros!(), "exec pads -i $IF -w $DIR/assets.csv"),
        report: Some("cut -d, -f1-5 $DIR/assets.csv"),
        expects: &["10.9.0.2,80"],
        ..LISTENER
    },
    Client {
        name: "prads",
        needs: "prads:prads",
        script: "exec prads -i $IF -l $DIR/assets.log -f $DIR/fifo -p $DIR/pid",
        report: Some("cut -d, -f1-6 $DIR/assets.log | sort -u"),
        expects: &["10.9.0.2"],
        ..LISTENER
    },
    Client {
        name: "pmacctd",
        needs: "pmacctd:pmacct",
        script: "printf 'pcap_interface: a1\\nplugins: print\\nprint_refresh_time: 3600\\nprint_output: csv\\naggregate: proto,src_host,src_port,dst_host\\n' \
                 > $DIR/p.conf; exec pmacctd -f $DIR/p.conf",
        end: End::Interrupt,
        normal: |text| sorted(&lines_with(text, &["10.9.0.1"])),
        expects: &["udp"],
        ..LISTENER
    },
    Client {
        name: "nstreams",
        needs: "nstreams:nstreams",
        script: "exec stdbuf -oL nstreams -l $IF",
        end: End::Kill,
        normal: |text| sorted(&numbers(text)),
        expects: &["dns traffic between"],
        ..LISTENER
    },
    Client {
        name: "dhcpdump",
        needs: "dhcpdump:dhcpdump",
        script: "exec dhcpdump -i $IF",
        normal: times,
        expects: &["DHCPDISCOVER"],
        ..LISTENER
    },
    Client {
        name: "pcapy",
        ends_with_statistics: true,
        needs: "/var/lib/dpkg/info/python3-pcapy.list:python3-pcapy",
        script: concat!("exec /usr/bin/python3 -c \"", pcapy!(), "\""),
        end: End::Itself,
        expects: &["776f7264206e756d6265722034", "(10, 0, 0)"],
        ..LISTENER
    },
    Client {
        name: "pcapy-ng",
        ends_with_statistics: true,
        needs: "/var/lib/dpkg/info/python3-pip.list:python3-pip",
        prepare: Some(
            "PYTHONPATH=$BUILD/pcapy-ng /usr/bin/python3 -c 'import pcapy; assert \"pcapy-ng\" in pcapy.__file__' 2>/dev/null || \
             /usr/bin/python3 -m pip install -q --no-deps --upgrade --target $BUILD/pcapy-ng pcapy-ng==2.1.0",
        ),
        // Its wheel includes a libpcap under another name.
        script: concat!(
            "[ -z \"$LD_LIBRARY_PATH\" ] || export LD_PRELOAD=$LD_LIBRARY_PATH/libpcap.so.1
                 PYTHONPATH=$BUILD/pcapy-ng exec /usr/bin/python3 -c \"",
            pcapy!(),
            "\""
        ),
        end: End::Itself,
        expects: &["776f7264206e756d6265722034", "(10, 0, 0)"],
        ..LISTENER
    },
    Client {
        name: "perl-net-pcap",
        ends_with_statistics: true,
        needs: "/var/lib/dpkg/info/libnet-pcap-perl.list:libnet-pcap-perl",
        script: "exec /usr/bin/perl -e 'use Net::Pcap; $| = 1; my $e; my $p = Net::Pcap::open_live(\"a1\", 200, 1, 100, \\$e) or die $e; \
                 my $f; Net::Pcap::compile($p, \\$f, \"udp port 5000\", 1, 0); Net::Pcap::setfilter($p, $f); \
                 my $n = 0; Net::Pcap::loop($p, -1, sub { my ($u, $h, $d) = @_; print \"$h->{len} \", unpack(\"H*\", $d), \"\\n\"; \
                 Net::Pcap::breakloop($p) if ++$n == 10; }, 0); my %s; Net::Pcap::stats($p, \\%s); \
                 print \"$s{ps_recv} $s{ps_drop}\\n\"; Net::Pcap::close($p);'",
        end: End::Itself,
        expects: &["776f7264206e756d6265722034", "10 0"],
        ..LISTENER
    },
    Client {
        name: "ruby-pcaprub",
        needs: "/var/lib/dpkg/info/ruby-pcaprub.list:ruby-pcaprub",
        script: "exec /usr/bin/ruby -e 'require \"pcaprub\"; $stdout.sync = true; p = PCAPRUB::Pcap.open_live(\"a1\", 200, true, 100); \
                 p.setfilter(\"udp port 5000\"); n = 0; p.each { |d| puts d.unpack1(\"H*\"); n += 1; break if n == 10 }'",
        end: End::Itself,
        expects: &["776f7264206e756d6265722034"],
        ..LISTENER
    },
    Client {
        name: "gopacket",
        ends_with_statistics: true,
        needs: "go:golang-go /usr/share/gocode/src/github.com/google/gopacket:golang-github-google-gopacket-dev",
        prepare: Some(
            "cd $SOURCE/gopacket; GO111MODULE=off GOFLAGS= GOPATH=/usr/share/gocode GOCACHE=$BUILD/go go build -o $BUILD/gopacket main.go",
        ),
        script: "exec $BUILD/gopacket",
        end: End::Itself,
        expects: &["776f7264206e756d6265722034", "10 0 <nil>"],
        ..LISTENER
    },
    Client {
        name: "rust-pcap",
        ends_with_statistics: true,
        needs: "cargo:rust",
        prepare: Some(
            "cp -r $SOURCE/rust-pcap $BUILD/; cd $BUILD/rust-pcap; cargo build -q --locked --target-dir $BUILD/target",
        ),
        script: "exec $BUILD/target/debug/rust-pcap",
        end: End::Itself,
        expects: &["77, 6f, 72, 64, 20, 6e, 75, 6d, 62, 65, 72, 20, 34", "10 0"],
        ..LISTENER
    },
    Client {
        name: "nmap-syn",
        needs: "nmap:nmap",
        script: "exec nmap -n -sS -p 1-40 --reason $THERE",
        normal: |text| lines_with(text, &["Host is up", "closed", "MAC Address"]).replace('(', " ")
            .lines().map(|line| line.split(" latency").next().unwrap_or_default().split(" 0.").next().unwrap_or_default().to_owned() + "\n").collect(),
        expects: &["40 closed tcp ports"],
        ..ASKER
    },
    Client {
        name: "arp-scan",
        needs: "arp-scan:arp-scan",
        script: "exec arp-scan -I $IF 10.9.0.0/28",
        normal: |text| lines_with(text, &["10.9.0.1", "responded"]).split("seconds").next().map(|text| lines_with(text, &["10.9.0.1\t"])).unwrap_or_default(),
        expects: &["02:00:00:00:00:01"],
        ..ASKER
    },
    Client {
        name: "arping",
        needs: "arping:arping",
        script: "exec arping -i $IF -c 3 $THERE",
        normal: |text| lines_without(&text.replace("usec", "msec"), &["rtt"]).lines().map(|line| line.split(" time=").next().unwrap_or_default().to_owned() + "\n").collect(),
        expects: &["42 bytes from 02:00:00:00:00:01", "3 packets received"],
        ..ASKER
    },
    Client {
        name: "hping3",
        needs: "hping3:hping3",
        script: "exec hping3 -I $IF -n -S -p 7 -c 3 -i u100000 $THERE",
        normal: |text| text.lines().filter(|line| line.contains("flags=RA") || line.contains("received")).map(|line| line.split(" rtt").next().unwrap_or_default().replace(|c: char| c.is_ascii_digit(), "").to_owned() + "\n").collect(),
        expects: &[" packets received, % packet loss", "flags=RA"],
        ..ASKER
    },
    Client {
        name: "scapy-ask",
        needs: "/var/lib/dpkg/info/python3-scapy.list:python3-scapy",
        script: "exec /usr/bin/python3 -c \"
from scapy.all import *
conf.use_pcap = True
conf.verb = 0
a = srp(Ether(dst='ff:ff:ff:ff:ff:ff')/ARP(pdst='$THERE'), iface='a1', timeout=2)[0]
print([r.summary() for s, r in a])
a = srp(Ether(dst='02:00:00:00:00:01')/IP(src='$HERE', dst='$THERE')/ICMP()/'question', iface='a1', timeout=2)[0]
print([r.summary() for s, r in a])\"",
        expects: &["is at 02:00:00:00:00:01", "echo-reply"],
        ..ASKER
    },
    Client {
        name: "tcptraceroute",
        needs: "tcptraceroute:tcptraceroute",
        script: "exec tcptraceroute -n -i $IF -q 1 -m 3 $THERE 7",
        normal: |text| lines_with(text, &["10.9.0.1"]).lines().filter_map(|line| line.split_inclusive(']').next()).map(|line| line.to_owned() + "\n").collect(),
        expects: &["10.9.0.1 [closed]"],
        ..ASKER
    },
    Client {
        name: "scanssh",
        needs: "scanssh:scanssh",
        script: "exec scanssh -i $IF -n 7,21 -s ssh $THERE",
        normal: |text| sorted_times(&lines_without(text, &["rate"])),
        expects: &["10.9.0.1"],
        ..ASKER
    },
    Client {
        name: "netdiscover",
        needs: "netdiscover:netdiscover",
        script: "exec netdiscover -i $IF -P -N -r 10.9.0.0/24",
        normal: |text| lines_with(text, &["10.9.0.1 "]),
        expects: &["02:00:00:00:00:01"],
        ..ASKER
    },
    Client {
        name: "lft",
        needs: "lft:lft",
        script: "exec lft -n -d 7 -D $IF $THERE",
        normal: |text| lines_with(text, &["10.9.0.1"]).lines().map(|line| line.split("ms").next().unwrap_or_default().trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').to_owned() + "\n").collect(),
        expects: &["10.9.0.1"],
        ..ASKER
    },
];
