//! The parts of a packet's cost as stacked bars, in the same steps: wirecap's by engine, WinPcap's
//! by figure.

use serde::Serialize;

use super::{Component, Id};

/// A step of a packet's way from the driver to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The driver, interrupts included.
    Driver,
    /// The kernel's socket buffer for the packet, and its processing in the host's stack.
    SocketBuffer,
    /// The capture's hook in the kernel. With the engine `packet` it includes the clock and the
    /// copy.
    Tap,
    /// Reading the clock.
    Timestamp,
    /// One TCP port among five.
    Filter,
    /// The copy into the capture's memory; with the engine `xdp`, with 2,048 cells in circulation.
    Copy,
    /// The additional time because the pool's cells do not fit into the processor's cache.
    ColdCells,
    /// The copy to user space, if there is one.
    SecondCopy,
    /// Handing packets to the application, system calls included.
    HandOver,
    /// Giving the memory back.
    Recycle,
}

impl Step {
    /// All of them, in the order in which a packet passes them.
    pub const ALL: [Self; 10] = [
        Self::Driver,
        Self::SocketBuffer,
        Self::Tap,
        Self::Timestamp,
        Self::Filter,
        Self::Copy,
        Self::ColdCells,
        Self::SecondCopy,
        Self::HandOver,
        Self::Recycle,
    ];

    /// In a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Driver => "driver and interrupts",
            Self::SocketBuffer => "socket buffer and host's stack",
            Self::Tap => "tap (engine packet: with clock and copy)",
            Self::Timestamp => "timestamp",
            Self::Filter => "filter: one port among five",
            Self::Copy => "first copy (xdp: with few cells in turn)",
            Self::ColdCells => "first copy: more with a whole pool in turn",
            Self::SecondCopy => "second copy, to user space",
            Self::HandOver => "hand-over to the application",
            Self::Recycle => "recycle",
        }
    }
}

impl Step {
    /// The same with the copy as one step.
    pub fn whole(self) -> &'static str {
        match self {
            Self::Copy | Self::ColdCells => "first copy, redirect included",
            step => step.words(),
        }
    }
}

/// One step's share of a bar.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Part {
    /// Which step.
    pub step: Step,
    /// Nanoseconds per packet; `None` if only cycles are known.
    pub ns: Option<f64>,
    /// Cycles per packet; `None` if the processor has no counter of them.
    pub cycles: Option<f64>,
    /// Measured here or stated by the paper; otherwise the rest of a stated total.
    pub stated: bool,
}

/// The total cost of a packet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bar {
    /// Whose.
    pub name: String,
    /// In the order of a packet's way.
    pub parts: Vec<Part>,
}

impl Bar {
    /// The sum of the parts in cycles, if all are known.
    pub fn cycles(&self) -> Option<f64> {
        self.parts.iter().map(|part| part.cycles).sum()
    }

    /// The sum of the parts in nanoseconds, if all are known.
    pub fn ns(&self) -> Option<f64> {
        self.parts.iter().map(|part| part.ns).sum()
    }
}

/// The steps of the engine `xdp`, and the component that each is measured as.
const XDP: [(Step, Id); 7] = [
    (Step::Driver, Id::Driver),
    (Step::Timestamp, Id::TimestampBatch),
    (Step::Filter, Id::FILTER_IN_PROGRAM),
    (Step::Copy, Id::Copy),
    (Step::ColdCells, Id::ColdCells),
    (Step::HandOver, Id::HandOver),
    (Step::Recycle, Id::Recycle),
];

/// The same of the engine `packet`.
const PACKET: [(Step, Id); 6] = [
    (Step::Driver, Id::Driver),
    (Step::SocketBuffer, Id::SocketBuffer),
    (Step::Tap, Id::PacketTap),
    (Step::Filter, Id::PacketFilter),
    (Step::HandOver, Id::PacketHandOver),
    (Step::Recycle, Id::PacketRecycle),
];

/// The bars of both engines, from the measurements.
pub(super) fn ours(components: &[Component]) -> Vec<Bar> {
    let bar = |name: &str, steps: &[(Step, Id)]| {
        let part = |&(step, id): &(Step, Id)| {
            let component = components.iter().find(|component| component.id == id)?;
            let cycles = component.cycles.as_ref().map(super::Figures::median);
            Some(Part { step, ns: Some(component.ns.median()), cycles, stated: true })
        };
        Bar { name: name.to_owned(), parts: steps.iter().filter_map(part).collect() }
    };
    vec![bar("wirecap, xdp", &XDP), bar("wirecap, packet", &PACKET)]
}

/// The next target for optimisation: the largest cost of a packet in wirecap.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Target {
    /// The engine's bar.
    pub bar: String,
    /// The most expensive step except the driver, which does not belong to wirecap. The copy counts
    /// as one step.
    pub step: Step,
    /// Nanoseconds per packet.
    pub ns: f64,
    /// Of the bar's sum.
    pub share: f64,
}

/// The target in an engine's bar; `None` if nothing there costs anything.
pub(super) fn target(bar: &Bar) -> Option<Target> {
    let cost = |steps: &[Step]| -> f64 {
        let parts = bar.parts.iter().filter(|part| steps.contains(&part.step));
        parts.filter_map(|part| part.ns).sum()
    };
    let whole = |step| match step {
        Step::Driver | Step::ColdCells => (step, 0.0),
        Step::Copy => (step, cost(&[Step::Copy, Step::ColdCells])),
        _ => (step, cost(&[step])),
    };
    let steps = Step::ALL.into_iter().map(whole);
    let (step, ns) =
        steps.max_by(|(_, ns), (_, other)| ns.total_cmp(other)).filter(|(_, ns)| *ns > 0.0)?;

    Some(Target { bar: bar.name.clone(), step, ns, share: ns / bar.ns()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(parts: &[(Step, f64)]) -> Bar {
        let part = |&(step, ns)| Part { step, ns: Some(ns), cycles: None, stated: true };
        Bar { name: "a bar".to_owned(), parts: parts.iter().map(part).collect() }
    }

    #[test]
    fn the_target_is_the_largest_step_but_the_driver() {
        let parts = [
            (Step::Driver, 50.0),
            (Step::Copy, 10.0),
            (Step::ColdCells, 20.0),
            (Step::Filter, 20.0),
        ];
        let target = target(&bar(&parts)).unwrap();
        assert_eq!((target.step, target.ns, target.share), (Step::Copy, 30.0, 0.3));
    }

    #[test]
    fn there_is_no_target_where_nothing_costs_anything() {
        assert_eq!(super::target(&bar(&[(Step::Driver, 50.0), (Step::Filter, -1.0)])), None);
    }
}
