//! Divides a capture into two processes: a **broker** that keeps its privileges and never reads a packet, and a process that
//! captures, parses and writes without privileges.
//!
//! [`Broker::start`] starts the broker and sends it the [`Terms`]: the permitted interfaces, directory and command. Then
//! [`Broker`] answers the privileged requests of the engine in the capturing process: each goes over a socket to [`serve`],
//! which checks it against the terms, and creates, binds, loads or attaches what it asks for. [`Confinement::enter`] drops all
//! permissions that the capturing process no longer needs.
//!
//! Requests are in the words of a capture (a filter, a ring, an interface). The broker makes and binds all sockets, makes the
//! memory of the pools, and assembles, loads and holds all programs and maps. So an attacker who controls the capturing process
//! can only capture other packets from the same interfaces.

mod capabilities;
mod channel;
mod client;
mod confine;
mod message;
#[doc(hidden)] // public for tests
pub mod raw;
#[cfg(sabotage)]
#[path = "../../wirecap-testbed/src/sabotage.rs"]
mod sabotage;
mod server;
mod sockets;
mod sys;
mod system_calls;
mod terminal;
mod terms;

pub use client::Broker;
pub use confine::{Confinement, Landlocked, refuse_inspection};
#[doc(hidden)]
pub use message::{Ask, HookAsk, Reply};
pub use message::{Permitted, Terms, User};
#[doc(hidden)]
pub use server::judge;
pub use server::serve;
pub use sockets::{SocketState, remove_socket, set_socket_mode, socket_state};
