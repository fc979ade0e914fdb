//! The whole of it under loom: kernel, workers and whoever drops chunks.

use loom::thread;

use super::*;
use crate::sync::model;
use crate::time::Timestamp;

/// A worker and its buddy take from one ring and drop what they got, while the kernel fills it:
/// nothing is delivered twice, and every cell comes home.
#[test]
fn a_chunk_is_delivered_once_and_its_cells_come_home() {
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
        assert_ne!(taken[0], taken[1], "one chunk, twice");
        let delivered = taken.iter().flatten().count();
        assert_eq!(capture.backlog(0) as usize + delivered, 2);
        assert_eq!(capture.kernel(0).free_cells(), delivered);
        assert_eq!(capture.kernel(0).violations(), []);
    });
}

/// A cell comes home while the driver, which found none, falls asleep: it is called, or has seen it.
#[test]
fn no_driver_sleeps_beside_a_free_cell() {
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

/// In basic mode a worker that ends at the end of the capture is not missed by the others.
#[test]
fn workers_end_without_an_error() {
    let settings = SimSettings { rings: 2, workers: 2, ..SimSettings::default() };
    model(move || {
        let capture = SimCapture::new(&settings);
        let ask = |mut worker: SimWorker| worker.ask(Duration::ZERO).map(drop);
        let (stays, goes) = (capture.worker(0), capture.worker(1));
        let goes = thread::spawn(move || {
            // Only a worker that was told so ends.
            capture.end();
            ask(goes)
        });
        ask(stays).unwrap();
        goes.join().unwrap().unwrap();
    });
}
