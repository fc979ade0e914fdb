//! The errors of the times in a recording. While `wirecap capture` records, a program at one of the
//! kernel's tracepoints reads the clock for each packet: with the engine `xdp` after the packet was
//! copied to the capture's memory, with the engine `packet` before AF_PACKET gets it. The
//! difference is at least the error of the packet's time: it includes the copy, and the reading
//! makes the packets that share a time arrive further apart. `xdp, packet` shows the difference for
//! exact times.
//!
//! The goal is that the default times of 99 % of the packets are within 500 ns.

use std::path::Path;
use std::time::Duration;

use wirecap::bpf::BpfError;
use wirecap::grouped;
use wirecap::savefile::Reader;
use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::{Bed, Run, send};
use wirecap_lab::live::figures::Figures;
use wirecap_lab::live::process::CommandLine;
use wirecap_testbed::{Bound, Figure, Goals, Witness, loss_lock, pass_program};

use crate::Effort;

/// Packets of a run, which all fit the pool.
const PACKETS: u64 = 200_000;
const BUFFER_MIB: u32 = 512;
/// Records of the witness, which also sees the packets of other processes.
const ROOM: u32 = 1 << 20;
/// Upper ends of the columns, in nanoseconds.
const COLUMNS: [u64; 4] = [250, 500, 1_000, 4_000];
/// The error of the goal, and the share of the packets that must not exceed it.
const GOAL: (u64, f64) = (4000, 0.99);
const SENDERS: [(&str, Option<u64>); 2] =
    [("full rate", None), ("200,000 packets/s", Some(200_000))];

struct Contender {
    name: &'static str,
    options: &'static str,
    passing: bool,
    witness: fn(u32) -> Result<Witness, BpfError>,
    /// Whether these are the default times.
    is_default: bool,
}

const CONTENDERS: [Contender; 3] = [
    Contender {
        name: "xdp, batch",
        options: "--engine xdp --timestamp batch",
        passing: false,
        witness: Witness::of_redirects,
        is_default: true,
    },
    Contender {
        name: "xdp, packet",
        options: "--engine xdp --timestamp packet",
        passing: false,
        witness: Witness::of_redirects,
        is_default: false,
    },
    Contender {
        name: "packet",
        options: "--engine packet",
        passing: true,
        witness: Witness::of_arrivals,
        is_default: true,
    },
];

pub(crate) fn run(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    let packets = effort.choose(PACKETS, 2000);
    println!("\nerrors of the times of {packets} packets of 60 bytes per round, in a recording");
    println!("timestamp,sender,below 250 ns,250 to 500 ns,500 ns to 1 µs,1 to 4 µs,above");
    for contender in &CONTENDERS {
        for (sender, per_second) in SENDERS {
            let measured = (0..effort.rounds(5)).map(|_| measure(contender, packets, per_second));
            let rounds = measured.collect::<Outcome<Vec<_>>>()?;
            print(contender, sender, &rounds);
            if effort.has_goals() && contender.is_default {
                let (nanos, share) = GOAL;
                let figure = |(run, errors): &(Run, Vec<u64>)| Figure {
                    value: share_within(errors, nanos),
                    is_disturbed: run.is_disturbed(),
                };
                let figures: Vec<Figure> = rounds.iter().map(figure).collect();
                let what =
                    format!("{}, {sender}: share of the times within {nanos} ns", contender.name);
                goals.judge(&what, Bound::AtLeast(share), &figures);
            }
        }
    }
    Ok(())
}

fn print(contender: &Contender, sender: &str, rounds: &[(Run, Vec<u64>)]) {
    let mut columns = [0_u64; COLUMNS.len() + 1];
    for error in rounds.iter().flat_map(|(_, errors)| errors) {
        columns[COLUMNS.partition_point(|end| end <= error)] += 1;
    }
    let cells: Vec<String> =
        columns.iter().map(|count| format!("\"{}\"", grouped(*count))).collect();
    println!("\"{}\",\"{sender}\",{}", contender.name, cells.join(","));
    let of_rounds =
        |figure: fn(&(Run, Vec<u64>)) -> f64| -> Figures { rounds.iter().map(figure).collect() };
    let rate = of_rounds(|(run, _)| run.per_second() / 1e6);
    let half = of_rounds(|(_, errors)| errors[errors.len() / 2] as f64);
    let most = of_rounds(|(_, errors)| errors[errors.len() * 99 / 100] as f64);
    let disturbed = rounds.iter().filter(|(run, _)| run.is_disturbed()).count();
    println!(
        "  half within {half:.0} ns, 99 % within {most:.0} ns, at {rate} M/s; {disturbed} rounds disturbed"
    );
}

/// The share of the sorted errors that are at most this large.
fn share_within(errors: &[u64], nanos: u64) -> f64 {
    errors.partition_point(|error| *error <= nanos) as f64 / errors.len() as f64
}

/// A run, and the sorted errors of its packets.
fn measure(
    contender: &Contender,
    packets: u64,
    per_second: Option<u64>,
) -> Outcome<(Run, Vec<u64>)> {
    let _alone = loss_lock()?;
    let bed = Bed::new()?;
    let _passing = contender.passing.then(|| pass_program(&bed.pair.receiver)).transpose()?;
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let file = folder.path().join("times");
    let path = file.to_str().ok_or("a path of ASCII")?;
    let receiver = bed.receive(&recorder(contender, path), "capturing")?;
    let idle = receiver.idle()?;
    receiver.settle(idle, Duration::from_millis(100))?;
    let mut generator = bed.generator(60)?;
    let witness = (contender.witness)(ROOM)?;
    let run = send(&mut generator, &receiver, &bed.loads(packets, per_second)?)?;
    // The timeout of a partly filled block is a second.
    receiver.settle(idle, Duration::from_millis(1200))?;
    let finished = receiver.stop()?;
    let recorded = times(&file)?;
    // Frames that found the ring of the veth full did not arrive: neither the capture nor the
    // witness has them.
    let witnessed = witness
        .times(recorded.len() as u64)
        .map_err(|error| format!("{error}\n{}", finished.errors))?;
    if (recorded.len() as u64) < packets / 2 {
        return Err(format!(
            "{} of {packets} packets arrived\n{}",
            recorded.len(),
            finished.errors
        )
        .into());
    }
    let mut errors: Vec<u64> = recorded
        .iter()
        .zip(&witnessed)
        .map(|(recorded, witnessed)| witnessed.abs_diff(*recorded))
        .collect();
    errors.sort_unstable();
    Ok((run, errors))
}

fn recorder(contender: &Contender, path: &str) -> CommandLine {
    let options = contender.options;
    crate::wirecap().with(&format!(
        "capture -i a1 -Z root {options} --buffer {BUFFER_MIB}M --sync none --force -w {path}"
    ))
}

/// The times in the file, in nanoseconds of Unix time.
fn times(file: &Path) -> Outcome<Vec<u64>> {
    let mut reader = Reader::open(file)?;
    let mut times = Vec::new();
    while let Some(record) = reader.next_record()? {
        times.push(record.timestamp.ok_or("a packet has no time")?.unix_nanos());
    }
    Ok(times)
}
