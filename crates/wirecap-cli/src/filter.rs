//! Which packets a command captures.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use wirecap::CaptureBuilder;
use wirecap::filter::FilterRequest;

use crate::failure::Failure;

/// The filter of commands that capture.
#[derive(Debug, Clone, Args)]
pub(crate) struct FilterOptions {
    /// Capture only matching packets: udp and port 53, see pcap-filter(7)
    #[arg(value_name = "FILTER")]
    words: Vec<String>,

    /// Filter by a classic BPF program, as tcpdump -ddd prints it
    ///
    /// It selects packets; use -s for their length.
    #[arg(long, value_name = "FILE", conflicts_with = "words")]
    bpf_program: Option<PathBuf>,
}

impl FilterOptions {
    /// What was asked for, if anything was.
    pub(crate) fn request(&self) -> Result<Option<FilterRequest>, Failure> {
        if let Some(path) = &self.bpf_program {
            let cannot = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            let text = fs::read_to_string(path).map_err(|error| Failure::Failed(cannot(&error).into()))?;
            let program = FilterRequest::program(&text);
            return program.map(Some).map_err(|error| Failure::Usage(cannot(&error)));
        }
        let expression = self.words.join(" ");
        Ok((!self.words.is_empty()).then(|| expression.into()))
    }
}

/// Adds the filter, if there is one.
pub(crate) fn filtered(builder: CaptureBuilder, request: Option<FilterRequest>) -> CaptureBuilder {
    match request {
        Some(request) => builder.filter(request),
        None => builder,
    }
}
