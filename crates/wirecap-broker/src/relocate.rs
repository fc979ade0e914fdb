//! Instructions of eBPF refer to maps by descriptors, whose numbers differ between processes.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Bytes of an instruction.
const INSN_BYTES: usize = 8;
/// A 64-bit constant, in two instructions (`BPF_LD | BPF_DW | BPF_IMM`).
const LOAD_CONSTANT: u8 = 0x18;
/// The constant is a descriptor: of a map (`BPF_PSEUDO_MAP_FD`), or of a map whose value is addressed
/// (`BPF_PSEUDO_MAP_VALUE`).
const BY_DESCRIPTOR: [u8; 2] = [1, 2];

/// Replaces the descriptors in the instructions by positions in a list; returns the instructions and the list.
pub(crate) fn by_place(code: &[u8]) -> (Vec<u8>, Vec<RawFd>) {
    let mut maps = Vec::new();
    let mut code = code.to_vec();
    for constant in map_constants(&mut code) {
        let descriptor = i32::from_ne_bytes(*constant);
        let place = maps.iter().position(|map| *map == descriptor).unwrap_or_else(|| {
            maps.push(descriptor);
            maps.len() - 1
        });
        *constant = (place as i32).to_ne_bytes();
    }
    (code, maps)
}

/// Replaces the positions by descriptors of this process; `None` if a position is not in the list.
pub(crate) fn by_descriptor(mut code: Vec<u8>, maps: &[OwnedFd]) -> Option<Vec<u8>> {
    for constant in map_constants(&mut code) {
        let place = usize::try_from(i32::from_ne_bytes(*constant)).ok()?;
        *constant = maps.get(place)?.as_raw_fd().to_ne_bytes();
    }
    Some(code)
}

/// The positions of descriptors in the instructions.
fn map_constants(code: &mut [u8]) -> impl Iterator<Item = &mut [u8; 4]> {
    let mut is_second_half = false;
    code.chunks_exact_mut(INSN_BYTES).filter_map(move |insn| {
        if std::mem::take(&mut is_second_half) {
            return None;
        }
        is_second_half = insn[0] == LOAD_CONSTANT;
        let is_map = is_second_half && BY_DESCRIPTOR.contains(&(insn[1] >> 4));
        if is_map { insn.last_chunk_mut() } else { None }
    })
}

/// The descriptors with these numbers.
pub(crate) fn borrowed(maps: &[RawFd]) -> Vec<BorrowedFd<'_>> {
    maps.iter().map(|map| crate::sys::borrowed(*map)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn insn(code: u8, source: u8, constant: i32) -> [u8; 8] {
        let mut insn = [code, source << 4, 0, 0, 0, 0, 0, 0];
        insn[4..].copy_from_slice(&constant.to_ne_bytes());
        insn
    }

    #[test]
    fn map_descriptors_become_positions_and_then_descriptors_of_the_other_process() {
        let code = [
            insn(LOAD_CONSTANT, 1, 7),
            insn(0, 0, 0),
            // The second half of a constant is not an instruction, even if it looks like a map.
            insn(LOAD_CONSTANT, 0, 7),
            insn(LOAD_CONSTANT, 1, 7),
            insn(LOAD_CONSTANT, 2, 9),
            insn(0, 0, 24),
            insn(LOAD_CONSTANT, 1, 7),
            insn(0, 0, 0),
            insn(0x95, 0, 0),
        ]
        .concat();
        let (passed, maps) = by_place(&code);
        assert_eq!(maps, [7, 9]);
        let own: Vec<OwnedFd> = (0..2).map(|_| File::open("/dev/null").unwrap().into()).collect();
        let there = by_descriptor(passed, &own).unwrap();
        let constant = |insn: usize| i32::from_ne_bytes(there[insn * 8 + 4..][..4].try_into().unwrap());
        assert_eq!([0, 4, 6].map(constant), [0, 1, 0].map(|place: usize| own[place].as_raw_fd()));
        assert_eq!([2, 3].map(constant), [7, 7]);
    }

    #[test]
    fn a_missing_map_is_detected() {
        let code = [insn(LOAD_CONSTANT, 1, 1), insn(0, 0, 0)].concat();
        let one: Vec<OwnedFd> = vec![File::open("/dev/null").unwrap().into()];
        assert_eq!(by_descriptor(code, &one), None);
    }
}
