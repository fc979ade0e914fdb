//! `wirecap devices`: the interfaces, and the engine that `--engine auto` selects.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Args;
use serde_json::json;
use wirecap::Holder;
use wirecap::device::{self, ChosenEngine, Device, Mark};

use crate::host::doctor::{self, Brief};
use crate::shared::failure::Failure;
use crate::shared::output;
use crate::size::count_of;

/// List interfaces, their queues, and the engine that auto selects, with the reason
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Print the list as a JSON array
    #[arg(long)]
    json: bool,
}

/// As `-D` of other commands.
pub(crate) fn list() -> Result<(), Failure> {
    run(&Arguments { json: false })
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let devices = device::devices()?;
    let briefs = doctor::briefs(&devices);
    if arguments.json {
        let described = devices.iter().map(|device| in_json(device, briefs.get(&device.name)));
        output::print(serde_json::Value::from_iter(described))
    } else {
        output::printed(write!(io::stdout(), "{}", table(&devices, &briefs)))
    }
}

const HEADING: [&str; 7] = ["name", "state", "driver", "rx queues", "MTU", "speed", "addresses"];

/// A row per interface, followed by its engine.
fn table(devices: &[Device], briefs: &BTreeMap<String, Brief>) -> String {
    let rows: Vec<[String; 7]> = devices.iter().map(row).collect();
    let width = |column: usize| {
        let entries = rows.iter().map(|row| row[column].len());
        entries.chain([HEADING[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut text = line(&HEADING.map(str::to_owned), &widths);

    for (device, row) in devices.iter().zip(&rows) {
        let choice = device.choose_engine();
        text += &line(row, &widths);

        let holders = holders_by_process(device);
        match holders.is_empty() {
            true => text += &note(&format!("auto selects {}: {}", choice.engine, choice.why)),
            false => text += &held(device, &holders),
        }

        text += &contradicted(device);

        for program in &device.attached_xdp {
            let owner = program.owner().map(|owner| format!(": {owner}")).unwrap_or_default();
            text += &note(&format!(
                "XDP program {} is attached ({}){owner}",
                program.program_id, program.mode
            ));
        }

        if let Some(brief) = briefs.get(&device.name) {
            let findings = count_of(brief.count as u64, "finding", "findings");
            text += &note(&format!("doctor: {findings}, first: {}", brief.worst));
        }
    }

    text
}

/// The line about an interface whose mark is contradicted by more than auto's reason names.
fn contradicted(device: &Device) -> String {
    match (&device.mark, device.contradictions().as_slice()) {
        (Mark::Dedicated, [_, others @ ..]) if !others.is_empty() => {
            let others: Vec<String> = others.iter().map(ToString::to_string).collect();
            note(&format!("its mark is also contradicted: {}", others.join("; ")))
        }
        (Mark::OtherAddress(address), [_, ..]) => {
            note(&format!("its mark is of another device ({address})"))
        }
        (Mark::Ignored(why), [_, ..]) => note(&format!("its mark is ignored: {why}")),
        _ => String::new(),
    }
}

/// The mark for programs: a word, and its fault.
fn mark_words(mark: &Mark) -> (&'static str, Option<&str>) {
    match mark {
        Mark::Missing => ("missing", None),
        Mark::Dedicated => ("dedicated", None),
        Mark::OtherAddress(address) => ("other-address", Some(address)),
        Mark::Ignored(why) => ("ignored", Some(why)),
        _ => ("unknown", None),
    }
}

/// The processes that capture from the interface by the engine `xdp`, each with its receive queues.
fn holders_by_process(device: &Device) -> Vec<(Holder, Vec<u32>)> {
    let mut processes: Vec<(Holder, Vec<u32>)> = Vec::new();
    for (queue, holder) in wirecap::holders(device) {
        match processes.iter_mut().find(|(known, _)| *known == holder) {
            Some((_, queues)) => queues.push(queue),
            None => processes.push((holder, vec![queue])),
        }
    }
    processes
}

/// The lines about an interface that wirecap already captures.
fn held(device: &Device, holders: &[(Holder, Vec<u32>)]) -> String {
    let mut text = String::new();

    for (holder, queues) in holders {
        let noun = if queues.len() == 1 { "queue" } else { "queues" };
        let queues: Vec<String> = queues.iter().map(ToString::to_string).collect();
        text += &note(&format!("captured by {holder}: {noun} {}", queues.join(", ")));
    }

    let free = (0..device.rx_queues)
        .find(|queue| holders.iter().all(|(_, queues)| !queues.contains(queue)));
    text += &match free {
        Some(queue) => note(&format!(
            "free for xdp: {}@{queue} and others; whole interface: --engine packet",
            device.name
        )),
        None => note(
            "no queue is free for xdp; --engine packet gets copies of packets that are not captured",
        ),
    };

    text
}

/// A line below an interface's row, continued on further lines if it is longer than a terminal is
/// wide.
fn note(text: &str) -> String {
    doctor::wrapped("  ", text, 4)
}

fn row(device: &Device) -> [String; 7] {
    [
        device.name.clone(),
        state(device).to_owned(),
        device.driver.clone().unwrap_or_else(|| "-".to_owned()),
        device.rx_queues.to_string(),
        device.mtu.to_string(),
        real_speed(device).map_or_else(|| "-".to_owned(), speed),
        addresses(device).join(" "),
    ]
}

/// Numbers to the right, words to the left.
fn line(row: &[String; 7], widths: &[usize; 7]) -> String {
    let [name, state, driver, queues, mtu, speed, addresses] = row;
    let [name_width, state_width, driver_width, queues_width, mtu_width, speed_width, _] = widths;
    let line = format!(
        "{name:<name_width$}  {state:<state_width$}  {driver:<driver_width$}  {queues:>queues_width$}  \
         {mtu:>mtu_width$}  {speed:>speed_width$}  {addresses}"
    );
    line.trim_end().to_owned() + "\n"
}

fn state(device: &Device) -> &'static str {
    match device {
        Device { up: false, .. } => "down",
        Device { carrier: false, .. } => "no carrier",
        _ => "up",
    }
}

/// The speed of the link in Mbit/s, if it is meaningful: virtual interfaces report an arbitrary
/// one.
fn real_speed(device: &Device) -> Option<u32> {
    device.speed_mbps.filter(|_| device.kind.is_none())
}

fn speed(mbps: u32) -> String {
    match mbps {
        0..1000 => format!("{mbps} Mbit/s"),
        _ => format!("{} Gbit/s", f64::from(mbps) / 1000.0),
    }
}

fn addresses(device: &Device) -> Vec<String> {
    device.addresses.iter().map(ToString::to_string).collect()
}

fn in_json(device: &Device, brief: Option<&Brief>) -> serde_json::Value {
    let choice = device.choose_engine();
    let (engine, receive_mode) = match choice.engine {
        ChosenEngine::Xdp(receive_mode) => {
            ("xdp", receive_mode.map(|receive_mode| receive_mode.to_string()))
        }
        ChosenEngine::Packet => ("packet", None),
    };

    let program = |program: &device::AttachedXdp| {
        let owner = program.owner().map(|owner| owner.to_string());
        json!({ "program_id": program.program_id, "mode": program.mode.to_string(), "owner": owner })
    };
    let captured_by = holders_by_process(device)
        .into_iter()
        .map(|(holder, queues)| json!({ "pid": holder.pid, "program": holder.program, "queues": queues }))
        .collect::<Vec<_>>();

    let (mark, mark_fault) = mark_words(&device.mark);
    let contradictions: Vec<String> =
        device.contradictions().iter().map(ToString::to_string).collect();
    let unknown = device.hooks.as_ref().map(|hooks| hooks.unknown.clone()).unwrap_or_default();
    let findings = brief.map(|brief| json!({ "count": brief.count, "worst": brief.worst }));

    json!({
        "name": device.name,
        "index": device.index,
        "state": state(device),
        "driver": device.driver,
        "kind": device.kind,
        "mac": device.mac.map(|mac| mac.to_string()),
        "rx_queues": device.rx_queues,
        "mtu": device.mtu,
        "speed_mbps": real_speed(device),
        "addresses": addresses(device),
        "attached_xdp": device.attached_xdp.iter().map(program).collect::<Vec<_>>(),
        "engine": engine,
        "rung": receive_mode,
        "why": choice.why,
        "mark": mark,
        "mark_fault": mark_fault,
        "contradictions": contradictions,
        "not_known": unknown,
        "captured_by": captured_by,
        "findings": findings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_have_the_unit_that_suits_them() {
        assert_eq!(
            [100, 1000, 2500, 10_000].map(speed),
            ["100 Mbit/s", "1 Gbit/s", "2.5 Gbit/s", "10 Gbit/s"]
        );
    }
}
