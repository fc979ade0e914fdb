//! A limit for the rate of bytes, and the request to stop.

use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until};

/// The command was asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stopped;

/// Set by a signal for all tasks that work or wait.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    pub(crate) fn new() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn wait_until(&self, time: Instant) -> Result<(), Stopped> {
        let mut stop = self.0.clone();
        tokio::select! {
            biased;
            _ = stop.wait_for(|is_stopped| *is_stopped) => Err(Stopped),
            () = sleep_until(time) => Ok(()),
        }
    }

    pub(crate) async fn wait(&self, duration: Duration) -> Result<(), Stopped> {
        self.wait_until(Instant::now() + duration).await
    }
}

/// Lets a number of bytes pass per second. Time without traffic gives no credit.
#[derive(Debug)]
pub(crate) struct Pace {
    per_second: Option<u64>,
    stop: Stop,
    /// When the next bytes may pass.
    next: Mutex<Instant>,
}

impl Pace {
    pub(crate) fn new(per_second: Option<u64>, stop: Stop) -> Self {
        Self { per_second, stop, next: Mutex::new(Instant::now()) }
    }

    /// Waits until these bytes may pass.
    pub(crate) async fn pass(&self, bytes: u64) -> Result<(), Stopped> {
        let mut next = self.next.lock().await;
        let now = Instant::now();
        let time = (*next).max(now);
        let wait = self.per_second.map_or(0.0, |per_second| bytes as f64 / per_second as f64);
        self.stop.wait_until(time).await?;
        *next = time + Duration::from_secs_f64(wait);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_pass_no_faster_than_the_rate() {
        let (_sender, stop) = Stop::new();
        let pace = Pace::new(Some(1_000_000), stop);
        let begun = Instant::now();
        for _ in 0..5 {
            pace.pass(50_000).await.unwrap();
        }
        // Each call waits for the previous ones.
        assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_stop_ends_a_wait_at_once() {
        let (sender, stop) = Stop::new();
        let pace = Pace::new(Some(1), stop);
        pace.pass(1_000_000).await.unwrap();
        sender.send(true).unwrap();
        assert_eq!(pace.pass(1).await, Err(Stopped));
    }
}
