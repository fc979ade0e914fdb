//! Load sharing as in the paper compared with wirecap's: capture threads that push, workers that
//! pull.

use std::time::Duration;

use wirecap::Mode;
use wirecap::sim::{Mishap, Sharing};

use crate::experiment::{Basis, Claim, Experiment, Findings, Part, Run, RunError, Table, percents};

use super::engines::{Drops, WireCap};
use super::{HEAVY_HANDLER, Handler, LINE_RATE, Load, heavy_handler, parallel};

/// Push beside pull.
pub(super) struct PushAndPull;

/// The load and the mishaps of a group of workers.
pub(super) struct Scene {
    name: &'static str,
    loads: Vec<Load>,
    mishaps: Vec<Mishap>,
}

impl Scene {
    #[cfg(test)]
    pub(super) fn packets(&self) -> u64 {
        self.loads.iter().map(Load::packets).sum()
    }
}

const SECONDS: f64 = 20.0;
const CHUNK_CELLS: u32 = 256;

/// A constant load, as a multiple of a handler's capacity.
fn even(share: f64) -> Load {
    let rate = share * HEAVY_HANDLER;
    Load::Burst { packets: (rate * SECONDS) as u64, rate }
}

pub(super) fn scenes() -> Vec<Scene> {
    let of = |shares: &[f64]| shares.iter().map(|&share| even(share)).collect();
    let at = Duration::from_secs(2);
    let scene = |name, loads| Scene { name, loads, mishaps: vec![] };
    let stuck = Mishap::Stuck { worker: 0, at, lasting: Duration::from_secs(10) };
    let leaves = Mishap::Leaves { worker: 0, at };

    vec![
        scene(BALANCED, of(&[0.9; 6])),
        scene("one queue at 160 %, one at 20 %", of(&[1.6, 0.2])),
        scene("one at 300 %, five at 20 %", of(&[3.0, 0.2, 0.2, 0.2, 0.2, 0.2])),
        scene(
            "a burst of 20,000 at line rate beside queues at 10 %",
            vec![Load::Burst { packets: 20_000, rate: LINE_RATE }, even(0.1), even(0.1)],
        ),
        scene(OVERLOADED, of(&[2.0, 0.8, 0.8, 0.8])),
        Scene {
            mishaps: vec![stuck],
            ..scene("30 % each, a worker stuck for 10 s", of(&[0.3; 3]))
        },
        Scene { mishaps: vec![leaves], ..scene(ENDING, of(&[1.5, 0.2, 0.2])) },
    ]
}

const ENDING: &str = "one at 150 %, two at 20 %, the first one's worker ends";
const BALANCED: &str = "balanced, 90 % each";
const OVERLOADED: &str = "all together overloaded: one at 200 %, three at 80 %";

pub(super) const WAYS: [Sharing; 2] = [Sharing::Push, Sharing::Pull];

/// The results of each scene, pushed and pulled: by scene, then by seed.
pub(super) struct Played {
    seeds: Vec<u64>,
    drops: Vec<Vec<[Drops; 2]>>,
}

pub(super) fn simulate(run: &Run<'_>, scenes: &[Scene]) -> Result<Played, RunError> {
    let seeds = super::seeds(run, super::OTHER_SEEDS);
    let mut jobs = Vec::new();
    for scene in scenes {
        jobs.extend(seeds.iter().flat_map(|&seed| WAYS.map(|sharing| (scene, sharing, seed))));
    }

    let receive = |(scene, sharing, seed): &(&Scene, Sharing, u64)| {
        let wirecap = WireCap {
            chunk_cells: CHUNK_CELLS,
            chunks: 100,
            mode: Mode::Advanced(0.6),
            sharing: *sharing,
        };
        wirecap.receive(&scene.loads, Handler::HEAVY, *seed, scene.mishaps.clone())
    };
    let drops = parallel::map(run, &jobs, |(scene, ..)| scene.name.to_owned(), receive)?;
    let pairs: Vec<[Drops; 2]> = drops.chunks(2).map(|pair| [pair[0], pair[1]]).collect();

    Ok(Played { drops: pairs.chunks(seeds.len()).map(<[_]>::to_vec).collect(), seeds })
}

/// The group's guarantees, for both ways of sharing load. They are our expectations; the paper
/// states none.
pub(super) fn claims(scenes: &[Scene], played: &Played) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (scene, pairs) in scenes.iter().zip(&played.drops) {
        let always =
            |holds: fn(&Drops, &Drops) -> bool| pairs.iter().all(|[push, pull]| holds(push, pull));
        let numbers = |count: fn(&Drops) -> u64| {
            let [push, pull] =
                [0, 1].map(|way| super::range(pairs.iter().map(|pair| count(&pair[way]))));
            format!("{pull} packets pulled, {push} pushed")
        };
        let lost = || numbers(drops_of);
        claims.push(match scene.name {
            BALANCED => Claim::holds(
                scene.name,
                "neither offloads",
                always(|push, pull| pull.offloaded == 0 && push.offloaded == 0),
                numbers(|drops| drops.offloaded),
            ),
            OVERLOADED => Claim::holds(
                scene.name,
                "both lose, pulling at most 1.1 times what pushing loses",
                always(|push, pull| {
                    push.rate() > 0.0 && pull.rate() > 0.0 && pull.rate() <= 1.1 * push.rate()
                }),
                lost(),
            )
            .because(
                "Pushed chunks wait in the queues of all workers, so that all pools fill. A worker that pulls from a \
                 ring that is nearly full leaves its own packets waiting, up to T.",
            ),
            ENDING => Claim::holds(
                scene.name,
                "pulling loses no more than the chunk in hand",
                always(|_, pull| drops_of(pull) <= CHUNK_CELLS.into()),
                lost(),
            )
            .because("Chunks pushed into the queue of a worker that ends stay there."),
            _ => Claim::holds(
                scene.name,
                "pulling loses nothing",
                always(|_, pull| drops_of(pull) == 0),
                lost(),
            ),
        });
    }
    claims.into_iter().map(|claim| claim.only_shown(Basis::Ours)).collect()
}

fn drops_of(drops: &Drops) -> u64 {
    drops.fate.capture_drops + drops.fate.delivery_drops
}

impl Experiment for PushAndPull {
    fn id(&self) -> &'static str {
        "push-and-pull"
    }

    fn title(&self) -> String {
        "Pushing and pulling chunks".to_owned()
    }

    fn part(&self) -> Part {
        Part::Simulated
    }

    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
        let scenes = scenes();
        let played = simulate(run, &scenes)?;
        let columns = [
            "scene",
            "way",
            "lost",
            "packets lost",
            "offloaded",
            "longest delay",
            "largest backlog",
        ];
        let mut table = Table::new(
            "A-(256,100,60%), 20 s; loads as shares of a handler's capacity; offloaded: share of packets that another worker processed.",
            &columns,
        );
        for (scene, pairs) in scenes.iter().zip(&played.drops) {
            for (place, way) in ["push", "pull"].into_iter().enumerate() {
                let drops = || pairs.iter().map(|pair| pair[place]);
                let rates = |rate: fn(&Drops) -> f64| {
                    percents(&drops().map(|drops| rate(&drops)).collect::<Vec<_>>())
                };
                let longest = drops().map(|drops| drops.longest_delay).max().unwrap_or_default();
                table.row([
                    scene.name.to_owned(),
                    way.to_owned(),
                    rates(Drops::rate),
                    super::range(drops().map(|drops| drops_of(&drops))),
                    rates(Drops::offloaded_rate),
                    format!("{:.3} s", longest.as_secs_f64()),
                    super::range(drops().map(|drops| drops.max_backlog.into())),
                ]);
            }
        }
        Ok(Findings {
            what: "The paper's capture threads push a chunk to the least busy worker when its own queue exceeds \
                   T; wirecap's workers pull chunks from the fullest ring above T, between rounds of their home rings. The paper leaves open \
                   which is better (section 6)."
                .to_owned(),
            claims: claims(&scenes, &played),
            notes: vec![
                "Lost also counts what will never be processed: chunks that were pushed into the queue of a worker \
                 that then ended. The capture threads themselves cost nothing here, which is in favour of \
                 pushing."
                    .to_owned(),
            ],
            settings: vec![
                ("handler".to_owned(), heavy_handler()),
                super::seeds_setting(&played.seeds),
                ("stuck after".to_owned(), "1 s".to_owned()),
            ],
            ..Findings::default()
        }
        .with_table("push-and-pull", table))
    }
}
