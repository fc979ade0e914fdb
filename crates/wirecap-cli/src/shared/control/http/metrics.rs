//! The metrics, generated from the answer to `status`, so they agree exactly with it and with the
//! ledger.
//!
//! Names are stable: metrics may be added, or removed in a new major version, but never change
//! their meaning. There are two similar formats: OpenMetrics 1.0, which Prometheus requests, and
//! the older one, for other tools.
//!
//! All have the label `capture`. A value that a driver or an engine does not report is absent,
//! never 0.
//!
//! - device, by `interface`: `wirecap_device_packets_dropped_total`
//! - ring: `wirecap_ring_packets_{offered,delivered,filtered,dropped}_total` (dropped by `reason`),
//!   `wirecap_ring_delivered_bytes_total`,
//!   `wirecap_ring_{stalls,starved,packets_cut,super_packets}_total`
//! - pool of a ring: `wirecap_pool_cells` by `state`, `wirecap_pool_capacity_cells`,
//!   `wirecap_pool_threshold_cells`. *Posted* cells are in the kernel and wait for packets;
//!   *waiting* cells are filled; *captured* cells are in chunks; *free* cells are held back
//!   (`--warm`, `--elastic`). They add up to the capacity.
//! - buddies: `wirecap_ring_chunks_{offloaded,abandoned}_total`,
//!   `wirecap_worker_chunks_helped_total` by `ring` and `worker`, `wirecap_ring_worker`
//! - interfaces, by `interface` and `ifindex`, if all are captured:
//!   `wirecap_interface_packets_delivered_total`, `wirecap_interface_delivered_bytes_total`
//! - threads of the capture: `wirecap_thread_cpu_seconds_total`
//! - the capture: `wirecap_packets_{offered,delivered,filtered,dropped}_total`,
//!   `wirecap_delivered_bytes_total`, `wirecap_unseen_gaps_total`, `wirecap_lossless`
//! - application and ports: `wirecap_packets_lost_after_delivery_total`,
//!   `wirecap_port_packets_{taken,sent,dropped,copied,late}_total`, `wirecap_port_packets_waiting`
//! - recorder and index:
//!   `wirecap_writer_{accepted_bytes,packets_discarded,busy_seconds,files_completed}_total`,
//!   `wirecap_writer_packets_waiting`, `wirecap_writer_blocked_seconds`,
//!   `wirecap_index_files_indexed_total`, `wirecap_index_files_waiting`

use std::fmt::{Display, Write};

use serde_json::Value;

use super::response::Response;

const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of a capture whose `status` this is, in the form of OpenMetrics if `open`.
pub(super) fn response(status: &Value, open: bool) -> Response {
    Response::ok(if open { OPEN } else { PLAIN }, text(status, open))
}

fn text(status: &Value, open: bool) -> String {
    let mut text = Text { text: String::new(), open, capture: string(&status["name"]) };
    capture(&mut text, status);
    rings(&mut text, status);
    pools(&mut text, status);
    interfaces(&mut text, status);
    devices(&mut text, status);
    ports(&mut text, status);
    writer(&mut text, status);
    threads(&mut text, status);

    if open {
        text.text += "# EOF\n";
    }

    text.text
}

/// The capture as a whole: seen = offered + filtered, offered = delivered + dropped.
fn capture(text: &mut Text<'_>, status: &Value) {
    let ledger = &status["ledger"];
    let labels = [
        ("command", string(&status["command"])),
        ("engine", string(&ledger["engine"])),
        ("mode", string(&ledger["mode"])),
        ("version", string(&status["version"])),
    ];
    text.info(
        "wirecap_capture",
        "The capture: its command, engine and mode, in the notation B-(M,R) or A-(M,R,T).",
        &labels,
    );

    let of_all = |text: &mut Text<'_>, name, help, value: &Value| {
        text.counter(name, help, [(vec![], value)]);
    };
    of_all(
        text,
        "wirecap_packets_offered",
        "Packets offered: delivered and dropped.",
        &ledger["offered"],
    );

    of_all(
        text,
        "wirecap_packets_delivered",
        "Packets handed to the application in chunks.",
        &ledger["delivered"],
    );

    of_all(
        text,
        "wirecap_delivered_bytes",
        "Bytes of the packets delivered, as on the wire.",
        &ledger["bytes"],
    );

    of_all(
        text,
        "wirecap_packets_filtered",
        "Non-matching packets; absent if the engine cannot count them.",
        &ledger["filtered"],
    );

    text.counter(
        "wirecap_packets_dropped",
        "Packets offered and not delivered, by reason; device is absent if the driver does not report it.",
        by_reason(&[], &ledger["dropped"]),
    );
    let later = list(&ledger["lost_later"])
        .map(|lost| (vec![("reason", string(&lost["reason"]))], &lost["packets"]));
    text.counter(
        "wirecap_packets_lost_after_delivery",
        "Packets delivered and then lost by the application, by reason.",
        later,
    );

    let gaps = list(&ledger["unseen"]).count() as u64;
    text.counter(
        "wirecap_unseen_gaps",
        "Periods in which packets may have passed uncaptured and uncounted.",
        [(vec![], &Value::from(gaps))],
    );

    let lossless = Value::from(u8::from(ledger["lossless"] == true));
    text.gauge(
        "wirecap_lossless",
        "1 if every packet so far is accounted for and none was lost.",
        [(vec![], &lossless)],
    );
    text.gauge(
        "wirecap_start_time_seconds",
        "When the capture began, in seconds since 1970.",
        [(vec![], &status["started_unix_s"])],
    );
    text.counter(
        "wirecap_running_seconds",
        "How long the capture has run.",
        [(vec![], &ledger["duration_s"])],
    );
}

/// Each ring's part of the ledger.
fn rings(text: &mut Text<'_>, status: &Value) {
    let rings: Vec<&Value> = list(&status["ledger"]["rings"]).collect();
    let of_each = |field: &'static str| of_each("ring", &rings, field);

    for (name, field, help) in [
        (
            "wirecap_ring_packets_offered",
            "offered",
            "Packets of a ring offered: delivered and dropped.",
        ),
        (
            "wirecap_ring_packets_delivered",
            "delivered",
            "Packets of a ring handed to the application in chunks.",
        ),
        (
            "wirecap_ring_delivered_bytes",
            "bytes",
            "Bytes of the packets of a ring delivered, as on the wire.",
        ),
        (
            "wirecap_ring_packets_filtered",
            "filtered",
            "Non-matching packets of a ring; absent if the engine cannot count them.",
        ),
        (
            "wirecap_ring_super_packets",
            "super_packets",
            "Packets longer than the interface's MTU: merged by an offload.",
        ),
        (
            "wirecap_ring_packets_cut",
            "cut",
            "Packets that the device split at the end of a buffer.",
        ),
        (
            "wirecap_ring_stalls",
            "stalls",
            "Times that the kernel waited for a block that was still held (engine packet).",
        ),
        (
            "wirecap_ring_starved",
            "starved",
            "Times that a zero-copy driver found no cell on the fill ring.",
        ),
        (
            "wirecap_ring_chunks_offloaded",
            "offloaded_chunks",
            "Chunks of a ring taken by workers other than its own.",
        ),
        (
            "wirecap_ring_chunks_abandoned",
            "abandoned_chunks",
            "Chunks taken by buddies because the ring's worker was stuck or gone.",
        ),
    ] {
        text.counter(name, help, of_each(field));
    }

    let dropped = rings
        .iter()
        .flat_map(|ring| by_reason(&[("ring", string(&ring["name"]))], &ring["dropped"]));

    // Drops of the device, and packets without a ring, belong to no ring.
    let of_ring = dropped.filter(|(labels, _)| {
        !labels.iter().any(|(_, value)| ["device", "no_ring"].contains(value))
    });
    text.counter(
        "wirecap_ring_packets_dropped",
        "Packets of a ring offered and not delivered, by reason.",
        of_ring,
    );
}

/// The places of each ring's cells, its threshold, and its helpers.
fn pools(text: &mut Text<'_>, status: &Value) {
    let rings: Vec<&Value> = list(&status["pool"]["rings"]).collect();
    let states = ["posted", "waiting", "captured", "free"];

    let cells = rings.iter().flat_map(|ring| {
        states
            .iter()
            .map(|state| (vec![("ring", string(&ring["name"])), ("state", *state)], &ring[*state]))
    });
    text.gauge(
        "wirecap_pool_cells",
        "Cells of a ring's pool: posted to the kernel, waiting in the ring, captured in chunks, or free.",
        cells,
    );

    let of_each = |field: &'static str| of_each("ring", &rings, field);
    text.gauge(
        "wirecap_pool_capacity_cells",
        "R x M: packets that a ring can hold.",
        of_each("capacity"),
    );
    text.gauge(
        "wirecap_pool_threshold_cells",
        "T: buddies help a ring whose backlog exceeds it; absent in basic mode.",
        of_each("threshold"),
    );
    text.gauge("wirecap_ring_worker", "The worker of a ring.", of_each("worker"));

    let workers: Vec<(&str, String, &Value)> = rings
        .iter()
        .flat_map(|ring| {
            list(&ring["helpers"]).map(|helper| {
                (string(&ring["name"]), helper["worker"].to_string(), &helper["chunks"])
            })
        })
        .collect();
    let helped = workers
        .iter()
        .map(|(ring, worker, chunks)| (vec![("ring", *ring), ("worker", worker)], *chunks));
    text.counter(
        "wirecap_worker_chunks_helped",
        "Chunks that a worker took from another worker's ring.",
        helped,
    );
}

/// The packets of each interface, if all are captured.
fn interfaces(text: &mut Text<'_>, status: &Value) {
    let interfaces: Vec<(&Value, String)> = list(&status["ledger"]["interfaces"])
        .map(|seen| (seen, seen["index"].to_string()))
        .collect();
    let of_each = |field: &'static str| {
        let labels = |(seen, index)| {
            vec![("interface", string(&(seen as &Value)["name"])), ("ifindex", index)]
        };
        let samples = interfaces.iter().map(|(seen, index)| (*seen, index.as_str()));
        samples.map(move |(seen, index)| (labels((seen, index)), &seen[field])).collect::<Vec<_>>()
    };

    for (name, field, help) in [
        (
            "wirecap_interface_packets_delivered",
            "delivered",
            "Packets of an interface handed out in chunks, if all interfaces are captured.",
        ),
        ("wirecap_interface_delivered_bytes", "bytes", "Bytes of these packets on the wire."),
    ] {
        text.counter(name, help, of_each(field));
    }
}

fn devices(text: &mut Text<'_>, status: &Value) {
    let interfaces: Vec<&Value> = list(&status["interfaces"]).collect();
    let info = interfaces.iter().map(|interface| {
        vec![("interface", string(&interface["name"])), ("engine", string(&interface["engine"]))]
    });
    text.infos("wirecap_interface", "An interface of the capture, and its engine.", info);

    let dropped = interfaces.iter().map(|interface| {
        (vec![("interface", string(&interface["name"]))], &interface["device_dropped"])
    });
    text.counter(
        "wirecap_device_packets_dropped",
        "Packets that the device or its driver dropped; absent if the driver does not report it.",
        dropped,
    );
}

/// Packets sent by forwarding: taken = sent + dropped + waiting.
fn ports(text: &mut Text<'_>, status: &Value) {
    let ports: Vec<&Value> = list(&status["ledger"]["ports"]).collect();
    let of_each = |field: &'static str| of_each("port", &ports, field);

    for (name, field, help) in [
        ("wirecap_port_packets_taken", "taken", "Packets handed to a port."),
        ("wirecap_port_packets_sent", "sent", "Packets of a port that the kernel accepted."),
        ("wirecap_port_sent_bytes", "bytes", "Bytes of the packets sent."),
        ("wirecap_port_packets_copied", "copied", "Packets copied before they were sent."),
        ("wirecap_port_packets_late", "late", "Packets sent out of their ring's order."),
    ] {
        text.counter(name, help, of_each(field));
    }

    let dropped = ports
        .iter()
        .flat_map(|port| by_reason(&[("port", string(&port["name"]))], &port["dropped"]));
    text.counter(
        "wirecap_port_packets_dropped",
        "Packets that could not be sent, by reason.",
        dropped,
    );
    text.gauge(
        "wirecap_port_packets_waiting",
        "Packets on a port's tx ring, or waiting for earlier chunks.",
        of_each("waiting"),
    );
}

/// The output of the packets, and its index.
fn writer(text: &mut Text<'_>, status: &Value) {
    let writer = &status["writer"];
    let one = |field: &'static str| [(vec![], &writer[field])];
    text.counter(
        "wirecap_writer_accepted_bytes",
        "Bytes written to the file or pipe.",
        one("bytes"),
    );
    text.gauge(
        "wirecap_writer_packets_waiting",
        "Packets that wait in the pools for the writer.",
        one("waiting"),
    );
    text.counter(
        "wirecap_writer_packets_discarded",
        "Packets discarded because the writer did not keep up.",
        one("discarded"),
    );
    text.counter("wirecap_writer_busy_seconds", "Total time of all writes.", one("busy_s"));
    text.gauge(
        "wirecap_writer_blocked_seconds",
        "Duration of the current write.",
        one("blocked_s"),
    );
    text.counter(
        "wirecap_writer_files_completed",
        "Files of a recording that are complete.",
        one("files_completed"),
    );
    text.counter(
        "wirecap_index_files_indexed",
        "Complete files that have their index.",
        one("files_indexed"),
    );
    text.gauge(
        "wirecap_index_files_waiting",
        "Complete files that wait for their index.",
        one("files_to_index"),
    );
}

fn threads(text: &mut Text<'_>, status: &Value) {
    let threads = list(&status["threads"])
        .map(|thread| (vec![("thread", string(&thread["name"]))], &thread["cpu_s"]));
    text.counter(
        "wirecap_thread_cpu_seconds",
        "Processor time of each of the capture's threads.",
        threads,
    );
}

type Labels<'a> = Vec<(&'a str, &'a str)>;

/// The text so far.
struct Text<'a> {
    text: String,
    open: bool,
    /// The capture's name, a label of every sample.
    capture: &'a str,
}

impl Text<'_> {
    /// Values that only grow. `null` is not reported, and left out.
    fn counter<'v>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'v>, &'v Value)>,
    ) {
        self.family((name, "_total"), "counter", help, samples);
    }

    fn gauge<'v>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'v>, &'v Value)>,
    ) {
        self.family((name, ""), "gauge", help, samples);
    }

    fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) {
        self.infos(name, help, [labels.to_vec()]);
    }

    /// Information in labels only.
    fn infos<'v>(&mut self, name: &str, help: &str, labels: impl IntoIterator<Item = Labels<'v>>) {
        let one = Value::from(1);
        let labels: Vec<Labels<'v>> = labels.into_iter().collect();
        let samples = labels.iter().map(|labels| (labels.clone(), &one));
        self.family((name, "_info"), if self.open { "info" } else { "gauge" }, help, samples);
    }

    /// A metric with its samples, if there are any.
    fn family<'v>(
        &mut self,
        (name, suffix): (&str, &str),
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'v>, &'v Value)>,
    ) {
        let samples = samples.into_iter().filter(|(_, value)| value.is_number());

        // In OpenMetrics a family's name lacks the suffix of its samples' names.
        let family_suffix = if self.open { "" } else { suffix };
        let mut is_first = true;

        for (labels, value) in samples {
            if std::mem::take(&mut is_first) {
                self.line(format_args!("# HELP {name}{family_suffix} {help}"));
                self.line(format_args!("# TYPE {name}{family_suffix} {kind}"));
            }
            let labels = [("capture", self.capture)].into_iter().chain(labels);
            let labels: Vec<String> =
                labels.map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
            self.line(format_args!("{name}{suffix}{{{}}} {value}", labels.join(",")));
        }
    }

    fn line(&mut self, line: impl Display) {
        let _infallible = writeln!(self.text, "{line}");
    }
}

/// A label's value as both forms have it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn by_reason<'a>(
    labels: &[(&'a str, &'a str)],
    dropped: &'a Value,
) -> Vec<(Labels<'a>, &'a Value)> {
    let reasons = dropped.as_object().into_iter().flatten();
    reasons.map(|(reason, count)| ([labels, &[("reason", reason)]].concat(), count)).collect()
}

/// A field of each of these, which bear their names as labels.
fn of_each<'a>(
    label: &'static str,
    all: &[&'a Value],
    field: &str,
) -> Vec<(Labels<'a>, &'a Value)> {
    let sample = |one: &&'a Value| {
        let one: &'a Value = one;
        (vec![(label, string(&one["name"]))], &one[field])
    };
    all.iter().map(sample).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::json;

    use super::*;

    fn status() -> Value {
        let account = |name: Option<&str>| {
            let mut account = json!({
                "seen": null, "offered": 110, "delivered": 100, "bytes": 6400, "filtered": null,
                "dropped": { "no_cell": 7, "ring_full": 3, "device": null, "no_ring": 0, "other": 0 },
                "offloaded_chunks": 5, "abandoned_chunks": 0, "super_packets": 0, "cut": 0, "stalls": 0, "starved": 0,
            });
            if let Some(name) = name {
                account["name"] = name.into();
            }

            account
        };
        let mut ledger = account(None);
        ledger["rings"] = json!([account(Some("eth0@0"))]);
        ledger["engine"] = "xdp".into();
        ledger["mode"] = "A-(256,512,60)".into();
        ledger["duration_s"] = 1.5.into();
        ledger["lossless"] = false.into();
        ledger["unseen"] = json!([]);
        ledger["interfaces"] =
            json!([{ "name": "pod1", "index": 7, "delivered": 30, "bytes": 3000 }]);
        ledger["dropped"]["device"] = 0.into();

        json!({
            "ok": true, "name": "a \"b\"\\", "command": "capture", "version": "1.0", "started_unix_s": 1.25, "ledger": ledger,
            "interfaces": [{ "name": "eth0", "engine": "xdp", "device_dropped": 0 }],
            "pool": { "rings": [{
                "name": "eth0@0", "capacity": 1024, "posted": 1000, "waiting": 20, "captured": 4, "free": 0, "threshold": 614,
                "worker": 0, "helpers": [{ "worker": 1, "chunks": 5 }],
            }] },
            "writer": null, "threads": [{ "name": "worker 0", "cpu_s": 0.25 }],
        })
    }

    #[test]
    fn every_sample_follows_help_and_type_of_its_metric() {
        for open in [false, true] {
            let text = text(&status(), open);
            let mut family = String::new();
            let mut seen = BTreeSet::new();
            let mut types = BTreeMap::new();

            for line in text.lines().filter(|line| *line != "# EOF") {
                let words: Vec<&str> = line.splitn(4, ' ').collect();
                match words[..] {
                    ["#", "HELP", name, help] => {
                        assert!(seen.insert(name.to_owned()), "{name} comes twice");
                        assert!(help.ends_with('.'), "{line}");
                        family = name.to_owned();
                    }
                    ["#", "TYPE", name, kind] => {
                        assert_eq!(name, family);
                        types.insert(name.to_owned(), kind.to_owned());
                    }
                    _ => {
                        let name = line.split('{').next().unwrap();
                        let suffix = name
                            .strip_prefix(&family)
                            .unwrap_or_else(|| panic!("{line} is below {family}"));

                        let expected = match (open, &*types[&family]) {
                            (true, "counter") => "_total",
                            (true, "info") => "_info",
                            _ => "",
                        };
                        assert_eq!(suffix, expected, "{line}");
                    }
                }
            }

            assert_eq!(text.ends_with("\n# EOF\n"), open);
        }
    }

    #[test]
    fn an_unreported_number_has_no_sample() {
        let text = text(&status(), true);
        let name = r#"capture="a \"b\"\\""#;
        for line in [
            format!("wirecap_ring_packets_delivered_total{{{name},ring=\"eth0@0\"}} 100"),
            format!(
                "wirecap_ring_packets_dropped_total{{{name},ring=\"eth0@0\",reason=\"no_cell\"}} 7"
            ),
            format!("wirecap_packets_dropped_total{{{name},reason=\"device\"}} 0"),
            format!(
                "wirecap_interface_packets_delivered_total{{{name},interface=\"pod1\",ifindex=\"7\"}} 30"
            ),
            format!("wirecap_pool_cells{{{name},ring=\"eth0@0\",state=\"waiting\"}} 20"),
            format!("wirecap_worker_chunks_helped_total{{{name},ring=\"eth0@0\",worker=\"1\"}} 5"),
            format!("wirecap_thread_cpu_seconds_total{{{name},thread=\"worker 0\"}} 0.25"),
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} is not in {text}");
        }
        for absent in
            ["filtered", "wirecap_writer", "wirecap_port", "reason=\"no_ring\"} 0\nwirecap_ring"]
        {
            assert!(!text.contains(absent), "{absent} is in {text}");
        }
    }
}
