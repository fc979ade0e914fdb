//! `--rewrite`: changes to MAC addresses and VLAN tags of packets on their way through.

use std::str::FromStr;

use wirecap::{NoRoom, OutPacket};

use crate::shared::failure::Failure;
use crate::shared::sending::mac;

/// `eth1:dst=02:00:00:00:00:09,vlan=push:100`: changes, in their order, to the packets of one
/// interface or of both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rewrite {
    /// The receiving interface of the packets; `None`: all interfaces.
    interface: Option<String>,
    changes: Vec<Change>,
}

/// One change to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Destination([u8; 6]),
    Source([u8; 6]),
    /// Adds a tag before existing ones.
    Push(Vlan),
    /// Removes the outer tag.
    Pop,
    /// Sets these values of the outer tag.
    Set(Vlan),
}

/// The contents of a VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Vlan {
    number: u16,
    /// Unchanged if it is not given, and 0 in a new tag.
    priority: Option<u16>,
}

impl Vlan {
    const NUMBER: u16 = 0x0fff;
    const PRIORITY_SHIFT: u32 = 13;

    /// The tag's sixteen bits, where `old` are those it had.
    fn over(self, old: u16) -> u16 {
        let rest = match self.priority {
            Some(priority) => priority << Self::PRIORITY_SHIFT | old & 1 << 12,
            None => old & !Self::NUMBER,
        };
        rest | self.number
    }
}

/// The changes to packets received on one interface.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes(Vec<Change>);

impl Changes {
    /// Those of `rewrites` that concern each of `interfaces`, in the order of the command line.
    pub(crate) fn of(rewrites: &[Rewrite], interfaces: &[&str]) -> Result<Vec<Self>, Failure> {
        let named = rewrites.iter().filter_map(|rewrite| rewrite.interface.as_deref());
        for name in named {
            if !interfaces.contains(&name) {
                let known = interfaces.join(" and ");
                let message =
                    format!("--rewrite names {name}, but packets are received on {known}");
                return Err(Failure::Usage(message));
            }
        }

        let changes = |interface: &&str| {
            let concerns = |rewrite: &&Rewrite| {
                rewrite.interface.as_deref().is_none_or(|name| name == *interface)
            };
            Self(
                rewrites
                    .iter()
                    .filter(concerns)
                    .flat_map(|rewrite| rewrite.changes.iter().copied())
                    .collect(),
            )
        };
        Ok(interfaces.iter().map(changes).collect())
    }

    /// Whether packets pass unchanged.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes the changes. Removing or setting a VLAN tag has no effect on a packet without one.
    #[inline]
    pub(crate) fn make(&self, packet: &mut OutPacket<'_>) -> Result<(), NoRoom> {
        self.0.iter().try_for_each(|change| change.make(packet))
    }
}

impl Change {
    fn make(self, packet: &mut OutPacket<'_>) -> Result<(), NoRoom> {
        match self {
            Self::Push(vlan) => return packet.push_vlan(vlan.over(0)),
            Self::Pop => drop(packet.pop_vlan()),
            Self::Destination(address) => write(packet.data_mut(), 0, &address),
            Self::Source(address) => write(packet.data_mut(), 6, &address),
            Self::Set(vlan) => {
                let data = packet.data_mut();
                if let Some(old) = outer_tag(data) {
                    write(data, 14, &vlan.over(old).to_be_bytes());
                }
            }
        }
        Ok(())
    }
}

/// A frame that is too short is unchanged.
fn write(frame: &mut [u8], offset: usize, bytes: &[u8]) {
    if let Some(place) = frame.get_mut(offset..offset + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// The sixteen bits of the outer tag, 802.1Q or 802.1ad.
fn outer_tag(frame: &[u8]) -> Option<u16> {
    let word = |offset: usize| {
        frame.get(offset..offset + 2).map(|word| u16::from_be_bytes([word[0], word[1]]))
    };
    word(12).filter(|kind| matches!(kind, 0x8100 | 0x88a8)).and_then(|_| word(14))
}

impl FromStr for Rewrite {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // No interface's name has a colon or an equals sign in it.
        let (interface, changes) = match text.split_once(':') {
            Some((name, changes)) if !name.contains('=') => (Some(name.to_owned()), changes),
            _ => (None, text),
        };
        let changes = changes.split(',').map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { interface, changes })
    }
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "invalid change {text:?}: expected dst=MAC, src=MAC, vlan=push:ID, vlan=pop or vlan=set:ID"
            )
        };
        let (what, value) = text.split_once('=').ok_or_else(unknown)?;
        match (what, value.split_once(':').unwrap_or((value, ""))) {
            ("dst", _) => mac(value).map(Self::Destination),
            ("src", _) => mac(value).map(Self::Source),
            ("vlan", ("push", vlan)) => vlan.parse().map(Self::Push),
            ("vlan", ("set", vlan)) => vlan.parse().map(Self::Set),
            ("vlan", ("pop", "")) => Ok(Self::Pop),
            _ => Err(unknown()),
        }
    }
}

impl FromStr for Vlan {
    type Err = String;

    /// `100`, or with a priority `100:5`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (number, priority) = match text.split_once(':') {
            Some((number, priority)) => (number, Some(priority)),
            None => (text, None),
        };
        let up_to = |text: &str, most: u16| text.parse().ok().filter(|value: &u16| *value <= most);
        let number = up_to(number, 4095).ok_or("a VLAN ID is 0 to 4095")?;
        let priority =
            priority.map(|priority| up_to(priority, 7).ok_or("a VLAN priority is 0 to 7"));
        Ok(Self { number, priority: priority.transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Rewrite {
        text.parse().unwrap()
    }

    #[test]
    fn changes_are_read_in_their_order() {
        let rewrite = parse(
            "dst=02:00:00:00:00:09,src=02:00:00:00:00:01,vlan=pop,vlan=push:100,vlan=set:7:5",
        );
        let vlan = |number, priority| Vlan { number, priority };
        let changes = [
            Change::Destination([2, 0, 0, 0, 0, 9]),
            Change::Source([2, 0, 0, 0, 0, 1]),
            Change::Pop,
            Change::Push(vlan(100, None)),
            Change::Set(vlan(7, Some(5))),
        ];
        assert_eq!((rewrite.interface, &*rewrite.changes), (None, &changes[..]));
        assert_eq!(parse("eth1:dst=02:00:00:00:00:09").interface.as_deref(), Some("eth1"));
        assert_eq!(parse("eth1.100:vlan=pop").interface.as_deref(), Some("eth1.100"));
    }

    #[test]
    fn an_invalid_change_is_rejected() {
        let bad = [
            "",
            "dst",
            "dst=",
            "dst=02:00",
            "vlan=push",
            "vlan=push:4096",
            "vlan=push:1:8",
            "vlan=pop:1",
        ];
        let worse = ["vlan=set:x", "ttl=5", "eth1:", "vlan=pop,", "vlan=peel"];
        for text in bad.iter().chain(&worse) {
            assert!(text.parse::<Rewrite>().is_err(), "{text} was taken");
        }
    }

    #[test]
    fn each_interface_gets_its_own_changes_and_those_of_all() {
        let rewrites = [parse("a:vlan=pop"), parse("vlan=push:1"), parse("b:vlan=push:2")];
        let changes = Changes::of(&rewrites, &["a", "b"]).unwrap();
        let push = |number| Change::Push(Vlan { number, priority: None });
        assert_eq!(changes[0].0, [Change::Pop, push(1)]);
        assert_eq!(changes[1].0, [push(1), push(2)]);
        let refused = Changes::of(&rewrites, &["a", "c"]).unwrap_err().to_string();
        assert!(refused.contains("names b") && refused.contains("a and c"), "{refused}");
    }

    #[test]
    fn a_changed_tag_keeps_fields_that_are_not_given() {
        let old = 5 << 13 | 1 << 12 | 100;
        assert_eq!(Vlan { number: 7, priority: None }.over(old), 5 << 13 | 1 << 12 | 7);
        assert_eq!(Vlan { number: 7, priority: Some(2) }.over(old), 2 << 13 | 1 << 12 | 7);
    }

    #[test]
    fn the_outer_tag_is_found_where_there_is_one() {
        let mut frame = [0; 18];
        assert_eq!(outer_tag(&frame), None);
        frame[12..16].copy_from_slice(&[0x88, 0xa8, 0x60, 0x05]);
        assert_eq!(outer_tag(&frame), Some(0x6005));
        assert_eq!(outer_tag(&frame[..15]), None);
    }
}
