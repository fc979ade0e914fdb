//! Decides whether a filter may match packets of which only some bits are known, for instance from
//! a row of an index.
//!
//! The program runs on values with some known bits, a minimum and a maximum. If a branch may go
//! both ways, both are followed, so that no matching packet is excluded. The number of steps is
//! bounded.

use std::ops::RangeInclusive;

use crate::filter::Filter;
use crate::insn::{
    Base, Condition, Op, Operand, Operation, Register, SLOTS, Source, Verdict, Width,
};

/// Common properties of packets: known bits of their first bytes, and bounds of their lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sketch {
    /// For each byte, the mask of known bits and their values.
    bytes: Vec<(u8, u8)>,
    captured_max: u32,
    wire_len: RangeInclusive<u32>,
}

impl Sketch {
    /// A sketch of packets with at most `captured_max` captured bytes, of which only the range of
    /// the length on the wire is known.
    pub fn new(captured_max: u32, wire_len: RangeInclusive<u32>) -> Self {
        Self { bytes: Vec::new(), captured_max, wire_len }
    }

    /// Adds known bytes at this offset.
    pub fn know(&mut self, offset: usize, bytes: &[u8]) {
        for (index, &byte) in bytes.iter().enumerate() {
            self.know_bits(offset + index, 0xff, byte);
        }
    }

    /// Adds known bits of the byte at this offset: those in `mask`.
    pub fn know_bits(&mut self, offset: usize, mask: u8, bits: u8) {
        if self.bytes.len() <= offset {
            self.bytes.resize(offset + 1, (0, 0));
        }
        let (known, byte) = &mut self.bytes[offset];
        *known |= mask;
        *byte = *byte & !mask | bits & mask;
    }

    /// Whether `packet` contains all known bytes with the known values.
    pub fn agrees_with(&self, packet: &[u8]) -> bool {
        packet.len() >= self.bytes.len()
            && self.bytes.iter().zip(packet).all(|((mask, bits), byte)| byte & mask == *bits)
    }

    /// The value at `offset`; `None` if no packet is that long.
    fn load(&self, width: Width, offset: u32) -> Option<Value> {
        let count = byte_count(width);
        if offset.checked_add(count)? > self.captured_max {
            return None;
        }
        let mut mask = 0;
        let mut bits = 0;
        for index in offset..offset + count {
            let (known, byte) = self.bytes.get(index as usize).copied().unwrap_or_default();
            (mask, bits) = (mask << 8 | u32::from(known), bits << 8 | u32::from(byte));
        }
        let above = !(u32::MAX >> (32 - 8 * count));
        Some(Value { origin: Some((offset, count)), ..Value::of_bits(mask | above, bits) })
    }
}

fn byte_count(width: Width) -> u32 {
    match width {
        Width::Byte => 1,
        Width::Half => 2,
        Width::Word => 4,
    }
}

/// A condition that all packets of one alternative of [`Filter::needs`] fulfil.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Need {
    /// The offset in the packet.
    pub offset: u32,
    /// The number of bytes at that offset: 1, 2 or 4.
    pub byte_count: u32,
    /// Their value in network byte order.
    pub value: u32,
}

/// Maximum number of steps of one exploration, over all paths.
const STEPS_MAX: u32 = 20_000;
/// The maximum number of alternatives.
const ALTERNATIVES_MAX: usize = 256;

impl Filter {
    /// Whether the filter may match a packet with the properties of the sketch. `false` is certain
    /// for packets in a file, whose [`Context`](crate::Context) is unknown.
    pub fn can_match(&self, sketch: &Sketch) -> bool {
        let mut is_match = false;
        let explored = self.explore(sketch, &mut |_| {
            is_match = true;
            false
        });
        is_match || !explored
    }

    /// What packets with the properties of the sketch need to match: all conditions of at least one
    /// alternative. Returns `None` if there are too many alternatives or steps, or a backward jump.
    /// An alternative without conditions means that any of these packets may match.
    pub fn needs(&self, sketch: &Sketch) -> Option<Vec<Vec<Need>>> {
        let mut alternatives = Vec::new();
        let explored = self.explore(sketch, &mut |needs| {
            if !alternatives.contains(needs) {
                alternatives.push(needs.clone());
            }
            alternatives.len() <= ALTERNATIVES_MAX
        });
        (explored && alternatives.len() <= ALTERNATIVES_MAX).then_some(alternatives)
    }

    /// Calls `matched` with the conditions of each path to a match, until it returns false. Returns
    /// `false` if there are too many steps or a backward jump.
    fn explore(&self, sketch: &Sketch, matched: &mut dyn FnMut(&Vec<Need>) -> bool) -> bool {
        let start = Path {
            at: 0,
            a: Value::constant(0),
            x: Value::constant(0),
            slots: [Value::constant(0); _],
            needs: Vec::new(),
        };
        let mut paths = vec![start];
        let mut steps = 0;

        while let Some(mut path) = paths.pop() {
            loop {
                steps += 1;
                if steps > STEPS_MAX {
                    return false;
                }

                match path.step(self.program.ops()[path.at as usize], sketch) {
                    Step::On => {}
                    Step::Fork(other) => paths.push(*other),
                    Step::Rejected => break,
                    Step::Matched if !matched(&path.needs) => return true,
                    Step::Matched => break,
                    Step::Loop => return false,
                }
            }
        }

        true
    }
}

/// A partially known value. If it is an unchanged field of the packet, at `origin`, a condition on
/// it is a condition on the packet.
#[derive(Clone, Copy, Debug)]
struct Value {
    /// The mask of known bits, and their values.
    mask: u32,
    bits: u32,
    least: u32,
    most: u32,
    /// Offset and length in bytes.
    origin: Option<(u32, u32)>,
}

impl Value {
    const UNKNOWN: Self = Self { mask: 0, bits: 0, least: 0, most: u32::MAX, origin: None };

    fn constant(value: u32) -> Self {
        Self { mask: u32::MAX, bits: value, least: value, most: value, origin: None }
    }

    fn of_bits(mask: u32, bits: u32) -> Self {
        let bits = bits & mask;
        Self { mask, bits, least: bits, most: bits | !mask, origin: None }
    }

    fn between(least: u32, most: u32) -> Self {
        // All numbers of the range have the same bits above the highest bit in which its ends
        // differ.
        let mask = match (least ^ most).leading_zeros() {
            32 => u32::MAX,
            same => !(u32::MAX >> same),
        };
        Self { mask, bits: least & mask, least, most, origin: None }
    }

    fn known(self) -> Option<u32> {
        (self.least == self.most).then_some(self.least)
    }

    /// The values that both allow; `None` if there are none.
    fn and_also(self, other: Self) -> Option<Self> {
        let least = self.least.max(other.least);
        let most = self.most.min(other.most);
        let contradicts = (self.bits ^ other.bits) & self.mask & other.mask != 0;
        if least > most || contradicts {
            return None;
        }
        if least == most {
            return Some(Self { origin: self.origin, ..Self::constant(least) });
        }
        let (mask, bits) = (self.mask | other.mask, self.bits | other.bits);
        Some(Self { mask, bits, least, most, origin: self.origin })
    }

    /// The result of an operation; `None` if it rejects the packet.
    fn compute(self, operation: Operation, other: Self) -> Option<Self> {
        if let (Some(a), Some(b)) = (self.known(), other.known()) {
            return crate::interpreter::compute(operation, a, b).map(Self::constant);
        }

        let bounds = |least: Option<u32>, most: Option<u32>| match (least, most) {
            (Some(least), Some(most)) => Self::between(least, most),
            _ => Self::UNKNOWN,
        };
        let zeros = self.mask & !self.bits;
        let other_zeros = other.mask & !other.bits;

        Some(match operation {
            Operation::Add => {
                bounds(self.least.checked_add(other.least), self.most.checked_add(other.most))
            }
            Operation::Sub => {
                bounds(self.least.checked_sub(other.most), self.most.checked_sub(other.least))
            }
            Operation::Mul => {
                bounds(self.least.checked_mul(other.least), self.most.checked_mul(other.most))
            }
            Operation::Div | Operation::Mod if other.most == 0 => return None,
            Operation::Div => {
                Self::between(self.least / other.most, self.most / other.least.max(1))
            }
            Operation::Mod if self.most < other.least => Self { origin: None, ..self },
            Operation::Mod => Self::between(0, self.most.min(other.most - 1)),
            Operation::And => {
                Self::of_bits(self.mask & other.mask | zeros | other_zeros, self.bits & other.bits)
            }
            Operation::Or => Self::of_bits(
                self.mask & other.mask | self.bits | other.bits,
                self.bits | other.bits,
            ),
            Operation::Xor => Self::of_bits(self.mask & other.mask, self.bits ^ other.bits),
            Operation::ShiftLeft | Operation::ShiftRight => match other.known() {
                Some(by @ 0..32) if operation == Operation::ShiftLeft => {
                    Self::of_bits(self.mask << by | !(u32::MAX << by), self.bits << by)
                }
                Some(by @ 0..32) => {
                    Self::of_bits(self.mask >> by | !(u32::MAX >> by), self.bits >> by)
                }
                _ => Self::UNKNOWN,
            },
        })
    }

    /// Whether the condition is true; `None` if it depends on the packet.
    fn compare(self, condition: Condition, other: Self) -> Option<bool> {
        match condition {
            Condition::Equal => match (self.known(), other.known()) {
                (Some(a), Some(b)) => Some(a == b),
                _ => self.and_also(other).is_none().then_some(false),
            },
            Condition::Greater => decided(self.least > other.most, self.most <= other.least),
            Condition::GreaterOrEqual => decided(self.least >= other.most, self.most < other.least),
            Condition::AnySet => {
                let set = self.bits & other.bits;
                let may_be = (self.bits | !self.mask) & (other.bits | !other.mask);
                decided(set != 0, may_be == 0)
            }
        }
    }

    /// The value given that the condition is true or false; not as narrow as possible, to keep the
    /// code simple.
    fn after(self, condition: Condition, other: u32, holds: bool) -> Self {
        let bounds = match (condition, holds) {
            (Condition::Equal, true) => Self::constant(other),
            (Condition::AnySet, false) => Self::of_bits(other, 0),
            (Condition::Greater, true) => Self::between(other.saturating_add(1), u32::MAX),
            (Condition::Greater, false) => Self::between(0, other),
            (Condition::GreaterOrEqual, true) => Self::between(other, u32::MAX),
            (Condition::GreaterOrEqual, false) => Self::between(0, other.saturating_sub(1)),
            (Condition::Equal, false) | (Condition::AnySet, true) => return self,
        };
        self.and_also(bounds).unwrap_or(self)
    }
}

fn decided(is_true: bool, is_false: bool) -> Option<bool> {
    (is_true || is_false).then_some(is_true)
}

/// One path through the program so far.
#[derive(Clone)]
struct Path {
    at: u32,
    a: Value,
    x: Value,
    slots: [Value; SLOTS as usize],
    /// The conditions on the packet so far.
    needs: Vec<Need>,
}

enum Step {
    On,
    /// The other path of a branch, not yet followed.
    Fork(Box<Path>),
    Rejected,
    Matched,
    /// A jump backwards, as in `protochain`.
    Loop,
}

impl Path {
    fn step(&mut self, op: Op, sketch: &Sketch) -> Step {
        let mut next = self.at + 1;

        match op {
            Op::Load(register, source) => match self.load(source, sketch) {
                Some(value) => *self.register(register) = value,
                None => return Step::Rejected,
            },
            Op::Store(register, slot) => self.slots[slot as usize] = *self.register(register),
            Op::Alu(operation, operand) => match self.a.compute(operation, self.value(operand)) {
                Some(value) => self.a = value,
                None => return Step::Rejected,
            },
            Op::Negate => {
                self.a =
                    self.a.known().map_or(Value::UNKNOWN, |a| Value::constant(a.wrapping_neg()));
            }
            Op::Tax => self.x = self.a,
            Op::Txa => self.a = self.x,
            Op::Jump(target) if target <= self.at => return Step::Loop,
            Op::Jump(target) => next = target,
            Op::Branch { condition, operand, if_true, if_false } => {
                let operand = self.value(operand);
                let Some(holds) = self.a.compare(condition, operand) else {
                    return self.fork(condition, operand, if_true, if_false);
                };
                next = if holds { if_true } else { if_false };
            }
            Op::Return(Verdict::Constant(0)) => return Step::Rejected,
            Op::Return(Verdict::A) if self.a.most == 0 => return Step::Rejected,
            Op::Return(_) => return Step::Matched,
        }

        self.at = next;
        Step::On
    }

    /// Continues on the path where the condition is true, and returns the other path.
    fn fork(&mut self, condition: Condition, operand: Value, if_true: u32, if_false: u32) -> Step {
        let mut other = Box::new(self.clone());
        (self.at, other.at) = (if_true, if_false);
        if let Some(constant) = operand.known() {
            other.a = self.a.after(condition, constant, false);
            if let (Condition::Equal, Some((offset, byte_count))) = (condition, self.a.origin) {
                self.needs.push(Need { offset, byte_count, value: constant });
            }
            self.a = self.a.after(condition, constant, true);
        }
        Step::Fork(other)
    }

    fn register(&mut self, register: Register) -> &mut Value {
        match register {
            Register::A => &mut self.a,
            Register::X => &mut self.x,
        }
    }

    fn value(&self, operand: Operand) -> Value {
        match operand {
            Operand::Constant(k) => Value::constant(k),
            Operand::X => self.x,
        }
    }

    /// `None` if no packet has these bytes.
    fn load(&self, source: Source, sketch: &Sketch) -> Option<Value> {
        Some(match source {
            Source::Constant(k) => Value::constant(k),
            Source::Slot(slot) => self.slots[slot as usize],
            Source::WireLen => Value::between(*sketch.wire_len.start(), *sketch.wire_len.end()),
            Source::Absolute(width, place) if place.base == Base::Packet => {
                sketch.load(width, place.offset)?
            }
            Source::Indirect(width, place) if place.base == Base::Packet => match self.x.known() {
                Some(x) => sketch.load(width, place.offset.checked_add(x)?)?,
                None => {
                    let least = place.offset.checked_add(self.x.least)?;
                    let loaded = sketch.load(width, least)?;
                    // Any number of this width.
                    Value::of_bits(
                        !(u32::MAX >> (32 - 8 * loaded.origin.map_or(4, |(_, count)| count))),
                        0,
                    )
                }
            },
            Source::HeaderLen(place) if place.base == Base::Packet => {
                let low = sketch
                    .load(Width::Byte, place.offset)?
                    .compute(Operation::And, Value::constant(0xf))?;
                low.compute(Operation::ShiftLeft, Value::constant(2))?
            }
            Source::Absolute(..)
            | Source::Indirect(..)
            | Source::HeaderLen(_)
            | Source::Extension(_) => Value::UNKNOWN,
        })
    }
}

#[cfg(test)]
mod tests {
    use wirecap_savefile::LinkType;

    use super::*;
    use crate::{ClassicInsn, CompiledFilter, Context};

    fn udp(source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
        let mut packet = vec![0; 60];
        packet[12] = 8;
        packet[14] = 0x45;
        packet[23] = 17;
        packet[26..30].copy_from_slice(&source);
        packet[30..34].copy_from_slice(&destination);
        packet[34..36].copy_from_slice(&ports[0].to_be_bytes());
        packet[36..38].copy_from_slice(&ports[1].to_be_bytes());
        packet
    }

    /// A sketch of what an index knows about the flow of a packet.
    fn sketch(packet: &[u8]) -> Sketch {
        let mut sketch = Sketch::new(packet.len() as u32, 60..=60);
        for known in [12..15, 23..24, 26..38] {
            sketch.know(known.start, &packet[known]);
        }
        sketch.know_bits(20, 0x3f, 0);
        sketch.know_bits(21, 0xff, 0);
        sketch
    }

    #[test]
    fn the_columns_of_a_flow_decide_filters_on_flows() {
        let packet = udp([10, 0, 0, 1], [10, 0, 0, 2], [53, 4000]);
        let sketch = sketch(&packet);
        assert!(sketch.agrees_with(&packet));

        for expression in [
            "udp",
            "ip",
            "host 10.0.0.1",
            "src host 10.0.0.1 and dst port 4000",
            "port 53",
            "net 10.0.0.0/8",
            "portrange 50-60",
            "not tcp",
            "tcp or udp",
            "less 60",
            "not (host 10.0.0.1 and tcp)",
            "udp and (port 53 or port 5353) and not host 1.2.3.4",
        ] {
            let filter = Filter::compile(expression, LinkType::ETHERNET, 0).unwrap();
            assert!(filter.can_match(&sketch), "{expression}");
        }

        for expression in [
            "tcp",
            "ip6",
            "arp",
            "host 10.0.0.3",
            "src host 10.0.0.2",
            "port 54",
            "net 11.0.0.0/8",
            "vlan",
            "dst portrange 50-60",
            "not udp",
            "greater 61",
            "tcp port 53",
            "icmp or arp",
            "udp and not (port 53 or port 5353)",
            "not host 10.0.0.1",
        ] {
            let filter = Filter::compile(expression, LinkType::ETHERNET, 0).unwrap();
            assert!(!filter.can_match(&sketch), "{expression}");
        }
    }

    #[test]
    fn each_alternative_has_its_own_needs() {
        let mut sketch = Sketch::new(1514, 60..=1514);
        sketch.know(12, &[8, 0]);
        sketch.know(14, &[0x45]);
        sketch.know_bits(20, 0x3f, 0);
        sketch.know_bits(21, 0xff, 0);

        let needs = |expression| {
            Filter::compile(expression, LinkType::ETHERNET, 0).unwrap().needs(&sketch).unwrap()
        };
        let host = |offset| Need { offset, byte_count: 4, value: 0x0a00_0001 };
        assert_eq!(needs("host 10.0.0.1"), [vec![host(26)], vec![host(30)]]);
        assert_eq!(needs("src host 10.0.0.1 and not tcp").len(), 1);
        assert!(needs("not host 10.0.0.1").iter().all(Vec::is_empty));
        assert_eq!(needs("ip6"), Vec::<Vec<Need>>::new());
    }

    #[test]
    fn a_loop_may_match_everything() {
        let filter = Filter::compile("ip6 protochain 6", LinkType::ETHERNET, 0).unwrap();
        let mut sketch = Sketch::new(100, 100..=100);
        sketch.know(12, &[0x86, 0xdd]);
        assert!(filter.can_match(&sketch));
    }

    /// Whatever is known of a packet, a filter that matches the packet can match its sketch.
    #[test]
    fn a_packet_that_matches_is_never_excluded() {
        // Loads, stores, arithmetic and jumps of all kinds.
        const CODES: [u16; 22] = [
            0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x80, 0x00, 0x01, 0xb1, 0x60, 0x02, 0x04, 0x14,
            0x54, 0x44, 0x64, 0x74, 0x15, 0x25, 0x45, 0x07,
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;

        let mut below = |limit: u32| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 32) as u32) % limit
        };
        let mut matched = 0;
        let mut excluded = 0;

        for _ in 0..30_000 {
            let count = 1 + below(40);
            let mut program: Vec<ClassicInsn> = (0..count)
                .map(|index| {
                    let code = CODES[below(22) as usize];
                    let k = match code {
                        0x60 | 0x02 => below(16),
                        0x64 | 0x74 => below(32),
                        _ => below(40),
                    };
                    let mut jump = || below(4).min(count - 1 - index) as u8;
                    ClassicInsn { code, jt: jump(), jf: jump(), k }
                })
                .collect();
            program.extend([1, 0].map(|k| ClassicInsn { code: 6, jt: 0, jf: 0, k }));

            let at = below(count + 1) as usize;
            program.insert(
                at,
                ClassicInsn { code: 0x15, jt: 0, jf: (program.len() - 1 - at) as u8, k: below(4) },
            );

            let filter = Filter::from_program(program, LinkType::RAW).unwrap();
            let packet: Vec<u8> = (0..14 + below(60)).map(|_| below(4) as u8).collect();
            let len = packet.len() as u32;
            let more = below(40);
            let wire_len = len + more;
            let mut sketch = Sketch::new(len + more / 2, wire_len - more / 2..=wire_len + more);

            for (offset, &byte) in packet.iter().enumerate() {
                if below(4) > 0 {
                    sketch.know_bits(offset, below(256) as u8, byte);
                }
            }

            assert!(sketch.agrees_with(&packet));
            let matches = CompiledFilter::new(&filter).unwrap().matches(
                &packet,
                wire_len,
                &Context::default(),
            ) > 0;

            let can_match = filter.can_match(&sketch);
            assert!(!matches || can_match, "{filter}\n{packet:?}\n{sketch:?}");
            matched += u32::from(matches);
            excluded += u32::from(!can_match);
        }

        assert!(matched > 1000 && excluded > 1000, "{matched} matched, {excluded} were excluded");
    }
}
