//! Loss by the consumer's cost per packet: the paper's x.

use wirecap_testbed::{Stamp, Traffic};

use super::bed::Bed;
use super::contender::Contender;
use super::programs::handler::{self, FILTER};
use super::rivals::Field;
use super::sweep::{Share, Sweep};
use super::trial::{self, KernelSender, Trial};
use super::{Lab, Outcome};
use crate::chart::lines::Axis;
use crate::experiment::{Findings, Run, RunError};

/// Memory of each contender, in MiB.
const RING_MIB: u32 = 16;
/// The load in packets per second: every machine can send it, and one CPU can receive it.
const PER_SECOND: u64 = 200_000;
/// The placeholder of x in a command.
const TIMES: &str = "TIMES";

/// Loss against consumer cost.
pub(super) fn run(lab: &Lab, run: &Run<'_>) -> Result<Findings, RunError> {
    let bed = Bed::new()?;
    let frame = Traffic::to(&bed.pair.receiver).frame(Stamp { queue: 0, sequence: 0 });
    let application_ns = handler::application_ns(&frame)?;
    // The x that saturates a CPU at this rate.
    let whole = 1e9 / PER_SECOND as f64 / application_ns;
    let shares: &[f64] = lab.choose(
        run,
        &[0.2][..],
        &[0.5, 1.0, 1.5],
        &[0.0, 0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0],
    );
    let places: Vec<f64> = shares.iter().map(|share| (share * whole).round()).collect();
    let seconds = lab.choose(run, 0.05, 1.0, 3.0);
    let rounds = lab.choose(run, 1, 1, 3);
    let trial = |contender: &Contender, times: f64| -> Outcome<Trial> {
        let mut sender = KernelSender {
            generator: bed.generator(60)?,
            frames: (PER_SECOND as f64 * seconds) as u64,
            per_second: Some(PER_SECOND),
        };
        let command = contender.command.replacing(TIMES, &times.to_string());
        trial::run(&bed, &Contender { command, ..contender.clone() }, &mut sender, &mut |_| Ok(()))
    };
    let field = Field::new(lab, RING_MIB);
    let sweep = Sweep::run(
        run,
        Share::WHOLE,
        &field.handlers(&format!("-x {TIMES}")),
        &places,
        rounds,
        trial,
    )?;
    let what = format!(
        "The paper's pkt_handler: a filter ({FILTER}) is applied x times to every packet of 60 bytes, on one ring, by \
         one thread, at a constant {}. One application takes {application_ns:.1} ns here, with the same code in every \
         contender, so x = {whole:.0} uses a full CPU.",
        super::per_second(PER_SECOND as f64)
    );
    let mut findings = Findings { what, ..Findings::default() };
    findings.settings = vec![
        ("offered".to_owned(), format!("{} for {seconds} s", super::per_second(PER_SECOND as f64))),
        ("memory for packets".to_owned(), format!("{RING_MIB} MiB each")),
        ("rounds".to_owned(), rounds.to_string()),
        (TIMES.to_owned(), places.iter().map(f64::to_string).collect::<Vec<_>>().join(", ")),
    ];
    findings = findings.with_lines(
        "cost",
        "Loss by the cost of the handler.",
        &sweep.loss_chart(Axis::linear("x"), |x, _| x),
    );
    let note = "The memory is the same in bytes. A cell of AF_XDP holds one packet, whatever its length; the rings of \
                AF_PACKET hold packets by their bytes, so they keep more short ones.";
    findings.notes.push(note.to_owned());
    findings.notes.push("DPDK's testpmd is missing: it has no handler.".to_owned());
    sweep.account(&mut findings, "cost", "x");
    Ok(findings)
}
