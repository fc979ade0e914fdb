//! Table 2: what each engine is for, and what it lacks. The paper states that in words; here each
//! deficiency is a scene in which the engine must show it, and WireCAP must not. The loads are
//! ours, so the results are only shown.

use std::fmt;

use wirecap::grouped;

use crate::experiment::{Basis, Claim, Experiment, Findings, Part, Run, RunError, Table, percents};

use super::engines::{Drops, EngineModel};
use super::{HEAVY_HANDLER, Handler, LINE_RATE, Load, RING, heavy_handler, parallel};

/// Table 2.
pub(super) struct TableTwo;

/// A row of the paper's table.
struct Row {
    engines: &'static str,
    goal: &'static str,
    deficiency: &'static str,
    shown_by: &'static str,
}

const ROWS: [Row; 4] = [
    Row {
        engines: "WireCAP",
        goal: "no packet drops",
        deficiency: "needs additional resources",
        shown_by: "the memory of its pools",
    },
    Row {
        engines: "DNA, NETMAP",
        goal: "least cost of capture",
        deficiency: "limited buffers; no offloading",
        shown_by: "a burst; an overloaded queue",
    },
    Row {
        engines: "PSIOE",
        goal: "highest throughput of the system",
        deficiency: "limited buffers; copies",
        shown_by: "not modelled",
    },
    Row {
        engines: "PF_RING",
        goal: "least cost of capture",
        deficiency: "copies; receive livelock; no offloading",
        shown_by: "packets at line rate without work; an overloaded queue",
    },
];

/// A load that shows a deficiency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// Limited buffers.
    Burst,
    /// No offloading.
    Overloaded,
    /// Copies, and livelock.
    LineRate,
}

const SECONDS: f64 = 10.0;
/// Packets of the burst: more than a ring's descriptors, fewer than the cells of B-(256,100).
const BURST_PACKETS: u64 = 20_000;
/// Packets at line rate.
const LINE_RATE_PACKETS: u64 = 500_000;

impl Scene {
    const ALL: [Self; 3] = [Self::Burst, Self::Overloaded, Self::LineRate];

    fn loads(self) -> Vec<Load> {
        let even = |share: f64| {
            let rate = share * HEAVY_HANDLER;
            Load::Burst { packets: (rate * SECONDS) as u64, rate }
        };
        let burst = |packets| Load::Burst { packets, rate: LINE_RATE };
        match self {
            Self::Burst => vec![burst(BURST_PACKETS)],
            Self::Overloaded => vec![even(1.6), even(0.2)],
            Self::LineRate => vec![burst(LINE_RATE_PACKETS)],
        }
    }

    fn handler(self) -> Handler {
        if self == Self::LineRate { Handler::IDLE } else { Handler::HEAVY }
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Burst => {
                write!(f, "a burst of {} packets at line rate, x = 300", grouped(BURST_PACKETS))
            }
            Self::Overloaded => f.write_str("one queue at 160 % of a handler's rate, one at 20 %"),
            Self::LineRate => {
                write!(f, "{} packets at line rate, x = 0", grouped(LINE_RATE_PACKETS))
            }
        }
    }
}

const WIRECAP: EngineModel = EngineModel::pushing(256, 100, 0.6);
const ENGINES: [EngineModel; 4] =
    [WIRECAP, EngineModel::Dna, EngineModel::NETMAP, EngineModel::PF_RING];
/// The drops of each engine in each scene: by scene, by engine, then by seed.
pub(super) struct Played {
    seeds: Vec<u64>,
    drops: Vec<Vec<Vec<Drops>>>,
}

pub(super) fn simulate(run: &Run<'_>) -> Result<Played, RunError> {
    let seeds = super::seeds(run, super::OTHER_SEEDS);
    let mut jobs = Vec::new();

    for scene in Scene::ALL {
        jobs.extend(
            ENGINES.iter().flat_map(|&engine| seeds.iter().map(move |&seed| (scene, engine, seed))),
        );
    }

    let name = |(scene, engine, _): &(Scene, EngineModel, u64)| format!("{engine}, {scene}");
    let drops = parallel::map(run, &jobs, name, |(scene, engine, seed)| {
        engine.receive(&scene.loads(), scene.handler(), *seed)
    })?;
    let of_scene = |drops: &[Drops]| drops.chunks(seeds.len()).map(<[Drops]>::to_vec).collect();
    let drops = drops.chunks(ENGINES.len() * seeds.len()).map(of_scene).collect();

    Ok(Played { seeds, drops })
}

impl Played {
    fn of(&self, scene: Scene, engine: EngineModel) -> &[Drops] {
        let place = Scene::ALL.iter().position(|other| *other == scene).expect("one of all");
        let row =
            ENGINES.iter().position(|other| *other == engine).expect("an engine of this table");
        &self.drops[place][row]
    }

    fn rates(&self, scene: Scene, engine: EngineModel) -> Vec<f64> {
        self.of(scene, engine).iter().map(Drops::rate).collect()
    }

    /// That `engine` loses significantly in `scene`, in which WireCAP loses nothing.
    fn lacks(&self, engine: EngineModel, what: &str, scene: Scene) -> Claim {
        let lost = self.rates(scene, engine);
        let ours = self.rates(scene, WIRECAP);
        let is_shown = lost.iter().all(|rate| *rate > 5.0) && ours.iter().all(|rate| *rate == 0.0);
        let found = format!("{}; {WIRECAP}: {}", percents(&lost), percents(&ours));
        Claim::holds(format!("{engine}: {what}"), "it loses, WireCAP does not", is_shown, found)
            .only_shown(Basis::OurLoad)
            .because(format!("{scene}."))
    }
}

/// Bytes of a cell, and of the buffer of a descriptor.
const CELL_BYTES: f64 = 2048.0;

pub(super) fn claims(played: &Played) -> Vec<Claim> {
    let mib = |cells: f64| cells * CELL_BYTES / f64::from(1 << 20);
    let pool = mib(256.0 * 100.0);
    let ring = mib(RING as f64);
    let copied = played.of(Scene::LineRate, EngineModel::PF_RING);
    let rates = |rate: fn(&Drops) -> f64| copied.iter().map(rate).collect::<Vec<_>>();
    let capture = rates(Drops::capture_rate);
    let delivery = rates(Drops::delivery_rate);
    let is_livelock = |drops: &Drops| {
        drops.rate() > 5.0 && drops.fate.capture_drops.min(drops.fate.delivery_drops) > 0
    };

    vec![
        played.lacks(EngineModel::Dna, "limited buffers", Scene::Burst),
        played.lacks(EngineModel::NETMAP, "limited buffers", Scene::Burst),
        played.lacks(EngineModel::Dna, "no offloading", Scene::Overloaded),
        played.lacks(EngineModel::NETMAP, "no offloading", Scene::Overloaded),
        played.lacks(EngineModel::PF_RING, "no offloading", Scene::Overloaded),
        Claim::holds(
            "PF_RING: copies, receive livelock",
            "capture and delivery drops",
            copied.iter().all(is_livelock),
            format!("{} and {}", percents(&capture), percents(&delivery)),
        )
        .only_shown(Basis::OurLoad)
        .because(format!("{}: while the kernel copies, the application gets no CPU time.", Scene::LineRate)),
        Claim::not_modelled(
            "PSIOE: limited buffers, copies",
            "it loses",
            "The paper does not measure it, and gives no number for its buffer or its copy.",
        ),
        Claim::holds(
            "WireCAP: additional resources",
            "more memory than a ring",
            pool > ring,
            format!("{pool:.0} MiB for {WIRECAP} a queue, {ring:.0} MiB for a ring"),
        )
        .only_shown(Basis::Bound)
        .because("R x M cells of 2 KiB, and 1,024 descriptors with such a buffer each; the pool does not depend on the load."),
    ]
}

impl Experiment for TableTwo {
    fn id(&self) -> &'static str {
        "table-2"
    }

    fn title(&self) -> String {
        "WireCAP, Table 2: goals and deficiencies".to_owned()
    }

    fn part(&self) -> Part {
        Part::Simulated
    }

    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
        let played = simulate(run)?;
        let mut table =
            Table::new("Table 2, in short.", &["engine", "goal", "deficiency", "shown here by"]);
        for Row { engines, goal, deficiency, shown_by } in ROWS {
            table.row([engines, goal, deficiency, shown_by].map(str::to_owned));
        }
        let columns: Vec<String> = std::iter::once("scene".to_owned())
            .chain(ENGINES.map(|engine| engine.to_string()))
            .collect();
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut lost = Table::new("Packet drop rates.", &columns);
        for scene in Scene::ALL {
            let rates = ENGINES.map(|engine| percents(&played.rates(scene, engine)));
            lost.row(std::iter::once(scene.to_string()).chain(rates));
        }
        Ok(Findings {
            what: "The paper compares the engines in words. Each deficiency that it names is a scene here, in which the \
                   engine must lose packets and WireCAP must not. The paper gives no loads for it; we chose them so that the \
                   deficiencies show, so the comparisons are not counted."
                .to_owned(),
            claims: claims(&played),
            settings: vec![super::seeds_setting(&played.seeds), ("handler, x = 300".to_owned(), heavy_handler())],
            ..Findings::default()
        }
        .with_table("table-2", table)
        .with_table("table-2-rates", lost))
    }
}
