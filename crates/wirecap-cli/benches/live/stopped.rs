//! The receiver's own limit: what a recorder costs where nothing else does anything. Each is stopped (SIGSTOP), its buffer is
//! filled, the sender ends, and the recorder goes on (SIGCONT): processor time per packet of all its threads, and the time until
//! the last packet is in the file.
//!
//! All have buffers of the same size, which hold all the packets. With `--check` it fails if wirecap needs more processor time than
//! the best of the others at any length, with either engine. What a recorder takes while it waits for more is shown by itself: it
//! depends on how long one looks, and not on the packets.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use wirecap::savefile::Reader;
use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::Bed;
use wirecap_lab::live::contender::{Contender, FILE};
use wirecap_lab::live::figures::Figures;
use wirecap_lab::live::receiver::Receiver;
use wirecap_testbed::{Load, loss_lock, pass_program};

use crate::Effort;
use crate::rivals::{self, contender, installed};

#[derive(Debug, Default, Args)]
pub(crate) struct Arguments {
    /// Fail if wirecap needs more processor time than the best of the others at any length
    #[arg(long)]
    check: bool,
    /// Only these lengths, in bytes
    #[arg(long, value_delimiter = ',')]
    bytes: Vec<u16>,
    /// Only recorders whose names contain this
    #[arg(long, default_value = "")]
    only: String,
    /// Also measure this build of wirecap, in turns with this one: what a change brings
    #[arg(long)]
    before: Option<PathBuf>,
}

/// Packets that wait when a recorder goes on.
const PACKETS: u64 = 200_000;
/// Buffer memory of each: a cell of 2 KiB for each packet, and some.
const BUFFER_MIB: u32 = 512;
/// Slow enough that no buffer but the recorder's own matters.
const PER_SECOND: u64 = 400_000;
/// Those that run tiny.
const QUICK: [&str; 3] = ["wirecap xdp, pcapng", "wirecap packet, pcapng", "tcpdump"];
const LENGTHS: [u16; 4] = [60, 256, 768, 1514];
/// How often the file is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// A file that has not grown for so long has everything: more than the second after which a block that is partly full is given
/// out.
const CALM: Duration = Duration::from_millis(1500);

/// What one run measured.
struct Measured {
    nanos_a_packet: f64,
    millis: f64,
    /// Of a second in which nothing comes.
    idle_micros: f64,
}

fn recorders() -> Vec<Contender> {
    let ours = |name, engine, format| {
        let passing = engine == "packet";
        let options = format!(
            "capture -i a1 -Z root --engine {engine} --buffer {BUFFER_MIB}M --sync none --force --format {format} -w"
        );
        contender(name, "wirecap", &options, "capturing", passing)
    };
    vec![
        ours("wirecap xdp, pcapng", "xdp", "pcapng"),
        ours("wirecap xdp, pcap", "xdp", "pcap"),
        ours("wirecap packet, pcapng", "packet", "pcapng"),
        ours("wirecap packet, pcap", "packet", "pcap"),
        rivals::tcpdump(BUFFER_MIB),
        rivals::dumpcap_pcap(BUFFER_MIB),
        rivals::netsniff_ng(BUFFER_MIB),
    ]
}

/// A recorder; if it is wirecap, with the build at `before`.
fn in_turns(contender: Contender, before: &Path) -> Vec<Contender> {
    if !contender.is_ours {
        return vec![contender];
    }
    let name = format!("{}, before", contender.name);
    let command = contender.command.clone().with_program(before);
    vec![Contender { name, command, is_ours: false, ..contender.clone() }, contender]
}

pub(crate) fn run(effort: Effort, arguments: &Arguments) -> Outcome<()> {
    let packets = effort.choose(PACKETS, 2000);
    println!(
        "\nprocessor time of a recorder that was stopped while {packets} packets came ({BUFFER_MIB} MiB each), and the time until \
         all are in the file"
    );
    let mut contenders = installed(recorders());
    if let Some(path) = &arguments.before {
        contenders = contenders.into_iter().flat_map(|contender| in_turns(contender, path)).collect();
    }
    contenders.retain(|contender| contender.name.contains(&arguments.only));
    if effort.choose(false, true) {
        contenders.retain(|contender| QUICK.contains(&contender.name.as_str()));
    }
    let lengths: Vec<u16> = match &arguments.bytes[..] {
        [] => effort.choose(LENGTHS.to_vec(), vec![60]),
        bytes => bytes.to_vec(),
    };
    let mut excesses = Vec::new();
    let places = [("memory", "/dev/shm"), ("disk", "/var/tmp")];
    for (place, directory) in &places[..effort.choose(2, 1)] {
        for &bytes in &lengths {
            let mut figures = vec![<(Figures, Figures, Figures)>::default(); contenders.len()];
            for _ in 0..effort.rounds(3) {
                // In turns, so that whatever disturbs the machine meets all alike.
                for (contender, (nanos, millis, idle)) in contenders.iter().zip(&mut figures) {
                    let measured = measure(contender, Path::new(directory), bytes, packets)?;
                    nanos.push(measured.nanos_a_packet);
                    millis.push(measured.millis);
                    idle.push(measured.idle_micros);
                }
            }
            let is_rival = |contender: &Contender| !contender.name.starts_with("wirecap");
            let rivals = contenders.iter().zip(&figures).filter(|(contender, _)| is_rival(contender));
            let best = rivals.map(|(_, (nanos, ..))| nanos.median()).fold(f64::INFINITY, f64::min);
            println!("  {bytes} bytes, file on {place}");
            for (contender, (nanos, millis, idle)) in contenders.iter().zip(&figures) {
                let ratio = nanos.median() / best;
                println!(
                    "    {:<30} {nanos:>22.0} ns {ratio:>6.2} {millis:>22.0} ms {:>8.0} us/s idle",
                    contender.name,
                    idle.median()
                );
                if contender.is_ours && ratio > 1.0 {
                    excesses.push(format!("{bytes} bytes on {place}: {} {ratio:.2}", contender.name));
                }
            }
        }
    }
    excesses.iter().for_each(|excess| println!("  more than the best rival: {excess}"));
    match arguments.check && !excesses.is_empty() {
        true => Err(format!("{} excesses", excesses.len()).into()),
        false => Ok(()),
    }
}

/// Removes the file that a run leaves.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // It is not there if the recorder did not begin.
        let _ = fs::remove_file(&self.0);
    }
}

fn measure(contender: &Contender, directory: &Path, bytes: u16, packets: u64) -> Outcome<Measured> {
    let _alone = loss_lock()?;
    let bed = Bed::new()?;
    let _passing = contender.passing.then(|| pass_program(&bed.pair.receiver)).transpose()?;
    let file = Removed(directory.join(format!("wirecap-stopped-{}", std::process::id())));
    let path = file.0.to_str().ok_or("a path of ASCII")?;
    let receiver = bed.receive(&contender.command.replacing(FILE, path), contender.ready)?;
    let mut generator = bed.generator(bytes)?;
    receiver.settle(receiver.idle()?, Duration::from_millis(100))?;
    signal(&receiver, Signal::STOP)?;
    let begin = receiver.cpu_time()?.ran;
    generator.send(&[Load::new(0, packets).per_second(PER_SECOND)])?;
    let (mut len, mut grew, resumed) = (len(&file.0), Instant::now(), Instant::now());
    let mut ran = Duration::ZERO;
    signal(&receiver, Signal::CONT)?;
    while grew.elapsed() < CALM {
        thread::sleep(LOOK);
        let now = self::len(&file.0);
        if now != len {
            (len, grew) = (now, Instant::now());
            ran = receiver.cpu_time()?.ran.saturating_sub(begin);
        }
    }
    let idle = receiver.cpu_time()?.ran.saturating_sub(begin + ran);
    let idle_micros = idle.as_secs_f64() * 1e6 / grew.elapsed().as_secs_f64();
    let finished = receiver.stop()?;
    let (mut reader, mut count) = (Reader::open(&file.0)?, 0);
    while reader.next_record()?.is_some() {
        count += 1;
    }
    if count != packets {
        let said = finished.errors;
        return Err(
            format!("{}: {count} of {packets} packets are in the file\n{said}", contender.name).into()
        );
    }
    Ok(Measured {
        nanos_a_packet: ran.as_nanos() as f64 / packets as f64,
        millis: (grew - resumed).as_secs_f64() * 1e3,
        idle_micros,
    })
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn signal(receiver: &Receiver, signal: Signal) -> Outcome<()> {
    let pid = Pid::from_raw(receiver.id().cast_signed()).ok_or("a process has a number")?;
    Ok(kill_process(pid, signal)?)
}
