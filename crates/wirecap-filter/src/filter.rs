//! A filter: a valid program for packets of one link type.

use std::fmt;

use serde::{Deserialize, Serialize};
use wirecap_savefile::LinkType;

use crate::classic::{ClassicProgram, ProgramError};
use crate::context::Unsupported;
use crate::insn::{Base, ClassicInsn, Extension, Op, Position, Source, Verdict};

/// Decides which packets match, and how many bytes of each to keep.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "SentFilter", into = "SentFilter")]
pub struct Filter {
    pub(crate) program: ClassicProgram,
    pub(crate) link_type: LinkType,
    pub(crate) expression: Option<String>,
}

impl Filter {
    /// Parses a program in the format of `tcpdump -ddd`: the number of instructions, then
    /// `code jt jf k` of each, on separate lines or separated by commas. The program is for packets
    /// of this link type.
    ///
    /// # Errors
    ///
    /// [`ProgramError`] if the text has another format or the program is invalid.
    pub fn parse(text: &str, link_type: LinkType) -> Result<Self, ProgramError> {
        ClassicProgram::parse(text).map(|program| Self { program, link_type, expression: None })
    }

    /// Creates a filter from a program for packets of this link type.
    ///
    /// # Errors
    ///
    /// [`ProgramError`] if the program is invalid.
    pub fn from_program(
        insns: Vec<ClassicInsn>,
        link_type: LinkType,
    ) -> Result<Self, ProgramError> {
        ClassicProgram::new(insns).map(|program| Self { program, link_type, expression: None })
    }

    /// The program.
    pub fn program(&self) -> &[ClassicInsn] {
        self.program.insns()
    }

    /// The link type of its packets.
    pub fn link_type(&self) -> LinkType {
        self.link_type
    }

    /// The expression from which it was compiled.
    pub fn expression(&self) -> Option<&str> {
        self.expression.as_deref()
    }

    /// Whether every packet matches.
    pub fn matches_everything(&self) -> bool {
        matches!(self.program.ops()[0], Op::Return(Verdict::Constant(1..)))
    }

    /// The program, decoded.
    pub(crate) fn ops(&self) -> &[Op] {
        self.program.ops()
    }

    /// Whether the program loads extensions of Linux.
    pub(crate) fn asks_linux(&self) -> bool {
        self.program().iter().any(|insn| insn.is_for_linux())
    }

    /// Checks that everything that the program loads is available; `refuses` returns why an
    /// extension is not.
    pub(crate) fn check_sources(
        &self,
        refuses: fn(Extension) -> Option<&'static str>,
    ) -> Result<(), Unsupported> {
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

/// A filter in a message to another process, which checks the program when it reads the message.
#[derive(Serialize, Deserialize)]
struct SentFilter {
    insns: Vec<(u16, u8, u8, u32)>,
    link_type: u16,
}

impl From<Filter> for SentFilter {
    fn from(filter: Filter) -> Self {
        let insn = |insn: &ClassicInsn| (insn.code, insn.jt, insn.jf, insn.k);
        Self { insns: filter.program().iter().map(insn).collect(), link_type: filter.link_type.0 }
    }
}

impl TryFrom<SentFilter> for Filter {
    type Error = String;

    fn try_from(sent: SentFilter) -> Result<Self, String> {
        let insn = |(code, jt, jf, k)| ClassicInsn { code, jt, jf, k };
        let insns = sent.insns.into_iter().map(insn).collect();
        Self::from_program(insns, LinkType(sent.link_type)).map_err(|error| error.to_string())
    }
}

/// The output format of `tcpdump -d`.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program.fmt(f)
    }
}

/// The position of a packet's network header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NetworkHeader {
    /// At the beginning of the packet.
    First,
    /// After an Ethernet header, and a VLAN tag if there is one.
    Ethernet,
    Unknown,
}

impl NetworkHeader {
    pub(crate) fn of(link_type: LinkType) -> Self {
        match link_type {
            LinkType::ETHERNET => Self::Ethernet,
            LinkType::RAW => Self::First,
            _ => Self::Unknown,
        }
    }

    /// Whether a load from this source is possible.
    fn lets(self, source: Source) -> bool {
        match source {
            Source::Extension(Extension::Protocol) => self == Self::Ethernet,
            Source::Absolute(_, Position { base, .. })
            | Source::Indirect(_, Position { base, .. })
            | Source::HeaderLen(Position { base, .. }) => {
                base == Base::Packet || self != Self::Unknown
            }
            _ => true,
        }
    }
}
