//! `wirecap man-pages DIR` (hidden): the man pages, made from the commands' own help, and their examples.

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

/// The examples of a page: what one does, and the command.
type Examples = &'static [(&'static str, &'static str)];

/// By the names of the pages.
const EXAMPLES: [(&str, Examples); 19] = [
    (
        "wirecap",
        &[
            ("Which interfaces there are, and how each is captured:", "wirecap devices"),
            ("Record, until Ctrl-C:", "wirecap capture -i eth1 -w trace.pcapng"),
            ("What on this host loses packets, and what fixes it:", "wirecap doctor eth1"),
        ],
    ),
    (
        "wirecap-capture",
        &[
            ("Record what matches a filter:", "wirecap capture -i eth1 -w dns.pcapng udp and port 53"),
            ("Record four receive queues into a pipe:", "wirecap capture -i eth1@0-3 -w - | tshark -r -"),
            (
                "Record for weeks: a compressed file an hour, 500 GB at most, 20 GB of the disk left free, without privileges:",
                "wirecap capture -i eth1 -w /data/eth1-%Y%m%d-%H%M%S-%i.pcapng.zst --file-time 1h --keep-bytes 500G --keep-free 20G -Z wirecap",
            ),
            ("A ring of ten files, as tcpdump:", "wirecap capture -i eth1 -w trace.pcap -C 100 -W 10"),
            ("As a service does it:", "wirecap capture --config /etc/wirecap/eth1.conf --name eth1"),
            (
                "Convert a savefile, some packets of it:",
                "wirecap capture -r trace.pcap.gz -w part.pcapng host 192.0.2.1",
            ),
        ],
    ),
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
            "What the hash of a NIC does, as a picture:",
            "wirecap profile -i eth1 --duration 10s --svg load.svg",
        )],
    ),
    (
        "wirecap-handle",
        &[(
            "An application that is too slow, and buddies that help:",
            "wirecap handle -i eth1 -x 300 -T 60 udp",
        )],
    ),
    (
        "wirecap-forward",
        &[
            ("A bump in the wire:", "wirecap forward eth1 eth2"),
            (
                "Drop what matches, and record what passes:",
                "wirecap forward eth1 eth2 --drop 'udp port 1900' --mirror passed.pcapng",
            ),
        ],
    ),
    (
        "wirecap-find",
        &[
            (
                "Packets of half an hour, in the order of time:",
                "wirecap find /data --from 17:00 --to 17:30 -w found.pcapng host 10.1.2.3 and tcp port 443",
            ),
            ("How many there are:", "wirecap find /data --count udp port 53"),
        ],
    ),
    ("wirecap-index", &[("Write the indexes that are missing or damaged:", "wirecap index /data")]),
    (
        "wirecap-show",
        &[
            ("Live packets, with tcpdump's flags:", "wirecap show -i eth1 -nn -v port 53"),
            ("The packets of a file:", "wirecap show -r trace.pcapng.zst -nn"),
        ],
    ),
    (
        "wirecap-status",
        &[("All captures of this host:", "wirecap status"), ("The rings of one:", "wirecap status eth1")],
    ),
    ("wirecap-stop", &[("End a capture, and have its verdict as the exit status:", "wirecap stop eth1")]),
    (
        "wirecap-filter",
        &[
            ("Another filter:", "wirecap filter eth1 not port 22"),
            ("All packets again:", "wirecap filter eth1 ''"),
        ],
    ),
    ("wirecap-reload", &[("After a change of /etc/wirecap/eth1.conf:", "wirecap reload eth1")]),
    ("wirecap-rotate", &[("Begin another file:", "wirecap rotate eth1")]),
    ("wirecap-events", &[("Loss, interfaces and files as they come:", "wirecap events eth1 | jq -r .text")]),
    ("wirecap-devices", &[("The list for programs:", "wirecap devices --json | jq '.[].name'")]),
    (
        "wirecap-doctor",
        &[
            ("What would lose packets of an interface:", "wirecap doctor eth1"),
            ("Make the changes that can be taken back, and take them back:", "wirecap doctor --fix eth1"),
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

/// Without the subcommands `help`, whose pages would say the same a second time.
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
    use super::*;

    /// The words of all examples' commands.
    pub(crate) fn commands() -> impl Iterator<Item = Vec<String>> {
        EXAMPLES.iter().flat_map(|(_, examples)| *examples).map(|(_, line)| {
            let command = line.split(" | ").next().unwrap_or(line);
            let mut words = vec![String::new()];
            let mut is_quoted = false;
            for char in command.chars() {
                match char {
                    '\'' => is_quoted = !is_quoted,
                    ' ' if !is_quoted => words.push(String::new()),
                    char => words.last_mut().expect("there is one").push(char),
                }
            }
            words
        })
    }

    #[test]
    fn an_example_is_shown_as_it_is_typed() {
        assert_eq!(
            section(&[("Do it:", "wirecap x -i 'a'")]),
            ".SH EXAMPLES\n.PP\nDo it:\n.PP\n.RS 4\n.EX\nwirecap x \\-i 'a'\n.EE\n.RE\n"
        );
    }
}
