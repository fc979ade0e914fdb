//! The other end of a control socket.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketAddrUnix, SocketFlags, connect};
use serde_json::Value;

use super::place;
use crate::shared::failure::Failure;

pub(crate) use super::place::parse_name;

/// Time limit of a capture for an immediate answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a running capture.
#[derive(Debug)]
pub(crate) struct Remote {
    name: String,
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

/// Why a capture cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// No capture has this name.
    None(String),
    /// This user lacks the permission.
    Denied(String),
    /// Anything else.
    Failed(String),
}

impl Unreachable {
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::None(text) | Self::Denied(text) | Self::Failed(text) => text,
        }
    }
}

impl From<Unreachable> for Failure {
    fn from(unreachable: Unreachable) -> Self {
        Self::Failed(unreachable.text().to_owned().into())
    }
}

/// The names of possibly running captures.
pub(crate) fn names() -> Result<Vec<String>, Failure> {
    let directory = place::directory();
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(Failure::Failed(
                format!("cannot read {}: {error}", directory.display()).into(),
            ));
        }
    };

    let is_socket = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_socket());
    let entries = entries.flatten().filter(is_socket);
    let mut names: Vec<String> =
        entries.filter_map(|entry| parse_name(entry.file_name().to_str()?).ok()).collect();
    names.sort();

    Ok(names)
}

impl Remote {
    /// Connects to the capture of this name.
    pub(crate) fn connect(name: &str) -> Result<Self, Unreachable> {
        let path = place::directory().join(name);
        let failed = |error: &dyn std::fmt::Display| {
            Unreachable::Failed(format!("cannot connect to {}: {error}", path.display()))
        };
        let socket = place::new_socket(SocketFlags::empty()).map_err(|error| failed(&error))?;

        for direction in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, direction, Some(PATIENCE))
                .map_err(|error| failed(&error))?;
        }

        let address = SocketAddrUnix::new(&path).map_err(|error| failed(&error))?;
        connect(&socket, &address).map_err(|error| match error {
            Errno::NOENT | Errno::CONNREFUSED => Unreachable::None(format!(
                "no running capture is named {name}; wirecap status lists those that run"
            )),
            Errno::ACCESS | Errno::PERM => Unreachable::Denied(format!(
                "cannot connect to {}: {error}; only its owner, its group and root can: use sudo",
                path.display()
            )),
            Errno::AGAIN => Unreachable::Failed(format!("{name} does not answer")),
            error => failed(&error),
        })?;

        Ok(Self { name: name.to_owned(), path, stream: BufReader::new(UnixStream::from(socket)) })
    }

    /// Sets the time limit of an answer; `None`: no limit.
    pub(crate) fn wait_for(&self, patience: Option<Duration>) -> Result<(), Failure> {
        // Zero would mean no limit.
        let patience = patience.map(|patience| patience.max(Duration::from_millis(1)));
        Ok(self.stream.get_ref().set_read_timeout(patience)?)
    }

    /// Sends a request and returns the answer, unless that is an error.
    pub(crate) fn ask(&mut self, request: &Value) -> Result<Value, Failure> {
        let sent = self.stream.get_mut().write_all(format!("{request}\n").as_bytes());
        sent.map_err(|error| self.broken(&error))?;
        let answer = self.read()?;
        match (&answer["ok"], &answer["error"]) {
            (Value::Bool(true), _) => Ok(answer),
            (_, Value::String(error)) => {
                Err(Failure::Failed(format!("{}: {error}", self.name).into()))
            }
            _ => Err(Failure::Failed(format!("{}: invalid answer: {answer}", self.name).into())),
        }
    }

    /// The next line.
    pub(crate) fn read(&mut self) -> Result<Value, Failure> {
        match self.next()? {
            Some(value) => Ok(value),
            None => Err(Failure::Failed(format!("{} ended before it answered", self.name).into())),
        }
    }

    /// The next line, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<Value>, Failure> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(serde_json::from_str(&line)?)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Err(error) => Err(self.broken(&error)),
        }
    }

    fn broken(&self, error: &io::Error) -> Failure {
        let text = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("{} does not answer", self.name)
            }
            io::ErrorKind::BrokenPipe => format!("{} ended before it answered", self.name),
            _ => format!("{}: {error}", self.path.display()),
        };
        Failure::Failed(text.into())
    }
}
