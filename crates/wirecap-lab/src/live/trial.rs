//! One run of one contender under one load, with its books: what the sender sent, what its interface counted, what was
//! delivered, and what the contender says was lost.

use std::thread;
use std::time::Instant;

use serde::Serialize;
use wirecap_testbed::{
    AfXdpSender, Counters, Generator, Load, Pacer, Sizes, Snapshot, Stamp, Traffic, loss_lock, pass_program,
};

use super::Outcome;
use super::bed::{Bed, Run, watch};
use super::contender::{Contender, FILE, MemoryFile};
use super::process::FILE_PATH;
use super::receiver::Receiver;

/// What came of one run.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Trial {
    /// Frames that the sender sent, by its own count.
    pub sent: u64,
    /// Frames that the sending interface counted.
    pub counted: u64,
    /// Of them, those for which the receiving interface's ring had no room: nobody's receiver saw them.
    pub lost_at_interface: u64,
    /// Packets that the contender had.
    pub delivered: u64,
    /// Packets that the contender says it lost; `None` if it says nothing.
    pub lost_reported: Option<u64>,
    /// How long the sender sent.
    pub seconds: f64,
    /// Processor time of the contender's process, in seconds, from its start to the end of the load.
    pub receiver_seconds: f64,
    /// Processor time of the sender, in seconds, the kernel's receive path included.
    pub sender_seconds: f64,
    /// The share of the time that sender or receiver waited for a CPU that somebody else had.
    pub waited: f64,
}

impl Trial {
    /// Packets that did not reach the application.
    pub fn lost(&self) -> u64 {
        self.sent - self.delivered
    }

    /// In percent of those sent.
    pub fn lost_percent(&self) -> f64 {
        100.0 * self.lost() as f64 / (self.sent as f64).max(1.0)
    }

    /// Frames sent per second.
    pub fn per_second(&self) -> f64 {
        self.sent as f64 / self.seconds
    }

    /// Packets that are gone and that nobody has counted as lost. Less than nothing where a contender counts twice.
    pub fn unexplained(&self) -> i64 {
        self.lost() as i64 - self.lost_at_interface as i64 - self.lost_reported.unwrap_or(0) as i64
    }

    /// Whether others had so much of the machine that the run says little.
    pub fn is_disturbed(&self) -> bool {
        Run { waited: self.waited, ..Run::default() }.is_disturbed()
    }
}

/// Who sends.
pub trait Sender {
    /// Sends everything, and tells how much and how long it took in seconds.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    fn send(&mut self, bed: &Bed) -> Outcome<(u64, f64)>;

    /// Frames that the interface was given, and those that it lost, of what it counted.
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

/// Frames that are sent back to back between two looks at the clock.
const BATCH_FRAMES: u64 = 10;

/// Frames to several queues at once, each at its share of a rate, from user space: on any number of queues, whatever
/// CPUs there are.
#[derive(Debug, Clone)]
pub struct QueueSender {
    /// Each queue's frames per second.
    pub rates: Vec<u64>,
    /// For how long, in seconds.
    pub seconds: f64,
    /// Their length.
    pub frame_bytes: u16,
}

impl Sender for QueueSender {
    fn send(&mut self, bed: &Bed) -> Outcome<(u64, f64)> {
        // One flow per queue: what makes a queue hot is a flow that no hash divides.
        let traffic = Traffic { sizes: Sizes::fixed(self.frame_bytes), ..Traffic::to(&bed.pair.receiver) };
        let queues = 0..self.rates.len() as u16;
        let open = |queue| AfXdpSender::on(&bed.pair.sender, u32::from(queue));
        let mut senders = queues.clone().map(open).collect::<Result<Vec<_>, _>>()?;
        let begin = Instant::now();
        let frames = thread::scope(|scope| {
            let start = |(queue, sender)| {
                let (rate, traffic) = (self.rates[usize::from(queue)], &traffic);
                let frames = (rate as f64 * self.seconds) as u64;
                scope.spawn(move || send_evenly(sender, traffic, queue, frames, rate))
            };
            let threads: Vec<_> = queues.zip(&mut senders).map(start).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("sending does not panic"))
                .sum::<Outcome<u64>>()
        })?;
        Ok((frames, begin.elapsed().as_secs_f64()))
    }

    fn counted(&self, counters: &Snapshot) -> (u64, u64) {
        (counters.handed_over(), counters.tx_dropped)
    }
}

fn send_evenly(
    sender: &mut AfXdpSender,
    traffic: &Traffic,
    queue: u16,
    frames: u64,
    per_second: u64,
) -> Outcome<u64> {
    if per_second == 0 {
        return Ok(0);
    }
    let mut pacer = Pacer::new(per_second.div_ceil(BATCH_FRAMES));
    for sequence in 0..frames {
        if sequence % BATCH_FRAMES == 0 {
            sender.flush()?;
            pacer.wait();
        }
        sender.send(&traffic.frame(Stamp { queue, sequence }))?;
    }
    sender.flush()?;
    Ok(frames)
}

/// Lets a contender receive what is sent, `look`s at it when it has everything, and closes the books.
///
/// # Errors
///
/// When the contender cannot run, or the sender's own count is not what its interface counted: then the run is void.
pub fn run(
    bed: &Bed,
    contender: &Contender,
    sender: &mut dyn Sender,
    look: &mut dyn FnMut(&Receiver) -> Outcome<()>,
) -> Outcome<Trial> {
    let _alone = loss_lock()?;
    let _passing = contender.passing.then(|| pass_program(&bed.pair.receiver)).transpose()?;
    let companion =
        contender.companion.as_ref().map(|(command, ready)| bed.receive(command, ready)).transpose()?;
    let file = MemoryFile::new()?;
    let command = contender.command.replacing(FILE, FILE_PATH);
    let receiver = bed.receive_with(&command, contender.ready, file.share()?)?;
    let mut counters = Counters::of(&bed.pair.sender)?;
    let run = watch(Some(&receiver), || sender.send(bed))?;
    if contender.spins {
        thread::sleep(contender.calm);
    } else {
        receiver.settle(contender.calm)?;
    }
    look(&receiver)?;
    let finished = receiver.stop()?;
    companion.map(Receiver::stop).transpose()?;
    let (counted, lost_at_interface) = sender.counted(&counters.since_start()?);
    let tally = contender.tally(&finished, &file)?;
    if counted != run.frames || tally.delivered > run.frames {
        let (sent, delivered) = (run.frames, tally.delivered);
        return Err(format!(
            "{sent} frames were sent, the interface counted {counted}, {delivered} were delivered"
        )
        .into());
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
        waited: run.waited,
    })
}
