//! System calls and kernel memory that no crate wraps.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::net::sockopt::{
    set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size,
    set_xdp_umem_reg, xdp_mmap_offsets,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XdpDesc,
    XdpDescOptions, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves the calling thread into a new network namespace.
pub(crate) fn unshare_network() -> io::Result<()> {
    // SAFETY: the call is unsafe only for flags that unshare the thread's descriptors; this flag
    // does not.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(io::Error::from)
}

/// `struct ifreq`, with the member of its union that the request uses.
#[repr(C)]
struct InterfaceRequest<T> {
    name: [c_char; libc::IFNAMSIZ],
    value: T,
    /// The rest of the union: the kernel copies all of it, in and out.
    rest: [u64; 3],
}
const _: () = assert!(size_of::<InterfaceRequest<u64>>() >= size_of::<libc::ifreq>());
const _: () = assert!(size_of::<InterfaceRequest<i16>>() >= size_of::<libc::ifreq>());

/// Makes a request about an interface in the socket's namespace and returns the answer.
///
/// # Safety
///
/// The request must read and write at most a `T` in the union of `struct ifreq`, of which any bytes
/// are a valid value; a pointer in it must be valid for what the request reads and writes there.
unsafe fn interface_request<T>(
    socket: BorrowedFd<'_>,
    name: &str,
    request: u64,
    value: T,
) -> io::Result<T> {
    let mut wanted = InterfaceRequest { name: [0; libc::IFNAMSIZ], value, rest: [0; 3] };
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::NotFound.into());
    }

    for (to, from) in wanted.name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }

    // SAFETY: the kernel copies one `struct ifreq`, which is no longer than `wanted` (asserted
    // above for the values in use); the caller guarantees the rest.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request as _, &raw mut wanted) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(wanted.value) }
}

pub(crate) fn mac_address(socket: &OwnedFd, name: &str) -> io::Result<[u8; 6]> {
    let empty = [0_u8; 16];
    // SAFETY: the request writes a `sockaddr` of 16 bytes.
    let address = unsafe { interface_request(socket.as_fd(), name, libc::SIOCGIFHWADDR, empty)? };
    let [_, _, mac @ .., _, _, _, _, _, _, _, _] = address;
    Ok(mac)
}

pub(crate) fn mtu_bytes(socket: &OwnedFd, name: &str) -> io::Result<u32> {
    // SAFETY: the request writes an `int`.
    Ok(unsafe { interface_request(socket.as_fd(), name, libc::SIOCGIFMTU, 0_u32)? })
}

/// Makes the kernel process a change of the interface's carrier at once instead of within a second.
pub(crate) fn settle_carrier(socket: &OwnedFd, name: &str) -> io::Result<()> {
    let mut link = [ETHTOOL_GLINK, 0];
    // SAFETY: the command writes a `struct ethtool_value`: two words.
    unsafe { ethtool(socket, name, link.as_mut_ptr()) }
}

/// Whether the interface is up, has a carrier, and its queues are ready.
pub(crate) fn is_running(socket: &OwnedFd, name: &str) -> io::Result<bool> {
    // SAFETY: the request writes a `short`.
    let flags = unsafe { interface_request(socket.as_fd(), name, libc::SIOCGIFFLAGS, 0_i16)? };
    let wanted = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    Ok(flags & wanted == wanted)
}

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GLINK: u32 = 0x0a;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_SS_STATS: u32 = 1;
/// Length of a statistic's name.
const ETH_GSTRING_BYTES: usize = 32;

/// Before Linux 6.14 the kernel filled in as many statistics as the driver had at that moment,
/// regardless of the requested number. On a veth their number grows with its queues; this is more
/// than thousands of queues add.
const STATISTICS_SPARE: usize = 64 * 1024;

/// `struct ethtool_channels`
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max: [u32; 4],
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_drvinfo`
#[repr(C)]
struct DriverInfo {
    command: u32,
    texts: [u8; 172],
    flag_count: u32,
    statistic_count: u32,
    test_count: u32,
    eeprom_bytes: u32,
    register_bytes: u32,
}
const _: () = assert!(size_of::<DriverInfo>() == 196);

/// An ethtool command.
///
/// # Safety
///
/// `command` must be the structure that the ethtool command in its first word reads and writes.
unsafe fn ethtool<T>(socket: &OwnedFd, name: &str, command: *mut T) -> io::Result<()> {
    // SAFETY: the request reads a pointer from the union; the caller guarantees its target.
    unsafe { interface_request(socket.as_fd(), name, libc::SIOCETHTOOL, command).map(drop) }
}

/// Number of receive queues in use; 1 if the driver does not report it.
pub(crate) fn queue_count(socket: &OwnedFd, name: &str) -> io::Result<u32> {
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    // SAFETY: the command writes a `struct ethtool_channels`.
    match unsafe { ethtool(socket, name, &raw mut channels) } {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
        asked => asked.map(|()| (channels.rx + channels.combined).max(1)),
    }
}

/// The driver's own counters by name, as `ethtool -S` shows them; none if it has none.
pub(crate) fn driver_statistics(socket: &OwnedFd, name: &str) -> io::Result<Vec<(String, u64)>> {
    let count = match statistic_count(socket, name) {
        // For example a tap's driver, which only has the kernel's counters.
        Ok(0) => return Ok(Vec::new()),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
        count => count?,
    };
    let names =
        statistic_table(socket, name, &[ETHTOOL_GSTRINGS, ETH_SS_STATS], count, ETH_GSTRING_BYTES)?;
    let values = statistic_table(socket, name, &[ETHTOOL_GSTATS], count, size_of::<u64>())?;
    let text = |name: &[u8]| {
        name.iter().take_while(|&&byte| byte != 0).map(|&byte| char::from(byte)).collect()
    };
    let values = values.as_chunks::<8>().0.iter().map(|&value| u64::from_ne_bytes(value));

    Ok(names.chunks(ETH_GSTRING_BYTES).map(text).zip(values).collect())
}

fn statistic_count(socket: &OwnedFd, name: &str) -> io::Result<usize> {
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        texts: [0; 172],
        flag_count: 0,
        statistic_count: 0,
        test_count: 0,
        eeprom_bytes: 0,
        register_bytes: 0,
    };
    // SAFETY: the command writes a `struct ethtool_drvinfo`.
    unsafe { ethtool(socket, name, &raw mut info)? };
    Ok(info.statistic_count as usize)
}

/// The entries that an ethtool command writes after its own words and the number of entries.
fn statistic_table(
    socket: &OwnedFd,
    name: &str,
    command: &[u32],
    count: usize,
    entry_bytes: usize,
) -> io::Result<Vec<u8>> {
    let header_words = command.len() + 1;
    let room_words = (count + STATISTICS_SPARE) * entry_bytes / size_of::<u32>();
    let mut table = [command, &[count as u32]].concat();
    table.resize(header_words + room_words, 0);

    // SAFETY: the commands write a header and the driver's entries, for which there is room even if
    // their number has increased since it was queried.
    unsafe { ethtool(socket, name, table.as_mut_ptr())? };
    if table[command.len()] as usize != count {
        return Err(io::Error::other("the driver's statistics changed while they were read"));
    }

    let entries = table[header_words..].iter().flat_map(|word| word.to_ne_bytes());
    Ok(entries.take(count * entry_bytes).collect())
}

/// Length of a cell: a packet buffer of [`XdpTxSocket`], in bytes.
pub(crate) const CELL_BYTES: usize = 4096;
/// Number of cells, and of entries in each ring. The memory stays below the usual limit on locked
/// memory.
const CELL_COUNT: u32 = 512;

/// An AF_XDP socket that only sends, with its cells.
#[derive(Debug)]
pub(crate) struct XdpTxSocket {
    tx: Ring<XdpDesc>,
    completion: Ring<u64>,
    cells: Mapping,
    /// Addresses of the cells that the kernel does not own.
    free: Vec<u64>,
    /// Descriptors that are written and not yet published to the kernel.
    unpublished: u32,
    // The order of closing does not matter: the mappings keep the kernel's side alive.
    socket: OwnedFd,
}

impl XdpTxSocket {
    /// Opens a socket on this queue. Frames of several cells need Linux 6.6.
    pub(crate) fn open(ifindex: u32, queue: u32, several_cells: bool) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let cells = Mapping::anonymous(CELL_COUNT as usize * CELL_BYTES)?;
        register(&socket, &cells)?;
        set_xdp_tx_ring_size(&socket, CELL_COUNT)?;
        set_xdp_umem_completion_ring_size(&socket, CELL_COUNT)?;
        set_xdp_umem_fill_ring_size(&socket, 2)?; // unused, but the kernel requires one
        let offsets = xdp_mmap_offsets(&socket)?;
        let tx = Ring::map(&socket, XDP_PGOFF_TX_RING, &offsets.tx, CELL_COUNT)?;
        let completion =
            Ring::map(&socket, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, CELL_COUNT)?;
        let mut flags = SocketAddrXdpFlags::XDP_COPY;
        flags.set(SocketAddrXdpFlags::XDP_USE_SG, several_cells);
        bind(&socket, &SocketAddrXdp::new(flags, ifindex, queue))?;

        let free = (0..u64::from(CELL_COUNT)).map(|cell| cell * CELL_BYTES as u64).collect();
        Ok(Self { tx, completion, cells, free, unpublished: 0, socket })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Number of pushed cells that are not free again.
    pub(crate) fn in_flight(&self) -> usize {
        CELL_COUNT as usize - self.free.len()
    }

    /// Number of pushed cells that are not published to the kernel.
    pub(crate) fn unpublished(&self) -> usize {
        self.unpublished as usize
    }

    /// Number of published cells that the kernel has not taken yet.
    pub(crate) fn untaken(&self) -> usize {
        self.tx.waiting() as usize
    }

    pub(crate) fn has_room_for(&self, frame_bytes: usize) -> bool {
        self.free.len() >= frame_bytes.div_ceil(CELL_BYTES)
    }

    /// Copies the frame into free cells and writes their descriptors.
    ///
    /// # Panics
    ///
    /// If there is no room for it.
    pub(crate) fn push(&mut self, frame: &[u8]) {
        let mut pieces = frame.chunks(CELL_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            // As many descriptors fit on the ring as there are cells, so one free cell is one free
            // slot.
            let addr = self.free.pop().expect("room for the frame");
            self.cells.write(addr as usize, piece);

            let options = if pieces.peek().is_some() {
                XdpDescOptions::XDP_PKT_CONTD
            } else {
                XdpDescOptions::empty()
            };
            self.tx.put(self.unpublished, XdpDesc { addr, len: piece.len() as u32, options });
            self.unpublished += 1;
        }
    }

    /// Publishes the pushed cells to the kernel.
    pub(crate) fn publish(&mut self) {
        self.tx.advance_producer(self.unpublished);
        self.unpublished = 0;
    }

    /// Takes back the cells that the kernel has completed.
    pub(crate) fn reclaim(&mut self) {
        let ready = self.completion.ready();
        self.free.extend((0..ready).map(|index| self.completion.get(index)));
        self.completion.advance_consumer(ready);
    }
}

/// Makes the mapping the socket's packet memory. The kernel pins its pages as long as it needs
/// them, so either of the two may end first.
fn register(socket: &OwnedFd, cells: &Mapping) -> io::Result<()> {
    let registration = XdpUmemReg {
        addr: cells.start.as_ptr() as u64,
        len: cells.bytes as u64,
        chunk_size: CELL_BYTES as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    Ok(set_xdp_umem_reg(socket, registration)?)
}

/// Memory shared with the kernel, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn anonymous(bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address selected by the kernel overlaps no other.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)? };
        Ok(Self { start: NonNull::new(start.cast()).expect("mmap gives no null"), bytes })
    }

    /// The values of a map, side by side: `bytes` of them.
    pub(crate) fn of_map(map: &impl AsFd, bytes: usize) -> io::Result<Self> {
        Self::of_file(map.as_fd(), 0, bytes)
    }

    fn of_ring(socket: &OwnedFd, page_offset: u64, bytes: usize) -> io::Result<Self> {
        Self::of_file(socket.as_fd(), page_offset, bytes)
    }

    fn of_file(file: BorrowedFd<'_>, page_offset: u64, bytes: usize) -> io::Result<Self> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: as above.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, file, page_offset)? };
        Ok(Self { start: NonNull::new(start.cast()).expect("mmap gives no null"), bytes })
    }

    /// Copies `piece` to `offset`.
    pub(crate) fn write(&mut self, offset: usize, piece: &[u8]) {
        assert!(
            offset <= self.bytes && piece.len() <= self.bytes - offset,
            "a piece lies in the mapping"
        );
        // SAFETY: the range is in the mapping (asserted), and `piece`, a Rust slice, is not: no
        // code makes slices of it. The kernel only reads it.
        unsafe {
            self.start.as_ptr().add(offset).copy_from_nonoverlapping(piece.as_ptr(), piece.len());
        }
    }

    /// The word at `offset`.
    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset <= self.bytes - 4, "an index lies in its ring");
        // SAFETY: the word is aligned and in the mapping (asserted), which is zeroed memory and
        // lives as long as `self`; the kernel, too, accesses it atomically.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are those of one `mmap`, and borrows of it have ended.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "unmapping a whole mapping");
    }
}

/// Types of ring entries: any bytes are a valid value.
///
/// # Safety
///
/// An implementation guarantees it.
unsafe trait Entry: Copy {}
// SAFETY: integers only; the bit set in it takes any bits.
unsafe impl Entry for XdpDesc {}
// SAFETY: an integer.
unsafe impl Entry for u64 {}

/// One ring of an AF_XDP socket, of which we are the only user on this side.
#[derive(Debug)]
struct Ring<T> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    entries: *mut T,
    mask: u32,
}

// SAFETY: the pointer is into the ring's own mapping, which may change threads.
unsafe impl<T> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    fn map(
        socket: &OwnedFd,
        page_offset: u64,
        offset: &XdpRingOffset,
        entry_count: u32,
    ) -> io::Result<Self> {
        assert!(entry_count.is_power_of_two(), "the kernel refuses other rings");
        let entries_start = offset.desc as usize;
        let bytes = entries_start + entry_count as usize * size_of::<T>();
        let mapping = Mapping::of_ring(socket, page_offset, bytes)?;

        assert!(
            entries_start.is_multiple_of(align_of::<T>()),
            "the kernel aligns a ring's entries"
        );

        // SAFETY: the entries begin inside the mapping, which is large enough for all of them.
        let entries = unsafe { mapping.start.as_ptr().add(entries_start).cast() };
        let producer = offset.producer as usize;
        let consumer = offset.consumer as usize;

        Ok(Self { mapping, producer, consumer, entries, mask: entry_count - 1 })
    }

    /// Writes the entry `ahead` of the producer index, which is published to the kernel later.
    fn put(&mut self, ahead: u32, entry: T) {
        let index = self.mapping.word(self.producer).load(Ordering::Relaxed).wrapping_add(ahead);
        // SAFETY: the masked index refers to a mapped entry. The kernel does not read it before
        // `advance_producer` has passed it. The socket's accounting of cells ensures that the
        // kernel has finished reading it in the last round; an error there would corrupt a frame,
        // not memory.
        unsafe { self.entries.add((index & self.mask) as usize).write(entry) }
    }

    fn advance_producer(&mut self, count: u32) {
        let producer = self.mapping.word(self.producer);
        // Release: the kernel sees the entries before it sees the index.
        producer.store(producer.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
    }

    /// Number of entries written that the kernel has not read.
    fn waiting(&self) -> u32 {
        let producer = self.mapping.word(self.producer).load(Ordering::Relaxed);
        producer.wrapping_sub(self.mapping.word(self.consumer).load(Ordering::Acquire))
    }

    /// Number of entries that the kernel has written.
    fn ready(&self) -> u32 {
        // Acquire pairs with the kernel's release: having seen the index, we see the entries.
        let producer = self.mapping.word(self.producer).load(Ordering::Acquire);
        producer.wrapping_sub(self.mapping.word(self.consumer).load(Ordering::Relaxed))
    }

    /// The entry `ahead` of the consumer index.
    fn get(&self, ahead: u32) -> T {
        let index = self.mapping.word(self.consumer).load(Ordering::Relaxed).wrapping_add(ahead);
        // SAFETY: the masked index refers to a mapped entry; any bytes are a valid `Entry`.
        unsafe { self.entries.add((index & self.mask) as usize).read() }
    }

    fn advance_consumer(&mut self, count: u32) {
        let consumer = self.mapping.word(self.consumer);
        // Release: our reads precede later writes of the kernel.
        consumer.store(consumer.load(Ordering::Relaxed).wrapping_add(count), Ordering::Release);
    }
}
