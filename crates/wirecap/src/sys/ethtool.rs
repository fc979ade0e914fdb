//! The `SIOCETHTOOL` requests: a driver's information and settings. No other interface works with
//! every driver (ethtool over netlink has neither the driver's name nor its own statistics).
//! `SIOCGHWTSTAMP` returns which packets get hardware timestamps.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Size of an interface's name with its closing zero (`IFNAMSIZ`).
pub(crate) const NAME_BYTES: usize = 16;

const SIOCGHWTSTAMP: libc::Ioctl = 0x89b1;

const GDRVINFO: u32 = 0x03;
const GCOALESCE: u32 = 0x0e;
const GRINGPARAM: u32 = 0x10;
const GPAUSEPARAM: u32 = 0x12;
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GRXFH: u32 = 0x29;
const GRXRINGS: u32 = 0x2d;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const GCHANNELS: u32 = 0x3c;
const GET_TS_INFO: u32 = 0x41;
const GRSSH: u32 = 0x46;
const GLINKSETTINGS: u32 = 0x4c;

const STRING_BYTES: usize = 32;
/// The kernel answers `GSTRINGS` and `GSTATS` with as many entries as the driver has *at that
/// moment*, regardless of the announced room. An `ethtool -L` between the query for the number and
/// the query for the entries can increase it, so there is room for many more than any driver has.
const ROOM_ENTRIES: usize = 1 << 17;
/// Maximum accepted number of entries; the other half of the room is for growth.
const ENTRIES_MAX: usize = ROOM_ENTRIES / 2;

/// A set of a driver's names.
#[derive(Clone, Copy)]
enum StringSet {
    Statistics = 1,
    Features = 4,
}

/// Answer to `GDRVINFO`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware_version: [u8; 32],
    bus_info: [u8; 32],
    rom_version: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}
const _: () = assert!(size_of::<DriverInfo>() == 196 && offset_of!(DriverInfo, bus_info) == 100);

/// Answer to `GCHANNELS`.
#[repr(C)]
#[derive(Default)]
struct RawChannels {
    command: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}
const _: () = assert!(size_of::<RawChannels>() == 36 && offset_of!(RawChannels, rx) == 20);

/// The queues that a driver has in use now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    /// Receive queues.
    pub(crate) rx: u32,
    /// Transmit queues.
    pub(crate) tx: u32,
    /// The maximum number of receive queues.
    pub(crate) rx_max: u32,
}

/// The queues of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelKinds {
    /// Queues that only receive.
    pub(crate) rx: u32,
    pub(crate) rx_max: u32,
    /// Queues that receive and send.
    pub(crate) combined: u32,
    pub(crate) combined_max: u32,
}

/// The size of receive rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RxRing {
    pub(crate) descriptors: u32,
    pub(crate) descriptors_max: u32,
}

/// When a device interrupts for received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RxCoalescing {
    pub(crate) usecs: u32,
    pub(crate) frames: u32,
    pub(crate) is_adaptive: bool,
}

/// A device's use of pause frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) is_negotiated: bool,
    pub(crate) rx: bool,
    pub(crate) tx: bool,
}

/// How a device spreads flows over its receive queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spreading {
    /// The queue of each hash, modulo the length.
    pub(crate) table: Vec<u32>,
    pub(crate) key: Vec<u8>,
    /// Both directions of a flow have the same hash input.
    pub(crate) is_symmetric: bool,
}

/// An offload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Feature {
    /// The kernel's name, as in `rx-gro`.
    pub(crate) name: String,
    pub(crate) is_active: bool,
    pub(crate) is_changeable: bool,
}

/// A driver's name and device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Driver {
    /// Its name, as in `ixgbe`.
    pub(crate) name: String,
    /// The bus address of the device, such as `0000:03:00.0`; empty for software.
    pub(crate) bus_info: String,
}

/// The ethtool requests of one interface.
pub(crate) struct Ethtool<'a> {
    socket: BorrowedFd<'a>,
    name: [c_char; NAME_BYTES],
}

impl<'a> Ethtool<'a> {
    /// For the interface `name` in the network namespace of `socket` (any socket will do).
    ///
    /// # Errors
    /// `InvalidInput` for a name that no interface can have.
    pub(crate) fn new(socket: BorrowedFd<'a>, name: &str) -> io::Result<Self> {
        if name.len() >= NAME_BYTES || name.contains('\0') {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut padded = [0; NAME_BYTES];
        for (to, from) in padded.iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        Ok(Self { socket, name: padded })
    }

    /// The driver's name and place.
    pub(crate) fn driver(&self) -> io::Result<Driver> {
        let mut info = DriverInfo {
            command: GDRVINFO,
            driver: [0; 32],
            version: [0; 32],
            firmware_version: [0; 32],
            bus_info: [0; 32],
            rom_version: [0; 32],
            reserved: [0; 12],
            counts: [0; 5],
        };

        // SAFETY: for GDRVINFO the kernel writes a `struct ethtool_drvinfo`, which `DriverInfo`
        // mirrors.
        unsafe { self.request((&raw mut info).cast()) }?;
        Ok(Driver { name: text(&info.driver), bus_info: text(&info.bus_info) })
    }

    /// The number of queues in use.
    pub(crate) fn channels(&self) -> io::Result<Channels> {
        let mut raw = RawChannels { command: GCHANNELS, ..RawChannels::default() };
        // SAFETY: for GCHANNELS the kernel writes a `struct ethtool_channels`, which `RawChannels`
        // mirrors.
        unsafe { self.request((&raw mut raw).cast()) }?;
        let [rx_max, _, _, combined_max] = raw.max;
        let rx = raw.rx + raw.combined;
        Ok(Channels {
            rx,
            tx: raw.tx + raw.combined,
            rx_max: rx_max.saturating_add(combined_max).max(rx),
        })
    }

    /// The queues of each kind, in use and maximum.
    pub(crate) fn channel_kinds(&self) -> io::Result<ChannelKinds> {
        let mut raw = RawChannels { command: GCHANNELS, ..RawChannels::default() };
        // SAFETY: as in `channels`.
        unsafe { self.request((&raw mut raw).cast()) }?;
        let [rx_max, _, _, combined_max] = raw.max;
        Ok(ChannelKinds { rx: raw.rx, rx_max, combined: raw.combined, combined_max })
    }

    /// The number of descriptors of each of the device's receive rings.
    pub(crate) fn rx_descriptors(&self) -> io::Result<u32> {
        self.rx_ring().map(|ring| ring.descriptors)
    }

    /// The size of the device's receive rings.
    pub(crate) fn rx_ring(&self) -> io::Result<RxRing> {
        // `struct ethtool_ringparam`: the command, the maximums of four kinds, then the sizes in
        // use, receive first.
        let mut words = [0_u32; 9];
        words[0] = GRINGPARAM;
        // SAFETY: for GRINGPARAM the kernel writes a `struct ethtool_ringparam`, which is nine
        // words of 32 bits.
        unsafe { self.request(words.as_mut_ptr().cast()) }?;
        Ok(RxRing { descriptors: words[5], descriptors_max: words[1] })
    }

    /// The interrupt coalescing of received packets.
    pub(crate) fn rx_coalescing(&self) -> io::Result<RxCoalescing> {
        // `struct ethtool_coalesce`: the command; for receiving microseconds, frames, and both
        // again for while an interrupt is served; four of sending; the interval of statistics;
        // whether receiving and sending adapt; eleven more.
        let mut words = [0_u32; 23];
        words[0] = GCOALESCE;
        // SAFETY: for GCOALESCE the kernel writes a `struct ethtool_coalesce`, which is 23 words of
        // 32 bits.
        unsafe { self.request(words.as_mut_ptr().cast()) }?;
        Ok(RxCoalescing { usecs: words[1], frames: words[2], is_adaptive: words[10] != 0 })
    }

    /// Whether the device honours and sends pause frames.
    pub(crate) fn pause(&self) -> io::Result<Pause> {
        // `struct ethtool_pauseparam`: the command, autonegotiation, receiving, sending.
        let mut words = [0_u32; 4];
        words[0] = GPAUSEPARAM;
        // SAFETY: for GPAUSEPARAM the kernel writes a `struct ethtool_pauseparam`, four words of 32
        // bits.
        unsafe { self.request(words.as_mut_ptr().cast()) }?;
        Ok(Pause { is_negotiated: words[1] != 0, rx: words[2] != 0, tx: words[3] != 0 })
    }

    /// How the device selects a receive queue.
    pub(crate) fn spreading(&self) -> io::Result<Spreading> {
        // `struct ethtool_rxfh`: the command, the context, entries of the table, bytes of the key,
        // the function and the transformation as bytes, a reserved word; then the table and the
        // key, if their announced sizes are the driver's.
        const HEAD_WORDS: usize = 6;
        let mut head = [0_u32; HEAD_WORDS];
        head[0] = GRSSH;

        // SAFETY: for GRSSH with sizes of 0 the kernel writes the head only, 24 bytes.
        unsafe { self.request(head.as_mut_ptr().cast()) }?;
        let entries = head[2] as usize;
        let key_bytes = head[3] as usize;
        if entries > ENTRIES_MAX || key_bytes > ENTRIES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }

        // SAFETY: the kernel rejects sizes that are not the driver's at that moment (EINVAL), so it
        // writes the head, and 4 bytes for each entry and the key: less than ROOM_ENTRIES entries
        // of 32 bytes.
        let room = unsafe { self.ask_for_entries(&[GRSSH, 0, head[2], head[3], 0, 0]) }?;
        let (head, rest) = room.bytes().split_at(HEAD_WORDS * size_of::<u32>());
        let (table, rest) = rest.split_at(entries * size_of::<u32>());

        Ok(Spreading {
            table: table
                .as_chunks::<4>()
                .0
                .iter()
                .map(|entry| u32::from_ne_bytes(*entry))
                .collect(),
            key: rest[..key_bytes].to_vec(),
            is_symmetric: head[17] & 0b11 != 0 && head[17] != u8::MAX,
        })
    }

    /// Which parts of a packet of this flow type (`TCP_V4_FLOW` and so on) are hashed, as a set of
    /// `RXH_` bits.
    pub(crate) fn hashed_parts(&self, flow_type: u32) -> io::Result<u64> {
        let mut words = [0_u64; 32];
        words[0] = pair(GRXFH, flow_type);
        // SAFETY: for GRXFH the kernel writes at most `sizeof(struct ethtool_rxnfc)` = 192 bytes;
        // 256 are there.
        unsafe { self.request(words.as_mut_ptr().cast()) }?;
        Ok(words[1])
    }

    /// The number of the device's own clock (`/dev/ptpN`), if it has one.
    pub(crate) fn clock_index(&self) -> io::Result<Option<u32>> {
        // `struct ethtool_ts_info`: the command, capabilities, the clock or -1, then eight words of
        // modes.
        let mut words = [0_u32; 11];
        words[0] = GET_TS_INFO;
        // SAFETY: for GET_TS_INFO the kernel writes a `struct ethtool_ts_info`, eleven words of 32
        // bits.
        unsafe { self.request(words.as_mut_ptr().cast()) }?;
        Ok(u32::try_from(words[2].cast_signed()).ok())
    }

    /// The number of receive rings over which the hardware distributes flows.
    pub(crate) fn rx_rings(&self) -> io::Result<u32> {
        // `struct ethtool_rxnfc`: the command, a flow type, the 64-bit answer, then rules (176
        // bytes).
        let mut words = [0_u64; 32];
        words[0] = pair(GRXRINGS, 0);
        // SAFETY: for GRXRINGS the kernel writes at most `sizeof(struct ethtool_rxnfc)` = 192
        // bytes; 256 are there.
        unsafe { self.request(words.as_mut_ptr().cast()) }?;
        Ok(u32::try_from(words[1]).unwrap_or(u32::MAX))
    }

    /// The speed of the link in Mbit/s, if it is up and known.
    pub(crate) fn speed_mbps(&self) -> io::Result<Option<u32>> {
        // `struct ethtool_link_settings`: 12 words (command, speed, eight of bytes, ...), then
        // three masks. Their length is negotiated first: the kernel answers the length 0 with its
        // own length, negated.
        const MASK_WORDS_MAX: usize = i8::MAX as usize;
        let mut words = [0_u32; 12 + 3 * MASK_WORDS_MAX];
        words[0] = GLINKSETTINGS;

        // SAFETY: for GLINKSETTINGS the kernel writes the fixed 48 bytes, and three masks only if
        // their length in byte 15 is its own, which is at most 127 words each: there is room for
        // these.
        unsafe { self.request(words.as_mut_ptr().cast()) }?;
        let mask_words = mask_words(&words).unsigned_abs();
        words = [0; 12 + 3 * MASK_WORDS_MAX];
        words[0] = GLINKSETTINGS;
        set_mask_words(&mut words, mask_words);

        // SAFETY: as above.
        unsafe { self.request(words.as_mut_ptr().cast()) }?;
        Ok(Some(words[1]).filter(|&speed| speed != 0 && speed != u32::MAX))
    }

    /// The driver's own statistics by their names, in its order.
    pub(crate) fn statistics(&self) -> io::Result<Vec<(String, u64)>> {
        let names = self.strings(StringSet::Statistics)?;
        // SAFETY: for GSTATS the kernel writes 8 bytes and a u64 for each statistic that the driver
        // has; see ROOM_ENTRIES for why these are not more than there is room for.
        let room = unsafe { self.ask_for_entries(&[GSTATS, names.len() as u32]) }?;
        let values =
            room.bytes()[8..].as_chunks::<8>().0.iter().map(|value| u64::from_ne_bytes(*value));
        Ok(names.into_iter().zip(values).collect())
    }

    /// The names of the offloads that are on now, in the kernel's words (`rx-gro`, `rx-lro`).
    pub(crate) fn active_features(&self) -> io::Result<Vec<String>> {
        let features = self.features()?.into_iter();
        Ok(features.filter(|feature| feature.is_active).map(|feature| feature.name).collect())
    }

    /// All offloads that the kernel knows.
    pub(crate) fn features(&self) -> io::Result<Vec<Feature>> {
        // For each 32 features four words: those available, requested, active and never changed.
        const AVAILABLE: usize = 0;
        const ACTIVE: usize = 2;
        const NEVER_CHANGED: usize = 3;

        let names = self.strings(StringSet::Features)?;
        let blocks = names.len().div_ceil(32);
        let mut words = vec![0_u32; 2 + 4 * blocks];
        words[0] = GFEATURES;
        words[1] = blocks as u32;

        // SAFETY: for GFEATURES the kernel writes at most as many blocks of 16 bytes as `words[1]`
        // says.
        unsafe { self.request(words.as_mut_ptr().cast()) }?;
        let has = |index: usize, which: usize| {
            words[2 + 4 * (index / 32) + which] >> (index % 32) & 1 == 1
        };

        let feature = |(index, name)| Feature {
            name,
            is_active: has(index, ACTIVE),
            is_changeable: has(index, AVAILABLE) && !has(index, NEVER_CHANGED),
        };
        Ok(names
            .into_iter()
            .enumerate()
            .filter(|(_, name)| !name.is_empty())
            .map(feature)
            .collect())
    }

    /// The received packets that the device timestamps, `enum hwtstamp_rx_filters`.
    pub(crate) fn stamped_packets(&self) -> io::Result<i32> {
        // `struct hwtstamp_config`: flags, the timestamped sent packets, the timestamped received
        // packets.
        let mut words = [0_i32; 3];
        // SAFETY: the kernel reads and writes a `struct hwtstamp_config`, three words.
        unsafe { self.ioctl(SIOCGHWTSTAMP, words.as_mut_ptr().cast()) }?;
        Ok(words[2])
    }

    fn strings(&self, set: StringSet) -> io::Result<Vec<String>> {
        let count = self.string_count(set)?;
        // SAFETY: for GSTRINGS the kernel writes 12 bytes and 32 bytes for each name that the
        // driver has; see ROOM_ENTRIES for why these are not more than there is room for.
        let room = unsafe { self.ask_for_entries(&[GSTRINGS, set as u32, count as u32]) }?;
        let (head, entries) = room.bytes().split_at(3 * size_of::<u32>());
        let answered = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]) as usize;
        Ok(entries.chunks_exact(STRING_BYTES).take(count.min(answered)).map(text).collect())
    }

    fn string_count(&self, set: StringSet) -> io::Result<usize> {
        // `struct ethtool_sset_info`: command, a reserved word, the mask of the sets asked for, and
        // then one u32 for each set known. The mask comes back without the unknown ones.
        let mut words = [0_u64; 3];
        words[0] = pair(GSSET_INFO, 0);
        words[1] = 1 << (set as u32);
        // SAFETY: for GSSET_INFO the kernel writes 16 bytes and a u32 for each bit of the mask: one
        // here.
        unsafe { self.request(words.as_mut_ptr().cast()) }?;
        let count = if words[1] == 0 { 0 } else { first_half(words[2]) as usize };
        if count > ENTRIES_MAX { Err(io::ErrorKind::InvalidData.into()) } else { Ok(count) }
    }

    /// Makes a request whose answer has entries after `head`.
    ///
    /// # Safety
    /// The kernel must write at most `head` and [`ROOM_ENTRIES`] entries of 32 bytes.
    unsafe fn ask_for_entries(&self, head: &[u32]) -> io::Result<Room> {
        let room = Room::new(head)?;
        // SAFETY: there is room for all that the caller says may be written.
        unsafe { self.request(room.0.as_ptr().cast()) }?;
        Ok(room)
    }

    /// Makes a request to the driver.
    ///
    /// # Safety
    /// `argument` begins with the command and is valid for all that the kernel reads and writes for
    /// it.
    unsafe fn request(&self, argument: *mut c_void) -> io::Result<()> {
        // SAFETY: the caller guarantees the argument of a SIOCETHTOOL.
        unsafe { self.ioctl(libc::SIOCETHTOOL as libc::Ioctl, argument) }
    }

    /// # Safety
    /// `argument` is valid for all that the kernel reads and writes for the request `number`.
    unsafe fn ioctl(&self, number: libc::Ioctl, argument: *mut c_void) -> io::Result<()> {
        // The kernel copies all of it, so none of it stays uninitialised.
        // SAFETY: zeroes are a value of it.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name = self.name;
        request.ifr_ifru.ifru_data = argument.cast();
        // SAFETY: the kernel copies the `ifreq` in and out; the caller guarantees `argument`.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), number, &raw mut request) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Memory for an answer of any length, in pages that cost nothing until they are written to. Memory
/// of the allocator would have to be cleared first, 4 MiB each time, because the allocator reuses
/// freed blocks of this size.
struct Room(NonNull<u8>);

impl Room {
    const BYTES: usize = 64 + ROOM_ENTRIES * STRING_BYTES;

    /// Zeros that begin with `head`, which must be short.
    fn new(head: &[u32]) -> io::Result<Self> {
        assert!(size_of_val(head) <= 64, "the head of a request has its place");
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address selected by the kernel overlaps no other.
        let base =
            unsafe { mmap_anonymous(ptr::null_mut(), Self::BYTES, protection, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast::<u8>()).expect("the kernel maps nothing at address 0");
        // SAFETY: it was asserted that `head` fits, and this memory has no other user.
        unsafe { base.cast::<u32>().as_ptr().copy_from_nonoverlapping(head.as_ptr(), head.len()) };
        Ok(Self(base))
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: this many bytes were mapped, and they are not written to while they are borrowed.
        unsafe { slice::from_raw_parts(self.0.as_ptr(), Self::BYTES) }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and borrows of it have ended.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), Self::BYTES) };
    }
}

/// Two of the kernel's words in one, so that the following data are aligned to eight bytes.
fn pair(first: u32, second: u32) -> u64 {
    let [a, b, c, d] = first.to_ne_bytes();
    let [e, f, g, h] = second.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn first_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

// The length of the masks, a signed byte, stands at offset 15 of `struct ethtool_link_settings`:
// command and speed, then duplex, port, phy_address, autoneg, mdio_support, eth_tp_mdix,
// eth_tp_mdix_ctrl.
fn mask_words(words: &[u32]) -> i8 {
    words[3].to_ne_bytes()[3] as i8
}

fn set_mask_words(words: &mut [u32], count: u8) {
    words[3] = u32::from_ne_bytes([0, 0, 0, count]);
}

/// The text before the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
