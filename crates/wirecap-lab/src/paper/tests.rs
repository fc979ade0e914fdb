//! The required agreement between paper and simulation.
//!
//! In a debug build the engine checks every posted cell, and a packet takes ten times as long. So a debug build
//! runs a part of the trace; `make models` runs all of it in a release build.

use std::time::Duration;

use super::*;
use crate::experiment::{Claim, Effort, Experiment, Run, Unwatched, Verdict};

const SEED: u64 = 1;

fn run(effort: Effort) -> Run<'static> {
    Run { effort, seed: SEED, watch: &Unwatched }
}

fn check(claims: &[Claim]) {
    assert!(!claims.is_empty());
    for claim in claims {
        assert_ne!(claim.verdict, Verdict::Differs, "{claim:#?}");
    }
}

#[test]
fn table_1_is_within_five_points() {
    let found = table_one::simulate(&run(Effort::Quick)).unwrap();
    let claims = table_one::claims(&found);
    check(&claims);
    // The underivable results are listed, and there are no others.
    let open: Vec<&str> = claims
        .iter()
        .filter(|claim| claim.verdict == Verdict::NotDerivable)
        .map(|claim| claim.quantity.as_str())
        .collect();
    assert_eq!(open, ["NETMAP, queue 3: capture drops", "PF_RING, x = 0, queue 3"]);
}

#[test]
fn other_seeds_of_the_trace_give_the_same_table_1() {
    for seed in [2, 3] {
        let found = table_one::simulate(&Run { seed, ..run(Effort::Quick) }).unwrap();
        check(&table_one::claims(&found));
    }
}

#[test]
fn bursts_are_lost_as_figure_9_says() {
    let curves = bursts::Curves::simulate(
        &run(Effort::Quick),
        &bursts::FIGURE_NINE,
        &[6_000, 100_000],
        Handler::HEAVY,
    );
    let claims = bursts::figure_nine_claims(&curves.unwrap(), bursts::largest_lossless_burst(SEED));
    check(&claims);
    let open = claims.iter().filter(|claim| claim.verdict == Verdict::NotDerivable).count();
    assert_eq!(open, 1, "DNA at P = 6,000 alone cannot be derived");
}

#[test]
fn only_the_pools_size_counts() {
    let bursts = &[20_000, 26_000, 50_000, 100_000];
    let curves = bursts::Curves::simulate(&run(Effort::Quick), &bursts::FIGURE_TEN, bursts, Handler::HEAVY);
    check(&[bursts::figure_ten_claim(&curves.unwrap())]);
}

#[test]
fn every_bus_that_the_paper_implies_gives_its_figure_14() {
    check(&scalability::claims());
}

#[test]
fn the_derivable_results_of_fusco_and_deri_hold() {
    check(&fusco_deri::claims());
}

#[test]
fn pulling_loses_no_more_than_pushing() {
    let mut scenes = sharing::scenes();
    if cfg!(debug_assertions) {
        scenes.retain(|scene| scene.packets() < 1_000_000);
    }
    assert!(!scenes.is_empty());
    let drops = sharing::simulate(&run(Effort::Quick), &scenes).unwrap();
    check(&sharing::claims(&scenes, &drops));
}

/// Long-term imbalance begins at 10 s; two seconds of it fill the smaller pools.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "the whole trace is tried")]
fn the_order_of_figures_11_and_12_shows_early() {
    let part = Duration::from_millis(9_800)..Duration::from_secs(12);
    let traces = [Trace::standard_part(SEED, 4, part)];
    let basic = imbalance::BASIC[0];
    for (how, make) in imbalance::WAYS {
        let engines = [basic, make(256, 100, 0.9), make(256, 100, 0.6), make(256, 500, 0.6)];
        let grid = imbalance::Grid::simulate(&run(Effort::Quick), &engines, &traces, Handler::HEAVY).unwrap();
        let (holds, found) = grid.order(&engines);
        assert!(holds, "{how}: {found}");
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes in a debug build")]
fn figures_11_to_13_are_as_the_paper_says() {
    let traces = imbalance::QUEUES.map(|queues| Trace::standard(SEED, queues));
    let grid = imbalance::Grid::simulate(&run(Effort::Quick), &imbalance::engines(), &traces, Handler::HEAVY)
        .unwrap();
    check(&imbalance::figure_eleven_claims(&grid));
    let twelve = imbalance::figure_twelve_claims(&grid);
    check(&twelve[..1]);
    // A finding: if workers pull and the whole group is overloaded, a lower T loses slightly more.
    assert_eq!(twelve[1].verdict, Verdict::Differs, "{:#?}", twelve[1]);
    assert!(twelve[1].quantity.ends_with("pulled"));
    check(&imbalance::FigureThirteen.run(&run(Effort::Quick)).unwrap().claims);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes in a debug build")]
fn figure_8_is_as_the_paper_says() {
    check(&bursts::FigureEight.run(&run(Effort::Quick)).unwrap().claims);
}

#[test]
fn the_same_seed_finds_the_same_and_another_one_does_not() {
    let of = |seed| imbalance::FigureThree.run(&Run { seed, ..run(Effort::Quick) }).unwrap();
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}
