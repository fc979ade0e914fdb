//! Filters: which packets are wanted.
//!
//! A filter is a classic BPF program, usually compiled from an expression by the system's libpcap, so that
//! the language and its meaning are libpcap's. What runs is that program in one of several forms: by
//! [`Interpreter`], the plain reference, or compiled to machine code in the process, or translated into the
//! XDP program, or given to the kernel as it is.
//!
//! ```
//! use wirecap::filter::{Context, Filter, Interpreter};
//! use wirecap::savefile::LinkType;
//!
//! // What `tcpdump -ddd arp` prints.
//! let filter = Filter::parse("4\n40 0 0 12\n21 0 1 2054\n6 0 0 262144\n6 0 0 0\n", LinkType::ETHERNET)?;
//! let interpreter = Interpreter::new(&filter)?;
//! let mut frame = [0; 60];
//! assert_eq!(interpreter.matches(&frame, 60, &Context::default()), 0);
//! frame[12..14].copy_from_slice(&[8, 6]);
//! assert_eq!(interpreter.matches(&frame, 60, &Context::default()), 262_144);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::error::Error;
use std::fmt;
use std::io;
use std::ops::Range;

use crate::savefile::LinkType;

mod bounds;
mod compiled;
mod context;
mod ethernet;
mod flow;
mod insn;
mod interpreter;
mod libpcap;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod machine_code;
mod netlink;
mod place;
mod program;
mod request;
mod socket;
mod tagged;
mod translate;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

pub use compiled::CompiledFilter;
pub use context::{Context, PacketType, Unsupported, VlanTag};
pub use insn::{ClassicInsn, Extension};
pub use interpreter::Interpreter;
pub use libpcap::{Libpcap, LibpcapError, LibpcapFilter};
pub use program::ProgramError;
pub use request::FilterRequest;
pub(crate) use socket::{SocketForm, Unsure};
pub use translate::XdpTarget;

use insn::{Base, Op, Place, Source, Verdict};
use program::ClassicProgram;

/// Which packets are wanted, and how much of each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    program: ClassicProgram,
    link_type: LinkType,
    expression: Option<String>,
}

/// Why there is no filter.
#[derive(Debug)]
#[non_exhaustive]
pub enum FilterError {
    /// libpcap, which knows the language of filter expressions, is not there.
    Libpcap(LibpcapError),
    /// libpcap does not accept the expression.
    Expression {
        /// The expression.
        expression: String,
        /// What libpcap says.
        message: String,
        /// The part of the expression that the message is about, in bytes, if that is known. An empty part at
        /// the end: something is missing there.
        place: Option<Range<usize>>,
    },
    /// The program is not sound.
    Program(ProgramError),
    /// The system could not do something.
    System(io::Error),
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Libpcap(_) => f.write_str(
                "filter expressions need libpcap, which cannot be loaded; install it (Debian package libpcap0.8), or \
                 name the library in WIRECAP_LIBPCAP",
            ),
            Self::Expression { expression, message, place } => {
                write!(f, "{message}\n  {expression}")?;
                place.as_ref().map_or(Ok(()), |place| write!(f, "\n  {}", marks(expression, place)))
            }
            Self::Program(_) => f.write_str("the filter is not a sound BPF program"),
            Self::System(_) => f.write_str("cannot compile the filter"),
        }
    }
}

/// A line that points at a part of the line above it.
fn marks(line: &str, part: &Range<usize>) -> String {
    let width = |range: Range<usize>| line.get(range).map_or(0, |text| text.chars().count());
    let (before, marked) = (width(0..part.start), width(part.clone()));
    format!("{}^{}", " ".repeat(before), "~".repeat(marked.saturating_sub(1)))
}

impl Error for FilterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Libpcap(error) => Some(error),
            Self::Expression { .. } => None,
            Self::Program(error) => Some(error),
            Self::System(error) => Some(error),
        }
    }
}

impl From<ProgramError> for FilterError {
    fn from(error: ProgramError) -> Self {
        Self::Program(error)
    }
}

impl Filter {
    /// Compiles an expression in pcap-filter(7)'s language for packets of a link type. Of a packet that
    /// matches, `snap_len` bytes are kept; 0: as many as libpcap ever keeps, 262,144.
    ///
    /// An empty expression matches every packet. Host names in it are looked up, which may take a while.
    ///
    /// # Errors
    ///
    /// [`FilterError`] if libpcap is not there or does not accept the expression.
    pub fn compile(expression: &str, link_type: LinkType, snap_len: u32) -> Result<Self, FilterError> {
        let libpcap = Libpcap::get().map_err(FilterError::Libpcap)?;
        let insns = libpcap.compile(expression, link_type, snap_len)?;
        let program = ClassicProgram::new(insns)?;
        Ok(Self { program, link_type, expression: Some(expression.to_owned()) })
    }

    /// Reads a program as `tcpdump -ddd` prints it: the number of instructions, then `code jt jf k` of each,
    /// in lines or separated by commas. It is for packets of a link type.
    ///
    /// # Errors
    ///
    /// [`ProgramError`] if the text is not of that form or the program is not sound.
    pub fn parse(text: &str, link_type: LinkType) -> Result<Self, ProgramError> {
        ClassicProgram::parse(text).map(|program| Self { program, link_type, expression: None })
    }

    /// A filter that is a program already, for packets of a link type.
    ///
    /// # Errors
    ///
    /// [`ProgramError`] if the program is not sound.
    pub fn from_program(insns: Vec<ClassicInsn>, link_type: LinkType) -> Result<Self, ProgramError> {
        ClassicProgram::new(insns).map(|program| Self { program, link_type, expression: None })
    }

    /// The program.
    pub fn program(&self) -> &[ClassicInsn] {
        self.program.insns()
    }

    /// The kind of packets it is for.
    pub fn link_type(&self) -> LinkType {
        self.link_type
    }

    /// What it was compiled from.
    pub fn expression(&self) -> Option<&str> {
        self.expression.as_deref()
    }

    /// Whether every packet matches.
    pub(crate) fn matches_everything(&self) -> bool {
        matches!(self.program.ops()[0], Op::Return(Verdict::Constant(1..)))
    }

    /// Whether the program loads what only Linux knows of a packet.
    fn asks_linux(&self) -> bool {
        self.program().iter().any(|insn| insn.is_for_linux())
    }

    /// Whether all that the program loads can be had, where `refuses` says why an extension cannot.
    fn check_sources(&self, refuses: fn(Extension) -> Option<&'static str>) -> Result<(), Unsupported> {
        for &op in self.program.ops() {
            let Op::Load(_, source) = op else { continue };
            if let Source::Extension(extension) = source
                && let Some(reason) = refuses(extension)
            {
                return Err(Unsupported::Extension { extension, reason });
            }
            if NetworkHeader::of(self.link_type).lets(source) {
                continue;
            }
            return Err(Unsupported::NetworkHeader { link_type: self.link_type.0 });
        }
        Ok(())
    }
}

/// As `tcpdump -d` prints the program.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program.fmt(f)
    }
}

/// Where the network header of a packet begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NetworkHeader {
    /// There is nothing before it.
    First,
    /// Behind an Ethernet header, and a VLAN tag if there is one.
    Ethernet,
    Unknown,
}

impl NetworkHeader {
    fn of(link_type: LinkType) -> Self {
        match link_type {
            LinkType::ETHERNET => Self::Ethernet,
            LinkType::RAW => Self::First,
            _ => Self::Unknown,
        }
    }

    /// Whether enough is known for such a load.
    fn lets(self, source: Source) -> bool {
        match source {
            Source::Extension(Extension::Protocol) => self == Self::Ethernet,
            Source::Absolute(_, Place { base, .. })
            | Source::Indirect(_, Place { base, .. })
            | Source::HeaderLen(Place { base, .. }) => base == Base::Packet || self != Self::Unknown,
            _ => true,
        }
    }
}
