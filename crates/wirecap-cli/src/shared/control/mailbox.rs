//! The exchange between two threads: the one that serves the control socket, and never accesses the
//! capture, stores clients' requests here; the one that watches the capture, and never accesses a
//! socket, stores the answers. Neither waits for the other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

use rustix::event::{EventfdFlags, eventfd};

use crate::shared::recording::options::Rules;

/// A line for a client, without its end.
pub(super) type Line = Arc<str>;

/// Which connection it is.
pub(super) type ClientId = u64;

/// A task that requires the capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Task {
    Status,
    Filter(String),
    Reload(Option<String>, Option<Rules>),
}

/// A task for a client.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) client: ClientId,
    pub(super) task: Task,
}

impl Task {
    /// Whether it changes the capture.
    pub(super) fn is_change(&self) -> bool {
        !matches!(self, Self::Status)
    }
}

/// What both threads have.
#[derive(Debug, Clone)]
pub(crate) struct Mailbox(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when there are messages for the thread that serves the socket.
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    jobs: Vec<Job>,
    answers: Vec<(ClientId, Line)>,
    /// The thread that executes jobs, if there is one.
    agent: Option<Thread>,
    stage: Stage,
}

/// The phase of the capture.
#[derive(Debug, Default, Clone)]
pub(super) enum Stage {
    /// Jobs are executed.
    #[default]
    Running,
    /// All packets are processed, and the last status is known: the recording is being completed.
    Ending(Line),
    /// The capture has ended; this is the answer for waiting clients.
    Ended(Line),
}

/// The answer to requests that the ending capture can no longer execute.
pub(super) const ENDING: &str = r#"{"ok":false,"error":"the capture is ending"}"#;

impl Mailbox {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Shared { state: Mutex::default(), bell })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An eventfd that is readable when there are messages for the thread that serves the socket.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }

    fn ring(&self) {
        // The eventfd is full only if it was signalled and not read.
        let _ = rustix::io::write(&self.0.bell, &1_u64.to_ne_bytes());
    }

    /// Stores a job. If the capture is ending, the answer is available at once.
    pub(super) fn ask(&self, job: Job) -> Option<Line> {
        let mut state = self.state();
        match (&state.stage, &job.task) {
            (Stage::Running, _) => {
                state.jobs.push(job);
                state.agent.iter().for_each(Thread::unpark);
                None
            }
            (Stage::Ending(status), Task::Status) => Some(Arc::clone(status)),
            (Stage::Ending(_) | Stage::Ended(_), _) => Some(ENDING.into()),
        }
    }

    /// Takes the stored answers, and returns the phase of the capture.
    pub(super) fn take_answers(&self) -> (Vec<(ClientId, Line)>, Stage) {
        let mut heard = [0; 8];
        // Empty if another wake-up has already read it.
        let _ = rustix::io::read(&self.0.bell, &mut heard);
        let mut state = self.state();
        (std::mem::take(&mut state.answers), state.stage.clone())
    }

    /// From now on this thread executes the jobs, and is unparked for each.
    pub(super) fn begin_jobs(&self) {
        self.state().agent = Some(thread::current());
    }

    /// Takes the stored jobs.
    pub(super) fn take_jobs(&self) -> Vec<Job> {
        std::mem::take(&mut self.state().jobs)
    }

    /// Puts down an answer.
    pub(super) fn answer(&self, client: ClientId, line: Line) {
        self.state().answers.push((client, line));
        self.ring();
    }

    /// No more jobs are executed. `status` is the last one.
    pub(super) fn end_jobs(&self, status: &Line) {
        let mut state = self.state();
        state.stage = Stage::Ending(Arc::clone(status));
        let jobs = std::mem::take(&mut state.jobs);
        let answers = jobs.into_iter().map(|job| match job.task {
            Task::Status => (job.client, Arc::clone(status)),
            Task::Filter(_) | Task::Reload(..) => (job.client, ENDING.into()),
        });
        state.answers.extend(answers);
        drop(state);
        self.ring();
    }

    /// The capture has ended: waiting clients get this line, and the thread that serves the socket
    /// ends.
    pub(super) fn end(&self, line: Line) {
        let mut state = self.state();
        if !matches!(state.stage, Stage::Ended(_)) {
            state.stage = Stage::Ended(line);
        }
        drop(state);
        self.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(client: ClientId) -> Job {
        Job { client, task: Task::Status }
    }

    #[test]
    fn every_job_is_answered_also_when_the_capture_ends() {
        let mailbox = Mailbox::new().unwrap();
        assert_eq!(mailbox.ask(status(1)), None);

        let jobs = mailbox.take_jobs();
        assert_eq!(jobs.len(), 1);
        mailbox.answer(1, "first".into());
        assert_eq!(mailbox.ask(status(2)), None);
        assert_eq!(mailbox.ask(Job { client: 3, task: Task::Filter("udp".to_owned()) }), None);
        mailbox.end_jobs(&"last".into());

        let (answers, stage) = mailbox.take_answers();
        let answers: Vec<(ClientId, &str)> =
            answers.iter().map(|(client, line)| (*client, &**line)).collect();
        assert_eq!(answers, [(1, "first"), (2, "last"), (3, ENDING)]);
        assert!(matches!(stage, Stage::Ending(_)));
        assert_eq!(mailbox.ask(status(4)).as_deref(), Some("last"));
        mailbox.end("end".into());
        mailbox.end("not twice".into());
        assert!(matches!(mailbox.take_answers().1, Stage::Ended(line) if &*line == "end"));
        assert_eq!(mailbox.ask(status(5)).as_deref(), Some(ENDING));
    }
}
