//! SHA-256 as text.

use sha2::{Digest, Sha256};

/// The digest in hexadecimal digits.
pub(crate) fn hexadecimal(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
