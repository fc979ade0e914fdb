//! `wirecap archive scheduler`: Ballista's scheduler, which knows the tables of archives.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ballista_core::utils::{default_config_producer, default_session_builder};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use clap::Args;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::ScalarUDF;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use wirecap_units::size;

use crate::cache::CacheOptions;
use crate::cluster::{self, MESSAGE_BYTES_MAX};
use crate::codec::{LogicalCodec, PhysicalCodec};
use crate::failure::Failure;
use crate::node::{self, Node};
use crate::pcap_filter::PcapFilter;

/// The range of `--executor-timeout`: at least two heartbeats.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(86_400);

/// Plan the queries of clients and distribute them to executors
///
/// This is the scheduler of Apache DataFusion Ballista. It lists the archive that a query names and
/// reads its indexes, with the credentials in this process's environment. Each client and each
/// executor that can connect can read all files that this process and the executors can read: there
/// are no passwords and there is no encryption.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  wirecap archive scheduler
  wirecap archive scheduler --listen 192.0.2.1:50050
  wirecap archive executor --scheduler http://192.0.2.1:50050 --listen 192.0.2.7:50051
  wirecap archive sql --cluster http://192.0.2.1:50050 -a s3://bucket/packets 'SELECT count(*) FROM packets'")]
pub(crate) struct Arguments {
    /// The address for clients and executors; port 0 is any free port
    #[arg(long, value_name = "IP:PORT", value_parser = cluster::listen, default_value = "127.0.0.1:50050")]
    listen: SocketAddr,

    /// The name or address under which executors reach this host [default: that of --listen]
    #[arg(long, value_name = "HOST")]
    advertise: Option<String>,

    /// Treat an executor as lost, and repeat its work, after this time without a heartbeat
    #[arg(long, value_name = "TIME", value_parser = timeout, default_value = "60s")]
    executor_timeout: Duration,

    /// Print Ballista's log, not only its warnings and errors
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    cache: CacheOptions,
}

fn timeout(text: &str) -> Result<Duration, String> {
    let time = size::duration(text)?;
    TIMEOUTS.contains(&time).then_some(time).ok_or_else(|| "expected 10s to 1d".to_owned())
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    node::run(arguments.verbose, serve(arguments))
}

async fn serve(arguments: &Arguments) -> Result<(), Failure> {
    let cannot_listen = |error: &std::io::Error| {
        Failure::Failed(format!("cannot listen on {}: {error}", arguments.listen).into())
    };
    let listener =
        TcpListener::bind(arguments.listen).await.map_err(|error| cannot_listen(&error))?;
    let address = listener.local_addr()?;
    let node = Arc::new(Node::new("scheduler", address, &arguments.cache));
    let timeout = arguments.executor_timeout.as_secs_f64().ceil() as u64;

    let config = SchedulerConfig {
        external_host: arguments.advertise.clone().unwrap_or_else(|| host_of(address)),
        bind_host: host_of(address),
        bind_port: address.port(),
        executor_timeout_seconds: timeout,
        expire_dead_executor_interval_seconds: (timeout / 4).max(1),
        no_executors_grace_period_seconds: timeout,
        grpc_server_max_decoding_message_size: MESSAGE_BYTES_MAX as u32,
        grpc_server_max_encoding_message_size: MESSAGE_BYTES_MAX as u32,
        grpc_client_max_message_size: MESSAGE_BYTES_MAX as u32,
        override_config_producer: Some(Arc::new(default_config_producer)),
        override_session_builder: Some(Arc::new(|config| {
            let mut state = default_session_builder(config)?;
            state.register_udf(Arc::new(ScalarUDF::from(PcapFilter::new())))?;
            Ok(state)
        })),
        override_logical_codec: Some(Arc::new(LogicalCodec::of(&node))),
        override_physical_codec: Some(Arc::new(PhysicalCodec::of(&node))),
        ..SchedulerConfig::default()
    };
    let failed = |error: ballista_core::error::BallistaError| Failure::Failed(error.into());
    let of_executors = BallistaCluster::new_from_config(&config).await.map_err(failed)?;
    let scheduler =
        create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(of_executors, Arc::new(config));
    let scheduler = scheduler.await.map_err(failed)?;
    eprintln!("scheduler: http://{address}");

    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        served = start_grpc_service_with_listener(listener, scheduler) => served.map_err(failed),
        _ = tokio::signal::ctrl_c() => Ok(()),
        _ = terminated.recv() => Ok(()),
    }
}

/// The host in an address, as it is written before a port.
pub(crate) fn host_of(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_a_unit_or_is_in_seconds() {
        assert_eq!(timeout("10"), Ok(Duration::from_secs(10)));
        assert_eq!(timeout("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(timeout("1d"), Ok(Duration::from_secs(86_400)));
        for bad in ["9s", "9.9", "25h", "1y", ""] {
            assert!(timeout(bad).is_err(), "{bad} was taken");
        }
    }
}
