//! The report: one HTML page with all findings, which needs no other file.
//!
//! Simulated and measured experiments are treated alike: the page shows [`Findings`], part by part,
//! after a table of expected and actual results.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::{themed, unbroken};
use crate::experiment::{Basis, Claim, Findings, Part, Table, Verdict};
use crate::machine::Machine;
use crate::runner::Entry;

/// The contents of a report.
#[derive(Debug, Clone)]
pub struct Report<'a> {
    /// Its heading.
    pub title: &'a str,
    /// The experiments and their conditions, in a sentence or two.
    pub about: &'a str,
    /// The command that makes it again.
    pub command: &'a str,
    /// The machine, if there were measurements.
    pub machine: Option<&'a Machine>,
    /// The experiments.
    pub entries: &'a [Entry],
}

const STYLE: &str = include_str!("report.css");

impl Report<'_> {
    /// The page. The same content always gives the same bytes.
    pub fn html(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { (self.title) }
                    p { (self.about) }
                    pre { (self.command) }
                    @if let Some(machine) = self.machine { (facts("The machine", machine)) }
                    (self.headlines())
                    (self.summary())
                    @for part in [Part::Simulated, Part::Live] { (self.part(part)) }
                }
            }
        };
        page.into_string()
    }

    fn of(&self, part: Part) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.part == part)
    }

    /// The losses of wirecap, in a sentence for each experiment that measured them.
    fn headlines(&self) -> Markup {
        let all = self
            .entries
            .iter()
            .filter_map(|entry| Some((entry, &entry.outcome.as_ref().ok()?.headline)));
        let all: Vec<_> = all.filter(|(_, headline)| !headline.is_empty()).collect();
        html! {
            @if !all.is_empty() {
                h2 { "What wirecap lost" }
                ul { @for (entry, headline) in all {
                    li { a href=(format!("#{}", entry.id)) { (entry.title) } ": " (headline.trim()) }
                } }
            }
        }
    }

    /// The number of claims that hold, by experiment, and the claims that do not.
    fn summary(&self) -> Markup {
        let found: Vec<(&Entry, &Findings)> = self
            .entries
            .iter()
            .filter_map(|entry| Some((entry, entry.outcome.as_ref().ok()?)))
            .collect();
        let all = || found.iter().flat_map(|(_, findings)| &findings.claims);
        let is_compared = |claim: &&Claim| claim.counts() && claim.verdict != Verdict::NotModelled;
        let compared: Vec<&Claim> = all().filter(is_compared).collect();
        let count = |verdict| compared.iter().filter(|claim| claim.verdict == verdict).count();
        let is_modelled = |claim: &&Claim| claim.verdict != Verdict::NotModelled;
        let not_modelled = all().filter(|claim| !is_modelled(claim)).count();
        let shown = all().filter(is_modelled).filter(|claim| !claim.counts()).count();
        let open: Vec<&Claim> = all().filter(|claim| claim.verdict != Verdict::Holds).collect();
        html! {
            @if all().next().is_some() {
                h2 { "Expected and found" }
                p {
                    (compared.len()) " comparisons. Holds: " (count(Verdict::Holds)) ". Differs: "
                    (count(Verdict::Differs)) ". Tie: " (count(Verdict::Tie))
                    " (an order by no more than two hundredths of a percentage point). Open: " (count(Verdict::NotDerivable))
                    " (a published figure that contradicts the parameters published with it). \
                     Shares hold if they are within five percentage points, orders if they are right by more than a tie, with \
                     every seed."
                }
                @if not_modelled + shown > 0 {
                    p {
                        "Not counted: results that are not modelled (" (not_modelled) "), and comparisons that could not \
                         have failed or are not published, which are only shown (" (shown) "): inputs of the models, bounds, \
                         loads that we chose, and our own expectations. If one of these differs, it counts as different."
                    }
                }
                div.scroll { table {
                    thead { tr {
                        th { "experiment" }
                        @for name in ["holds", "differs", "tie", "open", "not modelled", "only shown"] {
                            th.number { (name) }
                        }
                    } }
                    tbody { @for (entry, findings) in &found { (tally(entry, &findings.claims)) } }
                } }
                @if !open.is_empty() {
                    h4 { "What does not hold" }
                    (claims_table(open))
                }
            }
        }
    }

    fn part(&self, part: Part) -> Markup {
        let heading = match part {
            Part::Simulated => "Simulated",
            Part::Live => "Measured",
        };
        html! {
            @if self.of(part).next().is_some() {
                h2 { (heading) }
                @for entry in self.of(part) { (section(entry)) }
            }
        }
    }
}

fn section(entry: &Entry) -> Markup {
    html! {
        section id=(entry.id) {
            h3 { (entry.title) }
            @match &entry.outcome {
                Ok(findings) => (content(&entry.id, findings)),
                Err(reason) => p.failed { "Not done: " (reason) },
            }
        }
    }
}

fn content(id: &str, findings: &Findings) -> Markup {
    html! {
        p { (findings.what) }
        @for figure in &findings.figures {
            figure {
                (PreEscaped(themed(&figure.svg)))
                figcaption { (figure.caption) }
            }
        }
        @for table in &findings.tables { (table_of(table)) }
        @if !findings.claims.is_empty() { (claims_table(&findings.claims)) }
        @for note in &findings.notes { p { (note) } }
        @if !findings.settings.is_empty() {
            p.settings {
                @for (index, (name, value)) in findings.settings.iter().enumerate() {
                    @if index > 0 { "; " }
                    (name) ": " (value)
                }
                "."
            }
        }
        @if !findings.commands.is_empty() { pre { (findings.commands.join("\n")) } }
        @if !findings.data.is_empty() {
            p.settings {
                "Data: "
                @for (index, file) in findings.data.iter().enumerate() {
                    @if index > 0 { ", " }
                    a href=(format!("data/{id}/{}", file.name)) { (file.name) }
                }
            }
        }
    }
}

fn table_of(table: &Table) -> Markup {
    let is_number = |column: usize| {
        let mut cells = table.rows.iter().filter_map(|row| row.get(column)).peekable();
        cells.peek().is_some() && cells.all(|cell| begins_as_number(cell))
    };
    let classes: Vec<Option<&str>> =
        (0..table.columns.len()).map(|column| is_number(column).then_some("number")).collect();
    html! {
        p.caption { (table.caption) }
        div.scroll {
            table {
                thead { tr {
                    @for (name, class) in table.columns.iter().zip(&classes) { th class=[class] { (name) } }
                } }
                tbody {
                    @for row in &table.rows { tr {
                        @for (cell, class) in row.iter().zip(&classes) { td class=[class] { (unbroken(cell)) } }
                    } }
                }
            }
        }
    }
}

fn begins_as_number(cell: &str) -> bool {
    let digits = cell.trim_start_matches(['+', '-', '−']);
    cell.is_empty() || cell == "-" || digits.starts_with(|first: char| first.is_ascii_digit())
}

/// A row of the summary.
fn tally(entry: &Entry, claims: &[Claim]) -> Markup {
    let count =
        |is_one: &dyn Fn(&Claim) -> bool| claims.iter().filter(|claim| is_one(claim)).count();
    let counted = |verdict| count(&|claim| claim.counts() && claim.verdict == verdict);

    let verdicts = [
        Verdict::Holds,
        Verdict::Differs,
        Verdict::Tie,
        Verdict::NotDerivable,
        Verdict::NotModelled,
    ];
    let shown = count(&|claim| !claim.counts());
    html! {
        tr {
            td { a href=(format!("#{}", entry.id)) { (entry.title) } }
            @for number in verdicts.map(counted).into_iter().chain([shown]) {
                td.number { @if number > 0 { (number) } }
            }
        }
    }
}

fn claims_table<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> Markup {
    let claims: Vec<&Claim> = claims.into_iter().collect();
    let points = claims.iter().any(|claim| claim.points.is_some());
    html! {
        div.scroll {
            table.claims {
                thead { tr {
                    th { "quantity" } th { "expected" } th { "found" }
                    @if points { th.number { "points" } }
                    th { "" }
                } }
                tbody { @for claim in claims { tr {
                    td { (claim.quantity) @if !claim.reason.is_empty() { div.pale { (claim.reason) } } }
                    td data-name="expected" { (unbroken(&claim.expected)) }
                    td data-name="found" { (unbroken(&claim.found)) }
                    @if points {
                        td.number data-name="points" { @if let Some(points) = claim.points { (signed(points)) } }
                    }
                    (verdict_cell(claim))
                } } }
            }
        }
    }
}

/// A difference in percentage points.
fn signed(points: f64) -> String {
    let rounded = (points * 10.0).round() / 10.0;
    if rounded == 0.0 { "0.0".to_owned() } else { format!("{rounded:+.1}") }
}

fn verdict_cell(claim: &Claim) -> Markup {
    let (class, text) = match (claim.verdict, claim.basis) {
        (Verdict::Differs, _) => ("differs", "differs"),
        (Verdict::NotModelled, _) => ("pale", "not modelled"),
        (_, Basis::Input) => ("pale", "input"),
        (_, Basis::Bound) => ("pale", "bound"),
        (_, Basis::OurLoad) => ("pale", "our load"),
        (_, Basis::Ours) => ("pale", "our expectation"),
        (Verdict::Holds, Basis::Result) => ("holds", "holds"),
        (Verdict::Tie, Basis::Result) => ("open", "tie"),
        (Verdict::NotDerivable, Basis::Result) => ("open", "open"),
    };
    html! { td class=(class) { (text) } }
}

fn facts(heading: &str, machine: &Machine) -> Markup {
    html! {
        h4 { (heading) }
        dl.facts {
            @for (name, value) in &machine.facts { dt { (name) } dd { (value) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Figure;

    fn entry(outcome: Result<Findings, String>) -> Entry {
        Entry { id: "one".to_owned(), title: "One <& two".to_owned(), part: Part::Live, outcome }
    }

    fn page(entries: &[Entry]) -> String {
        let machine = Machine { facts: vec![("kernel".to_owned(), "6.18".to_owned())] };
        Report {
            title: "Lab",
            about: "a",
            command: "wirecap-lab",
            machine: Some(&machine),
            entries,
        }
        .html()
    }

    #[test]
    fn the_page_contains_the_findings_escaped() {
        let mut table = Table::new("A table.", &["engine", "lost"]);
        table.row(["<dna>".to_owned(), "9.3 %".to_owned()]);

        let findings = Findings {
            claims: vec![
                Claim::points("quantity", 10.0, &[30.0]).because("reason"),
                Claim::holds("an input", "1", true, "1").only_shown(Basis::Input),
                Claim::holds("a wrong bound", "1", false, "2").only_shown(Basis::Bound),
                Claim::not_modelled("something", "1", "no model"),
            ],
            figures: vec![Figure {
                caption: "c".to_owned(),
                svg: "<svg fill=\"#222222\"></svg>".to_owned(),
            }],
            ..Findings::default()
        };
        let page = page(&[entry(Ok(findings.with_table("t", table)))]);

        for part in [
            "One &lt;&amp; two",
            "&lt;dna&gt;",
            "<td class=\"number\">9.3\u{a0}%</td>",
            "var(--ink, #222222)",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }

        assert!(page.contains("data/one/t.csv") && page.contains("+20.0"), "{page}");
        assert!(page.contains("2 comparisons. Holds: 0. Differs: 2. Tie: 0 "), "{page}");
        assert!(page.contains("not modelled (1), and comparisons"), "{page}");
        assert!(page.contains("only shown (1): inputs"), "{page}");
        assert!(page.contains("Measured") && !page.contains("Simulated"));
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = page(&[]);
        assert!(
            !page.contains("<link") && !page.contains("<script") && !page.contains("url("),
            "{page}"
        );
    }

    #[test]
    fn a_failed_experiment_has_a_reason() {
        assert!(
            page(&[entry(Err("no tcpdump here".to_owned()))]).contains("Not done: no tcpdump here")
        );
    }
}
