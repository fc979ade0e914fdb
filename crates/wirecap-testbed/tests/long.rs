//! `.ci/long`, which runs the lanes of `make long`, with lanes that take a moment, in a repository
//! of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Maximum time for any step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A repository with the program, a list of lanes, and a file `code`, which they cover.
struct Tree {
    root: PathBuf,
}

impl Tree {
    fn new(lanes: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root =
            std::env::temp_dir().join(format!("wirecap-long-{}-{number}", std::process::id()));
        fs::create_dir_all(root.join(".ci")).unwrap();
        let tree = Self { root };
        fs::copy(Path::new(PROJECT).join(".ci/long"), tree.root.join(".ci/long")).unwrap();
        tree.write(".ci/long.toml", lanes);
        tree.write(".gitignore", "target/\n");
        tree.write("code", "1\n");
        tree.git(&["init", "--quiet"]);
        tree.commit();
        tree
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.root.join(file), text).unwrap();
    }

    fn git(&self, arguments: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let status =
            Command::new("git").args(identity).args(arguments).current_dir(&self.root).status();
        assert!(status.expect("git").success(), "git {arguments:?}");
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", "a state"]);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("python3");
        command.arg(self.root.join(".ci/long")).args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs the program to its end. Whether it succeeded, and what it printed.
    fn run(&self, arguments: &[&str]) -> (bool, String) {
        let output = self.command(arguments).output().unwrap();
        (output.status.success(), said(&output))
    }

    /// The verdict and the figure in the results, if there is a row for this lane.
    fn verdict(&self, lane: &str) -> Option<String> {
        let results = fs::read_to_string(self.root.join("lab/results/long.csv")).ok()?;
        let row = results.lines().find_map(|row| row.strip_prefix(&format!("{lane},")))?;
        let mut fields = row.split(',');
        Some(format!("{},{}", fields.next()?, fields.next()?))
    }

    fn wait_for(&self, file: &str) -> String {
        let begun = Instant::now();
        loop {
            match fs::read_to_string(self.root.join(file)) {
                Ok(text) if text.ends_with('\n') => return text,
                _ => assert!(begun.elapsed() < PATIENCE, "no {file}"),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ignored = fs::remove_dir_all(&self.root);
    }
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat()
}

/// A lane that covers `code`.
fn lane(name: &str, command: &str, more: &str) -> String {
    format!(
        "[[lane]]\nname = '{name}'\nholds = '{name} holds'\ncommand = '''{command}'''\ncovers = ['code']\nlimit = '1h'\n{more}\n"
    )
}

/// How often a lane with the command `echo >> target/count` ran.
fn runs(tree: &Tree) -> usize {
    fs::read_to_string(tree.root.join("target/count")).map_or(0, |text| text.lines().count())
}

#[test]
fn each_lane_of_the_list_has_a_command_and_paths_that_exist() {
    let output =
        Command::new("python3").arg(Path::new(PROJECT).join(".ci/long")).arg("--check").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_verdict_is_current_until_what_it_covers_changes() {
    let tree = Tree::new(&lane("counted", "echo >> target/count", ""));
    let (held, text) = tree.run(&[]);
    assert!(held, "{text}");
    assert!(tree.run(&[]).0);
    assert_eq!(runs(&tree), 1, "the lane is current");
    tree.write("other", "1\n");
    tree.commit();
    assert!(tree.run(&[]).0);
    assert_eq!(runs(&tree), 1, "it does not cover the other file");
    tree.write("code", "2\n");
    let (held, text) = tree.run(&[]);
    assert!(!held && text.contains("commit code first"), "{text}");
    assert_eq!(runs(&tree), 1, "no verdict about what is not committed");
    tree.commit();
    assert!(tree.run(&["--list"]).1.contains("held, changed since"));
    assert!(tree.run(&[]).0);
    assert_eq!(runs(&tree), 2, "the file that it covers has changed");
    assert!(tree.run(&["--lane", "counted"]).0);
    assert_eq!(runs(&tree), 3, "a named lane runs again");
    tree.write(".ci/long.toml", &lane("counted", "echo >> target/count # another", ""));
    tree.commit();
    assert!(tree.run(&[]).0);
    assert_eq!(runs(&tree), 4, "the command has changed");
}

#[test]
fn each_end_of_a_command_has_its_verdict() {
    let lanes = [
        lane("good", "echo 7 goals: 7 met", "figure = '^\\d+ goals: (.*)'"),
        lane("bad", "false; true", ""),
        lane("unquiet", "echo 'VOID: the host was busy'", ""),
        lane("unquiet-test", "echo 'WIRECAP_NO_SKIP=1, but void: busy'; exit 1", ""),
        lane("void-goal", "echo '  goal: a rate: 1, at least 2: VOID'; exit 1", ""),
        lane("missed-goal", "echo '  goal: a: VOID'; echo '  goal: b: MISSED'; exit 1", ""),
        lane("slow", "sleep 600", "").replace("1h", "1s"),
        lane("third", "echo >> target/count; [ $(wc -l < target/count) -lt 3 ]", "times = 4"),
        lane("four", "echo >> target/four", "times = 4"),
        lane("changing", "echo 3 > code", ""),
    ];
    let tree = Tree::new(&lanes.concat());
    assert!(!tree.run(&[]).0);
    let expected = [
        ("good", "held,7 met"),
        ("bad", "not held,"),
        ("unquiet", "void,"),
        ("unquiet-test", "void,"),
        ("void-goal", "void,"),
        ("missed-goal", "not held,"),
        ("slow", "not held,did not end within 1s"),
        ("third", "not held,run 3 of 4"),
        ("four", "held,"),
        ("changing", "void,the paths that it covers changed while it ran"),
    ];
    for (name, verdict) in expected {
        assert_eq!(tree.verdict(name).as_deref(), Some(verdict), "{name}");
    }
    assert_eq!(fs::read_to_string(tree.root.join("target/four")).unwrap().len(), 4);
}

#[test]
fn what_did_not_hold_is_not_repeated_and_what_was_void_is() {
    let lanes = [
        lane("bad", "echo >> target/count; false", ""),
        lane("unquiet", "echo >> target/void; echo VOID", ""),
    ];
    let tree = Tree::new(&lanes.concat());
    for _ in 0..2 {
        let (held, text) = tree.run(&[]);
        assert!(!held && text.contains("not held: bad (not held), unquiet (void)"), "{text}");
    }
    assert_eq!(runs(&tree), 1);
    assert_eq!(fs::read_to_string(tree.root.join("target/void")).unwrap().len(), 2);
}

/// Starts the program in the background of a shell, which ignores SIGINT.
fn in_background(tree: &Tree) -> Child {
    let mut command = Command::new("sh");
    let script = "trap '' INT; exec python3 .ci/long";
    command.args(["-c", script]).current_dir(&tree.root).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().unwrap()
}

fn is_running(process: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{}/stat", process.trim())).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

#[test]
fn a_signal_ends_the_processes_of_the_lane_and_the_next_call_continues() {
    // One in the group of the lane and one in a group of its own.
    let waits = "if [ -e target/again ]; then exit; fi
        sleep 600 & echo $! > target/one.new; mv target/one.new target/one
        setsid sh -c \"echo \\$\\$ > target/other.new; mv target/other.new target/other; exec sleep 600\" &
        wait";
    for signal in ["INT", "TERM"] {
        let lanes = [lane("first", "echo >> target/count", ""), lane("waits", waits, "")];
        let tree = Tree::new(&lanes.concat());
        let mut child = in_background(&tree);
        let processes = ["target/one", "target/other"].map(|file| tree.wait_for(file));
        assert!(processes.iter().all(|process| is_running(process)));
        let status = Command::new("/bin/kill")
            .args([&format!("-{signal}"), &child.id().to_string()])
            .status();
        assert!(status.unwrap().success());
        assert!(!child.wait().unwrap().success(), "{signal}");
        assert!(!processes.iter().any(|process| is_running(process)), "{signal}");
        assert_eq!(tree.verdict("first").as_deref(), Some("held,"));
        assert_eq!(tree.verdict("waits").as_deref(), Some("interrupted,"), "{signal}");
        tree.write("target/again", "");
        let (held, text) = tree.run(&[]);
        assert!(held, "{text}");
        assert_eq!((runs(&tree), tree.verdict("waits").as_deref()), (1, Some("held,")));
    }
}

#[test]
fn a_killed_call_leaves_whole_results() {
    let lanes = [
        lane("first", "echo >> target/count", ""),
        lane("waits", "[ -e target/again ] || { echo > target/here; sleep 20; }", ""),
    ];
    let tree = Tree::new(&lanes.concat());
    let mut child = in_background(&tree);
    tree.wait_for("target/here");
    child.kill().unwrap();
    child.wait().unwrap();
    // What a call that is killed while it writes leaves behind.
    tree.write("lab/results/long.csv.new", "lane,verd");
    assert_eq!(tree.verdict("first").as_deref(), Some("held,"));
    assert_eq!(tree.verdict("waits"), None);
    tree.write("target/again", "");
    let (held, text) = tree.run(&[]);
    assert!(held, "{text}");
    assert_eq!((runs(&tree), tree.verdict("waits").as_deref()), (1, Some("held,")));
    assert!(!tree.root.join("lab/results/long.csv.new").exists());
}

#[test]
fn no_lane_begins_after_the_time() {
    let lanes = [lane("first", "sleep 1.5", ""), lane("second", "true", "")];
    let tree = Tree::new(&lanes.concat());
    assert!(!tree.run(&["--for", "1s"]).0);
    assert_eq!(tree.verdict("first").as_deref(), Some("held,"), "a lane that has begun ends");
    assert_eq!(tree.verdict("second"), None);
    assert!(tree.run(&["--for", "1h"]).0);
    assert_eq!(tree.verdict("second").as_deref(), Some("held,"));
}

#[test]
fn a_must_hold_without_a_command_is_listed_as_missing() {
    let missing =
        "[[lane]]\nname = 'moon'\nholds = 'it works there'\nmissing = 'No machine is there.'\n";
    let tree = Tree::new(&[&*lane("good", "true", ""), missing].concat());
    let (held, text) = tree.run(&[]);
    assert!(held && text.contains("1 have no command"), "{text}");
    let (_, text) = tree.run(&["--list"]);
    assert!(
        text.contains("moon") && text.contains("missing") && text.contains("No machine is there."),
        "{text}"
    );
    assert!(
        text.contains("good                   held (") && text.contains("good holds"),
        "{text}"
    );
}

#[test]
fn a_wrong_list_is_an_error() {
    let good = lane("good", "true", "");
    for (lanes, error) in [
        (good.replace("limit", "limits"), "expected the keys"),
        (good.repeat(2), "expected a name of its own"),
        (good.replace("['code']", "['gone']"), "covers what does not exist: gone"),
        (good.replace("1h", "1"), "invalid duration 1"),
        (good.replace("true", "make nothing"), "does not exist: make nothing"),
        (good.replace("true", "cargo test -p a --test b"), "does not exist: a: b"),
    ] {
        let (held, text) = Tree::new(&lanes).run(&["--check"]);
        assert!(!held && text.contains(error), "{error}: {text}");
    }
}
