//! Statistics as text for a terminal of 80 columns, and as JSON.

use std::fmt::{self, Write};

use serde_json::{Value, json};
use wirecap::grouped;
use wirecap_units::clock;

use super::tally::{Count, Port, Protocol, SIZES, Tally, top};
use crate::size::{count_of, human_bytes, human_rate};

/// Columns of the chart.
const CHART_COLUMNS: u64 = 60;
/// Protocols of IP that have names here.
const NAMES: [(u8, &str); 13] = [
    (1, "ICMP"),
    (2, "IGMP"),
    (4, "IPv4"),
    (6, "TCP"),
    (17, "UDP"),
    (41, "IPv6"),
    (47, "GRE"),
    (50, "ESP"),
    (51, "AH"),
    (58, "ICMPv6"),
    (89, "OSPF"),
    (112, "VRRP"),
    (132, "SCTP"),
];

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, protocol) = match self {
            Self::Ipv4(protocol) => ("IPv4", protocol),
            Self::Ipv6(protocol) => ("IPv6", protocol),
            Self::EtherType(0x0806) => return f.pad("ARP"),
            Self::EtherType(0x0800) => return f.pad("IPv4, cut"),
            Self::EtherType(0x86dd) => return f.pad("IPv6, cut"),
            Self::EtherType(0x8847) => return f.pad("MPLS"),
            Self::EtherType(0x88cc) => return f.pad("LLDP"),
            Self::EtherType(number) => return f.pad(&format!("EtherType {number:#06x}")),
            Self::Length => return f.pad("802.3"),
            Self::Link(number) => return f.pad(&format!("link type {number}")),
        };
        match protocol {
            Some(number) => f.pad(&format!("{version} {}", name(*number))),
            None => f.pad(version),
        }
    }
}

fn name(protocol: u8) -> String {
    let found = NAMES.iter().find(|(number, _)| *number == protocol);
    found.map_or_else(|| format!("protocol {protocol}"), |(_, name)| (*name).to_owned())
}

fn port((protocol, number): Port) -> String {
    format!("{} {number}", name(protocol).to_lowercase())
}

/// The bounds of the class of sizes `index`.
fn class(index: usize) -> String {
    let low = if index == 0 { 0 } else { SIZES[index - 1] + 1 };
    match SIZES[index] {
        u32::MAX => format!("{} and more", grouped(low.into())),
        high => format!("{} to {}", grouped(low.into()), grouped(high.into())),
    }
}

/// The statistics for people, with the `most` addresses and ports of the most bytes.
pub(super) fn text(tally: &Tally, most: usize) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, tally, most);
    text.truncate(text.trim_end().len());
    text
}

fn write(out: &mut String, tally: &Tally, most: usize) -> fmt::Result {
    let all = tally.all;
    writeln!(out, "packets   {}, {} on the wire", grouped(all.packets), human_bytes(all.bytes))?;

    if tally.cut > 0 {
        writeln!(out, "cut       {} by the snap length", count_of(tally.cut, "packet", "packets"))?;
    }
    if let Some((first, last)) = tally.times {
        writeln!(out, "time      {}", clock::span(first, last))?;
    }
    if tally.untimed > 0 {
        writeln!(out, "no time   {}", count_of(tally.untimed, "packet", "packets"))?;
    }

    if let Some(seconds) = tally.duration() {
        let rate = |count: f64, unit| format!("{}{unit}/s", human_rate(count / seconds));
        let timed = tally.timed();
        let highest = tally.highest();

        writeln!(
            out,
            "rate      {}, {} in {seconds:.3} s",
            rate(timed.packets as f64, "packets"),
            rate(timed.bytes as f64 * 8.0, "bit")
        )?;

        writeln!(
            out,
            "highest   {}, {}bit in a second of the clock",
            count_of(highest.packets, "packet", "packets"),
            human_rate(highest.bytes as f64 * 8.0)
        )?;
    }

    let (columns, each) = tally.columns(CHART_COLUMNS);
    if columns.len() > 1 {
        let highest = columns.iter().copied().max().unwrap_or(1);
        let bars: String =
            columns.iter().map(|count| crate::watch::profile::level(*count, highest)).collect();
        writeln!(
            out,
            "\npackets/s, the highest of each {each} s, to {}\n{bars}",
            grouped(highest)
        )?;
    }

    let sizes = tally.sizes.iter().enumerate().filter(|(_, count)| count.packets > 0);
    table(out, "bytes", sizes.map(|(index, count)| (class(index), *count)), all)?;

    let mut protocols: Vec<_> =
        tally.protocols.iter().map(|(protocol, count)| (*protocol, *count)).collect();
    protocols.sort_by_key(|(_, count)| std::cmp::Reverse(count.bytes));

    let listed = protocols.into_iter().take(most);
    table(out, "protocol", listed.map(|(protocol, count)| (protocol.to_string(), count)), all)?;
    rest(out, tally.protocols.len(), most, "protocol", "protocols")?;

    let addresses = top(&tally.addresses, most).into_iter();
    table(out, "address", addresses.map(|(address, count)| (address.to_string(), count)), all)?;
    rest(out, tally.addresses.len(), most, "address", "addresses")?;

    if tally.other_addresses.packets > 0 {
        writeln!(
            out,
            "{} of later addresses are not in this table",
            grouped(tally.other_addresses.packets)
        )?;
    }

    let ports = top(&tally.ports, most).into_iter();
    table(out, "lower port", ports.map(|(number, count)| (port(number), count)), all)?;

    rest(out, tally.ports.len(), most, "port", "ports")
}

/// How many entries are not listed.
fn rest(out: &mut String, len: usize, most: usize, one: &str, several: &str) -> fmt::Result {
    match len.saturating_sub(most) as u64 {
        0 => Ok(()),
        more => writeln!(
            out,
            "and {}",
            count_of(more, &format!("more {one}"), &format!("more {several}"))
        ),
    }
}

/// A table, with the shares of the bytes of all packets.
fn table(
    out: &mut String,
    head: &str,
    rows: impl Iterator<Item = (String, Count)>,
    all: Count,
) -> fmt::Result {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return Ok(());
    }

    writeln!(out, "\n{head:<39}{:>15}{:>13}{:>9}", "packets", "on the wire", "share")?;

    for (name, Count { packets, bytes }) in rows {
        let share = bytes as f64 * 100.0 / all.bytes.max(1) as f64;
        writeln!(
            out,
            "{name:<39}{:>15}{:>13}{share:>7.1} %",
            grouped(packets),
            human_bytes(bytes)
        )?;
    }

    Ok(())
}

/// The statistics for programs. Times are nanoseconds since the epoch; what is not known is null.
pub(super) fn json(tally: &Tally, most: usize) -> Value {
    let counted = |name: Value, count: &Count| json!({ "name": name, "packets": count.packets, "bytes": count.bytes });
    let rate = |count: f64| tally.duration().map(|seconds| count / seconds);
    let timed = tally.timed();
    let highest = tally.highest();
    let is_timed = tally.times.is_some();

    json!({
        "packets": tally.all.packets,
        "bytes": tally.all.bytes,
        "cut": tally.cut,
        "untimed": tally.untimed,
        "first": tally.times.map(|(first, _)| first),
        "last": tally.times.map(|(_, last)| last),
        "packets_per_second": rate(timed.packets as f64),
        "bits_per_second": rate(timed.bytes as f64 * 8.0),
        "packets_in_highest_second": is_timed.then_some(highest.packets),
        "bits_in_highest_second": is_timed.then_some(highest.bytes * 8),
        "sizes": tally.sizes.iter().enumerate().map(|(index, count)| {
            json!({
                "min": if index == 0 { 0 } else { SIZES[index - 1] + 1 },
                "max": (SIZES[index] < u32::MAX).then_some(SIZES[index]),
                "packets": count.packets,
                "bytes": count.bytes,
            })
        }).collect::<Vec<_>>(),
        "protocols": tally.protocols.iter().map(|(protocol, count)| counted(protocol.to_string().into(), count)).collect::<Vec<_>>(),
        "addresses": top(&tally.addresses, most).iter().map(|(address, count)| counted(address.to_string().into(), count)).collect::<Vec<_>>(),
        "addresses_counted": tally.addresses.len(),
        "packets_of_later_addresses": tally.other_addresses.packets,
        "ports": top(&tally.ports, most).iter().map(|(number, count)| counted(port(*number).into(), count)).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use wirecap::savefile::{LinkType, Timestamp};

    use super::*;

    #[test]
    fn no_line_is_wider_than_a_terminal_and_nothing_is_invented_without_packets() {
        let mut tally = Tally::default();
        assert_eq!(text(&tally, 10), "packets   0, 0 bytes on the wire");

        let mut data = [0; 60];
        data[12..14].copy_from_slice(&[0x86, 0xdd]);
        data[14] = 0x60;
        data[20] = 59;
        data[22..54].fill(0xff);

        for second in 0..1000 {
            let time = Timestamp::from_unix_nanos(second * 1_000_000_000);
            tally.add(LinkType::ETHERNET, Some(time), u32::MAX, &data);
        }

        let text = text(&tally, 10);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), "{text}");
        assert!(text.contains("the highest of each 17 s"), "{text}");
    }

    #[test]
    fn packets_without_a_time_are_in_no_rate() {
        let mut tally = Tally::default();
        let at = |seconds: u64| Some(Timestamp::from_unix_nanos(seconds * 1_000_000_000));
        for time in [at(5), None, None, None, at(6)] {
            tally.add(LinkType::ETHERNET, time, 100, &[0; 100]);
        }
        let json = json(&tally, 1);
        assert_eq!(
            (&json["packets_per_second"], &json["bits_per_second"]),
            (&2.0.into(), &1600.0.into())
        );
        assert_eq!((&json["packets"], &json["untimed"]), (&5.into(), &3.into()));
    }

    #[test]
    fn rates_of_one_moment_are_not_known() {
        let mut tally = Tally::default();
        tally.add(LinkType(147), None, 100, &[0; 100]);
        let json = json(&tally, 1);
        assert!(json["packets_per_second"].is_null() && json["first"].is_null(), "{json}");
        assert!(json["bits_in_highest_second"].is_null(), "{json}");
        assert_eq!(json["protocols"][0]["name"], "link type 147");
    }
}
