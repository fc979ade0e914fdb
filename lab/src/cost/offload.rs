//! The cost of taking a chunk from a buddy's ring instead of the worker's own.
//!
//! One ring is filled while no worker reads. Then an idle buddy takes the chunks above the
//! threshold, and the ring's own worker takes the rest, on the same CPU. The difference is the cost
//! of offloading.

use wirecap::{Capture, Chunk, Engine};

use super::bed::Bed;
use super::book::Book;
use super::live::{CHUNK_CELLS, await_offered};
use super::reader::Reading;
use super::{CostError, Effort};

/// T, low so that the buddy gets most chunks.
const THRESHOLD: f64 = 0.25;

/// What a round showed.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) book: Book,
    /// Chunks of the worker's own ring.
    pub(super) own: Reading,
    /// Chunks of its buddy's.
    pub(super) offloaded: Reading,
}

/// Fills a ring and lets two workers empty it. The caller's thread is in the receiver's namespace.
pub(super) fn round(bed: &mut Bed, effort: &Effort) -> Result<Round, CostError> {
    const NAME: &str = "xdp with offloading";
    let capture = Capture::on("a1")
        .engine(Engine::Xdp)
        .chunk(CHUNK_CELLS)
        .pool(effort.chunks)
        .workers(2)
        .advanced(THRESHOLD)
        .open()?;
    bed.begin()?;

    let sent = effort.pool_frames();
    bed.send(sent)?;
    bed.settle()?;

    let mut workers = capture.workers();
    let mut buddy = workers.pop().expect("two workers were asked for");
    let mut owner = workers.pop().expect("two workers were asked for");

    if bed.queue != 0 {
        std::mem::swap(&mut owner, &mut buddy);
    }

    let offloaded = Reading::drain(&mut buddy, Chunk::is_offloaded)?;
    let own = Reading::drain(&mut owner, |chunk| !chunk.is_offloaded())?;
    let mut book = bed.book(NAME, sent)?;
    await_offered(&capture, sent - book.lost)?;
    drop((owner, buddy));

    let total = capture.close().total;
    book.dropped += total.dropped.no_cell + total.dropped.ring_full + total.dropped.other;
    book.delivered = own.packets + offloaded.packets;

    let missing = |expected, came| CostError::Missing { run: NAME, expected, came };

    match (book.balances(), offloaded.packets) {
        (false, _) => Err(CostError::Unbalanced(book)),
        (true, 0) => Err(missing(1, 0)),
        (true, _) => Ok(Round { book, own, offloaded }),
    }
}
