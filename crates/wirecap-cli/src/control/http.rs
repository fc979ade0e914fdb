//! `--http`: what the control socket tells of the capture, for browsers and for Prometheus, and nothing that could change it.

mod address;
mod connection;
mod metrics;
mod page;
mod request;
mod response;

pub(crate) use address::{HttpAddress, Listener, parse_http};
pub(super) use connection::Connection;
