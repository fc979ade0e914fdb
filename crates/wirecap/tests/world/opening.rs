//! Opening a capture with its defaults.

use std::time::Instant;

use wirecap::{Capture, Engine};
use wirecap_testbed::{Watch, privileged};

use crate::bed::Bed;

/// Number of times that each engine opens its rings. The times are printed (`--nocapture`) for
/// `docs/performance.md`.
const OPENINGS: usize = 5;

#[test]
fn four_rings_of_a_link_without_a_speed_take_64_mib() {
    if !privileged() {
        return;
    }
    for engine in [Engine::Xdp, Engine::Packet, Engine::Auto] {
        let bed = Bed::new(4);
        for _ in 0..OPENINGS {
            let watch = Watch::begin();
            let begin = Instant::now();
            let capture = bed.open(Capture::on("a1").engine(engine));
            let took = begin.elapsed();
            assert_eq!(capture.rings().len(), 4);
            let pool_bytes: u64 =
                capture.interfaces().iter().map(|interface| interface.pool_bytes).sum();
            assert_eq!(pool_bytes, 64 << 20, "16 MiB for each ring");
            bed.close(capture);
            println!("four rings of {engine:?}: {took:?}, {}", watch.end());
        }
    }
}
