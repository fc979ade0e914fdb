//! Programs that know nothing of wirecap, as the distribution has them, on the drop-in: what they say is what
//! they say on the system's libpcap. `make clients` installs and runs them: all with the engine `packet` while
//! hosts talk, and those that only listen with `xdp` too, which leaves the host nothing to answer, while what was said is
//! sent once more.
//!
//! `--needs` prints what must be installed; names of clients run these only.

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

use bed::{ClientBed, Engine, Running};
use common::Library;
use table::{CLIENTS, Client, Way};
use wirecap_testbed::privileged;

/// How long after its sockets are there a client may take to set its filter.
const SETTLING: Duration = Duration::from_millis(500);
/// How long after the last packet a client may take to have read it: libpcap's timeout is a second in some.
const LINGERING: Duration = Duration::from_millis(1800);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--needs") {
        CLIENTS.iter().for_each(|client| println!("{}", client.needs));
        return ExitCode::SUCCESS;
    }
    if !privileged() {
        return ExitCode::SUCCESS;
    }
    let names: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |client: &&Client| names.is_empty() || names.iter().any(|name| *name == client.name);
    let (mut failures, mut absent, mut count) = (Vec::new(), Vec::new(), 0);
    for client in CLIENTS.iter().filter(wanted) {
        let lacking = bed::lacking(client);
        if !lacking.is_empty() {
            println!("ABSENT  {}: {} is not installed", client.name, lacking.join(" "));
            absent.push(client.name);
            continue;
        }
        for engine in client.engines() {
            count += 1;
            // Whatever happens to one, the others have their turn.
            let outcome = std::panic::catch_unwind(|| run(client, engine));
            match outcome.unwrap_or_else(|_| Err("the test failed".to_owned())) {
                Ok(()) => println!("ok      {} on {engine:?}", client.name),
                Err(reason) => {
                    println!("FAILED  {} on {engine:?}\n{reason}", client.name);
                    failures.push(client.name);
                }
            }
        }
    }
    println!("{} of {count} runs did the same on both libraries", count - failures.len());
    let may_lack = std::env::var_os("WIRECAP_NO_SKIP").is_none_or(|value| value != "1");
    if !absent.is_empty() {
        println!("SKIP: not installed: {}", absent.join(" "));
    }
    let all_there = absent.is_empty() || may_lack;
    if failures.is_empty() && count > 0 && all_there { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(client: &Client, engine: Engine) -> Result<(), String> {
    if let Some(script) = client.prepare {
        bed::prepare(script)?;
    }
    let (theirs, ours) = match client.way {
        Way::Listens | Way::ListensAlone(_) if engine == Engine::Xdp => listen_to_recorded(client)?,
        Way::Listens => listen(client)?,
        Way::ListensAlone(script) => listen_and_read(client, script)?,
        Way::Asks => (ask(client, Library::System)?, ask(client, Library::DropIn)?),
    };
    let (theirs, ours) = ((client.normal)(&theirs), (client.normal)(&ours));
    for expected in client.expects {
        if !theirs.contains(expected) {
            return Err(format!("libpcap's does not say '{expected}':\n{theirs}"));
        }
    }
    let compared = |text: &str| match text.trim_end().rsplit_once('\n') {
        Some((lines, _)) if client.ends_with_statistics && engine == Engine::Xdp => lines.to_owned(),
        _ => text.to_owned(),
    };
    if compared(&theirs) != compared(&ours) {
        return Err(format!("--- on libpcap\n{theirs}\n--- on the drop-in\n{ours}"));
    }
    Ok(())
}

/// Two of the client listen to the same conversation, each on its library.
fn listen(client: &Client) -> Result<(String, String), String> {
    let bed = ClientBed::new();
    let start = |library, handles| -> Result<Running, String> {
        let running = bed.start(client, library, Engine::Packet);
        let is_ours = library == Library::DropIn && client.captures;
        bed.wait_for_handles(handles, is_ours).map(|()| running)
    };
    let theirs = start(Library::System, client.handles)?;
    let ours = start(Library::DropIn, client.handles * 2)?;
    std::thread::sleep(SETTLING);
    bed.converse();
    std::thread::sleep(LINGERING);
    let (theirs, ours) = (theirs.end(client), ours.end(client));
    Ok((bed.report(client, theirs), bed.report(client, ours)))
}

/// The client listens on the drop-in, and reads what tcpdump recorded meanwhile.
fn listen_and_read(client: &Client, script: &'static str) -> Result<(String, String), String> {
    let bed = ClientBed::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    let recorder = bed.record(&file);
    bed.wait_for_handles(1, false)?;
    let ours = bed.start(client, Library::DropIn, Engine::Packet);
    bed.wait_for_handles(1 + client.handles, true)?;
    std::thread::sleep(SETTLING);
    bed.converse();
    std::thread::sleep(LINGERING);
    let ours = ours.end(client);
    recorder.end(&table::RECORDER);
    let theirs = bed.read(script, &file).end(&Client { end: table::End::Itself, ..*client });
    Ok((bed.report(client, theirs), bed.report(client, ours)))
}

/// A conversation, recorded once.
fn recorded() -> Result<&'static Path, String> {
    static RECORDED: OnceLock<Result<(TempDir, PathBuf), String>> = OnceLock::new();
    let record = || {
        let bed = ClientBed::new();
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = folder.path().join("file");
        let recorder = bed.record(&file);
        bed.wait_for_handles(1, false)?;
        std::thread::sleep(SETTLING);
        bed.converse();
        std::thread::sleep(LINGERING);
        recorder.end(&table::RECORDER);
        Ok((folder, file))
    };
    RECORDED.get_or_init(record).as_ref().map(|(_, file)| &**file).map_err(Clone::clone)
}

/// The client listens to a recorded conversation that comes from the cable, on libpcap at one place and with the
/// engine `xdp` at another.
fn listen_to_recorded(client: &Client) -> Result<(String, String), String> {
    let file = recorded()?;
    let hear = |library| -> Result<String, String> {
        let bed = ClientBed::aside();
        let running = bed.start(client, library, Engine::Xdp);
        match library {
            Library::System => bed.wait_for_handles(client.handles, false)?,
            Library::DropIn => bed.wait_for_taking_handles(client.handles)?,
        }
        std::thread::sleep(SETTLING);
        bed.replay(file);
        std::thread::sleep(LINGERING);
        Ok(bed.report(client, running.end(client)))
    };
    std::thread::scope(|scope| {
        let theirs = scope.spawn(|| match client.way {
            Way::ListensAlone(script) => {
                let bed = ClientBed::aside();
                let said = bed.read(script, file).end(&Client { end: table::End::Itself, ..*client });
                Ok(bed.report(client, said))
            }
            Way::Listens | Way::Asks => hear(Library::System),
        });
        let ours = hear(Library::DropIn);
        let theirs = theirs.join().unwrap_or_else(|_| Err("the test failed".to_owned()));
        Ok((theirs?, ours?))
    })
}

/// The client asks the host at the other end, and says what it found.
fn ask(client: &Client, library: Library) -> Result<String, String> {
    let bed = ClientBed::new();
    let running = bed.start(client, library, Engine::Packet);
    if library == Library::DropIn {
        bed.wait_for_handles(client.handles, client.captures)?;
    }
    let said = running.end(client);
    Ok(bed.report(client, said))
}
