//! Copies of remote indexes in a local directory: an index that has not changed is fetched once.
//!
//! The name of a copy is the SHA-256 of everything that a listing reports about the object, so the
//! copy of a replaced object has another name. An index contains its checksum: a damaged copy is
//! not used, and the index is fetched again.

use std::collections::HashSet;
use std::env;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use clap::Args;
use object_store::ObjectMeta;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use wirecap_units::size;

use crate::digest::hexadecimal;
use crate::failure::Failure;

/// Hexadecimal digits of a copy's name; other files in the directory are neither counted nor
/// removed.
const NAME_LETTERS: usize = 64;

#[derive(Debug, Clone, Args)]
pub(crate) struct CacheOptions {
    /// The directory for copies of indexes in object storage
    /// [default: $XDG_CACHE_HOME/wirecap/index]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// Maximum size of this directory; 0 disables it
    ///
    /// Units are powers of 1,024: 1G is 1 GiB.
    #[arg(long, value_name = "BYTES", value_parser = size::bytes, default_value = "1G")]
    cache_size: u64,
}

impl CacheOptions {
    /// Returns `None` if the maximum size is 0, if there is no home directory, or if the default
    /// directory cannot be used.
    pub(crate) fn open(&self) -> Result<Option<Cache>, Failure> {
        let Some(directory) =
            self.cache.clone().or_else(default_directory).filter(|_| self.cache_size > 0)
        else {
            return Ok(None);
        };
        match Cache::open(&directory, self.cache_size) {
            Err(error) if self.cache.is_some() => {
                let directory = directory.display();
                Err(Failure::Failed(
                    format!("cannot use the directory {directory}: {error}").into(),
                ))
            }
            opened => Ok(opened.ok()),
        }
    }
}

fn default_directory() -> Option<PathBuf> {
    let of_user =
        env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = of_user.or_else(|| Some(env::home_dir()?.join(".cache")))?;
    Some(caches.join("wirecap/index"))
}

/// The name of the copy of an object of a store.
pub(crate) fn name(store: &str, object: &ObjectMeta) -> String {
    let ObjectMeta { location, last_modified, size, e_tag, version } = object;
    let text = format!("{store:?} {location:?} {last_modified:?} {size} {e_tag:?} {version:?}");
    hexadecimal(Sha256::new().chain_update(text))
}

/// A directory of copies, whose size is bounded.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Total size of all copies.
    bytes: u64,
    /// Copies of earlier commands, with time and size; the last one was not used for the longest
    /// time.
    earlier: Vec<(SystemTime, String, u64)>,
    /// Copies that this process has used. They are not removed: otherwise a query over more indexes
    /// than fit would replace all copies, and the same query would find none the next time.
    used: HashSet<String>,
}

impl Cache {
    fn open(directory: &Path, bytes_max: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let mut state = State::default();

        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let (Ok(name), Ok(metadata)) = (entry.file_name().into_string(), entry.metadata())
            else {
                continue;
            };
            let is_copy = name.bytes().take_while(u8::is_ascii_hexdigit).count() >= NAME_LETTERS;

            if is_copy && metadata.is_file() {
                state.bytes += metadata.len();
                state.earlier.push((metadata.modified()?, name, metadata.len()));
            }
        }

        state.earlier.sort();
        state.earlier.reverse();

        let cache = Self { directory: directory.to_owned(), bytes_max, state: Mutex::new(state) };
        cache.has_room(0);

        Ok(cache)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copy with this name.
    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let mut file = File::open(self.directory.join(name)).ok()?;
        let mut copy = Vec::new();
        file.read_to_end(&mut copy).ok()?;
        // This time is the copy's place in the order of removal.
        let _earlier = file.set_modified(SystemTime::now());
        self.state().used.insert(name.to_owned());
        Some(copy)
    }

    /// Keeps a copy if there is room. One that cannot be written is fetched again the next time.
    pub(crate) fn put(&self, name: &str, copy: &[u8]) {
        if self.has_room(copy.len() as u64) {
            self.state().used.insert(name.to_owned());
            let _none = self.write(name, copy);
        }
    }

    fn write(&self, name: &str, copy: &[u8]) -> io::Result<()> {
        let mut file = NamedTempFile::with_prefix_in(name, &self.directory)?;
        file.write_all(copy)?;
        file.persist(self.directory.join(name))?;
        Ok(())
    }

    /// Reserves room for a copy of this size. If necessary, removes copies that this process does
    /// not use.
    fn has_room(&self, bytes: u64) -> bool {
        if bytes > self.bytes_max {
            return false;
        }

        let mut state = self.state();
        while state.bytes + bytes > self.bytes_max {
            let Some((_, name, size)) = state.earlier.pop() else { return false };
            if !state.used.contains(&name) {
                // Another process may have removed it.
                let _gone = fs::remove_file(self.directory.join(name));
                state.bytes -= size;
            }
        }

        state.bytes += bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// As the names of copies.
    fn name(letter: char) -> String {
        letter.to_string().repeat(NAME_LETTERS)
    }

    /// The letters of the copies that are there.
    fn copies(directory: &Path) -> String {
        let entries = fs::read_dir(directory).unwrap();
        let first = |entry: io::Result<fs::DirEntry>| {
            entry.unwrap().file_name().to_str().unwrap().chars().next()
        };
        let mut letters: Vec<char> = entries.filter_map(first).collect();
        letters.sort_unstable();
        letters.into_iter().collect()
    }

    #[test]
    fn the_copies_that_were_not_used_for_the_longest_time_are_removed_for_new_ones() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("a/b");
        let cache = Cache::open(&directory, 100).unwrap();

        for (age, letter) in ['a', 'b', 'c', 'd'].into_iter().enumerate() {
            cache.put(&name(letter), &[age as u8; 25]);
            let file = File::open(directory.join(name(letter))).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(age as u64)).unwrap();
        }

        cache.put(&name('e'), &[0; 1]);
        assert_eq!(copies(&directory), "abcd", "there is no room, and all are in use");

        fs::write(directory.join("z of the user"), "kept").unwrap();
        let cache = Cache::open(&directory, 100).unwrap();
        assert_eq!(cache.get(&name('a')), Some(vec![0; 25]));
        assert_eq!(cache.get(&name('e')), None);
        cache.put(&name('e'), &[9; 30]);
        assert_eq!(copies(&directory), "adez", "the oldest two are gone, but not the one in use");
        assert_eq!(cache.get(&name('e')), Some(vec![9; 30]));
        cache.put(&name('f'), &[0; 101]);
        assert_eq!(copies(&directory), "adez", "nothing is removed for a copy that is too large");

        // With less room: `a` and `e` were used last.
        Cache::open(&directory, 60).unwrap();
        assert_eq!(copies(&directory), "aez");
    }
}
