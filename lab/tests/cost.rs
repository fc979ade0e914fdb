//! Small runs of the experiments of `wirecap-lab`: their output, and that their counts balance.

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::belongings::Belongings;
use common::{lab, lab_unprivileged, start};
use serde_json::Value;
use wirecap_testbed::{Namespace, privileged};

const COST: [&str; 2] = ["cost", "--quick"];

#[test]
fn the_cost_table_has_every_component_and_its_books_balance() {
    if !privileged() {
        return;
    }
    let cost = lab(&Namespace::new().unwrap(), &COST);
    assert_eq!(
        (cost.status, cost.stderr.as_str()),
        (Some(0), "wirecap-lab cost: round 1 of 1\n"),
        "{cost:#?}"
    );
    let lines: Vec<&str> = cost.stdout.lines().collect();
    let components = [
        "driver: veth and NAPI, then XDP_DROP",
        "dispatch: a tail call",
        "redirect and copy, 2,048 cells in turn",
        "timestamp: batch, the default",
        "timestamp: packet",
        "libpcap: IP only",
        "our interpreter: one port among five",
        "our machine code: 10 addresses, 10 ports",
        "the XDP program: 10 addresses, 10 ports",
        "xdp: chunk hand-over",
        "xdp: recycle",
        "offload: more than its own worker",
        "pcapng, with queues",
    ];
    for component in components {
        let row = lines.iter().find(|line| line.trim_start().starts_with(component));
        let row = row.unwrap_or_else(|| panic!("{component} is missing:\n{}", cost.stdout));
        // The columns: name, method, median with its range, cycles.
        assert!(row.contains(" (") && row.contains(".."), "{row}");
    }
    let answers = [
        "the default timestamp, batch, adds ",
        "attack next on wirecap, xdp: ",
        "WinPcap 2003 (Fig. 6)",
    ];
    assert!(answers.iter().all(|answer| cost.stdout.contains(answer)), "{}", cost.stdout);
    assert_eq!(
        lines.last(),
        Some(&"each frame of each run is accounted for once: yes"),
        "{}",
        cost.stdout
    );
    assert!(!cost.stdout.contains('\x1b'), "no terminal, no escape sequences");
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 100, "{}", cost.stdout);
}

#[test]
fn json_csv_and_image_show_the_same_costs() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [csv, svg] = ["cost.csv", "cost.svg"].map(|name| directory.path().join(name));
    // The old contents are longer than the new ones.
    fs::write(&csv, "x".repeat(1 << 20)).unwrap();
    let files = ["--csv", csv.to_str().unwrap(), "--picture", svg.to_str().unwrap()];
    let arguments = [&COST[..], &["--json", "--rounds", "2"], &files].concat();
    let report = lab(&Namespace::new().unwrap(), &arguments).json();

    let books = report["books"].as_array().unwrap();
    assert_eq!(books.len(), 2 * 12, "twelve live runs a round: {report}");
    for book in books {
        let count = |what: &str| book[what].as_u64().unwrap();
        let sum: u64 =
            ["refused", "lost", "passed", "dropped", "delivered"].map(count).iter().sum();
        assert!(count("sent") > 0 && count("sent") == sum, "{book}");
    }
    let delivered = |run: &str| {
        let books = books.iter().filter(|book| book["run"] == run);
        books.map(|book| book["delivered"].as_u64().unwrap()).min().unwrap()
    };
    assert!(delivered("xdp with times of a batch") > 0 && delivered("packet with a filter") > 0);
    assert_eq!((delivered("sender alone"), delivered("XDP_PASS")), (0, 0));

    let components = report["components"].as_array().unwrap();
    let keys: BTreeSet<&str> =
        components.iter().map(|component| component["key"].as_str().unwrap()).collect();
    assert_eq!(keys.len(), components.len());
    let csv = fs::read_to_string(&csv).unwrap();
    let mut rows = csv.lines();
    assert_eq!(rows.next(), Some("component,how,round,ns,cycles"));
    let rows: Vec<Vec<&str>> = rows.map(|row| row.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 5 && keys.contains(row[0])), "{csv}");
    let driver: Vec<&str> =
        rows.iter().filter(|row| row[0] == "xdp.driver").map(|row| row[3]).collect();
    let component = components.iter().find(|component| component["key"] == "xdp.driver").unwrap();
    let rounds = component["ns"]["rounds"].as_array().unwrap();
    let rounds: Vec<String> =
        rounds.iter().map(|ns| format!("{:.3}", ns.as_f64().unwrap())).collect();
    assert_eq!(driver, rounds);

    let svg = fs::read_to_string(&svg).unwrap();
    assert!(is_well_formed(&svg), "{svg}");
    for bar in report["bars"].as_array().unwrap() {
        let name = bar["name"].as_str().unwrap();
        assert!(svg.contains(name) || bar["parts"][0]["cycles"] == Value::Null, "{name}: {svg}");
    }
}

#[test]
fn without_privileges_the_error_names_the_missing_one_and_no_file_remains() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [csv, svg] = ["cost.csv", "cost.svg"].map(|name| directory.path().join(name));
    fs::write(&csv, "of yesterday").unwrap();
    let files = ["--csv", csv.to_str().unwrap(), "--picture", svg.to_str().unwrap()];
    let cost = lab_unprivileged(&Namespace::new().unwrap(), &[&COST[..], &files].concat());
    cost.refused(1, &["cannot make a network namespace", "run as root", "CAP_SYS_ADMIN"]);
    assert_eq!(cost.stdout, "");
    assert_eq!(fs::read_to_string(&csv).unwrap(), "of yesterday");
    assert!(!svg.exists());
}

#[test]
fn a_failed_experiment_is_in_the_report_and_in_the_exit_status() {
    if !privileged() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().to_str().unwrap();
    let report = ["report", "--quick", "--only=figure-14,live-burst,cost", "-o", output];
    let report = lab_unprivileged(&Namespace::new().unwrap(), &report);
    report.refused(1, &["2 of 3 experiments failed: live-burst, cost", "run as root"]);
    assert!(report.stdout.contains("not done: cannot make a network namespace"), "{report:#?}");
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert_eq!(page.matches("Not done: cannot make a network namespace").count(), 2, "{page}");
}

#[test]
fn an_unwritable_file_is_reported_before_measuring() {
    let nowhere =
        lab(&Namespace::current().unwrap(), &[&COST[..], &["--csv", "/nowhere/cost.csv"]].concat());
    nowhere.refused(1, &["cannot write to /nowhere/cost.csv", "No such file or directory"]);
    assert!(!nowhere.stderr.contains("round"), "{nowhere:#?}");
    let never = lab(&Namespace::current().unwrap(), &["cost", "--rounds", "0"]);
    never.refused(2, &["--rounds"]);
}

#[test]
fn an_interrupted_measurement_ends_and_cleans_up() {
    if !privileged() {
        return;
    }
    let cost = start(&Namespace::new().unwrap(), &[&COST[..], &["--rounds", "100000"]].concat());
    let belongings = Belongings::of(&cost);
    cost.signal("-INT");
    let cost = cost.finish();
    let said = cost.stderr.ends_with("wirecap-lab: interrupted; the test bed is removed\n");
    assert!(cost.status == Some(1) && said && cost.stdout.is_empty(), "{cost:#?}");
    belongings.are_gone();
}

/// Whether all elements are closed in the right order. Sufficient for the output of plotters.
fn is_well_formed(svg: &str) -> bool {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let Some((tag, _text)) = tag.split_once('>') else { return false };
        match (tag.strip_prefix('/'), tag.ends_with('/') || tag.starts_with(['!', '?'])) {
            (Some(name), _) if open.pop() != Some(name) => return false,
            (Some(_), _) | (None, true) => {}
            (None, false) => open.push(tag.split_whitespace().next().unwrap_or("")),
        }
    }
    open.is_empty() && svg.contains("<svg")
}
