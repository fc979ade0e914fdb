//! A filter for packets whose link type is not yet known.

use std::fmt;
use std::net::Ipv4Addr;

use wirecap_savefile::LinkType;

use crate::classic::{ClassicProgram, ProgramError};
use crate::error::FilterError;
use crate::filter::Filter;
use crate::insn::ClassicInsn;

/// A filter for packets whose link type is not yet known. Each interface compiles it for its link
/// type.
///
/// ```
/// use wirecap_filter::FilterRequest;
///
/// let request = FilterRequest::from("udp and net 131.225.2.0/24");
/// assert_eq!(request.to_string(), "udp and net 131.225.2.0/24");
/// // The output of `tcpdump -ddd arp`.
/// let request = FilterRequest::program("4\n40 0 0 12\n21 0 1 2054\n6 0 0 262144\n6 0 0 0\n")?;
/// assert_eq!(request.to_string(), "a BPF program of 4 instructions");
/// # Ok::<(), wirecap_filter::ProgramError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FilterRequest {
    /// An expression in the language of pcap-filter(7). An empty expression matches every packet.
    Expression(String),
    /// A classic BPF program for any link type. Its result decides whether a packet matches; the
    /// number of bytes to keep is ignored.
    Program(Vec<ClassicInsn>),
}

impl FilterRequest {
    /// Parses a program in the format of `tcpdump -ddd`.
    ///
    /// # Errors
    ///
    /// [`ProgramError`] if the text has another format or the program is invalid.
    pub fn program(text: &str) -> Result<Self, ProgramError> {
        ClassicProgram::parse(text).map(|program| Self::Program(program.insns().to_vec()))
    }

    /// Compiles the filter for packets of this link type.
    ///
    /// # Errors
    ///
    /// As for [`Filter::compile`] and [`Filter::from_program`].
    pub fn compile(&self, link_type: LinkType) -> Result<Filter, FilterError> {
        self.compile_in(link_type, Ipv4Addr::UNSPECIFIED)
    }

    /// Compiles the filter for packets of this link type in a savefile.
    ///
    /// # Errors
    ///
    /// As for [`Filter::compile_for_file`] and [`Filter::from_program`].
    pub fn compile_for_file(&self, link_type: LinkType) -> Result<Filter, FilterError> {
        match self {
            Self::Expression(expression) => Filter::compile_for_file(expression, link_type),
            Self::Program(insns) => Ok(Filter::from_program(insns.clone(), link_type)?),
        }
    }

    /// Compiles the filter for packets of this link type, on an interface whose IPv4 network has
    /// this mask.
    ///
    /// # Errors
    ///
    /// As for [`Filter::compile_in`] and [`Filter::from_program`].
    pub fn compile_in(
        &self,
        link_type: LinkType,
        netmask: Ipv4Addr,
    ) -> Result<Filter, FilterError> {
        #[cfg(sabotage)]
        let link_type = if crate::sabotage::is("expression-for-the-wrong-link-type") {
            LinkType::ETHERNET
        } else {
            link_type
        };
        match self {
            Self::Expression(expression) => Filter::compile_in(expression, link_type, 0, netmask),
            Self::Program(insns) => Ok(Filter::from_program(insns.clone(), link_type)?),
        }
    }
}

impl From<&str> for FilterRequest {
    fn from(expression: &str) -> Self {
        Self::Expression(expression.to_owned())
    }
}

impl From<String> for FilterRequest {
    fn from(expression: String) -> Self {
        Self::Expression(expression)
    }
}

impl fmt::Display for FilterRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expression(expression) => f.write_str(expression),
            Self::Program(insns) => write!(f, "a BPF program of {} instructions", insns.len()),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::{CompiledFilter, Context};

    #[test]
    fn an_expression_is_compiled_for_the_link_type_of_the_packets() {
        let mut ip = vec![0; 40];
        ip[..10].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17]);

        let ethernet = [&[2; 12][..], &[8, 0], &ip].concat();
        let cooked =
            [&[8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0][..], &ip].concat();
        let packets =
            [(LinkType::ETHERNET, ethernet), (LinkType::RAW, ip), (LinkType::LINUX_SLL2, cooked)];

        for (link_type, _) in &packets {
            let filter = FilterRequest::from("udp and ip[9] = 17").compile(*link_type).unwrap();
            assert_eq!(filter.link_type(), *link_type, "the link type of the filter");

            let program = CompiledFilter::new(&filter).unwrap();
            let matches = |packet: &[u8]| {
                program.matches(packet, packet.len() as u32, &Context::default()) > 0
            };

            for (other, bytes) in &packets {
                assert_eq!(
                    matches(bytes),
                    other == link_type,
                    "a packet of {other:?}, a filter of {link_type:?}"
                );
            }
        }
    }
}
