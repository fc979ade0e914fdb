//! Chunks and their packets.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};

use wirecap::{Chunk, Packet, Timestamp};

use crate::abi::{ChunkInfo, NO_QUEUE, NOT_REPORTED, PacketInfo, Piece};
use crate::arguments::{Rooms, SizedRooms};
use crate::failure::{Failure, Status, call, quick};
use crate::registry::{Handle, Kept, Registry};

/// A chunk held by the program.
pub(crate) struct Held {
    pub(crate) chunk: Chunk,
    pub(crate) ring_name: &'static CStr,
}

static CHUNKS: Registry<Held> = Registry::new();

impl Kept for Held {
    const KIND: usize = 4;
    const NAME: &'static str = "chunk";

    fn registry() -> &'static Registry<Self> {
        &CHUNKS
    }
}

impl Held {
    fn info(&self) -> ChunkInfo {
        let chunk = &self.chunk;
        ChunkInfo {
            ring_name: self.ring_name.as_ptr(),
            ring_index: chunk.ring_index() as u32,
            interface_index: chunk.interface_index() as u32,
            packets: chunk.len() as u32,
            link_type: chunk.link_type().0.into(),
            sequence: chunk.sequence(),
            wire_bytes: chunk.wire_bytes(),
            offloaded: chunk.is_offloaded().into(),
            reserved: 0,
        }
    }

    fn packet(&self, index: u32) -> Result<Packet<'_>, Failure> {
        let count = self.chunk.len();
        self.chunk.get(index as usize).ok_or_else(|| {
            let text = format!("there is no packet {index}: the chunk has {count}, counted from 0");
            Failure::new(Status::Argument, text)
        })
    }
}

#[inline]
fn packet_info(packet: Packet<'_>) -> PacketInfo {
    let data = packet.data();
    PacketInfo {
        data: data.as_ptr(),
        caplen: data.len() as u32,
        wire_len: packet.wire_len(),
        timestamp_ns: packet.timestamp().map_or(NOT_REPORTED, Timestamp::unix_nanos),
        queue: packet.queue().unwrap_or(NO_QUEUE),
        reserved: 0,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_chunk_describe(
    chunk: Handle<Held>,
    info: *mut ChunkInfo,
    size: usize,
) -> c_int {
    quick(|| {
        // SAFETY: the header requires null or space for one value of this size.
        let room = unsafe { SizedRooms::at(info, size, 1, "info") }?;
        room.fill(std::iter::once(chunk.read()?.info()));
        Ok(Status::Ok as c_int)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_chunk_packets(
    chunk: Handle<Held>,
    first: u32,
    packets: *mut PacketInfo,
    size: usize,
    count: usize,
) -> c_int {
    quick(|| {
        // SAFETY: the header requires null or space for this many values of this size.
        let rooms = unsafe { SizedRooms::at(packets, size, count, "packets") }?;
        let held = chunk.read()?;
        Ok(rooms.fill(held.chunk.iter().skip(first as usize).map(packet_info)) as c_int)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_chunk_pieces(
    chunk: Handle<Held>,
    packet: u32,
    pieces: *mut Piece,
    count: usize,
) -> c_int {
    quick(|| {
        // SAFETY: the header requires null or space for this many values.
        let rooms = unsafe { Rooms::at(pieces, count, "pieces") }?;
        let held = chunk.read()?;
        let fragments = held.packet(packet)?.fragments();
        let pieces = fragments.clone().count();

        rooms.fill(
            fragments.map(|piece| Piece { base: piece.as_ptr().cast_mut(), len: piece.len() }),
        );
        Ok(pieces as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_recycle(chunk: Handle<Held>) -> c_int {
    call(|| chunk.take().map(|_recycled| Status::Ok))
}
