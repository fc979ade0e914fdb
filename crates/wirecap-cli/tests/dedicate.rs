//! `wirecap dedicate` and `wirecap release` on interfaces created for the test.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Finished, wirecap_unprivileged};
use wirecap_testbed::{Namespace, VethPair, privileged};

/// A port of a host, and a directory for its mark.
struct Host {
    namespace: Namespace,
    _peer: Namespace,
    pair: VethPair,
    marks: tempfile::TempDir,
}

/// What `dedicate` changes.
#[derive(Debug, PartialEq, Eq, Clone)]
struct Settings {
    without_ipv6: String,
    gro: String,
    is_up: bool,
}

impl Host {
    fn new() -> Self {
        let namespace = Namespace::new().unwrap();
        let peer = Namespace::new().unwrap();
        let pair = VethPair::new((&peer, "a0"), (&namespace, "span1"), 1, 1500).unwrap();
        Self { namespace, _peer: peer, pair, marks: tempfile::tempdir().unwrap() }
    }

    /// As after the network's configuration: with GRO and IPv6, and down.
    fn plain() -> Self {
        let host = Self::new();
        host.run("ethtool", &["-K", "span1", "gro", "on"]);
        host.run("ip", &["link", "set", "span1", "down"]);
        host.run("sysctl", &["-q", "-w", "net.ipv6.conf.span1.disable_ipv6=0"]);
        assert_eq!(host.settings(), before());
        host
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.namespace.run_in(|| Command::new(program).args(arguments).output());
        let output = output.unwrap().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn wirecap(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wirecap"));
        command
            .args(arguments)
            .stdin(Stdio::null())
            .env("WIRECAP_DEDICATED_DIR", self.marks.path());
        self.namespace.run_in(|| command.output()).unwrap().unwrap().into()
    }

    fn settings(&self) -> Settings {
        let features = self.run("ethtool", &["-k", "span1"]);
        let gro = features
            .lines()
            .find_map(|line| line.strip_prefix("generic-receive-offload: "))
            .unwrap();
        Settings {
            without_ipv6: self
                .run("sysctl", &["-n", "net.ipv6.conf.span1.disable_ipv6"])
                .trim()
                .to_owned(),
            gro: gro.to_owned(),
            is_up: self.run("ip", &["-br", "link", "show", "span1"]).contains(",UP"),
        }
    }

    fn mark(&self) -> PathBuf {
        self.marks.path().join("span1")
    }

    /// The engine that auto selects, with the reason.
    fn choice(&self) -> (String, String) {
        let devices = self.wirecap(&["devices", "--json"]).json();
        let port =
            devices.as_array().unwrap().iter().find(|device| device["name"] == "span1").unwrap();
        (port["engine"].as_str().unwrap().to_owned(), port["why"].as_str().unwrap().to_owned())
    }
}

fn before() -> Settings {
    Settings { without_ipv6: "0".to_owned(), gro: "on".to_owned(), is_up: false }
}

fn of_a_port() -> Settings {
    Settings { without_ipv6: "1".to_owned(), gro: "off".to_owned(), is_up: true }
}

#[test]
fn a_dedicated_port_gets_xdp_and_is_left_as_found_when_it_is_released() {
    if !privileged() {
        return;
    }
    let host = Host::plain();
    assert_eq!(
        host.choice(),
        ("packet".to_owned(), "not dedicated: wirecap dedicate span1".to_owned())
    );

    let dedicated = host.wirecap(&["dedicate", "span1"]);
    assert_eq!((dedicated.status, dedicated.stderr.as_str()), (Some(0), ""), "{dedicated:#?}");
    for change in
        ["disable_ipv6=1 (was 0)", "gro off (was on)", "span1 up (was down)", "auto selects xdp"]
    {
        assert!(dedicated.stdout.contains(change), "{change}: {dedicated:#?}");
    }
    assert_eq!(host.settings(), of_a_port());
    assert_eq!(host.choice().0, "xdp");
    let mac = host.pair.receiver.mac.map(|byte| format!("{byte:02x}")).join(":");
    assert!(fs::read_to_string(host.mark()).unwrap().lines().any(|line| line == mac));

    // Again: nothing is left to do, and the journal still has the first values.
    let again = host.wirecap(&["dedicate", "span1"]);
    assert!(again.status == Some(0) && !again.stdout.contains("was"), "{again:#?}");

    let released = host.wirecap(&["release", "span1"]);
    assert_eq!((released.status, released.stderr.as_str()), (Some(0), ""), "{released:#?}");
    assert_eq!(host.settings(), before(), "the settings after a release");
    assert_eq!(host.choice().0, "packet");
    assert!(!host.mark().exists());
    host.wirecap(&["release", "span1"]).refused(1, &["span1 is not dedicated"]);
}

#[test]
fn after_a_reboot_the_settings_are_made_again_and_a_release_undoes_them() {
    if !privileged() {
        return;
    }
    let host = Host::plain();
    host.wirecap(&["dedicate", "span1"]);
    // A reboot: the kernel has forgotten the settings, and /run is empty. What an administrator has
    // configured is there again.
    host.run("ip", &["link", "set", "span1", "down"]);
    host.run("sysctl", &["-q", "-w", "net.ipv6.conf.span1.disable_ipv6=0"]);
    fs::remove_dir_all(host.marks.path().join("settings-before-dedicate")).unwrap();

    // The mark of an interface that is not there yet is left alone.
    fs::copy(host.mark(), host.marks.path().join("span9")).unwrap();
    let restored = host.wirecap(&["dedicate", "--restore"]);
    assert_eq!((restored.status, restored.stderr.as_str()), (Some(0), ""), "{restored:#?}");
    assert_eq!(host.settings(), of_a_port(), "the settings after a reboot");
    assert_eq!(host.choice().0, "xdp");

    assert_eq!(host.wirecap(&["release", "span1"]).status, Some(0));
    // GRO was off at the boot already.
    assert_eq!(host.settings(), Settings { gro: "off".to_owned(), ..before() });
    assert!(host.marks.path().join("span9").exists());
}

#[test]
fn a_dedicate_that_was_killed_can_be_undone() {
    if !privileged() {
        return;
    }
    let host = Host::plain();
    host.wirecap(&["dedicate", "span1"]);
    // Killed before it wrote the mark, which is the last step, and one change was announced and not
    // made.
    fs::remove_file(host.mark()).unwrap();
    host.run("ip", &["link", "set", "span1", "down"]);
    assert_eq!(host.choice().0, "packet");
    let released = host.wirecap(&["release", "span1"]);
    assert_eq!((released.status, released.stderr.as_str()), (Some(0), ""), "{released:#?}");
    assert_eq!(host.settings(), before());
}

#[test]
fn a_setting_that_was_changed_since_is_left_as_it_is() {
    if !privileged() {
        return;
    }
    let host = Host::plain();
    host.wirecap(&["dedicate", "span1"]);
    host.run("sysctl", &["-q", "-w", "net.ipv6.conf.span1.disable_ipv6=0"]);
    host.run("sysctl", &["-q", "-w", "net.ipv6.conf.span1.disable_ipv6=1"]);
    host.run("ethtool", &["-K", "span1", "gro", "on"]);
    let released = host.wirecap(&["release", "span1"]);
    assert_eq!(released.status, Some(0), "{released:#?}");
    assert!(!released.stdout.contains("gro"), "{released:#?}");
    assert_eq!(host.settings(), before());
}

#[test]
fn a_setting_that_cannot_be_recorded_is_not_made() {
    if !privileged() {
        return;
    }
    let host = Host::plain();
    fs::write(host.marks.path().join("settings-before-dedicate"), "no directory").unwrap();
    host.wirecap(&["dedicate", "span1"]).refused(1, &["settings-before-dedicate"]);
    assert_eq!(host.settings(), before());
    assert!(!host.mark().exists());
}

#[test]
fn what_cannot_be_dedicated_is_refused_and_nothing_is_changed() {
    if !privileged() {
        return;
    }
    let host = Host::plain();
    host.wirecap(&["dedicate", "lo"]).refused(1, &["lo cannot be dedicated", "loopback"]);
    host.wirecap(&["dedicate", "span1", "none0"]).refused(1, &["no interface none0", "span1"]);
    host.wirecap(&["release", "../span1"]).refused(1, &["is not dedicated"]);
    host.wirecap(&["dedicate"]).refused(2, &["dedicate needs IF"]);
    wirecap_unprivileged(&host.namespace, &["devices"]);

    let uses: [(&str, &[&str], &[&str], &str); 3] = [
        (
            "ip",
            &["addr", "add", "192.0.2.1/24", "dev", "span1"],
            &["addr", "flush", "dev", "span1"],
            "192.0.2.1/24",
        ),
        ("ip", &["link", "add", "br0", "type", "bridge"], &["link", "del", "br0"], "bridge br0"),
        ("nft", &["add table netdev t"], &["delete table netdev t"], "netfilter hook"),
    ];
    for (program, begin, end, reason) in uses {
        host.run(program, begin);
        match program {
            "nft" => {
                let chain =
                    "add chain netdev t c { type filter hook ingress device span1 priority 0; }";
                host.run("nft", &[chain]);
            }
            _ if reason.contains("bridge") => {
                _ = host.run("ip", &["link", "set", "span1", "master", "br0"]);
            }
            _ => {}
        }
        host.wirecap(&["dedicate", "span1"]).refused(1, &["span1 is in use", reason, "--force"]);
        assert!(!host.mark().exists());
        host.run(program, end);
        assert_eq!(host.settings(), before(), "{reason}");
    }
}

#[test]
fn a_use_that_remains_overrules_a_forced_mark() {
    if !privileged() {
        return;
    }
    let host = Host::plain();
    host.run("ip", &["addr", "add", "192.0.2.1/24", "dev", "span1"]);
    let forced = host.wirecap(&["dedicate", "--force", "span1"]);
    assert_eq!(forced.status, Some(0), "{forced:#?}");
    assert!(forced.stdout.contains("auto selects packet: it is dedicated, but"), "{forced:#?}");
    assert_eq!(host.choice().0, "packet");
    host.run("ip", &["addr", "flush", "dev", "span1"]);
    assert_eq!(host.choice().0, "xdp");
}

#[test]
fn a_mark_that_others_could_have_written_is_shown_and_does_not_count() {
    if !privileged() {
        return;
    }
    let host = Host::plain();
    host.wirecap(&["dedicate", "span1"]);
    set_mode(&host.mark(), 0o666);
    let (engine, why) = host.choice();
    assert_eq!(engine, "packet");
    assert!(why.contains("other users can write to"), "{why}");
    set_mode(&host.mark(), 0o644);
    host.run("ip", &["link", "set", "span1", "address", "02:00:00:00:00:55"]);
    let (engine, why) = host.choice();
    assert_eq!(engine, "packet");
    assert!(why.contains("its mark is of another device"), "{why}");
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_banner_of_a_port_that_is_not_dedicated_prints_the_command() {
    if !privileged() {
        return;
    }
    let host = Host::plain();
    host.run("ip", &["link", "set", "span1", "up"]);
    let count = ["count", "-i", "span1", "--duration", "100ms", "-R", "16"];
    let counted = host.wirecap(&count);
    assert!(counted.stderr.contains("packet engine"), "{counted:#?}");
    assert!(counted.stderr.contains(": not dedicated: wirecap dedicate span1"), "{counted:#?}");
    host.wirecap(&["dedicate", "span1"]);
    let counted = host.wirecap(&count);
    assert!(counted.stderr.contains("xdp engine"), "{counted:#?}");
}
