//! `wirecap man-pages DIR` (hidden): the man pages, generated from the commands' help, and their examples.

use std::fmt::Write;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, Command};

use crate::failure::Failure;

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
            ("Record matching packets only:", "wirecap capture -i eth1 -w dns.pcapng udp and port 53"),
            ("Record four receive queues into a pipe:", "wirecap capture -i eth1@0-3 -w - | tshark -r -"),
            (
                "Record for weeks: a compressed file per hour, 500 GiB at most, 20 GiB of the disk kept free, without privileges:",
                "wirecap capture -i eth1 -w /data/eth1-%Y%m%d-%H%M%S-%i.pcapng.zst --file-time 1h --keep-bytes 500G --keep-free 20G -Z wirecap",
            ),
            ("A ring of ten files, as tcpdump:", "wirecap capture -i eth1 -w trace.pcap -C 100 -W 10"),
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
            ("Make the settings of all dedicated ports again, after a boot:", "wirecap dedicate --restore"),
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
        &[("Simulate a slow application whose buddies help:", "wirecap handle -i eth1 -x 300 -T 60 udp")],
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
    ("wirecap-events", &[("Follow loss, interfaces and files:", "wirecap events eth1 | jq -r .text")]),
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
            ("A million frames of mixed lengths:", "wirecap generate -i eth2 -c 1000000 --size imix"),
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

pub(crate) fn run(arguments: &Arguments, command: Command) -> Result<(), Failure> {
    fs::create_dir_all(&arguments.directory)?;
    let mut command = without_help(command);
    command.build();
    clap_mangen::generate_to(command, &arguments.directory)?;
    for (page, examples) in EXAMPLES {
        let path = arguments.directory.join(format!("{page}.1"));
        OpenOptions::new().append(true).open(path)?.write_all(section(examples).as_bytes())?;
    }
    Ok(())
}

/// Without the subcommands `help`, whose pages would repeat the others.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

/// The section EXAMPLES as roff.
fn section(examples: Examples) -> String {
    let escaped = |text: &str| {
        let text = text.replace('\\', "\\e").replace('-', "\\-");
        // A line that begins with one of these would be a request.
        if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
    };
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

    use super::*;

    /// The words of the commands in the examples of the man pages, the README and the guide.
    pub(crate) fn commands() -> Vec<Vec<String>> {
        let of_man = EXAMPLES.iter().flat_map(|(_, examples)| *examples).map(|(_, line)| (*line).to_owned());
        let lines: Vec<String> = of_man.chain(lines_of_pages()).collect();
        lines.iter().flat_map(|line| words(line)).filter(|words| words[0] == "wirecap").collect()
    }

    /// The lines in the code blocks of README and guide that begin with `wirecap`, and the commands of the
    /// README's table.
    fn lines_of_pages() -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let guide = fs::read_dir(root.join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
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
