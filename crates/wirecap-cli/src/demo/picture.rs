//! What the demo shows of a capture while packets arrive.

use std::io::Write;

use wirecap::{Capture, Ledger, grouped};

use crate::shared::screen::Screen;

const BAR_COLUMNS: usize = 32;

/// A view of a capture.
#[derive(Debug, Clone, Copy)]
pub(super) enum Picture {
    /// What each ring delivers.
    Rates,
    /// How much of the only ring's pool is filled.
    FillLevel,
}

impl Picture {
    /// The lines that show what happened from `earlier` to `now`: bars for a terminal, else one
    /// line.
    pub(super) fn lines<W: Write>(
        self,
        screen: &Screen<W>,
        capture: &Capture,
        earlier: &Ledger,
        now: &Ledger,
    ) -> Vec<String> {
        match self {
            Self::Rates if screen.is_terminal() => rates(screen, earlier, now),
            Self::Rates => vec![rates_in_brief(earlier, now)],
            Self::FillLevel => vec![fill_level(screen, capture)],
        }
    }
}

fn rates<W: Write>(screen: &Screen<W>, earlier: &Ledger, now: &Ledger) -> Vec<String> {
    let rates = ring_rates(earlier, now);
    let sum: f64 = rates.iter().sum();
    let heading =
        format!("  {:<5} {:<BAR_COLUMNS$} {:>11} {:>15}", "ring", "", "packets/s", "delivered");
    let row = |(ring, rate): (&wirecap::RingLedger, &f64)| {
        let bar = screen.bar(rate / sum.max(1.0), BAR_COLUMNS);
        let rate = grouped(*rate as u64);
        let delivered = grouped(ring.account.delivered);
        format!("  {:<5} {bar} {rate:>11} {delivered:>15}", ring.name)
    };
    std::iter::once(heading).chain(now.rings.iter().zip(&rates).map(row)).collect()
}

fn rates_in_brief(earlier: &Ledger, now: &Ledger) -> String {
    let rates: Vec<String> =
        ring_rates(earlier, now).into_iter().map(|rate| grouped(rate as u64)).collect();
    format!(
        "  packets/s of each ring: {}; {} delivered",
        rates.join("  "),
        grouped(now.total.delivered)
    )
}

/// Packets per second of each ring.
fn ring_rates(earlier: &Ledger, now: &Ledger) -> Vec<f64> {
    let seconds = (now.duration - earlier.duration).as_secs_f64();
    let delivered = |ledger: &Ledger, ring: usize| ledger.rings[ring].account.delivered;
    (0..now.rings.len())
        .map(|ring| (delivered(now, ring) - delivered(earlier, ring)) as f64 / seconds)
        .collect()
}

fn fill_level<W: Write>(screen: &Screen<W>, capture: &Capture) -> String {
    let waiting = capture.backlogs()[0];
    let cells = capture.geometry().cells();
    let bar = match screen.is_terminal() {
        true => screen.bar(f64::from(waiting) / f64::from(cells), BAR_COLUMNS) + " ",
        false => String::new(),
    };
    let waiting = grouped(waiting.into());
    let cells = grouped(cells.into());
    format!("  {:<5} {bar}{waiting} of {cells} cells filled", capture.rings()[0].to_string())
}
