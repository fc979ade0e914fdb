//! Messages over a socket, with descriptors.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::message::{BYTES_MAX, DESCRIPTORS_MAX};

/// A message follows its length; the descriptors are sent with the length.
const LENGTH_BYTES: usize = 4;

/// Sends a message.
pub(crate) fn send(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() > BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
        let text = format!(
            "message for the broker has more than {BYTES_MAX} bytes or {DESCRIPTORS_MAX} descriptors"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let length = (bytes.len() as u32).to_ne_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)), "there is space for them");
    }
    // A stream socket accepts four bytes completely or not at all. MSG_NOSIGNAL prevents SIGPIPE if the peer has ended.
    let sent = rustix::io::retry_on_intr(|| {
        sendmsg(socket, &[IoSlice::new(&length)], &mut ancillary, SendFlags::NOSIGNAL)
    })?;
    if sent != LENGTH_BYTES {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let mut socket = socket;
    socket.write_all(bytes)
}

/// The next message; `None` if the other side has ended.
pub(crate) fn receive(socket: &UnixStream) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut length = [0; LENGTH_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        recvmsg(socket, &mut [IoSliceMut::new(&mut length)], &mut ancillary, flags)
    })?;
    let descriptors: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    match received.bytes {
        0 => return Ok(None),
        LENGTH_BYTES => {}
        _ => return Err(io::ErrorKind::UnexpectedEof.into()),
    }
    let bytes = u32::from_ne_bytes(length) as usize;
    if bytes > BYTES_MAX {
        let text = format!("message has more than {BYTES_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut message = vec![0; bytes];
    let mut socket = socket;
    socket.read_exact(&mut message)?;
    Ok(Some((message, descriptors)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_message_of_any_length_arrives_with_its_descriptors() {
        let (near, far) = UnixStream::pair().unwrap();
        for (bytes, descriptors) in [(0, 0), (5, 1), (1 << 20, DESCRIPTORS_MAX)] {
            let message: Vec<u8> = (0..bytes).map(|byte: usize| byte as u8).collect();
            let sent = message.clone();
            let near = &near;
            let (received, files) = std::thread::scope(|scope| {
                let passed = vec![far.as_fd(); descriptors];
                scope.spawn(move || send(near, &sent, &passed).unwrap());
                receive(&far).unwrap().unwrap()
            });
            assert_eq!((received, files.len()), (message, descriptors));
        }
        drop(near);
        assert!(receive(&far).unwrap().is_none());
    }

    #[test]
    fn a_message_that_is_too_long_is_an_error() {
        let (near, far) = UnixStream::pair().unwrap();
        assert!(send(&near, &vec![0; BYTES_MAX + 1], &[]).is_err());
        (&near).write_all(&u32::MAX.to_ne_bytes()).unwrap();
        assert_eq!(receive(&far).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_message_that_breaks_off_is_an_error() {
        let (near, far) = UnixStream::pair().unwrap();
        (&near).write_all(&8_u32.to_ne_bytes()).unwrap();
        (&near).write_all(&[1, 2, 3]).unwrap();
        drop(near);
        assert_eq!(receive(&far).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
