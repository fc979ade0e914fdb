//! `wirecap_group_...`: the settings of a capture.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::time::Duration;

use wirecap::filter::{ClassicInsn, FilterRequest};
use wirecap::{Capture, CaptureBuilder, Direction, Pin, Source, Timestamps};

use crate::abi::{DirectionCode, ENGINES, EngineCode, TimestampsCode, value_of};
use crate::arguments;
use crate::failure::{Failure, Status, call};
use crate::registry::{Handle, Kept, Registry, handle};

/// The values of `enum wirecap_timestamps`, ordered by number.
pub(crate) const TIMESTAMPS: [Timestamps; 4] =
    [Timestamps::None, Timestamps::Batch, Timestamps::Packet, Timestamps::Hardware];
/// The values of `enum wirecap_direction`, ordered by number.
pub(crate) const DIRECTIONS: [Direction; 3] = [Direction::In, Direction::Out, Direction::InOut];

/// Maximum length of a filter program: longer than any filter that the kernel accepts or a compiler
/// generates.
const PROGRAM_INSNS_MAX: usize = 1 << 20;

type Setting = Box<dyn Fn(CaptureBuilder) -> CaptureBuilder + Send + Sync>;

/// A buddy group that has not been opened yet.
#[derive(Default)]
pub(crate) struct Group {
    rings: Vec<Source>,
    /// A savefile to read instead of rings.
    file: Option<String>,
    /// In the order of the calls; later settings override earlier ones.
    settings: Vec<Setting>,
}

static GROUPS: Registry<Group> = Registry::new();

impl Kept for Group {
    const KIND: usize = 1;
    const NAME: &'static str = "group";

    fn registry() -> &'static Registry<Self> {
        &GROUPS
    }
}

impl Group {
    /// The engine's builder for this group.
    pub(crate) fn builder(&self) -> Result<CaptureBuilder, Failure> {
        let refused = |text| Err(Failure::new(Status::Argument, text));
        let builder = match (&self.file, self.rings.split_first()) {
            (Some(_), Some(_)) => return refused("a group has rings or a savefile, not both"),
            (None, None) => return refused("the group is empty; add rings with wirecap_group_add"),
            (Some(path), None) => Capture::file(path),
            (None, Some((first, others))) => {
                others.iter().cloned().fold(Capture::on(first.clone()), CaptureBuilder::and)
            }
        };

        // As in libpcap, promiscuous mode is off by default.
        Ok(self
            .settings
            .iter()
            .fold(builder.promiscuous(false), |builder, setting| setting(builder)))
    }
}

fn change(group: Handle<Group>, change: impl FnOnce(&mut Group) -> Result<(), Failure>) -> c_int {
    call(|| {
        change(&mut *group.write()?)?;
        Ok(Status::Ok)
    })
}

fn set(
    group: Handle<Group>,
    setting: impl Fn(CaptureBuilder) -> CaptureBuilder + Send + Sync + 'static,
) -> c_int {
    change(group, |group| {
        group.settings.push(Box::new(setting));
        Ok(())
    })
}

/// Declares setters that only store their value; opening the group checks it.
macro_rules! setters {
    ($(fn $name:ident($value:ident: $type:ty) |$builder:ident| $set:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(group: Handle<Group>, $value: $type) -> c_int {
            set(group, move |$builder| $set)
        }
    )*};
}

setters! {
    fn wirecap_group_set_take(on: c_int) |builder| builder.take(on != 0);
    fn wirecap_group_set_chunk(cells: u32) |builder| builder.chunk(cells);
    fn wirecap_group_set_pool(chunks: u32) |builder| builder.pool(chunks);
    fn wirecap_group_set_buffer(bytes: u64) |builder| builder.buffer(bytes);
    fn wirecap_group_set_advanced(threshold: f64) |builder| builder.advanced(threshold);
    fn wirecap_group_set_workers(count: u32) |builder| builder.workers(count as usize);
    fn wirecap_group_set_warm(cells: u32) |builder| builder.warm(cells);
    fn wirecap_group_set_drop_rejected(on: c_int) |builder| builder.drop_rejected(on != 0);
    fn wirecap_group_set_snap_len(bytes: u32) |builder| builder.snap_len(bytes);
    fn wirecap_group_set_promiscuous(on: c_int) |builder| builder.promiscuous(on != 0);
    fn wirecap_group_set_stuck_after(away_ns: u64) |builder| builder.stuck_after(Duration::from_nanos(away_ns));
    fn wirecap_group_set_new_packets(cells: u32) |builder| builder.new_packets(cells);
    fn wirecap_group_set_order_wait(longest_ns: u64) |builder| builder.order_wait(Duration::from_nanos(longest_ns));
    fn wirecap_group_set_retire_after(longest_ns: u64) |builder| builder.retire_after(Duration::from_nanos(longest_ns));
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_group_new() -> Handle<Group> {
    handle(|| Handle::keep(Group::default()))
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_group_free(group: Handle<Group>) -> c_int {
    call(|| group.take().map(|_group| Status::Ok))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_group_add(group: Handle<Group>, rings: *const c_char) -> c_int {
    change(group, |group| {
        // SAFETY: the header requires null or a string.
        let rings = unsafe { arguments::text(rings, "the name of the rings") }?;
        group.rings.push(Source::new(rings));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_group_add_with(
    group: Handle<Group>,
    rings: *const c_char,
    filter: *const c_char,
    snap_len: u32,
) -> c_int {
    change(group, |group| {
        // SAFETY: the header requires null or a string.
        let mut source = Source::new(unsafe { arguments::text(rings, "the name of the rings") }?);
        if !filter.is_null() {
            // SAFETY: the header requires null or a string.
            source = source.filter(unsafe { arguments::text(filter, "the filter") }?);
        }
        group.rings.push(if snap_len == 0 { source } else { source.snap_len(snap_len) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_group_set_file(group: Handle<Group>, path: *const c_char) -> c_int {
    change(group, |group| {
        // SAFETY: the header requires null or a string.
        group.file = Some(unsafe { arguments::text(path, "the path of the savefile") }?.to_owned());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_group_set_engine(group: Handle<Group>, engine: EngineCode) -> c_int {
    change(group, |group| {
        let engine = value_of(engine, &ENGINES, "engine")?;
        group.settings.push(Box::new(move |builder| builder.engine(engine)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_group_set_basic(group: Handle<Group>) -> c_int {
    set(group, CaptureBuilder::basic)
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_group_set_elastic(group: Handle<Group>) -> c_int {
    set(group, CaptureBuilder::elastic)
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_group_set_per_interface(group: Handle<Group>) -> c_int {
    set(group, CaptureBuilder::group_per_interface)
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_group_set_forwarding(group: Handle<Group>) -> c_int {
    set(group, CaptureBuilder::forwarding)
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_group_set_unordered(group: Handle<Group>) -> c_int {
    set(group, CaptureBuilder::unordered)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_group_add_port(
    group: Handle<Group>,
    interface: *const c_char,
) -> c_int {
    change(group, |group| {
        // SAFETY: the header requires null or a string.
        let interface =
            unsafe { arguments::text(interface, "the name of the interface") }?.to_owned();
        group.settings.push(Box::new(move |builder| builder.transmit_on(interface.clone())));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_group_set_filter(
    group: Handle<Group>,
    expression: *const c_char,
) -> c_int {
    change(group, |group| {
        // SAFETY: the header requires null or a string.
        let request = FilterRequest::from(unsafe { arguments::text(expression, "the filter") }?);
        group.settings.push(Box::new(move |builder| builder.filter(request.clone())));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_group_set_filter_program(
    group: Handle<Group>,
    insns: *const ClassicInsn,
    count: usize,
) -> c_int {
    change(group, |group| {
        if count == 0 || count > PROGRAM_INSNS_MAX {
            let text = format!("a filter has 1 to {PROGRAM_INSNS_MAX} instructions, not {count}");
            return Err(Failure::new(Status::Argument, text));
        }

        // SAFETY: the header requires null or this many instructions.
        let insns = unsafe { arguments::list(insns, count, "the list of instructions") }?;
        let request = FilterRequest::Program(insns.to_vec());
        group.settings.push(Box::new(move |builder| builder.filter(request.clone())));

        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_group_set_timestamps(group: Handle<Group>, which: TimestampsCode) -> c_int {
    change(group, |group| {
        let which = value_of(which, &TIMESTAMPS, "timestamps")?;
        group.settings.push(Box::new(move |builder| builder.timestamps(which)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_group_set_direction(group: Handle<Group>, direction: DirectionCode) -> c_int {
    change(group, |group| {
        let direction = value_of(direction, &DIRECTIONS, "direction")?;
        group.settings.push(Box::new(move |builder| builder.direction(direction)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_group_set_pin(
    group: Handle<Group>,
    cpus: *const u32,
    count: usize,
) -> c_int {
    change(group, |group| {
        // SAFETY: the header requires null or this many CPU numbers.
        let cpus = unsafe { arguments::list(cpus, count, "the list of CPUs") }?.to_vec();
        let pin = if cpus.is_empty() { Pin::Off } else { Pin::List(cpus) };
        group.settings.push(Box::new(move |builder| builder.pin(pin.clone())));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_group_set_pin_auto(group: Handle<Group>) -> c_int {
    set(group, |builder| builder.pin(Pin::Auto))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(group: &Group) -> String {
        match group.builder() {
            Err(failure) => failure.text,
            Ok(builder) => builder.open().unwrap_err().to_string(),
        }
    }

    #[test]
    fn a_group_has_rings_or_a_file() {
        let mut group = Group::default();
        assert_eq!(error(&group), "the group is empty; add rings with wirecap_group_add");
        group.rings.push(Source::new("nothing@9"));
        group.settings.push(Box::new(|builder| builder.chunk(0)));
        assert_eq!(error(&group), "invalid M (cells per chunk) 0: expected 1 to 65536");
        group.settings.push(Box::new(|builder| builder.chunk(1)));
        assert_eq!(error(&group), "cannot look up the interface");
        group.file = Some("trace.pcap".to_owned());
        assert_eq!(error(&group), "a group has rings or a savefile, not both");
    }
}
