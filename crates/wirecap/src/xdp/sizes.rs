//! How large cells and pools are.

use crate::device::Device;
use crate::error::OpenError;
use crate::pool::Geometry;
use crate::steer::Steering;
use crate::sys::xdp::HEADROOM_BYTES;

/// Bytes of an Ethernet header with two VLAN tags: what a frame is longer than the MTU.
const LINK_HEADER_BYTES: u32 = 14 + 2 * 4;
/// The cells to choose from, in bytes.
const CELL_BYTES: [u32; 2] = [2048, 4096];

/// The largest ring that the kernel makes.
const MAX_POOL_CELLS: u64 = 1 << 28;

/// The longest MTU whose frames fit one cell, in bytes.
pub(super) const ONE_CELL_MTU: u32 = CELL_BYTES[1] - HEADROOM_BYTES - LINK_HEADER_BYTES;

/// Bytes of the cells for the frames of `device`: the smallest that hold any of them, else the largest
/// there are, of which a long frame takes several.
///
/// # Errors
///
/// [`OpenError::BadParameter`] if a chunk of `chunk_cells` cells cannot hold the longest frame.
pub(crate) fn cell_bytes(device: &Device, chunk_cells: u32) -> Result<u32, OpenError> {
    let one_is_enough = |cell: &u32| cells_per_frame(device, *cell) == 1;
    let cell_bytes = CELL_BYTES.into_iter().find(one_is_enough).unwrap_or(CELL_BYTES[1]);
    let needed = cells_per_frame(device, cell_bytes);
    if needed > chunk_cells {
        return Err(OpenError::BadParameter {
            parameter: "M (cells per chunk)",
            value: chunk_cells.into(),
            allowed: format!("{needed} or more on {}, whose frames take up to {needed} cells", device.name),
        });
    }
    Ok(cell_bytes)
}

/// How many cells of this size the longest frame of `device` takes.
pub(super) fn cells_per_frame(device: &Device, cell_bytes: u32) -> u32 {
    (device.mtu + LINK_HEADER_BYTES).div_ceil(cell_bytes - HEADROOM_BYTES)
}

/// The pool of a queue with so many rings, each of which is to hold R x M packets.
///
/// A ring of the kernel's has room for a power of two. Where several share a pool, it has as many cells as
/// they have room: a ring that nobody reads fills up, and takes none of what its neighbours may need.
pub(super) fn pool_geometry(ring: Geometry, rings: u32) -> Geometry {
    if rings == 1 {
        return ring;
    }
    let cells = ring.cells().next_power_of_two() * rings;
    Geometry { chunks: cells.div_ceil(ring.chunk_cells), ..ring }
}

/// The largest geometry up to this one that makes shared pools of the sum of their rings' packets.
pub(crate) fn without_padding(ring: Geometry) -> Geometry {
    let fitting = (1 << ring.cells().ilog2()) / ring.chunk_cells;
    Geometry { chunks: fitting.max(1), ..ring }
}

/// Bytes of all pools of an interface.
///
/// # Errors
///
/// [`OpenError::BadParameter`] if a pool would have more cells than the kernel makes fill rings for.
pub(crate) fn pool_bytes(ring: Geometry, steering: &Steering) -> Result<u64, OpenError> {
    let most =
        u64::from(ring.cells().next_power_of_two()) * steering.rings_of_queues().max().map_or(0, u64::from);
    if most > MAX_POOL_CELLS {
        return Err(OpenError::BadParameter {
            parameter: "R x M x rings (cells per receive queue)",
            value: most,
            allowed: format!("up to {MAX_POOL_CELLS}"),
        });
    }
    Ok(steering.rings_of_queues().map(|rings| pool_geometry(ring, rings).pool_bytes() as u64).sum())
}
