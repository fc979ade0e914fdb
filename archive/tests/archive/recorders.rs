//! Three recorders on test beds, whose segments are uploaded while they record.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;
use wirecap_index::load;
use wirecap_testbed::{Generator, Load, Namespace, Sizes, Stamp, Traffic, VethPair, privileged};

use crate::cluster::Process;
use crate::recordings::{Random, read};
use crate::s3::{Server, run_on};
use crate::upload::{URL, bucket, files};

/// Frames per second of each bed.
const RATE: u64 = 2000;
const FRAME_BYTES: u16 = 1000;
/// Packets of a segment, half a second.
const OF_SEGMENT: &str = "1000";
/// A started upload has uploaded a file within this time.
const UPLOAD_MAX: Duration = Duration::from_secs(60);
/// Each sensor's name, and the format of its segments.
const SENSORS: [(&str, &str); 3] =
    [("lab-1", "pcapng"), ("lab-2", "pcapng.zst"), ("lab-3", "pcap")];

/// The command `wirecap`, which the other workspace builds.
fn wirecap() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let built = ["debug", "release"].map(|profile| target.join(profile).join("wirecap"));
    let newest = built.into_iter().filter(|path| path.exists()).max_by_key(|path| {
        let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
        modified.unwrap()
    });
    if newest.is_none() {
        wirecap_testbed::skip("target has no wirecap: run cargo build -p wirecap-cli");
    }
    newest
}

/// A bed with a recorder. Its directory has the segments that were not uploaded yet.
struct Sensor {
    pair: VethPair,
    spool: TempDir,
    recorder: Process,
    _namespaces: [Namespace; 2],
}

impl Sensor {
    fn new(wirecap: &Path, format: &str) -> Self {
        let namespaces = [(); 2].map(|()| Namespace::new().unwrap());
        let [sender, receiver] = &namespaces;
        let pair = VethPair::new((sender, "a0"), (receiver, "a1"), 1, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        let spool = tempfile::tempdir().unwrap();
        let mut command = Command::new(wirecap);
        command.args(["capture", "-i", "a1", "-M", "64", "-R", "512", "--index", "on"]);
        command.args(["--file-packets", OF_SEGMENT, "-w"]);
        command.arg(spool.path().join(format!("rec-%i.{format}")));
        let mut recorder = receiver.run_in(|| Process::of(&mut command)).unwrap();
        recorder.wait_for("capturing", 0);
        Self { pair, spool, recorder, _namespaces: namespaces }
    }

    fn generator(&self) -> Generator {
        let sizes = Sizes::fixed(FRAME_BYTES);
        let traffic = Traffic { sizes, flows: 20, ..Traffic::to(&self.pair.receiver) };
        Generator::new(&self.pair.sender, &traffic).unwrap()
    }

    /// The arguments of its upload, which takes a quarter of a second per segment.
    fn upload<'a>(&'a self, name: &'a str) -> [&'a str; 9] {
        let spool = self.spool.path().to_str().unwrap();
        ["upload", spool, "-a", URL, "--sensor", name, "--remove", "--rate", "8M"]
    }
}

/// Starts an upload that continues until it is stopped.
fn watch(server: &Server, sensor: &Sensor, name: &str) -> Process {
    let environment = server.environment();
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (*name, &**value)).collect();
    Process::start(&[&sensor.upload(name)[..], &["--watch"]].concat(), &environment)
}

/// The numbers of the frames in a sensor's segments, each of which is readable and has a valid
/// index.
fn recorded(archive: &Path, name: &str) -> Vec<u64> {
    let folder = archive.join(format!("sensor={name}"));
    let mut numbers = Vec::new();
    for object in files(&folder) {
        let path = folder.join(object);
        if !path.to_str().unwrap().ends_with(".flows.parquet") {
            let packets = read(&path);
            let index = load(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(index.packets(), packets.len() as u64, "{}", path.display());
            numbers.extend(packets.iter().map(|(_, frame)| Stamp::of(frame).unwrap().sequence));
        }
    }
    numbers.sort_unstable();
    numbers
}

/// `WIRECAP_KILLS` is the number of kills.
#[test]
fn three_recorders_upload_while_they_record_and_one_upload_is_killed_repeatedly() {
    if !privileged() {
        return;
    }
    let Some(wirecap) = wirecap() else { return };
    let kills: u32 = std::env::var("WIRECAP_KILLS").map_or(20, |kills| kills.parse().unwrap());
    let (_root, archive, server) = bucket();
    let mut sensors = SENSORS.map(|(_, format)| Sensor::new(&wirecap, format));
    let mut generators = sensors.each_ref().map(Sensor::generator);
    let sending = generators
        .each_mut()
        .map(|generator| generator.start(&[Load::endless(0).per_second(RATE)]).unwrap());
    let mut others = [1, 2].map(|place| watch(&server, &sensors[place], SENSORS[place].0));
    let mut random = Random::new(std::process::id().into());
    let there = || files(&archive.join("sensor=lab-1")).len();
    for kill in 1..=kills {
        let before = there();
        let mut upload = watch(&server, &sensors[0], "lab-1");
        // Every second upload is killed at any moment, also before it has sent anything; the others
        // after they have sent something.
        let deadline = Instant::now() + UPLOAD_MAX;
        while kill % 2 == 0 && there() == before && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(Duration::from_millis(50 + random.below(2500)));
        upload.kill();
        println!(
            "kill {kill}: {} files here, {} objects",
            files(sensors[0].spool.path()).len(),
            there()
        );
    }
    assert!(there() >= (kills as usize / 2).max(3), "the killed uploads have completed segments");
    let sent = sending.map(|run| run.stop().unwrap().iter().map(|sent| sent.frames).sum::<u64>());
    for sensor in &mut sensors {
        sensor.recorder.signal(Signal::INT);
        let status = sensor.recorder.finish();
        assert!(status.success(), "{status}: {:?}", sensor.recorder.said());
    }
    for upload in &mut others {
        upload.signal(Signal::TERM);
        assert!(upload.finish().success(), "{:?}", upload.said());
    }
    for (sensor, (name, _)) in sensors.iter().zip(SENSORS) {
        let rest = run_on(&server, &sensor.upload(name), &[]);
        assert!(rest.is_success, "{}", rest.said);
        assert_eq!(files(sensor.spool.path()), Vec::<String>::new(), "nothing remains here");
    }
    let mut counts = Vec::new();
    for ((name, _), sent) in SENSORS.into_iter().zip(sent) {
        let numbers = recorded(&archive, name);
        assert!(numbers.iter().copied().eq(0..sent), "{name}: {} of {sent} packets", numbers.len());
        counts.push(format!("{name},{sent}"));
    }
    let statement = "SELECT sensor, count(*) FROM packets GROUP BY 1 ORDER BY 1";
    let sql = run_on(&server, &["sql", "-a", URL, statement, "--format", "csv"], &[]);
    assert!(sql.is_success, "{}", sql.said);
    assert_eq!(sql.text().lines().skip(1).collect::<Vec<_>>(), counts);
}
