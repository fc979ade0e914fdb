//! The common parts of all sending commands.
//!
//! The frames sent, the frames not sent by reason, and the interface's losses add up to the frames
//! read. The frames that were sent are those that the interface counts: the kernel also accepts
//! frames that a driver does not send, such as XDP frames for a driver without an XDP program (igb,
//! virtio and vmxnet3 on Linux 6.1) and frames for a veth whose peer is down. If the interface has
//! sent none, the command fails.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use wirecap::device::{Device, Presence, XdpFeatures};
use wirecap::{OpenError, RingName, grouped};
use wirecap_send::Counters;
use wirecap_send::play::{Control, Outlet, Played, Source, play};
use wirecap_send::traffic::{HashKey, Rss};

use crate::shared::failure::Failure;
use crate::shared::progress::Progress;
use crate::shared::signals::Interruption;
use crate::size;

/// The ways of sending frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// kernel if possible on these queues and this interface, otherwise xdp
    Auto,
    /// In the kernel, by test runs of an XDP program: fastest. On a veth, CPU n sends to queue n
    /// modulo the number of queues, and the peer needs an XDP program or GRO
    Kernel,
    /// AF_XDP sockets, on any queue
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

/// How flows are spread over the receiver's queues.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct SpreadOptions {
    /// Spread flows over this many queues, as a NIC's RSS does
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=128))]
    pub(crate) queues: Option<u32>,

    /// RSS key: the drivers' default, or a symmetric one
    ///
    /// With the symmetric key both directions of a connection use the same queue.
    #[arg(long, value_enum)]
    key: Option<KeyName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KeyName {
    Standard,
    Symmetric,
}

impl SpreadOptions {
    /// Over this many queues by default.
    pub(crate) fn over(&self, default_queues: u32) -> Rss {
        let key = match self.key {
            None | Some(KeyName::Standard) => HashKey::Standard,
            Some(KeyName::Symmetric) => HashKey::Symmetric,
        };
        Rss::new(key, self.queues.unwrap_or(default_queues))
    }

    /// Whether any of them was given.
    pub(crate) fn is_given(&self) -> bool {
        self.queues.is_some() || self.key.is_some()
    }
}

/// Longest time between two looks at the clock.
const GLANCE: Duration = Duration::from_millis(20);
/// Longest time between two looks at the interface.
const PRESENCE_INTERVAL: Duration = Duration::from_millis(200);
/// The time within which an interface's counters show sent frames: drivers such as igb read the
/// device's every two seconds.
const COUNTERS_DELAY: Duration = Duration::from_millis(2500);

/// Looks up the interface, and rejects one that cannot send.
pub(crate) fn find(name: &str) -> Result<Device, Failure> {
    let device = Device::find(name).map_err(OpenError::from)?;
    if !device.is_ethernet() {
        let link_type = device.link_type;
        let message =
            format!("{name} is not an Ethernet interface (its type is {link_type}); name another");
        return Err(Failure::Failed(message.into()));
    }
    if !device.up {
        return Err(OpenError::InterfaceDown { interface: device.name }.into());
    }
    Ok(device)
}

/// Whether the interface reports that it accepts frames made inside the kernel. A veth does so only
/// while its peer has an XDP program or GRO, and many drivers only while they have one; otherwise
/// they lose such frames uncounted. Kernels before 6.3 do not report it.
pub(crate) fn takes_xdp_frames(device: &Device) -> bool {
    device.xdp.is_some_and(|support| support.features.contains(XdpFeatures::NDO_XMIT))
}

/// Rejects more queues than the interface can send on.
pub(crate) fn check_queues(device: &Device, queues: u32) -> Result<(), Failure> {
    if queues > device.tx_queues {
        let ring = RingName::of_queue(&device.name, queues - 1);
        return Err(OpenError::NoSuchQueue { ring, queues: device.tx_queues }.into());
    }
    Ok(())
}

/// When to end.
pub(crate) struct Watch<'a> {
    pub(crate) device: &'a Device,
    pub(crate) duration: Option<Duration>,
    pub(crate) interruption: &'a Interruption,
}

impl Watch<'_> {
    /// Shows the progress of sending until it has finished, or time or a signal end it. A removed
    /// interface is an error: frames made in the kernel would continue.
    pub(crate) fn wait(
        &self,
        is_finished: impl Fn() -> bool,
        frames: impl Fn() -> u64,
    ) -> Result<(), Failure> {
        let started = Instant::now();
        let mut progress = Progress::new(false);
        let mut looked = started;

        while !is_finished() {
            if looked.elapsed() >= PRESENCE_INTERVAL {
                looked = Instant::now();
                self.check_presence()?;
            }

            let left = self.duration.map(|duration| duration.saturating_sub(started.elapsed()));
            if left.is_some_and(|left| left.is_zero()) || self.interruption.came() {
                break;
            }

            thread::sleep(left.unwrap_or(GLANCE).min(GLANCE));
            progress.tick_sent(frames());
        }

        Ok(())
    }

    fn check_presence(&self) -> Result<(), Failure> {
        let name = &self.device.name;
        let gone = |message: String| Err(Failure::Failed(message.into()));
        match self.device.presence()? {
            Presence::Gone => gone(format!("{name} was removed: cannot send")),
            Presence::Down => gone(format!("{name} is down: cannot send")),
            _ => Ok(()),
        }
    }

    /// Plays a source to its end, or to that of this watch, and returns the reason of an early end.
    pub(crate) fn play<S: Source>(
        &self,
        source: S,
        outlet: &mut impl Outlet,
        timed: bool,
    ) -> (Played, S, Result<(), Failure>) {
        let control = Control::default();
        thread::scope(|scope| {
            let playing = scope.spawn(|| play(source, outlet, timed, &control));
            let watched = self.wait(|| playing.is_finished(), || control.frames());
            control.stop();
            let (mut played, source) = playing.join().expect("a playing thread");
            let failed = played.error.take();
            (played, source, failed.map_or(watched, |error| Err(error.into())))
        })
    }
}

/// The interface's counters for the frames handed to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    /// Sent, by whichever process.
    sent: u64,
    /// Lost at the interface: on a veth, frames for which the other end had no room.
    lost: u64,
}

/// What became of the frames that were handed to an interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fate {
    /// How many there were.
    pub(crate) handed_over: u64,
    /// By the interface; `None` if it is gone.
    pub(crate) counted: Option<Counted>,
}

impl Fate {
    /// Waits until the interface's counters include `handed_over` frames, if they ever do.
    pub(crate) fn of(handed_over: u64, counters: &mut Counters) -> Self {
        Self { handed_over, counted: counted(counters, handed_over) }
    }

    /// The frames that the interface has sent, by its own count; if it is gone, those that the
    /// kernel accepted.
    pub(crate) fn sent(&self) -> u64 {
        self.counted.map_or(self.handed_over, |counted| counted.sent.min(self.handed_over))
    }

    /// The frames that the interface reports as sent or lost.
    pub(crate) fn counted_by_interface(&self) -> Option<u64> {
        self.counted.map(|counted| counted.sent + counted.lost)
    }

    pub(crate) fn lost_by_interface(&self) -> Option<u64> {
        self.counted.map(|counted| counted.lost)
    }

    /// An error if there were frames, and the interface has sent none of them.
    pub(crate) fn check(&self, interface: &str) -> Result<(), Failure> {
        if self.handed_over == 0 || self.sent() > 0 {
            return Ok(());
        }
        let frames = grouped(self.handed_over);
        let message = format!(
            "{interface} sent none of the {frames} frames, although the kernel accepted them"
        );
        Err(Failure::Failed(message.into()))
    }

    /// Writes how many frames were lost or are missing, if any, each in a line.
    pub(crate) fn write_missing(
        &self,
        f: &mut fmt::Formatter<'_>,
        interface: &str,
        via: Via,
    ) -> fmt::Result {
        let Some(Counted { sent, lost }) = self.counted else {
            return writeln!(f, "{interface} is gone: whether it sent the frames is not known");
        };
        if lost > 0 {
            let lost = grouped(lost);
            writeln!(
                f,
                "{interface} lost {lost} of them: on a veth, the peer is down or its ring was full"
            )?;
        }

        let missing = self.handed_over.saturating_sub(sent + lost);
        if missing > 0 {
            write!(f, "{} of them are missing in the counters of {interface}", grouped(missing))?;
            if via == Via::Kernel {
                write!(f, ": it or its peer may not accept XDP frames; try --via xdp")?;
            }
            writeln!(f)?;
        }

        Ok(())
    }

    /// `500 frames`, or `3 of 500 frames`.
    pub(crate) fn frames(&self) -> String {
        match (grouped(self.sent()), grouped(self.handed_over)) {
            (sent, all) if sent == all => format!("{sent} frames"),
            (sent, all) => format!("{sent} of {all} frames"),
        }
    }
}

/// The interface's counts, once they include all frames handed to it; `None` if it is gone.
fn counted(counters: &mut Counters, frames: u64) -> Option<Counted> {
    let deadline = Instant::now() + COUNTERS_DELAY;
    loop {
        let grown = counters.since_start().ok()?;
        if grown.handed_over() >= frames || Instant::now() >= deadline {
            return Some(Counted { sent: grown.tx_packets, lost: grown.tx_dropped });
        }
        thread::sleep(GLANCE);
    }
}

pub(crate) fn per_second(amount: u64, duration: Duration) -> f64 {
    if duration.is_zero() { 0.0 } else { amount as f64 / duration.as_secs_f64() }
}

/// `02:00:00:00:00:01`
pub(crate) fn mac(text: &str) -> Result<[u8; 6], String> {
    let is_byte =
        |text: &str| text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let byte = |text: &str| u8::from_str_radix(text, 16).ok().filter(|_| is_byte(text));
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| "expected a MAC address such as 02:00:00:00:00:01".to_owned())
}

/// The account of played frames.
pub(crate) struct PlayReport<'a> {
    pub(crate) interface: &'a str,
    /// The name of the played file, if it has one.
    pub(crate) of: Option<String>,
    pub(crate) via: Via,
    pub(crate) played: &'a Played,
    pub(crate) fate: Fate,
}

impl PlayReport<'_> {
    pub(crate) fn json(&self) -> Value {
        let played = self.played;
        let queue = |(queue, frames): (usize, &u64)| json!({ "queue": queue, "frames": frames });
        let microseconds = |duration: Duration| duration.as_nanos() as f64 / 1e3;

        let lateness = played.lateness.map(|lateness| {
            json!({
                "median": microseconds(lateness.median),
                "percentile_99": microseconds(lateness.percentile_99),
                "max": microseconds(lateness.max),
            })
        });
        json!({
            "interface": self.interface,
            "via": self.via.to_string(),
            "frames": self.fate.sent(),
            "handed_over": self.fate.handed_over,
            "bytes": played.bytes,
            "duration_s": played.duration.as_secs_f64(),
            "frames_per_s": per_second(self.fate.sent(), played.duration),
            "bits_per_s": per_second(played.bytes * 8, played.duration),
            "counted_by_interface": self.fate.counted_by_interface(),
            "lost_by_interface": self.fate.lost_by_interface(),
            "lateness_us": lateness,
            "queues": played.queues.iter().enumerate().map(queue).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for PlayReport<'_> {
    /// A line per queue if there are several, then what should be known, then the sum.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let played = self.played;
        let interface = self.interface;

        if played.queues.len() > 1 {
            for (queue, frames) in played.queues.iter().enumerate() {
                writeln!(f, "queue {queue}: {} frames", grouped(*frames))?;
            }
        }

        self.fate.write_missing(f, interface, self.via)?;

        if let Some(late) = played.lateness {
            let median = late.median;
            let most = late.percentile_99;
            let max = late.max;
            writeln!(
                f,
                "late by {median:.1?} (median), {most:.1?} (99th percentile), {max:.1?} (maximum)"
            )?;
        }

        write!(f, "sent {}", self.fate.frames())?;
        if let Some(of) = &self.of {
            write!(f, " of {of}")?;
        }

        let rate = size::human_rate(per_second(self.fate.sent(), played.duration));
        let bit_rate = size::human_rate(per_second(played.bytes * 8, played.duration));
        let seconds = played.duration.as_secs_f64();

        write!(
            f,
            " on {interface} in {seconds:.2} s, {rate}frames/s, {bit_rate}bit/s, via {}",
            self.via
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
