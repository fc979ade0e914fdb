//! `wirecap` without a command, as one types tcpdump: with `-w` it captures, otherwise it shows packets.

use std::ffi::OsString;
use std::mem;

/// Flags that ask `wirecap` itself, and are no flags of a capture.
const OWN: [&str; 5] = ["-h", "--help", "-V", "--version", "-D"];
/// Letters of tcpdump that change only what is printed. They have no effect beside `-w`.
const PRINT_ONLY: &str = "AeHKNOStuxX#";
/// The same of its long flags.
const LONG_PRINT_ONLY: [&str; 5] =
    ["--number", "--micro", "--nano", "--absolute-tcp-sequence-numbers", "--dont-verify-checksums"];
/// Letters of tcpdump and of `wirecap capture` whose value is the rest of the word or the next word.
const WITH_VALUE: &str = "aBbcCEfFGijMmQRrsTVwWyzZ";

/// A word of the command line, or a part of it.
#[derive(Debug)]
enum Word {
    /// `-n`, also as a part of `-nn`.
    Letter(char),
    /// `--write`, or `--write=FILE`.
    Long(OsString),
    /// A value, or a word of the filter.
    Other(OsString),
}

/// The arguments of this process, with the command that tcpdump's flags mean if they begin with a flag.
pub(crate) fn with_command(arguments: Vec<OsString>) -> Vec<OsString> {
    let Some((program, words)) = arguments.split_first() else { return arguments };
    let is_bare = words.first().and_then(|first| first.to_str()).is_some_and(|first| {
        first.len() > 1 && first.starts_with('-') && first != "--" && !OWN.contains(&first)
    });
    if !is_bare {
        return arguments;
    }

    let divided = divide(words);
    let (command, words) = match divided.iter().any(Word::is_write) {
        true => ("capture", of_capture(divided)),
        false => ("show", words.to_vec()),
    };
    [program.clone(), command.into()].into_iter().chain(words).collect()
}

impl Word {
    fn is_write(&self) -> bool {
        match self {
            Self::Letter(letter) => *letter == 'w',
            Self::Long(word) => word.to_str().is_some_and(|word| word.split('=').next() == Some("--write")),
            Self::Other(_) => false,
        }
    }
}

/// Divides `-nni eth1` into `-n`, `-n`, `-i` and its value. Words after `--` are no flags.
fn divide(words: &[OsString]) -> Vec<Word> {
    let mut divided = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let flag = word.to_str().and_then(|text| text.strip_prefix('-')).filter(|flag| !flag.is_empty());
        let Some(letters) = flag else {
            divided.push(Word::Other(word.clone()));
            continue;
        };
        if letters == "-" {
            divided.push(Word::Other(word.clone()));
            divided.extend(words.by_ref().cloned().map(Word::Other));
            continue;
        }
        if letters.starts_with('-') {
            divided.push(Word::Long(word.clone()));
            continue;
        }

        for (at, letter) in letters.char_indices() {
            divided.push(Word::Letter(letter));
            if WITH_VALUE.contains(letter) {
                let rest = &letters[at + letter.len_utf8()..];
                let value = Some(OsString::from(rest)).filter(|_| !rest.is_empty());
                divided.extend(value.or_else(|| words.next().cloned()).map(Word::Other));
                break;
            }
        }
    }
    divided
}

/// The words without flags that only print, and with the buffer's size as `wirecap capture` has it.
fn of_capture(divided: Vec<Word>) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut is_kibibytes = false;
    for word in divided {
        let is_size = mem::take(&mut is_kibibytes);
        match word {
            Word::Letter(letter) if PRINT_ONLY.contains(letter) => {}
            Word::Letter('B') => {
                is_kibibytes = true;
                words.push("--buffer".into());
            }
            Word::Letter(letter) => words.push(format!("-{letter}").into()),
            Word::Other(mut size) if is_size => {
                size.push("K");
                words.push(size);
            }
            Word::Long(word) => words.extend(long_of_capture(word, &mut is_kibibytes)),
            Word::Other(word) => words.push(word),
        }
    }
    words
}

/// A long flag of tcpdump as `wirecap capture` has it. Sets whether the next word is a size in KiB.
fn long_of_capture(word: OsString, is_kibibytes: &mut bool) -> Vec<OsString> {
    let text = word.to_str().unwrap_or_default();
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    match (name, value) {
        (name, _) if LONG_PRINT_ONLY.contains(&name) => Vec::new(),
        ("--buffer-size", Some(size)) => vec!["--buffer".into(), format!("{size}K").into()],
        ("--buffer-size", None) => {
            *is_kibibytes = true;
            vec!["--buffer".into()]
        }
        ("--snapshot-length", Some(bytes)) => vec!["-s".into(), bytes.into()],
        ("--snapshot-length", None) => vec!["-s".into()],
        _ => vec![word],
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn command(line: &str) -> String {
        let words = line.split_whitespace().map(OsString::from).collect();
        with_command(words).join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn flags_without_a_command_capture_with_w_and_otherwise_show() {
        for (line, meant) in [
            ("wirecap -i eth1", "wirecap show -i eth1"),
            ("wirecap -nnvvi eth1 port 53", "wirecap show -nnvvi eth1 port 53"),
            ("wirecap -nr f.pcap", "wirecap show -nr f.pcap"),
            ("wirecap -i eth1 -w f.pcap", "wirecap capture -i eth1 -w f.pcap"),
            ("wirecap -nnvvi eth1 -wf.pcap udp", "wirecap capture -n -n -v -v -i eth1 -w f.pcap udp"),
            ("wirecap -r in.pcap -w out.pcap tcp", "wirecap capture -r in.pcap -w out.pcap tcp"),
            ("wirecap -i eth1 -B 4096 -s0 -w -", "wirecap capture -i eth1 --buffer 4096K -s 0 -w -"),
            ("wirecap -i eth1 --write=f", "wirecap capture -i eth1 --write=f"),
            ("wirecap -i eth1 --number --nano -w f", "wirecap capture -i eth1 -w f"),
            ("wirecap --buffer-size 64 -i eth1 -w f", "wirecap capture --buffer 64K -i eth1 -w f"),
            ("wirecap --snapshot-length=96 -i eth1 -w f", "wirecap capture -s 96 -i eth1 -w f"),
            ("wirecap -i eth1 -c 5 -- -w", "wirecap show -i eth1 -c 5 -- -w"),
        ] {
            assert_eq!(command(line), meant);
        }
    }

    #[test]
    fn commands_help_and_version_stay() {
        for line in
            ["wirecap", "wirecap capture -w f", "wirecap -h", "wirecap --version", "wirecap -D", "wirecap -"]
        {
            assert_eq!(command(line), line);
        }
    }

    #[test]
    fn a_value_that_looks_like_a_flag_is_a_value() {
        assert_eq!(command("wirecap -i -w -c 1"), "wirecap show -i -w -c 1");
    }
}
