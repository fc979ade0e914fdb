//! The messages as an attacker writes and reads them: for tests.
#![allow(missing_docs, clippy::missing_errors_doc, reason = "for tests")]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use crate::channel;
use crate::message::{Greeting, Reply, Terms, VERSION, decode, encode};

pub use crate::message::BYTES_MAX;

pub fn greeting(terms: &Terms) -> Vec<u8> {
    encode(&Greeting { version: VERSION, terms: terms.clone() }).expect("terms can be encoded")
}

pub fn to_bytes(message: &impl Serialize) -> Vec<u8> {
    encode(message).expect("messages can be encoded")
}

pub fn of_bytes<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> io::Result<T> {
    decode(bytes)
}

pub fn send(socket: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    channel::send_request(socket, bytes)
}

pub fn receive(socket: &UnixStream) -> io::Result<Option<(Reply, Option<OwnedFd>)>> {
    let Some((bytes, descriptor)) = channel::receive_reply(socket)? else { return Ok(None) };
    Ok(Some((decode(&bytes)?, descriptor)))
}
