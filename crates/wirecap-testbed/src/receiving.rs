//! The cheapest receivers: XDP programs with one verdict.

use wirecap_filter::bpf::asm::{Assembler, Reg::R0};
use wirecap_filter::bpf::{
    BpfError, Link, LoadOptions, Program, ProgramKind, XDP_DROP, XDP_PASS, XdpMode,
};

use crate::{Interface, SetupError};

/// Attaches an XDP program that passes everything to the interface: without one, a veth end loses
/// frames of the [`Generator`](crate::Generator) uncounted before an AF_PACKET socket sees them.
///
/// # Errors
///
/// [`SetupError::Program`] if another program is attached or the privilege is missing.
pub fn pass_program(interface: &Interface) -> Result<Link, SetupError> {
    attach_verdict(interface, "testbed_pass", XDP_PASS)
}

/// Attaches an XDP program that drops everything to the interface: the cheapest receiver.
///
/// # Errors
///
/// As [`pass_program`].
pub fn drop_program(interface: &Interface) -> Result<Link, SetupError> {
    attach_verdict(interface, "testbed_drop", XDP_DROP)
}

fn attach_verdict(interface: &Interface, name: &str, verdict: i32) -> Result<Link, SetupError> {
    let attach =
        || Link::attach_xdp(&verdict_program(name, verdict)?, interface.index, XdpMode::Native);
    interface
        .namespace
        .run_in(attach)?
        .map_err(|source| SetupError::program(&interface.name, source))
}

fn verdict_program(name: &str, verdict: i32) -> Result<Program, BpfError> {
    let mut asm = Assembler::new();
    asm.mov(R0, verdict).exit();
    let code = asm.finish().expect("no label, no error");
    Program::load(ProgramKind::Xdp, name, &code, LoadOptions { fragments: true, device: None })
}
