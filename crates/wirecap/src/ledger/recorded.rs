//! The account of packets between the application and a file or a port.

use serde::Serialize;

use super::grouped;

/// The account of the packets that an application wrote to a savefile or a pipe.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Recorded {
    /// Where the packets were written: a path, or `standard output`.
    pub to: String,
    /// Packets delivered after the last one requested by `-c`. They are not lost.
    pub surplus: u64,
    /// Packets that were discarded because the writer did not keep up and the pools were nearly full: lost because of a slow disk,
    /// not by the capture.
    pub writer: u64,
    /// Packets that the writer accepted.
    pub written: u64,
    /// Packets that are complete in the file. For a pipe: packets written into it; its reader may have ended before it
    /// read them.
    pub in_file: u64,
}

impl Recorded {
    /// Number of the `delivered` packets that should be in the file and are not.
    pub fn lost(&self, delivered: u64) -> u64 {
        delivered.saturating_sub(self.surplus).saturating_sub(self.in_file)
    }

    /// The rows of its table.
    pub(super) fn rows(&self, delivered: u64) -> Vec<[String; 7]> {
        let head = ["recorded to", "delivered", "surplus", "writer", "written", "in file", "lost"]
            .map(str::to_owned);
        let counts = [delivered, self.surplus, self.writer, self.written, self.in_file, self.lost(delivered)];
        let [delivered, surplus, writer, written, in_file, lost] = counts.map(grouped);
        vec![head, [self.to.clone(), delivered, surplus, writer, written, in_file, lost]]
    }
}

/// Packets that were delivered and that the application lost on their way to a file or a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostLater {
    /// How many.
    pub packets: u64,
    /// The reason, as words that follow the number.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_incomplete_in_the_file_is_lost_unless_it_is_surplus() {
        let recorded = Recorded { surplus: 10, written: 85, in_file: 80, ..Recorded::default() };
        assert_eq!(recorded.lost(100), 10);
        assert_eq!(Recorded { in_file: 100, ..Recorded::default() }.lost(100), 0);
    }

    #[test]
    fn the_table_has_each_count_below_its_name() {
        let recorded = Recorded { to: "a.pcapng".into(), surplus: 1, writer: 2, written: 3000, in_file: 4 };
        let [names, counts] = <[_; 2]>::try_from(recorded.rows(7)).unwrap();
        assert_eq!(names, ["recorded to", "delivered", "surplus", "writer", "written", "in file", "lost"]);
        assert_eq!(counts, ["a.pcapng", "7", "1", "2", "3,000", "4", "2"]);
    }
}
