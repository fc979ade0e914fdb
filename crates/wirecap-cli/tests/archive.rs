//! `wirecap archive` executes a separate program.

use std::process::Command;

use wirecap_testbed::write_program;

const WIRECAP: &str = env!("CARGO_BIN_EXE_wirecap");

#[test]
fn archive_runs_the_program_with_its_arguments_and_status() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("wirecap-archive");
    write_program(&program, "#!/bin/sh\nfor word; do echo \"<$word>\"; done\nexit 7\n");
    let run = Command::new(WIRECAP)
        .args(["archive", "sql", "-a", "/data", "SELECT 1", "--help"])
        .env("PATH", folder.path())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&run.stdout),
        "<sql>\n<-a>\n</data>\n<SELECT 1>\n<--help>\n"
    );
    assert_eq!(run.status.code(), Some(7));
}

#[test]
fn without_the_program_the_error_says_how_to_install_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = Command::new(WIRECAP)
        .args(["archive", "--help"])
        .env("PATH", folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1));
    assert!(
        said.contains("wirecap-archive is not installed") && said.contains("make archive"),
        "{said}"
    );
}
