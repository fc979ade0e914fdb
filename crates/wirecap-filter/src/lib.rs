//! Packet filters in the language of tcpdump, compiled for every place where a packet can be filtered, and an
//! assembler and loader for eBPF.
//!
//! A [`Filter`] is a sound classic BPF program for packets of one [`LinkType`]. The system's libpcap, opened at run time,
//! compiles expressions, so that the language and its meaning are libpcap's; a program that `tcpdump -ddd` printed needs
//! no libpcap. A filter runs in one of four forms:
//!
//! | form | where it runs |
//! |---|---|
//! | [`Interpreter`] | in this process: the plain reference that the other forms are tested against |
//! | [`CompiledFilter`] | in this process, as machine code on x86-64, else interpreted |
//! | [`Filter::emit_xdp`] | in the kernel, as a part of an XDP program that [`bpf`] assembles and loads |
//! | [`Filter::for_socket`] | in the kernel, as the filter of a packet socket |
//!
//! ```
//! use wirecap_filter::{CompiledFilter, Context, Filter, LinkType};
//!
//! // What `tcpdump -ddd arp` prints; `Filter::compile("arp", ..)` makes the same with libpcap.
//! let filter = Filter::parse("4\n40 0 0 12\n21 0 1 2054\n6 0 0 262144\n6 0 0 0\n", LinkType::ETHERNET)?;
//! let compiled = CompiledFilter::new(&filter)?;
//! let mut frame = [0; 60];
//! assert_eq!(compiled.matches(&frame, 60, &Context::default()), 0);
//! frame[12..14].copy_from_slice(&[8, 6]);
//! assert_eq!(compiled.matches(&frame, 60, &Context::default()), 262_144);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate needs no privilege but for what [`bpf`] asks of the kernel. It is the part of the capture engine `wirecap`
//! that filters; the engine has it as `wirecap::filter` and `wirecap::bpf`.

mod bounds;
pub mod bpf;
mod classic;
mod compiled;
mod context;
mod error;
mod ethernet;
mod filter;
mod flow;
mod insn;
mod interpreter;
mod libpcap;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod machine_code;
mod netlink;
pub mod opener;
mod request;
mod sketch;
mod socket;
mod sys;
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
