//! `--mirror`: what passes is also recorded, as it came in.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wirecap::savefile::{FileSink, Format, WriteError, Writer};
use wirecap::{Capture, Chunk, Ledger, Timestamp, Timestamps};

use crate::failure::Failure;
use crate::output;
use crate::recording;

/// What was recorded at the latest after this time can be read from the file.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// A savefile that all workers record to, chunk by chunk.
///
/// A file that cannot be written to any more ends the recording, not the forwarding.
#[derive(Debug)]
pub(crate) struct Mirror(Mutex<State>);

#[derive(Debug)]
struct State {
    /// None once it has failed.
    writer: Option<Writer<FileSink>>,
    failure: Option<WriteError>,
    recorded: u64,
    flushed: Instant,
    started: Timestamp,
}

impl Mirror {
    /// Notices a wrong path before an interface is touched.
    pub(crate) fn check(path: &Path) -> Result<(), Failure> {
        if output::is_standard_output(path) {
            let message = "--mirror wants a file or a named pipe; /dev/stdout is standard output";
            return Err(Failure::Usage(message.to_owned()));
        }
        output::check_directory(path)
    }

    /// Begins a file for what is captured.
    pub(crate) fn create(path: &Path, capture: &Capture, timestamps: Timestamps) -> Result<Self, Failure> {
        let sink = FileSink::create(path).map_err(|source| {
            Failure::Failed(format!("cannot write to {}: {source}", path.display()).into())
        })?;
        let mut writer = Writer::new(sink, Format::Pcapng, &recording::section());
        for interface in capture.interfaces() {
            writer.add_interface(&recording::interface(interface, timestamps))?;
        }
        Ok(Self(Mutex::new(State {
            writer: Some(writer),
            failure: None,
            recorded: 0,
            flushed: Instant::now(),
            started: recording::now(),
        })))
    }

    /// Records the packets of a chunk.
    pub(crate) fn record(&self, chunk: &Chunk) {
        self.state().attempt(|writer, recorded| {
            for packet in chunk {
                writer.write(&recording::record(chunk, packet))?;
                *recorded += 1;
            }
            Ok(())
        });
    }

    /// Brings what was recorded to the file now and then.
    pub(crate) fn keep_up(&self) {
        let mut state = self.state();
        if state.flushed.elapsed() >= FLUSH_INTERVAL {
            state.attempt(|writer, _| writer.flush());
            state.flushed = Instant::now();
        }
    }

    /// Ends the file with the interfaces' counts, `interfaces` being how many rings each has, and gives the number of
    /// packets in it; or why it ended early.
    pub(crate) fn finish(self, ledger: &Ledger, interfaces: &[usize]) -> Result<u64, WriteError> {
        let mut state = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let started = state.started;
        state.attempt(|writer, _| {
            recording::write_statistics(writer, started, ledger, interfaces)?;
            writer.flush()
        });
        state.failure.map_or(Ok(state.recorded), Err)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Does something with the file, as long as it has not failed. The first failure is said at once.
    fn attempt(&mut self, work: impl FnOnce(&mut Writer<FileSink>, &mut u64) -> Result<(), WriteError>) {
        let Some(writer) = &mut self.writer else { return };
        if let Err(failure) = work(writer, &mut self.recorded) {
            eprintln!("warning: {}; packets pass unrecorded from now on", one_line(&failure));
            (self.writer, self.failure) = (None, Some(failure));
        }
    }
}

fn one_line(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
