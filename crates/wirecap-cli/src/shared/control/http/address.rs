//! The address of pages and metrics: a loopback address, or a local socket. Other hosts cannot
//! reach either.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use wirecap_broker::{SocketState, remove_socket, socket_state};

use crate::shared::control::place;

/// What `--http` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HttpAddress {
    Loopback(SocketAddr),
    Path(PathBuf),
}

/// `127.0.0.1:9417`, `[::1]:9417`, `localhost:9417`, or the path of a socket.
pub(crate) fn parse_http(text: &str) -> Result<HttpAddress, String> {
    const EXPECTED: &str = "expected 127.0.0.1:9417, [::1]:9417 or the path of a socket";
    if text.contains('/') {
        return Ok(HttpAddress::Path(text.strip_prefix("unix:").unwrap_or(text).into()));
    }

    let port_of_localhost = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
    let address = match port_of_localhost {
        Some(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        None => text.parse().map_err(|_| format!("invalid address {text}: {EXPECTED}"))?,
    };
    match address.ip().is_loopback() {
        true => Ok(HttpAddress::Loopback(address)),
        false => Err(format!(
            "{} is not a loopback address: other hosts could read it; use 127.0.0.1:{} and an SSH tunnel",
            address.ip(),
            address.port()
        )),
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => write!(f, "http://{address}/"),
            Self::Path(path) => write!(f, "http on {}", path.display()),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Option<OwnedFd>,
    address: HttpAddress,
}

impl Listener {
    /// Starts listening. A socket at a path gets the mode 0660; a socket without a listening
    /// process is replaced.
    pub(crate) fn bind(address: &HttpAddress) -> io::Result<Self> {
        let (socket, address) = match address {
            HttpAddress::Loopback(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                (OwnedFd::from(listener), HttpAddress::Loopback(address))
            }
            HttpAddress::Path(path) => {
                match socket_state(path)? {
                    SocketState::Taken(_) => return Err(io::ErrorKind::AddrInUse.into()),
                    SocketState::Dead => remove_socket(path)?,
                    SocketState::Free => {}
                }
                (
                    OwnedFd::from(place::listen_at(path)?),
                    HttpAddress::Path(std::path::absolute(path)?),
                )
            }
        };
        Ok(Self { socket: Some(socket), address })
    }

    /// Its address, with the port that the system selected.
    pub(crate) fn address(&self) -> &HttpAddress {
        &self.address
    }

    /// Whether a request with this `host` is for this server. A website can make a browser send
    /// requests here under the website's name (DNS rebinding), and must not read the answers.
    pub(super) fn is_called(&self, host: &str) -> bool {
        let HttpAddress::Loopback(_) = self.address else { return true };
        let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let name = match host.rsplit_once(':') {
            Some((name, port)) if is_port(port) && !host.ends_with(']') => name,
            _ => host,
        };
        let literal = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost")
            || literal.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("it is there until it is dropped").as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.socket.take());
        // A process that dropped its privileges may not be allowed to remove it; then the next
        // capture replaces it.
        if let HttpAddress::Path(path) = &self.address
            && socket_state(path).is_ok_and(|state| state == SocketState::Dead)
        {
            let _ = remove_socket(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_is_served() {
        for text in ["127.0.0.1:9417", "[::1]:9417", "127.1.2.3:0", "localhost:80"] {
            assert!(matches!(parse_http(text), Ok(HttpAddress::Loopback(_))), "{text}");
        }

        for text in ["/run/x.sock", "unix:/run/x.sock", "./x"] {
            assert!(matches!(parse_http(text), Ok(HttpAddress::Path(_))), "{text}");
        }

        for text in ["0.0.0.0:9417", "[::]:9417", "192.168.0.1:80", "[::ffff:10.0.0.1]:80"] {
            assert!(parse_http(text).unwrap_err().contains("is not a loopback address"), "{text}");
        }

        for text in ["", "9417", ":9417", "localhost", "127.0.0.1", "example.org:80", "localhost:x"]
        {
            assert!(parse_http(text).unwrap_err().contains("invalid address"), "{text}");
        }
    }

    #[test]
    fn requests_for_other_names_are_for_other_servers() {
        let listener = Listener::bind(&parse_http("127.0.0.1:0").unwrap()).unwrap();
        for host in ["127.0.0.1:9417", "localhost", "LOCALHOST:1", "[::1]:9417", "[::1]"] {
            assert!(listener.is_called(host), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:9417", "10.0.0.1:9417", "127.0.0.1.evil.example:80"]
        {
            assert!(!listener.is_called(host), "{host}");
        }
    }
}
