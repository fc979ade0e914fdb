//! The location of an archive: a directory, or a prefix in object storage.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{
    GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, ObjectStoreScheme,
    parse_url_opts,
};
use tokio::runtime::Handle;
use url::Url;
use wirecap_index::{Disk, Source, Storage, Table, Without, index_path, segments};

use crate::cache::{self, Cache, CacheOptions};
use crate::failure::Failure;
use crate::segment::Segment;

/// Timeout of a request and its answer, which may be several MiB over a slow line.
const REQUEST_TIMEOUT: &str = "5 minutes";

/// An archive.
#[derive(Clone)]
pub(crate) struct Archive {
    location: String,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Directory(PathBuf),
    Objects(Arc<dyn ObjectStore>, Key),
}

impl fmt::Debug for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Archive").field(&self.location).finish()
    }
}

impl Archive {
    /// The archive at a path or a URL. The settings of stores come from the environment variables
    /// of their providers, such as `AWS_ACCESS_KEY_ID`.
    pub(crate) fn open(location: &str) -> Result<Self, Failure> {
        let place = match location.contains("://") {
            false => Place::Directory(location.into()),
            true => {
                let wrong = |error: &dyn fmt::Display| {
                    Failure::Usage(format!("invalid archive {location}: {error}"))
                };
                let url = Url::parse(location).map_err(|error| wrong(&error))?;
                match url.scheme() {
                    "file" => Place::Directory(
                        url.to_file_path()
                            .map_err(|()| wrong(&"expected file:///absolute/path"))?,
                    ),
                    _ => {
                        let variables = std::env::vars()
                            .map(|(name, value)| (name.to_ascii_lowercase(), value));
                        let timeout = ("timeout".to_owned(), REQUEST_TIMEOUT.to_owned());
                        let settings = [timeout].into_iter().chain(variables);
                        let (store, prefix) =
                            parse_url_opts(&url, settings).map_err(|error| wrong(&error))?;
                        Place::Objects(store.into(), prefix)
                    }
                }
            }
        };
        Ok(Self { location: location.to_owned(), place })
    }

    /// The archive's directory, unless it is in object storage.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match &self.place {
            Place::Directory(directory) => Some(directory),
            Place::Objects(..) => None,
        }
    }

    /// The archive's store and the prefix of its keys, for writing.
    pub(crate) fn store(&self) -> Result<(Arc<dyn ObjectStore>, Key), Failure> {
        match &self.place {
            Place::Objects(store, prefix) => Ok((Arc::clone(store), prefix.clone())),
            Place::Directory(directory) => {
                let failed = |error: io::Error| {
                    Failure::Failed(
                        format!("cannot write to the archive {}: {error}", self.location).into(),
                    )
                };
                if !fs::metadata(directory).map_err(failed)?.is_dir() {
                    return Err(failed(io::ErrorKind::NotADirectory.into()));
                }

                Ok((Arc::new(LocalFileSystem::new_with_prefix(directory)?), Key::default()))
            }
        }
    }

    /// The location as every machine of a cluster understands it: with an absolute path.
    pub(crate) fn name_for_cluster(location: &str) -> Result<String, Failure> {
        let wrong = |error: &dyn fmt::Display| {
            Failure::Usage(format!("invalid archive {location}: {error}"))
        };

        if !location.contains("://") {
            return Ok(std::path::absolute(location)
                .map_err(|error| wrong(&error))?
                .display()
                .to_string());
        }

        let url = Url::parse(location).map_err(|error| wrong(&error))?;
        match ObjectStoreScheme::parse(&url) {
            Ok(_) => Ok(location.to_owned()),
            Err(error) => Err(wrong(&error)),
        }
    }

    /// The store for reading segments whose names are known. Checks first that the archive can be
    /// read.
    pub(crate) async fn reach(&self, cache: &CacheOptions) -> Result<Arc<dyn Storage>, Failure> {
        match &self.place {
            Place::Directory(directory) => {
                fs::read_dir(directory)?;
                Ok(Arc::new(Disk))
            }
            Place::Objects(store, prefix) => {
                let prefix = (!prefix.as_ref().is_empty()).then_some(prefix);
                store.list(prefix).try_next().await?;
                Ok(Arc::new(Objects::new(store, HashMap::new(), cache)?))
            }
        }
    }

    /// All segments, in the order of their names. Copies of remote indexes are kept in the cache.
    pub(crate) async fn list(&self, cache: &CacheOptions) -> Result<Listing, Failure> {
        let failed = |error: &dyn fmt::Display| {
            Failure::Failed(format!("cannot list the archive {}: {error}", self.location).into())
        };
        match &self.place {
            Place::Directory(directory) => {
                let mut found = Vec::new();
                list_directory(directory, &mut found).map_err(|(path, error)| {
                    match path == *directory {
                        // The error names the archive already.
                        true => failed(&error),
                        false => failed(&format!("{}: {error}", path.display())),
                    }
                })?;

                let name = |path: &PathBuf| {
                    path.strip_prefix(directory).unwrap_or(path).display().to_string()
                };
                let found = found.into_iter().map(|path| Segment::new(path.clone(), name(&path)));

                // A segment in the layout is complete once its index exists, which is uploaded
                // last.
                let is_complete = |segment: &Segment| {
                    segment.times.is_none() || index_path(&segment.path).exists()
                };
                Ok(Listing {
                    segments: found.filter(is_complete).collect(),
                    storage: Arc::new(Disk),
                })
            }
            Place::Objects(store, prefix) => {
                let prefix = (!prefix.as_ref().is_empty()).then_some(prefix);
                let objects: Vec<_> =
                    store.list(prefix).try_collect().await.map_err(|error| failed(&error))?;
                let objects: HashMap<PathBuf, ObjectMeta> = objects
                    .into_iter()
                    .map(|object| (object.location.as_ref().into(), object))
                    .collect();

                let start = prefix.map_or(0, |prefix| prefix.as_ref().len() + 1);

                // A segment is complete once its index is there, which is uploaded last.
                let mut segments: Vec<Segment> = objects
                    .keys()
                    .filter(|path| objects.contains_key(&index_path(path)))
                    .map(|path| {
                        Segment::new(path.clone(), path.display().to_string()[start..].to_owned())
                    })
                    .collect();
                segments.sort_by(|a, b| a.name.cmp(&b.name));

                let storage = Objects::new(store, objects, cache)?;
                Ok(Listing { segments, storage: Arc::new(storage) })
            }
        }
    }
}

/// The segments of an archive, and the store from which they are read.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    pub(crate) segments: Vec<Segment>,
    pub(crate) storage: Arc<dyn Storage>,
}

fn list_directory(directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), (PathBuf, io::Error)> {
    let failed = |error| (directory.to_owned(), error);
    found.extend(segments(directory).map_err(failed)?);

    if directory.is_dir() {
        let mut directories = Vec::new();

        for entry in fs::read_dir(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type().map_err(failed)?.is_dir() {
                directories.push(entry.path());
            }
        }

        directories.sort();
        for directory in directories {
            list_directory(&directory, found)?;
        }
    }
    Ok(())
}

/// Segments in object storage.
struct Objects {
    store: Arc<dyn ObjectStore>,
    /// What a listing reports about objects. Without a listing, the store is asked about each
    /// object.
    objects: HashMap<PathBuf, ObjectMeta>,
    cache: Option<Cache>,
    /// The first bytes of segments, which identify their compression.
    heads: Mutex<HashMap<PathBuf, Vec<u8>>>,
    runtime: Handle,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Number of bytes that identify the compression.
const HEAD_BYTES: u64 = 4;

fn key(path: &Path) -> Key {
    Key::from(path.to_str().unwrap_or_default())
}

impl Objects {
    fn new(
        store: &Arc<dyn ObjectStore>,
        objects: HashMap<PathBuf, ObjectMeta>,
        cache: &CacheOptions,
    ) -> Result<Self, Failure> {
        Ok(Self {
            store: Arc::clone(store),
            objects,
            cache: cache.open()?,
            heads: Mutex::default(),
            runtime: Handle::current(),
        })
    }

    /// The metadata of an object: size, time and version.
    fn metadata(&self, path: &Path) -> Result<ObjectMeta, Without> {
        match self.objects.get(path) {
            Some(object) => Ok(object.clone()),
            None if !self.objects.is_empty() => Err(Without::Missing),
            None => {
                self.runtime.block_on(self.store.head(&key(path))).map_err(|error| match error {
                    object_store::Error::NotFound { .. } => Without::Missing,
                    error => Without::Unreadable(error.to_string()),
                })
            }
        }
    }

    /// Fetches an index. Returns its table and its bytes.
    fn fetch(&self, index: &ObjectMeta) -> Result<(Table, Bytes), Without> {
        let get = async { self.store.get(&index.location).await?.bytes().await };
        let bytes = match self.runtime.block_on(get) {
            Err(object_store::Error::NotFound { .. }) => return Err(Without::Missing),
            other => other.map_err(|error| Without::Unreadable(error.to_string()))?,
        };
        let table =
            Table::open(bytes.clone()).map_err(|error| Without::Damaged(error.to_string()))?;
        Ok((table, bytes))
    }
}

impl Storage for Objects {
    fn table(&self, segment: &Path) -> Result<Table, Without> {
        let index = self.metadata(&index_path(segment))?;
        let cache =
            self.cache.as_ref().map(|cache| (cache, cache::name(&self.store.to_string(), &index)));
        let copied = cache.as_ref().and_then(|(cache, name)| Table::open(cache.get(name)?).ok());
        let table = match copied {
            Some(table) => table,
            None => {
                let (table, bytes) = self.fetch(&index)?;
                if let Some((cache, name)) = cache {
                    cache.put(&name, &bytes);
                }
                table
            }
        };

        match self.metadata(segment) {
            Ok(object) if object.size == table.segment_bytes() => Ok(table),
            Ok(_) | Err(Without::Missing) => Err(Without::Stale),
            Err(without) => Err(without),
        }
    }

    fn open(&self, segment: &Path) -> io::Result<Arc<dyn Source>> {
        let object = Object {
            store: Arc::clone(&self.store),
            key: key(segment),
            runtime: self.runtime.clone(),
            head: Vec::new(),
        };
        let known = self.heads.lock().unwrap_or_else(PoisonError::into_inner).get(segment).cloned();
        let head = match known {
            Some(head) => head,
            None => {
                let mut head = Vec::new();
                object.stream(0, HEAD_BYTES)?.read_to_end(&mut head)?;
                self.heads
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(segment.to_owned(), head.clone());
                head
            }
        };

        Ok(Arc::new(Object { head, ..object }))
    }

    fn has_files(&self) -> bool {
        false
    }
}

/// A segment in object storage.
struct Object {
    store: Arc<dyn ObjectStore>,
    key: Key,
    runtime: Handle,
    head: Vec<u8>,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Object").field(&self.key).finish()
    }
}

impl Object {
    fn stream(&self, offset: u64, bytes: u64) -> io::Result<Streamed> {
        let range = Some(GetRange::Bounded(offset..offset + bytes));
        let options = GetOptions { range, ..GetOptions::default() };
        let got = self.runtime.block_on(self.store.get_opts(&self.key, options))?;
        Ok(Streamed {
            stream: got.into_stream(),
            runtime: self.runtime.clone(),
            chunk: Vec::new().into(),
        })
    }
}

impl Source for Object {
    fn read_range(&self, offset: u64, bytes: u64) -> io::Result<Box<dyn Read + Send>> {
        if (offset, bytes) == (0, HEAD_BYTES) {
            return Ok(Box::new(io::Cursor::new(self.head.clone())));
        }
        Ok(Box::new(self.stream(offset, bytes)?))
    }
}

/// The answer to a request, read while it arrives.
struct Streamed {
    stream: BoxStream<'static, object_store::Result<Bytes>>,
    runtime: Handle,
    chunk: Bytes,
}

impl Read for Streamed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() && !into.is_empty() {
            match self.runtime.block_on(self.stream.next()) {
                Some(chunk) => self.chunk = chunk?,
                None => return Ok(0),
            }
        }
        let count = into.len().min(self.chunk.len());
        into[..count].copy_from_slice(&self.chunk.split_to(count));
        Ok(count)
    }
}
