//! Which flags after `show`'s own belong to the capture, and which to the decoder. A decoder that
//! reads packets from a pipe ignores flags of a capture, so it must not get them; other flags are
//! rejected.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::CommandFactory;

use super::Decoder;
use crate::Cli;

/// Flags, divided.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    /// The interface, if it is named among the decoder's flags, as in `-nni eth1`.
    pub(super) interface: Option<String>,
    /// The savefile, if it is named among the decoder's flags, as in `-nr FILE`.
    pub(super) read: Option<PathBuf>,
    /// The capture engine, if it is named there.
    pub(super) engine: Option<String>,
    /// The first flag that has no effect on a file.
    pub(super) live_only: Option<String>,
    /// Where the first word that is neither a flag nor a value is in `of_decoder`.
    pub(super) first_word: Option<usize>,
    /// The words that are neither flags nor values: a savefile, a filter.
    pub(super) words: Vec<OsString>,
    /// The file of tcpdump's filter.
    pub(super) filter_file: Option<PathBuf>,
    /// Arguments of `wirecap capture`.
    pub(super) of_capture: Vec<OsString>,
    /// The capture's filter.
    pub(super) filter: Option<String>,
    /// Arguments of the decoder.
    pub(super) of_decoder: Vec<OsString>,
}

/// What becomes of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The decoder's.
    Decode,
    /// The decoder's, with a value.
    DecodeValue,
    /// The capture's, by this name.
    Capture(&'static str),
    /// The capture's, with a value.
    CaptureValue(&'static str),
    /// The capture's buffer in KiB or MiB.
    Buffer(&'static str),
    /// The capture's filter.
    Filter,
    /// The interface, an option of `show`.
    Interface,
    /// The savefile, an option of `show`.
    Read,
    /// The capture engine, an option of `show`.
    Engine,
    /// Has no effect: the capture does so anyway.
    Nothing,
    /// Rejected, with the reason.
    No(&'static str),
}

const NO_FILE: &str = "show does not write files: wirecap capture -i DEV -w FILE does";
const NO_LIST: &str = "show decodes packets; wirecap devices lists interfaces";
const NO_CLOCK: &str =
    "wirecap capture -i DEV -w FILE --timestamp packet, batch or hardware chooses the clock";
const NO_END: &str = "end show with -c COUNT or Ctrl-C; wirecap capture has conditions";
const NO_WIRESHARK: &str = "into Wireshark: wirecap capture -i DEV -U -w - | wireshark -k -i -";
const NO_MONITOR: &str = "set the interface to monitor mode with iw before";

/// Letters by use; those with a value take the rest of the word or the next word.
pub(crate) fn of_tcpdump(letter: char) -> Option<Use> {
    Some(match letter {
        'A' | 'b' | 'e' | 'h' | 'H' | 'K' | 'l' | 'n' | 'N' | 'O' | 'q' | 'S' | 't' | 'u' | 'v'
        | 'x' | 'X' | '#' => Use::Decode,
        'c' | 'E' | 'F' | 'm' | 'M' | 'T' => Use::DecodeValue,
        'p' => Use::Capture("-p"),
        's' => Use::CaptureValue("-s"),
        'Q' => Use::CaptureValue("-Q"),
        'B' => Use::Buffer("K"),
        // tcpdump refuses -f for a file, and prints no names of foreign hosts that -f would
        // prevent.
        'f' | 'U' => Use::Nothing,
        'i' => Use::Interface,
        'r' => Use::Read,
        'w' | 'C' | 'G' | 'W' | 'z' | 'Z' => Use::No(NO_FILE),
        'V' => {
            Use::No("show reads one file; wirecap find FILE... | wirecap show -r - reads several")
        }
        'D' | 'L' => Use::No(NO_LIST),
        'd' => Use::No("tcpdump -d prints the program of a filter"),
        'y' => Use::No("packets have the link layer of their interface: omit it"),
        'j' | 'J' => Use::No(NO_CLOCK),
        'I' => Use::No(NO_MONITOR),
        'k' => Use::No(NO_WIRESHARK),
        _ => return None,
    })
}

/// The same of the long flags, without `--`.
pub(crate) fn of_tcpdump_long(name: &str) -> Option<Use> {
    Some(match name {
        "count"
        | "number"
        | "print"
        | "dont-verify-checksums"
        | "absolute-tcp-sequence-numbers"
        | "micro"
        | "nano"
        | "version"
        | "help" => Use::Decode,
        "time-stamp-precision" => Use::DecodeValue,
        "no-promiscuous-mode" => Use::Capture("-p"),
        "snapshot-length" => Use::CaptureValue("-s"),
        "direction" => Use::CaptureValue("-Q"),
        "buffer-size" => Use::Buffer("K"),
        "immediate-mode" | "packet-buffered" => Use::Nothing,
        "list-interfaces" | "list-data-link-types" | "linktype" => Use::No(NO_LIST),
        "time-stamp-type" | "list-time-stamp-types" => Use::No(NO_CLOCK),
        "monitor-mode" => Use::No(NO_MONITOR),
        "relinquish-privileges" => Use::No(NO_FILE),
        _ => return None,
    })
}

/// Options of `show`, which may also follow those of the decoder.
fn of_show(name: &str) -> Option<Use> {
    Some(match name {
        "interface" => Use::Interface,
        "read" => Use::Read,
        "filter" => Use::Filter,
        "engine" => Use::Engine,
        "duration" => Use::CaptureValue("--duration"),
        "take" => Use::Capture("--take"),
        "with" => Use::No("write it before the flags of the decoder"),
        _ => return None,
    })
}

fn of_tshark(letter: char) -> Option<Use> {
    Some(match letter {
        '2' | 'g' | 'h' | 'l' | 'n' | 'P' | 'q' | 'Q' | 'S' | 'v' | 'V' | 'x' => Use::Decode,
        'c' | 'C' | 'd' | 'e' | 'E' | 'H' | 'j' | 'J' | 'K' | 'M' | 'N' | 'o' | 'O' | 'R' | 't'
        | 'T' | 'u' | 'U' | 'X' | 'Y' | 'z' => Use::DecodeValue,
        'p' => Use::Capture("-p"),
        's' => Use::CaptureValue("-s"),
        'B' => Use::Buffer("M"),
        'f' => Use::Filter,
        'i' => Use::Interface,
        'r' => Use::Read,
        'w' | 'W' | 'F' | 'G' => Use::No(NO_FILE),
        'D' | 'L' | 'y' => Use::No(NO_LIST),
        'a' | 'b' => Use::No(NO_END),
        'I' => Use::No(NO_MONITOR),
        'k' => Use::No(NO_WIRESHARK),
        _ => return None,
    })
}

fn of_tshark_long(name: &str) -> Option<Use> {
    Some(match name {
        "color" | "no-duplicate-keys" | "version" | "help" => Use::Decode,
        "export-objects"
        | "elastic-mapping-filter"
        | "enable-protocol"
        | "disable-protocol"
        | "enable-heuristic"
        | "disable-heuristic"
        | "read-filter"
        | "display-filter" => Use::DecodeValue,
        "no-promiscuous-mode" => Use::Capture("-p"),
        "snapshot-length" => Use::CaptureValue("-s"),
        "buffer-size" => Use::Buffer("M"),
        "read-file" => Use::Read,
        "list-interfaces" | "list-data-link-types" | "linktype" | "list-time-stamp-types" => {
            Use::No(NO_LIST)
        }
        "time-stamp-type" => Use::No(NO_CLOCK),
        "autostop" | "ring-buffer" => Use::No(NO_END),
        "monitor-mode" => Use::No(NO_MONITOR),
        _ => return None,
    })
}

/// Why a flag is rejected.
#[derive(Debug)]
pub(super) enum Refused {
    /// It is one of the other decoder.
    OfOther(String, Decoder),
    Text(String),
}

/// Output formats of tshark; tcpdump's -T has types of packets.
const FORMATS: [&str; 9] =
    ["fields", "json", "jsonraw", "ek", "pdml", "ps", "psml", "tabs", "text"];

impl Refused {
    fn unknown(decoder: Decoder, flag: &str) -> Self {
        let long = flag.strip_prefix("--");
        let letter = flag.chars().nth(1).unwrap_or_default();

        let (other, used) = match (decoder, long) {
            (Decoder::Tcpdump, None) => (Decoder::Tshark, of_tshark(letter)),
            (Decoder::Tcpdump, Some(name)) => (Decoder::Tshark, of_tshark_long(name)),
            (Decoder::Tshark, None) => (Decoder::Tcpdump, of_tcpdump(letter)),
            (Decoder::Tshark, Some(name)) => (Decoder::Tcpdump, of_tcpdump_long(name)),
        };
        let program = decoder.program();

        match used {
            Some(Use::No(why)) => Self::Text(format!("{flag}: {why}")),
            Some(_) => Self::OfOther(flag.to_owned(), other),
            None if long.is_some_and(is_of_capture) => Self::Text(format!(
                "{flag} is an option of wirecap capture, which records: wirecap capture {flag} ... -w FILE"
            )),
            None => Self::Text(format!(
                "show and {program} have no option {flag} that prints: see wirecap show --help, and {program}(8)"
            )),
        }
    }
}

fn is_of_capture(name: &str) -> bool {
    let commands = Cli::command();
    let capture = commands.find_subcommand("capture").expect("it is one of the commands");
    capture.get_arguments().any(|argument| argument.get_long() == Some(name))
}

impl Flags {
    /// Divides the words after `show`'s own options.
    ///
    /// # Errors
    ///
    /// The first flag that neither takes.
    pub(super) fn divide(decoder: Decoder, words: &[OsString]) -> Result<Self, Refused> {
        let mut divided = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(text) = word.to_str().filter(|text| text.starts_with('-') && text.len() > 1)
            else {
                // A savefile, or the first word of a filter; the decoder's options may follow.
                divided.first_word.get_or_insert(divided.of_decoder.len());
                divided.of_decoder.push(word.clone());
                divided.words.push(word.clone());
                continue;
            };
            if text == "--" {
                let rest: Vec<OsString> = words.by_ref().cloned().collect();
                divided.words.extend(rest.iter().cloned());
                divided.of_decoder.push(word.clone());
                divided.of_decoder.extend(rest);
            } else if let Some(long) = text.strip_prefix("--") {
                let (name, value) =
                    long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                let found = of_show(name).or_else(|| match decoder {
                    Decoder::Tcpdump => of_tcpdump_long(name),
                    Decoder::Tshark => of_tshark_long(name),
                });
                divided.add(
                    decoder,
                    &format!("--{name}"),
                    found,
                    value.map(OsStr::new),
                    &mut words,
                )?;
            } else {
                divided.add_letters(decoder, &text[1..], &mut words)?;
            }
        }

        Ok(divided)
    }

    /// A word of several letters, the last of which may have a value.
    fn add_letters<'a>(
        &mut self,
        decoder: Decoder,
        letters: &str,
        words: &mut impl Iterator<Item = &'a OsString>,
    ) -> Result<(), Refused> {
        for (at, letter) in letters.char_indices() {
            let found = match decoder {
                Decoder::Tcpdump => of_tcpdump(letter),
                Decoder::Tshark => of_tshark(letter),
            };
            let rest = &letters[at + letter.len_utf8()..];
            let value = Some(OsStr::new(rest)).filter(|_| !rest.is_empty());
            if self.add(decoder, &format!("-{letter}"), found, value, words)? {
                break;
            }
        }
        Ok(())
    }

    /// Adds a flag; returns whether it has a value, which is the given one or the next word.
    fn add<'a>(
        &mut self,
        decoder: Decoder,
        flag: &str,
        found: Option<Use>,
        value: Option<&OsStr>,
        words: &mut impl Iterator<Item = &'a OsString>,
    ) -> Result<bool, Refused> {
        let mut value = || {
            let value = value.map(OsStr::to_owned).or_else(|| words.next().cloned());
            value.ok_or_else(|| Refused::Text(format!("{flag} needs a value")))
        };
        let is_live_only = match found {
            Some(Use::CaptureValue(name)) => name != "-s",
            Some(Use::Capture(_) | Use::Buffer(_)) => true,
            _ => false,
        };
        if is_live_only {
            self.live_only.get_or_insert_with(|| flag.to_owned());
        }

        match found {
            None => return Err(Refused::unknown(decoder, flag)),
            Some(Use::No(why)) => return Err(Refused::Text(format!("{flag}: {why}"))),
            Some(Use::Nothing) => {}
            Some(Use::Decode) => self.of_decoder.push(flag.into()),
            Some(Use::Capture(name)) => self.of_capture.push(name.into()),
            Some(Use::DecodeValue) => {
                let value = value()?;
                let is_format = value.to_str().is_some_and(|value| FORMATS.contains(&value));
                if decoder == Decoder::Tcpdump && flag == "-T" && is_format {
                    return Err(Refused::OfOther(flag.to_owned(), Decoder::Tshark));
                }
                if decoder == Decoder::Tcpdump && flag == "-F" {
                    self.filter_file = Some(value.clone().into());
                }

                self.of_decoder.extend([flag.into(), value]);
                return Ok(true);
            }
            Some(Use::CaptureValue(name)) => {
                self.of_capture.extend([name.into(), value()?]);
                return Ok(true);
            }
            Some(Use::Buffer(unit)) => {
                let mut size = value()?;
                size.push(unit);
                self.of_capture.extend(["--buffer".into(), size]);
                return Ok(true);
            }
            Some(Use::Read) => {
                let file = value()?.into();
                return match self.read.replace(file) {
                    Some(_) => Err(Refused::Text(format!("{flag} is given twice"))),
                    None => Ok(true),
                };
            }
            Some(found @ (Use::Interface | Use::Engine | Use::Filter)) => {
                let text = value()?.to_string_lossy().into_owned();
                let place = match found {
                    Use::Interface => &mut self.interface,
                    Use::Engine => &mut self.engine,
                    _ => &mut self.filter,
                };
                return match place.replace(text) {
                    Some(_) => Err(Refused::Text(format!("{flag} is given twice"))),
                    None => Ok(true),
                };
            }
        }

        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(decoder: Decoder, line: &str) -> Result<Flags, String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        Flags::divide(decoder, &words).map_err(|refused| match refused {
            Refused::OfOther(flag, other) => format!("{flag} of {}", other.program()),
            Refused::Text(text) => text,
        })
    }

    fn divide(decoder: Decoder, line: &str) -> Result<[String; 2], String> {
        let Flags { of_capture, filter, of_decoder, .. } = flags(decoder, line)?;
        let joined = |words: Vec<OsString>| words.join(OsStr::new(" ")).into_string().unwrap();
        let filter = filter.map(|filter| format!(" [{filter}]")).unwrap_or_default();
        Ok([joined(of_capture) + &filter, joined(of_decoder)])
    }

    #[test]
    fn flags_of_the_capture_do_not_reach_the_decoder() {
        use Decoder::{Tcpdump, Tshark};
        for (decoder, line, of_capture, of_decoder) in [
            (Tcpdump, "-nn -v port 53", "", "-n -n -v port 53"),
            (Tcpdump, "-nqQin -c 30", "-Q in", "-n -q -c 30"),
            (Tcpdump, "-nvs96 -p -B 4096 udp", "-s 96 -p --buffer 4096K", "-n -v udp"),
            (Tcpdump, "--direction=out --snapshot-length 64 -c5", "-Q out -s 64", "-c 5"),
            (Tcpdump, "--duration 5s --take -n", "--duration 5s --take", "-n"),
            (Tcpdump, "-lU --immediate-mode -ttt", "", "-l -t -t -t"),
            (Tcpdump, "-Tvxlan -- -x", "", "-T vxlan -- -x"),
            (
                Tcpdump,
                "--time-stamp-precision=nano --number",
                "",
                "--time-stamp-precision nano --number",
            ),
            (
                Tshark,
                "-T fields -e ip.src -f udp -s 96 -B 2",
                "-s 96 --buffer 2M [udp]",
                "-T fields -e ip.src",
            ),
            (Tshark, "-Vc 3 -Y dns", "", "-V -c 3 -Y dns"),
        ] {
            assert_eq!(divide(decoder, line).unwrap(), [of_capture, of_decoder], "{line}");
        }
    }

    #[test]
    fn flags_that_neither_takes_are_rejected_with_the_reason() {
        use Decoder::{Tcpdump, Tshark};
        for (decoder, line, reason) in [
            (Tcpdump, "-n -w file", "-w: show does not write files"),
            (Tcpdump, "-G 5", "-G: show does not write"),
            (Tcpdump, "--nonsense", "show and tcpdump have no option --nonsense"),
            (Tcpdump, "-k", "-k: into Wireshark"),
            (Tcpdump, "-n -Y dns", "-Y of tshark"),
            (Tcpdump, "-T fields", "-T of tshark"),
            (Tshark, "-A", "-A of tcpdump"),
            (Tcpdump, "-a duration:5", "-a: end show with -c"),
            (Tcpdump, "--config x", "--config is an option of wirecap capture"),
            (Tcpdump, "-c", "-c needs a value"),
            (Tcpdump, "-ni", "-i needs a value"),
            (Tcpdump, "-ni eth0 -i eth1", "-i is given twice"),
            (Tcpdump, "-nr a -r b", "-r is given twice"),
            (Tcpdump, "-n --with tshark", "--with: write it before"),
            (Tshark, "-a duration:5", "-a: end show with -c"),
        ] {
            let error = divide(decoder, line).unwrap_err();
            assert!(error.starts_with(reason), "{line}: {error}");
        }
    }

    #[test]
    fn flags_of_a_capture_are_known_to_have_no_effect_on_a_file() {
        for (line, live_only) in
            [("-n -Q in", Some("-Q")), ("-p", Some("-p")), ("-B 4", Some("-B")), ("-s 96 -n", None)]
        {
            assert_eq!(
                flags(Decoder::Tcpdump, line).unwrap().live_only.as_deref(),
                live_only,
                "{line}"
            );
        }
    }

    #[test]
    fn the_interface_and_the_file_may_be_among_the_flags_of_the_decoder() {
        let live = flags(Decoder::Tcpdump, "-nnvvi eth1 -c5 port 53").unwrap();
        assert_eq!(live.interface.as_deref(), Some("eth1"));
        assert_eq!(live.of_decoder[live.first_word.unwrap()], "port");
        assert_eq!(live.words, ["port", "53"]);
        assert_eq!(flags(Decoder::Tcpdump, "-nF file").unwrap().filter_file, Some("file".into()));

        let read = flags(Decoder::Tcpdump, "-nr f.pcap -A").unwrap();
        assert_eq!((read.read, read.first_word), (Some("f.pcap".into()), None));

        let own =
            flags(Decoder::Tcpdump, "-nf --engine xdp --interface=eth1 --filter udp").unwrap();
        assert_eq!((own.engine.as_deref(), own.interface.as_deref()), (Some("xdp"), Some("eth1")));
        assert_eq!(
            (own.filter.as_deref(), own.of_decoder),
            (Some("udp"), vec![OsString::from("-n")])
        );

        let long = flags(Decoder::Tshark, "--read-file=f.pcap -V").unwrap();
        assert_eq!(long.read, Some("f.pcap".into()));
    }
}
