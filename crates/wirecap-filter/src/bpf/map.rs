//! Maps: memory shared by programs and user space.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::{BpfError, name_text, object_name};
use crate::sys::bpf::{self as sys, MapFd};
use crate::sys::objects::{self, MapRequest, ObjectKind};

/// The kinds of map that wirecap uses. All have a 32-bit key, which is an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum MapKind {
    /// Values of any size.
    Array = 2,
    /// Programs that can be tail-called.
    ProgArray = 3,
    /// Values of any size, one for each CPU.
    PercpuArray = 6,
    /// Interfaces to which frames can be redirected.
    Devmap = 14,
    /// AF_XDP sockets.
    Xskmap = 17,
}

/// A map. It lives as long as a process holds a descriptor of it or a program uses it.
#[derive(Debug)]
pub struct Map {
    name: String,
    fd: MapFd,
}

/// The kernel's information about a map.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MapInfo {
    /// The kernel's ID, unique until the map is gone.
    pub id: u32,
    /// The name that it was created with.
    pub name: String,
    /// `enum bpf_map_type`; compare with `MapKind::Xskmap as u32`.
    pub kind: u32,
    /// Length of a key, in bytes.
    pub key_bytes: u32,
    /// Length of a value, in bytes.
    pub value_bytes: u32,
    /// Maximum number of values.
    pub max_entries: u32,
}

impl Map {
    /// Creates a map for `max_entries` values of `value_bytes` bytes (4 for all kinds except the
    /// two arrays).
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the name is invalid, the process lacks the privilege, or the kernel refuses
    /// the sizes.
    pub fn create(
        kind: MapKind,
        name: &str,
        value_bytes: u32,
        max_entries: u32,
    ) -> Result<Self, BpfError> {
        Self::with_flags(kind, name, value_bytes, max_entries, 0)
    }

    /// Creates an array that can be mapped into the process by its descriptor, as memory shared
    /// with programs. The values are consecutive, each padded to a multiple of 8 bytes.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    pub fn create_mappable(
        name: &str,
        value_bytes: u32,
        max_entries: u32,
    ) -> Result<Self, BpfError> {
        Self::with_flags(MapKind::Array, name, value_bytes, max_entries, sys::MAP_MAPPABLE)
    }

    fn with_flags(
        kind: MapKind,
        name: &str,
        value_bytes: u32,
        max_entries: u32,
        flags: u32,
    ) -> Result<Self, BpfError> {
        let map_type = kind as u32;
        let key_bytes = size_of::<u32>() as u32;

        let request = MapRequest {
            map_type,
            name: object_name(name)?,
            key_bytes,
            value_bytes,
            max_entries,
            flags,
        };
        objects::create_map(&request)
            .and_then(MapFd::new)
            .map(|fd| Self { name: name.to_owned(), fd })
            .map_err(|source| BpfError::new("create map", name, source))
    }

    /// Opens the map with this ID.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if there is no such map, or CAP_SYS_ADMIN is missing.
    pub fn by_id(id: u32) -> Result<Self, BpfError> {
        let failed = |source| BpfError::discovering("map", id, source);
        let fd = objects::by_id(ObjectKind::Map, id).and_then(MapFd::new).map_err(failed)?;
        let name = name_text(&sys::map_info(fd.as_fd()).map_err(failed)?.name);
        Ok(Self { name, fd })
    }

    /// The kernel's information about the map.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the kernel does not provide it.
    pub fn info(&self) -> Result<MapInfo, BpfError> {
        let raw = sys::map_info(self.fd.as_fd())
            .map_err(|source| BpfError::new("describe map", &self.name, source))?;
        Ok(MapInfo {
            id: raw.id,
            name: name_text(&raw.name),
            kind: raw.map_type,
            key_bytes: raw.key_bytes,
            value_bytes: raw.value_bytes,
            max_entries: raw.max_entries,
        })
    }

    /// The name that it was created with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Stores `value` at index `key`; in a per-CPU array, for every CPU.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the value's length is not the map's, or the kernel refuses the update.
    pub fn update(&self, key: u32, value: &[u8]) -> Result<(), BpfError> {
        self.check_size("key", size_of::<u32>(), self.fd.key_bytes())?;
        self.check_size("value", value.len(), self.fd.value_bytes())?;
        self.fd
            .update(&key.to_ne_bytes(), value)
            .map_err(|source| BpfError::new("update map", &self.name, source))
    }

    /// Stores a socket (XSKMAP) or a program (program array) at index `key`.
    ///
    /// # Errors
    ///
    /// As for [`update`](Self::update).
    pub fn update_fd(&self, key: u32, value: impl AsFd) -> Result<(), BpfError> {
        self.update(key, &value.as_fd().as_raw_fd().to_ne_bytes())
    }

    /// Clears index `key` (XSKMAP, program array, devmap; values of arrays cannot be deleted).
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the index is empty or out of range.
    pub fn delete(&self, key: u32) -> Result<(), BpfError> {
        self.check_size("key", size_of::<u32>(), self.fd.key_bytes())?;
        self.fd
            .delete(&key.to_ne_bytes())
            .map_err(|source| BpfError::new("delete from map", &self.name, source))
    }

    /// The values at index `key`: one, or in a per-CPU array one per possible CPU.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the index is out of range, or user space cannot read this kind of map
    /// (XSKMAP).
    pub fn lookup(&self, key: u32) -> Result<Vec<Vec<u8>>, BpfError> {
        self.check_size("key", size_of::<u32>(), self.fd.key_bytes())?;
        self.fd
            .lookup(&key.to_ne_bytes())
            .map_err(|source| BpfError::new("read from map", &self.name, source))
    }

    /// The values at index `key`, as arrays of 64-bit counters, summed over all CPUs.
    ///
    /// # Errors
    ///
    /// As for [`lookup`](Self::lookup).
    pub fn lookup_sums(&self, key: u32) -> Result<Vec<u64>, BpfError> {
        let mut sums = vec![0_u64; self.fd.value_bytes() / size_of::<u64>()];
        for copy in self.lookup(key)? {
            for (sum, counter) in sums.iter_mut().zip(copy.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_ne_bytes(*counter));
            }
        }
        Ok(sums)
    }

    fn check_size(
        &self,
        part: &'static str,
        given_bytes: usize,
        map_bytes: usize,
    ) -> Result<(), BpfError> {
        if given_bytes == map_bytes {
            return Ok(());
        }
        Err(BpfError::WrongSize {
            map: self.name.clone(),
            part: part.into(),
            given_bytes,
            map_bytes,
        })
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
