//! `wirecap capture -r`: copies the matching packets of a savefile to another one, with all other
//! contents that the format can store.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::fstat;
use wirecap::filter::{CompiledFilter, Context, FilterRequest};
use wirecap::savefile::{
    Conversion, ConversionError, Converted, Format, Interface, LeftOut, LinkType, Reader, Record,
    Sink,
};
use wirecap::{Account, Ledger, Recorded, RingLedger, grouped};
use wirecap_units::error::causes;

use super::Arguments;
use crate::shared::failure::Failure;
use crate::shared::output;
use crate::shared::recording;
use crate::shared::screen::announce;
use crate::shared::signals::Interruption;
use crate::shared::sink::{Output, TimedSink, Writing};
use crate::size;

/// Number of packets between two checks of the clock and of signals.
const LOOK_PACKETS: u64 = 4096;

/// A file cannot be read while it is overwritten.
pub(super) fn refuse_itself(source: &Path, arguments: &Arguments) -> Result<(), Failure> {
    let Ok(read) = fs::metadata(source).map(|metadata| same_file(&metadata)) else { return Ok(()) };
    let written = match output::is_standard_output(&arguments.write) {
        true => fstat(io::stdout()).ok().map(|status| (status.st_dev, status.st_ino)),
        false => fs::metadata(&arguments.write).ok().map(|metadata| same_file(&metadata)),
    };
    match written {
        Some(written)
            if written == read && fs::metadata(source).is_ok_and(|metadata| metadata.is_file()) =>
        {
            let source = source.display();
            let name = arguments.name();
            Err(Failure::Usage(format!("{name} is the input file {source}: write to another one")))
        }
        _ => Ok(()),
    }
}

/// Identifies a file, whatever its name.
fn same_file(metadata: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

pub(super) fn run<S: Sink>(
    arguments: &Arguments,
    source: &Path,
    format: Format,
    create: impl FnOnce(Option<Instant>) -> Result<Output<S>, Failure>,
) -> Result<(), Failure> {
    let options = &arguments.options;
    let begun = Instant::now();
    let mut filter = FileFilter::new(arguments.filter.request()?, source);
    let deadline = options.duration.map(|duration| begun + duration);
    let interruption = Interruption::watch()?;
    let cannot = |problem: &dyn std::fmt::Display| {
        Failure::Failed(format!("{}: {problem}", source.display()).into())
    };
    let file = File::open(source).map_err(|error| {
        Failure::Failed(format!("cannot open {}: {error}", source.display()).into())
    })?;
    let reader = Reader::from_start(file).map_err(|error| cannot(&causes(&error)))?;

    filter.check(source)?;
    eprintln!("reading {}", source.display());

    let writing = Writing::to(arguments.name());
    let output = create(deadline)?;
    let sink = TimedSink::new(output.sink, &writing);

    let snap_len = match options.interfaces.snap_len {
        wirecap::DEFAULT_SNAP_LEN => 0,
        snap_len => snap_len,
    };
    let mut conversion = Conversion::new(reader, sink, format, snap_len);
    let mut pipe = output.pipe;
    let mut left = options.count.unwrap_or(u64::MAX);
    let mut account = Account { filtered: Some(0), ..Account::default() };
    let mut is_unreadable = false;
    let mut steps = 0;

    let outcome = loop {
        let mut wire_len = 0;
        let step = conversion.step(|record, interfaces| {
            wire_len = u64::from(record.wire_len);
            filter.chooses(record, interfaces)
        });
        match step {
            Ok(Converted::Packet) => {
                account.delivered += 1;
                account.bytes += wire_len;
                left -= 1;
                if let Some(pipe) = &mut pipe {
                    pipe.packet_ends_at(conversion.writer().file_bytes());
                }
            }
            Ok(Converted::Other) => {
                account.filtered = account.filtered.map(|filtered| filtered + 1);
            }
            Ok(Converted::Block) => {}
            Ok(Converted::End) => break Ok(()),
            Err(ConversionError::Write(error)) => break Err(Failure::from(error)),
            Err(ConversionError::Read(error)) => {
                is_unreadable = true;
                break Err(cannot(&causes(&error)));
            }
        }
        if let Some(failure) = filter.failure.take() {
            break Err(failure);
        }
        steps += 1;
        let is_over =
            || interruption.came() || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if left == 0 || steps % LOOK_PACKETS == 0 && is_over() {
            break Ok(());
        }
    };
    let written = conversion.writer().packets();
    let file_bytes = conversion.writer().file_bytes();
    let finished =
        conversion.finish().and_then(|(writer, left_out)| writer.finish().map(|_| left_out));
    let whole = match &finished {
        Ok(_) => written,
        Err(error) => recording::safely_written(error).unwrap_or(written),
    };

    let (outcome, left_out) = match (outcome, finished) {
        (outcome, Ok(left_out)) => (outcome, left_out),
        (Ok(()), Err(error)) => (Err(error.into()), LeftOut::default()),
        (outcome, Err(_)) => (outcome, LeftOut::default()),
    };
    let whole = outcome.as_ref().err().and_then(super::safely_written).unwrap_or(whole);
    let unread = pipe.as_ref().map_or(0, |pipe| pipe.packets_unread(writing.accepted_bytes()));
    let in_file = recording::in_file(written, whole, unread);
    let mut recorded = Recorded { to: arguments.name(), written, in_file, ..Recorded::default() };

    if unread > 0 || output::is_broken_pipe(&outcome) {
        recorded.reader_left(account.delivered);
    }

    if outcome.is_ok() {
        let packets = grouped(written);
        let bytes = size::human_bytes(file_bytes);
        eprintln!("wrote {packets} packets, {bytes}, to {}", writing.name());
    }

    if left_out != LeftOut::default() {
        announce(&format!("omitted, because pcap cannot store it: {left_out}"));
    }

    let ledger = ledger(source, is_unreadable, account, recorded, begun.elapsed());
    options.report_briefly(&ledger, arguments.verbose > 0, arguments.hint())?;

    output::unless_broken_pipe(outcome).and(Failure::unless_lossless(&ledger))
}

fn ledger(
    source: &Path,
    is_unreadable: bool,
    mut account: Account,
    recorded: Recorded,
    duration: Duration,
) -> Ledger {
    account.offered = account.delivered;
    account.seen = account.filtered.map(|filtered| account.offered + filtered);

    let ring = RingLedger { name: source.display().to_string(), account: account.clone() };
    Ledger {
        engine: "file",
        mode: "copy".to_owned(),
        total: account,
        duration,
        rings: vec![ring],
        interfaces: Vec::new(),
        ports: Vec::new(),
        recorded: Some(recorded),
        lost_later: Vec::new(),
        device_drops: vec![None],
        unseen: Vec::new(),
        counted: Vec::new(),
        quiet_since: Vec::new(),
        starved_wrong: false,
        unreadable: is_unreadable.then(|| source.display().to_string()),
        warnings: Vec::new(),
    }
}

/// The filter, compiled for each of the file's interfaces.
struct FileFilter<'a> {
    request: Option<FilterRequest>,
    source: &'a Path,
    compiled: Vec<CompiledFilter>,
    /// Why it could not be compiled.
    failure: Option<Failure>,
}

impl<'a> FileFilter<'a> {
    fn new(request: Option<FilterRequest>, source: &'a Path) -> Self {
        Self { request, source, compiled: Vec::new(), failure: None }
    }

    /// Finds a fault before anything is written: for a pipe, which can be read only once, a fault
    /// of the first packet.
    fn check(&self, source: &Path) -> Result<(), Failure> {
        if !fs::metadata(source).is_ok_and(|metadata| metadata.is_file()) {
            return Ok(());
        }
        let reader = Reader::open(source)?;
        let link_type = reader.interfaces().first().map(|interface| interface.link_type);
        self.compile(link_type.unwrap_or_default()).map(drop)
    }

    fn compile(&self, link_type: LinkType) -> Result<Option<CompiledFilter>, Failure> {
        let Some(request) = &self.request else { return Ok(None) };
        let filter = request
            .compile_for_file(link_type)
            .map_err(|error| Failure::Usage(error.to_string()))?;
        let compiled = CompiledFilter::for_file(&filter).map_err(|error| {
            let source = self.source.display();
            Failure::Failed(format!("cannot filter packets of {source}: {error}").into())
        })?;
        Ok(Some(compiled))
    }

    fn chooses(&mut self, record: &Record<'_>, interfaces: &[Interface]) -> bool {
        while self.compiled.len() <= record.interface as usize {
            match self.compile(interfaces[self.compiled.len()].link_type) {
                Ok(Some(compiled)) => self.compiled.push(compiled),
                Ok(None) => return true,
                Err(failure) => {
                    self.failure = Some(failure);
                    return false;
                }
            }
        }
        let compiled = &self.compiled[record.interface as usize];
        compiled.matches(record.data, record.wire_len, &Context::default()) > 0
    }
}
