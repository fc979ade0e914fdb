//! File names: a strftime(3) pattern with a sequence number, and its match against the files of a
//! directory.
//!
//! A pattern matches only names of its exact shape (`%Y` is four digits), so no other file is
//! removed.

use std::path::{Path, PathBuf};

use wirecap_units::clock;

/// Minimum digits of a sequence number.
const DIGITS: usize = 5;

/// The largest sequence number accepted from an existing file, so that there is always a next one.
const SEQUENCE_MAX: u64 = 1 << 62;

/// How the names of a set differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbering {
    /// By the pattern; if it contains neither a time nor `%i`, `_%i_%Y%m%d%H%M%S` is inserted
    /// before its extension.
    Pattern,
    /// A number is appended, as with `tcpdump -C`; the first file has none.
    Appended,
    /// A number is appended that restarts after this many files, as with `tcpdump -C -W`.
    Ring(u64),
}

/// An invalid pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct BadPattern {
    /// The fault.
    pub problem: String,
}

/// The names of a set of files, all in one directory.
///
/// Conversions are those of strftime(3), in local time, and `%i`, the sequence number.
#[derive(Debug, Clone)]
pub struct Pattern {
    directory: PathBuf,
    tokens: Vec<Token>,
    numbering: Numbering,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Literal(String),
    Sequence,
    /// A strftime conversion, and the form of its result.
    Time(char, Shape),
}

/// The form of a conversion's result. It must match no more than necessary: matching files count as
/// files of the set and may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Digits(usize),
    /// One or more digits.
    AnyDigits,
    /// Any number of letters, including none.
    Letters,
    /// `CET`, or `+03` and `+0545` where the zone has no other name.
    ZoneName,
    /// `+0100`
    Zone,
}

fn shape(conversion: char) -> Option<Shape> {
    Some(match conversion {
        'Y' => Shape::Digits(4),
        'm' | 'd' | 'H' | 'I' | 'M' | 'S' | 'y' | 'U' | 'W' | 'V' | 'C' | 'g' => Shape::Digits(2),
        'j' => Shape::Digits(3),
        'u' | 'w' => Shape::Digits(1),
        'G' => Shape::Digits(4),
        's' => Shape::AnyDigits,
        'a' | 'A' | 'b' | 'B' | 'h' | 'p' | 'P' => Shape::Letters,
        'Z' => Shape::ZoneName,
        'z' => Shape::Zone,
        _ => return None,
    })
}

impl Pattern {
    /// Parses the names of a set from `path`.
    ///
    /// # Errors
    ///
    /// [`BadPattern`] if the path has no file name, an unknown conversion, or a conversion in its
    /// directory.
    pub fn new(path: &Path, numbering: Numbering) -> Result<Self, BadPattern> {
        let problem = |problem: String| BadPattern { problem };
        let name = path.file_name().and_then(|name| name.to_str());
        let name =
            name.ok_or_else(|| problem(format!("{} does not name a file", path.display())))?;
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));

        if directory.to_string_lossy().contains('%') {
            return Err(problem(format!(
                "{}: time conversions are allowed in the file name, not in the directory",
                path.display()
            )));
        }

        let mut tokens = tokens(name).map_err(problem)?;
        let is_plain = tokens.iter().all(|token| matches!(token, Token::Literal(_)));
        if is_plain && numbering == Numbering::Pattern {
            let (stem, extension) = name.split_at(extension_start(name));
            tokens =
                self::tokens(&format!("{stem}_%i_%Y%m%d%H%M%S{extension}")).map_err(problem)?;
        }

        Ok(Self { directory: directory.to_owned(), tokens, numbering })
    }

    pub(crate) fn numbering(&self) -> Numbering {
        self.numbering
    }

    /// The directory of all files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The path of file number `sequence`, counted from 0, that begins at `seconds` since the
    /// epoch.
    pub fn path(&self, sequence: u64, seconds: i64) -> PathBuf {
        let mut name = String::new();

        for token in &self.tokens {
            match token {
                Token::Literal(text) => name += text,
                Token::Sequence => name += &format!("{:0DIGITS$}", sequence + 1),
                Token::Time(conversion, _) => {
                    name += &clock::format(&format!("%{conversion}"), seconds);
                }
            }
        }

        match self.numbering {
            Numbering::Appended if sequence > 0 => name += &sequence.to_string(),
            Numbering::Ring(files) => {
                let width = files.saturating_sub(1).to_string().len();
                name += &format!("{:0width$}", sequence % files.max(1));
            }
            Numbering::Appended | Numbering::Pattern => {}
        }
        self.directory.join(name)
    }

    /// Returns `None` if a file name does not match the pattern; otherwise its sequence number, if
    /// the name contains one.
    pub fn sequence_of(&self, name: &str) -> Option<Option<u64>> {
        self.number_of(name).filter(|number| number.is_none_or(|number| number <= SEQUENCE_MAX))
    }

    fn number_of(&self, name: &str) -> Option<Option<u64>> {
        let mut tokens = self.tokens.clone();

        match self.numbering {
            Numbering::Pattern => return matched(&tokens, name, None),
            Numbering::Appended if matched(&tokens, name, None).is_some() => return Some(Some(0)),
            Numbering::Appended => return self.appended_number(name).map(Some),
            Numbering::Ring(files) => {
                tokens.push(Token::Time(
                    's',
                    Shape::Digits(files.saturating_sub(1).to_string().len()),
                ));
            }
        }

        matched(&tokens, name, None)?;
        Some(None)
    }

    /// The number that is appended to a name. The pattern may end in digits too: the number is the
    /// shortest one that leaves a name of the pattern.
    fn appended_number(&self, name: &str) -> Option<u64> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        (1..=digits).find_map(|len| {
            let (name, number) = name.split_at(name.len() - len);
            let is_one = !number.starts_with('0') && matched(&self.tokens, name, None).is_some();
            if is_one { number.parse().ok() } else { None }
        })
    }
}

/// The position of a file name's extension, for instance `.pcapng.zst`.
pub(crate) fn extension_start(name: &str) -> usize {
    let stem = [".zst", ".gz"].iter().find_map(|known| name.strip_suffix(known)).unwrap_or(name);
    stem.rfind('.').filter(|&dot| dot > 0).unwrap_or(stem.len())
}

fn tokens(pattern: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut literal = String::new();
    let mut characters = pattern.chars();

    while let Some(character) = characters.next() {
        if character != '%' {
            literal.push(character);
            continue;
        }

        let token = match characters.next() {
            Some('%') => {
                literal.push('%');
                continue;
            }
            Some('i') => vec![Token::Sequence],
            Some('F') => self::tokens("%Y-%m-%d")?,
            Some('T') => self::tokens("%H:%M:%S")?,
            Some('R') => self::tokens("%H:%M")?,
            Some(conversion) => match shape(conversion) {
                Some(shape) => vec![Token::Time(conversion, shape)],
                None => {
                    return Err(format!(
                        "unknown conversion %{conversion} in a file name; write %% for a percent sign"
                    ));
                }
            },
            None => return Err("a file name ends with %; write %% for a percent sign".to_owned()),
        };
        if !literal.is_empty() {
            tokens.push(Token::Literal(std::mem::take(&mut literal)));
        }

        tokens.extend(token);
    }

    if !literal.is_empty() {
        tokens.push(Token::Literal(literal));
    }

    Ok(tokens)
}

/// Returns `None` if the tokens do not match all of `text`; otherwise the sequence number, if there
/// is one.
fn matched(tokens: &[Token], text: &str, sequence: Option<u64>) -> Option<Option<u64>> {
    let Some((token, rest)) = tokens.split_first() else {
        return text.is_empty().then_some(sequence);
    };
    let leading = |is_part: fn(char) -> bool| text.find(|c| !is_part(c)).unwrap_or(text.len());
    let digits = leading(|c| c.is_ascii_digit());

    match token {
        Token::Literal(literal) => matched(rest, text.strip_prefix(literal.as_str())?, sequence),
        Token::Sequence => (DIGITS..=digits).rev().find_map(|len| {
            matched(rest, &text[len..], Some(text[..len].parse::<u64>().ok()?.checked_sub(1)?))
        }),
        Token::Time(_, Shape::Digits(len)) => {
            (digits >= *len).then(|| matched(rest, &text[*len..], sequence)).flatten()
        }
        Token::Time(_, Shape::AnyDigits) => {
            (1..=digits).rev().find_map(|len| matched(rest, &text[len..], sequence))
        }
        Token::Time(_, Shape::ZoneName) if text.starts_with(['+', '-']) => {
            let number = &text[1..];
            let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
            [4, 2]
                .into_iter()
                .filter(|&len| len <= digits)
                .find_map(|len| matched(rest, &number[len..], sequence))
        }
        Token::Time(_, Shape::Letters | Shape::ZoneName) => {
            let letters = leading(char::is_alphabetic);
            (0..=letters)
                .rev()
                .filter(|&len| text.is_char_boundary(len))
                .find_map(|len| matched(rest, &text[len..], sequence))
        }
        Token::Time(_, Shape::Zone) => {
            let number = text.strip_prefix(['+', '-'])?;
            let is_zone =
                number.len() >= 4 && number.as_bytes()[..4].iter().all(u8::is_ascii_digit);
            is_zone.then(|| matched(rest, &number[4..], sequence)).flatten()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(pattern: &str, numbering: Numbering, sequence: u64) -> String {
        let path =
            Pattern::new(Path::new(pattern), numbering).unwrap().path(sequence, 1_700_000_000);
        path.strip_prefix(".").unwrap_or(&path).display().to_string()
    }

    #[test]
    fn names_are_those_of_dumpcap_and_tcpdump() {
        let date = clock::format("%Y%m%d%H%M%S", 1_700_000_000);
        assert_eq!(
            name("trace.pcapng", Numbering::Pattern, 0),
            format!("trace_00001_{date}.pcapng")
        );
        assert_eq!(
            name("d/trace.pcap.zst", Numbering::Pattern, 9),
            format!("d/trace_00010_{date}.pcap.zst")
        );
        assert_eq!(name("trace", Numbering::Pattern, 0), format!("trace_00001_{date}"));
        assert_eq!(name("t-%i.pcap", Numbering::Pattern, 123_456), "t-123457.pcap");
        assert_eq!(name("t", Numbering::Appended, 0), "t");
        assert_eq!(name("t", Numbering::Appended, 12), "t12");
        assert_eq!(name("t", Numbering::Ring(11), 12), "t01");
        assert_eq!(name("100%%", Numbering::Appended, 0), "100%");
    }

    #[test]
    fn names_of_unrelated_files_do_not_match() {
        let pattern = Pattern::new(Path::new("d/%Y.pcap"), Numbering::Pattern).unwrap();

        for (other, is_ours) in [
            ("2024.pcap", true),
            ("important.pcap", false),
            ("20245.pcap", false),
            ("2024.pcap.part", false),
            ("2024.pcapng", false),
        ] {
            assert_eq!(pattern.sequence_of(other).is_some(), is_ours, "{other}");
        }

        let appended = Pattern::new(Path::new("trace.pcap"), Numbering::Appended).unwrap();
        assert_eq!(appended.sequence_of("trace.pcap"), Some(Some(0)));
        assert_eq!(appended.sequence_of("trace.pcap17"), Some(Some(17)));
        assert_eq!(appended.sequence_of("trace.pcapng"), None);
        assert_eq!(appended.sequence_of("trace.pcap05"), None);
    }

    #[test]
    fn an_appended_number_follows_a_pattern_that_ends_in_digits() {
        let pattern = Pattern::new(Path::new("trace2024"), Numbering::Appended).unwrap();
        for (name, sequence) in [
            ("trace2024", Some(0)),
            ("trace20243", Some(3)),
            ("trace202412", Some(12)),
            ("trace2025", None),
        ] {
            assert_eq!(pattern.sequence_of(name), sequence.map(Some), "{name}");
        }
        let hourly = Pattern::new(Path::new("t%H"), Numbering::Appended).unwrap();
        assert_eq!(hourly.sequence_of("t09"), Some(Some(0)));
        assert_eq!(hourly.sequence_of("t0917"), Some(Some(17)));
    }

    #[test]
    fn zones_without_a_name_match() {
        let pattern = Pattern::new(Path::new("t-%Z.pcap"), Numbering::Pattern).unwrap();
        for name in ["t-CET.pcap", "t-+03.pcap", "t--0930.pcap", "t-+0545.pcap"] {
            assert_eq!(pattern.sequence_of(name), Some(None), "{name}");
        }
        for name in ["t-+3.pcap", "t-+033.pcap", "t-3.pcap"] {
            assert_eq!(pattern.sequence_of(name), None, "{name}");
        }
    }

    #[test]
    fn invalid_patterns_are_rejected() {
        for bad in ["%Q", "%", "d%H/file", "/"] {
            Pattern::new(Path::new(bad), Numbering::Pattern).expect_err(bad);
        }
    }

    proptest! {
        #[test]
        fn a_pattern_finds_the_files_that_it_named(
            pattern in "[a-z]{1,3}(%[iYmdHMSjsaz][-_.]){0,4}(\\.pcapng)?(\\.zst)?",
            sequence in 0..1_000_000_u64,
            seconds in 0..4_000_000_000_i64,
        ) {
            let names = Pattern::new(Path::new(&pattern), Numbering::Pattern).unwrap();
            let path = names.path(sequence, seconds);
            let found = names.sequence_of(path.file_name().unwrap().to_str().unwrap());
            prop_assert!(found.is_some(), "{:?}", path);
            if let Some(Some(found)) = found {
                prop_assert_eq!(found, sequence);
            }
        }
    }
}
