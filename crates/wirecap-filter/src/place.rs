//! Where in an expression libpcap's complaint belongs: it says what is wrong, but not where.

use std::ops::Range;
use std::time::{Duration, Instant};

/// How libpcap words what its grammar does not take.
const SYNTAX_ERROR: &str = "syntax error";
/// What may follow a part of an expression that was cut off behind a word.
const CONTINUATIONS: [&str; 13] = [
    "",
    " ip",
    " 1",
    " 1.2.3.4",
    " host 1.2.3.4",
    " ::1",
    " 1:2:3:4:5:6",
    " 0] = 0",
    "] = 0",
    " 0 = 0",
    " = 0",
    "/8",
    " 1-2",
];
/// How long to look: names in the expression may be asked of a name server that does not answer.
const PATIENCE: Duration = Duration::from_millis(300);

/// The part of `expression` that `message` is about, in bytes. `complaint` says what libpcap answers to
/// another expression, if it refuses that too.
pub(crate) fn of(
    message: &str,
    expression: &str,
    complaint: impl Fn(&str) -> Option<String>,
) -> Option<Range<usize>> {
    if message.contains(SYNTAX_ERROR) {
        return first_word_too_many(expression, complaint);
    }
    // "unknown port 'http2'", "bogus ethernet address 1:2:"
    let quoted = message.split_once('\'').and_then(|(_, rest)| rest.rsplit_once('\'')).map(|(name, _)| name);
    let name = quoted.or_else(|| message.split_whitespace().last())?;
    let start = expression.find(name)?;
    (expression.rfind(name) == Some(start)).then(|| start..start + name.len())
}

/// The first word that no expression could go on with; behind the end if the expression is only unfinished.
fn first_word_too_many(expression: &str, complaint: impl Fn(&str) -> Option<String>) -> Option<Range<usize>> {
    let start = Instant::now();
    for word in words(expression) {
        let beginning = &expression[..word.end];
        let closing =
            ")".repeat(beginning.matches('(').count().saturating_sub(beginning.matches(')').count()));
        let mut wrong = true;
        for continuation in CONTINUATIONS {
            if start.elapsed() > PATIENCE {
                return None;
            }
            let whole = format!("{beginning}{continuation}{closing}");
            wrong = complaint(&whole).is_some_and(|message| message.contains(SYNTAX_ERROR));
            if !wrong {
                break;
            }
        }
        if wrong {
            return Some(word);
        }
    }
    Some(expression.len()..expression.len())
}

/// The words, numbers and signs of an expression.
fn words(expression: &str) -> Vec<Range<usize>> {
    let mut words: Vec<Range<usize>> = Vec::new();
    let mut in_word = false;
    for (at, character) in expression.char_indices() {
        let end = at + character.len_utf8();
        let is_part = character.is_alphanumeric() || "._:-\\".contains(character);
        match words.last_mut() {
            Some(word) if in_word && is_part => word.end = end,
            _ if character.is_whitespace() => {}
            _ => words.push(at..end),
        }
        in_word = is_part;
    }
    words
}
