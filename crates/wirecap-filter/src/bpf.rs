//! eBPF programs, maps and links through bpf(2), without libbpf, ELF or clang.
//!
//! [`asm::Assembler`] assembles a program, [`Program::load`] loads it, [`Link::attach_xdp`]
//! attaches it, and a [`Map`] exchanges data with it. All three objects live as long as their
//! descriptor. No object is pinned, so all are removed when the process ends, however it ends.
//!
//! ```
//! use wirecap_filter::bpf::asm::{Assembler, Reg::*};
//! use wirecap_filter::bpf::XDP_PASS;
//!
//! let mut asm = Assembler::new();
//! asm.mov(R0, XDP_PASS).exit();
//! assert_eq!(asm.finish()?.len(), 2);
//! # Ok::<(), wirecap_filter::bpf::asm::AsmError>(())
//! ```

pub mod asm;
mod attach;
mod btf;
mod error;
mod link;
mod map;
mod program;

pub use btf::kernel_function;
pub use error::BpfError;
pub use link::{Link, LinkInfo, XdpMode, link_holding, links, tcx_programs};
pub use map::{Map, MapInfo, MapKind};
pub use program::{
    LiveFrames, LoadOptions, Program, ProgramInfo, ProgramKind, TestRun, programs_named,
};

use crate::sys::bpf::ObjectName;
use crate::sys::objects::{self, ObjectKind};

/// Verdict of an XDP program: an error, counted by the tracepoint `xdp_exception`.
pub const XDP_ABORTED: i32 = 0;
/// Verdict of an XDP program: the frame is dropped.
pub const XDP_DROP: i32 = 1;
/// Verdict of an XDP program: pass the frame to the host's network stack.
pub const XDP_PASS: i32 = 2;
/// Verdict of an XDP program: transmit the frame on the interface that received it.
pub const XDP_TX: i32 = 3;
/// Verdict of an XDP program: send the frame to the target of a redirect helper.
pub const XDP_REDIRECT: i32 = 4;

/// Offsets of the fields of `struct xdp_md`, an XDP program's context.
pub mod xdp_md {
    /// Address of the frame's first byte.
    pub const DATA: i16 = 0;
    /// Address after the frame's last byte (of its first fragment).
    pub const DATA_END: i16 = 4;
    /// Address of the metadata before the frame; equals `DATA` if there is none.
    pub const DATA_META: i16 = 8;
    /// Index of the receiving interface.
    pub const INGRESS_IFINDEX: i16 = 12;
    /// Receive queue of that interface.
    pub const RX_QUEUE_INDEX: i16 = 16;
}

/// `name` in the kernel's format, if the kernel allows it.
fn object_name(name: &str) -> Result<ObjectName, BpfError> {
    let accepted = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
    let mut object_name = ObjectName::default();
    if name.len() >= object_name.len() || !name.bytes().all(accepted) {
        return Err(BpfError::BadName { name: name.to_owned() });
    }
    object_name[..name.len()].copy_from_slice(name.as_bytes());
    Ok(object_name)
}

fn name_text(name: &ObjectName) -> String {
    name.iter().take_while(|&&byte| byte != 0).map(|&byte| char::from(byte)).collect()
}

/// The ID after `id`, or `None` after the last.
fn next_id(kind: ObjectKind, id: u32) -> Result<Option<u32>, BpfError> {
    objects::next_id(kind, id).map_err(|source| BpfError::discovering(kind.noun(), id, source))
}

/// Opens all objects of one kind, except objects that disappear during the search.
fn collect_objects<T>(
    kind: ObjectKind,
    open: impl Fn(u32) -> Result<T, BpfError>,
) -> Result<Vec<T>, BpfError> {
    let mut objects = Vec::new();
    let mut id = 0;
    while let Some(next) = next_id(kind, id)? {
        id = next;
        match open(id) {
            Ok(object) => objects.push(object),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }

    Ok(objects)
}
