//! Charts as SVG text, in one style: [`lines`] and [`bars`].
//!
//! A separate chart is dark on white; in the report its colours follow the reader's theme
//! ([`themed`]). So charts use only the colours of this module. They are drawn in units of which
//! [`FINE`] make a pixel, because plotters uses integer coordinates.

mod axis;
pub mod bars;
pub mod lines;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Number of drawing units per pixel of the nominal size.
pub const FINE: i32 = 4;

/// The width of charts, in pixels: readable at half of it, on a phone.
pub const WIDTH: i32 = 560;

/// The size of text, in pixels.
pub const TEXT: i32 = 15;

/// The background.
pub const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
/// Text, axes.
pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Secondary text, such as the numbers of an axis.
pub const PALE: RGBColor = RGBColor(0x5c, 0x5c, 0x5c);
/// Lines of a grid.
pub const FAINT: RGBColor = RGBColor(0xe2, 0xe2, 0xe2);

/// Colours that colour-blind readers can also distinguish, after Okabe and Ito.
pub const SERIES: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xb0, 0x5c, 0x8d),
    RGBColor(0xd9, 0x96, 0x00),
    RGBColor(0x3a, 0x9f, 0xd8),
    RGBColor(0x7f, 0x55, 0x39),
    RGBColor(0x77, 0x77, 0x77),
];

/// The maximum number of series that look different.
pub const SERIES_MAX: usize = SERIES.len() + 2;

/// The colour of series number `index`; after the colours of the style, its greys.
pub fn series_colour(index: usize) -> RGBColor {
    let greys = [INK, PALE];
    SERIES.iter().chain(&greys).copied().nth(index % SERIES_MAX).unwrap_or(INK)
}

/// The drawing area of charts, in units ([`FINE`]).
pub type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The error of drawing, which does not occur in memory.
pub type DrawingError = DrawingAreaErrorKind<std::io::Error>;

/// An SVG picture of `width` by `height` pixels, drawn by `draw`.
pub fn picture(
    width: i32,
    height: i32,
    draw: impl FnOnce(&Canvas<'_>) -> Result<(), DrawingError>,
) -> String {
    let mut svg = String::new();
    let size = ((width * FINE) as u32, (height * FINE) as u32);
    let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    let drawn = canvas.fill(&PAPER).and_then(|()| draw(&canvas)).and_then(|()| canvas.present());
    drawn.expect("drawing into memory does not fail");
    drop(canvas);
    let units = format!("width=\"{}\" height=\"{}\"", size.0, size.1);
    svg.replacen(&units, &format!("width=\"{width}\" height=\"{height}\""), 1)
}

/// Text of `size` pixels, anchored at `horizontal` and `vertical`.
pub fn text_style(
    size: i32,
    colour: RGBColor,
    horizontal: HPos,
    vertical: VPos,
) -> TextStyle<'static> {
    // plotters writes a font's height; its nominal size is this share of it.
    let height = f64::from(size * FINE) * 1.24;
    let mut style = TextStyle::from(("sans-serif", height).into_font());
    style.color = colour.to_backend_color();
    style.pos(Pos::new(horizontal, vertical))
}

/// A number with separators that may be negative: `-1,063`.
pub fn signed(number: i64) -> String {
    format!("{}{}", if number < 0 { "-" } else { "" }, wirecap::grouped(number.unsigned_abs()))
}

/// The nearest whole number with separators; `-` for NaN, an unknown number.
pub fn rounded(number: f64) -> String {
    if number.is_nan() { "-".to_owned() } else { signed(number.round() as i64) }
}

/// `text` without line breaks between a number and its unit or name: `40 ns`, `T = 60 %`.
pub fn unbroken(text: &str) -> String {
    let units = [" %", " ns", " µs", " ms"];
    let text = units
        .iter()
        .fold(text.to_owned(), |text, unit| text.replace(unit, &unit.replace(' ', "\u{a0}")));
    text.replace(" = ", "\u{a0}=\u{a0}")
}

/// The approximate width of `text` of `size` pixels, in pixels: that of DejaVu Sans, a wide font,
/// because the reader's font is unknown.
pub fn text_width(text: &str, size: i32) -> i32 {
    let ems = |letter: char| match letter {
        'i' | 'j' | 'l' | '.' | ',' | ':' | '\'' | ' ' | '\u{a0}' => 0.32,
        'f' | 'r' | 't' | '-' | '(' | ')' => 0.41,
        'm' | 'w' | 'M' | 'W' => 0.96,
        'A'..='Z' => 0.72,
        _ => 0.64,
    };
    (text.chars().map(ems).sum::<f64>() * f64::from(size)).ceil() as i32
}

/// The picture for a page: as wide as possible, in colours that the page's style sheet may set as
/// `--paper`, `--ink`, `--pale`, `--faint` and `--series-0` to `--series-7`.
pub fn themed(svg: &str) -> String {
    let names = ["paper", "ink", "pale", "faint"].map(str::to_owned);
    let names = names.into_iter().chain((0..SERIES.len()).map(|index| format!("series-{index}")));
    let colours = [PAPER, INK, PALE, FAINT].into_iter().chain(SERIES);
    let mut themed = svg.to_owned();
    for (name, RGBColor(red, green, blue)) in names.zip(colours) {
        let literal = format!("\"#{red:02X}{green:02X}{blue:02X}\"");
        let variable = format!("\"var(--{name}, {})\"", literal.trim_matches('"'));
        themed = themed.replace(&literal, &variable);
    }
    themed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_separators_and_nan_is_a_dash() {
        assert_eq!(
            [1062.6, 999.4, -0.4, -1063.0, f64::NAN].map(rounded),
            ["1,063", "999", "0", "-1,063", "-"]
        );
    }

    #[test]
    fn a_themed_picture_contains_no_fixed_colour() {
        let text = Text::new("a < b", (0, 0), text_style(TEXT, INK, HPos::Left, VPos::Top));
        let svg = picture(10, 5, |canvas| canvas.draw(&text));
        assert!(svg.starts_with("<svg width=\"10\" height=\"5\" viewBox=\"0 0 40 20\""), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains("fill=\"#222222\""), "{svg}");
        let themed = themed(&svg);
        assert!(themed.contains("fill=\"var(--ink, #222222)\""), "{themed}");
        assert!(
            themed.contains("fill=\"var(--paper, #FFFFFF)\"") && !themed.contains("=\"#"),
            "{themed}"
        );
    }

    #[test]
    fn the_promised_number_of_series_look_different() {
        let colours: std::collections::BTreeSet<_> =
            (0..SERIES_MAX).map(series_colour).map(|RGBColor(r, g, b)| (r, g, b)).collect();
        assert_eq!(colours.len(), SERIES_MAX);
    }
}
