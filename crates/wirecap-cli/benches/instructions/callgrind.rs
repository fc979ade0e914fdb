//! Counts the instructions of a path with callgrind, without those of the simulated kernel.

use std::env;
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use crate::{Cell, Outcome, Path};

/// callgrind counts only while this function runs: `--toggle-collect` names it.
#[inline(never)]
pub(crate) fn counted_part<T>(work: impl FnOnce() -> T) -> T {
    // Prevents a tail call: `work` must return to this function.
    black_box(work())
}

/// The same as `counted_part`, but not counted.
#[inline(never)]
pub(crate) fn rehearsed<T>(work: impl FnOnce() -> T) -> T {
    black_box(work())
}

pub(crate) fn is_installed() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Counts the instructions per packet of each cell in a separate process; one process per CPU runs
/// at a time.
pub(crate) fn count_all(cells: &[(&Path, usize)]) -> Outcome<Vec<Cell>> {
    let next = Mutex::new(cells.iter().enumerate());
    let counted = Mutex::new(Vec::new());
    let work = || -> Outcome<()> {
        loop {
            let Some((place, &(path, rings))) = next.lock().unwrap().next() else { return Ok(()) };
            let cell = count(path, rings)?;
            counted.lock().unwrap().push((place, cell));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> =
            (0..thread::available_parallelism()?.get()).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("counting does not panic"))
    })?;
    let mut counted = counted.into_inner().unwrap();
    counted.sort_by_key(|(place, _)| *place);
    Ok(counted.into_iter().map(|(_, cell)| cell).collect())
}

fn count(path: &Path, rings: usize) -> Outcome<Cell> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(["--collect-atstart=no", "--toggle-collect=*counted_part*"])
        .arg(env::current_exe()?)
        .args(["run", path.name, &rings.to_string()])
        .output()?;
    let [said, errors] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let number = |text: &str, behind: &str| -> Option<u64> {
        text.lines().find_map(|line| line.split(behind).nth(1))?.trim().parse().ok()
    };
    match (output.status.success(), number(&said, "packets "), number(&errors, "Collected :")) {
        (true, Some(packets @ 1..), Some(instructions @ 1..)) => Ok(Cell {
            path: path.name.to_owned(),
            rings,
            instructions: instructions as f64 / packets as f64,
        }),
        _ => Err(format!("{}, rings {rings}: {said}{errors}", path.name).into()),
    }
}
