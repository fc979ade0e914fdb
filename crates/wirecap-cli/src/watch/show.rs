//! `wirecap show`: decodes packets with an installed decoder.

pub(crate) mod flags;

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;

use clap::{Args, ValueEnum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, geteuid, kill_process};

use wirecap::device::Device;
use wirecap::filter::{FilterError, FilterRequest};
use wirecap::savefile::{LinkType, Reader};

use crate::shared::failure::Failure;
use crate::shared::signals::Interruption;
use crate::shared::sink;
use flags::{Flags, Refused};

/// Decode packets, live or from a file, with tcpdump or tshark
///
/// The options of the decoder and, for tcpdump, a filter expression follow. Of these, -Q, -s, -p
/// and -B (tshark: -f, -s, -p and -B) apply to the capture. Other options of a capture are
/// rejected. A savefile may be named without -r. Packets are shown when they arrive. Example:
/// wirecap show -nnvi eth0 -Q in port 53
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Interface, or some of its receive queues, as in wirecap capture
    #[arg(short, long, value_name = "DEV[@QUEUES]")]
    interface: Option<String>,

    /// Decode a savefile, plain, gzip or Zstandard; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "interface")]
    read: Option<PathBuf>,

    /// Pass only matching packets to the decoder
    #[arg(short, long, value_name = "FILTER")]
    filter: Option<String>,

    /// The capture engine, as in wirecap capture
    #[arg(long, value_name = "ENGINE", conflicts_with = "read")]
    engine: Option<String>,

    /// The decoder [default: tcpdump, or tshark if there is no tcpdump]
    #[arg(long, value_enum)]
    with: Option<Decoder>,

    /// Arguments of the decoder
    #[arg(value_name = "DECODER'S FLAGS", trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Decoder {
    Tcpdump,
    Tshark,
}

impl Decoder {
    fn program(self) -> &'static str {
        match self {
            Self::Tcpdump => "tcpdump",
            Self::Tshark => "tshark",
        }
    }

    /// The installed decoder of `wanted`.
    fn installed(wanted: Option<Self>) -> Result<(Self, PathBuf), Failure> {
        let candidates = wanted.map_or(vec![Self::Tcpdump, Self::Tshark], |decoder| vec![decoder]);
        let found =
            candidates.iter().find_map(|decoder| Some((*decoder, in_path(decoder.program())?)));
        found.ok_or_else(|| {
            let missing = match wanted {
                None => "no decoder is installed: install the package tcpdump, or tshark (Fedora, Arch: wireshark-cli)",
                Some(Self::Tcpdump) => "tcpdump is not installed: install the package tcpdump",
                Some(Self::Tshark) => {
                    "tshark is not installed: install the package tshark (Fedora, Arch: wireshark-cli)"
                }
            };
            Failure::Failed(missing.into())
        })
    }
}

/// Where a program is: in the directories of PATH, or where packages put tools for administrators.
fn in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(program)).find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Where the packets come from.
#[derive(Debug)]
enum Source {
    Interface(String),
    File(PathBuf),
}

impl Source {
    /// The interface or the savefile that the options or the decoder's flags name, or the file that
    /// is the first other word.
    fn of(arguments: &Arguments, flags: &mut Flags) -> Result<Self, Failure> {
        let interfaces = [arguments.interface.clone(), flags.interface.take()]
            .map(|name| name.map(Self::Interface));
        let files = [arguments.read.clone(), flags.read.take()].map(|file| file.map(Self::File));
        let mut named: Vec<Self> = interfaces.into_iter().chain(files).flatten().collect();

        if named.len() > 1 {
            return Err(Failure::Usage(
                "show decodes the packets of one interface or of one file".to_owned(),
            ));
        }

        if named.is_empty()
            && let Some(first) = flags.first_word
            && Path::new(&flags.of_decoder[first])
                .metadata()
                .is_ok_and(|metadata| !metadata.is_dir())
        {
            flags.words.remove(0);
            named.push(Self::File(flags.of_decoder.remove(first).into()));
        }

        let source = named.pop().ok_or_else(|| Failure::Usage(unnamed(&flags.words)))?;
        if let Self::File(file) = &source
            && file.is_dir()
        {
            let name = file.display();
            let text = format!("{name} is a directory: wirecap find {name} | wirecap show -r -");
            return Err(Failure::Usage(text));
        }

        match (&source, &flags.live_only) {
            (Self::File(_), Some(flag)) => {
                Err(Failure::Usage(format!("{flag} has no effect on a file: omit it")))
            }
            (Self::File(_), None) if arguments.engine.is_some() || flags.engine.is_some() => {
                Err(Failure::Usage("--engine has no effect on a file: omit it".to_owned()))
            }
            _ => Ok(source),
        }
    }

    fn is_standard_input(&self) -> bool {
        matches!(self, Self::File(file) if file == Path::new("-"))
    }
}

/// What to type instead of these words, which name neither an interface nor a file.
fn unnamed(words: &[OsString]) -> String {
    let word = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    match &*word {
        "" => {}
        name if Device::find(name).is_ok() => {
            return format!("{name} is an interface: wirecap show -i {name}");
        }
        name if Path::new(name).is_dir() => {
            return format!("{name} is a directory: wirecap find {name} | wirecap show -r -");
        }
        name if name.contains(['/', '.']) => return format!("{name}: no such file or directory"),
        _ => {}
    }

    "name an interface, -i DEV (wirecap devices lists them), or a file, -r FILE".to_owned()
}

/// Why a flag is rejected, with the command that has it.
fn explained(refused: Refused) -> Failure {
    Failure::Usage(match refused {
        Refused::Text(text) => text,
        Refused::OfOther(flag, other) => {
            let words = env::args_os().skip(1);
            let words = words.enumerate().filter(|(place, word)| *place > 0 || word != "show");
            let words: Vec<String> =
                words.map(|(_, word)| quoted(&word.to_string_lossy())).collect();
            let program = other.program();

            format!(
                "{flag} is an option of {program}\nuse: wirecap show --with {program} {}",
                words.join(" ")
            )
        }
    })
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,@=%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Finds what is wrong with the filter before packets are captured for tcpdump, which would reject
/// it.
fn check_filter(source: &Source, flags: &Flags) -> Result<(), Failure> {
    if let Some(file) = &flags.filter_file {
        let failed =
            |error| Failure::Failed(format!("cannot read {}: {error}", file.display()).into());
        return File::open(file).map(|_| ()).map_err(failed);
    }

    let link_type = match source {
        Source::Interface(name) if name == "any" => LinkType::ETHERNET,
        Source::Interface(name) => match Device::find(name.split('@').next().unwrap_or(name)) {
            Ok(device) => device.savefile_link_type(),
            Err(_) => return Ok(()),
        },
        Source::File(_) if source.is_standard_input() => return Ok(()),
        Source::File(file) => {
            match Reader::open(file).map(|reader| reader.interfaces().first().cloned()) {
                Ok(Some(interface)) => interface.link_type,
                _ => return Ok(()),
            }
        }
    };
    let words: Vec<_> = flags.words.iter().map(|word| word.to_string_lossy()).collect();
    match FilterRequest::from(words.join(" ")).compile_for_file(link_type) {
        Err(error @ FilterError::Expression { .. }) => Err(Failure::Usage(error.to_string())),
        _ => Ok(()),
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (decoder, program) = Decoder::installed(arguments.with)?;
    let mut flags = Flags::divide(decoder, &arguments.flags).map_err(explained)?;
    let source = Source::of(arguments, &mut flags)?;

    if decoder == Decoder::Tcpdump {
        check_filter(&source, &flags)?;
    }

    if let (Some(own), Some(other)) = (&arguments.filter, &flags.filter) {
        return Err(Failure::Usage(format!(
            "two filters: {own:?} and {other:?}; join them with and"
        )));
    }

    flags.filter = flags.filter.or_else(|| arguments.filter.clone());

    // A signal ends the capture, and the decoder shows the rest. Without a capture, it ends the
    // decoder.
    let first = Arc::new(OnceLock::new());
    let named = Arc::clone(&first);
    let interruption =
        Interruption::watch_and(move || named.get().copied().into_iter().for_each(terminate))?;

    let begin_with = |child: &Child| {
        let id = *first.get_or_init(|| child.id());
        if interruption.came() {
            terminate(id);
        }
    };
    let mut capturing = None;
    let engine = arguments.engine.as_deref().or(flags.engine.as_deref());

    // A decoder reads a pipe without delay, but nothing compressed.
    let piped = match source.is_standard_input() && !sink::is_regular_file(io::stdin()) {
        true => Some(Piped::begin(&interruption)?),
        false => None,
    };
    let is_direct = piped.as_ref().is_some_and(|piped| !piped.is_compressed())
        && flags.filter.is_none()
        && flags.of_capture.is_empty();
    let input = match is_direct {
        true => piped.expect("it is a pipe").relay()?,
        false => {
            let (mut capture, packets) = packets(&source, piped, engine, decoder, &flags)?;
            begin_with(&capture);

            if !has_begun(&packets)? {
                // The decoder would only complain about an empty file.
                let status = capture.wait()?;
                return if status.success() || interruption.came() {
                    Ok(())
                } else {
                    Err(Failure::Told)
                };
            }

            // A second descriptor, so that the capture can write until it has ended.
            capturing = Some((capture, File::from(packets.as_fd().try_clone_to_owned()?)));
            packets.into()
        }
    };

    let failed = |error: io::Error| {
        Failure::Failed(format!("cannot run {}: {error}", program.display()).into())
    };
    let mut decoding = Command::new(&program);
    decoding.args(["-r", "-"]).stdin(input);

    if let Source::Interface(_) = source {
        // A line for each packet, when it arrives.
        decoding.arg("-l");
    }
    if !is_direct {
        // Ctrl-C ends the capture, and the decoder shows the rest: tcpdump would complain about the
        // interrupted read.
        decoding.process_group(0);
    }

    let mut decoding = decoding.args(&flags.of_decoder).spawn().map_err(failed)?;
    begin_with(&decoding);

    let status = decoding.wait()?;
    let captured = capturing.map(|(capture, packets)| end(capture, packets)).transpose()?.flatten();

    if !status.success() && !interruption.came() {
        return Err(Failure::Failed(format!("{} failed: {status}", decoder.program()).into()));
    }

    // Packets after the decoder's end are not a loss, because the decoder decides when to end
    // (`-c`). The ledger has the packets that the capture lost.
    match captured {
        // 3: packets were lost.
        Some(status) if !matches!(status.code(), Some(0 | 3)) && !interruption.came() => {
            Err(Failure::Failed("the packets could not be read".into()))
        }
        _ => Ok(()),
    }
}

/// This program, which writes the packets to a pipe.
fn packets(
    source: &Source,
    piped: Option<Piped>,
    engine: Option<&str>,
    decoder: Decoder,
    flags: &Flags,
) -> Result<(Child, ChildStdout), Failure> {
    let mut capture = Command::new(env::current_exe()?);
    capture.args(["capture", "-w", "-"]).stdout(Stdio::piped());

    match source {
        Source::Interface(interface) => {
            // Each packet at once: a person waits for it.
            capture.args(["-U", "-i", interface]).stdin(Stdio::null());
            if interface == "any" && decoder == Decoder::Tcpdump {
                // tcpdump ends at an interface of another link type; a pcap file has none.
                capture.args(["--format", "pcap"]);
            }
        }
        Source::File(_) if source.is_standard_input() => {
            capture.args(["-r", "/dev/stdin"]);
            if let Some(piped) = piped {
                capture.stdin(piped.relay()?);
            }
        }
        Source::File(file) => {
            capture.arg("-r").arg(file).stdin(Stdio::null());
        }
    }

    if matches!(source, Source::Interface(_))
        && !geteuid().is_root()
        && env::var_os("WIRECAP_CONTROL_DIR").is_none()
    {
        // Only root has one by default, and who looks at packets does not miss it.
        capture.arg("--no-control");
    }

    capture.args(&flags.of_capture);
    if let Some(engine) = engine {
        capture.args(["--engine", engine]);
    }
    if let Some(filter) = &flags.filter {
        capture.args(["--", filter]);
    }

    let mut child = capture.spawn()?;
    let packets = child.stdout.take().expect("it is piped");
    Ok((child, packets))
}

/// A pipe as standard input, of which the first bytes were read.
struct Piped {
    head: Vec<u8>,
    rest: File,
}

impl Piped {
    /// Waits for the first bytes, unless a signal requests the end.
    fn begin(interruption: &Interruption) -> io::Result<Self> {
        const MAGIC_BYTES: usize = 4;

        /// How long a signal may wait.
        const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut piped =
            Self { head: Vec::new(), rest: File::from(io::stdin().as_fd().try_clone_to_owned()?) };
        while piped.head.len() < MAGIC_BYTES && !interruption.came() {
            match poll(&mut [PollFd::new(&piped.rest, PollFlags::IN)], Some(&PAUSE)) {
                Ok(0) | Err(Errno::INTR) => continue,
                outcome => outcome?,
            };

            let mut byte = [0];
            match piped.rest.read(&mut byte) {
                Ok(0) => break,
                Ok(_) => piped.head.extend(byte),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }

        Ok(piped)
    }

    /// Whether a decoder cannot read it: anything but pcapng and pcap, which `capture` reads or
    /// names.
    fn is_compressed(&self) -> bool {
        const STARTS: [&[u8]; 5] = [
            &[0x1f, 0x8b],
            &[0x28, 0xb5, 0x2f, 0xfd],
            // LZ4, xz, bzip2.
            &[0x04, 0x22, 0x4d, 0x18],
            &[0xfd, b'7', b'z', b'X'],
            b"BZh",
        ];
        STARTS.iter().any(|start| self.head.starts_with(start))
    }

    /// A pipe with all bytes, filled by a thread.
    fn relay(mut self) -> io::Result<Stdio> {
        let (output, input) = io::pipe()?;
        let mut input = File::from(OwnedFd::from(input));
        let work = move || {
            // Fails if the reader has ended, which its status shows.
            let _ = input.write_all(&self.head).and_then(|()| io::copy(&mut self.rest, &mut input));
        };
        thread::Builder::new().name("relay".to_owned()).spawn(work)?;
        Ok(output.into())
    }
}

/// Waits for the first bytes of a capture; `false` if it ends without any.
fn has_begun(packets: &ChildStdout) -> io::Result<bool> {
    let mut look = [PollFd::new(packets, PollFlags::IN)];
    loop {
        match poll(&mut look, None) {
            Ok(_) => return Ok(look[0].revents().contains(PollFlags::IN)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Requests the end of a child.
fn terminate(id: u32) {
    let _gone = Pid::from_raw(id.cast_signed()).map(|pid| kill_process(pid, Signal::TERM));
}

/// Ends a capture whose packets are no longer shown. Returns the exit status of a capture that
/// ended before the decoder did; `packets` is the pipe from which that read.
fn end(mut capture: Child, mut packets: File) -> Result<Option<ExitStatus>, Failure> {
    // Only the end of the capture closes the other end of the pipe.
    let mut look = [PollFd::new(&packets, PollFlags::empty())];
    poll(&mut look, Some(&Timespec::default())).map_err(io::Error::from)?;
    let has_ended = look[0].revents().contains(PollFlags::HUP);
    if !has_ended {
        terminate(capture.id());
        // The capture would report unread packets as lost.
        io::copy(&mut packets, &mut io::sink())?;
    }
    let status = capture.wait()?;
    Ok(has_ended.then_some(status))
}
