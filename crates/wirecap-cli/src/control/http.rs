//! `--http`: what the control socket tells of the capture, for browsers and for Prometheus, and nothing that could change it.

mod address;
mod metrics;
mod page;
mod request;
mod response;
mod server;

pub(crate) use address::{HttpAddress, Listener, parse_http};
pub(super) use server::Server;
