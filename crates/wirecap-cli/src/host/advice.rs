//! The settings of the host that explain a loss: doctor reads the host in a separate thread when a
//! loss begins.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use wirecap::device::Device;

use crate::host::doctor::{self, Bottleneck, Cause};

/// Maximum number of reported causes of one loss; `wirecap doctor` lists all.
const SAID_MAX: usize = 2;

/// The findings from before this process dropped its privileges, if it has.
static FOUND_BEFORE: OnceLock<Vec<Cause>> = OnceLock::new();

/// Makes doctor read the host now, because this process is about to drop the privileges for it; the
/// findings explain later losses. `names` that are not interfaces are skipped.
pub(crate) fn look_before_privileges_drop(names: &[String]) {
    let interfaces: Vec<String> =
        names.iter().filter(|name| Device::find(name).is_ok()).cloned().collect();
    let causes = match interfaces.is_empty() {
        true => Vec::new(),
        false => doctor::causes(&interfaces).unwrap_or_default(),
    };
    FOUND_BEFORE.set(causes).expect("privileges are given up once");
}

/// A loss whose causes are determined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    /// Its name in the ledger: `eth1@2`.
    pub(crate) place: String,
    /// `no free cell`.
    pub(crate) reason: &'static str,
    pub(crate) bottleneck: Bottleneck,
    pub(crate) interface: String,
}

#[derive(Debug)]
pub(crate) struct Advisor {
    interfaces: Vec<String>,
    questions: Vec<Question>,
    answer: Option<Receiver<Vec<Cause>>>,
}

impl Advisor {
    /// For losses of these interfaces.
    pub(crate) fn new(interfaces: &[String]) -> Self {
        Self { interfaces: interfaces.to_vec(), questions: Vec::new(), answer: None }
    }

    /// Makes doctor read the host, unless this process has dropped its privileges: then it has read
    /// the host before.
    pub(crate) fn ask(&mut self, questions: Vec<Question>) {
        if questions.is_empty() {
            return;
        }

        self.questions.extend(questions);
        if FOUND_BEFORE.get().is_some() {
            return;
        }

        if self.answer.is_none() {
            let (answer, inbox) = channel();
            let interfaces = self.interfaces.clone();

            let look = move || {
                // The removal of an interface is reported elsewhere.
                let causes = doctor::causes(&interfaces).unwrap_or_default();
                let _the_capture_has_ended = answer.send(causes);
            };
            self.answer =
                thread::Builder::new().name("doctor".to_owned()).spawn(look).ok().map(|_| inbox);
        }
    }

    /// The lines to be reported, once doctor has finished.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        if let Some(causes) = FOUND_BEFORE.get() {
            return self.explained_by(causes);
        }
        let Some(inbox) = &self.answer else { return Vec::new() };
        let causes = match inbox.try_recv() {
            Ok(causes) => causes,
            Err(TryRecvError::Empty) => return Vec::new(),
            Err(TryRecvError::Disconnected) => Vec::new(),
        };
        self.answer = None;
        self.explained_by(&causes)
    }

    fn explained_by(&mut self, causes: &[Cause]) -> Vec<String> {
        std::mem::take(&mut self.questions)
            .iter()
            .flat_map(|question| question.lines(causes))
            .collect()
    }
}

impl Question {
    /// `no free cell on eth1@2: 1 of 8 receive queues in use, with 8 CPUs; fix: ethtool -L eth1 combined 8`.
    fn lines(&self, causes: &[Cause]) -> Vec<String> {
        let Self { place, reason, bottleneck, interface } = self;
        let explaining: Vec<&Cause> =
            causes.iter().filter(|cause| cause.explains(*bottleneck, interface)).collect();
        let line = |cause: &&Cause| format!("{reason} on {place}: {}", cause.text);
        let mut lines: Vec<String> = explaining.iter().take(SAID_MAX).map(line).collect();
        if explaining.len() > SAID_MAX {
            let more = explaining.len() - SAID_MAX;
            lines.push(format!(
                "{reason} on {place}: {more} more; wirecap doctor {interface} lists them"
            ));
        }
        lines
    }
}
