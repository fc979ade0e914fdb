//! Runs the `wirecap` command and other programs on an interface.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use wirecap::Timestamp;
use wirecap::savefile::Reader;

use crate::frames::Frames;

/// Maximum time for any step of a program in a slow virtual machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Exit status of a command whose ledger is not lossless, and of `doctor` with findings.
const NOT_LOSSLESS: i32 = 3;

/// The `wirecap` command of this build.
pub(crate) fn wirecap() -> PathBuf {
    let here = std::env::current_exe().expect("the program knows where it is");
    here.with_file_name("wirecap")
}

/// Runs a program and returns its output.
///
/// # Errors
///
/// If it fails, with its error output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, Box<dyn Error>> {
    output_of(Command::new(program).args(arguments))
}

/// Runs a command and returns its output.
///
/// # Errors
///
/// If it fails, with its error output.
pub(crate) fn output_of(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(format!("{command:?}: {} {said}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A running program; killed if the check ends first.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    listener: Option<thread::JoinHandle<()>>,
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub(crate) fn start(command: &mut Command) -> Result<Self, Box<dyn Error>> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = Arc::clone(&said);
        let stderr = child.stderr.take().expect("a pipe");
        let listener = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                locked(&lines).push(line);
            }
        });
        Ok(Self { child, said, listener: Some(listener) })
    }

    /// Waits until it has printed these words on standard error.
    ///
    /// # Errors
    ///
    /// If it ends before, or does not print them in time.
    pub(crate) fn wait_for(&mut self, words: &str) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + PATIENCE;
        while !locked(&self.said).iter().any(|line| line.contains(words)) {
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                return Err(format!("did not say {words:?}, but: {}", self.said()).into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Everything that it has printed on standard error.
    pub(crate) fn said(&self) -> String {
        locked(&self.said).join("; ")
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Box<dyn Error>> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Interrupts it like Ctrl-C, and returns its standard output.
    ///
    /// # Errors
    ///
    /// If it fails, with its error output.
    pub(crate) fn interrupt(mut self) -> Result<Ended, Box<dyn Error>> {
        if self.child.try_wait()?.is_none() {
            self.signal(Signal::INT)?;
        }
        self.end()
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// As for [`interrupt`](Self::interrupt).
    pub(crate) fn end(mut self) -> Result<Ended, Box<dyn Error>> {
        let mut pipe = self.child.stdout.take().expect("a pipe");
        let printed = thread::spawn(move || {
            let mut stdout = String::new();
            pipe.read_to_string(&mut stdout).map(|_| stdout)
        });
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    return Err(format!("does not end; it said: {}", self.said()).into());
                }
                None => thread::sleep(Duration::from_millis(20)),
            }
        };
        let stdout = printed.join().expect("a reader")?;
        if let Some(listener) = self.listener.take() {
            listener.join().expect("a listener");
        }
        // A loss is judged by the ledger, and findings are the expected result of `doctor`.
        if !status.success() && status.code() != Some(NOT_LOSSLESS) {
            return Err(format!("{status}: {}", self.said()).into());
        }
        Ok(Ended { stdout, stderr: self.said() })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// The output of a program that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A running `wirecap capture` that records an interface.
#[derive(Debug)]
pub(crate) struct Recording {
    running: Running,
    file: PathBuf,
}

/// The result of a recording.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) frames: Vec<Vec<u8>>,
    /// The time of capture of each frame.
    pub(crate) times: Vec<SystemTime>,
    pub(crate) ledger: Value,
    /// Everything that the command printed.
    pub(crate) said: String,
}

impl Recording {
    /// Starts it with the engine xdp and further options, and waits until it captures. A ring holds
    /// 16,384 packets.
    ///
    /// # Errors
    ///
    /// If it does not start to capture.
    pub(crate) fn start(interface: &str, options: &[&str]) -> Result<Self, Box<dyn Error>> {
        let options = [&["--engine", "xdp", "--take"], options].concat();
        Self::start_by(Command::new(wirecap()), interface, &options)
    }

    /// As [`start`](Self::start), by this command, and with the engine of the options.
    ///
    /// # Errors
    ///
    /// If it does not start to capture.
    pub(crate) fn start_by(
        mut command: Command,
        interface: &str,
        options: &[&str],
    ) -> Result<Self, Box<dyn Error>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let file = std::env::temp_dir().join(format!("nics-{}.pcapng", NEXT.fetch_add(1, Relaxed)));
        command.args(["capture", "-R", "16", "--json", "-i", interface, "-w"]);
        command.arg(&file).args(options);
        let mut running = Running::start(&mut command)?;
        running.wait_for("capturing ")?;
        Ok(Self { running, file })
    }

    /// The mode in use, and the reason why no better one is used.
    pub(crate) fn said(&self) -> String {
        self.running.said()
    }

    /// Waits until it has printed these words.
    ///
    /// # Errors
    ///
    /// If it ends before, or does not print them in time.
    pub(crate) fn wait_for(&mut self, words: &str) -> Result<(), Box<dyn Error>> {
        self.running.wait_for(words)
    }

    /// Kills it.
    ///
    /// # Errors
    ///
    /// If it has already ended.
    pub(crate) fn kill(self) -> Result<(), Box<dyn Error>> {
        self.running.signal(Signal::KILL)
    }

    /// Ends it and reads the recorded packets.
    ///
    /// # Errors
    ///
    /// If it fails, or its file cannot be read.
    pub(crate) fn end(self) -> Result<Recorded, Box<dyn Error>> {
        let ended = self.running.interrupt()?;
        let (times, frames) = read(&self.file)?.into_iter().unzip();
        std::fs::remove_file(&self.file)?;
        let ledger = serde_json::from_str(&ended.stdout)
            .map_err(|error| format!("{error}: {}", ended.stdout))?;
        Ok(Recorded { frames, times, ledger, said: ended.stderr })
    }
}

/// The time and the bytes of a packet in a savefile.
pub(crate) type Record = (SystemTime, Vec<u8>);

/// The packets of a savefile.
///
/// # Errors
///
/// If the file cannot be read.
pub(crate) fn read(file: &PathBuf) -> Result<Vec<Record>, Box<dyn Error>> {
    let mut reader = Reader::new(File::open(file)?)?;
    let mut frames = Vec::new();
    while let Some(record) = reader.next_record()? {
        let time = Duration::from_nanos(record.timestamp.map_or(0, Timestamp::unix_nanos));
        frames.push((UNIX_EPOCH + time, record.data.to_vec()));
    }
    Ok(frames)
}

impl Recorded {
    /// A number in the ledger, by its path.
    pub(crate) fn count(&self, path: &str) -> u64 {
        self.ledger.pointer(path).and_then(Value::as_u64).unwrap_or(0)
    }

    /// The packets of each ring.
    pub(crate) fn rings(&self) -> Vec<u64> {
        let rings = self.ledger["rings"].as_array().cloned().unwrap_or_default();
        rings.iter().map(|ring| ring["delivered"].as_u64().unwrap_or(0)).collect()
    }

    /// Whether the ledger claims that no packet is missing.
    pub(crate) fn claims_lossless(&self) -> bool {
        self.said.contains("lossless: yes")
    }

    /// Whether the ledger knows of no loss, although the device may have been dead since the last
    /// packet.
    pub(crate) fn knows_no_loss(&self) -> bool {
        self.claims_lossless() || self.said.contains("lossless until")
    }

    /// Checks that all sent frames were recorded, each once and byte for byte, and that the ledger
    /// agrees.
    ///
    /// # Errors
    ///
    /// A description of the difference.
    pub(crate) fn is_all_of(&self, sent: &Frames) -> Result<(), Box<dyn Error>> {
        sent.compare(self.frames.iter().map(Vec::as_slice))
            .map_err(|differences| format!("{differences}; {}", self.said))?;
        self.books(sent.count())
    }

    /// Checks that the recorded frames are equal to the sent ones, and that the ledger counts the
    /// others as dropped.
    ///
    /// # Errors
    ///
    /// A description of the difference.
    pub(crate) fn names_the_loss_of(&self, sent: &Frames) -> Result<(), Box<dyn Error>> {
        if self.frames.iter().any(|frame| !sent.has(frame)) {
            return Err(format!("not all are as they were sent; {}", self.said).into());
        }
        let books = [self.count("/offered"), self.count("/delivered")];
        if books != [sent.count(), self.frames.len() as u64] {
            return Err(format!(
                "{} sent; offered, delivered: {books:?}; {}",
                sent.count(),
                self.said
            )
            .into());
        }
        Ok(())
    }

    /// Checks that the ledger has this number of packets, all delivered and in the file.
    ///
    /// # Errors
    ///
    /// A description of the difference.
    pub(crate) fn books(&self, sent: u64) -> Result<(), Box<dyn Error>> {
        let books = [self.count("/offered"), self.count("/delivered"), self.frames.len() as u64];
        if books != [sent; 3] || !self.knows_no_loss() {
            return Err(format!(
                "{sent} sent; offered, delivered, in the file: {books:?}; {}",
                self.said
            )
            .into());
        }
        Ok(())
    }
}

fn locked(lines: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}
