//! An archive in S3, provided by an S3 server on loopback.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use wirecap_index::index_path;

use crate::recordings::{Recordings, read, run_with};

/// A server whose buckets are the directories of `root`. It ends with the runtime.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// Where the command keeps copies of indexes.
    caches: TempDir,
    _runtime: Runtime,
}

const KEY: &str = "tester";
const SECRET: &str = "secret-of-tester";

impl Server {
    pub(crate) fn new(root: &Path) -> Self {
        let runtime = Runtime::new().unwrap();
        let mut service = S3ServiceBuilder::new(FileSystem::new(root).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            let server = Builder::new(TokioExecutor::new());
            while let Ok((socket, _)) = listener.accept().await {
                let connection =
                    server.serve_connection(TokioIo::new(socket), service.clone()).into_owned();
                tokio::spawn(async move {
                    let _closed = connection.await;
                });
            }
        });
        Self { address, caches: tempfile::tempdir().unwrap(), _runtime: runtime }
    }

    /// The environment variables with which the command uses this server.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("XDG_CACHE_HOME", self.caches.path().to_str().unwrap().to_owned()),
        ]
    }
}

pub(crate) fn run_on(
    server: &Server,
    arguments: &[&str],
    more: &[(&str, &str)],
) -> crate::recordings::Run {
    let environment = server.environment();
    let mut environment: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    environment.extend_from_slice(more);
    run_with(arguments, &environment)
}

/// The recordings as objects of a bucket, and its server.
fn stored(recordings: &Recordings) -> (TempDir, Server) {
    let root = tempfile::tempdir().unwrap();
    let bucket = root.path().join("bucket/some/prefix");
    fs::create_dir_all(bucket.join("sub")).unwrap();
    for name in ["a.pcapng.zst", "b.pcapng", "sub/c.pcapng.zst"] {
        for name in [name.to_owned(), format!("{name}.flows.parquet")] {
            fs::copy(recordings.folder.path().join(&name), bucket.join(&name)).unwrap();
        }
    }
    let server = Server::new(root.path());
    (root, server)
}

#[test]
fn an_archive_in_s3_gives_the_same_answers_as_the_directory() {
    let recordings = Recordings::new();
    let (root, server) = stored(&recordings);
    let url = "s3://bucket/some/prefix";
    for statement in [
        "SELECT segment, count(*), sum(length) FROM packets GROUP BY 1 ORDER BY 1",
        "SELECT count(*), sum(number) FROM packets WHERE pcap_filter('tcp port 80') AND length > 700",
        "SELECT segment, sum(packets), sum(bytes) FROM flows GROUP BY 1 ORDER BY 1",
    ] {
        let remote = run_on(&server, &["sql", "-a", url, statement, "--format", "csv"], &[]);
        assert!(remote.is_success, "{statement}: {}", remote.said);
        let lines: Vec<&str> = remote.text().lines().skip(1).collect();
        assert_eq!(lines, recordings.sql(statement), "{statement}");
    }
    let file = root.path().join("found.pcapng");
    let found = run_on(&server, &["find", "-a", url, "udp", "-w", file.to_str().unwrap()], &[]);
    assert!(found.is_success, "{}", found.said);
    let expected: Vec<_> = recordings
        .packets
        .iter()
        .filter(|packet| packet.vlan.is_none() && packet.protocol == Some(17))
        .map(|packet| (packet.nanos, packet.data.clone()))
        .collect();
    assert_eq!(read(&file), expected);
}

#[test]
fn a_segment_whose_size_differs_from_its_index_is_reported_and_skipped() {
    let recordings = Recordings::new();
    let (root, server) = stored(&recordings);
    let object = root.path().join("bucket/some/prefix/a.pcapng.zst");
    let bytes = fs::read(&object).unwrap();
    fs::write(&object, &bytes[..bytes.len() - 1]).unwrap();
    let statement = "SELECT segment, count(*) FROM packets GROUP BY 1 ORDER BY 1";
    let run = run_on(&server, &["sql", "-a", "s3://bucket", statement, "--format", "csv"], &[]);
    assert_eq!(run.status, Some(1));
    assert!(run.said.contains("some/prefix/a.pcapng.zst: "), "{}", run.said);
    assert!(
        !run.text().contains("a.pcapng.zst") && run.text().contains("b.pcapng,6000"),
        "{}",
        run.text()
    );
}

#[test]
fn an_index_is_fetched_once_and_again_if_its_object_or_its_copy_changes() {
    let recordings = Recordings::new();
    let (root, server) = stored(&recordings);
    let copies = || {
        let entries = fs::read_dir(server.caches.path().join("wirecap/index")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let statement = "SELECT count(*), sum(length) FROM packets WHERE dst_port = 53";
    let count = |more: &[&str]| {
        let arguments = ["sql", "-a", "s3://bucket/some/prefix", statement, "--format", "csv"];
        run_on(&server, &[&arguments[..], more].concat(), &[])
    };
    let first = count(&[]);
    assert!(first.is_success, "{}", first.said);
    assert_eq!(copies().len(), 3);

    // Damaged objects that a listing shows as before: only copies give the answer.
    let bucket = root.path().join("bucket/some/prefix");
    let objects =
        ["a.pcapng.zst", "b.pcapng", "sub/c.pcapng.zst"].map(|name| index_path(&bucket.join(name)));
    let contents = objects.each_ref().map(|path| fs::read(path).unwrap());
    for path in &objects {
        damage(path);
    }
    assert_eq!(count(&[]).text(), first.text());
    let without = count(&["--cache-size", "0"]);
    assert_eq!(without.status, Some(1), "{}", without.said);
    assert!(without.said.contains("3 segments could not be read completely"), "{}", without.said);

    for (path, bytes) in objects.iter().zip(contents) {
        fs::write(path, bytes).unwrap();
    }
    for path in copies() {
        damage(&path);
    }
    let again = count(&[]);
    assert!(again.is_success && again.text() == first.text(), "{}", again.said);

    let unusable = count(&["--cache", objects[0].to_str().unwrap()]);
    assert_eq!(unusable.status, Some(1));
    assert!(unusable.said.contains("cannot use the directory"), "{}", unusable.said);
}

/// Changes a byte and keeps size and time.
pub(crate) fn damage(path: &Path) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let metadata = file.metadata().unwrap();
    let middle = metadata.len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).unwrap();
    file.write_all_at(&[byte[0] ^ 1], middle).unwrap();
    file.set_modified(metadata.modified().unwrap()).unwrap();
}

#[test]
fn wrong_credentials_and_missing_buckets_are_errors() {
    let recordings = Recordings::new();
    let (_root, server) = stored(&recordings);
    let statement = "SELECT count(*) FROM packets";
    let wrong = run_on(
        &server,
        &["sql", "-a", "s3://bucket", statement],
        &[("AWS_SECRET_ACCESS_KEY", "wrong")],
    );
    assert_eq!(wrong.status, Some(1));
    assert!(wrong.said.contains("cannot list the archive s3://bucket"), "{}", wrong.said);
    let missing = run_on(&server, &["sql", "-a", "s3://no-such-bucket", statement], &[]);
    assert_eq!(missing.status, Some(1));
    assert!(missing.said.contains("s3://no-such-bucket"), "{}", missing.said);
}
