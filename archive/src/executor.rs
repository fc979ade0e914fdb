//! `wirecap archive executor`: Ballista's executor, which reads archives.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use ballista_core::registry::BallistaFunctionRegistry;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use clap::Args;
use datafusion::logical_expr::ScalarUDF;
use wirecap_units::size;

use crate::cache::CacheOptions;
use crate::cluster::{self, Cluster, Connection, MESSAGE_BYTES_MAX};
use crate::codec::{LogicalCodec, PhysicalCodec};
use crate::failure::Failure;
use crate::node::{self, Node};
use crate::pcap_filter::{self, PcapFilter};
use crate::scheduler::host_of;

/// Interval of heartbeats.
const HEARTBEAT_SECONDS: u64 = 5;

/// Read packets for the queries of a cluster
///
/// This is an executor of Apache DataFusion Ballista. It reads the archives that queries name, with
/// the credentials in this process's environment, and keeps intermediate results in files. It uses
/// two ports: that of --listen, and the next one. Each process that can connect can read all files
/// that this process can read: there are no passwords and there is no encryption.
///
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  wirecap archive executor
  wirecap archive executor --scheduler http://192.0.2.1:50050 --listen 192.0.2.7:50051 --memory 16G")]
pub(crate) struct Arguments {
    /// The scheduler: http://HOST:PORT
    #[arg(long, value_name = "URL", value_parser = Cluster::parse, default_value = "http://127.0.0.1:50050")]
    scheduler: Cluster,

    /// The address to listen on: clients, the scheduler and other executors connect to this port
    /// and the next one
    #[arg(long, value_name = "IP:PORT", value_parser = cluster::listen, default_value = "127.0.0.1:50051")]
    listen: SocketAddr,

    /// The name or address under which clients, the scheduler and other executors reach this host
    /// [default: as the scheduler sees it]
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,

    /// Number of threads [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Memory for sorting, grouping and joining; data beyond it goes to disk
    ///
    /// Units are powers of 1,024: 16G is 16 GiB.
    #[arg(long, value_name = "BYTES", value_parser = size::bytes, default_value = "1G")]
    memory: u64,

    /// Directory for intermediate results and data that exceeds the memory
    /// [default: that of temporary files]
    #[arg(long, value_name = "DIR")]
    spill: Option<PathBuf>,

    /// Print Ballista's log, not only its warnings and errors
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    cache: CacheOptions,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    node::run(arguments.verbose, serve(arguments))
}

async fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let listen = arguments.listen;
    let Some(next) = listen.port().checked_add(1).filter(|_| listen.port() > 0) else {
        return Err(Failure::Usage(format!(
            "invalid address {listen}: expected a port of 1 to 65534"
        )));
    };

    // Ballista reports a port in use only in its log.
    for port in [listen.port(), next] {
        let address = SocketAddr::new(listen.ip(), port);
        let bound = TcpListener::bind(address);
        bound.map_err(|error| {
            Failure::Failed(format!("cannot listen on {address}: {error}").into())
        })?;
    }

    Connection::open(&arguments.scheduler).await?;
    let mut new = tempfile::Builder::new();
    new.prefix("wirecap-executor-");

    let directory = match &arguments.spill {
        Some(spill) => new.tempdir_in(spill).map_err(|error| {
            Failure::Failed(format!("cannot use the directory {}: {error}", spill.display()).into())
        })?,
        None => new.tempdir()?,
    };
    let processors = || thread::available_parallelism().map_or(1, usize::from);
    let node = Arc::new(Node::new("executor", listen, &arguments.cache));
    let mut functions = BallistaFunctionRegistry::default();
    functions
        .scalar_functions
        .insert(pcap_filter::NAME.to_owned(), Arc::new(ScalarUDF::from(PcapFilter::new())));

    let config = ExecutorProcessConfig {
        bind_host: host_of(listen),
        external_host: arguments.advertise.clone(),
        port: listen.port(),
        grpc_port: next,
        scheduler_host: arguments.scheduler.host.clone(),
        scheduler_port: arguments.scheduler.port,
        vcores: arguments.threads.map_or_else(processors, usize::from),
        work_dir: Some(directory.path().display().to_string()),
        memory_pool_size: Some(arguments.memory),
        grpc_max_decoding_message_size: MESSAGE_BYTES_MAX as u32,
        grpc_max_encoding_message_size: MESSAGE_BYTES_MAX as u32,
        executor_heartbeat_interval_seconds: HEARTBEAT_SECONDS,
        override_function_registry: Some(Arc::new(functions)),
        override_logical_codec: Some(Arc::new(LogicalCodec::of(&node))),
        override_physical_codec: Some(Arc::new(PhysicalCodec::of(&node))),
        ..ExecutorProcessConfig::default()
    };
    eprintln!("{}: scheduler {}", node.name(), arguments.scheduler.url());

    start_executor_process(Arc::new(config)).await.map_err(|error| Failure::Failed(error.into()))
}
