//! Why a filter could not be created.

use std::ffi::OsString;
use std::io;
use std::ops::Range;

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
    #[error(
        "{message}\n  {expression}{}",
        part.as_ref().map(|part| marks(expression, part)).unwrap_or_default()
    )]
    Expression {
        /// The expression.
        expression: String,
        /// libpcap's error message.
        message: String,
        /// The part of the expression that the message quotes, as a byte range, if known.
        part: Option<Range<usize>>,
    },
    /// The program is invalid.
    #[error("the filter is not a valid BPF program")]
    Program(#[from] ProgramError),
    /// A system call failed.
    #[error("cannot compile the filter")]
    System(#[source] io::Error),
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

/// A further line that marks a part of the line above.
fn marks(line: &str, part: &Range<usize>) -> String {
    let width = |range: Range<usize>| line.get(range).map_or(0, |text| text.chars().count());
    let (before, marked) = (width(0..part.start), width(part.clone()));
    format!("\n  {}^{}", " ".repeat(before), "~".repeat(marked.saturating_sub(1)))
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
