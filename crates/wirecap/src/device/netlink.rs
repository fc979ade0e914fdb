//! Netlink requests to the kernel and their answers, as bytes and attributes.
//!
//! Attributes are looked up when they are needed: a changed format of one of the hundred others in
//! a newer kernel must not prevent reading an interface's name.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{
    DefaultNla, Emitable, ErrorBuffer, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NlasIterator,
};
use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, SendFlags};

use crate::sys::netlink::{netlink_socket, open_netfilter_socket};
use crate::sys::opener::Inquiry;

const NLMSG_NOOP: u16 = libc::NLMSG_NOOP as u16;
const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
/// The table changed while it was dumped: entries may be missing.
const NLM_F_DUMP_INTR: u16 = libc::NLM_F_DUMP_INTR as u16;
const HEADER_BYTES: usize = 16;
/// The datagrams of a dump have at most 32 KiB; a single answer may be longer.
const RECEIVE_BYTES: usize = 1 << 17;
/// Number of times that an interrupted dump is repeated before the last one is accepted.
const DUMP_ATTEMPTS: usize = 5;

/// A connection to the kernel in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

/// The payload of a request: a protocol's fixed header, then attributes.
#[derive(Clone, Debug)]
pub(super) struct Payload(Vec<u8>);

impl Payload {
    pub(super) fn new(header: &[u8]) -> Self {
        Self(header.to_vec())
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let attribute = DefaultNla::new(kind, value.to_vec());
        let start = self.0.len();
        self.0.resize(start + attribute.buffer_len(), 0);
        attribute.emit(&mut self.0[start..]);
        self
    }

    pub(super) fn with_u32(self, kind: u16, value: u32) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    pub(super) fn with_text(self, kind: u16, value: &str) -> Self {
        self.with(kind, &[value.as_bytes(), b"\0"].concat())
    }
}

impl Netlink {
    /// Opens a connection to the routing tables and interfaces.
    pub(super) fn route() -> io::Result<Self> {
        Self::open(Inquiry::Route { groups: 0 })
    }

    /// Opens a connection to the generic families.
    pub(super) fn generic() -> io::Result<Self> {
        Self::open(Inquiry::Generic)
    }

    /// Opens a connection to the lists of sockets.
    pub(super) fn sockets() -> io::Result<Self> {
        Self::open(Inquiry::Sockets)
    }

    /// Opens a connection that also receives the notifications of these groups.
    pub(super) fn notified(groups: u32) -> io::Result<Self> {
        Self::open(Inquiry::Route { groups })
    }

    /// Opens a connection to netfilter with the privileges of this process.
    pub(super) fn netfilter() -> io::Result<Self> {
        Ok(Self { socket: open_netfilter_socket()?, sequence: 0 })
    }

    fn open(inquiry: Inquiry) -> io::Result<Self> {
        let socket = netlink_socket(inquiry)?;
        Ok(Self { socket, sequence: 0 })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Requests one object and returns the payload of the answer.
    pub(super) fn get(&mut self, kind: u16, payload: &Payload) -> io::Result<Vec<u8>> {
        self.send(kind, NLM_F_REQUEST, payload)?;
        let mut answer = None;
        self.receive(|bytes| {
            answer = Some(bytes.to_vec());
            ControlFlow::Break(())
        })?;
        answer.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Requests all objects of a kind; `add` adds the payload of each to the collection if it
    /// belongs there.
    pub(super) fn dump<C: Default>(
        &mut self,
        kind: u16,
        payload: &Payload,
        mut add: impl FnMut(&mut C, &[u8]),
    ) -> io::Result<C> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut things = C::default();
            self.send(kind, NLM_F_REQUEST | NLM_F_DUMP, payload)?;

            let consistent = self.receive(|bytes| {
                add(&mut things, bytes);
                ControlFlow::Continue(())
            })?;
            if consistent || attempt == DUMP_ATTEMPTS {
                return Ok(things);
            }
        }
    }

    /// Requests all objects of a kind; returns the result of `parse` for each payload that it
    /// accepts.
    pub(super) fn list<T>(
        &mut self,
        kind: u16,
        payload: &Payload,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        self.dump(kind, payload, |list: &mut Vec<T>, bytes| list.extend(parse(bytes)))
    }

    fn send(&mut self, kind: u16, flags: u16, payload: &Payload) -> io::Result<()> {
        self.sequence += 1;
        let mut bytes = vec![0; HEADER_BYTES + payload.0.len()];
        let mut message = NetlinkBuffer::new(&mut bytes);
        message.set_length((HEADER_BYTES + payload.0.len()) as u32);
        message.set_message_type(kind);
        message.set_flags(flags);
        message.set_sequence_number(self.sequence);
        bytes[HEADER_BYTES..].copy_from_slice(&payload.0);
        rustix::net::send(&self.socket, &bytes, SendFlags::empty())?;
        Ok(())
    }

    /// Passes the payloads of the answer to the last request to `accept`, until it has enough or
    /// they end. False if the kernel reports that they changed meanwhile.
    fn receive(&mut self, mut accept: impl FnMut(&[u8]) -> ControlFlow<()>) -> io::Result<bool> {
        // Not filled with zeros: a watcher asks ten times a second.
        let mut buffer = Vec::with_capacity(RECEIVE_BYTES);
        let mut consistent = true;

        loop {
            buffer.clear();
            let datagram = self.receive_datagram(&mut buffer)?;
            for message in
                Messages(datagram).filter(|message| message.sequence_number() == self.sequence)
            {
                consistent &= message.flags() & NLM_F_DUMP_INTR == 0;
                if read_message(&message, &mut accept)?.is_break() {
                    return Ok(consistent);
                }
            }
        }
    }

    /// Receives the next datagram into the empty buffer, as far as it has room.
    fn receive_datagram<'a>(&self, buffer: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
        let (_, len) = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.socket, spare_capacity(buffer), RecvFlags::TRUNC)
        })?;
        buffer.get(..len).ok_or_else(|| io::ErrorKind::FileTooLarge.into())
    }
}

/// The messages in a datagram.
pub(super) struct Messages<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = NetlinkBuffer<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        let message = NetlinkBuffer::new_checked(self.0).ok()?;
        let end = (message.length() as usize).next_multiple_of(4).min(self.0.len());
        self.0 = &self.0[end..];
        Some(message)
    }
}

/// Passes the payload to `accept` if it is part of the answer. Ends at the end of the answer, which
/// for a list is a separate message: whether messages are marked as parts (`NLM_F_MULTI`) differs
/// by family.
fn read_message(
    message: &NetlinkBuffer<&[u8]>,
    accept: &mut impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    match message.message_type() {
        NLMSG_NOOP => Ok(ControlFlow::Continue(())),
        // The end of a list begins like an error, and is one if the list was interrupted.
        NLMSG_ERROR | NLMSG_DONE => acknowledged(message.payload()).map(ControlFlow::Break),
        _ => Ok(accept(message.payload())),
    }
}

/// The meaning of the number at the beginning of an error or of a dump's end; without a number
/// there is no error.
fn acknowledged(payload: &[u8]) -> io::Result<()> {
    match ErrorBuffer::new_checked(payload).ok().and_then(|error| error.code()) {
        Some(code) => Err(io::Error::from_raw_os_error(-code.get())),
        None => Ok(()),
    }
}

/// The attributes of a message, found by type. A malformed attribute ends the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Those in the value of another attribute.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Splits a payload into its fixed header of `N` bytes and the attributes after it.
    pub(super) fn after_header<const N: usize>(payload: &'a [u8]) -> Option<(&'a [u8; N], Self)> {
        let (header, rest) = payload.split_first_chunk()?;
        Some((header, Self(rest)))
    }

    pub(super) fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        NlasIterator::new(self.0).map_while(Result::ok).map(|attribute| {
            let end = attribute.length() as usize;
            (attribute.kind(), &attribute.into_inner()[4..end])
        })
    }

    pub(super) fn bytes(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|&(found, _)| found == kind).map(|(_, value)| value)
    }

    pub(super) fn nested(self, kind: u16) -> Option<Self> {
        self.bytes(kind).map(Self)
    }

    pub(super) fn u8(self, kind: u16) -> Option<u8> {
        self.bytes(kind)?.first().copied()
    }

    pub(super) fn u16(self, kind: u16) -> Option<u16> {
        Some(u16::from_ne_bytes(*self.bytes(kind)?.first_chunk()?))
    }

    pub(super) fn u32(self, kind: u16) -> Option<u32> {
        u32_at(self.bytes(kind)?, 0)
    }

    pub(super) fn u64(self, kind: u16) -> Option<u64> {
        u64_at(self.bytes(kind)?, 0)
    }

    pub(super) fn text(self, kind: u16) -> Option<String> {
        let bytes = self.bytes(kind)?;
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

/// The kernel's number at `offset`.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// The kernel's number at `offset`.
pub(super) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::address::{Address, Route};
    use crate::device::link::{Link, LinkStatistics};
    use crate::device::xdp::XdpSupport;

    /// Message types and payloads of a datagram, up to the end of the answer.
    fn read(datagram: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut payloads = Vec::new();
        for message in Messages(datagram) {
            let mut accept = |payload: &[u8]| {
                payloads.push(payload.to_vec());
                ControlFlow::Continue(())
            };
            if read_message(&message, &mut accept)?.is_break() {
                break;
            }
        }
        Ok(payloads)
    }

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + payload.len()];
        bytes[HEADER_BYTES..].copy_from_slice(payload);
        let mut message = NetlinkBuffer::new(&mut bytes);
        message.set_length((HEADER_BYTES + payload.len()) as u32);
        message.set_message_type(kind);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_list_ends_at_its_end_and_not_at_the_first_unmarked_part() {
        let done = message(NLMSG_DONE, &0_i32.to_ne_bytes());
        let datagram =
            [message(20, b"one"), message(NLMSG_NOOP, b""), message(20, b"two"), done].concat();
        assert_eq!(read(&datagram).unwrap(), [b"one", b"two"]);
    }

    #[test]
    fn an_error_in_place_of_the_end_is_an_error() {
        for kind in [NLMSG_DONE, NLMSG_ERROR] {
            let datagram =
                [message(20, b"one"), message(kind, &(-libc::EPERM).to_ne_bytes())].concat();
            assert_eq!(read(&datagram).unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
    }

    #[test]
    fn attributes_come_out_as_they_went_in() {
        let payload =
            Payload::new(&[9; 4]).with_text(3, "eth0").with(5, &[1, 2, 3]).with_u32(7, 0xdead_beef);
        let (header, attributes) = Attributes::after_header::<4>(payload.bytes()).unwrap();
        assert_eq!(header, &[9; 4]);
        assert_eq!(attributes.text(3).as_deref(), Some("eth0"));
        assert_eq!(attributes.bytes(5), Some(&[1, 2, 3][..]));
        assert_eq!(attributes.u32(7), Some(0xdead_beef));
        assert_eq!(attributes.u32(5), None, "too short");
        assert_eq!(attributes.bytes(4), None);
    }

    /// Bytes that no kernel sends: all truncations of a message with all attributes, and the
    /// message with each byte replaced.
    #[test]
    fn no_bytes_make_a_reader_panic() {
        let hops = [16_u8, 0, 0, 0, 3, 0, 0, 0, 8, 0, 5, 0, 192, 0, 2, 1];
        let linkinfo = Payload::new(&[]).with_text(libc::IFLA_INFO_KIND, "veth");
        let whole = Payload::new(&[2; 16])
            .with(libc::IFLA_ADDRESS, &[2; 6])
            .with_text(libc::IFLA_IFNAME, "eth0")
            .with(libc::IFLA_STATS64, &[1; 200])
            .with(libc::IFLA_LINKINFO, linkinfo.bytes())
            .with(libc::RTA_MULTIPATH, &hops)
            .with(18, &[10, 0, 1, 2, 3, 4]);
        let whole = whole.bytes();
        for end in 0..whole.len() {
            read_everything(&whole[..end]);
        }

        for index in 0..whole.len() {
            for byte in [0, 1, 3, 4, 5, 0x7f, 0x80, 0xff] {
                let mut changed = whole.to_vec();
                changed[index] = byte;
                read_everything(&changed);
            }
        }
    }

    fn read_everything(payload: &[u8]) {
        let _ = Messages(payload).count();
        let _ = Link::parse(payload);
        let _ = LinkStatistics::parse(payload);
        let _ = Address::parse(payload);
        let _ = Route::parse(payload, 3);
        let _ = XdpSupport::parse(payload);
    }
}
