//! A load balancer. It distributes the packets of the front interface over the back interfaces by
//! flow, and sends packets from the back interfaces to the front. Both directions of a connection
//! use the same back interface.
//!
//! `balancer FRONT BACK...`: FRONT and BACK are interfaces. Ctrl-C ends it.

use std::error::Error;
use std::thread;

use wirecap::{Capture, CaptureBuilder, CaptureError, OpenError, Port, TxQueue, Worker, flow_hash};

/// Opens all interfaces. The front interface is the first.
pub(crate) fn open(front: &str, backs: &[impl AsRef<str>]) -> Result<Capture, OpenError> {
    let add = |builder: CaptureBuilder, back: &str| builder.and(back);
    backs.iter().map(AsRef::as_ref).fold(Capture::on(front), add).forwarding().open()
}

/// Balances until the capture is stopped.
pub(crate) fn run(capture: &Capture) -> Result<(), Box<dyn Error + Send + Sync>> {
    thread::scope(|scope| {
        let work = |worker| scope.spawn(|| balance(worker, capture));
        let workers: Vec<_> = capture.workers().into_iter().map(work).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

fn balance(mut worker: Worker, capture: &Capture) -> Result<(), Box<dyn Error + Send + Sync>> {
    let open = |name: &String| capture.port(name)?.on_queue(TxQueue::ByFlow);
    let names = capture.interfaces().iter().map(|interface| &interface.device.name);
    let mut ports = names.map(open).collect::<Result<Vec<_>, _>>()?;
    let (front, backs) = ports.split_first_mut().ok_or("no interface")?;
    take_chunks(&mut worker, front, backs).inspect_err(|_| capture.stop())?;
    Ok(())
}

fn take_chunks(
    worker: &mut Worker,
    front: &mut Port,
    backs: &mut [Port],
) -> Result<(), CaptureError> {
    let count = backs.len() as u64;
    while let Some(mut chunk) = worker.next_chunk()? {
        if chunk.interface_index() > 0 {
            front.send_all(chunk.drain());
            front.flush();
            continue;
        }
        for packet in chunk.drain() {
            // Uses the high bits of the hash, so that the next machine can distribute by the low
            // bits.
            let back = (u64::from(flow_hash(packet.data())) * count) >> 32;
            backs[back as usize].send(packet);
        }
        backs.iter_mut().for_each(Port::flush);
    }
    Ok(())
}

#[allow(dead_code, reason = "a test has its own way to end")]
fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let Some((front, backs)) = names.split_first().filter(|(_, backs)| !backs.is_empty()) else {
        return Err("give interfaces: FRONT BACK...".into());
    };
    let capture = open(front, backs)?;
    let stopper = capture.stopper();
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT])?;
    thread::spawn(move || signals.forever().for_each(|_| stopper.stop()));
    run(&capture)?;
    println!("{}", capture.close());
    Ok(())
}
