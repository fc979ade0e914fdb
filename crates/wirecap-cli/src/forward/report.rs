//! The report at the end of forwarding.

use std::io;

use serde_json::{Value, json};
use wirecap::{Ledger, PortAccount, grouped};

use super::latency::{Latency, counted};
use super::way::Way;
use crate::shared::failure::Failure;
use crate::shared::options;
use crate::shared::screen::Screen;

/// The report at the end.
pub(super) struct Report<'a> {
    pub(super) ways: &'a [Way],
    pub(super) ledger: &'a Ledger,
    /// By direction, if requested.
    pub(super) latencies: Option<Vec<Latency>>,
}

impl Report<'_> {
    /// Prints the times, the ledger, and the account of the packets of each direction.
    pub(super) fn show(&self) {
        let screen = Screen::on(io::stderr());

        for (way, latency) in self.ways.iter().zip(self.latencies.iter().flatten()) {
            eprintln!(
                "from {} to {}: {}",
                way.from,
                way.to,
                latency.picture(|share, width| screen.bar(share, width))
            );
        }

        options::show(self.ledger);
        self.ways
            .iter()
            .filter_map(|way| outcome(way, self.ledger))
            .for_each(|line| eprintln!("{line}"));
    }

    /// The ledger, and what only this command counts.
    pub(super) fn json(&self) -> Result<Value, Failure> {
        let mut json = options::in_json(self.ledger)?;
        let ways = self.ways.iter().enumerate().map(|(index, way)| {
            let latency = self.latencies.as_ref().map(|latencies| latencies[index].json());
            json!({ "from": way.from, "to": way.to, "no_room": way.no_room(), "latency_ns": latency })
        });
        json["ways"] = ways.collect();
        Ok(json)
    }
}

/// `left to right: 1,000 packets, 990 sent; 10 dropped: 4 interface down, 6 refused by the device`
fn outcome(way: &Way, ledger: &Ledger) -> Option<String> {
    let PortAccount { taken, sent, dropped, late, .. } =
        ledger.ports.iter().find(|port| port.name == way.to).map(|port| port.account)?;
    let reasons = [
        (dropped.ring_full, "tx ring full"),
        (dropped.refused, "refused by the device"),
        (dropped.down, "interface down"),
        (dropped.bad_length, "bad length"),
        (dropped.no_cell, "no free cell"),
        (dropped.other, "other"),
        (way.no_room(), "no room for the tags that --rewrite adds"),
    ];
    let reasons = reasons.iter().filter(|(count, _)| *count > 0);
    let reasons: Vec<String> =
        reasons.map(|(count, reason)| format!("{} {reason}", grouped(*count))).collect();
    let packets = counted(taken + way.no_room());
    let lost = grouped(dropped.total() + way.no_room());
    let mut line = format!("{} to {}: {packets}, {} sent", way.from, way.to, grouped(sent));

    if !reasons.is_empty() {
        line += &format!("; {lost} dropped: {}", reasons.join(", "));
    }
    if late > 0 {
        line += &format!("; {} out of order because an earlier chunk took too long", grouped(late));
    }

    Some(line)
}
