//! `-i`, and the options that each interface may have. As with dumpcap their position decides:
//! after an interface they apply to it, before the first one to all without their own.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use wirecap::device::{self, ChosenEngine, Device};
use wirecap::{DEFAULT_SNAP_LEN, Source};

use crate::shared::habits;

/// What to capture from.
#[derive(Debug, Clone)]
pub(crate) struct Interfaces {
    /// In the order of the command line, each with its own options.
    pub(crate) sources: Vec<Source>,
    /// Bytes kept of each packet, unless set for an interface.
    pub(crate) snap_len: u32,
}

const INTERFACES: &str = "interfaces";
const SNAP_LEN: &str = "snaplen";
const FILTER: &str = "interface_filter";
/// Needs no interface.
const LIST: &str = "list_interfaces";
/// All interfaces.
const ANY: &str = "any";

impl Args for Interfaces {
    fn augment_args(command: Command) -> Command {
        let interface = Arg::new(INTERFACES)
            .short('i')
            .long("interface")
            .value_name("DEV[@QUEUES]")
            .action(ArgAction::Append)
            .required_unless_present_any(["read", LIST])
            .help("Interface, or some of its receive queues: eth0, eth0@2, eth0@0-3; any: all, also those that appear later; repeatable");
        let snap_len = Arg::new(SNAP_LEN)
            .short('s')
            .long("snaplen")
            .value_name("BYTES")
            .value_parser(habits::snap_len())
            .action(ArgAction::Append)
            .help(format!(
                "Snap length of the preceding -i; before any -i: of all interfaces; 0 is the default \
                 [default: {DEFAULT_SNAP_LEN}]"
            ));
        let filter = Arg::new(FILTER)
            .short('f')
            .long("filter")
            .value_name("FILTER")
            .action(ArgAction::Append)
            .help("Filter for the preceding -i");
        command.arg(interface).arg(snap_len).arg(filter)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Interfaces {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let names: Vec<(usize, String)> = placed(matches, INTERFACES);
        let snap_lens = Scoped::new(&names, placed(matches, SNAP_LEN));
        let filters: Scoped<String> = Scoped::new(&names, placed(matches, FILTER));
        if filters.common.is_some() {
            let message = "-f must follow the -i that it applies to; write the filter for all other interfaces at the \
                           end, without -f";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
        }
        let words = matches.try_get_raw("words").ok().flatten().map_or(0, Iterator::count);
        if words > 0 && !names.is_empty() && filters.own.iter().all(Option::is_some) {
            let message = "each -i has its own -f, so the filter at the end has no interface: join them with and";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
        }
        if let Some((_, name)) =
            names.iter().find(|(_, name)| interface_of(name).contains([',', ':']))
        {
            return Err(clap::Error::raw(ErrorKind::InvalidValue, advice(name)));
        }
        // Only `auto` selects an engine for each interface.
        let engine = matches.try_get_raw("engine").ok().flatten().and_then(Iterator::last);
        let is_auto = engine.is_none_or(|engine| engine == "auto");
        let settings = snap_lens.own.into_iter().zip(filters.own);
        let mut sources = Vec::new();
        for ((_, name), (snap_len, filter)) in names.iter().zip(settings) {
            let with_settings = |source: Source| {
                let source = snap_len.into_iter().fold(source, Source::snap_len);
                filter.iter().cloned().fold(source, Source::filter)
            };
            match name == ANY {
                true => {
                    let is_named =
                        |port: &String| names.iter().any(|(_, name)| interface_of(name) == port);
                    let ports = if is_auto { dedicated_ports() } else { Vec::new() };
                    let ports = ports.into_iter().filter(|port| !is_named(port));
                    sources.extend(ports.map(|port| with_settings(Source::new(port))));
                    sources.push(with_settings(Source::any()));
                }
                false => sources.push(with_settings(Source::new(name))),
            }
        }
        Ok(Self { sources, snap_len: snap_lens.common.unwrap_or(DEFAULT_SNAP_LEN) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What to type instead of `eth1,eth2` or `zc:eth1`, which are no interfaces here.
fn advice(typed: &str) -> String {
    let names = typed.split(',').map(|name| name.rsplit(':').next().unwrap_or(name));
    let names: Vec<String> =
        names.filter(|name| !name.is_empty()).map(|name| format!("-i {name}")).collect();
    format!("-i {typed} is not an interface\nuse: {}", names.join(" "))
}

/// The name of an interface without its queues.
fn interface_of(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

/// The interfaces that `auto` captures by `xdp`: beside all interfaces, these are captured as if
/// they were named.
fn dedicated_ports() -> Vec<String> {
    let is_for_xdp = |device: &Device| {
        device.up && matches!(device.choose_engine().engine, ChosenEngine::Xdp(_))
    };
    let found = device::marked_names()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|name| Device::find(&name).ok());
    found.filter(is_for_xdp).map(|device| device.name).collect()
}

/// The values of an option, each with its place on the command line.
fn placed<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, option: &str) -> Vec<(usize, T)> {
    let values = matches.get_many(option).into_iter().flatten().cloned();
    matches.indices_of(option).into_iter().flatten().zip(values).collect()
}

/// The values of an option that may be for one interface. Where it is given twice in one place the
/// last counts.
#[derive(Debug, PartialEq)]
struct Scoped<T> {
    /// For interfaces without their own value.
    common: Option<T>,
    /// In the order of the interfaces.
    own: Vec<Option<T>>,
}

impl<T: Clone> Scoped<T> {
    fn new(interfaces: &[(usize, String)], values: Vec<(usize, T)>) -> Self {
        let mut scoped = Self { common: None, own: vec![None; interfaces.len()] };
        for (place, value) in values {
            let before = interfaces.iter().filter(|(interface, _)| *interface < place).count();
            let slot = if before == 0 { &mut scoped.common } else { &mut scoped.own[before - 1] };
            *slot = Some(value);
        }
        scoped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ArgMatches, clap::Error> {
        let read = Arg::new("read").short('r').conflicts_with(INTERFACES);
        let list = Arg::new(LIST).short('D').action(ArgAction::SetTrue);
        let command = Interfaces::augment_args(Command::new("test").arg(read).arg(list));
        command.try_get_matches_from(["test"].into_iter().chain(line.split_whitespace()))
    }

    fn scoped(line: &str) -> (Option<u32>, Vec<Option<u32>>) {
        let matches = parse(line).unwrap();
        let scoped = Scoped::new(&placed(&matches, INTERFACES), placed(&matches, SNAP_LEN));
        (scoped.common, scoped.own)
    }

    #[test]
    fn an_option_is_for_the_interface_before_it_or_for_all_if_there_is_none() {
        assert_eq!(scoped("-i a"), (None, vec![None]));
        assert_eq!(scoped("-i a -s 96"), (None, vec![Some(96)]));
        assert_eq!(scoped("-s 96 -i a"), (Some(96), vec![None]));
        assert_eq!(scoped("-i a -s 96 -i b"), (None, vec![Some(96), None]));
        assert_eq!(scoped("-s 64 -i a -i b -s 96"), (Some(64), vec![None, Some(96)]));
        assert_eq!(scoped("-s 1 -s 2 -i a -s 3 --snaplen=4"), (Some(2), vec![Some(4)]));
        assert_eq!(scoped("-r file -s 96"), (Some(96), vec![]));
    }

    #[test]
    fn a_filter_follows_its_interface_on_the_command_line() {
        let sources = |line| {
            Interfaces::from_arg_matches(&parse(line).unwrap()).map(|read| read.sources.len())
        };
        assert_eq!(sources("-i a -f udp -i b").unwrap(), 2);
        for line in ["-f udp -i a", "-r file -f udp"] {
            assert!(sources(line).unwrap_err().to_string().contains("must follow the -i"));
        }
    }

    #[test]
    fn something_to_capture_from_is_needed() {
        assert!(
            parse("-D").is_ok()
                && parse("-s 96").is_err()
                && parse("-i a -s none").is_err()
                && parse("-i a -r b").is_err()
        );
    }
}
