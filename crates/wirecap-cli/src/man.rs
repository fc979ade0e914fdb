//! `wirecap man-pages DIR` (hidden): the man pages, generated from the commands' help, and their
//! examples.

use std::fmt::Write;
use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;

use crate::shared::failure::Failure;

/// Write the man pages into a directory
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    directory: PathBuf,
}

/// The examples of a page: the purpose, and the command.
type Examples = &'static [(&'static str, &'static str)];

/// By the names of the pages.
const EXAMPLES: [(&str, Examples); 23] = [
    (
        "wirecap",
        &[
            ("List interfaces and their capture engines:", "wirecap devices"),
            ("Record, until Ctrl-C:", "wirecap capture -i eth1 -w trace.pcapng"),
            ("Find settings that lose packets, and the fixes:", "wirecap doctor eth1"),
        ],
    ),
    (
        "wirecap-capture",
        &[
            (
                "Record matching packets only:",
                "wirecap capture -i eth1 -w dns.pcapng udp and port 53",
            ),
            (
                "Record four receive queues into a pipe:",
                "wirecap capture -i eth1@0-3 -w - | tshark -r -",
            ),
            (
                "Record for weeks: a compressed file per hour, 500 GiB at most, 20 GiB of the disk kept free, without privileges:",
                "wirecap capture -i eth1 -w /data/eth1-%Y%m%d-%H%M%S-%i.pcapng.zst --file-time 1h --keep-bytes 500G --keep-free 20G -Z wirecap",
            ),
            (
                "A ring of ten files, as tcpdump:",
                "wirecap capture -i eth1 -w trace.pcap -C 100 -W 10",
            ),
            ("As a service:", "wirecap capture --config /etc/wirecap/eth1.conf --name eth1"),
            (
                "Extract packets from a savefile and convert it:",
                "wirecap capture -r trace.pcap.gz -w part.pcapng host 192.0.2.1",
            ),
        ],
    ),
    (
        "wirecap-dedicate",
        &[
            ("Set up a SPAN port:", "wirecap dedicate eth1"),
            (
                "Make the settings of all dedicated ports again, after a boot:",
                "wirecap dedicate --restore",
            ),
        ],
    ),
    ("wirecap-release", &[("Use a port for the host again:", "wirecap release eth1")]),
    (
        "wirecap-count",
        &[
            ("Packets and bytes per ring, live:", "wirecap count -i eth1"),
            (
                "A line every ten seconds, for an hour:",
                "wirecap count -i eth1 --interval 10s --duration 1h | tee counts",
            ),
        ],
    ),
    (
        "wirecap-profile",
        &[(
            "Draw how the NIC's hash spreads the load:",
            "wirecap profile -i eth1 --duration 10s --svg load.svg",
        )],
    ),
    (
        "wirecap-handle",
        &[(
            "Simulate a slow application whose buddies help:",
            "wirecap handle -i eth1 -x 300 -T 60 udp",
        )],
    ),
    (
        "wirecap-forward",
        &[
            ("Connect two interfaces transparently:", "wirecap forward eth1 eth2"),
            (
                "Drop matching packets, and record the others:",
                "wirecap forward eth1 eth2 --drop 'udp port 1900' --mirror passed.pcapng",
            ),
        ],
    ),
    (
        "wirecap-find",
        &[
            (
                "Packets of half an hour, in order of time:",
                "wirecap find /data --from 17:00 --to 17:30 -w found.pcapng host 10.1.2.3 and tcp port 443",
            ),
            ("Count matching packets:", "wirecap find /data --count udp port 53"),
        ],
    ),
    (
        "wirecap-archive",
        &[
            (
                "The ten hosts that sent most:",
                "wirecap archive sql -a /data 'SELECT src_addr, sum(bytes) FROM flows GROUP BY 1 ORDER BY 2 DESC LIMIT 10'",
            ),
            (
                "Packets of half an hour from object storage:",
                "wirecap archive find -a s3://bucket/packets --from 17:00 --to 17:30 -w found.pcapng host 10.1.2.3",
            ),
            (
                "Move complete files of a recording to object storage, until a signal:",
                "wirecap archive upload /data -a s3://bucket/packets --sensor lab-1 --watch --remove",
            ),
        ],
    ),
    ("wirecap-index", &[("Write missing or damaged indexes:", "wirecap index /data")]),
    (
        "wirecap-show",
        &[
            ("Live packets, with tcpdump's flags:", "wirecap show -nnvi eth1 port 53"),
            ("The packets of a file:", "wirecap show -r trace.pcapng.zst -nn"),
        ],
    ),
    (
        "wirecap-stats",
        &[
            ("What a recording consists of:", "wirecap stats trace.pcapng.zst"),
            (
                "Of half an hour, one host's packets:",
                "wirecap stats /data --from 17:00 --to 17:30 host 10.1.2.3",
            ),
            ("Live, for ten seconds:", "wirecap stats -i eth1 --duration 10s"),
        ],
    ),
    (
        "wirecap-status",
        &[
            ("All captures of this host:", "wirecap status"),
            ("One capture, ring by ring:", "wirecap status eth1"),
        ],
    ),
    ("wirecap-stop", &[("Stop a capture; the exit status is its verdict:", "wirecap stop eth1")]),
    (
        "wirecap-filter",
        &[
            ("Another filter:", "wirecap filter eth1 not port 22"),
            ("All packets again:", "wirecap filter eth1 ''"),
        ],
    ),
    ("wirecap-reload", &[("After a change of /etc/wirecap/eth1.conf:", "wirecap reload eth1")]),
    ("wirecap-rotate", &[("Start the next file:", "wirecap rotate eth1")]),
    (
        "wirecap-events",
        &[("Follow loss, interfaces and files:", "wirecap events eth1 | jq -r .text")],
    ),
    ("wirecap-devices", &[("The list for programs:", "wirecap devices --json | jq '.[].name'")]),
    (
        "wirecap-doctor",
        &[
            ("Check an interface:", "wirecap doctor eth1"),
            ("Apply the reversible fixes, then revert them:", "wirecap doctor --fix eth1"),
            ("", "wirecap doctor --undo"),
        ],
    ),
    (
        "wirecap-generate",
        &[
            (
                "A million frames of mixed lengths:",
                "wirecap generate -i eth2 -c 1000000 --size imix",
            ),
            (
                "A traffic model, spread over six queues:",
                "wirecap generate -i eth2 --model heavy --duration 1m --queues 6",
            ),
        ],
    ),
    (
        "wirecap-replay",
        &[
            ("As it was recorded:", "wirecap replay trace.pcapng.zst -i eth2"),
            ("At a rate:", "wirecap replay trace.pcap -i eth2 --rate 10kpps"),
        ],
    ),
];

/// The section EXIT STATUS of pages whose help has none.
const EXIT_STATUS: &str =
    "0 done, 1 failed, 2 wrong usage, 3 done but packets were lost (\"lossless: no\").";

const ARCHIVE_STATUS: &str =
    "0 done, 1 failed or a segment could not be read or uploaded completely, 2 wrong usage.";

/// How a signal acts: its name, and the effect.
type Signals = &'static [(&'static str, &'static str)];

const ENDS: (&str, &str) = (
    "SIGINT, SIGTERM",
    "End cleanly, and print the result; a second one, at least a second later, ends at once.",
);
const STATISTICS: (&str, &str) = ("SIGUSR1", "Print the numbers so far.");
const IGNORED: (&str, &str) = ("SIGUSR2", "Ignored.");

/// The section SIGNALS by the names of the pages; other pages have that of commands which only end.
const SIGNALS: [(&str, Signals); 8] = [
    (
        "wirecap-capture",
        &[
            ENDS,
            ("SIGHUP", "Begin the next file, if a set of files is written; otherwise as SIGTERM."),
            STATISTICS,
            IGNORED,
        ],
    ),
    ("wirecap-count", LIVE),
    ("wirecap-profile", LIVE),
    ("wirecap-handle", LIVE),
    ("wirecap-stats", LIVE),
    ("wirecap-forward", LIVE),
    ("wirecap-generate", LIVE),
    ("wirecap-replay", LIVE),
];
const LIVE: Signals = &[ENDS, ("SIGHUP", "As SIGTERM."), STATISTICS, IGNORED];
const OTHER: Signals = &[("SIGINT, SIGTERM", "End.")];

/// Files, or environment variables, and the pages that they concern; none for all pages.
type Notes = &'static [(&'static str, &'static str, &'static [&'static str])];

const CONTROLLED: &[&str] = &[
    "wirecap",
    "wirecap-capture",
    "wirecap-count",
    "wirecap-profile",
    "wirecap-handle",
    "wirecap-forward",
    "wirecap-status",
    "wirecap-stop",
    "wirecap-filter",
    "wirecap-reload",
    "wirecap-rotate",
    "wirecap-events",
    "wirecap-top",
];
const RECORDINGS: &[&str] = &[
    "wirecap",
    "wirecap-capture",
    "wirecap-find",
    "wirecap-index",
    "wirecap-stats",
    "wirecap-archive",
    "wirecap-show",
];
const PORTS: &[&str] = &[
    "wirecap",
    "wirecap-capture",
    "wirecap-count",
    "wirecap-profile",
    "wirecap-handle",
    "wirecap-dedicate",
    "wirecap-release",
    "wirecap-devices",
    "wirecap-doctor",
];
const FILTERS: &[&str] = &[
    "wirecap",
    "wirecap-capture",
    "wirecap-count",
    "wirecap-profile",
    "wirecap-handle",
    "wirecap-forward",
    "wirecap-find",
    "wirecap-stats",
    "wirecap-filter",
];

const FILES: Notes = &[
    (
        "/etc/wirecap/NAME.conf",
        "options of the service wirecap@NAME, for --config",
        &["wirecap", "wirecap-capture", "wirecap-reload"],
    ),
    ("/run/wirecap/NAME", "the control socket of the capture NAME", CONTROLLED),
    ("/etc/wirecap/dedicated", "a file per interface that is dedicated to capturing", PORTS),
    (
        "/run/wirecap/doctor.json",
        "what --fix has changed, for --undo",
        &["wirecap", "wirecap-doctor"],
    ),
    ("FILE.part", "a file of a set until it is complete", RECORDINGS),
    ("FILE.flows.parquet", "the index of FILE", RECORDINGS),
];

const ENVIRONMENT: Notes = &[
    ("WIRECAP_CONTROL_DIR", "a directory for control sockets in place of /run/wirecap", CONTROLLED),
    ("WIRECAP_LIBPCAP", "the libpcap that compiles filters, in place of the system's", FILTERS),
    ("WIRECAP_ARCHIVE", "the archive, in place of -a", &["wirecap-archive"]),
    ("NO_COLOR", "if it is not empty, the output has no colours", &[]),
    ("TZ", "the time zone of times and of file names", &[]),
];

/// Pages of other programs, and the pages that name them.
const SEE_ALSO: [(&str, &[&str]); 6] = [
    ("pcap-filter(7)", FILTERS),
    ("tcpdump(1)", &["wirecap", "wirecap-capture", "wirecap-show"]),
    ("tshark(1)", &["wirecap", "wirecap-show", "wirecap-extcap"]),
    ("ethtool(8)", PORTS),
    ("packet(7)", &["wirecap", "wirecap-capture", "wirecap-devices"]),
    ("tcpreplay(1)", &["wirecap-replay", "wirecap-generate"]),
];

/// The options of the program wirecap-archive, which is built separately: the commands, and their
/// options with the beginning of their help. A test compares them with its source.
const ARCHIVE: &str = include_str!("archive.txt");

pub(crate) fn run(arguments: &Arguments, command: Command) -> Result<(), Failure> {
    fs::create_dir_all(&arguments.directory)?;
    let mut command = without_help(command).disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    pages_of(&command, "wirecap".to_owned(), &mut pages);
    let names: Vec<String> = pages.iter().map(|(name, _)| name.clone()).collect();
    for (name, command) in pages {
        fs::write(arguments.directory.join(format!("{name}.1")), page(&name, command, &names)?)?;
    }
    Ok(())
}

/// The pages of a command and of its subcommands, by their names.
fn pages_of(command: &Command, name: String, pages: &mut Vec<(String, Command)>) {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        pages_of(subcommand, format!("{name}-{}", subcommand.get_name()), pages);
    }
    pages.push((name, command.clone()));
}

fn page(name: &str, mut command: Command, pages: &[String]) -> io::Result<Vec<u8>> {
    let words = name.replacen("wirecap-", "wirecap ", 1).replace("lab-", "lab ");
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace(&name.replace('-', " "), &words);
    let help = command.get_after_help().or(command.get_after_long_help()).map(ToString::to_string);
    let (status, notes) = of_help(&help.unwrap_or_default());
    let has_subcommands = command.get_subcommands().any(|subcommand| !subcommand.is_hide_set());

    let man = Man::new(command.display_name(name));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    writeln!(page, ".SH SYNOPSIS\n.nf\n{}\n.fi", escaped(&usage))?;
    man.render_description_section(&mut page)?;

    if name == "wirecap-archive" {
        page.extend(archive_section().as_bytes());
    } else {
        man.render_options_section(&mut page)?;
    }

    if has_subcommands {
        man.render_subcommands_section(&mut page)?;
    }

    let mut text = String::new();
    if !notes.is_empty() {
        let _ = write!(text, ".SH NOTES\n.nf\n{}\n.fi\n", escaped(&notes));
    }

    let other = if name == "wirecap-archive" { ARCHIVE_STATUS } else { EXIT_STATUS };
    let status = status.unwrap_or_else(|| other.to_owned());
    let _ = write!(text, ".SH \"EXIT STATUS\"\n{}\n", escaped(&status));
    let signals =
        SIGNALS.iter().find(|(page, _)| *page == name).map_or(OTHER, |(_, signals)| *signals);
    text += &tagged("SIGNALS", signals.iter().copied());
    text += &tagged("FILES", notes_of(FILES, name));
    text += &tagged("ENVIRONMENT", notes_of(ENVIRONMENT, name));

    if let Some((_, examples)) = EXAMPLES.iter().find(|(page, _)| *page == name) {
        text += &section(examples);
    }

    let own = pages.iter().filter(|page| {
        *page != name
            && (name == "wirecap" || *page == "wirecap" || page.starts_with(&format!("{name}-")))
    });
    let others = SEE_ALSO
        .iter()
        .filter(|(_, pages)| pages.contains(&name))
        .map(|(other, _)| (*other).to_owned());
    let see: Vec<String> = own.map(|page| format!("{page}(1)")).chain(others).collect();
    let _ = write!(text, ".SH \"SEE ALSO\"\n{}\n", escaped(&see.join(", ")));

    page.extend(text.as_bytes());
    Ok(page)
}

fn notes_of(notes: Notes, name: &str) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
    let concerns = move |pages: &[&str]| pages.is_empty() || pages.contains(&name);
    notes.iter().filter(move |(.., pages)| concerns(pages)).map(|(what, text, _)| (*what, *text))
}

/// Of the text after the options: the exit status, and what is neither that nor examples, which are
/// in sections of their own.
fn of_help(help: &str) -> (Option<String>, String) {
    let mut status = None;
    let mut notes = String::new();
    let mut is_example = false;

    for line in help.lines() {
        is_example &= line.is_empty() || line.starts_with(' ');
        if let Some(text) = line.strip_prefix("Exit status: ") {
            status = Some(text.to_owned());
        } else if line == "Examples:" {
            is_example = true;
        } else if !is_example && !line.is_empty() {
            notes += line;
            notes.push('\n');
        }
    }

    (status, notes.trim_end().to_owned())
}

/// A section of words and their explanations; nothing if there are none.
fn tagged<'a>(name: &str, words: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for (word, explanation) in words {
        let _ = write!(text, ".TP\n.B {}\n{}\n", escaped(word), escaped(explanation));
    }
    if text.is_empty() { text } else { format!(".SH {name}\n{text}") }
}

/// The commands of wirecap-archive and their options.
fn archive_section() -> String {
    let mut text = ".SH COMMANDS\n".to_owned();

    for line in ARCHIVE.lines() {
        match line.strip_prefix("  ").map(|line| line.split_once("  ")) {
            None if line.is_empty() => {}
            None => {
                let (command, about) = line.split_once("  ").unwrap_or((line, ""));
                let _ = write!(text, ".SS \"{}\"\n{}\n", escaped(command), escaped(about));
            }
            Some(option) => {
                let (option, about) = option.unwrap_or((line, ""));
                let _ = write!(
                    text,
                    ".TP\n.B \"{}\"\n{}\n",
                    escaped(option.trim()),
                    escaped(about.trim())
                );
            }
        }
    }
    text
}

/// Without the subcommands `help`, whose pages would repeat the others.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

/// Text as roff, line by line.
fn escaped(text: &str) -> String {
    let line = |line: &str| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A line that begins with one of these would be a request.
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The section EXAMPLES as roff.
fn section(examples: Examples) -> String {
    let mut text = ".SH EXAMPLES\n".to_owned();
    for (purpose, command) in examples {
        if !purpose.is_empty() {
            let _ = write!(text, ".PP\n{}\n", escaped(purpose));
        }
        let _ = write!(text, ".PP\n.RS 4\n.EX\n{}\n.EE\n.RE\n", escaped(command));
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use clap::CommandFactory;

    use super::*;

    /// The words of the commands in the examples of the man pages, the README and the guide.
    pub(crate) fn commands() -> Vec<Vec<String>> {
        let of_man =
            EXAMPLES.iter().flat_map(|(_, examples)| *examples).map(|(_, line)| (*line).to_owned());
        let lines: Vec<String> = of_man.chain(lines_of_pages()).collect();
        lines.iter().flat_map(|line| words(line)).filter(|words| words[0] == "wirecap").collect()
    }

    /// The lines in the code blocks of README and guide that begin with `wirecap`, and the commands
    /// of the README's table.
    fn lines_of_pages() -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let guide =
            fs::read_dir(root.join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
        let mut lines = Vec::new();

        for page in guide.chain([root.join("README.md")]) {
            let text = fs::read_to_string(&page).unwrap();
            let of_page = text.split("```").skip(1).step_by(2).flat_map(str::lines);
            let of_page = of_page.map(|line| line.strip_prefix("sudo ").unwrap_or(line));
            lines.extend(of_page.filter(|line| line.starts_with("wirecap ")).map(str::to_owned));
        }

        // The README's table of usual commands: the last column has ours.
        let readme = fs::read_to_string(root.join("README.md")).unwrap();
        let rows = readme.lines().filter(|line| line.starts_with("| `"));
        lines.extend(rows.filter_map(|row| row.rsplit('`').nth(1)).map(str::to_owned));
        assert!(lines.len() > 40, "{lines:#?}");

        lines
    }

    /// Marks a quoted word, which may be empty.
    const QUOTED: char = '\0';

    /// The words of each command of a pipe, without a comment at the end.
    fn words(line: &str) -> Vec<Vec<String>> {
        let mut commands = vec![vec![String::new()]];
        let mut quote = None;

        for char in line.chars() {
            let command = commands.last_mut().expect("there is one");
            match (quote, char) {
                (Some(end), char) if char == end => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(char);
                    command.last_mut().expect("there is one").push(QUOTED);
                }
                (None, '|') => commands.push(vec![String::new()]),
                (None, '#') if command.last().is_some_and(String::is_empty) => break,
                (None, ' ') if command.last().is_some_and(String::is_empty) => {}
                (None, ' ') => command.push(String::new()),
                (_, char) => command.last_mut().expect("there is one").push(char),
            }
        }

        for command in &mut commands {
            command.retain(|word| !word.is_empty());
            command.iter_mut().for_each(|word| word.retain(|char| char != QUOTED));
        }

        commands.retain(|command| !command.is_empty());
        commands
    }

    /// Writes the pages, and returns them by their names.
    fn pages() -> Vec<(String, String)> {
        let folder = tempfile::tempdir().unwrap();
        run(&Arguments { directory: folder.path().to_owned() }, crate::Cli::command()).unwrap();
        let read = |path: PathBuf| {
            (
                path.file_stem().unwrap().to_str().unwrap().to_owned(),
                fs::read_to_string(&path).unwrap(),
            )
        };
        fs::read_dir(folder.path()).unwrap().map(|entry| read(entry.unwrap().path())).collect()
    }

    #[test]
    fn each_page_has_the_sections_of_a_man_page() {
        let pages = pages();
        for (name, page) in &pages {
            for section in [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "\"EXIT STATUS\"",
                "SIGNALS",
                "ENVIRONMENT",
                "\"SEE ALSO\"",
            ] {
                assert!(
                    page.contains(&format!(".SH {section}\n")),
                    "{name}(1) has no section {section}"
                );
            }

            let has_files = FILES.iter().any(|(.., pages)| pages.contains(&name.as_str()));
            assert_eq!(page.contains(".SH FILES\n"), has_files, "{name}(1), FILES");
            assert!(!page.contains(".SH EXTRA"), "{name}(1) has a section EXTRA");
        }

        let named: Vec<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        for name in named.into_iter().chain(SIGNALS.map(|(name, _)| name)) {
            assert!(pages.iter().any(|(page, _)| page == name), "there is no page {name}");
        }

        let capture = &pages.iter().find(|(name, _)| name == "wirecap-capture").unwrap().1;

        for word in [
            "SIGUSR1",
            "SIGHUP",
            "WIRECAP_CONTROL_DIR",
            "WIRECAP_LIBPCAP",
            "FILE.part",
            "wirecap(1)",
        ] {
            assert!(capture.contains(word), "wirecap-capture(1) does not mention {word}");
        }

        let doctor = &pages.iter().find(|(name, _)| name == "wirecap-doctor").unwrap().1;
        let archive = fs::read_to_string(
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archive/src/lib.rs"),
        );
        assert!(archive.unwrap().contains(&format!("Exit status: {ARCHIVE_STATUS}")));
        assert!(doctor.contains("0 no findings, 1 failed, 2 wrong usage, 3 findings."));
    }

    #[test]
    fn the_page_of_the_archive_has_the_options_in_its_source() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archive/src");
        let source = |name: &str| fs::read_to_string(root.join(format!("{name}.rs"))).unwrap();

        let section = |command: &str| {
            let begin = ARCHIVE
                .find(&format!("{command}  "))
                .unwrap_or_else(|| panic!("no command {command}"));
            ARCHIVE[begin..].split("\n\n").next().unwrap().to_owned()
        };
        let commands = source("lib");
        let commands = commands.split("enum Command {").nth(1).unwrap().split('}').next().unwrap();
        let mut options = 0;

        for command in commands.lines().filter_map(|line| line.trim().split('(').next()) {
            let command = command.to_lowercase();
            if command.is_empty() {
                continue;
            }

            let section = section(&command);
            let own = source(&command);
            let own = own
                .split("struct Arguments {")
                .nth(1)
                .unwrap()
                .split("\n}")
                .next()
                .unwrap()
                .to_owned();
            let mut texts = vec![own.clone()];

            for (flattened, file, name) in [
                ("CacheOptions", "cache", "struct CacheOptions {"),
                ("ClusterOptions", "cluster", "struct ClusterOptions {"),
            ] {
                if own.contains(flattened) {
                    let text = source(file);
                    texts.push(
                        text.split(name).nth(1).unwrap().split("\n}").next().unwrap().to_owned(),
                    );
                }
            }

            for field in texts
                .iter()
                .flat_map(|text| text.split("\n\n"))
                .filter(|field| field.contains("long"))
            {
                let last = field
                    .trim_end()
                    .lines()
                    .last()
                    .unwrap()
                    .trim()
                    .trim_start_matches("pub(crate) ");
                let name = last.split(':').next().unwrap().replace('_', "-");
                let about =
                    field.trim_start().lines().next().unwrap().trim().trim_start_matches("/// ");

                assert!(
                    section.contains(&format!("--{name}")),
                    "{command}: --{name} is not in archive.txt"
                );
                assert!(
                    section.contains(about),
                    "{command}: --{name}: {about:?} is not in archive.txt"
                );
                options += 1;
            }
        }

        assert!(options > 30, "{options} options");
    }

    #[test]
    fn a_line_is_divided_into_commands_and_words() {
        let of = |line| words(line).into_iter().map(|words| words.join("+")).collect::<Vec<_>>();
        assert_eq!(of("wirecap x -i 'a b' \"c 'd'\"  # e"), ["wirecap+x+-i+a b+c 'd'"]);
        assert_eq!(of("wirecap x ''"), ["wirecap+x+"]);
        assert_eq!(of("wirecap x | wirecap show -r -"), ["wirecap+x", "wirecap+show+-r+-"]);
    }

    #[test]
    fn an_example_is_shown_as_it_is_typed() {
        assert_eq!(
            section(&[("Do it:", "wirecap x -i 'a'")]),
            ".SH EXAMPLES\n.PP\nDo it:\n.PP\n.RS 4\n.EX\nwirecap x \\-i 'a'\n.EE\n.RE\n"
        );
    }
}
