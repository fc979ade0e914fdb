//! A receiving process: monitors its output and its processor time, and ends it in order.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use wirecap_testbed::{CpuTime, Namespace, cpu_times};

use super::Outcome;
use super::process::{CommandLine, Spawner};
use super::programs::order::Order;

/// Maximum time for a receiver to open or to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which a receiver's processor time is read.
const STEP: Duration = Duration::from_millis(50);

/// A process that ends at the latest when this value is dropped.
#[derive(Debug)]
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if it has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A receiving process. Dropping the value kills it.
#[derive(Debug)]
pub struct Receiver {
    child: Process,
    command: String,
    output: JoinHandle<String>,
    log: mpsc::Receiver<String>,
    started: Instant,
    /// Its starter, if it is not the bed's.
    _spawner: Option<Spawner>,
}

impl Receiver {
    /// Starts a command in the namespace, on the last CPU, and waits until it prints a line that
    /// contains `ready`; if `ready` is empty, for half a second.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or ends instead.
    pub fn start_in(namespace: &Namespace, command: &CommandLine, ready: &str) -> Outcome<Self> {
        let spawner = Spawner::in_namespace(namespace)?;
        let receiver = Self::watch(spawner.spawn(command, None)?, command, ready)?;
        Ok(Self { _spawner: Some(spawner), ..receiver })
    }

    /// Reads the process's output, and returns when a line contains `ready`.
    pub(super) fn watch(mut child: Child, command: &CommandLine, ready: &str) -> Outcome<Self> {
        let stdout = child.stdout.take().ok_or("piped")?;
        let stderr = child.stderr.take().ok_or("piped")?;
        let (sender, log) = mpsc::channel();
        let also = sender.clone();

        thread::spawn(move || lines(stderr, |line| drop(sender.send(line))));
        let output = thread::spawn(move || {
            let mut text = String::new();
            lines(stdout, |line| {
                text += &line;
                text.push('\n');
                let _ = also.send(line);
            });
            text
        });

        let receiver = Self {
            child: Process(child),
            command: command.to_string(),
            output,
            log,
            started: Instant::now(),
            _spawner: None,
        };

        if ready.is_empty() {
            thread::sleep(Duration::from_millis(500));
            return Ok(receiver);
        }

        let mut said = Vec::new();

        loop {
            match receiver.log.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(ready) => return Ok(receiver),
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(
                        format!("it did not say {ready:?} but: {}", complaint(&said)).into()
                    );
                }
            }
        }
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Of all its threads.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn cpu_time(&self) -> Outcome<CpuTime> {
        Ok(cpu_times(&self.id().to_string())?.into_values().sum())
    }

    /// The processor time that the process uses in 50 ms before frames are sent: a program that
    /// polls its ring every few microseconds is never idle. The minimum of several steps, because
    /// it may still be opening.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn idle(&self) -> Outcome<Duration> {
        const STEPS: u32 = 4;
        let mut least = STEP;
        let mut last = self.cpu_time()?.ran;
        for _ in 0..STEPS {
            thread::sleep(STEP);
            let ran = self.cpu_time()?.ran;
            least = least.min(ran.abs_diff(last));
            last = ran;
        }
        Ok(least)
    }

    /// Waits until the process has used hardly more processor time than when it was `idle`, for the
    /// time `calm` without interruption.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn settle(&self, idle: Duration, calm: Duration) -> Outcome<()> {
        let calm_is_below = idle * 3 / 2 + STEP / 20;
        let mut last = self.cpu_time()?.ran;
        let mut calm_since = Instant::now();

        while calm_since.elapsed() < calm && self.started.elapsed() < PATIENCE {
            thread::sleep(STEP.min(calm));
            let ran = self.cpu_time()?.ran;
            // Less than before: a thread has ended, and its time is no longer included.
            if ran.abs_diff(last) > calm_is_below {
                calm_since = Instant::now();
            }
            last = ran;
        }

        Ok(())
    }

    /// Sends the process a signal.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn signal(&self, signal: Signal) -> Outcome<()> {
        let pid = Pid::from_raw(self.child.0.id() as i32).ok_or("a process has a number")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Interrupts the process, like Ctrl-C, and returns its output.
    ///
    /// # Errors
    ///
    /// When it does not end, or not well.
    pub fn stop(self) -> Outcome<Finished> {
        // Fails if it has ended, which `wait` reports.
        let _ = self.signal(Signal::INT);
        self.wait()
    }

    /// Waits for the end of the process and returns its output.
    ///
    /// # Errors
    ///
    /// When it does not end, or not well.
    pub fn wait(mut self) -> Outcome<Finished> {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.0.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    return Err(format!("{} did not end", self.command).into());
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        };

        let errors: Vec<String> = self.log.iter().collect();
        let output = self.output.join().map_err(|_| "reading the output")?;

        // wirecap ends with status 3 if packets were lost, which is the measured quantity.
        if !status.success() && status.code() != Some(3) {
            return Err(format!("{} ended with {status}: {errors:?}", self.command).into());
        }

        Ok(Finished { output, errors: errors.join("\n") })
    }
}

/// The part of a program's output that explains why it did not start.
fn complaint(said: &[String]) -> String {
    const SIGNS: [&str; 5] = ["rror", "FATAL", "annot", "not ", "denied"];
    let complains = |line: &&String| SIGNS.iter().any(|sign| line.contains(sign));
    let mut lines: Vec<&str> =
        said.iter().filter(complains).take(3).map(|line| line.trim()).collect();
    if lines.is_empty() {
        lines.extend(said.last().map(String::as_str));
    }
    lines.join("; ")
}

fn lines(source: impl Read, mut each: impl FnMut(String)) {
    // Not every program writes UTF-8 or ends a progress line.
    for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
        each(String::from_utf8_lossy(&line).into_owned());
    }
}

/// The output of a process.
#[derive(Debug, Default)]
pub struct Finished {
    /// All of its standard output.
    pub output: String,
    /// Its standard output and standard error since it was ready.
    pub errors: String,
}

impl Finished {
    /// A number of the ledger that `--json` prints: `/delivered`, `/dropped/no_cell`.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn ledger(&self, pointer: &str) -> Outcome<u64> {
        let json: serde_json::Value = serde_json::from_str(&self.output)?;
        Ok(json
            .pointer(pointer)
            .and_then(serde_json::Value::as_u64)
            .ok_or_else(|| pointer.to_owned())?)
    }

    /// The order of packets that a receiver of the lab reports, if requested.
    pub(super) fn order(&self) -> Option<Order> {
        let json: serde_json::Value = serde_json::from_str(&self.output).ok()?;
        serde_json::from_value(json.get("order")?.clone()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_error_of_a_usage_text_is_kept() {
        let said = ["usage: sniff [-i DEV]", "sniff: cannot open a1", "  -h  this help"]
            .map(str::to_owned);
        assert_eq!(complaint(&said), "sniff: cannot open a1");
        assert_eq!(complaint(&["bye".to_owned()]), "bye");
        assert_eq!(complaint(&[]), "");
    }
}
