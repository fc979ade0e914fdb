//! Ctrl-C, SIGTERM and SIGHUP end a capture cleanly; a second one ends the process at once.

use std::io;
use std::process;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use wirecap::Stopper;

/// Stops the capture of `stopper` at the first signal. The kernel undoes what a process that ends at
/// once leaves behind.
pub(crate) fn stop_on_signals(stopper: Stopper) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut received = signals.forever();
        if received.next().is_some() {
            stopper.stop();
        }
        if received.next().is_some() {
            eprintln!("wirecap: second signal: ended at once, without a ledger");
            process::exit(1);
        }
    })?;
    Ok(())
}
