//! The control socket of a capture: `/run/wirecap/NAME`, by which another process asks how the capture gets on, changes its filter,
//! has it begin another file, and ends it. Requests and answers are JSON objects, a line each.
//!
//! One thread serves the socket ([`server`]) and never touches the capture; the thread that watches the capture for losses
//! does what takes the capture ([`agent`]); they meet at a [`desk`]. The packet path knows nothing of it.

mod agent;
pub(crate) mod client;
mod desk;
mod lines;
mod place;
mod request;
mod server;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use clap::Args;
use serde_json::json;
use wirecap::filter::FilterRequest;
use wirecap::{Capture, Ledger};

use crate::events::{self, Kind};
use crate::failure::Failure;
use crate::options;
use crate::sink::Writing;
use agent::{Agent, Identity, Meaning};
use desk::Desk;
use place::{ClaimError, Place, parse_name};
use server::Server;

/// Options of the commands that have a control socket.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ControlOptions {
    /// Name for wirecap status, stop, filter, rotate and events
    ///
    /// The control socket is /run/wirecap/NAME. [default: the interfaces, such as eth0@0-3+eth1, followed by a number if the
    /// name is in use]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,

    /// Disable the control socket
    #[arg(long, conflicts_with = "name")]
    no_control: bool,
}

impl ControlOptions {
    /// Takes the capture's name and begins to listen. Only a name that was asked for and is taken is an error: without the right
    /// to have a control socket a capture runs all the same.
    pub(crate) fn claim(&self, command: &'static str, sources: &[String]) -> Result<Claim, Failure> {
        if self.no_control || sources.is_empty() {
            return Ok(Claim { taken: None, command });
        }
        let default = || place::name_of(sources);
        let name = self.name.clone().unwrap_or_else(default);
        match place::claim(&place::directory(), &name, self.name.is_some()) {
            Ok(taken) => {
                if taken.0.name != name {
                    eprintln!("this capture is named {}: the name {name} is in use", taken.0.name);
                }
                Ok(Claim { taken: Some(taken), command })
            }
            Err(error @ ClaimError::Taken { .. }) => Err(Failure::Failed(error.to_string().into())),
            Err(error) => {
                eprintln!("no control socket: {error} (--no-control suppresses this message)");
                Ok(Claim { taken: None, command })
            }
        }
    }
}

/// A control socket that is not served yet: clients wait.
#[derive(Debug)]
pub(crate) struct Claim {
    taken: Option<(Place, UnixListener)>,
    command: &'static str,
}

impl Claim {
    /// Where the socket is.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.taken.as_ref().map(|(place, _)| &*place.path)
    }

    /// Begins to serve. An expression of a client is a filter as it stands.
    pub(crate) fn serve(self) -> Result<Control, Failure> {
        self.serve_with(Box::new(|expression| Ok(FilterRequest::from(expression))))
    }

    /// Begins to serve. `meaning` says which filter a client's expression stands for.
    pub(crate) fn serve_with(self, meaning: Meaning) -> Result<Control, Failure> {
        let Some((place, listener)) = self.taken else { return Ok(Control(None)) };
        let desk = Desk::new()?;
        events::ring(desk.bell().try_clone_to_owned()?);
        let identity =
            Identity { name: place.name.clone(), command: self.command, started: SystemTime::now() };
        let server = Server::new(listener, desk.clone());
        let thread = thread::Builder::new().name("control".to_owned()).spawn(move || server.run())?;
        Ok(Control(Some(Serving { place: Some(place), desk, identity, meaning, thread: Some(thread) })))
    }
}

/// A control socket that is served, if the capture has one.
pub(crate) struct Control(Option<Serving>);

struct Serving {
    place: Option<Place>,
    desk: Desk,
    identity: Identity,
    meaning: Meaning,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// None, for a command that has no control socket.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// What does this thread's part, until it is dropped.
    pub(crate) fn agent<'a>(
        &'a self,
        capture: &'a Capture,
        writing: Option<&'a Writing>,
    ) -> Option<Agent<'a>> {
        let Serving { desk, identity, meaning, .. } = self.0.as_ref()?;
        Some(Agent::new((desk, identity, meaning), capture, writing))
    }

    /// The capture has ended: clients that wait for it get the ledger, and why it ended if that was an error.
    pub(crate) fn end(&mut self, ledger: &Ledger, outcome: &Result<(), Failure>) {
        let Some(serving) = &mut self.0 else { return };
        let error = outcome.as_ref().err().filter(|failure| !matches!(failure, Failure::Lossy));
        let line = json!({
            "ok": true,
            "name": serving.identity.name,
            "state": "ended",
            "ledger": options::in_json(ledger).unwrap_or_default(),
            "verdict": ledger.verdict(),
            "error": error.map(ToString::to_string),
        });
        events::keep(Kind::End, &format!("ended; {}", ledger.verdict()));
        serving.end(&line.to_string());
    }
}

impl Serving {
    /// The name is free before clients learn that the capture has ended.
    fn end(&mut self, line: &str) {
        drop(self.place.take());
        self.desk.end(line.into());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server does not panic");
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let line = json!({
            "ok": false,
            "name": self.identity.name,
            "state": "ended",
            "error": "the capture ended without a ledger",
        });
        self.end(&line.to_string());
    }
}
