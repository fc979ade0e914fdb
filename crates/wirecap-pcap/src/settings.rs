//! Settings from the environment and the configuration file, for programs that have no options for
//! wirecap.

use std::env;
use std::fs;
use std::io::ErrorKind::{NotFound, PermissionDenied};
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::find::has_elevated_rights;

/// The settings of programs without these environment variables, such as services.
const FILE: &str = "/etc/wirecap/pcap.conf";
/// The environment variable with the path of another file.
const FILE_VARIABLE: &str = "WIRECAP_PCAP_CONF";
/// The settings. `engine` in the file is `WIRECAP_ENGINE` in the environment, which takes
/// precedence.
const NAMES: [&str; 8] = ["engine", "m", "r", "t", "workers", "group", "take", "verbose"];

/// What performs live captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The engine that captures copies, so nothing changes for the host.
    Packet,
    Xdp,
    /// `xdp` if the interface is dedicated to capturing and not in use, otherwise `packet`.
    Auto,
    /// The real library.
    Off,
}

/// The settings of captures.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// `None` if not set: then the real library may capture if the engine fails.
    pub(crate) engine: Option<Choice>,
    /// M, R and T.
    pub(crate) chunk_cells: Option<u32>,
    pub(crate) chunks: Option<u32>,
    pub(crate) threshold: Option<f64>,
    /// How many handles share a group.
    pub(crate) workers: Option<usize>,
    /// The rings that make a buddy group: `eth0@0-3`, or a whole interface.
    pub(crate) group: Option<String>,
    /// Whether the engine `xdp` may take the host's packets.
    pub(crate) take: bool,
    /// Whether the capturing engine is printed to standard error.
    pub(crate) verbose: bool,
}

impl Settings {
    /// The process's settings, or their error.
    pub(crate) fn get() -> Result<&'static Self, &'static str> {
        static SETTINGS: OnceLock<Result<Settings, String>> = OnceLock::new();
        SETTINGS.get_or_init(Self::load).as_ref().map_err(String::as_str)
    }

    fn load() -> Result<Self, String> {
        let uses_environment = !has_elevated_rights();
        let variable = |name: &str| {
            let value = env::var_os(name).filter(|value| uses_environment && !value.is_empty())?;
            Some(value.to_string_lossy().into_owned())
        };
        let path = variable(FILE_VARIABLE).map_or_else(|| PathBuf::from(FILE), PathBuf::from);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            // A file that a confined program may not read is ignored: AppArmor's profiles do not
            // list it.
            Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => String::new(),
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
        };
        let in_file =
            parse_file(&text).map_err(|reason| format!("{}, {reason}", path.display()))?;

        Self::from(|name| {
            variable(&format!("WIRECAP_{}", name.to_uppercase())).or_else(|| {
                let (_, value) = in_file.iter().rev().find(|(key, _)| key == name)?;
                Some(value.clone())
            })
        })
    }

    fn from(value_of: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let bad = |name: &str, value: &str, allowed: &str| {
            format!(
                "invalid WIRECAP_{} (or '{name}' in pcap.conf) '{value}': expected {allowed}",
                name.to_uppercase()
            )
        };
        let number = |name: &str| match value_of(name) {
            None => Ok(None),
            Some(text) => match text.parse::<u32>() {
                Ok(number) if number > 0 => Ok(Some(number)),
                _ => Err(bad(name, &text, "a number of at least 1")),
            },
        };

        let engine = match value_of("engine").as_deref() {
            None => None,
            Some("packet") => Some(Choice::Packet),
            Some("xdp") => Some(Choice::Xdp),
            Some("auto") => Some(Choice::Auto),
            Some("off") => Some(Choice::Off),
            Some(other) => return Err(bad("engine", other, "packet, xdp, auto or off")),
        };
        let threshold = match value_of("t") {
            None => None,
            Some(text) => match text.parse::<f64>() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => Some(percent / 100.0),
                _ => return Err(bad("t", &text, "0 to 100, in percent")),
            },
        };

        let is_on = |name: &str| match value_of(name).as_deref() {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(bad(name, other, "0 or 1")),
        };
        Ok(Self {
            engine,
            chunk_cells: number("m")?,
            chunks: number("r")?,
            threshold,
            workers: number("workers")?.map(|count| count as usize),
            group: value_of("group"),
            take: is_on("take")?,
            verbose: is_on("verbose")?,
        })
    }
}

/// Lines `name = value`; `#` begins a comment.
fn parse_file(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut settings = Vec::new();

    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }

        let bad = |reason: String| format!("line {}: {reason}", index + 1);
        let (name, value) =
            line.split_once('=').ok_or_else(|| bad("write NAME = VALUE".to_owned()))?;
        let name = name.trim().to_lowercase();
        let value = value.trim();

        if !NAMES.contains(&name.as_str()) {
            return Err(bad(format!(
                "unknown setting '{name}': expected one of {}",
                NAMES.join(", ")
            )));
        }

        settings.push((name, value.to_owned()));
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> Result<Settings, String> {
        let settings = parse_file(text)?;
        Settings::from(|name| {
            settings.iter().rfind(|(key, _)| key == name).map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn settings_are_read_from_lines() {
        let settings =
            from("# a service\nengine = xdp\nM=64 # cells\n t = 60\ngroup=eth0@0-3\ntake = 1\n")
                .unwrap();
        let expected = Settings {
            engine: Some(Choice::Xdp),
            chunk_cells: Some(64),
            chunks: None,
            threshold: Some(0.6),
            workers: None,
            group: Some("eth0@0-3".to_owned()),
            take: true,
            verbose: false,
        };
        assert_eq!(settings, expected);

        let nothing = from("").unwrap();
        assert!(nothing.engine.is_none() && nothing.group.is_none());
    }

    #[test]
    fn invalid_settings_are_rejected_with_their_name_or_line() {
        for (text, reason) in [
            ("engine = dpdk", "invalid WIRECAP_ENGINE (or 'engine' in pcap.conf) 'dpdk'"),
            ("m = 0", "'0': expected a number of at least 1"),
            ("t = 101", "0 to 100"),
            ("take = yes", "0 or 1"),
            ("\nspeed = high", "line 2: unknown setting 'speed'"),
            ("engine packet", "line 1: write NAME = VALUE"),
        ] {
            let error = from(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
