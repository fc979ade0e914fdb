//! Curves over an axis of numbers.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use crate::chart::axis::Span;
pub use crate::chart::axis::{Axis, Scale};
use crate::chart::{
    Canvas, DrawingError, FAINT, FINE, INK, PALE, TEXT, picture, series_colour, text_style,
    text_width, unbroken,
};
use crate::csv_text::csv;

/// A chart of curves.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
    /// The curves; later ones are drawn over earlier ones.
    pub curves: Vec<Curve>,
}

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<Point>,
    /// How it is drawn.
    pub look: Look,
}

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// A line with a mark at each point, and a bar where a point has a spread: for measurements.
    Marked,
    /// A line in a band with the width of the points' spread.
    Band,
    /// A thin line: for a series of very many points.
    Thin,
}

/// One point of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Where it is.
    pub x: f64,
    /// Its height.
    pub y: f64,
    /// The lowest and the highest value.
    pub spread: Option<(f64, f64)>,
}

impl Curve {
    /// A curve of marked points.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().map(|(x, y)| Point { x, y, spread: None }).collect();
        Self { name: name.into(), points, look: Look::Marked }
    }
}

impl Point {
    /// The middle of `values` with their spread, at `x`; `None` without values.
    pub fn of(x: f64, values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let lowest = *sorted.first()?;
        let highest = *sorted.last()?;
        Some(Self { x, y: sorted[sorted.len() / 2], spread: Some((lowest, highest)) })
    }
}

/// Pixels of the picture, of the plotting area and of its margins.
const WIDTH: i32 = 640;
const PLOT_HEIGHT: i32 = 270;
const LEFT: i32 = 66;
const ABOVE: i32 = 32;
const BELOW: i32 = 54;
/// Between the plotting area and the labels: a line to each label, and its mark.
const LEADER: i32 = 20;
const MARK: i32 = 20;
/// Height of a line of a label, and the gap between labels.
const LABEL_LINE: i32 = 16;
const LABEL_GAP: i32 = 4;
const LABEL_TEXT: i32 = TEXT - 1;
/// Letters after which a label continues on the next line.
const LABEL_LETTERS: usize = 18;

impl Lines {
    /// The chart as SVG. Each curve has its name at its right end.
    pub fn svg(&self) -> String {
        let names: Vec<Vec<String>> = self.curves.iter().map(|curve| broken(&curve.name)).collect();
        let widest =
            names.iter().flatten().map(|line| text_width(line, LABEL_TEXT)).max().unwrap_or(0);
        let height =
            names.iter().map(|lines| label_height(lines) + LABEL_GAP).sum::<i32>().max(PLOT_HEIGHT);
        let right = WIDTH - LEADER - MARK - widest - 8;

        let plot = Plot {
            x: Span::new(&self.x, self.extent(|point| [point.x; 2]), (LEFT, right)),
            y: Span::new(&self.y, self.extent(Point::heights), (ABOVE + height, ABOVE)),
        };
        let labels = self.labels(&plot, names);

        picture(WIDTH, ABOVE + height + BELOW, |canvas| {
            self.draw_axes(canvas, &plot)?;
            for (index, curve) in self.curves.iter().enumerate() {
                curve.draw(canvas, &plot, index)?;
            }
            labels.iter().try_for_each(|label| self.draw_label(canvas, &plot, label))
        })
    }

    /// Without the curves that are 0 everywhere, and their names: they would only cover the axis.
    pub fn without_zeros(&self) -> (Self, Vec<&str>) {
        let is_zero = |curve: &&Curve| curve.points.iter().all(|point| point.heights() == [0.0; 2]);
        let (zero, other): (Vec<&Curve>, Vec<&Curve>) = self.curves.iter().partition(is_zero);
        let shown = Self { curves: other.into_iter().cloned().collect(), ..self.clone() };
        (shown, zero.into_iter().map(|curve| &*curve.name).collect())
    }

    /// The numbers as CSV: a line for each point.
    pub fn csv(&self) -> String {
        let columns = ["curve", &self.x.name, &self.y.name, "low", "high"].map(str::to_owned);
        let points = self.curves.iter().flat_map(|curve| {
            curve.points.iter().map(|point| {
                let [low, high] = match point.spread {
                    Some((low, high)) => [low.to_string(), high.to_string()],
                    None => [String::new(), String::new()],
                };
                [curve.name.clone(), point.x.to_string(), point.y.to_string(), low, high]
            })
        });
        let rows: Vec<[String; 5]> = std::iter::once(columns).chain(points).collect();
        csv(rows.iter().map(|row| row.iter().map(String::as_str).collect()))
    }

    /// The lowest and the highest number along an axis.
    fn extent(&self, numbers: impl Fn(&Point) -> [f64; 2]) -> (f64, f64) {
        let all = || self.curves.iter().flat_map(|curve| curve.points.iter().flat_map(&numbers));
        (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max))
    }

    /// The labels of the curves at their right ends, moved so that they do not overlap.
    fn labels(&self, plot: &Plot, names: Vec<Vec<String>>) -> Vec<Label> {
        let label = |(index, lines): (usize, Vec<String>)| {
            let last = self.curves[index].points.last()?;
            let end = (plot.x.place(last.x), plot.y.place(last.y));
            Some(Label { index, lines, end, y: end.1 / FINE })
        };
        let mut labels: Vec<Label> = names.into_iter().enumerate().filter_map(label).collect();
        labels.sort_by_key(|label| label.y);

        let (bottom, top) = plot.y.ends;
        let half = |label: &Label| label_height(&label.lines) / 2;
        let mut free_from = top - LABEL_LINE;

        for label in &mut labels {
            label.y = label.y.max(free_from + half(label));
            free_from = label.y + half(label) + LABEL_GAP;
        }

        // Below are the numbers of the axis.
        let mut free_to = bottom;

        for label in labels.iter_mut().rev() {
            label.y = label.y.min(free_to - half(label));
            free_to = label.y - half(label) - LABEL_GAP;
        }

        labels
    }

    /// A line from the curve's end, its mark, and its name.
    fn draw_label(
        &self,
        canvas: &Canvas<'_>,
        plot: &Plot,
        label: &Label,
    ) -> Result<(), DrawingError> {
        let colour = series_colour(label.index);
        let right = plot.x.ends.1;
        let y = label.y;
        let path = vec![label.end, fine((right, label.end.1 / FINE)), fine((right + LEADER, y))];
        canvas.draw(&PathElement::new(path, colour.mix(0.6).stroke_width(FINE as u32 / 2)))?;

        match self.curves[label.index].look {
            Look::Marked => mark(canvas, label.index, fine((right + LEADER + MARK / 2 - 2, y)))?,
            Look::Band | Look::Thin => {
                canvas.draw(&line(
                    &[(right + LEADER, y), (right + LEADER + MARK - 6, y)],
                    colour,
                    2,
                ))?;
            }
        }

        let first = y - label_height(&label.lines) / 2 + LABEL_LINE / 2;

        for (row, text) in (0..).zip(&label.lines) {
            let place = fine((right + LEADER + MARK, first + row * LABEL_LINE));
            let style = text_style(LABEL_TEXT, INK, HPos::Left, VPos::Center);
            canvas.draw(&Text::new(text.clone(), place, style))?;
        }

        Ok(())
    }

    fn draw_axes(&self, canvas: &Canvas<'_>, plot: &Plot) -> Result<(), DrawingError> {
        let (left, right) = plot.x.ends;
        let (bottom, top) = plot.y.ends;

        for (y, label) in plot.y.labels(&self.y) {
            canvas.draw(&line(&[(left, y), (right, y)], FAINT, 1))?;
            let style = text_style(TEXT - 1, PALE, HPos::Right, VPos::Center);
            canvas.draw(&Text::new(label, fine((left - 8, y)), style))?;
        }

        for (x, label) in plot.x.labels(&self.x) {
            canvas.draw(&line(&[(x, bottom), (x, bottom + 5)], PALE, 1))?;
            let style = text_style(TEXT - 1, PALE, HPos::Center, VPos::Top);
            canvas.draw(&Text::new(label, fine((x, bottom + 8)), style))?;
        }

        canvas.draw(&line(&[(left, bottom), (right, bottom)], PALE, 1))?;
        let style = text_style(TEXT, INK, HPos::Left, VPos::Bottom);
        canvas.draw(&Text::new(self.y.name.clone(), fine((8, top - 10)), style))?;

        let style = text_style(TEXT, INK, HPos::Right, VPos::Bottom);
        canvas.draw(&Text::new(self.x.name.clone(), fine((right, bottom + BELOW - 4)), style))
    }
}

impl Point {
    /// The lowest and the highest drawn value.
    fn heights(&self) -> [f64; 2] {
        self.spread.map_or([self.y; 2], |(low, high)| [low.min(self.y), high.max(self.y)])
    }
}

impl Curve {
    fn draw(&self, canvas: &Canvas<'_>, plot: &Plot, index: usize) -> Result<(), DrawingError> {
        let colour = series_colour(index);
        let place = |x, y| (plot.x.place(x), plot.y.place(y));

        if self.look == Look::Band {
            let heights = |point: &Point| point.heights();
            let low = self.points.iter().map(|point| place(point.x, heights(point)[0]));
            let high = self.points.iter().rev().map(|point| place(point.x, heights(point)[1]));
            let outline: Vec<_> = low.chain(high).collect();
            canvas.draw(&Polygon::new(outline, colour.mix(0.2).filled()))?;
        }

        let path: Vec<_> = self.points.iter().map(|point| place(point.x, point.y)).collect();
        let width = if self.look == Look::Thin { FINE } else { 2 * FINE } as u32;
        canvas.draw(&PathElement::new(path.clone(), colour.stroke_width(width)))?;

        if self.look != Look::Marked {
            return Ok(());
        }

        for (point, &(x, y)) in self.points.iter().zip(&path) {
            if let Some((low, high)) = point.spread {
                let low = plot.y.place(low);
                let high = plot.y.place(high);
                let style = colour.stroke_width(FINE as u32);
                canvas.draw(&PathElement::new(vec![(x, low), (x, high)], style))?;
                for end in [low, high] {
                    let cap = vec![(x - 3 * FINE, end), (x + 3 * FINE, end)];
                    canvas.draw(&PathElement::new(cap, style))?;
                }
            }
            mark(canvas, index, (x, y))?;
        }

        Ok(())
    }
}

/// The mark of curve `index`, with a distinct shape, at a position in units.
fn mark(canvas: &Canvas<'_>, index: usize, (x, y): (i32, i32)) -> Result<(), DrawingError> {
    let style = series_colour(index).filled();
    let r = 4 * FINE;

    let shape = |corners: &[(i32, i32)]| {
        let corners: Vec<_> = corners.iter().map(|&(dx, dy)| (x + dx, y + dy)).collect();
        canvas.draw(&Polygon::new(corners, style))
    };

    match index % 5 {
        0 => canvas.draw(&Circle::new((x, y), r, style)),
        1 => shape(&[(-r, -r), (r, -r), (r, r), (-r, r)]),
        2 => shape(&[(0, -r * 5 / 4), (r * 5 / 4, r), (-r * 5 / 4, r)]),
        3 => shape(&[(0, -r * 4 / 3), (r * 4 / 3, 0), (0, r * 4 / 3), (-r * 4 / 3, 0)]),
        _ => shape(&[(0, r * 5 / 4), (r * 5 / 4, -r), (-r * 5 / 4, -r)]),
    }
}

/// The name of a curve, next to its right end.
#[derive(Debug)]
struct Label {
    /// Number of the curve.
    index: usize,
    lines: Vec<String>,
    /// The curve's end, in units.
    end: (i32, i32),
    /// The label's middle, in pixels.
    y: i32,
}

fn label_height(lines: &[String]) -> i32 {
    LABEL_LINE * lines.len() as i32
}

/// A name in lines of at most [`LABEL_LETTERS`], if its words are no longer.
fn broken(name: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in unbroken(name).split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= LABEL_LETTERS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A line through positions in pixels.
fn line(places: &[(i32, i32)], colour: RGBColor, width: i32) -> PathElement<(i32, i32)> {
    let places: Vec<_> = places.iter().copied().map(fine).collect();
    PathElement::new(places, colour.stroke_width((width * FINE) as u32))
}

/// Converts a position in pixels to units.
fn fine((x, y): (i32, i32)) -> (i32, i32) {
    (x * FINE, y * FINE)
}

struct Plot {
    x: Span,
    y: Span,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Lines {
        Lines {
            x: Axis::log("packets"),
            y: Axis::percent("lost", 100.0),
            curves: vec![
                Curve::new("one & two", [(1e3, 0.0), (1e5, 50.0), (1e7, 100.0)]),
                Curve {
                    look: Look::Band,
                    points: vec![Point::of(1e4, &[3.0, 1.0, 2.0]).unwrap()],
                    ..Curve::new("three", [])
                },
            ],
        }
    }

    #[test]
    fn a_chart_is_well_formed_and_always_the_same() {
        let svg = chart().svg();
        assert_eq!(svg, chart().svg());
        assert!(svg.contains("one &amp; two") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for label in ["1,000", "10 k", "10 M", "100 %"] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
    }

    #[test]
    fn labels_are_beside_the_ends_of_their_curves_and_do_not_overlap() {
        let curve = |name: &str, last: f64| Curve::new(name, [(1.0, 0.0), (2.0, last)]);
        let ends = [
            ("low", 0.0),
            ("libpcap multi_pkt_handler, hash", 1.0),
            ("also low", 0.5),
            ("high", 100.0),
        ];

        let chart = Lines {
            x: Axis::linear("x"),
            y: Axis::percent("y", 100.0),
            curves: ends.map(|(name, last)| curve(name, last)).to_vec(),
        };
        let plot = Plot {
            x: Span::new(&chart.x, (1.0, 2.0), (0, 100)),
            y: Span::new(&chart.y, (0.0, 100.0), (300, 0)),
        };

        let names = chart.curves.iter().map(|curve| broken(&curve.name)).collect();
        let labels = chart.labels(&plot, names);
        let order: Vec<usize> = labels.iter().map(|label| label.index).collect();
        assert_eq!(order, [3, 1, 2, 0], "from the top");
        assert_eq!(labels[1].lines, ["libpcap", "multi_pkt_handler,", "hash"]);
        assert_eq!(labels[0].y, 0, "nothing is near it");

        for pair in labels.windows(2) {
            let apart = (label_height(&pair[0].lines) + label_height(&pair[1].lines)) / 2;
            assert!(pair[1].y - pair[0].y >= apart, "{pair:?}");
        }

        assert!(labels[3].y + label_height(&labels[3].lines) / 2 <= 300, "{labels:?}");
        let svg = chart.svg();
        assert!(
            ends.iter().all(|(name, _)| name.split(' ').all(|word| svg.contains(word))),
            "{svg}"
        );
    }

    #[test]
    fn curves_that_are_zero_everywhere_are_named_and_not_drawn() {
        let points = |last| [(1.0, 0.0), (2.0, last)];
        let chart = Lines {
            x: Axis::linear("x"),
            y: Axis::percent("y", 100.0),
            curves: vec![Curve::new("none", points(0.0)), Curve::new("some", points(0.1))],
        };
        let (shown, zero) = chart.without_zeros();
        assert_eq!((shown.curves, zero), (vec![Curve::new("some", points(0.1))], vec!["none"]));

        // One lossy round is enough.
        let point = Point::of(1.0, &[0.0, 0.0, 5.0]).unwrap();
        let rarely = Lines {
            curves: vec![Curve { points: vec![point], ..Curve::new("rarely", []) }],
            ..chart
        };
        assert!(rarely.without_zeros().1.is_empty());
    }

    #[test]
    fn the_numbers_of_a_chart_can_be_read_by_others() {
        let csv = chart().csv();
        assert!(csv.starts_with("curve,packets,lost,low,high\none & two,1000,0,,\n"), "{csv}");
        assert!(csv.ends_with("three,10000,2,1,3\n"), "{csv}");
    }

    #[test]
    fn a_point_is_the_median_with_its_spread() {
        let point = Point::of(1.0, &[9.0, 1.0, 4.0]).unwrap();
        assert_eq!((point.y, point.spread), (4.0, Some((1.0, 9.0))));
        assert_eq!(Point::of(1.0, &[]), None);
    }

    #[test]
    fn a_chart_without_points_is_still_one() {
        let empty = Lines { x: Axis::linear("x"), y: Axis::linear("y"), curves: vec![] };
        assert!(empty.svg().contains("</svg>"));
        let single = Lines { curves: vec![Curve::new("", [(5.0, 0.0)])], ..empty };
        assert!(single.svg().contains("</svg>"));
    }
}
