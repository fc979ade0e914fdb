//! The other commands that open an interface, and tcpdump on the drop-in, on some of the hosts.

use std::env;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::client::{Client, Server, reaches};
use crate::command::Running;
use crate::host::{Built, Host, Use, container};
use crate::observe::{EXCHANGES, Mark, SETTLING, started, wirecap};

/// The interface is `IF`, a file that does not exist yet `FILE`.
const COMMANDS: [&str; 6] = [
    "count -i IF --no-control",
    "show -i IF -nn",
    "profile -i IF",
    "handle -i IF -x 1 --no-control",
    "extcap --capture --extcap-interface IF --fifo FILE --engine auto",
    "forward IF spare --one-way --mirror FILE --no-control",
];

/// Runs the commands on the host one after the other while its client asks it, and returns what was
/// wrong.
pub(crate) fn run_all(build: fn() -> Built, mark: Mark) -> Vec<String> {
    let host = build().unwrap_or_else(|lacking| panic!("{lacking:?}"));
    if mark == Mark::Present && host.usage == Use::Hidden {
        return Vec::new();
    }
    let _spare = container(&host.namespace, "spare");
    let _server = Server::start(&host.server, host.address);
    assert!(
        reaches(&host.client, host.address, SETTLING),
        "the host cannot be reached before the commands"
    );
    let client = started(&host);
    let mut failures = Vec::new();
    for line in COMMANDS {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("file").display().to_string();
        let mut command = wirecap(&host, &folder, mark);
        let words =
            line.split(' ').map(|word| word.replace("IF", host.interface).replace("FILE", &file));
        command.args(words);
        let running = Running::start(&host.namespace, &mut command);
        let words = if line.starts_with("forward") { "forwarding" } else { "capturing" };
        failures.extend(wrong(line, running, words, &client));
    }
    for device in [host.interface, "any"] {
        let folder = TempDir::new().unwrap();
        let mut command = on_drop_in(&host, &folder, mark);
        command.args(["-i", device, "-U", "-Z", "root", "-w"]).arg(folder.path().join("file"));
        let running = Running::start(&host.namespace, &mut command);
        failures.extend(wrong(
            &format!("tcpdump -i {device} on the drop-in"),
            running,
            "listening on",
            &client,
        ));
    }
    failures.extend(client.finish());
    failures
}

/// Lets the client ask while the command runs, and ends it.
fn wrong(line: &str, mut running: Running, words: &str, client: &Client) -> Option<String> {
    let has_begun = running.wait_for(words);
    client.wait_for(EXCHANGES);
    let has_given_up = client.has_given_up();
    let finished = running.interrupt();
    if !has_begun || finished.stderr.contains("xdp engine") {
        return Some(format!("{line} has not begun, or selected xdp: {finished:?}"));
    }
    // Only the first command that cuts the host off is named.
    has_given_up.then(|| format!("the client was not answered during {line}, or before"))
}

/// tcpdump on the drop-in.
fn on_drop_in(host: &Host, folder: &TempDir, mark: Mark) -> Command {
    let library = env::current_exe().unwrap().with_file_name("libwirecap_pcap.so");
    assert!(library.exists(), "{} is not there", library.display());
    for name in ["libpcap.so.0.8", "libpcap.so.1"] {
        symlink(&library, folder.path().join(name)).unwrap();
    }
    let marks = wirecap(host, folder, mark);
    let mut command = Command::new("tcpdump");
    command.envs(marks.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("LD_LIBRARY_PATH", folder.path() as &Path).env("WIRECAP_ENGINE", "auto");
    command
}
