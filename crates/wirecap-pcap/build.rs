//! Sets the library's SONAME to that of libpcap.

/// Debian's SONAME. Other distributions use `libpcap.so.1`, and the library is installed under that
/// name too. The loader searches for the name that a program was linked with, and knows from the
/// SONAME that both names are the same library.
const SONAME: &str = "libpcap.so.0.8";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/triplet.rs");
    println!("cargo:rerun-if-env-changed=WIRECAP_PCAP_SONAME");
    let soname = std::env::var("WIRECAP_PCAP_SONAME").unwrap_or_else(|_| SONAME.to_owned());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // This library stays loaded. It never closes the real library, which has the same SONAME, so a
    // program that unloads libpcap and loads it again would get the real library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    let triplet = triplet(&target("ARCH"), &target("ENDIAN"), &target("ENV"), &target("ABI"));
    println!("cargo:rustc-env=WIRECAP_TRIPLET={triplet}");
    // The path of the real library on systems without the usual directories (NixOS, Guix), which
    // `find` reads at compile time.
    println!("cargo:rerun-if-env-changed=WIRECAP_REAL_LIBPCAP");
}

include!("src/triplet.rs");
