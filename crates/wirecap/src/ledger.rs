//! The ledger: the account of a capture's packets.
//!
//! *seen*: reached the capture. *filtered*: seen, and rejected by the filter. *offered* = seen -
//! filtered. *delivered*: handed out in a chunk. offered = delivered + dropped, with drops by
//! reason. A number that is not counted is `None`, shown as "not reported", never as 0.

mod counted;
mod recorded;
mod unseen;
mod verdict;

use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use wirecap_units::size::{count_of, grouped};

use crate::warning::Warning;

pub use counted::Counted;
pub use recorded::{LostLater, Recorded};
pub use unseen::{Unseen, UnseenReason};
pub use verdict::{Answer, Verdict};

/// How the rings of a capture share their load, in the paper's notation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mode {
    /// Every worker reads its own rings: `B-(M,R)`.
    Basic,
    /// Workers also read rings of their buddy group whose backlog exceeds the threshold T, a share
    /// of the pool between 0 and 1: `A-(M,R,T)`.
    Advanced(f64),
}

impl Mode {
    /// The configuration with M cells per chunk and R chunks per pool, in the paper's notation:
    /// `B-(256,500)`, `A-(256,500,60)`.
    pub fn notation(&self, m: u32, r: u32) -> String {
        match self {
            Self::Basic => format!("B-({m},{r})"),
            Self::Advanced(threshold) => format!("A-({m},{r},{:.0})", threshold * 100.0),
        }
    }
}

/// Packets that were offered and not delivered, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Drops {
    /// Every cell of the ring's pool was in use. Counted if the kernel copies packets into cells,
    /// and by the engine `packet`. A zero-copy driver without a cell leaves packets in the device,
    /// which counts them as `device` if it reports any (see [`Account::starved`]).
    pub no_cell: u64,
    /// The rx ring had no room.
    pub ring_full: u64,
    /// The device or its driver dropped them before any program saw them. Counted per interface:
    /// `None` for a single ring, and if the driver reports nothing.
    pub device: Option<u64>,
    /// Their receive queue was added during the capture and had no ring yet; they went to the host.
    /// Counted per interface: 0 for a single ring.
    pub no_ring: u64,
    /// Other reasons: left in the ring when the capture was closed, described by an invalid
    /// descriptor, or, with the engine `packet`, dropped by the kernel between two blocks although
    /// blocks were free.
    pub other: u64,
}

impl Drops {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.no_cell + self.ring_full + self.device.unwrap_or(0) + self.no_ring + self.other
    }
}

/// The account of a ring's packets at one moment, as far as it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Packets in captured chunks.
    pub delivered: u64,
    /// Packets that the ring did not drop, captured yet or not.
    pub arrived: u64,
    /// Packets that the ring dropped.
    pub dropped: u64,
}

/// The numbers of one ring or of all together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Account {
    /// Packets that reached the capture, before the filter; `None` if unknown.
    pub seen: Option<u64>,
    /// seen - filtered = delivered + dropped.
    pub offered: u64,
    /// Packets handed out in chunks.
    pub delivered: u64,
    /// Bytes of the delivered packets on the wire.
    pub bytes: u64,
    /// Non-matching packets; `None` if unknown.
    pub filtered: Option<u64>,
    /// Packets that were offered and not delivered.
    pub dropped: Drops,
    /// Chunks captured by a worker other than the ring's own.
    pub offloaded_chunks: u64,
    /// The offloaded chunks that were taken regardless of the threshold, because the ring's worker
    /// was stuck or gone.
    pub abandoned_chunks: u64,
    /// Delivered packets longer than the MTU
    /// ([`Warning::SuperPackets`](crate::Warning::SuperPackets)).
    pub super_packets: u64,
    /// Zero-copy: delivered packets that the device cut at the end of a buffer; the driver delivers
    /// the rest as further packets.
    pub cut: u64,
    /// Engine `packet`: times that the kernel waited for a block that was still held.
    pub stalls: u64,
    /// Zero-copy: times that the driver found no cell on the fill ring. Only the device knows
    /// whether a packet was lost.
    pub starved: u64,
}

impl Account {
    /// Fills in `offered` and `seen` from delivered, dropped and filtered.
    pub(crate) fn balanced(mut self) -> Self {
        self.offered = self.delivered + self.dropped.total();
        self.seen = self.filtered.map(|filtered| self.offered + filtered);
        self
    }

    fn add(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.bytes += other.bytes;
        self.filtered = self.filtered.zip(other.filtered).map(|(a, b)| a + b);
        self.dropped.no_cell += other.dropped.no_cell;
        self.dropped.ring_full += other.dropped.ring_full;
        self.dropped.no_ring += other.dropped.no_ring;
        self.dropped.other += other.dropped.other;
        self.offloaded_chunks += other.offloaded_chunks;
        self.abandoned_chunks += other.abandoned_chunks;
        self.super_packets += other.super_packets;
        self.cut += other.cut;

        #[cfg(sabotage)]
        if crate::sabotage::is("cut-not-in-sum") {
            self.cut -= other.cut;
        }

        self.stalls += other.stalls;
        self.starved += other.starved;
    }
}

/// The chunks that a ring has delivered.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct HandedOut {
    // What packets that are read in place count comes first, in one cache line.
    pub(crate) packets: u64,
    bytes: u64,
    super_packets: u64,
    chunks: u64,
    offloaded_chunks: u64,
    abandoned_chunks: u64,
}

impl HandedOut {
    /// Counts a chunk and returns its sequence number. `offloaded`: a buddy gets it; `abandoned`:
    /// regardless of the threshold.
    #[inline]
    pub(crate) fn count(
        &mut self,
        packets: u64,
        bytes: u64,
        offloaded: bool,
        abandoned: bool,
    ) -> u64 {
        let sequence = self.chunks;
        #[cfg(sabotage)]
        if crate::sabotage::is("sequence-stands-still-when-offloaded")
            && offloaded
            && self.chunks > 0
        {
            self.chunks -= 1;
        }

        self.chunks += 1;
        self.packets += packets;
        self.bytes += bytes;
        self.offloaded_chunks += u64::from(offloaded);
        self.abandoned_chunks += u64::from(abandoned);

        sequence
    }

    /// Counts packets that are read in place, without a chunk, with their bytes and the
    /// super-packets among them.
    #[inline]
    pub(crate) fn count_in_place(&mut self, packets: u64, bytes: u64, super_packets: u64) {
        self.packets += packets;
        self.bytes += bytes;
        self.super_packets += super_packets;
    }

    /// Undoes the count of packets that are delivered in chunks instead.
    pub(crate) fn discount(&mut self, packets: u64, bytes: u64, super_packets: u64) {
        self.packets -= packets;
        self.bytes -= bytes;
        self.super_packets -= super_packets;
    }

    /// Counts this many of the packets as longer than the MTU.
    pub(crate) fn count_super_packets(&mut self, packets: u64) {
        self.super_packets += packets;
    }

    /// Its columns of the ledger.
    pub(crate) fn account(&self) -> Account {
        Account {
            delivered: self.packets,
            bytes: self.bytes,
            offloaded_chunks: self.offloaded_chunks,
            abandoned_chunks: self.abandoned_chunks,
            super_packets: self.super_packets,
            ..Account::default()
        }
    }
}

/// One ring's page of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RingLedger {
    /// The ring's name: `eth0@2`.
    pub name: String,
    /// Its numbers.
    #[serde(flatten)]
    pub account: Account,
}

/// The packets of one interface in a capture of all interfaces. The rings' rows have the packets
/// that were dropped: the kernel does not report of which interface they were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InterfaceLedger {
    /// Its name when it was first seen.
    pub name: String,
    /// The kernel's index.
    pub index: u32,
    /// Packets handed out in chunks.
    pub delivered: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
}

/// Packets that were not sent, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PortDrops {
    /// The tx ring had no room: the device did not keep up.
    pub ring_full: u64,
    /// The device rejected them (EBUSY, ENOBUFS): the device or its peer had no room, or there was
    /// no carrier.
    pub refused: u64,
    /// The interface was down or removed.
    pub down: u64,
    /// Longer than the interface permits, shorter than an Ethernet header, or cut short by the
    /// capture.
    pub bad_length: u64,
    /// They had to be copied, and no cell for new packets was free.
    pub no_cell: u64,
    /// Other reasons: left on the tx ring when the capture was closed, or the kernel's side failed.
    pub other: u64,
}

impl PortDrops {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.ring_full + self.refused + self.down + self.bad_length + self.no_cell + self.other
    }
}

/// The account of the packets to be sent on an interface: taken = sent + dropped + waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PortAccount {
    /// Packets handed over and flushed; packets that wait in a [`Port`](crate::Port) for its next
    /// flush are not counted yet.
    pub taken: u64,
    /// Packets that the kernel accepted and the device did not reject. The kernel does not report
    /// their transmission.
    pub sent: u64,
    /// Bytes of the packets sent, with the engine `xdp` including rejected ones.
    pub bytes: u64,
    /// Packets that could not be sent.
    pub dropped: PortDrops,
    /// Packets on the tx ring that the kernel has not taken yet, and packets that wait for earlier
    /// chunks.
    pub waiting: u64,
    /// Packets that had to be copied.
    pub copied: u64,
    /// Packets sent out of their ring's order, because an earlier chunk took too long.
    pub late: u64,
}

impl PortAccount {
    pub(crate) fn add(&mut self, other: &Self) {
        self.taken += other.taken;
        self.sent += other.sent;
        self.bytes += other.bytes;
        self.dropped.ring_full += other.dropped.ring_full;
        self.dropped.refused += other.dropped.refused;
        self.dropped.down += other.dropped.down;
        self.dropped.bad_length += other.dropped.bad_length;
        self.dropped.no_cell += other.dropped.no_cell;
        self.dropped.other += other.dropped.other;
        self.waiting += other.waiting;
        self.copied += other.copied;
        self.late += other.late;
    }
}

/// One port's page of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PortLedger {
    /// The interface's name.
    pub name: String,
    /// Its numbers.
    #[serde(flatten)]
    pub account: PortAccount,
}

/// The account of every packet of a capture, per ring and in total. Serialises to the JSON object
/// that `--json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ledger {
    /// The engine: `xdp` or `packet`, or both if interfaces differ.
    pub engine: &'static str,
    /// The configuration in the paper's notation.
    pub mode: String,
    /// The sums over all rings, and the numbers that exist per interface only.
    #[serde(flatten)]
    pub total: Account,
    /// Seconds from opening to this ledger or to the close.
    #[serde(rename = "duration_s", serialize_with = "as_seconds")]
    pub duration: Duration,
    /// The rings.
    pub rings: Vec<RingLedger>,
    /// The interfaces of a capture of [all interfaces](crate::Source::any), in the order of
    /// [`Packet::seen_interface`](crate::Packet::seen_interface).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceLedger>,
    /// The ports, in the order of [`Capture::ports`](crate::Capture::ports); none unless the
    /// capture forwards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortLedger>,
    /// The account of the packets that the application recorded, if it has reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
    /// Packets that the application lost after delivery, if it has reported them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_later: Vec<LostLater>,
    /// The drops of each interface's device, in the order of
    /// [`Capture::interfaces`](crate::Capture::interfaces); `None` if it reports none.
    #[serde(skip)]
    pub device_drops: Vec<Option<u64>>,
    /// Periods in which packets may have passed uncaptured and uncounted.
    pub unseen: Vec<Unseen>,
    /// What the devices counted as received, compared with what the capture saw.
    pub counted: Vec<Counted>,
    /// The times of the last packets of interfaces that may have been dead since then, because no
    /// counter shows whether they were quiet or dead; of an interface with a queue that was silent
    /// for a second while others received, the time before that, also if the queue received again.
    #[serde(serialize_with = "as_unix_seconds")]
    pub quiet_since: Vec<SystemTime>,
    /// Whether a driver that ran out of cells delivers wrong packets meanwhile: igb may repeat or
    /// mix them.
    pub starved_wrong: bool,
    /// The savefile whose rest could not be read, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// Warnings.
    #[serde(skip)]
    pub warnings: Vec<Warning>,
}

fn as_seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

fn as_unix_seconds<S: serde::Serializer>(
    times: &[SystemTime],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(times.iter().copied().map(unseen::unix_seconds))
}

impl Ledger {
    /// Adds up `rings` and the drops that the devices report.
    pub(crate) fn of(
        engine: &'static str,
        mode: String,
        duration: Duration,
        rings: Vec<RingLedger>,
        device_drops: Vec<Option<u64>>,
    ) -> Self {
        let mut total = Account { filtered: Some(0), ..Account::default() };
        rings.iter().for_each(|ring| total.add(&ring.account));
        total.dropped.device = device_drops.iter().copied().flatten().reduce(|a, b| a + b);

        let total = total.balanced();
        Self {
            engine,
            mode,
            total,
            duration,
            rings,
            device_drops,
            interfaces: Vec::new(),
            ports: Vec::new(),
            recorded: None,
            lost_later: Vec::new(),
            unseen: Vec::new(),
            counted: Vec::new(),
            quiet_since: Vec::new(),
            starved_wrong: false,
            unreadable: None,
            warnings: Vec::new(),
        }
    }

    /// Adds counts that no ring has: packets of queues without a ring, and unseen periods.
    pub(crate) fn with_gaps(mut self, no_ring: u64, unseen: Vec<Unseen>) -> Self {
        self.total.dropped.no_ring += no_ring;
        #[cfg(sabotage)]
        if crate::sabotage::is("no-ring-not-rebalanced") {
            return Self { unseen, ..self };
        }
        self.total = self.total.balanced();
        Self { unseen, ..self }
    }
}

impl Ledger {
    /// The devices' counts beside the seen packets: one line if all agree, otherwise one for each
    /// that does not.
    fn write_counted(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compared: Vec<&Counted> =
            self.counted.iter().filter(|counted| counted.not_compared.is_none()).collect();
        let mut wrong = compared.iter().filter(|counted| counted.objection().is_some()).peekable();
        if wrong.peek().is_some() {
            return wrong.try_for_each(|counted| writeln!(f, "{counted}"));
        }

        let Some(first) = compared.first() else { return Ok(()) };
        let sum = |count: fn(&Counted) -> u64| compared.iter().map(|counted| count(counted)).sum();
        let interface = first.interface();
        let is_one = compared.iter().all(|counted| counted.interface() == interface);
        let place = if is_one { interface.to_owned() } else { "sum".to_owned() };
        let device = sum(|counted| counted.device);
        let seen = (sum(|c| c.seen.0), sum(|c| c.seen.1));

        writeln!(f, "{}", Counted { place, device, seen, ..Counted::default() })
    }

    /// The table of the interfaces that had packets, and the number of the others.
    fn write_interfaces(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |interface: &InterfaceLedger| {
            let [delivered, bytes] = [interface.delivered, interface.bytes].map(grouped);
            [interface.name.clone(), delivered, bytes]
        };
        let mut rows = vec![["interface", "delivered", "bytes"].map(str::to_owned)];
        rows.extend(self.interfaces.iter().filter(|interface| interface.delivered > 0).map(row));

        let silent = self.interfaces.len() + 1 - rows.len();
        write_table(f, &rows)?;

        match silent {
            0 => Ok(()),
            silent => writeln!(
                f,
                "no packets of {}",
                count_of(silent as u64, "other interface", "other interfaces")
            ),
        }
    }

    /// The table of the ports.
    fn port_rows(&self) -> Vec<[String; 10]> {
        let head = [
            "port",
            "taken",
            "sent",
            "ring full",
            "refused",
            "down",
            "bad length",
            "no cell",
            "other",
            "waiting",
        ];
        let row = |port: &PortLedger| {
            let PortAccount { taken, sent, dropped, waiting, .. } = port.account;
            let PortDrops { ring_full, refused, down, bad_length, no_cell, other } = dropped;
            let counts =
                [taken, sent, ring_full, refused, down, bad_length, no_cell, other, waiting];
            let [a, b, c, d, e, f, g, h, i] = counts.map(grouped);
            [port.name.clone(), a, b, c, d, e, f, g, h, i]
        };
        std::iter::once(head.map(str::to_owned)).chain(self.ports.iter().map(row)).collect()
    }
}

fn reported(count: Option<u64>) -> String {
    count.map_or_else(|| "not reported".to_owned(), grouped)
}

impl fmt::Display for Ledger {
    /// A table of the rings with their sum, one of the ports if there are any, and the verdict as
    /// its last line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.duration.as_secs_f64();
        writeln!(f, "{} engine, {}, {seconds:.1} s", self.engine, self.mode)?;

        let head = [
            "ring",
            "offered",
            "delivered",
            "no cell",
            "ring full",
            "device",
            "other",
            "filtered",
            "offloaded",
        ];
        let row = |name: &str, account: &Account, device: String| {
            let drops = &account.dropped;
            let counts =
                [account.offered, account.delivered, drops.no_cell, drops.ring_full].map(grouped);
            let [offered, delivered, no_cell, ring_full] = counts;
            let other = grouped(drops.other);
            let offloaded = grouped(account.offloaded_chunks);
            let filtered = reported(account.filtered);

            [
                name.to_owned(),
                offered,
                delivered,
                no_cell,
                ring_full,
                device,
                other,
                filtered,
                offloaded,
            ]
        };

        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.rings.iter().map(|ring| row(&ring.name, &ring.account, "-".to_owned())));
        rows.push(row("sum", &self.total, reported(self.total.dropped.device)));
        write_table(f, &rows)?;

        for ring in self.rings.iter().filter(|ring| ring.account.abandoned_chunks > 0) {
            let chunks = grouped(ring.account.abandoned_chunks);
            writeln!(
                f,
                "{}: its worker was stuck or gone; buddies took {chunks} chunks for it",
                ring.name
            )?;
        }

        if !self.interfaces.is_empty() {
            self.write_interfaces(f)?;
        }

        self.unseen.iter().try_for_each(|unseen| writeln!(f, "{unseen}"))?;
        self.write_counted(f)?;

        if !self.ports.is_empty() {
            write_table(f, &self.port_rows())?;
        }

        if let Some(recorded) = &self.recorded {
            let mut rows = recorded.rows(self.total.delivered);

            if recorded.to.len() > NAME_MAX {
                writeln!(f, "recorded to {}", recorded.to)?;
                rows.iter_mut().for_each(|row| row[0].clear());
            }

            write_table(f, &rows)?;

            if recorded.unread > 0 {
                let packets = count_of(recorded.unread, "packet", "packets");
                writeln!(f, "{}: its reader closed it and left {packets}", recorded.to)?;
            }

            if let Some(line) = self.untimed() {
                writeln!(f, "{line}: their time in the file is 0")?;
            }
        }

        write!(f, "{}", self.verdict())
    }
}

/// A longer file name gets a separate line.
const NAME_MAX: usize = 24;
/// The minimum width of a terminal.
const COLUMNS: usize = 80;

/// Columns as wide as their widest entry; the first one left-aligned, the others right-aligned. If
/// that is wider than a terminal, columns with only zeros are listed in a line below the table, and
/// then headings of two words take two lines.
fn write_table<const N: usize>(f: &mut fmt::Formatter<'_>, rows: &[[String; N]]) -> fmt::Result {
    let mut rows: Vec<Vec<&str>> =
        rows.iter().map(|row| row.iter().map(String::as_str).collect()).collect();
    let mut zero = Vec::new();

    if table_width(&rows) > COLUMNS {
        let is_zero =
            |column: &usize| rows[1..].iter().all(|row| matches!(row[*column], "0" | "-"));
        let columns: Vec<usize> = (1..N).filter(is_zero).collect();
        zero = columns.iter().map(|column| rows[0][*column]).collect();
        for row in &mut rows {
            let mut column = 0..;
            row.retain(|_| !columns.contains(&column.next().expect("it has no end")));
        }
    }

    if table_width(&rows) > COLUMNS {
        let (first, second): (Vec<&str>, Vec<&str>) =
            rows[0].iter().map(|heading| heading.split_once(' ').unwrap_or(("", heading))).unzip();
        rows[0] = second;
        rows.insert(0, first);
    }

    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);

    for row in &rows {
        let mut line = format!("{:<width$}", row[0], width = width(0));
        for (column, entry) in row.iter().enumerate().skip(1) {
            let _ = write!(line, "  {entry:>width$}", width = width(column));
        }
        writeln!(f, "{}", line.trim_end())?;
    }

    if zero.is_empty() { Ok(()) } else { writeln!(f, "0: {}", zero.join(", ")) }
}

fn table_width(rows: &[Vec<&str>]) -> usize {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    (0..columns).map(|column| width(column) + 2).sum::<usize>().saturating_sub(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(name: &str, delivered: u64, no_cell: u64) -> RingLedger {
        let dropped = Drops { no_cell, ..Drops::default() };
        let account = Account { delivered, filtered: Some(0), dropped, ..Account::default() };
        RingLedger { name: name.to_owned(), account: account.balanced() }
    }

    fn ledger(rings: Vec<RingLedger>, device: Option<u64>) -> Ledger {
        Ledger::of(
            "xdp",
            "B-(256,512)".to_owned(),
            Duration::from_millis(1500),
            rings,
            vec![device],
        )
    }

    #[test]
    fn the_sum_counts_device_drops_once() {
        let ledger = ledger(vec![ring("a@0", 10, 1), ring("a@1", 20, 0)], Some(4));
        assert_eq!(ledger.total.delivered, 30);
        assert_eq!(ledger.total.offered, 35);
        assert_eq!(ledger.total.seen, Some(35));
        assert_eq!(ledger.verdict(), "lossless: no (5 packets lost: 1 no free cell, 4 device)");
    }

    #[test]
    fn ports_have_a_table_and_a_place_in_json_where_there_are_any() {
        let mut ledger = ledger(vec![ring("a@0", 1000, 0)], Some(0));
        assert!(serde_json::to_value(&ledger).unwrap().get("ports").is_none());

        let dropped = PortDrops { ring_full: 7, down: 3, ..PortDrops::default() };
        let account = PortAccount { taken: 1000, sent: 990, dropped, ..PortAccount::default() };
        ledger.ports.push(PortLedger { name: "b".to_owned(), account });

        let text = ledger.to_string();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(
            lines.contains(&vec!["b", "1,000", "990", "7", "0", "3", "0", "0", "0", "0"]),
            "{text}"
        );
        assert!(text.ends_with("lossless: no (10 packets lost: 10 not sent)"), "{text}");

        let json = serde_json::to_value(&ledger).unwrap();
        assert_eq!(
            (&json["ports"][0]["name"], &json["ports"][0]["dropped"]["down"]),
            (&"b".into(), &3.into())
        );
    }

    #[test]
    fn the_table_fits_a_terminal_of_80_columns() {
        // The verdict is a sentence that may continue on the next line.
        let wide = |ledger: &Ledger| {
            let text = ledger.to_string();
            let (tables, _verdict) = text.rsplit_once('\n').unwrap();
            tables.lines().map(str::len).max().unwrap()
        };
        let mut large = ring("enp129s0f0@12", 9_999_999_999, 0);
        large.account.filtered = Some(7);

        let mut ledger = ledger(vec![large.clone(), large.clone()], None);
        assert!(wide(&ledger) <= COLUMNS, "{ledger}");
        assert!(
            ledger.to_string().contains("\n0: no cell, ring full, other, offloaded\n"),
            "{ledger}"
        );

        let to = "/var/lib/wirecap/recordings/eth0-%Y%m%d-%H%M%S-%i.pcapng.zst".to_owned();
        let written = 19_999_999_998;
        let in_file = 19_999_999_998;
        ledger.recorded = Some(Recorded { to, written, in_file, ..Recorded::default() });
        assert!(wide(&ledger) <= COLUMNS, "{ledger}");

        let dropped = Drops { no_cell: 1_234_567, ring_full: 89, ..Drops::default() };
        large.account = Account { dropped, ..large.account }.balanced();
        ledger = self::ledger(vec![large], Some(3));
        assert!(wide(&ledger) <= COLUMNS, "{ledger}");

        let text = ledger.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["no", "ring"], "{text}");
    }

    #[test]
    fn interfaces_have_a_table_without_the_silent_ones_and_losses_are_in_the_sum_only() {
        let mut ledger = ledger(vec![ring("any@0", 50, 3)], None);
        assert!(serde_json::to_value(&ledger).unwrap().get("interfaces").is_none());

        let seen = |name: &str, index, delivered| InterfaceLedger {
            name: name.to_owned(),
            index,
            delivered,
            bytes: 100 * delivered,
        };
        ledger.interfaces =
            vec![seen("lo", 1, 0), seen("eth0", 2, 1000), seen("pod1", 7, 30), seen("pod2", 8, 0)];

        let text = ledger.to_string();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines.contains(&vec!["eth0", "1,000", "100,000"]), "{text}");
        assert!(
            text.contains("\nno packets of 2 other interfaces\n") && !text.contains("\nlo "),
            "{text}"
        );
        assert!(text.ends_with("lossless: no (3 packets lost: 3 no free cell)"), "{text}");

        let json = serde_json::to_value(&ledger).unwrap();
        assert_eq!(
            json["interfaces"][2],
            serde_json::json!({ "name": "pod1", "index": 7, "delivered": 30, "bytes": 3000 })
        );
    }

    #[test]
    fn an_unreported_number_is_not_zero() {
        let ledger = ledger(vec![ring("a@0", 10, 0)], None);
        assert!(ledger.to_string().contains("not reported"));
        assert!(ledger.verdict().starts_with("lossless: yes (no drops seen; the driver"));
        let json = serde_json::to_value(&ledger).unwrap();
        assert!(json["dropped"]["device"].is_null());
    }

    #[test]
    fn delivered_packets_missing_in_the_file_are_lost() {
        let mut ledger = ledger(vec![ring("a@0", 100, 0)], Some(0));
        let recorded =
            |in_file| Recorded { to: "f".to_owned(), written: 95, in_file, ..Recorded::default() };
        ledger.recorded = Some(recorded(100));
        assert_eq!(ledger.verdict(), "lossless: yes");
        ledger.recorded = Some(recorded(90));
        assert!(!ledger.is_lossless());
        assert_eq!(ledger.verdict(), "lossless: no (10 packets lost: 10 not recorded)");

        let text = ledger.to_string();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(lines.contains(&vec!["f", "100", "0", "0", "95", "90", "10"]), "{text}");

        let json = serde_json::to_value(&ledger).unwrap();
        assert_eq!(
            (&json["recorded"]["written"], &json["recorded"]["in_file"]),
            (&95.into(), &90.into())
        );
    }

    #[test]
    fn packets_dropped_by_a_port_or_the_application_are_lost() {
        let mut ledger = ledger(vec![ring("a@0", 100, 0)], Some(0));
        let dropped = PortDrops { down: 7, ..PortDrops::default() };
        let account = PortAccount { taken: 100, sent: 93, dropped, ..PortAccount::default() };
        ledger.ports.push(PortLedger { name: "b".to_owned(), account });
        ledger.lost_later.push(LostLater { packets: 3, reason: "no room".to_owned() });
        assert_eq!(ledger.verdict(), "lossless: no (10 packets lost: 7 not sent, 3 no room)");
    }

    #[test]
    fn a_zero_copy_driver_that_ran_out_of_cells_forbids_lossless() {
        let mut starved = ring("a@0", 100, 0);
        starved.account.starved = 1;
        let ledger = ledger(vec![starved], Some(0));
        assert!(!ledger.is_lossless());
        assert_eq!(
            ledger.verdict(),
            "lossless: not known (a zero-copy driver ran out of cells 1 time)"
        );
    }

    #[test]
    fn a_counted_loss_does_not_hide_that_more_may_be_lost() {
        let mut full = ring("a@0", 100, 0);
        full.account.dropped.ring_full = 3;
        full.account.starved = 2;
        let verdict = ledger(vec![full], Some(0)).verdict();
        assert_eq!(
            verdict,
            "lossless: no (3 packets lost: 3 ring full; perhaps more: a zero-copy driver ran out of cells 2 times)"
        );
    }

    #[test]
    fn the_json_object_has_the_documented_shape() {
        let json = serde_json::to_value(ledger(vec![ring("a@0", 7, 0)], Some(0))).unwrap();
        assert_eq!(json["engine"], "xdp");
        assert_eq!(json["mode"], "B-(256,512)");
        assert_eq!(json["duration_s"], 1.5);
        assert_eq!(json["rings"][0]["name"], "a@0");
        assert_eq!(json["rings"][0]["delivered"], 7);

        for key in [
            "seen",
            "offered",
            "delivered",
            "bytes",
            "filtered",
            "dropped",
            "offloaded_chunks",
            "abandoned_chunks",
        ] {
            assert!(json.get(key).is_some(), "{key} is missing");
        }
    }

    #[test]
    fn a_worker_that_was_away_is_named() {
        let mut away = ring("a@0", 10, 0);
        away.account.abandoned_chunks = 1234;
        let text = ledger(vec![away, ring("a@1", 10, 0)], Some(0)).to_string();
        assert!(
            text.contains("\na@0: its worker was stuck or gone; buddies took 1,234 chunks"),
            "{text}"
        );
        assert!(!text.contains("\na@1:"), "{text}");
    }

    #[test]
    fn the_papers_notation() {
        assert_eq!(Mode::Basic.notation(256, 500), "B-(256,500)");
        assert_eq!(Mode::Advanced(0.6).notation(256, 500), "A-(256,500,60)");
    }

    #[test]
    fn the_accounts_of_ports_are_added_field_by_field() {
        let dropped =
            PortDrops { ring_full: 1, refused: 3, down: 5, bad_length: 7, no_cell: 9, other: 11 };
        assert_eq!(dropped.total(), 36);

        let one = PortAccount {
            taken: 76,
            sent: 37,
            bytes: 1000,
            dropped,
            waiting: 13,
            copied: 15,
            late: 17,
        };
        let mut both = one;
        both.add(&one);

        let dropped = PortDrops {
            ring_full: 2,
            refused: 6,
            down: 10,
            bad_length: 14,
            no_cell: 18,
            other: 22,
        };
        let expected = PortAccount {
            taken: 152,
            sent: 74,
            bytes: 2000,
            dropped,
            waiting: 26,
            copied: 30,
            late: 34,
        };
        assert_eq!(both, expected);
    }
}
