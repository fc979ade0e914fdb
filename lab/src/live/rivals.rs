//! The contenders of each experiment, all with the same memory and the settings that their manuals
//! recommend.

use super::Lab;
use super::contender::{
    Books, Contender, FILE, lost_by_dpdk_dumpcap, lost_by_dumpcap, lost_by_netsniff,
    lost_by_tcpdump, lost_by_testpmd,
};
use super::process::CommandLine;

/// Bytes of a wirecap cell and of a frame in the rings of DPDK.
const CELL_BYTES: u32 = 2048;

/// Names and versions of the installed rivals.
pub fn versions() -> Vec<(String, String)> {
    let ask = |program: &str, argument: &str| {
        // netsniff-ng prints its version and fails.
        let said = CommandLine::new(program).with(argument).answer().ok()?;
        let line = said.lines().find(|line| !line.trim().is_empty())?;
        Some((program.to_owned(), line.trim().to_owned()))
    };
    let programs = [
        ("tcpdump", "--version"),
        ("dumpcap", "--version"),
        ("netsniff-ng", "--version"),
        ("dpdk-dumpcap", "--version"),
    ];
    let libpcap =
        super::programs::libpcap::version().ok().map(|version| ("libpcap".to_owned(), version));

    programs
        .into_iter()
        .filter_map(|(program, argument)| ask(program, argument))
        .chain(libpcap)
        .collect()
}

/// The contenders of a wirecap command.
#[derive(Debug, Clone)]
pub struct Field {
    wirecap: CommandLine,
    lab: CommandLine,
    /// Memory of each ring for packets, in MiB; a power of two.
    ring_mib: u32,
    /// Rings.
    rings: u32,
}

impl Field {
    /// Contenders with one ring of this memory.
    pub fn new(lab: &Lab, ring_mib: u32) -> Self {
        Self { wirecap: lab.wirecap.clone(), lab: lab.lab.clone(), ring_mib, rings: 1 }
    }

    /// The same with this many rings, each with a thread.
    #[must_use]
    pub fn rings(self, rings: u32) -> Self {
        Self { rings, ..self }
    }

    /// Number of packets of any length that fit: R x M.
    pub fn cells(&self) -> u32 {
        self.ring_mib * 1024 * 1024 / CELL_BYTES
    }

    fn ours(&self, name: &str, arguments: &str) -> Contender {
        let chunks = self.cells() / 256;
        let command =
            self.wirecap.clone().with(arguments).with(&format!("-i a1 -M 256 -R {chunks} --json"));
        Contender::ours(name, command, Books::Ledger)
    }

    /// A program of the lab, hand-written without wirecap.
    fn program(&self, name: &str, arguments: &str) -> Contender {
        let command = self.lab.clone().with("program").with(arguments).with("-i a1");
        Contender::new(name, command, "capturing", Books::Ledger)
    }

    /// Contenders that write all packets to a file.
    pub fn recorders(&self) -> Vec<Contender> {
        let mib = self.ring_mib;
        let kib = self.ring_mib * 1024;
        let chunks = self.cells() / 256;

        let ours = |name, engine| {
            let arguments = format!(
                "capture --engine {engine} -i a1 -M 256 -R {chunks} --format pcap --json --force -w {FILE}"
            );
            let command = self.wirecap.clone().with(&arguments);
            Contender::ours(name, command, Books::FileAndLedger)
        };
        let rival = |name, arguments: &str, ready, lost| {
            Contender::new(name, CommandLine::new(name).with(arguments), ready, Books::File(lost))
                .passing()
        };
        vec![
            ours("wirecap capture, xdp", "xdp"),
            ours("wirecap capture, packet", "packet").passing(),
            rival(
                "tcpdump",
                &format!("-i a1 -n -B {kib} --time-stamp-precision=nano -Z root -w {FILE}"),
                "listening",
                lost_by_tcpdump,
            )
            .calm(1200)
            .from_package("tcpdump"),
            rival("dumpcap", &format!("-i a1 -q -P -B {mib} -w {FILE}"), "File:", lost_by_dumpcap)
                .calm(600)
                .from_package("wireshark-common"),
            rival(
                "netsniff-ng",
                &format!(
                    "--in a1 --silent --ring-size {mib}MiB -T 0xa1b23c4d --notouch-irq --out {FILE}"
                ),
                "Running",
                lost_by_netsniff,
            )
            .calm(600)
            .from_package("netsniff-ng"),
            self.dpdk_dumpcap(),
            self.testpmd_recording(),
        ]
    }

    /// Contenders that read all packets and count them.
    pub fn counters(&self) -> Vec<Contender> {
        let mib = self.ring_mib;
        let cells = self.cells();
        vec![
            self.ours("wirecap count, xdp", "count --engine xdp"),
            self.ours("wirecap count, packet", "count --engine packet").passing(),
            self.program("bare AF_XDP loop", &format!("bare --cells {cells}")),
            self.program("bare AF_PACKET loop", &format!("ring --buffer {mib}")).passing(),
            self.program("libpcap loop", &format!("libpcap --buffer {mib}")).passing(),
            self.testpmd(),
        ]
    }

    /// Contenders with the handler, on one ring: with `-x TIMES` or `--cost NANOSECONDS`.
    pub fn handlers(&self, handler: &str) -> Vec<Contender> {
        let mib = self.ring_mib;
        let cells = self.cells();
        vec![
            self.ours("wirecap handle, xdp", &format!("handle --engine xdp {handler}")),
            self.ours("wirecap handle, packet", &format!("handle --engine packet {handler}"))
                .passing(),
            self.program("bare AF_XDP loop", &format!("bare --cells {cells} {handler}")),
            self.program("bare AF_PACKET loop", &format!("ring --buffer {mib} {handler}"))
                .passing(),
            self.program("libpcap pkt_handler", &format!("libpcap --buffer {mib} {handler}"))
                .passing(),
        ]
    }

    /// Contenders that count, and can be stopped meanwhile, with cells of this size.
    pub fn keepers(&self, cell_bytes: u32) -> Vec<Contender> {
        let mib = self.ring_mib;
        let count = |name: &str, engine: &str, cell_bytes: u32| {
            let chunks = mib * 1024 * 1024 / cell_bytes / 256;
            let arguments = format!("count --engine {engine} -i a1 -M 256 -R {chunks} --json");
            Contender::ours(name, self.wirecap.clone().with(&arguments), Books::Ledger)
        };

        let cells = format!("wirecap xdp, cells of {} KiB", cell_bytes / 1024);
        vec![
            count(&cells, "xdp", cell_bytes),
            // A block has the memory of M cells of 2 KiB.
            count("wirecap packet", "packet", CELL_BYTES).passing(),
            self.program("libpcap, TPACKET_V3", &format!("libpcap --buffer {mib}")).passing(),
            self.program("libpcap, TPACKET_V2", &format!("libpcap --buffer {mib} --immediate"))
                .passing(),
        ]
    }

    /// A buddy group with a worker per ring and chunks of this many packets, in advanced mode if T
    /// is given, in percent.
    pub fn group(
        &self,
        name: &str,
        engine: &str,
        chunk: u32,
        threshold: Option<f64>,
        handler: &str,
    ) -> Contender {
        let rings = self.rings;
        let chunks = self.cells() / chunk;
        let mode = threshold.map(|percent| format!("-T {percent}")).unwrap_or_default();
        let arguments = format!(
            "group --engine {engine} {mode} --workers {rings} -M {chunk} -R {chunks} {handler}"
        );
        let contender = self.program(name, &arguments);
        Contender { is_ours: true, passing: engine == "packet", ..contender }
    }

    /// Contenders with the handler on several rings, each with a thread per ring. All report the
    /// order in which they processed the packets of each flow.
    pub fn multi_handlers(&self, cost_ns: u64) -> Vec<Contender> {
        const M: u32 = 64;
        const T: Option<f64> = Some(60.0);

        let rings = self.rings;
        let mib = self.ring_mib;
        let cells = self.cells();
        let handler = &format!("--cost {cost_ns} --order");
        let spreading = |contender| Contender { spreads: true, ..contender };

        let fanout = |name: &str, program, fanout| {
            let arguments =
                format!("{program} --threads {rings} --fanout {fanout} --buffer {mib} {handler}");
            self.program(name, &arguments).passing()
        };
        vec![
            self.group("wirecap, advanced, xdp", "xdp", M, T, handler),
            self.group("wirecap, basic, xdp", "xdp", M, None, handler),
            self.program(
                "bare AF_XDP loops",
                &format!("bare --queues {rings} --cells {cells} {handler}"),
            ),
            self.group("wirecap, advanced, packet", "packet", M, T, handler),
            fanout("libpcap multi_pkt_handler, hash", "libpcap", "hash"),
            fanout("AF_PACKET fanout, hash", "ring", "hash"),
            spreading(fanout("AF_PACKET fanout, hash + rollover", "ring", "hash-rollover")),
            spreading(fanout("AF_PACKET fanout, in turn", "ring", "lb")),
        ]
    }

    /// DPDK's packet forwarder, which only receives here. It polls without a pause.
    fn testpmd(&self) -> Contender {
        let command = self.testpmd_command(WITHOUT_HUGE_PAGES, "-- --forward-mode=rxonly");
        dpdk(Contender::new("DPDK testpmd, net_af_packet", command, TESTPMD_READY, Books::Testpmd))
    }

    /// The same forwarding into a file.
    fn testpmd_recording(&self) -> Contender {
        let mode = format!("--vdev=net_pcap0,tx_pcap={FILE} -- --forward-mode=io");
        let command = self.testpmd_command(WITHOUT_HUGE_PAGES, &mode);
        dpdk(Contender::new(
            "DPDK testpmd, into net_pcap",
            command,
            TESTPMD_READY,
            Books::File(lost_by_testpmd),
        ))
    }

    fn testpmd_command(&self, memory: &str, mode: &str) -> CommandLine {
        let cpu =
            super::process::allowed_cpus().ok().and_then(|cpus| cpus.last().copied()).unwrap_or(0);
        // Line-buffered, so that its ready message is visible; one CPU serves both required lcores.
        CommandLine::new("stdbuf").with("-oL dpdk-testpmd").with(memory).with(&format!(
            "--no-pci --lcores=0@{cpu},1@{cpu} --vdev=net_af_packet0,iface=a1,qpairs=1,framesz={CELL_BYTES},framecnt={} \
             {mode} --total-num-mbufs=16384",
            self.cells()
        ))
    }

    /// DPDK's recorder, which taps a testpmd. Two DPDK processes can share memory only on huge
    /// pages.
    fn dpdk_dumpcap(&self) -> Contender {
        let primary =
            self.testpmd_command("-m 256 --file-prefix=wirecap-lab", "-- --forward-mode=rxonly");
        let arguments = format!("--file-prefix=wirecap-lab -P -i 0 -w {FILE}");
        let command = CommandLine::new("dpdk-dumpcap").with(&arguments);
        let books = Books::File(lost_by_dpdk_dumpcap);
        let contender = dpdk(Contender::new("dpdk-dumpcap", command, "Capturing", books));
        let companion = Some((primary, TESTPMD_READY));
        Contender { companion, lacks: lacks_huge_pages, spins: false, ..contender.calm(300) }
    }
}

const WITHOUT_HUGE_PAGES: &str = "--no-huge -m 256 --no-shconf";

/// On AF_PACKET, with a program that polls without a pause.
fn dpdk(contender: Contender) -> Contender {
    let contender = contender.passing().from_package("dpdk-dev").calm(100);
    Contender { spins: true, needs: &["dpdk-testpmd"], ..contender }
}

/// Memory in huge pages that two DPDK processes need, in KiB.
const DPDK_KIB: u64 = 300 * 1024;

fn lacks_huge_pages() -> Option<String> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let free = number("HugePages_Free").unwrap_or(0);
    let page_kib = number("Hugepagesize").unwrap_or(2048);
    let wanted = DPDK_KIB.div_ceil(page_kib);
    (free < wanted).then(|| {
        format!(
            "it shares memory with a second DPDK process, for which {wanted} huge pages must be free and {free} are \
             (sysctl vm.nr_hugepages={wanted})"
        )
    })
}

/// The last line that testpmd writes before it receives.
const TESTPMD_READY: &str = "TX RS bit threshold";
