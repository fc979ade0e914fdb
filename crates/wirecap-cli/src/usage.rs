//! Errors of the command line, in two lines: what is wrong, and what to type.

use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};
use strsim::osa_distance;
use wirecap::device::Device;

use crate::Cli;
use crate::shared::habits;

/// The error about these arguments of this process, whose first one is its own name.
pub(crate) fn explained(error: &clap::Error, arguments: &[OsString]) -> String {
    let words: Vec<&str> =
        arguments.iter().skip(1).map(|word| word.to_str().unwrap_or_default()).collect();
    let wrong = Wrong { error, words: &words };
    match wrong.text() {
        Some((problem, advice)) => match advice {
            Some(advice) => format!("{problem}\n{advice}"),
            None => problem,
        },
        // Text of our own, or a kind of error that none of our options causes.
        None => first_paragraph(&error.to_string()),
    }
}

/// A usage error, and the words that caused it.
struct Wrong<'a> {
    error: &'a clap::Error,
    words: &'a [&'a str],
}

/// What is wrong, and what to do about it.
type Text = (String, Option<String>);

impl Wrong<'_> {
    fn text(&self) -> Option<Text> {
        match self.error.kind() {
            ErrorKind::InvalidSubcommand => self.unknown_command(),
            ErrorKind::UnknownArgument => self.unknown_option(),
            ErrorKind::MissingRequiredArgument => self.missing(),
            ErrorKind::InvalidValue | ErrorKind::ValueValidation => self.invalid_value(),
            ErrorKind::ArgumentConflict => {
                let option = plain(self.string(ContextKind::InvalidArg)?);
                let others = self.strings(ContextKind::PriorArg)?;
                let others: Vec<String> = others.into_iter().map(plain).collect();
                Some((
                    format!("{option} cannot be used with {}: omit one", others.join(", ")),
                    None,
                ))
            }
            _ => None,
        }
    }

    fn unknown_command(&self) -> Option<Text> {
        let typed = self.string(ContextKind::InvalidSubcommand)?;
        let command = self.command();
        let is_first = self.words.first() == Some(&typed);
        let similar = self.strings(ContextKind::SuggestedSubcommand).unwrap_or_default();
        let similar = similar.into_iter().find(|name| is_close(name, typed));
        let advice = match (habits::meaning(typed).filter(|_| is_first), similar) {
            (Some(meant), _) => format!("use `wirecap {meant}`"),
            (None, Some(similar)) => format!("did you mean `{command} {similar}`?"),
            (None, None) if is_first && is_interface(typed) => {
                format!("to see its packets: wirecap -i {typed}")
            }
            (None, None) if is_first && Path::new(typed).is_file() => {
                format!("to see its packets: wirecap -r {typed}")
            }
            (None, None) => format!("{command} --help lists the commands"),
        };

        Some((format!("no command {typed}"), Some(advice)))
    }

    fn unknown_option(&self) -> Option<Text> {
        let typed = self.string(ContextKind::InvalidArg)?;
        let command = self.command();
        let name = command.split(' ').nth(1).unwrap_or_default();
        let similar =
            self.string(ContextKind::SuggestedArg).filter(|option| is_close(option, typed));
        let advice = match (habits::hint(name, typed), similar) {
            (Some(hint), _) => hint.to_owned(),
            (None, Some(similar)) => format!("did you mean {similar}?"),
            (None, None) if name == "devices" && is_interface(typed) => {
                format!("wirecap devices lists all; one in detail: wirecap doctor {typed}")
            }
            (None, None) => format!("see {command} --help"),
        };

        let kind = if typed.starts_with('-') { "option" } else { "argument" };
        Some((format!("{name} has no {kind} {typed}"), Some(advice)))
    }

    fn missing(&self) -> Option<Text> {
        let missing: Vec<String> =
            self.strings(ContextKind::InvalidArg)?.into_iter().map(plain).collect();
        let is_missing = |option: &str| missing.iter().any(|missing| missing.starts_with(option));
        let command = self.command();
        let name = command.split(' ').nth(1).unwrap_or_default();
        let others = self.words.iter().skip(1).filter(|word| !word.starts_with('-'));
        let interface = others.clone().find(|word| is_interface(word));
        let file = others.clone().find(|word| Path::new(word).is_file());
        let reads = name != "replay" && name != "generate";

        let advice = match (interface, file) {
            (Some(interface), _) if is_missing("--interface") => {
                format!("write -i before the interface: -i {interface}")
            }
            (_, Some(file)) if is_missing("--interface") && reads && name != "stats" => {
                format!("write -r before the file that is to be read: -r {file}")
            }
            _ if is_missing("--write") && is_missing("--interface") => {
                "wirecap capture -i DEV -w FILE; wirecap devices lists the interfaces".to_owned()
            }
            _ if is_missing("--write") => {
                let source = self.source().unwrap_or_else(|| "-i DEV".to_owned());
                format!("add -w FILE; to see the packets instead: wirecap show {source}")
            }
            _ if name == "forward" => "name two interfaces: wirecap forward eth1 eth2".to_owned(),
            _ if name == "stats" => {
                "wirecap stats FILE or DIRECTORY; of an interface: wirecap stats -i DEV".to_owned()
            }
            _ if is_missing("--interface") && reads => {
                "add -i DEV (wirecap devices lists them), or -r FILE".to_owned()
            }
            _ if is_missing("<NAME>") || is_missing("NAME") => {
                format!("{}; wirecap status lists the names", self.usage()?)
            }
            _ => self.usage()?,
        };
        Some((format!("{name} needs {}", missing.join(" and ")), Some(advice)))
    }

    fn invalid_value(&self) -> Option<Text> {
        let option = plain(self.string(ContextKind::InvalidArg)?);
        let (name, value_name) = option.split_once(' ').unwrap_or((&option, ""));
        let value = self.string(ContextKind::InvalidValue).unwrap_or_default();
        if value.is_empty() {
            return Some((format!("{name} needs a value: {name} {value_name}"), None));
        }

        let reason = match self.strings(ContextKind::ValidValue) {
            Some(values) => format!("expected {}", listed(&values)),
            None => reason(self.error.source()?.to_string()),
        };

        // Long ones are quoted by their reasons.
        let is_quoted = value.len() > 3 && reason.contains(value);
        let shown = if is_quoted { name.to_owned() } else { format!("{name} {value}") };
        Some((format!("{shown}: {reason}"), None))
    }

    /// The command as far as it was understood: `wirecap lab`.
    fn command(&self) -> String {
        let mut text = "wirecap".to_owned();
        let mut command: Command = Cli::command();
        for word in self.words {
            let Some(found) = command.find_subcommand(word) else { break };
            let _in_memory = write!(text, " {word}");
            command = found.clone();
        }
        text
    }

    /// `-i eth1` or `-r FILE`, as it was typed.
    fn source(&self) -> Option<String> {
        let place = self
            .words
            .iter()
            .position(|word| matches!(*word, "-i" | "--interface" | "-r" | "--read"))?;
        Some(format!("{} {}", self.words[place], self.words.get(place + 1)?))
    }

    /// `usage: wirecap stop NAME`.
    fn usage(&self) -> Option<String> {
        let ContextValue::StyledStr(usage) = self.error.get(ContextKind::Usage)? else {
            return None;
        };
        let usage = usage.to_string();
        let usage = usage.trim().strip_prefix("Usage: ").unwrap_or(usage.trim());
        // clap names the program as it was called.
        let usage = usage.split_once(' ').map_or(usage, |(_, rest)| rest);
        Some(format!("usage: wirecap {}", plain(usage)))
    }

    fn string(&self, kind: ContextKind) -> Option<&str> {
        match self.error.get(kind)? {
            ContextValue::String(text) => Some(text),
            ContextValue::Strings(texts) => texts.first().map(String::as_str),
            _ => None,
        }
    }

    fn strings(&self, kind: ContextKind) -> Option<Vec<&str>> {
        match self.error.get(kind)? {
            ContextValue::String(text) => Some(vec![text]),
            ContextValue::Strings(texts) => Some(texts.iter().map(String::as_str).collect()),
            _ => None,
        }
    }
}

/// `--interface DEV` of `--interface <DEV>`.
fn plain(option: &str) -> String {
    option.replace(['<', '>'], "")
}

/// Names with `or` before the last.
fn listed(names: &[&str]) -> String {
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

/// The reason of a parser of the standard library or of clap, in words for people.
fn reason(text: String) -> String {
    if text.contains("invalid digit found") || text.contains("cannot parse integer") {
        return "expected a number".to_owned();
    }
    match text.strip_prefix("0 is not in 1..") {
        Some(_) => "expected a number above 0".to_owned(),
        None => text,
    }
}

/// Whether two words differ so little that one is the other mistyped.
fn is_close(one: &str, other: &str) -> bool {
    #[cfg(sabotage)]
    if crate::sabotage::is("any-similar-option") {
        return true;
    }
    let one = one.trim_start_matches('-');
    let other = other.trim_start_matches('-');
    osa_distance(one, other) <= 1 + one.len().min(other.len()) / 6
}

fn is_interface(word: &str) -> bool {
    let name = word.split('@').next().unwrap_or(word);
    name == "any" || Device::find(name).is_ok()
}

/// The text before the first empty line, without `error:`.
fn first_paragraph(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    text.split("\n\n").next().unwrap_or(text).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let error = Cli::command().try_get_matches_from(&words).unwrap_err();
        explained(&error, &words)
    }

    #[test]
    fn an_error_of_the_command_line_has_its_cause_and_then_what_to_type() {
        for (line, text) in [
            ("wirecap captur -i x", "no command captur\ndid you mean `wirecap capture`?"),
            ("wirecap frobnicate", "no command frobnicate\nwirecap --help lists the commands"),
            ("wirecap merge a b", "no command merge\nuse `wirecap find FILE FILE -w FILE`"),
            ("wirecap capture --froce", "capture has no option --froce\ndid you mean --force?"),
            (
                "wirecap capture --nonsense",
                "capture has no option --nonsense\nsee wirecap capture --help",
            ),
            (
                "wirecap stop",
                "stop needs NAME\nusage: wirecap stop NAME; wirecap status lists the names",
            ),
            (
                "wirecap replay f.pcap",
                "replay needs --interface DEV\nusage: wirecap replay --interface DEV FILE",
            ),
            ("wirecap count -i x -c ten", "--count ten: expected a number"),
            ("wirecap count -i x -c 0", "--count 0: expected a number above 0"),
            ("wirecap count -i x -c", "--count needs a value: --count PACKETS"),
            ("wirecap count -i x --engine dpdk", "--engine dpdk: expected auto, xdp or packet"),
            (
                "wirecap count -i x --duration 9q",
                "--duration 9q: unknown unit \"q\": expected ms, s, m, h, d or w",
            ),
            (
                "wirecap count -i x -r y",
                "--interface DEV[@QUEUES] cannot be used with --read FILE: omit one",
            ),
            (
                "wirecap capture -i eth9",
                "capture needs --write FILE\nadd -w FILE; to see the packets instead: wirecap show -i eth9",
            ),
        ] {
            assert_eq!(said(line), text, "{line}");
        }
    }

    #[test]
    fn only_a_word_that_is_mistyped_is_suggested() {
        for (one, other) in
            [("--froce", "--force"), ("captur", "capture"), ("dedciate", "dedicate")]
        {
            assert!(is_close(one, other), "{one} {other}");
        }
        for (one, other) in [("--threads", "--read"), ("--output", "--count"), ("--print", "--pin")]
        {
            assert!(!is_close(one, other), "{one} {other}");
        }
    }
}
