//! Texts that stay until the process ends, each kept once: there are few rings.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};

static NAMES: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());

/// The text as C has it.
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
    fn a_name_is_kept_once() {
        let (first, second) = (lasting("eth0@2"), lasting("eth0@2"));
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_eq!(first, c"eth0@2");
    }
}
