//! The options that divide a recording into files and keep some of them: our own, tcpdump's and
//! dumpcap's.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wirecap::savefile::{Format, refuse_planted};
use wirecap_recorder::{
    Compression, CutRules, Durability, Numbering, Pattern, Period, StoreRules, format_of,
};

use crate::shared::failure::Failure;
use crate::shared::options::on_or_off;
use crate::size;

/// The files of a recording.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Files of a recording")]
pub(crate) struct FileOptions {
    /// Start a new file before this size is exceeded: 100M
    ///
    /// Units are powers of 1,024: 100M is 100 MiB. With several files, FILE is a strftime(3)
    /// pattern in which %i is the file's number; without a pattern, _%i_%Y%m%d%H%M%S is inserted
    /// before the extension. An incomplete file is named FILE.part.
    #[arg(long, value_name = "SIZE", value_parser = file_size)]
    file_size: Option<u64>,

    /// Start a new file at this interval, aligned to local time: 1h; 24h: at midnight
    #[arg(long, value_name = "TIME", value_parser = size::duration)]
    file_time: Option<Duration>,

    /// Start a new file after this many packets
    #[arg(long, value_name = "PACKETS")]
    file_packets: Option<u64>,

    /// Keep at most this many files, including earlier runs; delete the oldest
    #[arg(long, value_name = "FILES")]
    keep_files: Option<u64>,

    /// Keep at most this many bytes, including earlier runs; delete the oldest
    ///
    /// Units are powers of 1,024: 500G is 500 GiB, or 537 GB.
    #[arg(long, value_name = "SIZE", value_parser = size::bytes)]
    keep_bytes: Option<u64>,

    /// Keep this many bytes of the file system free; delete the oldest files
    ///
    /// Units are powers of 1,024: 20G is 20 GiB.
    #[arg(long, value_name = "SIZE", value_parser = size::bytes)]
    keep_free: Option<u64>,

    /// Run a command for each complete file, with its path as last argument
    #[arg(short = 'z', long, value_name = "COMMAND")]
    on_file: Option<String>,

    /// Write the path of each complete file to this file descriptor
    #[arg(long, value_name = "FD", value_parser = clap::value_parser!(i32).range(0..))]
    announce_fd: Option<i32>,

    /// Write an index beside each complete file, for wirecap find
    #[arg(long, value_name = "on|off", action = ArgAction::Set, value_parser = on_or_off, default_value = "off")]
    index: bool,

    /// When to sync files to disk: never, when complete, or within TIME
    ///
    /// Bounds the loss on a power failure. none: the system decides. close: complete files are
    /// safe. TIME: complete files are safe, and the current file loses at most the packets of that
    /// time.
    #[arg(long, value_name = "none|close|TIME", value_parser = durability, default_value = "5s")]
    sync: DurabilityOption,

    /// tcpdump: start a new file after this many million bytes; k, m, g: KiB, MiB, GiB
    #[arg(short = 'C', value_name = "SIZE", value_parser = tcpdump_size, conflicts_with = "file_size")]
    tcpdump_size: Option<u64>,

    /// tcpdump: start a new file every SECONDS
    #[arg(short = 'G', value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "file_time")]
    tcpdump_seconds: Option<u64>,

    /// tcpdump: with -C, reuse this many files; with -G, end after this many; with both, ignored
    #[arg(short = 'W', value_name = "FILES", value_parser = clap::value_parser!(u64).range(1..))]
    tcpdump_files: Option<u64>,

    /// dumpcap: start a new file after filesize:KB, duration:SECONDS, packets:N ...
    ///
    /// Conditions: filesize:KB, duration:SECONDS, interval:SECONDS, packets:N. Options: files:N,
    /// printname:FILE, nametimenum:1|2.
    #[arg(short = 'b', value_name = "CONDITION", value_parser = condition)]
    begin: Vec<Condition>,

    /// dumpcap: end after duration:SECONDS, filesize:KB, packets:N or files:N
    ///
    /// With -b, filesize:KB starts a new file.
    #[arg(short = 'a', value_name = "CONDITION", value_parser = condition)]
    autostop: Vec<Condition>,
}

#[derive(Debug, Clone, Copy)]
struct DurabilityOption(Durability);

impl Default for DurabilityOption {
    fn default() -> Self {
        Self(Durability::Every(Duration::from_secs(5)))
    }
}

fn durability(text: &str) -> Result<DurabilityOption, String> {
    Ok(DurabilityOption(match text {
        "none" => Durability::None,
        "close" => Durability::Close,
        time => match size::duration(time)? {
            Duration::ZERO => return Err("it must be longer than 0".to_owned()),
            interval => Durability::Every(interval),
        },
    }))
}

/// A file of less than one packet is a forgotten unit.
fn file_size(text: &str) -> Result<u64, String> {
    const PACKET_BYTES: u64 = 1514;
    match size::bytes(text)? {
        bytes @ ..PACKET_BYTES if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(format!("{bytes} bytes are less than one packet; with a unit: {text}M"))
        }
        bytes @ ..PACKET_BYTES => {
            Err(format!("{bytes} bytes are less than one packet: expected at least 2K"))
        }
        bytes => Ok(bytes),
    }
}

fn tcpdump_size(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(millions) => millions.checked_mul(1_000_000).ok_or_else(|| "it is too large".to_owned()),
        Err(_) => size::bytes(text),
    }
}

/// `NAME:VALUE` of dumpcap.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Bytes(u64),
    Duration(Duration),
    Interval(Duration),
    Packets(u64),
    Files(u64),
    PrintName(PathBuf),
    TimeBeforeNumber(bool),
}

fn condition(text: &str) -> Result<Condition, String> {
    let (name, value) = text.split_once(':').ok_or("expected NAME:VALUE")?;
    let number = || match value.parse::<u64>() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{value:?}: expected a number greater than 0")),
    };

    let seconds = || match value.parse::<f64>() {
        Ok(seconds) if (0.001..1e9).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("{value:?}: expected a number of seconds, at least 0.001")),
    };
    Ok(match name {
        "filesize" => Condition::Bytes(number()?.checked_mul(1000).ok_or("it is too large")?),
        "duration" => Condition::Duration(seconds()?),
        "interval" => Condition::Interval(Duration::from_secs(number()?)),
        "packets" => Condition::Packets(number()?),
        "files" => Condition::Files(number()?),
        "printname" => Condition::PrintName(value.into()),
        "nametimenum" if matches!(value, "1" | "2") => Condition::TimeBeforeNumber(value == "2"),
        _ => {
            let expected = "filesize, duration, interval, packets, files, printname, nametimenum:1 or nametimenum:2";
            return Err(format!("unknown condition {name}:{value}: expected {expected}"));
        }
    })
}

/// The result of the options.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) format: Format,
    pub(crate) compression: Compression,
    pub(crate) cut: CutRules,
    pub(crate) store: StoreRules,
    pub(crate) files_max: Option<u64>,
    pub(crate) bytes_max: Option<u64>,
    pub(crate) packets_max: Option<u64>,
    pub(crate) duration: Option<Duration>,
    pub(crate) durability: Durability,
    pub(crate) command: Option<Vec<String>>,
    /// Whether complete files get an index.
    pub(crate) index: bool,
    /// The names, if there may be more than one file.
    pub(crate) pattern: Option<Pattern>,
    line: Option<Line>,
}

impl Plan {
    /// The rules that a reload may change, if there may be several files.
    pub(crate) fn rules(&self) -> Option<Rules> {
        self.pattern.as_ref()?;
        Some(Rules::of(&self.cut, &self.store))
    }
}

/// When files end, and how many are kept: rules that a recording of several files can obey.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Rules {
    file_bytes: Option<u64>,
    file_packets: Option<u64>,
    /// How long, and whether on the local clock.
    file_period: Option<(Duration, bool)>,
    keep_files: Option<u64>,
    keep_bytes: Option<u64>,
    keep_free: Option<u64>,
}

/// [`Rules`] as another process sends them, before the check.
#[derive(Debug, Deserialize)]
#[serde(remote = "Rules", deny_unknown_fields)]
struct Unchecked {
    file_bytes: Option<u64>,
    file_packets: Option<u64>,
    file_period: Option<(Duration, bool)>,
    keep_files: Option<u64>,
    keep_bytes: Option<u64>,
    keep_free: Option<u64>,
}

/// The default file limit is this fraction of the budget.
const FILES_OF_BUDGET: u64 = 10;
/// The smallest budget of bytes: files must have room for the longest packets.
const KEEP_BYTES_MIN: u64 = 4 << 20;
/// The shortest period that does not follow the local clock.
const PERIOD_MIN: Duration = Duration::from_millis(1);
/// The longest period: its nanoseconds fit 64 bits.
const PERIOD_MAX: Duration = Duration::from_secs(1_000_000 * 3600);

impl Rules {
    /// The rules that another process sends, or why they are none. They must fulfil the same
    /// conditions as the options of the command line.
    pub(crate) fn from_json(value: Value) -> Result<Self, String> {
        let rules = Unchecked::deserialize(value)
            .map_err(|error| format!("\"rules\": {error}"))?
            .checked()?;
        match rules.cut().is_cut() {
            true => Ok(rules),
            false => Err(
                "several files require --file-size, --file-time, --file-packets or --keep-bytes"
                    .to_owned(),
            ),
        }
    }

    /// Checks the rules of the command line, and those that another process sends: there is no
    /// other check. A budget of bytes implies a limit for files. Without any rule, there is only
    /// one file.
    fn checked(mut self) -> Result<Self, String> {
        #[cfg(sabotage)]
        if crate::sabotage::is("rules-unchecked") {
            return Ok(self);
        }

        let counts = [
            ("--file-size", self.file_bytes),
            ("--file-packets", self.file_packets),
            ("--keep-files", self.keep_files),
        ];
        if let Some((option, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
            return Err(format!("{option} must be at least 1"));
        }
        if let Some((length, is_aligned)) = self.file_period {
            check_period(length, is_aligned)?;
        }

        let has_budget = self.store() != StoreRules::default();
        if has_budget && !self.cut().is_cut() && self.keep_bytes.is_none() {
            return Err(
                "a budget requires several files: add --file-size, --file-time or --file-packets"
                    .to_owned(),
            );
        }

        if let Some(keep) = self.keep_bytes {
            if keep < KEEP_BYTES_MIN {
                return Err("--keep-bytes must be at least 4M".to_owned());
            }
            let file =
                *self.file_bytes.get_or_insert((keep / FILES_OF_BUDGET).max(KEEP_BYTES_MIN / 4));
            if file > keep / 2 {
                return Err("--keep-bytes must be at least twice --file-size".to_owned());
            }
        }

        Ok(self)
    }

    fn of(cut: &CutRules, store: &StoreRules) -> Self {
        Self {
            file_bytes: cut.bytes,
            file_packets: cut.packets,
            file_period: cut.period.map(|period| (period.length, period.is_aligned)),
            keep_files: store.files,
            keep_bytes: store.bytes,
            keep_free: store.free_bytes,
        }
    }

    pub(crate) fn cut(&self) -> CutRules {
        let period = self.file_period.map(|(length, is_aligned)| Period { length, is_aligned });
        CutRules { bytes: self.file_bytes, packets: self.file_packets, period }
    }

    pub(crate) fn store(&self) -> StoreRules {
        StoreRules { files: self.keep_files, bytes: self.keep_bytes, free_bytes: self.keep_free }
    }
}

#[derive(Debug)]
enum Line {
    Descriptor(i32),
    File(PathBuf),
    Open(OwnedFd),
}

fn check_period(length: Duration, is_aligned: bool) -> Result<(), String> {
    match () {
        () if length > PERIOD_MAX => Err("--file-time must be at most 1000000h".to_owned()),
        () if is_aligned && (length.as_secs() == 0 || length.subsec_nanos() > 0) => {
            Err("--file-time must be at least 1s, in whole seconds".to_owned())
        }
        () if length < PERIOD_MIN => Err("-b duration must be at least 0.001 seconds".to_owned()),
        () => Ok(()),
    }
}

impl FileOptions {
    /// The plan for `path`. `format` is the requested format.
    pub(crate) fn plan(&self, path: &Path, format: Option<Format>) -> Result<Plan, Failure> {
        let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
        Compression::check(path).map_err(Failure::Usage)?;

        let mut period = self.file_time.map(|length| Period { length, is_aligned: true });
        period = period.or(self.tcpdump_seconds.map(of_seconds));

        let mut plan = Plan {
            format: format.unwrap_or_else(|| format_of(path)),
            compression: Compression::of(path),
            cut: CutRules {
                bytes: self.file_size.or(self.tcpdump_size),
                packets: self.file_packets,
                period,
            },
            store: StoreRules {
                files: self.keep_files,
                bytes: self.keep_bytes,
                free_bytes: self.keep_free,
            },
            files_max: None,
            bytes_max: None,
            packets_max: None,
            duration: None,
            durability: self.sync.0,
            command: self
                .on_file
                .as_ref()
                .map(|text| text.split_whitespace().map(str::to_owned).collect()),
            index: self.index,
            pattern: None,
            line: self.announce_fd.map(Line::Descriptor),
        };
        let mut is_time_first = false;

        for condition in &self.begin {
            match condition {
                Condition::Bytes(bytes) => plan.cut.bytes = Some(*bytes),
                Condition::Duration(length) => {
                    plan.cut.period = Some(Period { length: *length, is_aligned: false });
                }
                Condition::Interval(length) => {
                    plan.cut.period = Some(Period { length: *length, is_aligned: true });
                }
                Condition::Packets(packets) => plan.cut.packets = Some(*packets),
                Condition::Files(files) => plan.store.files = Some(*files),
                Condition::PrintName(path) => plan.line = Some(Line::File(path.clone())),
                Condition::TimeBeforeNumber(is_first) => is_time_first = *is_first,
            }
        }

        for condition in &self.autostop {
            match condition {
                // As in dumpcap: of several files, it ends only the current one.
                Condition::Bytes(bytes) if !self.begin.is_empty() => {
                    plan.cut.bytes.get_or_insert(*bytes);
                }
                Condition::Bytes(bytes) => plan.bytes_max = Some(*bytes),
                Condition::Duration(length) => plan.duration = Some(*length),
                Condition::Packets(packets) => plan.packets_max = Some(*packets),
                Condition::Files(files) => plan.files_max = Some(*files),
                _ => return usage("-a supports duration, filesize, packets and files"),
            }
        }

        let mut numbering = Numbering::Pattern;
        let has_number = path.to_string_lossy().contains("%i");
        if self.tcpdump_size.is_some() && !has_number {
            numbering = Numbering::Appended;
        }

        match (self.tcpdump_files, self.tcpdump_size, self.tcpdump_seconds) {
            (Some(files), Some(_), None) => {
                plan.store.files = Some(files);
                if !has_number {
                    numbering = Numbering::Ring(files);
                }
            }
            // As in tcpdump: a name without a time stays as it is, and there is only one file.
            (Some(1), None, Some(seconds)) if !path.to_string_lossy().contains('%') => {
                plan.cut.period = None;
                plan.duration = Some(Duration::from_secs(seconds));
            }
            (Some(files), None, Some(_)) => plan.files_max = Some(files),
            (Some(_), None, None) => {
                return usage("-W requires -C or -G; --keep-files keeps the newest files");
            }
            _ => {}
        }

        let rules = Rules::of(&plan.cut, &plan.store).checked().map_err(Failure::Usage)?;
        (plan.cut, plan.store) = (rules.cut(), rules.store());

        if plan.cut.is_cut() {
            let path = match is_time_first && !path.to_string_lossy().contains('%') {
                true => time_before_number(path),
                false => path.to_owned(),
            };
            let pattern = Pattern::new(&path, numbering);
            plan.pattern = Some(pattern.map_err(|error| Failure::Usage(error.to_string()))?);
        } else if plan.files_max.is_some() {
            return usage("-a files requires -b: there is only one file");
        }

        Ok(plan)
    }

    /// Whether all values are defaults.
    pub(crate) fn is_default(&self) -> bool {
        let Self { file_size, file_time, file_packets, keep_files, keep_bytes, keep_free, .. } =
            self;
        let Self {
            on_file,
            announce_fd,
            tcpdump_size,
            tcpdump_seconds,
            tcpdump_files,
            begin,
            autostop,
            ..
        } = self;

        [file_size, keep_bytes, keep_free, file_packets, keep_files]
            .into_iter()
            .all(Option::is_none)
            && [tcpdump_size, tcpdump_seconds, tcpdump_files].into_iter().all(Option::is_none)
            && file_time.is_none()
            && on_file.is_none()
            && !self.index
            && announce_fd.is_none()
            && begin.is_empty()
            && autostop.is_empty()
    }
}

fn of_seconds(seconds: u64) -> Period {
    Period { length: Duration::from_secs(seconds), is_aligned: false }
}

/// As dumpcap with nametimenum:2.
fn time_before_number(path: &Path) -> PathBuf {
    let compressed = Compression::of(path) != Compression::None;
    let plain = if compressed { path.with_extension("") } else { path.to_owned() };
    let extension = |path: &Path| match path.extension().and_then(|extension| extension.to_str()) {
        Some(extension) => format!(".{extension}"),
        None => String::new(),
    };
    let behind = extension(&plain) + &if compressed { extension(path) } else { String::new() };
    let stem = plain.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!("{stem}_%Y%m%d%H%M%S_%i{behind}"))
}

impl Plan {
    /// How long packets are gathered before they go to the writer, if that is not longer than
    /// `usual`.
    pub(crate) fn flush_interval(&self, usual: Duration) -> Duration {
        match self.durability {
            Durability::Every(interval) => usual.min(interval / 5),
            Durability::None | Durability::Close => usual,
        }
    }

    /// Opens the output for the paths of complete files now, because it may not be possible later.
    pub(crate) fn open_line(&mut self) -> Result<(), Failure> {
        self.line = self.line()?.map(Line::Open);
        Ok(())
    }

    /// The output for the paths of complete files.
    pub(crate) fn line(&self) -> Result<Option<OwnedFd>, Failure> {
        let failed = |what: &str, error: io::Error| {
            Failure::Failed(format!("cannot write the names of files to {what}: {error}").into())
        };
        match &self.line {
            None => Ok(None),
            Some(Line::Open(descriptor)) => Ok(Some(descriptor.try_clone()?)),
            Some(Line::Descriptor(descriptor)) => {
                let what = format!("file descriptor {descriptor}");
                descriptor_of(*descriptor).map(Some).map_err(|error| failed(&what, error))
            }
            Some(Line::File(path)) => {
                let opened = match path.to_str() {
                    Some("-" | "stdout") => descriptor_of(1),
                    Some("stderr") => descriptor_of(2),
                    _ => refuse_planted(path)
                        .and_then(|()| File::options().append(true).create(true).open(path))
                        .map(OwnedFd::from),
                };
                opened.map(Some).map_err(|error| failed(&path.display().to_string(), error))
            }
        }
    }
}

/// A duplicate of a descriptor with which this process was started.
fn descriptor_of(descriptor: i32) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is used for one system call only, which fails if there is none.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        files: FileOptions,
        #[arg(short)]
        write: PathBuf,
    }

    fn plan(line: &str) -> Result<Plan, String> {
        let arguments = std::iter::once("wirecap").chain(line.split_whitespace());
        let command = Command::try_parse_from(arguments).map_err(|error| error.to_string())?;
        command.files.plan(&command.write, None).map_err(|failure| failure.to_string())
    }

    fn first_names(plan: &Plan) -> [String; 3] {
        let pattern = plan.pattern.as_ref().unwrap();
        [0, 1, 2].map(|sequence| {
            pattern.path(sequence, 0).file_name().unwrap().to_str().unwrap().to_owned()
        })
    }

    #[test]
    fn tcpdumps_flags_mean_what_they_mean_there() {
        let size = plan("-w t.pcap -C 2").unwrap();
        assert_eq!((size.cut.bytes, size.store.files), (Some(2_000_000), None));
        assert_eq!(first_names(&size), ["t.pcap", "t.pcap1", "t.pcap2"]);

        let ring = plan("-w t.pcap -C 10k -W 12").unwrap();
        assert_eq!((ring.cut.bytes, ring.store.files), (Some(10_240), Some(12)));
        assert_eq!(first_names(&ring), ["t.pcap00", "t.pcap01", "t.pcap02"]);

        let time = plan("-w t-%s.pcap -G 60 -W 3 -z gzip").unwrap();
        assert_eq!((time.files_max, time.cut.period), (Some(3), Some(of_seconds(60))));
        assert_eq!((time.command, time.store.files), (Some(vec!["gzip".to_owned()]), None));

        // With -C and -G, -W affects only names.
        let both = plan("-w t-%s.pcap -C 1 -G 60 -W 3").unwrap();
        assert_eq!((both.cut.bytes, both.cut.period), (Some(1_000_000), Some(of_seconds(60))));
        assert_eq!((both.files_max, both.store), (None, StoreRules::default()));
    }

    #[test]
    fn dumpcaps_flags_mean_what_they_mean_there() {
        let ring = plan(
            "-w t.pcapng -b filesize:100 -b files:3 -b interval:60 -a packets:9 -a duration:5",
        )
        .unwrap();
        assert_eq!((ring.cut.bytes, ring.store.files), (Some(100_000), Some(3)));
        assert_eq!(ring.cut.period.map(|period| period.is_aligned), Some(true));
        assert_eq!((ring.packets_max, ring.duration), (Some(9), Some(Duration::from_secs(5))));

        let name = &first_names(&ring)[1];
        assert!(name.starts_with("t_00002_19") && name.ends_with(".pcapng"), "{name}");

        let name = &first_names(&plan("-w t.pcap.gz -b packets:1 -b nametimenum:2").unwrap())[0];
        assert!(name.starts_with("t_19") && name.ends_with("_00001.pcap.gz"), "{name}");

        // `-a filesize` ends the recording, or with -b the file.
        let one = plan("-w t -a filesize:100 -a duration:0.5").unwrap();
        assert_eq!((one.bytes_max, one.cut.bytes), (Some(100_000), None));
        assert_eq!(one.duration, Some(Duration::from_millis(500)));

        let ring = plan("-w t -b files:3 -a filesize:100").unwrap();
        assert_eq!(
            (ring.bytes_max, ring.cut.bytes, ring.store.files),
            (None, Some(100_000), Some(3))
        );

        let period = plan("-w t -b duration:1.5").unwrap().cut.period.unwrap();
        assert_eq!((period.length, period.is_aligned), (Duration::from_millis(1500), false));
    }

    #[test]
    fn files_are_synced_when_they_are_complete_and_every_five_seconds() {
        let usual = Duration::from_secs(1);
        for (line, durability, flush_interval) in [
            ("-w t", Durability::Every(Duration::from_secs(5)), usual),
            ("-w t --sync none", Durability::None, usual),
            ("-w t --sync close", Durability::Close, usual),
            (
                "-w t --sync 500ms",
                Durability::Every(Duration::from_millis(500)),
                Duration::from_millis(100),
            ),
        ] {
            let plan = plan(line).unwrap();
            assert_eq!(
                (plan.durability, plan.flush_interval(usual)),
                (durability, flush_interval),
                "{line}"
            );
        }
    }

    #[test]
    fn the_extension_decides_format_and_compression() {
        for (name, format, compression) in [
            ("t", Format::Pcapng, Compression::None),
            ("t.pcap", Format::Pcap, Compression::None),
            ("t.pcapng.zst", Format::Pcapng, Compression::Zstandard),
            ("t.pcap.gz", Format::Pcap, Compression::Gzip),
            ("t.cap.zst", Format::Pcapng, Compression::Zstandard),
        ] {
            let plan = plan(&format!("-w {name}")).unwrap();
            assert_eq!(
                (plan.format, plan.compression, plan.pattern.is_none()),
                (format, compression, true),
                "{name}"
            );
        }
    }

    #[test]
    fn impossible_values_are_rejected() {
        for (line, words) in [
            ("-w t -W 3", "-C or -G"),
            ("-w t --keep-files 3", "--file-size"),
            ("-w t --keep-bytes 1M", "4M"),
            ("-w t --keep-bytes 10M --file-size 6M", "twice --file-size"),
            ("-w t -b filesize:x", "expected a number"),
            ("-w t -b what:3", "unknown condition"),
            ("-w t -a interval:3", "-a supports"),
            ("-w t -a files:3", "-b"),
            ("-w t%Q --file-packets 3", "%Q"),
            ("-w t --file-time 10ms", "at least 1s"),
            ("-w t --file-time 1500ms", "whole seconds"),
            ("-w t -b interval:1.5", "expected a number"),
            ("-w t -b duration:0", "expected a number of seconds"),
            ("-w t --sync 0s", "longer than 0"),
            ("-w t --file-time 1000001h", "at most 1000000h"),
            ("-w t -G 18446744073709551615", "at most 1000000h"),
        ] {
            let error = plan(line).expect_err(line);
            assert!(error.contains(words), "{line}: {error}");
        }
        assert_eq!(plan("-w t --keep-bytes 1G").unwrap().cut.bytes, Some((1 << 30) / 10));
    }

    #[test]
    fn rules_of_another_process_are_rejected_with_the_words_of_the_command_line() {
        let seconds = |seconds, is_aligned| json!([{ "secs": seconds, "nanos": 0 }, is_aligned]);
        for (rules, line) in [
            (json!({ "file_packets": 0 }), "--file-packets 0"),
            (json!({ "file_packets": 1, "keep_files": 0 }), "--file-packets 1 --keep-files 0"),
            (json!({ "keep_files": 3 }), "--keep-files 3"),
            (json!({ "keep_free": 1 }), "--keep-free 1"),
            (json!({ "keep_bytes": 1 }), "--keep-bytes 1"),
            (json!({ "keep_bytes": 0, "file_packets": 5 }), "--keep-bytes 0 --file-packets 5"),
            (
                json!({ "keep_bytes": 10_000_000, "file_bytes": 5_000_001 }),
                "--keep-bytes 10000000 --file-size 5000001",
            ),
            (json!({ "file_period": seconds(0, true) }), "--file-time 0"),
            (
                json!({ "file_period": [{ "secs": 1, "nanos": 1_000_000 }, true] }),
                "--file-time 1001ms",
            ),
            (json!({ "file_period": seconds(u64::MAX, false) }), "-G 18446744073709551615"),
            (json!({ "file_period": seconds(u64::MAX, true) }), "-b interval:18446744073709551615"),
        ] {
            let said = Rules::from_json(rules.clone()).expect_err(line);
            assert_eq!(plan(&format!("-w t {line}")).expect_err(line), said, "{rules}");
        }

        // What the command line cannot express, and a size and a period that its parser already
        // rejects.
        for (rules, words) in [
            (json!({ "file_bytes": 0 }), "--file-size must be at least 1"),
            (json!({}), "several files require"),
            (json!({ "file_packets": null }), "several files require"),
            (json!({ "file_period": seconds(0, false) }), "at least 0.001"),
            (json!({ "file_packets": -1 }), "invalid value: integer `-1`"),
            (json!({ "file_packets": 1.5 }), "invalid type"),
            (json!({ "file_packets": "5" }), "invalid type"),
            (json!({ "file_packets": 5, "file_size": 5 }), "unknown field `file_size`"),
            (json!({ "file_period": [{ "secs": u64::MAX, "nanos": u32::MAX }, true] }), "overflow"),
            (json!({ "file_period": 5 }), "invalid type"),
            (json!([1]), "\"rules\": "),
            (json!(true), "\"rules\": "),
        ] {
            let said = Rules::from_json(rules.clone()).expect_err(words);
            assert!(said.contains(words), "{rules}: {said}");
        }
    }

    #[test]
    fn rules_that_one_process_sends_are_those_that_another_one_gets() {
        for line in [
            "-w t --keep-bytes 1G --keep-files 1 --keep-free 20G",
            "-w t --file-size 2K --file-packets 1 --file-time 1s",
            "-w t -b duration:0.001",
        ] {
            let rules = plan(line).unwrap().rules().unwrap();
            assert_eq!(
                Rules::from_json(serde_json::to_value(&rules).unwrap()),
                Ok(rules),
                "{line}"
            );
        }
    }
}
