//! Figure 14: two NICs that forward to each other until the system's bus is saturated.
//!
//! The paper names three mechanisms without numbers: the bus carries 20 million packets/s and not
//! 30; WireCAP does more per packet than DNA; large pools cost page-table walks. But its results
//! imply a range for each number. The model uses the middle, so it can only show that these
//! mechanisms produce the curves that the paper describes; it predicts nothing. It does not use the
//! engine's code, which has no bus.

use crate::chart::lines::{Axis, Curve, Lines};
use crate::experiment::{Basis, Claim, Experiment, Findings, Part, Run, RunError, Table, percent};

/// Figure 14.
pub(super) struct FigureFourteen;

const NICS: f64 = 2.0;
pub(super) const QUEUES: [u32; 6] = [1, 2, 3, 4, 5, 6];
/// Bytes on the wire in addition to the frame: preamble, gap.
const OVERHEAD_BYTES: f64 = 20.0;
const WIRE_BITS_PER_SECOND: f64 = 10e9;

/// Packets per second of both NICs at wire rate.
fn offered(frame_bytes: f64) -> f64 {
    NICS * WIRE_BITS_PER_SECOND / 8.0 / (frame_bytes + OVERHEAD_BYTES)
}

/// The number that a result implies: more than `low`, no more than `high`.
#[derive(Debug, Clone, Copy)]
struct Bracket {
    low: f64,
    high: f64,
}

impl Bracket {
    /// The number at `share` of the range from the low end to the high end.
    fn at(self, share: f64) -> f64 {
        self.low + share * (self.high - self.low)
    }
}

/// The capacity of the bus, in packets per second: sufficient for packets of 100 bytes, not of 64.
fn bus_bracket() -> Bracket {
    Bracket { low: offered(100.0), high: offered(64.0) }
}

/// WireCAP's seconds per packet on its one processor: short enough for all packets of 100 bytes,
/// and longer than the bus requires, because DNA loses less with one queue.
fn processor_bracket(bus: f64) -> Bracket {
    Bracket { low: NICS / bus, high: NICS / offered(100.0) }
}

/// Bytes of all pools from which on page-table walks reach memory: with R = 500 five queues are too
/// many, four are not.
fn cover_bracket() -> Bracket {
    Bracket { low: pool_bytes(500, 4), high: pool_bytes(500, 5) }
}

fn pool_bytes(chunks: u32, queues: u32) -> f64 {
    NICS * f64::from(queues) * f64::from(chunks) * 256.0 * 2048.0
}

/// Transfers of a forwarded frame of 64 bytes: into memory, to the processor, out of memory, and
/// four descriptors, four of which make a line. A page-table walk that reaches memory is one more.
const TRANSFERS: f64 = 4.0;

/// One curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contender {
    Dna,
    /// A-(256,R,60%).
    WireCap(u32),
}

impl Contender {
    fn name(self, frame_bytes: u32) -> String {
        match self {
            Self::Dna => format!("DNA, {frame_bytes} bytes"),
            Self::WireCap(chunks) => format!("A-(256,{chunks},60%), {frame_bytes} bytes"),
        }
    }

    /// The drop rate in percent, with the bus at `share` of its range.
    pub(super) fn lost(self, frame_bytes: u32, queues: u32, share: f64) -> f64 {
        let bus = bus_bracket().at(share);
        let limit = match self {
            Self::Dna => bus,
            Self::WireCap(chunks) => {
                let processors = NICS * f64::from(queues) / processor_bracket(bus).at(0.5);
                let walks = (1.0 - cover_bracket().at(0.5) / pool_bytes(chunks, queues)).max(0.0);
                processors.min(bus / (1.0 + walks / TRANSFERS))
            }
        };

        let offered = offered(f64::from(frame_bytes));

        // All packets of 100 bytes pass, even if the middle of a range is below its end.
        let lost = 100.0 * (1.0 - limit / offered);
        lost.max(0.0)
    }
}

const CONTENDERS: [Contender; 3] =
    [Contender::Dna, Contender::WireCap(100), Contender::WireCap(500)];
/// The shares of the range for which the order of the curves is checked.
pub(super) const SHARES: [f64; 3] = [0.25, 0.5, 0.75];

fn curve(contender: Contender, frame_bytes: u32) -> Curve {
    let point = |queues: u32| (f64::from(queues), contender.lost(frame_bytes, queues, 0.5));
    Curve::new(contender.name(frame_bytes), QUEUES.map(point))
}

/// The claims of the text about the curves, for every bus in the band.
pub(super) fn claims() -> Vec<Claim> {
    let always = |holds: &dyn Fn(f64) -> bool| SHARES.into_iter().all(holds);
    let lost = |contender: Contender, queues, share| contender.lost(64, queues, share);
    let dna = CONTENDERS[0];
    let small = CONTENDERS[1];
    let large = CONTENDERS[2];
    let shown =
        |queues| CONTENDERS.map(|contender| percent(contender.lost(64, queues, 0.5))).join(", ");

    let highest = |frame_bytes| {
        let all = CONTENDERS
            .iter()
            .flat_map(|contender| QUEUES.map(|queues| contender.lost(frame_bytes, queues, 0.5)));
        all.fold(0.0, f64::max)
    };
    let reason = "The paper gives no number for bus, work per packet or walks; this is what its results imply.";
    let at_once = |quantity: &str, expected: &str, holds: bool, queues| {
        Claim::holds(quantity, expected, holds, shown(queues)).because("DNA, R = 100, R = 500.")
    };
    let claims = [
        Claim::holds("100 bytes", "no loss", highest(100) == 0.0, percent(highest(100)))
            .because(reason),
        Claim::holds(
            "64 bytes",
            "all lose significantly",
            always(&|share| CONTENDERS.iter().all(|contender| lost(*contender, 6, share) > 5.0)),
            shown(6),
        )
        .because("DNA, R = 100, R = 500."),
        at_once(
            "64 bytes, one queue",
            "WireCAP loses more than DNA",
            always(&|share| lost(small, 1, share) > lost(dna, 1, share)),
            1,
        ),
        at_once(
            "64 bytes, more queues",
            "R = 100 similar to DNA",
            always(&|share| {
                QUEUES[1..].iter().all(|&queues| {
                    (lost(small, queues, share) - lost(dna, queues, share)).abs() < 2.0
                })
            }),
            4,
        ),
        at_once(
            "64 bytes, five and six queues",
            "R = 500 poor",
            always(&|share| {
                [5, 6]
                    .into_iter()
                    .all(|queues| lost(large, queues, share) > lost(small, queues, share))
            }),
            6,
        ),
    ];

    claims.map(|claim| claim.only_shown(Basis::Input)).to_vec()
}

impl Experiment for FigureFourteen {
    fn id(&self) -> &'static str {
        "figure-14"
    }

    fn title(&self) -> String {
        "WireCAP, Figure 14: scalability".to_owned()
    }

    fn part(&self) -> Part {
        Part::Simulated
    }

    fn run(&self, _run: &Run<'_>) -> Result<Findings, RunError> {
        let curves =
            [(Contender::Dna, 64), (CONTENDERS[1], 64), (CONTENDERS[2], 64), (Contender::Dna, 100)];
        let lines = Lines {
            x: Axis::of("receive queues per NIC", &QUEUES.map(f64::from)),
            y: Axis::percent("packet drop rate", 30.0),
            curves: curves.map(|(contender, frame_bytes)| curve(contender, frame_bytes)).to_vec(),
        };
        let bus = bus_bracket();
        let columns = ["number", "from", "to", "taken"];
        let mut table = Table::new("The numbers that the paper's results imply.", &columns);
        let mut row = |name: &str, bracket: Bracket, scale: f64, unit: &str| {
            let number = |value: f64| format!("{:.1} {unit}", value / scale);
            let ends = [bracket.low, bracket.high, bracket.at(0.5)].map(number);
            table.row(std::iter::once(name.to_owned()).chain(ends));
        };
        row("the bus", bus, 1e6, "million packets/s");
        row("WireCAP's processor", processor_bracket(bus.at(0.5)), 1e-9, "ns a packet");
        row("pools that page tables cover", cover_bracket(), 1e9, "GB");
        Ok(Findings {
            what: "Two NICs at line rate forward to each other, x = 0, until the system's bus is saturated."
                .to_owned(),
            claims: claims(),
            notes: vec![
                "This is not a reproduction. The paper names the saturated part without numbers, so the model uses \
                 the middle of the range that its results imply. The comparisons below are those results, so they count as \
                 inputs; they are checked for the whole middle half of that range."
                    .to_owned(),
            ],
            ..Findings::default()
        }
        .with_lines("figure-14", "Drop rate by queues per NIC.", &lines)
        .with_table("figure-14-numbers", table))
    }
}
