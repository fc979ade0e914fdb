//! Packets made longer and shorter at both ends, within their cells.

use std::fmt;
use std::slice;

use super::{OutPacket, in_memory};
use crate::sys::xdp::Descriptor;

/// Bytes of the two MAC addresses.
const MACS_BYTES: usize = 12;
/// Bytes of a VLAN tag with its Ethernet type.
const TAG_BYTES: usize = 4;

impl OutPacket<'_> {
    /// By how many bytes the packet can grow at its head. With the engine `xdp` 256 at first, with `packet`
    /// some 60.
    pub fn headroom(&self) -> usize {
        (self.first().get().address - self.lowest) as usize
    }

    /// By how many bytes the packet can grow at its tail: what is left of its last cell; with the engine `packet`
    /// nothing but what was cut off.
    pub fn tailroom(&self) -> usize {
        let last = self.last().get();
        (self.highest - last.address) as usize - last.len as usize
    }

    /// Puts `bytes` bytes in front of the packet and gives them to be filled; they hold anything.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if there is not that much [`headroom`](Self::headroom). Nothing is changed then.
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

    /// Cuts `bytes` bytes off the head, which lie in the first cell; of a packet of several cells something must be left
    /// there.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if the first cell has not that many. Nothing is changed then.
    pub fn shrink_head(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let first = self.first().get();
        NoRoom::check(bytes, self.to_spare(first))?;
        let address = first.address + bytes as u64;
        self.first().set(Descriptor { address, len: first.len - bytes as u32, ..first });
        Ok(())
    }

    /// Adds `bytes` bytes at the end and gives them to be filled; they hold anything.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if there is not that much [`tailroom`](Self::tailroom). Nothing is changed then.
    pub fn grow_tail(&mut self, bytes: usize) -> Result<&mut [u8], NoRoom> {
        NoRoom::check(bytes, self.tailroom())?;
        let last = self.last().get();
        let end = last.address + u64::from(last.len);
        self.last().set(Descriptor { len: last.len + bytes as u32, ..last });
        // SAFETY: as in `bytes`, for what the cell has behind the packet until now.
        Ok(unsafe { slice::from_raw_parts_mut(in_memory(self.base, end).as_ptr(), bytes) })
    }

    /// Cuts `bytes` bytes off the end, which lie in the last cell; of a packet of several cells something must be left
    /// there.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if the last cell has not that many. Nothing is changed then.
    pub fn shrink_tail(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let last = self.last().get();
        NoRoom::check(bytes, self.to_spare(last))?;
        self.last().set(Descriptor { len: last.len - bytes as u32, ..last });
        Ok(())
    }

    /// How many bytes a cell can do without: the kernel takes no empty ones in a chain.
    fn to_spare(&self, cell: Descriptor) -> usize {
        (cell.len as usize).saturating_sub(usize::from(self.is_fragmented()))
    }

    /// Puts a VLAN tag (802.1Q) behind the MAC addresses, in front of those that are there. `tci` is its priority,
    /// drop eligibility and VLAN number, as on the wire.
    ///
    /// # Errors
    ///
    /// [`NoRoom`] if there are not four bytes of headroom, or no MAC addresses.
    pub fn push_vlan(&mut self, tci: u16) -> Result<(), NoRoom> {
        NoRoom::check(MACS_BYTES, self.data().len())?;
        self.grow_head(TAG_BYTES)?;
        let data = self.data_mut();
        data.copy_within(TAG_BYTES..TAG_BYTES + MACS_BYTES, 0);
        data[MACS_BYTES..][..2].copy_from_slice(&[0x81, 0]);
        data[MACS_BYTES + 2..][..2].copy_from_slice(&tci.to_be_bytes());
        Ok(())
    }

    /// Takes the outer VLAN tag (802.1Q or 802.1ad) away, and gives its priority, drop eligibility and number;
    /// `None` if there is none.
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

/// A packet cannot be made longer or shorter by so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes that were asked for.
    pub asked: usize,
    /// Bytes that there are.
    pub room: usize,
}

impl NoRoom {
    fn check(asked: usize, room: usize) -> Result<(), Self> {
        if asked <= room { Ok(()) } else { Err(Self { asked, room }) }
    }
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes were asked for where there are {}", self.asked, self.room)
    }
}

impl std::error::Error for NoRoom {}
