//! `wirecap generate`: sends synthetic frames on an interface.

mod model;
mod xdp;

use std::fmt;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use wirecap::{OpenError, grouped};
use wirecap_send::{
    AfXdpSender, Counters, Generator, Interface, Load, Namespace, Rate, Run, SendError, SetupError,
    Sizes, Traffic,
};

use crate::shared::failure::Failure;
use crate::shared::output;
use crate::shared::sending::{Fate, Via, Watch, find, mac, per_second, takes_xdp_frames};
use crate::shared::signals::Interruption;
use crate::size;
use xdp::XdpRun;

/// Transmit synthetic frames on an interface
///
/// The frames are UDP over IPv4 between addresses reserved for benchmarks (198.18.0.0/15). Each
/// carries its queue and number in its payload. The default destination is the interface's own MAC
/// address: the peer receives the frames, and a switch does not forward them. --to-mac sets
/// another.
///
/// Without --model frames are evenly spaced, or sent as fast as possible, and flows alternate. With
/// --model, times, flows and lengths follow a traffic model, which is the same for the same seed,
/// and flows are spread over the receiver's queues as a NIC's RSS does.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Interface to send on
    #[arg(short, long, value_name = "DEV", required_unless_present = "write")]
    interface: Option<String>,

    /// Transmit queues, one thread each: 0,2,3 [default: 0]
    #[arg(long = "queue", value_name = "N", value_delimiter = ',', conflicts_with = "model")]
    queue: Vec<u32>,

    /// How frames are sent; with --model always xdp
    #[arg(long, value_enum, default_value_t = Via::Auto, conflicts_with = "model")]
    via: Via,

    /// End after this many frames on all queues
    #[arg(short, long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// End after this time: 10s, 500ms, 5m
    #[arg(long, value_name = "TIME", value_parser = size::duration)]
    duration: Option<Duration>,

    /// Frame length without FCS: 60, 60-1514 or imix [default: 60, or the model's]
    #[arg(long, value_name = "BYTES", value_parser = sizes)]
    size: Option<Sizes>,

    /// Frames per second on all queues: 500, 10k, 1.5Mpps
    ///
    /// Units are powers of 1,000. [default: as fast as possible; 100k with a model]
    #[arg(long, value_name = "RATE", value_parser = size::rate)]
    rate: Option<u64>,

    /// Flows per queue, or of the model [default: 1; 256 with a model]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    flows: Option<u32>,

    /// Destination MAC address [default: the interface's own]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    to_mac: Option<[u8; 6]>,

    #[command(flatten)]
    model: model::Options,

    /// Print what was sent as one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// One queue's share of the frames.
#[derive(Debug, Clone, Copy)]
struct Share {
    queue: u32,
    frames: u64,
    rate: Rate,
}

/// The frames sent on one queue.
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

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.duration.is_some_and(|duration| duration.is_zero()) {
        return Err(Failure::Usage("--duration must be longer than 0".to_owned()));
    }

    if !model::ends_by_itself(arguments)
        && arguments.count.is_none()
        && arguments.duration.is_none()
    {
        return Err(Failure::Usage("--count FRAMES or --duration TIME is required".to_owned()));
    }

    if arguments.model.model.is_none() && arguments.model.spread.is_given() {
        let message =
            "--queues and --key require --model; without it, select queues by --queue 0,1";
        return Err(Failure::Usage(message.to_owned()));
    }

    if let Some(file) = &arguments.model.write {
        return model::write(arguments, file);
    }

    let device = find(arguments.interface.as_deref().expect("clap requires it"))?;
    let interface = Interface::find(&Namespace::current()?, &device.name)?;

    if arguments.model.model.is_some() {
        return model::send(arguments, &device, &interface);
    }

    let shares = shares(arguments, &interface)?;
    let traffic = Traffic {
        sizes: arguments.size.clone().unwrap_or(Sizes::fixed(FRAME_BYTES_MIN)),
        flows: arguments.flows.unwrap_or(1),
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
    let watch =
        Watch { device: &device, duration: arguments.duration, interruption: &interruption };
    let (via, sent, watched) = send(via, &watch, &interface, &traffic, &shares)?;

    let report = Report {
        interface: &interface.name,
        via,
        fate: Fate::of(sent.iter().map(|queue| queue.frames).sum(), &mut counters),
        duration: sent.iter().map(|queue| queue.duration).max().unwrap_or_default(),
        sent,
    };
    eprintln!("{report}");

    if arguments.json {
        output::print(report.json())?;
    }

    watched.and(report.fate.check(&interface.name))
}

/// Divides frames and rate among the queues.
fn shares(arguments: &Arguments, interface: &Interface) -> Result<Vec<Share>, Failure> {
    let queues: &[u32] = if arguments.queue.is_empty() { &[0] } else { &arguments.queue };
    let queue_count = queues.len() as u64;

    for (index, queue) in queues.iter().enumerate() {
        if queues[..index].contains(queue) {
            return Err(Failure::Usage(format!("queue {queue} is given twice")));
        }
        if *queue >= interface.queue_count {
            let ring = wirecap::RingName::of_queue(&interface.name, *queue);
            return Err(OpenError::NoSuchQueue { ring, queues: interface.queue_count }.into());
        }
    }

    if arguments.rate.is_some_and(|rate| rate < queue_count) {
        let message =
            format!("--rate must be at least one frame per second and queue: {queue_count}");
        return Err(Failure::Usage(message));
    }

    let part =
        |whole: u64, index: u64| whole / queue_count + u64::from(index < whole % queue_count);
    let share = |(index, queue): (u64, &u32)| Share {
        queue: *queue,
        frames: arguments.count.map_or(u64::MAX, |count| part(count, index)),
        rate: arguments.rate.map_or(Rate::Top, |rate| Rate::PerSecond(part(rate, index))),
    };
    Ok((0..).zip(queues).map(share).collect())
}

/// The frames sent, the way, and the reason of an early end.
type Outcome = (Via, Vec<SentOnQueue>, Result<(), Failure>);

/// Sends all shares at once.
fn send(
    via: Via,
    watch: &Watch<'_>,
    interface: &Interface,
    traffic: &Traffic,
    shares: &[Share],
) -> Result<Outcome, Failure> {
    if via != Via::Xdp {
        let mut generator = Generator::new(interface, traffic)?;
        if via == Via::Kernel || shares.iter().all(|share| generator.reaches(share.queue)) {
            let loads: Vec<Load> = shares
                .iter()
                .map(|share| Load::new(share.queue, share.frames).at(share.rate))
                .collect();
            return to_the_end(Via::Kernel, watch, generator.start(&loads)?);
        }
    }

    let senders = shares.iter().map(|share| AfXdpSender::on(interface, share.queue));
    let run = XdpRun::start(senders.collect::<Result<_, SetupError>>()?, traffic, shares);
    to_the_end(Via::Xdp, watch, run)
}

/// Waits until it has finished, or the watch ends it.
fn to_the_end(via: Via, watch: &Watch<'_>, run: impl Running) -> Result<Outcome, Failure> {
    let watched = watch.wait(|| run.is_finished(), || run.frames());
    run.stop();
    Ok((via, run.outcome()?, watched))
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
        let on_queue = |sent: &wirecap_send::Sent| SentOnQueue {
            queue: sent.queue,
            frames: sent.frames,
            duration: sent.duration,
        };
        Ok(self.wait()?.iter().map(on_queue).collect())
    }
}

/// What became of it.
struct Report<'a> {
    interface: &'a str,
    via: Via,
    fate: Fate,
    duration: Duration,
    /// The frames that were handed over on each queue.
    sent: Vec<SentOnQueue>,
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
            "frames": self.fate.sent(),
            "handed_over": self.fate.handed_over,
            "duration_s": self.duration.as_secs_f64(),
            "frames_per_s": per_second(self.fate.sent(), self.duration),
            "counted_by_interface": self.fate.counted_by_interface(),
            "lost_by_interface": self.fate.lost_by_interface(),
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
                writeln!(
                    f,
                    "queue {}: {} frames, {rate}frames/s",
                    sent.queue,
                    grouped(sent.frames)
                )?;
            }
        }

        self.fate.write_missing(f, self.interface, self.via)?;
        write!(
            f,
            "sent {} on {} in {:.2} s, {}frames/s, via {}",
            self.fate.frames(),
            self.interface,
            self.duration.as_secs_f64(),
            size::human_rate(per_second(self.fate.sent(), self.duration)),
            self.via,
        )
    }
}

const FRAME_BYTES_MIN: u16 = 60;
/// Different lengths that a range is represented by.
const LENGTHS_MAX: u32 = 64;

/// `60`, `60-1514` or `imix`.
fn sizes(text: &str) -> Result<Sizes, String> {
    let bytes = |text: &str| match text.parse() {
        Ok(bytes) if bytes >= FRAME_BYTES_MIN => Ok(bytes),
        Ok(bytes) => {
            Err(format!("{bytes} is too short: a frame has at least {FRAME_BYTES_MIN} bytes"))
        }
        Err(_) => Err(format!("invalid length {text:?}: expected 60, 60-1514 or imix")),
    };
    match text.split_once('-') {
        _ if text == "imix" => Ok(Sizes::imix()),
        None => Ok(Sizes::fixed(bytes(text)?)),
        Some((shortest, longest)) => match (bytes(shortest)?, bytes(longest)?) {
            (shortest, longest) if shortest < longest => {
                Ok(spread(shortest.into(), longest.into()))
            }
            _ => Err("the first length must be the smaller one".to_owned()),
        },
    }
}

/// Lengths at equal distances from the shortest to the longest.
fn spread(shortest: u32, longest: u32) -> Sizes {
    let steps = (longest - shortest).min(LENGTHS_MAX - 1);
    let length = |step| (shortest + (longest - shortest) * step / steps) as u16;
    Sizes::mix(&(0..=steps).map(|step| (length(step), 1)).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_sizes_includes_both_ends() {
        let mixed = sizes("60-1514").unwrap();
        let lengths: Vec<u16> = (0..64).map(|sequence| mixed.frame_bytes(sequence)).collect();
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&60), Some(&1514)));
        let next_longer = |length| lengths.iter().filter(|other| **other > length).min();
        assert!(
            lengths
                .iter()
                .all(|length| next_longer(*length).is_none_or(|next| next - length <= 24))
        );
        assert_eq!(sizes("60-61").unwrap(), Sizes::mix(&[(60, 1), (61, 1)]));
    }

    #[test]
    fn invalid_sizes_are_rejected() {
        for bad in ["", "59", "0-60", "100-100", "200-100", "60-", "-60", "70000", "imix2", "60 "] {
            assert!(sizes(bad).is_err(), "{bad:?} was taken");
        }
    }
}
