//! The number of times that a zero-copy driver found no cell.
//!
//! The kernel counts failed requests of drivers (`rx_fill_ring_empty_descs`), not packets, and also
//! requests of a driver that needs no cells, such as those of virtio_net when it refills a full
//! queue. So only requests count that were made while the fill ring may have been empty. The kernel
//! reports the cells that it has taken only when packets arrive. Two bounds limit the cells that it
//! has taken and not reported: there are at most as many as the device's descriptors, and all cells
//! that it has taken are at most the sum of these descriptors, the arrived packets, and one batch
//! of 64. On receive modes that copy, this counter counts the packets of *no cell* again and is
//! ignored.

/// The state of a fill ring at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Level {
    /// Cells that the kernel has taken from it so far, modulo 2^32.
    pub(crate) taken: u32,
    /// Cells that are left.
    pub(crate) left: u32,
}

/// Maximum number of packets that a driver receives before it hands them over (`NAPI_POLL_WEIGHT`).
const NAPI_BUDGET: u32 = 64;

/// Distinguishes requests for which there was no cell from requests that the kernel only counts as
/// such.
///
/// The kernel's counter (`rx_fill_ring_empty_descs`) also grows when a driver requests no cells at
/// all, as virtio_net does when it refills a full queue. So a request counts only if the fill ring
/// may have been empty. Between two moments it was never empty if the kernel took fewer cells in
/// between than were there at the first moment. The kernel publishes the cells that it has taken
/// only when packets arrive. Two bounds limit the cells that it has taken and not published: they
/// fit the device's ring; and all cells that it has ever taken fit the device's ring, the packets
/// that have arrived on the rx rings, and one batch between them.
#[derive(Debug)]
pub(crate) struct Starvation {
    /// Number of descriptors of the device's ring; if it is unknown, every request counts.
    descriptors: u32,
    /// Requests while the ring may have been empty.
    vain: u64,
    /// The kernel's count at the last query.
    counted: u64,
    /// The state of the ring before that query.
    level: Level,
    /// Cells that had arrived.
    received: u32,
}

impl Default for Starvation {
    fn default() -> Self {
        Self { descriptors: u32::MAX, vain: 0, counted: 0, level: Level::default(), received: 0 }
    }
}

impl Starvation {
    /// Sets the number of descriptors of the device's ring.
    pub(crate) fn know_descriptors(&mut self, descriptors: Option<u32>) {
        self.descriptors = descriptors.unwrap_or(u32::MAX);
    }

    /// Starts with a new kernel side, whose counts are 0; `level` is the current state of the ring.
    pub(crate) fn begin(&mut self, level: Level) {
        (self.counted, self.level, self.received) = (0, level, 0);
    }

    /// The kernel's count is `counted`; the levels are those before and after the query.
    /// `received`, if known, is the number of arrived cells of all that this kernel side took,
    /// modulo 2^32.
    pub(crate) fn look(
        &mut self,
        before: Level,
        counted: u64,
        after: Level,
        received: Option<u32>,
    ) {
        // A smaller index belongs to the ring of another kernel side.
        let received =
            received.filter(|received| received.wrapping_sub(self.received).cast_signed() >= 0);
        let seen = after.taken.wrapping_sub(self.level.taken);

        let fits = received.map_or(i64::MAX, |received| {
            let arrived = received.wrapping_sub(self.level.taken).cast_signed();
            i64::from(arrived) + i64::from(self.descriptors) + i64::from(NAPI_BUDGET)
        });
        let taken = fits.min(i64::from(seen) + i64::from(self.descriptors));
        if taken >= i64::from(self.level.left) {
            self.vain += counted.saturating_sub(self.counted);
        }

        (self.counted, self.level) = (counted, before);
        self.received = received.unwrap_or(self.received);
    }

    pub(crate) fn vain(&self) -> u64 {
        self.vain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(taken: u32, left: u32) -> Level {
        Level { taken, left }
    }

    fn begun(first: Level) -> Starvation {
        let mut starvation = Starvation::default();
        starvation.know_descriptors(Some(0));
        starvation.begin(first);
        starvation
    }

    #[test]
    fn driver_requests_do_not_count_if_the_ring_was_never_empty() {
        let mut starvation = begun(level(0, 4096));
        starvation.look(level(256, 3840), 6, level(256, 3840), None);
        starvation.look(level(300, 3800), 9, level(310, 3800), None);
        assert_eq!(starvation.vain(), 0);
    }

    #[test]
    fn driver_requests_count_if_the_ring_may_have_been_empty() {
        let mut starvation = begun(level(0, 100));
        starvation.look(level(100, 0), 2, level(100, 0), None);
        assert_eq!(starvation.vain(), 2);
        // Cells returned, and all previous ones are gone.
        starvation.look(level(150, 50), 3, level(150, 50), None);
        assert_eq!(starvation.vain(), 3);
        starvation.look(level(160, 40), 5, level(160, 40), None);
        assert_eq!(starvation.vain(), 3, "only ten of fifty were taken");
    }

    #[test]
    fn unpublished_cells_that_the_device_may_hold_count() {
        let mut starvation = begun(level(0, 1000));
        starvation.know_descriptors(Some(256));
        starvation.look(level(700, 300), 1, level(700, 300), None);
        assert_eq!(starvation.vain(), 0);
        starvation.look(level(750, 250), 2, level(750, 250), None);
        assert_eq!(starvation.vain(), 1, "all 250 may be in the device");
        let mut unknown = Starvation::default();
        unknown.begin(level(0, 1000));
        unknown.look(level(0, 1000), 1, level(0, 1000), None);
        assert_eq!(unknown.vain(), 1);
    }

    #[test]
    fn cells_that_fit_neither_the_device_nor_what_arrived_were_not_taken() {
        // What virtio_net's ring of 1,024 holds is known to be there: 1,099 taken, 75 arrived.
        let full = level(1099, 1024);
        for (received, vain) in [(None, 1), (Some(75), 0), (Some(1034), 0), (Some(1035), 1)] {
            let mut starvation = begun(level(0, 2123));
            starvation.know_descriptors(Some(1024));
            starvation.look(full, 0, full, received);
            starvation.look(full, 1, full, received);
            assert_eq!(starvation.vain(), vain, "{received:?}");
        }
    }

    #[test]
    fn arrivals_on_a_replaced_ring_are_ignored() {
        let full = level(1099, 1024);
        let mut starvation = begun(level(0, 2123));
        starvation.know_descriptors(Some(1024));
        starvation.look(full, 0, full, Some(75));
        starvation.look(full, 1, full, Some(0));
        assert_eq!(starvation.vain(), 1);
    }

    #[test]
    fn cells_taken_during_the_query_count() {
        let mut starvation = begun(level(0, 10));
        starvation.look(level(5, 5), 1, level(10, 0), None);
        assert_eq!(starvation.vain(), 1);
    }

    #[test]
    fn the_count_of_cells_may_wrap() {
        let mut starvation = begun(level(u32::MAX - 1, 8));
        starvation.look(level(3, 3), 4, level(3, 3), None);
        assert_eq!(starvation.vain(), 0);
        starvation.look(level(6, 0), 5, level(6, 0), None);
        assert_eq!(starvation.vain(), 1);
    }

    #[test]
    fn another_kernel_side_restarts_its_counts() {
        let mut starvation = begun(level(0, 0));
        starvation.look(level(0, 0), 4, level(0, 0), None);
        starvation.begin(level(0, 0));
        starvation.look(level(0, 0), 1, level(0, 0), None);
        assert_eq!(starvation.vain(), 5);
    }
}
