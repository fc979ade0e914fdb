//! Why a command ended without doing what it was asked to, and with which exit status.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use wirecap_lab::runner::RunnerError;
use wirecap_units::error::causes;

/// What went wrong, in words for the person at the terminal.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line asked for something that cannot be: exit status 2.
    Usage(String),
    /// Something failed: exit status 1.
    Failed(Box<dyn Error + Send + Sync>),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) => f.write_str(message),
            Self::Failed(error) => f.write_str(&causes(&**error)),
        }
    }
}

macro_rules! failed_from {
    ($($error:ty),*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::Failed(error.into())
            }
        })*
    };
}

failed_from!(std::io::Error, RunnerError, serde_json::Error);
