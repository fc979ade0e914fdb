//! The client of a cluster: it sends a query to the scheduler, and asks it afterwards which
//! segments were not read.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ballista_core::config::BallistaConfig;
use ballista_core::execution_plans::DistributedQueryExec;
use ballista_core::serde::protobuf::operator_metric::Metric;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::protobuf::{CancelJobParams, GetJobMetricsParams, GetJobStatusParams};
use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use clap::Args;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::DataFrame;
use datafusion_proto::protobuf::LogicalPlanNode;
use futures::TryStreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::transport::Channel;
use wirecap_units::error::causes;

use crate::failure::Failure;
use crate::scan::{self, BYTES_READ};
use crate::watch::Watch;

/// Bytes of a message at most, in which the pieces of segments to be read are the largest part.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// The port of schedulers.
pub(crate) const PORT: u16 = 50_050;
/// Maximum time until the scheduler has answered whether it has executors.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum bytes of this answer.
const ANSWER_BYTES_MAX: u64 = 4096;
/// Parts of a query, unless the user chooses their number.
pub(crate) const PARTS: usize = 16;

/// The address of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Cluster {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let expected =
            || format!("invalid scheduler {text:?}: expected http://HOST or http://HOST:PORT");
        let url = match text.contains("://") {
            true => url::Url::parse(text),
            false => url::Url::parse(&format!("http://{text}")),
        };
        let url = url.map_err(|_| expected())?;
        let is_plain =
            url.scheme() == "http" && matches!(url.path(), "" | "/") && url.query().is_none();
        let host =
            url.host_str().filter(|host| is_plain && !host.is_empty()).ok_or_else(expected)?;

        // Port 80 is used only if it is written: it is the default of HTTP, not that of schedulers.
        let is_80 = text.trim_end_matches('/').ends_with(":80");
        let port = if is_80 { 80 } else { url.port().unwrap_or(PORT) };
        Ok(Self { host: host.to_owned(), port })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}:{}", self.host, self.port)
    }
}

#[derive(Debug, Args)]
pub(crate) struct ClusterOptions {
    /// Run the query on the cluster with this scheduler: http://HOST:50050
    ///
    /// The scheduler and the executors read the archive with their own credentials. An archive in a
    /// directory must have the same path on all machines. See wirecap archive scheduler.
    #[arg(long, value_name = "URL", value_parser = Cluster::parse, conflicts_with_all = ["cache", "cache_size"])]
    pub(crate) cluster: Option<Cluster>,
}

/// A scheduler that answers.
pub(crate) struct Connection {
    scheduler: SchedulerGrpcClient<Channel>,
    url: String,
    /// The plan of the query.
    running: Mutex<Option<Arc<dyn ExecutionPlan>>>,
}

/// The amount that executors have read.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) read_bytes: u64,
    /// Number of segments that may have matching packets, and of all segments.
    pub(crate) segments: (u64, u64),
}

impl Connection {
    /// Connects, and checks that this is a scheduler.
    pub(crate) async fn open(cluster: &Cluster) -> Result<Self, Failure> {
        let url = cluster.url();
        let cannot = |reason: &str| {
            Failure::Failed(format!("cannot reach the scheduler {url}: {reason}").into())
        };
        let config = GrpcClientConfig::from(&BallistaConfig::default());
        let endpoint =
            create_grpc_client_endpoint(url.clone(), Some(&config)).map_err(|error| {
                Failure::Usage(format!("invalid scheduler {url}: {}", causes(&error)))
            })?;
        let channel = endpoint.connect().await.map_err(|error| cannot(&causes(&error)))?;
        let mut scheduler = SchedulerGrpcClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let none = GetJobStatusParams { job_id: "none".to_owned() };

        match scheduler.get_job_status(none).await {
            Ok(_) => {}
            // A scheduler reports that it knows no such job.
            Err(status)
                if status.code() == Code::Internal && status.message().contains("job none") => {}
            Err(status) => {
                let reason = format!(
                    "it does not answer as a scheduler of wirecap archive: {}",
                    status.message()
                );
                return Err(cannot(&reason));
            }
        }

        Ok(Self { scheduler, url, running: Mutex::default() })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Runs a query.
    pub(crate) async fn run(&self, query: DataFrame) -> Result<SendableRecordBatchStream, Failure> {
        let context = Arc::new(query.task_ctx());
        let plan = query.create_physical_plan().await?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&plan));
        self.check_executors().await?;
        let stream = execute_stream(plan, context)?;
        let incomplete = |error: DataFusionError| {
            DataFusionError::Execution(format!(
                "the cluster did not complete the query: {}",
                plain(&error)
            ))
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(stream.schema(), stream.map_err(incomplete))))
    }

    /// Without executors, a query would wait for one without a time limit.
    async fn check_executors(&self) -> Result<(), Failure> {
        let address = self.url.trim_start_matches("http://");
        let asked = async {
            let mut scheduler = TcpStream::connect(address).await?;
            let question = format!("GET /readyz HTTP/1.0\r\nHost: {address}\r\n\r\n");
            scheduler.write_all(question.as_bytes()).await?;
            let mut answer = Vec::new();
            scheduler.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
        };
        let answer = tokio::time::timeout(PATIENCE, asked).await;
        let answer = answer.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        let answer = answer.map_err(|error| {
            Failure::Failed(format!("cannot reach the scheduler {}: {error}", self.url).into())
        })?;

        match answer.split(' ').nth(1) {
            Some("503") => Err(Failure::Failed(
                format!(
                    "the scheduler {} has no executors: start some with wirecap archive executor",
                    self.url
                )
                .into(),
            )),
            _ => Ok(()),
        }
    }

    /// The scheduler's name for the query.
    fn job(&self) -> Option<String> {
        fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<String> {
            match plan.downcast_ref::<DistributedQueryExec<LogicalPlanNode>>() {
                Some(query) => query.job_id().map(|job| job.to_string()),
                None => plan.children().into_iter().find_map(of),
            }
        }
        self.running.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(of)
    }

    /// Ends the query. If the scheduler does not answer, the cluster may continue the query.
    pub(crate) async fn cancel(&self) {
        if let Some(job_id) = self.job() {
            let _unanswered = self.scheduler.clone().cancel_job(CancelJobParams { job_id }).await;
        }
    }

    /// Names the segments that could not be read in a query that ended.
    pub(crate) async fn report(&self, watch: &Watch) -> Result<Report, Failure> {
        let mut report = Report::default();

        // A query without tables may have run here.
        let Some(job_id) = self.job() else { return Ok(report) };
        let metrics = self.scheduler.clone().get_job_metrics(GetJobMetricsParams { job_id }).await;
        let metrics = metrics.map_err(|status| {
            let reason = status.message();
            Failure::Failed(
                format!("the result may be incomplete: the scheduler {} did not report which segments could not be read: {reason}; repeat the query", self.url).into(),
            )
        })?;

        for operator in metrics.into_inner().stages.into_iter().flat_map(|stage| stage.operators) {
            if let Some(segments) = segments_in(&operator.operator_desc) {
                report.segments = segments;
            }
            for metric in operator.metrics {
                let Some(Metric::Count(count)) = metric.metric else { continue };
                if count.name == BYTES_READ {
                    report.read_bytes += count.value;
                } else if let Some((segment, reason)) = scan::fault_in(&count.name) {
                    watch.faulty_because(segment, reason.to_owned());
                }
            }
        }

        Ok(report)
    }
}

/// An error of Ballista without the names of the layers through which it went.
fn plain(error: &DataFusionError) -> String {
    const LAYERS: [&str; 4] =
        ["Execution error: ", "External error: ", "Arrow error: ", "DataFusion error: "];
    let text = error.strip_backtrace();
    let mut rest = &*text;

    loop {
        let of_job = rest.strip_prefix("Job ").and_then(|job| job.split_once(" failed: "));
        let inner = LAYERS
            .iter()
            .find_map(|layer| rest.strip_prefix(layer))
            .or(of_job.map(|(_, inner)| inner));
        match inner {
            Some(inner) => rest = inner,
            None => return rest.to_owned(),
        }
    }
}

/// Number of segments that may match, and of all segments, from the description of a scan.
fn segments_in(description: &str) -> Option<(u64, u64)> {
    let numbers = description.strip_prefix("PacketScan: segments=")?.split(',').next()?;
    let (some, all) = numbers.split_once(" of ")?;
    Some((some.parse().ok()?, all.parse().ok()?))
}

/// An address to listen on: the loopback interface unless another one is named.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("invalid address {text:?}: expected IP:PORT or [IPV6]:PORT"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_is_a_url_or_a_host_with_or_without_a_port() {
        let is = |text: &str, host: &str, port: u16| {
            assert_eq!(Cluster::parse(text), Ok(Cluster { host: host.to_owned(), port }), "{text}");
        };
        is("http://lab:1234", "lab", 1234);
        is("http://lab", "lab", PORT);
        is("http://lab:80/", "lab", 80);
        is("lab:1234", "lab", 1234);
        is("127.0.0.1", "127.0.0.1", PORT);
        is("http://[::1]:5", "[::1]", 5);

        for wrong in [
            "",
            "https://lab:1",
            "s3://lab",
            "http://lab/path",
            "lab:port",
            "http://lab?x",
            "http://:5",
        ] {
            assert!(Cluster::parse(wrong).unwrap_err().contains("invalid scheduler"), "{wrong}");
        }
    }

    #[test]
    fn an_error_of_a_job_is_shown_without_its_layers() {
        let error = |text: &str| plain(&DataFusionError::Execution(text.to_owned()));
        assert_eq!(
            error("Job 038G failed: DataFusion error: Execution error: no archive"),
            "no archive"
        );
        assert_eq!(error("Job failed due to x"), "Job failed due to x");
    }

    #[test]
    fn the_segments_of_a_scan_are_in_its_description() {
        let line =
            "PacketScan: segments=1 of 3, pieces=1 of 40, bytes=1.0 MiB, pcap_filter=\"a, b\"";
        assert_eq!(segments_in(line), Some((1, 3)));
        assert_eq!(segments_in("FlowScan: segments=1 of 3"), None);
    }
}
