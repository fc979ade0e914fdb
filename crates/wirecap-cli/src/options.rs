//! What every capturing command takes.

use std::time::Duration;

use clap::Args;
use wirecap::{Capture, CaptureBuilder, Interface, Ledger, grouped};

use crate::failure::Failure;
use crate::signals::stop_on_signals;
use crate::size;

/// Options of all commands that capture.
#[derive(Debug, Clone, Args)]
pub(crate) struct CaptureOptions {
    /// Interface to capture from, or receive queues of it: eth0, eth0@2, eth0@0-3; may be repeated
    #[arg(short, long = "interface", value_name = "DEV[@QUEUES]", required = true)]
    interfaces: Vec<String>,

    /// M: cells per chunk, the most packets handed over at once
    #[arg(short = 'M', long = "chunk", value_name = "CELLS", default_value_t = wirecap::DEFAULT_CHUNK_CELLS)]
    chunk: u32,

    /// R: chunks per ring; a ring can hold R x M packets [default: 512, or what fits an eighth of the memory]
    #[arg(short = 'R', long = "pool", value_name = "CHUNKS", conflicts_with = "buffer")]
    pool: Option<u32>,

    /// Size R by the memory that the cells of all rings may take: 512M, 2G
    #[arg(long, value_name = "SIZE", value_parser = size::bytes)]
    buffer: Option<u64>,

    /// T: advanced mode; idle workers help a ring whose backlog exceeds this share of its pool
    #[arg(short = 'T', long, value_name = "PERCENT", conflicts_with = "basic")]
    threshold: Option<f64>,

    /// Basic mode: every worker reads its own rings only (the default)
    #[arg(long)]
    basic: bool,

    /// Do not put the interface into promiscuous mode
    #[arg(short = 'p', long)]
    no_promiscuous_mode: bool,

    /// Bytes kept of each packet
    #[arg(short, long, value_name = "BYTES", default_value_t = wirecap::DEFAULT_SNAP_LEN)]
    pub(crate) snaplen: u32,

    /// End after this many packets
    #[arg(short, long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// End after this time: 10s, 500ms, 5m
    #[arg(long, value_name = "TIME", value_parser = size::duration)]
    pub(crate) duration: Option<Duration>,

    /// Print the final ledger as one JSON object on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

impl CaptureOptions {
    /// The capture these options describe.
    fn builder(&self) -> CaptureBuilder {
        let (first, others) = self.interfaces.split_first().expect("clap requires one");
        let builder = others
            .iter()
            .fold(Capture::on(first), CaptureBuilder::and)
            .chunk(self.chunk)
            .promiscuous(!self.no_promiscuous_mode)
            .snap_len(self.snaplen);
        let builder = match self.threshold {
            Some(percent) => builder.advanced(percent / 100.0),
            None => builder.basic(),
        };
        match (self.pool, self.buffer) {
            (Some(chunks), _) => builder.pool(chunks),
            (None, Some(bytes)) => builder.buffer(bytes),
            (None, None) => builder,
        }
    }

    /// Opens the capture, with whatever `adjust` adds, ready to be stopped by Ctrl-C, and says on
    /// standard error what was opened.
    pub(crate) fn open(
        &self,
        adjust: impl FnOnce(CaptureBuilder) -> CaptureBuilder,
    ) -> Result<Capture, Failure> {
        let capture = adjust(self.builder()).open()?;
        stop_on_signals(capture.stopper())?;
        capture.interfaces().iter().for_each(|interface| eprintln!("{}", opened(&capture, interface)));
        Ok(capture)
    }

    /// Prints the final ledger: for people on standard error, for programs on standard output.
    pub(crate) fn report(&self, ledger: &Ledger) -> Result<(), Failure> {
        eprintln!("{ledger}");
        if self.json {
            println!("{}", serde_json::to_string(ledger)?);
        }
        Ok(())
    }
}

/// `capturing eth0: 4 rings, xdp engine (native copy), B-(256,512), 1.0 GiB of cells`, and below it a
/// line for each rung of the ladder that was missed.
fn opened(capture: &Capture, interface: &Interface) -> String {
    let rings = interface.rings;
    let noun = if rings == 1 { "ring" } else { "rings" };
    let geometry = capture.geometry();
    let cells = size::human_bytes(interface.pool_bytes);
    let pages = if interface.huge_pages { " on huge pages" } else { "" };
    let mut text = format!(
        "capturing {}: {rings} {noun} of {} packets, xdp engine ({}), {}, {cells} of cells{pages}",
        interface.device.name,
        grouped(geometry.cells().into()),
        interface.rung,
        capture.mode(),
    );
    for (rung, reason) in &interface.missed_rungs {
        text += &format!("\n  not {rung}: {reason}");
    }
    text
}
