//! Queries on a cluster: a scheduler and executors, each a process, on loopback.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use wirecap_index::{Ensured, ensure};

use crate::recordings::{PACKETS, Random, Recordings, Run, packets, record, run};
use crate::s3::{Server, damage};

/// How long a process may take to start, and a query to end.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time after which the scheduler gives up an executor.
const EXECUTOR_TIMEOUT: &str = "10s";

/// A process that ends with its owner.
pub(crate) struct Process {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Process {
    pub(crate) fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wirecap-archive"));
        Self::of(command.args(arguments).envs(environment.iter().copied()))
    }

    /// A process of any program. Its standard output is not kept.
    pub(crate) fn of(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let of_thread = Arc::clone(&said);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                of_thread.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { child, said }
    }

    pub(crate) fn said(&self) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a line of standard error that contains `text`, after the first `skip` lines.
    pub(crate) fn wait_for(&mut self, text: &str, skip: usize) -> String {
        let begun = Instant::now();
        loop {
            if let Some(line) = self.said().into_iter().skip(skip).find(|line| line.contains(text))
            {
                return line;
            }
            let is_over = self.child.try_wait().unwrap();
            assert!(is_over.is_none(), "{is_over:?} before {text:?}: {:?}", self.said());
            assert!(begun.elapsed() < PATIENCE, "no {text:?} in {:?}", self.said());
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn kill(&mut self) {
        // SIGKILL, to this process only.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) fn finish(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end: {:?}", self.said());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// The first of two consecutive free ports. The kernel assigns neither to a connection: they are
/// below the range of local ports (`ip_local_port_range`).
fn free_ports() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + (std::process::id() % 5000) as u16 * 2;
    for _ in 0..1000 {
        let port = first + NEXT.fetch_add(2, Ordering::Relaxed);
        if [port, port + 1].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()) {
            return port;
        }
    }
    panic!("no two consecutive free ports");
}

/// A scheduler and executors.
pub(crate) struct Cluster {
    scheduler: Process,
    executors: Vec<Process>,
    pub(crate) url: String,
}

impl Cluster {
    pub(crate) fn new(executors: usize) -> Self {
        Self::with_environment(executors, &[], &[])
    }

    fn with_environment(
        executors: usize,
        of_scheduler: &[(&str, &str)],
        of_executors: &[(&str, &str)],
    ) -> Self {
        let mut scheduler = Process::start(
            &[
                "scheduler",
                "--listen",
                "127.0.0.1:0",
                "--verbose",
                "--executor-timeout",
                EXECUTOR_TIMEOUT,
            ],
            of_scheduler,
        );
        let line = scheduler.wait_for("scheduler: http://", 0);
        let url = line.split_once("scheduler: ").unwrap().1.trim().to_owned();
        let mut cluster = Self { scheduler, executors: Vec::new(), url };
        for _ in 0..executors {
            cluster.add(of_executors);
        }
        cluster
    }

    fn add(&mut self, environment: &[(&str, &str)]) {
        let listen = format!("127.0.0.1:{}", free_ports());
        let arguments = [
            "executor",
            "--scheduler",
            &self.url,
            "--listen",
            &listen,
            "--threads",
            "1",
            "--verbose",
        ];
        let mut executor = Process::start(&arguments, environment);
        executor.wait_for("Executor registration succeed", 0);
        self.executors.push(executor);
    }

    /// Runs the command on this cluster; ends it after [`PATIENCE`].
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        let patience = PATIENCE.as_secs().to_string();
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &patience, env!("CARGO_BIN_EXE_wirecap-archive")]);
        Run::of(command.args(arguments).args(["--cluster", &self.url]))
    }

    /// The rows of a statement in the order of their texts.
    pub(crate) fn sorted(&self, archive: &str, statement: &str) -> Vec<String> {
        let run = self.run(&["sql", "-a", archive, statement, "--format", "csv"]);
        assert!(run.is_success, "{statement}: {}\n{}", run.said, self.log());
        let mut rows: Vec<String> = run.text().lines().skip(1).map(str::to_owned).collect();
        rows.sort();
        rows
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        std::iter::once(&self.scheduler).chain(&self.executors)
    }

    /// Bytes of the reads of all processes, of any file and socket.
    pub(crate) fn read_bytes(&self) -> u64 {
        let of = |process: &Process| {
            let counts = fs::read_to_string(format!("/proc/{}/io", process.child.id())).unwrap();
            counts
                .lines()
                .find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok())
                .unwrap()
        };
        self.processes().map(of).sum()
    }

    /// CPU time of all processes.
    pub(crate) fn processor_seconds(&self) -> f64 {
        let of = |process: &Process| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", process.child.id())).unwrap();
            let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
            // Fields 14 and 15, in hundredths of a second.
            (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
        };
        self.processes().map(of).sum()
    }

    /// The last lines that the processes have printed.
    pub(crate) fn log(&self) -> String {
        let last = |process: &Process| {
            let said = process.said();
            said[said.len().saturating_sub(20)..].join("\n")
        };
        self.processes().map(last).collect::<Vec<_>>().join("\n---\n")
    }
}

fn sorted(mut rows: Vec<String>) -> Vec<String> {
    rows.sort();
    rows
}

#[test]
fn a_cluster_gives_the_rows_and_the_savefiles_of_one_machine() {
    let recordings = Recordings::new();
    let cluster = Cluster::new(3);
    for statement in [
        "SELECT count(*), sum(length), sum(number) FROM packets",
        "SELECT segment, protocol, count(*), sum(length) FROM packets GROUP BY 1, 2",
        "SELECT * FROM packets WHERE src_addr = '10.0.0.7' OR vlan = 101",
        "SELECT time, number, encode(data, 'hex') FROM packets WHERE pcap_filter('tcp port 80') AND length > 700",
        "SELECT count(*) FROM packets WHERE (pcap_filter('icmp or arp') OR length = 0)",
        "SELECT is_match, count(*) FROM (SELECT pcap_filter('udp') AS is_match FROM packets) GROUP BY 1",
        "SELECT segment, sum(packets), sum(bytes) FROM flows GROUP BY 1",
        "SELECT p.segment, count(*) FROM packets p JOIN (SELECT DISTINCT segment, src_addr FROM flows WHERE dst_port = 53) f
           ON p.segment = f.segment AND p.src_addr = f.src_addr GROUP BY 1",
        "SELECT time, length FROM packets WHERE length = (SELECT max(length) FROM packets)",
        "SELECT src_addr, rank() OVER (ORDER BY n DESC, src_addr) FROM (SELECT src_addr, count(*) AS n FROM packets GROUP BY 1)",
        "SELECT count(*) FROM packets WHERE src_addr = '192.0.2.1'",
        "SELECT 1 + 1",
        "SELECT table_name FROM information_schema.tables WHERE table_name IN ('flows', 'packets')",
    ] {
        assert_eq!(
            cluster.sorted(recordings.archive(), statement),
            sorted(recordings.sql(statement)),
            "{statement}"
        );
    }
    let ordered = "SELECT time, number, segment FROM packets WHERE dst_port = 53 ORDER BY time DESC, segment LIMIT 500";
    let on_cluster = cluster.run(&["sql", "-a", recordings.archive(), ordered, "--format", "csv"]);
    let lines: Vec<&str> = on_cluster.text().lines().skip(1).collect();
    assert_eq!(lines, recordings.sql(ordered), "{}", on_cluster.said);

    // Outside of the archive.
    let here = recordings.folder.path().with_extension("here.pcapng");
    let there = recordings.folder.path().with_extension("there.pcapng");
    let begin = (crate::recordings::BEGIN / crate::recordings::SECOND + 1).to_string();
    for arguments in [
        &[][..],
        &["udp dst port 53"],
        &["--from", &begin, "tcp and greater 600"],
        &["--flow", "10.0.0.7:10.0.0.9"],
        &["host 192.0.2.1"],
    ] {
        let base = ["find", "-a", recordings.archive(), "--force", "-w"];
        let local = run(&[&base[..], &[here.to_str().unwrap()], arguments].concat());
        assert!(local.is_success, "{}", local.said);
        let remote = cluster.run(&[&base[..], &[there.to_str().unwrap()], arguments].concat());
        assert!(remote.is_success, "{arguments:?}: {}\n{}", remote.said, cluster.log());
        let [local_bytes, remote_bytes] = [&here, &there].map(|path| fs::read(path).unwrap());
        assert!(local_bytes == remote_bytes, "{arguments:?}: the savefiles differ");
        // The last lines differ only in the duration.
        let found =
            |said: &str| said.rsplit_once(" in ").unwrap().0.lines().last().unwrap().to_owned();
        assert_eq!(found(&local.said), found(&remote.said), "{arguments:?}");
        for option in ["--count", "--list"] {
            let base = ["find", "-a", recordings.archive(), option];
            let local = run(&[&base[..], arguments].concat());
            let remote = cluster.run(&[&base[..], arguments].concat());
            assert!(
                remote.is_success,
                "{option} {arguments:?}: {}\n{}",
                remote.said,
                cluster.log()
            );
            assert_eq!(local.text(), remote.text(), "{option} {arguments:?}");
        }
    }
    [here, there].iter().for_each(|path| fs::remove_file(path).unwrap());

    let plan = cluster.run(&[
        "sql",
        "-a",
        recordings.archive(),
        "EXPLAIN SELECT data FROM packets WHERE time < '2026-11-22T17:00:00.5Z'",
    ]);
    assert!(
        plan.text().contains("PacketScan: segments=1 of 3, pieces=1 of "),
        "{}{}",
        plan.text(),
        plan.said
    );
}

#[test]
fn a_cluster_names_the_segments_that_it_cannot_read() {
    let recordings = Recordings::new();
    damage(&recordings.folder.path().join("a.pcapng.zst"));
    let cluster = Cluster::new(2);
    let statement = "SELECT count(*) FROM packets WHERE segment = 'b.pcapng'";
    assert_eq!(cluster.sorted(recordings.archive(), statement), [PACKETS.to_string()]);
    for arguments in [
        &[
            "sql",
            "-a",
            recordings.archive(),
            "SELECT segment, count(*) FROM packets GROUP BY 1",
            "--format",
            "csv",
        ][..],
        &["find", "-a", recordings.archive(), "--count", "tcp"],
    ] {
        let local = run(arguments);
        let remote = cluster.run(arguments);
        assert_eq!(
            (local.status, remote.status),
            (Some(1), Some(1)),
            "{}\n{}",
            local.said,
            remote.said
        );
        let faults = |run: &Run| {
            let lines = run.said.lines().filter(|line| line.contains("a.pcapng.zst: "));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(faults(&local).len(), 1, "{}", local.said);
        assert_eq!(faults(&local), faults(&remote), "{}", remote.said);
        assert!(
            remote.said.contains("one segment could not be read completely"),
            "{}",
            remote.said
        );
        assert!(!remote.output.is_empty(), "the other segments are in the result");
    }
    // Both savefiles have the same packets, up to the damage.
    let files =
        ["here.pcapng", "there.pcapng"].map(|name| recordings.folder.path().with_extension(name));
    let base = ["find", "-a", recordings.archive(), "-w"];
    run(&[&base[..], &[files[0].to_str().unwrap()]].concat());
    cluster.run(&[&base[..], &[files[1].to_str().unwrap()]].concat());
    let [here, there] = files.each_ref().map(|path| fs::read(path).unwrap());
    assert!(here == there && here.len() > 1_000_000, "{} and {} bytes", here.len(), there.len());
    files.iter().for_each(|path| fs::remove_file(path).unwrap());
}

#[test]
fn each_process_reads_an_archive_in_s3_with_its_own_credentials() {
    let recordings = Recordings::new();
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("bucket/sub")).unwrap();
    for name in ["a.pcapng.zst", "b.pcapng", "sub/c.pcapng.zst"] {
        for name in [name.to_owned(), format!("{name}.flows.parquet")] {
            fs::copy(recordings.folder.path().join(&name), root.path().join("bucket").join(&name))
                .unwrap();
        }
    }
    let server = Server::new(root.path());
    let environment = server.environment();
    let right: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (*name, &**value)).collect();
    // The client has no credentials.
    let cluster = Cluster::with_environment(2, &right, &right);
    for statement in [
        "SELECT segment, count(*), sum(length) FROM packets WHERE pcap_filter('udp') GROUP BY 1",
        "SELECT segment, sum(packets), sum(bytes) FROM flows GROUP BY 1",
    ] {
        assert_eq!(
            cluster.sorted("s3://bucket", statement),
            sorted(recordings.sql(statement)),
            "{statement}"
        );
    }
    let missing =
        cluster.run(&["sql", "-a", "s3://no-such-bucket", "SELECT count(*) FROM packets"]);
    assert_eq!(missing.status, Some(1), "{}", missing.said);
    assert!(missing.said.contains("scheduler 127.0.0.1:"), "{}", missing.said);
    assert!(
        missing.said.contains("cannot list the archive s3://no-such-bucket"),
        "{}",
        missing.said
    );

    let mut wrong = right.clone();
    wrong.push(("AWS_SECRET_ACCESS_KEY", "wrong"));
    let cluster = Cluster::with_environment(1, &right, &wrong);
    let refused = cluster.run(&["sql", "-a", "s3://bucket", "SELECT count(*) FROM packets"]);
    assert_eq!(refused.status, Some(1), "{}", refused.said);
    let text = "cannot read the archive s3://bucket: ";
    assert!(
        refused.said.contains("executor 127.0.0.1:") && refused.said.contains(text),
        "{}",
        refused.said
    );
    assert!(refused.output.is_empty());
}

#[test]
fn each_error_of_a_cluster_names_its_cause() {
    let recordings = Recordings::new();
    let archive = recordings.archive();
    let statement = "SELECT count(*) FROM packets";
    let nothing = format!("http://127.0.0.1:{}", free_ports());
    let free = format!("127.0.0.1:{}", free_ports());
    let server = Server::new(recordings.folder.path());
    let other = format!("http://{}", server.address);
    let without_executors = Cluster::new(0);
    let cluster = Cluster::new(1);
    let empty = tempfile::tempdir().unwrap();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = busy.local_addr().unwrap().to_string();
    let cases: &[(&[&str], i32, &str)] = &[
        (
            &["sql", "-a", archive, statement, "--cluster", &nothing],
            1,
            "cannot reach the scheduler http://127.0.0.1:",
        ),
        (&["find", "-a", archive, "--count", "--cluster", &nothing], 1, "Connection refused"),
        (
            &["sql", "-a", archive, statement, "--cluster", &other],
            1,
            "does not answer as a scheduler",
        ),
        (&["sql", "-a", archive, statement, "--cluster", "s3://bucket"], 2, "expected http://HOST"),
        (
            &["sql", "-a", archive, statement, "--cluster", &cluster.url, "--memory", "1G"],
            2,
            "--memory",
        ),
        (&["sql", "-a", "/no/such", statement, "--cluster", &cluster.url], 1, "/no/such"),
        (
            &["sql", "-a", empty.path().to_str().unwrap(), statement, "--cluster", &cluster.url],
            1,
            "no recordings in",
        ),
        (&["sql", "-a", "ftp://host/x", statement, "--cluster", &cluster.url], 2, "ftp://host/x"),
        (
            &["sql", "-a", archive, "SELECT nothing FROM packets", "--cluster", &cluster.url],
            2,
            "nothing",
        ),
        (
            &[
                "sql",
                "-a",
                archive,
                "SELECT 1 FROM packets WHERE pcap_filter('porte 1')",
                "--cluster",
                &cluster.url,
            ],
            2,
            "pcap_filter",
        ),
        (
            &["sql", "-a", archive, statement, "--cluster", &without_executors.url],
            1,
            "has no executors",
        ),
        (
            &["executor", "--scheduler", &nothing, "--listen", &free],
            1,
            "cannot reach the scheduler",
        ),
        (
            &["executor", "--scheduler", &cluster.url, "--listen", &busy],
            1,
            "cannot listen on 127.0.0.1:",
        ),
        (
            &["executor", "--scheduler", &cluster.url, "--listen", "localhost"],
            2,
            "expected IP:PORT",
        ),
        (&["scheduler", "--listen", &busy], 1, "cannot listen on 127.0.0.1:"),
    ];
    for (arguments, status, word) in cases {
        let run = run(arguments);
        assert_eq!(run.status, Some(*status), "{arguments:?}: {}", run.said);
        assert!(run.said.contains(word), "{arguments:?}: {}", run.said);
        assert!(run.output.is_empty(), "{arguments:?}");
    }
    // The address of an executor is not that of a scheduler.
    let mut cluster = cluster;
    let line = cluster.executors[0].wait_for("executor 127.0.0.1:", 0);
    let address = line.split_once("executor ").unwrap().1.split(' ').next().unwrap().to_owned();
    let wrong = run(&["sql", "-a", archive, statement, "--cluster", &address]);
    assert_eq!(wrong.status, Some(1));
    assert!(wrong.said.contains("does not answer as a scheduler"), "{}", wrong.said);
}

#[test]
fn an_interrupted_query_ends_on_the_cluster() {
    let recordings = Recordings::new();
    let mut cluster = Cluster::new(1);
    // Sixteen parts, which one thread reads one after the other. The first one has begun.
    let statement = "SELECT * FROM packets ORDER BY data";
    let mut client = Process::start(
        &[
            "sql",
            "-a",
            recordings.archive(),
            statement,
            "--format",
            "csv",
            "--cluster",
            &cluster.url,
        ],
        &[],
    );
    cluster.executors[0].wait_for("Execute task", 0);
    client.signal(Signal::INT);
    assert_eq!(client.finish().code(), Some(1));
    assert!(client.said().iter().any(|line| line.contains("interrupted")), "{:?}", client.said());
    // The only thread of the only executor is free again.
    let statement = "SELECT count(*) FROM packets";
    assert_eq!(cluster.sorted(recordings.archive(), statement), [(3 * PACKETS).to_string()]);
}

/// Kills of an executor.
const KILLS: usize = 6;

#[test]
fn a_query_survives_the_death_of_an_executor_or_ends_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut count = 0;
    for number in 0..6 {
        let path = folder.path().join(format!("{number}.pcapng.zst"));
        let packets = packets(number, 2 * PACKETS);
        count += packets.len();
        record(&path, &packets);
        assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
    }
    let archive = folder.path().to_str().unwrap();
    let statement = "SELECT src_addr, dst_port, count(*), sum(length) FROM packets GROUP BY 1, 2";
    let here = run(&["sql", "-a", archive, statement, "--format", "csv"]);
    assert!(here.is_success, "{}", here.said);
    let expected = sorted(here.text().lines().skip(1).map(str::to_owned).collect());
    let local = folder.path().with_extension("local.pcapng");
    let found = run(&["find", "-a", archive, "tcp", "-w", local.to_str().unwrap()]);
    assert!(found.is_success, "{}", found.said);

    let mut cluster = Cluster::new(3);
    let mut random = Random::new(7);
    let remote = folder.path().with_extension("remote.pcapng");
    let mut finished = 0;
    for round in 0..KILLS {
        let result = folder.path().with_extension("result.csv");
        let arguments = match round % 2 {
            0 => ["sql", "-a", archive, statement, "--force", "-w", result.to_str().unwrap()],
            _ => ["find", "-a", archive, "tcp", "--force", "-w", remote.to_str().unwrap()],
        };
        let victim = random.below(cluster.executors.len() as u64) as usize;
        let before = cluster.executors[victim].said().len();
        let mut client =
            Process::start(&[&arguments[..], &["--cluster", &cluster.url]].concat(), &[]);
        // In the middle: the executor has begun with a task.
        cluster.executors[victim].wait_for("Execute task", before);
        thread::sleep(Duration::from_millis(random.below(300)));
        let was_running = client.child.try_wait().unwrap().is_none();
        cluster.executors[victim].kill();
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = client.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "round {round}: no end: {:?}\n{}",
                client.said(),
                cluster.log()
            );
            thread::sleep(Duration::from_millis(50));
        };
        let said = client.said();
        println!(
            "round {round}: running {was_running}, {status}, after {:?}: {said:?}",
            begun.elapsed()
        );
        match status.success() {
            true if round % 2 == 0 => {
                let text = fs::read_to_string(&result).unwrap();
                assert_eq!(sorted(text.lines().skip(1).map(str::to_owned).collect()), expected);
                finished += 1;
            }
            true => {
                assert!(
                    fs::read(&remote).unwrap() == fs::read(&local).unwrap(),
                    "the savefiles differ"
                );
                finished += 1;
            }
            false => {
                assert_eq!(status.code(), Some(1), "{said:?}");
                assert!(said.iter().any(|line| line.starts_with("wirecap archive: ")), "{said:?}");
            }
        }
        cluster.executors.remove(victim);
        cluster.add(&[]);
    }
    println!("{finished} of {KILLS} queries finished, {count} packets");
    // Afterwards, the cluster still answers queries.
    assert_eq!(cluster.sorted(archive, "SELECT count(*) FROM packets"), [count.to_string()]);
    for path in [local, remote, folder.path().with_extension("result.csv")] {
        let _none = fs::remove_file(path);
    }
}
