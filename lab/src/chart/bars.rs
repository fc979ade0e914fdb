//! Horizontal bars: each may be a stack of parts, with its name above it.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use crate::chart::axis::short;
use crate::chart::{
    Canvas, DrawingError, FAINT, FINE, INK, PALE, PAPER, TEXT, WIDTH, picture, rounded,
    series_colour, text_style, text_width,
};

/// A chart of bars. A bar with several parts is a stack; there is space between groups.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// The quantity of lengths, with its unit.
    pub axis: String,
    /// The names of the parts, for the legend.
    pub series: Vec<String>,
    /// The bars from top to bottom.
    pub groups: Vec<Group>,
    /// Lines of text below the chart.
    pub notes: Vec<String>,
}

/// Bars that are compared with each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Their common heading; none if empty.
    pub name: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// The text after its end.
    pub label: String,
    /// Its parts from left to right. A negative part has no length.
    pub parts: Vec<Part>,
}

/// A part of a bar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// The number of its series.
    pub series: usize,
    /// Its length.
    pub value: f64,
    /// Drawn as an outline: a value that was derived, not measured or stated.
    pub hollow: bool,
}

impl Bar {
    fn length(&self) -> f64 {
        self.parts.iter().map(|part| part.value.max(0.0)).sum()
    }
}

const MARGIN: i32 = 8;
const NAME_ROW: i32 = 24;
const BAR_HEIGHT: i32 = 30;
const BAR_GAP: i32 = 8;
const GROUP_GAP: i32 = 16;
const LEGEND_ROW: i32 = 22;
const AXIS_HEIGHT: i32 = 46;
/// A part shows its number if it has this much room in addition to the number.
const NUMBER_ROOM: i32 = 6;
const SWATCH: i32 = 14;

impl Bars {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        let rows = self.rows();
        let bottom = rows.last().map_or(0, |row| row.top + row.height);
        let legend = self.legend();
        let legend_top = bottom + AXIS_HEIGHT;
        let notes_top = legend_top + LEGEND_ROW * legend.len() as i32 + MARGIN;
        let height = notes_top + LEGEND_ROW * self.notes.len() as i32 + MARGIN;
        let scale = self.scale();

        picture(WIDTH, height, |canvas| {
            scale.draw(canvas, bottom, &self.axis)?;
            rows.iter().try_for_each(|row| row.draw(canvas, &scale))?;
            self.draw_legend(canvas, &legend, legend_top)?;
            for (index, note) in self.notes.iter().enumerate() {
                let place = (MARGIN, notes_top + LEGEND_ROW * index as i32 + LEGEND_ROW / 2);
                write(canvas, note, place, text_style(TEXT - 1, PALE, HPos::Left, VPos::Center))?;
            }
            Ok(())
        })
    }

    /// The lines of the chart, with their positions in pixels.
    fn rows(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        let mut top = MARGIN;

        let mut add = |what, height, gap| {
            rows.push(Row { what, top, height });
            top += height + gap;
        };

        for group in &self.groups {
            if !group.name.is_empty() {
                add(What::GroupName(&group.name), NAME_ROW, 0);
            }
            for (index, bar) in group.bars.iter().enumerate() {
                let is_last = index + 1 == group.bars.len();
                add(What::Name(&bar.name), NAME_ROW, 0);
                add(What::Bar(bar), BAR_HEIGHT, if is_last { GROUP_GAP } else { BAR_GAP });
            }
        }

        rows
    }

    /// Leaves room for the label of the longest bar.
    fn scale(&self) -> Scale {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let longest = bars().map(Bar::length).fold(0.0, f64::max);
        let per_pixel = |bar: &Bar| {
            let room = WIDTH - 2 * MARGIN - text_width(&bar.label, TEXT) - 2 * NUMBER_ROOM;
            bar.length() / f64::from(room.max(1))
        };
        let per_pixel = bars().map(per_pixel).fold(0.0, f64::max);
        if longest > 0.0 {
            Scale { longest, per_pixel }
        } else {
            Scale { longest: 1.0, per_pixel: 0.01 }
        }
    }

    /// The series that occur in a bar, in rows that fit the width, each with its position.
    fn legend(&self) -> Vec<Vec<(usize, i32)>> {
        let parts = || self.groups.iter().flat_map(|group| &group.bars).flat_map(|bar| &bar.parts);
        let mut rows: Vec<Vec<(usize, i32)>> = Vec::new();
        let mut x = WIDTH;

        for (index, name) in self.series.iter().enumerate() {
            if !parts().any(|part| part.series == index) {
                continue;
            }

            let width = SWATCH + 8 + text_width(name, TEXT) + 14;
            if x + width > WIDTH {
                x = MARGIN;
                rows.push(Vec::new());
            }

            rows.last_mut().expect("a row was begun").push((index, x));
            x += width;
        }

        rows
    }

    fn draw_legend(
        &self,
        canvas: &Canvas<'_>,
        rows: &[Vec<(usize, i32)>],
        top: i32,
    ) -> Result<(), DrawingError> {
        for (row, entries) in rows.iter().enumerate() {
            let y = top + LEGEND_ROW * row as i32 + LEGEND_ROW / 2;
            for &(index, x) in entries {
                let style = series_colour(index).filled();
                draw_box(canvas, (x, y - SWATCH / 2), (x + SWATCH, y + SWATCH / 2), style)?;
                let style = text_style(TEXT, INK, HPos::Left, VPos::Center);
                write(canvas, &self.series[index], (x + SWATCH + 8, y), style)?;
            }
        }
        Ok(())
    }
}

/// A line of the chart.
struct Row<'a> {
    what: What<'a>,
    top: i32,
    height: i32,
}

enum What<'a> {
    GroupName(&'a str),
    Name(&'a str),
    Bar(&'a Bar),
}

impl Row<'_> {
    fn draw(&self, canvas: &Canvas<'_>, scale: &Scale) -> Result<(), DrawingError> {
        let middle = self.top + self.height / 2;
        match self.what {
            What::GroupName(name) => {
                let style = text_style(TEXT + 1, INK, HPos::Left, VPos::Center);
                write(canvas, name, (MARGIN, middle), style)
            }
            What::Name(name) => {
                let style = text_style(TEXT, INK, HPos::Left, VPos::Center);
                write(canvas, name, (MARGIN, middle), style)
            }
            What::Bar(bar) => self.draw_bar(canvas, scale, bar),
        }
    }

    fn draw_bar(&self, canvas: &Canvas<'_>, scale: &Scale, bar: &Bar) -> Result<(), DrawingError> {
        let bottom = self.top + self.height;
        let middle = self.top + self.height / 2;
        let mut before = 0.0;

        for part in bar.parts.iter().filter(|part| part.value > 0.0) {
            let left = scale.place(before);
            let right = scale.place(before + part.value);
            before += part.value;

            let colour = series_colour(part.series);
            draw_box(canvas, (left, self.top), (right, bottom), colour.filled())?;

            if part.hollow {
                draw_box(
                    canvas,
                    (left + 2, self.top + 2),
                    (right - 2, bottom - 2),
                    PAPER.filled(),
                )?;
            }

            let number = rounded(part.value);
            if text_width(&number, TEXT - 1) + NUMBER_ROOM <= right - left {
                let colour = if part.hollow { INK } else { PAPER };
                let style = text_style(TEXT - 1, colour, HPos::Center, VPos::Center);
                write(canvas, &number, (i32::midpoint(left, right), middle), style)?;
            }
        }

        let style = text_style(TEXT, INK, HPos::Left, VPos::Center);
        write(canvas, &bar.label, (scale.place(before) + NUMBER_ROOM, middle), style)
    }
}

/// The length of a value.
struct Scale {
    longest: f64,
    per_pixel: f64,
}

impl Scale {
    fn place(&self, value: f64) -> i32 {
        MARGIN + (value / self.per_pixel).round() as i32
    }

    /// The axis below the bars, and a line upwards at each of its numbers.
    fn draw(&self, canvas: &Canvas<'_>, bottom: i32, name: &str) -> Result<(), DrawingError> {
        let step = round_step(self.longest / 5.0);
        for count in 0..=(self.longest / step) as i32 {
            let value = f64::from(count) * step;
            let x = self.place(value);
            draw_line(canvas, [(x, MARGIN), (x, bottom)])?;
            let style = text_style(TEXT - 1, PALE, HPos::Center, VPos::Top);
            let x = x.max(MARGIN + text_width("0", TEXT) / 2);
            write(canvas, &short(value), (x, bottom + 4), style)?;
        }
        let style = text_style(TEXT, INK, HPos::Right, VPos::Top);
        write(canvas, name, (WIDTH - MARGIN, bottom + 22), style)
    }
}

/// The next round number.
fn round_step(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough)
}

fn fine((x, y): (i32, i32)) -> (i32, i32) {
    (x * FINE, y * FINE)
}

fn draw_box(
    canvas: &Canvas<'_>,
    from: (i32, i32),
    to: (i32, i32),
    style: ShapeStyle,
) -> Result<(), DrawingError> {
    canvas.draw(&Rectangle::new([fine(from), fine(to)], style))
}

fn draw_line(canvas: &Canvas<'_>, ends: [(i32, i32); 2]) -> Result<(), DrawingError> {
    canvas.draw(&PathElement::new(ends.map(fine).to_vec(), FAINT.stroke_width(FINE as u32)))
}

fn write(
    canvas: &Canvas<'_>,
    text: &str,
    place: (i32, i32),
    style: TextStyle<'static>,
) -> Result<(), DrawingError> {
    canvas.draw(&Text::new(text.to_owned(), fine(place), style))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(series: usize, value: f64) -> Part {
        Part { series, value, hollow: false }
    }

    fn chart() -> Bars {
        let bars = vec![
            Bar {
                name: "short & sweet".into(),
                label: "7 in all".into(),
                parts: vec![part(0, 3.0), part(2, 4.0)],
            },
            Bar {
                name: "long".into(),
                label: "50".into(),
                parts: vec![part(0, 50.0), part(1, -1.0)],
            },
        ];
        Bars {
            axis: "cycles".into(),
            series: ["one", "two", "three", "four"].map(str::to_owned).to_vec(),
            groups: vec![Group { name: String::new(), bars }],
            notes: vec!["measured on the moon".into()],
        }
    }

    #[test]
    fn a_chart_has_its_bars_and_the_series_that_they_have() {
        let svg = chart().svg();
        assert_eq!(svg, chart().svg());
        let texts =
            ["short &amp; sweet", "long", "7 in all", "cycles", "one", "two", "three", "the moon"];
        assert!(texts.iter().all(|text| svg.contains(text)), "{svg}");
        assert!(!svg.contains("four"), "no bar has it: {svg}");
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn the_longest_bar_leaves_room_for_its_label() {
        let chart = chart();
        let scale = chart.scale();
        assert!(scale.place(50.0) + text_width("50", TEXT) <= WIDTH);
        assert!(scale.place(7.0) < scale.place(50.0) && scale.place(0.0) == MARGIN);
    }

    #[test]
    fn a_step_without_cost_has_no_bar() {
        let empty = Bars { groups: Vec::new(), ..chart() };
        assert!(empty.svg().contains("</svg>"));
        let bar = Bar { name: String::new(), label: String::new(), parts: vec![part(0, -3.0)] };
        assert_eq!(bar.length(), 0.0);
    }
}
