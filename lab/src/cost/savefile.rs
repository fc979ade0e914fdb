//! The cost of writing a packet to a savefile, without the disk.

use std::hint::black_box;
use std::io;
use std::time::Instant;

use wirecap::savefile::{Format, Interface, Record, Section, Sink, Writer};
use wirecap::time::Timestamp;

use super::{CostError, Effort, fastest};

const PACKET_BYTES: usize = 60;
const CELL_BYTES: usize = 2048;
/// The cells of a chunk.
const CELLS: usize = 256;

/// A file that discards its data.
#[derive(Debug, Default)]
struct Nowhere(u64);

impl Sink for Nowhere {
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += black_box(bytes).len() as u64;
        Ok(bytes.len())
    }

    fn take_back(&mut self, _byte_count: usize) -> io::Result<bool> {
        Ok(false)
    }

    fn name(&self) -> String {
        "nowhere".into()
    }
}

/// Nanoseconds per packet of 60 bytes in a chunk's cells. The pcapng file contains each packet's
/// queue.
pub(super) fn time(format: Format, effort: &Effort) -> Result<f64, CostError> {
    let cells = vec![0x5a; CELLS * CELL_BYTES];
    fastest(|| {
        let mut writer = Writer::new(Nowhere::default(), format, &Section::default());
        let interface = writer.add_interface(&Interface::default())?;
        let queue = (format == Format::Pcapng).then_some(3);
        let begin = Instant::now();

        for index in 0..u64::from(effort.loops) {
            let cell = index as usize % CELLS * CELL_BYTES;
            let record = Record {
                interface,
                timestamp: Some(Timestamp::from_unix_nanos(1_700_000_000_000_000_000 + index)),
                queue,
                wire_len: PACKET_BYTES as u32,
                data: &cells[cell..cell + PACKET_BYTES],
                ..Record::default()
            };
            writer.write(black_box(&record))?;
        }

        writer.flush()?;
        let nanos = begin.elapsed().as_nanos();
        assert_eq!(writer.file_bytes(), writer.finish()?.0, "the file has what was written");

        Ok(nanos as f64 / f64::from(effort.loops))
    })
}
