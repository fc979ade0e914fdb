//! `wirecap profile`: packets per ring over time (the paper's queue_profiler and its Figure 3),
//! which shows the effect of a NIC's hash: long-term imbalance between queues, and bursts within
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use wirecap::{Capture, CaptureError, Chunk, RingName, Timestamps, grouped};

use crate::host::devices;
use crate::losses;
use crate::shared::control::Control;
use crate::shared::failure::Failure;
use crate::shared::filter::{FilterOptions, filtered};
use crate::shared::options::{CaptureOptions, END_AND_OUTPUT};
use crate::shared::output;
use crate::shared::progress::Progress;
use crate::shared::service;
use crate::shared::sink;
use crate::size;
use crate::watch::svg::{Anchor, Picture};

/// Show packets per ring over time, as CSV and as a chart
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: CaptureOptions,

    /// Length of a bin
    #[arg(long, value_name = "TIME", value_parser = size::duration, default_value = "10ms", help_heading = END_AND_OUTPUT)]
    bin: Duration,

    /// Write the counts as CSV: a row per bin, a column per ring; - is stdout
    ///
    /// Of consecutive bins without packets, only the first and the last are written.
    #[arg(long, value_name = "FILE", help_heading = END_AND_OUTPUT)]
    csv: Option<PathBuf>,

    /// Write the counts as an SVG chart
    #[arg(long, value_name = "FILE", help_heading = END_AND_OUTPUT)]
    svg: Option<PathBuf>,

    /// Replace the files of --csv and --svg if they exist
    #[arg(long, help_heading = END_AND_OUTPUT)]
    force: bool,

    #[command(flatten)]
    filter: FilterOptions,
}

const PATIENCE: Duration = Duration::from_millis(200);
/// Columns of the chart on the terminal.
const CHART_COLUMNS: usize = 64;
/// Maximum columns of the picture: no more than it has pixels.
const PICTURE_COLUMNS: usize = 600;
/// The picture's sizes, in pixels: above the rows are the title and the scale, below them the axis.
const PICTURE_WIDTH: u32 = 960;
const HEAD_HEIGHT: u32 = 56;
const FOOT_HEIGHT: u32 = 34;
const COUNTS_WIDTH: i32 = 110;
const MARGIN: i32 = 10;
/// Maximum parts of the axis.
const TICKS_MAX: f64 = 7.0;

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.options.habits.list_interfaces {
        return devices::list();
    }
    if arguments.bin.as_nanos() == 0 {
        return Err(Failure::Usage("--bin must be longer than 0".to_owned()));
    }

    let filter = arguments.filter.request()?;

    for path in [&arguments.csv, &arguments.svg].into_iter().flatten() {
        if !output::is_standard_output(path) {
            output::check(path, arguments.force)?;
        }
    }

    let capture = arguments
        .options
        .open(|builder| filtered(builder, filter).workers(1).timestamps(Timestamps::Batch))?;

    // Checked before the capture: a wrong path is reported at once.
    let create = |path: &Path| create(path, arguments.force);
    let csv = arguments.csv.as_deref().map(create).transpose()?;
    let svg =
        arguments.svg.as_deref().map(|path| create(path).map(|file| (path, file))).transpose()?;
    let mut profile = Profile::new(&capture.rings(), arguments.bin);

    service::ready();
    let outcome = losses::watched(&capture, None, &Control::none(), || {
        collect(&capture, &arguments.options, &mut profile)
    });
    let ledger = capture.close();

    eprintln!("{}", profile.chart());

    if let Some(csv) = csv {
        match arguments.csv.as_deref().is_some_and(output::is_standard_output) {
            true => output::printed(profile.write_csv(csv))?,
            false => profile.write_csv(csv)?,
        }
    }

    if let Some((path, mut file)) = svg {
        let written = file.write_all(profile.picture().as_bytes()).and_then(|()| file.flush());
        written.map_err(|error| output::cannot_write(path, &error))?;
        eprintln!("drew {}", path.display());
    }

    arguments.options.report(&ledger)?;
    outcome?;

    Failure::unless_lossless(&ledger)
}

fn create(path: &Path, replaces: bool) -> Result<Box<dyn Write>, Failure> {
    if output::is_standard_output(path) {
        output::check_open()?;
        return Ok(Box::new(io::stdout()));
    }
    Ok(Box::new(BufWriter::new(sink::create(path, None, replaces)?.sink.into_file())))
}

fn collect(
    capture: &Capture,
    options: &CaptureOptions,
    profile: &mut Profile,
) -> Result<(), CaptureError> {
    let mut worker = capture.workers().pop().expect("a new capture has its workers");
    let mut progress = Progress::new(options.habits.quiet);
    let deadline = options.duration.map(|duration| Instant::now() + duration);

    while !worker.is_finished() {
        if let Some(chunk) = worker.next_chunk_timeout(PATIENCE)? {
            profile.add(&chunk);
        }
        let enough = options.count.is_some_and(|count| profile.packets >= count);
        if enough || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            capture.stop();
        }
        progress.tick(capture);
    }

    Ok(())
}

/// Packets per ring and bin of time.
#[derive(Debug)]
struct Profile {
    rings: Vec<String>,
    bin_nanos: u64,
    /// By ring: the bins that have packets, by their numbers counted from the epoch. A file may
    /// have a packet of today and one of 1970.
    counts: Vec<BTreeMap<u64, u32>>,
    /// By ring: bytes of its packets on the wire.
    bytes: Vec<u64>,
    packets: u64,
    /// Packets without a time, which are in no bin.
    untimed: u64,
    /// The first and the last time, in nanoseconds since the epoch.
    times: Option<(u64, u64)>,
}

impl Profile {
    fn new(rings: &[RingName], bin: Duration) -> Self {
        Self {
            rings: rings.iter().map(ToString::to_string).collect(),
            bin_nanos: bin.as_nanos() as u64,
            counts: vec![BTreeMap::new(); rings.len()],
            bytes: vec![0; rings.len()],
            packets: 0,
            untimed: 0,
            times: None,
        }
    }

    fn add(&mut self, chunk: &Chunk) {
        self.packets += chunk.len() as u64;

        // Its receive queue may have been added during the capture, after other queues without
        // packets.
        while self.counts.len() <= chunk.ring_index() {
            self.counts.push(BTreeMap::new());
            self.bytes.push(0);
            self.rings.push(chunk.ring().to_string());
        }

        for packet in chunk {
            match packet.timestamp() {
                Some(time) => self.count(chunk.ring_index(), time.unix_nanos(), packet.wire_len()),
                None => self.untimed += 1,
            }
        }
    }

    /// Counts a packet.
    fn count(&mut self, ring: usize, time_nanos: u64, bytes: u32) {
        let (first, last) = self.times.unwrap_or((time_nanos, time_nanos));
        self.times = Some((first.min(time_nanos), last.max(time_nanos)));
        self.bytes[ring] += u64::from(bytes);
        *self.counts[ring].entry(time_nanos / self.bin_nanos).or_default() += 1;
    }

    /// The number of the first bin that has a packet.
    fn first_bin(&self) -> u64 {
        self.counts.iter().filter_map(|counts| counts.keys().next()).copied().min().unwrap_or(0)
    }

    /// Number of bins from the first to the last one with packets.
    fn bins(&self) -> u64 {
        let last = self.counts.iter().filter_map(|counts| counts.keys().next_back()).copied().max();
        last.map_or(0, |last| last - self.first_bin() + 1)
    }

    fn seconds(&self, bins: u64) -> f64 {
        bins as f64 * self.bin_nanos as f64 / 1e9
    }

    /// The mean rate of a count, from the first packet to the last one: the first and the last bin
    /// are only partly covered. `None` if all packets have the same time.
    fn mean(&self, count: u64) -> Option<f64> {
        let (first, last) = self.times.filter(|(first, last)| first < last)?;
        Some(count as f64 * 1e9 / (last - first) as f64)
    }

    /// The bins that are written, counted from the first: those with packets, and of those between
    /// them the first and the last, so that lines drawn between them go down to zero.
    fn written_bins(&self) -> BTreeSet<u64> {
        let first = self.first_bin();
        let bins = self.bins();
        let with_packets = self.counts.iter().flat_map(BTreeMap::keys).map(|bin| bin - first);
        with_packets.flat_map(|bin| [bin.saturating_sub(1), bin, (bin + 1).min(bins - 1)]).collect()
    }

    fn write_csv(&self, mut out: impl Write) -> io::Result<()> {
        writeln!(out, "seconds,{}", self.rings.join(","))?;
        let first = self.first_bin();
        for bin in self.written_bins() {
            write!(out, "{:.6}", self.seconds(bin))?;
            for counts in &self.counts {
                write!(out, ",{}", counts.get(&(first + bin)).copied().unwrap_or(0))?;
            }
            writeln!(out)?;
        }
        out.flush()
    }

    /// A row per ring for the terminal: its packets, its mean and highest rate, and how they went.
    fn chart(&self) -> String {
        let bins = self.bins();
        if bins == 0 && self.untimed == 0 {
            return "no packets arrived".to_owned();
        }

        let untimed = size::count_of(self.untimed, "packet has", "packets have");
        if bins == 0 {
            return format!("{untimed} no time");
        }

        let columns = (CHART_COLUMNS as u64).min(bins) as usize;
        let first = self.first_bin();
        let peaks: Vec<Vec<u32>> =
            self.counts.iter().map(|counts| peaks(counts, first, bins, columns)).collect();
        let highest = peaks.iter().flatten().copied().max().unwrap_or(0).max(1);
        let name_width = self.rings.iter().map(String::len).max().unwrap_or(0);
        let seconds = self.seconds(bins);
        let mut text = format!(
            "{seconds:.2} s in bins of {}; the highest has {} packets\n",
            self.bin(),
            grouped(highest.into())
        );

        for (ring, name) in self.rings.iter().enumerate() {
            let counts = &self.counts[ring];
            let peaks = &peaks[ring];
            let total: u64 = counts.values().map(|&count| u64::from(count)).sum();
            let bars: String =
                peaks.iter().map(|&peak| level(peak.into(), highest.into())).collect();
            let most = counts.values().copied().max().unwrap_or(0);
            let rate = |count: u64| self.mean(count).map(size::human_rate);
            let rates = match (rate(total), rate(self.bytes[ring] * 8)) {
                (Some(packets), Some(bits)) => format!(", {packets}p/s, {bits}bit/s"),
                _ => String::new(),
            };
            text += &format!(
                "{name:<name_width$} {bars} {:>12} packets{rates}, at most {} a bin\n",
                grouped(total),
                grouped(most.into()),
            );
        }

        if self.untimed > 0 {
            text += &format!("{untimed} no time, and are not shown\n");
        }

        text.pop();
        text
    }

    /// A row per ring and a column per time, darker with more packets, with the rings' totals
    /// beside them. All rings have one axis, so simultaneous events are in one column.
    fn picture(&self) -> String {
        let mut picture = Picture::new(PICTURE_WIDTH, self.picture_height());
        self.draw_on(&mut picture);
        picture.finish()
    }

    /// The length of a bin in words.
    fn bin(&self) -> String {
        match self.bin_nanos {
            nanos if nanos >= 1_000_000_000 => format!("{} s", nanos as f64 / 1e9),
            nanos => format!("{} ms", nanos as f64 / 1e6),
        }
    }

    fn picture_height(&self) -> u32 {
        HEAD_HEIGHT + self.row_height() * self.rings.len().max(1) as u32 + FOOT_HEIGHT
    }

    /// Rows are lower where there are many.
    fn row_height(&self) -> u32 {
        (480 / self.rings.len().max(1) as u32).clamp(14, 48)
    }

    fn draw_on(&self, picture: &mut Picture) {
        let highest =
            self.counts.iter().flat_map(BTreeMap::values).copied().max().unwrap_or(0).max(1);
        let bins = self.bins().max(1);
        let columns = (PICTURE_COLUMNS as u64).min(bins) as usize;
        let first = self.first_bin();
        let row_height = self.row_height() as i32;
        let title = format!("packets per {} and ring", self.bin());
        picture.text((MARGIN, 10), 18, Anchor::Left, &title);
        draw_scale(picture, highest);

        let left = MARGIN + 7 * self.rings.iter().map(String::len).max().unwrap_or(0) as i32 + 8;
        let right = PICTURE_WIDTH as i32 - COUNTS_WIDTH;
        let x =
            |column: usize| left + ((right - left) as i64 * column as i64 / columns as i64) as i32;
        let top = HEAD_HEIGHT as i32;
        let bottom = top + row_height * self.rings.len() as i32;

        for (row, (name, counts)) in (0..).zip(self.rings.iter().zip(&self.counts)) {
            let y = top + row * row_height;
            let middle = y + row_height / 2 - 6;
            picture.text((MARGIN, middle), 12, Anchor::Left, name);
            let total: u64 = counts.values().map(|&count| u64::from(count)).sum();
            picture.text((right + 8, middle), 12, Anchor::Left, &grouped(total));
            for (begin, end, count) in runs(&peaks(counts, first, bins, columns)) {
                picture.filled((x(begin), y), (x(end), y + row_height - 1), shade(count, highest));
            }
        }

        picture.text((right + 8, top - 16), 12, Anchor::Left, "packets");
        picture.frame((left, top), (right, bottom));

        let seconds = self.seconds(bins);
        for (tick, label) in ticks(seconds) {
            let at = left + (f64::from(right - left) * tick / seconds).round() as i32;
            picture.line((at, bottom), (at, bottom + 4));
            picture.text((at, bottom + 8), 12, Anchor::Centre, &label);
        }
    }
}

/// Round times on an axis of `seconds`, with their labels; the last one has the unit.
fn ticks(seconds: f64) -> Vec<(f64, String)> {
    let power = 10_f64.powf((seconds / TICKS_MAX).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| seconds / step <= TICKS_MAX).unwrap_or(seconds);
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    let count = (seconds / step + 1e-9).floor() as u32;
    let label = |tick: f64| match decimals {
        0 => grouped(tick as u64),
        decimals => format!("{tick:.decimals$}"),
    };
    let unit = |index| if index == count { " s" } else { "" };
    let at = |index| f64::from(index) * step;
    (0..=count).map(|index| (at(index), label(at(index)) + unit(index))).collect()
}

/// What the shades mean: powers of ten up to the highest count.
fn draw_scale(picture: &mut Picture, highest: u32) {
    let powers = (0..10).map(|power| 10_u32.pow(power)).take_while(|&count| count < highest);
    let mut x = PICTURE_WIDTH as i32 - 90;
    for count in powers.chain([highest]).collect::<Vec<_>>().into_iter().rev() {
        picture.filled((x, 12), (x + 14, 26), shade(count, highest));
        picture.text((x + 18, 13), 12, Anchor::Left, &grouped(count.into()));
        x -= 90;
        if x < PICTURE_WIDTH as i32 / 3 {
            break;
        }
    }
}

/// From light to dark, by the logarithm: a single packet is visible beside a million, and all
/// shades differ without colours.
fn shade(count: u32, highest: u32) -> [u8; 3] {
    let share = match highest {
        1 => 1.0,
        highest => f64::from(count).ln() / f64::from(highest).ln(),
    };
    let light = (198.0, 219.0, 239.0);
    let dark = (8.0, 29.0, 88.0);
    let mix = |light: f64, dark: f64| (light + (dark - light) * share).round() as u8;
    [mix(light.0, dark.0), mix(light.1, dark.1), mix(light.2, dark.2)]
}

/// Columns of the same count that follow each other, without those of no packets: a beginning, an
/// end and the count.
fn runs(peaks: &[u32]) -> Vec<(usize, usize, u32)> {
    let mut runs: Vec<(usize, usize, u32)> = Vec::new();
    for (column, &count) in peaks.iter().enumerate().filter(|(_, count)| **count > 0) {
        match runs.last_mut() {
            Some((_, end, before)) if *end == column && *before == count => *end = column + 1,
            _ => runs.push((column, column + 1, count)),
        }
    }
    runs
}

/// One of `columns` equal parts of `bins` bins.
fn part(column: usize, bins: u64, columns: usize) -> Range<u64> {
    let edge = |column: usize| (column as u128 * u128::from(bins) / columns as u128) as u64;
    edge(column)..edge(column + 1)
}

/// The highest count in each of `columns` equal parts of `bins` bins from `first` on.
fn peaks(counts: &BTreeMap<u64, u32>, first: u64, bins: u64, columns: usize) -> Vec<u32> {
    let highest = |column| {
        let part = part(column, bins, columns);
        counts
            .range(first + part.start..first + part.end)
            .map(|(_, &count)| count)
            .max()
            .unwrap_or(0)
    };
    (0..columns).map(highest).collect()
}

/// A bar of eight heights; empty only for 0.
pub(crate) fn level(count: u64, highest: u64) -> char {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    if count == 0 {
        return ' ';
    }
    LEVELS[((count * 8).div_ceil(highest) as usize).clamp(1, 8) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let ring = |queue| RingName::of_queue("eth0", queue);
        let mut profile = Profile::new(&[ring(0), ring(1)], Duration::from_millis(10));
        let second = 1_000_000_000;
        for millis in [0, 9, 10, 35] {
            profile.count(0, second + millis * 1_000_000, 60);
        }
        // Before the first ring's first packet.
        profile.count(1, second - 15_000_000, 60);
        profile
    }

    #[test]
    fn packets_fall_into_the_bins_of_their_times() {
        let mut csv = Vec::new();
        profile().write_csv(&mut csv).unwrap();
        let lines: Vec<String> =
            String::from_utf8(csv).unwrap().lines().map(str::to_owned).collect();
        let expected = ["seconds,eth0@0,eth0@1", "0.000000,0,1", "0.010000,0,0", "0.020000,2,0"];
        assert_eq!(lines[..4], expected);
        assert_eq!(lines[4..], ["0.030000,1,0", "0.040000,0,0", "0.050000,1,0"]);
    }

    #[test]
    fn ticks_are_round_times() {
        let labels = |seconds| {
            ticks(seconds).into_iter().map(|(_, label)| label).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(labels(6.1), "0 1 2 3 4 5 6 s");
        assert_eq!(labels(1.0), "0.0 0.2 0.4 0.6 0.8 1.0 s");
        assert_eq!(labels(0.06), "0.00 0.01 0.02 0.03 0.04 0.05 0.06 s");
        assert_eq!(labels(184_280_864.0), "0 50,000,000 100,000,000 150,000,000 s");
    }

    #[test]
    fn the_chart_has_a_row_per_ring() {
        let chart = profile().chart();
        let rows: Vec<&str> = chart.lines().collect();
        assert_eq!(rows.len(), 3);
        assert!(rows[1].starts_with("eth0@0   █▄ ▄ "), "{}", rows[1]);
        assert!(rows[2].starts_with("eth0@1 ▄     "), "{}", rows[2]);
    }

    #[test]
    fn the_mean_rate_is_from_the_first_packet_to_the_last() {
        let ring = RingName::of_queue("eth0", 0);
        let mut profile = Profile::new(&[ring], Duration::from_secs(1));
        // 303 packets in 3 s, which touch four bins.
        for packet in 0..303 {
            profile.count(0, 10_500_000_000 + packet * 3_000_000_000 / 302, 125);
        }
        let chart = profile.chart();
        assert!(chart.contains("303 packets, 101 p/s, 101 kbit/s, at most 101 a bin"), "{chart}");
        let mut moment = Profile::new(&[RingName::of_queue("eth0", 0)], Duration::from_secs(1));
        moment.count(0, 7, 60);
        assert!(moment.chart().ends_with("1 packets, at most 1 a bin"), "{}", moment.chart());
    }

    #[test]
    fn many_bins_are_shown_by_the_highest_of_each_column() {
        let counts = [1, 9, 2, 3, 4, 5]
            .into_iter()
            .enumerate()
            .map(|(bin, count)| (100 + bin as u64, count));
        assert_eq!(peaks(&counts.collect(), 100, 8, 4), [9, 3, 5, 0]);
    }

    #[test]
    fn a_long_gap_takes_neither_memory_nor_lines() {
        let ring = RingName::of_queue("eth0", 0);
        let mut profile = Profile::new(&[ring], Duration::from_millis(10));
        profile.count(0, 0, 60);
        profile.count(0, u64::MAX, 60);

        let mut csv = Vec::new();
        profile.write_csv(&mut csv).unwrap();

        let lines = String::from_utf8(csv).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines.len(), 1 + 4, "{lines:?}");
        assert!(
            lines[1].ends_with(",1") && lines[2].ends_with(",0") && lines[3].ends_with(",0"),
            "{lines:?}"
        );
        assert!(profile.chart().contains("2 packets"));
        assert!(profile.picture().contains("<svg"));
    }

    #[test]
    fn the_picture_has_a_row_per_ring_and_nothing_where_nothing_came() {
        let ring = |queue| RingName::of_queue("eth0", queue);
        let rings: Vec<RingName> = (0..40).map(ring).collect();
        let mut profile = Profile::new(&rings, Duration::from_millis(10));

        for bin in 0..100 {
            (0..=bin).for_each(|_| profile.count(7, bin * 10_000_000, 60));
            profile.count(9, bin * 10_000_000, 60);
        }

        let picture = profile.picture();
        assert!(profile.picture_height() < 800, "all rings fit on a screen");
        for name in ["eth0@0", "eth0@39", "5,050"] {
            assert!(picture.contains(name), "{name}");
        }

        // A hundred of the ring that grew, one of that which did not, the background, the frame and
        // the scale.
        let rectangles = picture.matches("<rect").count();
        assert!((103..=108).contains(&rectangles), "{rectangles}");
    }

    #[test]
    fn equal_columns_are_one_piece() {
        assert_eq!(runs(&[0, 3, 3, 0, 3, 5]), [(1, 3, 3), (4, 5, 3), (5, 6, 5)]);
        assert!(runs(&[0, 0]).is_empty());
        assert_eq!(shade(1, 1), shade(1000, 1000));
        assert_ne!(shade(1, 1000), shade(10, 1000));
    }

    #[test]
    fn a_capture_without_packets_reports_that() {
        assert_eq!(Profile::new(&[], Duration::from_millis(10)).chart(), "no packets arrived");
    }
}
