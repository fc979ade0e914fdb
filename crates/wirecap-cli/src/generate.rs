//! `wirecap generate`: sends synthetic frames on an interface.

mod xdp;

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args, ValueEnum};
use serde_json::json;
use wirecap::device::{Device, XdpFeatures};
use wirecap::{OpenError, grouped};
use wirecap_testbed::{
    AfXdpSender, Counters, Generator, Interface, Load, Namespace, Rate, Run, SendError, SetupError, Sizes,
    Traffic,
};

use crate::failure::Failure;
use crate::progress::Progress;
use crate::signals::Interruption;
use crate::size;
use xdp::XdpRun;

/// Send synthetic frames on an interface: it really transmits them
///
/// The frames are UDP over IPv4 between addresses reserved for benchmarks (198.18.0.0/15), and each
/// carries its queue and number in its payload. Unless --to-mac says otherwise they are addressed to the
/// interface's own hardware address: whatever is at the other end of the cable sees them, and a switch
/// sends them no further.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("end").required(true).multiple(true).args(["count", "duration"])))]
pub(crate) struct Arguments {
    /// Interface to send on
    #[arg(short, long, value_name = "DEV")]
    interface: String,

    /// Queues to send on, with a thread each: 0, 0,2,3; on a veth a frame arrives at the same queue
    #[arg(long = "queue", value_name = "N", value_delimiter = ',', default_value = "0")]
    queues: Vec<u32>,

    /// How frames are sent
    #[arg(long, value_enum, default_value_t = Via::Auto)]
    via: Via,

    /// End after this many frames, on all queues together
    #[arg(short, long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// End after this time: 10s, 500ms, 5m
    #[arg(long, value_name = "TIME", value_parser = size::duration)]
    duration: Option<Duration>,

    /// Length in bytes without checksum: 60, 60-1514 for lengths from all over the range, or imix
    #[arg(long, value_name = "BYTES", value_parser = sizes, default_value = "60")]
    size: Sizes,

    /// Frames per second on all queues together: 500, 10k, 1.5M [default: as fast as possible]
    #[arg(long, value_name = "RATE", value_parser = size::rate)]
    rate: Option<u64>,

    /// Flows on each queue, by source port and address
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    flows: u32,

    /// Destination hardware address [default: the interface's own]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    to_mac: Option<[u8; 6]>,

    /// Print what was sent as one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Who makes the frames and hands them to the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Via {
    /// kernel if it reaches the queues and the interface takes its frames, else xdp
    Auto,
    /// Inside the kernel, by test runs of an XDP program: the fastest; on a veth, CPU n sends to queue n
    /// modulo the number of queues, and the peer must have an XDP program or GRO
    Kernel,
    /// By AF_XDP sockets, on any queue
    Xdp,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::Xdp => "xdp",
        })
    }
}

/// One queue's share of what is sent.
#[derive(Debug, Clone, Copy)]
struct Share {
    queue: u32,
    frames: u64,
    rate: Rate,
}

/// What was sent on one queue.
#[derive(Debug, Clone, Copy)]
struct SentOnQueue {
    queue: u32,
    frames: u64,
    duration: Duration,
}

/// Threads that send.
trait Running {
    /// Number of frames sent so far.
    fn frames(&self) -> u64;
    fn is_finished(&self) -> bool;
    fn stop(&self);
    /// Waits for the end.
    fn outcome(self) -> Result<Vec<SentOnQueue>, SendError>;
}

/// Longest time between two looks at the clock.
const GLANCE: Duration = Duration::from_millis(20);
/// How long an interface's counters may take to show what was sent.
const COUNTERS_DELAY: Duration = Duration::from_millis(500);

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let device = find(&arguments.interface)?;
    let interface = Interface::find(&Namespace::current()?, &device.name)?;
    let shares = shares(arguments, &interface)?;
    let traffic = Traffic {
        sizes: arguments.size.clone(),
        flows: arguments.flows,
        source_mac: interface.mac,
        destination_mac: arguments.to_mac.unwrap_or(interface.mac),
        ..Traffic::to(&interface)
    };
    traffic.check(&interface)?;
    let mut counters = Counters::of(&interface)?;
    let interruption = Interruption::watch()?;
    let via = match arguments.via {
        Via::Auto if !takes_xdp_frames(&device) => Via::Xdp,
        via => via,
    };
    let (via, sent) = send(via, arguments.duration, &interface, &traffic, &shares, &interruption)?;
    let report = Report {
        interface: &interface.name,
        via,
        frames: sent.iter().map(|queue| queue.frames).sum(),
        duration: sent.iter().map(|queue| queue.duration).max().unwrap_or_default(),
        counted: counted(&mut counters, sent.iter().map(|queue| queue.frames).sum())?,
        sent,
    };
    eprintln!("{report}");
    if arguments.json {
        println!("{}", report.json());
    }
    Ok(())
}

/// Looks the interface up, and refuses one on which nothing is to be sent.
fn find(name: &str) -> Result<Device, Failure> {
    let device = Device::find(name).map_err(OpenError::from)?;
    if !device.is_ethernet() {
        let link_type = device.link_type;
        let message = format!("{name} is not an Ethernet interface (its type is {link_type}); name another");
        return Err(Failure::Failed(message.into()));
    }
    if !device.up {
        return Err(OpenError::InterfaceDown { interface: device.name }.into());
    }
    Ok(device)
}

/// Whether the interface says that it takes frames made inside the kernel: a veth only does while its
/// peer has an XDP program or GRO, and loses them without a trace otherwise. Older kernels do not tell.
fn takes_xdp_frames(device: &Device) -> bool {
    device.xdp.is_none_or(|support| support.features.contains(XdpFeatures::NDO_XMIT))
}

/// Divides frames and rate among the queues.
fn shares(arguments: &Arguments, interface: &Interface) -> Result<Vec<Share>, Failure> {
    let queues = &arguments.queues;
    let queue_count = queues.len() as u64;
    for (index, queue) in queues.iter().enumerate() {
        if queues[..index].contains(queue) {
            return Err(Failure::Usage(format!("queue {queue} is named twice")));
        }
        if *queue >= interface.queue_count {
            let ring = wirecap::RingName::of_queue(&interface.name, *queue);
            return Err(OpenError::NoSuchQueue { ring, queues: interface.queue_count }.into());
        }
    }
    if arguments.rate.is_some_and(|rate| rate < queue_count) {
        let message = format!("--rate must be at least one frame per second and queue: {queue_count}");
        return Err(Failure::Usage(message));
    }
    if arguments.duration.is_some_and(|duration| duration.is_zero()) {
        return Err(Failure::Usage("--duration must be longer than 0".to_owned()));
    }
    let part = |whole: u64, index: u64| whole / queue_count + u64::from(index < whole % queue_count);
    let share = |(index, queue): (u64, &u32)| Share {
        queue: *queue,
        frames: arguments.count.map_or(u64::MAX, |count| part(count, index)),
        rate: arguments.rate.map_or(Rate::Top, |rate| Rate::PerSecond(part(rate, index))),
    };
    Ok((0..).zip(queues).map(share).collect())
}

/// Sends all shares at once, and says which way was taken.
fn send(
    via: Via,
    duration: Option<Duration>,
    interface: &Interface,
    traffic: &Traffic,
    shares: &[Share],
    interruption: &Interruption,
) -> Result<(Via, Vec<SentOnQueue>), Failure> {
    let watch = Watch { duration, interruption };
    if via != Via::Xdp {
        let mut generator = Generator::new(interface, traffic)?;
        if via == Via::Kernel || shares.iter().all(|share| generator.reaches(share.queue)) {
            let loads: Vec<Load> =
                shares.iter().map(|share| Load::new(share.queue, share.frames).at(share.rate)).collect();
            return Ok((Via::Kernel, watch.to_the_end(generator.start(&loads)?)?));
        }
    }
    let senders = shares.iter().map(|share| AfXdpSender::on(interface, share.queue));
    let run = XdpRun::start(senders.collect::<Result<_, SetupError>>()?, traffic, shares);
    Ok((Via::Xdp, watch.to_the_end(run)?))
}

/// When to end.
struct Watch<'a> {
    duration: Option<Duration>,
    interruption: &'a Interruption,
}

impl Watch<'_> {
    /// Shows how sending gets on, and ends it by time or signal if it does not end by itself.
    fn to_the_end(&self, run: impl Running) -> Result<Vec<SentOnQueue>, SendError> {
        let (started, mut progress) = (Instant::now(), Progress::new());
        while !run.is_finished() {
            let left = self.duration.map(|duration| duration.saturating_sub(started.elapsed()));
            if left.is_some_and(|left| left.is_zero()) || self.interruption.came() {
                break;
            }
            thread::sleep(left.unwrap_or(GLANCE).min(GLANCE));
            progress.tick_sent(run.frames());
        }
        run.stop();
        run.outcome()
    }
}

impl Running for Run<'_> {
    fn frames(&self) -> u64 {
        Run::frames(self)
    }

    fn is_finished(&self) -> bool {
        Run::is_finished(self)
    }

    fn stop(&self) {
        self.stopper().stop();
    }

    fn outcome(self) -> Result<Vec<SentOnQueue>, SendError> {
        let on_queue = |sent: &wirecap_testbed::Sent| SentOnQueue {
            queue: sent.queue,
            frames: sent.frames,
            duration: sent.duration,
        };
        Ok(self.wait()?.iter().map(on_queue).collect())
    }
}

/// How many frames the interface says it has sent or lost, once that is as many as were handed to it.
fn counted(counters: &mut Counters, frames: u64) -> Result<u64, SetupError> {
    let deadline = Instant::now() + COUNTERS_DELAY;
    loop {
        let counted = counters.since_start()?.handed_over();
        if counted >= frames || Instant::now() >= deadline {
            return Ok(counted);
        }
        thread::sleep(GLANCE);
    }
}

/// What became of it.
struct Report<'a> {
    interface: &'a str,
    via: Via,
    frames: u64,
    duration: Duration,
    sent: Vec<SentOnQueue>,
    counted: u64,
}

impl Report<'_> {
    fn json(&self) -> serde_json::Value {
        let queue = |sent: &SentOnQueue| {
            json!({
                "queue": sent.queue,
                "frames": sent.frames,
                "duration_s": sent.duration.as_secs_f64(),
                "frames_per_s": per_second(sent.frames, sent.duration),
            })
        };
        json!({
            "interface": self.interface,
            "via": self.via.to_string(),
            "frames": self.frames,
            "duration_s": self.duration.as_secs_f64(),
            "frames_per_s": per_second(self.frames, self.duration),
            "counted_by_interface": self.counted,
            "queues": self.sent.iter().map(queue).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report<'_> {
    /// A line per queue if there are several, then the sum.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sent.len() > 1 {
            for sent in &self.sent {
                let rate = size::human_rate(per_second(sent.frames, sent.duration));
                writeln!(f, "queue {}: {} frames, {rate}frames/s", sent.queue, grouped(sent.frames))?;
            }
        }
        let missing = self.frames.saturating_sub(self.counted);
        if missing > 0 {
            let (missing, interface) = (grouped(missing), self.interface);
            write!(f, "{interface}'s own counters do not know of {missing} of them")?;
            if self.via == Via::Kernel {
                write!(f, ": does the other end receive XDP frames? if not, try --via xdp")?;
            }
            writeln!(f)?;
        }
        write!(
            f,
            "sent {} frames on {} in {:.2} s, {}frames/s, via {}",
            grouped(self.frames),
            self.interface,
            self.duration.as_secs_f64(),
            size::human_rate(per_second(self.frames, self.duration)),
            self.via,
        )
    }
}

fn per_second(frames: u64, duration: Duration) -> f64 {
    if duration.is_zero() { 0.0 } else { frames as f64 / duration.as_secs_f64() }
}

const FRAME_BYTES_MIN: u16 = 60;
/// Different lengths that a range is represented by.
const LENGTHS_MAX: u32 = 64;

/// `60`, `60-1514` or `imix`.
fn sizes(text: &str) -> Result<Sizes, String> {
    let bytes = |text: &str| match text.parse() {
        Ok(bytes) if bytes >= FRAME_BYTES_MIN => Ok(bytes),
        Ok(bytes) => Err(format!("{bytes} is too short; frames have at least {FRAME_BYTES_MIN} bytes")),
        Err(_) => Err(format!("{text:?} is not a length; write 60, 60-1514 or imix")),
    };
    match text.split_once('-') {
        _ if text == "imix" => Ok(Sizes::imix()),
        None => Ok(Sizes::fixed(bytes(text)?)),
        Some((shortest, longest)) => match (bytes(shortest)?, bytes(longest)?) {
            (shortest, longest) if shortest < longest => Ok(spread(shortest.into(), longest.into())),
            _ => Err("the first length must be the shorter one".to_owned()),
        },
    }
}

/// Lengths at equal distances from the shortest to the longest.
fn spread(shortest: u32, longest: u32) -> Sizes {
    let steps = (longest - shortest).min(LENGTHS_MAX - 1);
    let length = |step| (shortest + (longest - shortest) * step / steps) as u16;
    Sizes::mix(&(0..=steps).map(|step| (length(step), 1)).collect::<Vec<_>>())
}

/// `02:00:00:00:00:01`
fn mac(text: &str) -> Result<[u8; 6], String> {
    let is_byte = |text: &str| text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |text: &str| u8::from_str_radix(text, 16).ok().filter(|_| is_byte(text));
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| "write six bytes in hexadecimal, such as 02:00:00:00:00:01".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_sizes_holds_both_ends_and_what_lies_between() {
        let mixed = sizes("60-1514").unwrap();
        let lengths: Vec<u16> = (0..64).map(|sequence| mixed.frame_bytes(sequence)).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&60), Some(&1514)));
        let next_longer = |length| lengths.iter().filter(|other| **other > length).min();
        assert!(lengths.iter().all(|length| next_longer(*length).is_none_or(|next| next - length <= 24)));
        assert_eq!(sizes("60-61").unwrap(), Sizes::mix(&[(60, 1), (61, 1)]));
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for bad in ["", "59", "0-60", "100-100", "200-100", "60-", "-60", "70000", "imix2", "60 "] {
            assert!(sizes(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn hardware_addresses_have_six_bytes() {
        assert_eq!(mac("02:00:5e:00:00:Ff"), Ok([2, 0, 0x5e, 0, 0, 0xff]));
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:0",
            "02-00-00-00-00-00",
            "+2:00:00:00:00:00",
        ] {
            assert!(mac(bad).is_err(), "{bad:?} was taken");
        }
    }
}
