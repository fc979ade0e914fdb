//! The report for people.

use std::io::{self, Write};

use wirecap::grouped;
use wirecap_lab::cost::{BATCH_NS_MAX, Bar, Book, Component, Figures, Id, Report};
use wirecap_units::size::count_of;

/// Columns of a component's name.
const NAME_COLUMNS: usize = 43;
/// The share of a run's frames without a cell from which on the table reports it.
const DROPPED_SHARE: f64 = 0.001;

/// What the words in the table's second column mean.
const LEGEND: &str = "\
medians (least..most of the rounds), ns and cycles per packet
  live      the sender's time, less that without the component in the same round
  chunks    the clock around chunks of 128 packets or more, while frames arrive
  burst     the same after a burst that filled the pool
  test run  BPF test run, less that of a program that does nothing
  loop      a loop in this process; libpcap is its interpreter";

/// Writes the tables.
pub(super) fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    write_head(report, out)?;
    write_components(report, out)?;
    write_bars(report, out)?;
    write_answers(report, out)?;
    write_books(report, out)
}

fn write_head(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let bytes = report.frame_bytes;
    let frames = grouped(report.frames);
    let rounds = count_of(report.rounds as u64, "round", "rounds");
    writeln!(out, "cost of a captured packet of {bytes} bytes: {rounds}, {frames} frames per run")?;
    write!(out, "R x M = {}; ", grouped(report.cells))?;

    match report.tsc_hz {
        Some(hertz) => writeln!(out, "cycles of the time stamp counter, {:.3} GHz", hertz / 1e9)?,
        None => writeln!(out, "no cycles: this CPU has no time stamp counter")?,
    }

    if report.disturbed > 0 {
        let runs = report.books.len();
        writeln!(
            out,
            "DISTURBED: in {} of {runs} live runs other processes used the sender's CPU",
            report.disturbed
        )?;
    }

    let lines = &report.cache_lines_ns;

    if report.cpus_moved() {
        let min = lines.min();
        let max = lines.max();
        writeln!(
            out,
            "MOVED: a cache line took {min:.0} to {max:.0} ns from CPU to CPU, so runs are not comparable"
        )?;
    }

    Ok(())
}

fn write_components(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{:NAME_COLUMNS$} {:8} {:20} {:>6}", "component", "how", "ns", "cycles")?;
    let mut group = None;

    for component in &report.components {
        if group.replace(component.group) != Some(component.group) {
            writeln!(out, "{}", component.group.words())?;
        }
        let Component { name, how, ns, cycles, .. } = component;
        let cycles = number(cycles.as_ref().map(Figures::median), "");
        let name = format!("  {name}");
        let ns = ns.to_string();
        writeln!(out, "{name:NAME_COLUMNS$} {:8} {ns:20} {cycles:>6}", how.words())?;
    }
    writeln!(out, "{LEGEND}")
}

fn write_bars(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nthe sums, with one port among five as filter and the default timestamp")?;
    report.bars.iter().try_for_each(|bar| write_bar(bar, out))?;
    writeln!(out, "  WinPcap's are cycles of a machine of 2003, for frames of 64 bytes.")
}

fn write_bar(bar: &Bar, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "  {:50} {:>10} {:>10}",
        bar.name,
        number(bar.ns(), " ns"),
        number(bar.cycles(), "")
    )?;

    for part in &bar.parts {
        let remark = if part.stated { "" } else { " (the rest)" };
        let words = format!("{}{remark}", part.step.words());
        writeln!(
            out,
            "    {words:48} {:>10} {:>10}",
            number(part.ns, " ns"),
            number(part.cycles, "")
        )?;
    }
    Ok(())
}

/// One that was not measured is no number.
fn number(number: Option<f64>, unit: &str) -> String {
    number
        .filter(|number| !number.is_nan())
        .map_or(String::new(), |number| format!("{number:.1}{unit}"))
}

fn write_answers(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out)?;
    let times = [Id::TimestampBatch, Id::TimestampPacket].map(|id| report.component(id));
    if let [Some(batch), Some(packet)] = times {
        let is_kept = batch.ns.median() <= BATCH_NS_MAX;
        let verdict = if is_kept { "within" } else { "MORE than" };
        writeln!(out, "the default timestamp, batch, adds {} ns per packet,", batch.ns)?;
        writeln!(
            out,
            "  {verdict} the {BATCH_NS_MAX:.0} allowed; a clock read for each adds {} ns",
            packet.ns
        )?;
    }

    for target in &report.next {
        let ns = target.ns;
        let percent = target.share * 100.0;
        writeln!(out, "attack next on {}: {},", target.bar, target.step.whole())?;
        writeln!(
            out,
            "  {ns:.1} ns, {percent:.0} % of a packet (without the driver, which is not part of wirecap)"
        )?;
    }

    Ok(())
}

/// The books of all rounds together, run by run.
fn write_books(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let sums = sums(&report.books);
    for book in &sums {
        let share = book.dropped as f64 / book.sent as f64;
        if book.delivered > 0 && share > DROPPED_SHARE {
            let percent = share * 100.0;
            writeln!(
                out,
                "{}: {percent:.1} % of the frames found no cell, and cost less",
                book.run
            )?;
        }
    }

    writeln!(out, "\naccount of the live runs, in frames sent")?;

    for book in &sums {
        let counts = [
            (book.refused, "refused"),
            (book.lost, "lost"),
            (book.passed, "passed"),
            (book.dropped, "dropped"),
            (book.delivered, "delivered"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> =
            counts.map(|(count, what)| format!("{} {what}", grouped(count))).collect();
        writeln!(out, "  {:29} {:>10} = {}", book.run, grouped(book.sent), counts.join(" + "))?;
    }

    let balanced = if report.books.iter().all(Book::balances) { "yes" } else { "no" };
    writeln!(out, "each frame of each run is accounted for once: {balanced}")
}

/// For each run's name the sum of its books.
fn sums(books: &[Book]) -> Vec<Book> {
    let mut sums: Vec<Book> = Vec::new();
    for book in books {
        match sums.iter_mut().find(|sum| sum.run == book.run) {
            Some(sum) => sum.add(book),
            None => sums.push(book.clone()),
        }
    }
    sums
}
