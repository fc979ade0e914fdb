//! Figures 3, 11, 12 and 13: the trace on several queues.

use std::ops::Range;

use crate::chart::lines::{Axis, Curve, Lines, Look, Point};
use crate::experiment::{Basis, Claim, Experiment, Findings, Part, Run, RunError, Table, percents};
use wirecap_send::traffic::{
    PUBLISHED_BURST_PACKETS, STANDARD_QUEUES, TOLD_BURSTY_QUEUE, TOLD_HOT_QUEUE,
};

use super::engines::{Drops, EngineModel};
use super::{HEAVY_HANDLER, Handler, Load, Trace, heavy_handler, parallel};

/// Figure 3: packets per 10 ms.
pub(super) struct FigureThree;
/// Figures 11 and 12: advanced mode.
pub(super) struct FiguresElevenAndTwelve;
/// Figure 13: the same, with packets forwarded.
pub(super) struct FigureThirteen;

pub(super) fn trace_settings(seeds: &[u64]) -> Vec<(String, String)> {
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![
        setting("traffic", "the standard trace"),
        super::seeds_setting(seeds),
        ("handler".to_owned(), heavy_handler()),
        setting("receive ring", "1,024"),
        setting("PF_RING's buffer", "10,240"),
        setting("PF_RING's copy", "5,680 cycles at 2.4 GHz (WinPcap's, whole path)"),
        setting("NETMAP", "gives descriptors back when it asks for more packets"),
    ]
}

const BIN_NANOS: u64 = 10_000_000;

fn bins(load: &Load) -> Vec<u32> {
    let mut bins = vec![0; load.end().as_nanos().div_ceil(BIN_NANOS.into()) as usize];
    load.times().for_each(|time| bins[(time / BIN_NANOS) as usize] += 1);
    bins
}

impl Experiment for FigureThree {
    fn id(&self) -> &'static str {
        "figure-3"
    }

    fn title(&self) -> String {
        "WireCAP, Figure 3: load imbalance".to_owned()
    }

    fn part(&self) -> Part {
        Part::Simulated
    }

    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
        let seeds = super::seeds(run, super::OTHER_SEEDS);
        let all =
            parallel::map(run, &seeds, |seed| format!("seed {seed}"), |&seed| Profile::of(seed))?;
        let curve = |queue: u32| {
            let counts = all[0].bins[queue as usize].iter().enumerate();
            let points = counts.map(|(bin, &count)| (bin as f64 / 100.0, f64::from(count)));
            Curve { look: Look::Thin, ..Curve::new(format!("receive queue {queue}"), points) }
        };
        let lines = Lines {
            x: Axis { range: Some((0.0, 35.0)), ..Axis::linear("seconds") },
            y: Axis { range: Some((0.0, 3000.0)), ..Axis::linear("packets per 10 ms") },
            curves: vec![curve(TOLD_BURSTY_QUEUE), curve(TOLD_HOT_QUEUE)],
        };
        Ok(Findings {
            what: "Packets per 10 ms of two of six receive queues: a long-term imbalance between them, and \
                   short-term bursts on one."
                .to_owned(),
            claims: input_claims(&all),
            notes: vec![
                "The paper's trace is not published. This one is a model with the properties that the paper's text \
                 gives. The comparisons above are the inputs of the model: they show that it was built as described, \
                 not that it is the paper's traffic. Its other properties were not chosen to meet the paper's drop \
                 rates."
                    .to_owned(),
            ],
            settings: vec![super::seeds_setting(&seeds)],
            ..Findings::default()
        }
        .with_lines("figure-3", format!("Packets per 10 ms, seed {}.", run.seed), &lines))
    }
}

/// The packets of the trace of one seed.
struct Profile {
    /// By queue, in intervals of 10 ms.
    bins: Vec<Vec<u32>>,
    /// Packets that DNA loses with x = 0.
    lost: u64,
}

impl Profile {
    fn of(seed: u64) -> Self {
        let trace = Trace::standard(seed, STANDARD_QUEUES);
        let lost = EngineModel::Dna.receive(&trace.queues, Handler::IDLE, seed).fate.capture_drops;
        Self { bins: trace.queues.iter().map(bins).collect(), lost }
    }

    fn packets(&self) -> u64 {
        self.bins.iter().flatten().map(|&count| u64::from(count)).sum()
    }

    /// Packets of a queue in these intervals.
    fn sum(&self, queue: u32, part: Range<usize>) -> u64 {
        self.bins[queue as usize][part].iter().map(|&count| u64::from(count)).sum()
    }

    /// Packets per second of a queue in these seconds.
    fn rate(&self, queue: u32, seconds: Range<usize>) -> u64 {
        self.sum(queue, seconds.start * 100..seconds.end * 100) / seconds.len() as u64
    }
}

/// The inputs of the trace, which every seed must have.
fn input_claims(all: &[Profile]) -> Vec<Claim> {
    let is_near = |found: u64, told: f64| (found as f64 / told - 1.0).abs() < 0.05;
    let claim = |quantity: &str,
                 told: &str,
                 number: &dyn Fn(&Profile) -> u64,
                 holds: &dyn Fn(u64) -> bool| {
        let numbers = all.iter().map(number);
        Claim::holds(quantity, told, numbers.clone().all(holds), super::range(numbers))
            .only_shown(Basis::Input)
    };

    let told = u64::from(PUBLISHED_BURST_PACKETS);
    let hot = |profile: &Profile| profile.rate(TOLD_HOT_QUEUE, 10..32);
    let bursty = |profile: &Profile| profile.rate(TOLD_BURSTY_QUEUE, 1..32);
    let burst = |profile: &Profile| profile.sum(TOLD_BURSTY_QUEUE, 386..397);

    vec![
        claim("packets", "5,000,000", &Profile::packets, &|found| found == 5_000_000),
        claim("queue 0, from 10 s: packets/s", "80,000", &hot, &|found| is_near(found, 80_000.0))
            .because("To the trace's end at 32 s; the paper says 35 s, which is beyond it."),
        claim("queue 3, 1 s to 32 s: packets/s", "20,000", &bursty, &|found| {
            is_near(found, 20_000.0)
        }),
        claim("queue 3, 3.86 s to 3.97 s: packets", &wirecap::grouped(told), &burst, &|found| {
            found == told
        }),
        claim("DNA, queue_profiler: drops", "0", &|profile| profile.lost, &|found| found == 0),
    ]
}

pub(super) const QUEUES: [u32; 3] = [4, 5, 6];

/// The engines' losses of the trace with several numbers of queues.
pub(super) struct Grid {
    engines: Vec<EngineModel>,
    seeds: Vec<u64>,
    /// By engine, by number of queues, then by seed.
    drops: Vec<Vec<Vec<Drops>>>,
}

impl Grid {
    /// Runs `engines` with the traces of several seeds on each number of queues.
    fn standard(
        run: &Run<'_>,
        engines: &[EngineModel],
        handler: Handler,
    ) -> Result<Self, RunError> {
        let seeds = super::seeds(run, super::OTHER_SEEDS);
        Self::simulate(
            run,
            engines,
            &seeds,
            |seed| QUEUES.map(|queues| Trace::standard(seed, queues)),
            handler,
        )
    }

    /// Runs `engines` with the traces of each seed, each with its number of queues.
    pub(super) fn simulate<const N: usize>(
        run: &Run<'_>,
        engines: &[EngineModel],
        seeds: &[u64],
        traces: impl Fn(u64) -> [Trace; N],
        handler: Handler,
    ) -> Result<Self, RunError> {
        let mut drops = vec![vec![Vec::new(); N]; engines.len()];

        // Seed by seed: the traces of one seed are large enough.
        for (index, &seed) in seeds.iter().enumerate() {
            let part = run.part(index, seeds.len());
            let run = &Run { watch: &part, ..*run };
            run.step(0.0, &format!("the trace of seed {seed}"))?;

            let traces = traces(seed);
            let jobs: Vec<_> = engines
                .iter()
                .flat_map(|&engine| traces.iter().map(move |trace| (engine, trace)))
                .collect();

            let name = |(engine, trace): &(EngineModel, &Trace)| {
                format!("{engine}, {} queues", trace.queues.len())
            };
            let found = parallel::map(run, &jobs, name, |(engine, trace)| {
                engine.receive(&trace.queues, handler, seed)
            })?;
            for (place, found) in found.into_iter().enumerate() {
                drops[place / N][place % N].push(found);
            }
        }
        Ok(Self { engines: engines.to_vec(), seeds: seeds.to_vec(), drops })
    }

    /// By number of queues, then by seed.
    pub(super) fn of(&self, engine: EngineModel) -> &[Vec<Drops>] {
        let row = self
            .engines
            .iter()
            .position(|other| *other == engine)
            .expect("an engine of this figure");
        &self.drops[row]
    }

    /// The drop rates with one of the numbers of queues, by seed.
    fn rates(&self, engine: EngineModel, queues: usize) -> Vec<f64> {
        self.of(engine)[queues].iter().map(Drops::rate).collect()
    }

    fn lines(&self, engines: &[EngineModel], highest: f64) -> Lines {
        let queues = QUEUES.map(f64::from);
        let points = |engine| {
            let places = queues.into_iter().enumerate();
            places.filter_map(move |(place, x)| Point::of(x, &self.rates(engine, place)))
        };

        let curve = |&engine: &EngineModel| Curve {
            points: points(engine).collect(),
            ..Curve::new(engine.to_string(), [])
        };
        Lines {
            x: Axis::of("number of queues", &queues),
            y: Axis::percent("packet drop rate", highest),
            curves: engines.iter().map(curve).collect(),
        }
    }

    fn table(&self) -> Table {
        let columns = [
            "engine",
            "4 queues",
            "5 queues",
            "6 queues",
            "offloaded, 4",
            "offloaded, 6",
            "longest delay, 6",
        ];
        let mut table = Table::new(
            "Packet drop rates, the share of packets that another worker processed, and the longest time from a \
             packet's arrival to the end of its chunk.",
            &columns,
        );
        for (engine, drops) in self.engines.iter().zip(&self.drops) {
            let of = |drops: &[Drops], rate: fn(&Drops) -> f64| {
                percents(&drops.iter().map(rate).collect::<Vec<_>>())
            };
            let last = &drops[drops.len() - 1];
            let more = match engine {
                EngineModel::WireCap(_) => {
                    let longest =
                        last.iter().map(|drops| drops.longest_delay).max().unwrap_or_default();
                    [
                        of(&drops[0], Drops::offloaded_rate),
                        of(last, Drops::offloaded_rate),
                        format!("{:.2} s", longest.as_secs_f64()),
                    ]
                }
                _ => ["-", "-", "-"].map(str::to_owned),
            };
            let rates = drops.iter().map(|drops| of(drops, Drops::rate));
            table.row(std::iter::once(engine.to_string()).chain(rates).chain(more));
        }
        table
    }

    /// Whether each of `engines` loses less than the one before, with every number of queues and
    /// every seed.
    pub(super) fn order(
        &self,
        quantity: impl Into<String>,
        expected: &str,
        engines: &[EngineModel],
    ) -> Claim {
        let places = (0..self.drops[0].len())
            .flat_map(|queues| (0..self.seeds.len()).map(move |seed| (queues, seed)));
        let list = |(queues, seed): (usize, usize)| {
            engines.iter().map(|&engine| self.of(engine)[queues][seed].rate()).collect()
        };
        let lists: Vec<Vec<f64>> = places.map(list).collect();
        let fewest: Vec<String> = lists[0].iter().map(|rate| format!("{rate:.2}")).collect();
        let found =
            format!("{} % on {} queues, seed {}", fewest.join(", "), QUEUES[0], self.seeds[0]);

        Claim::descending(quantity, expected, &lists, found)
    }

    fn settings(&self) -> Vec<(String, String)> {
        trace_settings(&self.seeds)
    }
}

pub(super) const RIVALS: [EngineModel; 3] =
    [EngineModel::PF_RING, EngineModel::Dna, EngineModel::NETMAP];
pub(super) const BASIC: [EngineModel; 2] =
    [EngineModel::basic(256, 100), EngineModel::basic(256, 500)];
pub(super) const THRESHOLDS: [f64; 4] = [0.6, 0.7, 0.8, 0.9];

type MakeAdvanced = fn(u32, u32, f64) -> EngineModel;

/// Load sharing as in the paper, and as in wirecap.
pub(super) const WAYS: [(&str, MakeAdvanced); 2] =
    [("pushed", EngineModel::pushing), ("pulled", EngineModel::pulling)];

/// All engines of Figures 11 and 12.
pub(super) fn engines() -> Vec<EngineModel> {
    let advanced = WAYS.into_iter().flat_map(|(_, make)| {
        let thresholds = THRESHOLDS.map(|threshold| make(256, 100, threshold));
        thresholds.into_iter().chain([make(256, 500, 0.6)])
    });
    RIVALS.into_iter().chain(BASIC).chain(advanced).collect()
}

/// The order of the engines according to text and curves of Figure 11 or 13.
fn order_claims(grid: &Grid, rivals: &[EngineModel]) -> Vec<Claim> {
    let mut claims = Vec::new();

    for &rival in rivals {
        claims.push(grid.order(
            format!("{rival} and {}", BASIC[0]),
            "basic mode loses less",
            &[rival, BASIC[0]],
        ));
    }

    for (how, make) in WAYS {
        let order = [BASIC[0], BASIC[1], make(256, 100, 0.6), make(256, 500, 0.6)];
        claims.push(grid.order(
            format!("B-(256,100), B-(256,500), A-(256,100,60%), {how}"),
            "each loses less than the one before",
            &order[..3],
        ));
        let quantity = format!("A-(256,100,60%), A-(256,500,60%), {how}");
        claims.push(grid.order(quantity, "the larger loses less", &order[2..]));
    }
    claims
}

pub(super) fn figure_eleven_claims(grid: &Grid) -> Vec<Claim> {
    let mut claims = order_claims(grid, &RIVALS);
    let rates: Vec<f64> =
        RIVALS.into_iter().flat_map(|engine| grid.of(engine)).flatten().map(Drops::rate).collect();
    let lowest = rates.iter().copied().fold(100.0, f64::min);
    let highest = rates.iter().copied().fold(0.0, f64::max);
    claims.push(
        Claim::holds(
            "PF_RING, DNA, NETMAP (abstract)",
            "20 % to 40 %",
            lowest >= 15.0 && highest <= 45.0,
            percents(&rates),
        )
        .because("With a tolerance of five points at both ends."),
    );

    for (how, make) in WAYS {
        let lost = grid.rates(make(256, 500, 0.6), 2);
        let quantity = format!("A-(256,500,60%), six queues (abstract: without loss), {how}");
        claims.push(Claim::points(quantity, 0.0, &lost));
    }

    claims
}

pub(super) fn figure_twelve_claims(grid: &Grid) -> Vec<Claim> {
    let claim = |(how, make): (&str, MakeAdvanced)| {
        let order = [0.9, 0.8, 0.7, 0.6].map(|threshold| make(256, 100, threshold));
        let change = |(high, low): (&Drops, &Drops)| low.rate() - high.rate();
        let pairs = grid.of(order[0]).iter().flatten().zip(grid.of(order[3]).iter().flatten());
        let changes: Vec<f64> = pairs.map(change).collect();
        let least = changes.iter().copied().fold(f64::INFINITY, f64::min);
        let most = changes.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        grid.order(format!("T = 90, 80, 70, 60 %, {how}"), "a lower T loses less", &order).because(format!(
            "From T = 90 % to T = 60 % the loss changes by {least:+.2} to {most:+.2} points. Under an overload of all handlers, a \
             worker that helps earlier also leaves its own rings earlier. The paper's axis ends at 18 %."
        ))
    };
    WAYS.into_iter().map(claim).collect()
}

impl Experiment for FiguresElevenAndTwelve {
    fn id(&self) -> &'static str {
        "figures-11-12"
    }

    fn title(&self) -> String {
        "WireCAP, Figures 11 and 12: advanced mode".to_owned()
    }

    fn part(&self) -> Part {
        Part::Simulated
    }

    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
        let grid = Grid::standard(run, &engines(), Handler::HEAVY)?;
        let sixty = WAYS.map(|(_, make)| [make(256, 100, 0.6), make(256, 500, 0.6)]);
        // Eight curves can be distinguished.
        let eleven: Vec<EngineModel> = RIVALS
            .into_iter()
            .chain(BASIC)
            .chain([sixty[0][0], sixty[0][1], sixty[1][0]])
            .collect();
        let twelve: Vec<EngineModel> = WAYS
            .into_iter()
            .flat_map(|(_, make)| THRESHOLDS.map(|threshold| make(256, 100, threshold)))
            .collect();
        let claims =
            figure_eleven_claims(&grid).into_iter().chain(figure_twelve_claims(&grid)).collect();
        Ok(Findings {
            what: format!(
                "The trace on four, five and six queues, each with a handler of {}. In advanced mode other workers \
                 process chunks of a queue above the threshold T: capture threads push them, as in the paper, or \
                 workers pull them, as in wirecap.",
                heavy_handler()
            ),
            claims,
            notes: vec![
                format!(
                    "Four handlers process {} p/s together; from 10 s on the trace has about {} p/s.",
                    wirecap::grouped((4.0 * HEAVY_HANDLER) as u64),
                    wirecap::grouped(late_rate(&Trace::standard(run.seed, QUEUES[0])))
                ),
                "Under an overload of the whole group, pushed chunks wait in all queues, so all pools fill completely; \
                 the pools of workers that pull fill up to T."
                    .to_owned(),
            ],
            settings: grid.settings(),
            ..Findings::default()
        }
        .with_lines("figure-11", "Figure 11: drop rate by number of queues, x = 300. A: pushed as in the paper, or pulled as in wirecap.", &grid.lines(&eleven, 50.0))
        .with_lines("figure-12", "Figure 12: the same by threshold T.", &grid.lines(&twelve, 18.0))
        .with_table("figures-11-12-rates", grid.table()))
    }
}

/// Packets per second from 10 s to 32 s.
fn late_rate(trace: &Trace) -> u64 {
    let late =
        trace.queues.iter().flat_map(Load::times).filter(|time| *time >= 10_000_000_000).count();
    late as u64 / 22
}

impl Experiment for FigureThirteen {
    fn id(&self) -> &'static str {
        "figure-13"
    }

    fn title(&self) -> String {
        "WireCAP, Figure 13: forwarding".to_owned()
    }

    fn part(&self) -> Part {
        Part::Simulated
    }

    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
        let advanced =
            WAYS.into_iter().flat_map(|(_, make)| [make(256, 100, 0.6), make(256, 500, 0.6)]);
        let engines: Vec<EngineModel> =
            RIVALS[..2].iter().copied().chain(BASIC).chain(advanced).collect();
        let grid = Grid::standard(run, &engines, Handler::HEAVY.forwarding())?;
        let mut settings = grid.settings();
        settings.push(("sending".to_owned(), "60 cycles a packet (netmap's)".to_owned()));
        Ok(Findings {
            what: "As before, but each packet is forwarded after it was processed; packets that the receiver behind \
                   does not get count as lost. As in the paper, without NETMAP."
                .to_owned(),
            claims: order_claims(&grid, &RIVALS[..2]),
            settings,
            ..Findings::default()
        }
        .with_lines("figure-13", "Drop rate by number of queues, forwarding.", &grid.lines(&engines, 50.0))
        .with_table("figure-13-rates", grid.table()))
    }
}
