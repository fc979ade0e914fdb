//! Finds the segments, rows of an index and pieces that a SQL condition excludes. DataFusion's
//! pruning decides by the bounds that names, rows and pieces contain for their packets.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, StringArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use datafusion::common::Column;
use datafusion::common::pruning::PruningStatistics;
use datafusion::physical_optimizer::pruning::PruningPredicate;
use datafusion::scalar::ScalarValue;
use wirecap_index::{Flow, Index, Piece, Row, Sieve};

use crate::columns::{of_flow, repeated, times};
use crate::segment::Segment;

/// A condition over the columns of `packets`, and the segment to which it is applied.
pub(crate) struct Condition<'a> {
    pub(crate) predicate: &'a PruningPredicate,
    pub(crate) segment: &'a Segment,
}

/// The segments that may have rows for which the condition is true, according to their names.
pub(crate) fn may_match(predicate: &PruningPredicate, segments: &[Segment]) -> Vec<bool> {
    let mut keep = vec![true; segments.len()];
    prune(predicate, &OfSegments(segments), &mut keep);
    keep
}

/// A condition that cannot be evaluated excludes nothing.
fn prune(predicate: &PruningPredicate, statistics: &dyn PruningStatistics, keep: &mut [bool]) {
    if let Ok(may_match) = predicate.prune(statistics) {
        for (keep, may) in keep.iter_mut().zip(may_match) {
            *keep &= may;
        }
    }
}

impl Sieve for Condition<'_> {
    fn rows(&mut self, index: &Index, keep: &mut [bool]) {
        prune(self.predicate, &OfRows { index, segment: self.segment }, keep);
    }

    fn pieces(&mut self, pieces: &[Piece], keep: &mut [bool]) {
        prune(self.predicate, &OfPieces { pieces, segment: self.segment }, keep);
    }
}

/// The lower or the upper bound of a column's values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Lower,
    Upper,
}

impl Bound {
    fn of<T>(self, lower: T, upper: T) -> T {
        match self {
            Self::Lower => lower,
            Self::Upper => upper,
        }
    }
}

/// The parts of [`PruningStatistics`] that are the same for names, rows and pieces.
macro_rules! bounds {
    () => {
        fn min_values(&self, column: &Column) -> Option<ArrayRef> {
            self.bound(&column.name, Bound::Lower)
        }

        fn max_values(&self, column: &Column) -> Option<ArrayRef> {
            self.bound(&column.name, Bound::Upper)
        }

        fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
            None
        }
    };
}

/// Bounds from the names of segments.
struct OfSegments<'a>(&'a [Segment]);

impl OfSegments<'_> {
    fn bound(&self, name: &str, bound: Bound) -> Option<ArrayRef> {
        let segments = self.0;
        Some(match name {
            "sensor" => Arc::new(
                segments.iter().map(|segment| segment.sensor.as_deref()).collect::<StringArray>(),
            ),
            "segment" => Arc::new(
                segments.iter().map(|segment| Some(&*segment.name)).collect::<StringArray>(),
            ),
            // Rows of flows lie within the same times as their packets.
            "time" | "first" | "last" => times(segments.iter().map(|segment| {
                let (first, last) = segment.times.unwrap_or((0, u64::MAX));
                bound.of(first, last)
            })),
            _ => return None,
        })
    }
}

impl PruningStatistics for OfSegments<'_> {
    bounds!();

    fn num_containers(&self) -> usize {
        self.0.len()
    }

    fn null_counts(&self, _: &Column) -> Option<ArrayRef> {
        None
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        None
    }
}

/// Bounds from the rows of an index.
struct OfRows<'a> {
    index: &'a Index,
    segment: &'a Segment,
}

/// The flow of a row, unless its packets are of unknown flow.
fn known(row: &Row) -> Option<&Flow> {
    (!row.flow.is_unknown()).then_some(&row.flow)
}

impl OfRows<'_> {
    fn bound(&self, name: &str, bound: Bound) -> Option<ArrayRef> {
        let rows = self.index.rows();
        macro_rules! column {
            ($array:ty, $value:expr) => {
                Arc::new(rows.iter().map($value).collect::<$array>()) as ArrayRef
            };
        }

        Some(match name {
            "sensor" => repeated(self.segment.sensor.as_deref(), rows.len()),
            "segment" => repeated(Some(&self.segment.name), rows.len()),
            "time" => times(rows.iter().map(|row| bound.of(row.first, row.last))),
            "number" => {
                column!(UInt64Array, |row| Some(bound.of(row.first_packet, row.last_packet)))
            }
            "length" => column!(UInt32Array, |row| Some(bound.of(row.wire_min, row.wire_max))),
            "captured" => column!(UInt32Array, |row| Some(bound.of(0, row.captured_max))),
            "interface" => column!(UInt32Array, |row| Some(row.interface)),
            "interface_name" => {
                column!(StringArray, |row| self.index.interface_name(row.interface))
            }
            "link_type" => column!(UInt16Array, |row| Some(row.flow.link_type.0)),
            // The bits that all packets have set are a lower bound of each packet's number; the
            // bits that any packet has set are an upper bound.
            "tcp_flags" => {
                column!(UInt8Array, |row| row.tcp_flags.map(|(any, all)| bound.of(all, any)))
            }
            name => of_flow(name, rows.iter().map(known))?,
        })
    }
}

impl PruningStatistics for OfRows<'_> {
    bounds!();

    fn num_containers(&self) -> usize {
        self.index.rows().len()
    }

    /// All packets of a row have a value, or none has.
    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let rows = self.index.rows();
        let values = of_flow(&column.name, rows.iter().map(known))?;
        let counts = rows.iter().enumerate().map(|(place, row)| {
            known(row).map(|_| if values.is_null(place) { row.packets } else { 0 })
        });
        Some(Arc::new(counts.collect::<UInt64Array>()))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        Some(Arc::new(
            self.index.rows().iter().map(|row| Some(row.packets)).collect::<UInt64Array>(),
        ))
    }
}

/// Bounds from pieces.
struct OfPieces<'a> {
    pieces: &'a [Piece],
    segment: &'a Segment,
}

impl OfPieces<'_> {
    fn bound(&self, name: &str, bound: Bound) -> Option<ArrayRef> {
        let pieces = self.pieces;
        Some(match name {
            "sensor" => repeated(self.segment.sensor.as_deref(), pieces.len()),
            "segment" => repeated(Some(&self.segment.name), pieces.len()),
            "time" => times(pieces.iter().map(|piece| bound.of(piece.earliest, piece.latest))),
            "number" => Arc::new(
                pieces
                    .iter()
                    .map(|piece| {
                        let last = (piece.first_packet + piece.packets).saturating_sub(1);
                        Some(bound.of(piece.first_packet, last))
                    })
                    .collect::<UInt64Array>(),
            ),
            _ => return None,
        })
    }
}

impl PruningStatistics for OfPieces<'_> {
    bounds!();

    fn num_containers(&self) -> usize {
        self.pieces.len()
    }

    fn null_counts(&self, _: &Column) -> Option<ArrayRef> {
        None
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        None
    }
}
