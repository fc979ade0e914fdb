//! Threads that compress pages and return them in the order of submission.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::compression::{Compression, Compressor, Effort, FrameEnd};
use crate::page::Page;

/// Maximum number of pages that are being compressed, wait for a compressor, or wait for the disk.
const PAGES_MAX: usize = 16;

/// A compressed page.
pub(crate) struct Compressed {
    pub(crate) output: Vec<u8>,
    pub(crate) packets: u64,
    /// The end of the file after this page.
    pub(crate) end: FrameEnd,
}

struct Job {
    page: Page,
    end: FrameEnd,
    done: Sender<io::Result<Compressed>>,
}

/// The compressor threads and their queue.
pub(crate) struct Compressors {
    /// `None` while the threads are being stopped.
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    /// Results, in the order of submission.
    pending: VecDeque<Receiver<io::Result<Compressed>>>,
    /// Number of pages not yet compressed.
    waiting: Arc<AtomicUsize>,
}

impl Compressors {
    /// Starts this many threads. `returned` is called with each page as soon as it is compressed.
    pub(crate) fn start(
        compression: Compression,
        count: usize,
        returned: impl Fn(Page) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let inbox = Arc::new(Mutex::new(inbox));
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut threads = Vec::new();

        for _ in 0..count {
            let mut compressor = Compressor::new(compression)?;
            let inbox = Arc::clone(&inbox);
            let waiting = Arc::clone(&waiting);
            let returned = returned.clone();

            let work = move || {
                loop {
                    let job = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(Job { page, end, done }) = job else { return };
                    let effort = Effort::of(waiting.load(Ordering::Relaxed), count);
                    let output = compressor.compress(page.bytes(), effort);

                    waiting.fetch_sub(1, Ordering::Relaxed);
                    let packets = page.packets;
                    returned(page);

                    // Fails if the writer has failed and ended.
                    let _ = done.send(output.map(|output| Compressed {
                        output: output.unwrap_or_default(),
                        packets,
                        end,
                    }));
                }
            };
            threads.push(thread::Builder::new().name("compressor".to_owned()).spawn(work)?);
        }

        Ok(Self { jobs: Some(jobs), threads, pending: VecDeque::new(), waiting })
    }

    /// Whether the threads accept another page.
    pub(crate) fn has_room(&self) -> bool {
        self.pending.len() < PAGES_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Adds a page; `end` is the end of the file after it.
    pub(crate) fn push(&mut self, page: Page, end: FrameEnd) {
        let (done, outcome) = mpsc::channel();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.pending.push_back(outcome);
        let jobs = self.jobs.as_ref().expect("it is not being dropped");
        jobs.send(Job { page, end, done }).expect("the threads end after this");
    }

    /// Waits for the page that was submitted first.
    pub(crate) fn pop(&mut self) -> io::Result<Option<Compressed>> {
        let Some(first) = self.pending.pop_front() else { return Ok(None) };
        let gone = |_| Err(io::Error::other("a thread that compresses has panicked"));
        first.recv().unwrap_or_else(gone).map(Some)
    }
}

impl Drop for Compressors {
    fn drop(&mut self) {
        drop(self.jobs.take());
        for thread in self.threads.drain(..) {
            let _panic_was_seen_as_an_error = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use wirecap_savefile::paged::Pages;
    use zstd::stream::raw::Decoder;

    use super::*;
    use crate::page::FRAME_BYTES;

    #[test]
    fn pages_that_wait_for_a_compressor_are_compressed_less_and_in_order() {
        const PAGES: usize = 14;
        for compression in [Compression::Gzip, Compression::Zstandard] {
            // The only compressor waits until its page is taken.
            let (returned, pages) = mpsc::sync_channel(0);
            let give_back = move |page: Page| returned.send(page).expect("the test takes all");
            let mut compressors = Compressors::start(compression, 1, give_back).unwrap();

            for number in 0..PAGES {
                let mut page = Page::new(FRAME_BYTES, true).unwrap();
                page.reserve(FRAME_BYTES).unwrap().fill(number as u8);
                compressors.push(page, FrameEnd::default());
            }

            (0..PAGES)
                .for_each(|number| assert_eq!(pages.recv().unwrap().bytes()[0], number as u8));
            let mut compressed = Vec::new();

            while let Some(Compressed { output, .. }) = compressors.pop().unwrap() {
                let mut decompressed: Box<dyn Read> = match compression {
                    Compression::Gzip => Box::new(flate2::read::GzDecoder::new(&output[..])),
                    _ => Box::new(Pages::within(&output[..], Decoder::new().unwrap()).unwrap()),
                };
                let mut page = Vec::new();
                decompressed.read_to_end(&mut page).unwrap();
                assert_eq!(page.len(), FRAME_BYTES);
                assert_eq!(usize::from(page[0]), compressed.len(), "{compression:?}");
                compressed.push(output.len());
            }

            // The first page was begun at an unknown moment. For the second one 12 others wait, for
            // the last one none.
            assert_eq!(compressed.len(), PAGES);
            let is_as_expected =
                compressed[1] >= FRAME_BYTES && compressed[PAGES - 1] < FRAME_BYTES / 100;
            assert!(is_as_expected, "{compression:?}: {compressed:?}");
        }
    }
}
