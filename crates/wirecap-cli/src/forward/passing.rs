//! The selection of packets: `--filter` and `--drop` as one BPF program, so that the kernel drops
//! the others.
//!
//! The program of `--drop` precedes that of `--filter`, each with its own `ret` instructions. They
//! are not joined as an expression, because `vlan` in pcap-filter's language changes the meaning of
//! all that follows.

use wirecap::filter::{ClassicInsn, Filter, FilterRequest};
use wirecap::savefile::LinkType;

use crate::shared::failure::Failure;

/// `ret #k`.
const RETURN: u16 = 0x06;
/// `ja #k`.
const JUMP: u16 = 0x05;

/// Packets pass that match `filter`, or all packets, except those that match `drop`.
pub(crate) fn passing(
    filter: Option<&str>,
    drop: Option<&str>,
) -> Result<Option<FilterRequest>, Failure> {
    let Some(drop) = drop else { return Ok(filter.map(FilterRequest::from)) };
    let drop = compile(drop)?;
    let filter = compile(filter.unwrap_or_default())?;
    Ok(Some(FilterRequest::Program(but(filter.program(), drop.program()))))
}

fn compile(expression: &str) -> Result<Filter, Failure> {
    Filter::compile(expression, LinkType::ETHERNET, 0)
        .map_err(|error| Failure::Usage(error.to_string()))
}

/// Packets that match `wanted` but not `unwanted`. A combined expression would have another
/// meaning: in pcap-filter(7)'s language, `vlan` changes the meaning of all that follows it.
///
/// The program of `unwanted` comes first. For a matching packet it returns 0; for other packets,
/// the program of `wanted` follows. No instruction is moved relative to its own program, so all
/// jumps stay valid.
fn but(wanted: &[ClassicInsn], unwanted: &[ClassicInsn]) -> Vec<ClassicInsn> {
    let last = unwanted.len() - 1;
    let turned = |(index, insn): (usize, &ClassicInsn)| match insn.code {
        RETURN if insn.k == 0 => ClassicInsn { code: JUMP, k: (last - index) as u32, ..*insn },
        RETURN => ClassicInsn { k: 0, ..*insn },
        _ => *insn,
    };
    unwanted.iter().enumerate().map(turned).chain(wanted.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use wirecap::filter::{Context, Interpreter};

    use super::*;

    /// Whether an untagged and a tagged packet of a protocol pass.
    fn verdicts(filter: Option<&str>, drop: &str, protocol: u8) -> [bool; 2] {
        let Some(FilterRequest::Program(program)) = passing(filter, Some(drop)).unwrap() else {
            panic!("not a program")
        };
        let filter = Filter::from_program(program, LinkType::ETHERNET).unwrap();
        let interpreter = Interpreter::new(&filter).unwrap();
        let mut untagged = [0; 60];
        untagged[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        untagged[23] = protocol;
        let tagged = [&untagged[..12], &[0x81, 0x00, 0x00, 0x64], &untagged[12..]].concat();
        [&untagged[..], &tagged]
            .map(|frame| interpreter.matches(frame, frame.len() as u32, &Context::default()) > 0)
    }

    #[test]
    fn dropped_packets_do_not_pass_even_if_they_match_the_filter() {
        const TCP: u8 = 6;
        const UDP: u8 = 17;
        assert_eq!(verdicts(None, "udp", UDP), [false, true]);
        assert_eq!(verdicts(None, "udp", TCP), [true, true]);
        assert_eq!(verdicts(Some("ip"), "udp", UDP), [false, false]);
        assert_eq!(verdicts(Some("ip"), "udp", TCP), [true, false]);
        // Both expressions keep their separate meanings.
        assert_eq!(verdicts(Some("vlan 100"), "tcp", TCP), [false, true]);
        assert_eq!(verdicts(Some("udp"), "vlan 100", UDP), [true, false]);
        assert_eq!(verdicts(None, "", UDP), [false, false]);
    }

    #[test]
    fn without_a_drop_the_expression_stays_one() {
        assert_eq!(passing(None, None).unwrap(), None);
        assert_eq!(passing(Some("udp"), None).unwrap(), Some("udp".into()));
        let refused = passing(None, Some("udp prot 5")).unwrap_err();
        assert!(matches!(refused, Failure::Usage(_)), "{refused}");
    }
}
