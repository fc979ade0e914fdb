//! `wirecap find`: finds packets in recordings by their indexes.

mod places;

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use wirecap::filter::FilterRequest;
use wirecap::grouped;
use wirecap::savefile::{FileSink, Format, Reader, Section, Sink, Writer};
use wirecap_index::{Between, Disk, FindError, Note, Outcome, Plan, Query, be_idle, plan};
use wirecap_recorder::{CompressedSink, Compression, format_of};
use wirecap_units::clock;
use wirecap_units::error::causes;

use crate::shared::failure::{Failure, without_numbers};
use crate::shared::output;
use crate::shared::progress::LiveLine;
use crate::shared::recording;
use crate::shared::screen::announce;
use crate::shared::signals::Interruption;
use crate::shared::sink::{self, Output};
use crate::size::{count_of, human_bytes};
pub(crate) use places::places_and_filter;

/// Find packets in recordings and write them in order of time
///
/// Uses the index beside each file (see wirecap-index(1)) to read only the parts that may contain
/// matching packets. A file without an index is read completely. Comments, names, secrets,
/// statistics and custom blocks of pcapng are kept. Files may be added and removed while the
/// command runs. It runs at idle CPU and I/O priority.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  wirecap find /data --from 17:00 --to 17:30 host 10.1.2.3 and tcp port 443 -w found.pcapng
  wirecap find /data --flow 10.1.2.3.443:10.9.9.9 | wirecap show -r - -nn
  wirecap find /data --count udp port 53")]
pub(crate) struct Arguments {
    /// Directories with all below them, files, or patterns such as 'rec/*.zst', then a filter
    ///
    /// The filter (see pcap-filter(7)) starts at the first word that is not the name of a file.
    #[arg(value_name = "DIR|FILTER", required = true)]
    words: Vec<String>,

    /// Only packets from this time on: 18:00, 2026-11-22T18:00:00.5, -10m
    ///
    /// Local time (with Z: UTC), a time before now, or seconds since 1970.
    #[arg(long, value_name = "TIME", value_parser = clock::time, allow_hyphen_values = true)]
    from: Option<u64>,

    /// Only packets before this time
    #[arg(long, value_name = "TIME", value_parser = clock::time, allow_hyphen_values = true)]
    to: Option<u64>,

    /// Only packets between two addresses: 10.0.0.1.443:10.0.0.2
    ///
    /// In both directions and with any VLAN tag, with or without ports as tcpdump prints them;
    /// IPv6: [fe80::1]:[fe80::2].53.
    #[arg(long, value_name = "A:B", value_parser = Between::parse)]
    flow: Option<Between>,

    /// The savefile; - is standard output. Format by extension, as in wirecap capture
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,

    /// Replace the savefile if it exists
    #[arg(long)]
    force: bool,

    /// Print the number of matching packets only
    #[arg(long, conflicts_with_all = ["list", "write", "force"])]
    count: bool,

    /// List the files that may contain matching packets, with their times
    #[arg(long, conflicts_with_all = ["write", "force"])]
    list: bool,
}

impl From<FindError> for Failure {
    fn from(error: FindError) -> Self {
        match error {
            FindError::Query(..) => Self::Usage(error.to_string()),
            FindError::Stopped => Self::Failed(error.into()),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    clock::check_order(arguments.from, arguments.to).map_err(Failure::Usage)?;
    let (segments, filter) = places_and_filter(&arguments.words)?;
    let filter = (!filter.is_empty()).then(|| FilterRequest::from(filter));
    let mut query = Query::new(filter, arguments.flow, arguments.from, arguments.to);
    query.check().map_err(|error| Failure::Usage(error.to_string()))?;

    if segments.is_empty() {
        let places = places::names(&arguments.words);
        return Err(Failure::Failed(format!("no recordings in {places}").into()));
    }

    Compression::check(&arguments.write).map_err(Failure::Usage)?;

    match output::is_standard_output(&arguments.write) {
        _ if arguments.count || arguments.list => output::check_open()?,
        true => {
            output::check_open()?;
            output::refuse_terminal()?;
        }
        false => {
            refuse_input(&segments, &arguments.write)?;
            output::check(&arguments.write, arguments.force)?;
        }
    }

    let begun = Instant::now();
    let mut find_progress = FindProgress::new()?;
    be_idle();

    let plan = plan(&segments, &mut query, &mut |note| find_progress.tell(&note))?;
    find_progress.live.clear();

    if arguments.list {
        list(&plan)?;
        return find_progress.outcome();
    }

    let found = Search { plan, query, find_progress, begun };
    if arguments.count {
        return found.count();
    }
    if output::is_standard_output(&arguments.write) {
        return found.write(sink::standard_output(false)?.sink, Format::Pcapng);
    }

    let Output { sink, .. } = sink::create(&arguments.write, None, arguments.force)?;
    let format = format_of(&arguments.write);
    let compression = Compression::of(&arguments.write);

    match compression {
        Compression::None => found.write(sink, format),
        compression => {
            let name = arguments.write.display().to_string();
            found.write(CompressedSink::new(FileSink::into_file(sink), name, compression)?, format)
        }
    }
}

/// A file cannot be read while it is overwritten.
fn refuse_input(segments: &[PathBuf], written: &Path) -> Result<(), Failure> {
    #[cfg(sabotage)]
    if crate::sabotage::is("found-packets-over-their-source") {
        return Ok(());
    }

    let Ok(output) = written.metadata() else { return Ok(()) };
    let is_output =
        |metadata: Metadata| (metadata.dev(), metadata.ino()) == (output.dev(), output.ino());
    match segments.iter().any(|segment| segment.metadata().is_ok_and(is_output)) {
        true => {
            let name = written.display();
            Err(Failure::Usage(format!(
                "{name} is one of the files that are read: write to another one"
            )))
        }
        false => Ok(()),
    }
}

struct Search {
    plan: Plan,
    query: Query,
    find_progress: FindProgress,
    begun: Instant,
}

impl Search {
    fn count(mut self) -> Result<(), Failure> {
        let Self { plan, query, find_progress, .. } = &mut self;
        let outcome =
            plan.run::<Failure>(query, &mut |note| find_progress.tell(&note), &mut |_| Ok(true))?;
        output::print(outcome.packets)?;
        self.end(&outcome)
    }

    fn write<S: Sink>(mut self, sink: S, format: Format) -> Result<(), Failure> {
        let writer = Writer::new(sink, format, &section(&self.plan));
        let Self { plan, query, find_progress, .. } = &mut self;
        match plan.extract::<S, Failure>(
            &Disk,
            query,
            &mut |note| find_progress.tell(&note),
            writer,
        )? {
            Some(outcome) => self.end(&outcome),
            // A reader that has seen enough.
            None => Ok(()),
        }
    }

    /// Reports what was read.
    fn end(mut self, outcome: &Outcome) -> Result<(), Failure> {
        self.find_progress.live.clear();
        let segments = &self.plan.segments;
        let bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
        announce(&format!(
            "found {} packets in {} of {} files: read {} of {} in {:.1} s",
            grouped(outcome.packets),
            self.plan.candidates().count(),
            segments.len(),
            human_bytes(outcome.read_bytes + self.plan.scanned_bytes),
            human_bytes(bytes),
            self.begun.elapsed().as_secs_f64(),
        ));

        let scanned: Vec<_> = segments.iter().filter(|segment| segment.without.is_some()).collect();
        if !scanned.is_empty() {
            let oldest =
                scanned.iter().filter_map(|segment| segment.times).map(|(first, _)| first).min();
            let lag = oldest.map(|oldest| {
                format!(": the oldest packet in them is {}", clock::lag(oldest, clock::now()))
            });
            announce(&format!(
                "{} ({}) without a valid index read completely{}",
                count_of(scanned.len() as u64, "file", "files"),
                human_bytes(self.plan.scanned_bytes),
                lag.unwrap_or_default(),
            ));
        }

        self.find_progress.outcome()
    }
}

/// The section of the packets found: with the comments of the recordings, and with the host if it
/// is the same in all.
fn section(plan: &Plan) -> Section {
    /// Of more recordings, the first ones are read.
    const READ_MAX: usize = 1000;
    let readers =
        plan.candidates().take(READ_MAX).filter_map(|segment| Reader::open(&segment.path).ok());
    let sections: Vec<Section> = readers.map(|reader| reader.section().clone()).collect();
    let mut comments: Vec<String> = Vec::new();

    for comment in sections.iter().filter_map(|section| section.comment.clone()) {
        if !comments.contains(&comment) {
            comments.push(comment);
        }
    }

    let same = |text: fn(&Section) -> &Option<String>| {
        let first = text(sections.first()?).clone();
        first.filter(|first| sections.iter().all(|section| text(section).as_ref() == Some(first)))
    };
    Section {
        comment: (!comments.is_empty()).then(|| comments.join("\n")),
        os: same(|section| &section.os),
        hardware: same(|section| &section.hardware),
        ..recording::section()
    }
}

fn list(plan: &Plan) -> Result<(), Failure> {
    plan.candidates().try_for_each(output::print)?;
    let count = plan.candidates().count();
    let all = plan.segments.len();
    announce(&format!("{count} of {all} files may have matching packets"));
    Ok(())
}

/// Reports events while files are read.
pub(crate) struct FindProgress {
    interruption: Interruption,
    pub(crate) live: LiveLine,
    faulty: usize,
}

impl FindProgress {
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self { interruption: Interruption::watch()?, live: LiveLine::new(), faulty: 0 })
    }

    /// Whether to continue.
    pub(crate) fn tell(&mut self, note: &Note<'_>) -> bool {
        match note {
            Note::Looked(index, count) if self.live.is_due().is_some() => {
                self.live.show(format!("{index} of {count} files"));
            }
            Note::Scanning(path, bytes) if self.live.is_due().is_some() => {
                self.live.show(format!(
                    "reading {}, which has no valid index: {}",
                    path.display(),
                    human_bytes(*bytes)
                ));
            }
            Note::Looked(..) | Note::Scanning(..) => {}
            Note::Vanished(path) => {
                announce(&format!("{} was removed before all of it was read", path.display()));
            }
            Note::NotDissected(path, link_type) => announce(&format!(
                "{}: packets of link type {} are not dissected, so --flow finds none of them; use a filter",
                path.display(),
                link_type.0
            )),
            Note::Faulty(path, error) => {
                self.faulty += 1;
                let path = path.display().to_string();
                let error = without_numbers(&causes(*error));
                // An error of opening names the file itself.
                announce(&if error.contains(&path) { error } else { format!("{path}: {error}") });
            }
        }
        !self.interruption.came()
    }

    /// Unreadable files make the command fail, after it has done everything possible.
    pub(crate) fn outcome(&self) -> Result<(), Failure> {
        match self.faulty {
            0 => Ok(()),
            1 => Err(Failure::Failed("one file could not be read completely".into())),
            count => {
                Err(Failure::Failed(format!("{count} files could not be read completely").into()))
            }
        }
    }
}
