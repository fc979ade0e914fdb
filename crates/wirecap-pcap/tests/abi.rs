//! The drop-in exports libpcap's symbols, and its functions behave like libpcap's.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use common::{Bed, Library, built, compile, drop_in, said, system_library};
use wirecap_testbed::privileged;

/// The symbols that a library exports, with the size of those that are not functions.
fn exports(library: &Path) -> BTreeMap<String, Option<u64>> {
    let output =
        Command::new("nm").args(["-D", "-S", "--defined-only"]).arg(library).output().unwrap();
    let text = said(&output);
    let export = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match *words {
            [_, size, "T" | "W", name] => Some((name.to_owned(), (size.is_empty()).then_some(0))),
            [_, size, _, name] => {
                Some((name.to_owned(), Some(u64::from_str_radix(size, 16).unwrap())))
            }
            _ => None,
        }
    };
    text.lines().filter_map(export).collect()
}

#[test]
fn all_symbols_of_the_systems_library_are_exported() {
    let theirs = exports(&system_library());
    let mut ours = exports(&built());
    assert!(theirs.len() > 90, "{theirs:?}");
    assert_eq!(ours.remove("wirecap_pcap_drop_in"), Some(Some(1)));
    assert_eq!(ours, theirs);
}

#[test]
fn programs_linked_with_libpcap_load_the_drop_in_which_finds_the_real_library() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("names.c", folder.path(), &[]);
    let bed_less = |variable: &str, value: &Path| {
        said(
            &Command::new(&program)
                .env_remove("LD_LIBRARY_PATH")
                .env(variable, value)
                .output()
                .unwrap(),
        )
    };
    let system = bed_less("UNUSED", Path::new(""));
    assert!(system.contains("loaded: real\n") && !system.contains("drop-in"), "{system}");
    let expected = format!("{system}loaded: drop-in\n");
    let found = bed_less("LD_LIBRARY_PATH", drop_in());
    assert_eq!(found, expected);
    assert_eq!(bed_less("LD_PRELOAD", &drop_in().join("libpcap.so.0.8")), expected);
    let mut told = Command::new(&program);
    told.env("LD_LIBRARY_PATH", drop_in()).env("WIRECAP_REAL_LIBPCAP", system_library());
    assert_eq!(said(&told.output().unwrap()), expected);
}

#[test]
fn without_the_real_library_there_is_a_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("names.c", folder.path(), &[]);
    let mut command = Command::new(&program);
    // A drop-in that is set as its own real library behaves as if there was none.
    command
        .env("LD_LIBRARY_PATH", drop_in())
        .env("WIRECAP_REAL_LIBPCAP", drop_in().join("libpcap.so.1"));
    let text = said(&command.output().unwrap());
    assert!(
        text.contains("wirecap: the system's libpcap was not found; install it, or name it"),
        "{text}"
    );
    assert!(text.contains("it is wirecap's own"), "{text}");
    assert!(text.contains("open: wirecap: the system's libpcap was not found"), "{text}");
}

/// The output of walk.c with a library, on a separate bed.
fn walk(program: &Path, library: Library) -> String {
    let bed = Bed::new();
    bed.ip("link add down0 type veth peer name down1");
    let folder = tempfile::tempdir().unwrap();
    let mut command = bed.command(program, library);
    said(&bed.run(command.args(["a1", "a0"]).arg(folder.path())))
}

#[test]
fn the_functions_of_the_api_behave_the_same_with_both_libraries() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("walk.c", folder.path(), &[]);
    let theirs = walk(&program, Library::System);
    let ours = walk(&program, Library::DropIn);
    assert!(theirs.ends_with("gone: -1 The interface disappeared\n"), "{theirs}");
    let differs = theirs.lines().zip(ours.lines()).position(|(theirs, ours)| theirs != ours);
    if let Some(line) = differs {
        let context = |text: &str| {
            let from = line.saturating_sub(12);
            text.lines().skip(from).take(16).map(|line| format!("  {line}\n")).collect::<String>()
        };
        panic!("line {line} differs; libpcap:\n{}ours:\n{}", context(&theirs), context(&ours));
    }
    assert_eq!(theirs.lines().count(), ours.lines().count(), "{ours}");
}
