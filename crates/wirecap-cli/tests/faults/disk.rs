//! A disk with configurable faults: a FUSE file system in memory with a single directory. It can
//! fill up, return errors, write only a part, be slow, stall, and lose data that were not synced.
//!
//! A file's contents survive a power failure after a sync of the file, and a name after a sync of
//! the directory: the minimum that POSIX guarantees.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use tempfile::TempDir;

/// The current faults of the disk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// The disk's capacity in bytes.
    pub(crate) room: Option<u64>,
    /// Writes fail with EIO after this number of bytes, possibly in the middle of a write.
    pub(crate) write_error_behind: Option<u64>,
    /// Reads fail with EIO at this offset of a file and after it.
    pub(crate) read_error_behind: Option<usize>,
    /// Syncs of files fail with EIO after this number of syncs.
    pub(crate) sync_error_behind: Option<u64>,
    /// Maximum number of bytes of one write.
    pub(crate) gulp: Option<usize>,
    /// Write speed.
    pub(crate) bytes_per_second: Option<u64>,
    /// Whether writes and syncs wait until this is false again.
    pub(crate) is_stalled: bool,
    /// Whether names cannot be created, changed or removed.
    pub(crate) is_read_only: bool,
}

#[derive(Debug, Default)]
struct Inode {
    data: Vec<u8>,
    /// The contents at the last sync.
    durable: Vec<u8>,
    /// The offset from which the two may differ.
    dirty_from: usize,
    mode: u16,
}

#[derive(Debug, Default)]
struct State {
    faults: Faults,
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<OsString, u64>,
    durable_names: BTreeMap<OsString, u64>,
    next_inode: u64,
    written: u64,
    syncs: u64,
    /// The maximum number of bytes and of files so far.
    most: (u64, usize),
}

#[derive(Debug, Default)]
struct Medium {
    state: Mutex<State>,
    changed: Condvar,
}

/// The disk, mounted until it is dropped.
pub(crate) struct Disk {
    medium: Arc<Medium>,
    directory: TempDir,
    session: Option<BackgroundSession>,
}

impl Disk {
    pub(crate) fn mount() -> Self {
        let medium = Arc::new(Medium::default());
        medium.state().next_inode = ROOT + 1;
        let directory = TempDir::new().unwrap();
        let mut config = Config::default();
        // Several threads, so that other requests do not wait for a stalled write.
        (config.n_threads, config.clone_fd) = (Some(4), true);
        let session = fuser::spawn_mount(Server(Arc::clone(&medium)), directory.path(), &config);
        let session = session
            .expect("a FUSE file system can be mounted: /dev/fuse is there, and this is root");
        Self { medium, directory, session: Some(session) }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Changes the faults.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.medium.state().faults);
        self.medium.changed.notify_all();
    }

    /// Number of bytes written.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.medium.state().written
    }

    /// The maximum total size and the maximum number of files so far.
    pub(crate) fn most(&self) -> (u64, usize) {
        self.medium.state().most
    }

    /// The files as they would be after a power failure now.
    pub(crate) fn after_power_loss(&self) -> TempDir {
        let state = self.medium.state();
        let found = TempDir::new().unwrap();
        for (name, inode) in &state.durable_names {
            fs::write(found.path().join(name), &state.inodes[inode].durable).unwrap();
        }
        found
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Requests that still wait would keep the file system busy.
        self.set(|faults| *faults = Faults::default());
        if let Some(session) = self.session.take() {
            let _busy_if_the_test_failed = session.umount_and_join();
        }
    }
}

impl Medium {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, as soon as the disk is not stalled.
    fn moving(&self) -> MutexGuard<'_, State> {
        let state = self.state();
        self.changed
            .wait_while(state, |state| state.faults.is_stalled)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn used_bytes(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[inode].data.len() as u64).sum()
    }

    /// Writes as much of `bytes` as the faults allow.
    fn write(&mut self, inode: u64, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let used = self.used_bytes();
        let faults = self.faults;
        let written = self.written;
        let mut taken = bytes.len().min(faults.gulp.unwrap_or(usize::MAX));
        for (left, error) in [
            (faults.room.map(|room| room.saturating_sub(used)), Errno::ENOSPC),
            (faults.write_error_behind.map(|behind| behind.saturating_sub(written)), Errno::EIO),
        ] {
            match left {
                Some(0) => return Err(error),
                Some(left) => taken = taken.min(left as usize),
                None => {}
            }
        }
        let inode = self.inodes.get_mut(&inode).ok_or(Errno::EBADF)?;
        let begin = offset as usize;
        let end = offset as usize + taken;
        if inode.data.len() < end {
            inode.data.resize(end, 0);
        }
        inode.data[begin..end].copy_from_slice(&bytes[..taken]);
        inode.dirty_from = inode.dirty_from.min(begin);
        self.written += taken as u64;
        self.note();
        Ok(taken)
    }

    /// Called after each operation that can add bytes or files.
    fn note(&mut self) {
        self.most = (self.most.0.max(self.used_bytes()), self.most.1.max(self.names.len()));
    }

    fn sync(&mut self, inode: u64) -> Result<(), Errno> {
        self.syncs += 1;
        if self.faults.sync_error_behind.is_some_and(|behind| self.syncs > behind) {
            return Err(Errno::EIO);
        }
        let inode = self.inodes.get_mut(&inode).ok_or(Errno::EBADF)?;
        inode.durable.truncate(inode.dirty_from);
        let lasting = inode.durable.len();
        inode.durable.extend_from_slice(&inode.data[lasting..]);
        inode.dirty_from = inode.data.len();
        Ok(())
    }

    fn of(&self, name: &OsStr) -> Result<u64, Errno> {
        self.names.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn changeable(&self) -> Result<(), Errno> {
        if self.faults.is_read_only { Err(Errno::EROFS) } else { Ok(()) }
    }

    fn attributes(&self, inode: u64) -> Result<FileAttr, Errno> {
        let (kind, perm, size) = match inode {
            ROOT => (FileType::Directory, 0o755, 0),
            _ => {
                let file = self.inodes.get(&inode).ok_or(Errno::ENOENT)?;
                (FileType::RegularFile, file.mode, file.data.len() as u64)
            }
        };
        Ok(FileAttr {
            ino: INodeNo(inode),
            size,
            blocks: size.div_ceil(512),
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH + Duration::from_secs(inode),
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }
}

const ROOT: u64 = 1;
/// The kernel caches nothing.
const TTL: Duration = Duration::ZERO;
/// Size of a disk without a limit in `statfs`.
const BLOCKS: u64 = 1 << 30;
const BLOCK_BYTES: u64 = 512;

struct Server(Arc<Medium>);

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.0.state();
        match state.of(name).and_then(|inode| state.attributes(inode)) {
            Ok(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.state().attributes(inode.0) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = self.0.state();
        if let Some(file) = state.inodes.get_mut(&inode.0) {
            file.mode = mode.map_or(file.mode, |mode| (mode & 0o7777) as u16);
            if let Some(size) = size {
                file.data.resize(size as usize, 0);
                file.dirty_from = file.dirty_from.min(size as usize);
            }
        }
        match state.attributes(inode.0) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let mut state = self.0.state();
        if let Err(error) = state.changeable() {
            return reply.error(error);
        }
        let inode = state.next_inode;
        state.next_inode += 1;
        state.inodes.insert(inode, Inode { mode: (mode & 0o7777) as u16, ..Inode::default() });
        state.names.insert(name.to_owned(), inode);
        state.note();
        let attributes = state.attributes(inode).expect("it was just made");
        reply.created(&TTL, &attributes, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = self.0.state();
        let Some(file) = state.inodes.get(&inode.0) else { return reply.error(Errno::ENOENT) };
        let readable = state.faults.read_error_behind.unwrap_or(usize::MAX);
        let begin = file.data.len().min(offset as usize);
        if begin >= readable {
            return reply.error(Errno::EIO);
        }
        let end = file.data.len().min(begin + size as usize).min(readable);
        reply.data(&file.data[begin..end]);
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let outcome = {
            let mut state = self.0.moving();
            state.write(inode.0, offset, bytes).map(|taken| (taken, state.faults.bytes_per_second))
        };
        match outcome {
            Ok((taken, rate)) => {
                if let Some(rate) = rate {
                    thread::sleep(Duration::from_secs_f64(taken as f64 / rate as f64));
                }
                reply.written(taken as u32);
            }
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(self.0.moving().sync(inode.0), reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let mut state = self.0.moving();
        state.durable_names = state.names.clone();
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let state = self.0.state();
        for (place, (name, inode)) in (1..).zip(&state.names).skip(offset as usize) {
            if reply.add(INodeNo(*inode), place, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut state = self.0.state();
        let removed =
            state.changeable().and_then(|()| state.names.remove(name).ok_or(Errno::ENOENT));
        answer(removed.map(drop), reply);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: INodeNo,
        new: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut state = self.0.state();
        let renamed =
            state.changeable().and_then(|()| state.names.remove(name).ok_or(Errno::ENOENT));
        let renamed = renamed.map(|inode| state.names.insert(new.to_owned(), inode));
        answer(renamed.map(drop), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let state = self.0.state();
        let room = state.faults.room.unwrap_or(BLOCKS * BLOCK_BYTES);
        let free = room.saturating_sub(state.used_bytes()) / BLOCK_BYTES;
        reply.statfs(
            room / BLOCK_BYTES,
            free,
            free,
            1 << 20,
            1 << 20,
            BLOCK_BYTES as u32,
            255,
            BLOCK_BYTES as u32,
        );
    }
}

fn answer(outcome: Result<(), Errno>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}
