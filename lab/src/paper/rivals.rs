//! Models of the engines with which the WireCAP paper compares WireCAP, as described in its section
//! 2.1, for the packets of one receive queue whose handler has a separate processor.

use std::collections::VecDeque;

/// The account of the packets of one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fate {
    /// Packets that arrived.
    pub packets: u64,
    /// Packet capture drops: no descriptor was ready.
    pub capture_drops: u64,
    /// Packet delivery drops: captured, but the application's buffer was full.
    pub delivery_drops: u64,
}

/// PF_RING: the kernel copies each packet from the NIC's ring into a larger buffer, from which the
/// application reads. Both run on one processor, and the kernel has priority, which causes receive
/// livelock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TypeOne {
    /// Descriptors of the NIC's ring.
    pub ring: usize,
    /// Capacity of the buffer in packets.
    pub buffer: usize,
    /// The kernel's nanoseconds per packet.
    pub copy_nanos: f64,
    /// The application's.
    pub handler_nanos: f64,
}

/// The state of [`TypeOne`].
struct Copying {
    engine: TypeOne,
    fate: Fate,
    /// The times at which the packets in the NIC's ring will have been copied.
    copied_at: VecDeque<f64>,
    /// The time at which the kernel has copied all packets.
    kernel_idle_at: f64,
    /// Packets in the buffer, including the one that is being processed.
    buffered: usize,
    /// The processing time that the current packet has already had.
    spent: f64,
    now: f64,
}

impl TypeOne {
    /// The account of packets that arrive at `times`, in nanoseconds.
    pub fn receive(self, times: impl Iterator<Item = u64>) -> Fate {
        let mut copying = Copying {
            engine: self,
            fate: Fate::default(),
            copied_at: VecDeque::new(),
            kernel_idle_at: 0.0,
            buffered: 0,
            spent: 0.0,
            now: 0.0,
        };
        times.for_each(|time| copying.arrive(time as f64));
        copying.go_on_until(f64::INFINITY);
        copying.fate
    }
}

impl Copying {
    fn arrive(&mut self, time: f64) {
        self.go_on_until(time);
        self.fate.packets += 1;
        if self.copied_at.len() == self.engine.ring {
            self.fate.capture_drops += 1;
            return;
        }
        self.kernel_idle_at = self.kernel_idle_at.max(time) + self.engine.copy_nanos;
        self.copied_at.push_back(self.kernel_idle_at);
    }

    /// Copies all waiting packets, and then runs the application until `now`. No packets arrive
    /// before that.
    fn go_on_until(&mut self, time: f64) {
        while self.copied_at.front().is_some_and(|copied| *copied <= time) {
            self.copied_at.pop_front();
            if self.buffered == self.engine.buffer {
                self.fate.delivery_drops += 1;
            } else {
                self.buffered += 1;
            }
        }

        let from = self.now.max(self.kernel_idle_at);
        self.now = time;

        if from < time {
            self.handle_for(time - from);
        }
    }

    fn handle_for(&mut self, nanos: f64) {
        let packets = ((self.spent + nanos) / self.engine.handler_nanos).floor();
        if packets >= self.buffered as f64 {
            (self.buffered, self.spent) = (0, 0.0);
        } else {
            self.buffered -= packets as usize;
            self.spent += nanos - packets * self.engine.handler_nanos;
        }
    }
}

/// When a ring that the application reads in place gets its descriptors back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// After each packet: DNA.
    EachPacket,
    /// All found descriptors at once, when their packets have been processed and the application
    /// requests more from the kernel: netmap's NIOCRXSYNC (Rizzo, USENIX ATC 2012, section 4).
    EachSync,
}

/// DNA and netmap: the application reads packets in the NIC's ring, which is the only buffer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TypeTwo {
    /// Descriptors of the NIC's ring.
    pub ring: usize,
    /// When they are reused.
    pub release: Release,
    /// The application's nanoseconds per packet.
    pub handler_nanos: f64,
}

impl TypeTwo {
    /// The account of packets that arrive at `times`, in nanoseconds.
    pub fn receive(self, times: impl Iterator<Item = u64>) -> Fate {
        let mut fate = Fate::default();

        // Number of packets in the ring, and of those that are released at `released_at`.
        let mut used = 0_usize;
        let mut in_hand = 0_usize;
        let mut released_at = 0.0_f64;

        for time in times.map(|time| time as f64) {
            while in_hand > 0 && released_at <= time {
                used -= in_hand;
                in_hand = self.take(used);
                released_at += in_hand as f64 * self.handler_nanos;
            }

            fate.packets += 1;

            if used == self.ring {
                fate.capture_drops += 1;
                continue;
            }

            used += 1;

            if in_hand == 0 {
                in_hand = self.take(used);
                released_at = time + in_hand as f64 * self.handler_nanos;
            }
        }

        fate
    }

    /// Number of `waiting` packets that the application processes before it releases them.
    fn take(self, waiting: usize) -> usize {
        match self.release {
            Release::EachPacket => waiting.min(1),
            Release::EachSync => waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLER_NANOS: f64 = 100.0;

    fn type_two(release: Release) -> TypeTwo {
        TypeTwo { ring: 8, release, handler_nanos: HANDLER_NANOS }
    }

    fn type_one(copy_nanos: f64) -> TypeOne {
        TypeOne { ring: 8, buffer: 20, copy_nanos, handler_nanos: HANDLER_NANOS }
    }

    /// `packets` packets, one each `every` nanoseconds.
    fn even(packets: u64, every: u64) -> impl Iterator<Item = u64> {
        (0..packets).map(move |index| index * every)
    }

    #[test]
    fn a_ring_keeps_a_burst_of_its_size() {
        for release in [Release::EachPacket, Release::EachSync] {
            assert_eq!(type_two(release).receive(even(8, 1)).capture_drops, 0);
            assert_eq!(type_two(release).receive(even(10, 1)).capture_drops, 2);
        }
    }

    #[test]
    fn packets_slower_than_their_handler_are_not_lost() {
        for release in [Release::EachPacket, Release::EachSync] {
            assert_eq!(type_two(release).receive(even(1000, 101)).capture_drops, 0);
        }
        assert_eq!(type_one(50.0).receive(even(1000, 151)).capture_drops, 0);
        assert_eq!(type_one(50.0).receive(even(1000, 151)).delivery_drops, 0);
    }

    #[test]
    fn twice_as_much_as_can_be_handled_is_half_lost() {
        for release in [Release::EachPacket, Release::EachSync] {
            let fate = type_two(release).receive(even(100_000, 50));
            assert!((49_900..50_100).contains(&fate.capture_drops), "{fate:?}");
        }
    }

    /// A sync during a burst finds only its beginning; the rest must find room while the beginning
    /// is processed.
    #[test]
    fn late_released_descriptors_lose_packets() {
        // Five packets, of which the first is taken at once and the other four afterwards, then
        // seven more.
        let times = || even(5, 1).chain((0..7).map(|index| 310 + index));
        assert_eq!(type_two(Release::EachPacket).receive(times()).capture_drops, 1);
        assert_eq!(type_two(Release::EachSync).receive(times()).capture_drops, 3);
    }

    #[test]
    fn copying_takes_its_time_from_the_application() {
        // Of each 100 ns the kernel takes 50 and leaves half a packet's time.
        let fate = type_one(50.0).receive(even(100_000, 100));
        assert_eq!(fate.capture_drops, 0);
        assert!((49_900..50_100).contains(&fate.delivery_drops), "{fate:?}");
    }

    #[test]
    fn a_kernel_that_only_copies_starves_the_application() {
        let fate = type_one(50.0).receive(even(100_000, 25));
        assert!((49_900..50_100).contains(&fate.capture_drops), "{fate:?}");
        // All copied packets except a full buffer are lost: livelock.
        assert_eq!(fate.delivery_drops, 100_000 - fate.capture_drops - 20);
    }
}
