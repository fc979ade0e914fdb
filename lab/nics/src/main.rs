//! The test matrix: the `wirecap` command on each NIC that the virtual machine emulates
//! (`vm/boot`), compared with the traffic sent. It runs in that machine, together with the command
//! of the same build.
//!
//! `wirecap-nics [--core] [--events=N] [FILTER]...`: runs all checks, the core checks, or those
//! whose NIC and name, for instance `igb/bytes`, contain a filter. N is the number of consecutive
//! resets, flaps and similar events.

mod bed;
mod checks;
mod command;
mod frames;
mod kind;
mod monitor;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use bed::Bed;
use checks::Outcome;
use kind::KINDS;
use table::Table;

fn main() -> ExitCode {
    let (options, filters): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let core = options.iter().any(|option| option == "--core");
    let events = options.iter().filter_map(|option| option.strip_prefix("--events=")?.parse().ok());
    let events: Vec<usize> = events.collect();
    if options.len() != usize::from(core) + events.len() {
        eprintln!("usage: wirecap-nics [--core] [--events=N] [FILTER]...");
        return ExitCode::from(2);
    }
    for count in events {
        let _ = checks::EVENTS.set(count);
    }
    let is_meant = |column: &str, name: &str, in_core: bool| {
        let place = format!("{column}/{name}");
        (!core || in_core)
            && (filters.is_empty() || filters.iter().any(|filter| place.contains(filter.as_str())))
    };
    let table = Mutex::new(Table::default());
    // The NICs are independent of each other, and a check mostly waits.
    thread::scope(|scope| {
        for kind in KINDS {
            let table = &table;
            let is_meant = &is_meant;
            scope.spawn(move || {
                for check in
                    checks::ALL.iter().filter(|check| is_meant(kind.name, check.name, check.core))
                {
                    run(check.name, kind.name, table, || (check.run)(&Bed::new(kind)?));
                }
            });
        }
    });
    for route in
        checks::ROUTES.iter().filter(|route| is_meant(route.column, route.name, route.core))
    {
        run(route.name, route.column, &table, route.run);
    }
    let table = table.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("\n{table}");
    if table.failures() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a check, prints its result, and adds it to the table.
fn run(name: &str, column: &str, table: &Mutex<Table>, body: impl FnOnce() -> Outcome) {
    let started = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text
            .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
            .unwrap_or_default()
            .into())
    });
    let outcome = outcome.map_err(|error| error.to_string());
    let seconds = started.elapsed().as_secs_f64();
    let line = match &outcome {
        Ok(verdict) => verdict.to_string(),
        Err(reason) => format!("FAILED: {reason}"),
    };
    println!("{column:>8} {name}: {line} ({seconds:.1} s)");
    table.lock().unwrap_or_else(std::sync::PoisonError::into_inner).enter(name, column, outcome);
}
