//! Packet filters in the language of tcpdump, in all forms that capture needs, and an assembler and
//! loader for eBPF.
//!
//! A [`Filter`] is a valid classic BPF program for packets of one [`LinkType`]. The system's
//! libpcap, opened at run time, compiles expressions, so the language and its semantics are
//! libpcap's; the output of `tcpdump -ddd` can be used without libpcap. A filter runs in one of
//! four forms:
//!
//! | form | where it runs |
//! |---|---|
//! | [`Interpreter`] | in this process: the reference that the other forms are tested against |
//! | [`CompiledFilter`] | in this process, as machine code on x86-64, otherwise interpreted |
//! | [`Filter::emit_xdp`] | in the kernel, as part of an XDP program that [`bpf`] assembles and loads |
//! | [`Filter::for_socket`] | in the kernel, as the filter of a packet socket |
//!
//! ```
//! use wirecap_filter::{CompiledFilter, Context, Filter, LinkType};
//!
//! // The output of `tcpdump -ddd arp`; `Filter::compile("arp", ..)` returns the same, with libpcap.
//! let filter = Filter::parse("4\n40 0 0 12\n21 0 1 2054\n6 0 0 262144\n6 0 0 0\n", LinkType::ETHERNET)?;
//! let compiled = CompiledFilter::new(&filter)?;
//! let mut frame = [0; 60];
//! assert_eq!(compiled.matches(&frame, 60, &Context::default()), 0);
//! frame[12..14].copy_from_slice(&[8, 6]);
//! assert_eq!(compiled.matches(&frame, 60, &Context::default()), 262_144);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Only [`bpf`] needs privileges. The crate is the filter support of the capture engine `wirecap`,
//! which exports it as `wirecap::filter` and `wirecap::bpf`.

mod bounds;
pub mod bpf;
pub mod capability;
mod classic;
mod compiled;
mod context;
mod error;
mod ethernet;
mod filter;
mod flow;
mod insn;
mod interpreter;
pub mod io_error;
mod libpcap;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod machine_code;
mod netlink;
mod request;
#[cfg(sabotage)]
#[path = "../../wirecap-testbed/src/sabotage.rs"]
mod sabotage;
mod sketch;
mod socket;
mod sys;
mod tag_dependence;
mod tagged;
mod translate;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

pub use classic::ProgramError;
pub use compiled::CompiledFilter;
pub use context::{Context, PacketType, Unsupported, VlanTag};
pub use error::{FilterError, LibpcapError};
pub use filter::Filter;
pub use insn::{ClassicInsn, Extension};
pub use interpreter::Interpreter;
pub use libpcap::{Libpcap, LibpcapFilter};
pub use request::FilterRequest;
pub use sketch::{Need, Sketch};
pub use socket::{SocketForm, Unsure};
pub use translate::XdpTarget;
pub use wirecap_savefile::LinkType;

// What the integration tests generate and load, by the names that it has there.
#[cfg(test)]
extern crate self as wirecap_filter;
#[cfg(test)]
#[path = "../tests/filter/choices.rs"]
#[allow(dead_code)] // The unit tests use a part of each.
mod choices;
#[cfg(test)]
#[path = "../tests/filter/kernel.rs"]
mod kernel;
#[cfg(test)]
#[path = "../tests/filter/limits.rs"]
mod limits;
#[cfg(test)]
#[path = "../tests/filter/names.rs"]
#[allow(dead_code)]
mod names;
#[cfg(test)]
#[path = "../tests/filter/packets.rs"]
#[allow(dead_code)]
mod packets;
#[cfg(test)]
#[path = "../tests/filter/programs.rs"]
mod programs;
#[cfg(test)]
#[path = "../../wirecap-testbed/src/traces.rs"]
mod stored;
