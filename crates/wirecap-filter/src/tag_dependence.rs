//! Whether a filter needs the VLAN tags of packets.

use wirecap_savefile::LinkType;

use crate::ethernet::{TAG_TYPES, TYPE_OFFSET};
use crate::filter::Filter;
use crate::insn::{Base, Op, Operand, Position, Source};
use crate::sketch::Sketch;

/// The largest frame that a filter can ask for.
const FRAME_BYTES_MAX: u32 = 1 << 18;

impl Filter {
    /// Whether the filter may miss packets, or match others, if they arrive without their outer
    /// VLAN tag: it compares with the types of tags, as `vlan` and `not vlan` do, or a tagged
    /// packet can match, and not only by its addresses, as with `not port 22`. A filter that no
    /// tagged packet matches, such as `udp`, misses nothing.
    pub fn depends_on_tags(&self) -> bool {
        self.link_type() == LinkType::ETHERNET
            && (self.compares_tag_types()
                || self.reads_beyond_addresses() && self.can_match_tagged())
    }

    fn compares_tag_types(&self) -> bool {
        self.ops().iter().any(|op| match op {
            Op::Branch { operand: Operand::Constant(k), .. } => TAG_TYPES.contains(k),
            Op::Load(_, Source::Extension(extension)) => extension.is_of_tag(),
            _ => false,
        })
    }

    /// Whether the result depends on anything that is at another place, or different, without the
    /// tag.
    fn reads_beyond_addresses(&self) -> bool {
        self.ops().iter().any(|op| match op {
            Op::Load(_, Source::Absolute(width, Position { base: Base::Packet, offset })) => {
                *offset > TYPE_OFFSET - width.bytes()
            }
            Op::Load(_, source) => !matches!(source, Source::Constant(_) | Source::Slot(_)),
            _ => false,
        })
    }

    fn can_match_tagged(&self) -> bool {
        TAG_TYPES.iter().any(|tag_type| {
            let mut sketch = Sketch::new(FRAME_BYTES_MAX, TYPE_OFFSET..=FRAME_BYTES_MAX);
            sketch.know(TYPE_OFFSET as usize, &(*tag_type as u16).to_be_bytes());
            self.can_match(&sketch)
        })
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_filter_depends_on_tags_if_it_would_miss_packets_without_them() {
        let depends = |expression: &&str| {
            Filter::compile(expression, LinkType::ETHERNET, 0)
                .expect("libpcap takes it")
                .depends_on_tags()
        };
        let reading = [
            "vlan",
            "vlan 5",
            "vlan and udp",
            "udp or vlan 5",
            "not vlan",
            "ether proto 0x8100",
            "ether proto 0x88a8",
            "ether[12] = 0x81",
            "ether[14:2] & 0xfff = 5",
            "not port 22",
            "not arp",
            "greater 100",
        ];
        for expression in reading {
            assert!(depends(&expression), "depends on tags: {expression}");
        }

        let others = [
            "",
            "udp",
            "ip",
            "ip6",
            "arp",
            "host 10.0.0.1",
            "tcp port 80 or udp port 53",
            "ip and not port 22",
            "ether host 02:00:00:00:00:01",
            "ether broadcast",
            "ether multicast",
            "ether proto 0x88cc",
        ];
        for expression in others {
            assert!(!depends(&expression), "does not depend on tags: {expression}");
        }
    }
}
