//! The live page: one HTML file with its style and its script in it. It loads nothing but this
//! server's own data.

use std::fmt::Write;

use super::response::{POLICY, Response};

const PAGE: &str = include_str!("page.html");
/// A placeholder in the page that is replaced by a random number; only scripts and styles with that
/// number are executed.
const NONCE: &str = "@NONCE@";

/// The page.
pub(super) fn response() -> Response {
    let nonce = nonce();
    let policy = format!(
        "{POLICY}; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:"
    );
    Response {
        policy: Some(policy),
        ..Response::ok("text/html; charset=utf-8", PAGE.replace(NONCE, &nonce))
    }
}

/// 128 random bits of the kernel, as hexadecimal digits.
fn nonce() -> String {
    let mut bytes = [0_u8; 16];
    // So few bytes are never interrupted, once the system has begun.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_nothing_that_its_policy_forbids() {
        assert_eq!(
            PAGE.matches("<script nonce=\"@NONCE@\">").count(),
            PAGE.matches("<script").count()
        );
        assert_eq!(
            PAGE.matches("<style nonce=\"@NONCE@\">").count(),
            PAGE.matches("<style").count()
        );

        // Neither files of others, nor what only 'unsafe-inline' would allow.
        for forbidden in [
            "http://",
            "https://",
            "//cdn",
            "@import",
            "url(",
            " style=",
            "onclick",
            "onload",
            "eval(",
            "innerHTML",
        ] {
            let found = PAGE.find(forbidden).map(|at| &PAGE[at..PAGE.len().min(at + 60)]);
            // The names of XML vocabularies are no addresses that are loaded.
            assert!(
                found.is_none_or(|text| text.starts_with("http://www.w3.org/2000/svg")),
                "{found:?}"
            );
        }

        let first = response();
        let second = response();
        assert!(!first.body.contains(NONCE) && first.policy != second.policy, "{:?}", first.policy);
        assert!(!first.policy.unwrap().contains("unsafe"));
    }
}
