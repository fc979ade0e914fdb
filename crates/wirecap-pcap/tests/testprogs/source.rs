//! Fetches the sources of libpcap's test programs and of tcpdump's tests, in the versions of this
//! system. They are fetched once, unmodified, and are not part of the tree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common::said;

/// Fetches the source SOURCE from which Debian built this system's PACKAGE, or else the current
/// one; apt verifies the archive. Separate package lists are used, because the system's lists may
/// not include sources and must not change.
const FETCH: &str = "
version=$(dpkg-query -W -f '${Version}' $PACKAGE)
done=$BUILD/$SOURCE-$version
if [ ! -d \"$done\" ]; then
  work=$(mktemp -d \"$BUILD/fetch.XXXXXX\")
  trap 'rm -rf \"$work\"' EXIT
  mkdir -p \"$work/lists/partial\" \"$work/cache/archives/partial\" \"$work/$SOURCE\"
  for list in /etc/apt/sources.list.d/*.sources; do
    [ -e \"$list\" ] && sed 's/^Types:.*/Types: deb-src/' \"$list\" && echo
  done > \"$work/all.sources\"
  for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -e \"$list\" ] && sed -n 's/^deb /deb-src /p' \"$list\"
  done > \"$work/all.list\"
  cd \"$work\"
  for form in sources list; do
    [ -s \"all.$form\" ] || continue
    apt=\"apt-get -qq -o Acquire::Retries=3 -o Acquire::http::Timeout=20 -o APT::Sandbox::User=root
      -o Dir::Etc::SourceList=$work/all.$form -o Dir::Etc::SourceParts=/dev/null
      -o Dir::State::Lists=$work/lists -o Dir::Cache=$work/cache\"
    # Repositories without sources do not matter.
    $apt update || true
    # The archive keeps only the latest version.
    { $apt source --download-only $SOURCE=$version || $apt source --download-only $SOURCE; } && break
  done
  tar -xzf \"$SOURCE\"_*.orig.tar.gz -C \"$SOURCE\" --strip-components=1
  mv -T \"$SOURCE\" \"$done\" 2>/dev/null || [ -d \"$done\" ]
fi
echo \"$done\"
";

/// Headers that programs need in addition to the system's: those that its package does not include.
const OWN_HEADERS: [&str; 1] = ["varattrs.h"];

/// A source to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    Libpcap,
    Tcpdump,
}

/// The directory of a source; `None`, after a SKIP message, if it cannot be fetched.
pub(crate) fn or_skip(what: Fetched) -> Option<&'static Path> {
    match fetched(what) {
        Ok(source) => Some(source),
        Err(lacking) => {
            wirecap_testbed::skip(&lacking);
            None
        }
    }
}

/// The directory of the source, or the reason why there is none.
fn fetched(what: Fetched) -> Result<&'static Path, String> {
    static FOLDERS: [OnceLock<Result<PathBuf, String>>; 2] = [const { OnceLock::new() }; 2];
    let (package, source) = match what {
        Fetched::Libpcap => ("libpcap-dev", "libpcap"),
        Fetched::Tcpdump => ("tcpdump", "tcpdump"),
    };
    let fetch = || {
        let mut command = Command::new("sh");
        command
            .args(["-euc", FETCH])
            .env("BUILD", env!("CARGO_TARGET_TMPDIR"))
            .env_remove("LD_LIBRARY_PATH");
        command.env("PACKAGE", package).env("SOURCE", source);
        let output = command.output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())),
            false => {
                Err(format!("the source of {source} cannot be fetched: {}", said(&output).trim()))
            }
        }
    };
    FOLDERS[what as usize].get_or_init(fetch).as_deref().map_err(Clone::clone)
}

/// Builds an unmodified test program in `folder`, with the system's headers.
pub(crate) fn build(source: &Path, name: &str, folder: &Path) -> PathBuf {
    let headers = folder.join("include");
    fs::create_dir_all(&headers).unwrap();
    for header in OWN_HEADERS {
        fs::copy(source.join(header), headers.join(header)).unwrap();
    }
    let program = folder.join(name);
    let output = Command::new("gcc")
        .args(["-O1", "-w", "-DHAVE_UNISTD_H", "-I"])
        .arg(&headers)
        .arg("-o")
        .arg(&program)
        .arg(source.join("testprogs").join(name).with_extension("c"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/testprogs/sleep.c"))
        .args(["-lpcap", "-lpthread"])
        .output()
        .expect("gcc is installed");
    assert!(output.status.success(), "{name}: {}", said(&output));
    program
}
