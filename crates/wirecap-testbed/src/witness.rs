//! The packets that pass one of the kernel's tracepoints, with a reading of the clock for each: an
//! account of when packets arrived that does not depend on a capture.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;

use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};
use wirecap_filter::bpf::asm::{Assembler, Condition, Helper, Insn, Reg, Size};
use wirecap_filter::bpf::{BpfError, Link, LoadOptions, Map, MapKind, Program, ProgramKind};

/// Stack offset of the key of a map.
const KEY: i16 = -4;
/// Stack offset of the device that was read from a packet.
const DEVICE: i16 = -16;
/// Offset of the device in `struct sk_buff`, after two pointers to other packets.
const DEVICE_OF_PACKET: i32 = 16;
/// Offset of the tracepoint's argument with the type of the map by which a packet is redirected.
const MAP_TYPE: i16 = 8 * 4;
/// `BPF_MAP_TYPE_XSKMAP`: to a socket.
const TO_SOCKET: i32 = 17;
/// Offsets in the record of a packet.
mod record {
    /// Address of the device.
    pub(super) const DEVICE: i16 = 0;
    /// CLOCK_TAI in nanoseconds.
    pub(super) const NANOS: i16 = 8;
    pub(super) const BYTES: u32 = 16;
}

/// The place of a witness.
#[derive(Debug, Clone, Copy)]
enum Place {
    Redirects,
    Arrivals,
}

/// A program at a tracepoint of the kernel. It reads the clock for each packet of all interfaces.
#[derive(Debug)]
pub struct Witness {
    room: u32,
    /// Number of packets.
    count: Map,
    /// Their records.
    packets: Map,
    _attached: Link,
}

impl Witness {
    /// Witnesses packets that XDP programs have redirected to sockets, with room for this many:
    /// after the packet was copied to the socket's memory, and before the program runs for the next
    /// one.
    ///
    /// # Errors
    ///
    /// If the privilege is missing.
    pub fn of_redirects(room: u32) -> Result<Self, BpfError> {
        Self::at(c"xdp_redirect", Place::Redirects, room)
    }

    /// Witnesses packets that the host's network stack receives: before any packet socket gets
    /// them.
    ///
    /// # Errors
    ///
    /// If the privilege is missing.
    pub fn of_arrivals(room: u32) -> Result<Self, BpfError> {
        Self::at(c"netif_receive_skb", Place::Arrivals, room)
    }

    fn at(tracepoint: &CStr, place: Place, room: u32) -> Result<Self, BpfError> {
        let count = Map::create(MapKind::Array, "witness_count", 8, 1)?;
        let packets = Map::create(MapKind::Array, "witness", record::BYTES, room)?;
        let code = noting(place, &count, &packets);
        let program =
            Program::load(ProgramKind::RawTracepoint, "witness", &code, LoadOptions::default())?;
        let _attached = Link::attach_tracepoint(&program, tracepoint)?;
        Ok(Self { room, count, packets, _attached })
    }

    /// The times of the packets of the one interface that had exactly `count`, in nanoseconds of
    /// UTC and in order.
    ///
    /// # Errors
    ///
    /// If no interface or several had so many, or there were more packets than room.
    pub fn times(&self, count: u64) -> io::Result<Vec<u64>> {
        let word = |bytes: &[u8], offset: i16| {
            let bytes = bytes[offset as usize..].first_chunk().expect("a record has two words");
            u64::from_ne_bytes(*bytes)
        };
        let lookup = |map: &Map, key| {
            let copies = map.lookup(key).map_err(io::Error::other)?;
            Ok::<_, io::Error>(
                copies.into_iter().next().expect("an array has one value for each key"),
            )
        };
        let passed = word(&lookup(&self.count, 0)?, 0);

        if passed > u64::from(self.room) {
            return Err(io::Error::other(format!(
                "{passed} packets passed, room for {}",
                self.room
            )));
        }

        let ahead_of_utc = tai_ahead_of_utc_ns()?;
        let mut devices = BTreeMap::<u64, Vec<u64>>::new();

        for packet in 0..passed as u32 {
            let record = lookup(&self.packets, packet)?;
            let times = devices.entry(word(&record, record::DEVICE)).or_default();
            times.push(word(&record, record::NANOS) - ahead_of_utc);
        }

        let counts: Vec<usize> = devices.values().map(Vec::len).collect();
        let mut with_all = devices.into_values().filter(|times| times.len() as u64 == count);
        match (with_all.next(), with_all.next()) {
            (Some(times), None) => Ok(times),
            _ => Err(io::Error::other(format!(
                "one interface must have {count} packets: they have {counts:?}"
            ))),
        }
    }
}

/// CLOCK_TAI differs from UTC by a whole number of seconds.
fn tai_ahead_of_utc_ns() -> io::Result<u64> {
    let seconds = |time: Timespec| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    let ahead = seconds(clock_gettime_dynamic(DynamicClockId::Tai)?)
        - seconds(clock_gettime(ClockId::Realtime));
    Ok(ahead.round() as u64 * 1_000_000_000)
}

/// The program: reads the clock, and then stores the reading with the device in the next record.
fn noting(place: Place, count: &Map, packets: &Map) -> Vec<Insn> {
    let mut program = Assembler::new();
    let done = program.label();
    program.mov(Reg::R6, Reg::R1).call(Helper::KtimeTaiNs).mov(Reg::R7, Reg::R0);

    // The tracepoint's first argument: the receiving device, or the packet.
    program.load(Size::Double, Reg::R8, Reg::R6, 0);

    match place {
        Place::Redirects => {
            program.load(Size::Double, Reg::R1, Reg::R6, MAP_TYPE);
            program.jump_if32(Reg::R1, Condition::Ne, TO_SOCKET, done);
        }
        Place::Arrivals => {
            program.mov(Reg::R1, Reg::R10).add(Reg::R1, i32::from(DEVICE)).mov(Reg::R2, 8);
            program
                .mov(Reg::R3, Reg::R8)
                .add(Reg::R3, DEVICE_OF_PACKET)
                .call(Helper::ProbeReadKernel);
            program.jump_if(Reg::R0, Condition::Ne, 0, done).load(
                Size::Double,
                Reg::R8,
                Reg::R10,
                DEVICE,
            );
        }
    }

    program.store(Size::Word, Reg::R10, KEY, 0);
    program.mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(KEY));
    program.load_map_fd(Reg::R1, count).call(Helper::MapLookup);
    program.jump_if(Reg::R0, Condition::Eq, 0, done);
    program.mov(Reg::R1, 1).atomic_fetch_add(Size::Double, Reg::R0, 0, Reg::R1);
    program.store(Size::Word, Reg::R10, KEY, Reg::R1);
    program.mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(KEY));
    program.load_map_fd(Reg::R1, packets).call(Helper::MapLookup);
    program.jump_if(Reg::R0, Condition::Eq, 0, done);
    program.store(Size::Double, Reg::R0, record::DEVICE, Reg::R8);
    program.store(Size::Double, Reg::R0, record::NANOS, Reg::R7);
    program.bind(done).mov(Reg::R0, 0).exit();

    program.finish().expect("every label is bound once, and near")
}
