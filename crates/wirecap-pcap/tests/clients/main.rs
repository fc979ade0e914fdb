//! Unmodified programs of the distribution with the drop-in: their output must be the same as with
//! the system's libpcap. `make clients` installs and runs them. All run with the engine `packet`
//! while two hosts have a conversation. Those that only listen also run with `xdp`, which leaves
//! the host no packets to answer, while the recorded conversation is replayed. A run with different
//! output is repeated once, from the beginning and with more time, and is reported as repeated,
//! because a busy machine may change the output by chance.
//!
//! `--needs` prints what must be installed; names of clients select those to run.

#[path = "../common/mod.rs"]
mod common;

mod bed;
mod conversation;
mod normal;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

use bed::{ClientBed, Engine, Running, Settings};
use common::Library;
use table::{CLIENTS, Client, Way};
use wirecap_testbed::{privileged, skip_on_this_machine};

/// How long a client may take to set its filter after it has opened its sockets.
const SETTLING: Duration = Duration::from_millis(500);
/// How long a client may take to read the last packet: some set libpcap's timeout to a second.
const LINGERING: Duration = Duration::from_millis(1800);

/// The factor for all waits when a run is repeated.
const MORE_TIME: u32 = 4;
/// The highest number of repeated runs that is still considered chance.
const MOST_REPEATED: usize = 1;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--needs") {
        CLIENTS.iter().for_each(|client| println!("{}", client.needs));
        return ExitCode::SUCCESS;
    }
    if !privileged() {
        return ExitCode::SUCCESS;
    }
    let names: Vec<&String> =
        arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted =
        |client: &&Client| names.is_empty() || names.iter().any(|name| *name == client.name);
    let mut report = Report::default();
    for client in CLIENTS.iter().filter(wanted) {
        match bed::make_ready(client) {
            Ok(()) => client.engines().for_each(|engine| report.add(client, engine)),
            Err(lacking) => {
                println!("ABSENT  {}: {lacking}", client.name);
                report.absent.push(client.name);
            }
        }
    }
    report.close()
}

/// The results of the runs.
#[derive(Default)]
struct Report {
    count: usize,
    repeated: Vec<String>,
    failed: Vec<String>,
    absent: Vec<&'static str>,
}

impl Report {
    /// Runs a client, and repeats the run if it fails.
    fn add(&mut self, client: &Client, engine: Engine) {
        let name = format!("{} on {engine:?}", client.name);
        self.count += 1;
        let Err(reason) = attempt(client, engine, 1) else {
            println!("ok      {name}");
            return;
        };
        println!("REPEAT  {name}\n{reason}");
        match attempt(client, engine, MORE_TIME) {
            Ok(()) => {
                println!("ok      {name}, when repeated");
                self.repeated.push(name);
            }
            Err(reason) => {
                println!("FAILED  {name}\n{reason}");
                self.failed.push(name);
            }
        }
    }

    fn close(self) -> ExitCode {
        println!(
            "{} of {} runs did the same on both libraries",
            self.count - self.failed.len(),
            self.count
        );
        for (what, names) in
            [("only when repeated", &self.repeated), ("failed twice", &self.failed)]
        {
            if !names.is_empty() {
                println!("{what}: {}", names.join(", "));
            }
        }
        if !self.absent.is_empty() {
            skip_on_this_machine(&format!("not available: {}", self.absent.join(", ")));
        }
        let may_lack = std::env::var_os("WIRECAP_NO_SKIP").is_none_or(|value| value != "1");
        let is_good = self.failed.is_empty()
            && self.repeated.len() <= MOST_REPEATED
            && self.count > 0
            && (self.absent.is_empty() || may_lack);
        if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A panic is an error of this run only, so the other clients still run.
fn attempt(client: &Client, engine: Engine, patience: u32) -> Result<(), String> {
    let outcome = std::panic::catch_unwind(|| run(client, engine, patience));
    outcome.unwrap_or_else(|_| Err("the test failed".to_owned()))
}

fn run(client: &Client, engine: Engine, patience: u32) -> Result<(), String> {
    let (theirs, ours) = match client.way {
        Way::Listens | Way::ListensAlone(_) if engine == Engine::Xdp => {
            listen_to_recorded(client, patience)?
        }
        Way::Listens => listen(client, patience)?,
        Way::ListensAlone(script) => listen_and_read(client, script, patience)?,
        Way::Asks => (ask(client, Library::System)?, ask(client, Library::DropIn)?),
    };
    let theirs = (client.normal)(&theirs);
    let ours = (client.normal)(&ours);
    for expected in client.expects {
        if !theirs.contains(expected) {
            return Err(format!(
                "the output with libpcap does not contain '{expected}':\n{theirs}"
            ));
        }
    }
    let compared = |text: &str| match text.trim_end().rsplit_once('\n') {
        Some((lines, _)) if client.ends_with_statistics && engine == Engine::Xdp => {
            lines.to_owned()
        }
        _ => text.to_owned(),
    };
    if compared(&theirs) != compared(&ours) {
        let (theirs, ours) = normal::where_they_differ(&theirs, &ours);
        return Err(format!("--- on libpcap\n{theirs}\n--- on the drop-in\n{ours}"));
    }
    Ok(())
}

/// Waits for clients to set their filters, has packets sent, and waits for clients to read them.
fn while_they_listen(listeners: &[&Running], patience: u32, say: impl FnOnce()) {
    let wait = |time: Duration| {
        std::thread::sleep(time * patience);
        common::wait_for_sleep(|| {
            listeners.iter().flat_map(|listener| listener.processes()).collect()
        });
    };
    wait(SETTLING);
    say();
    wait(LINGERING);
}

/// Two instances of the client listen to the same conversation, one with each library.
fn listen(client: &Client, patience: u32) -> Result<(String, String), String> {
    let bed = ClientBed::new();
    let start = |library, handles| -> Result<Running, String> {
        let running = bed.start(client, library, Engine::Packet);
        let is_ours = library == Library::DropIn && client.captures;
        running.begun(bed.wait_for_handles(handles, is_ours))
    };
    let theirs = start(Library::System, client.handles)?;
    let ours = start(Library::DropIn, client.handles * 2)?;
    while_they_listen(&[&theirs, &ours], patience, || bed.converse());
    let theirs = theirs.end(client);
    let ours = ours.end(client);
    Ok((bed.report(client, theirs), bed.report(client, ours)))
}

/// The client listens with the drop-in, and then reads with libpcap what tcpdump recorded at the
/// same time.
fn listen_and_read(
    client: &Client,
    script: &'static str,
    patience: u32,
) -> Result<(String, String), String> {
    let bed = ClientBed::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let recorder = bed.record(&file).begun(bed.wait_for_handles(1, false))?;
    let ours = bed.start(client, Library::DropIn, Engine::Packet);
    let ours = ours.begun(bed.wait_for_handles(1 + client.handles, true))?;
    while_they_listen(&[&recorder, &ours], patience, || bed.converse());
    let ours = ours.end(client);
    recorder.end(&table::RECORDER);
    let theirs = bed.read(script, &file).end(&Client { end: table::End::Itself, ..*client });
    Ok((bed.report(client, theirs), bed.report(client, ours)))
}

/// A conversation, which is recorded once for all clients.
fn recorded() -> Result<&'static Path, String> {
    static RECORDED: OnceLock<Result<(TempDir, PathBuf), String>> = OnceLock::new();
    let record = |patience| {
        let bed = ClientBed::new();
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = folder.path().join("file");
        let recorder = bed.record(&file).begun(bed.wait_for_handles(1, false))?;
        while_they_listen(&[&recorder], patience, || bed.converse());
        recorder.end(&table::RECORDER);
        Ok((folder, file))
    };
    let recorded = RECORDED.get_or_init(|| record(1).or_else(|_| record(MORE_TIME)));
    recorded.as_ref().map(|(_, file)| &**file).map_err(Clone::clone)
}

/// The client listens to a recorded conversation that is replayed on the cable: with libpcap on one
/// bed, and with the engine `xdp` on another.
fn listen_to_recorded(client: &Client, patience: u32) -> Result<(String, String), String> {
    let file = recorded()?;
    let hear = |library| -> Result<String, String> {
        let bed = ClientBed::aside();
        let running = bed.start(client, library, Engine::Xdp);
        let running = running.begun(match library {
            Library::System => bed.wait_for_handles(client.handles, false),
            Library::DropIn => bed.wait_for_taking_handles(client.handles),
        })?;
        while_they_listen(&[&running], patience, || bed.replay(file));
        Ok(bed.report(client, running.end(client)))
    };
    std::thread::scope(|scope| {
        let theirs = scope.spawn(|| match client.way {
            Way::ListensAlone(script) => {
                let bed = ClientBed::aside();
                let said =
                    bed.read(script, file).end(&Client { end: table::End::Itself, ..*client });
                Ok(bed.report(client, said))
            }
            Way::Listens | Way::Asks => hear(Library::System),
        });
        let ours = hear(Library::DropIn);
        let theirs = theirs.join().unwrap_or_else(|_| Err("the test failed".to_owned()));
        Ok((theirs?, ours?))
    })
}

/// The client sends requests to the host at the other end. Returns its result.
fn ask(client: &Client, library: Library) -> Result<String, String> {
    let bed = ClientBed::new();
    let settings = Settings::new();
    let running = match library {
        Library::System => bed.start(client, library, Engine::Packet),
        Library::DropIn => bed.start_with(client, &settings),
    };
    let ended = running.end(client);
    match library == Library::DropIn && !settings.were_read() {
        true => Err(format!("it did not capture with the drop-in:\n{}", ended.said)),
        false => Ok(bed.report(client, ended)),
    }
}
