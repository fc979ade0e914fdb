//! What Table 1 depends on that the paper does not give: the mix of bursts, the ring's size in
//! practice, and the cost of PF_RING's copy.

use crate::chart::lines::{Axis, Curve, Lines, Look, Point};
use crate::experiment::{
    Claim, Experiment, Findings, Part, Run, RunError, Table, Verdict, percents,
};
use wirecap_send::traffic::{BurstMix, PUBLISHED_BURST_PACKETS, TOLD_BURSTY_QUEUE, TOLD_HOT_QUEUE};

use super::engines::{Drops, EngineModel};
use super::rivals::{Release, TypeTwo};
use super::table_one::{DRIVERS_OWN_RING, PRINTED};
use super::{CLOCK_HZ, COPYING_CYCLES, COPYING_STAGE_NANOS, Handler, Load, RING, Trace, parallel};

/// Table 1 with other assumptions.
pub(super) struct Sensitivity;

/// Packets of the shortest burst. The longest has 2,724, as in the paper.
const SHORTEST: [u32; 7] = [16, 64, 128, 256, 512, 1024, 2048];
/// The share of packets in bursts, in percent.
const SHARES: [u64; 5] = [60, 70, 80, 90, 100];
/// Descriptors of the ring.
const RINGS: [usize; 5] = [256, 512, 1024, 2048, 4096];
/// The time of a copy, in nanoseconds.
const COPIES: [f64; 6] =
    [100.0, 300.0, COPYING_STAGE_NANOS, 1200.0, 1800.0, COPYING_CYCLES / CLOCK_HZ * 1e9];
/// The engines that read in the ring, with the number of their row in the table, queue 3.
const IN_PLACE: [(&str, Release, usize); 2] =
    [("NETMAP", Release::EachSync, 3), ("DNA", Release::EachPacket, 4)];

/// The capture drops of an engine with this ring on queue 3, in percent.
fn lost(load: &Load, release: Release, ring: usize) -> f64 {
    let handler_nanos = Handler::HEAVY.nanos;
    let fate = TypeTwo { ring, release, handler_nanos }.receive(load.times());
    Drops { fate, ..Drops::default() }.capture_rate()
}

/// The results with one seed, and one mix of bursts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Job {
    /// Queue 3 with this mix of bursts.
    Mix(BurstMix),
    /// Queue 3 with these rings, and queue 0 with these copies, with the standard mix.
    Standard,
}

impl Job {
    /// The drop rates: of the engines in place; or of each of them with each ring, and of PF_RING
    /// with each copy.
    fn rates(self, seed: u64) -> Vec<f64> {
        match self {
            Self::Mix(mix) => {
                let trace = Trace::with_bursts(seed, mix);
                let load = &trace.queues[TOLD_BURSTY_QUEUE as usize];
                IN_PLACE.map(|(_, release, _)| lost(load, release, RING)).to_vec()
            }
            Self::Standard => {
                let trace = Trace::with_bursts(seed, BurstMix::STANDARD);
                let load = &trace.queues[TOLD_BURSTY_QUEUE as usize];
                let in_place = IN_PLACE
                    .iter()
                    .flat_map(|(_, release, _)| RINGS.map(|ring| lost(load, *release, ring)));
                let hot = &trace.queues[TOLD_HOT_QUEUE as usize..=TOLD_HOT_QUEUE as usize];
                let copied = COPIES
                    .map(|nanos| EngineModel::PfRing(nanos).receive(hot, Handler::HEAVY, seed));

                in_place.chain(copied.map(|drops| drops.delivery_rate())).collect()
            }
        }
    }
}

/// A curve of one engine over one assumption.
#[derive(Debug, Clone)]
struct Series {
    name: &'static str,
    /// Number of its row in [`PRINTED`].
    row: usize,
    /// The points, each with the rates by seed.
    points: Vec<(f64, Vec<f64>)>,
}

impl Series {
    fn printed(&self) -> f64 {
        let (_, _, capture, delivery) = PRINTED[self.row];
        capture.max(delivery)
    }

    /// Its curve, and the published value as a line.
    fn curves(&self) -> [Curve; 2] {
        let points = self.points.iter().filter_map(|(x, rates)| Point::of(*x, rates)).collect();
        let ends = [&self.points[0], &self.points[self.points.len() - 1]]
            .map(|(x, _)| (*x, self.printed()));
        [
            Curve { points, ..Curve::new(self.name, []) },
            Curve { look: Look::Thin, ..Curve::new(format!("{}, paper", self.name), ends) },
        ]
    }
}

/// What the drop rates depend on.
struct Dependence {
    name: &'static str,
    caption: String,
    x: Axis,
    series: Vec<Series>,
}

impl Dependence {
    fn lines(&self) -> Lines {
        Lines {
            x: self.x.clone(),
            y: Axis::percent("packet drop rate", 70.0),
            curves: self.series.iter().flat_map(Series::curves).collect(),
        }
    }
}

fn log(name: &str, ticks: &[f64]) -> Axis {
    Axis { ticks: ticks.to_vec(), ..Axis::log(name) }
}

fn simulate(run: &Run<'_>, seeds: &[u64]) -> Result<Vec<Dependence>, RunError> {
    let mix = |shortest| BurstMix { shortest, ..BurstMix::STANDARD };
    let share = |share_percent| BurstMix { share_percent, ..BurstMix::STANDARD };
    let mixes: Vec<BurstMix> =
        SHORTEST.into_iter().map(mix).chain(SHARES.into_iter().map(share)).collect();
    let what = std::iter::once(Job::Standard).chain(mixes.into_iter().map(Job::Mix));
    let jobs: Vec<(Job, u64)> =
        what.flat_map(|job| seeds.iter().map(move |&seed| (job, seed))).collect();

    let name = |(job, seed): &(Job, u64)| match job {
        Job::Mix(mix) => format!("bursts of at least {} packets, seed {seed}", mix.shortest),
        Job::Standard => format!("rings and copies, seed {seed}"),
    };
    let rates = parallel::map(run, &jobs, name, |&(job, seed)| job.rates(seed))?;

    // One rate of a job, by seed.
    let of = |job: usize, rate: usize| -> Vec<f64> {
        let runs = &rates[job * seeds.len()..(job + 1) * seeds.len()];
        runs.iter().map(|rates| rates[rate]).collect()
    };
    let in_place =
        |rates: &dyn Fn(usize) -> Vec<(f64, Vec<f64>)>| {
            let series = |(index, &(name, _, row)): (usize, &(&'static str, Release, usize))| {
                Series { name, row, points: rates(index) }
            };
            IN_PLACE.iter().enumerate().map(series).collect()
        };

    let by_shortest = |engine: usize| {
        let points = SHORTEST.iter().enumerate();
        points.map(|(job, &shortest)| (f64::from(shortest), of(1 + job, engine))).collect()
    };
    let by_share = |engine: usize| {
        let points = SHARES.iter().enumerate();
        points.map(|(job, &share)| (share as f64, of(1 + SHORTEST.len() + job, engine))).collect()
    };

    let by_ring = |engine: usize| {
        let points = RINGS.iter().enumerate();
        points.map(|(place, &ring)| (ring as f64, of(0, engine * RINGS.len() + place))).collect()
    };
    let copies = COPIES.iter().enumerate();
    let by_copy = copies
        .map(|(place, &nanos)| (nanos, of(0, IN_PLACE.len() * RINGS.len() + place)))
        .collect();

    Ok(vec![
        Dependence {
            name: "shortest-burst",
            caption: format!(
                "Queue 3 by the length of the shortest burst. The model uses {}.",
                BurstMix::STANDARD.shortest
            ),
            x: log("packets of the shortest burst", &SHORTEST.map(f64::from)),
            series: in_place(&by_shortest),
        },
        Dependence {
            name: "burst-share",
            caption: format!(
                "Queue 3 by the share of packets in bursts. The model uses {} %.",
                BurstMix::STANDARD.share_percent
            ),
            x: Axis {
                unit: " %",
                ..Axis::of("packets in bursts", &SHARES.map(|share| share as f64))
            },
            series: in_place(&by_share),
        },
        Dependence {
            name: "ring-size",
            caption: format!(
                "Queue 3 by the size of the ring. The paper states {}; {DRIVERS_OWN_RING} is the driver's default.",
                wirecap::grouped(RING as u64)
            ),
            x: log("descriptors", &RINGS.map(|ring| ring as f64)),
            series: in_place(&by_ring),
        },
        Dependence {
            name: "copy-cost",
            caption: format!(
                "Queue 0 by the time of PF_RING's copy. The model uses WinPcap's {} cycles, {} ns.",
                wirecap::grouped(COPYING_CYCLES as u64),
                wirecap::grouped((COPYING_CYCLES / CLOCK_HZ * 1e9).round() as u64)
            ),
            x: Axis::linear("ns a copy"),
            series: vec![Series { name: "PF_RING", row: 2, points: by_copy }],
        },
    ])
}

/// Which of the tried mixes and rings meet both published values of queue 3 with every seed, in a
/// sentence.
fn conclusion(dependences: &[Dependence]) -> String {
    let both = dependences.iter().filter(|dependence| dependence.series.len() == IN_PLACE.len());
    let meets = |series: &Series, place: usize| {
        Claim::points("", series.printed(), &series.points[place].1).verdict == Verdict::Holds
    };
    let mut met = Vec::new();
    for dependence in both {
        let x = &dependence.x;
        for (place, (value, _)) in dependence.series[0].points.iter().enumerate() {
            if dependence.series.iter().all(|series| meets(series, place)) {
                met.push(format!("{} = {}{}", x.name, wirecap::grouped(*value as u64), x.unit));
            }
        }
    }
    let [netmap, dna] = IN_PLACE.map(|(_, _, row)| PRINTED[row].2);
    let which = match met.as_slice() {
        [] => "None of the tried mixes and rings gives".to_owned(),
        met => format!("Of the tried mixes and rings, only these give ({})", met.join("; ")),
    };
    format!(
        "{which} both published values of queue 3, {netmap} % for NETMAP and {dna} % for DNA, within five points if both \
         engines have the same ring. This does not prove that no mix does."
    )
}

fn table(dependences: &[Dependence]) -> Table {
    let mut table =
        Table::new("The same as numbers.", &["depends on", "value", "engine", "drops", "paper"]);

    for dependence in dependences {
        for series in &dependence.series {
            for (x, rates) in &series.points {
                table.row([
                    dependence.x.name.clone(),
                    wirecap::grouped(x.round() as u64),
                    series.name.to_owned(),
                    percents(rates),
                    format!("{} %", series.printed()),
                ]);
            }
        }
    }
    table
}

impl Experiment for Sensitivity {
    fn id(&self) -> &'static str {
        "table-1-sensitivity"
    }

    fn title(&self) -> String {
        "What Table 1 depends on".to_owned()
    }

    fn part(&self) -> Part {
        Part::Simulated
    }

    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
        let seeds = super::seeds(run, super::OTHER_SEEDS);
        let dependences = simulate(run, &seeds)?;
        let mut findings = Findings {
            what: format!(
                "Table 1 with other values of what the paper does not give: the lengths of queue 3's bursts (it gives one, \
                 of {} packets) and their share, the size of the ring in practice, and the cost of PF_RING's copy.",
                wirecap::grouped(PUBLISHED_BURST_PACKETS.into())
            ),
            settings: super::imbalance::trace_settings(&seeds),
            notes: vec![conclusion(&dependences)],
            ..Findings::default()
        };
        for dependence in &dependences {
            findings =
                findings.with_lines(dependence.name, &*dependence.caption, &dependence.lines());
        }
        Ok(findings.with_table("table-1-sensitivity", table(&dependences)))
    }
}
