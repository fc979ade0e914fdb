//! An SVG picture of rectangles, lines and text: what `profile` draws.

use std::fmt::{Arguments, Write};

/// Where a text is relative to its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// To the right of it, and below.
    Left,
    /// Below it, centred.
    Centre,
}

/// A white picture, drawn in pixels from the upper left corner.
#[derive(Debug)]
pub(crate) struct Picture {
    text: String,
}

impl Picture {
    pub(crate) fn new(width: u32, height: u32) -> Self {
        let mut picture = Self { text: String::new() };
        picture.push(format_args!(
            r#"<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">"#
        ));
        picture.filled((0, 0), (width as i32, height as i32), [255; 3]);
        picture
    }

    /// A filled rectangle between these corners.
    pub(crate) fn filled(&mut self, from: (i32, i32), to: (i32, i32), [r, g, b]: [u8; 3]) {
        self.rectangle(from, to, format_args!(r##"fill="#{r:02x}{g:02x}{b:02x}""##));
    }

    /// The outline of a rectangle between these corners.
    pub(crate) fn frame(&mut self, from: (i32, i32), to: (i32, i32)) {
        self.rectangle(from, to, format_args!(r##"fill="none" stroke="#999""##));
    }

    fn rectangle(&mut self, (x, y): (i32, i32), to: (i32, i32), paint: Arguments<'_>) {
        let width = to.0 - x;
        let height = to.1 - y;
        self.push(format_args!(
            r##"<rect x="{x}" y="{y}" width="{width}" height="{height}" {paint}/>"##
        ));
    }

    pub(crate) fn line(&mut self, from: (i32, i32), to: (i32, i32)) {
        let (x1, y1) = from;
        let (x2, y2) = to;
        self.push(format_args!(
            r##"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#999"/>"##
        ));
    }

    /// A line of text at this point, of this size.
    pub(crate) fn text(&mut self, (x, y): (i32, i32), size: u32, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Left => "start",
            Anchor::Centre => "middle",
        };
        let text = escaped(text);
        // The height of the letters above the line on which they stand is 0.76 of the size.
        self.push(format_args!(
            r#"<text x="{x}" y="{y}" dy="0.76em" text-anchor="{anchor}" font-family="sans-serif" font-size="{size}">{text}</text>"#
        ));
    }

    /// The whole picture, as a file has it.
    pub(crate) fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn push(&mut self, element: Arguments<'_>) {
        writeln!(self.text, "{element}").expect("a string takes everything");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_be_an_element() {
        let mut picture = Picture::new(10, 20);
        picture.text((1, 2), 12, Anchor::Left, "a<b>&c");
        picture.line((0, 0), (1, 1));
        let picture = picture.finish();
        assert!(picture.contains(">a&lt;b&gt;&amp;c</text>"), "{picture}");
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
        // Every element but the outer one and the text closes itself.
        assert_eq!(picture.matches("/>").count(), 2);
    }
}
