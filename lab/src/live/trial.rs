//! One run of one contender under one load, with its account: packets that the sender sent, that
//! its interface counted, that were delivered, and that the contender reports as lost.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;
use wirecap_testbed::{
    AfXdpSender, Counters, Disturbance, Generator, Load, SendError, Sizes, Snapshot, Stamp, Ticks,
    Traffic, Watch, loss_lock, pass_program,
};

use super::Outcome;
use super::bed::{Bed, Run, watch};
use super::contender::{Contender, FILE, MemoryFile};
use super::process::FILE_PATH;
use super::programs::order::Order;
use super::receiver::Receiver;

/// The results of one run.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Trial {
    /// Frames that the sender sent, by its own count.
    pub sent: u64,
    /// Frames that the sending interface counted.
    pub counted: u64,
    /// Of them, those for which the receiving interface's ring had no room: no receiver saw them.
    pub lost_at_interface: u64,
    /// Packets that the contender had.
    pub delivered: u64,
    /// Packets that the contender reports as lost; `None` if it reports nothing.
    pub lost_reported: Option<u64>,
    /// The sending time.
    pub seconds: f64,
    /// Processor time of the contender's process, in seconds, from its start to the end of the
    /// load.
    pub receiver_seconds: f64,
    /// Processor time of the sender, in seconds, the kernel's receive path included.
    pub sender_seconds: f64,
    /// Processor time of the kernel's softirq threads meanwhile, in seconds.
    pub softirq_seconds: f64,
    /// The share of the time that sender or receiver waited for a CPU that another process used.
    pub waited: f64,
    /// The order in which the packets of each flow were processed, if the contender reports it.
    pub order: Option<Order>,
    /// The disturbance of the run, if it was measured.
    pub outside: Option<Outside>,
}

/// Disturbances of a run besides the waiting of its threads.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Outside {
    /// The share of all processors' time that the host used for others.
    pub stolen_share: f64,
    /// The longest time for which a thread that had just become ready waited for a processor, in
    /// seconds.
    pub longest_gap: f64,
    /// Whether the disturbance is so large that the run has little meaning.
    pub is_disturbance: bool,
}

impl From<&Disturbance> for Outside {
    fn from(seen: &Disturbance) -> Self {
        Self {
            stolen_share: seen.stolen_share(),
            longest_gap: seen.longest_gap.as_secs_f64(),
            is_disturbance: seen.is_disturbed(),
        }
    }
}

impl Trial {
    /// Packets that did not reach the application.
    pub fn lost(&self) -> u64 {
        self.sent - self.delivered
    }

    /// Losses of the packets that the contender's interface accepted, in percent.
    pub fn lost_behind_interface_percent(&self) -> f64 {
        100.0 * (self.lost() - self.lost_at_interface) as f64 / (self.sent as f64).max(1.0)
    }

    /// In percent of those sent.
    pub fn lost_percent(&self) -> f64 {
        100.0 * self.lost() as f64 / (self.sent as f64).max(1.0)
    }

    /// Frames sent per second.
    pub fn per_second(&self) -> f64 {
        self.sent as f64 / self.seconds
    }

    /// Missing packets that no counter shows as lost. Negative if a contender counts packets twice.
    pub fn unexplained(&self) -> i64 {
        self.lost() as i64 - self.lost_at_interface as i64 - self.lost_reported.unwrap_or(0) as i64
    }

    /// Whether the run was disturbed so much that it has little meaning.
    pub fn is_disturbed(&self) -> bool {
        match self.outside {
            Some(outside) => outside.is_disturbance,
            None => Run { waited: self.waited, ..Run::default() }.is_disturbed(),
        }
    }
}

/// Who sends.
pub trait Sender {
    /// Sends all frames, and returns their number and the time in seconds.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    fn send(&mut self, bed: &Bed) -> Outcome<(u64, f64)>;

    /// Frames handed to the interface, and frames that it lost, from its counters.
    fn counted(&self, counters: &Snapshot) -> (u64, u64);
}

/// Frames of one length to queue 0, made in the kernel.
#[derive(Debug)]
pub struct KernelSender {
    /// The generator.
    pub generator: Generator,
    /// How many frames.
    pub frames: u64,
    /// At which rate; `None` for as fast as possible.
    pub per_second: Option<u64>,
}

impl Sender for KernelSender {
    fn send(&mut self, bed: &Bed) -> Outcome<(u64, f64)> {
        let loads: Vec<Load> = bed.loads(self.frames, self.per_second)?;
        let sent = self.generator.send(&loads)?;
        let longest = sent.iter().map(|sent| sent.duration.as_secs_f64()).fold(0.0, f64::max);
        Ok((sent.iter().map(|sent| sent.frames).sum(), longest))
    }

    fn counted(&self, counters: &Snapshot) -> (u64, u64) {
        let lost = counters.tx_queues.iter().map(|queue| queue.xdp_xmit_errors).sum();
        (counters.handed_over_as_xdp(), lost)
    }
}

/// Frames of several flows to each of several queues at once, with a separate rate for each queue.
/// They are handed over every millisecond; at most 10 ms of a stall of the sender are caught up.
#[derive(Debug, Clone)]
pub struct FlowSender {
    /// Each queue's frames per second.
    pub rates: Vec<f64>,
    /// The source ports of each queue's flows, which take turns.
    pub ports: Vec<Vec<u16>>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Their length.
    pub frame_bytes: u16,
    /// Whether they are made in the kernel, each queue's on a CPU that reaches it: more than
    /// 200,000 a second.
    pub in_kernel: bool,
}

impl Sender for FlowSender {
    fn send(&mut self, bed: &Bed) -> Outcome<(u64, f64)> {
        let begin = Instant::now();
        let loads = (0..).zip(&self.rates).zip(&self.ports).filter(|((_, rate), _)| **rate > 0.0);
        let mut loads: Vec<QueueLoad> = loads
            .map(|((queue, rate), ports)| QueueLoad::new(bed, queue, *rate, ports, self))
            .collect();
        let time = Duration::from_secs_f64(self.seconds);

        let frames = match self.in_kernel {
            true => thread::scope(|scope| {
                let start = |load| scope.spawn(|| send_from_kernel(bed, load, time));
                let threads: Vec<_> = loads.iter_mut().map(start).collect();
                let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                    thread.join().expect("no panic in it")
                };
                threads.into_iter().map(join).sum::<Outcome<u64>>()
            }),
            // A separate thread, so that its processor time is known.
            false => thread::scope(|scope| {
                let sending = scope.spawn(|| send_from_user_space(bed, &mut loads, time));
                sending.join().expect("no panic in it")
            }),
        }?;
        Ok((frames, begin.elapsed().as_secs_f64()))
    }

    fn counted(&self, counters: &Snapshot) -> (u64, u64) {
        match self.in_kernel {
            true => {
                let lost = counters.tx_queues.iter().map(|queue| queue.xdp_xmit_errors).sum();
                (counters.handed_over_as_xdp(), lost)
            }
            false => (counters.handed_over(), counters.tx_dropped),
        }
    }
}

/// What one queue gets.
#[derive(Debug)]
struct QueueLoad {
    queue: u16,
    per_second: f64,
    /// A frame of each flow, into which the number is written.
    frames: Vec<Vec<u8>>,
    next_sequence: u64,
}

impl QueueLoad {
    fn new(bed: &Bed, queue: u16, per_second: f64, ports: &[u16], sender: &FlowSender) -> Self {
        let traffic =
            Traffic { sizes: Sizes::fixed(sender.frame_bytes), ..Traffic::to(&bed.pair.receiver) };
        let frame = |&source_port: &u16| {
            Traffic { source_port, ..traffic.clone() }.frame(Stamp { queue: 0, sequence: 0 })
        };
        Self { queue, per_second, frames: ports.iter().map(frame).collect(), next_sequence: 0 }
    }

    /// Sends what is due after so many seconds.
    fn send_until(
        &mut self,
        seconds: f64,
        mut send: impl FnMut(&[u8]) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let due = (self.per_second * seconds) as u64;
        while self.next_sequence < due {
            let flow = (self.next_sequence % self.frames.len() as u64) as usize;
            let frame = &mut self.frames[flow];
            Stamp { queue: self.queue, sequence: self.next_sequence }.write_to(frame);
            send(frame)?;
            self.next_sequence += 1;
        }

        Ok(())
    }
}

fn send_from_user_space(bed: &Bed, loads: &mut [QueueLoad], time: Duration) -> Outcome<u64> {
    let open = |load: &QueueLoad| AfXdpSender::on(&bed.pair.sender, load.queue.into());
    let mut senders = loads.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut ticks = Ticks::new(time);
    while let Some(at) = ticks.next_at() {
        for (load, sender) in loads.iter_mut().zip(&mut senders) {
            load.send_until(at, |frame| sender.send(frame))?;
            sender.hand_over()?;
        }
    }
    senders.iter_mut().try_for_each(AfXdpSender::flush)?;
    Ok(loads.iter().map(|load| load.next_sequence).sum())
}

fn send_from_kernel(bed: &Bed, load: &mut QueueLoad, time: Duration) -> Outcome<u64> {
    let mut sender = wirecap_testbed::KernelSender::on(&bed.pair.sender, load.queue.into())?;
    let mut ticks = Ticks::new(time);
    while let Some(at) = ticks.next_at() {
        load.send_until(at, |frame| sender.send(frame))?;
        sender.flush()?;
    }
    Ok(load.next_sequence)
}

/// Lets a contender receive the sent frames, calls `look` when it has all of them, and balances the
/// account.
///
/// # Errors
///
/// If the contender cannot run, or the sender's own count differs from its interface's: then the
/// run is void.
pub fn run(
    bed: &Bed,
    contender: &Contender,
    sender: &mut dyn Sender,
    look: &mut dyn FnMut(&Receiver) -> Outcome<()>,
) -> Outcome<Trial> {
    between(bed, contender, sender, |_| Ok(()), |(), receiver| look(receiver))
}

/// The same with a contender that is stopped (SIGSTOP) while the frames are sent, and continues
/// after `look`. So it receives what its memory can keep.
///
/// # Errors
///
/// As [`run`].
pub fn run_stopped(
    bed: &Bed,
    contender: &Contender,
    sender: &mut dyn Sender,
    look: &mut dyn FnMut(&Receiver) -> Outcome<()>,
) -> Outcome<Trial> {
    let end = |(), receiver: &Receiver| {
        look(receiver)?;
        receiver.signal(Signal::CONT)?;
        receiver.settle(Duration::ZERO, contender.calm)
    };
    between(bed, contender, sender, |receiver| receiver.signal(Signal::STOP), end)
}

/// The same, while measuring disturbances, which uses 1 % of the processors' time.
///
/// # Errors
///
/// As [`run`].
pub fn run_watched(bed: &Bed, contender: &Contender, sender: &mut dyn Sender) -> Outcome<Trial> {
    let mut outside = None;
    let end = |watch: Watch, _: &Receiver| {
        outside = Some(Outside::from(&watch.end()));
        Ok(())
    };
    let trial = between(bed, contender, sender, |_| Ok(Watch::begin()), end)?;
    Ok(Trial { outside, ..trial })
}

/// A run between `begin`, called when the contender is ready, and `end`, when it has everything.
fn between<T>(
    bed: &Bed,
    contender: &Contender,
    sender: &mut dyn Sender,
    begin: impl FnOnce(&Receiver) -> Outcome<T>,
    end: impl FnOnce(T, &Receiver) -> Outcome<()>,
) -> Outcome<Trial> {
    let _alone = loss_lock()?;
    let _passing = contender.passing.then(|| pass_program(&bed.pair.receiver)).transpose()?;

    let companion = contender
        .companion
        .as_ref()
        .map(|(command, ready)| bed.receive(command, ready))
        .transpose()?;
    let file = MemoryFile::new()?;
    let command = contender.command.replacing(FILE, FILE_PATH);
    let receiver = bed.receive_with(&command, contender.ready, file.share()?)?;
    let idle = receiver.idle()?;
    let mut counters = Counters::of(&bed.pair.sender)?;
    let begun = begin(&receiver)?;
    let run = watch(Some(&receiver), || sender.send(bed))?;

    if contender.spins {
        thread::sleep(contender.calm);
    } else {
        receiver.settle(idle, contender.calm)?;
    }

    end(begun, &receiver)?;
    let finished = receiver.stop()?;
    companion.map(Receiver::stop).transpose()?;

    let (counted, lost_at_interface) = sender.counted(&counters.since_start()?);
    let tally = contender.tally(&finished, &file)?;
    if counted != run.frames || tally.delivered > run.frames {
        let sent = run.frames;
        let delivered = tally.delivered;
        return Err(format!(
            "{sent} frames were sent, the interface counted {counted}, {delivered} were delivered"
        )
        .into());
    }

    let order = finished.order();
    if let Some(order) = order.filter(|order| order.packets != tally.delivered) {
        return Err(format!("{} packets were delivered, {order:?}", tally.delivered).into());
    }

    Ok(Trial {
        sent: run.frames,
        counted,
        lost_at_interface,
        delivered: tally.delivered,
        lost_reported: tally.lost,
        seconds: run.seconds,
        receiver_seconds: run.busy * run.seconds,
        sender_seconds: run.sender_seconds,
        softirq_seconds: run.softirq_seconds,
        waited: run.waited,
        order,
        outside: None,
    })
}
