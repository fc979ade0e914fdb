//! A filter as an XDP program in the kernel.

use std::error::Error;

use wirecap_filter::bpf::asm::{Assembler, Reg};
use wirecap_filter::bpf::{BpfError, LoadOptions, Program, ProgramKind};
use wirecap_filter::{Context, Filter, PacketType, Unsupported, XdpTarget};

/// Options of the translation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) multi_buffer: bool,
}

pub(crate) const WAYS: [Way; 2] = [Way { multi_buffer: false }, Way { multi_buffer: true }];

/// The Ethernet address for which the programs are compiled.
pub(crate) const ADDRESS: [u8; 6] = [0x02, 0, 0, 0, 0, 1];

/// The context of a frame in a test run: it appears to arrive on queue 0 of the loopback interface.
pub(crate) fn context(frame: &[u8]) -> Context {
    let packet_type = match frame.first_chunk::<6>() {
        Some(to) if *to == ADDRESS => PacketType::Host,
        Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => PacketType::Broadcast,
        Some([first, ..]) if first & 1 == 1 => PacketType::Multicast,
        _ => PacketType::OtherHost,
    };
    Context { ifindex: 1, packet_type, ..Context::default() }
}

/// A loaded program that returns the filter's result.
#[derive(Debug)]
pub(crate) struct XdpFilter(Program);

pub(crate) fn load(filter: &Filter, way: Way) -> Result<Result<XdpFilter, BpfError>, Unsupported> {
    let mut asm = Assembler::new();
    let reject = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    let target = XdpTarget {
        context: Reg::R6,
        reject,
        multi_buffer: way.multi_buffer,
        address: Some(ADDRESS),
    };
    filter.emit_xdp(&mut asm, &target)?;
    asm.exit().bind(reject).mov32(Reg::R0, 0).exit();
    let code = asm.finish().expect("labels are bound");
    let options = LoadOptions { fragments: way.multi_buffer, ..LoadOptions::default() };
    Ok(Program::load(ProgramKind::Xdp, "filter", &code, options).map(XdpFilter))
}

impl XdpFilter {
    /// Loads a filter if the translator supports it; the kernel must accept the translation.
    pub(crate) fn new(filter: &Filter, way: Way) -> Option<Self> {
        let loaded = load(filter, way).ok()?;
        Some(
            loaded
                .unwrap_or_else(|error| panic!("{way:?}: {error}: {:?}\n{filter}", error.source())),
        )
    }

    pub(crate) fn matches(&self, frame: &[u8]) -> u32 {
        self.0.test_run(frame, 1).expect("a test run").verdict
    }
}
