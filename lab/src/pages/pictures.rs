//! Pictures of the documents, drawn from the CSV files of `lab/results` like the tables.

use std::path::Path;

use super::{Data, PageError, RESULTS, distinct};
use crate::chart::lines::{Axis, Curve, Lines, Look, Point};

/// A picture of curves.
#[derive(Debug, Clone, Copy)]
pub struct Picture {
    /// The file, from the root of the repository.
    pub file: &'static str,
    /// The data, in the form of a chart's CSV: curve, x, y, and the range of y.
    data: &'static str,
    x: fn(&str) -> Axis,
    y: fn(&str) -> Axis,
}

/// All of them.
pub const PICTURES: [Picture; 2] = [
    Picture {
        file: "docs/table-1-by-burst.svg",
        data: "lab/data/table-1-sensitivity/shortest-burst.csv",
        x: |name| log(name, &[16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0]),
        y: rate,
    },
    Picture {
        file: "docs/table-1-by-ring.svg",
        data: "lab/data/table-1-sensitivity/ring-size.csv",
        x: |name| log(name, &[256.0, 512.0, 1024.0, 2048.0, 4096.0]),
        y: rate,
    },
];

fn log(name: &str, ticks: &[f64]) -> Axis {
    Axis { ticks: ticks.to_vec(), ..Axis::log(name) }
}

fn rate(name: &str) -> Axis {
    Axis::percent(name, 70.0)
}

impl Picture {
    /// The picture as SVG, drawn from the data under `root`.
    ///
    /// # Errors
    ///
    /// If the data cannot be read.
    pub fn svg(&self, root: &Path) -> Result<String, PageError> {
        let data = Data::read(&root.join(RESULTS).join(self.data))?;
        let name = |column: usize| {
            let name = data.columns.get(column).map(String::as_str);
            name.ok_or_else(|| data.failed("it is not the data of a chart"))
        };
        let curves = distinct(data.rows.iter().filter_map(|row| row.first().map(String::as_str)));
        let curves = curves.into_iter().map(|name| curve(&data, name)).collect::<Result<_, _>>()?;
        Ok(Lines { x: (self.x)(name(1)?), y: (self.y)(name(2)?), curves }.svg())
    }
}

/// A curve without a range is a line to compare with.
fn curve(data: &Data, name: &str) -> Result<Curve, PageError> {
    let number = |row: &[String], column: usize| -> Result<f64, PageError> {
        let cell = row.get(column).map(String::as_str).unwrap_or_default();
        cell.parse().map_err(|_| data.failed(&format!("'{cell}' is not a number")))
    };
    let point = |row: &Vec<String>| -> Result<Point, PageError> {
        let has_range = row.get(3).is_some_and(|low| !low.is_empty());
        let spread = if has_range { Some((number(row, 3)?, number(row, 4)?)) } else { None };
        Ok(Point { x: number(row, 1)?, y: number(row, 2)?, spread })
    };

    let rows = data.rows.iter().filter(|row| row[0] == name);
    let points = rows.map(point).collect::<Result<Vec<_>, _>>()?;
    let look =
        if points.iter().any(|point| point.spread.is_some()) { Look::Marked } else { Look::Thin };

    Ok(Curve { points, look, ..Curve::new(name, []) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICTURE: Picture = Picture {
        file: "a.svg",
        data: "a.csv",
        x: |name| Axis::log(name),
        y: |name| Axis::linear(name),
    };

    fn drawn(text: &str) -> Result<String, PageError> {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join(RESULTS)).unwrap();
        std::fs::write(root.path().join(RESULTS).join("a.csv"), text).unwrap();
        PICTURE.svg(root.path())
    }

    #[test]
    fn a_picture_has_the_curves_and_axes_of_its_data() {
        let text = "curve,bytes,kept,low,high\nwe,60,512,510,513\nwe,1514,512,512,512\npaper,60,9,,\npaper,1514,9,,\n";
        let svg = drawn(text).unwrap();
        assert!(["we", "paper", "bytes", "kept"].iter().all(|word| svg.contains(word)), "{svg}");
        assert_eq!(svg, drawn(text).unwrap());
        assert_ne!(svg, drawn(&text.replace("we,1514,512", "we,1514,300")).unwrap());
    }

    #[test]
    fn data_that_are_no_chart_are_an_error() {
        let reason = |text: &str| match drawn(text).unwrap_err() {
            PageError::Data { source, .. } => source.to_string(),
            error => error.to_string(),
        };
        assert_eq!(reason("curve,bytes,kept\nwe,60,many\n"), "'many' is not a number");
        assert_eq!(reason("curve,bytes\n"), "it is not the data of a chart");
    }
}
