//! The sizes of cells and pools.

use crate::device::{Device, XdpSupport};
use crate::error::OpenError;
use crate::steer::Steering;
use crate::sys::xdp::HEADROOM_BYTES;
use crate::umem::pool::Geometry;

/// Bytes of an Ethernet header with two VLAN tags: the difference between a frame and the MTU.
const LINK_HEADER_BYTES: u32 = 14 + 2 * 4;
/// The possible sizes of cells in bytes.
const CELL_BYTES: [u32; 2] = [2048, 4096];

/// Drivers that program the size of the device's buffers (with zero-copy the cells) in steps of
/// this many bytes, rounded down. The rest of a longer frame is written to the next buffer and
/// delivered as a separate packet, because these drivers do not check the mark of a packet's last
/// buffer with zero-copy.
///
/// Linux 7.0, under `drivers/net/ethernet/intel`: `igb_setup_srrctl` and `igb_clean_rx_irq_zc`,
/// `IGC_SRRCTL_BSIZEPKT`, `ixgbe_configure_srrctl` (of the 82599). i40e and ice have steps of 128
/// bytes, which divide every cell's room.
const BUFFER_STEP_BYTES: [(&str, u32); 3] = [("igb", 1024), ("igc", 1024), ("ixgbe", 1024)];

/// The largest ring that the kernel creates.
const MAX_POOL_CELLS: u64 = 1 << 28;

/// The longest MTU whose frames fit one cell, in bytes.
pub(super) const ONE_CELL_MTU: u32 = CELL_BYTES[1] - HEADROOM_BYTES - LINK_HEADER_BYTES;

/// The size of the cells for frames of `device`: the smallest that holds any frame with zero-copy,
/// if that is allowed; otherwise the smallest that holds any frame with a copy; otherwise the
/// largest size, and long frames take several cells.
///
/// # Errors
///
/// [`OpenError::BadParameter`] if a chunk of `chunk_cells` cells cannot hold the longest frame.
pub(crate) fn cell_bytes(device: &Device, chunk_cells: u32) -> Result<u32, OpenError> {
    let may_be_zero_copy = device.xdp.as_ref().is_none_or(XdpSupport::is_zero_copy);
    let CellFit { cell_bytes, cells_per_frame: needed, .. } =
        CellFit::new(device.driver.as_deref(), device.mtu, may_be_zero_copy);

    if needed > chunk_cells {
        return Err(OpenError::BadParameter {
            parameter: "M (cells per chunk)",
            value: chunk_cells.into(),
            allowed: format!(
                "{needed} or more on {}, whose frames take up to {needed} cells",
                device.name
            ),
        });
    }
    Ok(cell_bytes)
}

/// Bytes of the longest frame of `device`, with two VLAN tags.
pub(crate) fn longest_frame(device: &Device) -> usize {
    (device.mtu + LINK_HEADER_BYTES) as usize
}

/// Number of cells of this size that the longest frame of `device` takes.
pub(super) fn cells_per_frame(device: &Device, cell_bytes: u32) -> u32 {
    cells_of_frame(device.mtu, cell_bytes)
}

fn cells_of_frame(mtu: u32, cell_bytes: u32) -> u32 {
    (mtu + LINK_HEADER_BYTES).div_ceil(cell_bytes - HEADROOM_BYTES)
}

/// Number of the device's buffers that the longest frame of `device` takes, if cells of this size
/// are the buffers.
pub(super) fn buffers_per_frame(device: &Device, cell_bytes: u32) -> u32 {
    buffers_of_frame(device.driver.as_deref(), device.mtu, cell_bytes)
}

fn buffers_of_frame(driver: Option<&str>, mtu: u32, cell_bytes: u32) -> u32 {
    let room = cell_bytes - HEADROOM_BYTES;
    (mtu + LINK_HEADER_BYTES).div_ceil(room - room % buffer_step_bytes(driver))
}

fn buffer_step_bytes(driver: Option<&str>) -> u32 {
    let known = |(name, _): &&(&str, u32)| driver == Some(*name);
    BUFFER_STEP_BYTES.iter().find(known).map_or(1, |(_, step_bytes)| *step_bytes)
}

/// The cell size that the engine `xdp` selects for an interface, and how its longest frame fits the
/// cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CellFit {
    /// Bytes of a cell.
    pub cell_bytes: u32,
    /// Number of cells that the longest frame takes.
    pub cells_per_frame: u32,
    /// Number of the device's buffers that it takes with zero-copy, given the steps in which the
    /// driver programs their size. More than one excludes zero-copy.
    pub buffers_per_frame: u32,
    /// These steps in bytes; 1 if none are known.
    pub buffer_step_bytes: u32,
    /// The largest MTU whose frames fit one of the device's buffers in the largest cell.
    pub one_buffer_mtu: u32,
}

impl CellFit {
    /// For frames of this MTU with this driver, if zero-copy is allowed.
    pub fn new(driver: Option<&str>, mtu: u32, may_be_zero_copy: bool) -> Self {
        let one_is_enough = |cell: &u32| cells_of_frame(mtu, *cell) == 1;
        let fits_a_buffer = |cell: &u32| buffers_of_frame(driver, mtu, *cell) == 1;
        let cell_bytes =
            CELL_BYTES.into_iter().find(|cell| may_be_zero_copy && fits_a_buffer(cell));
        let cell_bytes = cell_bytes.or_else(|| CELL_BYTES.into_iter().find(one_is_enough));
        let cell_bytes = cell_bytes.unwrap_or(CELL_BYTES[1]);
        let step = buffer_step_bytes(driver);
        let room = CELL_BYTES[1] - HEADROOM_BYTES;

        Self {
            cell_bytes,
            cells_per_frame: cells_of_frame(mtu, cell_bytes),
            buffers_per_frame: buffers_of_frame(driver, mtu, cell_bytes),
            buffer_step_bytes: step,
            one_buffer_mtu: room - room % step - LINK_HEADER_BYTES,
        }
    }
}

/// Number of chunks in the pool of a queue with this many rings, each of which holds R x M packets.
///
/// The size of a kernel ring is a power of two. If several rings share a pool, the pool has a cell
/// for each of their slots, and one more chunk for each ring. So a ring that is not read fills up
/// while its worker holds a chunk, and takes no cells that the other rings need.
fn chunks_of_pool(ring: Geometry, rings: u32) -> u64 {
    if rings == 1 {
        return ring.chunks.into();
    }
    let room = u64::from(ring.cells().next_power_of_two()) * u64::from(rings);
    room.div_ceil(ring.chunk_cells.into()) + u64::from(rings)
}

/// The pool of a queue with this many rings; [`check_pools`] checks whether it is possible.
pub(super) fn pool_geometry(ring: Geometry, rings: u32) -> Geometry {
    Geometry { chunks: chunks_of_pool(ring, rings) as u32, ..ring }
}

/// Bytes of all pools of an interface.
pub(crate) fn pool_bytes(ring: Geometry, steering: &Steering) -> u64 {
    let chunks: u64 = steering.rings_of_queues().map(|rings| chunks_of_pool(ring, rings)).sum();
    chunks * u64::from(ring.chunk_cells) * u64::from(ring.cell_bytes)
}

/// Rejects a pool with more cells than the largest fill ring.
///
/// # Errors
///
/// [`OpenError::BadParameter`] with the number of its cells.
pub(crate) fn check_pools(ring: Geometry, steering: &Steering) -> Result<(), OpenError> {
    let chunks = steering.rings_of_queues().map(|rings| chunks_of_pool(ring, rings)).max();
    let cells = chunks.unwrap_or(0) * u64::from(ring.chunk_cells);
    if cells <= MAX_POOL_CELLS {
        return Ok(());
    }
    Err(OpenError::BadParameter {
        parameter: "R x M x rings (cells per receive queue)",
        value: cells,
        allowed: format!("up to {MAX_POOL_CELLS}"),
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ring(chunk_cells: u32, chunks: u32) -> Geometry {
        Geometry { chunk_cells, chunks, cell_bytes: 2048 }
    }

    #[test]
    #[cfg(not(miri))]
    fn a_buffer_of_the_device_holds_the_longest_frame() {
        use crate::device::{RxMetadata, XdpFeatures, XskFeatures};
        let mut device = Device::find("lo").unwrap();

        let mut cell_bytes = |driver: &str, mtu, zero_copy| {
            let features = XdpFeatures::BASIC | XdpFeatures::REDIRECT;
            let zero_copy =
                if zero_copy { XdpFeatures::XSK_ZEROCOPY } else { XdpFeatures::empty() };
            device.xdp = Some(XdpSupport {
                features: features | zero_copy,
                zero_copy_segments_max: None,
                rx_metadata: RxMetadata::empty(),
                xsk: XskFeatures::empty(),
            });

            (device.driver, device.mtu) = (Some(driver.to_owned()), mtu);
            super::cell_bytes(&device, 256).unwrap()
        };

        // The device can use 1,792 bytes of a cell of 2,048, of which igb programs 1,024.
        assert_eq!(cell_bytes("igb", 1002, true), 2048);
        assert_eq!(cell_bytes("igb", 1003, true), 4096);
        assert_eq!(cell_bytes("igb", 1500, true), 4096);
        assert_eq!(
            cell_bytes("igb", 1500, false),
            2048,
            "with a copy the cell is no buffer of the device"
        );
        assert_eq!(cell_bytes("i40e", 1500, true), 2048);
        assert_eq!(cell_bytes("i40e", 1771, true), 4096);
        assert_eq!(cell_bytes("igb", 3050, true), 4096);
        device.mtu = 3051;
        assert_eq!((buffers_per_frame(&device, 4096), cells_per_frame(&device, 4096)), (2, 1));
        assert_eq!(CellFit::new(Some("igb"), 1500, true).one_buffer_mtu, 3050);
    }

    #[test]
    fn a_shared_pool_has_room_for_full_rings_and_a_chunk_of_each_in_use() {
        for (chunk_cells, chunks) in [(256, 512), (60, 10), (64, 1), (1, 1), (65_536, 3)] {
            let ring = ring(chunk_cells, chunks);
            assert_eq!(pool_geometry(ring, 1), ring, "a ring by itself has what it was given");
            for rings in 2..9 {
                let full = (ring.cells().next_power_of_two() + chunk_cells) * rings;
                let cells = pool_geometry(ring, rings).cells();
                assert!((full..full + chunk_cells).contains(&cells), "{cells} for {full}");
            }
        }
    }

    #[test]
    fn a_pool_larger_than_a_fill_ring_is_rejected() {
        let dealt = |rings| Steering::new(vec![0], rings);
        assert!(check_pools(ring(256, 512), &dealt(1000)).is_ok());
        let error = check_pools(ring(65_536, 1024), &dealt(4)).unwrap_err().to_string();
        assert!(error.contains("R x M x rings"), "{error}");
        assert!(check_pools(ring(65_536, 1024), &dealt(1)).is_ok());
    }
}
