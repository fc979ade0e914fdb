//! `wirecap-lab paper` and `wirecap-lab report`: no network, no privileges.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

fn lab(command: &str, directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wirecap-lab"))
        .args([command, "--quick", "-o"])
        .arg(directory)
        .args(arguments)
        .output()
        .expect("wirecap-lab can be run")
}

/// All files below a directory, by name.
fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap().display().to_string();
                found.push((name, fs::read(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Experiments that are fast in a debug build; a release build runs all of them.
const QUICK_ONES: &str = "--only=figure-3,figure-14,fusco-deri";

fn chosen() -> &'static [&'static str] {
    if cfg!(debug_assertions) { &[QUICK_ONES] } else { &[] }
}

#[test]
fn the_same_seed_gives_the_same_report_byte_for_byte() {
    let directories = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for directory in &directories {
        let output = lab("paper", directory.path(), chosen());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let [first, second] = directories.map(|directory| files(directory.path()));
    let names = |files: &[(String, Vec<u8>)]| {
        files.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    let of_first = names(&first);
    for name in ["paper.html", "data/figure-3/figure-3.csv"] {
        assert!(of_first.iter().any(|written| written == name), "{of_first:?}");
    }
    assert_eq!(of_first, names(&second));
    let different = first.iter().zip(&second).filter(|(first, second)| first != second);
    let different: Vec<&str> = different.map(|((name, _), _)| name.as_str()).collect();
    assert!(different.is_empty(), "files with other content: {different:?}");
}

#[test]
fn a_program_whose_file_is_gone_still_knows_its_build() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("wirecap");
    fs::copy(env!("CARGO_BIN_EXE_wirecap-lab"), &copy).unwrap();
    let gone =
        r#"exec 9<"$0"; rm "$0"; exec /proc/self/fd/9 paper --quick --only=figure-14 -o "$1""#;
    let replaced = tempfile::tempdir().unwrap();
    let status =
        Command::new("bash").args(["-c", gone]).args([&copy, replaced.path()]).status().unwrap();
    assert!(status.success() && !copy.exists());
    let present = tempfile::tempdir().unwrap();
    assert!(lab("paper", present.path(), &["--only=figure-14"]).status.success());
    let result =
        |directory: &Path| fs::read_to_string(directory.join("results/figure-14.json")).unwrap();
    assert_eq!(result(replaced.path()), result(present.path()));
}

#[test]
fn an_interrupted_report_continues_and_lists_expectations() {
    let directory = tempfile::tempdir().unwrap();
    let only = |names| lab("report", directory.path(), &["--seed", "3", names]);
    assert!(only("--only=figure-14").status.success());
    let output = only("--only=figure-14,fusco-deri");
    let out = String::from_utf8(output.stdout).unwrap();
    let progress = String::from_utf8(output.stderr).unwrap();
    assert!(
        progress.contains("1/2 WireCAP, Figure 14")
            && progress.contains("kept from an earlier run"),
        "{progress}"
    );
    assert!(out.contains("bound   Table 2, high-end, setup C: paper 1,488 kpps"), "{out}");
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(
        page.contains("<svg") && page.contains("kernel") && page.contains("--seed 3"),
        "{page}"
    );
}

#[test]
fn after_ctrl_c_the_same_command_continues() {
    let directory = tempfile::tempdir().unwrap();
    let only = "--only=figure-14,figure-3,table-1";
    let mut running = Command::new(env!("CARGO_BIN_EXE_wirecap-lab"))
        .args(["paper", "--quick", only, "-o"])
        .arg(directory.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut progress = BufReader::new(running.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("done") {
        line.clear();
        assert!(progress.read_line(&mut line).unwrap() > 0, "it ended before anything was done");
    }
    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    line.clear();
    progress.read_to_string(&mut line).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(1), "{line}");
    assert!(line.contains("wirecap-lab: stopped; the same command continues"), "{line}");
    assert!(!directory.path().join("paper.html").exists());

    let output = lab("paper", directory.path(), &[only]);
    let progress = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && progress.contains("kept from an earlier run"), "{progress}");
    assert!(directory.path().join("paper.html").exists());
}

#[test]
fn an_experiment_that_does_not_exist_is_wrong_usage_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let output = lab("paper", &directory.path().join("new"), &["--only", "figure-99"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("figure-99") && error.contains("--list"), "{error}");
    assert!(!directory.path().join("new").exists());
    let list = lab("paper", directory.path(), &["--list"]);
    assert!(
        String::from_utf8(list.stdout).unwrap().contains("figure-9             WireCAP, Figure 9")
    );
}

#[test]
fn a_directory_that_cannot_be_written_is_one_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let output = lab("paper", &file, &["--only=figure-14"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with("wirecap-lab: cannot write") && error.contains("file: File exists"),
        "{error}"
    );
    // An existing directory that cannot be written to is reported before any experiment runs.
    let output = lab("paper", Path::new("/proc"), &["--only=figure-14"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("wirecap-lab: cannot write /proc: "), "{error}");
}

#[test]
fn the_lab_continues_when_its_output_pipe_closes() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = Command::new(env!("CARGO_BIN_EXE_wirecap-lab"))
        .args(["paper", "--quick", "--only=figure-14,fusco-deri", "-o"])
        .arg(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop((running.stdout.take(), running.stderr.take()));
    assert_eq!(running.wait().unwrap().code(), Some(0));
    assert!(directory.path().join("paper.html").exists());
}

#[test]
fn a_list_that_cannot_be_written_is_a_failure() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let list = Command::new(env!("CARGO_BIN_EXE_wirecap-lab"))
        .args(["paper", "--list"])
        .stdout(full)
        .output()
        .unwrap();
    let error = String::from_utf8(list.stderr).unwrap();
    assert!(
        list.status.code() == Some(1)
            && error.contains("cannot write to standard output: No space"),
        "{error}"
    );
}
