//! The destination of uploads: each file is sent, read back, and compared by its SHA-256.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use object_store::buffered::BufWriter;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};
use rustix::fs::{Advice, fadvise};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::task::spawn_blocking;
use wirecap_units::error::causes;

use crate::digest::hexadecimal;
use crate::failure::Failure;
use crate::location::Archive;
use crate::pace::{Pace, Stop, Stopped};

/// Bytes of a part of an upload, unless a file would have too many parts; S3 requires at least 5
/// MiB.
const PART_BYTES: u64 = 8 << 20;
/// Maximum number of parts; S3 and Google Cloud Storage allow 10,000.
const PARTS_MAX: u64 = 9000;
/// Number of parts sent at the same time. With the part that is being filled, they bound the
/// memory.
const PARTS_AT_ONCE: usize = 2;
/// Bytes that are read from the disk at a time.
const READ_BYTES: u64 = 1 << 20;
/// Bytes read back per request.
const READ_BACK_BYTES: u64 = 8 << 20;

/// The reason why a file was not uploaded.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The local file cannot be read; others can be uploaded.
    File(String),
    /// The local file was removed.
    Vanished,
    /// The archive cannot be written or read.
    Storage(String),
    Stopped,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(problem) | Self::Storage(problem) => f.write_str(problem),
            Self::Vanished => f.write_str("it was removed before it was uploaded"),
            Self::Stopped => f.write_str("interrupted"),
        }
    }
}

impl From<Stopped> for Trouble {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Vanished,
            _ => Self::File(format!("cannot read the file or its index: {error}")),
        }
    }
}

impl From<object_store::Error> for Trouble {
    fn from(error: object_store::Error) -> Self {
        Self::Storage(causes(&error))
    }
}

/// What a file contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) bytes: u64,
    /// The file's SHA-256 in hexadecimal digits.
    pub(crate) digest: String,
}

impl Content {
    /// Reads a file.
    pub(crate) async fn of(path: &Path, stop: &Stop) -> Result<Self, Trouble> {
        let path = path.to_owned();
        let stop = stop.clone();

        in_thread(move || {
            let file = File::open(path)?;
            let mut hasher = Sha256::new();
            let mut bytes = 0;

            loop {
                if stop.is_stopped() {
                    return Err(Trouble::Stopped);
                }

                let chunk = read_at(&file, bytes)?;
                if chunk.is_empty() {
                    return Ok(Self { bytes, digest: hexadecimal(hasher) });
                }

                hasher.update(&chunk);
                bytes += chunk.len() as u64;
            }
        })
        .await
    }
}

/// The next bytes of a file; none at its end. They are dropped from the page cache, which the files
/// of a capture need more.
fn read_at(file: &File, offset: u64) -> io::Result<Vec<u8>> {
    let mut chunk = vec![0; READ_BYTES as usize];
    let mut filled = 0;
    while filled < chunk.len() {
        match file.read_at(&mut chunk[filled..], offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    chunk.truncate(filled);
    forget(file, offset, filled as u64);
    Ok(chunk)
}

/// Drops a range of a file from the page cache; it is only advice.
fn forget(file: &File, offset: u64, bytes: u64) {
    if let Some(bytes) = std::num::NonZeroU64::new(bytes) {
        let _advice = fadvise(file, offset, Some(bytes), Advice::DontNeed);
    }
}

/// Runs blocking work in a separate thread and waits for it.
pub(crate) async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    match spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Trouble::Stopped),
        },
    }
}

/// Bytes of a part of a file of this size, which has [`PARTS_MAX`] parts at most.
fn part_bytes(bytes: u64) -> u64 {
    PART_BYTES.max(bytes.div_ceil(PARTS_MAX).next_multiple_of(1 << 20))
}

/// An archive to which files are uploaded.
pub(crate) struct Target {
    store: Arc<dyn ObjectStore>,
    prefix: Key,
    /// The directory of the archive, if it is not in object storage.
    directory: Option<PathBuf>,
    pace: Pace,
    stop: Stop,
}

impl Target {
    pub(crate) fn new(
        archive: &Archive,
        per_second: Option<u64>,
        stop: Stop,
    ) -> Result<Self, Failure> {
        let (store, prefix) = archive.store()?;
        let directory = archive.directory().map(Path::to_owned);
        Ok(Self { store, prefix, directory, pace: Pace::new(per_second, stop.clone()), stop })
    }

    /// The object with this name in the archive. Names consist of letters that every store keeps as
    /// they are.
    fn key(&self, name: &str) -> Key {
        self.prefix.parts().chain(Key::from(name).parts()).collect()
    }

    /// Checks that the archive can be read, so wrong credentials and missing buckets are reported
    /// before any file is read.
    pub(crate) async fn check(&self, folder: &str) -> Result<(), Trouble> {
        self.store.list(Some(&self.key(folder))).next().await.transpose()?;
        Ok(())
    }

    /// The size of an object, if it exists.
    pub(crate) async fn bytes(&self, name: &str) -> Result<Option<u64>, Trouble> {
        match self.store.head(&self.key(name)).await {
            Ok(object) => Ok(Some(object.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a file and reads it back. `progress` is called with the number of bytes sent.
    pub(crate) async fn put(
        &self,
        name: &str,
        path: &Path,
        content: &Content,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Trouble> {
        self.remove_leftovers(name);
        let part = part_bytes(content.bytes) as usize;
        let mut writer = BufWriter::with_capacity(Arc::clone(&self.store), self.key(name), part)
            .with_max_concurrency(PARTS_AT_ONCE);

        if let Err(trouble) = self.send(&mut writer, path, content, progress).await {
            // The parts that arrived are discarded. A store that does not answer keeps them.
            let _gone = writer.abort().await;
            return Err(trouble);
        }

        writer.shutdown().await.map_err(|error| Trouble::Storage(causes(&error)))?;

        match self.is_there(name, content).await? {
            true => Ok(()),
            false => Err(Trouble::Storage(format!(
                "the archive does not return {name} as it was sent; the file here is unchanged"
            ))),
        }
    }

    async fn send(
        &self,
        writer: &mut BufWriter,
        path: &Path,
        content: &Content,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Trouble> {
        let file = Arc::new(File::open(path)?);
        let mut sent = 0;

        loop {
            if self.stop.is_stopped() {
                return Err(Trouble::Stopped);
            }

            let of_thread = Arc::clone(&file);
            let chunk = in_thread(move || Ok(read_at(&of_thread, sent)?)).await?;
            if chunk.is_empty() {
                break;
            }

            sent += chunk.len() as u64;
            self.pace.pass(chunk.len() as u64).await?;
            writer.put(Bytes::from(chunk)).await?;
            progress(sent);
        }

        match sent == content.bytes {
            true => Ok(()),
            false => Err(Trouble::File("it was changed during the upload".to_owned())),
        }
    }

    /// Whether an object has this content; reads all of it.
    pub(crate) async fn is_there(&self, name: &str, content: &Content) -> Result<bool, Trouble> {
        if self.bytes(name).await? != Some(content.bytes) {
            return Ok(false);
        }

        self.persist(name).await?;
        let key = self.key(name);
        let mut hasher = Sha256::new();
        let mut offset = 0;

        while offset < content.bytes {
            let end = content.bytes.min(offset + READ_BACK_BYTES);
            self.pace.pass(end - offset).await?;
            hasher.update(self.store.get_range(&key, offset..end).await?);
            offset = end;
        }

        Ok(hexadecimal(hasher) == content.digest)
    }

    /// In a directory, writes a file and its parent directories to the disk, from which the file is
    /// then read back. An object store has stored the object before it answers.
    async fn persist(&self, name: &str) -> Result<(), Trouble> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        let path = directory.join(name);
        let sync = |path: &Path| {
            let synced = File::open(path).and_then(|file| file.sync_all().map(|()| file));
            synced.map_err(|error| {
                Trouble::Storage(format!("cannot sync {} in the archive: {error}", path.display()))
            })
        };

        in_thread(move || {
            let file = sync(&path)?;
            forget(&file, 0, file.metadata().map_or(0, |metadata| metadata.len()));
            for folder in
                path.ancestors().skip(1).take_while(|folder| folder.starts_with(&directory))
            {
                sync(folder)?;
            }
            Ok(())
        })
        .await
    }

    /// In a directory, removes the temporary files of a killed upload of this file: the store
    /// renames a file when it is complete.
    fn remove_leftovers(&self, name: &str) {
        let Some(directory) = &self.directory else { return };
        let path = |number: u32| directory.join(format!("{name}#{number}"));
        let _none = (1..).map(path).take_while(|path| fs::remove_file(path).is_ok()).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_all_sizes_have_parts_that_stores_accept() {
        assert_eq!(part_bytes(0), 8 << 20);
        assert_eq!(part_bytes(1 << 30), 8 << 20);
        for bytes in [100 << 30, 1 << 40, 5 << 40] {
            let part = part_bytes(bytes);
            assert!(part >= 5 << 20 && part.is_multiple_of(1 << 20), "{bytes}");
            assert!(bytes.div_ceil(part) <= 10_000, "{bytes}");
        }
    }

    #[tokio::test]
    async fn the_digest_is_that_of_sha256sum() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "abc").unwrap();
        let (_sender, stop) = Stop::new();
        let content = Content::of(&path, &stop).await.unwrap();
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(content, Content { bytes: 3, digest: digest.to_owned() });
    }
}
