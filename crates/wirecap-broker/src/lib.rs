//! Divides a capture into two processes: a **broker** that keeps its privileges and never reads a packet, and a process that
//! captures, parses and writes without privileges.
//!
//! [`Broker::start`] starts the broker and sends it the [`Terms`]: the permitted interfaces, directory and command. Then
//! [`Broker`] is the [`Opener`](wirecap_filter::opener::Opener) of the capturing process: each request of the engine goes over
//! a socket to [`serve`], which checks it against the terms, calls the kernel, and returns the descriptor.
//! [`Confinement::enter`] drops all permissions that the capturing process no longer needs.
//!
//! The broker refuses requests outside the terms: sockets of other families, programs of other types, programs with calls that
//! wirecap's do not make (such as helpers that read the kernel's memory), programs on other interfaces, names of sockets that
//! are not wirecap's. Therefore an attacker who controls the capturing process can only capture other packets from the same
//! interfaces.

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

/// For tests: the next message, with its descriptors; `None` at the end.
///
/// # Errors
///
/// If it breaks off or is too long.
#[doc(hidden)]
pub fn next_message(socket: &UnixStream) -> std::io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    channel::receive(socket)
}
