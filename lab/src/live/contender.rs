//! Contenders: a command, and the source of its packet count.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use wirecap::{grouped, savefile};

use super::Outcome;
use super::process::CommandLine;
use super::receiver::Finished;

/// The placeholder of a file in a command.
pub const FILE: &str = "FILE";
/// Default of `calm`: longer than a receiver holds back a partly filled block.
const CALM: Duration = Duration::from_millis(60);

/// A program that receives.
#[derive(Debug, Clone)]
pub struct Contender {
    /// Its name.
    pub name: String,
    /// Its command; [`FILE`] is replaced by its output file.
    pub command: CommandLine,
    /// A program that must run at the same time, and its message when it is ready.
    pub companion: Option<(CommandLine, &'static str)>,
    /// Its message when it is ready to receive.
    pub ready: &'static str,
    /// The source of its count.
    pub books: Books,
    /// Whether it receives through the host's stack, which on a veth requires a program that passes
    /// frames.
    pub passing: bool,
    /// Time of inactivity after which it has received everything.
    pub calm: Duration,
    /// Whether it polls without a pause.
    pub spins: bool,
    /// Whether it distributes single packets over its threads, regardless of flow.
    pub spreads: bool,
    /// Whether it is wirecap.
    pub is_ours: bool,
    /// Its Debian package.
    pub package: &'static str,
    /// Programs that its program runs.
    pub needs: &'static [&'static str],
    /// A requirement that this machine does not meet.
    pub lacks: fn() -> Option<String>,
}

/// The source of a contender's count.
#[derive(Debug, Clone, Copy)]
pub enum Books {
    /// In a ledger that it prints as JSON.
    Ledger,
    /// In the file: a packet counts if it can be read there. This function parses its loss report.
    File(fn(&str) -> Option<u64>),
    /// In both, which must agree.
    FileAndLedger,
    /// In testpmd's final output.
    Testpmd,
}

/// What a contender received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Packets it had.
    pub delivered: u64,
    /// Packets that it reports as lost.
    pub lost: Option<u64>,
}

impl Contender {
    /// A contender of the wirecap command.
    pub fn ours(name: &str, command: CommandLine, books: Books) -> Self {
        let contender = Self::new(name, command, "capturing", books);
        Self { is_ours: true, ..contender }
    }

    /// A contender that prints `ready` when it is ready to receive.
    pub fn new(name: &str, command: CommandLine, ready: &'static str, books: Books) -> Self {
        Self {
            name: name.to_owned(),
            command,
            companion: None,
            ready,
            books,
            passing: false,
            calm: CALM,
            spins: false,
            spreads: false,
            is_ours: false,
            package: "",
            needs: &[],
            lacks: || None,
        }
    }

    /// A contender on AF_PACKET.
    #[must_use]
    pub fn passing(self) -> Self {
        Self { passing: true, ..self }
    }

    /// A contender that holds packets back for this time.
    #[must_use]
    pub fn calm(self, millis: u64) -> Self {
        Self { calm: Duration::from_millis(millis), ..self }
    }

    /// A contender from a Debian package.
    #[must_use]
    pub fn from_package(self, package: &'static str) -> Self {
        Self { package, ..self }
    }

    /// Why it cannot take part, if that is known in advance.
    pub fn lacking(&self) -> Option<String> {
        let companion = self.companion.iter().map(|(command, _)| command.clone());
        let needed = self.needs.iter().map(|&program| CommandLine::new(program));
        // The program itself, without a starter such as stdbuf.
        let mut commands = needed.chain([self.command.clone()]).chain(companion);
        let missing = commands.find(|command| !command.is_installed()).map(|command| {
            format!("{} is not installed (Debian package {})", command.program(), self.package)
        });
        missing.or_else(self.lacks)
    }

    /// The number of received packets, from its final output or its file.
    ///
    /// # Errors
    ///
    /// If it is unknown.
    pub fn tally(&self, finished: &Finished, file: &MemoryFile) -> Outcome<Tally> {
        match self.books {
            Books::Ledger => tally_of_ledger(finished),
            Books::FileAndLedger => {
                let tally = tally_of_recorder(finished)?;
                let recorded = file.packets()?;
                if tally.delivered != recorded {
                    return Err(format!(
                        "the file has {} packets, and its recorder's ledger {}",
                        grouped(recorded),
                        grouped(tally.delivered)
                    )
                    .into());
                }

                Ok(tally)
            }
            Books::File(lost) => {
                Ok(Tally { delivered: file.packets()?, lost: lost(&finished.errors) })
            }
            Books::Testpmd => {
                let delivered =
                    number_after(&finished.errors, "RX-packets:").ok_or("no RX-packets")?;
                Ok(Tally { delivered, lost: number_after(&finished.errors, "RX-dropped:") })
            }
        }
    }
}

fn tally_of_ledger(finished: &Finished) -> Outcome<Tally> {
    // Packets that the device dropped never arrived, and the sender's interface counts them.
    let reasons = ["no_cell", "ring_full", "other"];
    let lost = reasons.iter().filter_map(|name| finished.ledger(&format!("/dropped/{name}")).ok());
    Ok(Tally { delivered: finished.ledger("/delivered")?, lost: Some(lost.sum()) })
}

/// Like [`tally_of_ledger`], for a recorder: packets that its writer discarded also count as lost.
fn tally_of_recorder(finished: &Finished) -> Outcome<Tally> {
    let Tally { delivered, lost } = tally_of_ledger(finished)?;
    let in_file = finished.ledger("/recorded/in_file")?;
    let not_recorded =
        delivered.checked_sub(in_file).ok_or("more packets in the file than delivered")?;
    Ok(Tally { delivered: in_file, lost: lost.map(|lost| lost + not_recorded) })
}

/// The losses that `tcpdump` reports.
pub fn lost_by_tcpdump(said: &str) -> Option<u64> {
    number_before(said, "packets dropped by kernel")
        .or_else(|| number_before(said, "packet dropped by kernel"))
}

/// The losses that `dumpcap` reports:
/// `Packets received/dropped on interface 'a1': 10/2 (pcap:2/...)`.
pub fn lost_by_dumpcap(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.starts_with("Packets received/dropped"))?;
    number_after(line.split("': ").nth(1)?, "/")
}

/// The losses that `netsniff-ng` reports.
pub fn lost_by_netsniff(said: &str) -> Option<u64> {
    number_before(said, "packets failed filter (out of space)")
}

/// The losses that `testpmd` reports.
pub fn lost_by_testpmd(said: &str) -> Option<u64> {
    number_after(said, "RX-dropped:")
}

/// The losses that `dpdk-dumpcap` reports, in the format of `dumpcap`.
pub fn lost_by_dpdk_dumpcap(said: &str) -> Option<u64> {
    lost_by_dumpcap(said)
}

fn number_before(text: &str, words: &str) -> Option<u64> {
    text.split(words)
        .next()
        .filter(|before| before.len() < text.len())?
        .split_whitespace()
        .last()?
        .parse()
        .ok()
}

fn number_after(text: &str, words: &str) -> Option<u64> {
    let after = text.split_once(words)?.1.trim_start();
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    after[..digits].parse().ok()
}

/// A file without a name, which disappears with this process.
#[derive(Debug)]
pub struct MemoryFile(OwnedFd);

impl MemoryFile {
    /// An empty file in memory.
    ///
    /// # Errors
    ///
    /// The kernel's answer.
    pub fn new() -> io::Result<Self> {
        Ok(Self(memfd_create("wirecap-lab", MemfdFlags::CLOEXEC)?))
    }

    /// Another handle of the same file, to pass on.
    ///
    /// # Errors
    ///
    /// The kernel's answer.
    pub fn share(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Number of packets in it.
    fn packets(&self) -> Outcome<u64> {
        let mut reader = savefile::Reader::open(format!("/dev/fd/{}", self.0.as_raw_fd()))?;
        let mut packets = 0;
        while let Some(_packet) = reader.next_record()? {
            packets += 1;
        }
        Ok(packets)
    }
}

#[cfg(test)]
mod tests {
    use wirecap::Recorded;

    use super::*;

    #[test]
    fn the_loss_reports_of_rivals_are_parsed() {
        let tcpdump =
            "10 packets captured\n12 packets received by filter\n2 packets dropped by kernel\n";
        assert_eq!(lost_by_tcpdump(tcpdump), Some(2));
        assert_eq!(lost_by_tcpdump("tcpdump: listening on a1"), None);

        let dumpcap = "Packets captured: 10\nPackets received/dropped on interface 'a1': 10/3 (pcap:3/dumpcap:0)";
        assert_eq!(lost_by_dumpcap(dumpcap), Some(3));

        let netsniff = "\n        10  packets incoming (0 unread on exit)\n         6  packets passed filter\n         4  packets failed filter (out of space)\n";
        assert_eq!(lost_by_netsniff(netsniff), Some(4));
        assert_eq!(
            number_after("  RX-packets: 20000          RX-dropped: 5 ", "RX-packets:"),
            Some(20_000)
        );
        assert_eq!(
            number_after("  RX-packets: 20000          RX-dropped: 5 ", "RX-dropped:"),
            Some(5)
        );
    }

    #[test]
    fn packets_discarded_by_the_writer_of_a_recorder_count_as_lost() {
        let recorded = Recorded { writer: 60, written: 40, in_file: 40, ..Recorded::default() };
        let dropped = serde_json::json!({ "no_cell": 5, "ring_full": 0, "other": 0 });
        let ledger =
            serde_json::json!({ "delivered": 100, "dropped": dropped, "recorded": recorded });
        let finished = Finished { output: ledger.to_string(), ..Finished::default() };
        assert_eq!(tally_of_ledger(&finished).unwrap(), Tally { delivered: 100, lost: Some(5) });
        assert_eq!(tally_of_recorder(&finished).unwrap(), Tally { delivered: 40, lost: Some(65) });
    }

    #[test]
    fn a_missing_rival_is_listed_with_its_package() {
        let command = CommandLine::new("no-such-sniffer").with("-i a1");
        let contender = Contender::new("", command, "", Books::Testpmd).from_package("sniffers");
        let lacking = contender.lacking().unwrap();
        assert_eq!(lacking, "no-such-sniffer is not installed (Debian package sniffers)");
    }
}
