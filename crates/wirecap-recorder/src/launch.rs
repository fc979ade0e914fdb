//! Actions for each complete file.

use std::fmt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Processes each complete file in a separate thread.
pub trait Launch: fmt::Debug + Send {
    /// Called when a file is complete. A failure does not end the recording.
    fn launch(&mut self, path: &Path);

    /// Waits for the started commands.
    fn finish(&mut self);
}

/// Runs a command for each file, with the file's path as the last argument.
#[derive(Debug)]
pub struct Commands {
    command: Vec<String>,
    running: Vec<Child>,
}

impl Commands {
    /// The program and its arguments.
    pub fn new(command: Vec<String>) -> Self {
        Self { command, running: Vec::new() }
    }
}

impl Launch for Commands {
    fn launch(&mut self, path: &Path) {
        let Some((program, arguments)) = self.command.split_first() else { return };
        let started = Command::new(program).args(arguments).arg(path).stdin(Stdio::null()).spawn();
        self.running.extend(started.ok());
        self.running.retain_mut(|child| child.try_wait().is_ok_and(|status| status.is_none()));
    }

    fn finish(&mut self) {
        for mut child in self.running.drain(..) {
            let _ended = child.wait();
        }
    }
}
