//! Why a command ended without doing what it was asked to, and with which exit status.

use std::env;
use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use wirecap::filter::FilterError;
use wirecap::{FilterChangeError, Ledger, OpenError};
use wirecap_send::SetupError;
use wirecap_units::error::causes;

/// What went wrong, in words for the person at the terminal.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line asked for something that cannot be: exit status 2.
    Usage(String),
    /// Something failed: exit status 1.
    Failed(Box<dyn Error + Send + Sync>),
    /// Nothing failed, but packets were lost, or may have been. The ledger has said so: exit status 3.
    Lossy,
    /// Another process of this command failed, and has said why: exit status 1.
    Told,
    /// Nothing failed, and `doctor` has shown what it found: exit status 3.
    Findings,
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) | Self::Told => ExitCode::FAILURE,
            Self::Lossy | Self::Findings => ExitCode::from(3),
        }
    }

    /// The exit status agrees with the ledger's verdict. An interface that has been quiet since its last packet, or dead,
    /// is no failure: every idle link would be one.
    pub(crate) fn unless_lossless(ledger: &Ledger) -> Result<(), Self> {
        #[cfg(sabotage)]
        if crate::sabotage::is("exit-status-hides-loss") {
            return Ok(());
        }
        if ledger.judge().is_alarm() { Err(Self::Lossy) } else { Ok(()) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(message) => f.write_str(message),
            Self::Failed(error) => f.write_str(&causes(&**error)),
            Self::Told => f.write_str("another process failed"),
            Self::Lossy => f.write_str("packets were lost"),
            Self::Findings => f.write_str("there are findings"),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::BadParameter { .. }
            | OpenError::BadDeviceName { .. }
            | OpenError::SettingsDiffer { .. }
            | OpenError::Filter(FilterChangeError::Filter(FilterError::Expression { .. })) => {
                Self::Usage(error.to_string())
            }
            error if error.lacks_net_raw() => {
                let program = env::current_exe().unwrap_or_else(|_| "wirecap".into());
                let advice = format!("use sudo, or once: sudo setcap cap_net_raw=ep {}", program.display());
                Self::Failed(format!("{}\n{advice}", causes(&error)).into())
            }
            error => Self::Failed(error.into()),
        }
    }
}

impl From<SetupError> for Failure {
    fn from(error: SetupError) -> Self {
        match error {
            SetupError::Traffic { .. } => Self::Usage(error.to_string()),
            error => Self::Failed(error.into()),
        }
    }
}

impl From<Box<dyn Error + Send + Sync>> for Failure {
    fn from(error: Box<dyn Error + Send + Sync>) -> Self {
        Self::Failed(error)
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
    wirecap::CaptureError,
    wirecap::device::DeviceError,
    wirecap::savefile::ReadError,
    wirecap::savefile::WriteError,
    wirecap_send::SendError,
    serde_json::Error
);
