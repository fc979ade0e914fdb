//! `wirecap index`: the indexes of recordings that are missing or damaged.

use std::error::Error;
use std::path::Path;

use clap::Args;
use wirecap::grouped;
use wirecap_index::{EnsureError, Ensured, Note, be_idle, ensure, index_path};

use crate::search::find::{FindProgress, places_and_filter};
use crate::shared::failure::Failure;
use crate::shared::output;
use crate::shared::screen::announce;
use crate::size::{count_of, human_bytes};

/// Write missing or damaged indexes of recordings
///
/// The index of FILE is FILE.flows.parquet: one row per flow and minute. wirecap find uses it to
/// read only the parts that may match; other Parquet tools can query it. wirecap capture --index on
/// writes it for each complete file. The command runs at idle CPU and I/O priority.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Directories, files, or patterns such as 'rec/*.zst'
    #[arg(value_name = "DIR", required = true)]
    places: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (segments, rest) = places_and_filter(&arguments.places)?;
    if !rest.is_empty() {
        return Err(Failure::Usage(format!("{rest}: no such file or directory")));
    }

    let mut find_progress = FindProgress::new()?;
    be_idle();

    let mut written = 0;
    let mut there = 0;
    let mut open = 0;
    let mut faulty = 0;
    let count = segments.len();

    for (number, segment) in segments.iter().enumerate() {
        if segment.extension().is_some_and(|extension| extension == "part") {
            open += 1;
            continue;
        }

        let mut stopped = !find_progress.tell(&Note::Looked(number, count));
        let size = segment.metadata().map_or(0, |metadata| metadata.len());

        let mut progress = |bytes: u64| {
            if find_progress.live.is_due().is_some() {
                let share = bytes * 100 / size.max(1);
                let name = segment.display();
                find_progress.live.show(format!(
                    "{name}: {share} % of {}, file {} of {count}",
                    human_bytes(size),
                    number + 1
                ));
            }

            stopped = !find_progress.tell(&Note::Looked(number, count));
            !stopped
        };
        match ensure(segment, &mut progress) {
            Ok(Ensured::There) => there += 1,
            Ok(Ensured::Written { because, bytes, packets, rows }) => {
                written += 1;
                output::print(format!(
                    "{}: {} packets in {} rows, {} ({because})",
                    index_path(segment).display(),
                    grouped(packets),
                    grouped(rows as u64),
                    human_bytes(bytes),
                ))?;
            }
            Ok(Ensured::Faulty(fault)) => faulty += tell(&mut find_progress, segment, &fault),
            Err(_) if stopped => break,
            Err(EnsureError::Vanished) => {
                find_progress.tell(&Note::Vanished(segment));
            }
            Err(fault) => faulty += tell(&mut find_progress, segment, &fault),
        }

        if stopped {
            break;
        }
    }

    find_progress.live.clear();
    let being_written = if open > 0 { format!(", {open} not complete") } else { String::new() };
    announce(&format!(
        "{} written, {there} existed, {} failed{being_written}",
        count_of(written, "index", "indexes"),
        count_of(faulty as u64, "file", "files")
    ));

    find_progress.outcome()
}

fn tell(find_progress: &mut FindProgress, segment: &Path, fault: &dyn Error) -> usize {
    find_progress.tell(&Note::Faulty(segment, fault));
    1
}
