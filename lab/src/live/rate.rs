//! Loss by offered rate, and by packet length.

use super::bed::Bed;
use super::contender::Contender;
use super::rivals::Field;
use super::sweep::{Share, Sweep};
use super::trial::{self, KernelSender, Trial};
use super::{Lab, Outcome};
use crate::chart::lines::Axis;
use crate::experiment::{Findings, Run, RunError};

/// Memory of each contender, in MiB.
const RING_MIB: u32 = 64;
/// Maximum bytes that one run sends, so that the recorders' files fit into memory.
const BYTES_MAX: u64 = 512 << 20;
/// Shares of the sender's highest rate.
const SHORTEST: u16 = 60;

/// How much is sent.
#[derive(Debug, Clone, Copy)]
struct Extent {
    seconds: f64,
    rounds: usize,
}

impl Extent {
    fn of(lab: &Lab, run: &Run<'_>) -> Self {
        lab.choose(
            run,
            Self { seconds: 0.02, rounds: 1 },
            Self { seconds: 0.25, rounds: 1 },
            Self { seconds: 1.0, rounds: 3 },
        )
    }

    /// Number of frames of this length to send at this rate.
    fn frames(self, per_second: f64, frame_bytes: u16) -> u64 {
        ((per_second * self.seconds) as u64).clamp(1, BYTES_MAX / u64::from(frame_bytes))
    }
}

/// Sends to a contender on a bed with one queue.
fn try_at(
    bed: &Bed,
    contender: &Contender,
    extent: Extent,
    frame_bytes: u16,
    rate: f64,
    paced: bool,
) -> Outcome<Trial> {
    let mut sender = KernelSender {
        generator: bed.generator(frame_bytes)?,
        frames: extent.frames(rate, frame_bytes),
        per_second: paced.then_some(rate as u64),
    };
    trial::run(bed, contender, &mut sender, &mut |_| Ok(()))
}

/// The rate at which this machine makes and receives frames of this length without pacing.
fn top_rate(bed: &Bed, field: &Field, extent: Extent, frame_bytes: u16) -> Outcome<f64> {
    let first = &field.counters()[0];
    // A typical rate, only for the number of frames of a run.
    Ok(try_at(bed, first, extent, frame_bytes, 2e6, false)?.per_second())
}

/// Loss against offered rate.
pub(super) fn rates(lab: &Lab, run: &Run<'_>) -> Result<Findings, RunError> {
    let bed = Bed::new()?;
    let extent = Extent::of(lab, run);
    let field = Field::new(lab, RING_MIB);
    run.step(0.0, "the sender's highest rate")?;
    let top = top_rate(&bed, &field, extent, SHORTEST)?;
    let shares: &[f64] =
        lab.choose(run, &[0.1][..], &[0.25, 0.5, 1.0], &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0]);
    let places: Vec<f64> = shares.iter().map(|share| share * top).collect();
    let trial = |contender: &Contender, rate: f64| {
        try_at(&bed, contender, extent, SHORTEST, rate, rate < top)
    };
    let what = "Frames of 60 bytes at a constant rate, up to the sender's highest, to programs that record into a file \
                in memory, and to programs that count. Points are placed at the rate that was actually sent: on a veth \
                the kernel receives on the sender's CPU, so a more expensive receive path slows the sender.";
    let mut findings = Findings { what: what.to_owned(), ..Findings::default() };
    findings.settings = vec![
        ("frames".to_owned(), format!("60 bytes, {} s a run", extent.seconds)),
        ("the sender's highest rate".to_owned(), super::per_second(top)),
        ("memory for packets".to_owned(), format!("{RING_MIB} MiB each")),
        ("rounds".to_owned(), extent.rounds.to_string()),
    ];
    findings.settings.extend(super::rivals::versions());
    let groups = [
        ("recording", "Programs that record.", field.recorders(), Share { from: 0.0, to: 0.5 }),
        (
            "counting",
            "Programs that look at each packet and count.",
            field.counters(),
            Share { from: 0.5, to: 1.0 },
        ),
    ];
    for (name, caption, contenders, share) in groups {
        let sweep = Sweep::run(run, share, &contenders, &places, extent.rounds, trial)?;
        let axis = Axis::linear("million packets/s sent");
        let chart = sweep.loss_chart(axis, |_, trial| trial.per_second() / 1e6);
        findings = findings.with_lines(name, caption, &chart);
        findings.headline +=
            &headline("Packets of 60 bytes", name, &sweep.own_losses("packets/s requested"));
        sweep.account(&mut findings, name, "packets/s asked for");
    }
    Ok(findings)
}

/// The losses of wirecap's commands that record or count.
fn headline(load: &str, name: &str, losses: &str) -> String {
    format!("{load}, {name}: {losses} ")
}

/// Loss against packet length.
pub(super) fn lengths(lab: &Lab, run: &Run<'_>) -> Result<Findings, RunError> {
    let bed = Bed::new()?;
    let extent = Extent::of(lab, run);
    let field = Field::new(lab, RING_MIB);
    let lengths: &[f64] =
        lab.choose(run, &[60.0][..], &[60.0, 1514.0], &[60.0, 128.0, 256.0, 512.0, 1024.0, 1514.0]);

    run.step(0.0, "the sender's highest rate")?;
    let top = top_rate(&bed, &field, extent, SHORTEST)?;
    let trial = |contender: &Contender, length: f64| {
        try_at(&bed, contender, extent, length as u16, top, false)
    };
    let what = "Frames of one length, at the sender's highest rate: the share lost, and the rate of packets that arrived.";
    let mut findings = Findings { what: what.to_owned(), ..Findings::default() };
    findings.settings = vec![
        ("frames".to_owned(), format!("up to {} MiB a run", BYTES_MAX >> 20)),
        ("memory for packets".to_owned(), format!("{RING_MIB} MiB each")),
        ("rounds".to_owned(), extent.rounds.to_string()),
    ];

    let groups = [
        ("recording", "Programs that record", field.recorders(), Share { from: 0.0, to: 0.5 }),
        ("counting", "Programs that count", field.counters(), Share { from: 0.5, to: 1.0 }),
    ];
    for (name, who, contenders, share) in groups {
        let sweep = Sweep::run(run, share, &contenders, lengths, extent.rounds, trial)?;
        let chart = sweep.loss_chart(Axis::linear("bytes"), |length, _| length);
        findings = findings.with_lines(name, format!("{who}: what is lost."), &chart);
        findings.headline +=
            &headline("As fast as the sender can", name, &sweep.own_losses("bytes"));

        let mut chart = chart;
        chart.y = Axis::linear("million packets/s received");
        chart.curves =
            sweep.curves(|length, _| length, |trial| trial.delivered as f64 / trial.seconds / 1e6);
        findings =
            findings.with_lines(&format!("{name}-rate"), format!("{who}: what arrives."), &chart);
        sweep.account(&mut findings, name, "bytes");
    }

    Ok(findings)
}
