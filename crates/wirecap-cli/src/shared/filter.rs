//! Which packets a command captures.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use wirecap::CaptureBuilder;
use wirecap::filter::FilterRequest;

use crate::shared::failure::Failure;

/// The filter of commands that capture.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Filter")]
pub(crate) struct FilterOptions {
    /// Capture only matching packets: udp and port 53, see pcap-filter(7)
    #[arg(value_name = "FILTER")]
    words: Vec<String>,

    /// Read the expression from a file, like tcpdump; # starts a comment; - is stdin
    #[arg(short = 'F', long, value_name = "FILE", conflicts_with_all = ["words", "bpf_program"])]
    filter_file: Option<PathBuf>,

    /// The filter of a configuration file
    #[arg(long, value_name = "FILTER", hide = true)]
    config_filter: Option<String>,

    /// Filter by a classic BPF program, as tcpdump -ddd prints it
    ///
    /// The program only selects packets; use -s for the snap length.
    #[arg(long, value_name = "FILE", conflicts_with = "words")]
    bpf_program: Option<PathBuf>,
}

impl FilterOptions {
    /// The requested filter, if there is one.
    pub(crate) fn request(&self) -> Result<Option<FilterRequest>, Failure> {
        if let Some(path) = &self.bpf_program {
            let program = FilterRequest::program(&read(path)?);
            return program
                .map(Some)
                .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())));
        }
        Ok(self.expression()?.map(FilterRequest::from))
    }
}

impl FilterOptions {
    /// Whether the filter is a program.
    pub(crate) fn is_program(&self) -> bool {
        self.bpf_program.is_some()
    }

    /// The expression, if there is one.
    pub(crate) fn expression(&self) -> Result<Option<String>, Failure> {
        match &self.filter_file {
            Some(path) => Ok(Some(without_comments(&read(path)?))),
            None if self.words.is_empty() => Ok(self.config_filter.clone()),
            None => Ok(Some(self.words.join(" "))),
        }
    }
}

/// The text of a file; - is standard input.
fn read(path: &Path) -> Result<String, Failure> {
    let path = if path.as_os_str() == "-" { Path::new("/dev/stdin") } else { path };
    let failed = |error| Failure::Failed(format!("cannot read {}: {error}", path.display()).into());
    fs::read_to_string(path).map_err(failed)
}

/// The expression in a file, without comments, which begin with #, as in tcpdump.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Adds the filter, if there is one.
pub(crate) fn filtered(builder: CaptureBuilder, request: Option<FilterRequest>) -> CaptureBuilder {
    match request {
        Some(request) => builder.filter(request),
        None => builder,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_filter_may_have_comments() {
        let text = "# what is left of the office\nudp and   # DNS\n\n  port 53\n";
        assert_eq!(without_comments(text), "udp and port 53");
        assert_eq!(without_comments("# nothing\n"), "");
    }
}
