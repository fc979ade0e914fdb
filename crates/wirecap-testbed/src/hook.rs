//! Redirection between interfaces by eBPF at the hooks of tc, as container networks do it: a host
//! that uses interfaces without an address, a route or an upper device.

use std::os::fd::{AsFd, OwnedFd};

use wirecap_filter::bpf::asm::{Assembler, Helper, Reg};
use wirecap_filter::bpf::{BpfError, LoadOptions, Program, ProgramKind};

use crate::{Interface, SetupError, sys};

/// Sends all frames that `from` receives out of `to`, by a program at the clsact hook. It stays
/// until the interface is removed.
///
/// # Errors
///
/// [`SetupError`] if the kernel has no `clsact` or no `cls_bpf`, or the privilege is missing.
pub fn redirect_by_tc(from: &Interface, to: &Interface) -> Result<(), SetupError> {
    let program = redirect_program(to).map_err(|source| SetupError::program(&from.name, source))?;
    wirecap_send::run_tool(&from.namespace, "tc", &["qdisc", "add", "dev", &from.name, "clsact"])?;
    let attach = || sys::add_tc_filter(from.index, program.as_fd());
    from.namespace
        .run_in(attach)?
        .map_err(|source| SetupError::interface(&from.name, "add a tc filter to", source))
}

/// As [`redirect_by_tc`], at the tcx hook (Linux 6.6), where the program stays as long as the
/// descriptor is open.
///
/// # Errors
///
/// [`SetupError`] if the kernel has no tcx, or the privilege is missing.
pub fn redirect_by_tcx(from: &Interface, to: &Interface) -> Result<OwnedFd, SetupError> {
    let program = redirect_program(to).map_err(|source| SetupError::program(&from.name, source))?;
    let attach = || sys::attach_tcx(from.index, program.as_fd());
    from.namespace
        .run_in(attach)?
        .map_err(|source| SetupError::interface(&from.name, "attach a tcx program to", source))
}

fn redirect_program(to: &Interface) -> Result<Program, BpfError> {
    let mut asm = Assembler::new();
    asm.mov(Reg::R1, to.index as i32).mov(Reg::R2, 0).call(Helper::Redirect).exit();
    let code = asm.finish().expect("no label, no error");
    Program::load(ProgramKind::SchedCls, "testbed_redir", &code, LoadOptions::default())
}
