//! Opening captures, and why that fails.
//!
//! When the engine captures, the handle of the real library is activated too, with the smallest
//! possible ring and a socket bound to a protocol number that no frame has, so it receives nothing
//! and costs the receive path nothing. If the engine cannot capture, that handle is replaced with
//! one that failed to activate, because libpcap does not close the eventfd of a handle that was
//! never activated, and an activated one rejects settings.

use std::fmt;
use std::io;

use wirecap::{Capture, CaptureBuilder, OpenError};

use crate::failure::causes;
use crate::request::Request;
use crate::settings::Settings;

/// If memory does not suffice, the number of chunks is repeatedly reduced by 1 / `LACK_STEP`, as in
/// libpcap.
const LACK_STEP: u32 = 20;

/// With one chunk, the kernel would have none while the program has it.
const FEWEST: u32 = 2;

/// Why there is no live capture.
#[derive(Debug)]
pub(crate) enum LiveError {
    Open(OpenError),
    System(&'static str, io::Error),
    NoEthernet,
}

impl fmt::Display for LiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => f.write_str(&in_settings(causes(error))),
            Self::System(doing, error) => write!(f, "cannot {doing}: {error}"),
            Self::NoEthernet => f.write_str("its packets have no Ethernet header"),
        }
    }
}

/// The options of the command that the engine's errors name, and the drop-in's settings for them.
const SETTINGS: [(&str, &str); 7] = [
    ("--engine ", "WIRECAP_ENGINE="),
    ("use --timestamp batch for both, or stop", "stop"),
    (": -i ", " "),
    (" -i ", " "),
    ("--take", "WIRECAP_TAKE=1"),
    ("--workers N", "WIRECAP_WORKERS=N"),
    ("-R, -M, --buffer", "WIRECAP_R, WIRECAP_M, pcap_set_buffer_size"),
];

/// An error of the engine, with settings instead of options.
fn in_settings(error: String) -> String {
    SETTINGS.iter().fold(error, |text, (option, setting)| text.replace(option, setting))
}

/// Opens a capture of R chunks, or of fewer, as libpcap does, if memory does not suffice and R was
/// not set.
pub(crate) fn open_capture(
    builder: CaptureBuilder,
    request: &Request,
    settings: &Settings,
) -> Result<Capture, LiveError> {
    let Some(mut chunks) = request.chunks(settings) else {
        return builder.open().map_err(LiveError::Open);
    };
    loop {
        match builder.clone().pool(chunks).open() {
            Err(error)
                if settings.chunks.is_none() && chunks > FEWEST && is_lack_of_memory(&error) =>
            {
                chunks = fewer(chunks);
            }
            outcome => return outcome.map_err(LiveError::Open),
        }
    }
}

/// The number of chunks to try if memory does not suffice for this many.
fn fewer(chunks: u32) -> u32 {
    (chunks - chunks.div_ceil(LACK_STEP)).max(FEWEST)
}

fn is_lack_of_memory(error: &OpenError) -> bool {
    match error {
        OpenError::PoolTooLarge { .. }
        | OpenError::NotEnoughMemory { .. }
        | OpenError::CgroupTooSmall { .. } => true,
        OpenError::PacketPermitted(error) => is_lack_of_memory(error),
        OpenError::PacketSocket { source, .. } => source.raw_os_error() == Some(libc::ENOMEM),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use wirecap::device::Reason;

    use super::*;

    #[test]
    fn a_ring_gets_nearly_all_available_memory() {
        for room in [2, 3, 10, 100, 1000, 65_000] {
            let mut chunks = 65_536;
            let mut tries = 0;
            while chunks > room {
                (chunks, tries) = (fewer(chunks), tries + 1);
            }
            assert!(
                chunks >= room - room.div_ceil(LACK_STEP) && tries < 300,
                "{chunks} of {room}, {tries} tries"
            );
        }
        assert_eq!(fewer(FEWEST), FEWEST);
    }

    #[test]
    fn errors_name_settings_and_not_options_of_the_command() {
        let interface = || "eth0".to_owned();
        let ports = vec!["eth1".to_owned(), "eth2".to_owned()];
        let cases = [
            (OpenError::PoolTooLarge { needed_bytes: 2, limit_bytes: 1 }, "WIRECAP_R, WIRECAP_M"),
            (
                OpenError::CarriesHostTraffic { interface: interface(), reason: Reason::Loopback },
                "WIRECAP_TAKE=1",
            ),
            (
                OpenError::Controller { interface: interface(), kind: "bond", ports },
                "the ports eth1 eth2",
            ),
            (
                OpenError::NotShared { interface: interface(), holder: None },
                "share the interface; stop",
            ),
            (OpenError::AnyByXdp, "WIRECAP_ENGINE=auto or packet"),
            (
                OpenError::ReceivedOnly { interface: interface(), reason: "a queue" },
                "WIRECAP_ENGINE=packet",
            ),
        ];

        for (error, setting) in cases {
            let text = LiveError::Open(error).to_string();
            assert!(
                text.contains(setting) && !text.contains("--") && !text.contains(" -i"),
                "{text}"
            );
        }
    }

    #[test]
    fn errors_other_than_lack_of_memory_are_returned_at_once() {
        let system = |errno| OpenError::PacketSocket {
            interface: "eth0".to_owned(),
            action: "make a ring on",
            source: io::Error::from_raw_os_error(errno),
        };
        assert!(is_lack_of_memory(&system(libc::ENOMEM)));
        assert!(is_lack_of_memory(&OpenError::PoolTooLarge { needed_bytes: 2, limit_bytes: 1 }));
        assert!(!is_lack_of_memory(&system(libc::EPERM)));
    }
}
