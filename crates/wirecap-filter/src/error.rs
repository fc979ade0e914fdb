//! Why a filter could not be created.

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::ops::Range;

use crate::classic::ProgramError;

/// Why a filter could not be created.
#[derive(Debug)]
#[non_exhaustive]
pub enum FilterError {
    /// libpcap, which compiles filter expressions, is missing.
    Libpcap(LibpcapError),
    /// libpcap rejects the expression.
    Expression {
        /// The expression.
        expression: String,
        /// libpcap's error message.
        message: String,
        /// The part of the expression that the message quotes, as a byte range, if known.
        part: Option<Range<usize>>,
    },
    /// The program is invalid.
    Program(ProgramError),
    /// A system call failed.
    System(io::Error),
}

impl FilterError {
    /// Creates an error from libpcap's message about this expression. The message has no position; a name
    /// that it quotes ("unknown port 'http2'") or ends with ("bogus ethernet address 1:2:") is searched for
    /// in the expression.
    pub(crate) fn in_expression(expression: &str, message: String) -> Self {
        let quoted = message.split_once('\'').and_then(|(_, rest)| rest.rsplit_once('\''));
        let name = quoted.map(|(name, _)| name).or_else(|| message.split_whitespace().last());
        let part = name.and_then(|name| {
            let start = expression.find(name)?;
            (expression.rfind(name) == Some(start)).then(|| start..start + name.len())
        });
        Self::Expression { expression: expression.to_owned(), message, part }
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Libpcap(_) => f.write_str(
                "filter expressions need libpcap, which cannot be loaded; install it (Debian package libpcap0.8), or \
                 name the library in WIRECAP_LIBPCAP",
            ),
            Self::Expression { expression, message, part } => {
                write!(f, "{message}\n  {expression}")?;
                part.as_ref().map_or(Ok(()), |part| write!(f, "\n  {}", marks(expression, part)))
            }
            Self::Program(_) => f.write_str("the filter is not a valid BPF program"),
            Self::System(_) => f.write_str("cannot compile the filter"),
        }
    }
}

/// A line that marks a part of the line above.
fn marks(line: &str, part: &Range<usize>) -> String {
    let width = |range: Range<usize>| line.get(range).map_or(0, |text| text.chars().count());
    let (before, marked) = (width(0..part.start), width(part.clone()));
    format!("{}^{}", " ".repeat(before), "~".repeat(marked.saturating_sub(1)))
}

impl Error for FilterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Libpcap(error) => Some(error),
            Self::Expression { .. } => None,
            Self::Program(error) => Some(error),
            Self::System(error) => Some(error),
        }
    }
}

impl From<ProgramError> for FilterError {
    fn from(error: ProgramError) -> Self {
        Self::Program(error)
    }
}

/// Why libpcap could not be loaded.
#[derive(Clone, Debug)]
pub struct LibpcapError {
    /// The names tried, and the dynamic linker's errors.
    pub tried: Vec<(OsString, String)>,
}

impl fmt::Display for LibpcapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (_, answer)) in self.tried.iter().enumerate() {
            write!(f, "{}{answer}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl Error for LibpcapError {}
