//! Which library a program loads, and how this is reported.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Bed, Library, built, compile, said, system_library, with_all_names};
use wirecap_testbed::{privileged, write_program};

/// The command `wirecap-pcap`, for libraries in `libraries`.
fn wrapper(folder: &Path, libraries: &Path) -> PathBuf {
    let source =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("wirecap-pcap")).unwrap();
    let path = folder.join("wirecap-pcap");
    write_program(&path, &source.replace("@LIBRARIES@", libraries.to_str().unwrap()));
    path
}

/// Builds the library with `real` as the path of the real library. Its compiled dependencies are
/// kept for the next run.
fn built_for(real: &Path) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("built-in");
    // As root, the test may have another PATH and home than the user who compiled it.
    let cargo = Path::new(env!("CARGO"));
    let mut command = Command::new(cargo);
    command.args([
        "build",
        "--quiet",
        "--locked",
        "--offline",
        "-p",
        "wirecap-pcap",
        "--lib",
        "--target-dir",
    ]);
    command
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTC", cargo.with_file_name("rustc"));
    command.envs(option_env!("CARGO_HOME").map(|home| ("CARGO_HOME", home)));
    let output = command.env("WIRECAP_REAL_LIBPCAP", real).output().expect("cargo is there");
    assert!(output.status.success(), "{}", said(&output));
    target.join("debug/libwirecap_pcap.so")
}

#[test]
fn the_environment_overrides_the_path_of_the_real_library_set_at_build_time() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("names.c", folder.path(), &[]);
    // A path that no search finds.
    let real = folder.path().join("libpcap.so.1.99");
    let libraries = with_all_names(&built_for(&real));
    let run = |variable: &str| {
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", libraries.path()).env_remove("WIRECAP_REAL_LIBPCAP");
        said(&command.env(variable, system_library()).output().unwrap())
    };
    let text = run("UNUSED");
    let missing = format!(
        "libpcap was not found; install it, or name it in WIRECAP_REAL_LIBPCAP ({}: ",
        real.display()
    );
    assert!(text.contains(&missing), "{text}");
    let told = run("WIRECAP_REAL_LIBPCAP");
    assert!(told.ends_with("loaded: real\nloaded: drop-in\n"), "{told}");
    fs::copy(system_library(), &real).unwrap();
    assert_eq!(run("UNUSED"), told);
}

#[test]
fn a_configuration_file_that_may_not_be_read_is_ignored() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("closing.c", folder.path(), &[]);
    let configuration = folder.path().join("pcap.conf");
    fs::write(&configuration, "engine = nonsense\n").unwrap();
    let open = |mode| {
        fs::set_permissions(&configuration, fs::Permissions::from_mode(mode)).unwrap();
        let bed = Bed::new();
        // Root without the capabilities to ignore file modes, which has the same effect as an
        // AppArmor profile.
        let mut command = bed.command("setpriv", Library::DropIn);
        let rights = "-dac_override,-dac_read_search";
        command
            .args(["--bounding-set", rights, "--inh-caps", rights])
            .arg(&program)
            .args(["a1", "1"]);
        let output = bed.run(command.env("WIRECAP_PCAP_CONF", &configuration));
        (output.status.success(), said(&output))
    };
    let (opened, text) = open(0o400);
    assert!(!opened && text.contains("'nonsense': expected"), "{text}");
    let (opened, text) = open(0);
    assert!(opened, "{text}");
}

#[test]
fn the_command_prints_the_library_that_a_program_has_loaded() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("signals.c", folder.path(), &[]);
    let libraries = folder.path().join("libraries");
    fs::create_dir(&libraries).unwrap();
    let run_on = |engine: &str, options: &[&str]| {
        let bed = Bed::new();
        let mut command = bed.command(wrapper(folder.path(), &libraries), Library::System);
        command.env("WIRECAP_ENGINE", engine);
        said(&bed.run(command.args(options).arg(&program).args(["a1", "a0", "1000"])))
    };
    let run = |options: &[&str]| run_on("packet", options);
    // The directory is empty, which has the same effect as a library that the program may not load.
    let text = run(&[]);
    assert!(
        text.contains("signals has loaded /") && text.contains("not wirecap's: see DIAGNOSTICS"),
        "{text}"
    );
    fs::copy(built(), libraries.join("libpcap.so.1")).unwrap();
    symlink("libpcap.so.1", libraries.join("libpcap.so.0.8")).unwrap();
    let text = run(&[]);
    assert!(!text.contains("has loaded"), "{text}");
    let text = run(&["-v"]);
    let library = libraries.join("libpcap.so.1").display().to_string();
    assert!(text.contains(&format!("signals has loaded {library}\n")), "{text}");
    assert!(text.contains("libpcap.so.0.8: a1 is captured by the engine packet\n"), "{text}");
    let text = run_on("off", &["-v"]);
    let by_libpcap =
        text.lines().find(|line| line.contains("a1 is captured by the system's libpcap, /"));
    assert!(by_libpcap.is_some_and(|line| line.ends_with(": WIRECAP_ENGINE is off")), "{text}");
}

#[test]
fn a_program_may_unload_the_library_and_load_it_again() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("unloading.c", folder.path(), &["-Wl,--as-needed", "-ldl"]);
    for (engine, rounds) in [("packet", 100), ("xdp", 100)] {
        let bed = Bed::new();
        let mut command = bed.command(&program, Library::DropIn);
        command.args(["a1", "a0", &rounds.to_string()]).env("WIRECAP_ENGINE", engine);
        let output = bed.run(&mut command);
        let text = said(&output);
        assert!(output.status.success(), "{engine}: {} {text}", output.status);
        assert_eq!(text, format!("rounds {rounds}, others 0, threads left 0\n"), "{engine}");
    }
}

#[test]
fn loading_the_library_allocates_no_memory() {
    if !privileged() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = compile("heap.c", folder.path(), &["-rdynamic", "-ldl"]);
    let run = |library| {
        let bed = Bed::new();
        let output = bed.run(bed.command(&program, library).arg("a1"));
        assert!(output.status.success(), "{library:?}: {} {}", output.status, said(&output));
        said(&output)
    };
    let ours = run(Library::DropIn);
    let expected =
        "before main: 0 from libpcap, 0 from others than the loader\nin pcap_create: some\n";
    assert_eq!(ours, expected, "with libpcap: {}", run(Library::System));
}
