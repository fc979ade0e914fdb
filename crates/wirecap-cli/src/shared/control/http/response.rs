//! An answer: its headers, and its body.

/// The default policy of an answer: it may load and run nothing.
pub(super) const POLICY: &str =
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// What a client gets.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: &'static str,
    pub(super) content_type: &'static str,
    /// The policy, instead of [the default](POLICY).
    pub(super) policy: Option<String>,
    pub(super) body: String,
}

impl Response {
    pub(super) fn ok(content_type: &'static str, body: String) -> Self {
        Self { status: "200 OK", content_type, policy: None, body }
    }

    pub(super) fn json(body: String) -> Self {
        Self::ok("application/json", body)
    }

    pub(super) fn refusing(status: &'static str, reason: &str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            policy: None,
            body: format!("{reason}\n"),
        }
    }

    /// Appends it as it goes over the wire.
    pub(super) fn write_to(&self, bytes: &mut Vec<u8>, head_only: bool, closes: bool) {
        let Self { status, content_type, policy, body } = self;
        let policy = policy.as_deref().unwrap_or(POLICY);
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let connection = if closes { "Connection: close\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}{connection}\
             Content-Security-Policy: {policy}\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n\
             Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\n\r\n",
            body.len(),
        );
        bytes.extend_from_slice(head.as_bytes());
        if !head_only {
            bytes.extend_from_slice(body.as_bytes());
        }
    }
}
