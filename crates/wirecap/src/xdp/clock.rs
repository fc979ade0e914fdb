//! How the XDP program determines the arrival time of a packet.
//!
//! The clock is CLOCK_TAI: it differs from UTC by a whole number of seconds, and no other clock
//! that a program can read converts to UTC exactly.
//!
//! Reading it for each packet costs half as much as receiving a small packet. Drivers hand over
//! arrived packets in batches of up to 64 (a NAPI poll), so [`Clock::Batch`] reads it for the first
//! packet of a batch and for every [`READ_EVERY`]th one; those between them get the same time. So a
//! packet's time is never later than its own reading would be, and earlier by less than it takes to
//! receive [`READ_EVERY`] packets.
//!
//! XDP has no hook at the end of a batch. A second program on the raw tracepoint `napi_poll`, which
//! the kernel passes at the end of a batch on the same CPU, makes the next packet read the clock
//! again, so a timestamp is never older than its batch. If that program cannot be loaded (no
//! CAP_PERFMON) or batches are unreliable (generic XDP; `tun`, whose system calls run XDP outside
//! of batches), the program reads the clock for every packet.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bpf::asm::{Assembler, Condition, Helper, Label, Reg, Size};
use crate::bpf::{
    BpfError, Link, LoadOptions, Map, MapKind, Program, ProgramKind, kernel_function,
};
use crate::device::DeviceSummary;
use crate::time::Timestamps;
use crate::umem::chunk::heads::PACKETS_PER_READING;

/// Maximum number of packets of a batch that share a reading.
const READ_EVERY: u64 = PACKETS_PER_READING as u64;
/// The tracepoint that the kernel passes at the end of each batch (`trace_napi_poll` in
/// `net/core/dev.c`), on the CPU that ran the XDP program for the batch's packets.
const END_OF_BATCH: &CStr = c"napi_poll";
/// Stack offset of a packet's hardware timestamp.
const DEVICE_TIME: i16 = -16;
/// The kernel's function that returns a packet's hardware timestamp to a program (kernel
/// documentation, `networking/xdp-rx-metadata.rst`).
pub(super) const DEVICE_CLOCK: &str = "bpf_xdp_metadata_rx_timestamp";

/// The stored values of the last reading, for each CPU.
mod reading {
    /// The clock's nanoseconds.
    pub(super) const NANOS: i16 = 0;
    /// Number of further packets that use it.
    pub(super) const LEFT: i16 = 8;
    /// Number of further packets that will use a new reading.
    pub(super) const SHARED: i16 = 16;
    pub(super) const BYTES: u32 = 24;
}

/// The packets for which the clock is read.
#[derive(Debug)]
pub(crate) enum Clock {
    /// For each packet.
    Packet,
    /// For some packets of each batch.
    Batch {
        /// The last reading, for each CPU.
        reading: Map,
        /// The key of the reading, as the program needs it: in memory.
        zero: Map,
        /// Runs the program that invalidates the reading at the end of each batch.
        _forget: Link,
        /// It is read for each packet instead.
        each_packet: AtomicBool,
    },
    /// Never: the device's clock is used.
    Device {
        /// The number of the kernel function that reads it.
        function: u32,
        /// The device's index: a program that calls it is bound to it.
        ifindex: u32,
    },
}

impl Clock {
    /// The clock for timestamps of this kind for `device`. It is read for each packet if the kernel
    /// does not report the end of batches, which requires CAP_PERFMON.
    pub(crate) fn new(wanted: Timestamps, device: &DeviceSummary) -> Result<Self, BpfError> {
        Ok(match wanted {
            Timestamps::Batch if !device.is_without_batches => {
                Self::batch().unwrap_or(Self::Packet)
            }
            Timestamps::Hardware => Self::device(device.index)?,
            Timestamps::None | Timestamps::Packet | Timestamps::Batch => Self::Packet,
        })
    }

    fn device(ifindex: u32) -> Result<Self, BpfError> {
        Ok(Self::Device { function: kernel_function(DEVICE_CLOCK)?, ifindex })
    }

    /// The device to which a program that reads this clock is bound.
    pub(crate) fn bound_to(&self) -> Option<u32> {
        match self {
            Self::Device { ifindex, .. } => Some(*ifindex),
            Self::Packet | Self::Batch { .. } => None,
        }
    }

    fn batch() -> Result<Self, BpfError> {
        let reading = Map::create(MapKind::PercpuArray, "wirecap_clock", reading::BYTES, 1)?;
        share(&reading, READ_EVERY)?;
        let zero = Map::create(MapKind::Array, "wirecap_zero", size_of::<u32>() as u32, 1)?;
        let code = forgetting(&reading, &zero);
        let forget = Program::load(
            ProgramKind::RawTracepoint,
            "wirecap_forget",
            &code,
            LoadOptions::default(),
        )?;
        let _forget = Link::attach_tracepoint(&forget, END_OF_BATCH)?;
        Ok(Self::Batch { reading, zero, _forget, each_packet: AtomicBool::new(false) })
    }

    /// The kind of timestamps that it provides.
    pub(crate) fn timestamps(&self) -> Timestamps {
        match self {
            Self::Batch { each_packet, .. } if !each_packet.load(Ordering::Relaxed) => {
                Timestamps::Batch
            }
            Self::Packet | Self::Batch { .. } => Timestamps::Packet,
            Self::Device { .. } => Timestamps::Hardware,
        }
    }

    /// From now on it is read for each packet.
    pub(crate) fn read_for_each_packet(&self) -> Result<(), BpfError> {
        if let Self::Batch { reading, each_packet, .. } = self {
            share(reading, 1)?;
            each_packet.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Puts the time in nanoseconds into R0; 0 if the device should provide it and does not. R6 is
    /// the program's context. Leaves nothing in R1 to R5 and R7.
    pub(crate) fn read(&self, program: &mut Assembler) {
        match self {
            Self::Packet => {
                program.call(Helper::KtimeTaiNs);
            }
            Self::Batch { reading, zero, .. } => read_for_batch(program, reading, zero),
            Self::Device { function, .. } => read_of_device(program, *function),
        }
    }
}

/// Makes every reading valid for this many packets.
fn share(reading: &Map, packets: u64) -> Result<(), BpfError> {
    let mut value = [0; reading::BYTES as usize];
    value[reading::SHARED as usize..].copy_from_slice(&(packets - 1).to_ne_bytes());
    reading.update(0, &value)
}

fn read_for_batch(program: &mut Assembler, reading: &Map, zero: &Map) {
    let read = program.label();
    let done = program.label();
    find(program, reading, zero, done);
    program.mov(Reg::R7, Reg::R0);
    program.load(Size::Double, Reg::R1, Reg::R7, reading::LEFT);
    program.load(Size::Double, Reg::R0, Reg::R7, reading::NANOS);
    program.jump_if(Reg::R1, Condition::Eq, 0, read);
    program.sub(Reg::R1, 1).store(Size::Double, Reg::R7, reading::LEFT, Reg::R1);
    program.jump(done);
    program.bind(read);
    program.call(Helper::KtimeTaiNs);
    program.store(Size::Double, Reg::R7, reading::NANOS, Reg::R0);
    program.load(Size::Double, Reg::R1, Reg::R7, reading::SHARED);
    program.store(Size::Double, Reg::R7, reading::LEFT, Reg::R1);
    program.bind(done);
}

fn read_of_device(program: &mut Assembler, function: u32) {
    let none = program.label();
    let done = program.label();
    program.store(Size::Double, Reg::R10, DEVICE_TIME, 0);
    program.mov(Reg::R1, Reg::R6).mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(DEVICE_TIME));
    program.call_kernel(function);
    program.jump_if(Reg::R0, Condition::Ne, 0, none);
    program.load(Size::Double, Reg::R0, Reg::R10, DEVICE_TIME).jump(done);
    program.bind(none).mov(Reg::R0, 0).bind(done);
}

/// The program that makes the next packet on this CPU read the clock.
fn forgetting(reading: &Map, zero: &Map) -> Vec<crate::bpf::asm::Insn> {
    let mut program = Assembler::new();
    let done = program.label();
    find(&mut program, reading, zero, done);
    program.store(Size::Double, Reg::R0, reading::LEFT, 0);
    program.bind(done);
    program.mov(Reg::R0, 0).exit();
    program.finish().expect("every label is bound once, and near")
}

/// Puts the address of this CPU's last reading into R0; at `missing` the verifier knows that there
/// is one.
///
/// The key is not on the stack: without CAP_PERFMON, the processor waits for all earlier
/// instructions after a store to unused stack, 10 ns per packet.
fn find(program: &mut Assembler, reading: &Map, zero: &Map, missing: Label) {
    program.load_map_fd(Reg::R1, reading);
    program.load_map_value(Reg::R2, zero, 0);
    program.call(Helper::MapLookup);
    program.jump_if(Reg::R0, Condition::Eq, 0, missing);
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use wirecap_testbed::{Generator, Load, Namespace, Traffic, VethPair, privileged};

    use super::*;
    use crate::bpf::asm::{Alu, Insn};
    use crate::bpf::{XDP_DROP, XdpMode};

    /// Width of a column of the histogram in nanoseconds.
    const COLUMN_NANOS: i32 = 250;
    const COLUMNS: u32 = 64;
    /// Stack offset of a column's number.
    const KEY: i16 = -4;

    /// Records for each packet how much later its own reading of the clock is than its timestamp.
    fn noting(clock: &Clock, histogram: &Map) -> Vec<Insn> {
        let mut program = Assembler::new();
        let [in_range, done] = [(); 2].map(|()| program.label());
        clock.read(&mut program);
        program.mov(Reg::R8, Reg::R0).call(Helper::KtimeTaiNs).sub(Reg::R0, Reg::R8);
        program.alu64(Alu::Div, Reg::R0, COLUMN_NANOS);

        let last = COLUMNS.cast_signed() - 1;
        program.jump_if(Reg::R0, Condition::Lt, last, in_range).mov(Reg::R0, last).bind(in_range);
        program.store(Size::Word, Reg::R10, KEY, Reg::R0);
        program.mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(KEY));
        program.load_map_fd(Reg::R1, histogram).call(Helper::MapLookup);
        program.jump_if(Reg::R0, Condition::Eq, 0, done);
        program.load(Size::Double, Reg::R1, Reg::R0, 0).add(Reg::R1, 1);
        program.store(Size::Double, Reg::R0, 0, Reg::R1);
        program.bind(done).mov(Reg::R0, XDP_DROP).exit();

        program.finish().expect("every label is bound once, and near")
    }

    /// The column below which this percentage of the packets lies.
    fn percentile(columns: &[u64], percent: u64) -> usize {
        let wanted = (columns.iter().sum::<u64>() * percent).div_ceil(100);
        let mut below = 0;
        columns
            .iter()
            .take_while(|&&count| {
                below += count;
                below < wanted
            })
            .count()
            + 1
    }

    /// Prints the error of `Timestamps::Batch` with `--nocapture`; tests do not limit it.
    #[test]
    fn a_packet_never_gets_a_later_time_than_its_own() {
        if !privileged() {
            return;
        }

        let near = Namespace::new().unwrap();
        let far = Namespace::new().unwrap();
        let pair = VethPair::new((&near, "a0"), (&far, "a1"), 1, 1500).unwrap();
        let clock = Clock::batch().expect("the kernel has the tracepoint");
        let mut generator = Generator::new(&pair.sender, &Traffic::to(&pair.receiver)).unwrap();
        let load = || Load::new(0, 200_000);

        for (rate, load) in [("full rate", load()), ("200,000/s", load().per_second(200_000))] {
            let histogram = Map::create(MapKind::PercpuArray, "errors", 8, COLUMNS).unwrap();
            let code = noting(&clock, &histogram);
            let program =
                Program::load(ProgramKind::Xdp, "errors", &code, LoadOptions::default()).unwrap();
            let attach = || Link::attach_xdp(&program, pair.receiver.index, XdpMode::Native);
            let link = far.run_in(attach).unwrap().unwrap();

            generator.send(&[load]).unwrap();
            drop(link);

            let columns: Vec<u64> =
                (0..COLUMNS).map(|column| histogram.lookup_sums(column).unwrap()[0]).collect();
            let total: u64 = columns.iter().sum();
            assert!((1..=200_000).contains(&total), "{columns:?}");

            let below = |percent| percentile(&columns, percent) as i32 * COLUMN_NANOS;
            println!("{rate}: {total} packets, by {COLUMN_NANOS} ns: {columns:?}");
            println!("half below {} ns, 99 % below {} ns", below(50), below(99));

            // A time in the future would be an enormous error; a stalled machine makes a large one.
            assert!(columns[COLUMNS as usize - 1] < total / 10, "{columns:?}");
        }
    }
}
