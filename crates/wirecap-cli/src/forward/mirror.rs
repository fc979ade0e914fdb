//! `--mirror`: forwarded packets are also recorded, as they arrived.
//!
//! A mirror that can no longer be written ends with a warning; forwarding continues, because a full
//! disk must not cut a link, and the exit status at the end is 1.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wirecap::savefile::{FileSink, Format, WriteError, Writer};
use wirecap::{Capture, Chunk, Ledger, Recorded, Timestamp, Timestamps};

use crate::shared::events::{self, Kind};
use crate::shared::failure::Failure;
use crate::shared::output;
use crate::shared::recording::{self, Form};
use crate::shared::sink::{self, PipeEnd, TimedSink, Writing};

/// Recorded packets are in the file after this time at most.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// A savefile that all workers record to, chunk by chunk.
///
/// A file that cannot be written to any more ends the recording, not the forwarding. A reader that
/// closes the pipe has enough packets: the others are not lost.
#[derive(Debug)]
pub(crate) struct Mirror {
    state: Mutex<State>,
    form: Form,
    writing: Writing,
}

#[derive(Debug)]
struct State {
    /// None once it has failed.
    writer: Option<Writer<TimedSink<FileSink>>>,
    name: String,
    pipe: Option<PipeEnd>,
    failure: Option<WriteError>,
    written: u64,
    flushed: Instant,
    started: Timestamp,
}

impl Mirror {
    /// Detects a wrong path, or an existing file that must not be replaced, before an interface is
    /// opened.
    pub(crate) fn check(path: &Path, replaces: bool) -> Result<(), Failure> {
        if output::is_standard_output(path) {
            let message = "--mirror needs a file or a named pipe; /dev/stdout is standard output";
            return Err(Failure::Usage(message.to_owned()));
        }
        output::check(path, replaces)
    }

    /// Creates a file for the captured packets.
    pub(crate) fn create(
        path: &Path,
        replaces: bool,
        capture: &Capture,
        timestamps: Timestamps,
    ) -> Result<Self, Failure> {
        let output = sink::create(path, None, replaces)?;
        let writing = Writing::to(path.display().to_string());
        let timed = TimedSink::new(output.sink, &writing);
        let mut writer = Writer::new(timed, Format::Pcapng, &recording::section());
        for interface in capture.interfaces() {
            writer.add_interface(&recording::interface(interface, timestamps))?;
        }

        let state = State {
            writer: Some(writer),
            name: writing.name().to_owned(),
            pipe: output.pipe,
            failure: None,
            written: 0,
            flushed: Instant::now(),
            started: recording::now(),
        };
        Ok(Self { state: Mutex::new(state), form: Form::of(capture, timestamps), writing })
    }

    /// How long writing takes.
    pub(crate) fn writing(&self) -> &Writing {
        &self.writing
    }

    /// Records the packets of a chunk.
    pub(crate) fn record(&self, chunk: &Chunk) {
        let state = &mut *self.state();
        let written = &mut state.written;
        let pipe = &mut state.pipe;
        let outcome = state.writer.as_mut().map_or(Ok(()), |writer| {
            chunk.iter().try_for_each(|packet| {
                writer.write(&self.form.record(chunk, packet))?;
                *written += 1;
                pipe.iter_mut().for_each(|pipe| pipe.packet_ends_at(writer.file_bytes()));
                Ok(())
            })
        });
        state.note(outcome);
    }

    /// Writes recorded packets to the file at intervals.
    pub(crate) fn keep_up(&self) {
        let mut state = self.state();
        if state.flushed.elapsed() >= FLUSH_INTERVAL {
            state.attempt(Writer::flush);
            state.flushed = Instant::now();
        }
    }

    /// Ends the file with the interfaces' counts, where `interfaces` has the number of rings of
    /// each. Returns the account of the packets, and the reason of an early end that is an error.
    pub(crate) fn finish(
        self,
        ledger: &Ledger,
        interfaces: &[usize],
    ) -> (Recorded, Result<(), WriteError>) {
        let mut state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let started = state.started;
        state.attempt(|writer| {
            let counts = recording::counts(started, ledger, interfaces);
            counts.iter().try_for_each(|counts| writer.statistics(counts))?;
            writer.flush()
        });

        let written = state.written;
        let whole = state.failure.as_ref().and_then(recording::safely_written).unwrap_or(written);

        let unread = state
            .pipe
            .as_ref()
            .map_or(0, |pipe| pipe.packets_unread(self.writing.accepted_bytes()));
        let in_file = recording::in_file(written, whole, unread);
        let mut recorded = Recorded { to: state.name, written, in_file, ..Recorded::default() };
        let has_reader_left =
            unread > 0 || matches!(state.failure, Some(WriteError::BrokenPipe { .. }));
        #[cfg(sabotage)]
        let has_reader_left =
            has_reader_left && !crate::sabotage::is("reader-of-a-mirror-leaves-a-loss");
        if has_reader_left {
            recorded.reader_left(ledger.total.delivered);
        }

        let error =
            state.failure.filter(|failure| !matches!(failure, WriteError::BrokenPipe { .. }));
        (recorded, error.map_or(Ok(()), Err))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Calls a function with the file, unless it has failed.
    fn attempt(
        &mut self,
        work: impl FnOnce(&mut Writer<TimedSink<FileSink>>) -> Result<(), WriteError>,
    ) {
        let outcome = self.writer.as_mut().map_or(Ok(()), work);
        self.note(outcome);
    }

    /// The first failure is reported at once.
    fn note(&mut self, outcome: Result<(), WriteError>) {
        if let Err(failure) = outcome {
            let name = &self.name;
            let (kind, line) = match failure {
                WriteError::BrokenPipe { .. } => {
                    (Kind::Rotation, format!("{name}: its reader closed it; recording ends"))
                }
                _ => {
                    let why = one_line(&failure);
                    (Kind::Loss, format!("warning: {why}; forwarding continues without recording"))
                }
            };
            events::say(kind, &line);
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
