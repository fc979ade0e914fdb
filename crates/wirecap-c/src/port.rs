//! Ports, through which chunks and new packets are sent.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use wirecap::{Chunk, Port, TxQueue, flow_hash};

use crate::abi::{PortAccountInfo, TX_AS_RECEIVED, TX_BY_FLOW};
use crate::arguments::{self, Room};
use crate::capture::Opened;
use crate::chunk::Held;
use crate::failure::{Failure, Status, call, out_of_range, quick, text};
use crate::frame::FrameInfo;
use crate::names::lasting;
use crate::registry::{Handle, Kept, Registry, handle};

/// The slot of a port, empty while a thread uses the port.
pub(crate) type PortPlace = Arc<Mutex<Option<Port>>>;

/// `wirecap_route`: returns the port for a frame, or null.
pub(crate) type Route = unsafe extern "C" fn(*mut FrameInfo, *mut c_void) -> Handle<PortPlace>;

static PORTS: Registry<PortPlace> = Registry::new();

impl Kept for PortPlace {
    const KIND: usize = 6;
    const NAME: &'static str = "port";

    fn registry() -> &'static Registry<Self> {
        &PORTS
    }
}

/// A port in use by one thread.
struct Lent {
    handle: Handle<PortPlace>,
    place: PortPlace,
    /// `None` only while the port is being returned.
    port: Option<Port>,
}

impl Lent {
    fn of(handle: Handle<PortPlace>) -> Result<Self, Failure> {
        let place = Arc::clone(&*handle.read()?);
        let port = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        match port {
            Some(port) => Ok(Self { handle, place, port: Some(port) }),
            None => {
                let text = "the port is in use, by another thread or by wirecap_forward; each thread opens its own";
                Err(Failure::new(Status::Busy, text))
            }
        }
    }

    fn port(&mut self) -> &mut Port {
        self.port.as_mut().expect("it is there until it is given back")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = self.port.take();
    }
}

/// The ports used for the packets of one chunk; there are few.
#[derive(Default)]
struct Lending(Vec<Lent>);

impl Lending {
    fn port(&mut self, handle: Handle<PortPlace>) -> Result<&mut Port, Failure> {
        let place = self.0.iter().position(|lent| lent.handle == handle);
        let place = match place {
            Some(place) => place,
            None => {
                self.0.push(Lent::of(handle)?);
                self.0.len() - 1
            }
        };
        Ok(self.0[place].port())
    }

    /// Passes waiting packets to the kernel.
    fn flush(&mut self) {
        self.0.iter_mut().for_each(|lent| lent.port().flush());
    }
}

/// Sends the packets of a chunk to the ports that `route` returns. Returns the number of packets
/// sent.
///
/// # Safety
///
/// `route` must be a function as declared in the header.
unsafe fn forward(chunk: &mut Chunk, route: Route, user: *mut c_void) -> Result<c_int, Failure> {
    let mut ports = Lending::default();
    let mut sent = 0;
    let mut failure = None;

    for mut packet in chunk.drain() {
        let mut frame = FrameInfo::of(&mut packet);

        // SAFETY: guaranteed by the caller; during the call, only the program uses the frame and
        // its packet.
        let port = unsafe { route(&raw mut frame, user) };
        if port.is_null() {
            continue;
        }

        match ports.port(port) {
            Ok(port) => {
                port.send(packet);
                sent += 1;
            }
            Err(first) => failure = failure.or(Some(first)),
        }
    }

    // Before the chunk is recycled, because the sequencer needs its packets until then.
    ports.flush();
    failure.map_or(Ok(sent), Err)
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_port_count(capture: Handle<Opened>) -> c_int {
    quick(|| Ok(capture.read()?.capture.ports().count() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_port_name(capture: Handle<Opened>, port: u32) -> *const c_char {
    text(|| {
        let capture = &capture.read()?.capture;
        let name = capture.ports().nth(port as usize);
        let name = name.ok_or_else(|| out_of_range("port", port, capture.ports().count()))?;
        Ok(lasting(name).as_ptr())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_port_open(
    capture: Handle<Opened>,
    interface: *const c_char,
    tx_queue: i64,
) -> Handle<PortPlace> {
    handle(|| {
        // SAFETY: the header requires null or a string.
        let interface = unsafe { arguments::text(interface, "the name of the interface") }?;
        let queue = match tx_queue {
            TX_AS_RECEIVED => TxQueue::AsReceived,
            TX_BY_FLOW => TxQueue::ByFlow,
            queue => TxQueue::Fixed(u32::try_from(queue).map_err(|_| {
                Failure::new(Status::Argument, format!("{interface} has no transmit queue {queue}"))
            })?),
        };
        let port = capture.read()?.capture.port(interface)?.on_queue(queue)?;

        Handle::keep(Arc::new(Mutex::new(Some(port))))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_forward(
    chunk: Handle<Held>,
    route: Option<Route>,
    user: *mut c_void,
) -> c_int {
    let mut sent = 0;
    let status = call(|| {
        let route = route.ok_or_else(|| Failure::new(Status::Argument, "route is null"))?;
        let mut held = chunk.take()?;
        // SAFETY: the header declares the type of `route`.
        sent = unsafe { forward(&mut held.chunk, route, user) }?;
        Ok(Status::Ok)
    });
    if status < 0 { status } else { sent }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_send(
    port: Handle<PortPlace>,
    data: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header requires null or this many bytes.
        let data = unsafe { arguments::list(data.cast::<u8>(), len, "data") }?;
        let mut port = Lent::of(port)?;
        let longest = port.port().longest_new_packet();

        if longest == 0 {
            let text = "new packets can only be sent on interfaces captured by the engine xdp";
            return Err(Failure::new(Status::Unsupported, text));
        }

        if len > longest {
            let text = format!("a new packet of {len} bytes is too long; the maximum is {longest}");
            return Err(Failure::new(Status::Argument, text));
        }

        let Some(mut packet) = port.port().build(len) else { return Ok(Status::None) };
        packet.data_mut().copy_from_slice(data);
        port.port().send(packet);

        Ok(Status::Ok)
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_port_flush(port: Handle<PortPlace>) -> c_int {
    call(|| {
        Lent::of(port)?.port().flush();
        Ok(Status::Ok)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_port_account(
    port: Handle<PortPlace>,
    account: *mut PortAccountInfo,
) -> c_int {
    quick(|| {
        // SAFETY: the header requires null or space for it.
        let room = unsafe { Room::at(account, "account") }?;
        room.put(PortAccountInfo::from(&Lent::of(port)?.port().account()));
        Ok(Status::Ok as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_port_close(port: Handle<PortPlace>) -> c_int {
    call(|| port.take().map(|_closed| Status::Ok))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_flow_hash(frame: *const c_void, len: usize) -> u32 {
    let mut hash = 0;
    quick(|| {
        // SAFETY: the header requires null or this many bytes.
        hash = flow_hash(unsafe { arguments::list(frame.cast::<u8>(), len, "frame") }?);
        Ok(0)
    });
    hash
}
