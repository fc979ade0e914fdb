//! The kernel's counters of an interface, which are independent of sender and capture.
//!
//! A veth counts in three places. The interface's own counters have the packets that its stack sent
//! and received. A receive queue that runs an XDP program counts on the *receiving* end
//! (`rx_queue_N_...`). Frames that arrive there as XDP frames count once more on the *sending* end
//! (`tx_queue_N_xdp_xmit`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;

use crate::interface::control_socket;
use crate::{Interface, SetupError, sys};

/// The counters of one interface, relative to their values when this was created.
#[derive(Debug)]
pub struct Counters {
    interface: Interface,
    socket: OwnedFd,
    /// /proc/net/dev, opened in the interface's namespace.
    device_table: File,
    start: Snapshot,
}

/// Values of an interface's counters, or their growth.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// Packets received; on a veth with XDP including packets that the program dropped or
    /// redirected.
    pub rx_packets: u64,
    /// Packets lost on reception.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets lost on transmission: on a veth, packets for which the peer's ring had no room.
    pub tx_dropped: u64,
    /// The receive queues of a veth end that has an XDP program.
    pub rx_queues: Vec<RxQueueCounts>,
    /// The transmit queues of a veth end, counting XDP frames only.
    pub tx_queues: Vec<TxQueueCounts>,
}

/// Declares a queue's counters. The fields have the kernel's names, which its statistics list as
/// `rx_queue_N_FIELD` or `tx_queue_N_FIELD`.
macro_rules! queue_counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[non_exhaustive]
        pub struct $name { $($(#[$field_doc])* pub $field: u64),* }

        impl $name {
            fn from_statistics(get: &dyn Fn(&str) -> u64) -> Self {
                Self { $($field: get(stringify!($field))),* }
            }

            fn since(self, earlier: Self) -> Self {
                Self { $($field: grown(self.$field, earlier.$field)),* }
            }
        }
    };
}

queue_counters! {
    /// What a veth end's receive queue counted while it had an XDP program (zeros before).
    RxQueueCounts {
        /// Frames that reached the program: the sum of the counters below and of passed frames.
        xdp_packets,
        /// Bytes in these frames.
        xdp_bytes,
        /// Frames that were redirected.
        xdp_redirect,
        /// Frames that the program dropped.
        xdp_drops,
        /// Frames that the program sent back (XDP_TX).
        xdp_tx,
        /// Frames lost because a redirect failed.
        drops,
    }
}

queue_counters! {
    /// The counters of XDP frames of a veth end's transmit queue.
    TxQueueCounts {
        /// Frames put on the peer's ring.
        xdp_xmit,
        /// Frames for which the peer's ring had no room.
        xdp_xmit_errors,
    }
}

impl Counters {
    /// The counters of this interface, from now on.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the interface is gone.
    pub fn of(interface: &Interface) -> Result<Self, SetupError> {
        let failed = |source| SetupError::interface(&interface.name, READ, source);
        let mut counters = Self {
            interface: interface.clone(),
            socket: control_socket(&interface.namespace)?,
            device_table: interface
                .namespace
                .run_in(|| File::open("/proc/thread-self/net/dev"))?
                .map_err(failed)?,
            start: Snapshot::default(),
        };
        counters.start = counters.now()?;
        Ok(counters)
    }

    /// The counters' growth since this was created or last restarted.
    ///
    /// # Errors
    ///
    /// As [`now`](Self::now).
    pub fn since_start(&mut self) -> Result<Snapshot, SetupError> {
        Ok(self.now()?.since(&self.start))
    }

    /// Restarts counting.
    ///
    /// # Errors
    ///
    /// As [`now`](Self::now).
    pub fn restart(&mut self) -> Result<(), SetupError> {
        self.start = self.now()?;
        Ok(())
    }

    /// The counters' values since the interface was created.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the interface is gone.
    pub fn now(&mut self) -> Result<Snapshot, SetupError> {
        let name = self.interface.name.clone();
        self.read(&name).map_err(|source| SetupError::interface(&name, READ, source))
    }

    fn read(&mut self, name: &str) -> io::Result<Snapshot> {
        let mut table = String::new();
        self.device_table.rewind()?;
        self.device_table.read_to_string(&mut table)?;

        let columns = device_columns(&table, name).ok_or(io::ErrorKind::NotFound)?;
        let queues: BTreeMap<_, _> =
            sys::driver_statistics(&self.socket, name)?.into_iter().collect();

        Ok(Snapshot {
            rx_packets: columns[1],
            rx_dropped: columns[3],
            tx_packets: columns[9],
            tx_dropped: columns[11],
            rx_queues: queue_counts(&queues, "rx_queue", RxQueueCounts::from_statistics),
            tx_queues: queue_counts(&queues, "tx_queue", TxQueueCounts::from_statistics),
        })
    }
}

const READ: &str = "read the counters of";

impl Snapshot {
    /// Frames handed to the interface as XDP frames: by the [`Generator`](crate::Generator) or by a
    /// redirect. On a veth's sending end, exact as soon as the sender has stopped.
    pub fn handed_over_as_xdp(&self) -> u64 {
        self.tx_queues.iter().map(|queue| queue.xdp_xmit + queue.xdp_xmit_errors).sum()
    }

    /// XDP frames that the interface could not pass on: the ring of a veth's other end was full.
    pub fn xdp_xmit_errors(&self) -> u64 {
        self.tx_queues.iter().map(|queue| queue.xdp_xmit_errors).sum()
    }

    /// Frames that the interface's XDP program redirected, also those that a socket did not take:
    /// the driver's own count of what a capture must account for. On a veth's receiving end, exact
    /// as soon as the receiving queues are empty.
    pub fn redirected(&self) -> u64 {
        self.rx_queues.iter().map(|queue| queue.xdp_redirect + queue.drops).sum()
    }

    /// Frames handed to the interface in any way: sent, or lost at the peer's ring. On a veth's
    /// sending end, exact as soon as the receiving queues are empty.
    pub fn handed_over(&self) -> u64 {
        self.tx_packets + self.tx_dropped
    }

    /// The growth of each counter since `earlier`.
    ///
    /// # Panics
    ///
    /// If a counter has decreased: the two are not of the same interface, or are in the wrong
    /// order.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let rx_earlier =
            earlier.rx_queues.iter().copied().chain(std::iter::repeat(RxQueueCounts::default()));
        let tx_earlier =
            earlier.tx_queues.iter().copied().chain(std::iter::repeat(TxQueueCounts::default()));
        Self {
            rx_packets: grown(self.rx_packets, earlier.rx_packets),
            rx_dropped: grown(self.rx_dropped, earlier.rx_dropped),
            tx_packets: grown(self.tx_packets, earlier.tx_packets),
            tx_dropped: grown(self.tx_dropped, earlier.tx_dropped),
            rx_queues: self
                .rx_queues
                .iter()
                .zip(rx_earlier)
                .map(|(now, then)| now.since(then))
                .collect(),
            tx_queues: self
                .tx_queues
                .iter()
                .zip(tx_earlier)
                .map(|(now, then)| now.since(then))
                .collect(),
        }
    }
}

impl RxQueueCounts {
    /// Frames that the program passed to the stack, which the kernel does not count separately.
    pub fn passed(&self) -> u64 {
        self.xdp_packets - self.xdp_redirect - self.xdp_drops - self.xdp_tx - self.drops
    }
}

fn grown(now: u64, then: u64) -> u64 {
    now.checked_sub(then).expect("counters of one interface only grow")
}

/// The numbers of the interface's line in /proc/net/dev: eight of receiving, eight of sending.
fn device_columns(table: &str, name: &str) -> Option<[u64; 16]> {
    let is_line_of =
        |line: &&str| line.split_once(':').is_some_and(|(first, _)| first.trim() == name);
    let (_, numbers) = table.lines().find(is_line_of)?.split_once(':')?;
    let numbers: Vec<u64> = numbers.split_whitespace().flat_map(str::parse).collect();
    numbers.try_into().ok()
}

/// Collects the statistics `PREFIX_N_NAME` of queues 0, 1, ... as far as they exist.
fn queue_counts<T>(
    statistics: &BTreeMap<String, u64>,
    prefix: &str,
    from_statistics: impl Fn(&dyn Fn(&str) -> u64) -> T,
) -> Vec<T> {
    let has_queue = |queue: &usize| {
        let prefix = format!("{prefix}_{queue}_");
        statistics.keys().any(|name| name.starts_with(&prefix))
    };
    let count = |queue| {
        from_statistics(&|name| {
            statistics.get(&format!("{prefix}_{queue}_{name}")).copied().unwrap_or(0)
        })
    };
    (0..).take_while(has_queue).map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_table_is_read_by_column() {
        let table = "Inter-|   Receive  |  Transmit\n face |bytes packets |bytes packets\n\
                     a1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  a10: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(device_columns(table, "a1").unwrap()[9], 10);
        assert_eq!(device_columns(table, "a10").unwrap()[9], 0);
        assert_eq!(device_columns(table, "a"), None);
    }

    #[test]
    fn queues_are_gathered_by_number() {
        let statistics =
            [("tx_queue_0_xdp_xmit", 5), ("tx_queue_1_xdp_xmit_errors", 7), ("peer", 3)];
        let statistics = statistics.map(|(name, value)| (name.to_owned(), value)).into();
        let queues = queue_counts(&statistics, "tx_queue", TxQueueCounts::from_statistics);
        assert_eq!(queues.len(), 2);
        assert_eq!((queues[0].xdp_xmit, queues[1].xdp_xmit_errors), (5, 7));
    }
}
