//! Small runs of the lab's live experiments. Each experiment itself checks the counts of every run,
//! and fails if the sender's count differs from its interface's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use wirecap_lab::experiment::{Effort, Findings, Run, Unwatched, Verdict, Watch};
use wirecap_lab::live::Lab;
use wirecap_lab::live::bed::Bed;
use wirecap_lab::live::process::CommandLine;
use wirecap_lab::live::rivals::Field;
use wirecap_lab::live::trial::{self, FlowSender};
use wirecap_lab::runner::{Audience, Runner, RunnerError};
use wirecap_testbed::{privileged, repeat_if_disturbed};

fn lab() -> Lab {
    let lab = CommandLine::new(env!("CARGO_BIN_EXE_wirecap-lab"));
    Lab { wirecap: CommandLine::wirecap(), lab, tiny: true }
}

fn find(id: &str) -> Option<Findings> {
    if !privileged() {
        return None;
    }
    let experiments = lab().experiments();
    let experiment = experiments.iter().find(|experiment| experiment.id() == id).unwrap();
    let run = Run { effort: Effort::Quick, seed: 1, watch: &Unwatched };
    let findings = experiment.run(&run).unwrap();
    for note in &findings.notes {
        println!("{note}");
    }
    for table in &findings.tables {
        println!("{}", table.csv());
    }
    for claim in &findings.claims {
        println!("{claim:?}");
    }
    check(&findings);
    Some(findings)
}

/// Checks that no loss of wirecap or of a bare AF_XDP loop is unexplained, and that missing
/// contenders are listed.
#[track_caller]
fn check(findings: &Findings) {
    let books =
        findings.tables.iter().filter(|table| table.columns.contains(&"unexplained".to_owned()));
    let mut contenders = BTreeSet::new();
    let mut compared = 0;
    for table in books {
        let unexplained = table.columns.iter().position(|column| column == "unexplained").unwrap();
        for row in &table.rows {
            contenders.insert(row[0].as_str());
            let has_all_books = row[0].contains("xdp") || row[0].contains("AF_XDP");
            assert!(!has_all_books || row[unexplained] == "0", "{row:?}");
            compared += usize::from(has_all_books);
        }
    }
    assert!(compared > 0, "no contender whose every loss is counted: {contenders:?}");
    let absent = findings.notes.iter().filter(|note| note.starts_with("Absent: ")).count();
    assert!(
        !contenders.is_empty() && findings.commands.len() + absent >= contenders.len(),
        "{findings:?}"
    );
    assert!(!findings.figures.is_empty() || !findings.tables.is_empty());
    assert!(!findings.data.is_empty());
}

#[test]
fn loss_against_rate_is_measured() {
    find("live-rate");
}

#[test]
fn loss_against_length_is_measured() {
    find("live-length");
}

#[test]
fn loss_against_cost_is_measured() {
    find("live-cost");
}

#[test]
fn loss_against_bursts_is_measured() {
    find("live-burst");
}

#[test]
fn packets_kept_per_mib_are_measured() {
    let Some(findings) = find("live-room") else { return };
    assert_eq!(findings.claims.len(), 2);
    for claim in &findings.claims {
        assert_eq!(
            claim.verdict,
            Verdict::Holds,
            "each cell keeps a packet or a part of one: {claim:#?}"
        );
    }
}

#[test]
fn loss_order_and_cost_against_skew_are_measured() {
    let Some(findings) = find("live-skew") else { return };
    let mut tables = findings.tables.iter();
    let table = tables.find(|table| table.columns.contains(&"out of order".to_owned())).unwrap();
    let column = |name: &str| table.columns.iter().position(|column| column == name).unwrap();
    // Two queues with seven flows each, for every contender that is present.
    let flows = column("flows of several threads");
    assert!(
        table.rows.len() >= 4 && table.rows.iter().all(|row| row[flows].ends_with(" of 14")),
        "{table:?}"
    );
    let alone = table.rows.iter().find(|row| row[0] == "wirecap, basic, xdp").unwrap();
    assert_eq!(
        (&*alone[flows], &*alone[column("out of order")]),
        ("0 of 14", "0.00 %"),
        "{table:?}"
    );
    let in_turn = table.rows.iter().find(|row| row[0] == "AF_PACKET fanout, in turn").unwrap();
    assert_eq!(in_turn[flows], "14 of 14", "each packet goes to the next thread: {table:?}");
}

#[test]
fn skew_over_more_queues_is_measured() {
    find("live-skew-queues");
}

#[test]
fn loss_against_the_threshold_is_measured() {
    find("live-threshold");
}

#[test]
fn costs_of_packets_and_captures_are_measured() {
    find("live-footprint");
}

/// Processing time of a packet: a handler can process 20,000 per second.
const COST_NS: u64 = 50_000;
const HANDLED_PER_SECOND: f64 = 20_000.0;
const RING_MIB: u32 = 64;
/// Three seconds of the load.
const SENT: u64 = 168_000;

#[test]
fn under_heavy_load_advanced_mode_loses_nothing_and_a_thread_per_queue_the_computed_share() {
    if !privileged() {
        return;
    }
    let bed = Bed::with_queues(4).unwrap();
    // Of the workers' capacity of 80,000, 56,000 are offered, most of them to the first worker. The
    // pools are deep enough that a busy machine loses no packets for lack of CPU time.
    let mut sender = FlowSender {
        rates: vec![47_600.0, 2_800.0, 2_800.0, 2_800.0],
        ports: (0..4).map(|queue| vec![2000 + queue]).collect(),
        seconds: 3.0,
        frame_bytes: 1514,
        in_kernel: false,
    };
    let field = Field::new(&lab(), RING_MIB).rings(4);
    let contenders = field.multi_handlers(COST_NS);
    let named = |name: &str| contenders.iter().find(|contender| contender.name == name).unwrap();
    let advanced =
        trial::run(&bed, named("wirecap, advanced, xdp"), &mut sender, &mut |_| Ok(())).unwrap();
    assert_eq!(
        (advanced.unexplained(), advanced.lost(), advanced.sent),
        (0, 0, SENT),
        "{advanced:?}"
    );
    for name in ["wirecap, basic, xdp", "bare AF_XDP loops"] {
        repeat_if_disturbed(name, |_| {
            let trial = trial::run(&bed, named(name), &mut sender, &mut |_| Ok(())).unwrap();
            assert_eq!((trial.unexplained(), trial.lost_at_interface), (0, 0), "{name}: {trial:?}");
            // While packets arrive, the first worker has at most this much time, and its ring holds
            // as many as there are cells.
            let could = HANDLED_PER_SECOND * trial.seconds + f64::from(field.cells());
            let surplus = sender.seconds * sender.rates[0] - could;
            if surplus <= 0.0 {
                return Err(format!(
                    "the worker could handle all of a load that took {} s",
                    trial.seconds
                ));
            }
            assert!(trial.lost() as f64 >= surplus, "{name}: {trial:?}, {surplus} expected");
            Ok(())
        });
    }
}

/// Stops the run after this many steps.
struct Impatient {
    steps: AtomicUsize,
    kept: AtomicUsize,
}

impl Impatient {
    fn after(steps: usize) -> Self {
        Self { steps: steps.into(), kept: 0.into() }
    }
}

impl Watch for Impatient {
    fn progress(&self, _share: f64, _what: &str) {
        self.steps.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.steps.load(Ordering::Relaxed) == 0
    }
}

impl Audience for Impatient {
    fn begins(&self, _place: usize, _count: usize, _title: &str) {}

    fn ended(&self, how: &str) {
        self.kept.fetch_add(how.starts_with("kept").into(), Ordering::Relaxed);
    }
}

#[test]
fn an_interrupted_lab_continues_after_its_finished_experiments() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let runner = Runner {
        directory: directory.path().to_owned(),
        effort: Effort::Quick,
        seed: 1,
        again: false,
    };
    let mut experiments = lab().experiments();
    experiments.retain(|experiment| ["live-cost", "live-burst"].contains(&experiment.id()));
    // The first experiment takes five steps.
    let outcome = runner.run(&experiments, &Impatient::after(7));
    assert!(matches!(outcome, Err(RunnerError::Stopped)), "{outcome:?}");
    let patient = Impatient::after(usize::MAX);
    let entries = runner.run(&experiments, &patient).unwrap();
    assert!(entries.len() == 2 && entries.iter().all(|entry| entry.outcome.is_ok()), "{entries:?}");
    assert_eq!(patient.kept.load(Ordering::Relaxed), 1);
}

/// All processes, with their parents and network namespaces.
fn processes() -> BTreeMap<u32, (u32, u64)> {
    let describe = |path: &Path| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let parent =
            status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        Some((parent, fs::metadata(path.join("ns/net")).ok()?.ino()))
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let number = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    entries.filter_map(|entry| Some((number(&entry)?, describe(&entry.path())?))).collect()
}

/// Waits for a process that the lab has started in another namespace. Returns the namespace.
fn namespace_of_a_contender(lab: &Child) -> u64 {
    let own = fs::metadata("/proc/self/ns/net").unwrap().ino();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let children = processes().into_values().filter(|(parent, _)| *parent == lab.id());
        if let Some((_, namespace)) = children.into_iter().find(|(_, namespace)| *namespace != own)
        {
            return namespace;
        }
        assert!(Instant::now() < deadline, "no contender was started");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_killed_lab_leaves_no_process_and_no_namespace() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut lab = Command::new(env!("CARGO_BIN_EXE_wirecap-lab"))
        .args(["report", "--quick", "--only", "live-cost", "-o"])
        .arg(directory.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let namespace = namespace_of_a_contender(&lab);
    lab.kill().unwrap();
    lab.wait().unwrap();
    // The lab's namespaces have no names, so one without a process is gone.
    let deadline = Instant::now() + Duration::from_secs(60);
    while processes().into_values().any(|(_, other)| other == namespace) {
        assert!(Instant::now() < deadline, "a process is still in the namespace");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        0,
        "a result of an experiment that was killed"
    );
}
