//! Medians with their spread.

use std::fmt;

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

/// The measurements of one quantity in several rounds, in their order; NaN for a failed round.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures(Vec<f64>);

impl Figures {
    /// Adds the measurement of the next round.
    pub(crate) fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    /// In the order of the rounds.
    pub fn rounds(&self) -> &[f64] {
        &self.0
    }

    /// NaN if there are none.
    pub fn median(&self) -> f64 {
        let mut sorted: Vec<f64> =
            self.0.iter().copied().filter(|figure| !figure.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => sorted[count / 2],
            count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
        }
    }

    /// The minimum; NaN without values.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The maximum; NaN without values.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// The difference to `others`, round by round.
    pub(crate) fn less(&self, others: &Self) -> Self {
        self.0.iter().zip(&others.0).map(|(figure, other)| figure - other).collect()
    }

    /// The same in another unit.
    pub fn times(&self, factor: f64) -> Self {
        self.0.iter().map(|figure| figure * factor).collect()
    }
}

impl FromIterator<f64> for Figures {
    fn from_iter<I: IntoIterator<Item = f64>>(figures: I) -> Self {
        Self(figures.into_iter().collect())
    }
}

impl fmt::Display for Figures {
    /// `1.2 (1.1..1.4)`: the median, and between what the rounds were.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(1);
        if self.median().is_nan() {
            return f.write_str("-");
        }
        write!(f, "{:.digits$} ({:.digits$}..{:.digits$})", self.median(), self.min(), self.max())
    }
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Figures", 4)?;
        object.serialize_field("median", &self.median())?;
        object.serialize_field("min", &self.min())?;
        object.serialize_field("max", &self.max())?;
        object.serialize_field("rounds", &self.0)?;
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_independent_of_the_order() {
        let figures: Figures = [3.0, -1.0, 2.0].into_iter().collect();
        assert_eq!((figures.median(), figures.min(), figures.max()), (2.0, -1.0, 3.0));
        assert_eq!(figures.to_string(), "2.0 (-1.0..3.0)");
        let even: Figures = [4.0, 1.0].into_iter().collect();
        assert_eq!(even.median(), 2.5);
        assert!(Figures::default().median().is_nan());
    }

    #[test]
    fn a_difference_is_taken_within_each_round() {
        let with: Figures = [10.0, 20.0].into_iter().collect();
        let without: Figures = [9.0, 21.0].into_iter().collect();
        assert_eq!(with.less(&without).rounds(), [1.0, -1.0]);
    }
}
