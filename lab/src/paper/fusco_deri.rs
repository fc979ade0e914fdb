//! Tables 2 and 3 of Fusco and Deri, as far as a model can reproduce them: two stages, a copying
//! kernel and a counting application, on one processor each.

use wirecap::grouped;

use crate::experiment::{Basis, Claim, Experiment, Findings, Part, Run, RunError, Table};

/// Tables 2 and 3.
pub(super) struct TablesTwoAndThree;

/// 1 Gbit/s of the smallest frames, in thousands of packets per second.
const WIRE_KPPS: f64 = 1488.0;

/// A platform of Table 2, in thousands of packets per second as printed.
struct Platform {
    name: &'static str,
    /// One thread, one queue.
    one_thread: f64,
    /// Setups A, B and C.
    setups: [f64; 3],
}

const PLATFORMS: [Platform; 2] = [
    Platform { name: "low-end", one_thread: 721.0, setups: [640.0, 610.0, 1264.0] },
    Platform { name: "high-end", one_thread: 1326.0, setups: [1100.0, 708.0, 1488.0] },
];

/// Setup C: compared with one thread that executes both stages in turn, two concurrent threads are
/// at most twice as fast, and no faster than the wire.
fn two_stages(one_thread: f64) -> f64 {
    (2.0 * one_thread).min(WIRE_KPPS)
}

fn kpps(thousands: f64) -> String {
    format!("{} kpps", grouped(thousands as u64))
}

pub(super) fn claims() -> Vec<Claim> {
    let mut claims = vec![
        Claim::not_modelled(
            "Table 2, setup A",
            "640 and 1,100 kpps",
            "Slower than one thread because two threads share the cache lines of a lock; the paper has no number for \
             those.",
        ),
        Claim::not_modelled(
            "Table 2, setup B",
            "610 and 708 kpps",
            "Slower than one thread because interrupts move between processors; the paper has no number for that.",
        ),
    ];
    for Platform { name, one_thread, setups } in PLATFORMS {
        let bound = two_stages(one_thread);
        let printed = setups[2];
        // Between the rate of one thread and the bound, nearer to the bound.
        let holds = printed <= bound && printed > (one_thread + bound) / 2.0;
        claims.push(
            Claim::holds(
                format!("Table 2, {name}, setup C"),
                kpps(printed),
                holds,
                format!("at most {}", kpps(bound)),
            )
            .only_shown(Basis::Bound)
            .because(if bound >= WIRE_KPPS {
                "Two stages at once would do more than the wire carries."
            } else {
                "Two stages at once, if both take half of what one thread takes for both; the slower one \
                 decides."
            }),
        );
    }
    claims.push(Claim::not_modelled(
        "Table 3, tests 1 and 2",
        "1,032 to 1,290 kpps",
        "The paper's explanations are threads that move between processors, and capture threads that find so few \
         packets that they sleep too often; it has no number for either.",
    ));
    let each = two_stages(PLATFORMS[1].one_thread);
    claims.push(
        Claim::holds(
            "Table 3, test 3",
            "1,488 kpps on each NIC",
            each == WIRE_KPPS,
            format!("at most {}", kpps(each)),
        )
        .only_shown(Basis::Bound)
        .because("Each NIC has a core of its own, so each is setup C of Table 2."),
    );
    claims
}

impl Experiment for TablesTwoAndThree {
    fn id(&self) -> &'static str {
        "fusco-deri"
    }

    fn title(&self) -> String {
        "Fusco and Deri, Tables 2 and 3: two threads".to_owned()
    }

    fn part(&self) -> Part {
        Part::Simulated
    }

    fn run(&self, _run: &Run<'_>) -> Result<Findings, RunError> {
        let columns =
            ["platform", "one thread", "A: a lock", "B: two queues", "C: TNAPI", "C, bound"];
        let mut table =
            Table::new("Table 2, in thousands of packets per second, as printed.", &columns);
        for Platform { name, one_thread, setups } in PLATFORMS {
            let numbers =
                [one_thread, setups[0], setups[1], setups[2]].map(|kpps| grouped(kpps as u64));
            let model = format!("at most {}", grouped(two_stages(one_thread) as u64));
            table.row(std::iter::once(name.to_owned()).chain(numbers).chain([model]));
        }
        Ok(Findings {
            what: "The highest rate without loss of a capture whose kernel copies: in one thread, in two that \
                   share a queue, in two with a queue each, and with a kernel thread per queue that polls (TNAPI)."
                .to_owned(),
            claims: claims(),
            notes: vec![
                "Nothing is simulated here. The bounds follow from the order of work: two stages at once are at most \
                 twice as fast as one thread that does both. The costs of locks, of interrupts that move and of \
                 sleeping are properties of the machines. wirecap has none of the three by its design (one reader per \
                 ring, memory shared with the kernel); the live experiments measure it."
                    .to_owned(),
            ],
            ..Findings::default()
        }
        .with_table("fusco-deri-table-2", table))
    }
}
