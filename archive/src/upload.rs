//! `wirecap archive upload`: copies complete segments and their indexes from a sensor's disk into
//! an archive.
//!
//! The name of a segment in the archive follows from its contents, and its index is sent last,
//! after the segment was read back. So an upload that was killed at any moment can be repeated
//! without a log, and readers never see an incomplete segment.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch::Sender;
use wirecap_index::{EnsureError, Ensured, be_idle, ensure, index_path, load, segments};
use wirecap_units::error::causes;
use wirecap_units::size::{self, grouped, human_bytes};

use crate::failure::Failure;
use crate::location::Archive;
use crate::pace::Stop;
use crate::segment;
use crate::target::{Content, Target, Trouble, in_thread};
use crate::watch::Watch;

/// Time between two scans of the directory with `--watch`.
const LOOK: Duration = Duration::from_secs(5);
/// Time after an error of the archive until the next attempt.
const RETRY: Duration = Duration::from_secs(30);
/// With `--watch`, a segment younger than this without an index is left to the capture, which may
/// be writing the index.
const INDEX_AGE: Duration = Duration::from_secs(60);
/// Consecutive errors of the archive that end a round: an archive that does not answer delays each
/// attempt.
const STORAGE_ERRORS_MAX: usize = 3;
/// Time in which requests may end after a signal.
const END: Duration = Duration::from_secs(10);

/// Upload complete segments and their indexes from a sensor to an archive
///
/// Segments of the directory whose names end in .part, or that a recorder has locked, are
/// incomplete and are not uploaded. Missing indexes are written first.
/// Each file is sent, read back and compared by its SHA-256. Files that the archive already
/// contains are not sent again, so the command can be interrupted and repeated at any time. It runs
/// at idle CPU and I/O priority.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  wirecap archive upload /data -a s3://bucket/packets --sensor lab-1
  wirecap archive upload /data -a s3://bucket/packets --sensor lab-1 --watch --remove --rate 20M

Exit status:
  0  all complete segments are in the archive, or a signal ended --watch and no segment has failed
  1  a segment is not in the archive or cannot be removed here, or a signal ended the command without --watch
  2  the command line is wrong")]
pub(crate) struct Arguments {
    /// The directory with the recording
    #[arg(value_name = "DIR")]
    spool: PathBuf,

    /// The archive: a directory, or s3://, gs://, az:// with a bucket and a prefix
    ///
    /// Credentials and endpoint come from the provider's environment variables, such as
    /// AWS_ACCESS_KEY_ID.
    #[arg(short, long, value_name = "DIR|URL", env = "WIRECAP_ARCHIVE")]
    archive: String,

    /// Name of this sensor in the archive [default: name of this host]
    #[arg(long, value_name = "NAME", value_parser = segment::sensor)]
    sensor: Option<String>,

    /// Bytes per second that are sent or read back, such as 20M [default: no limit]
    ///
    /// Units are powers of 1,024: 20M is 20 MiB per second.
    #[arg(long, value_name = "BYTES", value_parser = size::bytes)]
    rate: Option<u64>,

    /// Remove each segment and its index here once both were read back from the archive
    #[arg(long)]
    remove: bool,

    /// Continue with segments that become complete, until SIGINT or SIGTERM
    #[arg(long)]
    watch: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.rate == Some(0) {
        return Err(Failure::Usage(
            "invalid --rate 0: expected at least one byte per second".to_owned(),
        ));
    }

    let sensor = match &arguments.sensor {
        Some(sensor) => sensor.clone(),
        None => segment::sensor(&rustix::system::uname().nodename().to_string_lossy())
            .map_err(|error| Failure::Usage(format!("{error}; name the sensor with --sensor")))?,
    };
    let archive = Archive::open(&arguments.archive)?;
    let _lock = lock(&arguments.spool)?;

    // Threads that start later have this priority, too.
    be_idle();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let (stopper, stop) = Stop::new();
        let signals = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let target = Target::new(&archive, arguments.rate, stop.clone())?;
        let mut upload = Upload {
            arguments,
            sensor,
            target,
            stop,
            watch: Watch::new(),
            is_terminal: io::stderr().is_terminal(),
            settled: HashMap::new(),
            failed: BTreeSet::new(),
            sums: Sums::default(),
        };
        tokio::select! {
            outcome = upload.run() => outcome,
            () = unanswered(signals, &stopper) => Err(interrupted()),
        }
    });

    // Threads that still read are not waited for.
    runtime.shutdown_background();
    outcome
}

fn interrupted() -> Failure {
    Failure::Failed("interrupted".into())
}

/// Two uploads of the same directory do no harm, but send everything twice.
fn lock(spool: &Path) -> Result<File, Failure> {
    let failed = |problem: &str| {
        Failure::Failed(format!("cannot upload {}: {problem}", spool.display()).into())
    };
    let directory = File::open(spool).map_err(|error| failed(&error.to_string()))?;
    if !directory.metadata()?.is_dir() {
        return Err(failed("expected a directory"));
    }
    match directory.try_lock() {
        Err(TryLockError::WouldBlock) => Err(failed("another upload of this directory is running")),
        // Some network file systems lock no directories.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(directory),
    }
}

/// Passes a signal to the upload; returns if the upload has not ended some time later, or at a
/// second signal.
async fn unanswered((mut interrupt, mut terminate): (Signal, Signal), stopper: &Sender<bool>) {
    let mut next = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    next().await;
    stopper.send_replace(true);
    tokio::select! {
        () = next() => {}
        () = tokio::time::sleep(END) => {}
    }
}

/// Properties that change if a file changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    inode: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn new(metadata: &Metadata) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Self { bytes: metadata.len(), inode: metadata.ino(), modified }
    }
}

/// The counts in the last line of the output.
#[derive(Debug, Default)]
struct Sums {
    uploaded: u64,
    uploaded_bytes: u64,
    existed: u64,
    removed: u64,
    /// In the latest scan of the directory.
    not_complete: u64,
}

/// The result of a scan of the directory.
enum Round {
    /// All complete segments are in the archive, or cannot be uploaded.
    Done,
    StorageFailed,
    Stopped,
}

/// The result for a segment.
enum Done {
    Uploaded {
        bytes: u64,
    },
    Existed,
    /// The capture may be writing its index.
    Waits,
}

struct Upload<'a> {
    arguments: &'a Arguments,
    sensor: String,
    target: Target,
    stop: Stop,
    watch: Watch,
    is_terminal: bool,
    /// Segments that are in the archive, or that cannot be uploaded as they are.
    settled: HashMap<PathBuf, Stamp>,
    /// Segments that are not in the archive, or are still here despite `--remove`, because of an
    /// error.
    failed: BTreeSet<PathBuf>,
    sums: Sums,
}

impl Upload<'_> {
    async fn run(&mut self) -> Result<(), Failure> {
        let checked = self.target.check(&format!("sensor={}", self.sensor)).await;
        checked.map_err(|trouble| {
            Failure::Failed(
                format!("cannot list the archive {}: {trouble}", self.arguments.archive).into(),
            )
        })?;

        let is_stopped = loop {
            let pause = match self.round().await? {
                Round::Stopped => break true,
                _ if !self.arguments.watch => break false,
                Round::Done => LOOK,
                Round::StorageFailed => RETRY,
            };
            if self.stop.wait(pause).await.is_err() {
                break true;
            }
        };
        self.watch.end()?;
        self.report();

        match self.failed.len() {
            // A signal ends the loop.
            0 if self.arguments.watch => Ok(()),
            _ if is_stopped && !self.arguments.watch => Err(interrupted()),
            0 => Ok(()),
            count => {
                let (segments, be) =
                    if count == 1 { ("segment", "is") } else { ("segments", "are") };
                let or_here = if self.arguments.remove {
                    format!(" or {be} still here")
                } else {
                    String::new()
                };
                Err(Failure::Failed(
                    format!("{count} {segments} {be} not in the archive{or_here}").into(),
                ))
            }
        }
    }

    /// Uploads all complete segments, except those already uploaded or impossible to upload.
    async fn round(&mut self) -> Result<Round, Failure> {
        let spool = &self.arguments.spool;
        let listed = segments(spool).map_err(|error| {
            Failure::Failed(
                format!("cannot read the directory {}: {error}", spool.display()).into(),
            )
        })?;
        let (open, complete): (Vec<_>, Vec<_>) = listed
            .into_iter()
            .partition(|path| path.extension().is_some_and(|extension| extension == "part"));
        self.sums.not_complete = open.len() as u64;

        let present: BTreeSet<&PathBuf> = complete.iter().collect();
        self.settled.retain(|path, _| present.contains(path));

        let mut round = Round::Done;
        let mut storage_errors = 0;

        for (number, path) in complete.iter().enumerate() {
            let Ok(metadata) = fs::metadata(path) else {
                self.fail(path, &Trouble::Vanished);
                continue;
            };
            let stamp = Stamp::new(&metadata);
            if self.settled.get(path) == Some(&stamp) {
                continue;
            }

            if is_being_written(path) {
                self.sums.not_complete += 1;
                continue;
            }

            let place = format!("file {} of {}", number + 1, complete.len());
            match self.upload(path, stamp, &metadata, &place).await {
                Ok(Done::Waits) => {}
                Ok(done) => {
                    storage_errors = 0;
                    self.failed.remove(path);
                    self.settled.insert(path.clone(), stamp);
                    self.count(path, &done);
                }
                Err(Trouble::Stopped) => return Ok(Round::Stopped),
                Err(trouble) => {
                    self.fail(path, &trouble);
                    match trouble {
                        Trouble::File(_) => {
                            self.settled.insert(path.clone(), stamp);
                        }
                        Trouble::Storage(_) => {
                            round = Round::StorageFailed;
                            storage_errors += 1;
                        }
                        Trouble::Vanished | Trouble::Stopped => {}
                    }
                }
            }

            if storage_errors == STORAGE_ERRORS_MAX {
                let is_left = |path: &&PathBuf| !self.settled.contains_key(*path);
                let left: Vec<_> = complete[number + 1..].iter().filter(is_left).cloned().collect();
                if !left.is_empty() {
                    self.watch.announce(&format!("{} more segments were not tried", left.len()));
                }
                self.failed.extend(left);
                break;
            }
        }

        Ok(round)
    }

    async fn upload(
        &self,
        path: &Path,
        stamp: Stamp,
        metadata: &Metadata,
        place: &str,
    ) -> Result<Done, Trouble> {
        let index = index_path(path);
        let age =
            metadata.modified().ok().and_then(|time| SystemTime::now().duration_since(time).ok());
        if self.arguments.watch && !index.exists() && age.is_some_and(|age| age < INDEX_AGE) {
            return Ok(Done::Waits);
        }

        let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.watch.show(format!("{file_name}: index, {place}"));

        let times = self.index(path).await?;
        self.watch.show(format!("{file_name}: SHA-256 of {}, {place}", human_bytes(stamp.bytes)));

        let of_segment = Content::of(path, &self.stop).await?;
        let of_index = Content::of(&index, &self.stop).await?;
        let name = segment::name(&self.sensor, times, &of_segment.digest, &file_name);
        let index_name = index_path(Path::new(&name)).display().to_string();

        let sent = async |name: &str, path: &Path, content: &Content| {
            let show = |sent: u64| {
                let sent = human_bytes(sent);
                let total = human_bytes(content.bytes);
                self.watch.show(format!("{file_name}: sent {sent} of {total}, {place}"));
            };
            self.target.put(name, path, content, &show).await
        };

        // An index is in the archive only if its segment was read back, so a segment that stays on
        // the sensor need not be read back again. The index must be read back: an earlier upload
        // may have been killed before it did so.
        let sizes = (self.target.bytes(&name).await?, self.target.bytes(&index_name).await?);
        let is_known =
            sizes == (Some(of_segment.bytes), Some(of_index.bytes)) && !self.arguments.remove;
        let had_segment = is_known || self.target.is_there(&name, &of_segment).await?;
        if !had_segment {
            sent(&name, path, &of_segment).await?;
        }

        still_is(path, stamp)?;

        // An index must not be older than its segment.
        let had_index = had_segment && self.target.is_there(&index_name, &of_index).await?;
        if !had_index {
            sent(&index_name, &index, &of_index).await?;
        }

        if self.arguments.remove {
            still_is(path, stamp)?;
            // In the reverse order, a kill in between would leave an index without a segment.
            let removed = wirecap_index::remove(path).and_then(|()| fs::remove_file(path));
            removed.map_err(|error| {
                Trouble::File(format!("it is in the archive, but cannot be removed here: {error}"))
            })?;
        }

        Ok(match had_segment && had_index {
            true => Done::Existed,
            false => Done::Uploaded { bytes: of_segment.bytes + of_index.bytes },
        })
    }

    /// Writes the segment's index unless it has a valid one. Returns the times of the first and the
    /// last packet; without packets, 1970.
    async fn index(&self, path: &Path) -> Result<(u64, u64), Trouble> {
        let path = path.to_owned();
        let stop = self.stop.clone();

        in_thread(move || {
            let outcome = ensure(&path, &mut |_| !stop.is_stopped());
            if stop.is_stopped() {
                return Err(Trouble::Stopped);
            }

            match outcome {
                Ok(Ensured::There | Ensured::Written { .. }) => {}
                Err(EnsureError::Vanished) => return Err(Trouble::Vanished),
                Ok(Ensured::Faulty(error)) => return Err(Trouble::File(causes(&error))),
                Err(error) => return Err(Trouble::File(causes(&error))),
            }

            let index = load(&path).map_err(|error| Trouble::File(error.to_string()))?;
            Ok(index.times().unwrap_or_default())
        })
        .await
    }

    /// Without a terminal, a line is printed for each segment.
    fn count(&mut self, path: &Path, done: &Done) {
        let name = path.display();
        let removed = if self.arguments.remove { ", removed here" } else { "" };
        self.sums.removed += u64::from(self.arguments.remove);

        let line = match done {
            Done::Uploaded { bytes } => {
                self.sums.uploaded += 1;
                self.sums.uploaded_bytes += bytes;
                format!("{name}: uploaded {}{removed}", human_bytes(*bytes))
            }
            Done::Existed => {
                self.sums.existed += 1;
                format!("{name}: is in the archive{removed}")
            }
            Done::Waits => return,
        };
        if !self.is_terminal {
            self.watch.announce(&line);
        }
    }

    fn fail(&mut self, path: &Path, trouble: &Trouble) {
        self.failed.insert(path.to_owned());
        self.watch.announce(&format!("{}: {trouble}", path.display()));
    }

    fn report(&self) {
        let Sums { uploaded, uploaded_bytes, existed, removed, not_complete } = self.sums;
        self.watch.announce(&format!(
            "{} segments uploaded ({}), {} existed, {} removed here, {} failed, {} not complete",
            grouped(uploaded),
            human_bytes(uploaded_bytes),
            grouped(existed),
            grouped(removed),
            grouped(self.failed.len() as u64),
            grouped(not_complete),
        ));
    }
}

/// Whether a recorder holds its lock on the file. A single file of a recording has its final name
/// from the start.
fn is_being_written(path: &Path) -> bool {
    // `Upload::index` reports a file that cannot be opened.
    File::open(path)
        .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn still_is(path: &Path, stamp: Stamp) -> Result<(), Trouble> {
    match Stamp::new(&fs::metadata(path)?) == stamp {
        true => Ok(()),
        false => Err(Trouble::File("it was changed during the upload".to_owned())),
    }
}
