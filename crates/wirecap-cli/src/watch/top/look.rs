//! Colours, if available, and bars. The terminal's own background, light or dark, is kept.

use std::env;

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use crate::shared::screen::has_utf8;

#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    has_colours: bool,
    has_blocks: bool,
}

/// A ring's pool as shares of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pool {
    pub(super) waiting: f64,
    pub(super) captured: f64,
    pub(super) threshold: Option<f64>,
}

impl Look {
    pub(super) fn of_environment() -> Self {
        let has_colours = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { has_colours, has_blocks: has_utf8() }
    }

    #[cfg(test)]
    pub(super) fn new(has_colours: bool, has_blocks: bool) -> Self {
        Self { has_colours, has_blocks }
    }

    /// Colours that can be read on light and on dark.
    fn coloured(self, colour: Color, without: Modifier) -> Style {
        match self.has_colours {
            true => Style::new().fg(colour),
            false => Style::new().add_modifier(without),
        }
    }

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn good(self) -> Style {
        self.coloured(Color::Green, Modifier::empty()).add_modifier(Modifier::BOLD)
    }

    pub(super) fn bad(self) -> Style {
        self.coloured(Color::Red, Modifier::REVERSED).add_modifier(Modifier::BOLD)
    }

    fn waiting(self) -> Style {
        self.coloured(Color::Magenta, Modifier::empty())
    }

    fn captured(self) -> Style {
        self.coloured(Color::Blue, Modifier::empty())
    }

    /// A line between parts of a line.
    pub(super) fn separator(self) -> &'static str {
        if self.has_blocks { " · " } else { " - " }
    }

    pub(super) fn arrow(self) -> &'static str {
        if self.has_blocks { "→" } else { "->" }
    }

    /// The pool as a bar of `width` columns: waiting packets, packets in chunks, and room; with a
    /// mark at T.
    pub(super) fn bar(self, pool: Pool, width: usize) -> Vec<Span<'static>> {
        let [full, held, room, mark] =
            if self.has_blocks { ["█", "▒", "·", "│"] } else { ["#", "=", ".", "|"] };

        // Anything above zero is visible.
        let columns = |share: f64, most: usize| match share {
            share if share > 0.0 => {
                ((share * width as f64).round() as usize).clamp(1, most.max(1)).min(most)
            }
            _ => 0,
        };
        let waiting = columns(pool.waiting, width);
        let captured = columns(pool.captured, width - waiting);
        let at = pool
            .threshold
            .map(|share| ((share * width as f64) as usize).min(width.saturating_sub(1)));
        let is_above = pool.threshold.is_some_and(|threshold| pool.waiting > threshold);

        let column = |index: usize| match index {
            index if at == Some(index) => {
                Span::styled(mark, if is_above { self.bad() } else { self.strong() })
            }
            index if index < waiting => Span::styled(full, self.waiting()),
            index if index < waiting + captured => Span::styled(held, self.captured()),
            _ => Span::styled(room, self.dim()),
        };
        (0..width).map(column).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(waiting: f64, captured: f64, threshold: Option<f64>) -> String {
        let pool = Pool { waiting, captured, threshold };
        Look::new(false, false).bar(pool, 10).iter().map(|span| span.content.as_ref()).collect()
    }

    #[test]
    fn a_bar_shows_waiting_packets_packets_in_chunks_and_t() {
        assert_eq!(bar(0.0, 0.0, None), "..........");
        assert_eq!(bar(0.3, 0.2, None), "###==.....");
        assert_eq!(bar(0.001, 0.001, Some(0.6)), "#=....|...");
        assert_eq!(bar(0.9, 0.5, Some(0.6)), "######|##=");
        assert_eq!(bar(1.0, 0.0, Some(1.0)), "#########|");
    }
}
