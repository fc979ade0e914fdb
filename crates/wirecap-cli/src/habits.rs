//! Flags of tcpdump and dumpcap: they work, or the error names the equivalent flag.

use std::ffi::OsStr;

use clap::builder::{PathBufValueParser, StyledStr, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Args};
use wirecap::savefile::LinkType;
use wirecap::{Capture, DEFAULT_SNAP_LEN};

use crate::failure::Failure;

/// Flags with the same meaning as in tcpdump and dumpcap.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "As in tcpdump and dumpcap")]
pub(crate) struct Habits {
    /// List the interfaces and end, as wirecap devices
    #[arg(short = 'D', long, overrides_with = "list_interfaces")]
    pub(crate) list_interfaces: bool,

    /// Do not print packet counts while capturing
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
    found.ok_or_else(|| "expected EN10MB or RAW: packets have the link layer of their interface".to_owned())
}

impl Habits {
    /// Whether the link type is the requested one.
    pub(crate) fn check(&self, capture: &Capture) -> Result<(), Failure> {
        let Some(Named(wanted, name)) = self.linktype else { return Ok(()) };
        let seen = capture.seen_interfaces().map(|seen| seen.list()).unwrap_or_default();
        let link_types = capture
            .named_interfaces()
            .map(|interface| (interface.device.name.clone(), interface.device.savefile_link_type()));
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
pub(crate) fn savefile() -> impl TypedValueParser<Value = std::path::PathBuf> {
    PathBufValueParser::new().map(|path| if path.as_os_str() == "-" { "/dev/stdin".into() } else { path })
}

/// The number of `-s`: 0 is the default.
pub(crate) fn snap_len() -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).map(|bytes| if bytes == 0 { DEFAULT_SNAP_LEN } else { bytes })
}

/// Unsupported flags, and their replacements.
const HINTS: [(&str, &str); 6] = [
    (
        "AeKNOStuvXx#",
        "capture does not print packets; use `wirecap show -i DEV -e -v`, with tcpdump's own flags",
    ),
    (
        "B",
        "use `--buffer SIZE`, the memory of all rings: `--buffer 4M` for tcpdump's -B 4096 and dumpcap's -B 4",
    ),
    ("I", "set the interface to monitor mode with iw(8) first"),
    ("L", "each interface has one link layer, which is used"),
    ("P", "use `--format pcap`, or a file name that ends in .pcap"),
    ("jJ", "use `--timestamp packet`, `batch` or `hardware`"),
];

/// What people call commands, and the commands that do it.
const MEANINGS: [(&[&str], &str); 11] = [
    (&["record", "save", "write", "sniff", "tcpdump", "dumpcap"], "capture -i DEV -w FILE"),
    (&["dump", "print", "read", "decode", "view", "tshark", "live"], "show -i DEV` or `wirecap show -r FILE"),
    (&["merge", "mergecap", "search", "grep", "slice"], "find DIR -w FILE"),
    (&["convert", "editcap", "export", "compress"], "capture -r FILE -w FILE"),
    (&["bridge", "copy", "mirror"], "forward IN OUT"),
    (&["send", "blast", "pktgen"], "generate"),
    (&["play", "tcpreplay", "resend"], "replay"),
    (&["interfaces", "ifaces", "list", "nics", "ports"], "devices"),
    (&["check", "diagnose", "verify", "tune"], "doctor"),
    (&["capinfos", "summary", "info", "statistics"], "stats FILE"),
    (&["kill", "end", "quit"], "stop"),
];

/// Replaces the suggestion of a command with a similar spelling by one with the same meaning.
pub(crate) fn with_command(mut error: clap::Error, typed: &OsStr) -> clap::Error {
    let meant = typed.to_str().map(str::to_lowercase);
    let meant = meant.and_then(|typed| MEANINGS.iter().find(|(names, _)| names.contains(&typed.as_str())));
    if let Some((_, command)) = meant {
        error.remove(ContextKind::SuggestedSubcommand);
        let hint = vec![StyledStr::from(format!("use `wirecap {command}`"))];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(hint));
    }
    error
}

/// Adds the replacement to the error about an unsupported flag of tcpdump or dumpcap.
pub(crate) fn with_hint(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return error };
    let flag = argument.strip_prefix('-').and_then(|flags| flags.chars().next());
    let hint = HINTS.iter().find(|(flags, _)| flag.is_some_and(|flag| flags.contains(flag)));
    if error.kind() == ErrorKind::UnknownArgument
        && let Some((_, hint)) = hint
    {
        let hint = vec![StyledStr::from(*hint)];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(hint));
    }
    error
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

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
    fn a_command_that_does_not_exist_is_suggested_by_meaning() {
        let command = clap::Command::new("wirecap")
            .subcommands(["capture", "reload", "find", "show", "forward"].map(clap::Command::new));
        let error = |typed: &str| {
            let error = command
                .clone()
                .subcommand_required(true)
                .try_get_matches_from(["wirecap", typed])
                .unwrap_err();
            with_command(error, OsStr::new(typed)).to_string()
        };
        for (typed, hint) in [
            ("record", "use `wirecap capture -i DEV -w FILE`"),
            ("dump", "use `wirecap show -i DEV`"),
            ("merge", "use `wirecap find DIR -w FILE`"),
            ("Bridge", "use `wirecap forward IN OUT`"),
        ] {
            let error = error(typed);
            assert!(error.contains(hint) && !error.contains("similar"), "{error}");
        }
        assert!(error("captur").contains("'capture'"), "{}", error("captur"));
    }

    #[test]
    fn flags_that_are_not_taken_have_a_hint() {
        for (line, words) in [
            ("-e", "wirecap show"),
            ("-B 4096", "--buffer 4M"),
            ("-I", "monitor mode"),
            ("-P", "--format pcap"),
            ("-j host", "--timestamp packet"),
        ] {
            let error = with_hint(parse(line).unwrap_err()).to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
        let other = with_hint(parse("--frobnicate").unwrap_err()).to_string();
        assert!(!other.contains("wirecap show"), "{other}");
    }
}
