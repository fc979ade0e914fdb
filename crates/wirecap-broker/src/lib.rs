//! Divides a capture into two processes: a **broker** that keeps its privileges and never reads a
//! packet, and a process that captures, parses and writes without privileges.
//!
//! [`Broker::start`] starts the broker and sends it the [`Terms`]: the permitted interfaces,
//! directory and command. Then [`Broker`] answers the privileged requests of the engine in the
//! capturing process: each goes over a socket to [`serve`], which checks it against the terms, and
//! creates, binds, loads or attaches what it asks for. [`Confinement::enter`] drops all permissions
//! that the capturing process no longer needs.
//!
//! Requests are in the words of a capture (a filter, a ring, an interface). The broker makes and
//! binds all sockets, makes the memory of the pools, and assembles, loads and holds all programs
//! and maps. So an attacker who controls the capturing process can only capture other packets from
//! the same interfaces.
//!
//! The requests, and what the broker does:
//!
//! - A pool: it makes the file in memory, on huge pages if there are any, and registers it as a
//!   UMEM. All pools together have at most the memory of the machine.
//! - An AF_XDP or packet socket: it makes it, and binds it to an interface, and AF_XDP also to a
//!   queue, of the terms; a packet socket to no interface, that is to all, if the terms say *any*.
//! - Promiscuous mode: it sets it on an interface of the terms, or on every interface if the terms
//!   say *any*.
//! - A program: it assembles it from a description (filter as classic BPF, queues and rings, kind
//!   of timestamps), loads and attaches it, and holds program, maps and link.
//! - A change of the program: another filter, an added or closed queue, the same program on the
//!   interface that replaced a removed one.
//! - A netlink socket: it opens it, for questions and for notifications about interfaces,
//!   addresses, routes and tc filters. It grants no privilege: the kernel checks the process that
//!   sends.
//! - The hooks of an interface: it reports whether an interface of the terms has a tcx program or a
//!   netfilter hook.
//! - A finished file: it runs the command of the terms with its path, which must be in the
//!   directory.

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
