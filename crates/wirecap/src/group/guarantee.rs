//! When a group in advanced mode loses nothing: the pools must suffice until all its workers help.

use std::fmt;
use std::time::Duration;

use wirecap_units::size::grouped;

use crate::umem::pool::Geometry;

/// The settings that decide whether a group loses packets under a load that it can process, however
/// the load is distributed over its rings.
///
/// A ring to which up to λ packets per second arrive loses nothing, while the group's load is at
/// most 0.9 of its workers' capacity, if
///
/// > (1 - T) u R M ≥ W M + λ ((h + 1) M c + w)
///
/// with W workers of up to h home rings each, c per packet, w = [`WAKE_BOUND`](Self::WAKE_BOUND),
/// and u = 1, or [`USABLE_IN_BLOCKS`](Self::USABLE_IN_BLOCKS) with the engine `packet`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guarantee {
    /// M and R.
    pub geometry: Geometry,
    /// u: the share of a pool that the kernel fills without a risk of loss.
    pub usable: f64,
    /// T, as a share of the usable part of the pool.
    pub threshold: f64,
    /// W: the number of workers that share the load.
    pub workers: usize,
    /// h: the maximum number of home rings of a worker.
    pub home_rings: usize,
    /// c: a worker's time per packet, which includes the engine's own.
    pub cost: Duration,
}

/// What a [`Guarantee`] lacks to cover every distribution of a load that the group can process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shortfall {
    /// The packets per second that one ring may receive.
    pub ring_rate: f64,
    /// The packets per second that the group may receive: in the worst case all by one ring.
    pub group_rate: f64,
    /// The chunks that a ring's pool needs for this load; `None` if T leaves no room.
    pub chunks_needed: Option<u32>,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ring, group] = [self.ring_rate, self.group_rate].map(|rate| grouped(rate as u64));
        write!(
            f,
            "a ring that receives more than {ring} packets per second may lose some, although the workers can process {group}; "
        )?;
        match self.chunks_needed {
            Some(chunks) => {
                write!(f, "use a pool of {} chunks or a lower threshold", grouped(chunks.into()))
            }
            None => write!(f, "use a lower threshold"),
        }
    }
}

impl Guarantee {
    /// w: the maximum time until a waiting worker serves a ring above T whose own worker does not
    /// sleep: a sleep of up to a millisecond, and a millisecond for the kernel to schedule the
    /// worker.
    pub const WAKE_BOUND: Duration = Duration::from_millis(2);

    /// u of the engine `packet`: if less than a quarter of a ring of blocks is free, the kernel may
    /// drop a packet while it closes a block and opens the next (`__tpacket_v3_has_room`, since
    /// Linux 5.3).
    pub const USABLE_IN_BLOCKS: f64 = crate::umem::ring::USABLE_IN_BLOCKS;

    /// The maximum load of the group, as a share of its workers' capacity.
    pub const LOAD: f64 = 0.9;

    /// The packets per second that the whole group may receive.
    pub fn group_rate(&self) -> f64 {
        Self::LOAD * self.workers as f64 / self.cost.as_secs_f64()
    }

    /// λ: the packets per second that one ring may receive.
    pub fn ring_rate(&self) -> f64 {
        let room = self.above_threshold() * f64::from(self.geometry.cells()) - self.held();
        (room / self.delay()).max(0.0)
    }

    /// Whether a ring to which `rate` packets per second arrive loses nothing.
    pub fn holds_for(&self, rate: f64) -> bool {
        rate <= self.ring_rate()
    }

    /// R: the smallest number of chunks in a ring's pool with which `rate` packets per second are
    /// not lost; `None` if T leaves no room.
    pub fn chunks_for(&self, rate: f64) -> Option<u32> {
        let cells = (self.held() + rate * self.delay()) / self.above_threshold();
        let chunks = (cells / f64::from(self.geometry.chunk_cells)).ceil();
        (chunks < f64::from(u32::MAX)).then_some(chunks as u32)
    }

    /// The packets per second that one ring may receive, and the chunks that its pool needs for the
    /// group's full capacity; `None` if the pool suffices.
    pub fn shortfall(&self) -> Option<Shortfall> {
        let ring_rate = self.ring_rate();
        let group_rate = self.group_rate();
        (ring_rate < group_rate).then(|| Shortfall {
            ring_rate,
            group_rate,
            chunks_needed: self.chunks_for(group_rate),
        })
    }

    /// The share of a pool that is above T and usable.
    fn above_threshold(&self) -> f64 {
        #[cfg(sabotage)]
        if crate::sabotage::is("guarantee-without-threshold") {
            return 2.0 * self.usable;
        }
        (1.0 - self.threshold) * self.usable
    }

    /// Cells of a ring that workers may hold.
    fn held(&self) -> f64 {
        self.workers as f64 * f64::from(self.geometry.chunk_cells)
    }

    /// Seconds until all workers serve a ring.
    fn delay(&self) -> f64 {
        let chunk = f64::from(self.geometry.chunk_cells) * self.cost.as_secs_f64();
        (self.home_rings as f64 + 1.0).mul_add(chunk, Self::WAKE_BOUND.as_secs_f64())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn guarantee(chunk_cells: u32, chunks: u32, cost_micros: u64) -> Guarantee {
        Guarantee {
            geometry: Geometry { chunk_cells, chunks, cell_bytes: 2048 },
            usable: 1.0,
            threshold: 0.6,
            workers: 2,
            home_rings: 1,
            cost: Duration::from_micros(cost_micros),
        }
    }

    #[test]
    fn the_rate_and_the_chunks_are_two_sides_of_one_condition() {
        // 0.4 x 12,800 cells, less 128 in hand: 4,992 in 6.4 ms + 2 ms.
        let deep = guarantee(64, 200, 50);
        assert!((deep.ring_rate() - 4992.0 / 0.0084).abs() < 1.0, "{}", deep.ring_rate());
        assert!((deep.group_rate() - 36_000.0).abs() < 1e-6);
        assert!(deep.holds_for(36_000.0));
        let chunks = deep.chunks_for(36_000.0).unwrap();
        let of = |chunks| Guarantee { geometry: Geometry { chunks, ..deep.geometry }, ..deep };
        assert!(of(chunks).holds_for(36_000.0) && !of(chunks - 1).holds_for(36_000.0));
    }

    #[test]
    fn a_ring_of_blocks_needs_a_third_more_chunks() {
        let cells = guarantee(64, 150, 50);
        let blocks = Guarantee {
            usable: Guarantee::USABLE_IN_BLOCKS,
            geometry: Geometry { chunks: 200, ..cells.geometry },
            ..cells
        };
        assert!(
            (blocks.ring_rate() - cells.ring_rate()).abs() < 1e-6,
            "{} {}",
            blocks.ring_rate(),
            cells.ring_rate()
        );

        assert_eq!((cells.chunks_for(36_000.0), blocks.chunks_for(36_000.0)), (Some(17), Some(23)));
    }

    #[test]
    fn a_shortfall_names_the_missing_chunks() {
        assert_eq!(guarantee(64, 200, 50).shortfall(), None);
        let shallow = guarantee(256, 8, 50).shortfall().unwrap();
        let text = "a ring that receives more than 11,130 packets per second may lose some, although the workers can \
                    process 36,000; use a pool of 15 chunks or a lower threshold";
        assert_eq!(shallow.to_string(), text);
    }

    #[test]
    fn no_room_above_the_threshold_is_no_guarantee() {
        let none = Guarantee { threshold: 1.0, ..guarantee(64, 200, 50) };
        assert_eq!((none.ring_rate(), none.chunks_for(1.0)), (0.0, None));
        assert_eq!(guarantee(64, 5, 50).ring_rate(), 0.0);
    }
}
