//! Filters that the kernel runs for packet sockets.
//!
//! The kernel's classic BPF differs from libpcap's in three ways. It sees a frame without its outer
//! VLAN tag, which the kernel has removed; a second program handles such frames (`tagged`). It uses
//! only the low five bits of the index register for shifts. And an offset that becomes negative is
//! relative to the network or link-layer header instead of rejecting the packet. Where a difference
//! may matter, the kernel passes the packet and user space decides.

use crate::bounds::index_stays_below;
use crate::compiled::CompiledFilter;
use crate::context::Unsupported;
use crate::filter::Filter;
use crate::insn::{ClassicInsn, Extension, Op, Operand, Operation, Source, Verdict};
use crate::tagged::without_tag;

/// The kernel's maximum number of instructions (`BPF_MAXINSNS`).
const INSNS_MAX: usize = 4096;
/// Larger offsets are negative for the kernel.
const OFFSET_MAX: u32 = i32::MAX.cast_unsigned();
/// The maximum length of a packet.
const WHOLE: u32 = 262_144;
/// The load that shows whether a tag was removed.
const VLAN_PRESENT: u32 = 0xffff_f000 + Extension::VlanPresent as u32;
const LOAD_ZERO: ClassicInsn = ClassicInsn { code: 0x00, jt: 0, jf: 0, k: 0 };

/// A filter for a packet socket, and the part for user space: see [`Filter::for_socket`].
#[derive(Debug)]
pub struct SocketForm {
    /// The program; it returns the number of bytes to keep.
    pub program: Vec<ClassicInsn>,
    /// Packets that it may pass although they do not match.
    pub unsure: Unsure,
}

/// Which packets passed by a socket's filter user space must check.
#[derive(Debug)]
pub enum Unsure {
    /// None.
    Nothing,
    /// Those with a VLAN tag that the kernel removed.
    Tagged(CompiledFilter),
    /// All.
    Everything(CompiledFilter),
}

impl Filter {
    /// The filter for a packet socket (`SO_ATTACH_FILTER`). `before` is the number of instructions
    /// that the caller inserts before it; `keep` is the number of bytes that the socket keeps of a
    /// matching packet.
    ///
    /// The kernel removes the outer VLAN tag of a packet before a socket's filter runs. The
    /// returned program decides like the filter on the whole packet. A program that loads data
    /// available only in the kernel was written for the kernel and is used unchanged.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if the kernel would decide differently from libpcap, or does not accept the
    /// program.
    pub fn for_socket(&self, keep: u32, before: usize) -> Result<SocketForm, Unsupported> {
        if self.program.has_loop() {
            return Err(Unsupported::Loop);
        }

        let form = match CompiledFilter::new(self) {
            Ok(compiled) if !self.is_for_the_kernel() => {
                self.for_whole_packets(compiled, keep, before)?
            }
            _ => SocketForm { program: self.beginning_with_zero(keep), unsure: Unsure::Nothing },
        };
        match before + form.program.len() {
            insns if insns > INSNS_MAX => Err(Unsupported::TooLong { insns, most: INSNS_MAX }),
            _ => Ok(form),
        }
    }

    fn for_whole_packets(
        &self,
        compiled: CompiledFilter,
        keep: u32,
        before: usize,
    ) -> Result<SocketForm, Unsupported> {
        if let Some(difference) = self.difference() {
            return Err(Unsupported::Differs { difference });
        }

        if !index_stays_below(&self.program, OFFSET_MAX) {
            return Ok(SocketForm {
                program: self.of_untagged(WHOLE),
                unsure: Unsure::Everything(compiled),
            });
        }

        let whole = self.of_both(keep).filter(|program| before + program.len() <= INSNS_MAX);
        Ok(match whole {
            Some(program) => SocketForm { program, unsure: Unsure::Nothing },
            None => {
                SocketForm { program: self.of_untagged(keep), unsure: Unsure::Tagged(compiled) }
            }
        })
    }

    /// A socket filter that passes every packet to user space, which decides: for a filter that
    /// [`for_socket`](Self::for_socket) or the kernel refuses.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if the filter reads packet data that user space does not have.
    pub fn beside_socket(&self) -> Result<SocketForm, Unsupported> {
        if self.is_for_the_kernel() {
            let reason = "only the kernel knows it of a live packet";
            let extension =
                self.extensions().find(|extension| !is_known_of_whole_packets(*extension));
            return Err(Unsupported::Extension {
                extension: extension.expect("it asks for one"),
                reason,
            });
        }
        let program = vec![ClassicInsn { code: 0x06, jt: 0, jf: 0, k: WHOLE }];
        Ok(SocketForm { program, unsure: Unsure::Everything(CompiledFilter::new(self)?) })
    }

    /// Whether the program was written for packets in the kernel.
    fn is_for_the_kernel(&self) -> bool {
        self.extensions().any(|extension| !is_known_of_whole_packets(extension))
    }

    fn extensions(&self) -> impl Iterator<Item = Extension> {
        self.program.ops().iter().filter_map(|op| match op {
            Op::Load(_, Source::Extension(extension)) => Some(*extension),
            _ => None,
        })
    }

    /// How the kernel would decide differently from libpcap on untagged packets.
    fn difference(&self) -> Option<&'static str> {
        self.program.ops().iter().find_map(|op| match op {
            Op::Alu(Operation::ShiftLeft | Operation::ShiftRight, Operand::X) => {
                Some("shifts by the index register")
            }
            Op::Return(Verdict::A) => Some("returns the accumulator"),
            _ => None,
        })
    }

    /// The program, keeping this number of bytes of a matching packet. It first clears the
    /// accumulator, which preceding instructions may have changed.
    fn beginning_with_zero(&self, keep: u32) -> Vec<ClassicInsn> {
        let insns = self.program().iter().zip(self.program.ops());
        let kept = insns.map(|(&insn, op)| match op {
            Op::Return(Verdict::Constant(1..)) => ClassicInsn { k: keep, ..insn },
            _ => insn,
        });
        [LOAD_ZERO].into_iter().chain(kept).collect()
    }

    /// The program for packets that had a tag, followed by the one for packets without.
    fn of_both(&self, keep: u32) -> Option<Vec<ClassicInsn>> {
        let tagged = without_tag(&self.program, keep)?;
        let insn = |code, jt, jf, k| ClassicInsn { code, jt, jf, k };
        let to_the_other = 1 + tagged.len() as u32;
        let choice =
            [insn(0x30, 0, 0, VLAN_PRESENT), insn(0x15, 1, 0, 1), insn(0x05, 0, 0, to_the_other)];
        Some([&choice[..], &[LOAD_ZERO], &tagged, &self.beginning_with_zero(keep)].concat())
    }

    /// The program for packets without a tag. It passes packets that had one, untruncated.
    fn of_untagged(&self, keep: u32) -> Vec<ClassicInsn> {
        let insn = |code, jt, jf, k| ClassicInsn { code, jt, jf, k };
        let mut program =
            vec![insn(0x30, 0, 0, VLAN_PRESENT), insn(0x15, 0, 1, 1), insn(0x06, 0, 0, WHOLE)];
        program.extend(self.beginning_with_zero(keep));
        program
    }
}

/// Whether the extension has the same value for a packet that still contains its tag.
fn is_known_of_whole_packets(extension: Extension) -> bool {
    use Extension::{InterfaceIndex, PacketType, Protocol, XorX};
    matches!(extension, Protocol | PacketType | InterfaceIndex | XorX)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use wirecap_savefile::LinkType;

    /// Which packets user space must check.
    fn unsure(expression: &str) -> &'static str {
        let filter = Filter::compile(expression, LinkType::ETHERNET, 0)
            .expect("libpcap is there, and takes it");
        match filter.for_socket(96, 0).map(|form| form.unsure) {
            Ok(Unsure::Nothing) => "nothing",
            Ok(Unsure::Tagged(_)) => "tagged",
            Ok(Unsure::Everything(_)) => "everything",
            Err(_) => "no socket",
        }
    }

    #[test]
    fn common_filters_run_in_the_kernel_alone() {
        let usual = [
            "udp",
            "ip",
            "not ip6",
            "udp port 53",
            "tcp port 80 or tcp port 443 or host 10.0.0.1",
            "vlan",
            "vlan 7 and udp port 53",
            "vlan and vlan 9 and tcp",
            "greater 100",
            "ether host 02:00:00:00:00:01",
            "tcp[tcpflags] & tcp-syn != 0",
        ];
        assert_eq!(usual.map(unsure), ["nothing"; 11]);
        assert_eq!(unsure("ether[11:2] = 0"), "tagged", "it would have to be put together");
        assert_eq!(unsure("ether[ether[20:4]] = 0"), "everything", "it may be anywhere");
        assert_eq!(unsure("ip[0] << ip[1] = 0"), "no socket");
    }
}
