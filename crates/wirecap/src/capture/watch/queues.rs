//! Queues that fall silent alone. One that delivers nothing while others of its interface do is
//! dead or gets no packets, and what shows that a device is alive does not show it of each of its
//! queues.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// A queue without packets, while others have some for this time, may be dead.
const SILENCE: Duration = Duration::from_secs(1);

/// The receive queues of a device, by their packets.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: BTreeMap<u32, Queue>,
    /// The last look; `None` if the time since then does not count.
    looked: Option<(SystemTime, Instant)>,
    /// When the last packet came before the first silence, at the earliest.
    silent_since: Option<SystemTime>,
}

#[derive(Debug, Default)]
struct Queue {
    packets: u64,
    /// When its last packet came, at the earliest; `None` if it has had none.
    last_packet: Option<SystemTime>,
    /// For how long only others have received packets since then.
    silence: Duration,
}

impl Queues {
    /// The capture begins at this time of both clocks.
    pub(super) fn begin(now: SystemTime, at: Instant) -> Self {
        Self { looked: Some((now, at)), ..Self::default() }
    }

    /// Each queue has had so many packets, at this time of both clocks.
    pub(super) fn look(&mut self, packets: &BTreeMap<u32, u64>, now: SystemTime, at: Instant) {
        let (before, since) = self.looked.replace((now, at)).unwrap_or((now, at));
        let elapsed = at.duration_since(since);

        let mut have_received = false;
        let mut silent = Vec::new();

        for (number, packets) in packets {
            let queue = self.queues.entry(*number).or_default();
            if *packets == queue.packets {
                silent.push(*number);
                continue;
            }
            have_received = true;
            *queue =
                Queue { packets: *packets, last_packet: Some(before), silence: Duration::ZERO };
        }

        if !have_received {
            return;
        }

        for number in silent {
            let Some(queue) = self.queues.get_mut(&number) else { continue };
            let Some(last_packet) = queue.last_packet else { continue };
            queue.silence += elapsed;
            if queue.silence >= SILENCE {
                self.silent_since =
                    Some(self.silent_since.map_or(last_packet, |since| since.min(last_packet)));
            }
        }
    }

    /// The time until the next look does not count: the ledger has it as an unseen period.
    pub(super) fn pause(&mut self) {
        self.looked = None;
    }

    /// Another device is captured from now on.
    pub(super) fn begin_again(&mut self) {
        *self = Self { silent_since: self.silent_since, ..Self::default() };
    }

    /// When the last packet came before a queue fell silent, at the earliest, also if it receives
    /// again.
    pub(super) fn silent_since(&self) -> Option<SystemTime> {
        #[cfg(sabotage)]
        if crate::sabotage::is("silent-queue-unnoticed") {
            return None;
        }
        self.silent_since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(150);

    /// Since when a queue was silent, in looks, if each look finds these packets more on each
    /// queue.
    fn silent_after<const QUEUES: usize>(
        looks: impl IntoIterator<Item = [u64; QUEUES]>,
    ) -> Option<u32> {
        let mut queues = Queues::default();
        let mut sums = [0; QUEUES];
        let began = SystemTime::now();
        let begin = Instant::now();

        for (look, more) in (0..).zip(looks) {
            (0..QUEUES).for_each(|queue| sums[queue] += more[queue]);
            let packets = (0..).zip(sums).collect();
            queues.look(&packets, began + LOOK * look, begin + LOOK * look);
        }

        let since = queues.silent_since()?.duration_since(began).unwrap();
        Some((since.as_millis() / LOOK.as_millis()) as u32)
    }

    #[test]
    fn a_queue_that_falls_silent_for_a_second_is_noticed_also_if_it_receives_again() {
        let history = |silent: usize| {
            [vec![[0, 0]], vec![[2, 1]; 3], vec![[2, 0]; silent], vec![[2, 1]; 20]].concat()
        };
        assert_eq!(silent_after(history(6)), None, "0.9 s");
        assert_eq!(
            silent_after(history(7)),
            Some(2),
            "1.05 s: the look before the one with its last packet"
        );
    }

    #[test]
    fn an_interface_that_is_quiet_has_no_silent_queue() {
        let history =
            [vec![[0, 0]], vec![[2, 1]], vec![[0, 0]; 50], vec![[2, 0]], vec![[2, 1]; 9]].concat();
        assert_eq!(silent_after(history), None);
    }

    #[test]
    fn a_queue_without_any_packet_has_not_fallen_silent() {
        assert_eq!(silent_after([vec![[0, 0]], vec![[1, 0]; 50]].concat()), None);
        assert_eq!(
            silent_after([vec![[5, 5]], vec![[1, 0]; 50]].concat()),
            Some(0),
            "it has had some"
        );
    }

    #[test]
    fn the_time_of_a_gap_is_no_silence() {
        let began = SystemTime::now();
        let begin = Instant::now();
        let mut queues = Queues::default();
        let look = |queues: &mut Queues, millis, packets: [u64; 2]| {
            let passed = Duration::from_millis(millis);
            queues.look(&(0..).zip(packets).collect(), began + passed, begin + passed);
        };
        look(&mut queues, 0, [0, 0]);
        look(&mut queues, 100, [1, 1]);
        queues.pause();
        look(&mut queues, 5000, [2, 1]);
        look(&mut queues, 5100, [3, 2]);
        assert_eq!(queues.silent_since(), None);
    }
}
