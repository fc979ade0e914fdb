//! The command while it runs, and the packets that it has recorded.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use wirecap::savefile::Reader;
use wirecap_testbed::Namespace;

use crate::client::MARK;
use crate::host::patience;

/// Maximum seconds for any step of the command on a busy machine.
const PATIENCE_S: u64 = 30;

/// A running command; killed if the test ends first.
pub(crate) struct Running {
    child: Child,
    said: Arc<Mutex<String>>,
    reading: Vec<JoinHandle<String>>,
}

/// What a command has printed, and its exit status; `None` if a signal ended it.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Running {
    /// Starts a command of this machine in the namespace.
    pub(crate) fn start(namespace: &Namespace, command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = namespace.run_in(|| command.spawn()).unwrap().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let stderr = child.stderr.take().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let noted = Arc::clone(&said);
        let reading = vec![
            thread::spawn(move || {
                let mut text = String::new();
                stdout.read_to_string(&mut text).unwrap();
                text
            }),
            thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    *noted.lock().unwrap() += &(line + "\n");
                }
                String::new()
            }),
        ];
        Self { child, said, reading }
    }

    /// Waits until it has printed these words on standard error, or ends; returns whether it has.
    pub(crate) fn wait_for(&mut self, words: &str) -> bool {
        let deadline = Instant::now() + patience(PATIENCE_S);
        while Instant::now() < deadline {
            let has_ended = self.child.try_wait().unwrap().is_some();
            if self.said.lock().unwrap().contains(words) {
                return true;
            }
            if has_ended {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Interrupts it like Ctrl-C, and waits for its end; kills it if it does not end.
    pub(crate) fn interrupt(mut self) -> Finished {
        if self.child.try_wait().unwrap().is_none() {
            kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), Signal::INT).unwrap();
        }
        let deadline = Instant::now() + patience(PATIENCE_S);
        while self.child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let _ended_already = self.child.kill();
        let status = self.child.wait().unwrap().code();
        let mut texts = self.reading.drain(..).map(|thread| thread.join().unwrap());
        let stdout = texts.next().unwrap();
        texts.for_each(drop);
        let stderr = self.said.lock().unwrap().clone();
        Finished { status, stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// How many times each frame of a test is in a file, by its kind and number.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    counts: BTreeMap<(u8, u32), usize>,
    /// All packets of the file.
    pub(crate) packets: u64,
}

impl Recorded {
    /// Reads a file; counts the frames of this interface.
    pub(crate) fn read(file: &Path, interface: &str) -> Self {
        let mut recorded = Self::default();
        let mut reader = Reader::open(file).unwrap();
        while let Some((record, on)) = reader.next_with_interface().unwrap() {
            recorded.packets += 1;
            if on.name.as_deref() == Some(interface)
                && let Some(what) = mark_of(record.data)
            {
                *recorded.counts.entry(what).or_default() += 1;
            }
        }
        recorded
    }

    /// How many times a frame is in the file.
    pub(crate) fn count(&self, kind: u8, number: u32) -> usize {
        self.counts.get(&(kind, number)).copied().unwrap_or(0)
    }

    /// How many different frames of this kind are in the file, and how many there are in total.
    pub(crate) fn of_kind(&self, kind: u8) -> (usize, usize) {
        let counts = self.counts.iter().filter(|((of, _), _)| *of == kind).map(|(_, count)| count);
        (counts.clone().count(), counts.sum())
    }
}

fn mark_of(frame: &[u8]) -> Option<(u8, u32)> {
    let at = frame.windows(MARK.len()).position(|window| window == MARK)?;
    let (kind, number) = frame[at + MARK.len()..].split_first()?;
    Some((*kind, u32::from_be_bytes(*number.first_chunk()?)))
}
