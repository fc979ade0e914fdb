//! An [`io::Error`] in a message to another process: the kernel's number, or otherwise the text.

use std::io;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
enum Sent {
    Number(i32),
    Text(String),
}

/// Writes an error: use `#[serde(with = "wirecap_filter::io_error")]`.
///
/// # Errors
///
/// The serializer's.
pub fn serialize<S: Serializer>(error: &io::Error, serializer: S) -> Result<S::Ok, S::Error> {
    let sent = match error.raw_os_error() {
        Some(number) => Sent::Number(number),
        None => Sent::Text(error.to_string()),
    };
    sent.serialize(serializer)
}

/// Reads an error.
///
/// # Errors
///
/// The deserializer's.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<io::Error, D::Error> {
    Sent::deserialize(deserializer).map(|sent| match sent {
        Sent::Number(number) => io::Error::from_raw_os_error(number),
        Sent::Text(text) => io::Error::other(text),
    })
}
