//! The axes of a chart: numbers, and their positions.

use crate::chart::FINE;

/// An axis along one side of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// The quantity, with its unit.
    pub name: String,
    /// How numbers become distances.
    pub scale: Scale,
    /// The ends; if not given, those of the curves, from 0 if linear.
    pub range: Option<(f64, f64)>,
    /// The labelled numbers; if empty, round ones.
    pub ticks: Vec<f64>,
    /// The text after each number.
    pub unit: &'static str,
}

/// How numbers become distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// The same distance for the same difference.
    Linear,
    /// The same distance for the same ratio; the axis has no 0.
    Log,
}

impl Axis {
    /// A linear axis from 0 to the end of the curves.
    pub fn linear(name: impl Into<String>) -> Self {
        Self { name: name.into(), scale: Scale::Linear, range: None, ticks: Vec::new(), unit: "" }
    }

    /// A logarithmic axis over the range of the curves.
    pub fn log(name: impl Into<String>) -> Self {
        Self { scale: Scale::Log, ..Self::linear(name) }
    }

    /// An axis of shares from 0 to `highest` percent.
    pub fn percent(name: impl Into<String>, highest: f64) -> Self {
        Self { range: Some((0.0, highest)), unit: " %", ..Self::linear(name) }
    }

    /// An axis of shares from 0 to a round number that is not below `most` percent.
    pub fn percent_up_to(name: impl Into<String>, most: f64) -> Self {
        let round = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
            .into_iter()
            .find(|round| *round >= most);
        Self::percent(name, round.unwrap_or(100.0))
    }

    /// An axis of a few numbers, with room at both ends.
    pub fn of(name: impl Into<String>, numbers: &[f64]) -> Self {
        let first = numbers[0];
        let last = numbers[numbers.len() - 1];
        let room = 0.15 * (last - first).max(1.0);
        Self {
            range: Some((first - room, last + room)),
            ticks: numbers.to_vec(),
            ..Self::linear(name)
        }
    }
}

/// The numbers of an axis and their pixels.
#[derive(Debug)]
pub(super) struct Span {
    scale: Scale,
    first: f64,
    last: f64,
    /// The pixels of the first and the last number.
    pub(super) ends: (i32, i32),
}

impl Span {
    pub(super) fn new(axis: &Axis, (lowest, highest): (f64, f64), ends: (i32, i32)) -> Self {
        let (first, last) = match (axis.range, axis.scale) {
            (Some(range), _) => range,
            // No points, or only NaN.
            _ if lowest > highest => (0.0, 1.0),
            (None, Scale::Log) => (lowest, highest),
            (None, Scale::Linear) => (lowest.min(0.0), highest * 1.05),
        };
        // A single number, or a logarithmic axis that would contain 0, gets some room around it.
        let first = if axis.scale == Scale::Log { first.max(last * 1e-9) } else { first };
        let last = if last > first { last } else { first + first.abs().max(1.0) };
        Self { scale: axis.scale, first, last, ends }
    }

    /// The relative position of `number`: 0 at the first end, 1 at the last.
    fn share(&self, number: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (number - self.first) / (self.last - self.first),
            Scale::Log => {
                (number.max(self.first) / self.first).ln() / (self.last / self.first).ln()
            }
        };
        share.clamp(0.0, 1.0)
    }

    /// The position of `number`, in units.
    pub(super) fn place(&self, number: f64) -> i32 {
        let (from, to) = (f64::from(self.ends.0 * FINE), f64::from(self.ends.1 * FINE));
        (from + self.share(number) * (to - from)).round() as i32
    }

    /// The numbers at the axis, with their positions in pixels.
    pub(super) fn labels(&self, axis: &Axis) -> Vec<(i32, String)> {
        let numbers = match self.scale {
            _ if !axis.ticks.is_empty() => axis.ticks.clone(),
            Scale::Linear => even_ticks(self.first, self.last),
            Scale::Log => powers_of_ten(self.first, self.last),
        };
        let label = |number| format!("{}{}", short(number), axis.unit);
        numbers.into_iter().map(|number| (self.place(number) / FINE, label(number))).collect()
    }
}

/// About five round numbers from `first` to `last`.
fn even_ticks(first: f64, last: f64) -> Vec<f64> {
    let rough = (last - first) / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let from = (first / step).ceil() as i64;
    let to = (last / step + 1e-9).floor() as i64;
    (from..=to).map(|count| count as f64 * step).collect()
}

fn powers_of_ten(first: f64, last: f64) -> Vec<f64> {
    let exponents = first.log10().ceil() as i32..=(last.log10() + 1e-9).floor() as i32;
    exponents.map(|exponent| 10_f64.powi(exponent)).collect()
}

/// A number with the digits that distinguish it from its neighbours on an axis.
pub(super) fn short(number: f64) -> String {
    let (scaled, suffix) = match number.abs() {
        size if size >= 1e6 => (number / 1e6, " M"),
        size if size >= 1e4 => (number / 1e3, " k"),
        _ => (number, ""),
    };
    // To nine digits: sums of steps like 0.1 are not exact.
    let rounded = (scaled * 1e9).round() / 1e9;
    if rounded >= 1000.0 && rounded.fract() == 0.0 {
        return format!("{}{suffix}", wirecap::grouped(rounded as u64));
    }
    format!("{rounded}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_become_distances_on_a_log_axis() {
        let span = Span::new(&Axis::log(""), (1e3, 1e7), (0, 100));
        assert_eq!([1e3, 1e5, 1e7].map(|number| span.place(number) / FINE), [0, 50, 100]);
        let below = Span::new(&Axis::log(""), (0.0, 10.0), (0, 100));
        assert_eq!(below.place(0.0), 0);
    }

    #[test]
    fn an_axis_has_round_numbers() {
        assert_eq!(even_ticks(0.0, 47.0), [0.0, 10.0, 20.0, 30.0, 40.0]);
        assert_eq!(even_ticks(0.0, 1.0), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(short(0.6000000000000001), "0.6");
        assert_eq!([1000.0, 2500.0, 1e4, 2e6].map(short), ["1,000", "2,500", "10 k", "2 M"]);
        assert_eq!(powers_of_ten(1000.0, 1e6), [1e3, 1e4, 1e5, 1e6]);
        let ends =
            [0.0, 0.13, 20.0, 52.7].map(|most| Axis::percent_up_to("", most).range.unwrap().1);
        assert_eq!(ends, [0.1, 0.2, 20.0, 100.0]);
    }
}
