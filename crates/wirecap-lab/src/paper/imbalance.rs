//! Figures 3, 11, 12 and 13: the trace on several queues.

use crate::chart::lines::{Axis, Curve, Lines, Look};
use crate::experiment::{Claim, Experiment, Findings, Part, Run, RunError, Table, percent};
use crate::traffic::{PUBLISHED_BURST_PACKETS, STANDARD_QUEUES, TOLD_BURSTY_QUEUE, TOLD_HOT_QUEUE};

use super::engines::{Drops, EngineModel};
use super::{HEAVY_HANDLER, Handler, Load, Trace, heavy_handler, parallel};

/// Figure 3: packets per 10 ms.
pub(super) struct FigureThree;
/// Figures 11 and 12: advanced mode.
pub(super) struct FiguresElevenAndTwelve;
/// Figure 13: the same, with packets forwarded.
pub(super) struct FigureThirteen;

pub(super) fn trace_settings(seed: u64) -> Vec<(String, String)> {
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![
        ("traffic".to_owned(), format!("the standard trace, seed {seed}")),
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
        run.step(0.0, "the trace")?;
        let trace = Trace::standard(run.seed, STANDARD_QUEUES);
        run.step(0.7, "queue profiler")?;
        let lost = EngineModel::Dna.receive(&trace.queues, Handler::IDLE, run.seed).fate.capture_drops;
        let all: Vec<Vec<u32>> = trace.queues.iter().map(bins).collect();
        let curve = |queue: u32| {
            let counts = all[queue as usize].iter().enumerate();
            let points = counts.map(|(bin, &count)| (bin as f64 / 100.0, f64::from(count)));
            Curve { look: Look::Thin, ..Curve::new(format!("receive queue {queue}"), points) }
        };
        let lines = Lines {
            x: Axis { range: Some((0.0, 35.0)), ..Axis::linear("seconds") },
            y: Axis { range: Some((0.0, 3000.0)), ..Axis::linear("packets per 10 ms") },
            curves: vec![curve(TOLD_BURSTY_QUEUE), curve(TOLD_HOT_QUEUE)],
        };
        let sum = |queue: u32, from: usize, to: usize| -> u64 {
            all[queue as usize][from..to].iter().map(|&count| u64::from(count)).sum()
        };
        let rate =
            |queue, from: usize, to: usize| sum(queue, from * 100, to * 100) as f64 / (to - from) as f64;
        let near = |found: f64, told: f64| (found / told - 1.0).abs() < 0.05;
        let (hot, bursty) = (rate(TOLD_HOT_QUEUE, 10, 32), rate(TOLD_BURSTY_QUEUE, 1, 32));
        let burst = sum(TOLD_BURSTY_QUEUE, 386, 397);
        let grouped = wirecap::grouped;
        let per_second = |rate: f64| format!("{} p/s", grouped(rate.round() as u64));
        let told = grouped(PUBLISHED_BURST_PACKETS.into());
        let claims = vec![
            Claim::holds("packets", "5,000,000", trace.packets() == 5_000_000, grouped(trace.packets())),
            Claim::holds("queue 0, from 10 s", "80,000 p/s", near(hot, 80_000.0), per_second(hot))
                .because("To the trace's end at 32 s; the paper says 35 s, which is beyond it."),
            Claim::holds("queue 3, 1 s to 32 s", "20,000 p/s", near(bursty, 20_000.0), per_second(bursty)),
            Claim::holds(
                "queue 3, 3.86 s to 3.97 s",
                told,
                burst == u64::from(PUBLISHED_BURST_PACKETS),
                grouped(burst),
            ),
            Claim::holds("DNA, queue_profiler", "no drops", lost == 0, grouped(lost)),
        ];
        Ok(Findings {
            what: "Packets per 10 ms of two of six receive queues: a long-term imbalance between them, and \
                   short-term bursts on one."
                .to_owned(),
            claims,
            notes: vec![
                "The paper's trace is not published. This one is a model with the features that its text \
                 tells: the comparisons above are what it was built from, so they say that it was built right, \
                 not that it is the paper's traffic. What the text does not tell was not chosen to meet its drop \
                 rates."
                    .to_owned(),
            ],
            settings: vec![("seed".to_owned(), run.seed.to_string())],
            ..Findings::default()
        }
        .with_lines("figure-3", "Packets per 10 ms.", &lines))
    }
}

pub(super) const QUEUES: [u32; 3] = [4, 5, 6];

/// The engines' losses of the trace with several numbers of queues.
pub(super) struct Grid {
    engines: Vec<EngineModel>,
    /// By engine, then by number of queues.
    drops: Vec<Vec<Drops>>,
}

impl Grid {
    /// Runs `engines` with the traces, each with its number of queues.
    pub(super) fn simulate(
        run: &Run<'_>,
        engines: &[EngineModel],
        traces: &[Trace],
        handler: Handler,
    ) -> Result<Self, RunError> {
        let jobs: Vec<_> =
            engines.iter().flat_map(|&engine| traces.iter().map(move |trace| (engine, trace))).collect();
        let name =
            |(engine, trace): &(EngineModel, &Trace)| format!("{engine}, {} queues", trace.queues.len());
        let drops = parallel::map(run, &jobs, name, |(engine, trace)| {
            engine.receive(&trace.queues, handler, run.seed)
        })?;
        let drops = drops.chunks(traces.len()).map(<[Drops]>::to_vec).collect();
        Ok(Self { engines: engines.to_vec(), drops })
    }

    pub(super) fn of(&self, engine: EngineModel) -> &[Drops] {
        let row = self.engines.iter().position(|other| *other == engine).expect("an engine of this figure");
        &self.drops[row]
    }

    fn lines(&self, engines: &[EngineModel], highest: f64) -> Lines {
        let queues = QUEUES.map(f64::from);
        let curve = |&engine: &EngineModel| {
            let rates = self.of(engine).iter().map(Drops::rate);
            Curve::new(engine.to_string(), queues.into_iter().zip(rates))
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
            let rates = drops.iter().map(|drops| percent(drops.rate()));
            let last = drops[drops.len() - 1];
            let more = match engine {
                EngineModel::WireCap(_) => [
                    percent(drops[0].offloaded_rate()),
                    percent(last.offloaded_rate()),
                    format!("{:.2} s", last.longest_delay.as_secs_f64()),
                ],
                _ => ["-", "-", "-"].map(str::to_owned),
            };
            table.row(std::iter::once(engine.to_string()).chain(rates).chain(more));
        }
        table
    }

    /// Whether each of `engines` loses at least as much as the next one with every number of queues; and their
    /// losses with the fewest.
    pub(super) fn order(&self, engines: &[EngineModel]) -> (bool, String) {
        let rates = |engine: EngineModel| self.of(engine).iter().map(Drops::rate);
        let above =
            |pair: &[EngineModel]| rates(pair[0]).zip(rates(pair[1])).all(|(more, less)| more >= less);
        let fewest = engines.iter().map(|&engine| format!("{:.2}", self.of(engine)[0].rate()));
        let found = fewest.collect::<Vec<_>>().join(", ");
        (engines.windows(2).all(above), format!("{found} % on {} queues", QUEUES[0]))
    }
}

pub(super) const RIVALS: [EngineModel; 3] = [EngineModel::PF_RING, EngineModel::Dna, EngineModel::NETMAP];
pub(super) const BASIC: [EngineModel; 2] = [EngineModel::basic(256, 100), EngineModel::basic(256, 500)];
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
        let (holds, found) = grid.order(&[rival, BASIC[0]]);
        claims.push(Claim::holds(format!("{rival} and {}", BASIC[0]), "basic mode loses less", holds, found));
    }
    for (how, make) in WAYS {
        let order = [BASIC[0], BASIC[1], make(256, 100, 0.6), make(256, 500, 0.6)];
        let (holds, found) = grid.order(&order[..3]);
        let quantity = format!("B-(256,100), B-(256,500), A-(256,100,60%), {how}");
        claims.push(Claim::holds(quantity, "each loses less than the one before", holds, found));
        let (holds, found) = grid.order(&order[2..]);
        claims.push(Claim::holds(
            format!("A-(256,100,60%), A-(256,500,60%), {how}"),
            "the larger loses less",
            holds,
            found,
        ));
    }
    claims
}

pub(super) fn figure_eleven_claims(grid: &Grid) -> Vec<Claim> {
    let mut claims = order_claims(grid, &RIVALS);
    let rates = || RIVALS.into_iter().flat_map(|engine| grid.of(engine)).map(Drops::rate);
    let (lowest, highest) = (rates().fold(100.0, f64::min), rates().fold(0.0, f64::max));
    let found = format!("{} to {}", percent(lowest), percent(highest));
    claims.push(
        Claim::holds(
            "PF_RING, DNA, NETMAP (abstract)",
            "20 % to 40 %",
            lowest >= 15.0 && highest <= 45.0,
            found,
        )
        .because("With a tolerance of five points at both ends."),
    );
    for (how, make) in WAYS {
        let lost = grid.of(make(256, 500, 0.6))[2].rate();
        let quantity = format!("A-(256,500,60%), six queues (abstract: without loss), {how}");
        claims.push(Claim::points(quantity, 0.0, lost));
    }
    claims
}

pub(super) fn figure_twelve_claims(grid: &Grid) -> Vec<Claim> {
    let claim = |(how, make): (&str, MakeAdvanced)| {
        let order = [0.9, 0.8, 0.7, 0.6].map(|threshold| make(256, 100, threshold));
        let (_, found) = grid.order(&order);
        let rates = |queues: usize| order.map(|engine| grid.of(engine)[queues].rate()).to_vec();
        let lists: Vec<_> = (0..QUEUES.len()).map(rates).collect();
        let spread = |rates: &Vec<f64>| rates[0] - rates[rates.len() - 1];
        let widest = lists.iter().map(spread).fold(0.0, f64::max);
        Claim::descending(format!("T = 90, 80, 70, 60 %, {how}"), "a lower T loses less", &lists, found).because(
            format!(
                "T = 90 % loses up to {widest:.2} points more than T = 60 %. Under an overload of all handlers, a worker \
                 that helps earlier also leaves its own rings earlier. The paper's axis ends at 18 %."
            ),
        )
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
        run.step(0.0, "the trace")?;
        let traces = QUEUES.map(|queues| Trace::standard(run.seed, queues));
        let grid = Grid::simulate(run, &engines(), &traces, Handler::HEAVY)?;
        let sixty = WAYS.map(|(_, make)| [make(256, 100, 0.6), make(256, 500, 0.6)]);
        // Eight curves can be distinguished.
        let eleven: Vec<EngineModel> =
            RIVALS.into_iter().chain(BASIC).chain([sixty[0][0], sixty[0][1], sixty[1][0]]).collect();
        let twelve: Vec<EngineModel> = WAYS
            .into_iter()
            .flat_map(|(_, make)| THRESHOLDS.map(|threshold| make(256, 100, threshold)))
            .collect();
        let claims = figure_eleven_claims(&grid).into_iter().chain(figure_twelve_claims(&grid)).collect();
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
                    wirecap::grouped(late_rate(&traces[0]))
                ),
                "Under an overload of the whole group, pushed chunks wait in all queues, so all pools fill completely; \
                 the pools of workers that pull fill up to T."
                    .to_owned(),
            ],
            settings: trace_settings(run.seed),
            ..Findings::default()
        }
        .with_lines("figure-11", "Figure 11: drop rate by number of queues, x = 300. A: pushed as in the paper, or pulled as in wirecap.", &grid.lines(&eleven, 50.0))
        .with_lines("figure-12", "Figure 12: the same by threshold T.", &grid.lines(&twelve, 18.0))
        .with_table("figures-11-12-rates", grid.table()))
    }
}

/// Packets per second from 10 s to 32 s.
fn late_rate(trace: &Trace) -> u64 {
    let late = trace.queues.iter().flat_map(Load::times).filter(|time| *time >= 10_000_000_000).count();
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
        run.step(0.0, "the trace")?;
        let traces = QUEUES.map(|queues| Trace::standard(run.seed, queues));
        let advanced = WAYS.into_iter().flat_map(|(_, make)| [make(256, 100, 0.6), make(256, 500, 0.6)]);
        let engines: Vec<EngineModel> = RIVALS[..2].iter().copied().chain(BASIC).chain(advanced).collect();
        let grid = Grid::simulate(run, &engines, &traces, Handler::HEAVY.forwarding())?;
        let mut settings = trace_settings(run.seed);
        settings.push(("sending".to_owned(), "60 cycles a packet (netmap's)".to_owned()));
        Ok(Findings {
            what: "As before, but each packet is sent on when it has been handled; what the receiver behind \
                   does not get is lost. As in the paper, without NETMAP."
                .to_owned(),
            claims: order_claims(&grid, &RIVALS[..2]),
            settings,
            ..Findings::default()
        }
        .with_lines("figure-13", "Drop rate by number of queues, forwarding.", &grid.lines(&engines, 50.0))
        .with_table("figure-13-rates", grid.table()))
    }
}
