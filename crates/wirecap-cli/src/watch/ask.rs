//! `wirecap status`, `stop`, `filter`, `rotate` and `events`: requests to a running capture over
//! its control socket.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use wirecap::grouped;

use crate::record::capture;
use crate::shared::control::client::{Remote, Unreachable, names, parse_name};
use crate::shared::failure::Failure;
use crate::shared::output;
use crate::size;

/// Show the state of running captures
///
/// Without NAME: one line per capture on this host. With NAME: one line per ring.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 all queried captures answered (or, without NAME, no capture runs), 1 a capture did not answer, \
                  access was denied, or no capture has this name."
)]
pub(crate) struct StatusArguments {
    /// The capture's name [default: all captures]
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,

    /// Print one JSON object per line and capture
    #[arg(long)]
    json: bool,
}

/// Stop a running capture, like Ctrl-C, and wait for its ledger
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 no packet lost, 3 packets lost, 1 the capture failed or did not end in time, \
                  access was denied, or no capture has this name."
)]
pub(crate) struct StopArguments {
    /// The capture's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,

    /// Wait at most this long; the capture stops in any case [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = size::duration)]
    timeout: Option<Duration>,

    /// Print the final ledger as one JSON object
    #[arg(long)]
    json: bool,
}

/// Change the filter of a running capture, on all its interfaces
///
/// Packets that match both filters are neither lost nor captured twice. For forward, it replaces
/// --filter; --drop still applies.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 the filter was changed, 1 it is unchanged.")]
pub(crate) struct FilterArguments {
    /// The capture's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,

    /// The new filter, see pcap-filter(7); '' captures all packets
    #[arg(value_name = "FILTER", required = true, trailing_var_arg = true)]
    words: Vec<String>,
}

/// Reread the configuration file of a running capture, without losing a packet
///
/// Filter, file rotation and budgets take effect at once, and the next file starts. Other changes
/// take effect with the next start.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 the file was reread, 1 it cannot be read or is invalid; nothing was changed."
)]
pub(crate) struct ReloadArguments {
    /// The capture's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,
}

/// Start the next file of a running capture, like SIGHUP
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 requested, 1 rejected: the capture does not write a set of files (see --file-time and --file-size)."
)]
pub(crate) struct RotateArguments {
    /// The capture's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,
}

/// Print the events of a running capture until it ends, one JSON object per line
///
/// Starts with the most recent events, at most 256. If the reader is slow, an event reports the
/// number of missed events.
#[derive(Debug, Args)]
pub(crate) struct EventsArguments {
    /// The capture's name
    #[arg(value_name = "NAME", value_parser = parse_name)]
    name: String,
}

pub(crate) fn status(arguments: &StatusArguments) -> Result<(), Failure> {
    let status_of = |name: &str| {
        let mut remote = Remote::connect(name)?;
        Ok(remote.ask(&json!({ "command": "status" })))
    };

    if let Some(name) = &arguments.name {
        let status = status_of(name).map_err(Failure::from)??;
        return match arguments.json {
            true => output::print(status),
            false => details(&status).iter().try_for_each(output::print),
        };
    }

    let mut statuses = Vec::new();
    let mut outcome = Ok(());

    for name in names()? {
        match status_of(&name) {
            Ok(Ok(status)) => statuses.push(status),
            // It has ended, or was killed.
            Err(Unreachable::None(_)) => {}
            Err(unreachable) => outcome = Err(unreachable.into()),
            // Each is reported, all but the last here.
            Ok(Err(failure)) => {
                let before = std::mem::replace(&mut outcome, Err(failure));
                before.err().iter().for_each(|failure| eprintln!("wirecap: {failure}"));
            }
        }
    }

    if arguments.json {
        statuses.iter().try_for_each(output::print)?;
    } else if !statuses.is_empty() {
        overview(&statuses).iter().try_for_each(output::print)?;
    } else if outcome.is_ok() {
        eprintln!("no capture is running");
    }

    outcome
}

pub(crate) fn stop(arguments: &StopArguments) -> Result<(), Failure> {
    let mut remote = Remote::connect(&arguments.name)?;
    remote.wait_for(arguments.timeout)?;

    let end = remote.ask(&json!({ "command": "stop" }))?;
    let ledger = &end["ledger"];

    match arguments.json {
        true => output::print(ledger)?,
        false => output::print(format!(
            "{}: {} packets delivered; {}",
            arguments.name,
            count(&ledger["delivered"]),
            text(&end["verdict"])
        ))?,
    }

    match (&end["error"], &ledger["lossless"]) {
        (Value::String(error), _) => Err(Failure::Failed(error.clone().into())),
        (_, Value::Bool(true)) => Ok(()),
        _ => Err(Failure::Lossy),
    }
}

pub(crate) fn filter(arguments: &FilterArguments) -> Result<(), Failure> {
    let request = json!({ "command": "filter", "expression": arguments.words.join(" ") });
    Remote::connect(&arguments.name)?.ask(&request).map(drop)
}

pub(crate) fn reload(arguments: &ReloadArguments) -> Result<(), Failure> {
    let mut remote = Remote::connect(&arguments.name)?;
    let status = remote.ask(&json!({ "command": "status" }))?;
    let words = status["arguments"].as_array().into_iter().flatten();
    let words: Vec<OsString> = words.filter_map(|word| word.as_str().map(OsString::from)).collect();
    let directory = Path::new(status["directory"].as_str().unwrap_or("/"));
    let request = capture::reload_request(&words, directory)?;
    remote.ask(&request).map(drop)
}

pub(crate) fn rotate(arguments: &RotateArguments) -> Result<(), Failure> {
    Remote::connect(&arguments.name)?.ask(&json!({ "command": "rotate" })).map(drop)
}

pub(crate) fn events(arguments: &EventsArguments) -> Result<(), Failure> {
    let mut remote = Remote::connect(&arguments.name)?;
    remote.ask(&json!({ "command": "events" }))?;
    remote.wait_for(None)?;
    while let Some(event) = remote.next()? {
        output::print(event)?;
    }
    Ok(())
}

/// A line for each capture, of 80 columns unless a name or a count is very long.
fn overview(statuses: &[Value]) -> Vec<String> {
    let head = row("capture", ["command", "running", "delivered", "lost", "waiting", "lossless"]);
    let line = |status: &Value| {
        let ledger = &status["ledger"];
        let waiting: u64 = status["pool"]["rings"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|ring| number(&ring["waiting"]))
            .sum();
        row(
            text(&status["name"]),
            [
                text(&status["command"]),
                &running_for(ledger["duration_s"].as_f64().unwrap_or_default()),
                &count(&ledger["delivered"]),
                &grouped(dropped(ledger)),
                &grouped(waiting),
                if ledger["lossless"] == true { "yes" } else { "no" },
            ],
        )
    };
    std::iter::once(head).chain(statuses.iter().map(line)).collect()
}

/// A name that is wider than its column is on a separate line.
fn row(name: &str, [command, time, delivered, lost, waiting, lossless]: [&str; 6]) -> String {
    let name =
        if name.chars().count() > 16 { format!("{name}\n{:16}", "") } else { name.to_owned() };
    format!(
        "{name:<16} {command:<8} {time:>9} {delivered:>15} {lost:>9} {waiting:>9} {lossless:>8}"
    )
}

/// The description of one capture: its identity, interfaces, rings, file, and verdict.
fn details(status: &Value) -> Vec<String> {
    let ledger = &status["ledger"];
    let identity = format!(
        "{}, process {}, {} engine, {}, {} {} {}",
        text(&status["command"]),
        status["pid"],
        text(&ledger["engine"]),
        text(&ledger["mode"]),
        text(&status["state"]),
        if status["state"] == "running" { "for" } else { "after" },
        running_for(ledger["duration_s"].as_f64().unwrap_or_default()),
    );

    let name = text(&status["name"]);
    let mut lines = match name.chars().count() + 2 + identity.len() {
        ..=80 => vec![format!("{name}: {identity}")],
        _ => vec![format!("{name}:"), format!("  {identity}")],
    };

    for interface in status["interfaces"].as_array().into_iter().flatten() {
        if let Value::String(filter) = &interface["filter"] {
            lines.push(format!("{}: filter: {filter}", text(&interface["name"])));
        }
    }

    let ring = |name: &str, account: &Value, waiting: u64| {
        ring_row(
            name,
            [
                &count(&account["delivered"]),
                &count(&account["filtered"]),
                &grouped(dropped(account)),
                &grouped(waiting),
            ],
        )
    };
    lines.push(ring_row("ring", ["delivered", "filtered", "lost", "waiting"]));

    let rings = ledger["rings"].as_array().into_iter().flatten();
    let waiting: Vec<u64> = status["pool"]["rings"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|ring| number(&ring["waiting"]))
        .collect();
    let lines_of_rings = rings
        .zip(&waiting)
        .map(|(account, waiting)| ring(text(&account["name"]), account, *waiting));
    lines.extend(lines_of_rings);
    lines.push(ring("sum", ledger, waiting.iter().sum()));

    for port in ledger["ports"].as_array().into_iter().flatten() {
        let dropped: u64 =
            port["dropped"].as_object().into_iter().flat_map(|map| map.values()).map(number).sum();
        lines.push(format!(
            "port {}: {} sent, {} lost, {} waiting",
            text(&port["name"]),
            count(&port["sent"]),
            grouped(dropped),
            count(&port["waiting"])
        ));
    }

    if let writer @ Value::Object(_) = &status["writer"] {
        lines.push(format!(
            "{}: {} written, {} packets waiting, {} discarded",
            text(&writer["to"]),
            size::human_bytes(number(&writer["bytes"])),
            count(&writer["waiting"]),
            count(&writer["discarded"])
        ));
    }

    lines.push(format!("so far {}", text(&status["verdict"])));
    lines
}

fn ring_row(name: &str, [delivered, filtered, lost, waiting]: [&str; 4]) -> String {
    format!("{name:<20} {delivered:>17} {filtered:>17} {lost:>11} {waiting:>11}")
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// An unreported number has no count.
fn count(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), grouped)
}

/// The drops of an account, by all reasons.
pub(crate) fn dropped(account: &Value) -> u64 {
    account["dropped"]
        .as_object()
        .into_iter()
        .flat_map(|reasons| reasons.values())
        .map(number)
        .sum()
}

/// `12.3 s`, `5:07 min`, `26:03 h`.
pub(crate) fn running_for(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{}:{:02} min", whole / 60, whole % 60),
        _ => format!("{}:{:02} h", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Value {
        let account = json!({
            "name": "eth0@0", "delivered": 12_345_678_901_u64, "filtered": null,
            "dropped": { "no_cell": 1000, "ring_full": 234, "device": null, "no_ring": 0, "other": 0 },
        });
        let mut ledger = account.clone();
        ledger["rings"] = json!([account]);
        ledger["engine"] = "xdp".into();
        ledger["mode"] = "B-(256,512)".into();
        ledger["duration_s"] = 3723.4.into();
        ledger["lossless"] = false.into();

        json!({
            "name": "eth0@0-3", "command": "capture", "pid": 4711, "state": "running", "ledger": ledger,
            "verdict": "lossless: no (1,234 packets lost: 1,000 no free cell, 234 ring full)",
            "interfaces": [{ "name": "eth0", "filter": "udp port 53" }],
            "pool": { "rings": [{ "name": "eth0@0", "waiting": 131_072 }] },
            "writer": { "to": "/var/log/x.pcap", "bytes": 4096, "waiting": 0, "discarded": 7 },
        })
    }

    #[test]
    fn the_tables_are_no_wider_than_80_columns() {
        let mut long = status();
        long["name"] = "recorder-of-the-north-uplink-rack-17".into();

        let all =
            [overview(&[status(), long.clone()]), details(&status()), details(&long)].concat();
        let all: Vec<&str> = all.iter().flat_map(|line| line.split('\n')).collect();
        assert!(all.iter().all(|line| line.len() <= 80), "{all:#?}");

        let lines = [overview(&[status()]), details(&status())].concat();
        assert!(lines.iter().all(|line| line.len() <= 80), "{lines:#?}");

        let words = |line: &String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            words(&lines[1]),
            ["eth0@0-3", "capture", "1:02", "h", "12,345,678,901", "1,234", "131,072", "no"]
        );
        assert!(lines.contains(&"eth0: filter: udp port 53".to_owned()), "{lines:#?}");
        assert!(
            lines
                .iter()
                .any(|line| words(line) == ["sum", "12,345,678,901", "-", "1,234", "131,072"])
        );
    }

    #[test]
    fn times_are_as_long_as_they_have_to_be() {
        assert_eq!([1.25, 61.0, 93_780.0].map(running_for), ["1.2 s", "1:01 min", "26:03 h"]);
    }
}
