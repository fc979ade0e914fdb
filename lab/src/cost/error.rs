//! Why the costs could not be measured.

use std::error::Error;
use std::fmt;
use std::io;

use wirecap::bpf::BpfError;
use wirecap::filter::{FilterError, LibpcapError, Unsupported};
use wirecap::savefile::WriteError;
use wirecap::{CaptureError, OpenError};
use wirecap_testbed::{SendError, SetupError};

use super::book::Book;

/// Why the costs could not be measured.
#[derive(Debug)]
#[non_exhaustive]
pub enum CostError {
    /// The watcher ended it.
    Interrupted,
    /// The test bed could not be set up.
    Bed(SetupError),
    /// The frames could not be sent.
    Send(SendError),
    /// The capture could not be opened.
    Open(OpenError),
    /// The capture ended early.
    Capture(CaptureError),
    /// A program could not be loaded, attached or run.
    Program(BpfError),
    /// A filter could not be compiled.
    Filter(FilterError),
    /// libpcap could not be loaded.
    Libpcap(LibpcapError),
    /// A filter has no form for this place.
    FilterForm(Unsupported),
    /// A savefile in memory could not be written.
    Savefile(WriteError),
    /// The measuring thread could not be prepared.
    Thread(io::Error),
    /// Not all of this many arrived packets were delivered in time.
    Missing {
        /// What was measured.
        run: &'static str,
        /// Packets expected.
        expected: u64,
        /// Packets that came.
        came: u64,
    },
    /// The frames of a run are not all accounted for.
    Unbalanced(Book),
}

impl fmt::Display for CostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => f.write_str("interrupted; the test bed is removed"),
            Self::Bed(error) => error.fmt(f),
            Self::Send(error) => error.fmt(f),
            Self::Open(error) => error.fmt(f),
            Self::Capture(error) => error.fmt(f),
            Self::Program(error) => error.fmt(f),
            Self::Filter(error) => error.fmt(f),
            Self::Libpcap(error) => error.fmt(f),
            Self::FilterForm(error) => error.fmt(f),
            Self::Savefile(error) => error.fmt(f),
            Self::Thread(_) => f.write_str("cannot prepare the measuring thread"),
            Self::Missing { run, expected, came } => {
                write!(
                    f,
                    "{run}: {came} of {expected} packets came in time; is the machine very busy?"
                )
            }
            Self::Unbalanced(book) => write!(f, "the books do not balance: {book}"),
        }
    }
}

impl Error for CostError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Interrupted | Self::Missing { .. } | Self::Unbalanced(_) => None,
            Self::Bed(error) => error.source(),
            Self::Send(error) => error.source(),
            Self::Open(error) => error.source(),
            Self::Capture(error) => error.source(),
            Self::Program(error) => error.source(),
            Self::Filter(error) => error.source(),
            Self::Libpcap(error) => error.source(),
            Self::FilterForm(error) => error.source(),
            Self::Savefile(error) => error.source(),
            Self::Thread(source) => Some(source),
        }
    }
}

macro_rules! error_from {
    ($($error:ty => $variant:ident),* $(,)?) => {
        $(impl From<$error> for CostError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

error_from!(
    SetupError => Bed,
    SendError => Send,
    OpenError => Open,
    CaptureError => Capture,
    BpfError => Program,
    FilterError => Filter,
    LibpcapError => Libpcap,
    Unsupported => FilterForm,
    WriteError => Savefile,
    io::Error => Thread,
);
