//! A parsed request, and the subject of its answer.

use httparse::{EMPTY_HEADER, Status};

/// Maximum bytes of a request's head.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
/// Header fields at most.
const FIELDS_MAX: usize = 64;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource {
    Page,
    /// In the format that the client requested.
    Metrics {
        open: bool,
    },
    Status,
    History,
    Events,
}

/// A request that can be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) resource: Resource,
    /// Without the body.
    pub(super) head_only: bool,
    /// The connection ends with the answer.
    pub(super) closes: bool,
}

/// Why a request is not answered: an HTTP status with its reason, and a sentence. The connection
/// ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) &'static str, pub(super) &'static str);

const BAD: &str = "400 Bad Request";

impl Request {
    /// Parses a request at the beginning of `bytes`, and returns its length; `None` if it is
    /// incomplete.
    pub(super) fn parse(
        bytes: &[u8],
        is_called: impl Fn(&str) -> bool,
    ) -> Result<Option<(Self, usize)>, Refusal> {
        let mut fields = [EMPTY_HEADER; FIELDS_MAX];
        let mut head = httparse::Request::new(&mut fields);
        let used = match head.parse(bytes) {
            Ok(Status::Complete(used)) if used <= HEAD_BYTES_MAX => used,
            Ok(Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                return Err(Refusal(
                    "431 Request Header Fields Too Large",
                    "the request's head is too long",
                ));
            }
            Err(_) => return Err(Refusal(BAD, "not an HTTP/1 request")),
        };

        let values = |name: &str| {
            let fields = head.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name));
            fields.map(|field| field.value).collect::<Vec<_>>()
        };
        let has_body = values("transfer-encoding")
            .iter()
            .chain(&values("content-length"))
            .any(|value| *value != b"0");
        if has_body {
            return Err(Refusal("413 Content Too Large", "a request has no body"));
        }

        match (values("host").as_slice(), head.version) {
            #[cfg(sabotage)]
            _ if crate::sabotage::is("page-for-any-host") => {}
            ([], Some(0)) => {}
            ([host], _) if std::str::from_utf8(host).is_ok_and(is_called) => {}
            ([_], _) => {
                return Err(Refusal(
                    "421 Misdirected Request",
                    "the Host header is not a loopback address or localhost",
                ));
            }
            _ => return Err(Refusal(BAD, "expected one Host header")),
        }

        let head_only = match head.method {
            Some("GET") => false,
            Some("HEAD") => true,
            _ => {
                return Err(Refusal(
                    "405 Method Not Allowed",
                    "read-only: only GET and HEAD are allowed",
                ));
            }
        };
        let closes = head.version == Some(0)
            || values("connection").iter().any(|value| value.eq_ignore_ascii_case(b"close"));
        let target = head.path.unwrap_or_default();
        let resource = match target.split('?').next().unwrap_or_default() {
            "/" => Resource::Page,
            "/metrics" => {
                let accepted = values("accept").concat();
                Resource::Metrics {
                    open: String::from_utf8_lossy(&accepted)
                        .contains("application/openmetrics-text"),
                }
            }
            "/status.json" => Resource::Status,
            "/history.json" => Resource::History,
            "/events.json" => Resource::Events,
            _ => {
                return Err(Refusal(
                    "404 Not Found",
                    "not found: expected /, /metrics, /status.json, /history.json or /events.json",
                ));
            }
        };

        Ok(Some((Self { resource, head_only, closes }, used)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<(Request, usize)>, Refusal> {
        Request::parse(text.as_bytes(), |host| host == "h")
    }

    #[test]
    fn a_request_is_answered_when_it_is_all_there() {
        let text = "GET /metrics?x=1 HTTP/1.1\r\nHost: h\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n";
        let request =
            Request { resource: Resource::Metrics { open: true }, head_only: false, closes: false };
        assert_eq!(parse(text), Ok(Some((request, text.len()))));
        (1..text.len()).for_each(|length| assert_eq!(parse(&text[..length]), Ok(None), "{length}"));
        let next = format!("{text}GET / HTTP/1.1");
        assert_eq!(parse(&next), Ok(Some((request, text.len()))));
        let (head, _) = parse("HEAD / HTTP/1.0\r\n\r\n").unwrap().unwrap();
        assert_eq!(head, Request { resource: Resource::Page, head_only: true, closes: true });
        let (plain, _) =
            parse("GET /metrics HTTP/1.1\nhost: h\nconnection: close\n\n").unwrap().unwrap();
        assert_eq!((plain.resource, plain.closes), (Resource::Metrics { open: false }, true));
    }

    #[test]
    fn an_invalid_request_is_rejected() {
        let long = format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}", "y".repeat(HEAD_BYTES_MAX));
        let many = format!("GET / HTTP/1.1\r\nhost: h\r\n{}\r\n", "x: y\r\n".repeat(FIELDS_MAX));
        for (text, status) in [
            ("\0\0\0\0", "400"),
            ("GET / HTTP/9.9\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\nhost: h\r\nhost: h\r\n\r\n", "400"),
            ("GET / HTTP/1.1\r\nhost: other\r\n\r\n", "421"),
            ("POST / HTTP/1.1\r\nhost: h\r\n\r\n", "405"),
            ("DELETE /metrics HTTP/1.1\r\nhost: h\r\n\r\n", "405"),
            ("GET / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello", "413"),
            ("GET / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n", "413"),
            ("GET /../etc/passwd HTTP/1.1\r\nhost: h\r\n\r\n", "404"),
            ("GET http://h/metrics HTTP/1.1\r\nhost: h\r\n\r\n", "404"),
            (&long, "431"),
            (&many, "431"),
        ] {
            let Refusal(found, _) = parse(text).unwrap_err();
            assert!(found.starts_with(status), "{text:?}: {found}");
        }
    }
}
