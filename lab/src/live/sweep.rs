//! Trials of several contenders at several points of a scale, in turn, so that disturbances affect
//! all alike.

use std::collections::BTreeMap;

use wirecap::grouped;

use super::Outcome;
use super::contender::Contender;
use super::programs::order::Order;
use super::trial::{Outside, Trial};
use crate::chart::lines::{Axis, Curve, Lines, Look, Point as ChartPoint};
use crate::chart::signed;
use crate::experiment::{Findings, Run, RunError, Table};

/// A trial with its contender and its point.
#[derive(Debug, Clone)]
pub struct Point {
    /// The contender's number.
    pub contender: usize,
    /// The point on the scale.
    pub x: f64,
    /// The number of the repetition.
    pub round: usize,
    /// The trial and its results.
    pub trial: Trial,
}

/// What a sweep found.
#[derive(Debug, Clone, Default)]
pub struct Sweep {
    /// The contenders.
    pub contenders: Vec<Contender>,
    /// All trials.
    pub points: Vec<Point>,
    /// The contenders that could not take part, by number, with the reasons.
    pub absent: BTreeMap<usize, String>,
}

/// The progress range of a sweep within its experiment.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// The share done before it.
    pub from: f64,
    /// The share done after it.
    pub to: f64,
}

impl Share {
    /// The whole experiment.
    pub const WHOLE: Self = Self { from: 0.0, to: 1.0 };

    fn at(self, done: f64) -> f64 {
        self.from + (self.to - self.from) * done
    }
}

impl Sweep {
    /// Tries every contender at every point, `rounds` times. A rival that fails is omitted from
    /// then on.
    ///
    /// # Errors
    ///
    /// If the user interrupts, or wirecap fails.
    pub fn run(
        run: &Run<'_>,
        share: Share,
        contenders: &[Contender],
        places: &[f64],
        rounds: usize,
        mut trial: impl FnMut(&Contender, f64) -> Outcome<Trial>,
    ) -> Result<Self, RunError> {
        let mut sweep = Self { contenders: contenders.to_vec(), ..Self::default() };
        for (index, contender) in contenders.iter().enumerate() {
            contender.lacking().map(|reason| sweep.absent.insert(index, reason));
        }

        let count = (rounds * places.len() * contenders.len()) as f64;
        let mut done = 0.0;

        for round in 0..rounds {
            for &x in places {
                for (index, contender) in contenders.iter().enumerate() {
                    run.step(share.at(done / count), &contender.name)?;
                    done += 1.0;
                    if !sweep.absent.contains_key(&index) {
                        // A single failure may be caused by a disturbance.
                        let outcome = trial(contender, x).or_else(|_| trial(contender, x));
                        sweep.note(index, x, round, outcome)?;
                    }
                }
            }
        }

        Ok(sweep)
    }

    fn note(
        &mut self,
        contender: usize,
        x: f64,
        round: usize,
        trial: Outcome<Trial>,
    ) -> Result<(), RunError> {
        let Contender { name, is_ours, .. } = &self.contenders[contender];

        match trial {
            Ok(trial) => self.points.push(Point { contender, x, round, trial }),
            Err(error) if *is_ours => {
                return Err(RunError::Failed(format!("{name}: {error}").into()));
            }
            Err(error) => drop(self.absent.insert(contender, format!("it failed: {error}"))),
        }
        Ok(())
    }

    /// The trials of one contender at one point, in all rounds.
    pub fn at(&self, contender: usize, x: f64) -> Vec<Trial> {
        let here = |point: &&Point| point.contender == contender && point.x == x;
        self.points.iter().filter(here).map(|point| point.trial).collect()
    }

    /// The places, in order.
    fn places(&self) -> Vec<f64> {
        let mut places: Vec<f64> = self.points.iter().map(|point| point.x).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        places
    }

    /// A curve for each contender: the median of `height` at each point with its spread, at the
    /// median of `along`.
    pub fn curves(
        &self,
        along: impl Fn(f64, &Trial) -> f64,
        height: impl Fn(&Trial) -> f64,
    ) -> Vec<Curve> {
        let present = (0..self.contenders.len()).filter(|index| !self.absent.contains_key(index));
        let curve = |index: usize| {
            let point = |x: f64| {
                let trials = self.at(index, x);
                let places: Vec<f64> = trials.iter().map(|trial| along(x, trial)).collect();
                let heights: Vec<f64> = trials.iter().map(&height).collect();
                ChartPoint::of(ChartPoint::of(0.0, &places)?.y, &heights)
            };
            let mut points: Vec<ChartPoint> = self.places().into_iter().filter_map(point).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            Curve { name: self.contenders[index].name.clone(), points, look: Look::Marked }
        };
        present.map(curve).collect()
    }

    /// A chart of the losses, in percent.
    pub fn loss_chart(&self, x: Axis, along: impl Fn(f64, &Trial) -> f64) -> Lines {
        loss_chart(x, self.curves(along, Trial::lost_percent))
    }

    /// The median losses of wirecap's contenders at the points where there are any, in a sentence.
    pub fn own_losses(&self, unit: &str) -> String {
        let ours = self.contenders.iter().enumerate().filter(|(_, contender)| contender.is_ours);
        let told = ours.map(|(index, contender)| {
            let lost = self.places().into_iter().filter_map(|x| {
                let shares: Vec<f64> = self.at(index, x).iter().map(Trial::lost_percent).collect();
                let point = ChartPoint::of(x, &shares)?;
                let most = point.spread.map_or(point.y, |(_, most)| most);
                let share = || format!("(median {:.2} %, at most {most:.2} %)", point.y);
                (most > 0.0).then(|| format!("{} {unit} {}", grouped(x as u64), share()))
            });
            match lost.collect::<Vec<_>>().join(", ") {
                lost if lost.is_empty() => format!("{} lost nothing", contender.name),
                lost => format!("{} lost packets at {lost}", contender.name),
            }
        });
        format!("{}.", told.collect::<Vec<_>>().join("; "))
    }

    /// The accounts of each contender, summed over all trials; the data file `name`-runs.csv has a
    /// line per trial.
    pub fn books(&self, name: &str) -> Table {
        let columns = [
            "contender",
            "runs",
            "sent",
            "delivered",
            "lost at the interface",
            "lost by its own count",
            "unexplained",
            "disturbed runs",
        ];
        let caption = format!("The books of all runs of {name}-runs.csv together.");
        let mut table = Table::new(caption, &columns);

        for (index, contender) in self.contenders.iter().enumerate() {
            let trials: Vec<Trial> = self
                .points
                .iter()
                .filter(|point| point.contender == index)
                .map(|point| point.trial)
                .collect();
            if trials.is_empty() {
                continue;
            }

            let sum = |count: fn(&Trial) -> u64| grouped(trials.iter().map(count).sum());
            let says = trials.iter().any(|trial| trial.lost_reported.is_some());
            let unexplained: i64 = trials.iter().map(Trial::unexplained).sum();

            table.row([
                contender.name.clone(),
                trials.len().to_string(),
                sum(|trial| trial.sent),
                sum(|trial| trial.delivered),
                sum(|trial| trial.lost_at_interface),
                if says {
                    sum(|trial| trial.lost_reported.unwrap_or(0))
                } else {
                    "not told".to_owned()
                },
                signed(unexplained),
                trials.iter().filter(|trial| trial.is_disturbed()).count().to_string(),
            ]);
        }

        table
    }

    /// Every trial, a line each.
    pub fn table(&self, place: &str) -> Table {
        let columns = [
            "contender",
            place,
            "round",
            "sent",
            "counted by the interface",
            "lost at the interface",
            "delivered",
            "lost by its own count",
            "seconds",
            "receiver cpu s",
            "sender cpu s",
            "softirq threads cpu s",
            "waited share",
            "steal share",
            "longest gap s",
            "disturbed",
            "packets out of order",
            "flows",
            "flows of several threads",
        ];
        let mut table = Table::new("", &columns);

        for point in &self.points {
            let trial = &point.trial;
            let outside = |tell: &dyn Fn(&Outside) -> String| {
                trial.outside.as_ref().map(tell).unwrap_or_default()
            };
            let order = |count: fn(&Order) -> u64| {
                trial.order.as_ref().map(|order| count(order).to_string()).unwrap_or_default()
            };
            table.row([
                self.contenders[point.contender].name.clone(),
                point.x.to_string(),
                point.round.to_string(),
                trial.sent.to_string(),
                trial.counted.to_string(),
                trial.lost_at_interface.to_string(),
                trial.delivered.to_string(),
                trial.lost_reported.map(|lost| lost.to_string()).unwrap_or_default(),
                format!("{:.6}", trial.seconds),
                format!("{:.6}", trial.receiver_seconds),
                format!("{:.6}", trial.sender_seconds),
                format!("{:.6}", trial.softirq_seconds),
                format!("{:.4}", trial.waited),
                outside(&|outside| format!("{:.4}", outside.stolen_share)),
                outside(&|outside| format!("{:.6}", outside.longest_gap)),
                u8::from(trial.is_disturbed()).to_string(),
                order(|order| order.out_of_order),
                order(|order| order.flows),
                order(|order| order.shared_flows),
            ]);
        }
        table
    }

    /// Adds accounts, raw data, commands and missing contenders.
    pub fn account(&self, findings: &mut Findings, name: &str, place: &str) {
        findings.tables.push(self.books(name));
        let csv = self.table(place).csv();
        findings.data.push(crate::experiment::DataFile { name: format!("{name}-runs.csv"), csv });

        if self.contenders.iter().any(|contender| contender.passing) {
            note(&mut findings.notes, PASSING.to_owned());
        }

        for (index, contender) in self.contenders.iter().enumerate() {
            match self.absent.get(&index) {
                Some(reason) => {
                    note(&mut findings.notes, format!("Absent: {}: {reason}.", contender.name));
                }
                None => {
                    commands(contender).for_each(|command| note(&mut findings.commands, command));
                }
            }
        }
    }
}

/// A chart of losses, whose axis ends above the largest.
pub fn loss_chart(x: Axis, curves: Vec<Curve>) -> Lines {
    let all = curves.iter().flat_map(|curve| &curve.points);
    let most = all.map(|point| point.spread.map_or(point.y, |(_, most)| most)).fold(0.0, f64::max);
    Lines { x, y: Axis::percent_up_to("packets lost", most), curves }
}

/// The actual memory of contenders on AF_PACKET, which differs from the requested one.
const PASSING: &str = "Contenders on AF_PACKET have an XDP program on the receiving interface that passes everything: \
                       without one a veth loses frames that are generated in the kernel, and no counter shows them.";

/// Adds remarks that another sweep of the experiment does not have yet.
fn note(said: &mut Vec<String>, text: String) {
    if !said.contains(&text) {
        said.push(text);
    }
}

fn commands(contender: &Contender) -> impl Iterator<Item = String> {
    let companion = contender.companion.iter().map(|(command, _)| command.by_name());
    companion.chain([contender.command.by_name()]).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Effort, Unwatched};
    use crate::live::contender::Books;
    use crate::live::process::CommandLine;

    const RUN: Run<'static> = Run { effort: Effort::Quick, seed: 1, watch: &Unwatched };

    fn rival(name: &str, program: &str) -> Contender {
        Contender::new(name, CommandLine::new(program).with("-w FILE"), "", Books::Testpmd)
    }

    #[test]
    fn a_missing_or_failing_rival_is_listed_with_the_reason_and_the_others_run() {
        let contenders = [
            rival("one", "/bin/sh"),
            rival("two", "no-such-sniffer").from_package("sniffers"),
            rival("three", "/bin/sh"),
        ];
        let mut tries = 0;

        let sweep = Sweep::run(&RUN, Share::WHOLE, &contenders, &[1.0, 2.0], 2, |contender, _| {
            tries += 1;
            match contender.name.as_str() {
                "one" => Ok(Trial {
                    sent: 10,
                    counted: 10,
                    delivered: 7,
                    lost_reported: Some(2),
                    ..Trial::default()
                }),
                "three" => Err("no such device".into()),
                other => panic!("{other} is not installed"),
            }
        })
        .unwrap();

        // Four trials of the first contender; the third one is tried once and repeated once.
        assert_eq!((tries, sweep.points.len()), (6, 4));
        let mut findings = Findings::default();
        sweep.account(&mut findings, "sweep", "x");

        // No remark appears twice.
        sweep.account(&mut findings, "sweep-2", "x");
        let absent = [
            "Absent: two: no-such-sniffer is not installed (Debian package sniffers).",
            "Absent: three: it failed: no such device.",
        ];
        assert_eq!(findings.notes, absent);
        assert_eq!(findings.commands, ["sh -w FILE"]);
        assert_eq!(findings.tables[0].rows[0], ["one", "4", "40", "28", "0", "8", "4", "0"]);
    }

    #[test]
    fn when_wirecap_fails_the_experiment_does() {
        let ours = Contender { is_ours: true, ..rival("wirecap", "/bin/sh") };
        let outcome =
            Sweep::run(&RUN, Share::WHOLE, &[ours], &[1.0], 1, |_, _| Err("no such device".into()));
        assert_eq!(outcome.unwrap_err().to_string(), "wirecap: no such device");
    }

    #[test]
    fn the_losses_of_wirecap_are_a_sentence_of_its_own() {
        let contenders = vec![
            Contender { is_ours: true, ..rival("wirecap, xdp", "") },
            Contender { is_ours: true, ..rival("wirecap, packet", "") },
            rival("other", ""),
        ];
        let point = |contender, x, delivered| Point {
            contender,
            x,
            round: 0,
            trial: Trial { sent: 1000, delivered, ..Trial::default() },
        };
        let points = vec![
            point(0, 60.0, 1000),
            point(0, 1514.0, 473),
            point(0, 1514.0, 500),
            point(0, 1514.0, 400),
            point(1, 1514.0, 1000),
            point(2, 1514.0, 5),
        ];
        let sweep = Sweep { contenders, points, ..Sweep::default() };
        assert_eq!(
            sweep.own_losses("bytes"),
            "wirecap, xdp lost packets at 1,514 bytes (median 52.70 %, at most 60.00 %); wirecap, packet lost nothing."
        );
    }

    #[test]
    fn a_curve_is_the_medians_with_their_spread() {
        let trial = |delivered| Trial { sent: 100, delivered, ..Trial::default() };
        let points = [90, 70, 80].map(|delivered| Point {
            contender: 0,
            x: 5.0,
            round: 0,
            trial: trial(delivered),
        });
        let sweep =
            Sweep { contenders: vec![rival("one", "")], points: points.into(), ..Sweep::default() };
        let curve = &sweep.loss_chart(Axis::linear("x"), |x, _| x).curves[0];
        assert_eq!(curve.points, [ChartPoint { x: 5.0, y: 20.0, spread: Some((10.0, 30.0)) }]);
    }
}
