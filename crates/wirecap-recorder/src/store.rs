//! Decides which files to remove so that no budget is exceeded at any moment. No I/O: sizes are
//! arguments, and the caller removes files.
//!
//! Files that match the pattern are removed, those of earlier runs included, oldest first, until
//! the next write fits. If nothing is left to remove, the recording ends with an error. A recording
//! whose budget of free bytes could not be kept even without all of its complete files does not
//! begin, and removes none. Without a limit, a file's limit is a tenth of the budget of bytes, but
//! at least 1 MiB; a limit above half of that budget is rejected.

use std::collections::VecDeque;

/// Budgets. The budgets for files and bytes include the file that is being written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreRules {
    /// Maximum number of files.
    pub files: Option<u64>,
    /// Maximum bytes of all files.
    pub bytes: Option<u64>,
    /// Minimum free bytes of the file system.
    pub free_bytes: Option<u64>,
}

/// What the caller must do before it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room<N> {
    /// Nothing: there is room.
    Enough,
    /// Remove this file, the oldest, and call again. The store no longer contains it.
    Remove(N),
    /// There is no room, and no file to remove.
    None,
}

/// The complete files, if a rule may remove them, and the size of the open file. `N` names a file.
#[derive(Debug, Clone)]
pub struct Store<N> {
    rules: StoreRules,
    /// Names and sizes, oldest first.
    complete: VecDeque<(N, u64)>,
    complete_bytes: u64,
    open_bytes: u64,
}

impl<N> Store<N> {
    /// Begins with the files of earlier runs and their sizes, oldest first.
    pub fn new(rules: StoreRules, earlier: impl IntoIterator<Item = (N, u64)>) -> Self {
        let is_kept = rules != StoreRules::default();
        let complete: VecDeque<(N, u64)> = earlier.into_iter().filter(|_| is_kept).collect();
        let complete_bytes = complete.iter().map(|(_, bytes)| bytes).sum();
        Self { rules, complete, complete_bytes, open_bytes: 0 }
    }

    /// The names of the complete files, oldest first.
    pub fn names(&self) -> impl Iterator<Item = &N> {
        self.complete.iter().map(|(name, _)| name)
    }

    /// Total size of all files; if no rule may remove files, the size of the open file.
    pub fn bytes(&self) -> u64 {
        self.complete_bytes + self.open_bytes
    }

    /// Called before a file is created.
    pub fn room_for_file(&mut self) -> Room<N> {
        #[cfg(sabotage)]
        if crate::sabotage::is("budget-of-files-ignored") {
            return Room::Enough;
        }
        match self.rules.files {
            Some(files) if self.complete.len() as u64 + 1 > files => self.remove_oldest(),
            _ => Room::Enough,
        }
    }

    /// Called before this many bytes are written to the open file, on a file system with
    /// `free_bytes` free.
    pub fn room_for(&mut self, bytes: u64, free_bytes: u64) -> Room<N> {
        #[cfg(sabotage)]
        if crate::sabotage::is("budget-without-the-open-file") {
            self.open_bytes = 0;
        }
        if self.has_room_for(bytes, free_bytes) { Room::Enough } else { self.remove_oldest() }
    }

    /// Whether [`room_for`](Self::room_for) would remove no file.
    pub fn has_room_for(&self, bytes: u64, free_bytes: u64) -> bool {
        #[cfg(sabotage)]
        let free_bytes =
            if crate::sabotage::is("minimum-free-space-ignored") { u64::MAX } else { free_bytes };
        self.rules.bytes.is_none_or(|bytes_max| self.bytes() + bytes <= bytes_max)
            && self.rules.free_bytes.is_none_or(|floor| free_bytes >= floor.saturating_add(bytes))
    }

    /// Whether [`room_for`](Self::room_for) needs the number of free bytes.
    pub fn asks_for_free_bytes(&self) -> bool {
        self.rules.free_bytes.is_some()
    }

    /// Sets the size of the open file after a write or a truncation.
    pub fn set_open_bytes(&mut self, bytes: u64) {
        self.open_bytes = bytes;
    }

    /// Marks the open file as complete under this name.
    pub fn complete(&mut self, name: N) {
        if self.rules == StoreRules::default() {
            // No file is ever removed, and the list of names would grow without bound.
            self.open_bytes = 0;
            return;
        }
        self.complete_bytes += self.open_bytes;
        self.complete.push_back((name, std::mem::take(&mut self.open_bytes)));
    }

    /// Removes a file from the store that was deleted or replaced for another reason than a budget.
    pub fn forget(&mut self, is_it: impl Fn(&N) -> bool) {
        self.complete.retain(|(name, _)| !is_it(name));
        #[cfg(sabotage)]
        if crate::sabotage::is("budget-keeps-forgotten-bytes") {
            return;
        }
        self.complete_bytes = self.complete.iter().map(|(_, bytes)| bytes).sum();
    }

    fn remove_oldest(&mut self) -> Room<N> {
        let Some((name, bytes)) = self.complete.pop_front() else { return Room::None };
        self.complete_bytes -= bytes;
        Room::Remove(name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// On a simulated disk, all budgets hold after every step, and the remaining files are the
        /// newest.
        #[test]
        fn budgets_hold_at_every_moment(
            files in proptest::option::of(1..6_u64),
            bytes in proptest::option::of(2000..5000_u64),
            free_bytes in proptest::option::of(34_000..38_000_u64),
            earlier in vec(0..1000_u64, 0..4),
            writes in vec(vec(1..100_u64, 0..10), 1..30),
        ) {
            const DISK: u64 = 40_000;
            let rules = StoreRules { files, bytes, free_bytes };
            let mut disk: Vec<(usize, u64)> = earlier.iter().copied().enumerate().collect();
            let mut store = Store::new(rules, disk.clone());
            let first = disk.len();
            let used = |disk: &[(usize, u64)]| disk.iter().map(|(_, bytes)| bytes).sum::<u64>();

            for (next, file) in (first..).zip(writes) {
                while let Room::Remove(name) = store.room_for_file() {
                    prop_assert_eq!(disk.remove(0).0, name);
                }

                disk.push((next, 0));

                for write in file {
                    loop {
                        match store.room_for(write, DISK - used(&disk)) {
                            Room::Enough => break,
                            Room::Remove(name) => prop_assert_eq!(disk.remove(0).0, name),
                            Room::None => prop_assert!(false, "the open file alone is small"),
                        }
                    }

                    let open = disk.last_mut().unwrap();
                    open.1 += write;
                    store.set_open_bytes(open.1);
                    prop_assert!(rules == StoreRules::default() || store.bytes() == used(&disk));
                    prop_assert!(files.is_none_or(|files| disk.len() as u64 <= files));
                    prop_assert!(bytes.is_none_or(|bytes| used(&disk) <= bytes));
                    prop_assert!(free_bytes.is_none_or(|floor| DISK - used(&disk) >= floor));
                }
                store.complete(next);
            }
        }
    }

    #[test]
    fn a_forgotten_file_no_longer_counts() {
        let rules = StoreRules { files: Some(3), bytes: Some(100), ..StoreRules::default() };
        let mut store = Store::new(rules, [(1, 40), (2, 30)]);
        store.forget(|name| *name == 1);
        assert_eq!(store.bytes(), 30, "the bytes of a forgotten file");
        assert_eq!((store.room_for_file(), store.room_for(70, 0)), (Room::Enough, Room::Enough));
        assert_eq!(store.room_for(71, 0), Room::Remove(2));
        assert_eq!(store.bytes(), 0, "the bytes of a removed file");
    }

    #[test]
    fn a_file_that_alone_exceeds_the_budget_has_no_room() {
        let mut store: Store<u32> =
            Store::new(StoreRules { bytes: Some(100), ..StoreRules::default() }, []);
        assert_eq!(store.room_for(100, 0), Room::Enough);
        assert_eq!(store.room_for(101, 0), Room::None);
    }
}
