//! Creation of files by a sink.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use tempfile::TempDir;
use wirecap_savefile::{FileSink, Sink};

fn folder() -> TempDir {
    tempfile::tempdir().expect("there is a temporary folder")
}

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn a_created_file_is_accessible_only_to_its_owner() {
    let folder = folder();
    let path = folder.path().join("file");
    drop(FileSink::create(&path).expect("it can be created"));
    assert_eq!(mode(&path), 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("it is ours");
    drop(FileSink::replace(&path).expect("it can be replaced"));
    assert_eq!(mode(&path), 0o600, "also one that was there");
}

#[test]
fn a_file_that_exists_is_emptied_only_on_request() {
    let folder = folder();
    let path = folder.path().join("file");
    fs::write(&path, "kept").expect("the folder can be written to");
    let error = FileSink::create(&path).expect_err("it exists");
    assert_eq!(
        (error.kind(), &*fs::read(&path).unwrap()),
        (ErrorKind::AlreadyExists, &b"kept"[..])
    );
    let mut sink = FileSink::replace(&path).expect("it may be replaced");
    assert_eq!(sink.append(b"new").expect("there is room"), 3);
    drop(sink);
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn a_descriptor_of_the_process_is_written_to_and_keeps_its_mode() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("redirected");
    let opened = fs::File::create(&path).expect("the folder can be written to");
    opened.set_permissions(fs::Permissions::from_mode(0o644)).expect("it is ours");
    let mut sink =
        FileSink::create(format!("/dev/fd/{}", opened.as_raw_fd())).expect("it is open already");
    sink.append(b"packets").expect("there is room");
    drop(sink);
    assert_eq!(fs::read(&path).expect("it is there"), b"packets");
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o644);
}

#[test]
fn a_symbolic_link_to_a_file_is_not_followed() {
    let folder = folder();
    let target = folder.path().join("target");
    let link = folder.path().join("link");
    let dangling = folder.path().join("dangling");
    fs::write(&target, "kept").expect("the folder can be written to");
    symlink(&target, &link).expect("the folder can be written to");
    symlink(folder.path().join("nonesuch"), &dangling).expect("the folder can be written to");
    for create in [FileSink::create, FileSink::replace] as [fn(_) -> _; 2] {
        create(&link).expect_err("it is a link");
        create(&dangling).expect_err("it is a link");
    }
    assert_eq!(fs::read(&target).unwrap(), b"kept");
    assert!(!folder.path().join("nonesuch").exists());
}

#[test]
fn a_file_with_other_hard_links_is_not_emptied() {
    let folder = folder();
    let target = folder.path().join("target");
    let link = folder.path().join("link");
    fs::write(&target, "kept").expect("the folder can be written to");
    fs::hard_link(&target, &link).expect("the folder can be written to");
    for create in [FileSink::create, FileSink::replace] as [fn(_) -> _; 2] {
        create(&link).expect_err("it is a hard link");
    }
    assert_eq!(fs::read(&target).unwrap(), b"kept");
}

#[test]
fn files_of_other_users_in_a_shared_directory_are_not_written_to() {
    if !geteuid().is_root() {
        crate::skip::skip("without root there is no other user");
        return;
    }
    const UNPRIVILEGED: u32 = 65_534;
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    let [file, pipe, link] = ["file", "pipe", "link"].map(|name| folder.path().join(name));
    fs::write(&file, "kept").expect("the folder can be written to");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("coreutils are there").success());
    symlink("/dev/null", &link).expect("the folder can be written to");
    for path in [&file, &pipe] {
        chown(path, Some(UNPRIVILEGED), None).expect("this is root");
    }
    lchown(&link, Some(UNPRIVILEGED), None).expect("this is root");
    for path in [&file, &pipe, &link] {
        // Opening the pipe would wait for a reader forever.
        let error = FileSink::replace(path).expect_err("another user's");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{}: {error}", path.display());
    }
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    // In a directory that only the user may write to, the same entries are accepted.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    for path in [&file, &link] {
        FileSink::replace(path).expect("not planted");
    }
}

#[test]
fn create_new_fails_if_the_path_exists() {
    let folder = folder();
    let [file, pipe, link] = ["file", "pipe", "link"].map(|name| folder.path().join(name));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("coreutils are there").success());
    symlink(folder.path().join("nonesuch"), &link).expect("the folder can be written to");
    let first = FileSink::create_new(&file).expect("nothing is there");
    assert_eq!(mode(&file), 0o600);
    for path in [&file, &pipe, &link] {
        let error = FileSink::create_new(path).expect_err("something is there");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{}", path.display());
    }
    drop(first);
}

#[test]
fn two_sinks_do_not_share_a_file() {
    let folder = folder();
    let path = folder.path().join("file");
    let mut first = FileSink::create(&path).expect("it can be created");
    first.append(b"first").expect("there is room");
    let error = FileSink::replace(&path).expect_err("it is being written");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert_eq!(fs::read(&path).unwrap(), b"first");
    drop(first);
    // A process that another test starts at this moment inherits the file and its lock until it
    // calls exec.
    let deadline = Instant::now() + Duration::from_secs(10);
    let is_locked =
        |error: &io::Error| error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline;
    while let Err(error) = FileSink::replace(&path) {
        assert!(is_locked(&error), "it is written no longer: {error}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn pipes_and_devices_are_opened_also_through_a_link() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    let link = folder.path().join("link");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("coreutils are there").success());
    symlink(&pipe, &link).expect("the folder can be written to");
    for path in [&pipe, &link] {
        let reading = pipe.clone();
        let reader = thread::spawn(move || {
            let mut text = String::new();
            File::open(reading).unwrap().read_to_string(&mut text).unwrap();
            text
        });
        let mut sink = FileSink::create(path).expect("a pipe exists before");
        sink.append(b"packets").expect("it is read");
        drop(sink);
        assert_eq!(reader.join().unwrap(), "packets");
    }
    FileSink::create("/dev/null").expect("a device exists before");
}
