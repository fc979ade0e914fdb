//! The contenders, and the setup of each between the ports `left` and `right`.

use std::fs;
use std::path::PathBuf;

use wirecap::bpf::asm::{Assembler, Helper, Reg};
use wirecap::bpf::{Link, LoadOptions, Map, MapKind, Program, ProgramKind, XdpMode};
use wirecap_testbed::{Inline, Interface, pass_program};

use wirecap_lab::live::Outcome;
use wirecap_lab::live::process::{CommandLine, allowed_cpus};
use wirecap_lab::live::receiver::Receiver;

/// The directory where Debian's packages install testpmd's drivers, in subdirectories by
/// architecture and version.
const LIBRARIES: &str = "/usr/lib";

/// A forwarding program or kernel function.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    way: Way,
}

enum Way {
    /// A program that receives frames on AF_XDP sockets.
    OnXdpSockets(Process),
    /// A program that receives frames on packet sockets. These receive the sender's frames only if
    /// an XDP program passes them.
    OnPacketSockets(Process),
    /// The kernel's bridge.
    Bridge,
    /// An XDP program that redirects to the other port.
    Redirect,
}

struct Process {
    command: CommandLine,
    /// The message that it prints when it is ready; empty if it prints none.
    ready: &'static str,
    /// The DPDK driver that it requires.
    driver: Option<&'static str>,
}

fn process(program: &str, arguments: &str, ready: &'static str) -> Process {
    let command = if program == "wirecap" { crate::wirecap() } else { CommandLine::new(program) };
    Process { command: command.with(arguments), ready, driver: None }
}

/// Frames bypass the queueing discipline, as wirecap's do.
const PAST_QDISC: &str = ",qdisc_bypass=1";
/// Two rings for each port, in all as much memory as wirecap's 131,072 cells of 2 KiB. The default
/// is 512 frames per ring.
const LARGE_RINGS: &str = "blocksz=65536,framesz=2048,framecnt=32768";

/// DPDK's forwarder. It requires two threads, which both run on the CPU of the other forwarders.
fn testpmd(driver: &'static str, options: &str) -> Process {
    let ports = format!(
        "--vdev=net_{driver}0,iface=left{options} --vdev=net_{driver}1,iface=right{options}"
    );
    let cpu = allowed_cpus().ok().and_then(|cpus| cpus.last().copied()).unwrap_or_default();
    let memory = format!(
        "--no-huge -m 256 --no-pci --no-shconf --no-telemetry --iova-mode=va --lcores 0@{cpu},1@{cpu}"
    );
    let mode = "--forward-mode=io --auto-start --stats-period=3600 --no-lsc-interrupt --total-num-mbufs=16384";
    let arguments = format!("{memory} {ports} -- {mode}");
    Process { driver: Some(driver), ..process("dpdk-testpmd", &arguments, "Port statistics") }
}

fn has_dpdk_driver(driver: &str) -> bool {
    let folders = |path: PathBuf| {
        fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let drivers =
        folders(LIBRARIES.into()).flat_map(|architecture| folders(architecture.join("dpdk")));
    let file = format!("librte_net_{driver}.so");
    drivers.into_iter().any(|folder| folder.join(&file).exists())
}

/// All contenders. The rates of the others are compared with that of the first, wirecap.
pub(crate) fn contenders() -> Vec<Contender> {
    let new = |name, way| Contender { name, way };
    let wirecap = |options: &str| {
        process("wirecap", &format!("forward left right --json {options}"), "forwarding")
    };
    vec![
        new("wirecap, xdp", Way::OnXdpSockets(wirecap("--engine xdp"))),
        new("wirecap, xdp, 4,096 cells", Way::OnXdpSockets(wirecap("--engine xdp -R 16"))),
        new("wirecap, packet", Way::OnPacketSockets(wirecap("--engine packet"))),
        new("in the kernel: XDP redirect", Way::Redirect),
        new("in the kernel: bridge", Way::Bridge),
        new("DPDK testpmd, af_packet", Way::OnPacketSockets(testpmd("af_packet", PAST_QDISC))),
        new(
            "DPDK testpmd, af_packet, large rings",
            Way::OnPacketSockets(testpmd("af_packet", &format!("{PAST_QDISC},{LARGE_RINGS}"))),
        ),
        new("DPDK testpmd, af_xdp", Way::OnXdpSockets(testpmd("af_xdp", ""))),
        new(
            "netsniff-ng",
            Way::OnPacketSockets(process(
                "netsniff-ng",
                "--in left --out right --silent --ring-size 64MiB --notouch-irq",
                "Running",
            )),
        ),
        new(
            "tcpbridge",
            Way::OnPacketSockets(process("tcpbridge", "--intf1=left --intf2=right", "")),
        ),
    ]
}

impl Contender {
    pub(crate) fn is_ours(&self) -> bool {
        self.name.starts_with("wirecap")
    }

    /// Whether it is another program in user space.
    pub(crate) fn is_rival(&self) -> bool {
        !self.is_ours() && matches!(self.way, Way::OnXdpSockets(_) | Way::OnPacketSockets(_))
    }

    /// The missing program or driver, if it cannot run.
    pub(crate) fn missing(&self) -> Option<String> {
        let (Way::OnXdpSockets(process) | Way::OnPacketSockets(process)) = &self.way else {
            return None;
        };
        if !process.command.is_installed() {
            return Some(format!("{} is not installed", process.command.program()));
        }
        let driver = process.driver.filter(|driver| !has_dpdk_driver(driver))?;
        Some(format!("DPDK's driver net_{driver} is not installed"))
    }

    fn running(&self, process: Receiver, passing: Vec<Link>) -> Forwarding {
        Forwarding::Process {
            process,
            is_ours: self.name.starts_with("wirecap"),
            _passing: passing,
        }
    }

    pub(crate) fn start(&self, bed: &Inline) -> Outcome<Forwarding> {
        let ports = [&bed.left.port, &bed.right.port];
        let start =
            |process: &Process| Receiver::start_in(&bed.middle, &process.command, process.ready);
        Ok(match &self.way {
            Way::OnXdpSockets(process) => self.running(start(process)?, Vec::new()),
            Way::OnPacketSockets(process) => {
                let passing = ports.into_iter().map(pass_program).collect::<Result<_, _>>()?;
                self.running(start(process)?, passing)
            }
            Way::Bridge => {
                let passing = ports.into_iter().map(pass_program).collect::<Result<_, _>>()?;
                bed.bridge()?;
                Forwarding::Bridge { _passing: passing }
            }
            Way::Redirect => {
                let ways = [redirect(ports[0], ports[1])?, redirect(ports[1], ports[0])?];
                Forwarding::Redirect { _ways: ways }
            }
        })
    }
}

/// A running contender. It is stopped on drop.
pub(crate) enum Forwarding {
    Process { process: Receiver, is_ours: bool, _passing: Vec<Link> },
    Bridge { _passing: Vec<Link> },
    Redirect { _ways: [(Link, Map); 2] },
}

impl Forwarding {
    pub(crate) fn process(&self) -> Option<&Receiver> {
        match self {
            Self::Process { process, .. } => Some(process),
            Self::Bridge { .. } | Self::Redirect { .. } => None,
        }
    }

    /// Stops the contender. Compares wirecap's ledger with the numbers of frames that were sent and
    /// that arrived.
    pub(crate) fn finish(self, sent: u64, arrived: u64) -> Outcome<()> {
        let Self::Process { process, is_ours: true, .. } = self else { return Ok(()) };
        let finished = process.stop()?;
        let offered = finished.ledger("/offered")?;
        let forwarded = finished.ledger("/ports/1/sent")?;
        let lost =
            offered.checked_sub(forwarded).ok_or("more packets were forwarded than received")?;
        // Frames that found the ring of a veth full are in neither count.
        if arrived + lost > sent {
            return Err(format!(
                "{sent} frames were sent, {arrived} arrived, {lost} are reported as lost"
            )
            .into());
        }
        Ok(())
    }
}

/// Redirects frames that arrive at one interface to the other with a devmap.
fn redirect(from: &Interface, to: &Interface) -> Outcome<(Link, Map)> {
    from.namespace.run_in(|| {
        let ports = Map::create(MapKind::Devmap, "ports", 4, 1)?;
        ports.update(0, &to.index.to_ne_bytes())?;
        let mut asm = Assembler::new();
        asm.load_map_fd(Reg::R1, &ports)
            .mov(Reg::R2, 0)
            .mov(Reg::R3, 0)
            .call(Helper::RedirectMap)
            .exit();
        let program =
            Program::load(ProgramKind::Xdp, "redirect", &asm.finish()?, LoadOptions::default())?;
        Ok((Link::attach_xdp(&program, from.index, XdpMode::Native)?, ports))
    })?
}
