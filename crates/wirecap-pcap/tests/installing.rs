//! Where `make install-pcap` puts the drop-in, and when it refuses.

mod common;

use std::path::Path;
use std::process::{Command, Output};

use common::{built, said, system_library};
use wirecap_testbed::write_program;

/// Runs a target of the Makefile for this library, into the folder `root`.
fn make(target: &str, root: &Path, variables: &[&str]) -> Output {
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .args(["-s", target, "SUDO="]);
    make.arg(format!("PCAP_LIBRARY={}", built().display()))
        .arg(format!("DESTDIR={}", root.display()));
    make.args(variables).output().expect("make is installed")
}

/// Files and links below `root`, in order.
fn files(root: &Path) -> String {
    let found =
        Command::new("find").args([".", "-not", "-type", "d"]).current_dir(root).output().unwrap();
    let text = said(&found);
    let mut files: Vec<&str> = text.lines().collect();
    files.sort_unstable();
    files.join("\n")
}

#[test]
fn files_are_installed_where_a_package_requests_and_are_removed_again() {
    let root = tempfile::tempdir().unwrap();
    let variables = [
        "PREFIX=/usr",
        "LIBDIR=/usr/lib64",
        "MANDIR=/usr/man",
        "BINDIR=/usr/sbin",
        "SYSCONFDIR=/conf",
    ];
    let output = make("install-pcap", root.path(), &variables);
    assert!(output.status.success(), "{}", said(&output));
    // No file in ld.so.conf.d: other programs keep the system's libpcap.
    let expected = "./conf/apparmor.d/abstractions/wirecap-pcap\n./usr/lib64/wirecap/libpcap.so\n\
        ./usr/lib64/wirecap/libpcap.so.0.8\n./usr/lib64/wirecap/libpcap.so.1\n./usr/man/man1/wirecap-pcap.1\n\
        ./usr/sbin/wirecap-pcap";
    assert_eq!(files(root.path()), expected);
    let named = |file: &str| std::fs::read_to_string(root.path().join(file)).unwrap();
    assert!(named("usr/sbin/wirecap-pcap").contains("\nlibraries=/usr/lib64/wirecap\n"));
    assert!(
        named("conf/apparmor.d/abstractions/wirecap-pcap")
            .contains("/usr/lib64/wirecap/libpcap.so* mr,")
    );
    let output = make("uninstall-pcap", root.path(), &variables);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(files(root.path()), "");
}

#[test]
fn installations_without_effect_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let refused = |target, variables: &[&str], reason: &str| {
        let output = make(target, root.path(), variables);
        assert!(!output.status.success() && said(&output).contains(reason), "{}", said(&output));
        assert_eq!(files(root.path()), "");
    };
    refused("install-pcap", &["PCAP_LIBRARY=/nowhere.so"], "run 'make pcap' first");
    refused("install-pcap-system", &[], "is for this machine, not for a package");
    // Directories below `root`, in case make installs files in spite of this.
    let prefix = format!("PREFIX={}", root.path().display());
    let conf = format!("SYSCONFDIR={}", root.path().display());
    let soname = ["DESTDIR=", &prefix, &conf, "PCAP_SONAME=libpcap.so.9"];
    refused("install-pcap-system", &soname, "this system's programs ask for libpcap.so.9");
}

/// The soname that the Makefile detects, with this compiler and this folder first in PATH.
fn detected(compiler: &str, folder: &Path) -> String {
    let mut command =
        Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/pcap-soname"));
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    said(&command.env("CC", compiler).env("PATH", path).output().unwrap()).trim().to_owned()
}

fn write_script(path: &Path, text: &str) {
    write_program(path, &format!("#!/bin/sh\n{text}\n"));
}

#[test]
fn the_soname_is_that_of_the_systems_programs() {
    let folder = tempfile::tempdir().unwrap();
    let elf = Command::new("readelf").arg("-d").arg(system_library()).output().unwrap();
    let own = detected("cc", folder.path());
    assert!(said(&elf).contains(&format!("soname: [{own}]")), "{own}");
    // The linker of a distribution with upstream's name.
    let library = folder.path().join("libpcap.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-Wl,-soname,libpcap.so.1", "-x", "c", "/dev/null", "-o"]).arg(&library);
    assert!(gcc.status().unwrap().success());
    let compiler = folder.path().join("compiler");
    write_script(&compiler, &format!("echo {}", library.display()));
    assert_eq!(detected(compiler.to_str().unwrap(), folder.path()), "libpcap.so.1");
    // A machine without libpcap's development files: the loader knows the name.
    let known = "\tlibpcap.so.1 (libc6,x86-64) => /usr/lib64/libpcap.so.1";
    write_script(&folder.path().join("ldconfig"), &format!("printf '{known}\\n'"));
    assert_eq!(detected("false", folder.path()), "libpcap.so.1");
    // A machine without libpcap.
    write_script(&folder.path().join("ldconfig"), "");
    assert_eq!(detected("false", folder.path()), "libpcap.so.1");
}
