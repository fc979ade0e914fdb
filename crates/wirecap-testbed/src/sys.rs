//! System calls that no crate wraps.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// Sets an environment variable of this process.
pub(crate) fn set_variable(name: &str, value: &std::path::Path) {
    // SAFETY: the standard library locks the environment for its own calls, and no test changes it
    // while the C library reads it: it is set once, before the first interface is dedicated.
    unsafe { std::env::set_var(name, value) };
}

/// A packet socket that sends on the interface and receives nothing.
pub(crate) fn sending_packet_socket(ifindex: u32) -> io::Result<OwnedFd> {
    packet_socket(ifindex, 0)
}

/// A packet socket that gets all packets that the interface receives, and none that are sent on it.
pub(crate) fn receiving_packet_socket(ifindex: u32) -> io::Result<OwnedFd> {
    let socket = packet_socket(ifindex, libc::ETH_P_ALL as u16)?;
    set_packet_option(&socket, libc::PACKET_IGNORE_OUTGOING)?;
    Ok(socket)
}

/// Makes packets of the packet socket bypass the interface's queueing discipline.
pub(crate) fn bypass_queueing_discipline(socket: &OwnedFd) -> io::Result<()> {
    set_packet_option(socket, libc::PACKET_QDISC_BYPASS)
}

fn set_packet_option(socket: &OwnedFd, option: i32) -> io::Result<()> {
    let on = 1_i32;
    let bytes = size_of::<i32>() as libc::socklen_t;

    // SAFETY: `on` is valid for `bytes` bytes.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw const on).cast(),
            bytes,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn packet_socket(ifindex: u32, protocol: u16) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: ifindex as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };

    let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;

    // SAFETY: `address` is valid for `bytes` bytes.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// Makes the open file /dev/net/tun a new TUN or TAP device of the calling thread's namespace,
/// without a header before the frames.
pub(crate) fn name_tap(file: &File, name: &str, is_tun: bool) -> io::Result<()> {
    let kind = if is_tun { libc::IFF_TUN } else { libc::IFF_TAP };

    // SAFETY: all bytes of the structure may be zero.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };

    // The last byte stays zero.
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::NotFound.into());
    }

    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }

    request.ifr_ifru.ifru_flags = (kind | libc::IFF_NO_PI) as i16;

    // SAFETY: the request reads and writes one `struct ifreq`.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// bpf(2): creates a link.
const BPF_LINK_CREATE: i32 = 28;
/// `BPF_TCX_INGRESS`
const TCX_INGRESS: u32 = 46;

/// Attaches the program to the interface's received frames, as long as the returned link is open.
pub(crate) fn attach_tcx(ifindex: u32, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `union bpf_attr`, the part `link_create`, with `tcx.relative_fd` and
    /// `tcx.expected_revision`.
    #[repr(C)]
    struct LinkCreate {
        program: i32,
        ifindex: u32,
        attach_type: u32,
        flags: u32,
        relative: u32,
        padding: u32,
        expected_revision: u64,
    }
    let program = program.as_raw_fd();
    let attach_type = TCX_INGRESS;

    let attribute = LinkCreate {
        program,
        ifindex,
        attach_type,
        flags: 0,
        relative: 0,
        padding: 0,
        expected_revision: 0,
    };
    let bytes = size_of::<LinkCreate>();

    // SAFETY: the command reads `bytes` bytes.
    let link =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_LINK_CREATE, &raw const attribute, bytes) };
    if link < 0 {
        return Err(io::Error::last_os_error());
    }

    // SAFETY: the command returned a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(link as i32) })
}

/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)`: the frames that an interface with a `clsact`
/// queueing discipline receives.
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
/// The program's result is the action.
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
/// `NLM_F_REQUEST | NLM_F_ACK | NLM_F_EXCL | NLM_F_CREATE`
const CREATE_AND_ACKNOWLEDGE: u16 = 0x605;

/// Adds the program to the interface's `clsact` queueing discipline, for received frames. The
/// command tc takes only programs in files.
pub(crate) fn add_tc_filter(ifindex: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    let attribute = |kind: u16, value: &[u8]| {
        let mut bytes = [((value.len() + 4) as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let options = [
        attribute(TCA_BPF_FD, &program.as_raw_fd().to_ne_bytes()),
        attribute(TCA_BPF_NAME, b"testbed\0"),
        attribute(TCA_BPF_FLAGS, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes()),
    ]
    .concat();

    // `struct tcmsg`: family, index, handle, parent, and priority with protocol.
    let all_protocols = u32::from((libc::ETH_P_ALL as u16).to_be());
    let words = [0, ifindex, 1, CLSACT_INGRESS, 1 << 16 | all_protocols];
    let body = words.map(u32::to_ne_bytes).concat();
    let body = [body, attribute(TCA_KIND, b"bpf\0"), attribute(TCA_OPTIONS, &options)].concat();

    // `struct nlmsghdr`: length, type with flags, sequence number, port.
    let kind = u32::from(libc::RTM_NEWTFILTER);
    let flags = u32::from(CREATE_AND_ACKNOWLEDGE);
    let header =
        [(16 + body.len()) as u32, flags << 16 | kind, 1, 0].map(u32::to_ne_bytes).concat();

    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &[header, body].concat(), SendFlags::empty())?;

    let mut answer = [0; 4096];
    recv(&socket, &mut answer, RecvFlags::empty())?;

    // The acknowledgement is an error code after the header; 0 is success.
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(-errno)),
    }
}
