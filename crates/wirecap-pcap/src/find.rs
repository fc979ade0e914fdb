//! Where the real libpcap is: not where the loader would look, since it would find us.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, c_void};
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The environment's word on where it is.
const VARIABLE: &str = "WIRECAP_REAL_LIBPCAP";

/// Folders of libraries: Debian's for this machine first, which some other systems have not got.
const FOLDERS: [&str; 8] = [
    concat!("/usr/lib/", env!("WIRECAP_TRIPLET")),
    concat!("/lib/", env!("WIRECAP_TRIPLET")),
    "/usr/lib64",
    "/lib64",
    "/usr/local/lib64",
    "/usr/local/lib",
    "/usr/lib",
    "/lib",
];

/// Whether the process has more rights than whoever started it, so that the environment must not decide what
/// it loads.
pub(crate) fn has_elevated_rights() -> bool {
    // SAFETY: the function takes any number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Files that may be the real library, the likeliest first.
pub(crate) fn candidates() -> Vec<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE).filter(|_| !has_elevated_rights()) {
        return vec![path.into()];
    }
    let own = own_path().and_then(|path| identity(&path));
    let mut found: Vec<PathBuf> = Vec::new();
    for path in FOLDERS.iter().flat_map(|folder| libraries_in(Path::new(folder))) {
        let this = identity(&path);
        let is_new = this.is_some() && this != own && found.iter().all(|other| identity(other) != this);
        found.extend(is_new.then_some(path));
    }
    found
}

/// Files named like libpcap in `folder`; full version numbers come first, since the short names are links, and
/// may be links to us.
fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_libpcap =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"libpcap.so."));
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_libpcap).collect();
    paths.sort_by_key(|path| std::cmp::Reverse((path.as_os_str().len(), path.clone())));
    paths
}

/// What tells files apart, whatever their names.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Where this library was loaded from.
fn own_path() -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let place = has_elevated_rights as *const c_void;
    // SAFETY: the function takes any address and writes into `info`, of which zeroes are a valid value.
    let info = unsafe {
        libc::dladdr(place, info.as_mut_ptr());
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of a library that stays loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).to_owned())
}
