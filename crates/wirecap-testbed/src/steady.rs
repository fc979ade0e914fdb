//! Loads with steady rates, for tests that depend on the exact load of a group.

use std::thread;
use std::time::{Duration, Instant};

use crate::{AfXdpSender, Interface, SendError, SetupError, Stamp, Traffic};

/// Ticks every millisecond, at which a sender hands frames over.
#[derive(Debug)]
pub struct Ticks {
    begin: Instant,
    time: Duration,
    /// The time lost by stalls that was not caught up.
    lost: Duration,
    /// The time of the last tick since the beginning.
    tick: Option<Duration>,
}

impl Ticks {
    const EVERY: Duration = Duration::from_millis(1);
    /// The part of a stall that is caught up; the rest is skipped, so a sender that had no
    /// processor does not send all missing frames in one burst.
    pub const CATCH_UP: Duration = Duration::from_millis(10);

    /// Ticks for this time, from now on.
    pub fn new(time: Duration) -> Self {
        Self { begin: Instant::now(), time, lost: Duration::ZERO, tick: None }
    }

    /// Waits for the next tick. Returns the time in seconds for which frames should have been sent
    /// by now.
    pub fn next_at(&mut self) -> Option<f64> {
        let tick = match self.tick {
            None => Duration::ZERO,
            Some(last) if last >= self.time => return None,
            Some(last) => {
                let due = last + Self::EVERY;
                thread::sleep((due + self.lost).saturating_sub(self.begin.elapsed()));
                self.lost += self.begin.elapsed().saturating_sub(self.lost + due + Self::CATCH_UP);
                self.begin.elapsed() - self.lost
            }
        };
        self.tick = Some(tick);
        Some(tick.min(self.time).as_secs_f64())
    }

    /// Checks that the load was within 2 % of the required one; an error if stalls reduced it.
    ///
    /// # Errors
    ///
    /// What it was.
    pub fn check(&self) -> Result<(), String> {
        match self.lost <= self.time / 50 {
            true => Ok(()),
            false => Err(format!("the load of {:?} took {:?} more", self.time, self.lost)),
        }
    }
}

/// Sends on the first queues of an interface, with a separate rate for each.
#[derive(Debug)]
pub struct SteadySender {
    queues: Vec<Queue>,
    traffic: Traffic,
}

#[derive(Debug)]
struct Queue {
    sender: AfXdpSender,
    next_sequence: u64,
}

impl SteadySender {
    /// Opens the first `queues` queues.
    ///
    /// # Errors
    ///
    /// As [`AfXdpSender::on`].
    pub fn on(interface: &Interface, traffic: Traffic, queues: u16) -> Result<Self, SetupError> {
        let queue = |queue: u16| {
            Ok(Queue { sender: AfXdpSender::on(interface, queue.into())?, next_sequence: 0 })
        };
        Ok(Self { queues: (0..queues).map(queue).collect::<Result<_, _>>()?, traffic })
    }

    /// Sends this many frames per second on each queue until `ticks` end. Returns the number of
    /// sent frames.
    ///
    /// # Errors
    ///
    /// As [`AfXdpSender::send`].
    pub fn send(&mut self, rates: &[f64], ticks: &mut Ticks) -> Result<u64, SendError> {
        let firsts: Vec<u64> = self.queues.iter().map(|queue| queue.next_sequence).collect();
        while let Some(at) = ticks.next_at() {
            for (number, ((queue, rate), first)) in
                (0..).zip(self.queues.iter_mut().zip(rates).zip(&firsts))
            {
                queue.send_up_to(first + (rate * at) as u64, number, &self.traffic)?;
            }
        }
        self.queues.iter_mut().try_for_each(|queue| queue.sender.flush())?;
        Ok(self.queues.iter().zip(&firsts).map(|(queue, first)| queue.next_sequence - first).sum())
    }
}

impl Queue {
    fn send_up_to(&mut self, end: u64, number: u16, traffic: &Traffic) -> Result<(), SendError> {
        for sequence in self.next_sequence..end {
            self.sender.send(&traffic.frame(Stamp { queue: number, sequence }))?;
        }
        self.next_sequence = end.max(self.next_sequence);
        self.sender.hand_over()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counters, Namespace, VethPair, drop_program, privileged};

    #[test]
    fn each_queue_gets_its_rate() {
        if !privileged() {
            return;
        }

        let here = Namespace::new().unwrap();
        let there = Namespace::new().unwrap();
        let pair = VethPair::new((&here, "a0"), (&there, "a1"), 3, 1500).unwrap();
        let _receiving = drop_program(&pair.receiver).unwrap();
        let mut counters = Counters::of(&pair.sender).unwrap();
        let mut sender = SteadySender::on(&pair.sender, Traffic::to(&pair.receiver), 3).unwrap();

        for round in 1..=2 {
            let time = Duration::from_millis(500);
            let begin = Instant::now();
            let sent = sender.send(&[10_000.0, 1.0, 500.0], &mut Ticks::new(time)).unwrap();
            assert_eq!(sent, 5250);
            assert!(begin.elapsed() >= time, "{:?}", begin.elapsed());
            assert_eq!(counters.since_start().unwrap().handed_over(), round * 5250);
        }
    }

    #[test]
    fn a_stalled_player_catches_up_in_part_and_reports_it() {
        let mut ticks = Ticks::new(Duration::from_millis(200));
        assert_eq!(ticks.next_at(), Some(0.0));
        thread::sleep(Duration::from_millis(100));
        let at = ticks.next_at().unwrap();
        assert!((0.0109..0.0111).contains(&at), "{at}");
        assert!(ticks.check().unwrap_err().contains("took"), "{ticks:?}");
        let last = std::iter::from_fn(|| ticks.next_at()).last();
        assert_eq!(last, Some(0.2));
    }
}
