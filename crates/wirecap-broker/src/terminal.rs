//! The terminal of a process that drops its permissions. Its user types there too, often as root.
//!
//! What remains is output: the process can write to the terminal, and ask for its width.
//!
//! The kernel delivers a terminal's signals to process groups, so the process needs no controlling
//! terminal for Ctrl-C, Ctrl-Z and hangup. It gives up the controlling terminal (TIOCNOTTY), unless
//! it leads the session: the kernel would end the session with it, and Ctrl-C would have no effect.
//! Then the filter of system calls alone keeps the process from typing (TIOCSTI, TIOCLINUX) and
//! from changing the terminal. A background process without a controlling terminal could read what
//! the user types, because the kernel checks only processes that have one. Therefore standard
//! output and standard error are opened again, for writing only, and standard input is `/dev/null`;
//! if that fails, the terminal remains the controlling one. So `ps` shows no terminal for a
//! capture, and `stty tostop` does not stop one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstat, major, minor};
use rustix::termios::isatty;

use crate::sys;

/// `/dev/ptmx`, which makes another terminal each time it is opened.
const NEW_TERMINAL: (u32, u32) = (5, 2);

/// Gives up the input of the terminal, and the terminal as the controlling one. Signals from it
/// still arrive: it sends them to process groups.
pub(crate) fn give_up_input() {
    #[cfg(sabotage)]
    if crate::sabotage::is("cage-keeps-the-terminal") {
        return;
    }

    let input = io::stdin();
    let output = io::stdout();
    let errors = io::stderr();
    let streams = [input.as_fd(), output.as_fd(), errors.as_fd()];
    let terminals = streams.into_iter().enumerate().filter(|(_, stream)| isatty(stream));
    let outcomes: Vec<io::Result<()>> =
        terminals.map(|(number, stream)| reopen(number, stream)).collect();

    // A terminal that cannot be opened again remains readable. As the controlling one, it is not in
    // the background.
    let is_unreadable = outcomes.iter().all(Result::is_ok);

    // As the leader of a session, the process would end the session with it: Ctrl-C would have no
    // effect any more.
    let leads_session = sys::leads_session();
    if is_unreadable && !leads_session {
        let _has_none = give_up_controlling();
    }
}

/// Replaces a descriptor of a terminal by one that can only be written to. A background process
/// with a controlling terminal cannot read what is typed, but one without could; this one cannot in
/// either case.
fn reopen(number: usize, stream: BorrowedFd<'_>) -> io::Result<()> {
    let device = fstat(stream)?.st_rdev;
    if (major(device), minor(device)) == NEW_TERMINAL {
        return Err(io::ErrorKind::Unsupported.into());
    }

    let flags = fcntl_getfl(stream)?;

    // A serial line would wait for its other end.
    let more = (OFlags::NOCTTY | OFlags::NONBLOCK).bits().cast_signed();
    let path = match number {
        0 => "/dev/null".to_owned(),
        _ => format!("/proc/self/fd/{number}"),
    };
    let replacement =
        OpenOptions::new().read(number == 0).write(number != 0).custom_flags(more).open(path)?;
    if number != 0 && replacement.metadata()?.rdev() != device {
        return Err(io::ErrorKind::NotFound.into());
    }

    fcntl_setfl(&replacement, flags)?;
    sys::replace(stream, &replacement)
}

fn give_up_controlling() -> io::Result<()> {
    let terminal = File::options()
        .read(true)
        .custom_flags(OFlags::NOCTTY.bits().cast_signed())
        .open("/dev/tty")?;
    sys::give_up_terminal(terminal.as_raw_fd())
}
