//! The contents of the screen: lines made of two statuses of each capture, as wide as the terminal.

use std::collections::BTreeMap;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use serde_json::Value;
use wirecap::grouped;

use super::look::{Look, Pool};
use super::poll::Statuses;
use crate::size;
use crate::watch::ask::{dropped, number, running_for, text};

/// Rows of loss, and of helpers, of a capture.
const ROWS_MAX: usize = 4;

#[derive(Debug)]
pub(super) struct View {
    look: Look,
    pub(super) interval: Duration,
    captures: BTreeMap<String, Seen>,
    /// The one that is shown alone.
    alone: Option<String>,
    scrolled: usize,
    is_paused: bool,
    /// Lines that the last frame had no room for.
    hidden: usize,
    has_asked: bool,
}

/// A capture's previous and current status.
#[derive(Debug, Default)]
struct Seen {
    before: Option<Value>,
    now: Option<Value>,
    /// Why the last query failed.
    problem: Option<String>,
}

impl View {
    pub(super) fn new(look: Look, interval: Duration) -> Self {
        let captures = BTreeMap::new();
        Self {
            look,
            interval,
            captures,
            alone: None,
            scrolled: 0,
            is_paused: false,
            hidden: 0,
            has_asked: false,
        }
    }

    /// Takes the captures' answers. Returns whether there are changes to show.
    pub(super) fn take(&mut self, statuses: Statuses) -> bool {
        if self.is_paused {
            return false;
        }

        self.has_asked = true;
        self.captures.retain(|name, _| statuses.contains_key(name));

        for (name, answer) in statuses {
            let seen = self.captures.entry(name).or_default();
            match answer {
                Ok(status) => {
                    let is_same_process =
                        seen.now.as_ref().is_some_and(|now| now["pid"] == status["pid"]);
                    let now = seen.now.replace(status);
                    (seen.before, seen.problem) = (now.filter(|_| is_same_process), None);
                }
                Err(problem) => seen.problem = Some(problem),
            }
        }

        true
    }

    /// Shows the next capture alone, or all of them after the last one.
    pub(super) fn next(&mut self, step: isize) {
        let names: Vec<&String> = self.captures.keys().collect();
        let place =
            self.alone.as_ref().and_then(|alone| names.iter().position(|name| *name == alone));
        let turn = place.map_or(0, |place| place as isize + 1) + step;
        let turn = turn.rem_euclid(names.len() as isize + 1);
        self.alone = (turn as usize).checked_sub(1).map(|place| names[place].clone());
        self.scrolled = 0;
    }

    pub(super) fn scroll(&mut self, lines: isize) {
        self.scrolled = self.scrolled.saturating_add_signed(lines).min(self.scrolled + self.hidden);
    }

    pub(super) fn pause(&mut self) {
        self.is_paused = !self.is_paused;
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [body, keys] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        let width = usize::from(body.width);

        let shown = self
            .captures
            .iter()
            .filter(|(name, _)| self.alone.as_ref().is_none_or(|alone| alone == *name));
        let mut lines: Vec<Line<'static>> = Vec::new();

        for (name, seen) in shown {
            if !lines.is_empty() {
                lines.push(Line::default());
            }
            lines.extend(capture(self.look, name, seen, width));
        }

        if lines.is_empty() && self.has_asked {
            lines.push("no capture is running".into());
        }

        let height = usize::from(body.height);
        self.scrolled = self.scrolled.min(lines.len().saturating_sub(height));
        self.hidden = lines.len().saturating_sub(height + self.scrolled);

        let shown: Vec<Line<'static>> =
            lines.into_iter().skip(self.scrolled).take(height).collect();
        frame.render_widget(Paragraph::new(shown), body);
        frame.render_widget(Paragraph::new(self.keys(width)), keys);
    }

    /// The last line.
    fn keys(&self, width: usize) -> Line<'static> {
        let mut spans = Vec::new();
        let keys = [
            ("q", "quit"),
            ("Tab", "capture"),
            ("Up/Down", "scroll"),
            ("p", "pause"),
            ("+/-", "interval"),
        ];
        for (key, meaning) in keys {
            spans.extend([
                Span::styled(key, self.look.strong()),
                Span::raw(format!(" {meaning}  ")),
            ]);
        }

        let more = match self.hidden {
            0 => String::new(),
            lines => format!("{lines} more below  "),
        };
        let state = if self.is_paused {
            "paused".to_owned()
        } else {
            format!("{:.1} s", self.interval.as_secs_f64())
        };
        let right = more + &state;
        let used: usize = spans.iter().map(Span::width).sum();
        spans.push(Span::raw(" ".repeat(width.saturating_sub(used + right.len()))));
        spans.push(Span::styled(right, self.look.dim()));

        Line::from(spans)
    }
}

/// All lines of a capture.
fn capture(look: Look, name: &str, seen: &Seen, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();

    if let Some(problem) = &seen.problem {
        let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
        lines.push(Line::from(vec![
            Span::styled(name, look.strong()),
            Span::styled(problem.clone(), look.bad()),
        ]));
    }

    let Some(now) = &seen.now else { return lines };
    let change = Change { now, before: seen.before.as_ref() };
    lines.push(heading(look, &change, width));

    let columns = Columns::of(width);
    lines.push(Line::styled(columns.heading(), look.dim()));

    let rings = change.rings();
    lines.extend(rings.iter().map(|ring| columns.ring(look, ring)));

    if rings.len() > 1 {
        lines.push(columns.sum(look, &rings));
    }

    lines.extend(interfaces(look, &change));
    lines.extend(helpers(look, &rings));
    lines.extend(losses(look, now));
    lines.extend(ports(now));
    lines.extend(writer(look, &change, width));
    lines.extend(processors(&change, width));

    lines
}

/// The values derived from two statuses of a capture.
struct Change<'a> {
    now: &'a Value,
    before: Option<&'a Value>,
}

/// A ring in numbers.
#[derive(Debug, Clone)]
struct Ring {
    name: String,
    packets_per_second: Option<f64>,
    bits_per_second: Option<f64>,
    pool: Pool,
    waiting: u64,
    captured: u64,
    posted: u64,
    filtered: Option<u64>,
    lost: u64,
    worker: u64,
    /// The workers that help, each with its total number of chunks and its chunks per second.
    helpers: Vec<(u64, u64, Option<f64>)>,
}

impl<'a> Change<'a> {
    fn seconds(&self) -> Option<f64> {
        let seconds = self.now["unix_s"].as_f64()? - self.before?["unix_s"].as_f64()?;
        (seconds > 0.0).then_some(seconds)
    }

    /// The growth of a count per second.
    fn rate(&self, now: &Value, before: Option<&Value>) -> Option<f64> {
        let grown = now.as_f64()? - before?.as_f64()?;
        Some(grown.max(0.0) / self.seconds()?)
    }

    fn named(list: &'a Value, name: &Value) -> Option<&'a Value> {
        list.as_array()?.iter().find(|item| item["name"] == *name)
    }

    fn rings(&self) -> Vec<Ring> {
        let accounts = self.now["ledger"]["rings"].as_array().into_iter().flatten();
        accounts.filter_map(|account| self.ring(account)).collect()
    }

    fn ring(&self, account: &Value) -> Option<Ring> {
        let name = &account["name"];
        let state = Self::named(&self.now["pool"]["rings"], name)?;
        let before = self.before.and_then(|before| Self::named(&before["ledger"]["rings"], name));
        let state_before =
            self.before.and_then(|before| Self::named(&before["pool"]["rings"], name));
        let capacity = state["capacity"].as_f64().filter(|cells| *cells > 0.0)?;
        let share = |field: &str| state[field].as_f64().map(|cells| cells / capacity);

        let helper = |helper: &Value| {
            let known = state_before.map(|state| {
                let mut helpers = state["helpers"].as_array().into_iter().flatten();
                helpers
                    .find(|other| other["worker"] == helper["worker"])
                    .map_or(0, |known| number(&known["chunks"]))
            });
            let rate = self.rate(&helper["chunks"], known.map(Value::from).as_ref());
            (number(&helper["worker"]), number(&helper["chunks"]), rate)
        };
        let of = |field: &str| before.map(|before| &before[field]);

        Some(Ring {
            name: text(name).to_owned(),
            packets_per_second: self.rate(&account["delivered"], of("delivered")),
            bits_per_second: self.rate(&account["bytes"], of("bytes")).map(|rate| rate * 8.0),
            pool: Pool {
                waiting: share("waiting").unwrap_or(0.0),
                captured: share("captured").unwrap_or(0.0),
                threshold: share("threshold"),
            },
            waiting: number(&state["waiting"]),
            captured: number(&state["captured"]),
            posted: number(&state["posted"]),
            filtered: account["filtered"].as_u64(),
            lost: dropped(account),
            worker: number(&state["worker"]),
            helpers: state["helpers"].as_array().into_iter().flatten().map(helper).collect(),
        })
    }
}

/// The name of the capture, its rate, and whether it lost packets.
fn heading(look: Look, change: &Change<'_>, width: usize) -> Line<'static> {
    let (now, ledger) = (change.now, &change.now["ledger"]);
    let before = change.before.map(|before| &before["ledger"]);
    let rate = |field: &str| change.rate(&ledger[field], before.map(|before| &before[field]));

    let mut parts = vec![
        text(&now["command"]).to_owned(),
        text(&ledger["engine"]).to_owned(),
        text(&ledger["mode"]).to_owned(),
        running_for(ledger["duration_s"].as_f64().unwrap_or_default()),
    ];
    if now["state"] != "running" {
        parts.push(text(&now["state"]).to_owned());
    }

    parts.extend(rate("delivered").map(|packets| format!("{}p/s", size::human_rate(packets))));
    parts.extend(rate("bytes").map(|bytes| format!("{}bit/s", size::human_rate(bytes * 8.0))));

    let verdict = text(&now["verdict"]).to_owned();
    let style = if ledger["lossless"] == true { look.good() } else { look.bad() };
    let name = text(&now["name"]).to_owned();
    let short = verdict.split(" (").next().unwrap_or_default().to_owned();
    let count = |text: &str| text.chars().count();
    let rest = |parts: &[String]| {
        parts.iter().map(|part| format!("{}{part}", look.separator())).collect::<String>()
    };

    // Parts without room are omitted completely.
    while !parts.is_empty() && count(&name) + 2 + count(&short) + count(&rest(&parts)) > width {
        parts.pop();
    }

    let rest = rest(&parts);

    // The reasons are also shown below.
    let verdict = match count(&name) + 2 + count(&verdict) + count(&rest) <= width {
        true => verdict,
        false => short,
    };
    let spans = [
        Span::styled(name, look.strong()),
        Span::raw("  "),
        Span::styled(verdict, style),
        Span::raw(rest),
    ];
    Line::from(spans.to_vec())
}

/// The columns for which there is room.
#[derive(Debug, Clone, Copy)]
struct Columns {
    name: usize,
    bar: usize,
    is_wide: bool,
    /// Without the places of the other cells.
    is_narrow: bool,
}

const COUNT: usize = 9;
const FILTERED: usize = 12;
const SERVED: usize = 12;

impl Columns {
    fn of(width: usize) -> Self {
        let is_wide = width >= 120;
        let is_narrow = width < 76;
        let counts = if is_narrow { 3 } else { 5 };
        let name = if is_wide { 20 } else { 13 };
        let wide = if is_wide { COUNT + 1 + FILTERED + 1 + SERVED + 1 } else { 0 };
        Self {
            name,
            bar: width.saturating_sub(name + counts * (COUNT + 1) + wide + 1).max(4),
            is_wide,
            is_narrow,
        }
    }

    fn heading(self) -> String {
        let Self { name, bar, is_wide, is_narrow } = self;
        let bits = if is_wide { format!(" {:>COUNT$}", "bit/s") } else { String::new() };

        let cells = if is_narrow {
            String::new()
        } else {
            format!(" {:>COUNT$} {:>COUNT$}", "captured", "posted")
        };
        let wide = if is_wide {
            format!(" {:>FILTERED$} {:>SERVED$}", "filtered", "served by")
        } else {
            String::new()
        };
        format!(
            "{:<name$} {:>COUNT$}{bits} {:<bar$} {:>COUNT$}{cells} {:>COUNT$}{wide}",
            "ring", "packets/s", "pool, T", "waiting", "lost",
        )
    }

    fn ring(self, look: Look, ring: &Ring) -> Line<'static> {
        let mut spans = self.front(&ring.name, ring.packets_per_second, ring.bits_per_second);
        spans.extend(look.bar(ring.pool, self.bar));
        let served = format!("worker {}", ring.worker);
        spans.extend(self.back(
            look,
            [ring.waiting, ring.captured, ring.posted, ring.lost],
            ring.filtered,
            &served,
        ));
        Line::from(spans)
    }

    fn sum(self, look: Look, rings: &[Ring]) -> Line<'static> {
        let rate = |of: fn(&Ring) -> Option<f64>| rings.iter().map(of).sum();
        let count = |of: fn(&Ring) -> u64| rings.iter().map(of).sum();

        let mut spans = self.front(
            "sum",
            rate(|ring| ring.packets_per_second),
            rate(|ring| ring.bits_per_second),
        );
        spans.push(Span::raw(" ".repeat(self.bar)));

        let counts = [
            count(|ring| ring.waiting),
            count(|ring| ring.captured),
            count(|ring| ring.posted),
            count(|ring| ring.lost),
        ];
        spans.extend(self.back(look, counts, rings.iter().map(|ring| ring.filtered).sum(), ""));

        Line::from(spans)
    }

    fn front(self, name: &str, packets: Option<f64>, bits: Option<f64>) -> Vec<Span<'static>> {
        let rate = |rate: Option<f64>| {
            rate.map_or("-".to_owned(), |rate| size::human_rate(rate).trim_end().to_owned())
        };
        let width = self.name;
        let short: String = name.chars().take(width).collect();
        let bits = if self.is_wide { format!(" {:>COUNT$}", rate(bits)) } else { String::new() };
        vec![Span::raw(format!("{short:<width$} {:>COUNT$}{bits} ", rate(packets)))]
    }

    fn back(
        self,
        look: Look,
        [waiting, captured, posted, lost]: [u64; 4],
        filtered: Option<u64>,
        served: &str,
    ) -> Vec<Span<'static>> {
        let shown = if self.is_narrow { vec![waiting] } else { vec![waiting, captured, posted] };
        let counts: String =
            shown.iter().map(|count| format!(" {:>COUNT$}", brief(*count, COUNT))).collect();
        let filtered = filtered.map_or("-".to_owned(), |count| brief(count, FILTERED));

        let wide = if self.is_wide {
            format!(" {filtered:>FILTERED$} {served:>SERVED$}")
        } else {
            String::new()
        };
        let style = if lost > 0 { look.bad() } else { look.dim() };
        let lost = brief(lost, COUNT);
        let pad = " ".repeat(1 + COUNT.saturating_sub(lost.len()));

        vec![Span::raw(counts), Span::raw(pad), Span::styled(lost, style), Span::raw(wide)]
    }
}

/// A count in as many columns, rounded only if it does not fit.
fn brief(count: u64, width: usize) -> String {
    let exact = grouped(count);
    if exact.len() <= width { exact } else { size::human_rate(count as f64).trim_end().to_owned() }
}

/// Which worker helps which ring, current ones first.
/// The busiest interfaces, if all are captured.
fn interfaces(look: Look, change: &Change<'_>) -> Vec<Line<'static>> {
    const LINES_MAX: usize = 10;
    let seen = change.now["ledger"]["interfaces"].as_array().map_or(&[][..], Vec::as_slice);
    let before = |index: usize| change.before.map(|before| &before["ledger"]["interfaces"][index]);

    let mut busy: Vec<(f64, u64, &str)> = (0..seen.len())
        .map(|index| {
            let delivered = &seen[index]["delivered"];
            let rate = change.rate(delivered, before(index).map(|before| &before["delivered"]));
            (rate.unwrap_or_default(), number(delivered), text(&seen[index]["name"]))
        })
        .filter(|(_, delivered, _)| *delivered > 0)
        .collect();
    busy.sort_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));

    let line = |&(rate, delivered, name): &(f64, u64, &str)| {
        let text = format!("{name}: {} packets, {}p/s", grouped(delivered), size::human_rate(rate));
        Line::from(vec![Span::styled("if    ", look.dim()), Span::raw(text)])
    };
    busy.iter().take(LINES_MAX).map(line).collect()
}

fn helpers(look: Look, rings: &[Ring]) -> Vec<Line<'static>> {
    let all = rings.iter().flat_map(|ring| ring.helpers.iter().map(move |helper| (ring, *helper)));
    let mut all: Vec<_> = all.collect();
    all.sort_by(|(_, (_, a, a_now)), (_, (_, b, b_now))| {
        b_now.unwrap_or(0.0).total_cmp(&a_now.unwrap_or(0.0)).then(b.cmp(a))
    });

    let line = |(ring, (worker, chunks, now)): &(&Ring, (u64, u64, Option<f64>))| {
        let now = match now {
            Some(rate) if *rate > 0.0 => format!(", now {}a second", size::human_rate(*rate)),
            _ => String::new(),
        };
        let arrow = look.arrow();
        Line::raw(format!(
            "help  {} {arrow} worker {worker}: {} chunks{now}",
            ring.name,
            grouped(*chunks)
        ))
    };
    let mut lines: Vec<Line<'static>> = all.iter().take(ROWS_MAX).map(line).collect();

    if all.len() > ROWS_MAX {
        lines.push(Line::styled(
            format!("      and {} more pairs", all.len() - ROWS_MAX),
            look.dim(),
        ));
    }

    lines
}

/// The losses, the latest first.
fn losses(look: Look, now: &Value) -> Vec<Line<'static>> {
    let all: Vec<&Value> = now["losses"].as_array().into_iter().flatten().collect();
    let line = |loss: &&Value| {
        let age = now["unix_s"].as_f64().unwrap_or_default()
            - loss["last_unix_s"].as_f64().unwrap_or_default();
        let (last, style) = match age {
            age if age < 2.0 => ("now".to_owned(), look.bad()),
            age => (format!("the last {} ago", running_for(age)), look.strong()),
        };

        let what = format!(
            "{}: {} packets, {}, ",
            text(&loss["place"]),
            grouped(number(&loss["packets"])),
            text(&loss["reason"])
        );
        Line::from(vec![
            Span::styled("lost", look.strong()),
            Span::raw("  "),
            Span::raw(what),
            Span::styled(last, style),
        ])
    };
    let mut lines: Vec<Line<'static>> = all.iter().take(ROWS_MAX).map(line).collect();

    if all.len() > ROWS_MAX {
        lines.push(Line::styled(
            format!("      and {} more places", all.len() - ROWS_MAX),
            look.dim(),
        ));
    }

    lines
}

fn ports(now: &Value) -> Vec<Line<'static>> {
    let ports = now["ledger"]["ports"].as_array().into_iter().flatten();
    let line = |port: &Value| {
        let [sent, waiting] = ["sent", "waiting"].map(|field| grouped(number(&port[field])));
        let lost = grouped(dropped(port));
        Line::raw(format!(
            "port  {}: {sent} sent, {lost} lost, {waiting} waiting",
            text(&port["name"])
        ))
    };
    ports.map(line).collect()
}

/// The text in as many columns, with an ellipsis for its middle if it is longer.
fn shortened(text: &str, width: usize) -> String {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(3);
    let front = kept / 2;
    let back = kept - kept / 2;
    let end = characters.len() - back;
    characters[..front].iter().chain(&['.'; 3]).chain(&characters[end..]).collect()
}

fn writer(look: Look, change: &Change<'_>, width: usize) -> Vec<Line<'static>> {
    let writer = &change.now["writer"];
    if !writer.is_object() {
        return Vec::new();
    }

    let before = change.before.map(|before| &before["writer"]);
    let rate = |field: &str| change.rate(&writer[field], before.map(|before| &before[field]));
    let discarded = number(&writer["discarded"]);
    let mut numbers = vec![format!("{} written", size::human_bytes(number(&writer["bytes"])))];
    numbers.extend(rate("bytes").map(|bytes| format!("{}/s", size::human_bytes(bytes as u64))));
    numbers.extend(rate("busy_s").map(|busy| format!("busy {:.0} %", busy.min(1.0) * 100.0)));

    let style = if discarded > 0 { look.bad() } else { look.dim() };
    let numbers = numbers.join(", ");

    // A long path loses its middle, not the numbers behind it.
    let room = width.saturating_sub("write : ".len() + numbers.len());
    let mut lines = vec![
        Line::raw(format!("write {}: {numbers}", shortened(text(&writer["to"]), room))),
        Line::from(vec![
            Span::raw(format!("      {} packets waiting, ", grouped(number(&writer["waiting"])))),
            Span::styled(format!("{} discarded", grouped(discarded)), style),
        ]),
    ];

    let [completed, indexed, to_index] =
        ["files_completed", "files_indexed", "files_to_index"].map(|field| number(&writer[field]));
    if completed > 0 {
        let indexes = match indexed + to_index {
            0 => String::new(),
            _ => format!("; {} indexed, {} to be indexed", grouped(indexed), grouped(to_index)),
        };
        lines.push(Line::raw(format!("files {} complete{indexes}", grouped(completed))));
    }

    lines
}

/// The threads' shares of a processor, in as many lines as required.
fn processors(change: &Change<'_>, width: usize) -> Vec<Line<'static>> {
    let Some(before) = change.before else { return Vec::new() };
    let mut entries = Vec::new();

    for thread in change.now["threads"].as_array().into_iter().flatten() {
        let known = Change::named(&before["threads"], &thread["name"]);
        let Some(share) = change.rate(&thread["cpu_s"], known.map(|known| &known["cpu_s"])) else {
            continue;
        };

        let name = match text(&thread["name"]) {
            "wirecap" => "main",
            name => name,
        };
        if share >= 0.005 || name.starts_with("worker") {
            entries.push(format!("{name} {:.0} %", share * 100.0));
        }
    }

    let mut lines: Vec<String> = Vec::new();

    for entry in entries {
        match lines.last_mut() {
            Some(line) if line.len() + 3 + entry.len() <= width => {
                *line = format!("{line}   {entry}");
            }
            Some(_) => lines.push(format!("      {entry}")),
            None => lines.push(format!("cpu   {entry}")),
        }
    }

    lines.into_iter().map(Line::raw).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::style::{Color, Modifier};
    use serde_json::json;

    use super::*;

    fn status(unix_s: f64, delivered: u64, lost: u64) -> Value {
        let account = |name: Option<&str>| {
            let mut account = json!({
                "delivered": delivered, "bytes": delivered * 1000, "filtered": 7,
                "dropped": { "no_cell": lost, "ring_full": 0, "device": null, "no_ring": 0, "other": 0 },
            });
            if let Some(name) = name {
                account["name"] = name.into();
            }
            account
        };
        let state = |name: &str, waiting: u64, chunks: u64| {
            json!({
                "name": name, "capacity": 1000, "waiting": waiting, "captured": 100, "posted": 900 - waiting, "free": 0,
                "threshold": 600, "worker": 0, "helpers": if chunks > 0 { json!([{ "worker": 1, "chunks": chunks }]) } else { json!([]) },
            })
        };

        let mut ledger = account(None);
        ledger["rings"] = json!([account(Some("eth1@0")), account(Some("eth1@1"))]);
        ledger["interfaces"] = json!([
            { "name": "lo", "index": 1, "delivered": 0, "bytes": 0 },
            { "name": "pod1", "index": 7, "delivered": delivered, "bytes": delivered },
        ]);
        ledger["engine"] = "xdp".into();
        ledger["mode"] = "A-(10,100,60)".into();
        ledger["duration_s"] = 12.0.into();
        ledger["lossless"] = (lost == 0).into();

        json!({
            "name": "eth1", "command": "capture", "pid": 1, "state": "running", "unix_s": unix_s, "ledger": ledger,
            "verdict": if lost == 0 { "lossless: yes" } else { "lossless: no (1,234 packets lost: 1,234 no free cell)" },
            "pool": { "rings": [state("eth1@0", 700, delivered / 100), state("eth1@1", 0, 0)] },
            "losses": if lost > 0 { json!([{ "place": "eth1@0", "reason": "no free cell", "packets": lost, "last_unix_s": unix_s }]) } else { json!([]) },
            "writer": { "to": "/data/x.pcapng", "bytes": delivered, "waiting": 3, "discarded": 0, "busy_s": unix_s / 4.0,
                        "files_completed": 2, "files_indexed": 1, "files_to_index": 1 },
            "threads": [{ "name": "wirecap", "cpu_s": unix_s / 2.0 }, { "name": "worker 0", "cpu_s": unix_s }],
        })
    }

    fn shown(look: Look, (width, height): (u16, u16), statuses: &[Value]) -> Terminal<TestBackend> {
        let mut view = View::new(look, Duration::from_secs(1));
        for status in statuses {
            view.take([("eth1".to_owned(), Ok(status.clone()))].into());
        }
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal
    }

    fn lines(terminal: &Terminal<TestBackend>) -> Vec<String> {
        let buffer = terminal.backend().buffer();
        let width = usize::from(buffer.area.width);
        let cells: Vec<&str> = buffer.content().iter().map(ratatui::buffer::Cell::symbol).collect();
        cells.chunks(width).map(<[&str]>::concat).collect()
    }

    #[test]
    fn a_small_and_a_large_terminal_show_the_mechanism() {
        let statuses = [status(10.0, 10_000, 0), status(12.0, 30_000, 1_234)];
        for size in [(80, 24), (200, 50)] {
            let text = lines(&shown(Look::new(true, false), size, &statuses)).join("\n");

            for words in [
                "eth1  lossless: no",
                " - capture - xdp - A-(10,100,60) - 12.0 s - 10 kp/s",
                "help  eth1@0 -> worker 1: 300 chunks, now 100 a second",
                "if    pod1: 30,000 packets, 10 kp/s",
                "lost  eth1@0: 1,234 packets, no free cell, now",
                "write /data/x.pcapng: 29.3 KiB written, 9.8 KiB/s, busy 25 %",
                "      3 packets waiting, 0 discarded",
                "files 2 complete; 1 indexed, 1 to be indexed",
                "cpu   main 50 %   worker 0 100 %",
                "q quit",
            ] {
                assert!(text.contains(words), "{words:?} is not in\n{text}");
            }

            let row = text.lines().find(|line| line.starts_with("eth1@0 ")).unwrap();
            assert!(row.contains("####|#=") || row.contains("#|##"), "{row}");
            assert!(
                row.trim_end().ends_with(if size.0 == 80 { "1,234" } else { "worker 0" }),
                "{row}"
            );
            assert_eq!(text.contains("served by"), size.0 == 200);
        }
    }

    #[test]
    fn a_long_path_loses_its_middle() {
        assert_eq!(shortened("/data/x.pcapng", 14), "/data/x.pcapng");
        assert_eq!(shortened("/data/recordings/x.pcapng", 14), "/data...pcapng");
        assert_eq!([shortened("/data", 3), shortened("/data", 0)], ["...", "..."]);
    }

    #[test]
    fn without_colour_loss_is_still_marked() {
        let statuses = [status(10.0, 10_000, 0), status(12.0, 30_000, 1_234)];
        for has_colours in [true, false] {
            let terminal = shown(Look::new(has_colours, true), (80, 24), &statuses);
            let cells = terminal.backend().buffer().content();
            let is_coloured =
                cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
            assert_eq!(is_coloured, has_colours);
            assert!(
                has_colours || cells.iter().any(|cell| cell.modifier.contains(Modifier::REVERSED))
            );
        }
    }

    #[test]
    fn any_terminal_size_is_drawn_and_the_rest_can_be_scrolled_to() {
        let statuses = [status(10.0, 10_000, 0), status(12.0, 30_000, 1_234)];
        for size in [(1, 1), (3, 2), (20, 5), (79, 3), (300, 100)] {
            drop(shown(Look::new(true, true), size, &statuses));
        }

        let mut view = View::new(Look::new(true, true), Duration::from_secs(1));
        view.take([("eth1".to_owned(), Ok(statuses[0].clone()))].into());

        let mut terminal = Terminal::new(TestBackend::new(80, 5)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        assert!(lines(&terminal)[4].contains("more below"));
        view.scroll(100);
        terminal.draw(|frame| view.draw(frame)).unwrap();
        assert!(!lines(&terminal)[4].contains("more below"), "{:?}", lines(&terminal));
        assert!(lines(&terminal)[3].starts_with("files 2 complete"), "{:?}", lines(&terminal));
    }

    #[test]
    fn captures_are_shown_in_turn_or_together_and_failures_have_a_reason() {
        let mut view = View::new(Look::new(false, false), Duration::from_secs(1));
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();

        let mut draw = |view: &mut View| {
            terminal.draw(|frame| view.draw(frame)).unwrap();
            lines(&terminal).join("\n")
        };
        view.take(Statuses::new());
        assert!(draw(&mut view).contains("no capture is running"));

        let problem = || Err("cannot connect".to_owned());
        view.take(
            [("eth1".to_owned(), Ok(status(1.0, 1, 0))), ("eth2".to_owned(), problem())].into(),
        );

        let all = draw(&mut view);
        assert!(
            all.contains("eth1  lossless: yes - capture") && all.contains("eth2: cannot connect"),
            "{all}"
        );
        view.next(1);
        assert!(!draw(&mut view).contains("eth2"));
        view.next(1);

        let second = draw(&mut view);
        assert!(second.contains("eth2: cannot connect") && !second.contains("eth1"), "{second}");
        view.next(1);
        assert_eq!(draw(&mut view), all);
    }
}
