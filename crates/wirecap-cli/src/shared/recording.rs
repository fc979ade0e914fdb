//! A capture in a savefile: its packets and metadata: program, interfaces, and their counts at the
//! end.
//!
//! pcapng files contain the filter, the name of the clock and, at the end, each interface's counts.
//! They contain each packet's receive queue if the interface had more than one when the capture was
//! opened: otherwise it is always queue 0, and its option would take twelve bytes of each packet. A
//! capture of all interfaces describes the interfaces that are up at the beginning in the head of
//! each file; another interface gets its description before its first packet, in each file of a set
//! again. In such a file the counts at the end have delivered packets only.

pub(crate) mod indexer;
pub(crate) mod options;
pub(crate) mod outlet;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use wirecap::savefile::Section;
pub(crate) use wirecap_recorder::capture::{
    Form, counts, counts_of_any, described, in_file, interface, now, operating_system,
    safely_written,
};
use wirecap_recorder::{Answer, Pattern, refuse_busy};

use crate::shared::failure::Failure;
use crate::shared::output;
use crate::shared::signals;
use options::Rules;

/// The request about rules that the recording has not taken yet. One thread makes requests, one at
/// a time.
static REQUEST: Mutex<Option<RulesRequest>> = Mutex::new(None);
static HAS_REQUEST: AtomicBool = AtomicBool::new(false);

/// A request about the rules for files, in two steps: another thread can change the filter between
/// them, so that both change or neither.
#[derive(Debug)]
pub(crate) struct RulesRequest {
    pub(crate) step: RulesStep,
    pub(crate) rules: Rules,
    pub(crate) answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RulesStep {
    /// Whether the recording can obey the rules. Changes nothing.
    Check,
    /// From now on it obeys them.
    Apply,
}

fn request() -> MutexGuard<'static, Option<RulesRequest>> {
    REQUEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes a request to the recording. Replaces a request that the recording has not taken: its
/// answer is dropped.
pub(crate) fn request_rules(request: RulesRequest) {
    let mut place = self::request();
    *place = Some(request);
    HAS_REQUEST.store(true, Ordering::Release);
    drop(place);
    signals::wake_for_request();
}

/// Calls `obey` with the request that was made since the last call, if any.
pub(crate) fn with_request<E>(obey: impl FnOnce(RulesRequest) -> Result<(), E>) -> Result<(), E> {
    if !HAS_REQUEST.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut place = request();
    let request = place.take();
    HAS_REQUEST.store(false, Ordering::Release);
    drop(place);
    request.map_or(Ok(()), obey)
}

/// This program on this host.
pub(crate) fn section() -> Section {
    Section {
        application: Some(concat!("wirecap ", env!("CARGO_PKG_VERSION")).to_owned()),
        os: operating_system(),
        hardware: None,
        comment: None,
    }
}

/// Detects before an interface is opened that the files of a set cannot be written.
pub(crate) fn check(pattern: &Pattern) -> Result<(), Failure> {
    let directory = pattern.directory();
    output::check_directory(&directory.join("file"))?;
    refuse_busy(pattern).map_err(|error| output::cannot_write(directory, &error))
}
