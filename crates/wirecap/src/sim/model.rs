//! Loom tests of the whole capture: kernel, workers and threads that drop chunks.

use loom::thread;

use super::*;
use crate::sync::model;
use crate::time::Timestamp;

/// A worker and its buddy take chunks of one ring and drop them while the kernel fills the ring: no
/// packet is delivered twice, and every cell returns.
#[test]
fn a_chunk_is_delivered_once_and_its_cells_return() {
    let settings = SimSettings {
        rings: 2,
        workers: 2,
        geometry: Geometry { chunk_cells: 1, chunks: 2, cell_bytes: 16 },
        mode: Mode::Advanced(0.0),
        descriptors: 1,
        ..SimSettings::default()
    };
    model(move || {
        let capture = SimCapture::new(&settings);
        capture.kernel(0).receive(&[0], Timestamp::default());

        let workers = [0, 1].map(|index| {
            let mut worker = capture.worker(index);
            thread::spawn(move || match worker.ask(Duration::ZERO).unwrap() {
                Answer::Chunk { chunk, .. } => Some(chunk.sequence()),
                _ => None,
            })
        });
        capture.kernel(0).receive(&[1], Timestamp::default());

        let taken = workers.map(|worker| worker.join().unwrap());
        assert_ne!(taken, [None, None], "there was a packet from the start");
        assert_ne!(taken[0], taken[1], "one chunk was delivered twice");

        let delivered = taken.iter().flatten().count();
        assert_eq!(capture.backlog(0) as usize + delivered, 2);
        assert_eq!(capture.kernel(0).free_cells(), delivered);
        assert_eq!(capture.kernel(0).violations(), []);
    });
}

/// A cell returns while the driver, which found none, goes to sleep: the driver is woken, or has
/// seen the cell.
#[test]
fn no_driver_sleeps_while_a_cell_is_free() {
    let settings = SimSettings {
        geometry: Geometry { chunk_cells: 1, chunks: 1, cell_bytes: 16 },
        drivers_sleep: true,
        ..SimSettings::default()
    };
    model(move || {
        let capture = SimCapture::new(&settings);
        let kernel = capture.kernel(0);
        kernel.receive(&[0], Timestamp::default());

        let Ok(Answer::Chunk { chunk, .. }) = capture.worker(0).ask(Duration::ZERO) else {
            panic!("a packet waits");
        };
        let dropper = thread::spawn(move || drop(chunk));
        kernel.look();
        dropper.join().unwrap();
        assert_eq!(kernel.receive(&[1], Timestamp::default()), Fate::Received);
    });
}

/// In basic mode a worker that ends with the capture causes no error for the others.
#[test]
fn workers_end_without_an_error() {
    let settings = SimSettings { rings: 2, workers: 2, ..SimSettings::default() };
    model(move || {
        let capture = SimCapture::new(&settings);
        let ask = |mut worker: SimWorker| worker.ask(Duration::ZERO).map(drop);
        let stays = capture.worker(0);
        let goes = capture.worker(1);
        let goes = thread::spawn(move || {
            // A worker ends only after the answer `Ended`.
            capture.end();
            ask(goes)
        });

        ask(stays).unwrap();
        goes.join().unwrap().unwrap();
    });
}

fn forwarding(rings: usize, mode: Mode) -> SimCapture {
    SimCapture::new(&SimSettings {
        rings,
        workers: rings,
        geometry: Geometry { chunk_cells: 1, chunks: 2, cell_bytes: 16 },
        mode,
        descriptors: 1,
        forwards: true,
        ..SimSettings::default()
    })
}

fn next_chunk(worker: &mut SimWorker) -> Chunk {
    match worker.ask(Duration::ZERO) {
        Ok(Answer::Chunk { chunk, .. }) => chunk,
        answer => panic!("a packet waits: {answer:?}"),
    }
}

fn send(mut chunk: Chunk, mut port: Port) {
    chunk.drain().for_each(|packet| port.send(packet));
    port.flush();
}

/// Two threads send, and these and a third one take completions: every cell is sent once and
/// returns once.
#[test]
fn a_sent_cell_returns_once() {
    model(|| {
        let capture = forwarding(1, Mode::Basic);
        let kernel = capture.kernel(0);
        [0, 1].iter().for_each(|byte| _ = kernel.receive(&[*byte], Timestamp::default()));

        let mut worker = capture.worker(0);
        let chunks = [next_chunk(&mut worker), next_chunk(&mut worker)];
        let senders = chunks.map(|chunk| {
            let port = capture.port().expect("the capture forwards");
            thread::spawn(move || send(chunk, port))
        });

        capture.tend();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        capture.tend();

        let transmitter = capture.transmitter(0);
        assert_eq!((transmitter.take_sent().len(), transmitter.cells()), (2, 0));
        assert_eq!(
            (kernel.free_cells(), kernel.violations(), transmitter.violations()),
            (2, vec![], vec![])
        );
    });
}

/// Completions are taken while a chunk is recycled and while the kernel completes more cells.
#[test]
fn completions_and_recycling_do_not_disturb_each_other() {
    model(|| {
        let capture = forwarding(1, Mode::Basic);
        let kernel = capture.kernel(0);
        [0, 1].iter().for_each(|byte| _ = kernel.receive(&[*byte], Timestamp::default()));

        let mut worker = capture.worker(0);
        let sent = next_chunk(&mut worker);
        let dropped = next_chunk(&mut worker);

        capture.transmitter(0).set_late(true);
        send(sent, capture.port().expect("the capture forwards"));

        let dropper = thread::spawn(move || drop(dropped));
        let device = {
            let transmitter = Arc::clone(capture.transmitter(0));
            thread::spawn(move || transmitter.complete(1, |_| 0))
        };
        capture.tend();
        dropper.join().unwrap();
        device.join().unwrap();
        capture.tend();
        assert_eq!((kernel.free_cells(), kernel.violations()), (2, vec![]));
        assert_eq!(capture.transmitter(0).cells(), 0);
    });
}

/// Two workers have chunks of one ring and finish them in any order: the packets leave in the
/// ring's order.
#[test]
fn packets_leave_in_the_order_of_their_ring() {
    model(|| {
        let capture = forwarding(1, Mode::Advanced(0.0));
        let kernel = capture.kernel(0);
        [7, 8].iter().for_each(|byte| _ = kernel.receive(&[*byte], Timestamp::default()));

        let mut worker = capture.worker(0);
        let first = next_chunk(&mut worker);
        let second = next_chunk(&mut worker);
        let [port, other_port] = [(); 2].map(|()| capture.port().expect("the capture forwards"));
        let other = thread::spawn(move || send(second, other_port));

        send(first, port);
        other.join().unwrap();

        let sent = capture.transmitter(0).take_sent();
        let bytes: Vec<u8> = sent.iter().map(|packet| packet.cells[0].1[0]).collect();
        assert_eq!(bytes, [7, 8]);
        capture.tend();
        assert_eq!((kernel.free_cells(), kernel.violations()), (2, vec![]));
    });
}
