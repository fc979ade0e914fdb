//! The control socket of a capture: `/run/wirecap/NAME`, over which another process reads the
//! capture's state, changes its filter, starts the next file, and ends it. Requests and answers are
//! JSON objects, a line each.
//!
//! One thread serves the socket ([`server`]) and never accesses the capture; the thread that
//! watches the capture for losses executes requests that need the capture ([`agent`]); they
//! exchange messages at a [`mailbox`]. The packet path is not involved.
//!
//! A client gets its answer to `status` from one that is less than 10 ms old, so clients cannot
//! cause the rings' locks to be taken more often. The server keeps at most one line, one answer and
//! 64 KiB of events per client, and reads no further request from a client that has not read its
//! answer. It accepts 64 connections; a further one closes the one that has been silent longest. A
//! separate thread writes lines to standard error, so a stopped terminal does not delay answers.

mod agent;
mod changes;
pub(crate) mod client;
mod connection;
mod http;
mod lines;
mod mailbox;
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

use crate::shared::events::{self, Kind};
use crate::shared::failure::Failure;
use crate::shared::options;
use crate::shared::sink::Writing;
use agent::{Agent, Identity, Meaning, Statement};
use connection::Connection;
use http::{HttpAddress, Listener, parse_http};
use mailbox::Mailbox;
use place::{ClaimError, Place, parse_name};
use server::Server;

/// The heading of its options in the help.
pub(crate) const CONTROL: &str = "Control socket and live page";

/// Options of the commands that have a control socket.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = CONTROL)]
pub(crate) struct ControlOptions {
    /// Name for wirecap status, stop, filter, rotate and events
    ///
    /// The control socket is /run/wirecap/NAME.
    /// [default: the interfaces, such as eth0@0-3+eth1, followed by a number if the name is in use]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,

    /// Disable the control socket
    #[arg(long, conflicts_with = "name")]
    no_control: bool,

    /// Serve a live page (/) and Prometheus metrics (/metrics) on 127.0.0.1:9417, [::1]:9417 or a
    /// socket's path
    ///
    /// Read-only, and not reachable from other hosts. Every user of this host can read a loopback
    /// address; the path of a socket (mode 0660) restricts access to the socket's owner and group.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_http)]
    http: Option<HttpAddress>,
}

impl ControlOptions {
    /// Claims the capture's name and starts listening. Only a requested name that is in use is an
    /// error: a capture that may not create a control socket runs without it.
    pub(crate) fn claim(
        &self,
        command: &'static str,
        sources: &[String],
    ) -> Result<Claim, Failure> {
        if sources.is_empty() && self.http.is_some() {
            return Err(Failure::Usage(
                "--http requires a live capture and cannot be used with -r".to_owned(),
            ));
        }

        let default = || place::name_of(sources);
        let name = self.name.clone().unwrap_or_else(default);
        let http = self.http.as_ref().map(listen).transpose()?;
        let unreachable = |name| Claim { taken: None, http: None, name, command, fault: None };

        if self.no_control || sources.is_empty() {
            return Ok(Claim { http, ..unreachable(name) });
        }

        match place::claim(&place::directory(), &name, self.name.is_some()) {
            Ok(taken) => {
                if taken.0.name != name {
                    eprintln!("this capture is named {}: the name {name} is in use", taken.0.name);
                }
                let name = taken.0.name.clone();
                Ok(Claim { http, taken: Some(taken), ..unreachable(name) })
            }
            Err(error @ ClaimError::Taken { .. }) => Err(Failure::Failed(error.to_string().into())),
            Err(error) => {
                // Reported once the capture is open: an error of opening matters more.
                Ok(Claim { http, fault: Some(error), ..unreachable(name) })
            }
        }
    }
}

/// Listens for pages and metrics, and reports the address.
fn listen(address: &HttpAddress) -> Result<Listener, Failure> {
    let listener = Listener::bind(address)
        .map_err(|error| Failure::Failed(format!("cannot serve {address}: {error}").into()))?;
    eprintln!("serving {}", listener.address());
    Ok(listener)
}

/// A control socket and a socket for pages that are not served yet: clients wait.
#[derive(Debug)]
pub(crate) struct Claim {
    taken: Option<(Place, UnixListener)>,
    http: Option<Listener>,
    /// The capture's.
    name: String,
    command: &'static str,
    /// Why there is no control socket.
    fault: Option<ClaimError>,
}

impl Claim {
    /// Where sockets are.
    pub(crate) fn sockets(&self) -> Vec<&Path> {
        let control = self.taken.as_ref().map(|(place, _)| &*place.path);
        let http = self.http.as_ref().and_then(|listener| match listener.address() {
            HttpAddress::Path(path) => Some(&**path),
            HttpAddress::Loopback(_) => None,
        });
        control.into_iter().chain(http).collect()
    }

    /// Starts serving. A client's expression is used as a filter unchanged.
    pub(crate) fn serve(self) -> Result<Control, Failure> {
        self.serve_with(Box::new(|expression| Ok(FilterRequest::from(expression))))
    }

    /// Starts serving. `meaning` converts a client's expression to the filter.
    pub(crate) fn serve_with(self, meaning: Meaning) -> Result<Control, Failure> {
        let Self { taken, http, name, command, fault } = self;
        if let Some(error) = fault {
            eprintln!("no control socket: {error} (--no-control suppresses this message)");
        }
        if taken.is_none() && http.is_none() {
            return Ok(Control(None));
        }

        let mut desks = Vec::new();
        let mut threads = Vec::new();
        let mut place = None;

        if let Some((own, listener)) = taken {
            let mailbox = Mailbox::new()?;
            events::ring(mailbox.bell().try_clone_to_owned()?);
            let server = Server::<Connection>::new(listener, mailbox.clone());
            threads.push(
                thread::Builder::new().name("control".to_owned()).spawn(move || server.run())?,
            );
            desks.push(mailbox);
            place = Some(own);
        }

        if let Some(listener) = http {
            let mailbox = Mailbox::new()?;
            let server = Server::<http::Connection>::new(listener, mailbox.clone());
            threads
                .push(thread::Builder::new().name("http".to_owned()).spawn(move || server.run())?);
            desks.push(mailbox);
        }

        let identity = Identity { name, command, started: SystemTime::now() };
        Ok(Control(Some(Serving { place, desks, identity, meaning, threads })))
    }
}

/// A control socket that is served, if the capture has one.
pub(crate) struct Control(Option<Serving>);

struct Serving {
    place: Option<Place>,
    /// The mailbox of each server, where it exchanges messages with the thread that has the
    /// capture.
    desks: Vec<Mailbox>,
    identity: Identity,
    meaning: Meaning,
    threads: Vec<JoinHandle<()>>,
}

impl Control {
    /// None, for a command that has no control socket.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Executes this thread's part, until it is dropped.
    pub(crate) fn agent<'a>(
        &'a self,
        capture: &'a Capture,
        writing: Option<&'a Writing>,
        account: Statement<'a>,
    ) -> Option<Agent<'a>> {
        let Serving { desks, identity, meaning, .. } = self.0.as_ref()?;
        Some(Agent::new((desks, identity, meaning), capture, writing, account))
    }

    /// The capture has ended: waiting clients get the ledger, and the error, if there was one.
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
        self.desks.iter().for_each(|mailbox| mailbox.end(line.into()));
        for thread in self.threads.drain(..) {
            thread.join().expect("a server does not panic");
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
