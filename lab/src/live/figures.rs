//! Medians with their spread.

use std::fmt;

use crate::chart::rounded;

/// The measurements of several runs.
#[derive(Debug, Clone, Default)]
pub struct Figures(Vec<f64>);

impl Figures {
    /// One more run.
    pub fn push(&mut self, figure: f64) {
        let place = self.0.partition_point(|other| *other < figure);
        self.0.insert(place, figure);
    }

    /// NaN while there are none.
    pub fn median(&self) -> f64 {
        match self.0.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => self.0[count / 2],
            count => f64::midpoint(self.0[count / 2 - 1], self.0[count / 2]),
        }
    }
}

impl FromIterator<f64> for Figures {
    fn from_iter<I: IntoIterator<Item = f64>>(figures: I) -> Self {
        let mut all = Self::default();
        figures.into_iter().for_each(|figure| all.push(figure));
        all
    }
}

impl fmt::Display for Figures {
    /// `1.23 (1.10..1.41)`: the median, and the range of the runs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        let (Some(min), Some(max)) = (self.0.first(), self.0.last()) else {
            return f.write_str("-");
        };

        let number = |figure: f64| {
            let text = format!("{figure:.digits$}");
            match text.split_once('.') {
                Some((whole, fraction)) if figure.abs() >= 1000.0 => {
                    format!("{}.{fraction}", rounded(whole.parse().unwrap_or(f64::NAN)))
                }
                Some(_) => text,
                None => rounded(figure),
            }
        };
        let text = format!("{} ({}..{})", number(self.median()), number(*min), number(*max));
        write!(f, "{text:>width$}", width = f.width().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::Figures;

    #[test]
    fn thousands_are_separated_with_and_without_decimals() {
        let figures: Figures = [2137.94, 999.5, 1_234_567.0].into_iter().collect();
        assert_eq!(format!("{figures:.1}"), "2,137.9 (999.5..1,234,567.0)");
        assert_eq!(format!("{figures:.0}"), "2,138 (1,000..1,234,567)");
        assert_eq!(Figures::default().to_string(), "-");
    }
}
