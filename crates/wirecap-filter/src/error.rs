//! Why there is no filter.

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::ops::Range;

use crate::classic::ProgramError;

/// Why there is no filter.
#[derive(Debug)]
#[non_exhaustive]
pub enum FilterError {
    /// libpcap, which knows the language of filter expressions, is not there.
    Libpcap(LibpcapError),
    /// libpcap does not accept the expression.
    Expression {
        /// The expression.
        expression: String,
        /// What libpcap says.
        message: String,
        /// The part of the expression that the message names, in bytes, if it names one.
        part: Option<Range<usize>>,
    },
    /// The program is not sound.
    Program(ProgramError),
    /// The system could not do something.
    System(io::Error),
}

impl FilterError {
    /// What libpcap says of this expression. It does not say where; a name that it quotes ("unknown port 'http2'") or ends
    /// with ("bogus ethernet address 1:2:") is looked up in the expression.
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

/// A line that points at a part of the line above it.
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

/// Why there is no libpcap.
#[derive(Clone, Debug)]
pub struct LibpcapError {
    /// The names tried, and the dynamic linker's answers.
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
