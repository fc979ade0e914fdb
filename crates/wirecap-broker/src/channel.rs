//! Messages over a socket: requests in one direction, without descriptors, and replies in the
//! other.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, UCred, recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::message::BYTES_MAX;

/// A message follows its length; a descriptor is sent with the length.
const LENGTH_BYTES: usize = 4;

fn length_of(bytes: &[u8]) -> io::Result<[u8; LENGTH_BYTES]> {
    if bytes.len() <= BYTES_MAX {
        return Ok((bytes.len() as u32).to_ne_bytes());
    }
    let text = format!("message between the two processes has more than {BYTES_MAX} bytes");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

fn checked_length(length: [u8; LENGTH_BYTES]) -> io::Result<usize> {
    match u32::from_ne_bytes(length) as usize {
        bytes if bytes <= BYTES_MAX => Ok(bytes),
        _ => {
            let text = format!("message has more than {BYTES_MAX} bytes");
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
    }
}

/// Sends a request. By write(2): a confined process has no other call. SIGPIPE must be ignored.
pub(crate) fn send_request(mut socket: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    socket.write_all(&[&length_of(bytes)?, bytes].concat())
}

/// The capture, as the broker sees it.
#[derive(Debug)]
pub(crate) struct Capture {
    socket: UnixStream,
    pid: Pid,
    /// Readable when the process has ended, even if another one has its end of the socket; `None`
    /// if the kernel has no such descriptors.
    ends: Option<OwnedFd>,
}

impl Capture {
    /// The process that made the socket.
    ///
    /// # Errors
    ///
    /// If it is another kind of descriptor.
    pub(crate) fn behind(socket: UnixStream) -> io::Result<Self> {
        let pid = socket_peercred(&socket)?.pid;
        Ok(Self { socket, pid, ends: pidfd_open(pid, PidfdFlags::empty()).ok() })
    }

    /// The next request; `None` when the capture has ended.
    ///
    /// # Errors
    ///
    /// If it breaks off or is too long, or a part of it was not sent by the capture. Descriptors
    /// are discarded.
    pub(crate) fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        let mut length = [0; LENGTH_BYTES];
        if !self.fill(&mut length)? {
            return Ok(None);
        }
        let mut message = vec![0; checked_length(length)?];
        if !message.is_empty() && !self.fill(&mut message)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(message))
    }

    /// Fills `bytes`; false if the capture has ended before the first one. The kernel does not join
    /// the bytes of two senders in one call, and adds the sender's credentials (`SO_PASSCRED`).
    fn fill(&self, bytes: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);

            let received = match self.wait(PollFlags::IN)? {
                false => 0,
                true => {
                    rustix::io::retry_on_intr(|| {
                        let parts = &mut [IoSliceMut::new(&mut bytes[filled..])];
                        recvmsg(&self.socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
                    })?
                    .bytes
                }
            };
            if received == 0 {
                return if filled == 0 {
                    Ok(false)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }

            let sender = ancillary.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmCredentials(UCred { pid, .. }) => Some(pid),
                _ => None,
            });
            #[cfg(sabotage)]
            let sender =
                if crate::sabotage::is("broker-any-sender") { Some(self.pid) } else { sender };
            if sender != Some(self.pid) {
                let sender = sender.map(Pid::as_raw_nonzero);
                let pid = self.pid.as_raw_nonzero();
                let text = format!(
                    "a message of process {sender:?}, and not of the capture, process {pid}"
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }

            filled += received;
        }

        Ok(true)
    }

    /// Waits until the socket is ready; false if the capture has ended instead.
    fn wait(&self, flags: PollFlags) -> io::Result<bool> {
        let mut polled = vec![PollFd::new(&self.socket, flags)];
        polled.extend(self.ends.as_ref().map(|ends| PollFd::new(ends, PollFlags::IN)));
        rustix::io::retry_on_intr(|| poll(&mut polled, None))?;
        Ok(!polled[0].revents().is_empty())
    }

    /// Sends a reply.
    ///
    /// # Errors
    ///
    /// If it is too long, or the capture has ended.
    pub(crate) fn reply(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let length = length_of(bytes)?;
        // A stream socket accepts four bytes completely or not at all.
        if self.send(&length, descriptor)? != LENGTH_BYTES {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.send(&bytes[sent..], None)?;
        }
        Ok(())
    }

    /// Sends some of the bytes. A capture that does not read blocks this process until it ends, and
    /// no longer.
    fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<usize> {
        let descriptors: Vec<_> = descriptor.into_iter().collect();

        // MSG_NOSIGNAL prevents SIGPIPE if the peer has ended.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;

        loop {
            if !self.wait(PollFlags::OUT)? {
                return Err(io::ErrorKind::BrokenPipe.into());
            }

            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);

            if !descriptors.is_empty() {
                assert!(
                    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)),
                    "there is space for one"
                );
            }

            match sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, flags) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                sent => return Ok(sent?),
            }
        }
    }
}

/// The next reply; `None` if the other side has ended.
pub(crate) fn receive_reply(
    mut socket: &UnixStream,
) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut length = [0; LENGTH_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);

    let received = rustix::io::retry_on_intr(|| {
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        recvmsg(socket, &mut [IoSliceMut::new(&mut length)], &mut ancillary, flags)
    })?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });

    match received.bytes {
        0 => return Ok(None),
        LENGTH_BYTES => {}
        _ => return Err(io::ErrorKind::UnexpectedEof.into()),
    }

    let mut message = vec![0; checked_length(length)?];
    socket.read_exact(&mut message)?;

    Ok(Some((message, descriptor)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::sockopt::set_socket_passcred;

    use super::*;

    fn pair() -> (UnixStream, Capture) {
        let (near, far) = UnixStream::pair().unwrap();
        set_socket_passcred(&far, true).unwrap();
        (near, Capture::behind(far).unwrap())
    }

    #[test]
    fn a_message_of_any_length_arrives() {
        let (near, far) = pair();

        for bytes in [0, 5, BYTES_MAX] {
            let message: Vec<u8> = (0..bytes).map(|byte: usize| byte as u8).collect();
            let (request, reply) = std::thread::scope(|scope| {
                scope.spawn(|| send_request(&near, &message).unwrap());
                let request = far.receive().unwrap().unwrap();
                scope.spawn(|| far.reply(&message, Some(far.socket.as_fd())).unwrap());
                (request, receive_reply(&near).unwrap().unwrap())
            });
            assert!(request == message && reply.0 == message && reply.1.is_some());
        }

        drop(near);
        assert!(far.receive().unwrap().is_none());
    }

    #[test]
    fn a_message_of_another_process_is_an_error() {
        let (near, mut far) = pair();
        far.pid = Pid::INIT;
        send_request(&near, &[1, 2, 3]).unwrap();
        assert_eq!(far.receive().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_message_that_is_too_long_is_an_error() {
        let (near, far) = pair();
        assert!(send_request(&near, &vec![0; BYTES_MAX + 1]).is_err());
        (&near).write_all(&u32::MAX.to_ne_bytes()).unwrap();
        assert_eq!(far.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_message_that_breaks_off_is_an_error() {
        let (near, far) = pair();
        (&near).write_all(&8_u32.to_ne_bytes()).unwrap();
        (&near).write_all(&[1, 2, 3]).unwrap();
        drop(near);
        assert_eq!(far.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn descriptors_of_a_request_are_discarded() {
        let (near, far) = pair();
        let attacker = Capture::behind(near).unwrap();
        let (mut other_end, sent) = UnixStream::pair().unwrap();
        attacker.reply(&[7], Some(sent.as_fd())).unwrap();
        drop(sent);
        assert_eq!(far.receive().unwrap().unwrap(), [7]);
        // No process has the descriptor any more.
        assert_eq!(other_end.read(&mut [0]).unwrap(), 0);
    }
}
