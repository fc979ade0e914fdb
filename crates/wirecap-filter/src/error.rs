//! Why a filter could not be created.

use std::ffi::OsString;
use std::io;

use crate::classic::ProgramError;

/// Why a filter could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// libpcap, which compiles filter expressions, is missing.
    #[error(
        "filter expressions need libpcap, which cannot be loaded; install it (Debian package libpcap0.8), \
         or name the library in WIRECAP_LIBPCAP"
    )]
    Libpcap(#[source] LibpcapError),
    /// libpcap rejects the expression.
    #[error("{} in the filter \"{expression}\"; {}", reason(message), help_with(expression))]
    Expression {
        /// The expression.
        expression: String,
        /// libpcap's error message.
        message: String,
    },
    /// The program is invalid.
    #[error("the filter is not a valid BPF program")]
    Program(#[from] ProgramError),
    /// A system call failed.
    #[error("cannot compile the filter")]
    System(#[source] io::Error),
}

/// libpcap's message without the beginning of its longer form, which says no more.
fn reason(message: &str) -> &str {
    message.strip_prefix("can't parse filter expression: ").unwrap_or(message)
}

/// What to read about an expression that libpcap rejects.
fn help_with(expression: &str) -> &'static str {
    match is_for_display(expression) {
        true => "Wireshark's display filters are another language: see pcap-filter(7)",
        false => "see pcap-filter(7)",
    }
}

/// Whether an expression that libpcap rejects is a display filter of Wireshark: `dns`,
/// `ip.addr == 10.1.2.3`.
fn is_for_display(expression: &str) -> bool {
    /// Protocols of Wireshark that are no words of pcap-filter(7).
    const NAMES: [&str; 10] =
        ["dns", "http", "tls", "ssl", "ssh", "dhcp", "ntp", "smb", "sip", "frame"];

    /// Those that are words of both.
    const SHARED: [&str; 7] = ["ip", "ipv6", "tcp", "udp", "icmp", "arp", "eth"];
    let mut words = expression
        .split(|c: char| c.is_whitespace() || c == '!' || c == '(')
        .filter(|w| !w.is_empty());
    let first = words.next().unwrap_or_default();
    let protocol = first.split('.').next().unwrap_or(first);

    NAMES.contains(&protocol)
        || (protocol != first && SHARED.contains(&protocol))
        || expression.contains("==")
}

/// Why libpcap could not be loaded.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", self.answers())]
pub struct LibpcapError {
    /// The names tried, and the dynamic linker's errors.
    pub tried: Vec<(OsString, String)>,
}

impl LibpcapError {
    /// The dynamic linker's errors.
    fn answers(&self) -> String {
        let answers: Vec<&str> = self.tried.iter().map(|(_, answer)| answer.as_str()).collect();
        answers.join("; ")
    }
}
