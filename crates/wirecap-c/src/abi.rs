//! The types and values that `wirecap.h` declares, except handles.

use std::ffi::{c_char, c_int};
use std::time::{SystemTime, UNIX_EPOCH};

use wirecap::{Account, Answer, Engine, Ledger, PortAccount, Unseen};

use crate::failure::{Failure, Status};
use crate::names::lasting;

/// `WIRECAP_NOT_REPORTED`: a value that is not counted or unknown.
pub(crate) const NOT_REPORTED: u64 = u64::MAX;
/// `WIRECAP_NO_QUEUE`.
pub(crate) const NO_QUEUE: u32 = u32::MAX;

/// `WIRECAP_TX_AS_RECEIVED`.
pub(crate) const TX_AS_RECEIVED: i64 = -1;
/// `WIRECAP_TX_BY_FLOW`.
pub(crate) const TX_BY_FLOW: i64 = -2;

/// `enum wirecap_engine`.
pub(crate) type EngineCode = c_int;
/// `enum wirecap_timestamps`.
pub(crate) type TimestampsCode = c_int;
/// `enum wirecap_direction`.
pub(crate) type DirectionCode = c_int;

/// The value of an enumeration with this number.
pub(crate) fn value_of<T: Copy>(code: c_int, values: &[T], name: &str) -> Result<T, Failure> {
    let value = usize::try_from(code).ok().and_then(|code| values.get(code));
    let last = values.len() - 1;
    value.copied().ok_or_else(|| {
        Failure::new(Status::Argument, format!("invalid {name} {code}: expected 0 to {last}"))
    })
}

/// The engines, ordered by number.
pub(crate) const ENGINES: [Engine; 3] = [Engine::Auto, Engine::Xdp, Engine::Packet];

/// `struct wirecap_packet`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketInfo {
    pub(crate) data: *const u8,
    pub(crate) caplen: u32,
    pub(crate) wire_len: u32,
    pub(crate) timestamp_ns: u64,
    pub(crate) queue: u32,
    pub(crate) reserved: u32,
}

/// `struct wirecap_chunk_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkInfo {
    pub(crate) ring_name: *const c_char,
    pub(crate) ring_index: u32,
    pub(crate) interface_index: u32,
    pub(crate) packets: u32,
    pub(crate) link_type: u32,
    pub(crate) sequence: u64,
    pub(crate) wire_bytes: u64,
    pub(crate) offloaded: u32,
    pub(crate) reserved: u32,
}

/// `struct wirecap_device`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceInfo {
    pub(crate) name: *const c_char,
    pub(crate) driver: *const c_char,
    pub(crate) index: u32,
    pub(crate) flags: u32,
    pub(crate) mtu: u32,
    pub(crate) rx_queues: u32,
    pub(crate) tx_queues: u32,
    pub(crate) link_type: u32,
}

/// `WIRECAP_DEVICE_UP` and the other flags of a device.
pub(crate) const DEVICE_UP: u32 = 1;
pub(crate) const DEVICE_RUNNING: u32 = 2;
pub(crate) const DEVICE_LOOPBACK: u32 = 4;
pub(crate) const DEVICE_XDP: u32 = 8;

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) base: *mut u8,
    pub(crate) len: usize,
}

/// `struct wirecap_account`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccountInfo {
    pub(crate) seen: u64,
    pub(crate) offered: u64,
    pub(crate) delivered: u64,
    pub(crate) bytes: u64,
    pub(crate) filtered: u64,
    pub(crate) dropped_no_cell: u64,
    pub(crate) dropped_ring_full: u64,
    pub(crate) dropped_device: u64,
    pub(crate) dropped_other: u64,
    pub(crate) offloaded_chunks: u64,
    pub(crate) abandoned_chunks: u64,
    pub(crate) super_packets: u64,
    pub(crate) stalls: u64,
    pub(crate) dropped_no_ring: u64,
    pub(crate) cut: u64,
    pub(crate) starved: u64,
    pub(crate) reserved: [u64; 8],
}

impl From<&Account> for AccountInfo {
    fn from(account: &Account) -> Self {
        let reported = |count: Option<u64>| count.unwrap_or(NOT_REPORTED);
        Self {
            seen: reported(account.seen),
            offered: account.offered,
            delivered: account.delivered,
            bytes: account.bytes,
            filtered: reported(account.filtered),
            dropped_no_cell: account.dropped.no_cell,
            dropped_ring_full: account.dropped.ring_full,
            dropped_device: reported(account.dropped.device),
            dropped_other: account.dropped.other + account.dropped.no_ring,
            offloaded_chunks: account.offloaded_chunks,
            abandoned_chunks: account.abandoned_chunks,
            super_packets: account.super_packets,
            stalls: account.stalls,
            dropped_no_ring: account.dropped.no_ring,
            cut: account.cut,
            starved: account.starved,
            reserved: [0; 8],
        }
    }
}

/// `enum wirecap_answer`.
pub(crate) const LOSSLESS_YES: u32 = 0;
pub(crate) const LOSSLESS_UNTIL: u32 = 1;
pub(crate) const LOSSLESS_NOT_KNOWN: u32 = 2;
pub(crate) const LOSSLESS_NO: u32 = 3;

/// `struct wirecap_verdict`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct VerdictInfo {
    pub(crate) answer: u32,
    pub(crate) unseen: u32,
    pub(crate) lost: u64,
    pub(crate) until_ns: u64,
}

impl From<&Ledger> for VerdictInfo {
    fn from(ledger: &Ledger) -> Self {
        let verdict = ledger.judge();
        let (answer, until_ns) = match verdict.answer {
            Answer::Yes => (LOSSLESS_YES, 0),
            Answer::Until(last) => (LOSSLESS_UNTIL, unix_nanos(last)),
            Answer::No => (LOSSLESS_NO, 0),
            // An answer that the header does not have is none.
            _ => (LOSSLESS_NOT_KNOWN, 0),
        };
        Self { answer, unseen: ledger.unseen.len() as u32, lost: verdict.lost(), until_ns }
    }
}

/// `struct wirecap_unseen`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnseenInfo {
    pub(crate) interface: *const c_char,
    pub(crate) reason: *const c_char,
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

impl From<&Unseen> for UnseenInfo {
    fn from(unseen: &Unseen) -> Self {
        Self {
            interface: lasting(&unseen.interface).as_ptr(),
            reason: lasting(&unseen.reason.to_string()).as_ptr(),
            from_ns: unix_nanos(unseen.from),
            to_ns: unseen.to.map_or(NOT_REPORTED, unix_nanos),
        }
    }
}

fn unix_nanos(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

/// `struct wirecap_port_account`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortAccountInfo {
    pub(crate) taken: u64,
    pub(crate) sent: u64,
    pub(crate) bytes: u64,
    pub(crate) dropped_ring_full: u64,
    pub(crate) dropped_refused: u64,
    pub(crate) dropped_down: u64,
    pub(crate) dropped_bad_length: u64,
    pub(crate) dropped_no_cell: u64,
    pub(crate) dropped_other: u64,
    pub(crate) waiting: u64,
    pub(crate) copied: u64,
    pub(crate) late: u64,
    pub(crate) reserved: [u64; 4],
}

impl From<&PortAccount> for PortAccountInfo {
    fn from(account: &PortAccount) -> Self {
        Self {
            taken: account.taken,
            sent: account.sent,
            bytes: account.bytes,
            dropped_ring_full: account.dropped.ring_full,
            dropped_refused: account.dropped.refused,
            dropped_down: account.dropped.down,
            dropped_bad_length: account.dropped.bad_length,
            dropped_no_cell: account.dropped.no_cell,
            dropped_other: account.dropped.other,
            waiting: account.waiting,
            copied: account.copied,
            late: account.late,
            reserved: [0; 4],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::mem::offset_of;
    use std::process::Command;

    use wirecap::{Direction, Drops, Timestamps};

    use super::*;
    use crate::frame::{FrameInfo, NO_TAG};
    use crate::group::{DIRECTIONS, TIMESTAMPS};

    /// Assertions about a struct for the C compiler.
    macro_rules! layout {
        ($claims:ident, $rust:ty as $c:literal { $($field:ident as $member:literal,)* }) => {
            let _ = writeln!($claims, "_Static_assert(sizeof({}) == {}, \"size\");", $c, size_of::<$rust>());
            $(
                let offset = offset_of!($rust, $field);
                let _ = writeln!($claims, "_Static_assert(offsetof({}, {}) == {offset}, {:?});", $c, $member, $member);
            )*
        };
        ($claims:ident, $rust:ty as $c:literal { $($field:ident,)* }) => {
            let _ = writeln!($claims, "_Static_assert(sizeof({}) == {}, \"size\");", $c, size_of::<$rust>());
            $(
                let member = stringify!($field);
                let offset = offset_of!($rust, $field);
                let _ = writeln!($claims, "_Static_assert(offsetof({}, {member}) == {offset}, {member:?});", $c);
            )*
        };
    }

    /// A C source that compiles only if the header agrees with the library.
    fn claims() -> String {
        let mut claims = "#include <linux/filter.h>\n#include <wirecap.h>\n".to_owned();
        layout!(claims, PacketInfo as "struct wirecap_packet" {
            data, caplen, wire_len, timestamp_ns, queue, reserved,
        });
        layout!(claims, ChunkInfo as "struct wirecap_chunk_info" {
            ring_name, ring_index, interface_index, packets, link_type, sequence, wire_bytes, offloaded, reserved,
        });
        layout!(claims, DeviceInfo as "struct wirecap_device" {
            name, driver, index, flags, mtu, rx_queues, tx_queues, link_type,
        });
        layout!(claims, AccountInfo as "struct wirecap_account" {
            seen, offered, delivered, bytes, filtered, dropped_no_cell, dropped_ring_full, dropped_device,
            dropped_other, offloaded_chunks, abandoned_chunks, super_packets, stalls, dropped_no_ring, cut,
            starved, reserved,
        });
        layout!(claims, VerdictInfo as "struct wirecap_verdict" { answer, unseen, lost, until_ns, });
        layout!(claims, UnseenInfo as "struct wirecap_unseen" { interface, reason, from_ns, to_ns, });
        layout!(claims, PortAccountInfo as "struct wirecap_port_account" {
            taken, sent, bytes, dropped_ring_full, dropped_refused, dropped_down, dropped_bad_length,
            dropped_no_cell, dropped_other, waiting, copied, late, reserved,
        });
        layout!(claims, FrameInfo as "struct wirecap_frame" { data, data_len, len, timestamp_ns, packet, });
        layout!(claims, Piece as "struct iovec" { base as "iov_base", len as "iov_len", });
        layout!(claims, wirecap::filter::ClassicInsn as "struct sock_filter" { code, jt, jf, k, });

        let mut equal = |name: &str, value: i64| {
            let _ = writeln!(claims, "_Static_assert({name} == {value}, \"{name}\");");
        };
        let statuses = [
            ("OK", Status::Ok),
            ("END", Status::End),
            ("NONE", Status::None),
            ("ERROR_HANDLE", Status::Handle),
            ("ERROR_ARGUMENT", Status::Argument),
            ("ERROR_BUSY", Status::Busy),
            ("ERROR_DEVICE", Status::Device),
            ("ERROR_PERMISSION", Status::Permission),
            ("ERROR_MEMORY", Status::Memory),
            ("ERROR_FILTER", Status::Filter),
            ("ERROR_UNSUPPORTED", Status::Unsupported),
            ("ERROR_FILE", Status::File),
            ("ERROR_ORPHANED", Status::Orphaned),
            ("ERROR_SYSTEM", Status::System),
            ("ERROR_INTERNAL", Status::Internal),
        ];
        for (name, status) in statuses {
            equal(&format!("WIRECAP_{name}"), status as i64);
        }

        let flags = [
            ("UP", DEVICE_UP),
            ("RUNNING", DEVICE_RUNNING),
            ("LOOPBACK", DEVICE_LOOPBACK),
            ("XDP", DEVICE_XDP),
        ];
        for (name, flag) in flags {
            equal(&format!("WIRECAP_DEVICE_{name}"), i64::from(flag));
        }

        let answers = [
            ("YES", LOSSLESS_YES),
            ("UNTIL", LOSSLESS_UNTIL),
            ("NOT_KNOWN", LOSSLESS_NOT_KNOWN),
            ("NO", LOSSLESS_NO),
        ];
        for (name, answer) in answers {
            equal(&format!("WIRECAP_LOSSLESS_{name}"), i64::from(answer));
        }

        let place = |place: Option<usize>| place.expect("it is in the list") as i64;

        for (name, engine) in
            [("AUTO", Engine::Auto), ("XDP", Engine::Xdp), ("PACKET", Engine::Packet)]
        {
            equal(
                &format!("WIRECAP_ENGINE_{name}"),
                place(ENGINES.iter().position(|own| *own == engine)),
            );
        }

        let timestamps = [
            ("NONE", Timestamps::None),
            ("BATCH", Timestamps::Batch),
            ("PACKET", Timestamps::Packet),
            ("HARDWARE", Timestamps::Hardware),
        ];
        for (name, which) in timestamps {
            equal(
                &format!("WIRECAP_TIMESTAMPS_{name}"),
                place(TIMESTAMPS.iter().position(|own| *own == which)),
            );
        }

        let directions =
            [("IN", Direction::In), ("OUT", Direction::Out), ("INOUT", Direction::InOut)];
        for (name, direction) in directions {
            let number = DIRECTIONS.iter().position(|own| *own == direction);
            equal(&format!("WIRECAP_DIRECTION_{name}"), place(number));
        }

        let _ = writeln!(
            claims,
            "_Static_assert(WIRECAP_NOT_REPORTED == {NOT_REPORTED}u, \"not reported\");"
        );
        let _ = writeln!(claims, "_Static_assert(WIRECAP_NO_QUEUE == {NO_QUEUE}u, \"no queue\");");
        let _ = writeln!(claims, "_Static_assert(WIRECAP_NO_TAG == {NO_TAG}, \"no tag\");");
        let _ = writeln!(
            claims,
            "_Static_assert(WIRECAP_TX_AS_RECEIVED == {TX_AS_RECEIVED}, \"as received\");"
        );
        let _ =
            writeln!(claims, "_Static_assert(WIRECAP_TX_BY_FLOW == {TX_BY_FLOW}, \"by flow\");");
        let version = env!("CARGO_PKG_VERSION");
        let _ = writeln!(
            claims,
            "_Static_assert(sizeof(WIRECAP_VERSION) == {}, \"version\");",
            version.len() + 1
        );

        claims
    }

    #[test]
    fn an_account_has_every_column_of_the_ledger() {
        let dropped = Drops { no_cell: 1, ring_full: 2, device: Some(3), no_ring: 4, other: 5 };
        let account = Account {
            seen: Some(6),
            offered: 7,
            delivered: 8,
            bytes: 9,
            filtered: Some(10),
            dropped,
            offloaded_chunks: 11,
            abandoned_chunks: 12,
            super_packets: 13,
            cut: 14,
            stalls: 15,
            starved: 16,
        };
        let info = AccountInfo::from(&account);
        let dropped = [
            info.dropped_no_cell,
            info.dropped_ring_full,
            info.dropped_device,
            info.dropped_no_ring,
            info.dropped_other - info.dropped_no_ring,
        ];
        assert_eq!(dropped, [1, 2, 3, 4, 5]);

        let others = [info.seen, info.offered, info.delivered, info.bytes, info.filtered];
        assert_eq!(others, [6, 7, 8, 9, 10]);

        let others = [info.offloaded_chunks, info.abandoned_chunks, info.super_packets];
        assert_eq!(others, [11, 12, 13]);
        assert_eq!([info.cut, info.stalls, info.starved], [14, 15, 16]);
    }

    #[test]
    fn the_headers_constants_and_structures_match_the_library() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("claims.c");
        std::fs::write(&source, claims()).unwrap();

        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
        let flags = [
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-pedantic",
            "-Werror",
            "-fsyntax-only",
            "-I",
            include,
        ];
        let output = Command::new("cc")
            .args(flags)
            .arg(&source)
            .output()
            .expect("a C compiler is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
