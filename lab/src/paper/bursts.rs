//! Figures 8, 9 and 10: P packets at line rate onto one queue.

use crate::chart::lines::{Axis, Curve, Lines, Point};
use crate::experiment::{
    Basis, Claim, Effort, Experiment, Findings, Part, Run, RunError, Table, percent, percents,
};

use super::engines::{Drops, EngineModel};
use super::{HEAVY_HANDLER, Handler, LINE_RATE, Load, RING, heavy_handler, parallel};

/// Figure 8: x = 0.
pub(super) struct FigureEight;
/// Figure 9: x = 300.
pub(super) struct FigureNine;
/// Figure 10: R and M vary, R x M is constant.
pub(super) struct FigureTen;

/// The numbers of packets: the paper's axis, and the two in its text.
const BURSTS: [u64; 14] = [
    1_000, 2_000, 5_000, 6_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000, 10_000_000,
];

fn bursts(effort: Effort) -> &'static [u64] {
    effort.choose(&BURSTS[..11], &BURSTS)
}

/// The engines' losses of bursts.
pub(super) struct Curves {
    engines: Vec<EngineModel>,
    bursts: &'static [u64],
    seeds: Vec<u64>,
    /// By engine, by burst, then by seed.
    drops: Vec<Vec<Vec<Drops>>>,
}

impl Curves {
    pub(super) fn simulate(
        run: &Run<'_>,
        engines: &[EngineModel],
        bursts: &'static [u64],
        handler: Handler,
    ) -> Result<Self, RunError> {
        let seeds = super::seeds(run, super::OTHER_SEEDS);
        let mut jobs = Vec::new();

        for &engine in engines {
            jobs.extend(
                bursts
                    .iter()
                    .flat_map(|&packets| seeds.iter().map(move |&seed| (engine, packets, seed))),
            );
        }

        let name = |(engine, packets, _): &(EngineModel, u64, u64)| {
            format!("{engine}, {} packets", wirecap::grouped(*packets))
        };
        let drops = parallel::map(run, &jobs, name, |&(engine, packets, seed)| {
            engine.receive(&[Load::Burst { packets, rate: LINE_RATE }], handler, seed)
        })?;
        let of_engine =
            |drops: &[Drops]| drops.chunks(seeds.len()).map(<[Drops]>::to_vec).collect();
        let drops = drops.chunks(bursts.len() * seeds.len()).map(of_engine).collect();

        Ok(Self { engines: engines.to_vec(), bursts, seeds, drops })
    }

    /// The losses of `engine` of a burst of `packets`, by seed.
    pub(super) fn of(&self, engine: EngineModel, packets: u64) -> &[Drops] {
        let curve = self
            .engines
            .iter()
            .position(|other| *other == engine)
            .expect("an engine of this figure");
        let point =
            self.bursts.iter().position(|other| *other == packets).expect("a burst of this figure");
        &self.drops[curve][point]
    }

    fn rates(&self, engine: EngineModel, packets: u64) -> Vec<f64> {
        self.of(engine, packets).iter().map(Drops::rate).collect()
    }

    fn highest(&self, engine: EngineModel) -> f64 {
        let rates = self.bursts.iter().flat_map(|&packets| self.rates(engine, packets));
        rates.fold(0.0, f64::max)
    }

    /// The largest difference between engines, or seeds, at the same burst.
    pub(super) fn widest(&self) -> f64 {
        let width = |point: usize| {
            let rates =
                || self.drops.iter().flat_map(move |curve| curve[point].iter().map(Drops::rate));
            rates().fold(0.0, f64::max) - rates().fold(100.0, f64::min)
        };
        (0..self.bursts.len()).map(width).fold(0.0, f64::max)
    }

    fn lines(&self) -> Lines {
        let points = |engine| {
            self.bursts
                .iter()
                .filter_map(move |&packets| Point::of(packets as f64, &self.rates(engine, packets)))
        };
        let curve = |&engine: &EngineModel| Curve {
            points: points(engine).collect(),
            ..Curve::new(engine.to_string(), [])
        };
        Lines {
            x: Axis::log("number of packets P"),
            y: Axis::percent("packet drop rate", 100.0),
            curves: self.engines.iter().map(curve).collect(),
        }
    }

    fn table(&self) -> Table {
        let names: Vec<String> = self.engines.iter().map(ToString::to_string).collect();
        let columns: Vec<&str> =
            std::iter::once("P").chain(names.iter().map(String::as_str)).collect();
        let mut table = Table::new("Packet drop rate by number of packets.", &columns);
        for &packets in self.bursts {
            let rates = self.engines.iter().map(|&engine| percents(&self.rates(engine, packets)));
            table.row(std::iter::once(wirecap::grouped(packets)).chain(rates));
        }
        table
    }

    fn settings(&self, handler: Handler) -> Vec<(String, String)> {
        let mut settings = settings(handler);
        settings.push(super::seeds_setting(&self.seeds));
        settings
    }
}

fn settings(handler: Handler) -> Vec<(String, String)> {
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![
        setting("traffic", "P frames of 64 bytes at 14.88 million/s onto one queue"),
        setting("receive ring", "1,024"),
        setting("PF_RING's buffer", "10,240"),
        setting("PF_RING's copy", "5,680 cycles at 2.4 GHz (WinPcap's, whole path)"),
        (
            "handler".to_owned(),
            format!("{} ns a packet", wirecap::grouped(handler.nanos.round() as u64)),
        ),
    ]
}

const WIRECAP_IDLE: [EngineModel; 4] = [
    EngineModel::basic(64, 100),
    EngineModel::basic(128, 100),
    EngineModel::basic(256, 100),
    EngineModel::basic(256, 500),
];

impl Experiment for FigureEight {
    fn id(&self) -> &'static str {
        "figure-8"
    }

    fn title(&self) -> String {
        "WireCAP, Figure 8: bursts at line rate, x = 0".to_owned()
    }

    fn part(&self) -> Part {
        Part::Simulated
    }

    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
        let rivals = [EngineModel::Dna, EngineModel::PF_RING, EngineModel::NETMAP];
        let engines: Vec<EngineModel> = rivals.into_iter().chain(WIRECAP_IDLE).collect();
        let curves = Curves::simulate(run, &engines, bursts(run.effort), Handler::IDLE)?;

        let lost_nothing = |who: &str, engines: &[EngineModel]| {
            let lost = engines.iter().map(|&engine| curves.highest(engine)).fold(0.0, f64::max);
            Claim::holds(format!("{who}, x = 0"), "no drops at any P", lost == 0.0, percent(lost))
        };
        let wirecap = lost_nothing("WireCAP", &WIRECAP_IDLE);
        let mapped = lost_nothing("DNA, NETMAP", &[EngineModel::Dna, EngineModel::NETMAP])
            .only_shown(Basis::Bound)
            .because(super::UNABLE_TO_LOSE);
        let last = *curves.bursts.last().expect("there are bursts");

        // The model of PF_RING has no randomness.
        let copied = curves.of(EngineModel::PF_RING, last)[0];
        let found =
            format!("{} and {}", percent(copied.capture_rate()), percent(copied.delivery_rate()));
        let both =
            copied.rate() > 5.0 && copied.fate.capture_drops > 0 && copied.fate.delivery_drops > 0;
        let copied = Claim::holds(
            "PF_RING, x = 0",
            "significant capture and delivery drops",
            both,
            found,
        )
        .because(
            "While the kernel copies without a pause, the application gets no CPU time: livelock.",
        );

        Ok(Findings {
            what: "P packets at line rate, and a handler without work: can an engine capture at line rate?"
                .to_owned(),
            claims: vec![wirecap, mapped, copied],
            settings: curves.settings(Handler::IDLE),
            ..Findings::default()
        }
        .with_lines("figure-8", "Drop rate by burst, x = 0.", &curves.lines()))
    }
}

pub(super) const FIGURE_NINE: [EngineModel; 5] = [
    EngineModel::Dna,
    EngineModel::PF_RING,
    EngineModel::NETMAP,
    EngineModel::basic(256, 100),
    EngineModel::basic(256, 500),
];

/// The claims of the text about Figure 9; `largest_lossless` are the longest bursts without loss,
/// by seed.
pub(super) fn figure_nine_claims(curves: &Curves, largest_lossless: &[u64]) -> Vec<Claim> {
    let of = |engine, packets: u64, printed| {
        let quantity = format!("{engine}, P = {}", wirecap::grouped(packets));
        Claim::points(quantity, printed, &curves.rates(engine, packets))
    };
    let capacity = burst_capacity();
    let least = largest_lossless.iter().min();
    let most = largest_lossless.iter().max();
    let [least, most] = [least, most].map(|packets| packets.copied().unwrap_or_default());
    let is_near = |packets: u64| (0.98..=1.02).contains(&(packets as f64 / capacity));
    let found = format!("{} packets", super::range(largest_lossless.iter().copied()));
    vec![
        of(EngineModel::basic(256, 500), 100_000, 0.0),
        of(EngineModel::basic(256, 100), 100_000, 71.0)
            .because(format!(
                "The pool has {} cells, and the handler processes {} packets during the burst: {} by arithmetic.",
                wirecap::grouped(POOL_CELLS as u64),
                wirecap::grouped(handled_during(100_000.0) as u64),
                percent((1.0 - (POOL_CELLS + handled_during(100_000.0)) / 100_000.0) * 100.0),
            )),
        of(EngineModel::Dna, 6_000, 15.0).not_derivable(format!(
            "{} descriptors and the {} packets that are processed during the burst keep {} of 6,000. A loss of 15 % \
             requires room for {}: a larger ring than published, or a slower burst.",
            wirecap::grouped(RING as u64),
            wirecap::grouped(handled_during(6_000.0) as u64),
            wirecap::grouped((RING as f64 + handled_during(6_000.0)) as u64),
            wirecap::grouped((6_000.0 * 0.85) as u64),
        )),
        Claim::holds(
            "largest burst without loss, B-(256,100)",
            format!("R M Pin / (Pin - Pp) = {} packets", wirecap::grouped(capacity as u64)),
            is_near(least) && is_near(most),
            found,
        ),
    ]
}

/// R x M of B-(256,100).
const POOL_CELLS: f64 = 25_600.0;

/// Packets that the handler processes while a burst of this many arrives at line rate.
fn handled_during(packets: f64) -> f64 {
    (packets / LINE_RATE * HEAVY_HANDLER).round()
}

/// The paper's formula (section 3.2.2) for B-(256,100) at line rate.
fn burst_capacity() -> f64 {
    POOL_CELLS * LINE_RATE / (LINE_RATE - HEAVY_HANDLER)
}

/// The longest burst of which B-(256,100) loses nothing, by bisection.
pub(super) fn largest_lossless_burst(seed: u64) -> u64 {
    let is_lossless = |packets| {
        let load = Load::Burst { packets, rate: LINE_RATE };
        EngineModel::basic(256, 100).receive(&[load], Handler::HEAVY, seed).fate.capture_drops == 0
    };
    let mut lossless = 1;
    let mut lossy = 100_000;
    while lossy - lossless > 1 {
        let middle = u64::midpoint(lossless, lossy);
        if is_lossless(middle) { lossless = middle } else { lossy = middle }
    }
    lossless
}

impl Experiment for FigureNine {
    fn id(&self) -> &'static str {
        "figure-9"
    }

    fn title(&self) -> String {
        "WireCAP, Figure 9: bursts at line rate, x = 300".to_owned()
    }

    fn part(&self) -> Part {
        Part::Simulated
    }

    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
        let curves = Curves::simulate(run, &FIGURE_NINE, bursts(run.effort), Handler::HEAVY)?;
        let largest_lossless: Vec<u64> =
            curves.seeds.iter().map(|&seed| largest_lossless_burst(seed)).collect();

        Ok(Findings {
            what: format!(
                "P packets at line rate, and a handler of {}: how large a burst can an engine keep?",
                heavy_handler()
            ),
            claims: figure_nine_claims(&curves, &largest_lossless),
            settings: curves.settings(Handler::HEAVY),
            ..Findings::default()
        }
        .with_lines("figure-9", "Drop rate by burst, x = 300.", &curves.lines())
        .with_table("figure-9-rates", curves.table()))
    }
}

pub(super) const FIGURE_TEN: [EngineModel; 3] =
    [EngineModel::basic(64, 400), EngineModel::basic(128, 200), EngineModel::basic(256, 100)];

/// The claims of the text about Figure 10.
pub(super) fn figure_ten_claim(curves: &Curves) -> Claim {
    let widest = curves.widest();
    let found = format!("{widest:.2} points apart at most");
    Claim::holds(
        "R x M = 25,600, whatever R and M",
        "approximately the same drop rates",
        widest <= 1.0,
        found,
    )
}

impl Experiment for FigureTen {
    fn id(&self) -> &'static str {
        "figure-10"
    }

    fn title(&self) -> String {
        "WireCAP, Figure 10: only R x M counts".to_owned()
    }

    fn part(&self) -> Part {
        Part::Simulated
    }

    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
        let curves = Curves::simulate(run, &FIGURE_TEN, bursts(run.effort), Handler::HEAVY)?;
        Ok(Findings {
            what: "The same bursts, and the same pool of 25,600 cells in chunks of three sizes."
                .to_owned(),
            claims: vec![figure_ten_claim(&curves)],
            settings: curves.settings(Handler::HEAVY),
            ..Findings::default()
        }
        .with_lines(
            "figure-10",
            "Drop rate by burst; R x M is the same in all curves.",
            &curves.lines(),
        )
        .with_table("figure-10-rates", curves.table()))
    }
}
