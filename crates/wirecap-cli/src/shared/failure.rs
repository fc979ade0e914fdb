//! Why a command ended without doing what it was asked to, and with which exit status.

use std::env;
use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use rustix::thread::{CapabilitySet, capabilities};
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
    /// Nothing failed, but packets were lost, or may have been. The ledger has said so: exit status
    /// 3.
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

    /// The exit status agrees with the ledger's verdict. An interface that has been quiet since its
    /// last packet, or dead, is no failure: every idle link would be one.
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
            Self::Failed(error) => f.write_str(&without_numbers(&causes(&**error))),
            Self::Told => f.write_str("another process failed"),
            Self::Lossy => f.write_str("packets were lost"),
            Self::Findings => f.write_str("there are findings"),
        }
    }
}

/// Without the numbers of the system's errors, which std writes behind their names.
pub(crate) fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or(part, |(_, rest)| rest))
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
                let advice =
                    format!("use sudo, or once: sudo setcap cap_net_raw=ep {}", program.display());
                // The kernel's reason says no more.
                Self::Failed(format!("{error}\n{advice}").into())
            }
            OpenError::PoolTooLarge { .. } if !lacking_for_xdp().is_empty() => {
                let lacking = lacking_for_xdp().join(", ");
                let program = env::current_exe().unwrap_or_else(|_| "wirecap".into());
                let advice = format!(
                    "use sudo, or --engine packet, or once: sudo setcap \
                     cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon,cap_ipc_lock=ep {}",
                    program.display()
                );
                Self::Failed(
                    format!("the engine xdp needs rights that are missing: {lacking}\n{advice}")
                        .into(),
                )
            }
            error => Self::Failed(error.into()),
        }
    }
}

/// Capabilities that the engine `xdp` needs beside more locked memory, and this process lacks.
fn lacking_for_xdp() -> Vec<&'static str> {
    #[cfg(sabotage)]
    if crate::sabotage::is("locked-memory-first") {
        return Vec::new();
    }
    let needed = [
        (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        (CapabilitySet::BPF, "CAP_BPF"),
    ];
    let Ok(own) = capabilities(None).map(|sets| sets.effective) else { return Vec::new() };
    needed.iter().filter(|(right, _)| !own.contains(*right)).map(|(_, name)| *name).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_have_no_numbers() {
        let text =
            "cannot open x: No such file or directory (os error 2); tried y (os error 13) too";
        assert_eq!(without_numbers(text), "cannot open x: No such file or directory; tried y too");
    }
}
