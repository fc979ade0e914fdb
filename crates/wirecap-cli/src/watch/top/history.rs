//! The rates of each ring over time, as far as the screen has room for them.

use std::collections::{BTreeMap, VecDeque};

use ratatui::text::{Line, Span};

use super::look::Look;
use crate::size;

/// As many columns as a wide terminal has.
const SAMPLES_MAX: usize = 400;
/// Rows of a chart at most.
const ROWS_MAX: usize = 8;
/// Columns of the names before the charts, and of the highest rates behind them.
const NAME: usize = 14;
const HIGHEST: usize = 14;

/// Rates of a ring between two statuses, per second.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rates {
    pub(super) packets: f64,
    pub(super) lost: f64,
}

/// What the rings of a capture did since it is watched, the oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    rings: BTreeMap<String, VecDeque<Rates>>,
    /// The seconds between two statuses.
    seconds: VecDeque<f64>,
}

impl History {
    /// Adds the rates during these seconds.
    pub(super) fn add(&mut self, seconds: f64, rates: impl Iterator<Item = (String, Rates)>) {
        push(&mut self.seconds, seconds);
        for (name, rates) in rates {
            push(self.rings.entry(name).or_default(), rates);
        }
    }

    /// A chart for each ring in at most `height` rows; nothing if there is no room for all of them.
    pub(super) fn lines(&self, look: Look, width: usize, height: usize) -> Vec<Line<'static>> {
        let columns = width.saturating_sub(NAME + HIGHEST);
        let count = self.rings.len();

        // A blank line and the heading precede the charts.
        let room = height.saturating_sub(2).checked_div(count).unwrap_or(0);
        if room < 2 || columns < 10 {
            return Vec::new();
        }

        // One of the rows is for losses.
        let rows = (room - 1).min(ROWS_MAX);
        let shown = self.seconds.len().min(columns);
        let span: f64 = self.seconds.iter().rev().take(shown).sum();

        let heading =
            format!("packets/s of each ring during the last {span:.0} s, and packets lost/s");
        let mut lines = vec![Line::default(), Line::styled(heading, look.strong())];

        for (name, rates) in &self.rings {
            let skipped = rates.len().saturating_sub(columns);
            let rates: Vec<Rates> = rates.iter().skip(skipped).copied().collect();
            lines.extend(chart(look, name, &rates, columns, rows));
        }

        lines
    }
}

/// Appends to a series of limited length.
fn push<T>(series: &mut VecDeque<T>, value: T) {
    if series.len() == SAMPLES_MAX {
        series.pop_front();
    }
    series.push_back(value);
}

/// The rates of a ring as columns in `rows` lines, the latest one on the right, and its losses in
/// the line below.
fn chart(
    look: Look,
    name: &str,
    rates: &[Rates],
    columns: usize,
    rows: usize,
) -> Vec<Line<'static>> {
    let highest = |of: fn(&Rates) -> f64| rates.iter().map(of).fold(0.0, f64::max);
    let packets_highest = highest(|rates| rates.packets);
    let lost_highest = highest(|rates| rates.lost);
    let before = " ".repeat(columns - rates.len());
    let name: String = name.chars().take(NAME - 1).collect();
    let up_to = |rate: f64| format!(" max {}", size::human_rate(rate).trim_end());

    let row = |row: usize| {
        let level =
            |rates: &Rates| look.level(rates.packets / packets_highest * rows as f64 - row as f64);
        let bars: String = rates.iter().map(level).collect();
        let is_top = row + 1 == rows;
        let name = if is_top { name.as_str() } else { "" };
        let highest = if is_top { up_to(packets_highest) } else { String::new() };

        Line::from(vec![
            Span::raw(format!("{name:<NAME$}{before}")),
            Span::styled(bars, look.captured()),
            Span::styled(highest, look.dim()),
        ])
    };
    let mut lines: Vec<Line<'static>> = (0..rows).rev().map(row).collect();

    let lost: String = rates.iter().map(|rates| look.level(rates.lost / lost_highest)).collect();
    lines.push(match lost_highest > 0.0 {
        true => Line::from(vec![
            Span::styled(format!("{:<NAME$}{before}", "  lost"), look.strong()),
            Span::styled(lost, look.lost()),
            Span::styled(up_to(lost_highest), look.bad()),
        ]),
        false => Line::styled(format!("{:<NAME$}{:>columns$}", "  lost", "none"), look.dim()),
    });

    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(history: &History, width: usize, height: usize) -> Vec<String> {
        let lines = history.lines(Look::new(false, false), width, height);
        lines
            .iter()
            .map(|line| line.spans.iter().map(|span| span.content.as_ref()).collect())
            .collect()
    }

    #[test]
    fn a_ring_that_lost_packets_shows_when() {
        let mut history = History::default();
        for (packets, lost) in [(0.0, 0.0), (500.0, 0.0), (1_000.0, 40.0), (1_000.0, 0.0)] {
            history.add(2.0, [("eth1@0".to_owned(), Rates { packets, lost })].into_iter());
        }
        let lines = text(&history, 40, 6);
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert!(lines[1].contains("last 8 s"), "{lines:?}");
        assert_eq!(lines[2], format!("eth1@0{}## max 1,000", " ".repeat(18)));
        assert_eq!(lines[4], format!("{:<14}{}### ", "", " ".repeat(9)).trim_end());
        assert_eq!(lines[5], format!("  lost{}#  max 40", " ".repeat(18)));
    }

    #[test]
    fn a_small_screen_has_no_history_and_no_screen_has_more_lines_than_rows() {
        let mut history = History::default();
        for _ in 0..SAMPLES_MAX + 5 {
            let rings = ["a", "b", "c"].map(|name| (name.to_owned(), Rates::default()));
            history.add(1.0, rings.into_iter());
        }
        assert!(text(&history, 80, 7).is_empty());
        for size in [(80, 8), (80, 24), (200, 50), (1_000, 100)] {
            let lines = text(&history, size.0, size.1);
            assert!(!lines.is_empty() && lines.len() <= size.1, "{size:?}: {lines:?}");
            assert!(lines.iter().all(|line| line.chars().count() <= size.0), "{lines:?}");
        }
    }
}
