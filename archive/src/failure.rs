//! The reason why a command failed, and its exit status.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use datafusion::error::DataFusionError;
use wirecap_index::FindError;
use wirecap_units::error::causes;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line is wrong: exit status 2.
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

impl From<FindError> for Failure {
    fn from(error: FindError) -> Self {
        match error {
            FindError::Query(..) => Self::Usage(error.to_string()),
            FindError::Stopped => Self::Failed(error.into()),
        }
    }
}

/// A wrong SQL statement is an error of the command line.
impl From<DataFusionError> for Failure {
    fn from(error: DataFusionError) -> Self {
        match error.find_root() {
            DataFusionError::SQL(..)
            | DataFusionError::Plan(_)
            | DataFusionError::SchemaError(..) => Self::Usage(error.strip_backtrace()),
            DataFusionError::Execution(reason) => Self::Failed(reason.clone().into()),
            _ => Self::Failed(error.strip_backtrace().into()),
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

failed_from!(
    std::io::Error,
    object_store::Error,
    parquet::errors::ParquetError,
    arrow::error::ArrowError,
    wirecap_savefile::WriteError
);
