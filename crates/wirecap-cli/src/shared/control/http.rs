//! `--http`: the control socket's information about the capture for browsers and Prometheus,
//! read-only.
//!
//! The server accepts 64 connections; a further one closes the one that has been silent longest. A
//! request head may have 8 KiB and take ten seconds. A connection is closed if the client reads
//! nothing of an answer for ten seconds, or if it is idle for one minute. The methods are GET and
//! HEAD. On a loopback address, a request whose `Host` is not a loopback address or `localhost` is
//! rejected, so that no website can read the answers through a name that resolves to this host. The
//! page's `Content-Security-Policy` allows its own style and script, by a random number in each
//! answer, and connections to the same server.

mod address;
mod connection;
mod metrics;
mod page;
mod request;
mod response;

pub(crate) use address::{HttpAddress, Listener, parse_http};
pub(super) use connection::Connection;
