//! The `wirecap-archive` command: SQL and packet search over recordings in a directory or in object
//! storage.
//!
//! DataFusion is the query engine, `object_store` the storage. The tables
//! [`flows` and `packets`](table) are read through `wirecap-index`, the code that `wirecap find`
//! uses: the index excludes segments that cannot match and, in the remaining segments, pieces (such
//! as Zstandard frames) that cannot match. Only the remaining pieces are read. [`upload`] copies
//! segments from a sensor's disk to the archive.
//!
//! Ballista runs the same plans on several machines: the client of a [`cluster`] sends logical
//! plans to the [`scheduler`], and the scheduler sends the parts of physical plans to
//! [`executor`]s. The [`codec`] makes messages of the tables and scans.

mod cache;
mod cluster;
mod codec;
mod columns;
mod digest;
mod ends;
mod engine;
mod executor;
mod failure;
mod find;
mod found;
mod location;
mod log;
mod message;
mod node;
mod output;
mod pace;
mod pcap_filter;
mod scan;
mod scheduler;
mod search;
mod segment;
mod sieve;
mod sql;
mod table;
mod target;
mod upload;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Search recordings in a directory or in object storage with SQL or filters; upload them from
/// sensors
#[derive(Debug, Parser)]
#[command(
    name = "wirecap archive",
    bin_name = "wirecap archive",
    version,
    arg_required_else_help = true
)]
#[command(after_help = "Examples:
  wirecap archive sql -a /data 'SELECT src_addr, sum(bytes) FROM flows GROUP BY 1 ORDER BY 2 DESC LIMIT 10'
  wirecap archive sql -a s3://bucket/packets \"SELECT time, src_addr FROM packets WHERE dst_port = 53\" --format csv
  wirecap archive find -a /data --from 17:00 --to 17:30 host 10.1.2.3 -w found.pcapng
  wirecap archive upload /data -a s3://bucket/packets --sensor lab-1 --watch --remove
  wirecap archive sql --cluster http://lab:50050 -a s3://bucket/packets 'SELECT count(*) FROM packets'

Exit status: 0 done, 1 failed or a segment could not be read or uploaded completely, 2 wrong usage.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Sql(sql::Arguments),
    Find(find::Arguments),
    Upload(upload::Arguments),
    Scheduler(scheduler::Arguments),
    Executor(executor::Arguments),
}

/// The command, with the arguments of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.command {
        Command::Sql(arguments) => sql::run(arguments),
        Command::Find(arguments) => find::run(arguments),
        Command::Upload(arguments) => upload::run(arguments),
        Command::Scheduler(arguments) => scheduler::run(arguments),
        Command::Executor(arguments) => executor::run(arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("wirecap archive: {failure}");
            failure.exit_code()
        }
    }
}
