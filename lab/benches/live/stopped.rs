//! The CPU time of recorders, measured while no packets arrive. Each recorder is stopped (SIGSTOP),
//! the sender fills its buffer and ends, and the recorder is continued (SIGCONT). The bench prints
//! the CPU time per packet of all its threads, and the time until the last packet is in the file.
//!
//! All recorders have buffers of the same size, which hold all packets. The goal is that wirecap
//! uses no more CPU time at any length, with either engine, than the best of the others. The speed
//! of a shared machine changes within minutes, so two recorders are compared within each round; the
//! bench prints the median of the rounds' ratios. CPU time after the last packet is printed
//! separately, because it depends on the duration of the measurement, not on the packets.

use std::fs;
use std::hint;
use std::io::Write;
use std::os::unix;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rustix::process::Signal;
use wirecap::savefile::Reader;
use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::Bed;
use wirecap_lab::live::contender::{Contender, FILE};
use wirecap_lab::live::figures::Figures;
use wirecap_testbed::{Bound, Figure, Goals, Load, Watch, loss_lock, pass_program};

use crate::Effort;
use crate::rivals::{self, contender, installed};

#[derive(Debug, Default, Args)]
pub(crate) struct Arguments {
    /// Measure only these lengths of packets, in bytes
    #[arg(long, value_delimiter = ',')]
    bytes: Vec<u16>,
    /// Measure only files here
    #[arg(long, value_enum)]
    place: Option<Place>,
    /// Measure only recorders whose names contain this text, or one of several
    #[arg(long)]
    only: Vec<String>,
    /// Measure wirecap only with its default options
    #[arg(long)]
    defaults: bool,
    /// Also measure this executable, another build of wirecap, in alternation with the current
    /// build
    #[arg(long)]
    before: Option<PathBuf>,
}

/// Where the recorder's file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Place {
    Memory,
    Disk,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }

    fn directory(self) -> &'static Path {
        Path::new(match self {
            Self::Memory => MEMORY,
            Self::Disk => "/var/tmp",
        })
    }
}

/// Number of packets in the buffer when a recorder is continued.
const PACKETS: u64 = 200_000;
/// Buffer memory of each recorder: more than a cell of 2 KiB per packet.
const BUFFER_MIB: u32 = 512;
/// Memory that is written before each run: enough for the buffer, the file and the sender.
const WARM_MIB: usize = 2048;
/// The directory whose files are in memory (tmpfs).
const MEMORY: &str = "/dev/shm";
/// Size of the file that is written before each run: more than the recorder's file.
const WARM_FILE_MIB: usize = 512;
/// Packets per second, so few that only the recorder's buffer fills.
const PER_SECOND: u64 = 400_000;
/// What the name of a recorder ends with that keeps root's privileges and does not sync its file.
/// The others have the default options, so they record as the owner of the directory.
const BARE: &str = " -Z root --sync none";
/// The most CPU time of a recorder with the default options, in terms of the same without them.
const DEFAULTS_MAX: f64 = 1.03;
/// Recorders in a quick run.
const QUICK: [&str; 3] = ["wirecap xdp, pcapng", "wirecap packet, pcapng", "tcpdump"];
/// Rounds of a full run.
const ROUNDS: usize = 5;
const LENGTHS: [u16; 4] = [60, 256, 768, 1514];
/// The user nobody.
const NOBODY: u32 = 65534;
/// Interval between queries of the file's size.
const LOOK: Duration = Duration::from_millis(1);
/// A file is complete if it has not grown for this time. Longer than the timeout of one second
/// after which the kernel hands out a partly filled block.
const CALM: Duration = Duration::from_millis(1500);

/// The result of one run.
struct Measured {
    /// CPU time per packet.
    nanos: f64,
    millis: f64,
    /// CPU time per second while no packets arrive.
    idle_micros: f64,
    /// By the host or by foreign processes.
    is_disturbed: bool,
}

fn recorders() -> Vec<Contender> {
    let ours = |name: &str, more: &str, engine, format| {
        let passing = engine == "packet";
        let options = format!(
            "capture -i a1 --engine {engine} --buffer {BUFFER_MIB}M --force --format {format}{more} -w"
        );
        contender(name, "wirecap", &options, "capturing", passing)
    };
    let mut recorders = Vec::new();
    for engine in ["xdp", "packet"] {
        for format in ["pcapng", "pcap"] {
            let name = format!("wirecap {engine}, {format}");
            recorders.push(ours(&name, "", engine, format));
            recorders.push(ours(&format!("{name}{BARE}"), " -Z root --sync none", engine, format));
        }
    }
    recorders.extend([
        rivals::tcpdump(BUFFER_MIB),
        rivals::dumpcap_pcap(BUFFER_MIB),
        rivals::netsniff_ng(BUFFER_MIB),
    ]);
    recorders
}

/// The recorder. If it is wirecap, it is preceded by the same command with the executable `before`.
fn in_turns(contender: Contender, before: &Path) -> Vec<Contender> {
    if !contender.is_ours {
        return vec![contender];
    }
    let name = format!("{}, before", contender.name);
    let command = contender.command.clone().with_program(before);
    vec![Contender { name, command, is_ours: false, ..contender.clone() }, contender]
}

pub(crate) fn run(effort: Effort, arguments: &Arguments, goals: &mut Goals) -> Outcome<()> {
    let packets = effort.choose(PACKETS, 2000);
    println!(
        "\nCPU time of a recorder for {packets} packets that arrived while it was stopped ({BUFFER_MIB} MiB each), and the \
         time until all are in the file"
    );
    let mut contenders = installed(recorders());
    if let Some(path) = &arguments.before {
        contenders =
            contenders.into_iter().flat_map(|contender| in_turns(contender, path)).collect();
    }
    let is_wanted =
        |contender: &Contender| arguments.only.iter().any(|text| contender.name.contains(text));
    contenders.retain(|contender| arguments.only.is_empty() || is_wanted(contender));
    contenders.retain(|contender| !(arguments.defaults && contender.name.ends_with(BARE)));
    if effort.choose(false, true) {
        contenders.retain(|contender| QUICK.contains(&contender.name.as_str()));
    }
    let lengths: Vec<u16> = match &arguments.bytes[..] {
        [] => effort.choose(LENGTHS.to_vec(), vec![60]),
        bytes => bytes.to_vec(),
    };
    let places = match arguments.place {
        Some(place) => vec![place],
        None => effort.choose(vec![Place::Memory, Place::Disk], vec![Place::Memory]),
    };
    for place in places {
        for &bytes in &lengths {
            let mut results: Vec<Vec<Measured>> = contenders.iter().map(|_| Vec::new()).collect();
            for round in 0..effort.rounds(ROUNDS) {
                // In turn, so that other load on the machine affects all contenders equally. Each
                // round begins with another one, and every other round goes backwards: a recorder
                // is slower after one that leaves much memory to the host.
                for turn in 0..contenders.len() {
                    let turn = if round % 2 == 0 { turn } else { contenders.len() - turn };
                    let next = (round + turn) % contenders.len();
                    results[next].push(measure(
                        &contenders[next],
                        place.directory(),
                        bytes,
                        packets,
                    )?);
                }
            }
            println!("  {bytes} bytes, file on {}", place.name());
            let best = best_rival(&contenders, &results);
            for (contender, rounds) in contenders.iter().zip(&results) {
                let ratios = best.map_or_else(Vec::new, |best| ratios_of(rounds, best));
                let figures =
                    |figure: fn(&Measured) -> f64| rounds.iter().map(figure).collect::<Figures>();
                println!(
                    "    {:<30} {:>22.0} ns {:>18} {:>22.0} ms {:>8.0} us/s idle",
                    contender.name,
                    figures(|measured| measured.nanos),
                    ratios.iter().map(|ratio| ratio.value).collect::<Figures>(),
                    figures(|measured| measured.millis),
                    figures(|measured| measured.idle_micros).median()
                );
                let bare = format!("{}{BARE}", contender.name);
                if let Some(bare) = contenders.iter().position(|other| other.name == bare) {
                    let ratios = ratios_of(rounds, &results[bare]);
                    println!(
                        "    {:<30} {:>26}",
                        "  / -Z root --sync none",
                        ratios.iter().map(|ratio| ratio.value).collect::<Figures>()
                    );
                    if effort.has_goals() {
                        let what = format!(
                            "{bytes} bytes on {}: CPU time of {} / of the same{BARE} in the same round",
                            place.name(),
                            contender.name
                        );
                        goals.judge(&what, Bound::AtMost(DEFAULTS_MAX), &ratios);
                    }
                }
                if effort.has_goals() && contender.is_ours && !contender.name.ends_with(BARE) {
                    let what = format!(
                        "{bytes} bytes on {}: CPU time of {} / of the best rival in the same round",
                        place.name(),
                        contender.name
                    );
                    goals.judge(&what, Bound::AtMost(1.0), &ratios);
                }
            }
        }
    }
    Ok(())
}

/// The rounds of the rival with the lowest median, if there is a rival.
fn best_rival<'a>(
    contenders: &[Contender],
    results: &'a [Vec<Measured>],
) -> Option<&'a [Measured]> {
    let median = |rounds: &[Measured]| {
        rounds.iter().map(|measured| measured.nanos).collect::<Figures>().median()
    };
    let rivals = contenders
        .iter()
        .zip(results)
        .filter(|(contender, _)| !contender.name.starts_with("wirecap"));
    rivals.map(|(_, rounds)| &rounds[..]).min_by(|one, other| median(one).total_cmp(&median(other)))
}

/// The ratios of the CPU times within each round.
fn ratios_of(ours: &[Measured], theirs: &[Measured]) -> Vec<Figure> {
    let ratio = |(ours, theirs): (&Measured, &Measured)| Figure {
        value: ours.nanos / theirs.nanos,
        is_disturbed: ours.is_disturbed || theirs.is_disturbed,
    };
    ours.iter().zip(theirs).map(ratio).collect()
}

/// A directory of a user without privileges, as whom wirecap records by default; removed on drop.
/// Others may write to it, because dumpcap stays root but gives up the right to write to
/// directories of other users.
struct Folder(PathBuf);

impl Folder {
    fn in_directory(directory: &Path) -> Outcome<Self> {
        let folder = Self(directory.join(format!("wirecap-stopped-{}", std::process::id())));
        fs::create_dir(&folder.0)?;
        unix::fs::chown(&folder.0, Some(NOBODY), Some(NOBODY))?;
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777))?;
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A file, removed on drop.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // A recorder's file is missing if the recorder did not start.
        let _ = fs::remove_file(&self.0);
    }
}

/// Writes to as much free memory as a run needs. A virtual machine returns free pages to its host
/// (mm/page_reporting.c), and the next access to such a page costs the accessing process CPU time.
/// Without this function, the first of several recorders would bear this cost for all of them.
fn warm_memory() {
    hint::black_box(vec![1_u8; WARM_MIB << 20]);
}

/// Writes a file in memory; when it is removed, its pages are free. The pages of files come from
/// the kernel's lists of single pages, which the large blocks of [`warm_memory`] leave out.
fn warm_file() -> Outcome<Removed> {
    let file = Removed(Path::new(MEMORY).join(format!("wirecap-warm-{}", std::process::id())));
    let block = vec![1; 1 << 20];
    let mut writer = fs::File::create(&file.0)?;
    (0..WARM_FILE_MIB).try_for_each(|_| writer.write_all(&block))?;
    Ok(file)
}

fn measure(contender: &Contender, directory: &Path, bytes: u16, packets: u64) -> Outcome<Measured> {
    let _alone = loss_lock()?;
    warm_memory();
    let bed = Bed::new()?;
    let _passing = contender.passing.then(|| pass_program(&bed.pair.receiver)).transpose()?;
    let folder = Folder::in_directory(directory)?;
    let file = Removed(folder.0.join("recording"));
    let path = file.0.to_str().ok_or("a path of ASCII")?;
    let receiver = bed.receive(&contender.command.replacing(FILE, path), contender.ready)?;
    let mut generator = bed.generator(bytes)?;
    receiver.settle(receiver.idle()?, Duration::from_millis(100))?;
    receiver.signal(Signal::STOP)?;
    let warm = warm_file()?;
    let begin = receiver.cpu_time()?.ran;
    generator.send(&[Load::new(0, packets).per_second(PER_SECOND)])?;
    // Only now, before the kernel reports the free pages to the host.
    drop(warm);
    let watch = Watch::begin();
    let mut len = len(&file.0);
    let mut grew = Instant::now();
    let resumed = Instant::now();
    let mut ran = Duration::ZERO;
    receiver.signal(Signal::CONT)?;
    while grew.elapsed() < CALM {
        thread::sleep(LOOK);
        let now = self::len(&file.0);
        if now != len {
            (len, grew) = (now, Instant::now());
            ran = receiver.cpu_time()?.ran.saturating_sub(begin);
        }
    }
    let disturbance = watch.end();
    let idle = receiver.cpu_time()?.ran.saturating_sub(begin + ran);
    let idle_micros = idle.as_secs_f64() * 1e6 / grew.elapsed().as_secs_f64();
    let finished = receiver.stop()?;
    let mut reader = Reader::open(&file.0)?;
    let mut count = 0;
    while reader.next_record()?.is_some() {
        count += 1;
    }
    if count != packets {
        let said = finished.errors;
        return Err(format!(
            "{}: {count} of {packets} packets are in the file\n{said}",
            contender.name
        )
        .into());
    }
    Ok(Measured {
        nanos: ran.as_nanos() as f64 / packets as f64,
        millis: (grew - resumed).as_secs_f64() * 1e3,
        idle_micros,
        is_disturbed: disturbance.is_disturbed(),
    })
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}
