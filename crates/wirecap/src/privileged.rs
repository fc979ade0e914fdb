//! For `wirecap-broker`, which divides a capture into a process with privileges and one without:
//! the requests of the engine to another process ([`Opener`], [`Hooks`], [`Hook`]), and how they
//! are carried out in a process with privileges.

pub use crate::capture::source::interface_and_queues;
pub use crate::device::guarded_hooks;
pub use crate::steer::Steering;
pub use crate::sys::memory::{Mapping, pool_file};
pub use crate::sys::netlink::open_netlink_socket;
pub use crate::sys::opener::{
    BindMode, GuardedHooks, Handle, Inquiry, Opener, Pages, Privilege, Release, set_opener,
};
pub use crate::sys::packet::{bind_packet_socket, open_packet_socket};
pub use crate::sys::promiscuous::{join_promiscuous, join_promiscuous_by};
pub use crate::sys::xdp::{
    bind_xdp_socket, bind_xdp_socket_beside, open_xdp_socket, register_umem,
};
pub use crate::xdp::hook::{
    AttachLock, Hook, HookFault, Hooks, LocalHook, OpenedHook, SocketRef, own_turn, set_hooks,
};
pub use crate::xdp::plan::{HookPlan, HookState, Where};
