//! Texts that stay valid until the process ends. Each is stored once, and their number is bounded
//! by the number of rings.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};

static NAMES: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());

/// The text as a C string.
pub(crate) fn lasting(text: &str) -> &'static CStr {
    let text = CString::new(text).unwrap_or_default();
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = names.get(text.as_c_str()) {
        return name;
    }
    let name: &'static CStr = Box::leak(text.into_boxed_c_str());
    names.insert(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_stored_once() {
        let first = lasting("eth0@2");
        let second = lasting("eth0@2");
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_eq!(first, c"eth0@2");
    }
}
