//! Finds the real libpcap. The loader's search is not used, because it would find this library.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CStr, c_void};
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The environment variable with the path of the real library.
const VARIABLE: &str = "WIRECAP_REAL_LIBPCAP";

/// The path of the real library that was set at build time.
const BUILT_IN: Option<&str> = option_env!("WIRECAP_REAL_LIBPCAP");

/// Library directories. Debian's for this architecture come first; other systems may not have them.
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

/// Whether the process has more privileges than the user who started it, so that the environment
/// must not decide which library is loaded.
pub(crate) fn has_elevated_rights() -> bool {
    // SAFETY: the function accepts any number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Files that may be the real library, the likeliest first.
pub(crate) fn candidates() -> Vec<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE).filter(|_| !has_elevated_rights()) {
        return vec![path.into()];
    }
    if let Some(path) = BUILT_IN.filter(|path| !path.is_empty()) {
        return vec![path.into()];
    }

    let own = own_path().and_then(|path| identity(&path));
    let mut found: Vec<PathBuf> = Vec::new();

    for path in FOLDERS.iter().flat_map(|folder| libraries_in(Path::new(folder))) {
        let this = identity(&path);
        let is_new =
            this.is_some() && this != own && found.iter().all(|other| identity(other) != this);
        found.extend(is_new.then_some(path));
    }

    found
}

/// Libraries named like libpcap in `folder`. Full version numbers come first, because the short
/// names are links, which may point to this library. Other files of an administrator or a package
/// manager (`libpcap.so.1.10.3.bak`, `.dpkg-new`) are excluded.
fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let versioned =
        |entry: fs::DirEntry| Some((version(entry.file_name().to_str()?)?, entry.path()));
    let mut libraries: Vec<(Vec<u32>, PathBuf)> = entries.flatten().filter_map(versioned).collect();
    libraries.sort_by_key(|(version, _)| std::cmp::Reverse((version.len(), version.clone())));
    libraries.into_iter().map(|(_, path)| path).collect()
}

/// The numbers in the name of a libpcap: 1, 10 and 3 in `libpcap.so.1.10.3`.
fn version(name: &str) -> Option<Vec<u32>> {
    name.strip_prefix("libpcap.so.")?.split('.').map(|number| number.parse().ok()).collect()
}

/// Identifies a file by device and inode, whatever its name.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// The path that this library was loaded from.
pub(crate) fn own_path() -> Option<PathBuf> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    let place = has_elevated_rights as *const c_void;

    // SAFETY: the function accepts any address and writes to `info`, for which zeroes are a valid
    // value.
    let info = unsafe {
        libc::dladdr(place, info.as_mut_ptr());
        info.assume_init()
    };
    if info.dli_fname.is_null() {
        return None;
    }

    // SAFETY: the string belongs to the loader's entry of a library that stays loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_with_version_numbers_are_found_and_full_versions_come_first() {
        let folder = tempfile::tempdir().unwrap();
        let others = [
            "libpcap.so",
            "libpcap.so.1.10.3.bak",
            "libpcap.so.1.10.4.dpkg-new",
            "libpcap.so.1.x",
            "libpcap.a",
        ];

        let expected = ["libpcap.so.1.10.3", "libpcap.so.1.9.1", "libpcap.so.0.8", "libpcap.so.1"];
        for name in others.iter().chain(&expected) {
            fs::write(folder.path().join(name), "").unwrap();
        }

        let found = libraries_in(folder.path());
        assert!(found.iter().map(|path| path.file_name().unwrap()).eq(expected), "{found:?}");
    }

    include!("triplet.rs");

    #[test]
    fn library_directories_are_those_of_debians_architectures() {
        // As in dpkg-architecture(1); cargo's names as in `rustc --print cfg`.
        for (target, expected) in [
            (["x86_64", "little", "gnu", ""], "x86_64-linux-gnu"),
            (["x86_64", "little", "gnu", "x32"], "x86_64-linux-gnux32"),
            (["x86", "little", "gnu", ""], "i386-linux-gnu"),
            (["aarch64", "little", "gnu", ""], "aarch64-linux-gnu"),
            (["arm", "little", "gnu", "eabihf"], "arm-linux-gnueabihf"),
            (["arm", "little", "gnu", "eabi"], "arm-linux-gnueabi"),
            (["riscv64", "little", "gnu", ""], "riscv64-linux-gnu"),
            (["powerpc64", "little", "gnu", "elfv2"], "powerpc64le-linux-gnu"),
            (["powerpc64", "big", "gnu", "elfv1"], "powerpc64-linux-gnu"),
            (["s390x", "big", "gnu", ""], "s390x-linux-gnu"),
            (["loongarch64", "little", "gnu", ""], "loongarch64-linux-gnu"),
            (["mips64", "little", "gnu", "abi64"], "mips64el-linux-gnuabi64"),
            (["mips64r6", "little", "gnu", "abi64"], "mipsisa64r6el-linux-gnuabi64"),
            (["mips", "little", "gnu", ""], "mipsel-linux-gnu"),
            (["x86_64", "little", "musl", ""], "x86_64-linux-musl"),
        ] {
            let [arch, endian, env, abi] = target;
            assert_eq!(triplet(arch, endian, env, abi), expected);
        }

        let own = std::env::consts::ARCH;
        assert!(
            env!("WIRECAP_TRIPLET").starts_with(own) || own == "x86",
            "{}",
            env!("WIRECAP_TRIPLET")
        );
    }
}
