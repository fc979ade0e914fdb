//! Errors as seen by C programs: a status, and a text for the calling thread.

use std::cell::RefCell;
use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::ptr;

use wirecap::device::DeviceError;
use wirecap::{CaptureError, FilterChangeError, OpenError, PortError};
use wirecap_boundary::{caught, guarded};
use wirecap_units::error::causes;

/// `enum wirecap_status`. Values below 0 are errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    Ok = 0,
    End = 1,
    None = 2,
    Handle = -1,
    Argument = -2,
    Busy = -3,
    Device = -4,
    Permission = -5,
    Memory = -6,
    Filter = -7,
    Unsupported = -8,
    File = -9,
    Orphaned = -10,
    System = -11,
    Internal = -12,
}

/// The descriptions of `enum wirecap_status`.
pub(crate) fn status_text(status: c_int) -> &'static CStr {
    match status {
        0 => c"done",
        1 => c"the capture has ended",
        2 => c"no packets arrived in that time",
        -1 => c"no such handle: it is null, was closed, or is of another kind",
        -2 => c"invalid argument",
        -3 => c"in use by another process or thread",
        -4 => c"no such interface or queue, or it is down or gone",
        -5 => c"root or capabilities required",
        -6 => c"not enough memory, or the limit on locked memory is too low",
        -7 => c"invalid filter, or it cannot run on this engine",
        -8 => c"not supported by this interface or its engine",
        -9 => c"the savefile cannot be read",
        -10 => c"the worker of a ring is gone",
        -11 => c"a system call failed",
        -12 => c"internal error of wirecap",
        _ => c"unknown status",
    }
}

/// Why a function failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    fn of(status: Status, error: &(dyn Error + 'static)) -> Self {
        let status = if status == Status::System && is_permission(error) {
            Status::Permission
        } else {
            status
        };
        Self::new(status, in_functions(causes(error)))
    }
}

/// The options of the command that the engine's errors name, and the functions for them.
const FUNCTIONS: [(&str, &str); 13] = [
    ("--engine packet", "WIRECAP_ENGINE_PACKET"),
    ("--engine xdp", "WIRECAP_ENGINE_XDP"),
    ("--engine auto or packet", "WIRECAP_ENGINE_AUTO or WIRECAP_ENGINE_PACKET"),
    ("--timestamp packet", "WIRECAP_TIMESTAMPS_PACKET"),
    ("--timestamp batch", "WIRECAP_TIMESTAMPS_BATCH"),
    ("--take", "wirecap_group_set_take"),
    ("--workers N", "wirecap_group_set_workers"),
    ("--workers", "wirecap_group_set_workers"),
    ("--elastic", "wirecap_group_set_elastic"),
    ("--warm", "wirecap_group_set_warm"),
    ("-R, -M, --buffer", "wirecap_group_set_pool, _chunk, _buffer"),
    (": -i ", " "),
    (" -i ", " "),
];

/// An error of the engine, with functions instead of options.
fn in_functions(error: String) -> String {
    FUNCTIONS.iter().fold(error, |text, (option, function)| text.replace(option, function))
}

/// An index beyond the number of objects of a capture.
pub(crate) fn out_of_range(what: &str, index: u32, count: usize) -> Failure {
    Failure::new(
        Status::Argument,
        format!("there is no {what} {index}: the capture has {count}, counted from 0"),
    )
}

/// Whether the kernel denied permission.
fn is_permission(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Whether another process or thread uses the object.
fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let cause = match &error {
            OpenError::PacketPermitted(cause) => cause,
            error => error,
        };
        let status = match cause {
            OpenError::Device(
                DeviceError::NoSuchDevice { .. } | DeviceError::InvalidName { .. },
            )
            | OpenError::InterfaceDown { .. }
            | OpenError::NoSuchQueue { .. }
            | OpenError::MtuTooLarge { .. } => Status::Device,
            OpenError::BadDeviceName { .. }
            | OpenError::SettingsDiffer { .. }
            | OpenError::BadParameter { .. } => Status::Argument,
            OpenError::PoolTooLarge { .. }
            | OpenError::NotEnoughMemory { .. }
            | OpenError::CgroupTooSmall { .. } => Status::Memory,
            OpenError::QueueTaken { .. }
            | OpenError::OtherVersion { .. }
            | OpenError::Contended { .. } => Status::Busy,
            OpenError::Bind { source, .. } if is_busy(source) => Status::Busy,
            OpenError::Joining { .. } => Status::Permission,
            OpenError::Savefile { .. } => Status::File,
            OpenError::CarriesHostTraffic { .. }
            | OpenError::Controller { .. }
            | OpenError::ReceivedOnly { .. }
            | OpenError::XdpOnly { .. }
            | OpenError::NotForwarding { .. }
            | OpenError::UnsupportedLink { .. }
            | OpenError::NoHardwareClock { .. } => Status::Unsupported,
            OpenError::Filter(_) => Status::Filter,
            _ => Status::System,
        };
        Self::of(status, &error)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self::of(Status::System, &error)
    }
}

impl From<FilterChangeError> for Failure {
    fn from(error: FilterChangeError) -> Self {
        Self::of(Status::Filter, &error)
    }
}

impl From<CaptureError> for Failure {
    fn from(error: CaptureError) -> Self {
        let status = match &error {
            CaptureError::InterfaceGone { .. } => Status::Device,
            CaptureError::Savefile { .. } => Status::File,
            CaptureError::Filter { .. } => Status::Filter,
            CaptureError::Orphaned { .. } => Status::Orphaned,
            _ => Status::System,
        };
        Self::of(status, &error)
    }
}

impl From<PortError> for Failure {
    fn from(error: PortError) -> Self {
        Self::of(Status::Argument, &error)
    }
}

thread_local! {
    static LAST: RefCell<(Status, CString)> = RefCell::new((Status::Ok, CString::default()));
}

/// Stores the error of a failed call of this thread.
fn note(failure: Failure) -> Status {
    let status = failure.status;
    let mut text = failure.text;
    text.retain(|character| character != '\0');
    let text = CString::new(text).unwrap_or_default();
    // Not possible while the thread is ending.
    let _ = LAST.try_with(|last| last.replace((status, text)));
    status
}

fn finish<T>(outcome: Result<Result<T, Failure>, String>) -> Result<T, Status> {
    let outcome = outcome.unwrap_or_else(|panic| Err(Failure::new(Status::Internal, panic)));
    outcome.map_err(note)
}

/// Runs a function that returns a status and may block.
pub(crate) fn call(work: impl FnOnce() -> Result<Status, Failure>) -> c_int {
    finish(guarded(work)).unwrap_or_else(|status| status) as c_int
}

/// Runs a function that returns a number or a negative status, and does not block.
pub(crate) fn quick(work: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    finish(caught(work)).unwrap_or_else(|status| status as c_int)
}

/// Like [`quick`], for a function that may block.
pub(crate) fn count(work: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    finish(guarded(work)).unwrap_or_else(|status| status as c_int)
}

/// Runs a function that returns another type or nothing, and may block.
pub(crate) fn value<T>(work: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
    finish(guarded(work)).ok()
}

/// Runs a function that returns a text or null.
pub(crate) fn text(work: impl FnOnce() -> Result<*const c_char, Failure>) -> *const c_char {
    finish(caught(work)).unwrap_or(ptr::null())
}

/// The text of this thread's last error, valid until its next error.
pub(crate) fn last_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The status of this thread's last error.
pub(crate) fn last_status() -> Status {
    LAST.try_with(|last| last.borrow().0).unwrap_or(Status::Ok)
}

#[cfg(test)]
mod tests {
    use wirecap::device::Reason;

    use super::*;

    #[test]
    fn a_panic_is_an_internal_error() {
        let status = call(|| panic!("a bug"));
        assert_eq!(status, Status::Internal as c_int);
        assert_eq!(last_status(), Status::Internal);
        std::thread::spawn(|| assert_eq!(last_status(), Status::Ok)).join().unwrap();
    }

    #[test]
    fn a_missing_permission_is_found_among_the_causes() {
        let source = io::Error::from(io::ErrorKind::PermissionDenied);
        let failure = Failure::from(OpenError::System { action: "make a map".to_owned(), source });
        assert_eq!(failure.status, Status::Permission);
        assert!(
            failure.text.starts_with("cannot make a map; run as root or grant CAP_NET_RAW"),
            "{}",
            failure.text
        );
    }

    #[test]
    fn errors_name_functions_and_not_options_of_the_command() {
        let interface = || "eth0".to_owned();
        let ports = vec!["eth1".to_owned(), "eth2".to_owned()];
        let cases = [
            (OpenError::PoolTooLarge { needed_bytes: 2, limit_bytes: 1 }, "wirecap_group_set_pool"),
            (
                OpenError::CarriesHostTraffic { interface: interface(), reason: Reason::Loopback },
                "wirecap_group_set_take",
            ),
            (
                OpenError::Controller { interface: interface(), kind: "bond", ports },
                "the ports eth1 eth2",
            ),
            (
                OpenError::NotShared { interface: interface(), holder: None },
                "WIRECAP_TIMESTAMPS_BATCH",
            ),
            (OpenError::AnyByXdp, "WIRECAP_ENGINE_AUTO or WIRECAP_ENGINE_PACKET"),
        ];

        for (error, function) in cases {
            let text = Failure::from(error).text;
            assert!(
                text.contains(function) && !text.contains("--") && !text.contains(" -i"),
                "{text}"
            );
        }
    }

    #[test]
    fn an_error_text_contains_no_nul() {
        note(Failure::new(Status::File, "a\0b"));
        // The text is copied before another call in this thread can fail.
        let text = LAST.with(|last| CStr::to_owned(&last.borrow().1));
        assert_eq!(text.to_str(), Ok("ab"));
    }
}
