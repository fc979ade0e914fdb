//! `wirecap replay`: sends the packets of a savefile.
//!
//! `--rewrite` changes the last 24 bits of each host's address by the XOR mask of the round (so the
//! mapping is one to one, and no two of 2^24 rounds are equal) and updates the checksums of IPv4,
//! TCP, UDP, UDP-Lite, DCCP and ICMPv6 incrementally (RFC 1624).
//!
//! The program that `--top` runs in the kernel (`BPF_PROG_TEST_RUN`) copies frames from a map into
//! the kernel's test frames; it reaches one queue, and receivers of XDP frames. On kernels before
//! 6.3, which do not report whether a driver accepts XDP frames, `--via auto` is `xdp`. Into a
//! receiver that drops, AF_XDP is 1.65 to 1.85 times as fast as tcpreplay, that program 5.4 to 8.2
//! times.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use serde_json::json;
use wirecap::device::Device;
use wirecap::grouped;
use wirecap::savefile::{ReadError, Reader};
use wirecap_send::play::{KernelOutlet, Outlet, Pace, Schedule, XdpOutlet};
use wirecap_send::recording::{Cut, Reading, Recording, Settings};
use wirecap_send::{Counters, Interface, Namespace, SetupError};

use crate::shared::failure::Failure;
use crate::shared::habits::savefile;
use crate::shared::output;
use crate::shared::sending::{
    Fate, PlayReport, SpreadOptions, Via, Watch, check_queues, find, mac, takes_xdp_frames,
};
use crate::shared::signals::Interruption;
use crate::size;

/// Transmit the packets of a savefile on an interface
///
/// The default is the recorded pace. Bytes and addresses are sent unchanged: the peer, and possibly
/// other hosts, receive them. Lengths and bit rates do not include FCS, preamble and inter-frame
/// gap.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("pace").args(["speed", "rate", "top"])))]
pub(crate) struct Arguments {
    /// The savefile: pcapng or pcap, plain, gzip or Zstandard; - is stdin
    #[arg(value_parser = savefile())]
    file: PathBuf,

    /// Interface to send on
    #[arg(short, long, value_name = "DEV")]
    interface: String,

    /// Multiple of the recorded speed: 2, 0.5
    #[arg(short = 'x', long, alias = "multiplier", value_name = "TIMES", value_parser = speed)]
    speed: Option<f64>,

    /// Constant rate: 500, 50k, 1.5Mpps; 100Mbps, 1Gbps
    ///
    /// Units are powers of 1,000.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<Pace>,

    /// As fast as possible; files up to 1 GiB are read into memory first
    #[arg(short, long, alias = "topspeed")]
    top: bool,

    /// Shorten longer pauses to this
    #[arg(long, value_name = "TIME", value_parser = size::duration)]
    pause_max: Option<Duration>,

    /// Send the file this many times; 0: until stopped
    #[arg(short = 'l', long = "loop", value_name = "N", default_value_t = 1)]
    rounds: u64,

    /// Use new IP addresses in every round but the first
    ///
    /// A short recording becomes many flows. Different flows stay different, and both directions of
    /// a connection match. Checksums are updated. Multicast, broadcast and local addresses, and
    /// addresses in ARP and payloads, do not change.
    #[arg(long, alias = "unique-ip")]
    rewrite: bool,

    #[command(flatten)]
    spread: SpreadOptions,

    /// How frames are sent
    ///
    /// auto selects kernel with --top and without --queues, otherwise xdp.
    #[arg(long, value_enum, default_value_t = Via::Auto)]
    via: Via,

    /// Destination MAC address of all frames [default: as recorded]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    to_mac: Option<[u8; 6]>,

    /// Packets cut by a snap length: pad with zeros, keep short, or skip
    #[arg(long, value_enum, default_value_t = CutName::Pad)]
    cut: CutName,

    /// End after this many frames
    #[arg(short, long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// End after this time: 10s, 500ms, 5m
    #[arg(long, value_name = "TIME", value_parser = size::duration)]
    duration: Option<Duration>,

    /// Print what was sent as one JSON object on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CutName {
    Pad,
    Keep,
    Skip,
}

impl From<CutName> for Cut {
    fn from(name: CutName) -> Self {
        match name {
            CutName::Pad => Self::Pad,
            CutName::Keep => Self::Keep,
            CutName::Skip => Self::Skip,
        }
    }
}

impl Arguments {
    fn pace(&self) -> Pace {
        match (self.rate, self.speed) {
            _ if self.top => Pace::Top,
            (Some(rate), _) => rate,
            (None, speed) => Pace::Recorded(speed.unwrap_or(1.0)),
        }
    }

    /// Why the file cannot be read, and which it is: there may be many in a script.
    fn unreadable(&self, error: ReadError) -> Failure {
        match error {
            error @ ReadError::Open { .. } => error.into(),
            error => {
                let file = self.file.display();
                Failure::Failed(format!("{file}: {}", Failure::from(error)).into())
            }
        }
    }

    /// Whether the file can be read once only.
    fn is_pipe(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo())
    }

    /// Checks options that are valid separately.
    fn check(&self) -> Result<(), Failure> {
        let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
        if self.spread.is_given() && self.spread.queues.is_none() {
            return usage("--key requires --queues");
        }
        if self.via == Via::Kernel && self.spread.queues.is_some_and(|queues| queues > 1) {
            return usage("--via kernel sends on one queue; omit --queues or use --via xdp");
        }
        if self.duration.is_some_and(|duration| duration.is_zero()) {
            return usage("--duration must be longer than 0");
        }
        if self.rounds != 1 && self.is_pipe() {
            return usage("a pipe can be read only once; omit --loop or name a file");
        }

        Ok(())
    }

    fn settings(&self, interface: &Interface, via: Via) -> Settings {
        let frame_bytes_max = match via {
            Via::Kernel => interface.frame_bytes_max().min(KernelOutlet::FRAME_BYTES_MAX),
            _ => interface.frame_bytes_max(),
        };
        let pause_max_ns = self.pause_max.map_or(u64::MAX, |pause| pause.as_nanos() as u64);
        Settings {
            rounds: (self.rounds > 0).then_some(self.rounds),
            frames_max: self.count.unwrap_or(u64::MAX),
            schedule: Schedule::new(self.pace(), pause_max_ns),
            rewrite: self.rewrite,
            spread: self.spread.queues.map(|queues| self.spread.over(queues)),
            destination_mac: self.to_mac,
            own_mac: interface.mac,
            frame_bytes_max,
            cut: self.cut.into(),
            preload_bytes_max: if self.pace() == Pace::Top && !self.is_pipe() {
                PRELOAD_BYTES_MAX
            } else {
                0
            },
        }
    }
}

/// At top speed a file's packets are read into memory first, unless they are more.
const PRELOAD_BYTES_MAX: usize = 1 << 30;

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.check()?;
    let device = find(&arguments.interface)?;
    check_queues(&device, arguments.spread.queues.unwrap_or(1))?;

    let interface = Interface::find(&Namespace::current()?, &device.name)?;

    // A file that is no savefile is reported before anything is opened for sending.
    let reader = Reader::open(&arguments.file).map_err(|error| arguments.unreadable(error))?;
    let (via, mut outlet) = open_outlet(arguments, &device, &interface)?;
    let recording = Recording::new(reader, &arguments.file, arguments.settings(&interface, via));
    let recording = recording.map_err(|error| arguments.unreadable(error))?;

    if let Some(reason) = device.carries_host_traffic() {
        eprintln!("warning: {} carries traffic of this host ({reason})", interface.name);
    }

    let mut counters = Counters::of(&interface)?;
    let interruption = Interruption::watch()?;
    let watch =
        Watch { device: &device, duration: arguments.duration, interruption: &interruption };
    let timed = arguments.pace() != Pace::Top;
    let (played, recording, watched) = watch.play(recording, &mut outlet, timed);

    let report = Report {
        sending: PlayReport {
            interface: &interface.name,
            of: Some(arguments.file.display().to_string()),
            via,
            fate: Fate::of(played.frames(), &mut counters),
            played: &played,
        },
        reading: recording.reading(),
    };
    eprintln!("{report}");

    if arguments.json {
        output::print(report.json())?;
    }

    let nothing_sent = report.nothing_sent(&arguments.file);

    match recording.into_error() {
        Some(error) => Err(arguments.unreadable(error)),
        None => watched.and(nothing_sent).and(report.sending.fate.check(&interface.name)),
    }
}

/// The requested way of sending, or the best available.
fn open_outlet(
    arguments: &Arguments,
    device: &Device,
    interface: &Interface,
) -> Result<(Via, Box<dyn Outlet>), Failure> {
    let kernel = || -> Result<(Via, Box<dyn Outlet>), SetupError> {
        Ok((Via::Kernel, Box::new(KernelOutlet::on(interface)?)))
    };
    let suits_kernel = arguments.pace() == Pace::Top
        && arguments.spread.queues.is_none()
        && interface.frame_bytes_max() <= KernelOutlet::FRAME_BYTES_MAX
        && takes_xdp_frames(device);

    match arguments.via {
        Via::Kernel => return Ok(kernel()?),
        Via::Auto if suits_kernel => {
            // It takes more privileges.
            if let Ok(outlet) = kernel() {
                return Ok(outlet);
            }
        }
        Via::Auto | Via::Xdp => {}
    }

    let queues = arguments.spread.queues.unwrap_or(1);
    Ok((Via::Xdp, Box::new(XdpOutlet::on(interface, queues)?)))
}

/// What became of it.
struct Report<'a> {
    sending: PlayReport<'a>,
    reading: Reading,
}

impl Report<'_> {
    /// Packets that were made ready when sending ended.
    fn ended(&self) -> u64 {
        self.reading.frames - self.sending.played.frames()
    }

    /// Packets not sent, by reason.
    fn not_sent(&self) -> [(&'static str, u64, &'static str); 5] {
        let skipped = self.reading.skipped;
        [
            ("too_long", skipped.too_long, "longer than the interface's MTU"),
            ("too_short", skipped.too_short, "shorter than an Ethernet header"),
            ("link_type", skipped.link_type, "neither Ethernet nor bare IP"),
            ("cut", skipped.cut, "cut in the file"),
            ("ended", self.ended(), "read ahead when sending ended"),
        ]
    }

    /// An error if there were packets, and not one of them could be sent.
    fn nothing_sent(&self, file: &std::path::Path) -> Result<(), Failure> {
        let skipped = self.reading.skipped.total();
        if self.reading.frames > 0 || skipped == 0 {
            return Ok(());
        }
        let message =
            format!("none of the {} packets of {} can be sent", grouped(skipped), file.display());
        Err(Failure::Failed(message.into()))
    }

    fn json(&self) -> serde_json::Value {
        let mut json = self.sending.json();
        let not_sent: serde_json::Map<_, _> = self
            .not_sent()
            .into_iter()
            .map(|(key, packets, _)| (key.to_owned(), packets.into()))
            .collect();
        json["file"] = json!(self.sending.of);
        json["packets"] = json!(self.reading.packets);
        json["padded"] = json!(self.reading.padded);
        json["rounds"] = json!(self.reading.rounds);
        json["not_sent"] = not_sent.into();
        json
    }
}

impl std::fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (_, packets, reason) in self.not_sent() {
            if packets > 0 {
                writeln!(f, "not sent: {} packets, {reason}", grouped(packets))?;
            }
        }
        if self.reading.padded > 0 {
            let padded = grouped(self.reading.padded);
            writeln!(f, "{padded} packets were cut in the file and padded with zeros")?;
        }
        self.sending.fmt(f)
    }
}

/// How many times as fast as recorded.
fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    let possible = (1e-6..=1e6).contains(&speed);
    if possible { Ok(speed) } else { Err("expected 0.000001 to 1000000".to_owned()) }
}

/// `50k` and `50kpps` are frames, `100Mbps` and `100Mbit/s` bits.
fn rate(text: &str) -> Result<Pace, String> {
    // A hundred million frames per second is not what it means to people who know other tools.
    let number = text.strip_suffix(['M', 'G', 'm', 'g']);
    if number.is_some_and(|number| number.parse::<f64>().is_ok()) {
        return Err(format!("frames or bits? expected {text}pps or {text}bps"));
    }
    let bits = ["bps", "bit/s", "bit"].iter().find_map(|unit| text.strip_suffix(unit));
    match bits {
        Some(number) => size::rate(number).map(Pace::BitsPerSecond),
        None => size::rate(text.strip_suffix("pps").unwrap_or(text)).map(Pace::FramesPerSecond),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_frames_or_bits() {
        for (text, pace) in [
            ("500", Pace::FramesPerSecond(500)),
            ("50kpps", Pace::FramesPerSecond(50_000)),
            ("1.5Mpps", Pace::FramesPerSecond(1_500_000)),
            ("100Mbps", Pace::BitsPerSecond(100_000_000)),
            ("1Gbit/s", Pace::BitsPerSecond(1_000_000_000)),
            ("9600bit", Pace::BitsPerSecond(9_600)),
        ] {
            assert_eq!(rate(text), Ok(pace));
        }
        for bad in ["", "pps", "kbps", "0", "-1", "1Xbps", "100M", "1G"] {
            assert!(rate(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn speeds_are_positive() {
        assert_eq!(speed("0.5"), Ok(0.5));
        for bad in ["", "0", "-1", "nan", "inf", "1e9", "2x"] {
            assert!(speed(bad).is_err(), "{bad:?} was taken");
        }
    }
}
