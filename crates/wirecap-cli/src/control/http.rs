//! `--http`: the control socket's information about the capture for browsers and Prometheus, read-only.

mod address;
mod connection;
mod metrics;
mod page;
mod request;
mod response;

pub(crate) use address::{HttpAddress, Listener, parse_http};
pub(super) use connection::Connection;
