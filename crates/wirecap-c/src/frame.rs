//! Frames of forwarded packets while the program decides where they go.
#![allow(unsafe_code)]

use std::ffi::c_int;

use wirecap::{NoRoom, OutPacket};

use crate::abi::{NOT_REPORTED, Piece};
use crate::arguments::Rooms;
use crate::failure::{Failure, Status, quick};

/// `struct wirecap_frame`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct FrameInfo {
    pub(crate) data: *mut u8,
    pub(crate) data_len: u32,
    pub(crate) len: u32,
    pub(crate) timestamp_ns: u64,
    /// The packet, valid during the program's function.
    pub(crate) packet: *mut OutPacket<'static>,
}

impl FrameInfo {
    /// The frame of a packet. No other thread may use the packet while the program has the frame.
    pub(crate) fn of(packet: &mut OutPacket<'_>) -> Self {
        let timestamp_ns = packet.timestamp().map_or(NOT_REPORTED, wirecap::Timestamp::unix_nanos);
        let packet: *mut OutPacket<'_> = packet;
        let mut frame = Self {
            data: std::ptr::null_mut(),
            data_len: 0,
            len: 0,
            timestamp_ns,
            packet: packet.cast(),
        };
        // SAFETY: the pointer is from the reference that only this function borrows.
        frame.look_at(unsafe { &mut *packet });
        frame
    }

    fn look_at(&mut self, packet: &mut OutPacket<'_>) {
        self.len = packet.len() as u32;
        let data = packet.data_mut();
        (self.data, self.data_len) = (data.as_mut_ptr(), data.len() as u32);
    }
}

/// Changes the packet of a frame, and updates the frame.
///
/// # Safety
///
/// `frame` must be null or a frame that `wirecap_forward` passed to the function that makes this
/// call.
unsafe fn change(
    frame: *mut FrameInfo,
    change: impl FnOnce(&mut OutPacket<'static>) -> Result<Status, NoRoom>,
) -> c_int {
    quick(|| {
        // SAFETY: guaranteed by the caller.
        let frame = unsafe { frame.as_mut() }
            .ok_or_else(|| Failure::new(Status::Argument, "frame is null"))?;

        // SAFETY: guaranteed by the caller; `wirecap_forward` keeps the packet until that function
        // returns.
        let packet = unsafe { &mut *frame.packet };
        let status = change(packet)
            .map_err(|no_room| Failure::new(Status::Argument, no_room.to_string()))?;
        frame.look_at(packet);

        Ok(status as c_int)
    })
}

/// Declares functions that extend or shorten a frame by a number of bytes.
macro_rules! resizers {
    ($(fn $name:ident as $resize:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(frame: *mut FrameInfo, bytes: u32) -> c_int {
            // SAFETY: required by the header.
            unsafe { change(frame, |packet| packet.$resize(bytes as usize).map(|_| Status::Ok)) }
        }
    )*};
}

resizers! {
    fn wirecap_frame_grow_head as grow_head;
    fn wirecap_frame_shrink_head as shrink_head;
    fn wirecap_frame_grow_tail as grow_tail;
    fn wirecap_frame_shrink_tail as shrink_tail;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_frame_push_vlan(frame: *mut FrameInfo, tci: u16) -> c_int {
    // SAFETY: required by the header.
    unsafe { change(frame, |packet| packet.push_vlan(tci).map(|()| Status::Ok)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_frame_pop_vlan(frame: *mut FrameInfo) -> c_int {
    let mut tag = None;

    // SAFETY: required by the header.
    let status = unsafe {
        change(frame, |packet| {
            tag = packet.pop_vlan();
            Ok(Status::Ok)
        })
    };

    match tag {
        _ if status < 0 => status,
        Some(tci) => tci.into(),
        None => NO_TAG,
    }
}

/// `WIRECAP_NO_TAG`: a value outside the sixteen bits of a tag.
pub(crate) const NO_TAG: c_int = 0x1_0000;

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_frame_pieces(
    frame: *mut FrameInfo,
    pieces: *mut Piece,
    count: usize,
) -> c_int {
    quick(|| {
        // SAFETY: the header requires null or space for this many values.
        let rooms = unsafe { Rooms::at(pieces, count, "pieces") }?;

        // SAFETY: the header requires null or a frame from `wirecap_forward`.
        let frame = unsafe { frame.as_mut() }
            .ok_or_else(|| Failure::new(Status::Argument, "frame is null"))?;

        // SAFETY: as in `change`.
        let packet = unsafe { &mut *frame.packet };
        let total = packet.fragments().count();
        rooms.fill(
            packet
                .fragments_mut()
                .map(|piece| Piece { base: piece.as_mut_ptr(), len: piece.len() }),
        );

        Ok(total as c_int)
    })
}
