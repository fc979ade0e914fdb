//! The interfaces whose packets arrive on sockets that are bound to none: each packet's own address
//! tells which.
//!
//! The kernel puts the index of the interface into each packet's address (`sockaddr_ll`), behind
//! the header in the ring. When a chunk is made, the engine counts its packets by interface and
//! replaces the index by the interface's number. Captures of named interfaces do not read the
//! address. When an index is used again by another interface, packets are told apart by their time.
//! An interface that is renamed keeps the name of its first packet. Numbers are given to the
//! interfaces that are up at the beginning, and to each later one with its first packet. The kernel
//! does not report of which interface a packet was that a ring had no room for, so losses are in
//! the account of the rings.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::device::links::{LinkNews, LinkState, Links};
use crate::device::savefile_link_type;
use crate::ledger::InterfaceLedger;
use crate::packet::LINK_HEADER_BYTES;
use crate::savefile::LinkType;
use crate::sync::{Mutex, lock};
use crate::sys::xdp::Descriptor;
use crate::umem::chunk::records;

/// The number of removed interfaces whose late packets are still told from those of a new interface
/// of the same index.
const FORMER_MAX: usize = 4096;

/// An interface of a capture of all interfaces, with the packets that were delivered of it so far.
///
/// The kernel does not report of which interface a packet was that a ring had no room for, so
/// losses are in the account of the rings only.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeenInterface {
    /// Its name when it was first seen.
    pub name: String,
    /// The kernel's index.
    pub index: u32,
    /// The link type of its packets.
    pub link_type: LinkType,
    /// It exists, and is up.
    pub up: bool,
    /// Delivered packets.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Delivered packets longer than its MTU permits.
    pub super_packets: u64,
}

/// The interfaces of a capture of all interfaces, in the order of
/// [`Packet::seen_interface`](crate::Packet::seen_interface): at the beginning those that are up,
/// then each at its first packet. A handle, which stays valid when the capture ends.
#[derive(Debug, Clone)]
pub struct SeenInterfaces(Arc<Roster>);

impl SeenInterfaces {
    pub(crate) fn of(roster: Arc<Roster>) -> Self {
        Self(roster)
    }

    /// All of them.
    pub fn list(&self) -> Vec<SeenInterface> {
        lock(&self.0.state).seen.iter().map(|seen| seen.shown.clone()).collect()
    }

    /// The one at this index.
    pub fn get(&self, index: usize) -> Option<SeenInterface> {
        lock(&self.0.state).seen.get(index).map(|seen| seen.shown.clone())
    }
}

/// The interfaces of a network namespace, present and removed.
#[derive(Debug)]
pub(crate) struct Roster {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    links: Links,
    present: HashMap<u32, Present>,
    /// The interface that had the index before.
    former: HashMap<u32, Former>,
    /// Those in the order of their numbers: at the beginning the interfaces that were up, then each
    /// at its first packet.
    seen: Vec<Seen>,
    /// What has changed since the last call of [`Roster::changes`].
    changes: Vec<RosterChange>,
    /// A watcher reads the changes.
    is_watched: bool,
}

#[derive(Debug)]
struct Seen {
    shown: SeenInterface,
    /// Bytes of the longest frame that its MTU permits.
    longest: u32,
}

#[derive(Debug)]
struct Present {
    link: LinkState,
    number: Option<u32>,
    /// Its name before it was renamed, if it had no number then, and when that was noticed.
    renamed: Option<(String, u64)>,
}

#[derive(Debug)]
struct Former {
    link: LinkState,
    number: Option<u32>,
    /// When its removal was noticed, in nanoseconds since 1970.
    until: u64,
}

/// A change of the interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RosterChange {
    Appeared(LinkState),
    /// Its state, name or MTU; what it was before.
    Changed {
        before: LinkState,
        now: LinkState,
    },
    Removed(LinkState),
    /// Notifications were lost, and the interfaces were listed again.
    Overrun,
}

impl Roster {
    /// The interfaces of the calling thread's network namespace. `excluded` are captured by other
    /// sockets.
    pub(crate) fn new(is_watched: bool) -> io::Result<Self> {
        let (links, list) = Links::open()?;
        let present = list.into_iter().map(|link| (link.index, Present::of(link, None))).collect();
        let former = HashMap::new();
        let seen = Vec::new();
        let changes = Vec::new();
        Ok(Self { state: Mutex::new(State { links, present, former, seen, changes, is_watched }) })
    }

    /// The interfaces of this moment, in the order of their indices.
    pub(crate) fn present(&self) -> Vec<LinkState> {
        let mut links: Vec<LinkState> =
            lock(&self.state).present.values().map(|present| present.link.clone()).collect();
        links.sort_unstable_by_key(|link| link.index);
        links
    }

    /// Gives numbers to the interfaces that are up, except the `excluded` ones, or to the first one
    /// if none is.
    pub(crate) fn number_those_up(&self, excluded: &[u32]) {
        let links = self.present();
        let wanted = || links.iter().filter(|link| !excluded.contains(&link.index));
        let mut state = lock(&self.state);
        let up: Vec<u32> = wanted().filter(|link| link.up).map(|link| link.index).collect();
        let first = wanted().next().filter(|_| up.is_empty()).map(|link| link.index);
        up.into_iter()
            .chain(first)
            .for_each(|index| _ = state.number_of(index, u64::MAX, LinkType::ETHERNET));
    }

    /// What has changed since the last call, for the one watcher.
    pub(crate) fn changes(&self) -> Vec<RosterChange> {
        let mut state = lock(&self.state);
        state.catch_up();
        std::mem::take(&mut state.changes)
    }

    /// Takes in the kernel's messages of this moment.
    pub(crate) fn catch_up(&self) {
        lock(&self.state).catch_up();
    }

    /// Counts captured packets for their interfaces, and puts the number of its interface into each
    /// packet's header.
    ///
    /// # Safety
    ///
    /// The cells must describe packets behind `base`, each with the kernel's header as far before
    /// it as the descriptor says; headers and packets must have no other user.
    pub(crate) unsafe fn attribute(
        &self,
        base: NonNull<u8>,
        cells: &[Descriptor],
        link_type: LinkType,
    ) {
        let mut state = lock(&self.state);
        state.catch_up();

        let has_former = !state.former.is_empty();
        let mut last: Option<(u32, u32)> = None;

        for cell in cells {
            let mac = cell.header_distance();
            if (mac as usize) < records::ADDRESS_END {
                continue;
            }

            // SAFETY: guaranteed by the caller; the address lies between header and packet, as was
            // just checked.
            let (header, index, len, time) = unsafe {
                let header = base.add(cell.address as usize - mac as usize);
                let time = records::timestamp(header).unix_nanos();
                (header, records::ifindex(header), records::wire_len(header), time)
            };
            let number = match last {
                Some((known, number)) if known == index && !has_former => number,
                _ => state.number_of(index, time, link_type),
            };
            last = Some((index, number));
            state.count(number, len);

            // SAFETY: as above.
            unsafe { records::set_ifindex(header, number) };
        }
    }
}

impl State {
    /// Takes in the kernel's messages.
    fn catch_up(&mut self) {
        let mut news = Vec::new();
        self.links.take(|one| news.push(one));
        for one in news {
            match one {
                LinkNews::Present(link) => self.take_in(link),
                LinkNews::Gone(index) => self.remove(index),
                LinkNews::Overrun => self.list_again(),
            }
        }
    }

    fn take_in(&mut self, link: LinkState) {
        let change = match self.present.get_mut(&link.index) {
            None => {
                // One that was moved to another namespace and back is the same.
                let is_same = |former: &&Former| {
                    (&former.link.name, former.link.link_type) == (&link.name, link.link_type)
                };
                let number =
                    self.former.get(&link.index).filter(is_same).and_then(|former| former.number);
                if let Some(number) = number {
                    let seen = &mut self.seen[number as usize];
                    (seen.shown.up, seen.longest) = (link.up, longest_frame(&link));
                }

                self.present.insert(link.index, Present::of(link.clone(), number));
                RosterChange::Appeared(link)
            }
            Some(present) if present.link != link => {
                let before = std::mem::replace(&mut present.link, link.clone());
                if present.number.is_none() && before.name != link.name {
                    present.renamed = Some((before.name.clone(), now()));
                }

                if let Some(number) = present.number {
                    let seen = &mut self.seen[number as usize];
                    (seen.shown.up, seen.longest) = (link.up, longest_frame(&link));
                }
                RosterChange::Changed { before, now: link }
            }
            Some(_) => return,
        };
        self.note(change);
    }

    fn remove(&mut self, index: u32) {
        let Some(Present { link, number, renamed }) = self.present.remove(&index) else { return };
        if let Some(number) = number {
            self.seen[number as usize].shown.up = false;
        }
        if self.former.len() >= FORMER_MAX {
            self.former.clear();
        }
        // Packets that were not taken out of the ring yet are more probably of before its renaming.
        let name = renamed.map_or_else(|| link.name.clone(), |(name, _)| name);
        let former = LinkState { name, ..link.clone() };
        self.former.insert(index, Former { link: former, number, until: now() });
        self.note(RosterChange::Removed(link));
    }

    fn list_again(&mut self) {
        self.note(RosterChange::Overrun);
        let Ok(list) = self.links.list() else { return };
        let gone: Vec<u32> = self
            .present
            .keys()
            .copied()
            .filter(|index| list.iter().all(|link| link.index != *index))
            .collect();
        gone.into_iter().for_each(|index| self.remove(index));
        list.into_iter().for_each(|link| self.take_in(link));
    }

    fn note(&mut self, change: RosterChange) {
        if self.is_watched {
            self.changes.push(change);
        }
    }

    /// The number of the interface that had this index at `time`, in nanoseconds since 1970.
    fn number_of(&mut self, index: u32, time: u64, link_type: LinkType) -> u32 {
        let next = self.seen.len() as u32;
        let former = self.former.get_mut(&index).filter(|former| time < former.until);
        let (link, number, renamed) = match former {
            Some(former) => (&former.link, &mut former.number, None),
            None => {
                let present =
                    self.present.entry(index).or_insert_with(|| Present::unknown(index, link_type));
                (&present.link, &mut present.number, present.renamed.take())
            }
        };
        let number = *number.get_or_insert(next);

        if number == next {
            let mut shown = SeenInterface::new(link);
            // A packet may wait for half a second before it is taken out of the ring.
            shown.name =
                renamed.filter(|(_, until)| time < *until).map_or(shown.name, |(name, _)| name);
            self.seen.push(Seen { shown, longest: longest_frame(link) });
        }

        number
    }

    fn count(&mut self, number: u32, wire_len: u32) {
        let Seen { shown, longest } = &mut self.seen[number as usize];
        shown.packets += 1;
        shown.bytes += u64::from(wire_len);
        shown.super_packets += u64::from(wire_len > *longest);
    }
}

impl Present {
    fn of(link: LinkState, number: Option<u32>) -> Self {
        Self { link, number, renamed: None }
    }

    /// An interface that came and went while notifications were lost.
    fn unknown(index: u32, link_type: LinkType) -> Self {
        let is_ethernet = link_type == LinkType::ETHERNET;
        let link = LinkState {
            index,
            name: format!("if{index}"),
            link_type: if is_ethernet { libc::ARPHRD_ETHER } else { libc::ARPHRD_NONE },
            mtu: u32::MAX - LINK_HEADER_BYTES,
            up: false,
            may_be_hardware: false,
        };
        Self::of(link, None)
    }
}

impl SeenInterface {
    /// Its page of the ledger.
    pub(crate) fn ledger(self) -> InterfaceLedger {
        InterfaceLedger {
            name: self.name,
            index: self.index,
            delivered: self.packets,
            bytes: self.bytes,
        }
    }

    fn new(link: &LinkState) -> Self {
        Self {
            name: link.name.clone(),
            index: link.index,
            link_type: savefile_link_type(link.link_type),
            up: link.up,
            packets: 0,
            bytes: 0,
            super_packets: 0,
        }
    }
}

fn longest_frame(link: &LinkState) -> u32 {
    link.mtu.saturating_add(LINK_HEADER_BYTES)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn link(index: u32, name: &str) -> LinkState {
        let name = name.to_owned();
        let link_type = libc::ARPHRD_ETHER;
        LinkState { index, name, link_type, mtu: 1500, up: true, may_be_hardware: false }
    }

    /// Calls `work` with the state of a namespace without interfaces.
    fn with_state(work: impl FnOnce(&mut State)) {
        let roster = Roster::new(true).unwrap();
        let mut state = lock(&roster.state);
        state.present.clear();
        work(&mut state);
    }

    const LATER: u64 = u64::MAX;

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel for interfaces")]
    fn packets_of_an_index_that_is_used_again_are_told_apart_by_their_time() {
        with_state(|state| {
            state.take_in(link(7, "pod1"));
            let before = now();
            assert_eq!(state.number_of(7, before, LinkType::ETHERNET), 0);
            state.remove(7);
            state.take_in(link(7, "pod2"));
            assert_eq!(state.number_of(7, before, LinkType::ETHERNET), 0, "a late packet");
            assert_eq!(state.number_of(7, LATER, LinkType::ETHERNET), 1);

            let names: Vec<&str> = state.seen.iter().map(|seen| &*seen.shown.name).collect();
            assert_eq!(names, ["pod1", "pod2"]);
            assert_eq!(
                state.seen.iter().map(|seen| seen.shown.up).collect::<Vec<_>>(),
                [false, true]
            );
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel for interfaces")]
    fn an_interface_keeps_its_number_when_it_is_renamed_or_comes_back() {
        with_state(|state| {
            state.take_in(link(7, "pod1"));
            assert_eq!(state.number_of(7, LATER, LinkType::ETHERNET), 0);
            state.take_in(link(7, "eth0"));
            assert_eq!(state.number_of(7, LATER, LinkType::ETHERNET), 0);
            assert_eq!(state.seen[0].shown.name, "pod1", "as files describe it");
            state.remove(7);
            state.take_in(link(7, "eth0"));
            assert_eq!(state.number_of(7, LATER, LinkType::ETHERNET), 0);
            assert!(state.seen[0].shown.up);
            state.take_in(link(8, "pod2"));

            let before = now();
            state.take_in(link(8, "pod2x"));
            assert_eq!(state.number_of(8, before, LinkType::ETHERNET), 1);
            assert_eq!(
                state.seen[1].shown.name, "pod2",
                "the name at the time of its first packet"
            );

            let kinds = state.changes.iter().map(std::mem::discriminant);
            assert_eq!(
                kinds.collect::<std::collections::HashSet<_>>().len(),
                3,
                "{:?}",
                state.changes
            );
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel for interfaces")]
    fn a_packet_longer_than_the_mtu_of_its_own_interface_is_a_super_packet() {
        with_state(|state| {
            state.take_in(link(7, "pod1"));
            state.take_in(LinkState { mtu: 9000, ..link(8, "jumbo") });

            for (index, len) in [(7, 1522), (7, 1523), (8, 9022), (8, 9023), (9, 70_000)] {
                let number = state.number_of(index, LATER, LinkType::ETHERNET);
                state.count(number, len);
            }

            let counts = state
                .seen
                .iter()
                .map(|Seen { shown, .. }| (&*shown.name, shown.packets, shown.super_packets));
            assert_eq!(
                counts.collect::<Vec<_>>(),
                [("pod1", 2, 1), ("jumbo", 2, 1), ("if9", 1, 0)]
            );
            state.take_in(LinkState { mtu: 9000, ..link(7, "pod1") });
            state.count(0, 1523);
            assert_eq!(state.seen[0].shown.super_packets, 1);
        });
    }
}
