// Debian's names of library directories (multiarch triplets); included by the build script and by
// the tests of `find`.

/// The triplet of a target, from cargo's `CARGO_CFG_TARGET_` variables.
fn triplet(arch: &str, endian: &str, env: &str, abi: &str) -> String {
    let arch = match (arch, endian) {
        ("x86", _) => "i386",
        ("powerpc64", "little") => "powerpc64le",
        ("mips", "little") => "mipsel",
        ("mips64", "little") => "mips64el",
        ("mips32r6", "little") => "mipsisa32r6el",
        ("mips64r6", "little") => "mipsisa64r6el",
        (arch, _) => arch,
    };
    let libc = if env == "musl" { "musl" } else { "gnu" };

    // "eabihf" on 32-bit ARM, "abi64" on MIPS, "x32"; but PowerPC's "elfv2" is not a part of the
    // name.
    let abi = if abi.starts_with("elf") { "" } else { abi };
    format!("{arch}-linux-{libc}{abi}")
}
