//! Opening captures, and why that fails.

use std::fmt;
use std::io;

use wirecap::{Capture, CaptureBuilder, OpenError};

use crate::failure::chain;
use crate::request::Request;
use crate::settings::Settings;

/// Where there is no memory for so many chunks, one in so many is left out, and so on, as libpcap does.
const LACK_STEP: u32 = 20;

/// Why there is no live capture.
#[derive(Debug)]
pub(crate) enum LiveError {
    Open(OpenError),
    System(&'static str, io::Error),
}

impl fmt::Display for LiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(error) => f.write_str(&chain(error)),
            Self::System(doing, error) => write!(f, "cannot {doing}: {error}"),
        }
    }
}

/// Opens a capture of R chunks, or fewer where there is no memory for them and nobody asked for so many, as
/// libpcap does.
pub(crate) fn open_capture(
    builder: CaptureBuilder,
    request: &Request,
    settings: &Settings,
) -> Result<Capture, LiveError> {
    let Some(mut chunks) = request.chunks(settings) else { return builder.open().map_err(LiveError::Open) };
    loop {
        match builder.clone().pool(chunks).open() {
            Err(error) if settings.chunks.is_none() && chunks > 2 && is_lack_of_memory(&error) => {
                chunks -= chunks.div_ceil(LACK_STEP);
            }
            outcome => return outcome.map_err(LiveError::Open),
        }
    }
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
