//! Attributes of netlink messages, as captured from an `nlmon` device; the search is the kernel's.

/// Length and type, in host byte order.
const HEADER_BYTES: usize = 4;
/// The bits of the type that are not flags.
const TYPE_MASK: u16 = 0x3fff;

/// The offset in `packet` of the attribute of this type, searched from `start` on; 0 if there is
/// none.
pub(crate) fn find(packet: &[u8], start: u32, kind: u32) -> u32 {
    find_from(packet, start as usize, kind).unwrap_or(0)
}

/// Like [`find`], among the attributes nested in the one at `start`.
pub(crate) fn find_nested(packet: &[u8], start: u32, kind: u32) -> u32 {
    let nest = packet.get(start as usize..).and_then(header);
    let end = nest.map_or(0, |(bytes, _)| start as usize + bytes);
    let inside = packet.get(..end);
    inside.and_then(|inside| find_from(inside, start as usize + HEADER_BYTES, kind)).unwrap_or(0)
}

fn find_from(packet: &[u8], start: usize, kind: u32) -> Option<u32> {
    let mut at = start;
    loop {
        let (bytes, found) = header(packet.get(at..)?)?;
        if bytes < HEADER_BYTES || bytes > packet.len() - at {
            return None;
        }
        if u32::from(found) == kind {
            return Some(at as u32);
        }
        at += bytes.next_multiple_of(HEADER_BYTES);
    }
}

fn header(attribute: &[u8]) -> Option<(usize, u16)> {
    let [bytes_0, bytes_1, type_0, type_1] = *attribute.first_chunk()?;
    let bytes = usize::from(u16::from_ne_bytes([bytes_0, bytes_1]));
    Some((bytes, u16::from_ne_bytes([type_0, type_1]) & TYPE_MASK))
}
