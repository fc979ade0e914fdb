//! Packet sockets, with which programs of the host receive outside of its stack, such as DHCP
//! clients.

use std::fs;
use std::io;

/// A packet socket that receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketListener {
    /// The interface that it is bound to; 0 for all.
    pub(super) index: u32,
    inode: u64,
}

/// The visible packet sockets of other processes in the network namespace of the calling thread.
pub(super) fn packet_listeners() -> Vec<PacketListener> {
    let Ok(table) = fs::read_to_string("/proc/thread-self/net/packet") else { return Vec::new() };
    let all = parse(&table);
    if all.is_empty() {
        return all;
    }
    let own = own_sockets().unwrap_or_default();
    all.into_iter().filter(|listener| !own.contains(&listener.inode)).collect()
}

/// The columns: sk, RefCnt, Type, Proto (hexadecimal), Iface, R (whether it receives), Rmem, User,
/// Inode. Sockets for protocol 0 receive nothing: they send, or keep an interface in promiscuous
/// mode.
fn parse(table: &str) -> Vec<PacketListener> {
    let listener = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let protocol = u16::from_str_radix(columns.get(3)?, 16).ok()?;
        let receives = *columns.get(5)? == "1" && protocol != 0;
        let index = columns.get(4)?.parse().ok()?;
        let inode = columns.get(8)?.parse().ok()?;
        receives.then_some(PacketListener { index, inode })
    };
    table.lines().skip(1).filter_map(listener).collect()
}

/// The inodes of this process's sockets.
fn own_sockets() -> io::Result<Vec<u64>> {
    let inode = |entry: io::Result<fs::DirEntry>| {
        let target = fs::read_link(entry.ok()?.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    Ok(fs::read_dir("/proc/self/fd")?.filter_map(inode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_for_no_protocol_do_not_listen() {
        let table = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
            00000000a1b2c3d4 3      3    0003   2     1 0      0      1001\n\
            00000000a1b2c3d5 3      3    0000   2     0 0      0      1002\n\
            00000000a1b2c3d6 3      2    0800   7     1 0      0      1003\n\
            00000000a1b2c3d7 3      3    0003   0     1 0      0      1004\n\
            nothing of the kind\n";
        let listeners =
            parse(table).into_iter().map(|PacketListener { index, inode }| (index, inode));
        assert_eq!(listeners.collect::<Vec<_>>(), [(2, 1001), (7, 1003), (0, 1004)]);
    }
}
