//! Curves over an axis of numbers.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use crate::chart::axis::Span;
pub use crate::chart::axis::{Axis, Scale};
use crate::chart::{
    Canvas, DrawingError, FAINT, FINE, INK, PALE, TEXT, WIDTH, picture, series_colour, text_style, text_width,
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
        let (lowest, highest) = (*sorted.first()?, *sorted.last()?);
        Some(Self { x, y: sorted[sorted.len() / 2], spread: Some((lowest, highest)) })
    }
}

/// Pixels of the plotting area and of its margins.
const PLOT_HEIGHT: i32 = 270;
const LEFT: i32 = 66;
const RIGHT: i32 = 26;
const ABOVE: i32 = 32;
const BELOW: i32 = 54;
const LEGEND_ROW: i32 = 24;

impl Lines {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        let legend = self.legend();
        let legend_height = LEGEND_ROW * legend.len() as i32 + 4;
        let top = legend_height + ABOVE;
        let plot = Plot {
            x: Span::new(&self.x, self.extent(|point| [point.x; 2]), (LEFT, WIDTH - RIGHT)),
            y: Span::new(&self.y, self.extent(Point::heights), (top + PLOT_HEIGHT, top)),
        };
        picture(WIDTH, top + PLOT_HEIGHT + BELOW, |canvas| {
            self.draw_legend(canvas, &legend)?;
            self.draw_axes(canvas, &plot)?;
            for (index, curve) in self.curves.iter().enumerate() {
                curve.draw(canvas, &plot, index)?;
            }
            Ok(())
        })
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

    /// The curves by number, in rows that fit the width, each with its position.
    fn legend(&self) -> Vec<Vec<(usize, i32)>> {
        let mut rows: Vec<Vec<(usize, i32)>> = Vec::new();
        let mut x = WIDTH;
        for (index, curve) in self.curves.iter().enumerate() {
            let width = 34 + text_width(&curve.name, TEXT) + 12;
            if x + width > WIDTH {
                (x, _) = (8, rows.push(Vec::new()));
            }
            rows.last_mut().expect("a row was begun").push((index, x));
            x += width;
        }
        rows
    }

    fn draw_legend(&self, canvas: &Canvas<'_>, rows: &[Vec<(usize, i32)>]) -> Result<(), DrawingError> {
        for (row, entries) in rows.iter().enumerate() {
            let y = LEGEND_ROW * row as i32 + LEGEND_ROW / 2 + 2;
            for &(index, x) in entries {
                let colour = series_colour(index);
                canvas.draw(&line(&[(x, y), (x + 26, y)], colour, 2))?;
                if self.curves[index].look == Look::Marked {
                    mark(canvas, index, fine((x + 13, y)))?;
                }
                let style = text_style(TEXT, INK, HPos::Left, VPos::Center);
                canvas.draw(&Text::new(self.curves[index].name.clone(), fine((x + 34, y)), style))?;
            }
        }
        Ok(())
    }

    fn draw_axes(&self, canvas: &Canvas<'_>, plot: &Plot) -> Result<(), DrawingError> {
        let ((left, right), (bottom, top)) = (plot.x.ends, plot.y.ends);
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
                let (low, high) = (plot.y.place(low), plot.y.place(high));
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
        for label in ["1000", "10 k", "10 M", "100 %"] {
            assert!(svg.contains(label), "{label}: {svg}");
        }
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
