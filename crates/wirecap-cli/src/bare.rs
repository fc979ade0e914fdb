//! `wirecap` without a command, as one types tcpdump: with `-w` it captures, otherwise it shows
//! packets.
//!
//! Which flags have a value is known from the flags of `wirecap capture`, and from the table of
//! tcpdump's flags that `show` has.

use std::ffi::OsString;

use clap::{Arg, Command, CommandFactory};

use crate::Cli;
use crate::watch::show::flags::{Use, of_tcpdump, of_tcpdump_long};

/// Flags that ask `wirecap` itself, and are no flags of a capture.
const OWN: [&str; 5] = ["-h", "--help", "-V", "--version", "-D"];

/// A word of the command line, or a part of it.
#[derive(Debug)]
enum Word {
    /// A flag of `wirecap capture`, or an unknown one, as it was typed; of a word like `-nn`, each
    /// letter.
    Flag(OsString),
    /// A flag that only tcpdump has, what becomes of it, and its value.
    Foreign(OsString, Use, Option<OsString>),
    /// A value, or a word of the filter.
    Other(OsString),
}

/// The arguments of this process, with the command that tcpdump's flags mean if they begin with a
/// flag.
pub(crate) fn with_command(arguments: Vec<OsString>) -> Vec<OsString> {
    let Some((program, words)) = arguments.split_first() else { return arguments };
    let is_bare = words.first().and_then(|first| first.to_str()).is_some_and(|first| {
        first.len() > 1 && first.starts_with('-') && first != "--" && !OWN.contains(&first)
    });
    if !is_bare {
        return arguments;
    }

    let commands = Cli::command();
    let divided =
        divide(words, commands.find_subcommand("capture").expect("it is one of the commands"));
    let (command, words) = match divided.iter().any(Word::is_write) {
        true => ("capture", divided.into_iter().flat_map(Word::of_capture).collect()),
        false => ("show", words.to_vec()),
    };

    [program.clone(), command.into()].into_iter().chain(words).collect()
}

/// Divides `-nni eth1` into `-n`, `-n`, `-i` and its value. Words after `--` are no flags.
fn divide(words: &[OsString], capture: &Command) -> Vec<Word> {
    let mut divided = Vec::new();
    let mut words = words.iter().cloned();
    while let Some(word) = words.next() {
        let text = word.to_str().filter(|text| text.len() > 1).unwrap_or_default();
        if text == "--" {
            divided.push(Word::Other(word));
            divided.extend(words.by_ref().map(Word::Other));
        } else if let Some(long) = text.strip_prefix("--") {
            let (name, value) = long
                .split_once('=')
                .map_or((long, None), |(name, value)| (name, Some(OsString::from(value))));
            divided.push(match of_tcpdump_long(name).filter(|_| !has_long(capture, name)) {
                Some(used) => {
                    let next = if has_value(used) && value.is_none() { words.next() } else { None };
                    Word::Foreign(word, used, value.or(next))
                }
                // A value in the next word does not begin with a hyphen, so it need not be known as
                // one.
                None => Word::Flag(word),
            });
        } else if let Some(letters) = text.strip_prefix('-') {
            divide_letters(letters, capture, &mut words, &mut divided);
        } else {
            divided.push(Word::Other(word));
        }
    }

    divided
}

/// Divides a word of several letters, the last of which may have a value.
fn divide_letters(
    letters: &str,
    capture: &Command,
    words: &mut impl Iterator<Item = OsString>,
    divided: &mut Vec<Word>,
) {
    for (at, letter) in letters.char_indices() {
        let flag = OsString::from(format!("-{letter}"));
        let rest = &letters[at + letter.len_utf8()..];
        let mut value = || if rest.is_empty() { words.next() } else { Some(rest.into()) };
        let own = capture.get_arguments().find(|argument| argument.get_short() == Some(letter));

        if let Some(own) = own {
            divided.push(Word::Flag(flag));
            if own.get_action().takes_values() {
                divided.extend(value().map(Word::Other));
                return;
            }
            continue;
        }

        match of_tcpdump(letter) {
            Some(used) if has_value(used) => {
                divided.push(Word::Foreign(flag, used, value()));
                return;
            }
            Some(used) => {
                divided.push(Word::Foreign(flag, used, None));
                if matches!(used, Use::No(_)) {
                    // The command will be refused: the rest may be a value.
                    return;
                }
            }
            None => divided.push(Word::Flag(flag)),
        }
    }
}

fn has_long(capture: &Command, name: &str) -> bool {
    let is_named = |argument: &Arg| {
        argument.get_long() == Some(name)
            || argument.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    };
    capture.get_arguments().any(is_named)
}

fn has_value(used: Use) -> bool {
    matches!(used, Use::DecodeValue | Use::CaptureValue(_) | Use::Buffer(_))
}

impl Word {
    fn is_write(&self) -> bool {
        let Self::Flag(flag) = self else { return false };
        matches!(flag.to_str().and_then(|text| text.split('=').next()), Some("-w" | "--write"))
    }

    /// The words of `wirecap capture` for it: none for a flag that changes only what is printed.
    fn of_capture(self) -> Vec<OsString> {
        match self {
            Self::Flag(word) | Self::Other(word) => vec![word],
            // With this flag, tcpdump writes and prints.
            Self::Foreign(flag, Use::Decode, _) if flag == "--print" => vec![flag],
            Self::Foreign(_, Use::Decode | Use::DecodeValue | Use::Nothing, _) => Vec::new(),
            Self::Foreign(_, Use::Capture(name), _) => vec![name.into()],
            Self::Foreign(_, Use::CaptureValue(name), value) => {
                std::iter::once(name.into()).chain(value).collect()
            }
            Self::Foreign(_, Use::Buffer(unit), value) => {
                let size = value.map(|mut size| {
                    size.push(unit);
                    size
                });
                std::iter::once("--buffer".into()).chain(size).collect()
            }
            Self::Foreign(flag, _, value) => std::iter::once(flag).chain(value).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn command(line: &str) -> String {
        let words = line.split_whitespace().map(OsString::from).collect();
        with_command(words).join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn flags_without_a_command_capture_with_w_and_otherwise_show() {
        for (line, meant) in [
            ("wirecap -i eth1", "wirecap show -i eth1"),
            ("wirecap -nnvvi eth1 port 53", "wirecap show -nnvvi eth1 port 53"),
            ("wirecap -nr f.pcap", "wirecap show -nr f.pcap"),
            ("wirecap -i eth1 -w f.pcap", "wirecap capture -i eth1 -w f.pcap"),
            (
                "wirecap -nnvvi eth1 -wf.pcap udp",
                "wirecap capture -n -n -v -v -i eth1 -w f.pcap udp",
            ),
            ("wirecap -r in.pcap -w out.pcap tcp", "wirecap capture -r in.pcap -w out.pcap tcp"),
            (
                "wirecap -i eth1 -B 4096 -s0 -w -",
                "wirecap capture -i eth1 --buffer 4096K -s 0 -w -",
            ),
            ("wirecap -i eth1 --write=f", "wirecap capture -i eth1 --write=f"),
            ("wirecap -i eth1 --number --nano -w f", "wirecap capture -i eth1 -w f"),
            ("wirecap --buffer-size 64 -i eth1 -w f", "wirecap capture --buffer 64K -i eth1 -w f"),
            ("wirecap --snapshot-length=96 -i eth1 -w f", "wirecap capture -s 96 -i eth1 -w f"),
            ("wirecap -ni eth1 -E x -m /mib -w f", "wirecap capture -n -i eth1 -w f"),
            ("wirecap -i eth1 -jhost_lowprec -w f", "wirecap capture -i eth1 -j -w f"),
            ("wirecap -i eth1 -b filesize:9 -w f", "wirecap capture -i eth1 -b filesize:9 -w f"),
            ("wirecap -i eth1 --print -w f", "wirecap capture -i eth1 --print -w f"),
            ("wirecap -i eth1 -c 5 -- -w", "wirecap show -i eth1 -c 5 -- -w"),
        ] {
            assert_eq!(command(line), meant);
        }
    }

    #[test]
    fn commands_help_and_version_stay() {
        for line in [
            "wirecap",
            "wirecap capture -w f",
            "wirecap -h",
            "wirecap --version",
            "wirecap -D",
            "wirecap -",
        ] {
            assert_eq!(command(line), line);
        }
    }

    #[test]
    fn a_value_that_looks_like_a_flag_is_a_value() {
        assert_eq!(command("wirecap -i -w -c 1"), "wirecap show -i -w -c 1");
    }
}
