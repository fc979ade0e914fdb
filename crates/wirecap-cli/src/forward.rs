//! `wirecap forward`: a bump in the wire between two interfaces. Packets are sent from the cells in
//! which they arrived.

mod checksums;
mod latency;
mod mirror;
mod passing;
mod report;
mod rewrite;
mod watch;
mod way;

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use wirecap::device::Device;
use wirecap::{
    Capture, CaptureError, DEFAULT_SNAP_LEN, Interface, LostLater, Reception, Timestamps, grouped,
};

use crate::losses;
use crate::shared::app_cost::{AppCost, AppCostOptions};
use crate::shared::control::ControlOptions;
use crate::shared::failure::Failure;
use crate::shared::options::{self, END_AND_OUTPUT, EngineOptions};
use crate::shared::output;
use crate::shared::service;
use crate::shared::signals::stop_on_signals;
use crate::shared::threads;
use crate::size;
use latency::Latency;
use mirror::Mirror;
use report::Report;
use rewrite::{Changes, Rewrite};
use watch::{Egress, watch};
use way::{Treatment, Way};

/// Forward packets between two interfaces, zero-copy
///
/// Packets received on A are sent on B and vice versa, transparently, like a cable. Non-matching
/// packets are dropped. With --engine xdp this host does not receive the packets of either
/// interface. With --engine packet it does, and must not forward them itself (no bridge between the
/// two, net.ipv4.ip_forward = 0).
///
/// Hosts on this machine (namespaces, containers, virtual machines) must compute checksums in
/// software: run ethtool -K INTERFACE tx off on each. Otherwise forward prints a warning.
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  sudo wirecap forward eth1 eth2
  sudo wirecap forward eth1 eth2 --filter 'not vlan' --drop 'udp port 1900' --mirror passed.pcapng
  sudo wirecap forward eth1 eth2 --rewrite eth1:dst=02:00:00:00:00:09,vlan=push:100 --rewrite eth2:vlan=pop")]
pub(crate) struct Arguments {
    /// First interface, or some of its receive queues: eth1, eth1@0-3
    #[arg(value_name = "A")]
    a: String,

    /// Second interface
    #[arg(value_name = "B")]
    b: String,

    /// Forward from A to B only; this host keeps the packets received on B
    #[arg(long)]
    one_way: bool,

    /// Forward only matching packets, see pcap-filter(7)
    #[arg(short, long, value_name = "FILTER")]
    filter: Option<String>,

    /// Drop matching packets, even if they match --filter
    #[arg(long, value_name = "FILTER")]
    drop: Option<String>,

    /// Record forwarded packets, as received, to a pcapng file
    ///
    /// If writing fails, forwarding continues without recording.
    #[arg(long, value_name = "FILE")]
    mirror: Option<PathBuf>,

    /// Replace the file of --mirror if it exists
    #[arg(long, requires = "mirror")]
    force: bool,

    /// Rewrite packets: dst=MAC, src=MAC, vlan=push:ID, vlan=pop, vlan=set:ID
    ///
    /// Separate changes by commas; they are applied in order. A priority may follow the VLAN ID:
    /// vlan=push:100:5. The name of a receiving interface before the changes limits them to its
    /// packets: eth1:dst=02:00:00:00:00:09. Repeatable. vlan=pop and vlan=set do not change
    /// untagged packets.
    #[arg(long, value_name = "[DEV:]CHANGE,...")]
    rewrite: Vec<Rewrite>,

    /// Advanced mode: preserve the packet order of each ring (default)
    #[arg(long)]
    ordered: bool,

    /// Advanced mode: send packets as soon as a worker is done, as in the paper
    #[arg(long, conflicts_with = "ordered")]
    unordered: bool,

    /// Report the latency from arrival to transmission at the end
    #[arg(long)]
    latency: bool,

    #[command(flatten)]
    engine: EngineOptions,

    /// Number of workers [default: one per ring, at most one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,

    #[command(flatten)]
    weight: AppCostOptions,

    /// End after sending this many packets in both directions
    #[arg(short, long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..), help_heading = END_AND_OUTPUT)]
    count: Option<u64>,

    /// End after this time: 10s, 500ms, 5m
    #[arg(long, value_name = "TIME", value_parser = size::duration, help_heading = END_AND_OUTPUT)]
    duration: Option<Duration>,

    /// Print the final ledger as one JSON object on standard output
    #[arg(long, help_heading = END_AND_OUTPUT)]
    json: bool,

    #[command(flatten)]
    control: ControlOptions,
}

/// The filter that the paper's programs apply x times.
const PAPERS_FILTER: &str = "net 131.225.2 and udp";

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let names = arguments.names()?;
    let names = names.each_ref().map(String::as_str);
    let ways = arguments.ways(&names)?;

    let weight = match arguments.weight {
        options if options.is_nothing() => None,
        options => {
            let expression = arguments.filter.as_deref().unwrap_or(PAPERS_FILTER);
            Some(AppCost::new(options, expression, DEFAULT_SNAP_LEN)?)
        }
    };
    let mirror = arguments.mirror.as_deref();
    mirror.map(|path| Mirror::check(path, arguments.force)).transpose()?;

    let sources = [arguments.a.clone(), arguments.b.clone()];
    let claim = arguments.control.claim("forward", &sources)?;
    let capture = arguments.open(&names)?;
    stop_on_signals(capture.stopper())?;

    let egresses = ways.iter().map(|way| Egress::find(&way.to)).collect::<Result<_, _>>()?;
    let create = |path| Mirror::create(path, arguments.force, &capture, arguments.timestamps());
    let mirror = mirror.map(create).transpose()?;

    arguments.engine.describe(&capture, "forwarding");
    options::warn(&capture.ledger().warnings);
    warn_of_second_forwarder(&capture);

    let drop = arguments.drop.clone();
    let mut control = claim.serve_with(Box::new(move |filter| {
        Ok(passing::passing(Some(filter), drop.as_deref())?.unwrap_or_else(|| "".into()))
    }))?;
    let treatment = Treatment { mirror, weight, latency: arguments.latency };
    let writing = treatment.mirror.as_ref().map(|mirror| mirror.writing().clone());

    service::ready();
    let (latencies, outcome) = losses::watched(&capture, writing.as_ref(), &control, || {
        thread::scope(|scope| {
            let work = |(index, worker)| {
                threads::spawn_worker(scope, index, || {
                    way::forward(worker, &capture, &ways, &treatment)
                })
            };
            let workers: Vec<_> = capture.workers().into_iter().enumerate().map(work).collect();
            let done = || workers.iter().all(thread::ScopedJoinHandle::is_finished);
            let watched =
                watch(arguments, &capture, &ways, treatment.mirror.as_ref(), egresses, done);
            let join = |worker: thread::ScopedJoinHandle<'_, _>| {
                worker.join().expect("forwarding does not panic")
            };
            let (latencies, failed) = gather(workers.into_iter().map(join), ways.len());

            // The removal of an interface is also a worker's error, and is reported more clearly
            // here.
            (latencies, watched.and(failed.map_or(Ok(()), |error| Err(error.into()))))
        })
    });

    let rings: Vec<usize> = capture.interfaces().iter().map(|interface| interface.rings).collect();
    let mut ledger = capture.close();
    let no_room = ways.iter().map(Way::no_room).sum();

    if no_room > 0 {
        let reason = "no room for the tags that --rewrite adds".to_owned();
        ledger.lost_later.push(LostLater { packets: no_room, reason });
    }

    let mirrored = match treatment.mirror {
        Some(mirror) => {
            let (recorded, mirrored) = mirror.finish(&ledger, &rings);
            if mirrored.is_ok() {
                eprintln!("recorded {} packets to {}", grouped(recorded.in_file), recorded.to);
            }
            ledger.recorded = Some(recorded);
            mirrored
        }
        None => Ok(()),
    };
    let report =
        Report { ways: &ways, ledger: &ledger, latencies: arguments.latency.then_some(latencies) };
    report.show();

    let reported = if arguments.json { report.json().and_then(output::print) } else { Ok(()) };
    let outcome = outcome.and(mirrored.map_err(Failure::from));
    let outcome = outcome.and_then(|()| Failure::unless_lossless(&ledger));
    control.end(&ledger, &outcome);

    reported.and(outcome)
}

/// With the engine `packet` the host also gets the packets, and may forward them as well.
fn warn_of_second_forwarder(capture: &Capture) {
    let is_shared =
        |interface: &&Interface| matches!(interface.reception, Reception::Packet { .. });
    let mut shared = capture.interfaces().iter().filter(is_shared).peekable();
    let routes = |family: &str| {
        let switch = format!("/proc/sys/net/{family}");
        fs::read_to_string(switch).is_ok_and(|value| value.trim() != "0")
    };
    if shared.peek().is_some() && (routes("ipv4/ip_forward") || routes("ipv6/conf/all/forwarding"))
    {
        eprintln!(
            "warning: this host also routes packets, so routed packets are sent twice; sysctl -w \
             net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0"
        );
    }
    for interface in shared {
        let device = &interface.device;
        if let Some(bridge) =
            device.uppers.iter().find(|upper| upper.kind.as_deref() == Some("bridge"))
        {
            eprintln!(
                "warning: {} is a port of {}, which also forwards its packets",
                device.name, bridge.name
            );
        }
    }
}

/// The times of all workers together, by direction, and the first error.
fn gather(
    outcomes: impl Iterator<Item = Result<Vec<Latency>, CaptureError>>,
    ways: usize,
) -> (Vec<Latency>, Option<CaptureError>) {
    let mut all = vec![Latency::new(); ways];
    let mut failed = None;

    for outcome in outcomes {
        match outcome {
            Ok(latencies) => {
                all.iter_mut().zip(&latencies).for_each(|(all, latency)| all.add(latency));
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    (all, failed)
}

impl Arguments {
    /// The proper names of both interfaces, without queues, as their ports have them. Whether they
    /// exist is looked up when they are opened.
    fn names(&self) -> Result<[String; 2], Failure> {
        let [a, b] = [&self.a, &self.b].map(|source| {
            let name = source.split('@').next().unwrap_or_default();
            Device::find(name).map_or_else(|_| name.to_owned(), |device| device.name)
        });
        if a == b {
            return Err(Failure::Usage(format!(
                "cannot forward {a} to itself; name two interfaces"
            )));
        }

        if self.one_way && self.b.contains('@') {
            let message = format!("--one-way does not receive on {b}: name it without queues");
            return Err(Failure::Usage(message));
        }
        Ok([a, b])
    }

    /// The directions, in the order of the capture's interfaces.
    fn ways(&self, &[a, b]: &[&str; 2]) -> Result<Vec<Way>, Failure> {
        let from: &[&str] = if self.one_way { &[a] } else { &[a, b] };
        let changes = Changes::of(&self.rewrite, from)?;
        let way = |(&from, changes)| Way::new(from, if from == a { b } else { a }, changes);
        Ok(from.iter().zip(changes).map(way).collect())
    }

    fn open(&self, &[_, b]: &[&str; 2]) -> Result<Capture, Failure> {
        let builder = match self.one_way {
            true => Capture::on(&self.a).transmit_on(b),
            false => Capture::on(&self.a).and(&*self.b).forwarding(),
        };
        let builder = self.engine.on(builder).drop_rejected(true).timestamps(self.timestamps());
        let builder = match passing::passing(self.filter.as_deref(), self.drop.as_deref())? {
            Some(request) => builder.filter(request),
            None => builder,
        };
        let builder = if self.unordered { builder.unordered() } else { builder };
        let cpus = thread::available_parallelism().map_or(1, usize::from);

        let builder = match self.workers {
            Some(count) => builder.workers(count.into()),
            None => builder.at_most_workers(cpus),
        };
        Ok(builder.open()?)
    }

    fn timestamps(&self) -> Timestamps {
        match self {
            Self { latency: true, .. } => Timestamps::Packet,
            Self { mirror: Some(_), .. } => Timestamps::Batch,
            _ => Timestamps::None,
        }
    }
}
