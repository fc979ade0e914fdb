//! Programs that know nothing of wirecap, as the distribution has them, on the drop-in: what they say is what
//! they say on the system's libpcap. `make clients` installs and runs them.
//!
//! `--needs` prints what must be installed; names of clients run these only.

#[path = "../common/mod.rs"]
mod common;

mod bed;
mod conversation;
mod normal;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use bed::{ClientBed, Running};
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
    let mut failures = Vec::new();
    let mut count = 0;
    for client in CLIENTS.iter().filter(wanted) {
        count += 1;
        // Whatever happens to one, the others have their turn.
        match std::panic::catch_unwind(|| run(client)).unwrap_or_else(|_| Err("the test failed".to_owned())) {
            Ok(()) => println!("ok      {}", client.name),
            Err(reason) => {
                println!("FAILED  {}\n{reason}", client.name);
                failures.push(client.name);
            }
        }
    }
    println!("{} of {count} clients did the same on both libraries", count - failures.len());
    if failures.is_empty() && count > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(client: &Client) -> Result<(), String> {
    if let Some(script) = client.prepare {
        bed::prepare(script)?;
    }
    let (theirs, ours) = match client.way {
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
    if theirs != ours {
        return Err(format!("--- on libpcap\n{theirs}\n--- on the drop-in\n{ours}"));
    }
    Ok(())
}

/// Two of the client listen to the same conversation, each on its library.
fn listen(client: &Client) -> Result<(String, String), String> {
    let bed = ClientBed::new();
    let start = |library, handles| -> Result<Running, String> {
        let running = bed.start(client, library);
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
    let ours = bed.start(client, Library::DropIn);
    bed.wait_for_handles(1 + client.handles, true)?;
    std::thread::sleep(SETTLING);
    bed.converse();
    std::thread::sleep(LINGERING);
    let ours = ours.end(client);
    bed::stop(recorder);
    let theirs = bed.read(script, &file).end(&Client { end: table::End::Itself, ..*client });
    Ok((bed.report(client, theirs), bed.report(client, ours)))
}

/// The client asks the host at the other end, and says what it found.
fn ask(client: &Client, library: Library) -> Result<String, String> {
    let bed = ClientBed::new();
    let running = bed.start(client, library);
    if library == Library::DropIn {
        bed.wait_for_handles(client.handles, client.captures)?;
    }
    let said = running.end(client);
    Ok(bed.report(client, said))
}
