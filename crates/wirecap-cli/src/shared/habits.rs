//! Flags of tcpdump and dumpcap: they work, or the error names the equivalent flag.

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{ArgAction, Args};
use wirecap::savefile::LinkType;
use wirecap::{Capture, DEFAULT_SNAP_LEN};

use crate::shared::failure::Failure;

/// Flags with the same meaning as in tcpdump and dumpcap.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "As in tcpdump and dumpcap")]
pub(crate) struct Habits {
    /// List the interfaces and end, as wirecap devices
    #[arg(short = 'D', long, overrides_with = "list_interfaces")]
    pub(crate) list_interfaces: bool,

    /// Do not print packet counts while capturing, nor which signal ended the capture
    #[arg(short, long, overrides_with = "quiet")]
    pub(crate) quiet: bool,

    /// No effect: names are never looked up
    #[arg(short = 'n', action = ArgAction::Count, hide_short_help = true)]
    _no_names: u8,

    /// No effect: output to a pipe is always line-buffered
    #[arg(short = 'l', overrides_with = "_line_buffered", hide_short_help = true)]
    _line_buffered: bool,

    /// Link type, EN10MB or RAW; must be that of the interfaces
    #[arg(short = 'y', long, value_name = "LINKTYPE", value_parser = link_type, hide_short_help = true)]
    linktype: Option<Named>,
}

/// A link type and its name in libpcap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named(LinkType, &'static str);

const LINK_TYPES: [Named; 2] = [Named(LinkType::ETHERNET, "EN10MB"), Named(LinkType::RAW, "RAW")];

fn link_type(text: &str) -> Result<Named, String> {
    let found = LINK_TYPES.into_iter().find(|Named(_, name)| name.eq_ignore_ascii_case(text));
    found.ok_or_else(|| {
        "expected EN10MB or RAW: packets have the link layer of their interface".to_owned()
    })
}

impl Habits {
    /// Whether the link type is the requested one.
    pub(crate) fn check(&self, capture: &Capture) -> Result<(), Failure> {
        let Some(Named(wanted, name)) = self.linktype else { return Ok(()) };
        let seen = capture.seen_interfaces().map(|seen| seen.list()).unwrap_or_default();
        let link_types = capture.named_interfaces().map(|interface| {
            (interface.device.name.clone(), interface.device.savefile_link_type())
        });
        let seen = seen.into_iter().map(|seen| (seen.name, seen.link_type));
        match link_types.chain(seen).find(|(_, link_type)| *link_type != wanted) {
            None => Ok(()),
            Some((device, _)) => {
                Err(Failure::Usage(format!("the link layer of {device} is not {name}: omit -y")))
            }
        }
    }
}

/// The file of `-r`: - is standard input.
pub(crate) fn savefile() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.is_dir() {
        _ if path.as_os_str() == "-" => Ok("/dev/stdin".into()),
        true => Err(format!(
            "it is a directory; wirecap find {} -w FILE joins the recordings in it",
            path.display()
        )),
        false => Ok(path),
    })
}

/// The number of `-s`: 0 is the default.
pub(crate) fn snap_len() -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).map(|bytes| if bytes == 0 { DEFAULT_SNAP_LEN } else { bytes })
}

/// Flags that a command does not have, and what to use instead.
struct Hint {
    commands: &'static [&'static str],
    flags: &'static [&'static str],
    instead: &'static str,
}

/// The commands that accept flags of tcpdump and dumpcap.
const CAPTURES: &[&str] = &["capture", "count", "profile", "handle"];

const HINTS: &[Hint] = &[
    Hint {
        commands: &["capture"],
        flags: &["-A", "-e", "-K", "-N", "-O", "-S", "-t", "-u", "-X", "-x", "-#", "-H"],
        instead: "capture does not print packets; wirecap show -i DEV does, with tcpdump's flags",
    },
    Hint {
        commands: &["count", "profile", "stats"],
        flags: &["-A", "-e", "-K", "-N", "-O", "-S", "-t", "-u", "-v", "-X", "-x", "-#", "-H"],
        instead: "to see packets: wirecap show -i DEV, with tcpdump's flags",
    },
    Hint {
        commands: &["capture", "count", "profile", "handle", "stats"],
        flags: &["-Y", "--display-filter", "-V", "-2", "-E"],
        instead: "to decode with tshark: wirecap show -i DEV --with tshark -Y FILTER; to capture: pcap-filter(7)",
    },
    Hint {
        commands: &["capture"],
        flags: &["-k"],
        instead: "into Wireshark: wirecap capture -i DEV -U -w - | wireshark -k -i -",
    },
    Hint {
        commands: &["capture"],
        flags: &["--print"],
        instead: "to write and print: wirecap capture -i DEV -U -w - | tee FILE | wirecap show -r -",
    },
    Hint {
        commands: CAPTURES,
        flags: &["-B", "--buffer-size"],
        instead: "use --buffer SIZE: --buffer 4M for tcpdump's -B 4096, or dumpcap's -B 4",
    },
    Hint {
        commands: CAPTURES,
        flags: &["-I", "--monitor-mode"],
        instead: "set the interface to monitor mode with iw(8) first",
    },
    Hint {
        commands: CAPTURES,
        flags: &["-L", "--list-data-link-types"],
        instead: "each interface has one link layer, which is used; wirecap devices lists interfaces",
    },
    Hint {
        commands: &["capture"],
        flags: &["-P"],
        instead: "use --format pcap, or a file name that ends in .pcap",
    },
    Hint {
        commands: CAPTURES,
        flags: &[
            "-j",
            "-J",
            "--time-stamp-type",
            "--time-stamp-precision",
            "--list-time-stamp-types",
        ],
        instead: "use --timestamp packet, batch or hardware; files have nanoseconds",
    },
    Hint {
        commands: &["capture"],
        flags: &["--workers", "--threads"],
        instead: "capture has one worker; wirecap count and wirecap handle have --workers",
    },
    Hint { commands: &["count", "handle"], flags: &["--threads"], instead: "use --workers N" },
    Hint { commands: CAPTURES, flags: &["-g", "--cpu"], instead: "to choose CPUs: --pin 0,2-3" },
    Hint {
        commands: &["capture"],
        flags: &["--compress", "--compress-type", "--gzip", "--zstd"],
        instead: "the extension of the file compresses: -w FILE.pcapng.gz, or .zst",
    },
    Hint {
        commands: &["capture"],
        flags: &["--ring-buffer"],
        instead: "use -b: -b filesize:100000 -b files:10",
    },
    Hint { commands: &["capture"], flags: &["--autostop"], instead: "use -a: -a duration:60" },
    Hint {
        commands: &["capture", "find", "generate"],
        flags: &["-o", "--output", "--out", "--outfile", "--file"],
        instead: "use -w FILE",
    },
    Hint {
        commands: &["capture", "count", "profile", "handle", "stats", "show", "replay", "generate"],
        flags: &["--device", "--dev", "--iface", "--intf", "--intf1"],
        instead: "use -i DEV",
    },
    Hint {
        commands: &[
            "capture", "count", "profile", "handle", "stats", "replay", "generate", "forward",
        ],
        flags: &["--seconds", "--time", "--timeout"],
        instead: "use --duration TIME: --duration 10s",
    },
    Hint {
        commands: &["capture", "count", "profile", "handle", "stats"],
        flags: &["--packets", "--limit"],
        instead: "use -c PACKETS",
    },
    Hint {
        commands: &["count", "profile", "handle", "stats", "show"],
        flags: &["-w", "--write"],
        instead: "to record: wirecap capture -i DEV -w FILE",
    },
    Hint {
        commands: &["find"],
        flags: &["-r", "--read"],
        instead: "name files without a flag: wirecap find FILE FILTER",
    },
    Hint {
        commands: &["find"],
        flags: &["-i", "--interface"],
        instead: "find reads recordings; to record: wirecap capture -i DEV -w FILE",
    },
    Hint {
        commands: &["find"],
        flags: &["-n", "-v", "-e", "-A", "-X", "-x", "-q", "-t", "-Y"],
        instead: "to see what it finds: wirecap find FILE FILTER | wirecap show -r -, with tcpdump's flags",
    },
    Hint {
        commands: &["find"],
        flags: &["-c"],
        instead: "for the first ones: wirecap find FILE FILTER | wirecap capture -r - -c 5 -w FILE",
    },
    Hint {
        commands: &["find"],
        flags: &["-F"],
        instead: "the extension selects the format: -w FILE.pcap, otherwise pcapng",
    },
    Hint {
        commands: &["find"],
        flags: &["-a"],
        instead: "find writes all packets in the order of time",
    },
    Hint {
        commands: &["replay"],
        flags: &["-r", "-f", "--read", "--file"],
        instead: "name the file without a flag: wirecap replay FILE -i DEV",
    },
    Hint {
        commands: &["replay"],
        flags: &["-M", "--mbps"],
        instead: "use --rate with a unit: --rate 100Mbps",
    },
    Hint {
        commands: &["replay"],
        flags: &["-p", "--pps"],
        instead: "use --rate with a unit: --rate 1000pps",
    },
    Hint { commands: &["replay"], flags: &["-L", "--limit"], instead: "use -c FRAMES" },
    Hint {
        commands: &["replay"],
        flags: &["-K", "--preload-pcap"],
        instead: "--top reads files of up to 1 GiB into memory first",
    },
    Hint {
        commands: &["generate"],
        flags: &["-p", "--pps"],
        instead: "use --rate FRAMES, per second: --rate 10k",
    },
    Hint {
        commands: &["generate"],
        flags: &["-n", "--packets", "--frames"],
        instead: "use -c FRAMES",
    },
    Hint {
        commands: &["generate"],
        flags: &["-r", "--read"],
        instead: "to send a file: wirecap replay FILE -i DEV",
    },
    Hint {
        commands: &["forward"],
        flags: &["-i", "--interface"],
        instead: "name the two interfaces without -i: wirecap forward eth1 eth2",
    },
    Hint { commands: &["forward"], flags: &["-w", "--write"], instead: "use --mirror FILE" },
];

/// What people call commands, and the commands that do it.
const MEANINGS: &[(&[&str], &str)] = &[
    (&["tcpdump"], "-i DEV` or `wirecap -r FILE"),
    (&["record", "save", "write", "sniff", "dumpcap", "start"], "capture -i DEV -w FILE"),
    (
        &["dump", "print", "read", "decode", "view", "tshark", "live"],
        "show -i DEV` or `wirecap show -r FILE",
    ),
    (&["merge", "mergecap"], "find FILE FILE -w FILE"),
    (&["search", "grep", "slice", "extract"], "find FILE FILTER -w FILE"),
    (&["convert", "editcap", "export", "compress"], "capture -r FILE -w FILE"),
    (&["bridge", "copy", "mirror"], "forward DEV DEV"),
    (&["send", "blast", "pktgen"], "generate -i DEV"),
    (&["play", "tcpreplay", "resend"], "replay FILE -i DEV"),
    (&["interfaces", "ifaces", "list", "nics", "ports"], "devices"),
    (&["check", "diagnose", "verify", "tune"], "doctor"),
    (&["capinfos", "summary", "info", "statistics"], "stats FILE"),
    (&["monitor", "watch"], "top"),
    (&["kill", "end", "quit"], "stop NAME"),
];

/// What does what people expect of a command that does not exist.
pub(crate) fn meaning(typed: &str) -> Option<&'static str> {
    let typed = typed.to_lowercase();
    let found = MEANINGS.iter().find(|(names, _)| names.contains(&typed.as_str()));
    found.map(|(_, command)| *command)
}

/// What to use instead of a flag that a command does not have.
pub(crate) fn hint(command: &str, flag: &str) -> Option<&'static str> {
    let flag = flag.split('=').next()?;
    let found =
        HINTS.iter().find(|hint| hint.commands.contains(&command) && hint.flags.contains(&flag));
    found.map(|hint| hint.instead)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::Cli;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        habits: Habits,
        #[arg(short, value_parser = savefile())]
        read: Option<std::path::PathBuf>,
        #[arg(short, value_parser = snap_len())]
        snap_len: Option<u32>,
    }

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Command::try_parse_from(std::iter::once("wirecap").chain(line.split_whitespace()))
    }

    #[test]
    fn flags_without_a_meaning_here_are_accepted() {
        let command = parse("-nn -l -l -q -q -y en10mb -r - -s 0").unwrap();
        assert!(command.habits.quiet && !command.habits.list_interfaces);
        assert_eq!(command.habits.linktype, Some(LINK_TYPES[0]));
        assert_eq!(command.read.unwrap().to_str(), Some("/dev/stdin"));
        assert_eq!(command.snap_len, Some(DEFAULT_SNAP_LEN));
        assert_eq!(parse("-s 96").unwrap().snap_len, Some(96));
        assert!(parse("-y IEEE802_11").unwrap_err().to_string().contains("expected EN10MB or RAW"));
    }

    #[test]
    fn a_hint_is_for_a_flag_or_a_command_that_does_not_exist() {
        let commands = Cli::command();

        for (names, meant) in MEANINGS {
            assert!(names.iter().all(|name| commands.find_subcommand(name).is_none()), "{names:?}");
            let first = meant.split(' ').next().unwrap();
            assert!(first == "-i" || commands.find_subcommand(first).is_some(), "{meant}");
        }

        for Hint { commands: names, flags, .. } in HINTS {
            for command in names.iter().map(|name| commands.find_subcommand(name).unwrap()) {
                let has = |flag: &str| {
                    command.get_arguments().any(|argument| match flag.strip_prefix("--") {
                        Some(long) => argument.get_long() == Some(long),
                        None => argument.get_short() == flag.chars().nth(1),
                    })
                };
                assert_eq!(flags.iter().find(|flag| has(flag)), None, "{}", command.get_name());
            }
        }
    }

    #[test]
    fn hints_are_by_meaning() {
        assert_eq!(meaning("Bridge"), Some("forward DEV DEV"));
        assert_eq!(meaning("reload"), None);
        assert_eq!(hint("replay", "--mbps=5"), Some("use --rate with a unit: --rate 100Mbps"));
        assert_eq!(hint("capture", "--mbps"), None);
        assert!(hint("capture", "-e").unwrap().contains("wirecap show"));
    }
}
