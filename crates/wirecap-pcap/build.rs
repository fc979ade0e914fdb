//! Gives the library the name by which the loader knows libpcap.

/// Debian's name. Everybody else's is `libpcap.so.1`, under which the library is installed too: the loader
/// looks for the name that a program wants, and this one tells it that both are the same.
const SONAME: &str = "libpcap.so.0.8";

fn main() {
    println!("cargo:rerun-if-env-changed=WIRECAP_PCAP_SONAME");
    let soname = std::env::var("WIRECAP_PCAP_SONAME").unwrap_or_else(|_| SONAME.to_owned());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // Debian's folder of libraries for this machine.
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo says for what it builds");
    println!("cargo:rustc-env=WIRECAP_TRIPLET={arch}-linux-gnu");
}
