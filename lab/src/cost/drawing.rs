//! The report as a picture: the bars of both engines beside those of the WinPcap paper.

use super::Report;
use super::bar::{Bar, Step};
use crate::chart::bars::{self, Bars, Group};
use crate::chart::rounded;

impl Report {
    /// The bars as SVG: in cycles, or, if the processor has no counter of cycles, in nanoseconds
    /// and without the paper's bars.
    pub fn picture(&self) -> String {
        let unit = if self.tsc_hz.is_some() { "cycles per packet" } else { "ns per packet" };
        let all = self.bars.iter().filter(|bar| self.tsc_hz.is_some() || bar.ns().is_some());
        let bars = all.map(|bar| drawn(bar, self.tsc_hz.is_some())).collect();
        Bars {
            axis: unit.to_owned(),
            series: Step::ALL.map(|step| step.words().to_owned()).to_vec(),
            groups: vec![Group { name: String::new(), bars }],
            notes: self.notes(),
        }
        .svg()
    }

    fn notes(&self) -> Vec<String> {
        let bytes = self.frame_bytes;
        let ours = format!(
            "wirecap: {bytes}-byte frames on a veth pair (no hardware), without the sender."
        );
        let mut notes = vec![ours];

        if self.tsc_hz.is_some() {
            notes.push(
                "WinPcap: 64-byte frames, a machine of 2003 (Degioanni et al., SBAC-PAD).".into(),
            );
            notes.push(
                "Hollow: not in its text, but what is left of the total that it states.".into(),
            );
        }

        notes.extend(self.bars.iter().flat_map(undrawn));
        notes
    }
}

/// A part that is negative because of noise has no length, and is listed.
fn undrawn(bar: &Bar) -> impl Iterator<Item = String> {
    let negative =
        bar.parts.iter().filter_map(|part| Some((part, part.ns.filter(|ns| *ns < 0.0)?)));
    negative.map(|(part, ns)| {
        format!("{}: not drawn, since negative: {}, {ns:.0} ns.", bar.name, part.step.words())
    })
}

fn drawn(bar: &Bar, in_cycles: bool) -> bars::Bar {
    let part = |part: &super::Part| {
        let series =
            Step::ALL.iter().position(|step| *step == part.step).expect("all steps are there");
        let value = if in_cycles { part.cycles } else { part.ns };
        bars::Part { series, value: value.unwrap_or(0.0), hollow: !part.stated }
    };
    let cycles = bar.cycles().filter(|_| in_cycles).map(rounded);
    let ns = bar.ns().map(|ns| format!("{} ns", rounded(ns)));
    let label = cycles.into_iter().chain(ns).collect::<Vec<_>>().join(" = ");
    bars::Bar { name: bar.name.clone(), label, parts: bar.parts.iter().map(part).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Part, winpcap};

    fn report(bars: Vec<Bar>) -> Report {
        Report {
            rounds: 1,
            frames: 1,
            frame_bytes: 60,
            cells: 1,
            tsc_hz: Some(2e9),
            components: Vec::new(),
            bars,
            next: Vec::new(),
            books: Vec::new(),
            cache_lines_ns: super::super::Figures::default(),
            disturbed: 0,
        }
    }

    #[test]
    fn negative_costs_are_listed() {
        let part = |step, ns| Part { step, ns: Some(ns), cycles: Some(ns), stated: true };
        let parts = vec![part(Step::Driver, 9.0), part(Step::Filter, -2.0)];
        let picture = report(vec![Bar { name: "ours".into(), parts }]).picture();
        assert!(
            picture
                .contains("ours: not drawn, since negative: filter: one port among five, -2 ns."),
            "{picture}"
        );
        assert!(picture.contains("7 = 7 ns"), "the sum has it: {picture}");
    }

    #[test]
    fn the_papers_totals_stand_at_their_bars() {
        let report = report(winpcap::bars());
        let picture = report.picture();
        assert!(picture.contains("5,680") && picture.contains("3,164"), "{picture}");
        let without = Report { tsc_hz: None, ..report }.picture();
        assert!(
            !without.contains("5,680"),
            "cycles of another machine say nothing beside our nanoseconds"
        );
    }

    #[test]
    fn every_step_looks_different() {
        assert!(Step::ALL.len() <= crate::chart::SERIES_MAX);
    }
}
