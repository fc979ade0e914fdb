//! The part of a filter that runs in user space, on packets that the kernel's part could not
//! decide.
//!
//! On `xdp` it has nothing to check, or all packets, if the filter is too long for the verifier,
//! has loops or needs data that the program does not have (with a warning). On `packet` it has
//! nothing to check; or tagged packets, if a load would straddle the tag; or all packets, if the
//! kernel would decide differently from libpcap (it shifts by the low five bits of X, and reads
//! elsewhere if a computed offset becomes negative) or rejects the filter (loops, more than 4,096
//! instructions). A file's packets are all filtered in user space.

use std::collections::VecDeque;

use crate::device::Device;
use crate::filter::{CompiledFilter, Context, Filter, PacketType, Unsupported};

/// A filter, and the interface data that it may read.
#[derive(Debug, Clone)]
pub(crate) struct UserFilter {
    compiled: CompiledFilter,
    ifindex: u32,
    mac: [u8; 6],
}

impl UserFilter {
    pub(crate) fn new(filter: &Filter, device: &Device) -> Result<Self, Unsupported> {
        CompiledFilter::new(filter).map(|compiled| Self::of(compiled, device))
    }

    pub(crate) fn of(compiled: CompiledFilter, device: &Device) -> Self {
        Self {
            compiled,
            ifindex: device.index,
            mac: device.mac.map(|mac| mac.0).unwrap_or_default(),
        }
    }

    /// A program as `tcpdump -ddd` prints it, on no interface.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn parse(program: &str) -> Self {
        let filter =
            Filter::parse(program, crate::savefile::LinkType::ETHERNET).expect("it is sound");
        let compiled = CompiledFilter::new(&filter).expect("it asks for nothing");
        Self { compiled, ifindex: 0, mac: [0; 6] }
    }

    fn matches(&self, packet: &Sifted<'_>) -> bool {
        let packet_type = packet.packet_type.unwrap_or_else(|| self.packet_type(packet.data));
        let context = Context { ifindex: self.ifindex, packet_type, ..Context::default() };
        self.compiled.matches(packet.data, packet.wire_len, &context) > 0
    }

    /// The packet type that the kernel would report for a received frame.
    fn packet_type(&self, frame: &[u8]) -> PacketType {
        match frame.first_chunk::<6>() {
            Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => PacketType::Broadcast,
            Some([first, ..]) if first & 1 == 1 => PacketType::Multicast,
            Some(to) if *to == self.mac => PacketType::Host,
            _ => PacketType::OtherHost,
        }
    }
}

/// Which of a ring's packets user space filters, and how.
#[derive(Debug, Clone, Default)]
pub(crate) enum Check {
    /// None: the kernel has filtered, or there is no filter.
    #[default]
    Nothing,
    /// Packets with a VLAN tag.
    Tagged(UserFilter),
    /// All.
    Everything(UserFilter),
}

impl Check {
    fn accepts(&self, packet: &Sifted<'_>) -> bool {
        match self {
            Self::Everything(filter) => filter.matches(packet),
            Self::Tagged(filter) if packet.tagged => filter.matches(packet),
            Self::Tagged(_) | Self::Nothing => true,
        }
    }
}

/// The properties of a packet that the sieve uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sifted<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) wire_len: u32,
    /// It has a VLAN tag that the kernel's filter did not see.
    pub(crate) tagged: bool,
    /// Its packet type, if the kernel reported it.
    pub(crate) packet_type: Option<PacketType>,
}

/// A ring's part of a filter. While the filter is changed, packets that passed the old one wait in
/// the ring: they must match both.
#[derive(Debug, Default)]
pub(crate) struct Sieve {
    /// The filters for waiting packets, in order.
    stages: VecDeque<Stage>,
    /// For what comes behind.
    check: Check,
    filtered: u64,
}

#[derive(Debug)]
struct Stage {
    /// Number of the ring's next cells (with the engine `packet`: packets) to which it applies;
    /// none while the number of waiting ones is unknown.
    left: Option<u64>,
    checks: Vec<Check>,
}

impl Sieve {
    /// From now on `filter` checks all packets, until [`settle`](Self::settle).
    pub(crate) fn begin_change(&mut self, filter: UserFilter) {
        self.stages.push_back(Stage { left: None, checks: vec![self.check.clone()] });
        for stage in &mut self.stages {
            stage.checks.push(Check::Everything(filter.clone()));
        }
    }

    /// The kernel has the new filter: after the `waiting` next cells or packets, only `check` is
    /// needed.
    pub(crate) fn settle(&mut self, check: Check, waiting: u64) {
        self.check = check;
        let before: u64 = self.stages.iter().filter_map(|stage| stage.left).sum();
        if let Some(stage) = self.stages.back_mut().filter(|stage| stage.left.is_none()) {
            stage.left = Some(waiting.saturating_sub(before));
        }
        self.stages.retain(|stage| stage.left != Some(0));
    }

    /// Whether it has no packets to check.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.stages.is_empty() && matches!(self.check, Check::Nothing)
    }

    /// How many packets it rejected.
    pub(crate) fn filtered(&self) -> u64 {
        self.filtered
    }

    /// Whether the filter accepts the packet, which occupies this number of `cells`. Counts it if
    /// not.
    pub(crate) fn accepts(&mut self, cells: u64, packet: &Sifted<'_>) -> bool {
        let wanted = match self.stages.front() {
            Some(stage) => stage.checks.iter().all(|check| check.accepts(packet)),
            None => self.check.accepts(packet),
        };
        if let Some(Stage { left: Some(left), .. }) = self.stages.front_mut() {
            *left = left.saturating_sub(cells);
            if *left == 0 {
                self.stages.pop_front();
            }
        }
        self.filtered += u64::from(!wanted);
        wanted
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Accepts packets whose first byte is at least `least`.
    fn at_least(least: u8) -> UserFilter {
        UserFilter::parse(&format!("4,48 0 0 0,53 0 1 {least},6 0 0 1,6 0 0 0"))
    }

    fn accepts(sieve: &mut Sieve, byte: u8) -> bool {
        sieve.accepts(1, &Sifted { data: &[byte], wire_len: 1, tagged: false, packet_type: None })
    }

    #[test]
    fn packets_that_wait_during_changes_must_match_every_filter() {
        let mut sieve = Sieve::default();
        assert!(sieve.is_idle());
        sieve.settle(Check::Everything(at_least(3)), 0);

        // Three packets wait when the filter is changed, one of which is taken meanwhile.
        sieve.begin_change(at_least(1));
        assert!(!accepts(&mut sieve, 2));
        sieve.settle(Check::Everything(at_least(1)), 2);
        assert!(accepts(&mut sieve, 3));

        // One of those is left, and three more have arrived.
        sieve.begin_change(at_least(2));
        sieve.settle(Check::Nothing, 4);
        assert_eq!(
            [2, 1, 2, 1, 0].map(|byte| accepts(&mut sieve, byte)),
            [false, false, true, false, true]
        );
        assert!(sieve.is_idle());
        assert_eq!(sieve.filtered(), 4);
    }

    #[test]
    fn user_space_filters_only_tagged_packets_if_the_kernel_filtered_the_rest() {
        let mut sieve = Sieve::default();
        sieve.settle(Check::Tagged(at_least(9)), 0);
        let packet = |tagged| Sifted { data: &[0], wire_len: 1, tagged, packet_type: None };
        assert!(sieve.accepts(1, &packet(false)) && !sieve.accepts(1, &packet(true)));
    }
}
