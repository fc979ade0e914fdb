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
    /// Packets that were discarded because the writer did not keep up and the pools were nearly
    /// full: lost because of a slow disk, not by the capture.
    pub writer: u64,
    /// Packets that the writer accepted.
    pub written: u64,
    /// Packets that a pipe's reader left when it closed the pipe: in the pipe, or captured later.
    /// They are not lost, because it did not want them.
    pub unread: u64,
    /// Packets that are complete in the file. For a pipe: packets written into it; its reader may
    /// have ended before it read them.
    pub in_file: u64,
    /// Packets without a timestamp, because the NIC gave none; their time in the file is 0.
    pub untimed: u64,
}

impl Recorded {
    /// Number of the `delivered` packets that should be in the file and are not.
    pub fn lost(&self, delivered: u64) -> u64 {
        delivered.saturating_sub(self.surplus + self.unread).saturating_sub(self.in_file)
    }

    /// The reader of the pipe has closed it, and wanted no more packets: all that it has not read
    /// are `unread`, except those that the writer had to discard.
    pub fn reader_left(&mut self, delivered: u64) {
        self.unread += self.lost(delivered).saturating_sub(self.writer);
    }

    /// The rows of its table.
    pub(super) fn rows(&self, delivered: u64) -> Vec<[String; 7]> {
        let head = ["recorded to", "delivered", "after -c", "writer", "written", "in file", "lost"]
            .map(str::to_owned);
        let counts = [
            delivered,
            self.surplus,
            self.writer,
            self.written,
            self.in_file,
            self.lost(delivered),
        ];
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
    fn what_a_reader_did_not_want_is_not_lost_but_what_the_writer_discarded_is() {
        let mut recorded = Recorded { writer: 5, written: 60, in_file: 3, ..Recorded::default() };
        recorded.reader_left(75);
        assert_eq!((recorded.unread, recorded.lost(75)), (67, 5));
    }

    #[test]
    fn the_table_has_each_count_below_its_name() {
        let recorded = Recorded {
            to: "a.pcapng".into(),
            surplus: 1,
            writer: 2,
            written: 3000,
            in_file: 4,
            unread: 0,
            untimed: 5,
        };
        let [names, counts] = <[_; 2]>::try_from(recorded.rows(7)).unwrap();
        assert_eq!(
            names,
            ["recorded to", "delivered", "after -c", "writer", "written", "in file", "lost"]
        );
        assert_eq!(counts, ["a.pcapng", "7", "1", "2", "3,000", "4", "2"]);
    }
}
