//! Packets kept per MiB of memory, by packet length. The receiver is stopped while more packets
//! arrive than its memory can keep; the packets that it finds afterwards are counted.

use std::fs;
use std::thread;

use wirecap::grouped;
use wirecap_testbed::{AfXdpSender, Sizes, Snapshot, Stamp, Traffic};

use super::bed::Bed;
use super::contender::Contender;
use super::receiver::Receiver;
use super::rivals::Field;
use super::sweep::{Share, Sweep};
use super::trial::{self, KernelSender, Sender, Trial};
use super::{Lab, Outcome};
use crate::chart::lines::{Axis, Curve, Lines, Point};
use crate::experiment::{Claim, Findings, Run, RunError, Table};

/// Memory of each contender, in MiB.
const RING_MIB: u32 = 16;
/// Bytes that the kernel reserves in each cell.
const HEADROOM_BYTES: u32 = 256;

/// Packets of one length to an interface of one MTU.
#[derive(Debug, Clone, Copy)]
struct Scene {
    mtu_bytes: u32,
    /// Bytes of a wirecap cell at this MTU.
    cell_bytes: u32,
    lengths: &'static [f64],
}

const SCENES: [Scene; 2] = [
    Scene {
        mtu_bytes: 1500,
        cell_bytes: 2048,
        lengths: &[60.0, 128.0, 256.0, 512.0, 1024.0, 1514.0],
    },
    Scene {
        mtu_bytes: 9000,
        cell_bytes: 4096,
        lengths: &[60.0, 512.0, 1514.0, 3000.0, 6000.0, 9014.0],
    },
];

impl Scene {
    fn cells(self) -> u32 {
        RING_MIB * 1024 * 1024 / self.cell_bytes
    }

    /// The packets that wirecap's cells keep.
    fn kept_in_cells(self, frame_bytes: f64) -> u64 {
        let cells_per_frame = (frame_bytes as u32).div_ceil(self.cell_bytes - HEADROOM_BYTES);
        u64::from(self.cells() / cells_per_frame)
    }

    /// More frames than any contender keeps.
    fn frames(frame_bytes: f64) -> u64 {
        (1.25 * f64::from(RING_MIB * 1024 * 1024) / frame_bytes) as u64 + 10_000
    }

    /// Whether the in-kernel generator can make the frames of this scene.
    fn is_short(self) -> bool {
        self.mtu_bytes == SCENES[0].mtu_bytes
    }
}

/// Frames of any length to queue 0, made in user space.
#[derive(Debug)]
struct LongSender {
    frame: Vec<u8>,
    frames: u64,
}

impl LongSender {
    fn new(bed: &Bed, frame_bytes: u16, frames: u64) -> Self {
        let traffic =
            Traffic { sizes: Sizes::fixed(frame_bytes), ..Traffic::to(&bed.pair.receiver) };
        Self { frame: traffic.frame(Stamp { queue: 0, sequence: 0 }), frames }
    }

    fn send_all(&mut self, bed: &Bed) -> Outcome<()> {
        let mut sender = AfXdpSender::on(&bed.pair.sender, 0)?;
        for sequence in 0..self.frames {
            Stamp { queue: 0, sequence }.write_to(&mut self.frame);
            sender.send(&self.frame)?;
        }
        Ok(sender.flush()?)
    }
}

impl Sender for LongSender {
    fn send(&mut self, bed: &Bed) -> Outcome<(u64, f64)> {
        let begin = std::time::Instant::now();
        // A separate thread, so that its processor time is known.
        thread::scope(|scope| scope.spawn(|| self.send_all(bed)).join().expect("no panic in it"))?;
        Ok((self.frames, begin.elapsed().as_secs_f64()))
    }

    fn counted(&self, counters: &Snapshot) -> (u64, u64) {
        (counters.handed_over(), counters.tx_dropped)
    }
}

/// The memory of the process's packet rings, in MiB: mappings of sockets. libpcap and the kernel
/// round what is requested.
fn socket_mib(receiver: &Receiver) -> Outcome<f64> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", receiver.id()))?;
    let mib = socket_bytes(&maps) as f64 / f64::from(1 << 20);
    if mib > 0.0 { Ok(mib) } else { Err("the receiver has mapped no socket".into()) }
}

fn socket_bytes(maps: &str) -> u64 {
    let bytes = |line: &str| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        Some(address(to)? - address(from)?)
    };
    maps.lines().filter(|line| line.contains("socket:[")).filter_map(bytes).sum()
}

/// The packets that a contender keeps.
fn kept(
    bed: &Bed,
    scene: Scene,
    contender: &Contender,
    frame_bytes: f64,
    mib: &mut f64,
) -> Outcome<Trial> {
    let frames = Scene::frames(frame_bytes);
    let length = frame_bytes as u16;

    let mut sender: Box<dyn Sender> = match scene.is_short() {
        true => {
            Box::new(KernelSender { generator: bed.generator(length)?, frames, per_second: None })
        }
        false => Box::new(LongSender::new(bed, length, frames)),
    };
    let trial = trial::run_stopped(bed, contender, &mut *sender, &mut |receiver| {
        // The cells of `xdp` are as large as requested.
        *mib = if contender.passing { socket_mib(receiver)? } else { f64::from(RING_MIB) };
        Ok(())
    })?;
    match trial.delivered < trial.sent {
        true => Ok(trial),
        false => Err(format!("{} packets did not fill its memory", grouped(trial.sent)).into()),
    }
}

/// The results at one MTU.
#[derive(Debug)]
struct Kept {
    scene: Scene,
    sweep: Sweep,
    /// Of each contender.
    mib: Vec<f64>,
}

impl Kept {
    fn measure(lab: &Lab, run: &Run<'_>, share: Share, scene: Scene) -> Result<Self, RunError> {
        let bed = Bed::with_mtu(scene.mtu_bytes)?;
        let contenders = Field::new(lab, RING_MIB).keepers(scene.cell_bytes);

        let lengths = lab.choose(
            run,
            &scene.lengths[scene.lengths.len() - 1..],
            scene.lengths,
            scene.lengths,
        );
        let rounds = lab.choose(run, 1, 1, 3);
        let mut mib = vec![0.0; contenders.len()];

        let sweep = Sweep::run(run, share, &contenders, lengths, rounds, |contender, length| {
            let index = contenders
                .iter()
                .position(|other| other.name == contender.name)
                .unwrap_or_default();
            kept(&bed, scene, contender, length, &mut mib[index])
        })?;
        Ok(Self { scene, sweep, mib })
    }

    /// The packets that each contender keeps per MiB.
    fn curves(&self) -> Vec<Curve> {
        let mut curves = self.sweep.curves(|length, _| length, |trial| trial.delivered as f64);
        for curve in &mut curves {
            let index =
                self.sweep.contenders.iter().position(|contender| contender.name == curve.name);
            let mib = self.mib[index.unwrap_or_default()];
            for Point { y, spread, .. } in &mut curve.points {
                *y /= mib;
                *spread = spread.map(|(low, high)| (low / mib, high / mib));
            }
        }
        curves
    }

    /// That wirecap's cells keep as many packets as their number promises.
    fn claim(&self) -> Option<Claim> {
        let index = self.sweep.contenders.iter().position(|contender| !contender.passing)?;
        let ours = || self.sweep.points.iter().filter(move |point| point.contender == index);
        let holds = ours().all(|point| point.trial.delivered == self.scene.kept_in_cells(point.x));
        let found = |point: &super::sweep::Point| {
            format!("{} of {} bytes", grouped(point.trial.delivered), grouped(point.x as u64))
        };
        let found: Vec<String> = ours().filter(|point| point.round == 0).map(found).collect();
        let name = &self.sweep.contenders[index].name;

        let expected = format!(
            "{} cells, {} of {} bytes",
            grouped(self.scene.cells().into()),
            grouped(
                self.scene.kept_in_cells(9014.0_f64.min(f64::from(self.scene.mtu_bytes) + 14.0))
            ),
            grouped(u64::from(self.scene.mtu_bytes) + 14),
        );
        Some(Claim::holds(format!("{name}: packets kept"), expected, holds, found.join(", ")))
    }
}

/// Packets kept per MiB, by length.
pub(super) fn run(lab: &Lab, run: &Run<'_>) -> Result<Findings, RunError> {
    let halves = [Share { from: 0.0, to: 0.5 }, Share { from: 0.5, to: 1.0 }];
    let [short, long] = [0, 1].map(|index| Kept::measure(lab, run, halves[index], SCENES[index]));
    let short = short?;
    let long = long?;
    let what = format!(
        "Packets of one length to receivers that are stopped (SIGSTOP), as fast as the sender can, until their {RING_MIB} MiB \
         are full; then they continue, and what they have is counted. MTU 1,500 for packets of up to 1,514 bytes, MTU 9,000 \
         for longer ones; a cell has 2 KiB at the first and 4 KiB at the second. libpcap uses TPACKET_V3, and TPACKET_V2 in \
         immediate mode, with frames as long as the MTU requires."
    );
    let mut findings = Findings { what, ..Findings::default() };
    findings.settings = vec![
        (
            "memory for packets".to_owned(),
            format!("{RING_MIB} MiB requested by each; per MiB of what it has mapped"),
        ),
        ("rounds".to_owned(), lab.choose(run, 1, 1, 3).to_string()),
    ];
    findings.settings.extend(super::rivals::versions());
    let longest = SCENES[0].lengths.last().copied().unwrap_or_default();
    let lines = Lines {
        x: Axis {
            ticks: vec![60.0, 128.0, 256.0, 512.0, 1514.0, 3000.0, 9014.0],
            ..Axis::log("bytes of a packet")
        },
        y: Axis::log("packets kept per MiB"),
        curves: joined(short.curves(), long.curves(), longest),
    };
    findings = findings.with_lines("room", "Packets kept per MiB of memory, by length.", &lines);
    findings = findings.with_table("room-memory", memory([&short, &long]));
    findings.claims = [&short, &long].into_iter().filter_map(Kept::claim).collect();
    short.sweep.account(&mut findings, "room-mtu-1500", "bytes");
    long.sweep.account(&mut findings, "room-mtu-9000", "bytes");
    Ok(findings)
}

/// The curves of both MTUs. Receivers that do not depend on the MTU have one curve: the points
/// above `longest` are from the second list.
fn joined(short: Vec<Curve>, long: Vec<Curve>, longest: f64) -> Vec<Curve> {
    let mut curves = short;

    for mut other in long {
        match curves.iter_mut().find(|curve| curve.name == other.name) {
            Some(curve) if !depends_on_mtu(&curve.name) => {
                curve.points.extend(other.points.into_iter().filter(|point| point.x > longest));
            }
            _ => {
                other.name += if depends_on_mtu(&other.name) { ", MTU 9,000" } else { "" };
                curves.push(other);
            }
        }
    }
    curves
}

fn depends_on_mtu(name: &str) -> bool {
    name.contains("TPACKET_V2")
}

fn memory(kept: [&Kept; 2]) -> Table {
    let mut table = Table::new("Memory of the rings.", &["receiver", "MTU", "MiB"]);
    for Kept { scene, sweep, mib } in kept {
        for (contender, mib) in sweep.contenders.iter().zip(mib) {
            table.row([
                contender.name.clone(),
                grouped(scene.mtu_bytes.into()),
                format!("{mib:.1}"),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_longer_than_a_cell_takes_several() {
        let [short, long] = SCENES;
        assert_eq!(short.kept_in_cells(60.0), 8192);
        assert_eq!(short.kept_in_cells(1514.0), 8192);
        assert_eq!(
            [60.0, 3840.0, 3841.0, 9014.0].map(|bytes| long.kept_in_cells(bytes)),
            [4096, 4096, 2048, 1365]
        );
        assert!(Scene::frames(60.0) > 300_000 && Scene::frames(9014.0) > 10_000);
    }

    #[test]
    fn only_mappings_of_sockets_are_packet_rings() {
        let maps = "7f0000000000-7f0001000000 rw-s 00000000 00:08 1234    socket:[1234]\n\
                    7f0002000000-7f0002001000 rw-p 00000000 00:00 0       [heap]\n\
                    7f0003000000-7f0003000800 rw-s 00000000 00:08 1235    socket:[1235]\n";
        assert_eq!(socket_bytes(maps), 0x0100_0800);
    }

    #[test]
    fn a_receiver_that_packs_packets_has_one_curve_for_both_mtus() {
        let curve = |name: &str, points: &[(f64, f64)]| Curve::new(name, points.iter().copied());
        let short = vec![
            curve("packs", &[(60.0, 9.0), (1514.0, 5.0)]),
            curve("TPACKET_V2", &[(60.0, 3.0)]),
        ];

        let long = vec![
            curve("packs", &[(60.0, 8.0), (3000.0, 2.0)]),
            curve("TPACKET_V2", &[(60.0, 1.0)]),
            curve("cells of 4 KiB", &[(60.0, 1.0)]),
        ];
        let joined = joined(short, long, 1514.0);
        let names: Vec<&str> = joined.iter().map(|curve| &*curve.name).collect();
        assert_eq!(names, ["packs", "TPACKET_V2", "TPACKET_V2, MTU 9,000", "cells of 4 KiB"]);

        let points: Vec<f64> = joined[0].points.iter().map(|point| point.x).collect();
        assert_eq!(points, [60.0, 1514.0, 3000.0]);
    }
}
