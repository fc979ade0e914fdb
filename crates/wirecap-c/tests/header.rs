//! `wirecap.h`, the library and its manual agree.

mod common;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs};

use common::{built, installed, pkg_config, said, sources, succeed};

/// The types in the library's functions, and their C equivalents.
const TYPES: [(&str, &str); 35] = [
    ("*mut Handle<Held>", "wirecap_chunk **"),
    ("*mut Handle<Books>", "wirecap_ledger **"),
    ("Handle<Group>", "wirecap_group *"),
    ("Handle<Opened>", "wirecap_capture *"),
    ("Handle<Arc<Worker>>", "wirecap_worker *"),
    ("Handle<Held>", "wirecap_chunk *"),
    ("Handle<Books>", "wirecap_ledger *"),
    ("Handle<PortPlace>", "wirecap_port *"),
    ("Option<Route>", "wirecap_route"),
    ("*mut FrameInfo", "struct wirecap_frame *"),
    ("*mut PortAccountInfo", "struct wirecap_port_account *"),
    ("*mut c_void", "void *"),
    ("*const c_void", "const void *"),
    ("*const c_char", "const char *"),
    ("*mut PacketInfo", "struct wirecap_packet *"),
    ("*mut DeviceInfo", "struct wirecap_device *"),
    ("*mut ChunkInfo", "struct wirecap_chunk_info *"),
    ("*mut AccountInfo", "struct wirecap_account *"),
    ("*mut VerdictInfo", "struct wirecap_verdict *"),
    ("*mut UnseenInfo", "struct wirecap_unseen *"),
    ("*mut Piece", "struct iovec *"),
    ("*const ClassicInsn", "const struct sock_filter *"),
    ("*mut u32", "uint32_t *"),
    ("*const u32", "const uint32_t *"),
    ("EngineCode", "enum wirecap_engine"),
    ("TimestampsCode", "enum wirecap_timestamps"),
    ("DirectionCode", "enum wirecap_direction"),
    ("c_int", "int"),
    ("u32", "uint32_t"),
    ("u64", "uint64_t"),
    ("i64", "int64_t"),
    ("usize", "size_t"),
    ("f64", "double"),
    ("u16", "uint16_t"),
    ("u8", "uint8_t"),
];

fn c_type(rust: &str) -> &'static str {
    let found = TYPES.iter().find(|(name, _)| *name == rust.trim());
    found.unwrap_or_else(|| panic!("what is {rust} in C?")).1
}

/// A C declaration of a function.
fn prototype(name: &str, arguments: &str, returned: &str) -> String {
    let arguments = arguments.split(", ").flat_map(|part| part.split(",\n"));
    let types = arguments
        .filter_map(|argument| Some(c_type(argument.split_once(':')?.1.trim_end_matches(','))));
    let types = types.collect::<Vec<_>>().join(", ");
    let types = if types.is_empty() { "void" } else { &types };
    format!("{} {name}({types});\n", c_type(returned))
}

/// C declarations of the functions that the library's sources define.
fn defined() -> Vec<String> {
    let mut prototypes = Vec::new();
    for file in fs::read_dir(sources().join("src")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        for function in text.split("extern \"C\" fn wirecap_").skip(1) {
            let (signature, _) = function.split_once(" {\n").unwrap();
            let (name, rest) = signature.split_once('(').unwrap();
            let (arguments, returned) = rest.rsplit_once(") -> ").unwrap();
            prototypes.push(prototype(&format!("wirecap_{name}"), arguments, returned));
        }
        prototypes.extend(text.lines().filter_map(of_macro));
    }
    prototypes
}

/// The C declaration of a function in a line of a macro call.
fn of_macro(line: &str) -> Option<String> {
    let function = line.strip_prefix("    fn wirecap_")?;
    let (name, arguments) = match function.split_once(") |builder|") {
        Some((signature, _)) => {
            let (name, argument) = signature.split_once('(')?;
            (name, format!("group: Handle<Group>, {argument}"))
        }
        None => {
            let (name, _method) = function.split_once(" as ")?;
            (name, "frame: *mut FrameInfo, bytes: u32".to_owned())
        }
    };
    Some(prototype(&format!("wirecap_{name}"), &arguments, "c_int"))
}

fn name_of(prototype: &str) -> &str {
    let (before, _) = prototype.split_once('(').unwrap();
    before.rsplit([' ', '*']).next().unwrap()
}

/// The symbols that the library exports.
fn exported() -> BTreeSet<String> {
    let symbols = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(built()));
    symbols.lines().filter_map(|line| Some(line.split_whitespace().nth(2)?.to_owned())).collect()
}

/// The functions that the header declares, according to the compiler.
fn declared() -> BTreeSet<String> {
    let header = sources().join("include/wirecap.h");
    let text = succeed(Command::new("cc").args(["-E", "-P"]).arg(header));
    let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '('));
    let functions = words.filter_map(|word| word.split_once('(')).map(|(name, _)| name.to_owned());
    functions.filter(|name| name.starts_with("wirecap_")).collect()
}

fn check_syntax(compiler: &str, flags: &[&str], source: &Path) {
    let strict = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"];
    succeed(
        Command::new(compiler).args(flags).args(strict).args(pkg_config(&["--cflags"])).arg(source),
    );
}

#[test]
fn the_library_exports_what_the_header_declares() {
    assert!(exported().len() > 50, "{:?}", exported());
    assert_eq!(exported(), declared());
    let defined: BTreeSet<String> =
        defined().iter().map(|prototype| name_of(prototype).to_owned()).collect();
    assert_eq!(defined, declared());
}

/// `libwirecap.symbols`, in the format of deb-symbols(5), lists the version in which each function
/// was added. Removing a function changes the interface; a new function needs a line with its
/// version.
#[test]
fn the_symbols_file_has_every_function_with_its_version() {
    let text = fs::read_to_string(sources().join("libwirecap.symbols")).unwrap();
    let (head, lines) = text.split_once('\n').unwrap();
    assert_eq!(head, "libwirecap.so.0 libwirecap0 #MINVER#");
    let number =
        |text: &str| text.split('.').map(|part| part.parse().unwrap()).collect::<Vec<u32>>();
    let listed = lines.lines().map(|line| {
        let (name, version) = line.trim_start().split_once("@Base ").unwrap();
        assert!(number(version) <= number(env!("CARGO_PKG_VERSION")), "{line}");
        name.to_owned()
    });
    assert_eq!(listed.collect::<BTreeSet<_>>(), exported());
}

#[test]
fn the_functions_have_the_headers_signatures() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("again.c");
    // The compiler rejects a second declaration that differs from the first.
    let again =
        defined().iter().fold("#include <wirecap.h>\n".to_owned(), |mut text, prototype| {
            let _ = text.write_str(prototype);
            text
        });
    fs::write(&source, &again).unwrap();
    check_syntax("cc", &["-std=c11"], &source);
}

#[test]
fn the_header_compiles_alone_in_every_dialect() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("alone.c");
    let text = "#include <wirecap.h>\n#include <wirecap.h>\nint main(void) { return wirecap_error_status(); }\n";
    fs::write(&source, text).unwrap();
    for standard in ["-std=c99", "-std=c11", "-std=c17"] {
        check_syntax("cc", &[standard], &source);
    }
    for standard in ["-std=c++11", "-std=c++20"] {
        check_syntax("g++", &["-x", "c++", standard], &source);
    }
}

#[test]
fn the_manual_has_every_function() {
    let manual = fs::read_to_string(sources().join("wirecap.3")).unwrap();
    let missing: Vec<_> =
        declared().into_iter().filter(|name| !manual.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn installed_files_have_one_version() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(pkg_config(&["--modversion"]), [version]);
    let header = fs::read_to_string(installed().join("usr/local/include/wirecap.h")).unwrap();
    assert!(header.contains(&format!("#define WIRECAP_VERSION \"{version}\"")));
    let library = installed().join("usr/local/lib/libwirecap.so");
    let dynamic = succeed(Command::new("readelf").arg("-d").arg(library));
    assert!(dynamic.contains("Library soname: [libwirecap.so.0]"), "{dynamic}");
}

/// Runs a target of the Makefile for this library, into the folder `root`.
fn make(target: &str, root: &Path, library: &Path, variables: &[&str]) -> Output {
    let mut make = Command::new("make");
    make.arg("-C").arg(sources().join("../..")).args(["-s", target, "SUDO="]).args(variables);
    make.arg(format!("C_LIBRARY={}", library.display())).arg(format!("DESTDIR={}", root.display()));
    make.output().unwrap()
}

/// Files and links below `root`, in order; links with their targets.
fn files(root: &Path) -> String {
    let mut find = Command::new("find");
    find.args([".", "-type", "f", "-print", "-o", "-type", "l", "-printf", "%p -> %l\\n"])
        .current_dir(root);
    let text = succeed(&mut find);
    let mut files: Vec<&str> = text.lines().collect();
    files.sort_unstable();
    files.join("\n")
}

#[test]
fn files_are_installed_where_a_package_requests_and_are_removed_again() {
    let root = tempfile::tempdir().unwrap();
    let variables = ["PREFIX=/usr", "LIBDIR=/usr/lib64", "INCLUDEDIR=/usr/inc", "MANDIR=/usr/man"];
    let output = make("install-c", root.path(), &built(), &variables);
    assert!(output.status.success(), "{}", said(&output));
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "./usr/inc/wirecap.h\n./usr/lib64/libwirecap.a\n./usr/lib64/libwirecap.so -> libwirecap.so.0\n\
         ./usr/lib64/libwirecap.so.0 -> libwirecap.so.{version}\n./usr/lib64/libwirecap.so.{version}\n\
         ./usr/lib64/pkgconfig/wirecap.pc\n./usr/man/man3/wirecap.3"
    );
    assert_eq!(files(root.path()), expected);
    let output = make("uninstall-c", root.path(), &built(), &variables);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(files(root.path()), "");
}

#[test]
fn installing_builds_nothing() {
    let root = tempfile::tempdir().unwrap();
    let output = make("install-c", root.path(), Path::new("/nowhere.so"), &[]);
    assert!(
        !output.status.success() && said(&output).contains("run 'make c' first"),
        "{}",
        said(&output)
    );
    assert_eq!(files(root.path()), "");
}

#[test]
fn the_manuals_program_compiles() {
    let manual = fs::read_to_string(sources().join("wirecap.3")).unwrap();
    let start = manual.find("#include <err.h>").unwrap();
    let (program, _) = manual[start..].split_once("\n.fi").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.c");
    fs::write(&source, format!("{}\n", program.replace("\\en", "\\n"))).unwrap();
    check_syntax("cc", &["-std=c11"], &source);
}

#[test]
fn the_guides_program_compiles() {
    let guide = fs::read_to_string(sources().join("../../docs/guide/embed.md")).unwrap();
    let (_, rest) = guide.split_once("```c\n").unwrap();
    let (program, _) = rest.split_once("```\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.c");
    fs::write(&source, program).unwrap();
    check_syntax("cc", &["-std=c11", "-D_POSIX_C_SOURCE=200809L"], &source);
}
