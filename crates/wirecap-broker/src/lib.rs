//! Two processes in place of one: a **broker** that keeps its privileges and never sees a packet, and a process that captures,
//! parses and writes, and has no privilege left.
//!
//! [`Broker::start`] starts the broker and tells it the [`Terms`]: which interfaces, which directory, which command. Then
//! [`Broker`] is the [`Opener`](wirecap_filter::opener::Opener) of the capturing process: each request of the engine goes over
//! a socket to [`serve`], which looks whether the terms allow it, asks the kernel, and passes the descriptor back.
//! [`Confinement::enter`] takes everything from the capturing process that it does not need any more.
//!
//! What the terms do not allow is refused: sockets of other families, programs of other types, programs that call what
//! wirecap's do not (such as helpers that read the kernel's memory), programs on other interfaces, names of sockets that are not
//! wirecap's. A process that has been taken over can therefore do no more than capture other
//! packets from the interfaces that it captures from.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

mod calls;
mod channel;
mod client;
mod confine;
mod message;
mod relocate;
mod server;
mod sys;
mod system_calls;

pub use client::Broker;
pub use confine::{Confinement, Landlocked};
#[doc(hidden)]
pub use message::{Ask, Kind};
pub use message::{Terms, User};
pub use server::serve;

/// For tests: the kernel request that a broker makes for these bytes.
///
/// # Errors
///
/// Why it rejects them.
#[doc(hidden)]
pub fn judge(terms: &Terms, bytes: &[u8], descriptors: usize) -> Result<Ask, String> {
    server::judge(terms, bytes, descriptors)
}

/// For tests: an encoded request.
///
/// # Errors
///
/// If it cannot be encoded.
#[doc(hidden)]
pub fn request(ask: &Ask) -> std::io::Result<Vec<u8>> {
    message::encode(ask)
}

/// For tests: the next message, with its descriptors; none at the end.
///
/// # Errors
///
/// If it breaks off or is too long.
#[doc(hidden)]
pub fn next_message(socket: &UnixStream) -> std::io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    channel::receive(socket)
}
