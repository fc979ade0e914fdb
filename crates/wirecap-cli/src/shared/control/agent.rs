//! The part of the thread that watches a capture which executes requests of its control socket.

use std::env;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use wirecap::filter::FilterRequest;
use wirecap::{Capture, Interface, Ledger, Reception, RingState};
use wirecap_units::error::causes;

use super::changes::Changes;
use super::mailbox::{Job, Line, Mailbox};
use crate::shared::events::{self, Kind};
use crate::shared::failure::Failure;
use crate::shared::lost::Lost;
use crate::shared::options;
use crate::shared::sink::Writing;
use crate::shared::threads;

/// Maximum age of a status that is sent again: reading the ledger takes the rings' locks, and
/// clients must not cause this too often.
const FRESH: Duration = Duration::from_millis(10);

/// Converts an expression to the filter of this capture.
pub(crate) type Meaning = Box<dyn Fn(&str) -> Result<FilterRequest, Failure> + Send + Sync>;

/// The ledger so far and, with the same counts, the losses that were known at the last look.
pub(crate) type Statement<'a> = Box<dyn Fn(&[Lost]) -> (Ledger, Vec<Lost>) + 'a>;

/// Who the capture is.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) command: &'static str,
    pub(super) started: SystemTime,
}

/// Executes the jobs on a mailbox, until it is dropped.
pub(crate) struct Agent<'a> {
    desks: &'a [Mailbox],
    changes: Changes<'a>,
    identity: &'a Identity,
    filters: Filters<'a>,
    capture: &'a Capture,
    writing: Option<&'a Writing>,
    last: Option<(Instant, Line)>,
    account: Statement<'a>,
    /// The losses up to the last look.
    pub(crate) losses: Vec<Lost>,
}

impl<'a> Agent<'a> {
    pub(super) fn new(
        (desks, identity, meaning): (&'a [Mailbox], &'a Identity, &'a Meaning),
        capture: &'a Capture,
        writing: Option<&'a Writing>,
        account: Statement<'a>,
    ) -> Self {
        desks.iter().for_each(Mailbox::begin_jobs);
        Self {
            desks,
            changes: Changes::default(),
            identity,
            filters: Filters { capture, meaning, changed: None },
            capture,
            writing,
            last: None,
            account,
            losses: Vec::new(),
        }
    }

    /// Executes the jobs since the last call.
    pub(crate) fn do_jobs(&mut self) {
        for mailbox in self.desks {
            for Job { client, task } in mailbox.take_jobs() {
                match task.is_change() {
                    true => self.changes.push(mailbox, client, task),
                    false => mailbox.answer(client, self.recent_status()),
                }
            }
        }

        let Self { changes, filters, last, .. } = self;
        changes.advance(&mut |expression| {
            // The next status has the new filter.
            *last = None;
            filters.set(expression)
        });
    }

    fn recent_status(&mut self) -> Line {
        if let Some((at, status)) = &self.last
            && at.elapsed() < FRESH
        {
            return Line::clone(status);
        }
        let status: Line = self.status("running").to_string().into();
        self.last = Some((Instant::now(), Line::clone(&status)));
        status
    }

    fn status(&self, state: &str) -> Value {
        let (ledger, losses) = &(self.account)(&self.losses);
        let unix_s = |time: SystemTime| {
            time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
        };
        let geometry = self.capture.geometry();
        let rings: Vec<Value> =
            self.capture.ring_states().iter().take(ledger.rings.len()).map(ring_state).collect();

        // A failed conversion to JSON is a defect, but no reason to end a capture.
        let json = options::in_json(ledger).unwrap_or_default();
        json!({
            "ok": true,
            "name": self.identity.name,
            "command": self.identity.command,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "state": state,
            "arguments": env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect::<Vec<_>>(),
            "directory": env::current_dir().ok(),
            "started_unix_s": unix_s(self.identity.started),
            "unix_s": unix_s(SystemTime::now()),
            "interfaces": self.interfaces(ledger),
            "ledger": json,
            "verdict": ledger.verdict(),
            "pool": {
                "chunk_cells": geometry.chunk_cells,
                "chunks": geometry.chunks,
                "cells": geometry.cells(),
                "rings": rings,
            },
            "losses": losses,
            "threads": threads::in_json(),
            "writer": self.writing.map(writer),
        })
    }

    fn interfaces(&self, ledger: &Ledger) -> Vec<Value> {
        let filter = |interface: &Interface| match &self.filters.changed {
            Some(changed) => Some(changed.clone()).filter(|filter| !filter.is_empty()),
            None => interface.filter.as_ref().map(ToString::to_string),
        };
        let dropped = ledger.device_drops.iter().chain(std::iter::repeat(&None));
        let describe = |(interface, dropped): (&Interface, &Option<u64>)| {
            json!({
                "name": interface.device.name,
                "engine": match &interface.reception {
                    Reception::Xdp { .. } => "xdp",
                    _ => "packet",
                },
                "queues": interface.queues,
                "rings": interface.rings,
                "snap_len": interface.snap_len,
                "filter": filter(interface),
                "device_dropped": dropped,
            })
        };

        self.capture.interfaces().iter().zip(dropped).map(describe).collect()
    }
}

/// The filter of a capture, which clients change.
struct Filters<'a> {
    capture: &'a Capture,
    meaning: &'a Meaning,
    /// The filter, if it was changed.
    changed: Option<String>,
}

impl Filters<'_> {
    /// Changes the filter; without effect if the capture has it already.
    fn set(&mut self, expression: &str) -> Result<(), String> {
        if self.is_set(expression) {
            return Ok(());
        }
        let request = (self.meaning)(expression).map_err(|failure| failure.to_string())?;
        self.capture.set_filter(request).map_err(|error| causes(&error))?;
        let text = match expression {
            "" => "the filter was changed: all packets are captured".to_owned(),
            _ => format!("the filter was changed to: {}", expression.escape_debug()),
        };
        events::say(Kind::Filter, &text);
        self.changed = Some(expression.to_owned());
        Ok(())
    }

    /// Whether all interfaces have this filter.
    fn is_set(&self, expression: &str) -> bool {
        let is_own = |interface: &Interface| match &interface.filter {
            Some(filter) => filter.to_string() == expression,
            None => expression.is_empty(),
        };
        match &self.changed {
            Some(changed) => changed == expression,
            None => self.capture.interfaces().iter().all(is_own),
        }
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let status: Line = self.status("ending").to_string().into();
        self.desks.iter().for_each(|mailbox| mailbox.end_jobs(&status));
    }
}

/// The places of a ring's cells, its worker and its helpers.
fn ring_state(state: &RingState) -> Value {
    let RingState { name, capacity, cells, threshold, worker, helpers, .. } = state;
    let helper = |(worker, chunks): &(usize, u64)| json!({ "worker": worker, "chunks": chunks });

    json!({
        "name": name.to_string(),
        "capacity": capacity,
        "posted": cells.posted,
        "waiting": cells.waiting,
        "captured": cells.captured,
        "free": cells.free,
        "threshold": threshold,
        "worker": worker,
        "helpers": helpers.iter().map(helper).collect::<Vec<_>>(),
    })
}

/// The output of the packets.
fn writer(writing: &Writing) -> Value {
    let [completed, indexed, to_index] = writing.files();
    json!({
        "to": writing.name(),
        "waiting": writing.waiting(),
        "discarded": writing.discarded(),
        "bytes": writing.accepted_bytes(),
        "blocked_s": writing.blocked_for().as_secs_f64(),
        "busy_s": writing.total().as_secs_f64(),
        "files_completed": completed,
        "files_indexed": indexed,
        "files_to_index": to_index,
    })
}
