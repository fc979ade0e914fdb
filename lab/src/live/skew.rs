//! Skew: one of several queues gets more than its worker can process, while the whole group can
//! process the load. Measures the loss of each way of sharing load, the order of flows, and the
//! cost.

use std::time::Duration;

use wirecap::{Geometry, Guarantee};
use wirecap_testbed::{Watch, drop_program, loss_lock};

use super::bed::{self, Bed};
use super::contender::Contender;
use super::figures::Figures;
use super::rivals::Field;
use super::sweep::{self, Share, Sweep};
use super::trial::{self, FlowSender, Trial};
use super::{Lab, Outcome};
use crate::chart::lines::{Axis, Lines};
use crate::chart::rounded;
use crate::experiment::{Claim, Findings, Run, RunError, Table, percent};

/// Memory of each ring, in MiB.
const RING_MIB: u32 = 16;
/// Maximum load of the group, as a share of the capacity of all workers.
const LOAD: f64 = 0.9;
/// Maximum load of the hot queue, as a multiple of its worker's capacity.
const HOT_MAX: f64 = 2.0;
/// Flows of each queue. An odd number: otherwise flows in turn would always get the same thread if
/// packets go to threads in turn.
const FLOWS: usize = 7;
/// Near the capacity of a cell, so that the same memory holds about as many packets for all
/// contenders.
const LONG_FRAME_BYTES: u16 = 1514;
/// Above this rate, frames are made in the kernel instead of by system calls, and copied twice.
const SHORT_FRAME_BYTES: u16 = 60;
const USER_SPACE_RATE_MAX: f64 = 200_000.0;
/// The share of the other queues for which a thread per queue must lose a fifth.
const TELLING: f64 = 0.2;

/// Queues with workers of one speed. The shares of the sweep are the loads of all queues except the
/// first, as shares of their workers' capacity.
#[derive(Debug, Clone, Copy)]
struct Scene {
    queues: u32,
    cost_ns: u64,
}

impl Scene {
    fn worker_rate(self) -> f64 {
        1e9 / self.cost_ns as f64
    }

    /// The load of the first queue, as a multiple of its worker's capacity.
    fn hot(self, buddies: f64) -> f64 {
        let queues = f64::from(self.queues);
        (LOAD * queues - buddies * (queues - 1.0)).min(HOT_MAX)
    }

    /// Packets per second of each queue.
    fn rates(self, buddies: f64) -> Vec<f64> {
        let shares = std::iter::once(self.hot(buddies)).chain(std::iter::repeat(buddies));
        shares.take(self.queues as usize).map(|share| share * self.worker_rate()).collect()
    }

    fn handler(self) -> String {
        format!("{} µs", self.cost_ns as f64 / 1e3)
    }

    fn words(self) -> String {
        format!("{} queues, {}", self.queues, self.handler())
    }

    fn name(self) -> String {
        format!("skew-{}-queues-{}-us", self.queues, self.cost_ns / 1000)
    }
}

/// The test bed in which scenes run.
#[derive(Debug)]
struct Stage {
    bed: Bed,
    ports: Vec<Vec<u16>>,
    seconds: f64,
}

impl Stage {
    fn new(queues: u32, seconds: f64) -> Outcome<Self> {
        let bed = Bed::with_queues(queues)?;
        let ports = bed.flows_of_rings(queues, FLOWS)?;
        Ok(Self { bed, ports, seconds })
    }

    fn sender(&self, scene: Scene, buddies: f64) -> FlowSender {
        let rates = scene.rates(buddies);
        let in_kernel = rates.iter().sum::<f64>() > USER_SPACE_RATE_MAX;
        FlowSender {
            rates,
            ports: self.ports.clone(),
            seconds: self.seconds,
            frame_bytes: if in_kernel { SHORT_FRAME_BYTES } else { LONG_FRAME_BYTES },
            in_kernel,
        }
    }

    fn trial(&self, scene: Scene, contender: &Contender, buddies: f64) -> Outcome<Trial> {
        trial::run_watched(&self.bed, contender, &mut self.sender(scene, buddies))
    }

    /// The cost of making a frame and of passing it to a program that drops it, in nanoseconds.
    fn dropped_ns(&self, scene: Scene, buddies: f64) -> Outcome<f64> {
        let _alone = loss_lock()?;
        let _dropping = drop_program(&self.bed.pair.receiver)?;
        let mut sender = self.sender(scene, buddies);
        sender.seconds /= 2.0;
        // Without the cost of watching.
        let watch = Watch::begin();
        let run = bed::watch(None, || trial::Sender::send(&mut sender, &self.bed))?;
        drop(watch.end());
        Ok(1e9 * (run.sender_seconds + run.softirq_seconds) / run.frames as f64)
    }
}

/// The results of a scene.
#[derive(Debug)]
struct Played {
    scene: Scene,
    sweep: Sweep,
    /// By share: the cost of making and dropping a frame, in nanoseconds.
    dropped_ns: Vec<(f64, f64)>,
}

impl Played {
    /// Every contender at every share.
    fn play(lab: &Lab, run: &Run<'_>, share: Share, scene: Scene) -> Result<Self, RunError> {
        let places: &[f64] =
            lab.choose(run, &[TELLING][..], &[TELLING, 0.6], &[0.0, TELLING, 0.4, 0.6]);
        let stage = Stage::new(scene.queues, lab.seconds(run))?;
        let field = Field::new(lab, RING_MIB).rings(scene.queues);
        let contenders = field.multi_handlers(scene.cost_ns);
        run.step(share.from, "frames that are dropped at once")?;
        let dropped = places.iter().map(|&place| Ok((place, stage.dropped_ns(scene, place)?)));
        let dropped_ns = dropped.collect::<Outcome<_>>()?;
        let trial = |contender: &Contender, buddies| stage.trial(scene, contender, buddies);
        let sweep = Sweep::run(run, share, &contenders, places, 1, trial)?;
        Ok(Self { scene, sweep, dropped_ns })
    }

    /// Adds its chart, table, claims and accounts.
    fn tell(&self, mut findings: Findings) -> Findings {
        let name = self.scene.name();
        let words = self.scene.words();
        let axis = Axis::percent("what the other queues get, of what a worker can process", 60.0);
        let curves =
            self.sweep.curves(|buddies, _| buddies * 100.0, Trial::lost_behind_interface_percent);
        let chart = sweep::loss_chart(axis, curves);
        findings = findings.with_lines(&name, format!("{words}: what is lost."), &chart);
        findings = findings.with_table(&format!("{name}-table"), self.table());
        self.sweep.account(&mut findings, &name, "share of the others");
        findings
    }

    fn table(&self) -> Table {
        let columns = [
            "contender",
            "the others get",
            "offered/s",
            "lost",
            "out of order",
            "flows of several threads",
            "process, ns a packet",
            "kernel, ns a packet",
            "disturbed",
        ];
        let caption = format!("{}: loss, order and processor time.", self.scene.words());
        let mut table = Table::new(caption, &columns);

        for &(place, dropped_ns) in &self.dropped_ns {
            for (index, contender) in self.sweep.contenders.iter().enumerate() {
                let trials = self.sweep.at(index, place);
                if trials.is_empty() {
                    continue;
                }

                let median = |figure: &dyn Fn(&Trial) -> f64| {
                    trials.iter().map(figure).collect::<Figures>().median()
                };
                let order = |figure: &dyn Fn(&Trial) -> Option<f64>| {
                    let figures: Figures = trials.iter().filter_map(figure).collect();
                    figures.median()
                };

                let kernel = |trial: &Trial| {
                    1e9 * (trial.sender_seconds + trial.softirq_seconds) / trial.sent as f64
                        - dropped_ns
                };
                let shared = order(&|trial| Some(trial.order?.shared_flows as f64));
                let flows = order(&|trial| Some(trial.order?.flows as f64));
                let disturbed = trials.iter().filter(|trial| trial.is_disturbed()).count();
                table.row([
                    contender.name.clone(),
                    format!("{:.0} %", place * 100.0),
                    wirecap::grouped(median(&Trial::per_second) as u64),
                    percent(median(&Trial::lost_behind_interface_percent)),
                    format!("{:.2} %", order(&|trial| Some(trial.order?.out_of_order_percent()))),
                    format!("{shared:.0} of {flows:.0}"),
                    rounded(median(&|trial| 1e9 * trial.receiver_seconds / trial.sent as f64)),
                    rounded(median(&kernel)),
                    format!("{disturbed} of {}", trials.len()),
                ]);
            }
        }

        table
    }

    /// The expected result of each contender.
    fn claims(&self) -> impl Iterator<Item = Claim> {
        let contenders = self.sweep.contenders.iter().enumerate();
        contenders.filter_map(|(index, contender)| self.claim(index, contender))
    }

    fn claim(&self, index: usize, contender: &Contender) -> Option<Claim> {
        let at = |place| self.sweep.at(index, place);
        let all: Vec<Trial> = self.dropped_ns.iter().flat_map(|(place, _)| at(*place)).collect();
        let most = all.iter().map(Trial::lost_behind_interface_percent).reduce(f64::max)?;
        let words = self.scene.words();

        if contender.name.contains("advanced") {
            let disturbed = all.iter().filter(|trial| trial.is_disturbed()).count();
            let lost: u64 = all.iter().map(|trial| trial.lost() - trial.lost_at_interface).sum();
            let found = if lost == 0 {
                "nothing".to_owned()
            } else {
                format!("{} packets, {most:.3} %", wirecap::grouped(lost))
            };
            let claim = Claim::holds(
                format!("{}: lost, {words}", contender.name),
                "nothing",
                lost == 0,
                found,
            );
            return Some(
                claim.because(format!("{disturbed} of {} runs were disturbed", all.len())),
            );
        }

        // Contenders that do not share load lose the packets that exceed the worker's capacity and
        // its memory.
        let trials = at(TELLING);
        let least = trials.iter().map(Trial::lost_behind_interface_percent).reduce(f64::min)?;
        let surplus: f64 =
            trials.iter().map(|trial| self.surplus_percent(trial)).reduce(f64::min)?;

        let quantity = format!(
            "{}: lost where the others get {:.0} %, {words}",
            contender.name,
            TELLING * 100.0
        );

        // Two decimals, because less than a tenth of a percentage point may decide.
        let claim = Claim::holds(
            quantity,
            format!("{surplus:.2} % or more"),
            least >= surplus,
            format!("{least:.2} %"),
        );
        Some(if contender.spreads { claim.because(SPREADS) } else { claim })
    }

    /// The packets that exceed the capacity of the first queue's worker and twice its memory, in
    /// percent of all.
    fn surplus_percent(&self, trial: &Trial) -> f64 {
        let (all, hot): (f64, f64) =
            (self.scene.rates(TELLING).iter().sum(), self.scene.rates(TELLING)[0]);
        let first = trial.sent as f64 * hot / all;
        let room = 2.0 * f64::from(RING_MIB * 1024 * 1024) / 2048.0;
        let surplus = first - self.scene.worker_rate() * trial.seconds - room;
        (100.0 * surplus / trial.sent as f64).max(0.0)
    }
}

/// Why some rivals share the load as well.
const SPREADS: &str = "distributes single packets over the threads regardless of flow, which does not preserve a flow's order";

impl Lab {
    /// The duration of a load.
    fn seconds(&self, run: &Run<'_>) -> f64 {
        self.choose(run, 0.05, 1.0, 2.0)
    }
}

/// Two queues, with handlers of three speeds.
pub(super) fn handlers(lab: &Lab, run: &Run<'_>) -> Result<Findings, RunError> {
    let costs: &[u64] =
        lab.choose(run, &[50_000][..], &[50_000, 10_000, 2_000], &[50_000, 10_000, 2_000]);
    play(lab, run, costs.iter().map(|&cost_ns| Scene { queues: 2, cost_ns }).collect())
}

/// Four and six queues.
pub(super) fn queues(lab: &Lab, run: &Run<'_>) -> Result<Findings, RunError> {
    let queues: &[u32] = lab.choose(run, &[4][..], &[4], &[4, 6]);
    play(lab, run, queues.iter().map(|&queues| Scene { queues, cost_ns: 50_000 }).collect())
}

fn play(lab: &Lab, run: &Run<'_>, scenes: Vec<Scene>) -> Result<Findings, RunError> {
    let mut findings = Findings {
        what: format!(
            "Each queue has a worker that needs so long for a packet (it waits, so that a few CPUs can play many slow \
             ones), T = 60 % as in the paper. All queues but the first get the same share of what a worker can process; \
             the first gets what makes {:.0} % of what all of them can process together, {HOT_MAX} times its own worker's \
             rate at most. In basic mode and in every program with a thread per queue that queue's worker stands alone. \
             A packet is out of order if a later one of its flow was processed before, by whichever thread.",
            LOAD * 100.0
        ),
        ..Findings::default()
    };
    findings.settings = vec![
        ("frames".to_owned(), frames(lab.seconds(run))),
        ("memory for packets".to_owned(), format!("{RING_MIB} MiB for each ring, M = 64")),
        (
            "processor time".to_owned(),
            "the process's own; and the kernel's receive path, which on a veth runs on the sender's time and in softirq \
             threads, less what the same frames cost when a program drops them at once"
                .to_owned(),
        ),
    ];
    for note in NOTES {
        findings.notes.push(note.to_owned());
    }
    let share = 1.0 / scenes.len() as f64;
    for (index, &scene) in scenes.iter().enumerate() {
        let part = Share { from: share * index as f64, to: share * (index + 1) as f64 };
        let played = Played::play(lab, run, part, scene)?;
        findings = played.tell(findings);
        if !lab.tiny {
            findings.claims.extend(played.claims());
        }
    }
    Ok(findings)
}

fn frames(seconds: f64) -> String {
    format!(
        "{FLOWS} flows per queue, {LONG_FRAME_BYTES} bytes for {seconds} s; {SHORT_FRAME_BYTES} bytes, made in the kernel, \
         where more than {} a second are sent",
        wirecap::grouped(USER_SPACE_RATE_MAX as u64)
    )
}

const NOTES: [&str; 3] = [
    "The flows are chosen so that the kernel's hash assigns each to the ring with its queue's number: rings by \
     queue and rings by flow get the same packets.",
    "PACKET_FANOUT in turn, and its flag ROLLOVER, distribute single packets over the threads regardless of flow, in the \
     kernel, for every packet. Offloaded chunks keep their packets together and carry their ring and sequence number, so \
     the order can be restored; the handlers here do not.",
    "DPDK's testpmd is missing: it has no handler.",
];

/// M of the groups whose T and engine are varied.
const GROUPS: [(&str, &str, u32); 3] = [
    ("wirecap, xdp, M = 64", "xdp", 64),
    ("wirecap, xdp, M = 256", "xdp", 256),
    ("wirecap, packet, M = 64", "packet", 64),
];

/// The paper's Figure 12, live: the same by threshold T.
pub(super) fn thresholds(lab: &Lab, run: &Run<'_>) -> Result<Findings, RunError> {
    let scene = Scene { queues: 2, cost_ns: 50_000 };
    let thresholds: &[f64] =
        lab.choose(run, &[60.0][..], &[60.0, 90.0], &[10.0, 30.0, 60.0, 70.0, 80.0, 90.0]);
    let stage = Stage::new(scene.queues, lab.seconds(run))?;
    let field = Field::new(lab, RING_MIB).rings(scene.queues);
    let handler = format!("--cost {} --order", scene.cost_ns);
    let group = |index: usize, threshold| {
        let (name, engine, chunk) = GROUPS[index];
        field.group(name, engine, chunk, threshold, &handler)
    };
    let contenders: Vec<Contender> =
        (0..GROUPS.len()).map(|index| group(index, Some(60.0))).collect();
    let sweep =
        Sweep::run(run, Share::WHOLE, &contenders, thresholds, 1, |contender, threshold| {
            let index = GROUPS
                .iter()
                .position(|(name, ..)| *name == contender.name)
                .ok_or("a group has a name")?;
            stage.trial(scene, &group(index, Some(threshold)), TELLING)
        })?;
    let what = format!(
        "{}: the first gets {:.1} times what its worker can process, the other one {TELLING} times. Of the {} cells of \
         each ring, T is the share that is left to its own worker. As long as the guarantee holds (T of up to {:.0} % with \
         M = 64 and {:.0} % with M = 256 on xdp, {:.0} % on packet, where T is a share of the usable three quarters) nothing \
         may be lost; a lower T moves more chunks, so more packets are out of order.",
        scene.words(),
        scene.hot(TELLING),
        wirecap::grouped(field.cells().into()),
        highest_threshold(scene, "xdp", 64, field.cells()) * 100.0,
        highest_threshold(scene, "xdp", 256, field.cells()) * 100.0,
        highest_threshold(scene, "packet", 64, field.cells()) * 100.0,
    );
    let mut findings = Findings { what, ..Findings::default() };
    findings.settings = vec![("frames".to_owned(), frames(lab.seconds(run)))];
    let curves = |figure: fn(&Trial) -> f64| sweep.curves(|threshold, _| threshold, figure);
    let lost =
        sweep::loss_chart(Axis::percent("T", 100.0), curves(Trial::lost_behind_interface_percent));
    findings = findings.with_lines("threshold-lost", "What is lost, by T.", &lost);
    let order = |trial: &Trial| trial.order.map_or(0.0, |order| order.out_of_order_percent());
    let order = Lines {
        x: Axis::percent("T", 100.0),
        y: Axis::percent("packets out of order", 100.0),
        curves: curves(order),
    };
    findings = findings.with_lines("threshold-order", "What is out of order, by T.", &order);
    if !lab.tiny {
        for (index, (name, engine, chunk)) in GROUPS.iter().enumerate() {
            let limit = 100.0 * highest_threshold(scene, engine, *chunk, field.cells());
            for &threshold in thresholds.iter().filter(|threshold| **threshold <= limit) {
                let trials = sweep.at(index, threshold);
                let lost: u64 =
                    trials.iter().map(|trial| trial.lost() - trial.lost_at_interface).sum();
                let disturbed = trials.iter().filter(|trial| trial.is_disturbed()).count();
                let quantity = format!("{name}, T = {threshold} %: lost");
                let found = format!("{} packets", wirecap::grouped(lost));
                let reason = format!("{disturbed} of {} runs were disturbed", trials.len());
                findings
                    .claims
                    .push(Claim::holds(quantity, "nothing", lost == 0, found).because(reason));
            }
        }
    }
    sweep.account(&mut findings, "threshold", "T, percent");
    Ok(findings)
}

/// The highest T at which the guarantee holds for the first queue's load, from 0 to 1.
fn highest_threshold(scene: Scene, engine: &str, chunk_cells: u32, cells: u32) -> f64 {
    let guarantee = |threshold| Guarantee {
        geometry: Geometry { chunk_cells, chunks: cells / chunk_cells, cell_bytes: 2048 },
        usable: if engine == "packet" { Guarantee::USABLE_IN_BLOCKS } else { 1.0 },
        threshold,
        workers: scene.queues as usize,
        home_rings: 1,
        cost: Duration::from_nanos(scene.cost_ns),
    };
    let rate = scene.rates(TELLING)[0];
    let percents = (0..100).rev().map(|percent| f64::from(percent) / 100.0);
    percents.into_iter().find(|&threshold| guarantee(threshold).holds_for(rate)).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_can_process_what_it_is_offered_and_the_first_worker_cannot() {
        for queues in [2, 4, 6] {
            for buddies in [0.0, 0.2, 0.4, 0.6] {
                let scene = Scene { queues, cost_ns: 50_000 };
                let rates = scene.rates(buddies);
                let capacity = f64::from(queues) * scene.worker_rate();

                assert_eq!(rates.len(), queues as usize);
                let load = rates.iter().sum::<f64>() / capacity;
                assert!(load <= LOAD + 1e-9, "{queues} queues, {buddies}: {load}");
                assert!(
                    rates[0] >= 1.199 * scene.worker_rate(),
                    "{queues} queues, {buddies}: {rates:?}"
                );
                assert!(
                    rates[1..]
                        .iter()
                        .all(|&rate| (rate / scene.worker_rate() - buddies).abs() < 1e-9)
                );
            }
        }
    }

    #[test]
    fn the_guarantee_permits_a_higher_threshold_with_smaller_chunks() {
        let scene = Scene { queues: 2, cost_ns: 50_000 };
        let [small, large] = [64, 256].map(|chunk| highest_threshold(scene, "xdp", chunk, 8192));
        assert!(small > large && large >= 0.8 && small < 1.0, "{small} {large}");
    }
}
