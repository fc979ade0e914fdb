//! The paper's multi_pkt_handler for plain libpcap (x = 300), under a load that goes to only one of
//! its threads: its loss with libpcap and with a group of the drop-in, with the same buffer for
//! each handle.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use wirecap_testbed::{Generator, Load, Namespace, Traffic, VethPair, pass_program};

use crate::common::{Library, compile, drop_in, finish, said};
use crate::{Extent, Outcome};

const REPETITIONS: &str = "300";
/// With libpcap, a filter for each thread divides the packets.
const PARTS: [&str; 3] =
    ["a1=udp[1] & 3 = 0 or udp[1] & 3 = 3", "a1=udp[1] & 3 = 1", "a1=udp[1] & 3 = 2"];
const RINGS: [&str; 3] = ["a1@0", "a1@1", "a1@2"];
/// 16 blocks of 128 KiB per ring: libpcap's 2 MiB.
const GROUP: [(&str, &str); 5] = [
    ("WIRECAP_GROUP", "a1"),
    ("WIRECAP_WORKERS", "3"),
    ("WIRECAP_M", "64"),
    ("WIRECAP_R", "16"),
    ("WIRECAP_T", "20"),
];

/// Runs both libraries in turn; the rate doubles each time.
pub(crate) fn compare(folder: &Path, extent: Extent, sending_cpu: u32) -> Outcome<()> {
    let program = compile("handlers.c", folder, &["-O2"]);
    println!("{:>12}{:>20}{:>20}", "packets/s", "libpcap lost", "group lost");
    let mut rate = extent.from / 4.0;
    for _ in 0..extent.steps.min(5) {
        let mut lost = [0.0; 2];
        for (lost, library) in lost.iter_mut().zip([Library::System, Library::DropIn]) {
            *lost = run(&program, library, rate, (rate * extent.seconds) as u64, sending_cpu)?;
        }
        println!("{rate:>12.0}{:>18.1} %{:>18.1} %", lost[0] * 100.0, lost[1] * 100.0);
        rate *= 2.0;
    }
    Ok(())
}

/// The share of packets that were lost. Asserts that every packet is accounted for.
fn run(program: &Path, library: Library, rate: f64, frames: u64, sending_cpu: u32) -> Outcome<f64> {
    let there = Namespace::new()?;
    let here = Namespace::new()?;
    let pair = VethPair::new((&there, "a0"), (&here, "a1"), 1, 1500)?;
    let _passing = pass_program(&pair.receiver)?;
    let mut generator = Generator::new(&pair.sender, &Traffic::to(&pair.receiver))?;
    let mut command = Command::new(program);
    command.args([REPETITIONS, "udp and ip"]).env_remove("LD_LIBRARY_PATH");
    match library {
        Library::System => command.args(PARTS),
        Library::DropIn => command.args(RINGS).env("LD_LIBRARY_PATH", drop_in()).envs(GROUP),
    };
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = here.run_in(|| command.spawn())??;
    let mut output = BufReader::with_capacity(1, child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    output.read_line(&mut line)?;
    child.stdout = Some(output.into_inner());
    if line != "ready\n" {
        return Err(said(&finish(child)).into());
    }
    let load = Load::new(0, frames).on_cpu(sending_cpu).per_second(rate as u64);
    let sent: u64 = generator.send(&[load])?.iter().map(|sent| sent.frames).sum();
    let said = said(&finish(child));
    let last = said.lines().last().unwrap_or_default();
    let numbers: Vec<u64> = last.split(' ').filter_map(|word| word.parse().ok()).collect();
    let &[got, _, dropped, _] = &numbers[..] else { return Err(said.into()) };
    assert_eq!(got + dropped, sent, "unaccounted packets: {said}");
    Ok(dropped as f64 / sent as f64)
}
