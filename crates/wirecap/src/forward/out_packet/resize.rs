//! Packets made longer and shorter at both ends, within their cells.

use std::slice;

use super::{OutPacket, in_memory};
use crate::sys::xdp::Descriptor;

/// Bytes of the two MAC addresses.
const MACS_BYTES: usize = 12;
/// Bytes of a VLAN tag with its Ethernet type.
const TAG_BYTES: usize = 4;

impl OutPacket<'_> {
    /// The bytes by which the packet can grow at its head. With the engine `xdp` 256 at first, with
    /// `packet` some 60.
    pub fn headroom(&self) -> usize {
        (self.first().get().address - self.lowest) as usize
    }

    /// The bytes by which the packet can grow at its tail: the rest of its last cell; with the
    /// engine `packet` only bytes that were cut off.
    pub fn tailroom(&self) -> usize {
        let last = self.last().get();
        (self.highest - last.address) as usize - last.len as usize
    }

    /// Adds `bytes` uninitialised bytes before the packet and returns them.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if there is less [`headroom`](Self::headroom). The packet is unchanged then.
    pub fn grow_head(&mut self, bytes: usize) -> Result<&mut [u8], NoRoom> {
        NoRoom::check(bytes, self.headroom())?;
        let first = self.first().get();
        let address = first.address - bytes as u64;
        if address < self.captured.address && self.captured.time.is_none() {
            self.captured.time = Some(self.timestamp());
        }
        self.first().set(Descriptor { address, len: first.len + bytes as u32, ..first });
        Ok(&mut self.data_mut()[..bytes])
    }

    /// Removes `bytes` bytes from the head, in the first cell; a packet of several cells must keep
    /// at least one byte there.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if the first cell has fewer. The packet is unchanged then.
    pub fn shrink_head(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let first = self.first().get();
        NoRoom::check(bytes, self.to_spare(first))?;
        let address = first.address + bytes as u64;
        self.first().set(Descriptor { address, len: first.len - bytes as u32, ..first });
        Ok(())
    }

    /// Adds `bytes` uninitialised bytes at the end and returns them.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if there is less [`tailroom`](Self::tailroom). The packet is unchanged then.
    pub fn grow_tail(&mut self, bytes: usize) -> Result<&mut [u8], NoRoom> {
        NoRoom::check(bytes, self.tailroom())?;
        let last = self.last().get();
        let end = last.address + u64::from(last.len);
        self.last().set(Descriptor { len: last.len + bytes as u32, ..last });
        // SAFETY: as in `bytes`, for the bytes of the cell after the packet's former end.
        Ok(unsafe { slice::from_raw_parts_mut(in_memory(self.base, end).as_ptr(), bytes) })
    }

    /// Removes `bytes` bytes from the end, in the last cell; a packet of several cells must keep at
    /// least one byte there.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if the last cell has fewer. The packet is unchanged then.
    pub fn shrink_tail(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let last = self.last().get();
        NoRoom::check(bytes, self.to_spare(last))?;
        self.last().set(Descriptor { len: last.len - bytes as u32, ..last });
        Ok(())
    }

    /// The bytes that a cell can lose: the kernel rejects empty cells in a chain.
    fn to_spare(&self, cell: Descriptor) -> usize {
        (cell.len as usize).saturating_sub(usize::from(self.is_fragmented()))
    }

    /// Pushes a VLAN tag (802.1Q) after the MAC addresses, before existing tags. `tci` is its
    /// priority, drop eligibility and VLAN ID, as on the wire.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] without four bytes of headroom, or without MAC addresses.
    pub fn push_vlan(&mut self, tci: u16) -> Result<(), NoRoom> {
        NoRoom::check(MACS_BYTES, self.data().len())?;
        self.grow_head(TAG_BYTES)?;
        let data = self.data_mut();
        data.copy_within(TAG_BYTES..TAG_BYTES + MACS_BYTES, 0);
        data[MACS_BYTES..][..2].copy_from_slice(&[0x81, 0]);
        data[MACS_BYTES + 2..][..2].copy_from_slice(&tci.to_be_bytes());
        Ok(())
    }

    /// Pops the outer VLAN tag (802.1Q or 802.1ad) and returns its priority, drop eligibility and
    /// VLAN ID; `None` if there is none.
    pub fn pop_vlan(&mut self) -> Option<u16> {
        let tag = *self.data().get(MACS_BYTES..)?.first_chunk::<TAG_BYTES>()?;
        if ![[0x81, 0], [0x88, 0xa8]].contains(&[tag[0], tag[1]]) {
            return None;
        }
        self.data_mut().copy_within(..MACS_BYTES, TAG_BYTES);
        self.shrink_head(TAG_BYTES).ok()?;
        Some(u16::from_be_bytes([tag[2], tag[3]]))
    }
}

/// A packet cannot be lengthened or shortened by this many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{asked} bytes requested, {room} available")]
pub struct NoRoom {
    /// Bytes requested.
    pub asked: usize,
    /// Bytes available.
    pub room: usize,
}

impl NoRoom {
    fn check(asked: usize, room: usize) -> Result<(), Self> {
        if asked <= room { Ok(()) } else { Err(Self { asked, room }) }
    }
}
