//! The requests that change a capture, one after another in the order in which they came: each is
//! answered after its own change has taken effect, or when it is certain that nothing has changed.
//!
//! A change of rules has two steps: the recording checks the rules, then the filter is changed,
//! then the recording applies the rules, which cannot fail any more. Both steps pass through the
//! writer, so they wait for a disk that stalls, while status requests are answered. A change that
//! has waited for more than five seconds changes nothing, and the answer says so; so does the
//! answer to a change that finds 64 others waiting.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wirecap_recorder::{Answer, RulesError};
use wirecap_units::error::causes;

use super::mailbox::{ClientId, ENDING, Mailbox, Task};
use crate::shared::events::{self, Kind};
use crate::shared::recording::options::Rules;
use crate::shared::recording::{self, RulesRequest, RulesStep};
use crate::shared::service;
use crate::shared::signals;

/// Maximum number of changes that wait. There may be more than clients: a client can end after its
/// request.
const WAITING_MAX: usize = 64;
/// How long a change waits for a disk that stalls, before it is given up. Shorter than clients
/// wait. While other changes take effect, it waits for its turn.
const PATIENCE: Duration = Duration::from_secs(5);

/// Changes of a capture.
#[derive(Debug, Default)]
pub(super) struct Changes<'a> {
    waiting: VecDeque<Change<'a>>,
    /// The change of rules that is in progress.
    reload: Option<Reload<'a>>,
    /// When the last change of rules had taken effect.
    took_effect: Option<Instant>,
}

/// A change, and the client that gets the answer.
#[derive(Debug)]
struct Change<'a> {
    mailbox: &'a Mailbox,
    client: ClientId,
    task: Task,
    came: Instant,
}

/// A change of rules for files, and of the filter if there is one.
#[derive(Debug)]
struct Reload<'a> {
    mailbox: &'a Mailbox,
    client: ClientId,
    filter: Option<String>,
    rules: Rules,
    step: RulesStep,
    /// The beginning of its wait for the disk.
    since: Instant,
    outcome: Receiver<Result<(), RulesError>>,
}

/// Sets a filter.
pub(super) type SetFilter<'f> = &'f mut dyn FnMut(&str) -> Result<(), String>;

impl<'a> Changes<'a> {
    /// Puts a change behind those that wait.
    pub(super) fn push(&mut self, mailbox: &'a Mailbox, client: ClientId, task: Task) {
        let change = Change { mailbox, client, task, came: Instant::now() };
        match self.waiting.len() < WAITING_MAX {
            true => self.waiting.push_back(change),
            false => answer(
                mailbox,
                client,
                Err(format!(
                    "busy: {WAITING_MAX} changes wait; nothing was changed, try again later"
                )),
            ),
        }
    }

    /// Makes changes as far as possible without waiting.
    pub(super) fn advance(&mut self, set_filter: SetFilter<'_>) {
        loop {
            if let Some(reload) = self.reload.take() {
                let waits_for_disk = reload.waits_for_disk();
                self.reload = reload.advance(set_filter);
                if self.reload.is_some() {
                    return;
                }
                if !waits_for_disk {
                    self.took_effect = Some(Instant::now());
                }
            }

            let Some(change) = self.waiting.pop_front() else { return };
            let since = self.took_effect.map_or(change.came, |instant| instant.max(change.came));
            self.reload = change.begin(since, set_filter);
        }
    }
}

/// The capture ends.
impl Drop for Changes<'_> {
    fn drop(&mut self) {
        if let Some(reload) = &self.reload {
            match reload.outcome.try_recv() {
                Ok(Ok(())) if reload.step == RulesStep::Apply => {
                    answer(reload.mailbox, reload.client, Ok(()));
                }
                _ => reload.mailbox.answer(reload.client, ENDING.into()),
            }
        }
        self.waiting.iter().for_each(|change| change.mailbox.answer(change.client, ENDING.into()));
    }
}

impl<'a> Change<'a> {
    /// Makes the change and answers it; returns a change of rules, which takes longer. It has
    /// waited for the disk `since` then.
    fn begin(self, since: Instant, set_filter: SetFilter<'_>) -> Option<Reload<'a>> {
        let Self { mailbox, client, task, .. } = self;

        if since.elapsed() > PATIENCE {
            answer(mailbox, client, Err(stalled()));
            return None;
        }

        match task {
            Task::Status => unreachable!("a status changes nothing"),
            Task::Filter(expression) => answer(mailbox, client, set_filter(&expression)),
            Task::Reload(_, Some(_)) if !signals::is_rotating() => {
                answer(
                    mailbox,
                    client,
                    Err("this capture does not write a set of files".to_owned()),
                );
            }
            Task::Reload(filter, Some(rules)) => {
                service::reloading();
                let step = RulesStep::Check;
                let outcome = ask(RulesStep::Check, &rules);
                return Some(Reload { mailbox, client, filter, rules, step, since, outcome });
            }
            Task::Reload(filter, None) => {
                service::reloading();
                let outcome = filter.map_or(Ok(()), |filter| set_filter(&filter));
                end(mailbox, client, outcome);
            }
        }
        None
    }
}

impl Reload<'_> {
    fn is_overdue(&self) -> bool {
        self.since.elapsed() > PATIENCE
    }

    /// Whether it is given up for a disk that stalls.
    fn waits_for_disk(&self) -> bool {
        self.step == RulesStep::Check && self.is_overdue()
    }

    /// Makes the next step, and answers the client after the last one; `None` if there is no
    /// further step.
    fn advance(mut self, set_filter: SetFilter<'_>) -> Option<Self> {
        match (self.outcome.try_recv(), self.step) {
            (Ok(Ok(())), RulesStep::Check) => {
                if let Some(Err(reason)) = self.filter.as_deref().map(set_filter) {
                    end(self.mailbox, self.client, Err(reason));
                    return None;
                }
                self.step = RulesStep::Apply;
                self.outcome = ask(RulesStep::Apply, &self.rules);
                return Some(self);
            }
            (Ok(Ok(())), RulesStep::Apply) => end(self.mailbox, self.client, Ok(())),
            (Ok(Err(error)), _) => end(self.mailbox, self.client, Err(causes(&error))),
            (Err(TryRecvError::Disconnected), _) => {
                service::ready();
                self.mailbox.answer(self.client, ENDING.into());
            }
            // A later answer changes nothing. Rules that apply cannot be withdrawn.
            (Err(TryRecvError::Empty), RulesStep::Check) if self.is_overdue() => {
                end(self.mailbox, self.client, Err(stalled()));
            }
            (Err(TryRecvError::Empty), _) => return Some(self),
        }
        None
    }
}

/// Passes a request to the recording; the answer wakes this thread.
fn ask(step: RulesStep, rules: &Rules) -> Receiver<Result<(), RulesError>> {
    let (sender, outcome) = mpsc::channel();
    let this_thread = thread::current();
    let answer = Answer::new(move |outcome| {
        // Fails if the change was given up.
        let _ = sender.send(outcome);
        this_thread.unpark();
    });
    recording::request_rules(RulesRequest { step, rules: rules.clone(), answer });
    outcome
}

fn stalled() -> String {
    format!(
        "the recording waits for the disk for more than {} s; nothing was changed",
        PATIENCE.as_secs()
    )
}

/// Ends a reload.
fn end(mailbox: &Mailbox, client: ClientId, outcome: Result<(), String>) {
    if outcome.is_ok() {
        events::say(Kind::Rotation, "the configuration was reread");
    }
    service::ready();
    answer(mailbox, client, outcome);
}

fn answer(mailbox: &Mailbox, client: ClientId, outcome: Result<(), String>) {
    let answer: Value = match outcome {
        Ok(()) => json!({ "ok": true }),
        Err(reason) => json!({ "ok": false, "error": reason }),
    };
    mailbox.answer(client, answer.to_string().into());
}
