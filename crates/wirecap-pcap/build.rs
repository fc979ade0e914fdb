//! Gives the library the name by which the loader knows libpcap.

/// Debian's name. All others use `libpcap.so.1`, under which the library is installed too: the loader
/// looks for the name that a program was linked with, and this one tells it that both are the same.
const SONAME: &str = "libpcap.so.0.8";

fn main() {
    println!("cargo:rerun-if-env-changed=WIRECAP_PCAP_SONAME");
    let soname = std::env::var("WIRECAP_PCAP_SONAME").unwrap_or_else(|_| SONAME.to_owned());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // The real library, which it opens for good, has the same name: a program that unloads this one and loads it again
    // would get that one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-env=WIRECAP_TRIPLET={}", triplet());
    // Where the real library is on systems without the usual folders (NixOS, Guix): `find` takes it in.
    println!("cargo:rerun-if-env-changed=WIRECAP_REAL_LIBPCAP");
}

/// The name of Debian's folder of libraries for the machine that is built for.
fn triplet() -> String {
    let target = |name: &str| std::env::var(format!("CARGO_CFG_TARGET_{name}")).unwrap_or_default();
    let (arch, env, abi) = (target("ARCH"), target("ENV"), target("ABI"));
    let arch = match (&*arch, &*target("ENDIAN")) {
        ("x86", _) => "i386",
        ("powerpc64", "little") => "powerpc64le",
        ("mips", "little") => "mipsel",
        ("mips64", "little") => "mips64el",
        (arch, _) => arch,
    };
    // "eabihf" on 32-bit ARM, "abi64" on MIPS, "x32".
    let libc = if env == "musl" { "musl" } else { "gnu" };
    format!("{arch}-linux-{libc}{abi}")
}
