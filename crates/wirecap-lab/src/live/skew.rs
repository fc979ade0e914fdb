//! Loss against skew: how much of the traffic goes to one of several queues, each of which has a worker that could do
//! its even share.

use super::bed::Bed;
use super::contender::Contender;
use super::rivals::Field;
use super::sweep::{Share, Sweep};
use super::trial::{self, QueueSender, Trial};
use super::{Lab, Outcome};
use crate::chart::lines::Axis;
use crate::experiment::{Claim, Findings, Run, RunError, percent};

/// Queues, each with a worker.
const QUEUES: u32 = 4;
/// What a worker needs for a packet.
const COST_NS: u64 = 50_000;
/// What is offered, of what all workers can do together.
const LOAD: f64 = 0.7;
/// Memory of each ring, in MiB.
const RING_MIB: u32 = 16;
/// Near what a cell holds, so that the same memory is about as many packets for everyone.
const FRAME_BYTES: u16 = 1514;
/// The heaviest skew: what the hot queue gets is this share of everything.
const HEAVY: f64 = 0.85;

/// What each queue gets per second when the first gets this share.
fn rates(hot: f64) -> Vec<u64> {
    let all = LOAD * f64::from(QUEUES) * 1e9 / COST_NS as f64;
    let other = all * (1.0 - hot) / f64::from(QUEUES - 1);
    std::iter::once(all * hot)
        .chain(std::iter::repeat(other))
        .take(QUEUES as usize)
        .map(|rate| rate as u64)
        .collect()
}

/// Loss against skew.
pub(super) fn run(lab: &Lab, run: &Run<'_>) -> Result<Findings, RunError> {
    let bed = Bed::with_queues(QUEUES)?;
    let places: &[f64] = lab.choose(run, &[HEAVY][..], &[0.25, HEAVY], &[0.25, 0.4, 0.55, 0.7, HEAVY, 1.0]);
    let seconds = lab.choose(run, 0.05, 2.0, 5.0);
    let rounds = lab.choose(run, 1, 1, 2);
    let trial = |contender: &Contender, hot: f64| -> Outcome<Trial> {
        let mut sender = QueueSender { rates: rates(hot), seconds, frame_bytes: FRAME_BYTES };
        trial::run(&bed, contender, &mut sender, &mut |_| Ok(()))
    };
    let field = Field::new(lab.wirecap.clone(), RING_MIB).rings(QUEUES);
    let contenders = field.multi_handlers(COST_NS);
    let sweep = Sweep::run(run, Share::WHOLE, &contenders, places, rounds, trial)?;
    let all: u64 = rates(HEAVY).iter().sum();
    let what = format!(
        "{QUEUES} queues, each with a worker that needs {} µs for a packet (it waits, so that a few CPUs can play \
         slow ones), and {} in all, {:.0} % of what the workers can do together. A growing share of it goes to \
         queue 0, as one flow, which no hash divides. In basic mode and in every program with a thread per queue \
         that queue's worker stands alone.",
        COST_NS / 1000,
        super::per_second(all as f64),
        LOAD * 100.0
    );
    let mut findings =
        Findings { what, claims: if lab.tiny { Vec::new() } else { claims(&sweep) }, ..Findings::default() };
    findings.settings = vec![
        ("frames".to_owned(), format!("{FRAME_BYTES} bytes, one flow per queue, for {seconds} s")),
        ("memory for packets".to_owned(), format!("{RING_MIB} MiB for each of {QUEUES} rings")),
        ("rounds".to_owned(), rounds.to_string()),
    ];
    let chart = sweep.loss_chart(Axis::percent("share of the hot queue", 100.0), |hot, _| hot * 100.0);
    findings = findings.with_lines("skew", "What is lost as one queue gets more of the traffic.", &chart);
    let note = "PACKET_FANOUT in turn, and its flag ROLLOVER, spread single packets over the threads whatever their \
                flow, in the kernel, for every packet; they are shown as what AF_PACKET can do about skew. Chunks that \
                are offloaded keep their packets together and say which ring and place in it they have.";
    findings.notes.push(note.to_owned());
    findings.notes.push("DPDK's testpmd is not here: it has no handler.".to_owned());
    sweep.account(&mut findings, "skew", "share of the hot queue");
    Ok(findings)
}

/// What the heavy load says of each contender.
fn claims(sweep: &Sweep) -> Vec<Claim> {
    sweep
        .contenders
        .iter()
        .enumerate()
        .filter_map(|(index, contender)| claim(sweep, index, contender))
        .collect()
}

fn claim(sweep: &Sweep, index: usize, contender: &Contender) -> Option<Claim> {
    let lost: Vec<f64> = sweep.at(index, HEAVY).iter().map(Trial::lost_percent).collect();
    let least = lost.iter().copied().reduce(f64::min)?;
    let most = lost.into_iter().reduce(f64::max)?;
    let quantity = format!("{}: lost when queue 0 has {:.0} %", contender.name, HEAVY * 100.0);
    let found = match (percent(least), percent(most)) {
        (least, most) if least == most => least,
        _ => format!("{least:.1} to {most:.1} %"),
    };
    if index == 0 {
        return Some(Claim::holds(quantity, "nothing", most == 0.0, found));
    }
    // Blocks of AF_PACKET go back in order: the engine on it promises nothing here.
    if contender.is_ours && contender.passing {
        return None;
    }
    let claim = Claim::holds(quantity, "20 % or more", least >= 20.0, found);
    Some(if contender.spreads { claim.because(SPREADS) } else { claim })
}

/// Why some rivals share the load as well.
const SPREADS: &str = "spreads single packets over the threads whatever their flow: the only ones beside wirecap that \
                       share the load, at the price of a flow's order";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_what_the_workers_can_do_together_however_it_is_spread() {
        let capacity = f64::from(QUEUES) * 1e9 / COST_NS as f64;
        for hot in [0.25, HEAVY, 1.0] {
            let all: u64 = rates(hot).iter().sum();
            assert!((all as f64 / capacity - LOAD).abs() < 0.001, "{hot}: {all}");
        }
        assert!(rates(HEAVY)[0] as f64 > 2.0 * 1e9 / COST_NS as f64);
    }
}
