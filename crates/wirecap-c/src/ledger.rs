//! Ledgers as numbers and as texts.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

use wirecap::Ledger;

use crate::abi::{AccountInfo, PortAccountInfo, UnseenInfo, VerdictInfo};
use crate::arguments::{Room, SizedRooms};
use crate::failure::{Failure, Status, call, out_of_range, quick, text};
use crate::names::lasting;
use crate::registry::{Handle, Kept, Registry};

/// A ledger held by the program, and its texts as soon as they were requested.
pub(crate) struct Books {
    ledger: Ledger,
    json: OnceLock<CString>,
    table: OnceLock<CString>,
    warnings: OnceLock<CString>,
    verdict: OnceLock<CString>,
}

static LEDGERS: Registry<Books> = Registry::new();

impl Kept for Books {
    const KIND: usize = 5;
    const NAME: &'static str = "ledger";

    fn registry() -> &'static Registry<Self> {
        &LEDGERS
    }
}

impl Books {
    pub(crate) fn new(ledger: Ledger) -> Self {
        Self {
            ledger,
            json: OnceLock::new(),
            table: OnceLock::new(),
            warnings: OnceLock::new(),
            verdict: OnceLock::new(),
        }
    }

    fn ring(&self, ring: u32) -> Result<&wirecap::RingLedger, Failure> {
        let rings = &self.ledger.rings;
        rings.get(ring as usize).ok_or_else(|| out_of_range("ring", ring, rings.len()))
    }

    fn port(&self, port: u32) -> Result<&wirecap::PortLedger, Failure> {
        let ports = &self.ledger.ports;
        ports.get(port as usize).ok_or_else(|| out_of_range("port", port, ports.len()))
    }
}

/// A text that is generated once. It contains no NUL, since it consists of numbers and interface
/// names.
fn once(kept: &OnceLock<CString>, make: impl FnOnce() -> String) -> *const c_char {
    kept.get_or_init(|| CString::new(make()).unwrap_or_default()).as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_ledger_sum(ledger: Handle<Books>, account: *mut AccountInfo) -> c_int {
    quick(|| {
        // SAFETY: the header requires null or space for it.
        let room = unsafe { Room::at(account, "account") }?;
        room.put(AccountInfo::from(&ledger.read()?.ledger.total));
        Ok(Status::Ok as c_int)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_ledger_ring(
    ledger: Handle<Books>,
    ring: u32,
    account: *mut AccountInfo,
) -> c_int {
    quick(|| {
        // SAFETY: the header requires null or space for it.
        let room = unsafe { Room::at(account, "account") }?;
        room.put(AccountInfo::from(&ledger.read()?.ring(ring)?.account));
        Ok(Status::Ok as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ledger_ring_count(ledger: Handle<Books>) -> c_int {
    quick(|| Ok(ledger.read()?.ledger.rings.len() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ledger_ring_name(ledger: Handle<Books>, ring: u32) -> *const c_char {
    text(|| Ok(lasting(&ledger.read()?.ring(ring)?.name).as_ptr()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_ledger_port(
    ledger: Handle<Books>,
    port: u32,
    account: *mut PortAccountInfo,
) -> c_int {
    quick(|| {
        // SAFETY: the header requires null or space for it.
        let room = unsafe { Room::at(account, "account") }?;
        room.put(PortAccountInfo::from(&ledger.read()?.port(port)?.account));
        Ok(Status::Ok as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ledger_port_count(ledger: Handle<Books>) -> c_int {
    quick(|| Ok(ledger.read()?.ledger.ports.len() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ledger_port_name(ledger: Handle<Books>, port: u32) -> *const c_char {
    text(|| Ok(lasting(&ledger.read()?.port(port)?.name).as_ptr()))
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ledger_duration_ns(ledger: Handle<Books>) -> i64 {
    let mut nanos = 0;
    let status = quick(|| {
        nanos = ledger.read()?.ledger.duration.as_nanos() as i64;
        Ok(0)
    });
    if status < 0 { status.into() } else { nanos }
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ledger_json(ledger: Handle<Books>) -> *const c_char {
    text(|| {
        let books = ledger.read()?;
        Ok(once(&books.json, || {
            serde_json::to_string(&books.ledger).expect("a ledger is numbers and names")
        }))
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ledger_text(ledger: Handle<Books>) -> *const c_char {
    text(|| {
        let books = ledger.read()?;
        Ok(once(&books.table, || books.ledger.to_string()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ledger_warnings(ledger: Handle<Books>) -> *const c_char {
    text(|| {
        let books = ledger.read()?;
        let lines = || books.ledger.warnings.iter().map(|warning| format!("{warning}\n")).collect();
        Ok(once(&books.warnings, lines))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_ledger_verdict(
    ledger: Handle<Books>,
    verdict: *mut VerdictInfo,
    size: usize,
) -> c_int {
    quick(|| {
        // SAFETY: the header requires null or space for a structure of this size.
        let room = unsafe { SizedRooms::at(verdict, size, 1, "verdict") }?;
        room.fill(std::iter::once(VerdictInfo::from(&ledger.read()?.ledger)));
        Ok(Status::Ok as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ledger_verdict_text(ledger: Handle<Books>) -> *const c_char {
    text(|| {
        let books = ledger.read()?;
        Ok(once(&books.verdict, || books.ledger.verdict()))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_ledger_unseen(
    ledger: Handle<Books>,
    unseen: *mut UnseenInfo,
    size: usize,
    room: usize,
) -> c_int {
    quick(|| {
        // SAFETY: the header requires null or space for this many values of this size.
        let rooms = unsafe { SizedRooms::at(unseen, size, room, "the list of unseen periods") }?;
        let periods = &ledger.read()?.ledger.unseen;
        rooms.fill(periods.iter().map(UnseenInfo::from));
        Ok(periods.len() as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ledger_free(ledger: Handle<Books>) -> c_int {
    call(|| ledger.take().map(|_freed| Status::Ok))
}
